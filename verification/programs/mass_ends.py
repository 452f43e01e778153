"""The longest step of the table when much ends together, or one end makes room for many waits.

    python verification/programs/mass_ends.py  # a line for each kind; status 1 if one is too long
    python verification/programs/mass_ends.py --live  # three nodes with fsync, and a client

Other commands wait for one step at most: the rest of the ends follows in later slots. A barrier
breaks in one step, with all of its waits. With ``--live`` the figure is the longest pause between
two pairs of a client, beside one of the same run without ends, and one of the same seconds on a
second cluster in which nothing ends; and the leader before and after.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attackers import Asker
from beside import Pairs
from msgspec.structs import replace

from fencelock.actors.api.barrier import PARTIES_MAX, AwaitBarrier
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.message import Message
from fencelock.actors.table.session import SESSION_CLAIMS_MAX, WAITS_MAX
from fencelock.actors.table.table import LockTable
from fencelock.transport.cbor import load as load_cbor
from fencelock.transport.codec import encode
from fencelock.verification.bench.members import NodeProcesses, described, leader_among

SESSIONS = 100_000
ENTRIES = 100_000
WAITS = 100_000
SMALL = 10
"""Waits behind each that ends, where one end makes room for others."""
LIVE_SESSIONS = 10_800
TTL_MS = 10_000
STEP_S_MAX = 0.2

WINDOW = 2_000
"""Requests without a reply."""

LOAD_S = 45
"""Time in which everything must be in the table, before it ends (s)."""

PAUSE_S = 0.002
"""Pause between two pairs of a client (s)."""

WATCH_S = 10
"""Time for which the client is watched, without ends and while things end (s)."""


def with_sessions() -> LockTable:
    """Return a table whose sessions expire together."""
    table = LockTable()
    for number in range(SESSIONS):
        table.apply(0, Open(session=f"s{number}", ttl_ms=TTL_MS))
    return table


def with_open(sessions: int, ttl_ms: int) -> LockTable:
    """Return a table with a session that expires after `TTL_MS`, and others that last ``ttl_ms``.

    The second one may have waits numbered from 0, and each other one the next `WAITS_MAX`.
    """
    table = LockTable()
    for number in range(sessions):
        table.apply(0, Open(session=f"s{number}", ttl_ms=ttl_ms if number else TTL_MS))
    return table


def session_of(wait: int) -> str:
    number = wait // WAITS_MAX + 1
    return f"s{number}.{number + 1}"


def with_holds(*, awaited: bool) -> LockTable:
    """Return a table of one session that has all holds that it may, for which others may wait."""
    table = with_open(WAITS // WAITS_MAX + 1, 10 * TTL_MS)
    for number in range(SESSION_CLAIMS_MAX):
        lock = Acquire(lock=f"l{number}", session="s0.1", owner="o", request=number + 1)
        table.apply(0, lock)
        if awaited:
            waiting = {"session": session_of(number), "owner": "o", "request": number + 1}
            table.apply(0, replace(lock, wait_ms=None, **waiting))
    return table


def with_readers() -> LockTable:
    """Return a table with a writer, and with all readers that may wait for it."""
    table = with_open(2, 10 * TTL_MS)
    read = AcquireReadWrite(rwlock="r", session="s1.2", wait_ms=None)
    table.apply(0, replace(read, write=True, session="s0.1", owner="o", request=1))
    for number in range(WAITS_MAX):
        table.apply(0, replace(read, owner=f"o{number}", request=number + 1))
    return table


def with_large_claims() -> LockTable:
    """Return a table whose first session waits for many semaphores, in front of other waits."""
    table = with_open(WAITS // WAITS_MAX + 2, 10 * TTL_MS)
    many = WAITS // SMALL
    for number in range(many):
        claim = AcquirePermits(semaphore=f"p{number}", permits=2 * SMALL, amount=1, owner="o")
        holder = {"session": session_of(WAITS), "request": number + 1}
        table.apply(0, replace(claim, **holder))
        large = {"session": "s0.1", "request": number + 1, "amount": 2 * SMALL}
        table.apply(0, replace(claim, wait_ms=None, **large))
        for place in range(number * SMALL, (number + 1) * SMALL):
            small = {"session": session_of(place), "owner": f"o{place}", "request": number + 1}
            table.apply(0, replace(claim, wait_ms=None, **small))
    return table


def with_parties() -> LockTable:
    """Return a table whose first session waits at many barriers, as do others."""
    table = with_open(WAITS // WAITS_MAX + 1, 10 * TTL_MS)
    for number in range(WAITS // SMALL):
        wait = AwaitBarrier(barrier=f"b{number}", parties=SMALL + 2, owner="o", wait_ms=None)
        table.apply(0, replace(wait, session="s0.1", request=number + 1))
        for place in range(number * SMALL, (number + 1) * SMALL):
            other = {"session": session_of(place), "owner": f"o{place}", "request": number + 1}
            table.apply(0, replace(wait, **other))
    return table


def with_barriers(parties: int) -> LockTable:
    """Return a table with barriers that lack a party, and whose waits time out together."""
    table = with_open(WAITS // WAITS_MAX + 1, 10 * TTL_MS)
    for number in range(WAITS):
        wait = AwaitBarrier(
            session=session_of(number),
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


def load_sessions(nodes: NodeProcesses, ends: float) -> int:
    """Open sessions that all end at ``ends``; return how many were refused."""
    refused = 0
    for node, address in nodes.addresses.items():
        asker = Asker(address, f"opener-{node}", WINDOW, cluster=nodes.cluster)

        def opened(number: int, name: str = asker.name) -> Sequence[object]:
            left_ms = round(1_000 * (ends - time.monotonic()))
            open_one = Open(session=f"{name}~{number}", request=number, ttl_ms=left_ms)
            return items_of(open_one)

        refused += load(asker, opened, LIVE_SESSIONS // len(nodes.addresses), ends)
    return refused


def load_entries(nodes: NodeProcesses, ends: float) -> int:
    """Put entries that are all due at ``ends``; return how many were refused."""
    address = next(iter(nodes.addresses.values()))
    asker = Asker(address, "putter", WINDOW, cluster=nodes.cluster)
    asker.open(600_000)

    def put(number: int) -> Sequence[object]:
        left_ms = round(1_000 * (ends - time.monotonic()))
        put_one = PutEntry(
            session=asker.session,
            owner="o",
            request=number,
            map="m",
            entry_key=f"k{number}",
            value=b"v",
            ttl_ms=left_ms,
        )
        return items_of(put_one)

    return load(asker, put, ENTRIES, ends)


def items_of(message: Message) -> list[object]:
    """Return the items of ``message``, as a frame carries them."""
    items: list[object] = load_cbor(encode(message))
    return items


def load(asker: Asker, make: Callable[[int], Sequence[object]], count: int, ends: float) -> int:
    """Send ``count`` requests and receive all replies; return how many were refused."""
    asker.ask(make, count, ends)
    # A request that is sent again has two replies.
    assert asker.unanswered <= 0, f"{asker.unanswered} requests are not answered"
    return sum(asker.refused.values())


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
        (f"{SESSION_CLAIMS_MAX:,} holds of a session", lambda: with_holds(awaited=False)),
        (f"{SESSION_CLAIMS_MAX:,} holds, others wait", lambda: with_holds(awaited=True)),
        (f"{WAITS_MAX:,} readers of a writer that ends", with_readers),
        (f"{WAITS:,} waits behind {WAITS // SMALL:,} that end", with_large_claims),
        (f"{WAITS:,} parties of {WAITS // SMALL:,} that end", with_parties),
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
