"""Closed watches: what a waiting caller and later callers get, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.watched_channel import WatchedChannel

import fencelock
import fencelock.aio
from fencelock.actors.api.map import ListEntries
from fencelock.actors.error import StaleError
from fencelock.cluster.client import watch as watch_module
from fencelock.cluster.host.pending_asks import AskReply

PATIENCE_S = 60

Connect = Callable[[], fencelock.Client]

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


def test_close_ends_a_watch_that_pauses_while_no_node_answers(
    connect: Connect, name: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "PAUSE_S", 1_000.0)
    watch = connect().map(name).watch()
    watch.get(PATIENCE_S)
    refused = threading.Event()

    def refuse(message: Any, reply: AskReply) -> bool:
        del message
        reply.fail(StaleError("no node answers"))
        refused.set()
        return True

    demand_end_at_close(watch, refuse, refused, pool)


def test_close_ends_a_watch_that_waits_for_a_page_of_its_listing(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    kv = connect().map(name)
    for number in range(9):
        kv.put(f"k{number}", bytes(60_000))
    watch = kv.watch()
    asked = threading.Event()

    def keep(message: Any, reply: AskReply) -> bool:
        del reply
        if isinstance(message, ListEntries):
            asked.set()
        return asked.is_set()

    demand_end_at_close(watch, keep, asked, pool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_close_ends_the_loop_of_a_task(
    paxos_addresses: str, name: str, kind: str, elsewhere: bool
) -> None:
    async def scene() -> None:
        async with fencelock.aio.connect(paxos_addresses, cluster="faces") as client:
            watch = watch_of(client, kind, name)
            seen: asyncio.Queue[Any] = asyncio.Queue()

            async def consume() -> None:
                async for item in watch:
                    seen.put_nowait(item)

            task = asyncio.create_task(consume())
            await seen.get()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), 0.1)
            if elsewhere:
                await asyncio.to_thread(watch.close)
            else:
                watch.close()
            await asyncio.wait_for(task, PATIENCE_S)
            with pytest.raises(fencelock.ClosedError, match="was closed"):
                await watch.get()
            async with watch_of(client, kind, name) as other:
                await other.get()
                waits = asyncio.create_task(other.get())
                await asyncio.sleep(0)
            with pytest.raises(fencelock.ClosedError, match="was closed"):
                await asyncio.wait_for(waits, PATIENCE_S)

    asyncio.run(scene())
