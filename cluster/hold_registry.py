"""The locks that the owners of one client hold, as far as the session has reported."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fencelock.actors.api.message import Granted, Released
from fencelock.actors.api.session_message import Unlocking
from fencelock.actors.error import LockOwnershipLostError, NotHeldError
from fencelock.actors.message import Event, Instant
from fencelock.actors.session.message import HoldsLost, Leased, Suspected, Trusted
from fencelock.cluster.callback_executor import CallbackExecutor
from fencelock.cluster.calls import AcquireCall, ReleaseCall
from fencelock.cluster.leases import Leases
from fencelock.cluster.local_hold import (
    LAPSED,
    UNCONFIRMED,
    Callback,
    HoldState,
    Listeners,
    LocalHold,
    Notice,
    loss_error,
    not_held,
)

LOST_MAX = 10_000
"""Limit of remembered losses that no error reported yet. Release of an older one raises "not
held"."""


class HoldRegistry:
    """All holds of a client, by lock and owner. For any thread.

    Invariants:
        G1  A hold that was lost is never held again: a later grant makes another.
        G2  Each loss is reported to callbacks once, however it became known.

    Args:
        now: reads the clock that the session uses.
        executor: calls callbacks.

    """

    def __init__(self, now: Callable[[], Instant], executor: CallbackExecutor) -> None:
        self.listeners = Listeners()
        """The callbacks for all locks of the client."""
        self._now = now
        self._herald = executor
        self._guard = threading.Lock()
        self._grips: dict[tuple[str, str], LocalHold] = {}
        self._lost: deque[tuple[tuple[str, str], LocalHold]] = deque()
        self._leases = Leases()
        self._suspect_at: Instant | None = None
        self._until: Instant | None = None
        """Time until which holds are certain; None where the cluster keeps no sessions."""

    def find(self, lock: str, owner: str) -> LocalHold | None:
        """Return the hold of ``owner`` on ``lock``, judged by the clock; None without one."""
        grip = self._grips.get((lock, owner))
        if grip is None or grip.lost is not None:
            return grip
        now, until, own = self._now(), self._until, grip.until
        if (until is not None and until <= now) or (own is not None and own <= now):
            with self._guard:
                self._expire((grip,))
        return grip

    def state(self, lock: str, owner: str) -> HoldState:
        """Return the state of ``lock`` for ``owner``, computed from the deadline."""
        grip = self.find(lock, owner)
        if grip is None:
            return HoldState.FREE
        if grip.lost is not None:
            return HoldState.LOST
        suspect_at = self._suspect_at
        if suspect_at is not None and suspect_at <= self._now():
            return HoldState.SUSPECT
        return HoldState.UNLOCKING if grip.unlocking else HoldState.HELD

    def hear(self, event: Event) -> None:
        """Handle a notification from the session; on the dispatcher's thread."""
        with self._guard:
            match event:
                case Trusted(suspect_at=suspect_at, until=until):
                    if self._is_over():  # News that arrives late cannot save an expired hold.
                        self._expire(list(self._grips.values()))
                    self._suspect_at, self._until = suspect_at, until
                case Suspected():
                    self._suspect(event)
                case Leased():
                    self._leases.note(event, self._grips.get((event.lock, event.owner)))
                case Unlocking():
                    self._unlocking(event)
                case HoldsLost(losses=losses, detail=detail):
                    for lock, owner, fence in losses:
                        grip = self._grips.get((lock, owner))
                        if grip is not None and grip.fence == fence:
                            grip.known = True
                            self._lose(grip, detail)
                case _:
                    raise AssertionError(f"no watcher is told {event}")

    def granted(self, attempt: AcquireCall, answer: Any, error: BaseException | None) -> None:
        """Create or deepen the hold that ``attempt`` was granted; on the dispatcher's thread."""
        if error is not None:
            return
        assert isinstance(answer, Granted)
        key = attempt.lock, attempt.owner
        with self._guard:
            if attempt.given_up:
                return
            grip = self._grips.get(key)
            if grip is not None and grip.lost is not None and not grip.told:
                attempt.lost_before = grip
                return
            if grip is None or grip.lost is not None or grip.fence != answer.fence:
                tokens, listeners = [attempt.token], [attempt.listeners]
                grip = LocalHold(attempt.lock, attempt.owner, answer.fence, tokens, listeners)
                self._grips[key] = grip
                if answer.hold_ms:
                    self._leases.give(grip)
            else:
                grip.count += 1
                grip.tokens.append(attempt.token)
                if attempt.listeners not in grip.listeners:
                    grip.listeners.append(attempt.listeners)
            attempt.grip = grip

    def give_up(self, attempt: AcquireCall) -> int:
        """Drop the present or future grant of ``attempt``, which was interrupted.

        Return the token of the acquire to undo. It is another acquire's if a concurrent release
        by the same owner has already released the hold of this one.
        """
        with self._guard:
            attempt.given_up = True
            grip, token = attempt.grip, attempt.token
            if grip is not None and grip.count > 0:
                grip.count -= 1
                token = token if token in grip.tokens else grip.tokens[-1]
                grip.tokens.remove(token)
                self._drop_if_done(grip)
            return token

    def leave(self, grip: LocalHold) -> ReleaseCall | None:
        """Begin the release of one hold of ``grip``; return the call that receives its answer.

        Return None and begin nothing while another release of it is not confirmed.

        Raises:
            NotHeldError: nothing of it is left.
            LockOwnershipLostError: it was lost; this error reports the loss of one hold.

        """
        with self._guard:
            if grip.lost is not None:
                raise self._tell_loss(grip)
            if grip.leaving is not None:
                return None
            if grip.count == 0:
                raise NotHeldError(not_held(grip.lock, grip.owner))
            grip.count -= 1
            grip.tokens.pop()
            grip.leaving = leaving = ReleaseCall(self.released, grip)
            return leaving

    def give_back(self, grip: LocalHold) -> int | None:
        """Leave the release of one hold to the session: return the token of its acquire.

        Return None if nothing of it is left.
        """
        with self._guard:
            if grip.lost is not None or grip.count == 0:
                return None
            grip.count -= 1
            return grip.tokens.pop()

    def ask_again(self, grip: LocalHold) -> ReleaseCall | None:
        """Return the call that receives the answer of a repeated release of ``grip``.

        Return None if the first may still be answered, or was confirmed meanwhile.
        """
        with self._guard:
            if grip.leaving is None or (grip.leaving.sent and not grip.leaving.done):
                return None
            grip.leaving = leaving = ReleaseCall(self.released, grip)
            return leaving

    def released(self, leaving: ReleaseCall, answer: Any, error: BaseException | None) -> None:
        """Handle the outcome of a release; on the dispatcher's thread."""
        grip = leaving.grip
        with self._guard:
            match error:
                case None:
                    assert isinstance(answer, Released)
                    # A repetition may have released the next hold: the cluster's count is right.
                    if answer.count < grip.count:
                        grip.count = answer.count
                        del grip.tokens[grip.count :]
                case NotHeldError():
                    grip.count = 0
                case LockOwnershipLostError():
                    grip.known = True
                    self._lose(grip, str(error))
                case _:
                    return  # Not confirmed: the session goes on repeating it in the background.
            grip.leaving = None
            self._drop_if_done(grip)

    def tell_loss(self, grip: LocalHold) -> LockOwnershipLostError:
        """Return the error that reports the loss of all holds of ``grip``: its owner may go on."""
        with self._guard:
            grip.count = 0
            return self._tell_loss(grip)

    def loss_of(self, grip: LocalHold) -> LockOwnershipLostError | None:
        """Return the error that reports the loss of ``grip``, None if it is not lost."""
        with self._guard:
            if grip.lost is None:
                return None
            grip.told = True
            return loss_error(grip)

    def clear(self) -> None:
        """Forget everything: the client is closed."""
        with self._guard:
            self._grips.clear()
            self._leases.clear()
            self._lost.clear()

    def _is_over(self) -> bool:
        until = self._until
        return until is not None and until <= self._now()

    def _expire(self, hold_registry: Iterable[LocalHold]) -> None:
        now = self._now()
        for grip in hold_registry:
            lapsed = grip.until is not None and grip.until <= now
            self._lose(grip, LAPSED if lapsed else UNCONFIRMED)

    def _unlocking(self, word: Unlocking) -> None:
        grip = self._grips.get((word.lock, word.owner))
        if grip is None or grip.fence != word.fence or grip.lost is not None:
            return
        grip.unlocking = True
        detail = f"its duration is over: release or renew it, or it is lost in {word.grace_ms} ms"
        self._call(grip, HoldState.UNLOCKING, detail, lambda listeners: listeners.unlocking)

    def _lose(self, grip: LocalHold, why: str) -> None:
        if grip.lost is not None:
            return  # G2
        grip.lost = why
        self._lost.append(((grip.lock, grip.owner), grip))
        if len(self._lost) > LOST_MAX:
            key, oldest = self._lost.popleft()
            if self._grips.get(key) is oldest:
                del self._grips[key]
        self._call(grip, HoldState.LOST, why, lambda listeners: listeners.lost)

    def _suspect(self, suspected: Suspected) -> None:
        detail = (
            f"the cluster has not confirmed the session for {suspected.silent_ms} ms; "
            f"what it holds counts as lost in {suspected.left_ms} ms"
        )
        for grip in self._grips.values():
            if grip.lost is None:
                self._call(grip, HoldState.SUSPECT, detail, lambda listeners: listeners.suspect)

    def _call(
        self,
        grip: LocalHold,
        state: HoldState,
        why: str,
        kind: Callable[[Listeners], list[Callback]],
    ) -> None:
        """Call all callbacks registered for that kind of notice of ``grip``."""
        notice = Notice(grip.lock, grip.owner, grip.fence, state, why)
        for listeners in (*grip.listeners, self.listeners):
            for callback in kind(listeners):
                self._herald.call(callback, notice)

    def _tell_loss(self, grip: LocalHold) -> LockOwnershipLostError:
        """Count one hold of a lost lock as reported."""
        grip.told = True
        grip.count = max(0, grip.count - 1)
        self._drop_if_done(grip)
        return loss_error(grip)

    def _drop_if_done(self, grip: LocalHold) -> None:
        key = grip.lock, grip.owner
        if grip.count == 0 and grip.leaving is None and self._grips.get(key) is grip:
            del self._grips[key]
