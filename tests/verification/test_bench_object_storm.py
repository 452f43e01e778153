"""The storm of kill -9 over objects of all kinds, for a short time."""

from __future__ import annotations

import pytest
from contests import CONTESTS
from support.bench_programs import run_program

pytestmark = pytest.mark.long


def test_killed_nodes_and_clients_cost_no_promise_of_any_kind() -> None:
    found, status = run_program("object_storm.py", "--seconds", "3", "--clients", "3")
    assert [kind["kind"] for kind in found["kinds"]] == [contest.kind for contest in CONTESTS]
    assert [kind for kind in found["kinds"] if not kind["ok"]] == []
    assert found["problems"] == []
    assert found["client_kills"] + found["node_kills"] > 0
    assert status == 0
