"""Chooses the members that a commander asks at once, and those it asks later. Pure.

A majority decides, so only a majority is asked at once. The rest learns of a slot when it is
decided, together with all others of that moment in one frame. That is a third less work with
three members, and keeps the disks and processors that a decision waits for free of other work.

Source: "thrifty" operation, I. Moraru, D. Andersen, M. Kaminsky: There Is More Consensus in
Egalitarian Parliaments (SOSP 2013), section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fencelock.actors.message import Address
from fencelock.actors.paxos.config import View
from fencelock.actors.paxos.message import Batch

EXPLORE = 32
"""At each multiple of this slot all members are asked, to find out which are quickest now."""


class Behind(NamedTuple):
    """A slot that some members have not been asked for."""

    slot: int
    batch: Batch
    spared: tuple[Address, ...]


class QuorumChoice:
    """Chooses a majority for each slot: the members whose votes decided the last one.

    A member that stops answering is dropped as soon as the others, which are asked a moment
    later, have decided a slot without it.

    The choice affects only when a member is asked: all are asked in the end, and the commander
    alone counts votes.

    Args:
        here: the acceptor of this node, which is always asked.
        view: the members that vote.

    """

    def __init__(self, here: Address, view: View) -> None:
        self.here = here
        self.everybody = view.acceptors
        self.majority = view.majority
        self.chosen = view.acceptors
        """Members asked at once, in the order of the view; all until a slot is decided."""
        self.behind: list[Behind] = []
        """Slots that the other members have still to be asked for, the lowest first."""

    def choose(self, slot: int, batch: Batch) -> tuple[Address, ...]:
        """Return the members to ask for ``slot`` now; the others are due with the next `take`."""
        chosen = self.chosen
        if slot % EXPLORE == 0 or len(chosen) == len(self.everybody):
            return self.everybody
        spared = tuple(one for one in self.everybody if one not in chosen)
        self.behind.append(Behind(slot, batch, spared))
        return chosen

    def take(self) -> list[Behind]:
        """Remove and return the slots that the other members are asked for now."""
        behind, self.behind = self.behind, []
        return behind

    def decided(self, voters: Iterable[Address]) -> None:
        """Prefer ``voters`` from now on: a majority, in the order of their answers."""
        quick = [one for one in voters if one != self.here][: self.majority - 1]
        self.chosen = tuple(one for one in self.everybody if one in quick or one == self.here)
