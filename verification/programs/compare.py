"""fencelock and its peers on this machine, in one run, in turns.

    python verification/programs/compare.py --peers redlock,redis,etcd,zookeeper --kills 10
    python verification/programs/compare.py --json run.json --plot docs/performance
    python verification/programs/compare.py --again run.json --plot docs/performance  # drawn anew

Every peer is started on loopback with its data in a temporary folder, measured, and stopped,
before the next one's turn; a round is a turn for each. A peer that is not installed is skipped with
a note. ``docs/performance.md`` describes the figures and the set-up of the peers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from compare_bars import OURS, bars_table, charts, figures_table, judge, overlaps_of, wire_table
from compare_client import MARK_BYTES, ClientTask, Workload
from peers.peer import ComparedPeer, ReplicatedPeer, ServersFailedError, bound_to_us, output_of
from peers.registry import PEERS

from fencelock import FencelockError
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.machine import this_machine
from fencelock.verification.bench.members import BenchFailedError
from fencelock.verification.bench.report import p50_p99
from fencelock.verification.bench.workers import (
    WorkerProcess,
    bare_round_trips,
    launched,
    measured,
    per_s,
    together,
)

CLIENT = Path(__file__).with_name("compare_client.py")
PATIENCE_S = 60.0
"""Time that clients may take beyond their jobs' times (s)."""
SETTLE_S = 2.0
"""Load before each kill (s)."""
WATCH_S = 8.0
"""Time for which a killed server stays down (s): longer than any peer's failover."""

Figures = dict[str, float]


PAIR = Workload("pair", 1, 1)
FRESH = Workload("fresh", 1, 1, fresh=True)
DISTINCT = Workload("distinct", 2, 64)
HANDOVER = Workload("handover", 2, 4, one_lock=True)
PING_PONG = Workload("ping-pong", 2, 1, one_lock=True)
FAILOVER = Workload("failover", 2, 8)


def clients(
    stack: ExitStack, peer: ComparedPeer, workload: Workload, folder: Path, seconds: float
) -> list[WorkerProcess]:
    """Start the client processes of a workload, which end with ``stack``."""
    task = ClientTask(
        peer=peer.name,
        spec={**peer.spec(), "failover": seconds == 0},
        load=workload,
        client=0,
        warm_s=peer.warm_s,
        seconds=seconds,
    )
    if workload.one_lock:
        task.mark = str(folder / "mark")
        Path(task.mark).write_bytes(bytes(MARK_BYTES))
    workers: list[WorkerProcess] = []
    for client in range(workload.processes):
        line = msgspec.json.encode(replace(task, client=client)).decode()
        command = bound_to_us([sys.executable, str(CLIENT), line])
        limit_s = peer.warm_s + seconds + PATIENCE_S
        workers.append(launched(stack, command, limit_s, folder, f"client-{client}"))
    return workers


def measure(peer: ComparedPeer, workload: Workload, folder: Path, seconds: float) -> Figures:
    """Run ``workload`` for ``seconds`` after a warm-up.

    Returns:
        ``pairs_per_s``, ``p50_us``, ``p99_us`` and ``longest_ms`` of a pair; of one lock also
        ``handovers_per_s``, pairs whose lock another thread or process held before, and
        ``overlaps``, how often a holder met another.

    """
    with ExitStack() as stack:
        results = together(clients(stack, peer, workload, folder, seconds))
    durations = sorted(ns for result in results for ns in result["durations"])
    if len(durations) < 2:
        raise BenchFailedError(f"{len(durations)} pairs in {seconds:g} s are no measurement")
    p50, p99 = p50_p99(durations)
    figures = {
        "pairs_per_s": len(durations) / seconds,
        "p50_us": p50 / 1000,
        "p99_us": p99 / 1000,
        "longest_ms": durations[-1] / 1e6,
    }
    if workload.one_lock:
        figures["handovers_per_s"] = sum(result["handovers"] for result in results) / seconds
        figures["overlaps"] = sum(result["overlaps"] for result in results)
    return figures


def measure_failover(peer: ReplicatedPeer, folder: Path, kills: int) -> Iterator[Figures]:
    """Kill the leader under load, ``kills`` times; then yield the effects.

    Yields:
        ``gap_s``: the longest time without any grant, from a kill to the server's restart;
        ``errors``: what clients were told meanwhile, on the last one of all kills.

    """
    windows: list[tuple[int, int]] = []
    with ExitStack() as stack:
        workers = clients(stack, peer, FAILOVER, folder, 0)
        for worker in workers:
            worker.wait_until_ready()
        for worker in workers:
            worker.tell()
        for _ in range(kills):
            time.sleep(SETTLE_S)
            leader = peer.leader()
            if leader is None:
                raise BenchFailedError(f"{peer.name}: no server says that it leads")
            began = _now_ms()
            peer.kill(leader)
            time.sleep(WATCH_S)
            windows.append((began, _now_ms()))
            peer.restart(leader)
        time.sleep(SETTLE_S)
        for worker in workers:
            worker.tell()
        results = [worker.result() for worker in workers]
    grants = sorted({ms for result in results for ms in result["granted_ms"]})
    errors = sum(result["errors"] for result in results)
    for number, (began, ended) in enumerate(windows, start=1):
        inside = [began, *(ms for ms in grants if began < ms < ended), ended]
        gap = max(later - sooner for sooner, later in itertools.pairwise(inside))
        yield {"gap_s": gap / 1000, "errors": errors if number == kills else 0}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


TASKS = 256
WIRE_S = 1.0
WRONG_USE, INTERRUPTED = 2, 130
FAILURES = (ServersFailedError, FencelockError, OSError)


class Interrupts:
    """Ctrl-C and SIGTERM: raised where they come, and again before the next workload.

    Python drops an exception raised inside a finalizer, and a run would then continue for minutes.
    """

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def check(self) -> None:
        """Raise an exception again that may have been dropped."""
        if self.came:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: object) -> None:
        self.came = True
        raise KeyboardInterrupt


class PeerComparison:
    """One run: its figures grow with every workload, and are kept if a later workload fails."""

    def __init__(
        self, peers: list[str], seconds: float, folder: Path | None, interrupts: Interrupts
    ) -> None:
        self._interrupts = interrupts
        self.results: dict[str, Any] = {
            "machine": machine(folder or Path(tempfile.gettempdir())),
            "seconds": seconds,
            "peers": peers,
            "versions": {},
            "skipped": {},
            "failed": [],
            "wire": [],
            "figures": {},
        }
        self._seconds = seconds
        self._folder = folder

    def round(self, number: int) -> None:
        with tempfile.TemporaryDirectory(prefix="fencelock-", dir=self._folder) as folder:
            bare = bare_round_trips(Path(folder), 2 * WIRE_S, 1)
            bare["per_s"] = 1e6 / bare["p50_us"]
            bare["sync_us"] = this_machine(Path(folder)).sync_us
        self.results["wire"].append(bare)
        say(f"round {number}: bare round trip {bare['p50_us']:.0f} us, sync {bare['sync_us']:.0f}")
        for name in self.results["peers"]:
            self._turn(name, number)

    def failovers(self, kills: int) -> None:
        for name in self.results["peers"]:
            peer = PEERS[name][0]()
            if not isinstance(peer, ReplicatedPeer):
                continue
            with tempfile.TemporaryDirectory(prefix="fencelock-", dir=self._folder) as folder:
                try:
                    peer.start(Path(folder))
                    self.results["versions"][name] = peer.version()
                    self._interrupts.check()
                    for figures in measure_failover(peer, Path(folder), kills):
                        self._note(name, "failover", figures)
                except FAILURES as error:
                    self._failed(name, "failover", error)
                finally:
                    peer.stop()

    def _turn(self, name: str, number: int) -> None:
        peer = PEERS[name][0]()
        with tempfile.TemporaryDirectory(prefix="fencelock-", dir=self._folder) as folder:
            doing = "start"
            try:
                peer.start(Path(folder))
                self.results["versions"][name] = peer.version()
                for workload in (PAIR, FRESH, DISTINCT, HANDOVER, PING_PONG):
                    doing = f"round {number}, {workload.name}"
                    self._interrupts.check()
                    figures = measure(peer, workload, Path(folder), self._seconds)
                    self._note(name, workload.name, figures)
                if peer.has_asyncio:
                    doing = f"round {number}, asyncio"
                    self._asyncio(peer, Path(folder))
            except FAILURES as error:
                self._failed(name, doing, error)
            finally:
                peer.stop()

    def _asyncio(self, peer: ComparedPeer, folder: Path) -> None:
        """Measure one task of fencelock's asyncio client, and many."""
        spec = peer.spec()
        options = spec["lock"]
        job = Job(
            kind=JobKind.TASKS,
            address=spec["connect"],
            cluster="compare",
            lock="task",
            confirm=options.get("confirm_release", True),
            retain=options.get("retain", 0.0),
            cohort=options.get("cohort", 0),
            warm_s=peer.warm_s,
            seconds=self._seconds,
        )
        (alone,), many = (measured(folder, [replace(job, at_once=n)]) for n in (1, TASKS))
        self._note(peer.name, "task", {"p50_us": alone["p50_us"]})
        pairs_per_s = per_s(many)
        per_trip = pairs_per_s / self.results["wire"][-1]["per_s"]
        self._note(peer.name, "asyncio", {"pairs_per_s": pairs_per_s, "per_round_trip": per_trip})

    def _note(self, name: str, workload: str, figures: dict[str, float]) -> None:
        self.results["figures"].setdefault(name, {}).setdefault(workload, []).append(figures)
        shown = ", ".join(f"{key} {value:,.4g}" for key, value in figures.items())
        say(f"  {name:11} {workload:9} {shown}")

    def _failed(self, name: str, doing: str, error: Exception) -> None:
        self.results["failed"].append({"peer": name, "doing": doing, "error": str(error)})
        say(f"  {name:11} FAILED ({doing}): {error}")


def machine(folder: Path) -> dict[str, Any]:
    """Return the properties of the machine that affect the figures; servers keep data in
    ``folder``.
    """
    file_system = output_of("stat", "--file-system", "--format=%T", str(folder))
    return {**asdict(this_machine(folder)), "file_system": file_system}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(results: dict[str, Any], path: Path | None, folder: Path | None) -> bool:
    """Print the tables, write the requested files, and return whether nothing failed."""
    results["bars"] = judge(results)
    text = in_words(results)
    print(text)
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "figures.md").write_text(f"# Figures of one run\n\n{text}\n", encoding="utf-8")
        for name, chart in charts(results):
            (folder / name).write_text(chart, encoding="utf-8")
            say(f"chart: {folder / name}")
    good = all(judged["verdict"] != "FAIL" for judged in results["bars"])
    return good and not results["failed"] and not overlaps_of(results, OURS)


def in_words(results: dict[str, Any]) -> str:
    where = results["machine"]
    rounds = len(results["wire"])
    lines = [
        f"{where['processor']}, {where['cores']} cores, {where['system']}, {where['python']}, "
        f"{where['file_system']}, load at the start {where['load']:.1f}. Medians and spread of "
        f"{rounds} rounds of {results['seconds']:g} s.",
        "",
    ]
    lines += [f"- {name}: {version}" for name, version in results["versions"].items()]
    lines += [f"- {name}: skipped: {word}" for name, word in results["skipped"].items()]
    lines += ["", figures_table(results), "", wire_table(results), "", bars_table(results)]
    lines += [
        f"\n{failed['peer']} failed ({failed['doing']}): {failed['error']}"
        for failed in results["failed"]
    ]
    lines += [
        f"\n{peer}: {met} times a holder of the one lock met another"
        for peer in results["peers"]
        if (met := overlaps_of(results, peer))
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    others = ",".join(name for name in PEERS if name != OURS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default=others, help=f"beside fencelock, some of {others}")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each workload (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="turns for each (default 3)")
    parser.add_argument("--kills", type=int, default=0, help="of each leader (default 0: none)")
    parser.add_argument("--folder", type=Path, help="for the servers' data; on a real disk")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write tables and charts there")
    parser.add_argument("--again", type=Path, metavar="FILE", help="show an earlier run's figures")
    return parser.parse_args()


def main() -> int:
    """Run the comparison; 0 if no bar failed and nothing else, 1 if it did."""
    given = arguments()
    if given.again is not None:
        results = json.loads(given.again.read_text("utf-8"))
        return 0 if show(results, given.json, given.plot) else 1
    wanted = [OURS, *(name for name in given.peers.split(",") if name and name != OURS)]
    if unknown := [name for name in wanted if name not in PEERS]:
        say(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
        return WRONG_USE
    words = {name: PEERS[name][0]().missing() for name in wanted}
    there = [name for name in wanted if words[name] is None]
    comparison = PeerComparison(there, given.seconds, given.folder, Interrupts())
    comparison.results["skipped"] = {name: word for name, word in words.items() if word}
    interrupted = False
    try:
        for number in range(1, given.rounds + 1):
            comparison.round(number)
        if given.kills:
            comparison.failovers(given.kills)
    except KeyboardInterrupt:
        say("interrupted; what was measured so far:")
        interrupted = True
    good = show(comparison.results, given.json, given.plot)
    return INTERRUPTED if interrupted else 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
