"""Workloads of the comparison: client processes against servers that run already."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare_client import MARK_BYTES, ClientTask
from peers.peer import ComparedPeer
from peers.servers import bound_to_us

HERE = Path(__file__).resolve().parent
STOP_S = 15.0
"""Time in which a client must end by itself (s)."""
PATIENCE_S = 60.0
"""Time that clients may take beyond their jobs' times (s), before they are killed."""
SAID_MAX = 2000
"""Length of the output of a failed client that is shown (characters)."""
SETTLE_S = 2.0
"""Load before each kill (s)."""
WATCH_S = 8.0
"""Time for which a killed server stays down (s): longer than any peer's failover."""

Figures = dict[str, float]


class ClientFailedError(RuntimeError):
    """A client process ended without its figures; the text is its output."""


@dataclass(frozen=True)
class Workload:
    """The job of client processes."""

    name: str
    processes: int
    threads: int
    one_lock: bool = False
    fresh: bool = False
    """Whether each pair is of a lock with a new name."""


PAIR = Workload("pair", 1, 1)
FRESH = Workload("fresh", 1, 1, fresh=True)
DISTINCT = Workload("distinct", 2, 64)
HANDOVER = Workload("handover", 2, 4, one_lock=True)
PING_PONG = Workload("ping-pong", 2, 1, one_lock=True)
FAILOVER = Workload("failover", 2, 8)


class ClientProcesses:
    """Client processes of one workload; a context, so that none outlives it.

    Each step of theirs, to be ready and to come to an end, may take ``patience_s``.
    """

    def __init__(
        self, script: str, tasks: list[dict[str, Any]], folder: Path, patience_s: float
    ) -> None:
        self._patience_s = patience_s
        self._logs = [folder / f"client-{index}.log" for index in range(len(tasks))]
        self._command = [sys.executable, str(HERE / script)]
        self._tasks = tasks
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> ClientProcesses:
        try:
            for task, log in zip(self._tasks, self._logs, strict=True):
                with log.open("wb") as stderr:
                    process = subprocess.Popen(
                        bound_to_us([*self._command, json.dumps(task)]),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        text=True,
                        start_new_session=True,
                    )
                self._processes.append(process)
            self.results()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()
        for process in self._processes:
            try:
                process.wait(0 if any(error) else STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def tell(self) -> None:
        """Send every client a line: to begin, or to end."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def results(self) -> list[dict[str, Any]]:
        """Return the next line of each: that it is ready, and at its end its results.

        Raises:
            ClientFailedError: one ended without that, or took too long.

        """
        watchdog = threading.Timer(self._patience_s, self._kill)
        watchdog.start()
        try:
            return [self._read(index) for index in range(len(self._processes))]
        finally:
            watchdog.cancel()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _read(self, index: int) -> dict[str, Any]:
        pipe = self._processes[index].stdout
        assert pipe is not None
        for line in pipe:
            if line.startswith("{"):  # Some peers' libraries print.
                said: dict[str, Any] = json.loads(line)
                return said
        self._processes[index].wait(STOP_S)
        text = self._logs[index].read_text(encoding="utf-8", errors="replace")
        code = self._processes[index].returncode
        raise ClientFailedError(f"client {index} ended with {code}:\n{text[-SAID_MAX:]}")


def measure(peer: ComparedPeer, workload: Workload, folder: Path, seconds: float) -> Figures:
    """Run ``workload`` for ``seconds`` after a warm-up.

    Returns:
        ``pairs_per_s``, ``p50_us``, ``p99_us`` and ``longest_ms`` of a pair; of one lock also
        ``handovers_per_s``,
        pairs whose lock another thread or process held before, and ``overlaps``, how often
        a holder met another.

    Raises:
        ClientFailedError: a client could not do its work.

    """
    tasks = _tasks(peer, workload, folder, seconds)
    patience_s = peer.warm_s + seconds + PATIENCE_S
    with ClientProcesses("compare_client.py", tasks, folder, patience_s) as clients:
        clients.tell()
        results = clients.results()
    durations = sorted(ns for result in results for ns in result["durations"])
    if len(durations) < 2:
        raise ClientFailedError(f"{len(durations)} pairs in {seconds:g} s are no measurement")
    percentiles = statistics.quantiles(durations, n=100)
    figures = {
        "pairs_per_s": len(durations) / seconds,
        "p50_us": percentiles[49] / 1000,
        "p99_us": percentiles[98] / 1000,
        "longest_ms": durations[-1] / 1e6,
    }
    if workload.one_lock:
        figures["handovers_per_s"] = sum(result["handovers"] for result in results) / seconds
        figures["overlaps"] = sum(result["overlaps"] for result in results)
    return figures


def measure_failover(peer: ComparedPeer, folder: Path, kills: int) -> Iterator[Figures]:
    """Kill the leader under load, ``kills`` times; then yield the effects.

    Yields:
        ``gap_s``: the longest time without any grant, from a kill to the server's restart;
        ``errors``: what clients were told meanwhile, on the last one of all kills.

    Raises:
        ClientFailedError: a client could not do its work, or nobody leads.

    """
    windows: list[tuple[int, int]] = []
    tasks = _tasks(peer, FAILOVER, folder, 0)
    with ClientProcesses("compare_client.py", tasks, folder, PATIENCE_S) as clients:
        clients.tell()
        for _ in range(kills):
            time.sleep(SETTLE_S)
            leader = peer.leader()
            if leader is None:
                raise ClientFailedError(f"{peer.name}: no server says that it leads")
            began = _now_ms()
            peer.kill(leader)
            time.sleep(WATCH_S)
            windows.append((began, _now_ms()))
            peer.restart(leader)
        time.sleep(SETTLE_S)
        clients.tell()
        results = clients.results()
    grants = sorted({ms for result in results for ms in result["granted_ms"]})
    errors = sum(result["errors"] for result in results)
    for number, (began, ended) in enumerate(windows, start=1):
        inside = [began, *(ms for ms in grants if began < ms < ended), ended]
        gap = max(later - sooner for sooner, later in itertools.pairwise(inside))
        yield {"gap_s": gap / 1000, "errors": errors if number == kills else 0}


def _tasks(
    peer: ComparedPeer, workload: Workload, folder: Path, seconds: float
) -> list[dict[str, Any]]:
    spec = {**peer.spec(), "failover": seconds == 0}
    mark: Path | None = None
    if workload.one_lock:
        mark = folder / "mark"
        mark.write_bytes(bytes(MARK_BYTES))
    return [
        asdict(
            ClientTask(
                peer=peer.name,
                spec=spec,
                client=client,
                threads=workload.threads,
                lock="the-one" if workload.one_lock else None,
                fresh=workload.fresh,
                warm_s=peer.warm_s,
                seconds=seconds,
                mark=None if mark is None else str(mark),
            )
        )
        for client in range(workload.processes)
    ]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
