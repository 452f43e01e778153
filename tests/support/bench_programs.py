"""Runs the programs of verification/programs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.paths import PROGRAMS

LONG_S = 120.0


def run_program(program: str, *options: str) -> tuple[dict[str, Any], int]:
    """Run ``program`` with ``--json``; return what it prints, and its exit status."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAMS / program), "--json", *options],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert ended.stderr == ""
    found: dict[str, Any] = json.loads(ended.stdout)
    return found, ended.returncode
