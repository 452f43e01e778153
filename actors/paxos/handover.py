"""How a leader lets another lead: who shall, when nothing is under way, and until when. Pure."""

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
"""How long slots under way may keep a master from going (ms)."""

RESIGNED_MS = 1_000
"""How long whoever asked is kept waiting for the next master (ms)."""

AtHandOver = Resign | Nominated | Drained | HandOverLate | ResignedLate
"""What a leader hears of a hand-over."""


class HandOver:
    """One hand-over at a time.

    The lease is given back only when the replica has said that it trusts it no more: then
    no read can be answered by it, however late events of this node are handled. If slots
    do not get decided in time, the successor waits for the end of the lease instead.

    Args:
        node: where it is.
        view: who is a member.

    """

    def __init__(self, node: str, view: View) -> None:
        self.node = node
        self.view = view
        self.askers: dict[Address, None] = {}
        """Who waits for `Resigned`."""
        self.ballot = NO_BALLOT
        """The reign that is ending, or that ended last."""
        self.heir = ""
        """Who shall lead next; empty while nobody is named."""

    def begin(self, asker: Address, ballot: Ballot) -> list[Effect]:
        """Begin to end the reign of ``ballot``, unless that has begun."""
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
        """Let ``heir`` be the successor, and the replica come to an end; or give up for now."""
        if not heir:
            self.ballot = NO_BALLOT  # Whoever asks again is answered, and somebody may be there.
            return self.tell("")
        self.heir = heir
        return [Send(replica_of(self.node), Drain(ballot=self.ballot))]

    def pass_on(self, *, drained: bool) -> list[Effect]:
        """Tell the successor to stand; if the replica is done, give the lease back before."""
        release = Release(ballot=self.ballot)
        released = [Send(acceptor, release) for acceptor in self.view.acceptors] if drained else []
        return [*released, Send(monitor_of(self.heir), TakeOver(ballot=self.ballot))]

    def tell(self, master: str) -> list[Effect]:
        """Tell whoever waits who leads now, empty if that is not known."""
        askers, self.askers = self.askers, {}
        return [Send(asker, Resigned(master=master)) for asker in askers]
