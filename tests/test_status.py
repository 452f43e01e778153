from __future__ import annotations

import dataclasses
import json
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from holdfast.actors.lock.message import Absence, Contender, Counted, LockStatus, NodeStatus
from holdfast.cluster.cli.status import as_plain, duration, locks_table, nodes_table

NODE = NodeStatus(
    node="n1",
    protocol="lamport",
    nodes=("n1", "n2"),
    ready=False,
    detail="n2 is silent",
    uptime_ms=61_500,
    counters=(Counted("clock.impossible_stamp", 2),),
    locks=(
        LockStatus(
            lock="orders/[42]",
            holder=Contender("n1", "s-1", "thread-7", 9001, 2_500),
            waiters=(Contender("n2", "", "", None, 40),),
            waits_for=(Absence("n2", 7_000),),
        ),
    ),
    session="asker",
    request=5,
)


def shown(table: Table) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_tables_show_who_holds_who_waits_and_who_is_missed() -> None:
    nodes = shown(nodes_table([NODE], asked=1))
    assert "not ready: n2 is silent" in nodes
    assert "1m 1s" in nodes
    locks = shown(locks_table([NODE]))
    for part in ("orders/[42]", "n1/s-1/thread-7", "9001", "2s", "n2 40ms", "n2 (silent 7s)"):
        assert part in locks


@pytest.mark.parametrize(
    ("asked", "why"), [(1, "not asked"), (2, "not asked, or no answer"), (3, "no answer")]
)
def test_a_node_that_is_missing_was_silent_if_every_address_was_asked(asked: int, why: str) -> None:
    node = dataclasses.replace(NODE, nodes=("n1", "n2", "n3"))
    cells = [cell.strip() for cell in shown(nodes_table([node], asked=asked)).split("│")]
    assert cells.count(why) == 2


def test_a_status_as_json_has_names_for_every_part() -> None:
    plain = json.loads(json.dumps(as_plain(NODE)))
    assert plain["counters"] == [{"name": "clock.impossible_stamp", "times": 2}]
    (lock,) = plain["locks"]
    assert lock["holder"] == {
        "node": "n1",
        "session": "s-1",
        "owner": "thread-7",
        "fence": 9001,
        "since_ms": 2500,
    }
    assert lock["waits_for"] == [{"node": "n2", "silent_ms": 7000}]
    assert not {"session", "request"} & plain.keys()


def test_a_fence_is_never_cut_short() -> None:
    console = Console(file=StringIO(), width=60)
    console.print(locks_table([NODE]))
    assert isinstance(console.file, StringIO)
    assert "…" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (90_061_000, "1d 1h"),
    ],
)
def test_durations_are_told_in_at_most_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text
