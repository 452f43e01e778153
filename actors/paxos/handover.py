"""Hand-over of leadership: the successor, the slots under way, and the time limits. Pure."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.paxos.config import View, monitor_of, replica_of
from fencelock.actors.paxos.event import Resign, Resigned
from fencelock.actors.paxos.handover_event import Drain, Drained, Nominate, Nominated
from fencelock.actors.paxos.handover_message import Release, TakeOver
from fencelock.actors.paxos.message import NO_BALLOT, Ballot
from fencelock.actors.paxos.timer import HandOverLate, ResignedLate

HANDOVER_MS = 500
"""Maximum delay of a hand-over by slots under way (ms)."""

RESIGNED_MS = 1_000
"""Maximum time that a `Resign` waits for the next master (ms)."""

AtHandOver = Resign | Nominated | Drained | HandOverLate | ResignedLate
"""Events of a hand-over that a leader handles."""


class HandOver:
    """One hand-over at a time.

    The lease is given back only after the replica has confirmed that it no longer relies on it.
    Then no read can use it, however late this node handles its events. If slots are not decided
    in time, the successor waits for the lease to end instead.

    Args:
        node: the id of its node.
        view: the membership.

    """

    def __init__(self, node: str, view: View) -> None:
        self.node = node
        self.view = view
        self.askers: dict[Address, None] = {}
        """Roles that wait for `Resigned`."""
        self.ballot = NO_BALLOT
        """The leadership that is ending, or that ended last."""
        self.heir = ""
        """The node that is to lead next; empty until it is named."""

    def begin(self, asker: Address, ballot: Ballot) -> list[Effect]:
        """Begin to end the leadership of ``ballot``, unless that has begun."""
        self.askers[asker] = None
        if self.ballot == ballot:
            return []
        self.ballot, self.heir = ballot, ""
        return [
            Send(monitor_of(self.node), Nominate()),
            Wake(HANDOVER_MS, HandOverLate(ballot=ballot)),
            Wake(RESIGNED_MS, ResignedLate(ballot=ballot)),
        ]

    def name(self, heir: str) -> list[Effect]:
        """Make ``heir`` the successor and drain the replica; without one, give up for now."""
        if not heir:
            self.ballot = NO_BALLOT  # The next request starts over, and may find a successor.
            return self.tell("")
        self.heir = heir
        return [Send(replica_of(self.node), Drain(ballot=self.ballot))]

    def pass_on(self, *, drained: bool) -> list[Effect]:
        """Ask the successor to stand; if the replica is drained, give the lease back before."""
        release = Release(ballot=self.ballot)
        released = [Send(acceptor, release) for acceptor in self.view.acceptors] if drained else []
        return [*released, Send(monitor_of(self.heir), TakeOver(ballot=self.ballot))]

    def tell(self, master: str) -> list[Effect]:
        """Tell the waiting roles which node leads now, empty if that is not known."""
        askers, self.askers = self.askers, {}
        return [Send(asker, Resigned(master=master)) for asker in askers]
