"""The fence of the hold that an acquire returned."""

from __future__ import annotations

from fencelock.cluster.client.hold import BaseHold


def fence_of(hold: BaseHold | None) -> int:
    """Return the fence of ``hold``, which must not be None."""
    assert hold is not None
    return hold.fence
