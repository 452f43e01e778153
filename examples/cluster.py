"""A local cluster of real processes, clients that compete for its locks, and a verdict.

    python examples/cluster.py                       # three nodes, four clients, ten seconds
    python examples/cluster.py --kill-leader         # kill -9 of the leader, again and again
    python examples/cluster.py --grow                # one node, three, five, and back to one
    python examples/cluster.py --objects             # all kinds of objects, such as semaphores
    python examples/cluster.py --protocol central --clients 8 --json

Each node is one `fencelock serve`, and each client a separate process. While a client holds a lock,
it changes a shared file in a way that any overlap would corrupt, and checks that its fence is above
every earlier one. With --kill-leader, the leader is killed every few seconds, and clients must be
served again after each kill. With --grow, nodes join and leave while clients work. With --objects,
clients compete for objects of all kinds, and the files that they write show whether each kind keeps
its promise.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from checked_file import CheckedFile
from contenders import Contenders
from contest import KindVerdict, judged
from contests import CONTESTS
from local_cluster import LocalCluster
from rich.console import Console
from rich.live import Live
from upheaval import LAST_BEFORE_END_S, LIMIT_S, Grower, LeaderKiller, why_not
from view import plain_line, screen

import fencelock
from fencelock import FencelockError
from fencelock.cluster.guarantee import VOTING
from fencelock.verification.bench.members import described

VIEW_EVERY_S = 0.5
LINE_EVERY_S = 1.0
PROTOCOLS = (
    "paxos: a majority must be up; bakery: that, and two of three leaders; lamport: every node; "
    "central: one server."
)

GRACE_S = 30.0
"""Time limit for the clients' last requests when the time is over (s)."""


KillOption = Annotated[
    bool, typer.Option("--kill-leader", help="Kill -9 whoever leads, and start it anew.")
]
GrowOption = Annotated[
    bool,
    typer.Option("--grow", help="paxos, bakery: begin with one node, let others join and leave."),
]
ObjectsOption = Annotated[
    bool, typer.Option("--objects", help="paxos: compete for objects of all kinds.")
]
JournalOption = Annotated[
    bool, typer.Option("--journal", help="central: the server keeps its table on disk.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End with one JSON object as the last line.")
]


@dataclass
class RunVerdict:
    """The result of a run; ``ok`` only if nothing overlapped, was lost, or starved."""

    protocol: str
    nodes: int
    clients: int
    locks: int
    seconds: float
    grants: int
    grants_by_client: dict[str, int]
    overlaps: int
    fence_regressions: int
    lost_updates: int
    kills: int
    changes: int
    longest_gap_ms: int
    grants_per_s: float
    acquire_p50_ms: float | None
    acquire_p99_ms: float | None
    messages_per_entry: float | None
    objects: list[KindVerdict]
    """With --objects, the verdict of each kind. Overlaps and other faults are counted there."""
    ok: bool


def run(
    protocol: Annotated[str, typer.Option(help=PROTOCOLS)] = "paxos",
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Node processes.")] = 3,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Client processes.")] = 4,
    locks: Annotated[int, typer.Option(min=1, max=1000, help="Locks they fight over.")] = 2,
    seconds: Annotated[float, typer.Option(min=1, max=86400, help="How long they fight.")] = 10,
    kill_leader: KillOption = False,
    kill_every: Annotated[
        float, typer.Option(min=0.5, max=3600, help="From one such kill to the next (s).")
    ] = 4,
    grow: GrowOption = False,
    objects: ObjectsOption = False,
    journal: JournalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, let clients compete for its locks, and judge.

    The exit status is 0 only if no two clients held a lock at once, no update was lost,
    no fence decreased, every client was served, and clients were served again after each kill.
    """
    needed = kill_every / 2 + LAST_BEFORE_END_S
    if kill_leader and (reason := why_not(protocol, nodes, journal=journal)):
        raise typer.BadParameter(reason, param_hint="--kill-leader")
    if kill_leader and seconds < needed:
        reason = f"at least {needed:g} are needed for one kill and to see that clients go on"
        raise typer.BadParameter(reason, param_hint="--seconds")
    if grow and protocol not in VOTING:
        reason = f"the members of {protocol} are those of its configuration"
        raise typer.BadParameter(f"{reason}: use --protocol paxos or bakery", param_hint="--grow")
    if grow and kill_leader:
        raise typer.BadParameter("leave out --kill-leader", param_hint="--grow")
    if objects and protocol != "paxos":
        reason = f"{protocol} does not have objects of all kinds: use --protocol paxos"
        raise typer.BadParameter(reason, param_hint="--objects")
    if grow:
        nodes, seconds = 1, LIMIT_S
    console = Console(stderr=as_json and not sys.stdout.isatty(), soft_wrap=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencelock-")))
        console.print(f"starting {nodes} nodes ({protocol}), logs in {folder}")
        cluster = stack.enter_context(LocalCluster(folder, protocol, nodes, journal=journal))
        watcher = stack.enter_context(
            fencelock.connect(cluster.connect, cluster=cluster.cluster, lazy=True)
        )
        cluster.wait_until_ready(watcher)
        contenders = stack.enter_context(
            Contenders(cluster, folder, clients, locks, seconds, objects=objects)
        )
        contenders.begin()
        began = time.monotonic()
        until = began + seconds
        killer = LeaderKiller(cluster, watcher, contenders, every_s=kill_every, until=until)
        grower = Grower(cluster, watcher, contenders)
        with ExitStack() as during:
            for active, thread in ((kill_leader, killer), (grow, grower)):
                if active:
                    during.enter_context(thread)
            watch(console, watcher, contenders, until, grower.over)
            contenders.over()
            contenders.stop()
        finished = contenders.finish(GRACE_S)
        verdict = judge(contenders, folder, locks=locks, took=time.monotonic() - began)
        verdict.protocol, verdict.nodes, verdict.seconds = protocol, nodes, seconds
        verdict.messages_per_entry = cluster.messages_per_entry(watcher, verdict.grants)
        verdict.changes = len(grower.changes)
        expected = bool(contenders.kills_ms) == kill_leader and grower.is_complete == grow
        verdict.ok = verdict.ok and finished and expected
        report(console, verdict, contenders, killing=kill_leader)
    if as_json:
        print(json.dumps(asdict(verdict)), flush=True)
    raise typer.Exit(0 if verdict.ok else 1)


def watch(
    console: Console,
    watcher: fencelock.Client,
    contenders: Contenders,
    until: float,
    over: threading.Event,
) -> None:
    """Show holders and waiters until the clients stop, or the members have changed."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8) as live:
            while time.monotonic() < until and contenders.alive() and not over.is_set():
                left = until - time.monotonic()
                live.update(screen(described(watcher), contenders, left))
                contenders.wait(VIEW_EVERY_S)
        return
    while time.monotonic() < until and contenders.alive() and not over.is_set():
        contenders.wait(LINE_EVERY_S)
        console.print(plain_line(described(watcher), contenders), soft_wrap=True)


def judge(contenders: Contenders, folder: Path, *, locks: int, took: float) -> RunVerdict:
    """Compare the clients' reports with the shared files."""
    kept = sum(CheckedFile(folder, f"lock-{n + 1}").read()["updates"] for n in range(locks))
    done = contenders.done
    grants, updates = sum(contenders.grants.values()), contenders.grants_by_kind[""]
    waits = sorted(contenders.waits_ms)
    percentiles = statistics.quantiles(waits, n=100) if len(waits) > 1 else None
    overlaps = sum(line["overlaps"] for line in done.values())
    regressions = sum(line["fence_regressions"] for line in done.values())
    verdicts = [judged(contest(folder)) for contest in CONTESTS if contenders.objects]
    everybody_served = all(contenders.grants[name] > 0 for name in contenders.names)
    return RunVerdict(
        protocol="",
        nodes=0,
        clients=len(contenders.names),
        locks=locks,
        seconds=0,
        grants=grants,
        grants_by_client=dict(contenders.grants),
        overlaps=overlaps,
        fence_regressions=regressions,
        lost_updates=updates - kept,
        kills=len(contenders.kills_ms),
        changes=0,
        longest_gap_ms=contenders.longest_gap_ms,
        grants_per_s=round(grants / took, 1),
        acquire_p50_ms=round(percentiles[49], 3) if percentiles else None,
        acquire_p99_ms=round(percentiles[98], 3) if percentiles else None,
        messages_per_entry=None,
        objects=verdicts,
        ok=everybody_served
        and all(one.ok for one in verdicts)
        and overlaps == 0
        and regressions == 0
        and updates == kept
        and not contenders.unserved,
    )


def report(console: Console, verdict: RunVerdict, contenders: Contenders, *, killing: bool) -> None:
    """Print the result as text."""
    console.print()
    console.print(f"  grants            {verdict.grants} ({verdict.grants_per_s} a second)")
    if verdict.acquire_p50_ms is not None:
        console.print(
            f"  acquire           p50 {verdict.acquire_p50_ms} ms, p99 {verdict.acquire_p99_ms} ms"
        )
    served = ", ".join(f"{name} {count}" for name, count in sorted(contenders.grants.items()))
    console.print(f"  by client         {served}")
    if verdict.messages_per_entry is not None:
        console.print(
            f"  messages          {verdict.messages_per_entry:.2f} for each entry; "
            f"the algorithm needs 3(n-1) = {3 * (verdict.nodes - 1)}"
        )
    gap = f"{verdict.longest_gap_ms} ms without a grant at most"
    kills = f"; kill -9 of the leader: {verdict.kills} times" if verdict.kills else ""
    changes = f"; {verdict.changes} changes of the members" if verdict.changes else ""
    console.print(f"  gap               {gap}{kills}{changes}", soft_wrap=True)
    if verdict.objects:
        report_objects(console, verdict.objects)
    else:
        console.print(f"  overlaps          {verdict.overlaps}")
        console.print(f"  lost updates      {verdict.lost_updates}")
        console.print(f"  fence regressions {verdict.fence_regressions}")
    for problem in contenders.problems:
        console.print(f"  {problem}", style="red", markup=False, highlight=False)
    if killing and not contenders.kills_ms:
        console.print(
            "  [red]nobody was killed: not all nodes were ready, or none said who leads[/]"
        )
    if contenders.unserved:
        console.print("  [red]nobody was granted a lock after the last kill[/]")
    word = "[green]OK: no overlap, nothing lost, everybody served[/]"
    console.print(word if verdict.ok else "[red]FAILED[/]")


def report_objects(console: Console, verdicts: list[KindVerdict]) -> None:
    """Print the verdict of each kind and its problems."""
    for one in verdicts:
        word = "[green]kept[/]" if one.ok else "[red]BROKEN[/]"
        console.print(f"  {one.kind:<17} {one.rounds} rounds; {word}: {one.promise}")
        for problem in one.problems:
            console.print(f"    {problem}", style="red", markup=False, highlight=False)


def leave(number: int, frame: object) -> None:
    """Also stop in order on SIGTERM, so that no process is left."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    try:
        typer.run(run)
    except FencelockError as error:
        sys.exit(str(error))
