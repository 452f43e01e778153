"""Watches of a map under all faults, and planted bugs that judges find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.workloads import demand_caught, demand_clean

from fencelock.actors.table import history
from fencelock.actors.table.history import Histories
from fencelock.actors.table.map import Entry
from fencelock.actors.table.state import TableState
from fencelock.verification.simulation.maps import MAPS

READ, ADD = Histories.read, Histories.add


def test_watchers_that_are_too_far_behind_get_another_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "CHANGES_MAX", 3)
    demand_clean(MAPS, ("contender.resynced", "contender.sees_a_change"))


def expiry_is_no_change(entry: Entry, table: TableState, out: object) -> None:
    del out
    table.maps._drop(table, entry)  # pyright: ignore[reportPrivateUsage]


def only_the_last_of_each_key(histories: Histories, lock: str, after: int, prefix: str) -> Any:
    read = READ(histories, lock, after, prefix)
    return read and (read[0], tuple({change.key: change for change in read[1]}.values()))


def a_node_that_is_behind_begins_anew(
    histories: Histories, lock: str, after: int, prefix: str
) -> Any:
    return READ(histories, lock, after, prefix) if after <= histories.version else None


def the_value_before(
    histories: Histories, lock: str, key: str, value: bytes | None, *how: Any
) -> int:
    known = histories.by_object.get(lock)
    for change in known.changes if known and value is not None else ():
        value = change.value or value
    return ADD(histories, lock, key, value, *how)


RARE = {expiry_is_no_change: 29}
"""The first seed of the search, which keeps the search short."""


@pytest.mark.parametrize(
    ("place", "name", "bug", "judge"),
    [
        (Entry, "fall_due", expiry_is_no_change, "watches"),
        (Histories, "read", only_the_last_of_each_key, "gaps"),
        (Histories, "read", a_node_that_is_behind_begins_anew, "watches"),
        (Histories, "add", the_value_before, "watches"),
    ],
    ids=["no expiry", "compacted", "a node is behind", "the value before"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    name: str,
    bug: Callable[..., Any],
    judge: str,
) -> None:
    demand_caught(monkeypatch, MAPS, {(place, name): bug}, judge, RARE.get(bug, 0))
