"""The default client in real workers of Dramatiq and RQ, whose processes are killed."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import programs
from support.expect import PATIENCE_S
from support.paths import ROOT
from support.real_nodes import until

from fencelock.cluster.client.lazy import defaults
from fencelock.testing import LocalCluster, local


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    for package in ("dramatiq", "rq"):
        programs.package(package)
    with local() as cluster, programs.redis_server() as redis, pytest.MonkeyPatch.context() as here:
        broker = str(redis.connection_pool.connection_kwargs["path"])
        for name, value in {"BROKER": broker, **cluster.environment}.items():
            here.setenv(name, value)
        yield cluster
        defaults.reset()  # The module of the tasks, which sends them too, configures the default.


@contextmanager
def worker(log: Path, *command: str) -> Generator[subprocess.Popen[bytes]]:
    with log.open("ab") as written:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT / "tests", stdout=written, stderr=written
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            print(log.read_text())


def send_to_dramatiq(day: str) -> None:
    importlib.import_module("support.queue_tasks").actor.send(day)


def send_to_rq(day: str) -> None:
    rq, tasks = importlib.import_module("rq"), importlib.import_module("support.queue_tasks")
    again: Any = rq.Retry(max=1_000, interval=0)
    rq.Queue(connection=tasks.redis).enqueue("support.queue_tasks.report", day, retry=again)


DRAMATIQ = ("-m", "dramatiq", "support.queue_tasks", "--processes", "1", "--threads", "2")
RQ = ("-m", "rq.cli", "worker", "--url", "unix://{broker}")


@pytest.mark.parametrize(
    ("name", "send", "command"),
    [("dramatiq", send_to_dramatiq, DRAMATIQ), ("rq", send_to_rq, RQ)],
)
def test_one_task_of_a_day_runs_at_a_time_also_after_a_kill(
    cluster: LocalCluster,
    tmp_path: Path,
    name: str,
    send: Callable[[str], None],
    command: tuple[str, ...],
) -> None:
    client, line = cluster.connect(), [part.format(broker=os.environ["BROKER"]) for part in command]

    def runs(day: str) -> int:
        return client.counter(f"runs/{day}").get()

    with ExitStack() as stack:
        for number in range(2):  # Dramatiq ends all processes with one.
            stack.enter_context(worker(tmp_path / str(number), *line))
        day = f"{name}-monday"
        for _ in range(3):
            send(day)
        until(lambda: runs(day) == 1, "the first runs")
        assert client.lock(f"report/{day}").acquire(blocking=False) is None
        os.kill(int(client.map("processes")[day].value), signal.SIGKILL)
        until(lambda: runs(day) == 2, "another runs once the session of the killed one has ended")
        assert client.counter(f"ends/{day}").get() == 0
        client.latch(f"end/{day}", 1).count_down()
        until(lambda: client.counter(f"ends/{day}").get() == 3, "all three run in the end")
