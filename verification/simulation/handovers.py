"""A workload with locks that clients hand to each other by secrets, and its judge."""

from __future__ import annotations

from typing import Any, NamedTuple

from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.message import Granted, Released
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.refusal import Cause
from fencelock.actors.api.request import Key
from fencelock.actors.api.session_message import HoldLost
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Message, node_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.verification.simulation.deadlines import DURATIONS_MS, DeadlineJudge, LogTime
from fencelock.verification.simulation.log_judge import LogJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import HANDED, LockUser

DETACH_SHARE = 0.6
"""Share of the ends of holds at which a user detaches the lock instead of releasing it."""

ATTACH_SHARE = 0.6
"""Share of acquires in place of which a user tries to attach the lock."""

SECRETS = 2
"""Number of secrets of a lock. Users draw them, so that wrong and used ones are shown too."""

WITHIN_MS = (50, 1_000, 4_000)


class HandoverUser(LockUser):
    """Now and then detaches its lock, or tries to attach one with a secret that may be wrong."""

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        options["acquisitions"] = 1
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

    def __init__(self) -> None:
        super().__init__()
        self.time = LogTime()
        self.asked: dict[Key, Detach | Attach] = {}
        """The requests that nodes have received."""
        self.released: set[Key] = set()
        self.granted: set[int] = set()
        """The fences of all grants."""
        self.detaching: dict[str, Detach] = {}
        """The requests that end a hold: the next grant must be to nobody."""
        self.detached: dict[str, Detached] = {}

    def _judge(self, report: SlotOutcomes, /) -> None:
        if not self.time.pass_to(report.slot):
            unknown = {lock: one._replace(ends_ms=None) for lock, one in self.detached.items()}
            self.detached = unknown
        for outcome in report.outcomes:
            self._replay(outcome)
        for lock, one in self.detached.items():
            if one.ends_ms is not None and self.time.counted_ms >= one.ends_ms:
                raise ViolationError(f"late: {lock} at {self.time.counted_ms} ms: {one}")

    def _replay(self, outcome: Message) -> None:
        match outcome:
            case Released(key=key, lock=lock) if key not in self.released:
                self.released.add(key)
                if isinstance(asked := self.asked.get(key), Detach):
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
        lock, asked = granted.lock, self.asked.get(granted.key)
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
    - Early, late: nobody loses a detached lock but at its deadline.
    """

    LOG = HandoverLog
    log: HandoverLog

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, contender = delivered.event, delivered.to
        self.log.time.note(event)
        if isinstance(event, Detach | Attach) and node_of(contender) in self.members:
            self.log.asked[event.key] = event
        super().handled(delivered, effects)
        for effect in effects if contender in self.contenders else ():
            match effect:
                case Send(message=Attach(lock=lock)):
                    self.wants[contender] = lock
                case Send(message=Detach(lock=lock)):
                    self._leave(contender, lock)
                case _:
                    pass


HANDOVERS = Workload(HandoverUser, HandoverJudge, retains=True)
