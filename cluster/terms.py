"""The terms on which a user has a lock, and how long it waits for one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.actors.lock.name import WAIT_MS_MAX


@dataclass(frozen=True, slots=True)
class Terms:
    """What `lock` of a client was told about a lock."""

    name: str
    timeout: float | None = None
    """How long an acquire waits unless told otherwise (s); None: without limit."""
    owner: str | None = None
    """Who holds it; None for whoever runs."""
    limit: int = 1
    """How often an owner may hold it at once; 0: without limit."""
    label: str = ""


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
    return math.ceil(float(timeout) * 1000)
