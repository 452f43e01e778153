"""Each benchmark that people start can be started, and explains itself."""

from __future__ import annotations

import runpy
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
def test_a_benchmark_explains_itself(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROGRAMS / program), run_name="__main__")
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert told.out.startswith(f"usage: {program}")


def test_a_benchmark_is_started_as_a_process() -> None:
    """Each imports its neighbours, which only Python's own start of a program makes possible."""
    command = [sys.executable, str(PROGRAMS / "compare.py"), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("usage: compare.py")
