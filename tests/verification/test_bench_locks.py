"""The benchmark of locks, and the help of all benchmarks."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from support.paths import PROGRAMS
from support.programs import run_to_end
from support.samples import READY

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.cluster.node.config import parse
from fencelock.verification.bench.failover import longest_gap_ms
from fencelock.verification.bench.job import Job, JobKind, Use, read_job
from fencelock.verification.bench.load import quantiles_us
from fencelock.verification.bench.locks import HeldMemory, LockBenchPlan, Part
from fencelock.verification.bench.machine import resident_bytes, this_machine
from fencelock.verification.bench.members import BenchFailedError, configuration, leader_among
from fencelock.verification.bench.objects import CROWDS, PAIRS, Crowd
from fencelock.verification.bench.report import NotedFigure, readings_table

pytestmark = pytest.mark.long

LONG_S = 180.0
COMMAND = [sys.executable, "-m", "fencelock", "bench", "locks"]


def bench(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # All of its processes, and only they, are in a group of its own.
    )


def processes_left_of(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("grants", "gap"),
    [
        ([], 100),
        ([90, 110, 120, 190], 70),
        ([50, 150], 100),  # It began before the span.
        ([120, 130, 500], 70),  # What ends after the span is judged with the next.
        ([100, 200], 100),
        ([10, 20, 300], 180),
    ],
)
def test_a_gap_is_the_longest_time_without_a_grant(grants: list[int], gap: int) -> None:
    assert longest_gap_ms(grants, 100, 200) == gap


def test_a_job_survives_its_line() -> None:
    job = Job(
        kind=JobKind.READ, address="tcp://a:1", seconds=2.5, at_once=3, age_ms=100, shared=True
    )
    assert read_job(job.line()) == job


def test_threads_are_after_locks_of_their_own_or_all_after_one() -> None:
    own = Job(kind=JobKind.RATE, lock="x")
    one = Job(kind=JobKind.RATE, lock="x", shared=True)
    assert [own.lock_of(0), own.lock_of(1)] == ["x-0", "x-1"]
    assert [one.lock_of(0), one.lock_of(1)] == ["x", "x"]


def test_quantiles_are_in_microseconds() -> None:
    found = quantiles_us([number / 1_000_000 for number in range(101)])
    assert found == {"p50_us": pytest.approx(50), "p99_us": pytest.approx(99), "times": 101}


@pytest.mark.parametrize("protocol", ["paxos", "central", "lamport"])
@pytest.mark.parametrize("durable", [True, False])
def test_a_cluster_of_every_protocol_can_be_configured(protocol: str, durable: bool) -> None:
    addresses = {"n1": "tcp://127.0.0.1:4041", "n2": "tcp://127.0.0.1:4042"}
    config = parse(configuration("bench", protocol, addresses, durable=durable), Path())
    assert (config.protocol, config.nodes) == (protocol, addresses)
    assert config.settings.central_journal == (protocol == "central" and durable)
    assert config.settings.paxos_memory == (protocol == "paxos" and not durable)


def test_the_leader_is_the_node_that_most_nodes_name() -> None:
    def status(node: str, leader: str) -> NodeStatus:
        return replace(READY, node=node, leader=leader)

    assert leader_among([status("n1", "n2"), status("n2", "n2"), status("n3", "n3")]) == "n2"
    assert leader_among([status("n1", ""), status("n2", "n1")]) == "n1"
    assert leader_among([status("n1", "")]) == ""
    assert leader_among([]) == ""


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cores >= 1
    assert machine.sync_us > 0
    assert "Python" in machine.in_words()
    assert list(tmp_path.iterdir()) == []


def test_a_title_names_what_is_kept_on_disk() -> None:
    assert LockBenchPlan().in_words() == "paxos, 3 nodes, fsync"
    assert LockBenchPlan(durable=False, nodes=5).in_words() == "paxos, 5 nodes, memory"
    assert LockBenchPlan(protocol="central").in_words() == "central, 3 nodes, journal"
    assert LockBenchPlan(protocol="lamport").in_words() == "lamport, 3 nodes"


def test_failover_is_measured_where_a_member_may_come_back() -> None:
    assert LockBenchPlan().has(Part.FAILOVER)
    assert not LockBenchPlan(durable=False).has(Part.FAILOVER)
    assert not LockBenchPlan(protocol="central").has(Part.FAILOVER)
    assert LockBenchPlan(durable=False).has(Part.READS)
    assert LockBenchPlan(durable=False).has(Part.HELD)
    assert not LockBenchPlan(protocol="lamport").has(Part.HELD)
    assert all(LockBenchPlan(protocol="lamport").has(part) for part in (Part.PAIR, Part.TASKS))


def test_memory_is_what_the_system_reports_as_resident() -> None:
    mine = resident_bytes(os.getpid())
    assert abs(mine - psutil.Process().memory_info().rss) < mine / 2
    with pytest.raises(BenchFailedError, match="memory of process"):
        resident_bytes(2**30)


def test_all_that_a_node_grew_by_counts_for_its_locks() -> None:
    found = HeldMemory(
        10, 1.0, {"n1": 1_000_000, "n2": 1_000_000}, {"n1": 3_000_000, "n2": 1_000_500}
    )
    assert found.bytes_a_lock == {"n1": 200_000, "n2": 50}
    assert found.in_words() == "10 held; the largest, n1, from 1 to 3 MB resident"


def test_a_table_shows_the_spread_of_rounds() -> None:
    reading = NotedFigure("gap_ms", "gap", 700, "ms", "3 kills", (500, 700, 1_900))
    table = readings_table("title", [reading])
    assert [next(iter(column.cells)) for column in table.columns] == [
        "gap",
        "700 (500 to 1,900)",
        "ms",
        "3 kills",
    ]


def test_all_parts_are_measured_over_real_processes_and_none_is_left() -> None:
    with bench("--seconds", "0.3", "--kills", "1", "--held", "2000", "--json") as running:
        output, error = running.communicate(timeout=LONG_S)
    assert running.returncode == 0, error
    assert not processes_left_of(running.pid)
    report = json.loads(output.splitlines()[-1])
    figures = report["figures"]
    measured = {name: value for name, value in figures.items() if name != "false_elections"}
    assert all(value > 0 for value in measured.values()), figures
    assert set(figures) >= {
        "pair_p50_us",
        "pair_p99_us",
        "pairs_per_s",
        "handovers_per_s",
        "tasks_pairs_per_s",
        "bare_p50_us",
        "failover_gap_ms",
        "reads_linearizable_per_s",
        "reads_local_per_s",
        "held_bytes_per_lock",
    }
    assert len(report["rounds"]["held_bytes_per_lock"]) == 3
    assert figures["pair_p50_us"] <= figures["pair_p99_us"]
    assert len(report["rounds"]["failover_gap_ms"]) == 1
    assert report["machine"]["cores"] >= 1
    assert report["plan"]["protocol"] == "paxos"
    assert "measuring pair" in error


@pytest.mark.parametrize("options", [("--protocol", "central"), ("--durability", "memory")])
def test_a_missing_part_is_not_measured(options: tuple[str, ...]) -> None:
    parts = ("--only", "pair", "--only", "failover")
    with bench(*options, "--seconds", "0.3", "--json", *parts) as running:
        output, error = running.communicate(timeout=LONG_S)
    assert running.returncode == 0, error
    figures = set(json.loads(output.splitlines()[-1])["figures"]) - {"false_elections"}
    assert figures == {"pair_p50_us", "pair_p99_us"}
    assert not processes_left_of(running.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_behind(number: signal.Signals) -> None:
    with bench("--seconds", "600", "--only", "throughput", "--json") as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "measuring throughput" in line:
                break
        running.send_signal(number)
        output = running.communicate(timeout=LONG_S)
    assert running.returncode == 128 + number, output
    assert not processes_left_of(running.pid)


def test_a_subject_that_cannot_be_measured_is_refused_with_a_reason() -> None:
    with bench("--protocol", "raft", "--json") as running:
        _, error = running.communicate(timeout=LONG_S)
    assert running.returncode == 2
    assert "raft" in error
    assert "Traceback" not in error


# `fencelock bench objects`: its figures, and the loads behind them


def test_each_kind_is_measured_beside_its_reference_in_one_run() -> None:
    options = (
        "--only",
        "pairs",
        "--only",
        "barrier",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--json",
    )
    done = run_to_end(
        [sys.executable, "-m", "fencelock", "bench", "objects", *options],
        env={**os.environ, "COLUMNS": "120"},
        timeout=LONG_S,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    compared = [one.name for one in PAIRS]
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


PARTS = {"attackers.py", "compare_client.py"}
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
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err) == (0, "")
    assert printed.out.startswith(f"usage: {program}")


def test_a_benchmark_is_started_as_a_process() -> None:
    """Each imports its neighbours, which only Python's own start of a program makes possible."""
    command = [sys.executable, str(PROGRAMS / "compare.py"), "--help"]
    done = run_to_end(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: compare.py")
