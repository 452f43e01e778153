"""Each benchmark that people start can be started, and explains itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PARTS = {"attackers.py", "compare_client.py", "compare_tasks.py", "compare_wire.py"}
"""Programs that a benchmark starts itself."""

PROGRAMS = sorted(
    path.name
    for path in FOLDER.glob("*.py")
    if not path.name.startswith("test_") and "__main__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("program", [name for name in PROGRAMS if name not in PARTS])
def test_a_benchmark_explains_itself(program: str) -> None:
    told = subprocess.run(
        [sys.executable, FOLDER / program, "--help"], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"usage: {program}")
