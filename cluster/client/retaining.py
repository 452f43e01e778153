"""Retained locks for the local owners of a client: most acquires and releases need no message.

`RetainedLocks` decides (`actors/session/retained.py` has the rules), on the thread that acquires or
releases. This module carries out what it decides: it wakes local owners itself, and sends the
`Retainer` what needs a message. What the `Retainer` decides comes back through `on_event`.

All of it happens under one guard, which is never held while anybody waits, nor while a thread or
task is woken. `HoldRegistry` has a guard of its own, which may be taken inside this one, never the
other way round.

An exception that a signal's handler raises may end any function between two steps. A call that was
cut short may have decided something and not carried it out. The next call that enters the guard
notices this and *mends* it: the local owners of the lock keep it until they release it, nobody else
is admitted, and the hold goes back to the cluster.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import pykka
from msgspec.structs import replace

from fencelock.actors.api.handover import Detach
from fencelock.actors.api.name import titled
from fencelock.actors.api.rwlock import Downgrade
from fencelock.actors.error import (
    AcquireCancelledError,
    ClosedError,
    FencelockError,
    LockOwnershipLostError,
    LockTimeoutError,
)
from fencelock.actors.message import Address, Event
from fencelock.actors.session.holds import UNCONFIRMED, ClientHold
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.retained import (
    Admit,
    Divert,
    GiveBack,
    LockAct,
    Lose,
    Refuse,
    Request,
    RetainedLocks,
    RetainTerms,
    Withdraw,
)
from fencelock.actors.session.retainer import Decided, Perform, WatchIdle
from fencelock.cluster.client.hold_registry import AcquireCall, HoldRegistry, Ownership
from fencelock.cluster.client.operation import Operation
from fencelock.cluster.client.owner import name_of
from fencelock.cluster.client.session_channel import closed_meanwhile
from fencelock.cluster.host.pending_asks import AskReply

R = TypeVar("R", Detach, Downgrade)

_NOWHERE = Address("")
"""The endpoint of a local owner's hold, which no request names."""


class RetainedCall(AskReply):
    """An acquire of a retained lock that waits. Its answer: whether it was admitted.

    If it was not, it is diverted: its caller acquires the lock from the cluster.
    """

    own: Ownership
    key: LockKey
    token: int
    waits = False
    """Whether the caller left the guard without an answer, and must be woken."""


class Retaining:
    """The retained locks of a client, as its threads and tasks use them.

    Args:
        registry: the owners of the client.
        notify: sends the `Retainer` a message; it raises `pykka.ActorDeadError` once that is gone.

    """

    def __init__(self, registry: HoldRegistry, notify: Callable[[Event], None]) -> None:
        self.guard = threading.Lock()
        self.locks = RetainedLocks()
        """The locks, which the `Retainer` shares."""
        self._registry = registry
        self._notify = notify
        self._calls: dict[int, RetainedCall] = {}
        """The acquires that wait, by token."""
        self._inside: dict[int, Ownership] = {}
        """The local owners that have a lock, by token."""
        self._deciding: LockKey | None = None
        """The lock about which something is being decided. Whoever enters the guard and finds one
        mends it: the call that left it was cut short."""
        self._decided: deque[RetainedCall] = deque()
        """Calls with an answer whose callers are still to be woken, outside the guard."""
        self._closed = False

    def acquiring(
        self, own: Ownership, key: LockKey, token: int, terms: RetainTerms, wait_ms: int | None
    ) -> Operation[bool]:
        """Acquire for the owner ``own``; end with whether it has the lock.

        If not, it must acquire the lock from the cluster. That is also so when ``wait_ms`` are
        over: the cluster says who has the lock.

        Raises:
            FencelockError: the session could not acquire the lock for its owners.

        """
        call = RetainedCall()
        call.own, call.key, call.token = own, key, token
        with self.guard:
            self._begin(key)
            if self._closed:
                self._deciding = None
                raise closed_meanwhile()
            self._calls[token] = call
            now = self._registry.now()
            self._carry_out(self.locks.acquire(key, token, terms, now, waits=wait_ms != 0))
            call.waits = not call.done
            self._deciding = None
        if self._decided:
            self._wake()
        if not call.done:
            try:
                left_s = wait_ms / 1000 if wait_ms else None
                yield from self._registry.waits.awaiting(
                    own.lock, call, left_s, lambda: self._is_used(key)
                )
            except TimeoutError:
                self._end_in_time(key, token)
        admitted: bool = call.get(timeout=0)
        return admitted

    def release(self, own: Ownership, token: int, retained: tuple[LockKey, int]) -> None:
        """Release the acquire ``token`` of ``own``. Nothing has to be confirmed.

        ``retained`` is the ``own.retained`` that the caller saw: a loss clears it at any time. For
        errors see `HoldRegistry.leave_retained`.
        """
        try:
            try:
                self._registry.leave_retained(own, token)
            finally:
                self._free_if_left(own, retained)
        except FencelockError:
            raise
        except BaseException:  # An interrupted release still happens.
            with suppress(FencelockError):
                self._registry.leave_retained(own, token)
            self._free_if_left(own, retained)
            raise

    def _free_if_left(self, own: Ownership, retained: tuple[LockKey, int]) -> None:
        """Free the lock once the last acquire is released. Nobody else has it before that."""
        if not own.acquisitions:
            if own.retained is not None:  # The release was interrupted.
                self._registry.let_go(own)
            self.free(*retained)

    def free(self, key: LockKey, token: int) -> None:
        """Take a lock from a local owner that has released or lost it. It may be repeated."""
        with self.guard:
            self._begin(key)
            if self._inside.pop(token, None) is not None:
                self._carry_out(self.locks.release(key, token, self._registry.now()))
            excess = self.locks.excess()
            if excess is not None:
                self._deciding = excess
                self._carry_out(self.locks.evict(excess))
            self._deciding = None
        if self._decided:
            self._wake()

    def undo(self, call: AcquireCall, key: LockKey) -> int:
        """Undo an acquire that was interrupted, whether it waits or not; see `give_up`."""
        own = call.own
        assert own is not None
        self._withdraw(key, call.token)
        undone = self._registry.give_up(call)
        if not own.acquisitions and (retained := self._registry.let_go(own)) is not None:
            self.free(*retained)
        return undone

    def surrender(self, own: Ownership, request: R) -> R:
        """Return ``request`` for the hold of the session.

        The hold goes back to the cluster with its local owner, who only reads from now on, or
        detaches it.
        """
        retained, hold = own.retained, own.hold
        assert hold is not None
        with self.guard:
            key, token = retained or (LockKey("", ""), 0)
            self._begin(key)
            lock = self.locks.by_key.get(key)
            if lock is None or token not in (lock.users or ()):
                self._deciding = None
                raise LockOwnershipLostError(
                    f"{titled(own.lock)}: owner {own.owner!r} lost its hold under fence "
                    f"{hold.fence}"
                )
            self._carry_out([(key, act) for act in lock.surrender()])
            self._deciding = None
            fence = lock.fence
        self._wake()
        return replace(request, fence=fence, owner=key.owner)

    def _is_used(self, key: LockKey) -> bool:
        lock = self.locks.by_key.get(key)
        return lock is not None and bool(lock.users)

    def is_idle(self, key: LockKey, fence: int) -> bool:
        """Return whether this client retains a lock under ``fence``, and no local owner has it."""
        lock = self.locks.by_key.get(key)
        return lock is not None and lock.fence == fence and not lock.users

    def on_event(self, event: Event) -> None:
        """Carry out what the `Retainer` decided; on the dispatcher's thread."""
        with self.mending():
            assert isinstance(event, Decided), f"no local owner is notified of {event}"
            if lost := [act.token for act in event.acts if isinstance(act, Lose)]:
                self._lose(lost, event.detail)
            for act in event.acts:
                match act:
                    case Admit(token, fence):
                        self._admit(token, fence, event.trust)
                    case Divert(token):
                        self._decide(token)
                    case Refuse(token):
                        assert event.no is not None
                        self._decide(token, error=event.no.error())
                    case Lose():
                        pass

    @contextmanager
    def mending(self) -> Generator[None]:
        """Hold the guard on the dispatcher's thread, which no handler of a signal interrupts."""
        with self.guard:
            if self._deciding is not None:
                self._mend()
            yield
        self._wake()

    def close(self) -> None:
        """End all waits: the client is being closed, or its dispatcher has ended. Any thread."""
        with self.guard:
            self._closed = True
            for token, call in [*self._calls.items()]:
                text = f"{titled(call.own.lock)}: the client was closed"
                self._decide(token, error=AcquireCancelledError(text))
        self._wake()

    def _begin(self, key: LockKey) -> None:
        """Begin to decide about a lock, once what was cut short before is mended."""
        if self._deciding is not None:
            self._mend()
        self._deciding = key

    def _end_in_time(self, key: LockKey, token: int) -> None:
        """End a wait whose time is over, unless it has just ended.

        Its caller is refused if another owner here has the lock. Otherwise the cluster is asked.
        """
        with self.guard:
            self._begin(key)
            lock = self.locks.by_key.get(key)
            users = {} if lock is None else lock.users or {}
            if lock is not None and token in users:  # The news of that is on its way.
                self._admit(token, users[token], lock.trust)
            elif users and token in self._calls:
                self._refuse(token)
                self._carry_out(self.locks.withdraw(key, token, self._registry.now()))
            self._deciding = None
        self._wake()
        self._withdraw(key, token)

    def cancel(self, token: int, error: FencelockError) -> bool:
        """End the acquire ``token`` with ``error`` if it waits here; return whether it did."""
        call = self._calls.get(token)
        return call is not None and self._withdraw(call.key, token, error)

    def _withdraw(self, key: LockKey, token: int, error: FencelockError | None = None) -> bool:
        """End a wait, with ``error`` or by diverting its caller; return False if it has ended."""
        with self.guard:
            self._begin(key)
            waited = token in self._calls
            if waited:
                self._decide(token, error=error)
                self._carry_out(self.locks.withdraw(key, token, self._registry.now()))
            self._deciding = None
        self._wake()
        return waited

    def _mend(self) -> None:
        """Let a lock go back to the cluster about which a call was cut short."""
        key = self._deciding
        assert key is not None
        lock = self.locks.by_key.get(key)
        for token, call in [*self._calls.items()]:
            if call.key != key:
                continue
            if call.done:
                self._decided.append(call)
                del self._calls[token]
            elif call.own.hold is not None and lock is not None:  # Its admission was cut short.
                self._admit(token, call.own.hold.fence, lock.trust)
            else:
                self._decide(token)
        users = {
            token: own.hold.fence
            for token, own in self._inside.items()
            if own.retained == (key, token) and own.hold is not None
        }
        self._carry_out(self.locks.reset(key, users, self._registry.now()))
        self._deciding = None

    def _carry_out(self, acts: list[LockAct]) -> None:
        """Carry out what was decided, in order, before anybody else decides."""
        locks = self.locks
        for key, act in acts:
            match act:
                case Admit(token, fence):
                    self._admit(token, fence, locks.by_key[key].trust)
                case Divert(token):
                    self._decide(token)
                case Lose(token, _):
                    self._lose([token], UNCONFIRMED)
                case Request() | Withdraw() | GiveBack():
                    self._send(Perform(key=key, act=act))
                case Refuse(token):
                    self._refuse(token)
        if locks.is_watch_due():
            self._send(WatchIdle())

    def _send(self, message: Event) -> None:
        try:
            self._notify(message)
        except (pykka.ActorDeadError, ClosedError):  # Its session ends as a whole.
            self._closed = True
            for token in [*self._calls]:
                self._decide(token, error=closed_meanwhile())

    def _admit(self, token: int, fence: int, trust: SessionTrust | None) -> None:
        """Let a local owner have the lock, unless it has given up: that has released it."""
        call = self._calls.get(token)
        if call is None:
            return
        self._registry.admitted(call.own, token, ClientHold(_NOWHERE, fence, (), trust), call.key)
        self._inside[token] = call.own
        self._decide(token, admitted=True)

    def _decide(
        self, token: int, *, admitted: bool = False, error: FencelockError | None = None
    ) -> None:
        """Answer an acquire: whether it is admitted or diverted, or why it is refused."""
        call = self._calls.get(token)
        if call is None:
            return
        if not call.done:
            if error is not None:
                self._registry.left(call.own, token)
            call.settle(admitted, error)
        if call.waits:
            self._decided.append(call)
        del self._calls[token]

    def _refuse(self, token: int) -> None:
        """Refuse an acquire, since another owner here has the lock, or waits for it."""
        call = self._calls.get(token)
        if call is None:
            return
        lock = call.own.lock
        held = [own for own in self._inside.values() if own.lock == lock]
        who = f"held by {name_of(held[0].owner)}" if held else "another owner waits for it, also"
        self._decide(token, error=LockTimeoutError(f"{titled(lock)}: {who} of this client"))

    def _lose(self, tokens: list[int], detail: str) -> None:
        found = [self._inside.pop(token, None) for token in tokens]
        self._registry.lose([own for own in found if own is not None], detail)

    def _wake(self) -> None:
        """Wake the callers that have an answer: some perhaps twice, but each at least once."""
        decided = self._decided
        while decided:
            try:
                call = decided[0]
            except IndexError:  # Another thread was faster.
                return
            call.wake()
            try:
                decided.remove(call)
            except ValueError:
                continue  # Another thread has removed it.
