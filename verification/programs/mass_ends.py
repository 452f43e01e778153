"""The longest step of the table when many sessions, entries of maps or barriers end together.

    python verification/programs/mass_ends.py  # a line for each kind; status 1 if one is too long
    python verification/programs/mass_ends.py --live  # three nodes with fsync, and a client

Other commands wait for one step at most: the rest of the ends follows in later slots. A barrier
breaks in one step, with all of its waits. With ``--live`` the figure is the longest pause between
two pairs of a client, beside one of the same run without ends, and one of the same seconds on a
second cluster in which nothing ends; and the leader before and after.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cbor2
import zmq
from beside import Pairs

from fencelock.actors.api.barrier import PARTIES_MAX, AwaitBarrier
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.table import LockTable
from fencelock.verification.bench.members import NodeProcesses, described, leader_among

SESSIONS = 100_000
ENTRIES = 100_000
WAITS = 100_000
LIVE_SESSIONS = 10_800
TTL_MS = 10_000
STEP_S_MAX = 0.2

AT_ONCE = 250
"""Requests in one frame."""

WINDOW = 2_000
"""Requests without a reply."""

LOAD_S = 45
"""Time in which everything must be in the table, before it ends (s)."""

PAUSE_S = 0.002
"""Pause between two pairs of a client (s)."""

WATCH_S = 10
"""Time for which the client is watched, without ends and while things end (s)."""

OPEN_TAG, OPENED_TAG, PUT_TAG, REFUSED_TAG = 0x60, 0x61, 0x71, 0x1B


def with_sessions() -> LockTable:
    """Return a table whose sessions expire together."""
    table = LockTable()
    for number in range(SESSIONS):
        table.apply(0, Open(session=f"s{number}", ttl_ms=TTL_MS))
    return table


def with_barriers(parties: int) -> LockTable:
    """Return a table with barriers that lack a party, and whose waits time out together."""
    table = LockTable()
    table.apply(0, Open(session="s", ttl_ms=10 * TTL_MS))
    for number in range(WAITS):
        wait = AwaitBarrier(
            session="s.1",
            owner=f"o{number}",
            request=1,
            barrier=f"b{number // (parties - 1)}",
            parties=parties,
            wait_ms=TTL_MS,
        )
        table.apply(0, wait)
    return table


def with_entries(*, ephemeral: bool) -> LockTable:
    """Return a table whose entries expire together, or end with one session."""
    table = LockTable()
    table.apply(0, Open(session="s", ttl_ms=TTL_MS))
    for number in range(ENTRIES):
        put = PutEntry(
            session="s.1",
            owner="o",
            request=number + 1,
            map="m",
            entry_key=f"k{number}",
            value=b"v",
            ttl_ms=None if ephemeral else TTL_MS,
            ephemeral=ephemeral,
        )
        table.apply(0, put)
    return table


def steps_of(table: LockTable) -> list[float]:
    """Let everything end; return the duration of each step (s)."""
    taken: list[float] = []
    now_ms = TTL_MS
    gc.collect()
    while (due := table.due_ms()) is not None and due <= now_ms:
        began = time.perf_counter()
        table.advance(now_ms)
        taken.append(time.perf_counter() - began)
        now_ms += 1
    return taken


class Loader:
    """A raw client of one node, which sends many requests at once."""

    def __init__(self, cluster: str, address: str, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.refused = self.open = 0
        self.session = self.why = ""
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{name}#1".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def send_all(self, make: Callable[[int], Sequence[object]], count: int) -> None:
        """Send ``count`` requests that ``make`` returns by number, and wait for the replies."""
        sent = 0
        while sent < count or self.open > 0:  # A request that is sent again has two replies.
            if sent < count and self.open + AT_ONCE <= WINDOW:
                numbers = range(sent, min(count, sent + AT_ONCE))
                envelopes = [["*/proxy", f"{self.name}/x", make(number)] for number in numbers]
                self.socket.send(cbor2.dumps([1, self.cluster, 0, 0, envelopes]))
                sent += len(numbers)
                self.open += len(numbers)
                continue
            assert self.socket.poll(20_000), f"{self.open} requests are not answered"
            for _, _, (tag, *fields) in cbor2.loads(self.socket.recv())[4]:
                self.open -= 1
                if tag == REFUSED_TAG:
                    self.refused += 1
                    self.why = str(fields)
                if tag == OPENED_TAG:
                    self.session = fields[1]


def load_sessions(nodes: NodeProcesses, ends: float) -> int:
    """Open sessions that all end at ``ends``; return how many were refused."""
    refused = 0
    for node, address in nodes.addresses.items():
        loader = Loader(nodes.cluster, address, f"opener-{node}")

        def opened(number: int, node: str = node) -> Sequence[object]:
            left_ms = round(1_000 * (ends - time.monotonic()))
            return (OPEN_TAG, f"opener-{node}~{number}", left_ms, "", number + 1)

        loader.send_all(opened, LIVE_SESSIONS // len(nodes.addresses))
        refused += loader.refused
    return refused


def load_entries(nodes: NodeProcesses, ends: float) -> int:
    """Put entries that are all due at ``ends``; return how many were refused."""
    loader = Loader(nodes.cluster, next(iter(nodes.addresses.values())), "putter")
    loader.send_all(lambda _: (OPEN_TAG, "putter", 600_000, "", 1), 1)

    def put(number: int) -> Sequence[object]:
        left_ms = round(1_000 * (ends - time.monotonic()))
        key, session = f"k{number}", loader.session
        return (PUT_TAG, "m", key, b"v", session, "o", number + 2, None, left_ms, False, "", 0)

    loader.send_all(put, ENTRIES)
    return loader.refused


def live(name: str, load: Callable[[NodeProcesses, float], int]) -> bool:
    """Measure one kind on three nodes; print it, and return whether the bar was met."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        NodeProcesses(Path(folder), "paxos", 3, durable=True) as nodes,
        NodeProcesses(Path(other), "paxos", 3, durable=True) as calm,
        nodes.ready_client() as watcher,
        calm.ready_client() as quiet,
    ):
        ends = time.monotonic() + LOAD_S + WATCH_S
        refused = load(nodes, ends)
        loaded = time.monotonic()
        assert loaded < ends - WATCH_S, f"loading took {loaded - ends + LOAD_S + WATCH_S:.0f} s"
        leader = leader_among(described(watcher))
        with (
            Pairs(watcher.lock("probe"), PAUSE_S) as pairs,
            Pairs(quiet.lock("probe"), PAUSE_S) as beside,
        ):
            time.sleep(max(0.0, ends - time.monotonic()) + WATCH_S)
        control = pairs.longest_gap(ends - WATCH_S + 1, ends - 1)
        gap = pairs.longest_gap(ends - 1, ends + WATCH_S - 1)
        other_gap = beside.longest_gap(ends - 1, ends + WATCH_S - 1)
        after = leader_among(described(watcher))
        print(
            f"{name}: longest gap {gap:.3f} s, before {control:.3f} s, elsewhere meanwhile "
            f"{other_gap:.3f} s; load {os.getloadavg()[0]:.1f}; {refused} refused, "
            f"{pairs.failures} pairs failed; leader {leader}, then {after}",
            flush=True,
        )
    return leader == after and gap <= max(STEP_S_MAX, other_gap)


def main_live() -> int:
    met = [
        live(f"{LIVE_SESSIONS:,} sessions", load_sessions),
        live(f"{ENTRIES:,} entries with a TTL", load_entries),
    ]
    return int(not all(met))


def main() -> int:
    longest = 0.0
    many, few = PARTIES_MAX, 2
    tables: list[tuple[str, Callable[[], LockTable]]] = [
        (f"{SESSIONS:,} sessions", with_sessions),
        (f"{ENTRIES:,} entries with a TTL", lambda: with_entries(ephemeral=False)),
        (f"{ENTRIES:,} entries of a session", lambda: with_entries(ephemeral=True)),
        (f"{WAITS:,} barriers of {few} parties", lambda: with_barriers(few)),
        (f"{WAITS:,} waits at barriers of {many:,}", lambda: with_barriers(many)),
    ]
    for name, make in tables:
        steps = steps_of(make())
        longest = max(longest, *steps)
        print(
            f"{name:36} {len(steps):5,} steps, longest {max(steps):.3f} s, all {sum(steps):6.3f} s",
            flush=True,
        )
    print(
        f"The limit of a step is {STEP_S_MAX} s. The load of this machine: {os.getloadavg()[0]:.1f}"
    )
    return int(longest > STEP_S_MAX)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--live", action="store_true", help="measure on three nodes with fsync")
    sys.exit(main_live() if parser.parse_args().live else main())
