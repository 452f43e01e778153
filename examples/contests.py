"""The contests of examples/cluster.py --objects. A new kind needs one class, and one line here."""

from __future__ import annotations

from contest import Contest
from permit_contests import LockAllContest, LockContest, ReadWriteContest, SemaphoreContest
from shared_contests import (
    BarrierContest,
    CounterContest,
    ElectionContest,
    LatchContest,
    MapContest,
)

CONTESTS: tuple[type[Contest], ...] = (
    LockContest,
    SemaphoreContest,
    ReadWriteContest,
    LockAllContest,
    ElectionContest,
    MapContest,
    LatchContest,
    BarrierContest,
    CounterContest,
)
