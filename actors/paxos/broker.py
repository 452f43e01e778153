"""The broker of a node: what its proxy wants of locks, said to the replicated log and back."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.lock.backend import Full, Give, Got, Look, Ready, Taken, Want
from holdfast.actors.lock.command import (
    CloseReason,
    CloseSession,
    Command,
    KeepSession,
    OpenSession,
)
from holdfast.actors.lock.message import Absence
from holdfast.actors.lock.outcome import (
    Denial,
    Denied,
    Forced,
    Freed,
    Held,
    Lost,
    Queued,
    SessionClosed,
    SessionKept,
    SessionOpened,
    WaitCancelled,
)
from holdfast.actors.message import Address, Instant, Message, ms_between, node_of
from holdfast.actors.paxos.broker_event import Heard, OfALock, Round, Told
from holdfast.actors.paxos.errand import Errand, Errands, Stage
from holdfast.actors.paxos.event import Happened
from holdfast.actors.paxos.holders import Holders
from holdfast.actors.paxos.message import Declined, Propose, Proposed
from holdfast.actors.role import Host, Role

TTL_MS = 15_000
"""A node that the log has not heard for so long has lost what is held through it (log time)."""

KEEP_MS = 1_000
"""How often the node says that it is there."""

SILENCE_MS = 1_500
"""After so long without a word from the log, waits are said to wait for a majority."""

ROUND_MS = 250
"""How often it is looked for commands that need to be proposed again."""

TICKETS_MAX = 100_000
"""Waits and holds through one node; beyond it a want is refused."""


class Broker(Role[Heard]):
    """Turns tickets into commands of one session, the node's own, and outcomes into grants.

    The log is heard through the node's own replica, which tells every outcome, so an
    answer cannot be lost, only late; what is proposed may be lost and is proposed again,
    under the same number, until its outcome is heard.

    Invariants:
        B1  A ticket is told `Got` once, and never after its `Give`.
        B2  An outcome counts only if it names the session in force.

    Args:
        name: what the session calls itself: ``node/boot``, so that no life is another's.
        members: the nodes that vote, for texts.
        proxy: whose tickets these are.
        replica: the replica of this node, which takes proposals.
        encode: a command as the log carries it.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        name: str,
        members: tuple[str, ...],
        proxy: Address,
        replica: Address,
        encode: Callable[[Message], bytes],
    ) -> None:
        super().__init__(address, host)
        self.name = name
        self.node = node_of(address)
        self.members = members
        self.majority = f"a majority of {', '.join(members)}"
        self.proxy = proxy
        self.replica = replica
        self._encode = encode
        self.session = ""
        self.requests = 0
        self.proposals = 0
        self.errands = Errands()
        self.holders = Holders()
        self.heard_at = Instant(0)
        self.kept_at: Instant | None = None
        self.ready = False
        self.former: dict[str, None] = {}
        """Sessions of former lives of this node that are still open: nobody serves them."""

    def begin(self, now: Instant) -> Effects:
        """Open the node's session."""
        self.heard_at = now
        return [*self._keep(now), Wake(ROUND_MS, Round())]

    def handle(
        self,
        sender: Address,
        event: Heard,
        now: Instant,
    ) -> Effects:
        """Pass on what the proxy wants and what the log decided."""
        if isinstance(event, Told):
            return self._on_told(sender, event, now)
        match event:
            case Want():
                return self._on_want(event, now)
            case Give():
                return self._on_give(event, now)
            case Look():
                return [self._seen(event, now)]
            case Happened():
                return self._on_happened(event, now)
            case Proposed():
                return ()  # Its outcomes come with `Happened`.
            case Declined():
                return self._on_declined(event)
            case Round():
                return self._on_round(now)

    def _on_want(self, want: Want, now: Instant) -> Effects:
        if len(self.errands.by_ticket) >= TICKETS_MAX:
            text = f"{TICKETS_MAX} waits and holds go through this node, its limit"
            return [Send(self.proxy, Full(lock=want.lock, ticket=want.ticket, detail=text))]
        self.requests += 1
        label = "/".join(part for part in (want.session, want.owner) if part)
        errand = Errand(want.ticket, want.lock, label[:80], self.requests)
        self.errands.add(errand, self.session, (want.session, want.owner))
        return self._propose_for(errand, now)

    def _on_give(self, give: Give, now: Instant) -> Effects:
        errand = self.errands.by_ticket.get(give.ticket)
        if errand is None or errand.stage is Stage.GIVEN:
            return ()
        if errand.stage is Stage.HELD:
            self.requests += 1
            errand.given = self.requests
        elif errand.asked_at is None:
            self._drop(errand)
            return ()
        errand.stage = Stage.GIVEN
        errand.asked_at = None
        return self._propose_for(errand, now)

    def _propose_for(self, errand: Errand, now: Instant) -> Effects:
        command = errand.command(self.session) if self.session else None
        if command is None:
            return ()
        errand.asked_at = now
        return [self._propose(command)]

    def _propose(self, command: Command) -> Send:
        self.proposals += 1
        propose = Propose(client=self.address, number=self.proposals, command=self._encode(command))
        return Send(self.replica, propose)

    def _keep(self, now: Instant) -> list[Effect]:
        self.kept_at = now
        if self.session:
            return [self._propose(KeepSession(session=self.session))]
        return [self._propose(OpenSession(session=self.name, ttl_ms=TTL_MS, label=self.node))]

    def _on_round(self, now: Instant) -> Effects:
        effects: list[Effect] = [Wake(ROUND_MS, Round())]
        if self.kept_at is None or ms_between(self.kept_at, now) >= KEEP_MS:
            effects += self._keep(now)
            effects += [
                self._propose(CloseSession(session=former, reason=CloseReason.GRACEFUL))
                for former in self.former
            ]
        if self.session:
            for errand in self.errands.by_ticket.values():
                if errand.is_due(now):
                    effects += self._propose_for(errand, now)
        return [*effects, *self._tell_ready(now)]

    def _on_declined(self, declined: Declined) -> Effects:
        # The next round proposes it again.
        return [Observe(f"paxos.proposal_declined_{declined.why.name.lower()}")]

    def _on_happened(self, happened: Happened, now: Instant) -> Effects:
        effects: list[Effect] = []
        for outcome in happened.outcomes:
            effects += self._on_outcome(outcome, now)
        return effects

    def _on_told(self, sender: Address, outcome: Told, now: Instant) -> Effects:
        """Take in what the master's replica says itself: sooner than the log, and again with it."""
        if node_of(sender) not in self.members:
            return [Observe("paxos.stranger_ignored")]
        if isinstance(outcome, Held) and outcome.session == self.session:
            return self._on_own(outcome, now)
        return ()

    def _on_outcome(self, outcome: Message, now: Instant) -> Effects:
        match outcome:
            case SessionOpened() if outcome.session == self.name:
                return self._on_opened(outcome.assigned, now)
            case SessionOpened() if node_of(Address(outcome.session)) == self.node:
                self.former[outcome.assigned] = None
                return ()
            case SessionKept() if outcome.session == self.session:
                self.heard_at = now
                return self._tell_ready(now)
            case SessionClosed():
                self.former.pop(outcome.session, None)
                self.holders.follow(outcome, now)
                return self._lose_session() if outcome.session == self.session else ()
            case Held() | Queued() | Freed() | Denied() | WaitCancelled() | Lost():
                self.holders.follow(outcome, now)
                return self._on_own(outcome, now) if outcome.session == self.session else ()
            case Forced():
                return [Observe("paxos.forced_release")]
            case _:
                return ()

    def _on_opened(self, session: str, now: Instant) -> Effects:
        self.heard_at = now
        effects: list[Effect] = []
        if session != self.session:
            effects += self._lose_session(session)
            for errand in self.errands.by_ticket.values():
                effects += self._propose_for(errand, now)
        return [*effects, *self._tell_ready(now)]

    def _lose_session(self, successor: str = "") -> list[Effect]:
        """Tell the proxy what is held no more; what waits is asked for again, in a new session."""
        old, self.session = self.session, successor
        self.kept_at = None  # At the next round the session is kept, or another one opened.
        return [
            Send(self.proxy, Taken(lock=errand.lock, ticket=errand.ticket))
            for errand in self.errands.move(old, successor)
            if errand.stage is Stage.HELD
        ]

    def _on_own(self, outcome: OfALock, now: Instant) -> Effects:
        """Take in what became of a ticket (B2: of the session in force)."""
        self.heard_at = now
        errand = self.errands.owned_by(outcome.owner)
        if isinstance(outcome, Denied) and outcome.reason is Denial.SESSION_EXPIRED:
            return self._lose_session()
        if errand is None or errand.lock != outcome.lock:
            return ()
        if errand.stage is Stage.GIVEN:
            if isinstance(outcome, Freed | WaitCancelled | Lost) or (
                isinstance(outcome, Denied) and outcome.request == errand.given
            ):
                self._drop(errand)
            return ()
        match outcome:
            case Held():
                if errand.stage is Stage.HELD:
                    return ()
                errand.stage, errand.fence = Stage.HELD, outcome.fence
                got = Got(lock=errand.lock, ticket=errand.ticket, fence=outcome.fence)
                return [Send(self.proxy, got), Observe("paxos.entry")]  # B1
            case Queued():
                if errand.stage is Stage.WANTED:
                    errand.stage = Stage.QUEUED
                return ()
            case Denied():
                self._drop(errand)
                detail = outcome.detail or outcome.reason.name.lower()
                full = Full(lock=errand.lock, ticket=errand.ticket, detail=detail)
                return [Send(self.proxy, full)]
            case Lost():
                self._drop(errand)
                return [Send(self.proxy, Taken(lock=errand.lock, ticket=errand.ticket))]
            case _:
                return ()

    def _drop(self, errand: Errand) -> None:
        self.errands.drop(errand, self.session)

    def _seen(self, look: Look, now: Instant) -> Send:
        silent_ms = ms_between(self.heard_at, now)
        absent = (Absence(self.majority, silent_ms),) if silent_ms >= SILENCE_MS else ()
        return Send(self.proxy, self.holders.seen(look, absent, now, self.errands.names))

    def _tell_ready(self, now: Instant) -> Effects:
        silent_ms = ms_between(self.heard_at, now)
        ready = bool(self.session) and silent_ms < KEEP_MS + SILENCE_MS
        if ready == self.ready:
            return ()
        self.ready = ready
        detail = "ready" if ready else f"nothing heard of {self.majority} for {silent_ms} ms"
        return [Send(self.proxy, Ready(ready=ready, detail=detail))]
