"""The options of a lock object, checked and converted to the units of the wire."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct

from fencelock.actors.api.message import Acquire
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.api.request import Request
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.session.retained import RetainTerms
from fencelock.transport.codec import check_types

R = TypeVar("R", bound=Request)

RETAIN_S_MAX = 3_600
"""Longest time for which a client keeps an idle lock (s)."""

COHORT_MAX = 1_000
"""Most owners of a client that may have a retained lock before others who wait."""


class LockOptions(Struct, frozen=True):
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
    confirm_release: bool = True
    """Whether a release waits until the cluster has confirmed it, unless it says otherwise."""
    retain_ms: int = 0
    """Time for which the client keeps the lock idle for its next owner (ms); 0 for not at all."""
    cohort: int = 0
    """Number of owners of this client that may have it before others who wait."""

    @property
    def terms(self) -> RetainTerms | None:
        """How the lock is retained, None if it is not."""
        return _terms(self.retain_ms, self.cohort, self.label) if self.retain_ms else None

    def acquire(self) -> Acquire:
        """Return an acquire with the fields that all acquires with these options share."""
        return Acquire(
            lock=self.name,
            limit=self.limit,
            label=self.label,
            hold_ms=self.hold_ms,
            grace_ms=self.grace_ms,
        )


def checked(request: R) -> R:
    """Return ``request``, which has arguments of a user, if their types and limits are right.

    Raises:
        InvalidRequestError: one is out of its limits.
        TypeError: one is of a wrong type.

    """
    check_types(request)
    request.check()
    return request


def check_text_type(field: str, value: Any) -> None:
    """Return if ``value`` is text.

    Raises:
        TypeError: it is of another type.

    """
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r}, and must be str")


def check_name_type(name: Any, kind: str = "lock") -> None:
    """Return if ``name`` is text.

    Args:
        name: the name of an object.
        kind: the kind of the object, for the text of the error.

    Raises:
        TypeError: it is bytes, or of another type.

    """
    if isinstance(name, bytes | bytearray):
        raise TypeError(f"{kind} name is {name!r}, and must be str, not bytes: decode it")
    check_text_type(f"{kind} name", name)


def check_number(
    field: str,
    value: Any,
    allowed: str,
    is_allowed: Callable[[Any], bool],
    error: type[ValueError] = ValueError,
) -> None:
    """Return if ``value`` is an allowed number.

    Args:
        field: the name of the argument, for the text of the error.
        value: its value, which may have any type.
        allowed: the allowed values, in words that follow "must be".
        is_allowed: returns whether a number is allowed.
        error: the error for a number that is not allowed.

    Raises:
        TypeError: ``value`` is no number.

    """
    is_bool = type(value) is bool  # Python counts with it, but nobody means that.
    wrong: type[Exception] = TypeError if is_bool else error
    try:
        if not is_bool and is_allowed(value):
            return
    except TypeError:  # The value cannot be compared with numbers.
        wrong = TypeError
    raise wrong(f"{field} is {value!r}, and must be {allowed}")


def check_int(
    field: str,
    value: Any,
    allowed: str,
    is_allowed: Callable[[int], bool],
    error: type[ValueError] = InvalidRequestError,
) -> None:
    """Return if ``value`` is an allowed int; see `check_number`.

    Raises:
        TypeError: ``value`` is no int.

    """
    if type(value) is not int:  # A bool has no encoding as an int.
        raise TypeError(f"{field} is {value!r}, and must be {allowed}")
    check_number(field, value, allowed, is_allowed, error)


def term_ms_of(name: str, term: float | None) -> int:
    """Return a duration, or a grace, ``term`` (s) in milliseconds, rounded up; 0 for None.

    Raises:
        TypeError: it is no number.
        InvalidRequestError: it is not above 0, NaN, or above a week. The cluster itself refuses
            terms below its minimum: 0.1 s on `paxos`; on `bakery` 3 s, or what its config says.

    """
    if term is None:
        return 0
    most_s = WAIT_MS_MAX // 1000
    allowed = f"a number of seconds above 0 and at most {most_s}, or None for the default"
    check_number(name, term, allowed, lambda s: 0 < s <= most_s, InvalidRequestError)
    return math.ceil(float(term) * 1000)


def retain_ms_of(retain: float) -> int:
    """Return ``retain`` (s) in milliseconds, rounded up; 0 for 0.

    Raises:
        TypeError: it is no number.
        InvalidRequestError: it is negative, NaN, or above an hour.

    """
    allowed = f"a number of seconds from 0 to {RETAIN_S_MAX}"
    check_number("retain", retain, allowed, lambda s: 0 <= s <= RETAIN_S_MAX, InvalidRequestError)
    return math.ceil(float(retain) * 1000)


def wait_ms_of(timeout: float | None) -> int | None:
    """Return ``timeout`` (s) as a wait in milliseconds, rounded up; None stays None.

    ``-1`` and ``math.inf`` are without limit, which is a week: the longest wait on the wire.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative but not -1, NaN, or above a week and not infinite.

    """
    if timeout is None:
        return None
    if timeout in (-1, math.inf):
        return WAIT_MS_MAX
    most_s = WAIT_MS_MAX // 1000
    allowed = f"a number of seconds from 0 to {most_s}, -1 for no limit, or None for the default"
    check_number("timeout", timeout, allowed, lambda s: 0 <= s <= most_s)
    return math.ceil(float(timeout) * 1000)


@lru_cache(maxsize=256)
def _terms(retain_ms: int, cohort: int, label: str) -> RetainTerms:
    """Return the same object for equal arguments: each lock that is retained refers to one."""
    return RetainTerms(retain_ms, cohort, label)
