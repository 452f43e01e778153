"""Workloads with locks whose holds have deadlines, or are handed over, and their judges."""

from __future__ import annotations

from typing import Any, NamedTuple

from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.message import Acquire, Granted, Reason, Refused, Released
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.refusal import Cause
from fencelock.actors.api.request import Key
from fencelock.actors.api.session_message import CloseReason, Ended, HoldLost, Renew, Renewed
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Message
from fencelock.actors.paxos.event import Decided, Learned, SlotOutcomes
from fencelock.actors.paxos.message import NO_BALLOT, Batch
from fencelock.actors.role import Host
from fencelock.actors.table.wire import ExtendSessions
from fencelock.cluster.node.lock_machine import read_command
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.log_judge import LogJudge, SlotSequence
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
    """Judges locks as `LockJudge` does, and the ends of holds with deadlines in the log.

    - Early: a hold is not taken away before its duration and grace have passed in log time since
      its grant or its renewal. The time between two leaderships does not count.
    - Relied on: no hold is taken away while its client may rely on it.
    - Lost: a hold that was taken away is not renewed.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.deadlines = DeadlineLog()

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        self.deadlines.time.note(event)
        if isinstance(event, SlotOutcomes):
            self.deadlines.applied(event.slot, event.outcomes)
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


class LogTime:
    """The time of the log, from the batches that members learn."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.next = 0
        """The slot that comes next, 0 before the first."""
        self.time_ms = 0
        self.origin = NO_BALLOT
        self.counted_ms = 0
        """Log time without the times between leaderships."""
        self.ended_ms = 0
        """The counted time by which all that was due must have ended."""

    def note(self, event: object) -> None:
        """Note the batches of an event, if it has any."""
        match event:
            case Decided(slot=slot, batch=batch):
                self.batches.setdefault(slot, batch)
            case Learned(slots=slots):
                for slot, batch in slots:
                    self.batches.setdefault(slot, batch)
            case _:
                pass

    def pass_to(self, slot: int, outcomes: tuple[Message, ...]) -> bool:
        """Let the time up to a later slot pass; return False if some of it is unknown.

        ``outcomes`` are those of that slot; slots before it that were not passed had none.
        """
        passed = [self.batches.pop(one, None) for one in range(self.next or slot, slot + 1)]
        self.next = slot + 1
        for batch in passed[:-1]:
            if batch is not None:
                self._pass(batch, ())
        if (last := passed[-1]) is not None:
            self._pass(last, outcomes)
        return None not in passed  # Else those that learned the slot crashed, or took a snapshot.

    def _pass(self, batch: Batch, outcomes: tuple[Message, ...]) -> None:
        """Let the time of one slot pass.

        Nothing ends while log time stands still, or by a command that extends all sessions. At one
        log time about `ENDS_MAX` items end, and those of sessions that expire count among them: so
        these may leave some to the next.
        """
        leftover = batch.origin < self.origin
        self.origin = max(self.origin, batch.origin)
        passed_ms = 0 if leftover else max(0, batch.time_ms - self.time_ms)
        self.time_ms += passed_ms
        if any(isinstance(read_command(one), ExtendSessions) for one in batch.commands):
            return
        self.counted_ms += passed_ms
        if passed_ms and not any(map(is_expiry, outcomes)):
            self.ended_ms = self.counted_ms


def is_expiry(outcome: Message) -> bool:
    """Return whether ``outcome`` is the end of a session that expired."""
    return isinstance(outcome, Ended) and outcome.reason is CloseReason.EXPIRED


class DeadlineLog:
    """Follows the deadlines of holds through the batches of the log and their outcomes."""

    def __init__(self) -> None:
        self.time = LogTime()
        self.ends: dict[int, int] = {}
        """The end of each hold in counted time, by fence."""
        self.renewed: set[tuple[int, int]] = set()
        """The renewals so far, by fence and request number."""
        self.lost: set[int] = set()

    def applied(self, slot: int, outcomes: tuple[Message, ...]) -> None:
        """Judge the outcomes of a slot when the first member reports it."""
        if slot < self.time.next:
            return
        if not self.time.pass_to(slot, outcomes):
            self.ends.clear()
        for outcome in outcomes:
            self._judge(outcome)

    def _judge(self, outcome: Message) -> None:
        match outcome:
            case Granted(fence=fence) if outcome.hold_ms and fence not in self.ends:
                if fence not in self.lost:
                    self.ends[fence] = self.time.counted_ms + outcome.hold_ms + outcome.grace_ms
            case Renewed(fence=fence):
                if fence in self.lost:
                    raise ViolationError(f"lost: {outcome} for a hold that was taken away")
                if (fence, outcome.request) not in self.renewed and fence in self.ends:
                    self.renewed.add((fence, outcome.request))
                    end = self.time.counted_ms + outcome.hold_ms + outcome.grace_ms
                    self.ends[fence] = max(self.ends[fence], end)
            case HoldLost(fence=fence):
                self.lost.add(fence)
                left_ms = self.ends.pop(fence, 0) - self.time.counted_ms
                if left_ms > 0:
                    raise ViolationError(f"early: {outcome} came {left_ms} ms before its deadline")
            case _:
                pass


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


class Detached(NamedTuple):
    """A detached lock; its deadline is in counted log time, None if that is not known."""

    fence: int
    digest: bytes
    ends_ms: int | None


class HandoverLog(SlotSequence):
    """Follows detached locks by the outcomes of the log; see `HandoverJudge`."""

    REQUESTS = (Detach, Attach)

    def __init__(self) -> None:
        super().__init__()
        self.time = LogTime()
        self.released: set[Key] = set()
        self.granted: set[int] = set()
        """The fences of all grants."""
        self.detaching: dict[str, Detach] = {}
        """The requests that end a hold: the next grant must be to nobody."""
        self.detached: dict[str, Detached] = {}

    def _judge(self, report: SlotOutcomes, /) -> None:
        if not self.time.pass_to(report.slot, report.outcomes):
            unknown = {lock: one._replace(ends_ms=None) for lock, one in self.detached.items()}
            self.detached = unknown
        for outcome in report.outcomes:
            self._replay(outcome)
        for lock, one in self.detached.items():
            if one.ends_ms is not None and self.time.ended_ms >= one.ends_ms:
                raise ViolationError(f"late: {lock} at {self.time.counted_ms} ms: {one}")

    def _replay(self, outcome: Message) -> None:
        match outcome:
            case Released(key=key, lock=lock) if key not in self.released:
                self.released.add(key)
                if isinstance(asked := self.commands.get(key), Detach):
                    self.detaching[lock] = asked
            case Granted(lock=lock, fence=fence) if fence not in self.granted:
                self.granted.add(fence)
                if lock.startswith(HANDED):
                    self._judge_grant(outcome)
            case HoldLost(lock=lock, session=session) if session == NO_CLIENT and lock.startswith(
                HANDED
            ):
                one, why = self.detached.pop(lock, None), outcome.why
                if one is None or one.fence != outcome.fence or why is None:
                    raise ViolationError(f"lost: {outcome!r} while {one}")
                left_ms = 0 if one.ends_ms is None else one.ends_ms - self.time.counted_ms
                if why.cause is Cause.DEADLINE and left_ms > 0:
                    raise ViolationError(f"early: {outcome!r} with {left_ms} ms left")
            case _:
                pass

    def _judge_grant(self, granted: Granted) -> None:
        lock, asked = granted.lock, self.commands.get(granted.key)
        detach, one = self.detaching.pop(lock, None), self.detached.pop(lock, None)
        if detach is not None and granted.session == NO_CLIENT:
            ends_ms = self.time.counted_ms + detach.ttl_ms + 1
            self.detached[lock] = Detached(granted.fence, detach.digest, ends_ms)
        elif detach is not None or (one is not None and not isinstance(asked, Attach)):
            raise ViolationError(f"between: {granted!r} after {detach or one}")
        elif isinstance(asked, Attach) and (one is None or digest_of(asked.secret) != one.digest):
            raise ViolationError(f"attach: {granted!r} by {asked!r}, while {one}")


class HandoverJudge(DeadlineJudge, LogJudge):
    """Judges locks as `DeadlineJudge` does, and in the log the locks that are detached.

    - Between: from its detach on, a lock is granted to nobody until it is attached or lost.
    - Attach: a lock is attached only while it is detached with the digest of the secret, so at most
      once.
    - Early, late: nobody loses a detached lock but at its deadline, or at the next log time if
      sessions expire then.
    """

    LOG = HandoverLog
    log: HandoverLog

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        contender = delivered.to
        self.log.time.note(delivered.event)
        super().handled(delivered, effects)
        if contender in self.contenders:
            for attach in sent(effects, Attach):
                self.wants[contender] = attach.lock
            for detach in sent(effects, Detach):
                self._leave(contender, detach.lock)


HANDOVERS = Workload(HandoverUser, HandoverJudge, retains=True)
