"""The terms on which a user has a lock, and how long it waits for one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fencelock.actors.error import InvalidRequestError
from fencelock.actors.fast_construction import copier
from fencelock.actors.lock.message import Acquire, Release
from fencelock.actors.lock.name import WAIT_MS_MAX


@dataclass(frozen=True, slots=True)
class LockOptions:
    """What `lock` of a client was told about a lock."""

    name: str
    timeout: float | None = None
    """How long an acquire waits unless told otherwise (s); None: as long as the cluster lets it."""
    owner: str | None = None
    """Who holds it; None for whoever runs."""
    limit: int = 1
    """How often an owner may hold it at once; 0: without limit."""
    label: str = ""
    hold_ms: int = 0
    """How long a hold lasts; 0: as the cluster has it, or without a deadline."""
    grace_ms: int = 0
    """How much longer until it is taken away; 0: as the cluster has it."""

    def acquire(self) -> Acquire:
        """Return what every acquire on these terms has in common."""
        return Acquire(
            lock=self.name,
            limit=self.limit,
            label=self.label,
            hold_ms=self.hold_ms,
            grace_ms=self.grace_ms,
        )


acquire_by = copier(Acquire, "owner", "request", "wait_ms")
"""Returns an acquire on some terms: of an owner, under a number, for so long."""

release_by = copier(Release, "fence", "owner")
"""Returns a release of a lock: of what an owner holds under a fence."""


def term_ms_of(name: str, term: float | None) -> int:
    """Return a duration, or a grace, ``term`` (s) in milliseconds, rounded up; 0 for None.

    Raises:
        InvalidRequestError: it is not above 0, not a number, or above a week. Below what the
            cluster allows, 3 s unless its config says otherwise, the cluster refuses it.

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

    ``math.inf`` is the longest wait there is, a week.

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
