"""A process of an example service that is busy with requests for one lock.

    python -m support.busy_service EXAMPLE FOLDER

It prints "busy" after its first answer. When its standard input ends, it prints the status and the
duration (s) of each answer, and how often it found another holder inside, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checked_file import CheckedFile

AT_ONCE = 3
PAUSE_S = 0.002


class Busy:
    """The requests of the process, and what came of them."""

    def __init__(self, folder: Path) -> None:
        self.file = CheckedFile(folder, "work")
        self.answers: list[tuple[int, float]] = []
        self.ended = threading.Event()

    def lock(self, lock: Callable[..., Any]) -> Callable[..., Any]:
        """Return a ``lock`` under which the shared file is changed before the example goes on."""

        @contextmanager
        def checked(*arguments: Any, **options: Any) -> Generator[Any]:
            with lock(*arguments, **options) as hold:
                self.file.append(str(os.getpid()), hold.fence, PAUSE_S)
                yield hold

        return checked

    def aio_lock(self, lock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same for tasks."""

        @asynccontextmanager
        async def checked(*arguments: Any, **options: Any) -> AsyncGenerator[Any]:
            async with lock(*arguments, **options) as hold:
                self.file.append(str(os.getpid()), hold.fence, PAUSE_S)
                yield hold

        return checked

    def note(self, status: int, began: float) -> None:
        if not self.answers:
            print("busy", flush=True)
        self.answers.append((status, time.monotonic() - began))

    def run(self, request: Callable[[], int]) -> None:
        """Send requests from a few threads until the end."""

        def repeat() -> None:
            while not self.ended.is_set():
                began = time.monotonic()
                self.note(request(), began)

        threads = [threading.Thread(target=repeat) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fastapi_app(busy: Busy, example: Any) -> None:
    import httpx  # noqa: PLC0415 (of the example's framework)

    example.aio = SimpleNamespace(lock=busy.aio_lock(example.aio.lock))

    async def repeat(http: httpx.AsyncClient) -> None:
        while not busy.ended.is_set():
            began = time.monotonic()
            busy.note((await http.post("/orders/42/pay")).status_code, began)

    async def run() -> None:
        transport = httpx.ASGITransport(app=example.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            await asyncio.gather(*(repeat(http) for _ in range(AT_ONCE)))

    asyncio.run(run())


def django_app(busy: Busy, example: Any) -> None:
    example.lock = busy.lock(example.lock)
    browser = import_module("django.test").Client()
    busy.run(lambda: browser.post("/pages/home/publish").status_code)


def gunicorn_app(busy: Busy, example: Any) -> None:
    example.fencelock = SimpleNamespace(lock=busy.lock(example.fencelock.lock))

    def request() -> int:
        statuses: list[str] = []

        def start(status: str, _: object) -> None:
            statuses.append(status)

        example.application({"PATH_INFO": "/home"}, start)
        return int(statuses[0].split()[0])

    busy.run(request)


def main(name: str, folder: Path) -> None:
    busy = Busy(folder)

    def read_to_end() -> None:
        sys.stdin.read()
        busy.ended.set()

    threading.Thread(target=read_to_end, daemon=True).start()
    globals()[name](busy, import_module(name))
    print(json.dumps({"answers": busy.answers, "overlaps": busy.file.findings.overlaps}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
