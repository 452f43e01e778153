"""The benchmarks of cost by size: they run, and say of a node and a table that they are flat."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.paths import BENCH

LONG_S = 120.0

SLOWER_MAX = 4
"""Far above the bar of the benchmark, for a machine that also does other things; and far below the
cost of a search of ten thousand."""


def lines(program: str, *options: str) -> tuple[dict[str, Any], int]:
    ended = subprocess.run(
        [sys.executable, str(BENCH / program), "--json", *options],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert ended.stderr == ""
    found: dict[str, Any] = json.loads(ended.stdout)
    return found, ended.returncode


def test_a_request_costs_a_node_the_same_whoever_else_is_there() -> None:
    parts = ("--only", "sessions", "--only", "waiters", "--only", "age")
    found, status = lines("node_scale.py", *parts, "--age", "5000", "--rounds", "2")
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
