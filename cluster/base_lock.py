"""The part of a lock object that does not depend on how its user waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pykka

from fencelock.actors.api.message import Cancel, Release
from fencelock.actors.api.session_message import Renew
from fencelock.actors.error import (
    AlreadyHeldError,
    FencelockError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
)
from fencelock.cluster.calls import AcquireCall, ReleaseCall
from fencelock.cluster.hold_registry import HoldRegistry
from fencelock.cluster.local_hold import (
    HOLDING,
    Callback,
    HoldState,
    Listeners,
    LocalHold,
    not_held,
    note_of,
)
from fencelock.cluster.lock_options import (
    LockOptions,
    acquire_by,
    release_by,
    term_ms_of,
    wait_ms_of,
)
from fencelock.cluster.operation import Operation
from fencelock.cluster.session_channel import SessionChannel, closed_meanwhile


class BaseLock:
    """One named lock of the cluster. Objects of one name and owner in a client are one lock.

    Every property is computed from the clock when it is read, so none goes stale.
    """

    _runner: Callable[[], str]
    """Returns the owner of the running thread or task, for locks without an explicit owner."""

    def __init__(
        self, line: SessionChannel, hold_registry: HoldRegistry, terms: LockOptions
    ) -> None:
        self._line = line
        self._grips = hold_registry
        self._terms = terms
        self._owner = self._runner if terms.owner is None else partial(str, terms.owner)
        self._wait_ms = wait_ms_of(terms.timeout)
        self._acquire, self._release = terms.acquire(), Release(lock=terms.name, fence=0)
        self._listeners = Listeners()

    @property
    def name(self) -> str:
        """The name under which all clients know the lock."""
        return self._terms.name

    @property
    def owner(self) -> str:
        """The owner that the caller is to the cluster, as `status` shows it."""
        return self._owner()

    @property
    def fence(self) -> int | None:
        """The fence of the caller's hold, None without one.

        After a loss this is the fence of the lost hold, until the loss was reported. Resources
        that check fences refuse requests under it, which is the purpose of fences.
        """
        grip = self._grip()
        return None if grip is None else grip.fence

    @property
    def state(self) -> HoldState:
        """The state of the lock for the caller's owner; see `HoldState`."""
        return HoldState.FREE if self._line.forked else self._grips.state(self.name, self.owner)

    @property
    def held(self) -> bool:
        """Whether the caller's owner holds the lock for certain now.

        It stays true until a release is confirmed. It turns false at the latest when the
        cluster may end the session, or may take the lock because its deadline has passed.
        """
        return self.state in HOLDING

    @property
    def lost(self) -> bool:
        """Whether the caller's owner lost the lock and no error has reported it yet."""
        return self.state is HoldState.LOST

    def raise_if_lost(self) -> None:
        """Return only while the caller's owner holds the lock.

        Raises:
            LockOwnershipLostError: it was lost. Raised each time, until `release`, the end of
                ``with`` or `acquire` reports the loss.
            NotHeldError: this owner does not hold it.

        """
        self._sure_grip()

    def on_lost(self, callback: Callback) -> None:
        """Have ``callback`` called with a `Notice` when what this object acquired is lost."""
        self._listeners.lost.append(callback)

    def on_suspect(self, callback: Callback) -> None:
        """Have ``callback`` called with a `Notice` when what this object acquired is in doubt."""
        self._listeners.suspect.append(callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Have ``callback`` called with a `Notice` when the duration of such a hold ends.

        Nothing is unlocked before the grace ends, too: until then the holder decides, by
        ``release`` or ``renew``.
        """
        self._listeners.unlocking.append(callback)

    def __repr__(self) -> str:
        try:
            owner = self.owner
        except RuntimeError:
            return f"<Lock {self.name!r}>"
        state, fence = self.state, self.fence
        text = "not held here" if fence is None else f"{state.value} under fence {fence}"
        return f"<Lock {self.name!r} of {owner!r}, {text}>"

    def _grip(self) -> LocalHold | None:
        return None if self._line.forked else self._grips.find(self.name, self.owner)

    def _sure_grip(self) -> LocalHold:
        """Return the caller's hold, or raise as `raise_if_lost` does."""
        grip = self._grip()
        if grip is None:
            raise NotHeldError(not_held(self.name, self.owner))
        if (loss := self._grips.loss_of(grip)) is not None:
            raise loss
        return grip

    def _acquiring(self, blocking: bool, timeout: float | None) -> Operation[int | None]:
        """Acquire as a lock's `acquire` does: end with the fence, or None for "not now"."""
        if not blocking and timeout is not None:
            raise ValueError("can't specify a timeout for a non-blocking call")
        wait_ms = self._wait_ms if timeout is None else wait_ms_of(timeout)
        return self._entering(wait_ms if blocking else 0, trying=True)

    def _entering(self, wait_ms: int | None, *, trying: bool = False) -> Operation[int | None]:
        """Acquire, and end with the fence or an error: ``with`` never enters unheld.

        With ``trying``, end with None for "not now".
        """
        lock, owner = self._terms.name, self._owner()
        self._line.check()
        grip = self._grips.find(lock, owner)
        if grip is not None:
            began = time.monotonic()
            yield from self._before_acquire(grip)
            self._line.check()
            if wait_ms is not None:
                wait_ms = max(0, wait_ms - int((time.monotonic() - began) * 1000))
        attempt = AcquireCall(self._grips.granted, lock, owner, self._listeners)
        try:
            self._line.submit(acquire_by(self._acquire, owner, attempt.token, wait_ms), attempt)
            yield attempt
            return self._entered(attempt)
        except FencelockError as error:
            if trying and _is_not_now(error, wait_ms):
                return None
            raise
        except pykka.ActorDeadError:
            raise closed_meanwhile() from None
        except BaseException:
            # Interrupted, perhaps after the grant: the session gives back what it has.
            self._cancel(attempt.lock, attempt.owner, self._grips.give_up(attempt))
            self._line.abandon(attempt)
            raise

    def _entered(self, attempt: AcquireCall) -> int:
        """Return the fence of what was granted, if it can still be held."""
        if attempt.lost_before is not None:
            self._cancel(attempt.lock, attempt.owner, attempt.token)
            raise self._told(attempt.lost_before)
        grip = attempt.grip
        assert grip is not None
        if self._grips.find(attempt.lock, attempt.owner) is grip and grip.lost is not None:
            raise self._told(grip)  # Granted so late that somebody else may hold it by now.
        return grip.fence

    def _before_acquire(self, grip: LocalHold) -> Operation[None]:
        """End an earlier hold: report its loss, or wait until its release is confirmed."""
        if grip.lost is not None:
            told = grip.told
            error = self._told(grip)
            if not told:
                raise error
        elif (reply := grip.leaving) is not None and reply.sent and not reply.done:
            # Whatever the outcome, the session then knows whether the owner may acquire.
            with suppress(FencelockError):
                yield from self._line.answer(reply)

    def _releasing(self) -> Operation[None]:
        """Release one hold, as a lock's `release` does."""
        name, owner = self._terms.name, self._owner()
        self._line.check()
        grip = self._grips.find(name, owner)
        if grip is None:
            raise NotHeldError(not_held(name, owner))
        while True:
            if grip.lost is not None:
                self._hand_back(grip)
            reply = self._grips.leave(grip)
            if reply is not None:
                self._send_release(grip, reply)
                try:
                    yield reply
                except pykka.ActorDeadError:
                    raise closed_meanwhile() from None
                return
            last = grip.count == 0
            try:
                yield from self._confirming(grip)
            except BaseException:
                if not last:  # This release still happens, once the one before it is done.
                    self._give_back(grip)
                raise
            if last or grip.count == 0:
                return
            self._line.check()

    def _renewing(self, duration: float | None) -> Operation[None]:
        """Start the duration of the hold anew, as a lock's `renew` does."""
        hold_ms = term_ms_of("duration", duration)
        self._line.check()
        grip = self._sure_grip()
        renew = Renew(lock=grip.lock, fence=grip.fence, hold_ms=hold_ms, owner=grip.owner)
        try:
            yield from self._line.ask(renew)
        except NotHeldError:
            self._sure_grip()
            raise

    def _give_back(self, grip: LocalHold) -> None:
        token = self._grips.give_back(grip)
        if token is not None:
            self._cancel(grip.lock, grip.owner, token)

    def _confirming(self, grip: LocalHold) -> Operation[None]:
        """Wait until a release that began before is confirmed; send it again if necessary."""
        reply = self._grips.ask_again(grip)
        if reply is not None:
            self._send_release(grip, reply)
        else:
            reply = grip.leaving
        if reply is None:
            return
        try:
            yield from self._line.answer(reply)
        except NotHeldError:
            return  # Released in the background meanwhile.

    def _send_release(self, grip: LocalHold, leaving: ReleaseCall) -> None:
        self._line.submit(release_by(self._release, grip.fence, grip.owner), leaving)
        leaving.sent = True

    def _exiting(self, error: BaseException | None) -> Operation[None]:
        """Release at the end of ``with``. A failure is added to the body's ``error`` as a note."""
        try:
            yield from self._releasing()
        except FencelockError as failure:
            if error is None:
                raise
            if not isinstance(error, LockOwnershipLostError):
                error.add_note(note_of(self.name, failure))

    def _cancel(self, lock: str, owner: str, token: int) -> None:
        """Have the session undo an acquire, whether it waits or is held."""
        self._line.tell(Cancel(lock=lock, session="", owner=owner, request=token))

    def _told(self, grip: LocalHold) -> LockOwnershipLostError:
        self._hand_back(grip)
        return self._grips.tell_loss(grip)

    def _hand_back(self, grip: LocalHold) -> None:
        """Release what the deadline took, in case the session believes that it is still held."""
        if grip.known:
            return
        grip.known = True
        for _ in range(grip.count):
            self._line.tell(Release(lock=grip.lock, fence=grip.fence, owner=grip.owner))


def _is_not_now(error: FencelockError, wait_ms: int | None) -> bool:
    """Return whether an acquire with ``wait_ms`` reports ``error`` as a mere "not now"."""
    if isinstance(error, AlreadyHeldError | LimitReachedError):
        return wait_ms is not None  # At once: it would wait for itself.
    return isinstance(error, LockTimeoutError)
