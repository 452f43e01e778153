"""The options of a lock object, checked and converted to the units of the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fencelock.actors.api.message import Acquire, Release
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.api.request import Request
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import copier
from fencelock.transport.codec import pack

R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The options given to a client's `lock` or `rlock`."""

    name: str
    timeout: float | None = None
    """Timeout of an acquire without its own (s); None for the cluster's limit."""
    owner: str | None = None
    """The owner; None for each acquire, or for the running thread or task if ``reentrant``."""
    reentrant: bool = False
    limit: int = 1
    """Limit of holds that an owner may have at once, or 0 for no limit."""
    label: str = ""
    hold_ms: int = 0
    """Duration of a hold (ms); 0 for the cluster's own, or for none."""
    grace_ms: int = 0
    """Time after the duration until the lock is taken away (ms); 0 for the cluster's own."""

    def acquire(self) -> Acquire:
        """Return an acquire with the fields that all acquires with these options share."""
        return Acquire(
            lock=self.name,
            limit=self.limit,
            label=self.label,
            hold_ms=self.hold_ms,
            grace_ms=self.grace_ms,
        )


acquire_by = copier(Acquire, "owner", "request", "wait_ms")
"""Returns a copy of an acquire with an owner, a request number and a wait (ms)."""

release_of = partial(copier(Release, "lock", "fence", "owner"), Release(lock="", fence=0))
"""Returns a release of a lock under a fence by an owner."""


def checked(request: R) -> R:
    """Return ``request``, which has arguments of a user, if their types and limits are right.

    Raises:
        InvalidRequestError: one is out of its limits.
        TypeError: one is of a wrong type.

    """
    pack(request)  # It checks the types.
    request.check()
    return request


def check_text_type(field: str, value: Any) -> None:
    """Return if ``value`` is text.

    Raises:
        TypeError: it is of another type.

    """
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r}, and must be str")


def check_name_type(name: Any) -> None:
    """Return if ``name`` is text.

    Raises:
        TypeError: it is bytes, or of another type.

    """
    if isinstance(name, bytes | bytearray):
        raise TypeError(f"the name of a lock is {name!r}, and must be str, not bytes: decode it")
    check_text_type("the name of a lock", name)


def refuse_positional(wrong: tuple[object, ...]) -> None:
    """Return if ``wrong``, the positional arguments of an ``acquire``, is empty.

    Raises:
        TypeError: it is not; the text says which keyword was probably meant.

    """
    if not wrong:
        return
    first = wrong[0]
    keyword = "blocking" if isinstance(first, bool) else "timeout"
    raise TypeError(f"acquire() takes keywords only: say acquire({keyword}={first!r})")


def term_ms_of(name: str, term: float | None) -> int:
    """Return a duration, or a grace, ``term`` (s) in milliseconds, rounded up; 0 for None.

    Raises:
        InvalidRequestError: it is not above 0, not a number, or above a week. The cluster
            itself refuses terms below its minimum: 3 s unless its config says otherwise.

    """
    if term is None:
        return 0
    if not 0 < term <= WAIT_MS_MAX / 1000:
        raise InvalidRequestError(
            f"{name} is {term}, and must be above 0 and at most {WAIT_MS_MAX // 1000} s, or None "
            "for the cluster's own"
        )
    return math.ceil(float(term) * 1000)


def wait_ms_of(timeout: float | None) -> int | None:
    """Return ``timeout`` (s) as a wait in milliseconds, rounded up; None stays None.

    ``-1`` and ``math.inf`` are without limit, which is a week: the longest wait on the wire.

    Raises:
        ValueError: it is negative but not -1, not a number, or above a week and not infinite.

    """
    if timeout is None:
        return None
    if timeout in (-1, math.inf):
        return WAIT_MS_MAX
    if not 0 <= timeout <= WAIT_MS_MAX / 1000:
        raise ValueError(
            f"timeout is {timeout}, and must be from 0 to {WAIT_MS_MAX // 1000} s, "
            "-1 for no limit, or None for what the cluster lets anybody wait"
        )
    return math.ceil(float(timeout) * 1000)
