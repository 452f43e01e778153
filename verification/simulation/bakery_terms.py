"""Durations of holds in a simulated run of `bakery`: short, so that holds expire in a run."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fencelock.actors.bakery.config import HOLD_MS, Terms
from fencelock.cluster.node.topology import ProtocolSettings

TERMS_MS = ((200, 100), (800, 400), (3_000, 1_000))
"""Durations and graces to draw from (ms). With the shortest most holds end by their deadline."""


def with_terms(settings: ProtocolSettings, seed: int) -> ProtocolSettings:
    """Return ``settings`` with durations drawn from ``seed``, unless they set some.

    Requests without a timeout wait without limit, so that a judge sees whether all are served.
    """
    if settings.bakery_terms.hold_ms != HOLD_MS:
        return settings
    hold_ms, grace_ms = Random(f"{seed}/terms").choice(TERMS_MS)
    terms = Terms(hold_ms=hold_ms, grace_ms=grace_ms, least_ms=1, wait_ms=None)
    return replace(settings, bakery_terms=terms)
