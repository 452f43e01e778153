"""The example services while the leader of their cluster is killed: one holder, no long wait."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import programs
from support.expect import PATIENCE_S
from support.paths import EXAMPLES, ROOT
from support.real_nodes import until

import fencelock
from fencelock.cluster.client.lazy import defaults
from fencelock.verification.bench.members import NodeProcesses, leader_among

pytestmark = pytest.mark.long

LIMIT_S = 5.0
"""How long the examples let a request wait for a lock: then it is refused."""
KILLS = 2


class Nodes:
    """Three nodes in processes of their own, which the environment names."""

    def __init__(self, processes: NodeProcesses, watcher: fencelock.Client) -> None:
        self._processes = processes
        self._watcher = watcher

    def outlived(self, progress: Callable[[], int]) -> None:
        """Kill the leader a few times; after each time the service must get on."""
        for _ in range(KILLS):
            leader = leader_among(self._processes.wait_until_ready(self._watcher))
            self._processes.kill(leader)
            until(partial(_is_past, progress, progress() + 5))
            self._processes.start(leader)


def _is_past(progress: Callable[[], int], goal: int) -> bool:
    return progress() >= goal


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with (
        NodeProcesses(tmp_path, "paxos", 3, durable=True) as processes,
        processes.ready_client() as client,
    ):
        monkeypatch.setenv("FENCELOCK_CONNECT", processes.connect)
        monkeypatch.setenv("FENCELOCK_CLUSTER", "bench")
        path = [str(ROOT / "tests"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        defaults.reset()
        yield Nodes(processes, client)
        defaults.reset()


def python(ending: ExitStack, *command: str) -> programs.Child:
    process = programs.Child(*command)
    ending.enter_context(process)  # Closes its pipes, and waits for it.
    ending.callback(process.kill)
    return process


@pytest.mark.parametrize("example", ["fastapi_app", "django_app", "gunicorn_app"])
def test_no_request_of_a_service_fails_or_meets_another_holder(
    nodes: Nodes, tmp_path: Path, example: str
) -> None:
    programs.package("django")
    with ExitStack() as ending:
        command = ("-m", "support.busy_service", example, str(tmp_path))
        services = [python(ending, *command) for _ in range(2)]
        for service in services:
            assert service.line() == "busy"
        log = tmp_path / "work.log"
        nodes.outlived(lambda: len(log.read_text().splitlines()))
        reports = [json.loads(one.communicate(timeout=PATIENCE_S)[0]) for one in services]
    answers = [answer for report in reports for answer in report["answers"]]
    assert [report["overlaps"] for report in reports] == [0, 0]
    assert {status for status, _ in answers} == {200}
    assert max(seconds for _, seconds in answers) < LIMIT_S
    fences = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert (fences, len(fences)) == (sorted({*fences}), len(answers))


def test_each_task_of_celery_is_done_once(nodes: Nodes, tmp_path: Path) -> None:
    programs.package("celery")
    example: Any = importlib.import_module("celery_once")
    start_worker = importlib.import_module("celery.contrib.testing.worker").start_worker
    options: dict[str, Any] = {"perform_ping_check": False, "pool": "threads", "concurrency": 4}
    outcomes: list[list[str]] = []

    def day_done() -> int:
        day = f"day-{len(outcomes)}"
        sent = [example.write_report.delay(day, str(tmp_path)) for _ in range(3)]
        outcomes.append([one.get(timeout=LIMIT_S) for one in sent])
        return len(outcomes)

    with start_worker(example.app, **options):
        nodes.outlived(day_done)
    assert [one.count("written") for one in outcomes] == [1] * len(outcomes)


def test_jobs_of_apscheduler_go_on_by_one_leader_at_a_time(nodes: Nodes, tmp_path: Path) -> None:
    programs.package("apscheduler")
    report = tmp_path / "report"

    def runs() -> list[tuple[int, float]]:
        lines = report.read_text().splitlines() if report.exists() else []
        return [(int(fence), float(at)) for fence, at in map(str.split, lines)]

    with ExitStack() as ending:
        command = (str(EXAMPLES / "scheduled_jobs.py"), str(tmp_path), "0.2")
        first = python(ending, *command)
        until(runs)
        second = python(ending, *command)
        nodes.outlived(lambda: len(runs()))
        (term,) = {fence for fence, _ in runs()}
        first.terminate()
        assert first.wait(PATIENCE_S) == 0
        until(lambda: runs()[-1][0] > term)
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
    assert runs() == sorted(runs())
    times = [at for _, at in runs()]
    assert max(later - at for at, later in pairwise(times)) < LIMIT_S
