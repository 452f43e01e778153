"""Elections as users meet them, and watches that are closed."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.collected import WatchedChannel
from support.expect import PATIENCE_S, checked, present
from support.faces import FACES, Cables, Connect, both_kinds, threads_only
from support.real_nodes import ask, until

import fencelock
import fencelock.aio
from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.lock_message import Release
from fencelock.actors.api.map import ListEntries
from fencelock.actors.api.name import object_name
from fencelock.actors.error import StaleError
from fencelock.actors.table.history import CHANGES_MAX
from fencelock.cluster.client import watch as watch_module
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.node.node import Node

client_kind = both_kinds


def lead_once(election: fencelock.Election, value: str) -> int:
    """Lead and step down in the calling thread; return the fence."""
    with election.lead(value) as term:
        return term.fence


def until_queued(election: fencelock.Election, count: int) -> None:
    until(lambda: len(election.status().waiters) == count)


def terms(node: Node, name: str, count: int) -> list[int]:
    """Lead and step down ``count`` times as a caller inside ``node``; return the fences."""
    lock, fences = object_name(ELECTION, name), list[int]()
    for number in range(count):
        fences.append(ask(node, Lead(election=name, value=f"term {number}")).fence)
        ask(node, Release(lock=lock, fence=fences[-1]))
    return fences


def test_candidates_lead_in_their_order_and_everybody_sees_who_leads(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().election(name), connect().election(name)
    watch = two.watch()
    assert one.leader() is None
    assert watch.get(PATIENCE_S) is None
    with one.lead("one:1") as term:
        first = fencelock.Leader("one:1", term.fence)
        assert two.leader() == first == watch.get(PATIENCE_S)
        assert two.leader(read="local", max_age=60) == first
        holder = present(two.status().holder)
        assert holder.label.endswith(", one:1")
        second = pool.submit(lead_once, two, "two:2")
        until_queued(one, 1)
        third = pool.submit(lead_once, one, "")
        until_queued(one, 2)
    fences = second.result(PATIENCE_S), third.result(PATIENCE_S)
    seen = list(itertools.islice(watch, 5))
    leaders = [fencelock.Leader("two:2", fences[0]), fencelock.Leader("", fences[1])]
    assert seen == [None, leaders[0], None, leaders[1], None]
    assert term.fence < fences[0] < fences[1]


def test_a_watch_begins_with_the_present_leader_and_waits(connect: Connect, name: str) -> None:
    client = connect()
    election = client.election(name)
    with election.lead("me") as term:
        watch = connect().election(name).watch()
        assert next(watch) == fencelock.Leader("me", term.fence)
        with pytest.raises(TimeoutError):
            watch.get(timeout=0.05)
    assert next(watch) is None
    fence = lead_once(election, "again")
    assert next(watch) == fencelock.Leader("again", fence)


def test_terms_end_by_force_or_close(connect: Connect, name: str, pool: ThreadPoolExecutor) -> None:
    gone, stays = connect(), connect()
    election = stays.election(name)
    watch = election.watch()
    assert next(watch) is None
    losses: list[fencelock.Notice] = []
    candidate = gone.election(name).lead("gone")
    candidate.on_lost(losses.append)
    term = present(candidate.acquire())
    assert next(watch) == fencelock.Leader("gone", term.fence)
    assert election.evict(term.fence, "root").fence == term.fence
    assert next(watch) is None
    until(lambda: term.lost and losses)
    with pytest.raises(fencelock.LockOwnershipLostError):
        candidate.release()
    assert candidate.acquire()
    next(watch)
    follower = pool.submit(lead_once, election, "next")
    until_queued(election, 1)
    gone.close()
    fence = follower.result(PATIENCE_S)
    assert list(itertools.islice(watch, 3)) == [None, fencelock.Leader("next", fence), None]


def test_candidates_that_time_out_or_do_not_wait_never_lead(connect: Connect, name: str) -> None:
    one, two = connect().election(name), connect().election(name, timeout=0.05)
    watch = one.watch()
    assert next(watch) is None
    with one.lead("one"):
        next(watch)
        assert two.lead("two").acquire(blocking=False) is None
        with pytest.raises(fencelock.LockTimeoutError, match="held by"), two.lead("two"):
            pass
    fence = lead_once(two, "later")
    assert list(itertools.islice(watch, 3)) == [None, fencelock.Leader("later", fence), None]


@threads_only
def test_a_watch_that_is_too_far_behind_goes_on_with_the_present_leader(
    connect: Connect, paxos_nodes: list[Node], name: str
) -> None:
    """It uses as many terms as the history keeps: a patched limit would make members diverge."""
    watch = connect().election(name).watch()
    assert next(watch) is None
    terms(paxos_nodes[0], name, 5)
    assert [watch.get(PATIENCE_S) for _ in range(10)][-1] is None
    assert watch.resyncs == 0
    fences = terms(paxos_nodes[0], name, 5)  # The cluster keeps these changes for the watch.
    assert watch.get(PATIENCE_S) == fencelock.Leader("term 0", fences[0])
    election = connect().election(name)
    behind = election.watch()
    assert next(behind) is None
    terms(paxos_nodes[0], name, CHANGES_MAX // 2 + 5)  # A term is two changes.
    assert election.leader() is None  # The node of its client has applied them all.
    with connect().election(name).lead("present") as term:
        present = fencelock.Leader("present", term.fence)
        while behind.get(PATIENCE_S) != present:
            pass
    assert behind.resyncs == 1
    assert behind.get(PATIENCE_S) is None


def test_a_watch_follows_its_client_from_node_to_node(
    cables: Cables, paxos_nodes: list[Node], name: str
) -> None:
    with fencelock.connect(cables.addresses, cluster=FACES) as client:
        watch = client.election(name).watch()
        assert next(watch) is None
        for node in paxos_nodes:
            cables.cut(node.address)
            cables.drop(node.address)
            for fence in terms(paxos_nodes[0], name, 2):
                leader = present(watch.get(PATIENCE_S))
                assert leader.fence == fence
                assert watch.get(PATIENCE_S) is None
            cables.mend(node.address)
        assert watch.resyncs == 0


def test_a_closed_client_ends_the_watches(connect: Connect, name: str) -> None:
    client = connect()
    watch = client.election(name).watch()
    next(watch)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(next, watch)
        with pytest.raises(TimeoutError):
            waits.result(0.1)
        client.close()
        with pytest.raises(fencelock.ClosedError):
            waits.result(PATIENCE_S)
    with pytest.raises(fencelock.ClosedError):
        next(watch)


def test_an_ask_leads_and_reads_changes(paxos_nodes: list[Node], name: str) -> None:
    node, lock = paxos_nodes[0], object_name(ELECTION, name)
    empty = checked(ChangesRead, ask(node, ReadChanges(lock=lock)))
    assert (empty.changes, empty.resync) == ((), True)
    (fence,) = terms(node, name, 1)
    version, changes = empty.version, list[Change]()
    while len(changes) < 2:
        read = ask(paxos_nodes[1], ReadChanges(lock=lock, after=version))
        assert not read.resync
        version, changes = read.version, [*changes, *read.changes]
    begin, end = changes
    assert (begin, end) == (
        Change(begin.version, "", b"term 0", fence),
        Change(end.version, "", None, fence),
    )
    assert empty.version < begin.version < end.version == version
    with pytest.raises(fencelock.InvalidRequestError, match="lock 'x' cannot be watched"):
        ask(node, ReadChanges(lock="x"))


KINDS = ("map", "election")


def watch_of(client: Any, kind: str, name: str) -> Any:
    """Return a watch of an object of ``kind``, which is "map" or "election"."""
    return getattr(client, kind)(name).watch()


@pytest.mark.parametrize("kind", KINDS)
def test_close_ends_a_loop_in_another_thread(
    connect: Connect, name: str, pool: ThreadPoolExecutor, kind: str
) -> None:
    watch = watch_of(connect(), kind, name)
    began = threading.Event()

    def consume() -> int:
        seen = 0
        for _ in watch:
            seen += 1
            began.set()
        return seen

    loop = pool.submit(consume)
    assert began.wait(PATIENCE_S)
    with pytest.raises(TimeoutError):
        loop.result(0.1)  # It waits for a change.
    watch.close()
    assert loop.result(PATIENCE_S) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_get_that_waits_and_later_ones_raise(
    connect: Connect, name: str, pool: ThreadPoolExecutor, kind: str
) -> None:
    watch = watch_of(connect(), kind, name)
    watch.get(PATIENCE_S)
    waits = pool.submit(watch.get)
    with pytest.raises(TimeoutError):
        waits.result(0.1)
    watch.close()
    text = f"the watch of {kind} '{name}' was closed"
    with pytest.raises(fencelock.ClosedError, match=text):
        waits.result(PATIENCE_S)
    with pytest.raises(fencelock.ClosedError, match=text):
        watch.get(timeout=0)
    watch.close()
    assert list(watch) == []


def test_a_closed_watch_drops_the_items_that_were_not_returned(connect: Connect, name: str) -> None:
    kv = connect().map(name)
    watch = kv.watch(after=kv.put("a", b""))
    for _ in range(3):
        kv.put("a", b"")
    watch.get(PATIENCE_S)
    watch.close()
    assert list(watch) == []


def test_a_watch_is_closed_at_the_end_of_its_block(connect: Connect, name: str) -> None:
    kv = connect().map(name)
    with kv.watch() as watch:
        kv.put("a", b"")
        assert isinstance(next(watch), fencelock.MapListing)
    with pytest.raises(fencelock.ClosedError, match="was closed"):
        watch.get()


def demand_end_at_close(
    watch: fencelock.MapWatch,
    takes: Callable[[Any, AskReply], bool],
    taken: threading.Event,
    pool: ThreadPoolExecutor,
) -> None:
    """Close a watch that waits after its request was ``taken`` by the test; its `get` must end."""
    watch._channel = WatchedChannel(watch._channel, takes)  # type: ignore[assignment]  # pyright: ignore
    waits = pool.submit(watch.get)
    assert taken.wait(PATIENCE_S)
    watch.close()
    with pytest.raises(fencelock.ClosedError, match="was closed"):
        waits.result(PATIENCE_S)


@threads_only
def test_close_ends_a_watch_that_pauses_while_no_node_answers(
    connect: Connect, name: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "WATCH_RETRY_S", 1_000.0)
    watch = connect().map(name).watch()
    watch.get(PATIENCE_S)
    refused = threading.Event()

    def refuse(message: Any, reply: AskReply) -> bool:
        reply.fail(StaleError("no node answers"))
        refused.set()
        return True

    demand_end_at_close(watch, refuse, refused, pool)


@threads_only
def test_close_ends_a_watch_that_waits_for_a_page_of_its_listing(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    kv = connect().map(name)
    for number in range(9):
        kv.put(f"k{number}", bytes(60_000))
    watch = kv.watch()
    asked = threading.Event()

    def keep(message: Any, reply: AskReply) -> bool:
        if isinstance(message, ListEntries):
            asked.set()
        return asked.is_set()

    demand_end_at_close(watch, keep, asked, pool)


async def test_a_watch_of_a_task_may_be_closed_by_a_thread(paxos_addresses: str, name: str) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        watch = client.election(name).watch()
        assert await watch.get() is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await watch.get()
        waits = asyncio.create_task(watch.get())
        await asyncio.to_thread(watch.close)
        with pytest.raises(fencelock.ClosedError, match="was closed"):
            await asyncio.wait_for(waits, PATIENCE_S)
