"""Each benchmark that people start can be started, and explains itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import PROGRAMS

PARTS = {"attackers.py", "compare_client.py", "compare_tasks.py", "compare_wire.py"}
"""Programs that a benchmark starts itself."""

STARTED = sorted(
    path.name
    for path in PROGRAMS.glob("*.py")
    if path.name not in PARTS and "__main__" in path.read_text(encoding="utf-8")
)
assert len(STARTED) > len(PARTS)


@pytest.mark.parametrize("program", STARTED)
def test_a_benchmark_explains_itself(program: str) -> None:
    told = subprocess.run(
        [sys.executable, PROGRAMS / program, "--help"], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"usage: {program}")
