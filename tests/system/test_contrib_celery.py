"""Real workers of Celery, Dramatiq and RQ, whose processes are killed."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import programs
from support.expect import PATIENCE_S, present
from support.paths import ROOT
from support.real_nodes import until

import fencelock
from fencelock.cluster.client.lazy import defaults
from fencelock.testing import LocalCluster, local


@contextmanager
def brokered(scheme: str = "") -> Generator[LocalCluster]:
    """Run a cluster and a Redis server, both of which the environment names."""
    with local() as cluster, programs.redis_server() as redis, pytest.MonkeyPatch.context() as here:
        broker = f"{scheme}{redis.connection_pool.connection_kwargs['path']}"
        for name, value in {"BROKER": broker, **cluster.environment}.items():
            here.setenv(name, value)
        yield cluster


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


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencelock.Client]:
    """Run a worker with three processes; return a client of its cluster."""
    programs.package("celery", "it is in the extra 'celery'")
    log = tmp_path_factory.mktemp("celery") / "log"
    command = "-m celery -A support.celery_tasks worker -c 3 --without-mingle --without-gossip"
    with brokered("redis+socket://") as cluster, worker(log, *command.split()):
        try:
            yield cluster.connect()
        finally:
            tasks().app.close()
            fencelock.close()


def tasks() -> Any:
    return importlib.import_module("support.celery_tasks")


def until_running(client: fencelock.Client, name: str) -> int:
    """Return the id of the process in which ``name`` runs."""
    assert client.latch(f"run/{name}", 1).wait(PATIENCE_S)
    entry = present(client.map("processes").get(name))
    return int(entry.value)


def end(client: fencelock.Client, name: str) -> None:
    client.latch(f"end/{name}", 1).count_down()


def test_a_second_task_is_skipped_or_retried_or_fails_as_configured(
    client: fencelock.Client,
) -> None:
    first = tasks().report.delay("monday")
    until_running(client, "monday")
    assert tasks().report.delay("monday").get(timeout=PATIENCE_S) is None
    with pytest.raises(fencelock.LockTimeoutError, match="report/monday"):
        tasks().report_or_fail.delay("monday").get(timeout=PATIENCE_S)
    retried = tasks().report_later.delay("monday")
    end(client, "monday")
    assert retried.get(timeout=PATIENCE_S) > first.get(timeout=PATIENCE_S)


def test_a_soft_time_limit_releases_the_lock(client: fencelock.Client) -> None:
    limited = tasks().report.apply_async(("tuesday",), soft_time_limit=1)
    until_running(client, "tuesday")
    limits = importlib.import_module("celery.exceptions")
    with pytest.raises(limits.SoftTimeLimitExceeded):
        limited.get(timeout=PATIENCE_S)
    hold = present(client.lock("report/tuesday").acquire(blocking=False))
    hold.release()


def test_a_killed_process_frees_its_lock_after_the_ttl(client: fencelock.Client) -> None:
    killed = tasks().report.delay("friday")
    process = until_running(client, "friday")
    assert client.lock("report/friday").acquire(blocking=False) is None
    os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    with client.lock("report/friday", timeout=PATIENCE_S):
        assert time.monotonic() - began < 5 * tasks().TTL_S
    with pytest.raises(Exception, match="SIGKILL"):
        killed.get(timeout=PATIENCE_S)


def test_a_task_runs_once_a_period_unless_it_fails(client: fencelock.Client) -> None:
    with pytest.raises(ValueError, match="accounts"):
        tasks().nightly.delay("accounts", fails=True).get(timeout=PATIENCE_S)
    first = tasks().nightly.delay("accounts")
    process = until_running(client, "accounts")
    assert tasks().nightly.delay("accounts").get(timeout=PATIENCE_S) is None
    entry = present(client.map("once").get("nightly/accounts"))
    assert entry.value.decode().endswith(f":{process} support.celery_tasks.nightly")
    end(client, "accounts")
    assert first.get(timeout=PATIENCE_S) == process
    assert tasks().nightly.delay("accounts").get(timeout=PATIENCE_S) is None


def test_a_killed_process_does_not_free_its_period(client: fencelock.Client) -> None:
    killed = tasks().nightly.delay("backup")
    os.kill(until_running(client, "backup"), signal.SIGKILL)
    with pytest.raises(Exception, match="SIGKILL"):
        killed.get(timeout=PATIENCE_S)
    assert tasks().nightly.delay("backup").get(timeout=PATIENCE_S) is None


def test_arguments_that_cannot_work_are_refused_where_they_stand() -> None:
    programs.package("celery", "it is in the extra 'celery'")
    contrib = importlib.import_module("fencelock.contrib.celery")
    with pytest.raises(ValueError, match="otherwise is 'wait', and must be 'skip' or 'retry'"):
        contrib.one_at_a_time("a", otherwise="wait")
    with pytest.raises(ValueError, match="seconds is 0, and must be a number of seconds above 0"):
        contrib.once_a_period("a", 0)
    with pytest.raises(TypeError, match="has no parameter 'day'"):
        contrib.one_at_a_time("report/{day}")(lambda: None)
    with pytest.raises(fencelock.NotHeldError, match="one_at_a_time"):
        contrib.current_hold()


# Other task queues


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    for package in ("dramatiq", "rq"):
        programs.package(package)
    with brokered() as cluster:
        yield cluster
        defaults.reset()  # The module of the tasks, which sends them too, configures the default.


def send_to_dramatiq(day: str) -> None:
    importlib.import_module("support.queue_tasks").actor.send(day)


def send_to_rq(day: str) -> None:
    rq, tasks = importlib.import_module("rq"), importlib.import_module("support.queue_tasks")
    again: Any = rq.Retry(max=1_000, interval=0)
    rq.Queue(connection=tasks.redis).enqueue("support.queue_tasks.report", day, retry=again)


DRAMATIQ = ("-m", "dramatiq", "support.queue_tasks", "--processes", "1", "--threads", "2")
RQ = ("-m", "rq.cli", "worker", "--url", "unix://{broker}")


@pytest.mark.parametrize(
    ("name", "send", "command"), [("dramatiq", send_to_dramatiq, DRAMATIQ), ("rq", send_to_rq, RQ)]
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
