"""Whom a commander asks at once, and whom a little later. Pure.

A majority decides, so one is asked, and the rest hears of a slot when it is decided, with
all others of that moment in one frame: a third less work for three members, and the disks
and processors that a decision waits for are not busy with those it does not wait for.

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
"""Every so many slots everybody is asked, to find out who is quickest now."""


class Behind(NamedTuple):
    """A slot that some have not been asked for."""

    slot: int
    batch: Batch
    spared: tuple[Address, ...]


class QuorumChoice:
    """Chooses a majority for each slot: those whose votes decided the last one.

    So whoever stops to answer is chosen no more as soon as the spared, who are asked a moment
    later, have decided a slot without it.

    It changes how soon somebody is asked, and nothing else: everybody is asked in the end,
    and whose votes count is not known here.

    Args:
        here: the acceptor of this node, which is always asked.
        view: who votes.

    """

    def __init__(self, here: Address, view: View) -> None:
        self.here = here
        self.everybody = view.acceptors
        self.majority = view.majority
        self.chosen = view.acceptors
        """Who is asked at once, in the order of the view; everybody until a slot is decided."""
        self.behind: list[Behind] = []
        """What the spared have to be asked for, the lowest slot first."""

    def choose(self, slot: int, batch: Batch) -> tuple[Address, ...]:
        """Return who is asked for ``slot`` now; the rest is due with the next `take`."""
        chosen = self.chosen
        if slot % EXPLORE == 0 or len(chosen) == len(self.everybody):
            return self.everybody
        spared = tuple(one for one in self.everybody if one not in chosen)
        self.behind.append(Behind(slot, batch, spared))
        return chosen

    def take(self) -> list[Behind]:
        """Return what the spared have not been asked for; they are being asked now."""
        behind, self.behind = self.behind, []
        return behind

    def decided(self, voters: Iterable[Address]) -> None:
        """Prefer ``voters`` from now on, a majority in the order in which they answered."""
        quick = [one for one in voters if one != self.here][: self.majority - 1]
        self.chosen = tuple(one for one in self.everybody if one in quick or one == self.here)
