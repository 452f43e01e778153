"""The part of a lock object that does not depend on how its user waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pykka
from msgspec.structs import replace

from fencelock.actors.api.handover import Attach
from fencelock.actors.api.lock_message import AcquireRequest, Contender, Granted, LockStatus
from fencelock.actors.api.name import titled
from fencelock.actors.api.retained import RETAINER, RETAINERS
from fencelock.actors.error import (
    AcquireCancelledError,
    AlreadyHeldError,
    FencelockError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    UnavailableError,
)
from fencelock.actors.session.event import EndWait
from fencelock.actors.session.holds import HOLDING, ClientHold, HoldState
from fencelock.actors.session.requests import DECISION_MS, LockKey, lock_key_named
from fencelock.actors.session.retained import RetainTerms
from fencelock.cluster.client.base_client import BaseClient
from fencelock.cluster.client.callback_executor import Callback, Listeners
from fencelock.cluster.client.hold import (
    BaseHold,
    HasHold,
    confirming,
    exiting,
    lock_and_secret,
    releasing,
    undo,
)
from fencelock.cluster.client.hold_registry import (
    UNREPORTED_MAX,
    AcquireCall,
    Ownership,
    ReleaseCall,
    tokens,
)
from fencelock.cluster.client.operation import AwaitReply, Operation, operation
from fencelock.cluster.client.owner import name_of
from fencelock.cluster.client.session_channel import SessionChannel, closed_meanwhile
from fencelock.cluster.client.settings import LockOptions, Read, age_ms_of, wait_ms_of
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply

H = TypeVar("H", bound=BaseHold)

RETRY_S = 1.0
"""The shortest time between two repetitions of a release (s) for which an acquire waits."""

RELEASE_CONFIRM_MS = DECISION_MS
"""Time for which an acquire without a wait, or an inspection, waits until an earlier release of its
own client is confirmed (ms)."""


class BaseLock(HasHold, Generic[H]):
    """One named lock of the cluster, for owners that are one acquire each, or one name.

    Any caller that has the object may release it. `BaseRLock` has owners that are threads or tasks.
    """

    _hold_type: type[H]
    _runner: Callable[[], str]
    """Returns the owner that is the running thread or task."""
    _here: Callable[[], object] = staticmethod(threading.get_ident)
    """Returns what distinguishes the running thread or task from the others."""

    def __init__(self, channel: SessionChannel, options: LockOptions) -> None:
        self._channel = channel
        self._registry = channel.registry
        self._options = options
        self._confirm = options.confirm_release
        self._wait_ms = wait_ms_of(options.timeout)
        self._acquire: AcquireRequest = options.acquire()
        self._terms: RetainTerms | None = options.terms
        self._key = lock_key_named(options.name, RETAINER)
        """The owner that the client is to the cluster while it retains the lock."""
        self._listeners = Listeners()
        self._cancels = 0
        """The number of calls of `cancel`."""
        self._acquired: list[H] = []
        """The holds that this object may release. It keeps them, or they would be dropped."""

    @property
    def object_name(self) -> str:
        return self._options.name

    @property
    def owner(self) -> str | None:
        """The owner, as `status` shows it; None while each acquire would be a new owner."""
        own = self._current()
        return self._options.owner if own is None else own.owner

    @property
    def fence(self) -> int | None:
        """The fence of its current hold, None without one; see `BaseHold.fence`.

        After a loss this is the fence of the lost hold, until the loss was reported.
        """
        own = None if self._channel.forked else self._current()
        return None if own is None or own.hold is None else own.hold.fence

    @property
    def state(self) -> HoldState:
        own = None if self._channel.forked else self._current()
        return HoldState.FREE if own is None else self._registry.state_of(own)

    def raise_if_lost(self) -> None:
        """Return only while the lock is held through this object.

        Raises:
            LockOwnershipLostError: it was lost. Raised each time, until `release` or the end of
                ``with`` reports the loss.
            NotHeldError: it is not held.

        """
        own = None if self._channel.forked else self._current()
        if own is None:
            raise self._not_held()
        if self._registry.state_of(own) is HoldState.LOST:
            raise self._registry.loss_of(own)

    def _listen(self, state: HoldState, callback: Callback) -> None:
        self._listeners.add(state, callback)

    def cancel(self) -> None:
        """End the acquires of this object that wait, in any thread or task.

        They raise `AcquireCancelledError`, and leave nothing held. What was granted stays held.
        """
        self._cancels += 1
        if self._channel.forked:  # The parent's waits; their guards may stay locked for ever.
            return
        registry = self._registry
        for own in registry.acquiring(self._listeners):
            self._end_wait(own, own.acquiring)
        registry.look_again(self._options.name)

    def _end_wait(self, own: Ownership, token: int) -> None:
        retains = own.retained is not None or self._terms is not None
        if not retains or not self._registry.retaining.cancel(token, self._cancelled()):
            self._channel.tell(EndWait(lock=own.lock, owner=own.owner, request=token))

    def _cancelled(self) -> AcquireCancelledError:
        text = f"{titled(self._options.name)}: the wait was cancelled"
        return AcquireCancelledError(text)

    def __repr__(self) -> str:
        state, fence = self.state, self.fence
        text = "not held here" if fence is None else f"{state.value} under fence {fence}"
        return f"<{type(self).__name__} {self.name!r}, {text}>"

    def _current(self) -> Ownership | None:
        """Return the current ownership: the latest of this thread or task, else the latest."""
        found = self._find(latest=True)
        return self._known() if found is None else found.own

    def _certain_hold(self) -> ClientHold | None:
        own = None if self._channel.forked else self._current()
        held = own is not None and self._registry.state_of(own) in HOLDING
        return own.hold if own is not None and held else None

    def _find(self, *, latest: bool) -> H | None:
        """Return the last hold of this thread or task, else the latest or oldest of all."""
        there = [hold for hold in tuple(self._acquired) if hold.own.is_unreleased(hold.token)]
        if len(there) > 1:
            here = self._here()
            for hold in reversed(there):
                if hold.runner == here:
                    return hold
        return there[-1 if latest else 0] if there else None

    def _known(self) -> Ownership | None:
        """Return the acquire that the named owner made through another object."""
        owner = self._options.owner
        own = None if owner is None else self._registry.find(self._options.name, owner)
        return None if own is None or own.hold is None else own

    def _acquiring(
        self, blocking: bool, timeout: float | None, request: AcquireRequest | None = None
    ) -> Operation[H | None]:
        """Acquire as a lock's `acquire` does: end with the hold, or None for "not now".

        A caller that gives neither ``timeout`` nor ``blocking`` does not expect None.
        """
        if type(blocking) is not bool:
            raise TypeError(
                f"blocking is {blocking!r}, and must be a bool: say timeout={blocking!r}"
            )
        if not blocking and timeout is not None:
            raise ValueError("can't specify a timeout for a non-blocking call")
        wait_ms = 0 if not blocking else self._wait_ms if timeout is None else wait_ms_of(timeout)
        entering = self._entering(wait_ms, request=request)
        return entering if blocking and timeout is None else self._trying(entering, blocking)

    def _trying(self, entering: Operation[H], blocking: bool) -> Operation[H | None]:
        try:
            return (yield from entering)
        except FencelockError as error:
            if self._is_not_now(error, blocking):
                return None
            raise

    def _entering(
        self,
        wait_ms: int | None,
        *,
        request: AcquireRequest | None = None,
        leaves: bool = False,
    ) -> Operation[H]:
        """Acquire, and end with the hold or an error: ``with`` never enters unheld.

        ``request`` is what to ask for in place of the lock. ``leaves`` is set by a ``with``
        statement, whose end releases the lock.
        """
        channel, registry, options = self._channel, self._registry, self._options
        listeners = self._listeners
        if channel.closed or channel.forks != ForkCounter.forks or listeners.unreported:
            self._refuse()
            channel, registry = self._channel, self._registry
        call = AcquireCall(registry.granted)
        call.token = token = next(tokens)
        call.cancels = self._cancels
        try:
            if options.owner is None and not options.reentrant:
                if wait_ms == 0:  # An unconfirmed release of its client must not make it fail.
                    yield from self._confirming()
                own = registry.enter_as_new(options.name, call, listeners)
            else:
                own, wait_ms = yield from self._waiting(call, wait_ms)
            asked = request or self._acquire
            amount = 1  # Only semaphores have others, and are never retained.
            if own.retained is not None or (self._terms is not None and not own.acquisitions):
                yield from self._retaining(own, call, asked, wait_ms)
            else:
                self._submit(own, call, asked, wait_ms)
                granted: Granted = yield call
                amount = granted.count
            self._check_granted(own, call)
            hold = self._hold_type(channel, own, token, self._confirm)
            hold.runner = self._here()
            hold.entered = listeners if leaves else None
            if not options.reentrant:
                if self._acquired:
                    self._prune()
                hold.amount = amount
                self._acquired.append(hold)
            return hold  # noqa: TRY300 (an interrupt here undoes the acquire, too)
        except FencelockError:
            raise
        except pykka.ActorDeadError:
            raise closed_meanwhile() from None
        except BaseException:
            # Interrupted, perhaps after the grant: the session gives the lock back.
            try:
                self._give_up(call)
            except BaseException:
                self._give_up(call)  # Interrupted again.
                raise
            raise

    def _check_granted(self, own: Ownership, call: AcquireCall) -> None:
        """Refuse a grant that is lost by now, or whose owner lost an earlier hold unnoticed."""
        registry = self._registry
        if call.lost_before:
            undo(self._channel, own, call.token)
            registry.forget(own)
            raise registry.report_loss(own, None)
        assert own.hold is not None
        if own.hold.state_at(registry.now()) is HoldState.LOST:
            # It was granted so late that another client may hold it by now.
            registry.state_of(own)
            raise registry.report_loss(own, call.token)

    def attaching(self, secret: bytes) -> Operation[H]:
        """Attach the lock, which was detached with ``secret``, under the options of this object."""
        options = self._options
        attach = Attach(
            lock=options.name,
            secret=secret,
            label=options.label,
            hold_ms=options.hold_ms,
            grace_ms=options.grace_ms,
        )
        return self._entering(None, request=attach)

    def _retaining(
        self, own: Ownership, call: AcquireCall, asked: AcquireRequest, wait_ms: int | None
    ) -> Operation[None]:
        """Acquire a lock that the client may retain, or acquire it from the cluster if diverted."""
        registry, terms, token = self._registry, self._terms, call.token
        if own.retained is not None:
            try:
                self._check_again(own)
            except FencelockError:
                registry.left(own, token)
                raise
            if registry.enter_again(own, token):
                return
        began = time.monotonic() if wait_ms else 0.0
        if terms is not None and (
            yield from registry.retaining.acquiring(own, self._key, token, terms, wait_ms)
        ):
            return
        if wait_ms:
            wait_ms = max(0, wait_ms - int((time.monotonic() - began) * 1000))
        self._submit(own, call, asked, wait_ms)
        yield call

    def _submit(
        self, own: Ownership, call: AcquireCall, asked: AcquireRequest, wait_ms: int | None
    ) -> None:
        owner, token = own.owner, call.token
        if asked.WAITS:
            acquire = replace(asked, owner=owner, request=token, wait_ms=wait_ms)
        else:
            acquire = replace(asked, owner=owner, request=token)
        self._channel.submit(acquire, call)
        if call.cancels != self._cancels:  # The session may have looked for it too early.
            self._end_wait(own, call.token)

    def _check_again(self, own: Ownership) -> None:
        """Return if the owner of a retained lock may acquire it once more."""
        limit, times = self._options.limit, len(own.acquisitions)
        if limit and times >= limit:
            assert own.hold is not None
            raise LimitReachedError(
                f"{titled(own.lock)}: this owner is at its limit: held {times} times under fence "
                f"{own.hold.fence}, {limit} are allowed"
            )

    def _waiting(
        self, call: AcquireCall, wait_ms: int | None
    ) -> Operation[tuple[Ownership, int | None]]:
        """Wait until a named owner may acquire; return it and the rest of ``wait_ms``."""
        registry, options = self._registry, self._options
        owner = options.owner or self._runner()
        once = options.limit == 1
        began = time.monotonic()
        while True:
            if call.cancels != self._cancels:
                raise self._cancelled()
            own = registry.find(options.name, owner)
            if own is not None and registry.state_of(own) is HoldState.LOST:
                self._after_loss(own)
            blocker = registry.enter(options.name, owner, call, self._listeners, once=once)
            passed_ms = int((time.monotonic() - began) * 1000)
            left_ms = None if wait_ms is None else max(0, wait_ms - passed_ms)
            if blocker is None:
                assert call.own is not None
                return call.own, left_ms
            if options.reentrant and once and own is not None and own.acquisitions:
                raise self._held_already(own)
            if isinstance(blocker, ReleaseCall) and blocker.unlimited and left_ms is not None:
                left_ms = max(left_ms, RELEASE_CONFIRM_MS - passed_ms)
            if left_ms == 0:
                raise LockTimeoutError(
                    f"{titled(self._options.name)}: held by {name_of(owner)} of this client, "
                    f"still after {passed_ms / 1000:g} s"
                )
            yield from self._waiting_for(blocker, left_ms, own)
            self._channel.check()

    def _waiting_for(
        self, blocker: AskReply, left_ms: int | None, own: Ownership | None = None
    ) -> Operation[None]:
        """Wait until ``blocker`` is answered, or ``left_ms`` are over.

        After a while a line is logged, if ``own`` holds the lock.
        """
        began, left_s = time.monotonic(), None if left_ms is None else left_ms / 1000
        try:
            if isinstance(blocker, ReleaseCall) and (blocker.done or not blocker.unlimited):
                yield from confirming(self._channel, blocker, left_s)
            else:
                waits, lock = self._registry.waits, self._options.name
                yield from waits.awaiting(
                    lock, blocker, left_s, lambda: bool(own and own.acquisitions)
                )
        except (LockOwnershipLostError, NotHeldError):
            pass  # It is reported to the caller that releases the lock, or at its next call.
        except UnavailableError:
            passed_s = time.monotonic() - began
            pause_s = min(RETRY_S, math.inf if left_s is None else left_s) - passed_s
            if pause_s > 0:
                with suppress(TimeoutError):
                    yield AwaitReply(AskReply(), pause_s)
        except TimeoutError:
            pass  # The caller looks at the clock.

    def _refuse(self) -> None:
        """Raise why the object cannot be used now, or the error of a release without a caller."""
        self._reach()
        with suppress(IndexError):  # Another thread has raised it.
            raise self._listeners.unreported.pop(0)

    def _reach(self) -> None:
        """Use the present connection of a lazy client, or raise why there is none.

        What was acquired through another connection is not released through this object any more:
        that one is closed, or the parent's. A thread that was faster may hold it through this one.
        """
        channel = self._channel
        if channel.present is None or not (channel.closed or channel.forked):
            channel.check()
            return
        self._channel = channel.present().line
        self._registry = self._channel.registry
        for hold in tuple(self._acquired):
            own = hold.own
            if self._registry.find(own.lock, own.owner) is not own:
                with suppress(ValueError):  # Another thread removed it.
                    self._acquired.remove(hold)

    def _confirming(self) -> Operation[None]:
        """Wait a moment for an earlier release of the lock by this client, if one is pending."""
        blocker = self._registry.unconfirmed(self._options.name)
        if blocker is not None:
            yield from self._waiting_for(blocker, RELEASE_CONFIRM_MS)

    def _held_already(self, own: Ownership) -> FencelockError:
        return LimitReachedError(
            f"{titled(own.lock)}: {name_of(own.owner)} holds it already, and its limit is 1"
        )

    @staticmethod
    def _is_not_now(error: FencelockError, blocking: bool) -> bool:
        """Return whether an acquire reports ``error`` as a mere "not now".

        A blocking acquire at its owner's limit raises at once: it would wait for itself, and a
        caller that loops until it holds the lock would never stop.
        """
        if isinstance(error, AlreadyHeldError | LimitReachedError):
            return not blocking
        return isinstance(error, LockTimeoutError)

    def _after_loss(self, own: Ownership) -> None:
        """Let the owner of a lost hold acquire again; the hold's own release reports the loss."""
        self._registry.forget(own)

    def _releasing(self, wait: bool | None = None) -> Operation[None]:
        acquired = self._acquired
        awaited = self._confirm if wait is None else wait
        if len(acquired) == 1:
            own, token = acquired[0].own, acquired[0].token
            if token in own.acquisitions:
                return releasing(self._channel, own, token, awaited=awaited)
        self._reach()
        try:
            own, token = self._to_release()
        except NotHeldError:
            self._refuse()
            raise
        return releasing(self._channel, own, token, awaited=awaited)

    def _to_release(self) -> tuple[Ownership, int]:
        """Return the acquire to release: this thread's or task's latest, else the oldest.

        The oldest may have been lost while a later one holds, never the other way around.
        """
        found = self._find(latest=False)
        return self._latest_of(self._known()) if found is None else (found.own, found.token)

    def _latest_of(self, own: Ownership | None) -> tuple[Ownership, int]:
        """Return the latest acquire of ``own``, or the one whose release is not confirmed."""
        if own is not None and own.acquisitions:
            return own, own.acquisitions[-1]
        if own is not None and own.leaving is not None:
            return own, own.leaving.token
        raise self._not_held()

    def _exiting(self, error: BaseException | None) -> Operation[None]:
        exit_ = exiting(self._releasing, self._options.name, error)
        return self._leaving(exit_) if self._listeners.detached else exit_

    def _leaving(self, exit_: Operation[None]) -> Operation[None]:
        """Do ``exit_``, unless the hold of the ``with`` statement was detached."""
        detached, here = self._listeners.detached, self._here()
        if here in detached and not self._is_entered(here):
            detached.discard(here)
            return
        try:
            yield from exit_
        except NotHeldError:
            if not detached:
                raise
            detached.pop()  # That of another thread, which has entered for this one.

    def _is_entered(self, here: object) -> bool:
        """Return whether ``here``, a thread or task, holds it by a ``with`` that is still open."""
        return any(
            hold.runner == here and hold.entered is not None and hold.own.is_unreleased(hold.token)
            for hold in tuple(self._acquired)
        )

    def inspecting(
        self, read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[LockStatus]:
        age_ms = age_ms_of(read, max_age)
        self._reach()
        yield from self._confirming()
        return (yield from self._channel.inspecting(self._options.name, age_ms))

    def _is_locked(self) -> Operation[bool]:
        status = yield from self.inspecting()
        return not all(map(self._is_idle_here, status.all_holders))

    def _is_idle_here(self, holder: Contender) -> bool:
        """Return whether ``holder`` is this client, which retains the lock for nobody now."""
        if holder.fence is None or holder.owner not in RETAINERS:
            return False
        key = LockKey(self._options.name, holder.owner)
        return self._registry.retaining.is_idle(key, holder.fence)

    def _prune(self) -> None:
        acquired = self._acquired
        for hold in tuple(acquired):
            own, token = hold.own, hold.token
            leaving = own.leaving
            released = token not in own.acquisitions and (leaving is None or leaving.token != token)
            if released or len(acquired) >= UNREPORTED_MAX:
                try:
                    acquired.remove(hold)
                except ValueError:
                    continue  # Another thread removed it.

    def _not_held(self) -> NotHeldError:
        name = self._options.name
        holders = [] if self._channel.forked else self._registry.holders(name)
        names = [name_of(owner) for owner in holders[:3]]
        held_by = f"; held by {' and '.join(names)} of this client" if names else ""
        return NotHeldError(f"{titled(name)}: {self._who()} does not hold it{held_by}")

    def _who(self) -> str:
        owner = self._options.owner
        return "this object" if owner is None else f"owner {owner!r}"

    def _give_up(self, call: AcquireCall) -> None:
        """Undo an acquire that was interrupted, however far it came."""
        own, registry = call.own, self._registry
        if own is not None and not self._channel.forked:
            if own.retained is None and self._terms is None:
                undone = registry.give_up(call)
            else:
                undone = registry.retaining.undo(call, self._key)
            undo(self._channel, own, undone)
            self._channel.abandon(call)


class BaseRLock(BaseLock[H]):
    """One named lock of the cluster whose owners are threads or tasks, and may enter it again.

    Objects of one name and owner in a client are one lock.
    """

    @property
    def owner(self) -> str:
        """The owner that the caller is to the cluster, as `status` shows it."""
        return self._options.owner or self._runner()

    def _current(self) -> Ownership | None:
        options = self._options
        try:
            own = self._registry.find(options.name, options.owner or self._runner())
        except RuntimeError:  # No task runs here.
            return None
        return None if own is None or own.hold is None else own

    def _after_loss(self, own: Ownership) -> None:
        """Report the loss of an earlier hold once, to the owner that acquires again."""
        reported = own.reported
        self._registry.forget(own)
        loss = self._registry.report_loss(own, None)
        if not reported:
            raise loss

    def _to_release(self) -> tuple[Ownership, int]:
        return self._latest_of(self._current())

    def _who(self) -> str:
        return name_of(self.owner)


L = TypeVar("L", bound=BaseLock[Any])
R = TypeVar("R", bound=BaseRLock[Any])


class LockFactory(BaseClient, Generic[L, R, H]):
    """The part of a client that makes locks."""

    _lock_type: type[L]
    _rlock_type: type[R]

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
        retain: float | None = None,
        cohort: int = 0,
    ) -> L:
        """Return the lock called ``name``; sends nothing yet.

        Each successful acquire is a separate owner: any thread or task that has the object may
        release it, and acquiring it again waits, as with ``threading.Lock``.

        Args:
            name: 1 to 256 bytes of text with a visible character and no control characters.
            timeout: how long ``with``, and `Lock.acquire` without a timeout, wait (s): 0 to a week,
                or -1 for no limit. None for the default: no limit, but on `bakery` what its config
                says, usually 5 s.
            owner: a name for the holder of the lock, up to 256 bytes without control characters.
                All locks of that name and owner in this client are one lock. Use it for owners that
                outlive the object.
            label: a text for people who look at the lock, up to 256 bytes.
            duration: how long a hold lasts (s), up to a week, and at least 0.1 s on `paxos` or 3 s
                on `bakery` (``least`` in its config). Then `Lock.on_unlocking` is called. None for
                the default: on `paxos` as long as the session, on `bakery` what its config says,
                usually 5 s.
            grace: the time after the duration until the lock is taken away unless it was renewed
                (s), with the same limits. None for the default: 5 s, or what the config of `bakery`
                says. On `paxos` it needs a ``duration``.
            confirm_release: whether `Lock.release` and the end of ``with`` wait until the cluster
                has confirmed the release; see `Lock.release` for what changes without.
            retain: for how long this client keeps the lock after its owner released it (s), up to
                an hour, so that its next owner here has it without a message. It gives the lock
                back when another client waits. If the client is killed, others wait for its
                ``ttl``, as if it held the lock. 0 for not at all; None for what `connect` was
                given, which is 0 by default. Only on `paxos`, and without a ``duration``.
            cohort: how many owners of this client, 0 to 1,000, may have a retained lock after
                another client has begun to wait, for 10 ms at most. With 0 nobody overtakes.

        Raises:
            InvalidRequestError: ``name``, ``owner``, ``label``, ``duration``, ``grace``, ``retain``
                or ``cohort`` is out of its limits, or ``retain`` comes with a ``duration``.
            UnsupportedError: the cluster's protocol has no deadlines, or no retained locks; the
                text names those that have them.
            ClosedError: the client is closed, or this process was forked from its own.
            TypeError: ``name`` is not text, or another argument is of a wrong type.
            ValueError: ``timeout`` is out of its range.

        """
        connection = self._given
        options = connection.options(
            name, timeout, owner, label, duration, grace, confirm_release, retain, cohort
        )
        return self._lock_type(connection.line, options)

    def rlock(
        self,
        name: str,
        limit: int | None = None,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
        retain: float | None = None,
        cohort: int = 0,
    ) -> R:
        """Return the lock called ``name``, for an owner that may enter it again.

        The owner is the thread or the task, or ``owner``. It releases as often as it acquired, as
        with ``threading.RLock``, and may hold it ``limit`` times at once: at least 1, or None for
        without limit. Other arguments and errors are those of `lock`.

        Raises:
            UnsupportedError: the cluster's protocol has no reentrant locks; the text says which
                one does.

        """
        connection = self._given
        given = timeout, owner, label, duration, grace, confirm_release, retain, cohort
        options = connection.options(name, *given, reentrant=True, limit=limit)
        return self._rlock_type(connection.line, options)

    @operation
    def attach(
        self,
        token: str,
        *,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
    ) -> Operation[H]:
        """Take over a lock that another process has detached; see `Hold.detach`.

        It does not wait. The hold is one of this client from now on, as if it had acquired it, with
        a fence above all earlier ones. ``client.attach(token).release()`` releases the lock.

        ``token`` is what `Hold.detach` returned. It can be used once; a call that was interrupted
        or cancelled may have used it, and leaves nothing held. Other arguments are those of `lock`.

        Raises:
            NotHeldError: the token was used, or its time is over, or the lock was taken by force.
            ValueError: ``token`` is no token, or was cut.
            UnsupportedError: the protocol cannot detach locks (`paxos` can).
            InvalidRequestError: another argument is out of its limits.
            OverloadedError: this client, or its key, holds as much as it may. The token can still
                be used.
            UnavailableError: no node answered within 10 s. If the lock was attached, it is released
                as soon as the client is connected again.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.

        """
        name, secret = lock_and_secret(token)
        connection, given = self._given, (label, duration, grace, confirm_release, 0.0)
        options = connection.options(name, None, None, *given)
        lock = self._lock_type(connection.line, options)
        return lock.attaching(secret)
