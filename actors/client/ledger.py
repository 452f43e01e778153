"""Who of a client's users asked what and holds what, and what the gates say to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.actors.client.gate import Gates
from holdfast.actors.client.outstanding import Outstanding
from holdfast.actors.client.pending import Claim, Debt, Pending, later
from holdfast.actors.client.survey import Round
from holdfast.actors.client.wording import No, answers, refused, silence, wrong_cluster
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.lock.message import (
    Acquire,
    Alive,
    Answer,
    Cancel,
    Cancelled,
    Granted,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from holdfast.actors.message import Address, Instant

KEEPALIVE_MS = 1_000
"""How often a gate with anything pending or held hears that the client is there (ms)."""

FinalAnswer = Granted | Released | Refused | LockStatus | NodeStatus


@dataclass(slots=True)
class Hold:
    """A lock that was granted to an owner of this client."""

    gate: Address
    """Who granted it: the hold lives there, so its release goes there."""
    fence: int
    user: Address
    token: int
    """The number the user gave its `Acquire`, by which it can take it back."""


@dataclass(slots=True)
class Ledger:
    """The session's memory. Every method returns what has to be said in consequence."""

    session: str
    gates: Gates
    outstanding: Outstanding
    holds: dict[Claim, Hold] = field(default_factory=dict[Claim, Hold])
    surveys: dict[int, Round] = field(default_factory=dict[int, Round])
    greet_at: Instant | None = None

    def refuse(self, pending: Pending, no: No, now: Instant) -> list[Effect]:
        """End ``pending`` with ``no``; a wait is withdrawn, a release goes on unattended."""
        effects = self._reply(pending, refused(pending.asked, self.session, no))
        if isinstance(pending.asked, Release):
            pending.user, pending.ends_at = None, None
            return effects
        return [*effects, *self.outstanding.withdraw(pending, now)]

    def give_back(self, claim: Claim, now: Instant) -> list[Effect]:
        """Release what ``claim`` holds, though nobody waits for the answer."""
        hold = self.holds[claim]
        if claim in self.outstanding.releases:
            return []
        release = Release(lock=claim.lock, fence=hold.fence, owner=claim.owner)
        return self.outstanding.ask(None, release, hold.gate, now, limit_ms=None)

    def on_answer(self, sender: Address, answer: FinalAnswer, now: Instant) -> list[Effect]:
        """Pass ``answer`` to who asked, once; drop what nobody waits for."""
        pending = self.outstanding.pending.get(answer.request)
        if answer.session != self.session:
            return [Observe("client.answer_of_another_session_dropped")]
        if pending is None:
            return self._on_late(sender, answer)
        if not pending.was_sent or not answers(pending.asked, answer):
            return [Observe("client.unfit_answer_dropped")]
        effects = self._heard(pending.gate, now)
        match answer:
            case Granted():
                return effects + self._on_granted(pending, answer)
            case Refused():
                return effects + self._on_refused(pending, answer, now)
            case Released():
                del self.holds[Claim(answer.lock, answer.owner)]
            case LockStatus():
                pass
            case NodeStatus():
                if pending.survey:
                    return effects + self._on_surveyed(pending, answer)
        self.outstanding.drop(pending)
        return effects + self._reply(pending, answer)

    def on_cancelled(self, cancelled: Cancelled, now: Instant) -> list[Effect]:
        """Cross a withdrawal off, and let the wait go on that had to stay behind it."""
        debt = None
        if cancelled.session == self.session:
            debt = self.outstanding.settle(cancelled)
        if debt is None:
            return [Observe("client.late_answer_dropped")]
        return self._heard(debt.gate, now) + self.outstanding.held_back(debt, now)

    def on_alive(self, alive: Alive, now: Instant) -> list[Effect]:
        """Note that a gate lives; the number of the greeting says which."""
        if alive.session != self.session:
            return [Observe("client.answer_of_another_session_dropped")]
        order = list(self.gates.table)
        return self._heard(order[alive.request % len(order)], now)

    def on_link_up(self, node: str, now: Instant) -> list[Effect]:
        """Greet ``node``, which may be new, and repeat at once what is unanswered there."""
        gate = self.gates.of_node(node)
        if gate is None:
            return [Observe("client.unknown_link")]
        revived = not gate.usable
        self.gates.linked(gate, now)
        self.outstanding.hurry(gate.address, now)
        effects = self._come_back(now) if revived else []
        effects += self.outstanding.greet([gate.address], now)
        return effects + self.outstanding.repeat(now)

    def on_link_down(self, node: str, now: Instant) -> list[Effect]:
        """Take what can move to another gate."""
        gate = self.gates.of_node(node)
        if gate is None:
            return [Observe("client.unknown_link")]
        gate.down = True
        left = self.outstanding.leave(gate.address, now)
        return [Observe("client.link_down"), *left, *self.finish_surveys()]

    def on_link_refused(self, node: str, detail: str, now: Instant) -> list[Effect]:
        """Never mind this gate; tell every user if it was the last."""
        gate = self.gates.of_node(node)
        if gate is None:
            return [Observe("client.unknown_link")]
        gate.refused = detail
        effects: list[Effect] = [Observe("client.gate_refused")]
        if self.gates.all_refused():
            no = wrong_cluster(self.gates, now)
            for pending in list(self.outstanding.pending.values()):
                if not pending.survey:
                    effects += self.refuse(pending, no, now)
        else:
            effects += self.outstanding.leave(gate.address, now)
        return effects + self.finish_surveys()

    def keep_up(self, now: Instant) -> list[Effect]:
        """Do what time demands: greet, leave the silent, end what is over, repeat."""
        effects: list[Effect] = []
        busy = self._busy()
        self._forgive_idle(busy)
        if not busy:
            self.greet_at = None
        elif self.greet_at is None or self.greet_at <= now:
            effects += self.outstanding.greet(busy, now)
            self.greet_at = later(now, KEEPALIVE_MS)
        for gate in self.gates.fall_silent(busy, now):
            effects.append(Observe("client.gate_silent"))
            effects += self.outstanding.leave(gate, now)
        for pending in self.outstanding.over(now):
            if pending.survey:
                self.outstanding.drop(pending)
            else:
                effects.append(Observe("client.unanswered"))
                effects += self.refuse(pending, silence(pending, self.gates, now), now)
        return [*effects, *self.outstanding.repeat(now), *self.finish_surveys()]

    def finish_surveys(self) -> list[Effect]:
        """Answer the surveys that no usable gate has still to contribute to."""
        effects: list[Effect] = []
        for number, survey in list(self.surveys.items()):
            left = [
                pending
                for question in survey.missing.values()
                if (pending := self.outstanding.pending.get(question)) is not None
            ]
            if any(self.gates.table[pending.gate].usable for pending in left):
                continue
            for pending in left:
                self.outstanding.drop(pending)
            del self.surveys[number]
            effects.append(Send(survey.user, survey.result(self.gates)))
        return effects

    def unconfirmed(self) -> list[Address]:
        """Return, for each release and withdrawal without an answer, the gate that owes it."""
        outstanding = self.outstanding
        return [
            *(outstanding.pending[number].gate for number in outstanding.releases.values()),
            *(debt.gate for debt in outstanding.withdrawals),
        ]

    def busy(self) -> bool:
        """Whether anything may become due."""
        outstanding = self.outstanding
        return bool(outstanding.pending or outstanding.withdrawals or self.holds)

    def next_at(self) -> Instant | None:
        """Return when `keep_up` is due next; None if nothing goes on."""
        due = self.outstanding.next_at()
        if self.greet_at is None or due is None:
            return self.greet_at if due is None else due
        return min(due, self.greet_at)

    def _reply(self, pending: Pending, answer: Answer) -> list[Effect]:
        if pending.user is None:
            return []
        return [Send(pending.user, replace(answer, request=pending.asked.request))]

    def _heard(self, gate: Address, now: Instant) -> list[Effect]:
        return self._come_back(now) if self.gates.heard(gate, now) else []

    def _come_back(self, now: Instant) -> list[Effect]:
        """Now that a gate is usable again, bring it what is stranded at others."""
        effects: list[Effect] = [Observe("client.gate_back")]
        for gate in self.gates.table.values():
            if not gate.usable:
                effects += self.outstanding.leave(gate.address, now)
        return effects

    def _on_granted(self, pending: Pending, granted: Granted) -> list[Effect]:
        claim = Claim(granted.lock, granted.owner)
        assert claim not in self.holds  # C3
        assert pending.user is not None
        self.outstanding.drop(pending)
        self.holds[claim] = Hold(
            gate=pending.gate,
            fence=granted.fence,
            user=pending.user,
            token=pending.asked.request,
        )
        return self._reply(pending, granted)

    def _on_refused(self, pending: Pending, answer: Refused, now: Instant) -> list[Effect]:
        match pending.asked:
            case Acquire() if answer.reason is Reason.CANCELLED:
                # Not our doing: the gate took us for gone. Our user still waits.
                self.outstanding.renew(pending, now)
                return [Observe("client.wait_renewed")]
            case Release(lock=lock, owner=owner):
                if answer.reason is Reason.NOT_HELD:
                    del self.holds[Claim(lock, owner)]
                elif pending.user is None:
                    return []  # Nobody to tell, and the hold is still there: go on.
            case _:
                pass
        self.outstanding.drop(pending)
        return self._reply(pending, answer)

    def _on_surveyed(self, pending: Pending, status: NodeStatus) -> list[Effect]:
        self.outstanding.drop(pending)
        survey = self.surveys[pending.survey]
        del survey.missing[pending.gate]
        survey.statuses[pending.gate] = status
        return self.finish_surveys()

    def _on_late(self, sender: Address, answer: FinalAnswer) -> list[Effect]:
        """Drop an answer nobody waits for; a grant among them is handed back (C2).

        A withdrawal sees to that, unless a network that delays without bound brought
        the wait to a gate that had forgotten its withdrawal.
        """
        effects: list[Effect] = [Observe("client.late_answer_dropped")]
        if not isinstance(answer, Granted) or sender not in self.gates.table:
            return effects
        claim = Claim(answer.lock, answer.owner)
        hold = self.holds.get(claim)
        repeated = hold is not None and hold.fence == answer.fence
        if repeated or Debt(sender, claim) in self.outstanding.withdrawals:
            return effects
        cancel = Cancel(
            lock=answer.lock, session=self.session, owner=answer.owner, request=answer.request
        )
        return [*effects, Send(sender, cancel), Observe("client.stray_grant_returned")]

    def _busy(self) -> list[Address]:
        """Return the gates that must know we live, in order; all, if none answers."""
        pending = self.outstanding.pending.values()
        used = {question.gate for question in pending} | {h.gate for h in self.holds.values()}
        if pending and not self.gates.any_usable():
            return list(self.gates.table)
        return [gate for gate in self.gates.table if gate in used]

    def _forgive_idle(self, busy: list[Address]) -> None:
        """Count no silence of a gate that has nothing to tell us."""
        owing = {debt.gate for debt in self.outstanding.withdrawals}
        for gate in self.gates.table.values():
            if gate.address not in busy and gate.address not in owing:
                gate.owing_since = None
