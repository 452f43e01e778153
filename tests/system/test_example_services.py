"""The examples that people copy into services: FastAPI, Django, Celery, cron, SQL, gunicorn."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from support import programs
from support.expect import PATIENCE_S, present
from support.paths import EXAMPLES
from support.programs import run_to_end

from fencelock import aio
from fencelock.cluster.testing.ports import free_ports
from fencelock.testing import LocalCluster


def loaded(name: str) -> ModuleType:
    """Return the example ``name`` as a new module."""
    spec = present(importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py"))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_fastapi_serves_one_request_for_an_order_at_a_time(fencelock_cluster: LocalCluster) -> None:
    app = loaded("fastapi_app").app

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as http,
        ):
            return await asyncio.gather(*(http.post("/orders/42/pay") for _ in range(8)))

    answers = [response.json() for response in asyncio.run(run())]
    assert sorted(answer["paid"] for answer in answers) == list(range(1, 9))
    assert len({answer["fence"] for answer in answers}) == 8
    assert not fencelock_cluster.connect().lock("orders/42").locked()


def test_fastapi_answers_503_while_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    app = loaded("fastapi_app").app
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"

    async def run() -> httpx.Response:
        def lock(name: str, **_: object) -> aio.Lock:
            return client.lock(name, timeout=0.1)

        transport = httpx.ASGITransport(app=app)
        async with (
            aio.connect(nobody, lazy=True) as client,
            httpx.AsyncClient(transport=transport, base_url="http://service") as http,
        ):
            monkeypatch.setattr(aio, "lock", lock)
            return await http.post("/orders/42/pay")

    answer = asyncio.run(run())
    assert (answer.status_code, "does not answer" in answer.text) == (503, True)


def test_django_serves_a_view_under_a_lock(fencelock_cluster: LocalCluster) -> None:
    programs.package("django")
    loaded("django_app")
    django: Any = importlib.import_module("django.test")
    # Another test of this process may have configured Django before the example could.
    with django.override_settings(ROOT_URLCONF="django_app", ALLOWED_HOSTS=["*"]):
        browser = django.Client()
        with fencelock_cluster.connect().lock("pages/home") as hold:
            waiting = ThreadPoolExecutor(1)
            answer = waiting.submit(browser.post, "/pages/home/publish")
            assert not answer.done()
        body: dict[str, int] = answer.result(PATIENCE_S).json()
    assert body["fence"] > hold.fence
    waiting.shutdown()


def test_a_celery_task_runs_once(fencelock_cluster: LocalCluster, tmp_path: Path) -> None:
    programs.package("celery")
    example: Any = importlib.import_module("celery_once")
    start_worker = importlib.import_module("celery.contrib.testing.worker").start_worker
    options: dict[str, Any] = {"perform_ping_check": False, "pool": "threads", "concurrency": 4}
    with start_worker(example.app, **options):
        sent = [example.write_report.delay("monday", str(tmp_path)) for _ in range(4)]
        outcomes = [one.get(timeout=PATIENCE_S) for one in sent]
        assert outcomes.count("written") == 1
        assert set(outcomes) <= {"written", None, "done before"}
        with fencelock_cluster.connect().lock("report/tuesday"):
            skipped = example.write_report.delay("tuesday", str(tmp_path))
            assert skipped.get(timeout=PATIENCE_S) is None
    assert (tmp_path / "report-monday").read_text() == "the report of monday\n"


def test_cron_on_two_machines_runs_one_job(fencelock_cluster: LocalCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencelock", "lock", "nightly", "-n", "-q"]
    command += ["--once", "nightly", "--for", "1d", "--"]
    job = [str(EXAMPLES / "nightly.sh"), str(tmp_path)]
    machines = [subprocess.Popen([*command, *job], stderr=subprocess.DEVNULL) for _ in range(2)]
    statuses = {machine.wait(PATIENCE_S) for machine in machines}
    assert statuses <= {0, 75}
    assert 0 in statuses
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("the job under fence ")
    assert line.endswith(" of nightly")


def test_the_fenced_sql_write_is_refused() -> None:
    ended = run_to_end([sys.executable, str(EXAMPLES / "fenced_sql.py")], check=True)
    refused, state = ended.stdout.splitlines()
    assert "is stale, since fence" in refused
    assert state == "the order is paid"


@contextmanager
def gunicorn(port: int, log: Path) -> Generator[str]:
    """Run the example under gunicorn; return its address once it answers."""
    where = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn_conf.py", "-b", where]
    with log.open("wb") as written:
        server = subprocess.Popen(
            [*command, "gunicorn_app:application"], cwd=EXAMPLES, stdout=written, stderr=written
        )
    try:
        retrying = httpx.HTTPTransport(
            retries=10
        )  # With growing pauses, until it accepts connections.
        with httpx.Client(transport=retrying) as http:
            http.get(f"http://{where}/", timeout=PATIENCE_S)
        yield f"http://{where}"
    finally:
        server.terminate()
        assert server.wait(PATIENCE_S) == 0, log.read_text()


def test_workers_that_gunicorn_forks_have_clients_of_their_own(
    fencelock_cluster: LocalCluster, tmp_path: Path
) -> None:
    programs.package("gunicorn")
    with gunicorn(free_ports(1)[0], tmp_path / "log") as where:
        processes: set[int] = set()
        fences: list[int] = []
        for _ in range(200):
            answer = httpx.get(f"{where}/home", timeout=PATIENCE_S).json()
            processes.add(answer["process"])
            fences.append(answer["fence"])
            if len(processes) == 2:
                break
        assert fences == sorted(set(fences))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(httpx.get, [f"{where}/home"] * 16))
        assert {answer.status_code for answer in answers} == {200}
    assert not fencelock_cluster.connect().lock("pages/home").locked()
