"""`fencelock bench objects`: its figures, and the loads behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fencelock.verification.bench.job import Job, JobKind, read_job
from fencelock.verification.bench.object_costs import CROWDS, Crowd
from fencelock.verification.bench.objects import MAPS, PAIRS
from fencelock.verification.bench.uses import Use

LONG_S = 120.0


@pytest.mark.long
def test_each_kind_is_measured_beside_its_reference_in_one_run() -> None:
    options = (
        "--only",
        "pairs",
        "--only",
        "maps",
        "--only",
        "barrier",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--json",
    )
    done = subprocess.run(
        [sys.executable, "-m", "fencelock", "bench", "objects", *options],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    compared = [one.name for one in (*PAIRS, *MAPS)]
    names = [*compared, "round of a barrier, 64 parties"]
    assert [one["name"] for one in found["figures"]] == names
    for one in found["figures"]:
        assert one["ours"] > 0
        assert one["other"] is None or one["other"] > 0
        assert one["name"] in done.stderr
    assert done.returncode == (0 if found["met"] else 1)


def test_a_job_of_turns_survives_its_line() -> None:
    job = Job(kind=JobKind.TURNS, uses=(Use.READ, Use.LOCK), rounds=3)
    assert read_job(job.line()) == job


@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.name)
def test_a_load_keeps_its_size_from_round_to_round(crowd: Crowd) -> None:
    run = crowd.load(10)
    run()
    run()  # It raises if a pair is not granted.
