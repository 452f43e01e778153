"""A few mutants of a journal; the program takes thousands."""

from __future__ import annotations

import subprocess
import sys

from support.paths import PROGRAMS


def test_each_mutant_is_refused_or_recovers_without_damage() -> None:
    command = [sys.executable, str(PROGRAMS / "journal_mutants.py"), "--mutants", "60"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {"refused", "repairable"} <= set(ended.stdout.split())
