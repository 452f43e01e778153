"""The other objects as users of both clients meet them, and callers inside a node, on `paxos`.

Several locks at once, latches, barriers, counters and pools; arguments out of their limits, and
waits of cancelled tasks, for objects of every kind.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import pytest
from support.expect import PATIENCE_S, checked, present
from support.faces import FACES, Connect, both_kinds, threads_only
from support.real_nodes import ask, until
from support.table_scene import amounts

import fencelock
import fencelock.aio
from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.counter import COUNTER, VALUE_MAX, AddToCounter, CounterChanged
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.lock_all import CLAIM_LOCKS_MAX, SEVERAL, AcquireAll
from fencelock.actors.api.lock_message import Cancel, Granted, Inspect, Release, Released
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import POOL, GivePermits, PermitsGiven, PermitsTaken, TakePermits
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits, ReleasePermits
from fencelock.actors.error import InvalidRequestError
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.node.node import Node
from fencelock.testing import partition

CALLS = 90


client_kind = both_kinds


# Several locks at once


@pytest.fixture
def names(name: str) -> tuple[str, str, str]:
    return f"{name}-a", f"{name}-b", f"{name}-c"


def test_all_are_held_or_none(connect: Connect, names: tuple[str, str, str]) -> None:
    one, two = connect(), connect()
    with one.lock_all(*names) as holds:
        assert tuple(holds.fences) == names
        assert list(holds.fences.values()) == [holds.fence + place for place in range(3)]
        for name, fence in holds.fences.items():
            assert present(two.status(name).holder).fence == fence
            assert two.lock(name).acquire(blocking=False) is None
        assert two.lock_all("free", names[2]).acquire(blocking=False) is None
        assert (_held := two.lock("free").acquire(blocking=False))
    assert [two.status(name).holder for name in names] == [None] * 3
    holds.release()  # Does nothing.


def test_waiting_for_all_holds_nothing(connect: Connect, names: tuple[str, str, str]) -> None:
    one, two = connect(), connect()
    held = present(two.lock(names[1]).acquire())
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(one.lock_all(*names).acquire, timeout=PATIENCE_S)
        until(lambda: two.status(names[0]).waiters)
        assert two.status(names[0]).holder is None
        assert two.lock(names[0]).acquire(timeout=0.01) is None  # It does not overtake.
        held.release()
        holds = waits.result(PATIENCE_S)
    assert holds
    assert min(holds.fences.values()) > held.fence
    with pytest.raises(fencelock.LockTimeoutError, match=f"lock '{names[0]}': held by"):
        two.lock_all(*names, timeout=0.01).__enter__()
    holds.release()


def test_threads_get_them_in_any_order(connect: Connect, names: tuple[str, str, str]) -> None:
    inside, most, clients = list[str](), list[int](), [connect() for _ in range(3)]
    guard = threading.Lock()

    def use(client: fencelock.Client, order: tuple[str, ...]) -> int:
        for _ in range(20):
            with client.lock_all(*order[:2]):
                with guard:
                    assert not set(order[:2]) & set(inside)
                    inside.extend(order[:2])
                    most.append(len(inside))
                with guard:
                    for name in order[:2]:
                        inside.remove(name)
        return 20

    orders = itertools.permutations(names)
    with ThreadPoolExecutor(6) as threads:
        done = threads.map(use, itertools.cycle(clients), orders, timeout=PATIENCE_S)
        assert sum(done) == 6 * 20
    assert len(most) == 6 * 20


def test_an_operator_who_takes_one_takes_all(connect: Connect, names: tuple[str, str, str]) -> None:
    one, two = connect(), connect()
    holds = present(one.lock_all(*names).acquire())
    two.evict(names[1], holds.fences[names[1]], "root")
    until(lambda: holds.lost)
    assert (_held := two.lock_all(*names).acquire(blocking=False))
    with pytest.raises(fencelock.LockOwnershipLostError, match="root"):
        holds.release()


# Latches and barriers


def test_callers_pass_at_count_0(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    one, two = connect(), connect()
    waits = [pool.submit(client.latch(name, 3).wait, PATIENCE_S) for client in (one, two, two)]
    until(lambda: len(one.latch(name, 3).status().waiters) == 3)
    latch = one.latch(name, 3)
    assert latch.count() == 3
    assert latch.count_down() == 2
    assert two.latch(name, count=3).count() == 2
    assert not any(wait.done() for wait in waits)
    assert two.latch(name, 3).count_down(2) == 0
    assert [wait.result(PATIENCE_S) for wait in waits] == [True] * 3
    assert latch.wait(0)  # The latch is kept.
    assert latch.count_down() == latch.count() == 0


def test_a_wait_that_times_out_returns_false(connect: Connect, name: str) -> None:
    latch = connect().latch(name, 2)
    assert latch.wait(0) is False
    assert latch.wait(timeout=0.01) is False
    assert latch.count() == 2
    assert not latch.status().waiters


def test_a_latch_is_gone_after_it_was_kept(connect: Connect, name: str) -> None:
    latch = connect().latch(name, 1, keep_s=0)
    assert latch.count_down() == 0
    assert latch.count() == 1
    assert latch.wait(0) is False


ONCE: dict[str, tuple[Callable[[Any, str], int], int]] = {
    "latch": (lambda client, name: client.latch(name, CALLS).count_down(), 0),
    "counter": (lambda client, name: client.counter(name).add(), 1),
}
"""Changes whose replies all differ, with the least of these replies."""


@pytest.mark.parametrize("kind", ONCE)
def test_threads_change_an_object_once_each(
    connect: Connect, pool: ThreadPoolExecutor, name: str, kind: str
) -> None:
    change, least = ONCE[kind]
    clients = itertools.cycle([connect() for _ in range(3)])

    def change_by(client: fencelock.Client) -> int:
        return change(client, name)

    replies = pool.map(change_by, itertools.islice(clients, CALLS))
    assert sorted(replies) == list(range(least, least + CALLS))


def test_another_count_is_refused(connect: Connect, name: str) -> None:
    client = connect()
    latch = client.latch(name, 3)
    latch.count_down()
    with pytest.raises(fencelock.InvalidRequestError, match=f"latch '{name}' has count 3; this"):
        client.latch(name, 4).wait()
    assert latch.count() == 2
    assert repr(latch) == f"<Latch '{name}' of 3>"


def test_status_and_lists_show_latches(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    client = connect()
    latch = client.latch(name, 3)
    waits = pool.submit(latch.wait, PATIENCE_S)
    until(lambda: latch.status().waiters)
    latch.count_down()
    status = latch.status()
    assert (status.holder, status.left, status.permits) == (None, 2, 3)
    (listed,) = client.objects(f"{LATCH}\x1f{name}")
    assert listed == (object_name(LATCH, name), 1, 2, 3)
    assert client.locks(name) == ()
    seen = set[int | None]()
    while 2 not in seen:  # The state of a node may be a little older.
        statuses = (lock for node in client.describe() for lock in node.locks)
        seen |= {one.left for one in statuses if one.lock == status.lock}
    latch.count_down(2)
    assert waits.result(PATIENCE_S)


def test_a_client_that_closes_ends_its_waits_for_a_latch(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    gone, stays = connect(), connect()
    waits = pool.submit(gone.latch(name, 1).wait, PATIENCE_S)
    until(lambda: stays.latch(name, 1).status().waiters)
    gone.close()
    with pytest.raises(fencelock.ClosedError, match="client was closed"):
        waits.result(PATIENCE_S)
    assert not stays.latch(name, 1).status().waiters


def test_all_pass_each_with_an_index(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    barriers = [connect().barrier(name, 4) for _ in range(4)]
    assert barriers[0].parties == 4
    for _ in range(5):
        waits = [pool.submit(barrier.wait, PATIENCE_S) for barrier in barriers]
        assert sorted(wait.result(PATIENCE_S) for wait in waits) == [0, 1, 2, 3]
    assert barriers[0].n_waiting() == 0


def test_the_index_is_the_place_in_the_order_of_arrival(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = connect(), connect()
    first = pool.submit(one.barrier(name, parties=3).wait, PATIENCE_S)
    until(lambda: two.barrier(name, 9).n_waiting())
    second = pool.submit(two.barrier(name, 3).wait, PATIENCE_S)
    until(lambda: two.barrier(name, 9).n_waiting() == 2)
    assert two.barrier(name, 3).wait(PATIENCE_S) == 2
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (0, 1)


def test_a_wait_that_times_out_breaks_the_generation_and_the_next_is_clean(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = connect(), connect()
    other = pool.submit(one.barrier(name, 3).wait, PATIENCE_S)
    until(lambda: two.barrier(name, 9).n_waiting())
    with pytest.raises(fencelock.BrokenBarrierError, match="2 of 3 parties have arrived"):
        two.barrier(name, 3, timeout=0.05).wait()
    with pytest.raises(fencelock.BrokenBarrierError, match="is broken: a party"):
        other.result(PATIENCE_S)
    with pytest.raises(RuntimeError):
        one.barrier(name, 2).wait(0)
    waits = pool.submit(one.barrier(name, 2).wait, PATIENCE_S)
    assert {two.barrier(name, 2).wait(PATIENCE_S), waits.result(PATIENCE_S)} == {0, 1}


def test_a_client_that_closes_breaks_the_generation(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    gone, stays = connect(), connect()
    leaves = pool.submit(gone.barrier(name, 3).wait, PATIENCE_S)
    stays_there = pool.submit(stays.barrier(name, 3).wait, PATIENCE_S)
    until(lambda: stays.barrier(name, 9).n_waiting() == 2)
    gone.close()
    with pytest.raises(fencelock.BrokenBarrierError):
        stays_there.result(PATIENCE_S)
    with pytest.raises(fencelock.ClosedError, match="it is unknown whether"):
        leaves.result(PATIENCE_S)


def test_other_parties_are_refused(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    client = connect()
    waits = pool.submit(client.barrier(name, 2).wait, PATIENCE_S)
    until(lambda: client.barrier(name, 9).n_waiting())
    with pytest.raises(
        fencelock.InvalidRequestError, match=f"barrier '{name}' has 2 parties; this"
    ):
        client.barrier(name, 3).wait()
    status = client.barrier(name, 2).status()
    assert (status.left, status.permits, len(status.waiters)) == (1, 2, 1)
    (listed,) = client.objects(f"{BARRIER}\x1f{name}")
    assert listed == (object_name(BARRIER, name), 1, 1, 2)
    assert client.barrier(name, 2).wait(PATIENCE_S) == 1
    assert waits.result(PATIENCE_S) == 0
    assert repr(client.barrier(name, 2)) == f"<Barrier '{name}' of 2 parties>"


# Counters and pools


@pytest.fixture
def counter(connect: Connect, name: str) -> fencelock.Counter:
    return connect().counter(name)


def test_all_clients_see_one_value(connect: Connect, counter: fencelock.Counter) -> None:
    other = connect().counter(counter.name)
    assert (counter.get(), other.get()) == (0, 0)
    assert counter.add() == 1
    assert other.add(5) == 6
    assert counter.get_and_add(-2) == 6
    assert other.set(10) == 4
    assert (counter.get(), other.get()) == (10, 10)
    assert counter.get(read="local", max_age=60) in {0, 1, 4, 6, 10}


def test_a_value_is_set_only_from_the_expected_one(counter: fencelock.Counter) -> None:
    assert counter.compare_and_set(0, 7) is True
    assert counter.compare_and_set(0, 9) is False
    assert counter.get() == 7
    assert counter.compare_and_set(7, 0) is True
    assert counter.compare_and_set(expected=0, value=-1) is True


def test_a_change_is_refused_unless_its_lock_is_held(
    connect: Connect, counter: fencelock.Counter, name: str
) -> None:
    client = connect()
    lock = client.lock(name)
    with lock as hold:
        assert counter.add(fence=hold) == 1
        assert counter.get_and_add(fence=lock) == 1
        assert counter.set(5, fence=hold) == 2
        assert counter.compare_and_set(5, 6, fence=hold)
    changes: tuple[Callable[[], object], ...] = (
        lambda: counter.add(fence=hold),
        lambda: counter.get_and_add(fence=hold),
        lambda: counter.set(0, fence=hold),
        lambda: counter.compare_and_set(6, 7, fence=hold),
    )
    for change in changes:
        with pytest.raises(
            fencelock.NotHeldError, match=f"counter '{name}': nothing was changed: lock '{name}' is"
        ):
            change()
    with pytest.raises(fencelock.NotHeldError, match="is not held by this object"):
        counter.add(fence=lock)
    assert counter.get() == 6


def test_a_sum_beyond_the_limits_changes_nothing(counter: fencelock.Counter, name: str) -> None:
    counter.set(VALUE_MAX)
    with pytest.raises(
        fencelock.InvalidRequestError,
        match=f"counter '{name}' is {VALUE_MAX}, and 1 more is beyond the limits of -{VALUE_MAX}",
    ):
        counter.add()
    assert counter.get() == VALUE_MAX


def test_lists_show_counters_which_clash_with_no_map_or_lock(
    connect: Connect, counter: fencelock.Counter, name: str
) -> None:
    client = connect()
    client.map(name).put(name, b"x")
    with client.lock(name):
        counter.add(3)
        (listed,) = client.objects(f"{COUNTER}\x1f{name}")
        assert listed == (object_name(COUNTER, name), 0, 3, 0)
    counter.set(0)
    assert client.objects(f"{COUNTER}\x1f{name}") == ()
    assert client.map(name).get(name) is not None
    assert repr(counter) == f"<Counter '{name}'>"


def pool_of(client: fencelock.Client, name: str, permits: int = 3) -> fencelock.Pool:
    return client.semaphore(name, permits, session_aware=False)


def test_a_permit_stays_taken_when_its_client_is_closed(connect: Connect, name: str) -> None:
    gone, stays = connect(), connect()
    assert pool_of(gone, name).acquire(2)
    gone.close()
    pool = pool_of(stays, name)
    assert pool.available() == 1
    assert pool.acquire(2, blocking=False) is False
    assert pool.acquire(2, timeout=0.01) is False
    pool.release(2)
    assert pool.available() == 3
    with pytest.raises(ValueError, match=f"pool '{name}': 1 permits were released, 0 are taken"):
        pool.release()


def test_a_caller_waits_until_another_client_releases(
    connect: Connect, pool: ThreadPoolExecutor, name: str
) -> None:
    one, two = pool_of(connect(), name), pool_of(connect(), name)
    assert one.drain() == 3
    assert (one.drain(), two.available()) == (0, 0)
    waits = pool.submit(two.acquire, timeout=PATIENCE_S)
    until(lambda: one.status().waiters)
    one.release()
    assert waits.result(PATIENCE_S) is True
    assert one.resize(5) == one.available() == 2
    assert (one.permits, two.permits) == (5, 3)
    with pytest.raises(fencelock.InvalidRequestError, match=f"pool '{name}' has 5 permits; this"):
        two.acquire()
    with one:
        assert one.available() == 1
    two.release(3)
    assert one.drain() == 5
    with pytest.raises(fencelock.LockTimeoutError, match="0 of 5 permits are free"):
        connect().semaphore(name, 5, timeout=0, session_aware=False).__enter__()
    one.release(5)
    assert pool_of(connect(), name, 1).acquire()


def test_it_is_another_object_than_the_semaphore_of_that_name(connect: Connect, name: str) -> None:
    client = connect()
    pool = pool_of(client, name, 2)
    with client.semaphore(name, 3):
        assert pool.acquire()
        (listed,) = client.objects(f"{POOL}\x1f{name}")
        assert listed == (object_name(POOL, name), 0, 1, 2)
    pool.release()
    assert client.objects(f"{POOL}\x1f{name}") == ()
    assert repr(pool) == f"<Pool '{name}' of 2>"


# Arguments


WHOLE = "must be an int from 1 to 2147483647"
TEXT: Any = "3"
WRONG: list[tuple[Callable[[Any, str], object], type[Exception], str]] = [
    (lambda c, n: c.semaphore(n, 0), ValueError, "permits is 0, and must be an int"),
    (lambda c, n: c.semaphore(n, -1), ValueError, "permits is -1, and must be an int"),
    (lambda c, n: c.semaphore(n, 1 << 31), ValueError, WHOLE),
    (lambda c, n: c.semaphore(n, TEXT), TypeError, f"permits is '3', and {WHOLE}"),
    (lambda c, n: c.semaphore(n, 3).acquire(0), ValueError, "^n is 0, and .* 1 to 3$"),
    (lambda c, n: c.semaphore(n, 3).acquire(4), ValueError, "^n is 4, and must be an"),
    (lambda c, n: c.semaphore(n, 3).acquire(-1), ValueError, "^n is -1, and must be an"),
    *(
        (
            lambda c, n, one=one: c.semaphore(n, 3).acquire(one),
            TypeError,
            f"^n is {one!r}, and must be an int from 1 to 3$",
        )
        for one in ("1", None, 1.5, True)
    ),
    *(
        (
            lambda c, n, one=one: c.semaphore(n, 3).release(one),
            TypeError,
            f"^n is {one!r}, and must be an int of at least 1$",
        )
        for one in ("1", None, 1.5, True)
    ),
    (lambda c, n: c.semaphore(n, 3).resize(0), ValueError, "permits is 0, and must be an int"),
    (lambda c, n: c.semaphore(n, 3).resize(TEXT), TypeError, f"permits is '3', and {WHOLE}"),
    (lambda c, n: c.locks(None), TypeError, "^prefix is None, and must be str$"),
    (lambda c, n: c.lock_all(), ValueError, "no lock was named"),
    (lambda c, n: c.lock_all("a", "a"), ValueError, "named twice"),
    (lambda c, n: c.lock_all("a", ""), ValueError, "1 to 256 are allowed"),
    (lambda c, n: c.lock_all("a", "\x1f"), ValueError, "has U.001F"),
    (
        lambda c, n: c.lock_all(*map(str, range(CLAIM_LOCKS_MAX + 1))),
        ValueError,
        "1 to 64 are allowed",
    ),
    (lambda c, n: c.lock_all("a", b"b"), TypeError, "must be str"),
    (lambda c, n: c.latch(n, 0), ValueError, "count is 0, and must be"),
    (lambda c, n: c.latch(n, 1 << 31), ValueError, WHOLE),
    (lambda c, n: c.latch("", 1), ValueError, "allowed|bytes"),
    (lambda c, n: c.latch(n, 1, keep_s=-1), ValueError, "keep_s is -1, and must be"),
    (lambda c, n: c.latch(n, 1).count_down(0), ValueError, "n is 0, and must be"),
    (lambda c, n: c.latch(n, 1).wait(-5), ValueError, "timeout is -5, and must"),
    (lambda c, n: c.latch(n, TEXT), TypeError, f"count is '3', and {WHOLE}"),
    (
        lambda c, n: c.latch(n, 1, keep_s=TEXT),
        TypeError,
        "keep_s is '3', and must be a number of seconds",
    ),
    (lambda c, n: c.latch(n, 1).count_down(TEXT), TypeError, f"n is '3', and {WHOLE}"),
    (lambda c, n: c.barrier(n, 0), ValueError, "parties is 0, and must be"),
    (lambda c, n: c.barrier("", 2), ValueError, "allowed|bytes"),
    (lambda c, n: c.barrier(n, 2, timeout=-2), ValueError, "timeout is -2, and must"),
    (lambda c, n: c.barrier(n, 2).wait(-2), ValueError, "timeout is -2, and must"),
    (
        lambda c, n: c.barrier(n, TEXT),
        TypeError,
        "parties is '3', and must be an int from 1 to 10000",
    ),
    (lambda c, n: c.counter(n).add(VALUE_MAX + 1), ValueError, "n is .*, and must be"),
    (lambda c, n: c.counter(n).set(-VALUE_MAX - 1), ValueError, "value is .*, and must be"),
    (
        lambda c, n: c.counter(n).compare_and_set(VALUE_MAX + 1, 0),
        ValueError,
        "expected is .*, and must be",
    ),
    (lambda c, n: c.counter(""), ValueError, "allowed"),
    (lambda c, n: c.counter("x" * 257), ValueError, "allowed"),
    (
        lambda c, n: c.counter(n).add(TEXT),
        TypeError,
        f"n is '3', and must be an int from -{VALUE_MAX}",
    ),
    (lambda c, n: c.counter(n).set(TEXT), TypeError, "value is '3', and must be an int"),
    (
        lambda c, n: c.counter(n).compare_and_set(TEXT, 1),
        TypeError,
        "expected is '3', and must be an int",
    ),
    (
        lambda c, n: c.counter(n).add(fence=TEXT),
        TypeError,
        "fence is '3', and must be a lock or a hold",
    ),
    (lambda c, n: pool_of(c, n, 0), ValueError, "permits is 0, and must be"),
    (lambda c, n: pool_of(c, "", 1), ValueError, "allowed|bytes"),
    (lambda c, n: pool_of(c, n).acquire(4), ValueError, "n is 4, and must be"),
    (lambda c, n: pool_of(c, n).acquire(0), ValueError, "n is 0, and must be"),
    (lambda c, n: pool_of(c, n).acquire(blocking=False, timeout=1), ValueError, "non-blocking"),
    (lambda c, n: pool_of(c, n).acquire(timeout=-5), ValueError, "timeout is -5, and must be"),
    (lambda c, n: pool_of(c, n).release(0), ValueError, "n is 0, and must be"),
    (lambda c, n: pool_of(c, n).resize(0), ValueError, "permits is 0, and must be"),
    (
        lambda c, n: pool_of(c, n).acquire(TEXT),
        TypeError,
        "n is '3', and must be an int from 1 to 3",
    ),
    (lambda c, n: pool_of(c, n, TEXT), TypeError, "permits is '3', and must be"),
    (lambda c, n: c.election(n).lead("x" * 1_025), InvalidRequestError, "value of 1025 bytes"),
    (lambda c, n: c.election(n).lead("a\nb"), InvalidRequestError, r"U\+000A"),
    (lambda c, n: c.election(n).lead(b"bytes"), TypeError, "must be str"),
    (lambda c, n: c.map(n).put("k", "text"), TypeError, "value is str, and must be bytes: encode"),
    (lambda c, n: c.map(n).put("k", bytearray(1)), TypeError, "is bytearray, and must be bytes$"),
    (lambda c, n: c.map(n).put(5, b""), TypeError, "key is 5, and must be str"),
    (lambda c, n: c.map(n).get(5), TypeError, "key is 5, and must be str"),
    (lambda c, n: c.map(n).delete(5), TypeError, "key is 5, and must be str"),
    (lambda c, n: c.map(n).get(""), InvalidRequestError, "key is empty"),
    (lambda c, n: c.map(n).put("ä" * 129, b""), InvalidRequestError, "258 bytes"),
    (
        lambda c, n: c.map(n).put("k", bytes(ENTRY_VALUE_BYTES_MAX + 1)),
        InvalidRequestError,
        "65537 bytes",
    ),
    (lambda c, n: c.map(n).put("k", b"", ttl=0), ValueError, "above 0"),
    (lambda c, n: c.map(n).put("k", b"", ttl=4e7), InvalidRequestError, "at most 31622400"),
    (
        lambda c, n: c.map(n).put("k", b"", ttl="x"),
        TypeError,
        "ttl is 'x', and must be a number of seconds above 0 and at most 31622400, or None for no",
    ),
    (
        lambda c, n: c.map(n).put("k", b"", ephemeral=1),
        TypeError,
        "ephemeral is 1, and must be True or False",
    ),
    (lambda c, n: c.map(n).replace("k", b"", version=0), ValueError, "put_if_absent"),
    (
        lambda c, n: c.map(n).replace("k", b"", version=None),
        TypeError,
        "version is None, and must be an int of at least 1; use put for any version",
    ),
    (
        lambda c, n: c.map(n).delete("k", version="1"),
        TypeError,
        "version is '1', and must be an int of at least 1; leave it out",
    ),
    (lambda c, n: c.map(n).put("k", b"", fence=3), TypeError, "a lock or a hold"),
    (lambda c, n: c.map(n).items(limit=-1), ValueError, "limit is -1"),
    (
        lambda c, n: c.map(n).items(limit=1.5),
        TypeError,
        "limit is 1.5, and must be an int of at least 0, or None for no limit",
    ),
    (lambda c, n: c.map(n).items(b"k"), TypeError, "prefix is b'k', and must be str"),
    (lambda c, n: c.map(n).items(after=1), TypeError, "after is 1, and must be str"),
    (lambda c, n: c.map(n).watch(after="k"), TypeError, "after is 'k', and must be an int"),
    (lambda c, n: c.map(n).get("k", read="local", max_age=-1), ValueError, "max_age"),
    (lambda c, n: c.lock(""), InvalidRequestError, "allowed|bytes"),
    (lambda c, n: c.lock(b"abc"), TypeError, "must be str"),
    (lambda c, n: c.lock(7), TypeError, "must be str"),
    (lambda c, n: c.lock(n, owner=""), InvalidRequestError, "owner is empty"),
    (lambda c, n: c.lock(n, owner="o" * 300), InvalidRequestError, "300 bytes"),
    (lambda c, n: c.lock(n, owner="*"), InvalidRequestError, "owner is"),
    (lambda c, n: c.lock(n, timeout=-2), ValueError, "timeout is -2"),
    *(
        (lambda c, n, one=one: c.lock(n, duration=one), InvalidRequestError, "duration is")
        for one in (0, -1, 604_801, float("nan"))
    ),
    (lambda c, n: c.lock(n, duration=True), TypeError, "^duration is True, and must be "),
    (lambda c, n: c.lock(n, confirm_release=0), TypeError, "confirm_release"),
    *(
        (lambda c, n, one=one: c.lock(n, retain=one), InvalidRequestError, "retain is")
        for one in (-1, 3_601, float("nan"))
    ),
    (lambda c, n: c.lock(n, retain=1, cohort=-1), InvalidRequestError, "cohort is -1"),
    (
        lambda c, n: c.lock(n, retain=1, cohort=1.5),
        TypeError,
        "^cohort is 1.5, and must be an int from 0 to 1000$",
    ),
    (lambda c, n: c.lock(n, retain=1, duration=5), InvalidRequestError, "no duration"),
    *(
        (
            lambda c, n, one=one: c.rlock(n, limit=one),
            TypeError,
            f"^limit is {one!r}, and must be an int of at least 1",
        )
        for one in ("x", True)
    ),
    (lambda c, n: c.status(True), TypeError, "^lock name is True, and must be str"),
]


def test_wrong_arguments_are_refused_with_a_reason(client: fencelock.Client, name: str) -> None:
    for call, error, text in WRONG:
        with pytest.raises(error, match=text):
            call(client, name)
    assert client.counter(name).get() == 0
    assert client.locks(name) == ()
    assert client.map(name).items() == []


class Raw(bytes):
    """Bytes of a subclass."""


NAMED: dict[str, Callable[[Any, Any], object]] = {
    "lock": lambda c, n: c.lock(n, owner=n, label=n).acquire(timeout=PATIENCE_S).release(),
    "rlock": lambda c, n: c.rlock(n).acquire(timeout=PATIENCE_S).release(),
    "read": lambda c, n: c.rwlock(n).read().acquire(timeout=PATIENCE_S).release(),
    "write": lambda c, n: c.rwlock(n).write().acquire(timeout=PATIENCE_S).release(),
    "lock_all": lambda c, n: c.lock_all(n, "b", label=n).acquire(timeout=PATIENCE_S).release(),
    "semaphore": lambda c, n: c.semaphore(n, 2, label=n).acquire(timeout=PATIENCE_S).release(),
    "pool": lambda c, n: c.semaphore(n, 2, label=n, session_aware=False).available(),
    "election": lambda c, n: c.election(n).lead(n).acquire(timeout=PATIENCE_S).release(),
    "watch": lambda c, n: c.election(n).watch().get(timeout=PATIENCE_S),
    "latch": lambda c, n: c.latch(n, 1).count_down(),
    "barrier": lambda c, n: c.barrier(n, 1).wait(timeout=PATIENCE_S),
    "counter": lambda c, n: c.counter(n).add(),
    "map": lambda c, n: (
        c.map(n).put(n, Raw(b"v")),
        c.map(n).get(n),
        c.map(n).items(n),
        c.map(n).watch(n).get(timeout=PATIENCE_S),
        c.map(n).delete(n),
    ),
    "status": lambda c, n: (c.status(n), c.locks(n), c.objects(n)),
}
"""A use of each object, by a name that is given."""


@pytest.mark.parametrize("use", NAMED)
def test_a_text_of_a_subclass_names_what_its_characters_do(
    client: fencelock.Client, name: str, use: str
) -> None:
    class Text(str):
        __slots__ = ()

    class Member(str, Enum):  # noqa: UP042  # Formatted as Member.NAME.
        NAME = name

    for given in (name, Text(name), Member.NAME):
        NAMED[use](client, given)
    made = client.lock(Member.NAME), client.counter(Member.NAME), client.rwlock(Text(name))
    assert [(type(one.name), one.name) for one in made] == [(str, name)] * 3


# Tasks that are cancelled


WAITS: dict[str, Callable[[Any, str], Any]] = {
    "semaphore": lambda client, name: client.semaphore(name, 3).acquire(3),
    "rwlock": lambda client, name: client.rwlock(name).write().acquire(),
    "lock_all": lambda client, name: client.lock_all(name, f"{name}-b").acquire(),
    "election": lambda client, name: client.election(name).lead("me").acquire(),
    "latch": lambda client, name: client.latch(name, 2).wait(),
    "barrier": lambda client, name: client.barrier(name, 3).wait(),
    "pool": lambda client, name: client.semaphore(name, 3, session_aware=False).acquire(3),
}
HELD: dict[str, Callable[[Any, str], Any]] = {
    "semaphore": lambda client, name: client.semaphore(name, 3).acquire(),
    "rwlock": lambda client, name: client.rwlock(name).read().acquire(),
    "lock_all": lambda client, name: client.lock(f"{name}-b").acquire(),
    "election": lambda client, name: client.election(name).lead("you").acquire(),
    "pool": lambda client, name: client.semaphore(name, 3, session_aware=False).acquire(),
}
"""What keeps a wait of `WAITS` waiting, if its object is free for it."""


@pytest.mark.parametrize("kind", WAITS)
async def test_a_cancelled_tasks_wait_ends(paxos_addresses: str, name: str, kind: str) -> None:
    lock = name if kind == "lock_all" else object_name(kind, name)
    async with (
        fencelock.aio.connect(paxos_addresses, cluster=FACES) as client,
        fencelock.aio.connect(paxos_addresses, cluster=FACES) as other,
    ):
        _kept = await HELD[kind](client, name) if kind in HELD else None
        waits = [asyncio.create_task(WAITS[kind](one, name)) for one in (client, other)]
        while len((await client.status(lock)).waiters) < 2:
            pass
        waits[0].cancel()
        while len((await client.status(lock)).waiters) == 2:
            pass
        if kind == "barrier":  # The others of its generation cannot go on.
            with pytest.raises(fencelock.BrokenBarrierError):
                await waits[1]
        waits[1].cancel()
        while (await client.status(lock)).waiters:
            pass


# Calls of a client that is closed meanwhile

UNKNOWN = "; it is unknown whether the request took effect$"
CLOSED: dict[str, tuple[Callable[[Any, str], object], type[Exception], str]] = {
    "acquire": (lambda c, n: c.lock(n).acquire(), fencelock.AcquireCancelledError, "closed$"),
    "permits": (
        lambda c, n: c.semaphore(n, 2).acquire(),
        fencelock.AcquireCancelledError,
        "closed$",
    ),
    "add": (lambda c, n: c.counter(n).add(), fencelock.ClosedError, UNKNOWN),
    "put": (lambda c, n: c.map(n).put("key", b"value"), fencelock.ClosedError, UNKNOWN),
    "count_down": (lambda c, n: c.latch(n, 2).count_down(), fencelock.ClosedError, UNKNOWN),
    "take": (
        lambda c, n: c.semaphore(n, 2, session_aware=False).acquire(),
        fencelock.ClosedError,
        UNKNOWN,
    ),
    "wait": (lambda c, n: c.latch(n, 2).wait(), fencelock.ClosedError, "closed$"),
    "get": (lambda c, n: c.counter(n).get(), fencelock.ClosedError, "closed$"),
    "locked": (lambda c, n: c.lock(n).locked(), fencelock.ClosedError, "closed$"),
    "leader": (lambda c, n: c.election(n).leader(), fencelock.ClosedError, "closed$"),
    "describe": (lambda c, n: c.describe(), fencelock.ClosedError, "closed"),
}
"""Calls, the error of each, and the end of its text."""


@threads_only
def test_an_acquire_is_cancelled_and_another_call_finds_its_client_closed(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    client.counter(name).add()  # So it has a session.
    waits, get = threading.Semaphore(0), AskReply.get

    def counted(reply: AskReply, *, timeout: float | None = None) -> Any:
        if threading.current_thread().name.startswith("caller"):
            waits.release()
        return get(reply, timeout=timeout)

    monkeypatch.setattr(AskReply, "get", counted)
    with ThreadPoolExecutor(len(CLOSED), "caller") as threads, partition(client):
        calls = {kind: threads.submit(call[0], client, name) for kind, call in CLOSED.items()}
        assert all(waits.acquire(timeout=PATIENCE_S) for _ in calls)
        client.close()
        for kind, (_, error, text) in CLOSED.items():
            with pytest.raises(error, match=text):
                calls[kind].result(PATIENCE_S)


# Callers inside a node


ASKED: dict[str, tuple[type[Any], dict[str, Any], str, int]] = {
    SEMAPHORE: (AcquirePermits, {"permits": 3, "amount": 2}, SEMAPHORE, 2),
    RWLOCK: (AcquireReadWrite, {"write": True}, RWLOCK, 1),
    ELECTION: (Lead, {"value": "me"}, ELECTION, 1),
    SEVERAL: (AcquireAll, {}, "", 2),
}
"""Requests that hold an object, the kind under which it is listed, and how much is granted."""


@pytest.mark.parametrize("kind", ASKED)
def test_an_ask_holds_an_object_until_its_release_or_its_cancel(
    paxos_nodes: list[Node], name: str, kind: str
) -> None:
    node, (request, fields, listed, count) = paxos_nodes[0], ASKED[kind]
    named: dict[str, Any] = {"locks": (name, f"{name}-b")} if kind == SEVERAL else {kind: name}
    about = named | fields
    seen = Inspect(lock=object_name(listed, name) if listed else name)
    one = checked(Granted, ask(node, request(**about)))
    assert (one.lock, one.count) == (object_name(kind, name), count)
    assert ask(node, seen).holder.fence == one.fence
    assert checked(Released, ask(node, Release(lock=one.lock, fence=one.fence))).count == 0
    assert ask(node, seen).holder is None
    assert ask(node, request(**about, owner="me", request=7)).fence > one.fence
    ask(node, Cancel(lock=one.lock, session="", owner="me", request=7))
    until(lambda: ask(node, seen).holder is None)


def test_an_ask_gives_a_part_back(paxos_nodes: list[Node], name: str) -> None:
    node = paxos_nodes[0]
    one = ask(node, AcquirePermits(semaphore=name, permits=3, amount=2))
    two = ask(node, AcquirePermits(semaphore=name, permits=3))
    with pytest.raises(fencelock.InvalidRequestError, match="3 permits were released, 2 are held"):
        ask(node, ReleasePermits(semaphore=name, fence=one.fence, amount=3))
    left = checked(Released, ask(node, ReleasePermits(semaphore=name, fence=one.fence, amount=1)))
    assert left.count == 1
    assert amounts(ask(node, Inspect(lock=one.lock))) == ([1, 1], [])
    assert ask(node, ReleasePermits(semaphore=name, fence=one.fence)).count == 0
    assert ask(node, Release(lock=two.lock, fence=two.fence)).count == 0


def test_an_ask_downgrades(paxos_nodes: list[Node], name: str) -> None:
    node = paxos_nodes[0]
    one = ask(node, AcquireReadWrite(rwlock=name, write=True))
    assert checked(Released, ask(node, Downgrade(rwlock=name, fence=one.fence))).count == 1
    two = ask(node, AcquireReadWrite(rwlock=name))
    assert two.fence > one.fence
    assert amounts(ask(node, Inspect(lock=one.lock))) == ([1, 1], [])
    for fence in (one.fence, two.fence):
        assert ask(node, Release(lock=one.lock, fence=fence)).count == 0


def test_a_read_write_lock_of_paxos_has_no_duration(
    connect: Connect, paxos_nodes: list[Node], name: str
) -> None:
    client, refused = connect(), r"no duration and no grace; bakery has"
    with pytest.raises(fencelock.UnsupportedError, match=refused):
        client.rwlock(name, duration=30)
    with pytest.raises(fencelock.UnsupportedError, match=refused):
        ask(paxos_nodes[0], AcquireReadWrite(rwlock=name, hold_ms=30_000))
    assert client.rwlock(name).status().holder is None


def test_callers_inside_nodes_and_clients_use_the_same_objects(
    connect: Connect, paxos_nodes: list[Node], pool: ThreadPoolExecutor, name: str
) -> None:
    client, (here, there, _) = connect(), paxos_nodes
    assert checked(CountedDown, ask(here, CountDown(latch=name, count=2))).left == 1
    assert client.latch(name, 2).count_down() == 0
    assert isinstance(ask(there, AwaitLatch(latch=name, count=2)), LatchPassed)
    waits = pool.submit(client.barrier(name, 2).wait, PATIENCE_S)
    until(lambda: ask(here, Inspect(lock=object_name(BARRIER, name))).waiters)
    passed = checked(BarrierPassed, ask(here, AwaitBarrier(barrier=name, parties=2)))
    assert (passed.index, waits.result(PATIENCE_S)) == (1, 0)
    changed = checked(CounterChanged, ask(here, AddToCounter(counter=name, amount=2)))
    assert (changed.before, changed.after) == (0, 2)
    assert client.counter(name).add() == 3
    checked(PermitsTaken, ask(here, TakePermits(pool=name, size=3, amount=2)))
    assert pool_of(client, name).available() == 1
    given = checked(PermitsGiven, ask(there, GivePermits(pool=name, amount=2)))
    assert (given.changed, given.taken) == (True, 0)
