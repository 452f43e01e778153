"""The client processes of a measurement, from the side of the process that starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, Self

from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.members import BenchFailedError, stop_all, uninterrupted

READY_S = 60.0
"""Timeout for a process to be ready (s): it takes a second, under load some more."""

LATE_S = 60.0
"""Extra time for a job beyond its plan (s): an acquire may wait out an election."""

LOG_CHARACTERS = 2_000


class WorkerProcess:
    """One process with one job, from `launched`. Ends with the ``with`` block at the latest.

    Args:
        command: starts it. It prints lines of JSON as `worker` does; other lines are ignored.
        result_s: timeout for its result, from its begin (s).
        name: of its log, different for each.

    """

    def __init__(self, command: Sequence[str], result_s: float, folder: Path, name: str) -> None:
        self.ready: dict[str, Any] = {}
        self._name, self._result_s = name, result_s
        self._log = folder / f"{name}.log"
        self._lines: SimpleQueue[str] = SimpleQueue()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._words: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        stop_all([self._process])
        self._reader.join()
        self._output.close()
        # Nothing reads what could not be written any more.
        try:
            self._words.close()
        except BrokenPipeError:
            return

    def wait_until_ready(self) -> None:
        """Return when it has connected; `ready` then has its first line."""
        self.ready = self.answer(READY_S)

    def tell(self) -> None:
        """Let it begin, or end it if it runs until it is ended."""
        try:
            self._words.write("\n")
            self._words.flush()
        except BrokenPipeError:
            raise BenchFailedError(self._why("has ended")) from None

    def result(self) -> dict[str, Any]:
        return self.answer(self._result_s)

    def answer(self, limit_s: float) -> dict[str, Any]:
        """Wait for the process's next line, at most ``limit_s``.

        Raises:
            BenchFailedError: it ended, or was silent for longer.

        """
        try:
            line = self._lines.get(timeout=limit_s)
        except Empty:
            raise BenchFailedError(self._why(f"said nothing for {limit_s:g} s")) from None
        if not line:
            raise BenchFailedError(self._why("ended"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        for line in self._output:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put("")

    def _why(self, what: str) -> str:
        log = self._log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
        return f"the client process {self._name} {what}\n{log}".rstrip()


def launched(
    stack: ExitStack, command: Sequence[str], result_s: float, folder: Path, name: str
) -> WorkerProcess:
    """Return a `WorkerProcess` that ends with ``stack``, whenever an interrupt comes."""
    with uninterrupted():
        return stack.enter_context(WorkerProcess(command, result_s, folder, name))


def started(stack: ExitStack, job: Job, folder: Path, name: str) -> WorkerProcess:
    """Return a process with ``job`` that ends with ``stack``."""
    command = [sys.executable, "-m", "fencelock.verification.bench.worker", job.line()]
    turns = job.rounds * (len(job.uses) or 1)
    return launched(stack, command, job.warm_s + job.seconds * turns + LATE_S, folder, name)


def together(workers: Sequence[WorkerProcess]) -> list[dict[str, Any]]:
    """Let all begin at once; return the result of each."""
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.tell()
    return [worker.result() for worker in workers]


def measured(folder: Path, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return the results of processes that did ``jobs`` together, their logs in ``folder``."""
    with ExitStack() as stack:
        workers = [
            started(stack, job, folder, f"{job.kind}-{number}") for number, job in enumerate(jobs)
        ]
        return together(workers)


def bare_round_trips(folder: Path, seconds: float, at_once: int) -> dict[str, float]:
    """Measure a bare ROUTER and DEALER in two processes; one at a time and many at once."""
    with ExitStack() as stack:
        echo = started(stack, Job(kind=JobKind.ECHO), folder, "echo")
        echo.wait_until_ready()
        address: str = echo.ready["address"]
        ping = Job(kind=JobKind.PING, address=address, seconds=seconds, at_once=at_once)
        (found,) = measured(folder, [ping])
    return found


def per_s(measured: Sequence[dict[str, float]]) -> float:
    if not all(one["times"] for one in measured):
        raise BenchFailedError("a client process was not served even once: measure longer")
    return sum(one["times"] / one["seconds"] for one in measured)
