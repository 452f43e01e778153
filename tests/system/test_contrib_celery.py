"""`fencelock.contrib.celery` with a real worker, whose processes are killed."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import programs
from support.expect import PATIENCE_S, present
from support.paths import ROOT

import fencelock
from fencelock.testing import local


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencelock.Client]:
    """Run a worker with three processes; return a client of its cluster."""
    programs.package("celery", "it is in the extra 'celery'")
    log = tmp_path_factory.mktemp("celery") / "log"
    with local() as cluster, programs.redis_server() as redis, pytest.MonkeyPatch.context() as here:
        broker = f"redis+socket://{redis.connection_pool.connection_kwargs['path']}"
        for name, value in {"BROKER": broker, **cluster.environment}.items():
            here.setenv(name, value)
        with log.open("wb") as written:
            command = "-m celery -A support.celery_tasks worker -c 3 --without-mingle"
            worker = subprocess.Popen(
                [sys.executable, *command.split(), "--without-gossip"],
                cwd=ROOT / "tests",
                stdout=written,
                stderr=written,
            )
        try:
            yield cluster.connect()
        finally:
            tasks().app.close()
            fencelock.close()
            worker.terminate()
            worker.wait(PATIENCE_S)
    print(log.read_text())


def tasks() -> Any:
    return importlib.import_module("support.celery_tasks")


def until_running(client: fencelock.Client, name: str) -> int:
    """Return the id of the process in which ``name`` runs."""
    assert client.latch(f"run/{name}", 1).wait(PATIENCE_S)
    entry = present(client.map("processes").get(name))
    return int(entry.value)


def end(client: fencelock.Client, name: str) -> None:
    client.latch(f"end/{name}", 1).count_down()


def test_a_second_task_is_skipped_or_retried_or_fails_as_it_says(client: fencelock.Client) -> None:
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
