"""Watches of maps with threads and tasks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.real_nodes import ask
from support.watched_channel import WatchedChannel

import fencelock
import fencelock.aio
from fencelock import MapChange, MapListing
from fencelock.actors.api.changes import Change, ReadChanges
from fencelock.actors.api.map import MAP, ListEntries, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.table.history import CHANGES_MAX
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.node.node import Node

PATIENCE_S = 60

Connect = Callable[[], fencelock.Client]


def listing(watch: fencelock.MapWatch) -> dict[str, bytes | None]:
    """Return the entries of the next listing, by key."""
    seen = watch.get(PATIENCE_S)
    assert isinstance(seen, MapListing)
    return {entry.key: entry.value for entry in seen.entries}


def test_a_watch_lists_the_entries_and_then_yields_each_change(connect: Connect, name: str) -> None:
    one, two = connect().map(name), connect().map(name)
    one.put("a", b"1")
    watch = two.watch()
    assert listing(watch) == {"a": b"1"}
    versions = [one.put("a", b"2"), one.put("b", b"3")]
    assert one.put_if_absent("a", b"no") is None
    assert one.delete("a")
    seen = [watch.get(PATIENCE_S) for _ in range(3)]
    assert seen[:2] == [MapChange("a", b"2", versions[0]), MapChange("b", b"3", versions[1])]
    assert isinstance(seen[2], MapChange)
    assert (seen[2].key, seen[2].value) == ("a", None)
    with pytest.raises(TimeoutError):
        watch.get(timeout=0.05)
    assert one.put("c", b"") == watch.get(PATIENCE_S).version


def test_a_watch_of_a_prefix_sees_no_other_keys(connect: Connect, name: str) -> None:
    kv = connect().map(name)
    kv.put("a/1", b"1")
    kv.put("b/1", b"2")
    watch = kv.watch("b/")
    assert listing(watch) == {"b/1": b"2"}
    for key in ("a/2", "b/2", "a/3", "b/3"):
        kv.put(key, b"")
    seen = [watch.get(PATIENCE_S), watch.get(PATIENCE_S)]
    assert [change.key for change in seen if isinstance(change, MapChange)] == ["b/2", "b/3"]


def test_entries_that_expire_or_end_with_their_session_are_changes(
    connect: Connect, name: str
) -> None:
    gone, stays = connect(), connect().map(name)
    watch = stays.watch()
    assert listing(watch) == {}
    gone.map(name).put("worker", b"here", ephemeral=True)
    stays.put("short", b"", ttl=0.05)
    seen: list[Any] = [watch.get(PATIENCE_S) for _ in range(3)]
    assert [(one.key, one.value) for one in seen] == [
        ("worker", b"here"),
        ("short", b""),
        ("short", None),
    ]
    gone.close()
    end: Any = watch.get(PATIENCE_S)
    assert (end.key, end.value) == ("worker", None)


def test_a_watch_goes_on_after_a_version(connect: Connect, name: str) -> None:
    kv = connect().map(name)
    versions = [kv.put("a", b"%d" % number) for number in range(4)]
    watch = kv.watch(after=versions[1])
    assert watch.get(PATIENCE_S) == MapChange("a", b"2", versions[2])
    assert watch.get(PATIENCE_S) == MapChange("a", b"3", versions[3])
    assert watch.resyncs == 0
    with pytest.raises(fencelock.InvalidRequestError, match="after is -1"):
        kv.watch(after=-1)
    with pytest.raises(TypeError):
        kv.watch(b"a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("timeout", "error"),
    [("x", TypeError), (-1, ValueError), (-0.5, ValueError), (float("nan"), ValueError)],
)
def test_a_timeout_out_of_its_range_is_refused(
    connect: Connect, name: str, timeout: Any, error: type[Exception]
) -> None:
    watch = connect().map(name).watch()
    text = f"timeout is {timeout!r}, and must be a number of seconds of at least 0, or None"
    with pytest.raises(error, match=text):
        watch.get(timeout)
    watch.get(timeout=float("inf"))


def test_a_watch_that_is_too_far_behind_gets_another_listing(connect: Connect, name: str) -> None:
    """It makes more changes than the history keeps: a patched limit would make members diverge."""
    kv = connect().map(name)
    watch = kv.watch()
    assert listing(watch) == {}
    version = kv.put("a", b"")
    assert watch.get(PATIENCE_S) == MapChange("a", b"", version)
    for number in range(CHANGES_MAX + 2):
        kv.put(f"k{number % 3}", b"%d" % number)
    assert listing(watch) == {"a": b"", "k0": b"999", "k1": b"1000", "k2": b"1001"}
    assert watch.resyncs == 1
    kv.delete("a")
    assert watch.get(PATIENCE_S)[:2] == ("a", None)


def test_a_large_map_is_listed_in_pages_and_no_change_comes_twice(
    connect: Connect, name: str
) -> None:
    kv = connect().map(name)
    for number in range(9):
        kv.put(f"k{number}", bytes(60_000))
    watch = kv.watch()
    puts: list[int] = []

    def changed_meanwhile(message: Any, reply: AskReply) -> bool:
        """Change the last entry after the first part of the listing was read, then ask."""
        del reply
        if isinstance(message, ListEntries) and not puts:
            puts.append(kv.put("k8", b"new"))
        return False

    watch._channel = WatchedChannel(watch._channel, changed_meanwhile)  # type: ignore[assignment]  # pyright: ignore
    seen = watch.get(PATIENCE_S)
    assert isinstance(seen, MapListing)
    assert [entry.key for entry in seen.entries] == [f"k{number}" for number in range(9)]
    assert seen.entries[-1] == MapChange("k8", b"new", puts[0])
    assert seen.version < puts[0]
    last = kv.put("k8", b"last")
    assert watch.get(PATIENCE_S) == MapChange("k8", b"last", last)


def test_tasks_watch_a_map(paxos_addresses: str, name: str) -> None:
    async def scene() -> None:
        async with fencelock.aio.connect(paxos_addresses, cluster="faces") as client:
            kv = client.map(name)
            watch = kv.watch("a")
            first = await anext(watch)
            assert isinstance(first, MapListing)
            assert first.entries == ()
            version = await kv.put("a", b"x")
            async for change in watch:
                assert change == MapChange("a", b"x", version)
                break

    asyncio.run(scene())


def test_an_ask_reads_changes_of_a_map(paxos_nodes: list[Node], name: str) -> None:
    node, lock = paxos_nodes[0], object_name(MAP, name)
    put = ask(node, PutEntry(map=name, entry_key="k", value=b"v"))
    read = ask(node, ReadChanges(watched=lock, after=put.version - 1, prefix="k"))
    assert read.changes == (Change(put.version, "k", b"v", 0),)
    whole = ask(node, ReadChanges(watched=lock))
    assert (whole.changes, whole.resync, whole.more) == (read.changes, True, False)
