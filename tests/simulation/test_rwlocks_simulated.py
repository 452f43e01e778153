"""Read/write locks end to end under every fault, and bugs planted in them that judges catch."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import taken_unchecked
from support.workloads import LOSSES, demand_caught, demand_clean

from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.table import requests
from fencelock.actors.table.resource import Resource, TableHold
from fencelock.actors.table.state import TableState
from fencelock.verification.simulation.rwlocks import RWLOCKS

MET = (
    "contender.enters_again",
    "contender.upgrade_refused",
    "contender.downgrades",
    *LOSSES,
)


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    demand_clean(RWLOCKS, MET)


def readers_pass_a_waiting_writer(resource: Resource, amount: int) -> bool:
    return amount <= resource.free


def a_writer_needs_one_permit(resource: Resource, amount: int) -> bool:
    del amount
    return not resource.queue and resource.free > 0


def a_downgrade_loses_permits(table: TableState, hold: TableHold, amount: int, out: object) -> None:
    del table, out
    hold.amount -= amount


def a_reader_becomes_a_writer(
    table: TableState, owner_state: Any, hold: TableHold, command: Any, out: Any
) -> None:
    if isinstance(command, AcquireReadWrite):
        command = replace(command, write=False)
    ENTER_AGAIN(table, owner_state, hold, command, out)


ENTER_AGAIN = requests._enter_again  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(Resource, "admits"): readers_pass_a_waiting_writer}, "order"),
        (
            {(Resource, "admits"): a_writer_needs_one_permit, (Resource, "add"): taken_unchecked},
            "capacity",
        ),
        ({(TableState, "give_back"): a_downgrade_loses_permits}, "progress"),
        ({(requests, "_enter_again"): a_reader_becomes_a_writer}, "upgrade"),
    ],
    ids=["overtakes", "writes beside readers", "downgrade", "upgrade"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, RWLOCKS, plants, judge)
