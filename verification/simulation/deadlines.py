"""Workloads with locks whose holds have deadlines, or are handed over, and their judges."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.lock_message import (
    Acquire,
    Granted,
    HoldLost,
    Reason,
    Refused,
    Renew,
    Renewed,
)
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
from fencelock.verification.simulation.workload import (
    HANDED,
    HOLD_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
    UseEnded,
)

DURATIONS_MS = (0, 120, 300, 800)
"""Durations of holds; 0 for a hold without a deadline."""

GRACES_MS = (100, 300)

RENEW_SHARE = 0.5
"""Share of the ends of work at which a user renews its hold instead of releasing it."""


GONE = (Reason.NOT_HELD, Reason.OWNERSHIP_LOST)
"""The refusals of a renewal after which the lock is not held."""


class DeadlineUser(LockUser):
    """Acquires a lock for a duration, works for less or for longer, and sometimes renews."""

    _named = (*LockUser._named, Renewed)
    MAY_LEAVE_UNAWAITED = False

    def handle(self, sender: Address, event: ContenderEvent | Renewed, now: Instant) -> Effects:
        """Go on to the next action. Replies to renewals have the number of the turn."""
        if not isinstance(event, Renewed | Refused) or not event.request:
            assert not isinstance(event, Renewed)
            return super().handle(sender, event, now)
        if self.phase is not ContenderPhase.HOLDING or event.request != self.turn:
            return [Observe("contender.lost_while_renewing")]
        if isinstance(event, Renewed):
            used = Wake(self.random.randint(0, HOLD_MS_MAX), UseEnded(turn=self.turn))
            return [used, Observe("contender.renewed")]
        if event.reason not in GONE:
            return super()._release()
        return [Observe("contender.not_renewed"), *self._on_end(left=0)]

    def _ask(self, wait_ms: int | None) -> Send:
        hold_ms = self.random.choice(DURATIONS_MS)
        acquire = Acquire(
            lock=self.lock,
            owner=self.owner,
            wait_ms=wait_ms,
            limit=self.most,
            hold_ms=hold_ms,
            grace_ms=self.random.choice(GRACES_MS) if hold_ms else 0,
        )
        return Send(self.session, acquire)

    def _release(self) -> Effects:
        if (
            self.finishing
            or self.phase is not ContenderPhase.HOLDING
            or self.random.random() >= RENEW_SHARE
        ):
            return super()._release()
        renew = Renew(
            lock=self.lock,
            fence=self.fence,
            hold_ms=self.random.choice(DURATIONS_MS),
            owner=self.owner,
            request=self.turn,
        )
        return [Send(self.session, renew), Observe("contender.renews")]


class DeadlineJudge(LockJudge):
    """Judges locks as `LockJudge` does, and the ends of holds with deadlines.

    - Relied on: no hold is taken away while its client may rely on it.
    """

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        if isinstance(event, SlotOutcomes):
            for outcome in event.outcomes:
                if isinstance(outcome, HoldLost):
                    self._judge_belief(outcome)
        of_renewal = isinstance(event, Refused) and event.request
        want = self.wants.get(delivered.to)
        super().handled(delivered, effects)
        if of_renewal and want is not None:
            self.wants.setdefault(delivered.to, want)

    def _judge_belief(self, lost: HoldLost) -> None:
        hold = self.inside.get(lost.lock)
        if hold is None or hold.fence != lost.fence or not self.clocks_true:
            return
        if self.may_be_inside(hold):
            raise ViolationError(f"relied on: {lost} while {hold.contender} may rely on the hold")


DEADLINES = Workload(DeadlineUser, DeadlineJudge)


DETACH_SHARE = 0.6
"""Share of the ends of holds at which a user detaches the lock instead of releasing it."""

ATTACH_SHARE = 0.6
"""Share of acquires in place of which a user tries to attach the lock."""

SECRETS = 2
"""Number of secrets of a lock. Users draw them, so that wrong and used ones are shown too."""

WITHIN_MS = (50, 1_000, 4_000)


class HandoverUser(LockUser):
    """Now and then detaches its lock, or tries to attach one with a secret that may be wrong."""

    MAY_ENTER_AGAIN = False

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.locks = tuple(f"{HANDED}{lock}" for lock in self.locks)
        self.attaching = False
        """Whether its last acquire is an `Attach`."""

    def _secret(self) -> bytes:
        return f"{self.lock}/{self.random.randrange(SECRETS)}".encode()

    def _ask(self, wait_ms: int | None) -> Send:
        self.attaching = not self.finishing and self.random.random() < ATTACH_SHARE
        if not self.attaching:
            return super()._ask(wait_ms)
        attach = Attach(
            lock=self.lock,
            secret=self._secret(),
            owner=self.owner,
            hold_ms=self.random.choice(DURATIONS_MS),
        )
        return Send(self.session, attach)

    def _on_granted(self, granted: Granted) -> Effects:
        attached = [Observe("contender.attaches")] if self.attaching else []
        return [*attached, *super()._on_granted(granted)]

    def _release(self) -> Effects:
        if self.finishing or self.random.random() >= DETACH_SHARE:
            return super()._release()
        self.phase = self.phase.RELEASING
        detach = Detach(
            lock=self.lock,
            fence=self.fence,
            digest=digest_of(self._secret()),
            ttl_ms=self.random.choice(WITHIN_MS),
            owner=self.owner,
        )
        return [Send(self.session, detach), Observe("contender.detaches")]


class HandoverJudge(DeadlineJudge):
    """Judges locks that are detached and attached as `DeadlineJudge` does."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        contender = delivered.to
        super().handled(delivered, effects)
        if contender in self.contenders:
            for detach in sent(effects, Detach):
                self._leave(contender, detach.lock)


HANDOVERS = Workload(HandoverUser, HandoverJudge, retains=True)
