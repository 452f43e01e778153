"""Maps with threads, tasks and asks on a real cluster, and their watches."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.collected import WatchedChannel
from support.expect import PATIENCE_S, checked, present
from support.faces import FACES, Connect, both_kinds, threads_only
from support.real_nodes import ask, until

import fencelock
import fencelock.aio
from fencelock import MapChange, MapListing
from fencelock.actors.api.changes import Change, ReadChanges
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX, MAP, ListEntries, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.error import InvalidRequestError, NotHeldError, VersionMismatchError
from fencelock.actors.table.history import CHANGES_MAX
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.node.node import Node

LARGE = bytes(range(256)) * (ENTRY_VALUE_BYTES_MAX // 256)


client_kind = both_kinds


@pytest.fixture
def kv(client: fencelock.Client, name: str) -> fencelock.Map:
    return client.map(name)


def keys_of(kv: fencelock.Map, **fields: Any) -> list[str]:
    return [key for key, _ in kv.items(**fields)]


def test_an_entry_that_one_client_puts_is_read_by_all_clients(
    connect: Connect, kv: fencelock.Map, name: str
) -> None:
    assert kv.get("colour") is None
    version = kv.put("colour", b"red")
    other = connect().map(name)
    assert other.get("colour") == fencelock.Entry(b"red", version, None, "")
    assert other.put("colour", b"blue") > version
    assert present(kv.get("colour")).value == b"blue"
    assert kv.delete("colour") is True
    assert kv.delete("colour") is False
    assert other.get("colour") is None
    assert repr(kv) == f"<Map '{name}'>"


def test_a_change_by_version_fails_if_another_was_faster(kv: fencelock.Map) -> None:
    first = present(kv.put_if_absent("k", b"1"))
    assert kv.put_if_absent("k", b"2") is None
    second = kv.replace("k", b"2", version=first)
    with pytest.raises(VersionMismatchError, match=f"has version {second}, but version") as failed:
        kv.replace("k", b"3", version=first)
    assert failed.value.version == second
    with pytest.raises(VersionMismatchError, match="nothing was changed"):
        kv.delete("k", version=first)
    assert kv.delete("k", version=second)
    with pytest.raises(VersionMismatchError, match="does not exist") as failed:
        kv.replace("k", b"3", version=second)
    assert failed.value.version is None


def test_the_version_in_an_error_survives_a_queue_between_processes() -> None:
    error = pickle.loads(pickle.dumps(VersionMismatchError("map 'm' has another", 7)))
    assert (str(error), error.version) == ("map 'm' has another", 7)


def test_many_threads_count_without_losing_one(kv: fencelock.Map, pool: ThreadPoolExecutor) -> None:
    kv.put("count", b"0")

    def increment(_: int) -> None:
        while True:
            entry = present(kv.get("count"))
            try:
                kv.replace("count", b"%d" % (int(entry.value) + 1), version=entry.version)
            except VersionMismatchError:
                continue
            return

    list(pool.map(increment, range(60)))
    entry = present(kv.get("count"))
    assert entry.value == b"60"


def test_an_entry_expires_and_a_put_without_ttl_makes_it_last(kv: fencelock.Map) -> None:
    kv.put("short", b"", ttl=0.2)
    kv.put("long", b"", ttl=1_000)
    kv.put("kept", b"", ttl=0.2)
    kv.put("kept", b"")
    until(lambda: kv.get("short") is None)
    entry = present(kv.get("long"))
    assert entry.expires is not None
    assert 990 < entry.expires <= 1_000
    assert keys_of(kv) == ["kept", "long"]


def test_ephemeral_entries_end_with_clients(connect: Connect, kv: fencelock.Map, name: str) -> None:
    worker = connect()
    worker.map(name).put("worker/1", b"", ephemeral=True)
    worker.map(name).put("worker/2", b"", ephemeral=True)
    assert worker.session in present(kv.get("worker/1")).session
    kv.put("worker/2", b"taken over")
    worker.close()
    until(lambda: kv.get("worker/1") is None)
    assert keys_of(kv, prefix="worker/") == ["worker/2"]


@threads_only
def test_a_client_keeps_the_session_of_an_ephemeral_entry_alive(
    paxos_addresses: str, kv: fencelock.Map, name: str
) -> None:
    """The TTL is 1 s, and the client does nothing else for three times as long."""
    with fencelock.connect(paxos_addresses, cluster=FACES, ttl=1) as worker:
        worker.map(name).put("worker", b"", ephemeral=True)
        kv.put("clock", b"", ttl=3)
        while kv.get("clock") is not None:
            assert kv.get("worker") is not None
    until(lambda: kv.get("worker") is None)


def test_a_late_holder_cannot_write(
    connect: Connect, client: fencelock.Client, kv: fencelock.Map, name: str
) -> None:
    lock = client.lock(name)
    with pytest.raises(NotHeldError, match="is not held by this object"):
        kv.put("k", b"", fence=lock)
    hold = present(lock.acquire())
    assert kv.put("k", b"by the holder", fence=lock)
    assert kv.replace("k", b"again", version=kv.put("k", b"", fence=hold), fence=hold)
    other = connect()
    other.evict(name, hold.fence, "root")
    lates: list[Callable[[], object]] = [
        lambda: kv.put("k", b"late", fence=hold),
        lambda: kv.put_if_absent("new", b"late", fence=hold),
        lambda: kv.delete("k", fence=hold),
    ]
    for late in lates:
        with pytest.raises(NotHeldError, match=f"not held under fence {hold.fence}"):
            late()
    with other.lock(name) as next_hold:
        assert other.map(name).put("k", b"next", fence=next_hold)
        with pytest.raises(NotHeldError):
            kv.put("k", b"late", fence=hold)
    assert present(kv.get("k")).value == b"next"
    assert kv.get("new") is None


def test_holds_of_all_kinds_guard(client: fencelock.Client, kv: fencelock.Map, name: str) -> None:
    with client.lock_all(f"{name}/a", f"{name}/b") as both:
        assert kv.put("both", b"", fence=both)
    with client.semaphore(name, 2) as permit:
        assert kv.put("permit", b"", fence=permit)
    with client.rwlock(name).write() as writer:
        assert kv.put("writer", b"", fence=writer)
    for over in (both, permit, writer):
        with pytest.raises(NotHeldError):
            kv.put("late", b"", fence=over)


@threads_only
def test_entries_are_listed_in_pages(kv: fencelock.Map, pool: ThreadPoolExecutor) -> None:
    def put(number: int) -> None:
        kv.put(f"a/{number:04}", b"")

    list(pool.map(put, range(1_205)))
    kv.put("b", LARGE)
    kv.put("c", LARGE)
    kv.put("d", LARGE)
    assert len(kv.items()) == 1_208
    assert keys_of(kv, prefix="a/", limit=2) == ["a/0000", "a/0001"]
    assert keys_of(kv, prefix="a/", after="a/1200") == [f"a/{n}" for n in range(1_201, 1_205)]
    assert keys_of(kv, after="b") == ["c", "d"]
    assert kv.items(limit=0) == []
    assert dict(kv.items("d"))["d"].value == LARGE


@threads_only
def test_large_values_of_many_threads_pass(kv: fencelock.Map) -> None:
    """The flood protection accepts 200 values of 64 KiB, 40 at a time, from an honest client."""

    def put(number: int) -> int:
        return kv.put(f"{number % 50}", LARGE)

    def get(number: int) -> bytes:
        entry = kv.get(f"{number % 50}")
        return b"" if entry is None else entry.value

    def delete(number: int) -> bool:
        return kv.delete(f"{number}")

    with ThreadPoolExecutor(40) as many:
        assert len(set(many.map(put, range(200)))) == 200
        assert all(value == LARGE for value in many.map(get, range(200)))
        assert all(many.map(delete, range(50)))


@threads_only
def test_a_local_read_needs_no_other_node(kv: fencelock.Map) -> None:
    kv.put("k", b"1")
    while (entry := kv.get("k", read="local", max_age=60)) is None:
        pass
    assert entry.value == b"1"
    assert kv.items(read="local", max_age=60) == [("k", entry)]


async def test_a_task_that_is_cancelled_leaves_the_map_usable_and_many_read_at_once(
    paxos_addresses: str, name: str
) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        kv = client.map(name)
        await asyncio.gather(*(kv.put(f"{number}", b"") for number in range(50)))
        entries = await asyncio.gather(*(kv.get(f"{number % 50}") for number in range(1_000)))
        assert all(entry is not None for entry in entries)
        cancelled = asyncio.create_task(kv.put("cancelled", b""))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert await kv.put("cancelled", b"after") > present(entries[0]).version


def test_asks_inside_a_node_use_maps(paxos_nodes: list[Node], name: str) -> None:
    node = paxos_nodes[0]
    put = PutEntry(map=name, entry_key="k", value=LARGE)
    reply = checked(fencelock.EntryChanged, ask(node, put))
    assert reply.changed
    found = ask(node, fencelock.GetEntry(map=name, entry_key="k"))
    assert found.entries == (fencelock.EntrySeen("k", LARGE, reply.version, None, ""),)
    assert found.age_ms == 0
    assert ask(node, fencelock.ListEntries(map=name)).entries == found.entries
    assert ask(node, fencelock.DeleteEntry(map=name, entry_key="k", version=1)).changed is False
    assert ask(node, fencelock.DeleteEntry(map=name, entry_key="k")).changed
    with pytest.raises(InvalidRequestError, match="value of 65537 bytes"):
        ask(node, fencelock.PutEntry(map=name, entry_key="k", value=LARGE + b"x"))
    put = ask(node, PutEntry(map=name, entry_key="k", value=b"v"))
    read = ask(node, ReadChanges(lock=object_name(MAP, name), after=put.version - 1, prefix="k"))
    assert read.changes == (Change(put.version, "k", b"v", 0),)
    whole = ask(node, ReadChanges(lock=object_name(MAP, name)))
    assert (whole.resync, whole.more) == (True, False)


# Watches of maps with threads and tasks, on a `paxos` cluster


def listing(watch: fencelock.MapWatch) -> dict[str, bytes | None]:
    """Return the entries of the next listing, by key."""
    seen = checked(MapListing, watch.get(PATIENCE_S))
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


def test_entries_that_expire_or_end_with_a_session_are_changes(connect: Connect, name: str) -> None:
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


@threads_only
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
    with pytest.raises(TimeoutError, match="no change came in time"):
        watch.get(timeout=0)


@threads_only
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


@threads_only
def test_a_large_map_comes_in_pages_and_no_change_twice(connect: Connect, name: str) -> None:
    kv = connect().map(name)
    for number in range(9):
        kv.put(f"k{number}", bytes(60_000))
    watch = kv.watch()
    puts: list[int] = []

    def changed_meanwhile(message: Any, reply: AskReply) -> bool:
        """Change the last entry after the first part of the listing was read, then ask."""
        if isinstance(message, ListEntries) and not puts:
            puts.append(kv.put("k8", b"new"))
        return False

    watch._channel = WatchedChannel(watch._channel, changed_meanwhile)  # type: ignore[assignment]  # pyright: ignore
    seen = checked(MapListing, watch.get(PATIENCE_S))
    assert [entry.key for entry in seen.entries] == [f"k{number}" for number in range(9)]
    assert seen.entries[-1] == MapChange("k8", b"new", puts[0])
    assert seen.version < puts[0]
    last = kv.put("k8", b"last")
    assert watch.get(PATIENCE_S) == MapChange("k8", b"last", last)


@threads_only
def test_threads_use_a_map_as_python_has_it(kv: fencelock.Map) -> None:
    assert (len(kv), list(kv), "a" in kv, bool(kv)) == (0, [], False, True)
    for key in ("b", "a", "c"):
        kv.put(key, key.encode())
    assert (len(kv), list(kv), "a" in kv) == (3, ["a", "b", "c"], True)
    assert kv["b"].value == b"b"
    with pytest.raises(KeyError, match="missing"):
        kv["missing"]
