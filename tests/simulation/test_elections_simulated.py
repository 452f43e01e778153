"""Elections and their watchers under all faults, and planted bugs that judges find."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.workloads import LOSSES, demand_caught, demand_clean

from fencelock.actors.table import history
from fencelock.actors.table.history import Histories, History
from fencelock.actors.table.state import TableState
from fencelock.verification.simulation.elections import ELECTIONS

MET = ("contender.sees_a_change", *LOSSES)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    demand_clean(ELECTIONS, MET)


def test_watchers_that_are_too_far_behind_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CHANGES_MAX", 2)
    monkeypatch.setattr(history, "KEEP_MS", 300)
    demand_clean(ELECTIONS, ("contender.resynced",))


def ends_are_not_noted(table: TableState, hold: Any, value: bytes | None) -> None:
    if value is not None:
        NOTE(table, hold, value)


def terms_that_are_over_are_left_out(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    read = READ(histories, lock, after, prefix)
    if read is None:
        return None
    fences = Counter(change.fence for change in read[1])
    return read[0], tuple(change for change in read[1] if fences[change.fence] == 1)


def what_is_dropped_was_never_there(histories: Histories, lock: str, kept: History) -> int:
    DROP(histories, lock, kept)
    return 0


def a_node_that_is_behind_begins_anew(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    """Resync a watch at a node that has not yet applied all changes that the watch has seen."""
    return READ(histories, lock, after, prefix) if after <= histories.version else None


def changes_from_the_beginning(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    return READ(histories, lock, after - 1 if after else 0, prefix)


def all_have_the_first_value(
    histories: Histories, lock: str, key: str, value: Any, *how: Any
) -> int:
    first = histories.by_object.get(lock)
    if first and value is not None:
        value = next((one.value for one in first.changes if one.value), value)
    return ADD(histories, lock, key, value, *how)


NOTE = TableState._note_leader  # pyright: ignore[reportPrivateUsage]
READ, ADD = Histories.read, Histories.add
DROP = Histories._drop_first  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("place", "name", "bug", "judge"),
    [
        (TableState, "_note_leader", ends_are_not_noted, "watches"),
        (Histories, "read", terms_that_are_over_are_left_out, "gaps"),
        (Histories, "_drop_first", what_is_dropped_was_never_there, "watches"),
        (Histories, "read", a_node_that_is_behind_begins_anew, "watches"),
        (Histories, "read", changes_from_the_beginning, "watches"),
        (Histories, "add", all_have_the_first_value, "values"),
    ],
    ids=["no ends", "compacted", "a gap is not seen", "a node is behind", "repeats", "value"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, bug: object, judge: str
) -> None:
    if bug is what_is_dropped_was_never_there:
        monkeypatch.setattr(history, "CHANGES_MAX", 1)
    demand_caught(monkeypatch, ELECTIONS, {(place, name): bug}, judge)
