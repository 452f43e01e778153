"""A lock for threads: like ``threading.Lock``, but fenced, and held across machines."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fencelock.actors.api.message import LockStatus
from fencelock.cluster.base_lock import BaseLock
from fencelock.cluster.operation import drive
from fencelock.cluster.owner import owner_of_thread
from fencelock.cluster.settings import Read, age_ms_of


class Lock(BaseLock):
    """One named lock of the cluster, from `Client.lock`. Any thread may use it.

    Each thread is an owner of its own, unless `Client.lock` was given an ``owner``: one thread
    cannot release what another holds. A lock stays held when its thread ends, until the client is
    closed. Objects of the same name and owner in one client are the same lock.

    With ``with``, the body runs only while the lock is held, as far as this client knows; a
    resource that checks the `fence` refuses a late holder. Callbacks run one after the other on
    a thread of their own, so they may block or use the client.
    """

    _runner = staticmethod(owner_of_thread)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> int | None:
        """Wait for the lock and hold it.

        An interrupt (``KeyboardInterrupt``) ends the wait and leaves nothing held.

        Args:
            blocking: whether to wait while somebody else holds it.
            timeout: how long to wait (s), 0 to a week; None for the ``timeout`` given to
                `Client.lock`. If that is None, too, the cluster's own limit applies: none, but
                on `bakery` 5 s, or what its config says.

        Returns:
            The fence, which is positive and hence true; None if the time ran out, or if without
            ``blocking`` somebody else holds the lock. With a timeout also None, at once, if this
            owner holds it as often as it may: it would wait for itself.

        Raises:
            AlreadyHeldError: without a timeout: this owner holds the lock, or waits for it,
                already.
            LimitReachedError: likewise, as often as a reentrant lock may be held.
            LockOwnershipLostError: this owner held it and lost it, and no error had reported
                that. It is free to acquire again.
            UnavailableError: no node, or not every node that is needed, could be reached.
                This owner does not hold the lock. If a request was sent, its outcome may be
                unknown, as the text says: the client cancels it as soon as it is connected
                again. Until then the cluster may grant the lock to this client, and nobody
                else gets it. Comes up to 4.5 s after ``timeout`` was over.
            CancelledError: the client was closed meanwhile.
            OverloadedError: a queue on the way is at its limit.
            ClosedError: the client is closed.
            ValueError: ``timeout`` is out of its range, or given without ``blocking``.

        """
        return drive(self._acquiring(blocking, timeout))

    def release(self) -> None:
        """Give up the lock, or one of several holds of a reentrant one.

        Raises:
            NotHeldError: this owner does not hold it, or lost it when its node restarted.
            LockOwnershipLostError: it was lost before. This owner may acquire it again.
            UnavailableError: no node confirmed it within 10 s. The release goes on being
                repeated in the background, and `held` stays true meanwhile. Calling `release`
                again when nothing else is held waits for it once more.
            ClosedError: the client is closed.

        """
        drive(self._releasing())

    def renew(self, duration: float | None = None) -> None:
        """Start the duration of the hold anew; only where holds have deadlines.

        Args:
            duration: how long it lasts from now on (s); None for as before. The deadline never
                becomes earlier.

        Raises:
            NotHeldError: this owner does not hold it.
            LockOwnershipLostError: it was lost before; raised until `release` or so.
            InvalidRequestError: ``duration`` is out of the cluster's limits.
            UnsupportedError: this hold has no deadline; the text says which protocol has such.
            UnavailableError: no answer came for 10 s. It may have been renewed; calling `renew`
                again does no harm.
            ClosedError: the client is closed.

        """
        drive(self._renewing(duration))

    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return who holds the lock and who waits; see `Client.status`."""
        return drive(self._line.inspecting(self.name, age_ms_of(read, max_age)))

    def __enter__(self) -> Self:
        """Hold the lock, or raise; see `acquire`.

        Raises:
            LockTimeoutError: the ``timeout`` given to `Client.lock` ran out; the text names the
                holder, where it is known.
            AlreadyHeldError: this owner holds it, or waits for it, already.
            LimitReachedError: this owner holds it as often as it may.

        """
        drive(self._entering(self._wait_ms))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. An error of the body goes on as it is; a failed release is noted on it.

        Raises:
            LockOwnershipLostError: the body ended well, but the lock was lost before.
            FencelockError: the body ended well, but `release` failed.

        """
        del kind, trace
        drive(self._exiting(error))
