"""Chooses the members that a commander asks at once, and those it asks later. Pure.

A majority decides, so only a majority is asked at once. The rest learns of a slot when it is
decided, together with all others of that moment in one frame. That is a third less work with
three members, and keeps the disks and processors that a decision waits for free of other work.

Source: "thrifty" operation, I. Moraru, D. Andersen, M. Kaminsky: There Is More Consensus in
Egalitarian Parliaments (SOSP 2013), section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencelock.actors.message import Address
from fencelock.actors.paxos.config import View
from fencelock.actors.paxos.message import Accept

EXPLORE = 32
"""At each multiple of this slot all members are asked, to find out which are quickest now."""


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
        self.others: tuple[Address, ...] = ()
        """Members asked later."""
        self.preferred: frozenset[Address] = frozenset(view.acceptors)
        """The same as ``chosen``."""
        self.behind: list[tuple[Accept, tuple[Address, ...]]] = []
        """Proposals, the lowest slot first, and the members that have still to be asked."""

    def choose(self, accept: Accept) -> tuple[Address, ...]:
        """Return the members to ask now; the others are due with the next `take`."""
        if accept.slot % EXPLORE == 0 or not self.others:
            return self.everybody
        self.behind.append((accept, self.others))
        return self.chosen

    def take(self) -> list[tuple[Accept, tuple[Address, ...]]]:
        """Remove and return the proposals that the other members are sent now."""
        behind, self.behind = self.behind, []
        return behind

    def prefer(self, voters: Mapping[Address, None]) -> None:
        """Prefer ``voters`` from now on: a majority, in the order of their answers."""
        quick = [one for one in voters if one != self.here][: self.majority - 1]
        self.preferred = frozenset((*quick, self.here))
        self.chosen = tuple([one for one in self.everybody if one in self.preferred])
        self.others = tuple([one for one in self.everybody if one not in self.preferred])
