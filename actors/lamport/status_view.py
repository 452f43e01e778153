"""A process's view of a lock: its holder, its waiters, and the nodes that must answer."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.message import Contender
from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.lamport.order import Evidence, Turn, pack_fence
from fencelock.actors.lamport.peer_contact import PeerContact
from fencelock.actors.lamport.pending_request import PendingRequests, Ticket
from fencelock.actors.lamport.rejoin import Rejoin
from fencelock.actors.lamport.requests import Requests
from fencelock.actors.message import Instant, ms_between
from fencelock.actors.proxy.backend import Look, Seen

UNSTAMPED = Turn(STAMP_MAX, "")
"""Stands for the turn of a request that is not stamped yet: later than all received stamps."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """The state known to the process of ``node`` at one instant. ``nodes`` are all, sorted."""

    nodes: tuple[str, ...]
    node: str
    requests: Requests
    bids: PendingRequests
    now: Instant

    def seen(self, look: Look, joining: Rejoin, evidence: Evidence, silence: PeerContact) -> Seen:
        """Return the answer to ``look``."""
        holder, waiters = self.contenders(look.lock)
        missing = self.missing(look.lock, joining, evidence, silence)
        return Seen(
            lock=look.lock,
            query=look.query,
            holder=holder,
            waiters=waiters,
            waits_for=silence.absences(missing, self.now),
        )

    def contenders(self, lock: str) -> tuple[Contender | None, tuple[Contender, ...]]:
        """Return the holder of ``lock``, if any, and the waiters in the order of their turns.

        For this node's own request it is known whether it holds. The earliest request
        of another node holds, or is about to; its client is not known here.
        """
        holder: Contender | None = None
        waiters: list[Contender] = []
        for place, turn in enumerate(self.requests.in_order(lock)):
            contender, holds = self._contender(lock, turn, first=place == 0)
            if holds:
                fence = pack_fence(turn.stamp, self.nodes.index(turn.node))
                holder = contender._replace(fence=fence)
            else:
                waiters.append(contender)
        bid = self.bids.out.get(lock)
        if bid is not None and bid.turn is None and not bid.withdrawn:
            waiters.append(self._ours(bid.ticket, bid.ticket.since))
        waiters += [self._ours(ticket, ticket.since) for ticket in self.bids.in_line(lock)]
        return holder, tuple(waiters)

    def missing(
        self, lock: str, joining: Rejoin, evidence: Evidence, silence: PeerContact
    ) -> tuple[str, ...]:
        """Return the nodes that must answer before a ticket of ours is granted ``lock``.

        Before this process is ready, those are the nodes that have not welcomed it. Then they
        are the nodes whose evidence is missing. If none is, it is the node with the first request,
        if it owes us an answer: one that holds the lock and answers is not at fault.
        """
        bid = self.bids.out.get(lock)
        if bid is None:
            return joining.missing() if self.bids.in_line(lock) else ()
        if bid.granted_at is not None:
            return ()
        missing = evidence.missing(bid.turn or UNSTAMPED)
        first = self.requests.first(lock)
        if not missing and first is not None and silence.owes(first.node):
            return (first.node,)
        return missing

    def _contender(self, lock: str, turn: Turn, *, first: bool) -> tuple[Contender, bool]:
        """Return the owner of the request, and whether it holds the lock."""
        if turn.node != self.node:
            since_ms = ms_between(self.requests.known[turn.node][lock], self.now)
            return Contender(turn.node, "", "", None, since_ms), first
        bid = self.bids.out[lock]
        since = bid.ticket.since if bid.granted_at is None else bid.granted_at
        return self._ours(bid.ticket, since), bid.granted_at is not None

    def _ours(self, ticket: Ticket, since: Instant) -> Contender:
        since_ms = ms_between(since, self.now)
        return Contender(self.node, ticket.session, ticket.owner, None, since_ms)
