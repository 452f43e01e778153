"""The benchmarks of cost by size: they run, and say of a node and a table that they are flat."""

from __future__ import annotations

import pytest
from support.bench_programs import run_program

pytestmark = pytest.mark.long

SLOWER_MAX = 4
"""Far above the bar of the benchmark, for a machine that also does other things; and far below the
cost of a search of ten thousand."""


def test_a_request_costs_a_node_the_same_whoever_else_is_there() -> None:
    parts = ("--only", "sessions", "--only", "waiters", "--only", "age")
    found, status = run_program("node_scale.py", *parts, "--age", "5000", "--rounds", "2")
    sizes = {(line["what"], line["size"]): line["slower"] for line in found["lines"]}
    assert sizes.keys() == {
        ("sessions", 10),
        ("sessions", 10_000),
        ("waiters", 10),
        ("waiters", 10_000),
        ("commands before", 1_000),
        ("commands before", 5_000),
    }
    assert max(sizes.values()) < SLOWER_MAX
    assert status == (0 if found["ok"] else 1)
