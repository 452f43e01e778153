"""The options of a lock object, checked and converted to the units of the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fencelock.actors.api.message import Acquire, Release
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.fast_construction import copier


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The options given to a client's `lock`."""

    name: str
    timeout: float | None = None
    """Timeout of an acquire without its own (s); None for the cluster's limit."""
    owner: str | None = None
    """The owner; None for the running thread or task."""
    limit: int = 1
    """Limit of holds that an owner may have at once; 0 for no limit."""
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

release_by = copier(Release, "fence", "owner")
"""Returns a copy of a release with a fence and an owner."""


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

    ``math.inf`` is the longest wait, a week.

    Raises:
        ValueError: it is negative, not a number, or above a week and not infinite.

    """
    if timeout is None:
        return None
    if timeout == math.inf:
        return WAIT_MS_MAX
    if not 0 <= timeout <= WAIT_MS_MAX / 1000:
        raise ValueError(
            f"timeout is {timeout}, and must be from 0 to {WAIT_MS_MAX // 1000} s, "
            "math.inf for the longest, or None for what the cluster lets anybody wait"
        )
    return math.ceil(float(timeout) * 1000)
