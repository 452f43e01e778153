"""What a session said to its gates and has no answer to yet, and how it is said again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.actors.client.gate import Gates
from holdfast.actors.client.pending import (
    RETRY_MS,
    Claim,
    Debt,
    Pending,
    Question,
    Withdrawal,
    later,
    left_ms,
    moves,
)
from holdfast.actors.effect import Effect, Observe, Send
from holdfast.actors.lock.message import (
    Acquire,
    Cancel,
    Cancelled,
    Describe,
    Inspect,
    KeepAlive,
    Release,
    Request,
)
from holdfast.actors.message import Address, Instant

RETRY_MS_MAX = 4_000
"""The longest: how late a gate that restarted may hear of a wait (ms)."""

WITHDRAWAL_MS_MAX = 15_000
"""The longest pause between two cancels of one wait: nobody waits for it any more (ms)."""

MARGIN_MS = 4_500
"""A wait's own time is judged by the proxy; so much later the session ends it itself (ms).

Long enough to leave a gate that fell silent (`SILENCE_MS`) and to be answered by the next.
"""

JITTER = 0.5
"""Pauses vary by this part of themselves, so that clients do not repeat in step."""


class RandomSource(Protocol):
    """The part of ``random.Random`` that a session draws from."""

    def random(self) -> float:
        """Return a number from 0 to less than 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to less than ``stop``."""
        ...


@dataclass(slots=True)
class Outstanding:
    """Everything unanswered. No `Acquire` goes to a gate that owes a `Cancelled` for its claim.

    So a gate is told of one wait of a claim at a time, and a withdrawal per gate and
    claim is all that has to be remembered.
    """

    session: str
    random: RandomSource
    gates: Gates
    number: int = 0
    greetings: int = 0
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    waits: dict[Claim, int] = field(default_factory=dict[Claim, int])
    releases: dict[Claim, int] = field(default_factory=dict[Claim, int])
    withdrawals: dict[Debt, Withdrawal] = field(default_factory=dict[Debt, Withdrawal])

    def ask(
        self,
        user: Address | None,
        question: Question,
        gate: Address,
        now: Instant,
        *,
        limit_ms: int | None,
        survey: int = 0,
    ) -> list[Effect]:
        """Say ``question`` to ``gate``, again and again until `drop`."""
        self.number += 1
        pending = Pending(
            number=self.number,
            user=user,
            asked=question,
            gate=gate,
            asked_at=now,
            ends_at=None if limit_ms is None else later(now, limit_ms),
            resend_at=self._pause(RETRY_MS, now),
            survey=survey,
        )
        self._file(pending)
        return self._say(pending, now)

    def drop(self, pending: Pending) -> None:
        """Forget ``pending``: it was answered, or nobody cares."""
        del self.pending[pending.number]
        match pending.asked:
            case Acquire(lock=lock, owner=owner):
                del self.waits[Claim(lock, owner)]
            case Release(lock=lock, owner=owner):
                del self.releases[Claim(lock, owner)]
            case Inspect() | Describe():
                pass

    def withdraw(self, pending: Pending, now: Instant) -> list[Effect]:
        """Forget ``pending``, and have a wait that was sent undone where it was sent."""
        self.drop(pending)
        if not isinstance(pending.asked, Acquire) or not pending.was_sent:
            return []
        gate = self.gates.table[pending.gate]
        if gate.refused and gate.heard_at is None:
            return []  # It never was a node of ours: nothing was asked of it.
        debt = Debt(pending.gate, Claim(pending.asked.lock, pending.asked.owner))
        assert debt not in self.withdrawals
        withdrawal = Withdrawal(pending.number, self._pause(RETRY_MS, now))
        self.withdrawals[debt] = withdrawal
        return [self._cancel(debt, withdrawal, now)]

    def settle(self, cancelled: Cancelled) -> Debt | None:
        """Take note that a wait was undone; return who owed it, None if nobody did."""
        claim = Claim(cancelled.lock, cancelled.owner)
        for gate in self.gates.table:
            debt = Debt(gate, claim)
            withdrawal = self.withdrawals.get(debt)
            if withdrawal is not None and withdrawal.number == cancelled.request:
                del self.withdrawals[debt]
                return debt
        return None

    def held_back(self, debt: Debt, now: Instant) -> list[Effect]:
        """Say the wait that was held back until ``debt`` was settled."""
        number = self.waits.get(debt.claim)
        if number is None or self.pending[number].gate != debt.gate:
            return []
        return self._say(self.pending[number], now)

    def leave(self, gate: Address, now: Instant) -> list[Effect]:
        """Take what can be asked elsewhere from ``gate`` to the next usable one.

        It is asked there under a new number, for what is left of its time; the wait
        under the old number is withdrawn. Without a usable gate everything stays.
        """
        other = self.gates.after(gate)
        if other is None:
            return []
        if self.gates.current == gate:
            self.gates.current = other.address
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.gate == gate and moves(pending):
                effects += self._again(pending, other.address, now)
                effects.append(Observe("client.request_moved"))
        return effects

    def renew(self, pending: Pending, now: Instant) -> None:
        """Ask the same gate once more under a new number, after a pause.

        The gate answered the old number for good: that wait is over there.
        """
        self.drop(pending)
        self._file(self._renumbered(pending, pending.gate, now))

    def repeat(self, now: Instant) -> list[Effect]:
        """Say again what is due."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.resend_at <= now:
                pending.step_ms = min(2 * pending.step_ms, RETRY_MS_MAX)
                pending.resend_at = self._pause(pending.step_ms, now)
                effects += self._say(pending, now)
        for debt, withdrawal in self.withdrawals.items():
            if withdrawal.resend_at <= now:
                withdrawal.step_ms = min(2 * withdrawal.step_ms, WITHDRAWAL_MS_MAX)
                withdrawal.resend_at = self._pause(withdrawal.step_ms, now)
                effects.append(self._cancel(debt, withdrawal, now))
        return effects

    def hurry(self, gate: Address, now: Instant) -> None:
        """Make everything unanswered at ``gate`` due: its link is new."""
        for pending in self.pending.values():
            if pending.gate == gate:
                pending.resend_at, pending.step_ms = now, RETRY_MS
        for debt, withdrawal in self.withdrawals.items():
            if debt.gate == gate:
                withdrawal.resend_at, withdrawal.step_ms = now, RETRY_MS

    def greet(self, gates: Iterable[Address], now: Instant) -> list[Effect]:
        """Tell ``gates`` that the client is there. The number says which gate answers."""
        self.greetings += 1
        order = list(self.gates.table)
        return [
            self.say(
                gate,
                KeepAlive(
                    session=self.session,
                    request=self.greetings * len(order) + order.index(gate),
                ),
                now,
            )
            for gate in gates
        ]

    def say(self, address: Address, message: Request, now: Instant) -> Send:
        """Send, and note that ``address`` owes an answer."""
        gate = self.gates.table[address]
        if gate.owing_since is None:
            gate.owing_since = now
        return Send(address, message)

    def over(self, now: Instant) -> list[Pending]:
        """Return what the session's own clock ends now."""
        return [
            pending
            for pending in self.pending.values()
            if (end := self._end(pending)) is not None and end <= now
        ]

    def next_at(self) -> Instant | None:
        """Return when the next thing is due; None if nothing is unanswered."""
        ends = (self._end(pending) for pending in self.pending.values())
        return min(
            [
                *(pending.resend_at for pending in self.pending.values()),
                *(end for end in ends if end is not None),
                *(withdrawal.resend_at for withdrawal in self.withdrawals.values()),
            ],
            default=None,
        )

    def _end(self, pending: Pending) -> Instant | None:
        if pending.ends_at is None or not isinstance(pending.asked, Acquire):
            return pending.ends_at
        # With every link broken nobody else will judge the wait, and nobody can grant it.
        return later(pending.ends_at, MARGIN_MS if self.gates.any_usable() else 0)

    def _again(self, pending: Pending, gate: Address, now: Instant) -> list[Effect]:
        effects = self.withdraw(pending, now)
        renewed = self._renumbered(pending, gate, now)
        self._file(renewed)
        return [*effects, *self._say(renewed, now)]

    def _renumbered(self, pending: Pending, gate: Address, now: Instant) -> Pending:
        self.number += 1
        return replace(
            pending,
            number=self.number,
            gate=gate,
            resend_at=self._pause(RETRY_MS, now),
            step_ms=RETRY_MS,
            was_sent=False,
        )

    def _file(self, pending: Pending) -> None:
        self.pending[pending.number] = pending
        match pending.asked:
            case Acquire(lock=lock, owner=owner):
                self.waits[Claim(lock, owner)] = pending.number
            case Release(lock=lock, owner=owner):
                self.releases[Claim(lock, owner)] = pending.number
            case Inspect() | Describe():
                pass

    def _say(self, pending: Pending, now: Instant) -> list[Effect]:
        asked, number = pending.asked, pending.number
        if isinstance(asked, Acquire):
            debt = Debt(pending.gate, Claim(asked.lock, asked.owner))
            withdrawal = self.withdrawals.get(debt)
            if withdrawal is not None:
                return [self._cancel(debt, withdrawal, now)]
            asked = replace(asked, wait_ms=left_ms(pending, now))
        pending.was_sent = True
        return [self.say(pending.gate, replace(asked, session=self.session, request=number), now)]

    def _cancel(self, debt: Debt, withdrawal: Withdrawal, now: Instant) -> Send:
        cancel = Cancel(
            lock=debt.claim.lock,
            session=self.session,
            owner=debt.claim.owner,
            request=withdrawal.number,
        )
        return self.say(debt.gate, cancel, now)

    def _pause(self, step_ms: int, now: Instant) -> Instant:
        vary = 1 - JITTER / 2 + JITTER * self.random.random()
        return later(now, int(step_ms * vary))
