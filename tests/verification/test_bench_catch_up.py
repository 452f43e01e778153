"""The benchmarks of nodes that learn: members that come back, and observers."""

from __future__ import annotations

import pytest
from support.bench_programs import run_program

pytestmark = pytest.mark.long


def test_a_member_that_missed_much_does_not_load_the_leader() -> None:
    found, _ = run_program("catch_up.py", "--kept", "2000", "--slots", "800")

    assert found["ok"], found
    assert found["ms"]["follower"]["leader"] < found["ms"]["leader"]["leader"], found


def test_members_and_observers_answer_reads_with_an_age_bound() -> None:
    found, _ = run_program("observer_reads.py", "--seconds", "0.3", "--threads", "4")

    assert {number: len(one["reads_per_s"]) for number, one in found.items()} == {
        "0": 3,
        "1": 4,
        "2": 5,
    }
    assert all(rate > 0 for one in found.values() for rate in one["reads_per_s"].values()), found
