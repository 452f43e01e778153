"""How long locks are held in a simulated run of `bakery`: short, or nothing would ever be over."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fencelock.actors.bakery.config import HOLD_MS
from fencelock.cluster.topology import Settings

TERMS_MS = ((200, 100), (800, 400), (3_000, 1_000))
"""Durations and graces to draw from (ms). With the shortest most holds end by their deadline."""


def with_terms(settings: Settings, seed: int) -> Settings:
    """Return ``settings`` with durations drawn from ``seed``, unless somebody chose some.

    Who says no timeout waits without limit, so that a judge sees whether everybody is served.
    """
    if settings.bakery_hold_ms != HOLD_MS:
        return settings
    hold_ms, grace_ms = Random(f"{seed}/terms").choice(TERMS_MS)
    return replace(
        settings,
        bakery_hold_ms=hold_ms,
        bakery_grace_ms=grace_ms,
        bakery_least_ms=1,
        bakery_wait_ms=None,
    )
