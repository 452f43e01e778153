"""The time without grants after the leader dies under load, by kind of death.

Nodes and clients connect through TCP relays, which can fall silent without closing anything, or
delay. A relay that is silent accepts connections and forwards nothing, not even that a peer closed
its end. For both sides that looks like a cable that was pulled. A relay with a delay forwards every
byte, and the end of a connection, so much later: a long cable. Needs no privileges.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from fencelock.actors.timing import ROUND_TRIP_MS
from fencelock.cluster.client.client import Client
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.members import (
    BenchFailedError,
    NodeProcesses,
    configuration,
    described,
    leader_among,
)
from fencelock.verification.bench.report import NotedFigure
from fencelock.verification.bench.workers import started

READ_BYTES = 1 << 16
CHUNKS_MAX = 64
"""Reads that are under way in one direction, at most; above it nothing more is read."""


class RelayedLink(NamedTuple):
    """A link, by the side that connects and the side that listens."""

    source: str
    target: str


class Relays:
    """One relay for each `RelayedLink`, all served by one thread, until the ``with`` block ends.

    Args:
        targets: for each link the port on 127.0.0.1 that its relay connects to.
        delays_ms: for each link the time that it takes one way (ms); 0 for those left out.

    """

    def __init__(
        self, targets: dict[RelayedLink, int], delays_ms: Mapping[RelayedLink, int] | None = None
    ) -> None:
        self._targets = targets
        self._delays_ms = dict(delays_ms or {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._listeners = {link: socket.create_server(("127.0.0.1", 0)) for link in targets}
        self.ports: dict[RelayedLink, int] = {
            link: listener.getsockname()[1] for link, listener in self._listeners.items()
        }
        """The port of each link's relay, for its source to connect to."""
        self._servers: list[asyncio.Server] = []
        self._forwards = {link: asyncio.Event() for link in targets}
        """Set while the link is not silent."""
        self._serving: set[asyncio.Task[None]] = set()
        self._ends: dict[RelayedLink, set[asyncio.StreamWriter]] = {link: set() for link in targets}
        """The open ends of the connections over each link."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def silence(self, links: Collection[RelayedLink]) -> None:
        """Forward nothing more over ``links``, in either direction, and close nothing."""
        self._run(self._each(links, lambda link: self._forwards[link].clear()))

    def heal(self, links: Collection[RelayedLink]) -> None:
        """Forward again over ``links``; close connections that were made meanwhile."""
        self._run(self._each(links, lambda link: self._forwards[link].set()))

    def drop(self, links: Collection[RelayedLink]) -> None:
        self._run(self._each(links, self._abort))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _each(
        self, links: Collection[RelayedLink], act: Callable[[RelayedLink], None]
    ) -> None:
        for link in links:
            act(link)

    def _abort(self, link: RelayedLink) -> None:
        for end in self._ends[link]:
            end.transport.abort()

    async def _listen(self) -> None:
        for link, listener in self._listeners.items():
            self._forwards[link].set()
            serve = partial(self._serve, link)
            self._servers.append(await asyncio.start_server(serve, sock=listener))

    async def _close(self) -> None:
        """End all that serves; what asyncio does to accept a connection ends by itself.

        The servers are closed last: one that is closed, or whose task is cancelled, while it
        accepts a connection leaves its socket open.
        """
        for listener in self._listeners.values():
            self._loop.remove_reader(listener)
        while asyncio.all_tasks() != {asyncio.current_task()}:
            for task in self._serving:
                task.cancel()
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()

    async def _serve(
        self, link: RelayedLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward until either side ends; end a connection over a silent link once it is healed.

        Cancelled, it returns, since `asyncio` reports a server's task that does not.
        """
        task = asyncio.current_task()
        assert task is not None  # That of a server, which calls this.
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with self._open(link, writer), contextlib.suppress(asyncio.CancelledError):
            if not self._forwards[link].is_set():
                await self._forwards[link].wait()
                return
            try:
                far = await asyncio.open_connection("127.0.0.1", self._targets[link])
            except OSError:
                return
            far_reader, far_writer = far
            with self._open(link, far_writer):
                ways = [
                    asyncio.create_task(self._forward(link, reader, far_writer)),
                    asyncio.create_task(self._forward(link, far_reader, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()

    @contextlib.contextmanager
    def _open(self, link: RelayedLink, end: asyncio.StreamWriter) -> Generator[None]:
        self._ends[link].add(end)
        try:
            yield
        finally:
            self._ends[link].remove(end)
            end.close()

    async def _forward(
        self, link: RelayedLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Write all that is read, each piece so late as the link is long, until its end."""
        delay_s = self._delays_ms.get(link, 0) / 1000
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)

        async def read() -> None:
            chunk = b"-"
            while chunk:
                await self._forwards[link].wait()
                try:
                    chunk = await reader.read(READ_BYTES)
                except OSError:
                    chunk = b""
                await in_transit.put((self._loop.time() + delay_s, chunk))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, chunk = await in_transit.get()
                await asyncio.sleep(due - self._loop.time())
                await self._forwards[link].wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()


CLIENTS = "clients"
"""The source of all links that clients use."""

POWER_S = 0.05
"""Time from cutting the links to killing the process, so that nothing reports its end (s)."""


class LeaderDeath(StrEnum):
    """A way in which the leader fails."""

    KILL = "kill"
    """SIGKILL: the system closes its connections, and all peers notice."""
    SIGSTOP = "sigstop"
    """The process stops, and its connections stay open."""
    POWER_LOSS = "power-loss"
    """All its links are cut silently, then it is killed."""
    CUT_OFF = "cut-off"
    """All its links are cut silently, those to clients as well; it runs on."""
    CUT_OFF_FROM_FOLLOWERS = "cut-off-from-followers"
    """Its links to the other nodes are cut silently; clients still reach it."""


class RelayedMembers(NodeProcesses):
    """Nodes that reach each other, and that clients reach, through relays that can fall silent.

    Args:
        one_way_ms: time that each message takes over any of these links (ms). The nodes are
            configured for such round trips.
        redis: whether each node serves clients of Redis, which reach it without a relay.

    """

    def __init__(
        self,
        folder: Path,
        protocol: str,
        nodes: int,
        *,
        one_way_ms: int = 0,
        redis: bool = False,
    ) -> None:
        super().__init__(folder, protocol, nodes, durable=True, redis=redis)
        ports = {node: int(address.rpartition(":")[2]) for node, address in self.addresses.items()}
        self.links = tuple(
            RelayedLink(source, target)
            for source in (*self.names, CLIENTS)
            for target in self.names
            if source != target
        )
        self.relays = Relays(
            {link: ports[link.target] for link in self.links},
            dict.fromkeys(self.links, one_way_ms),
        )
        for node in self.names:
            seen = {
                other: self.addresses[node] if other == node else self._relayed(node, other)
                for other in self.names
            }
            text = configuration(
                self.cluster,
                protocol,
                seen,
                durable=True,
                round_trip_ms=max(ROUND_TRIP_MS, 2 * one_way_ms),
                doors=self.doors,
            )
            self.configuration_of(node).write_text(text, encoding="utf-8")

    @property
    def connect(self) -> str:
        """The relays of all nodes, as an address list for clients."""
        return ",".join(self._relayed(CLIENTS, node) for node in self.names)

    def __enter__(self) -> Self:
        self.relays.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        super().__exit__(*error)
        self.relays.__exit__(*error)

    def configuration_of(self, node: str) -> Path:
        return self.folder / f"{node}.toml"

    def strike(self, node: str, death: LeaderDeath) -> tuple[float, Callable[[], None]]:
        """Let ``node`` fail; return the monotonic time of it (s), and a function that undoes it."""
        match death:
            case LeaderDeath.KILL:
                return self.kill(node), lambda: self.start(node)
            case LeaderDeath.SIGSTOP:
                process = self.processes[node]
                at = time.monotonic()
                os.kill(process.pid, signal.SIGSTOP)
                return at, lambda: process.send_signal(signal.SIGCONT)
            case LeaderDeath.POWER_LOSS:
                links = self.links_of(node, clients=True)
                at = self._cut(links)
                time.sleep(POWER_S)
                self.kill(node)
                return at, lambda: self._restart(node, links)
            case LeaderDeath.CUT_OFF | LeaderDeath.CUT_OFF_FROM_FOLLOWERS:
                links = self.links_of(node, clients=death is LeaderDeath.CUT_OFF)
                return self._cut(links), lambda: self.relays.heal(links)

    def _cut(self, links: tuple[RelayedLink, ...]) -> float:
        at = time.monotonic()
        self.relays.silence(links)
        return at

    def _restart(self, node: str, links: tuple[RelayedLink, ...]) -> None:
        self.relays.drop(links)
        self.relays.heal(links)
        self.start(node)

    def links_of(self, node: str, *, clients: bool) -> tuple[RelayedLink, ...]:
        return tuple(
            link for link in self.links if node in link and (clients or link.source != CLIENTS)
        )

    def _relayed(self, source: str, target: str) -> str:
        return f"tcp://127.0.0.1:{self.relays.ports[RelayedLink(source, target)]}"


PROCESSES = 2
THREADS = 4

SETTLE_S = 1.0
"""Time under load with all nodes up, before a kill (s)."""

DOWN_S = 2.0
"""Downtime of a killed node (s); the others serve again well before."""

SILENT_S = 6.0
"""Downtime of a leader that dies silently (s): longer than any such failover took."""


Die = Callable[[str], tuple[float, Callable[[], None]]]
"""Lets a node die; returns the monotonic time of it (s), and what undoes it."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The effects of the kills.

    Attributes:
        gaps_ms: for each kill the longest time without any grant (ms).
        client_gaps_ms: for each kill: the longest gap of the client process that was hit hardest
            (ms).
        errors: how often clients' calls raised each error, by its name.

    """

    gaps_ms: tuple[int, ...]
    client_gaps_ms: tuple[int, ...]
    errors: dict[str, int]

    @property
    def gap_ms(self) -> float:
        return statistics.median(self.gaps_ms)

    @property
    def client_gap_ms(self) -> float:
        return statistics.median(self.client_gaps_ms)

    def in_words(self) -> str:
        """Return the errors that clients met."""
        return ", ".join(f"{count} {name}" for name, count in self.errors.items()) or "no error"


def failover(
    members: NodeProcesses,
    watcher: Client,
    times: int,
    die: Die,
    down_s: float,
    say: Callable[[int], None],
) -> Failover:
    """Let the leader die ``times`` times (1 or more) while clients take locks.

    Each time it stays dead for ``down_s``. ``say`` is called before, with the number from 1 on.
    """
    job = Job(kind=JobKind.WATCH, address=members.connect, cluster=members.cluster, at_once=THREADS)
    edges_ms: list[int] = []
    with ExitStack() as stack:
        clients = [
            started(stack, replace(job, lock=f"failover-{n}"), members.folder, f"watch-{n}")
            for n in range(PROCESSES)
        ]
        for client in clients:
            client.wait_until_ready()
        for client in clients:
            client.tell()
        for number in range(1, times + 1):
            say(number)
            members.wait_until_ready(watcher)
            time.sleep(SETTLE_S)
            died_at, undo = die(leader_seen_by(watcher))
            edges_ms.append(int(died_at * 1000))
            time.sleep(down_s)
            undo()
        members.wait_until_ready(watcher)
        edges_ms.append(time.monotonic_ns() // 1_000_000)
        for client in clients:
            client.tell()
        results = [client.result() for client in clients]
    return _judged(results, edges_ms)


def measure_deaths(
    kinds: Sequence[LeaderDeath],
    nodes: int,
    times: int,
    say: Callable[[str], None],
    one_way_ms: int = 0,
) -> list[NotedFigure]:
    """Start ``nodes`` nodes for each of ``kinds``, and let the leader die ``times`` times.

    Every message takes ``one_way_ms``, and the nodes are configured for such round trips.
    """

    def measured(kind: LeaderDeath) -> NotedFigure:
        with (
            tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name,
            RelayedMembers(Path(name), "paxos", nodes, one_way_ms=one_way_ms) as members,
            members.ready_client() as watcher,
        ):
            seen = failover(
                members,
                watcher,
                times,
                lambda leader: members.strike(leader, kind),
                SILENT_S,
                lambda number: say(f"measuring {kind.value}, {number} of {times}"),
            )
        key = f"{kind.value.replace('-', '_')}_gap_ms"
        note = f"median of {times}, worst client {seen.client_gap_ms:.0f} ms; {seen.in_words()}"
        return NotedFigure(key, kind.value, seen.gap_ms, "ms", note, seen.gaps_ms)

    return [measured(kind) for kind in kinds]


def longest_gap_ms(grants_ms: Sequence[int], since_ms: int, until_ms: int) -> int:
    """Return the longest time without a grant that touches a span of time.

    Args:
        grants_ms: the times of grants, rising.
        since_ms: the begin of the span: the last grant before it counts as the first of it.
        until_ms: its end: a gap that is still open then counts up to here.

    """
    before = grants_ms[: bisect_right(grants_ms, since_ms)]
    within = grants_ms[len(before) : bisect_left(grants_ms, until_ms)]
    points = [before[-1] if before else since_ms, *within, until_ms]
    return max(later - earlier for earlier, later in pairwise(points))


def leader_seen_by(watcher: Client) -> str:
    leader = leader_among(described(watcher))
    if not leader:
        raise BenchFailedError("no node says who leads")
    return leader


def _judged(results: Sequence[dict[str, Any]], edges_ms: Sequence[int]) -> Failover:
    by_client: list[list[int]] = [result["grants_ms"] for result in results]
    anybody = sorted({grant for grants in by_client for grant in grants})
    spans = list(pairwise(edges_ms))
    errors: Counter[str] = sum(
        (Counter[str](result["errors"]) for result in results), Counter[str]()
    )
    return Failover(
        gaps_ms=tuple(longest_gap_ms(anybody, *span) for span in spans),
        client_gaps_ms=tuple(
            max(longest_gap_ms(grants, *span) for grants in by_client) for span in spans
        ),
        errors=dict(sorted(errors.items())),
    )
