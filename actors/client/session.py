"""A user's end of the service: one role that asks, repeats, and leaves gates that are silent."""

from __future__ import annotations

from holdfast.actors.client.admission import why_not
from holdfast.actors.client.gate import GATES_MAX, Gate, Gates
from holdfast.actors.client.ledger import Ledger
from holdfast.actors.client.message import Close, Closed, Survey, Tick
from holdfast.actors.client.outstanding import Outstanding, RandomSource
from holdfast.actors.client.pending import Claim, Question, later
from holdfast.actors.client.survey import Round
from holdfast.actors.client.wording import (
    No,
    refused,
)
from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.link import LinkDown, LinkRefused, LinkUp
from holdfast.actors.lock.message import (
    Abandon,
    Acquire,
    Alive,
    Cancel,
    Cancelled,
    Describe,
    Granted,
    Inspect,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from holdfast.actors.message import NS_PER_MS, Address, Instant, node_of
from holdfast.actors.role import Host, Role

ANSWER_MS = 10_000
"""How long a release or a question may go unanswered before the user is told (ms)."""

SURVEY_MS = 2_000
"""How long a survey waits for the last gate (ms)."""

CLOSE_MS = 2_000
"""How long closing waits for releases and cancels to be confirmed (ms)."""

CLOSED = No(Reason.CANCELLED, "the client is closed")

TICK_MS = 100
"""The grain of the session's own clock (ms): what is due may come so much later."""

Said = (
    Acquire
    | Release
    | Cancel
    | Inspect
    | Describe
    | Granted
    | Released
    | Cancelled
    | Refused
    | LockStatus
    | NodeStatus
    | Alive
    | Abandon
    | Close
    | Survey
    | LinkUp
    | LinkDown
    | LinkRefused
)


class ClientSession(Role[Said | Tick]):
    """Serves the threads of one client process, or roles of its own node.

    A user's ``session`` is ignored and its ``request`` is its own token: the answer
    carries it back. On the wire the session counts its own requests.

    Invariants:
        C1  A user hears one answer to a question, the gate's or the session's.
        C2  A grant that no user waits for any more is withdrawn until that is confirmed.
        C3  A claim waits at one gate at a time, is held through at most one, never both.

    Args:
        session: the id of this client, which its node is named after.
        gates: the proxies it may ask, in the order of preference after the first, 1 to
            `GATES_MAX`, each on a node of its own.
        random: for the first gate and for jitter.
        labels: what the user calls the gates, in texts; by default their nodes.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: str,
        gates: tuple[Address, ...],
        random: RandomSource,
        labels: tuple[str, ...] = (),
    ) -> None:
        super().__init__(address, host)
        labels = labels or tuple(node_of(gate) for gate in gates)
        assert 1 <= len(gates) <= GATES_MAX
        assert len({node_of(gate) for gate in gates}) == len(gates) == len(labels)
        table = {gate: Gate(gate, label) for gate, label in zip(gates, labels, strict=True)}
        doors = Gates(table, gates[random.randrange(len(gates))])
        self.session = session
        self.ledger = Ledger(session, doors, Outstanding(session, random, doors))
        self.surveys_begun = 0
        self.closing = False
        self.closers: tuple[Address, ...] = ()
        self.close_at: Instant | None = None
        self.round = 0
        self.wake_at: Instant | None = None

    def begin(self, now: Instant) -> Effects:
        """Greet every gate, so that it is known which ones answer when the first is needed."""
        ledger = self.ledger
        return [*ledger.outstanding.greet(ledger.gates.table, now), *self._rearm(TICK_MS, now)]

    def handle(self, sender: Address, event: Said | Tick, now: Instant) -> Effects:
        """Do what is asked or heard, and see to it that the next tick comes in time."""
        if isinstance(event, Tick):
            return self._on_tick(event, now)
        effects = [*self._decide(sender, event, now), *self._finish_closing(now)]
        return [*effects, *self._rearm(TICK_MS, now)] if self.ledger.busy() else effects

    def _decide(self, sender: Address, event: Said, now: Instant) -> Effects:
        match event:
            case Granted() | Released() | Refused() | LockStatus() | NodeStatus():
                return self.ledger.on_answer(sender, event, now)
            case Cancelled():
                return self.ledger.on_cancelled(event, now)
            case Alive():
                return self.ledger.on_alive(event, now)
            case LinkUp():
                return self.ledger.on_link_up(event.node, now)
            case LinkDown():
                return self.ledger.on_link_down(event.node, now)
            case LinkRefused():
                return self.ledger.on_link_refused(event.node, event.detail, now)
            case Abandon():
                return self._on_abandon(sender, now)
            case Survey():
                return self._on_survey(sender, now)
            case Close():
                return self._on_close(sender, now)
            case Acquire() | Release() | Cancel() | Inspect() | Describe():
                if node_of(sender) != node_of(self.address):
                    return [Observe("client.stranger_dropped")]
                return self._on_user(sender, event, now)

    def _on_user(self, user: Address, event: Question | Cancel, now: Instant) -> Effects:
        if isinstance(event, Cancel):
            return self._on_cancel(user, event, now)
        ledger = self.ledger
        no = CLOSED if self.closing else why_not(ledger, event, now)
        if no is not None:
            return [Send(user, refused(event, self.session, no))]
        match event:
            case Acquire():
                limit_ms = event.wait_ms
            case Release():
                return self._on_release(user, event, now)
            case Inspect() | Describe():
                limit_ms = ANSWER_MS
        gate = ledger.gates.choose()
        return ledger.outstanding.ask(user, event, gate.address, now, limit_ms=limit_ms)

    def _on_release(self, user: Address, release: Release, now: Instant) -> Effects:
        claim = Claim(release.lock, release.owner)
        outstanding = self.ledger.outstanding
        number = outstanding.releases.get(claim)
        if number is None:
            gate = self.ledger.holds[claim].gate
            return outstanding.ask(user, release, gate, now, limit_ms=ANSWER_MS)
        pending = outstanding.pending[number]  # On its way already: wait for that answer.
        pending.user, pending.asked, pending.asked_at = user, release, now
        pending.ends_at = later(now, ANSWER_MS)
        outstanding.hurry(pending.gate, now)
        return outstanding.repeat(now)

    def _on_cancel(self, user: Address, cancel: Cancel, now: Instant) -> Effects:
        claim = Claim(cancel.lock, cancel.owner)
        ledger = self.ledger
        effects: list[Effect] = []
        hold = ledger.holds.get(claim)
        number = ledger.outstanding.waits.get(claim)
        if number is not None:
            pending = ledger.outstanding.pending[number]
            if pending.asked.request == cancel.request:
                text = f"lock {claim.lock!r}: the wait was cancelled"
                effects += ledger.refuse(pending, No(Reason.CANCELLED, text), now)
        elif hold is not None and hold.token == cancel.request:
            effects += ledger.give_back(claim, now)
        cancelled = Cancelled(
            lock=cancel.lock, session=self.session, owner=cancel.owner, request=cancel.request
        )
        return [*effects, Send(user, cancelled)]

    def _on_abandon(self, user: Address, now: Instant) -> Effects:
        """Undo what ``user`` waited for, or was just granted: nobody is there any more."""
        ledger = self.ledger
        effects: list[Effect] = []
        for pending in list(ledger.outstanding.pending.values()):
            if pending.user != user:
                continue
            if isinstance(pending.asked, Release):
                pending.user, pending.ends_at = None, None
            else:
                effects += ledger.outstanding.withdraw(pending, now)
        for claim, hold in list(ledger.holds.items()):
            if hold.user == user:
                effects += ledger.give_back(claim, now)
        return effects

    def _on_survey(self, user: Address, now: Instant) -> Effects:
        ledger = self.ledger
        no = CLOSED if self.closing else why_not(ledger, Describe(), now)
        if no is not None:
            return [Send(user, refused(Describe(), self.session, no))]
        self.surveys_begun += 1
        number = self.surveys_begun
        effects: list[Effect] = []
        missing: dict[Address, int] = {}
        for gate in ledger.gates.table:
            effects += ledger.outstanding.ask(
                None, Describe(), gate, now, limit_ms=SURVEY_MS, survey=number
            )
            missing[gate] = ledger.outstanding.number
        ledger.surveys[number] = Round(user, missing)
        return [*effects, *ledger.finish_surveys()]

    def _on_close(self, user: Address, now: Instant) -> Effects:
        self.closers = (*self.closers, user)
        if self.closing:
            return ()
        self.closing = True
        self.close_at = later(now, CLOSE_MS)
        ledger = self.ledger
        effects: list[Effect] = []
        no = No(Reason.CANCELLED, "the client was closed")
        for pending in list(ledger.outstanding.pending.values()):
            if pending.survey:
                ledger.outstanding.drop(pending)
            elif not isinstance(pending.asked, Release):
                effects += ledger.refuse(pending, no, now)
        for claim in ledger.holds:
            effects += ledger.give_back(claim, now)
        return [*effects, *ledger.finish_surveys()]

    def _finish_closing(self, now: Instant) -> list[Effect]:
        """Answer who closed once nothing can be confirmed any more, or not in time."""
        if self.close_at is None or not self.closers:
            return []
        left = self.ledger.unconfirmed()
        if now < self.close_at and any(self.ledger.gates.table[gate].usable for gate in left):
            return []
        closers, self.closers = self.closers, ()
        return [Send(user, Closed(unanswered=len(left))) for user in closers]

    def _on_tick(self, tick: Tick, now: Instant) -> Effects:
        if tick.round != self.round:
            return ()
        self.wake_at = None
        effects = [*self.ledger.keep_up(now), *self._finish_closing(now)]
        due = self.ledger.next_at()
        if self.closers and self.close_at is not None:
            due = self.close_at if due is None else min(due, self.close_at)
        if due is None:
            return effects
        return [*effects, *self._rearm(max(TICK_MS, -((now - due) // NS_PER_MS)), now)]

    def _rearm(self, after_ms: int, now: Instant) -> list[Effect]:
        """Wake for a tick in ``after_ms``, unless one comes before that."""
        at = later(now, after_ms)
        if self.wake_at is not None and self.wake_at <= at:
            return []
        self.round += 1
        self.wake_at = at
        return [Wake(after_ms, Tick(round=self.round))]
