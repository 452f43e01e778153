"""Requests of a session that have no reply yet, and their repetition."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.message import CancellableRequest, ReleaseRequest
from fencelock.actors.api.query import LockQuery, is_watch
from fencelock.actors.api.request import Request
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.session.endpoint import Endpoints
from fencelock.actors.session.pending import (
    ANY_ENDPOINT,
    DECISION_MS,
    MARGIN_MS,
    RETRY_MS,
    RETRY_MS_MAX,
    WATCH_RETRY_MS_MAX,
    WITHDRAWAL_MS_MAX,
    CancelKey,
    Claim,
    Pending,
    PendingCancel,
    Question,
    RandomSource,
    as_sent,
    cancel_of,
    later,
    paused,
)
from fencelock.actors.session.read_window import ReadWindow
from fencelock.actors.session.session_lease import SessionLease


@dataclass(slots=True)
class InFlight:
    """All unanswered requests; the requests of one claim are sent one after another.

    No acquire or update is sent to an endpoint that owes a `Cancelled` for its claim, and no
    request of a claim while an earlier one is unanswered (``releases`` also has renewals). So an
    endpoint knows of one wait of a claim at a time, and one cancel per endpoint and claim is
    enough. Where sessions are kept, any endpoint knows all waits and holds of the client; otherwise
    each has its own.
    """

    random: RandomSource
    endpoints: Endpoints
    session_lease: SessionLease
    windows: tuple[ReadWindow, ReadWindow]
    """For linearizable reads, and for reads with a maximum age."""
    number: int = 0
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    waits: dict[Claim, int] = field(default_factory=dict[Claim, int])
    releases: dict[Claim, list[int]] = field(default_factory=dict[Claim, list[int]])
    withdrawals: dict[CancelKey, PendingCancel] = field(
        default_factory=dict[CancelKey, PendingCancel]
    )

    def ask(
        self,
        user: Address | None,
        question: Question,
        claim: Claim | None,
        endpoint: Address,
        now: Instant,
        *,
        limit_ms: int | None,
        survey: int = 0,
        owed: bool = False,
    ) -> list[Effect]:
        """Send ``question`` to ``endpoint``, and repeat it until `drop`.

        ``claim`` is None for a request that needs no session.
        """
        self.number = number = self.number + 1
        ends_at = None if limit_ms is None else later(now, limit_ms)
        # By position, which costs half of what keywords do.
        pending = Pending(number, user, question, claim, endpoint, now, ends_at)
        if survey or owed:
            pending.survey, pending.owed = survey, owed
        if is_watch(question):
            pending.step_ms = RETRY_MS_MAX
        self._file(pending)
        return self._send(pending, now)

    def drop(self, pending: Pending) -> None:
        """Forget ``pending``: it has a reply, or is not wanted any more."""
        del self.pending[pending.number]
        claim = pending.claim
        if claim is None:
            if (window := self._window(pending)) is not None:
                window.drop(pending.number)
            return
        if isinstance(pending.asked, CancellableRequest):
            del self.waits[claim]
            return
        numbers = self.releases[claim]
        numbers.remove(pending.number)
        if not numbers:
            del self.releases[claim]

    def withdraw(self, pending: Pending, now: Instant) -> list[Effect]:
        """Forget ``pending``; cancel a wait at the endpoint to which it was sent."""
        self.drop(pending)
        claim = pending.claim
        if claim is None:
            return []
        if not isinstance(pending.asked, CancellableRequest) or pending.sent_at is None:
            return self.go_on(claim, now)
        endpoint = self.endpoints.table[pending.endpoint]
        if endpoint.refused and endpoint.heard_at is None and not self.session_lease.kept:
            return []  # It never was a node of ours; a kept wait may have been elsewhere before.
        debt = self._debt(pending.endpoint, claim)
        assert debt not in self.withdrawals
        withdrawal = PendingCancel(pending.number, now, paused(self.random, RETRY_MS, now))
        self.withdrawals[debt] = withdrawal
        return [self.cancel(debt, withdrawal, now)]

    def go_on(self, claim: Claim, now: Instant, endpoint: Address = ANY_ENDPOINT) -> list[Effect]:
        """Send the requests that were blocked by an earlier one of ``claim`` (at ``endpoint``)."""
        if claim not in self.waits and claim not in self.releases:
            return []
        effects: list[Effect] = []
        numbers = self.releases.get(claim, [])
        if claim in self.waits:
            numbers = sorted([*numbers, self.waits[claim]])
        for number in list(numbers):
            pending = self.pending[number]
            if pending.sent_at is None and endpoint in (ANY_ENDPOINT, pending.endpoint):
                effects += self._send(pending, now)
        return effects

    def send_held_back(self, now: Instant) -> list[Effect]:
        """Send the reads whose turn has come, since earlier ones have ended."""
        effects: list[Effect] = []
        for window in self.windows:
            while (number := window.next()) is not None:
                pending = self.pending[number]
                pending.resend_at, pending.step_ms = paused(self.random, RETRY_MS, now), RETRY_MS
                effects += self._send(pending, now)
        return effects

    def leave(self, endpoint: Address, now: Instant) -> list[Effect]:
        """Move requests from ``endpoint`` to the next usable endpoint, as far as possible.

        Where the cluster keeps the session, all move, under their numbers. Otherwise a request is
        sent there under a new number for the rest of its time, the wait under the old number is
        cancelled, and a release stays with its hold. Without a usable endpoint everything stays.
        """
        other = self.endpoints.after(endpoint)
        if other is None:
            return []
        if self.endpoints.current == endpoint:
            self.endpoints.current = other.address
        return self.move(endpoint, other.address, now)

    def move(self, endpoint: Address, other: Address, now: Instant) -> list[Effect]:
        """Move requests from ``endpoint`` to ``other``, as far as possible; see `leave`."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.endpoint != endpoint or pending.survey:
                continue
            if self.session_lease.kept:
                pending.endpoint = other
                pending.resend_at, pending.step_ms = paused(self.random, RETRY_MS, now), RETRY_MS
                effects += self._send(pending, now)
            elif not isinstance(pending.asked, ReleaseRequest):
                effects += self.again(pending, other, now)
            else:
                continue
            effects.append(Observe("client.request_moved"))
        for debt, withdrawal in self.withdrawals.items():
            if debt.endpoint == ANY_ENDPOINT:
                withdrawal.resend_at = paused(self.random, RETRY_MS, now)
                withdrawal.step_ms = RETRY_MS
                effects.append(self.cancel(debt, withdrawal, now))
        return effects

    def renew(self, pending: Pending, now: Instant) -> None:
        """Send a request to the same endpoint under a new number, after a pause.

        The endpoint has ended the wait under the old number.
        """
        self.drop(pending)
        self._file(self._renumbered(pending, pending.endpoint, now))

    def start_over(self, now: Instant) -> list[Effect]:
        """Send the requests that waited for the session, which is open now."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if pending.sent_at is None:
                pending.resend_at, pending.step_ms = paused(self.random, RETRY_MS, now), RETRY_MS
                effects += self._send(pending, now)
        return effects

    def repeat(self, now: Instant) -> list[Effect]:
        """Repeat the requests and cancels that are due."""
        effects: list[Effect] = []
        for pending in list(self.pending.values()):
            if self._resend_at(pending) <= now:
                most_ms = WATCH_RETRY_MS_MAX if is_watch(pending.asked) else RETRY_MS_MAX
                pending.step_ms = min(2 * pending.step_ms, most_ms)
                pending.resend_at = paused(self.random, pending.step_ms, now)
                effects += self._send(pending, now)
        for debt, withdrawal in self.withdrawals.items():
            if withdrawal.resend_at <= now:
                withdrawal.step_ms = min(2 * withdrawal.step_ms, WITHDRAWAL_MS_MAX)
                withdrawal.resend_at = paused(self.random, withdrawal.step_ms, now)
                effects.append(self.cancel(debt, withdrawal, now))
        return effects

    def hurry(self, endpoint: Address, now: Instant) -> None:
        """Make everything unanswered at ``endpoint`` due: its link is new."""
        for pending in self.pending.values():
            if pending.endpoint == endpoint:
                pending.resend_at, pending.step_ms = now, RETRY_MS
        for debt, withdrawal in self.withdrawals.items():
            if debt.endpoint in (ANY_ENDPOINT, endpoint):
                withdrawal.resend_at, withdrawal.step_ms = now, RETRY_MS

    def send(
        self,
        address: Address,
        message: Request,
        now: Instant,
        *,
        owes: bool = True,
    ) -> Send:
        """Send, and note that ``address`` owes a reply, unless that may come much later."""
        endpoint = self.endpoints.table[address]
        if owes and endpoint.owing_since is None:
            endpoint.owing_since = now
        return Send(address, message)

    def over(self, now: Instant) -> list[Pending]:
        """Return the requests that time out now, by the session's own clock."""
        return [
            pending
            for pending in self.pending.values()
            if (end := self._end(pending)) is not None and end <= now
        ]

    def next_at(self) -> Instant | None:
        """Return when the next request is due, or None if all are answered."""
        ends = (self._end(pending) for pending in self.pending.values())
        return min(
            [
                *map(self._resend_at, self.pending.values()),
                *(end for end in ends if end is not None),
                *(withdrawal.resend_at for withdrawal in self.withdrawals.values()),
            ],
            default=None,
        )

    def _resend_at(self, pending: Pending) -> Instant:
        if pending.resend_at is None:
            pending.resend_at = paused(self.random, pending.step_ms, pending.requested_at)
        return pending.resend_at

    def _end(self, pending: Pending) -> Instant | None:
        asked = pending.asked
        if pending.ends_at is None or not isinstance(asked, CancellableRequest) or not asked.WAITS:
            return pending.ends_at
        if not self.endpoints.any_usable():
            return pending.ends_at  # No node can judge the wait, or grant it.
        least = later(pending.requested_at, DECISION_MS)
        return max(least, later(pending.ends_at, MARGIN_MS))

    def again(self, pending: Pending, endpoint: Address, now: Instant) -> list[Effect]:
        """Send the request to ``endpoint`` under a new number; cancel a wait under the old."""
        effects = self.withdraw(pending, now)
        renewed = self._renumbered(pending, endpoint, now)
        self._file(renewed)
        return [*effects, *self._send(renewed, now)]

    def _renumbered(self, pending: Pending, endpoint: Address, now: Instant) -> Pending:
        self.number += 1
        renumbered = replace(pending, number=self.number, endpoint=endpoint)
        renumbered.resend_at = paused(self.random, RETRY_MS, now)
        renumbered.survey, renumbered.owed = pending.survey, pending.owed
        return renumbered

    def _file(self, pending: Pending) -> None:
        number, claim = pending.number, pending.claim
        self.pending[number] = pending
        if claim is None:
            return
        if isinstance(pending.asked, CancellableRequest):
            self.waits[claim] = number
        else:
            self.releases.setdefault(claim, []).append(number)

    def _send(self, pending: Pending, now: Instant) -> list[Effect]:
        session_lease, claim = self.session_lease, pending.claim
        session = session_lease.name
        if claim is not None:
            if not session_lease.ready or self._waits_its_turn(claim, pending.number):
                return []
            if (
                self.withdrawals
                and (debt := self._debt(pending.endpoint, claim)) in self.withdrawals
            ):
                return [self.cancel(debt, self.withdrawals[debt], now)]
            session = session_lease.assigned
        elif (window := self._window(pending)) is not None and not window.admit(pending.number):
            return []
        pending.said += 1
        if pending.sent_at is None:
            pending.sent_at = now
        said = as_sent(pending, session, now)
        # A grant may take long; where the session is kept, keep-alives show that a node lives.
        if session_lease.kept and isinstance(said, CancellableRequest) and said.WAITS:
            return [Send(pending.endpoint, said)]
        return [self.send(pending.endpoint, said, now, owes=not is_watch(said))]

    def _window(self, pending: Pending) -> ReadWindow | None:
        asked = pending.asked
        if pending.claim is not None or not isinstance(asked, LockQuery) or is_watch(asked):
            return None
        bounded = not isinstance(asked, ReadBackup) and asked.age_ms is not None
        return self.windows[bounded]

    def _waits_its_turn(self, claim: Claim, number: int) -> bool:
        """Return whether an earlier request of ``claim`` than ``number`` is unanswered."""
        if self.waits.get(claim, number) < number:
            return True
        line = self.releases.get(claim)
        return line is not None and line[0] < number  # Numbers only rise: the first is the least.

    def _debt(self, endpoint: Address, claim: Claim) -> CancelKey:
        return CancelKey(ANY_ENDPOINT if self.session_lease.kept else endpoint, claim)

    def cancel(self, debt: CancelKey, withdrawal: PendingCancel, now: Instant) -> Send:
        """Send a cancel, once more."""
        withdrawal.last_sent_at = now
        cancel = cancel_of(debt, withdrawal, self.session_lease.assigned)
        return self.send(debt.endpoint or self.endpoints.current, cancel, now)
