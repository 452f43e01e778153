"""Every example runs as its docstring states, and so does the Python of the pages for users."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any, cast

import pytest
import typer
from contests import CONTESTS
from support import programs
from support.expect import with_long
from support.paths import EXAMPLES, ROOT
from support.programs import run_to_end
from support.real_nodes import config_in, running, running_nodes
from typer.testing import CliRunner

import fencelock
from fencelock.cluster.client.lazy import defaults
from fencelock.cluster.testing.ports import free_ports
from fencelock.testing import LocalCluster, local

LONG_S = 120.0

PAGES = (
    "index.md",
    "barrier.md",
    "coming-from/etcd3.md",
    "coming-from/kazoo.md",
    "coming-from/pottery.md",
    "coming-from/redis-py.md",
    "counter.md",
    "deadlines.md",
    "election.md",
    "exceptions.md",
    "frameworks.md",
    "how-to/cache.md",
    "how-to/handover.md",
    "how-to/leader.md",
    "how-to/migration.md",
    "how-to/nightly-job.md",
    "how-to/one-worker.md",
    "how-to/rate-limit.md",
    "how-to/two-services.md",
    "latch.md",
    "lock-all.md",
    "map.md",
    "own-roles.md",
    "release.md",
    "retain.md",
    "rwlock.md",
    "semaphore.md",
)
"""Pages of `docs/` whose code runs against any cluster."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, str(EXAMPLES / command[0]), *command[1:]])


def verdict_of(*options: str) -> dict[str, Any]:
    """Run `cluster.py`; return its verdict."""
    ended = run("cluster.py", *options, "--json")
    assert ended.returncode == 0, ended.stderr
    verdict: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return verdict


FEW = ("--clients", "2")
"""The fewest clients that compete: each is a process that keeps a core busy."""


def demand_sound(verdict: dict[str, Any]) -> None:
    """Fail unless every client was served and nothing was lost."""
    assert verdict["ok"] is True
    assert (verdict["overlaps"], verdict["lost_updates"], verdict["fence_regressions"]) == (0, 0, 0)
    assert min(verdict["grants_by_client"].values()) > 0
    assert verdict["grants"] == sum(verdict["grants_by_client"].values())


@pytest.mark.parametrize("protocol", with_long(["lamport", "central"], "central"))
def test_a_local_cluster_serves_everybody_and_nothing_overlaps(protocol: str) -> None:
    """The test with killed leaders checks the same of `paxos` and `bakery`."""
    verdict = verdict_of("--protocol", protocol, "--seconds", "1", *FEW)
    assert verdict["protocol"] == protocol
    demand_sound(verdict)


@pytest.mark.long
def test_an_entry_by_logical_time_costs_what_the_algorithm_states() -> None:
    """One client: none waits long enough for a probe, so the count is exact."""
    one = ("--clients", "1", "--locks", "1", "--seconds", "1")
    verdict = verdict_of("--protocol", "lamport", *one)
    assert verdict["messages_per_entry"] == pytest.approx(3 * (verdict["nodes"] - 1), rel=0.05)


RARER = ("--kill-every", "6", "--seconds", "14")
"""Interval of kills where no client is served until the server is back. The server must serve for a
while between two kills, also if a node takes seconds to start."""


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--protocol", "bakery", "--nodes", "5"), marks=pytest.mark.long),
        pytest.param(("--protocol", "central", "--journal", *RARER), marks=pytest.mark.long),
    ],
)
def test_clients_go_on_when_the_leader_dies_and_lose_nothing(options: tuple[str, ...]) -> None:
    kills = ("--kill-leader", "--kill-every", "2", "--seconds", "5", *FEW)
    verdict = verdict_of(*kills, *options)
    assert verdict["protocol"] == (options[1] if options else "paxos")
    assert verdict["kills"] >= 1
    assert 0 < verdict["longest_gap_ms"] < 9_000
    demand_sound(verdict)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_a_cluster_grows_from_one_node_to_five_and_shrinks_under_load(protocol: str) -> None:
    verdict = verdict_of("--grow", *FEW, "--protocol", protocol)
    assert verdict["changes"] == 8
    demand_sound(verdict)


@pytest.mark.long
def test_objects_of_all_kinds_keep_their_promises() -> None:
    ended = run("cluster.py", "--objects", "--kill-leader", "--seconds", "7", "--json")
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout.splitlines()[-1])
    assert [one["kind"] for one in verdict["objects"]] == [one.kind for one in CONTESTS]
    assert [one["kind"] for one in verdict["objects"] if not one["ok"]] == []
    assert verdict["kills"] >= 1
    names = [name for one in verdict["objects"] for name in one["names"]]
    assert [name for name in names if name not in ended.stderr] == []
    in_use = [name for name in names if f"| {name}: " in ended.stderr]
    assert len(in_use) >= 3, ended.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--objects", "--protocol", "bakery"), "--protocol paxos"),
        (("--grow", "--protocol", "central", "--journal"), "--protocol paxos or bakery"),
        (("--grow",), "leave out --kill-leader"),
        (("--protocol", "lamport"), "lamport has no leader"),
        (("--protocol", "central"), "--journal"),
        (("--seconds", "2"), "at least 5"),
    ],
)
def test_kills_that_cannot_end_well_are_refused(options: tuple[str, ...], why: str) -> None:
    app = typer.Typer()
    app.command()(runpy.run_path(str(EXAMPLES / "cluster.py"))["run"])
    ended = CliRunner().invoke(app, ["--kill-leader", *options])
    assert ended.exit_code == 2
    text = " ".join(ended.stderr.replace("│", " ").split())  # The frame breaks lines.
    assert why in text


def test_a_cluster_that_cannot_serve_fails_with_the_reason() -> None:
    ended = run("cluster.py", "--protocol", "lamport", "--nodes", "1", "--seconds", "1")
    assert ended.returncode != 0
    assert "lamport" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_cluster_stops_its_processes_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, str(EXAMPLES / "cluster.py"), "--nodes", "1", "--seconds", "600"]
    with subprocess.Popen([*command, *FEW], stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        for line in cluster.stdout:
            if "grants by" in line:
                break
        cluster.send_signal(number)
        left = cluster.stdout.read()  # Ends when every child has let go of the pipe.
        assert cluster.wait(LONG_S) != 0
    assert "Traceback" not in left


def test_nodes_are_asked_inside_the_process() -> None:
    ended = run("embedded.py", *map(str, free_ports(3)))
    assert ended.returncode == 0, ended.stderr
    assert "n1 granted orders/42" in ended.stdout
    assert "refused: lock 'orders/42'" in ended.stdout
    assert "n2 granted orders/42" in ended.stdout


def test_two_roles_of_a_service_play_the_processes_of_the_essay() -> None:
    ended = run("two_processes.py")
    assert ended.returncode == 0, ended.stderr
    played = ended.stdout.splitlines()
    assert played[0] == "n1/contender entered by its request of time 1"
    assert played[1] == "n2/contender waits"
    assert "holds: yes, place 1: n1/contender at 1, place 2: n2/contender at" in played[2]
    assert "holds: no, place 1: n1/contender at 1, place 2: n2/contender at" in played[3]
    assert played[4].startswith("n1/contender left; n2/contender entered at")
    assert played[5:] == ["50 entries, 0 overlaps"]


def test_the_lock_of_the_readme_works_against_a_node(tmp_path: Path) -> None:
    with running_nodes(tmp_path, "central", nodes=1) as nodes:
        ended = run("ten_lines.py", nodes["n1"].address)
    assert ended.returncode == 0, ended.stderr
    assert "I hold orders/42 under fence" in ended.stdout


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("semaphore.py", ("page 5 under fence", "all 3 printers are mine under fence")),
        ("rwlock.py", ("reader 4 sees red under fence", "changed to blue under fence")),
        ("leader_election.py", ("worker 3 leads under fence", "all followers saw 10.0.0.")),
        ("lock_all.py", ("cat sent 5 to ben", "all together: 300")),
        ("deadline.py", ("the duration is over", "was lost; the next has fence")),
        ("fenced_map.py", ("was refused: map 'counters': nothing was changed", "orders is 100")),
        ("barrier.py", ("round 3: worker", "no other worker came: barrier 'rounds': waited")),
        ("counter.py", ("order numbers 1 to 20, each of them once: 20", "total is 20")),
        (
            "latch.py",
            ("machine 3 switches over", "a machine that comes late switches over at once"),
        ),
    ],
)
def test_a_program_runs_to_its_end(tmp_path: Path, program: str, lines: tuple[str, str]) -> None:
    with running_nodes(tmp_path) as nodes:
        ended = run(program, ",".join(node.address for node in nodes.values()))
    assert ended.returncode == 0, ended.stderr
    assert [line for line in lines if line not in ended.stdout] == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local() as started:
        yield started


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_as_it_is_shown(
    page: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for framework in ("apscheduler", "celery") if page == "frameworks.md" else ():
        programs.package(framework, f"it is in the extra '{framework}'")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    try:
        for block in blocks:
            exec(compile(block, page, "exec", dont_inherit=True), {})
    finally:
        fencelock.close()  # The default client is of this cluster.


def test_the_readmes_python_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    of_redis, blocking, tasks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:3]
    (door,) = free_ports(1)
    config = replace(config_in(tmp_path), redis={"n1": f"tcp://127.0.0.1:{door}"})
    monkeypatch.setenv("FENCELOCK_CONNECT", ",".join(config.nodes.values()))
    defaults.reset()
    names = {"fencelock": fencelock}
    with running(config):
        for code in (blocking, f"import asyncio\nasync def main():\n{indent(tasks, '    ')}"):
            exec(compile(code, "README.md", "exec"), names)
        asyncio.run(cast("Any", names)["main"]())
        exec(compile(of_redis.replace("6379", str(door)), "README.md", "exec"), {})
        defaults.reset()  # The default client is of this cluster.
