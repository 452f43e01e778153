"""Places in the repository that tests read or run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
PROGRAMS = ROOT / "verification" / "programs"
PINS = SUPPORT / "wire_pins.txt"
