"""A lock as a thread sees it: like ``threading.Lock``, but fenced, and held across machines."""

from __future__ import annotations

import itertools
import math
import os
import socket
import threading
from types import TracebackType
from typing import Self

from holdfast.actors.error import HoldfastError, LockTimeoutError, NotHeldError
from holdfast.actors.lock.message import Acquire, Cancel, LockStatus, Release
from holdfast.actors.lock.name import OWNER_BYTES_MAX, WAIT_MS_MAX
from holdfast.cluster.line import Grip, Line

_tokens = itertools.count(1)
"""Names each acquire of this process to the session, so that exactly that one is cancelled."""

_numbers = itertools.count(1)
"""Tells threads apart for the life of a process; the system's thread numbers are reused."""

_threads = threading.local()


class Lock:
    """One named lock of the cluster, from `Client.lock`. Any thread may use it.

    Each thread is an owner of its own, unless `Client.lock` was given an ``owner``:
    what one thread holds another cannot release. Objects of the same name and owner
    in one client are the same lock. It is not reentrant.

    With ``with``, the body runs only while the lock is held, as far as this client
    knows; what a late holder does is caught by whoever checks its `fence`.
    """

    def __init__(self, line: Line, name: str, *, timeout: float | None, owner: str | None) -> None:
        self._line = line
        self._name = name
        self._timeout = timeout
        self._owner = owner

    @property
    def name(self) -> str:
        """The name under which all clients know the lock."""
        return self._name

    @property
    def owner(self) -> str:
        """The owner that the calling thread is to the cluster, as `status` shows it."""
        return self._owner if self._owner is not None else owner_of_thread()

    @property
    def fence(self) -> int | None:
        """The fence of the calling thread's hold, None without one."""
        grip = self._grip()
        return None if grip is None else grip.fence

    @property
    def held(self) -> bool:
        """Whether the calling thread's owner holds the lock, as far as this client knows.

        It stays true until a release is confirmed.
        """
        return self._grip() is not None

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> int | None:
        """Wait for the lock and hold it.

        An interrupt (``KeyboardInterrupt``) ends the wait and leaves nothing held.

        Args:
            blocking: whether to wait while somebody else holds it.
            timeout: how long to wait (s), 0 to a week; None for the ``timeout`` given to
                `Client.lock`, which is None, without limit, by default.

        Returns:
            The fence, which is positive and hence true; None if the time was over, or
            without ``blocking`` if somebody else holds the lock.

        Raises:
            AlreadyHeldError: this owner holds the lock, or waits for it, already.
            UnavailableError: no node, or not every node that is needed, could be heard;
                the lock is not held. Comes up to 4.5 s after ``timeout`` was over.
            CancelledError: the client was closed meanwhile.
            OverloadedError: a queue on the way is at its limit.
            ClosedError: the client is closed.
            ValueError: ``timeout`` is out of its range, or given without ``blocking``.

        """
        if not blocking and timeout is not None:
            raise ValueError("can't specify a timeout for a non-blocking call")
        limit = self._timeout if timeout is None else timeout
        wait_ms = wait_ms_of(limit) if blocking else 0
        try:
            return self._acquire(wait_ms)
        except LockTimeoutError:
            return None

    def release(self) -> None:
        """Give the lock up.

        Raises:
            NotHeldError: this owner does not hold it, or lost it when its node restarted.
            UnavailableError: the node that granted it was silent for 10 s. The release
                goes on being repeated in the background, and `held` stays true. To call
                `release` again is to wait for it once more.
            ClosedError: the client is closed.

        """
        grip = self._grip()
        owner = self.owner
        self._line.check()
        if grip is None:
            raise NotHeldError(f"lock {self._name!r}: owner {owner!r} does not hold it")
        released_before, grip.releasing = grip.releasing, True
        release = Release(lock=self._name, fence=grip.fence, owner=owner)
        try:
            self._line.ask(release)
        except NotHeldError:
            self._forget(owner, grip)
            if not released_before:
                raise
        else:
            self._forget(owner, grip)

    def status(self) -> LockStatus:
        """Return who holds the lock and who waits, as one node knows it; stale on arrival.

        Raises:
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        return self._line.status(self._name)

    def __enter__(self) -> Self:
        """Hold the lock, or raise; see `acquire`.

        Raises:
            LockTimeoutError: the ``timeout`` given to `Client.lock` was over; the text
                names the holder, where it is known.

        """
        self._acquire(wait_ms_of(self._timeout))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. An error of the body goes on as it is; one of releasing is noted on it."""
        del kind, trace
        if error is None:
            self.release()
            return
        try:
            self.release()
        except HoldfastError as failure:
            error.add_note(
                f"lock {self._name!r} could not be released either: "
                f"{type(failure).__name__}: {failure}"
            )

    def __repr__(self) -> str:
        fence = self.fence
        state = "not held here" if fence is None else f"held under fence {fence}"
        return f"<Lock {self._name!r} of {self.owner!r}, {state}>"

    def _grip(self) -> Grip | None:
        return self._line.grips.get((self._name, self.owner))

    def _acquire(self, wait_ms: int | None) -> int:
        owner, token = self.owner, next(_tokens)
        acquire = Acquire(lock=self._name, owner=owner, request=token, wait_ms=wait_ms)
        grip: Grip | None = None
        try:
            grip = Grip(self._line.ask_for_lock(acquire))
            self._line.grips[self._name, owner] = grip
        except HoldfastError:
            raise
        except BaseException:
            # Interrupted, perhaps after the grant: whatever the session has, it gives back.
            cancel = Cancel(lock=self._name, session="", owner=owner, request=token)
            self._line.cancel(cancel)
            self._forget(owner, grip)
            raise
        return grip.fence

    def _forget(self, owner: str, grip: Grip | None) -> None:
        if grip is not None and self._line.grips.get((self._name, owner)) is grip:
            del self._line.grips[self._name, owner]


def wait_ms_of(timeout: float | None) -> int | None:
    """Return ``timeout`` (s) as a wait in milliseconds, rounded up; None stays None.

    Raises:
        ValueError: it is negative, not a number, or above a week.

    """
    if timeout is None:
        return None
    if not 0 <= timeout <= WAIT_MS_MAX / 1000:
        raise ValueError(
            f"timeout is {timeout}, and must be from 0 to {WAIT_MS_MAX // 1000} s, "
            "or None for no limit"
        )
    return math.ceil(timeout * 1000)


def owner_of_thread() -> str:
    """Return the name of the calling thread as an owner: host, process, thread and a number."""
    known: tuple[int, str] | None = getattr(_threads, "owner", None)
    pid = os.getpid()
    if known is None or known[0] != pid:
        known = (pid, _new_owner(pid))
        _threads.owner = known
    return known[1]


def _new_owner(pid: int) -> str:
    end = f"#{next(_numbers)}"
    start = f"{socket.gethostname()}:{pid}:{threading.current_thread().name}"
    printable = "".join(sign if sign.isprintable() else "?" for sign in start)
    room = OWNER_BYTES_MAX - len(end)
    return printable.encode()[:room].decode(errors="ignore") + end
