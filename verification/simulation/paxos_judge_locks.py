"""The judges of locks in the log, by commands and outcomes of each slot, and of their sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencelock.actors.api.message import (
    Acquire,
    Cancelled,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.name import client_of
from fencelock.actors.api.request import Key
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.session_message import CloseReason, Ended
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Message
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.table.state import INVARIANTS
from fencelock.actors.table.wire import LogCommand, Queued
from fencelock.verification.simulation.judge import ClientView
from fencelock.verification.simulation.paxos_judge_state import ROUNDING_NS
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge

Owner = tuple[str, str]
"""A session, and an owner in it."""


@dataclass(slots=True)
class LockState:
    """The holder of a lock and its queue, as the outcomes so far say."""

    owner: Owner | None = None
    fence: int = 0
    count: int = 0
    request: int = 0
    """The acquire that was granted last."""
    queue: list[Key] = field(default_factory=list[Key])

    def drop(self) -> None:
        self.count -= 1
        self.owner = self.owner if self.count else None


JUDGED_LOCKS = {
    name: INVARIANTS[name]
    for name in (
        "one-holder",
        "fences-rise",
        "same-fence-again",
        "queue-in-log-order",
        "ended-gets-nothing",
        "release-by-fence",
        "one-outcome",
    )
}
"""The invariants of the table that show in the outcomes of commands."""


class LogLocksJudge:
    """Judges `JUDGED_LOCKS`: it follows the table by outcomes, and looks at nothing inside it."""

    def __init__(self, violation_report: Callable[[str, str], None]) -> None:
        self.violation_report = violation_report
        self.locks: dict[str, LockState] = {}
        self.fence = 0
        """The highest fence."""
        self.spans: dict[Key, int] = {}
        """The number of fences that a grant has, where it is more than one, by acquire."""
        self.granted: dict[Key, Granted] = {}
        self.released: dict[Key, Released] = {}
        self.over: set[Key] = set()
        """Acquires that will never be granted."""
        self.ended: set[str] = set()

    def applied(self, command: LogCommand | None, outcomes: Sequence[Message]) -> None:
        """Judge the outcomes of ``command``; of None if there is none, only time."""
        if isinstance(command, AcquireRetained):
            self.spans[command.key] = command.span
        for outcome in outcomes:
            match outcome:
                case Granted():
                    self._on_granted(outcome, command)
                case Queued(lock=lock, key=key):
                    queue = self._lock(lock).queue
                    if key not in queue:
                        queue.append(key)
                case Released():
                    self._on_released(outcome, command)
                case Refused(lock=lock) if lock:
                    self._on_refused(outcome)
                case Cancelled():
                    self._on_cancelled(outcome)
                case Ended(session=session):
                    self._on_ended(session)
                case _:
                    pass

    def _lock(self, name: str) -> LockState:
        return self.locks.setdefault(name, LockState())

    def _is_repeated(self, before: Message | None, outcome: Message) -> bool:
        """Return whether ``outcome`` is that of a repetition, which must be as ``before``."""
        if before not in (None, outcome):
            self.violation_report("one-outcome", f"{outcome}, it was {before}")
        return before is not None

    def _on_granted(self, granted: Granted, command: LogCommand | None) -> None:
        key, lock = granted.key, self._lock(granted.lock)
        if self._is_repeated(self.granted.get(key), granted):
            return
        self.granted[key] = granted
        owner = (granted.session, granted.owner)
        if granted.session in self.ended:
            self.violation_report("ended-gets-nothing", f"its session has ended: {granted}")
        if key in self.over:
            self.violation_report("one-outcome", f"it was refused or cancelled before: {granted}")
        if lock.owner == owner:
            self._judge_reentry(granted, lock, command)
        elif lock.owner is not None:
            self.violation_report("one-holder", f"{lock} has an owner, yet {granted}")
        else:
            self._judge_entry(granted, lock)
        lock.owner, lock.fence = owner, granted.fence
        lock.count, lock.request = granted.count, granted.request

    def _judge_reentry(self, granted: Granted, lock: LockState, command: LogCommand | None) -> None:
        limit = command.limit if isinstance(command, Acquire) else 1
        counted = granted.count == lock.count + 1 and (not limit or granted.count <= limit)
        if granted.fence != lock.fence or not counted:
            self.violation_report(
                "same-fence-again", f"of {limit} {lock} has been granted, now {granted}"
            )

    def _judge_entry(self, granted: Granted, lock: LockState) -> None:
        if granted.fence <= self.fence:
            self.violation_report("fences-rise", f"{self.fence} was granted before {granted}")
        self.fence = granted.fence + self.spans.get(granted.key, 1) - 1
        if granted.count != 1:
            self.violation_report("same-fence-again", f"the lock was free, yet {granted}")
        if lock.queue and lock.queue[0] != granted.key:
            self.violation_report("queue-in-log-order", f"{lock.queue[0]} waits, yet {granted}")
        del lock.queue[:1]

    def _on_released(self, released: Released, command: LogCommand | None) -> None:
        if self._is_repeated(self.released.get(released.key), released):
            return
        self.released[released.key] = released
        lock = self._lock(released.lock)
        fence = command.fence if isinstance(command, Release) else 0
        if (lock.owner, lock.fence) != ((released.session, released.owner), fence):
            self.violation_report("release-by-fence", f"{lock}, and {command} has {released}")
        lock.drop()
        if lock.count != released.count:
            self.violation_report(
                "same-fence-again", f"{lock.count} holds are left, yet {released}"
            )

    def _on_refused(self, refused: Refused) -> None:
        key, lock = refused.key, self._lock(refused.lock)
        if key in lock.queue:
            lock.queue.remove(key)
        if key not in self.granted and refused.reason is not Reason.SESSION_EXPIRED:
            self.over.add(key)

    def _on_cancelled(self, cancelled: Cancelled) -> None:
        lock = self._lock(cancelled.lock)
        owner, number = (cancelled.session, cancelled.owner), cancelled.request
        self.over.add((*owner, cancelled.lock, number))
        if lock.owner == owner and lock.request == number:
            lock.request = 0
            lock.drop()

    def _on_ended(self, session: str) -> None:
        self.ended.add(session)
        for lock in self.locks.values():
            lock.queue = [key for key in lock.queue if key[0] != session]
            if lock.owner is not None and lock.owner[0] == session:
                lock.owner, lock.count = None, 0


class SessionJudge(Judge):
    """Judges session-outlives-trust: no session expires while its client may rely on it."""

    def __init__(self, violation_report: Callable[[str, str], None], view: ClientView) -> None:
        self.violation_report = violation_report
        self.view = view

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for effect in effects:
            if type(effect) is Send and type(effect.message) is SlotOutcomes:
                for outcome in effect.message.outcomes:
                    if type(outcome) is Ended and outcome.reason is CloseReason.EXPIRED:
                        self._judge(delivered.node, outcome.session)

    def _judge(self, node: str, session: str) -> None:
        client = client_of(session)
        assigned, until = self.view.relied_on(client) or ("", 0)
        left = until - self.view.now(client)
        if left > ROUNDING_NS and assigned == session:
            self.violation_report(
                "session-outlives-trust", f"{node} ends {session}, which lives for {left} ns"
            )
