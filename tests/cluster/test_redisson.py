"""Clients that lock as Redisson does, at doors of real nodes: they exclude each other and native
clients, count, are notified when their turn comes, and lose nothing when a door dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha1

import pytest
from support.real_nodes import until
from support.redis_door import RawClient, door_node, port_of
from support.redisson import SCRIPTS, Redisson, RLock, channel_of, latch_of

import fencelock
from fencelock.actors.redis.shapes import KNOWN
from fencelock.cluster.node.node import Node

FAR_S = 20.0


def test_the_texts_are_those_of_releases() -> None:
    digests = {sha1(text.encode(), usedforsecurity=False).hexdigest() for text in SCRIPTS.values()}
    assert len(digests) == len(SCRIPTS)
    assert digests <= set(KNOWN)


@pytest.fixture(scope="module", name="node")
def started() -> Generator[Node]:
    with door_node() as node:
        yield node


@pytest.fixture(name="clients")
def connected(node: Node) -> Generator[tuple[Redisson, Redisson]]:
    with closing(Redisson(port_of(node))) as a, closing(Redisson(port_of(node), version=3)) as b:
        yield a, b


@pytest.mark.parametrize("old", [False, True])
def test_threads_of_two_clients_hold_a_lock_one_at_a_time_and_count(
    clients: tuple[Redisson, Redisson], *, old: bool
) -> None:
    inside, entered = [0], [0]
    name = f"counted/{old}"

    def work(client: Redisson, thread: int) -> None:
        with closing(RLock(client, name, thread, old=old)) as lock:
            for _ in range(15):
                assert lock.lock(FAR_S)
                inside[0] += 1
                assert inside[0] == 1
                assert lock.lock(FAR_S)
                assert lock.ask("HGET", name, lock.field).endswith(b"2")
                assert lock.unlock() == b":0"
                entered[0] += 1
                inside[0] -= 1
                assert lock.unlock() == b":1"

    began = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        works = [pool.submit(work, client, thread) for client in clients for thread in (1, 2, 3)]
        for one in works:
            one.result()
    assert entered == [90]
    assert time.monotonic() - began < 15.0  # No client waits for a deadline.
    with closing(RLock(clients[0], name, 1)) as lock:
        assert lock.lock(FAR_S)  # What was reserved is taken, or has been given back.


def test_redisson_and_clients_share_a_queue(node: Node, clients: tuple[Redisson, Redisson]) -> None:
    """A native hold has no deadline, so only the message wakes who waits."""
    (first, _), order = clients, list[str]()
    with fencelock.connect(node.address) as native, closing(RLock(first, "mixed", 1)) as lock:

        def redisson() -> None:
            assert lock.lock(FAR_S)
            order.append("redisson")
            assert lock.unlock() == b":1"

        def other() -> None:
            with native.lock("mixed"):
                order.append("native")

        def waiting(count: int) -> None:
            until(lambda: len(native.status("mixed").waiters) == count)

        with native.lock("mixed"):
            assert lock.try_acquire() == -1
            threads = [threading.Thread(target=one) for one in (redisson, other)]
            for count, thread in enumerate(threads, 1):
                thread.start()
                waiting(count)
        for thread in threads:
            thread.join(FAR_S)
    assert order == ["redisson", "native"]


def test_a_newcomer_does_not_overtake_whose_turn_it_is(clients: tuple[Redisson, Redisson]) -> None:
    first, second = clients
    with closing(RLock(first, "fair", 1)) as holder, closing(RLock(second, "fair", 1)) as waiter:
        for _ in range(5):
            until(lambda: holder.try_acquire() is None)  # A turn is perhaps given back just now.
            assert waiter.try_acquire() is not None
            with second.waiting("fair") as latch:
                assert holder.unlock() == b":1"
                assert holder.try_acquire() is not None
                assert latch.acquire(timeout=FAR_S)
                assert waiter.try_acquire() is None
            assert waiter.unlock() == b":1"


def test_a_lock_expired_or_forced_wakes_who_waits(clients: tuple[Redisson, Redisson]) -> None:
    first, second = clients
    with closing(RLock(first, "lost", 1)) as holder, closing(RLock(second, "lost", 1)) as waiter:
        assert holder.try_acquire(150) is None
        assert waiter.lock(FAR_S)
        assert holder.unlock() == b"$-1"
        woken = threading.Thread(target=lambda: holder.lock(FAR_S))
        woken.start()
        keys = ["lost", channel_of("lost")]
        assert waiter.eval("force 3.22", keys, 0, "PUBLISH") == b":1"
        woken.join(FAR_S)
        assert not woken.is_alive()
        assert holder.ask("HEXISTS", "lost", holder.field) == b":1"
        assert holder.unlock() == b":1"


def test_an_unlock_that_is_repeated_counts_once(clients: tuple[Redisson, Redisson]) -> None:
    with closing(RLock(clients[0], "once", 1)) as lock:
        for _ in range(3):
            assert lock.try_acquire() is None
        keys = ["once", channel_of("once"), latch_of("once", "8a3f")]
        for _ in range(3):
            reply = lock.eval("leave 3.24", keys, 0, 30_000, lock.field, "PUBLISH", 9_000)
            assert reply == b":0"
        assert lock.ask("HGET", "once", lock.field) == b"$1\r\n2"
        assert (lock.unlock(), lock.unlock(), lock.unlock()) == (b":0", b":1", b"$-1")


def test_the_token_of_a_fenced_lock_is_the_fence(clients: tuple[Redisson, Redisson]) -> None:
    with closing(RLock(clients[0], "token", 1)) as lock:
        keys = ["token", "redisson_lock_token:{token}"]
        fences: list[bytes] = []
        for _ in range(2):
            reply = lock.eval("enter token 3.19", keys, 9_000, lock.field).split(b"\r\n")
            assert reply[:2] == [b"*2", b":-1"]
            fences.append(reply[2][1:])
            assert lock.ask("GET", keys[1]).endswith(b"\r\n" + fences[-1])
            assert lock.ask("LOCK.FENCE", "token") == b":" + fences[-1]
            assert lock.unlock() == b":1"
        assert int(fences[0]) < int(fences[1])
        assert lock.ask("GET", keys[1]) == b"$-1"


def test_a_subscriber_that_does_not_read_is_closed_and_stops_no_other(node: Node) -> None:
    """Its places end with its connection."""
    with RawClient(port_of(node)) as silent, RawClient(port_of(node)) as other:
        channels = [channel_of(f"silent/{number}").encode() for number in range(16)]
        silent.send(b"SUBSCRIBE " + b" ".join(channels) + b"\r\n")
        until(lambda: other.ask(b"KEYS", b"silent/*").startswith(b"*16\r\n"))
        for number in range(16):
            other.ask(b"DEL", b"silent/%d" % number)
        assert other.ask(b"PING") == b"+PONG\r\n"
    with RawClient(port_of(node)) as other:
        until(lambda: other.ask(b"KEYS", b"silent/*") == b"*0\r\n")
