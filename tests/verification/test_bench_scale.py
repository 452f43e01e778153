"""Benchmarks of cost by size and of nodes that learn, and the storm of objects."""

from __future__ import annotations

import pytest
from contests import CONTESTS
from support.programs import run_program

pytestmark = pytest.mark.long

SLOWER_MAX = 4
"""Far above the bar of the benchmark, for a machine that also does other things; and far below the
cost of a search of ten thousand."""


def test_a_request_costs_a_node_the_same_however_many_clients_there_are() -> None:
    parts = ("--only", "sessions", "--only", "waiters", "--only", "age")
    found, status = run_program("node_scale.py", *parts, "--age", "5000", "--rounds", "2")
    ratios = {figure["name"]: figure["ratio"] for figure in found["figures"]}
    assert ratios.keys() == {"sessions: 10,000", "waiters: 10,000", "commands before: 5,000"}
    assert max(ratios.values()) < SLOWER_MAX
    assert status == (0 if found["ok"] else 1)


# The benchmark of a member that comes back


def test_a_member_that_missed_much_does_not_load_the_leader() -> None:
    found, _ = run_program("catch_up.py", "--kept", "2000", "--slots", "800")

    assert found["ok"], found
    assert found["ms"]["follower"]["follower"] > found["ms"]["leader"]["follower"], found


# The storm of kill -9 over objects of all kinds, for a short time


def test_killed_nodes_and_clients_cost_no_promise_of_any_kind() -> None:
    found, status = run_program("object_storm.py", "--seconds", "3", "--clients", "3")
    assert [kind["kind"] for kind in found["kinds"]] == [contest.kind for contest in CONTESTS]
    assert [kind for kind in found["kinds"] if not kind["ok"]] == []
    assert found["problems"] == []
    assert found["client_kills"] + found["node_kills"] > 0
    assert status == 0
