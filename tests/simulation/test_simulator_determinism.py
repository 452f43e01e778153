"""A seed fixes everything: in one process, in others under another hash seed, and in the CLI."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencelock.verification.simulation.run import run_seed

SCRIPT = """
from fencelock.verification.simulation.run import run_seed
for seed in (20, 21):
    report = run_seed({protocol!r}, seed)
    print(seed, report.deliveries, report.violation, report.marks, report.faults)
    print(*report.trace(), sep="\\n")
"""
CLI = "from fencelock.cluster.cli.main import main; main()"


def output_of(code: str, *arguments: str, hash_seed: int) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return run.stdout


@pytest.mark.parametrize("protocol", ["lamport", "central"])
def test_a_seed_twice_in_one_process_gives_one_trace(protocol: str) -> None:
    first, second = run_seed(protocol, 11), run_seed(protocol, 11)

    assert first.trace() == second.trace()
    assert first.deliveries == second.deliveries > 100
    assert first.trace() != run_seed(protocol, 12).trace()


@pytest.mark.parametrize("protocol", ["lamport", "central"])
def test_a_seed_gives_the_same_trace_under_every_hash_seed(protocol: str) -> None:
    script = SCRIPT.format(protocol=protocol)

    outputs = {output_of(script, hash_seed=hash_seed) for hash_seed in (0, 1, 2)}

    assert len(outputs) == 1


@pytest.mark.parametrize("protocol", ["lamport", "central"])
def test_the_command_prints_the_trace_of_a_run_under_another_hash_seed(protocol: str) -> None:
    arguments = ("simulate", "--protocol", protocol, "--seed", "30", "--trace")

    output = output_of(CLI, *arguments, hash_seed=1)

    assert output.splitlines()[:-2] == run_seed(protocol, 30).trace()


def test_workers_change_no_outcome() -> None:
    arguments = ("simulate", "--protocol", "central", "--seeds", "0..3")

    alone = output_of(CLI, *arguments, hash_seed=0)
    shared = output_of(CLI, *arguments, "--workers", "2", hash_seed=1)

    def timeless(told: str) -> list[str]:
        return [line for line in told.splitlines() if "second" not in line]

    assert timeless(alone) == timeless(shared)
    assert "central: 4 seeds without a violation" in alone
