"""Errors that this package raises on purpose, in groups by the caller's possible reaction."""

from __future__ import annotations


class FencelockError(Exception):
    """Base of every error that a caller may want to catch. Never raised itself."""


class RefusedError(FencelockError):
    """The cluster answered and refused. Nothing changed."""


class NotHeldError(RefusedError, RuntimeError):
    """The caller does not hold the lock, or no longer does, under the fence shown.

    It is a RuntimeError too, which is what ``threading`` and ``asyncio`` raise.
    """


class AlreadyHeldError(RefusedError):
    """This owner already holds the lock, or waits for it, and the lock is not reentrant."""


class LimitReachedError(RefusedError):
    """This owner holds the lock as many times as it may. It still holds it as before."""


class LockOwnershipLostError(RefusedError):
    """The lock is no longer held: the session or the deadline ended, or an operator took it.

    Another owner may have held it since. What was done under it meanwhile is safe only
    where the fence was checked.
    """


class LockTimeoutError(RefusedError, TimeoutError):
    """The wait timed out before the lock was free. Another owner holds it; nothing is broken."""


class AcquireCancelledError(RefusedError):
    """The wait was cancelled before the lock was granted."""


class BrokenBarrierError(RefusedError, RuntimeError):
    """The generation of a barrier is broken: one of its parties stopped waiting for the others."""


class UnsupportedError(RefusedError):
    """The protocol in use does not support the request; the text names one that does."""


class MembershipError(RefusedError):
    """The members of the cluster cannot change in this way, or not now.

    The text says why, and what to do instead.
    """


class ForbiddenError(RefusedError):
    """The key of the client does not allow this, or no node accepts the key.

    The text names the key, and what is needed.
    """


class OverloadedError(RefusedError):
    """A queue is at its limit. Nothing was done; retry later, or send less."""


class InvalidRequestError(RefusedError, ValueError):
    """A field of the request exceeds its limits; the text names field, value and limit."""


class InternalError(RefusedError):
    """A bug in fencelock kept the cluster from serving the request. Nothing was done.

    The same request fails again. The log of a node has the traceback: please report it.
    """


class VersionMismatchError(RefusedError):
    """The entry of a map does not have the version that was expected. Nothing was changed.

    Attributes:
        version: the version of the entry, or None if there is no entry.

    """

    def __init__(self, text: str, version: int | None = None) -> None:
        super().__init__(text)  # Unpickling calls this without a version, and then sets it.
        self.version = version


class UnavailableError(FencelockError):
    """No answer is possible now: a node that is needed, or all of them, are unreachable.

    For an acquire nothing is held. The text names the node and the duration, and says if it is
    unknown whether a change took effect.
    """


class SessionExpiredError(UnavailableError):
    """The session of the request does not exist, or no longer exists.

    Clients of this package open another one by themselves. They raise this error only for a call
    that changes an object, such as `Latch.count_down`, if its session ended before the reply: it is
    unknown whether the change took effect.
    """


class StaleError(UnavailableError):
    """The node's state is older than allowed. Ask another node, or wait."""


class WrongClusterError(UnavailableError):
    """The process at the address belongs to another cluster, or speaks another version."""


class StaleFenceError(FencelockError):
    """The protected resource refused a write: another holder has written under a higher fence.

    The writer lost its lock, perhaps without notice. It must not write.

    Attributes:
        resource: the resource to be written, usually the name of the lock.
        fence: the refused fence.
        highest: the highest fence that was seen.

    """

    def __init__(self, resource: str, fence: int, highest: int) -> None:
        super().__init__(resource, fence, highest)
        self.resource = resource
        self.fence = fence
        self.highest = highest

    def __str__(self) -> str:
        return (
            f"{self.resource!r}: fence {self.fence} is stale, since fence {self.highest} was seen: "
            "the lock was lost, and another holder has written"
        )


class ClosedError(FencelockError):
    """The client or watch was closed, or belongs to the process that this one was forked from.

    If it was closed during a call that changes an object, the text says whether the change may
    have taken effect.
    """


class ConfigError(FencelockError, ValueError):
    """The configuration is not usable; the text names the key, the value and the allowed values."""
