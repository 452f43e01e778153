"""Everything this package raises on purpose, by what the caller can do about it."""

from __future__ import annotations


class FencelockError(Exception):
    """Base of every error a caller may want to catch. Never raised itself."""


class RefusedError(FencelockError):
    """The cluster answered, and the answer is no. Nothing changed."""


class NotHeldError(RefusedError):
    """The lock is not, or is no longer, held by whoever asked, under the fence shown."""


class AlreadyHeldError(RefusedError):
    """This owner holds the lock, or waits for it, already, and the lock is not reentrant."""


class LimitReachedError(RefusedError):
    """This owner holds the lock as often as it may at once. It still holds it as before."""


class LockOwnershipLostError(RefusedError):
    """The lock was held, and is not any more: the session ended, or an operator took it.

    Somebody else may have held it since. What was done under it meanwhile is safe only
    where the fence was checked.
    """


class LockTimeoutError(RefusedError):
    """The wait ended before the lock was free. It is held by somebody else; nothing broke."""


class CancelledError(RefusedError):
    """The wait was withdrawn before the lock was granted."""


class UnsupportedError(RefusedError):
    """The protocol in use does not promise what was asked for; the text names one that does."""


class OverloadedError(RefusedError):
    """A queue is at its limit. Nothing was done; ask again later, or less."""


class InvalidRequestError(RefusedError, ValueError):
    """A field of the request is out of its limits; the text names field, value and limit."""


class UnavailableError(FencelockError):
    """No answer can be had just now: a node that is needed, or all of them, are unreachable.

    For an acquire nothing is held. The text names the node and for how long.
    """


class SessionExpiredError(UnavailableError):
    """The session that was named does not exist (any more). Open another.

    Clients of this package do so by themselves; whoever speaks to a node directly sees it.
    """


class StaleError(UnavailableError):
    """The node has not heard for longer than was allowed how things stand. Ask another, or wait."""


class WrongClusterError(UnavailableError):
    """What answers at the address belongs to another cluster, or speaks another version."""


class UnknownOutcomeError(FencelockError):
    """No answer came in time: the request may or may not have taken effect.

    Do not assume either. Ask again under the same request number, which the
    cluster applies at most once, or give the lock up as lost.
    """


class ClosedError(FencelockError):
    """The client was closed, or belongs to the process that this one was forked from."""


class ConfigError(FencelockError, ValueError):
    """The configuration is not usable; the text names the key, the value and what is allowed."""
