"""The benchmark of a member that comes back: the follower feeds it, and not the master."""

from __future__ import annotations

import json
import subprocess
import sys

from support.paths import BENCH

LONG_S = 120.0


def test_a_member_that_missed_much_does_not_load_the_master() -> None:
    ended = subprocess.run(
        [sys.executable, str(BENCH / "catch_up.py"), "--json", "--kept", "2000", "--slots", "800"],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )

    assert ended.stderr == ""
    found = json.loads(ended.stdout)
    assert found["ok"], found
    assert found["ms"]["follower"]["master"] < found["ms"]["master"]["master"], found
