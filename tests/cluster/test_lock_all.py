"""Several locks at once as users meet them: threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.expect import PATIENCE_S, checked, present
from support.faces import FACES, Connect
from support.real_nodes import ask, until

import fencelock
import fencelock.aio
from fencelock.actors.api.lock_all import LOCKS_MAX, AcquireAll
from fencelock.actors.api.message import Cancel, Granted, Inspect, Release
from fencelock.cluster.node.node import Node

ROUNDS = 20

_numbers = itertools.count(1)


@pytest.fixture
def names() -> tuple[str, str, str]:
    number = next(_numbers)
    return f"a-{number}", f"b-{number}", f"c-{number}"


def until_awaited(client: fencelock.Client, name: str) -> None:
    until(lambda: client.status(name).waiters)


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


def test_it_waits_for_all_and_holds_nothing_meanwhile(
    connect: Connect, names: tuple[str, str, str]
) -> None:
    one, two = connect(), connect()
    held = two.lock(names[1]).acquire()
    assert held
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(one.lock_all(*names).acquire, timeout=PATIENCE_S)
        until_awaited(two, names[0])
        assert two.status(names[0]).holder is None
        assert two.lock(names[0]).acquire(timeout=0.01) is None  # It does not overtake.
        held.release()
        holds = waits.result(PATIENCE_S)
    assert holds
    assert min(holds.fences.values()) > held.fence
    with pytest.raises(fencelock.LockTimeoutError, match=f"lock '{names[0]}': held by"):
        two.lock_all(*names, timeout=0.01).__enter__()
    holds.release()


def test_threads_that_name_them_in_any_order_all_get_them(
    connect: Connect, names: tuple[str, str, str]
) -> None:
    inside, most, clients = list[str](), list[int](), [connect() for _ in range(3)]
    guard = threading.Lock()

    def use(client: fencelock.Client, order: tuple[str, ...]) -> int:
        for _ in range(ROUNDS):
            with client.lock_all(*order[:2]):
                with guard:
                    assert not set(order[:2]) & set(inside)
                    inside.extend(order[:2])
                    most.append(len(inside))
                with guard:
                    for name in order[:2]:
                        inside.remove(name)
        return ROUNDS

    orders = itertools.permutations(names)
    with ThreadPoolExecutor(6) as threads:
        done = threads.map(use, itertools.cycle(clients), orders, timeout=PATIENCE_S)
        assert sum(done) == 6 * ROUNDS
    assert len(most) == 6 * ROUNDS


def test_an_operator_who_takes_one_takes_all(connect: Connect, names: tuple[str, str, str]) -> None:
    one, two = connect(), connect()
    holds = one.lock_all(*names).acquire()
    assert holds
    two.evict(names[1], holds.fences[names[1]], "root")
    until(lambda: holds.lost)
    assert (_held := two.lock_all(*names).acquire(blocking=False))
    with pytest.raises(fencelock.LockOwnershipLostError, match="root"):
        holds.release()


def test_names_out_of_their_limits_are_refused(connect: Connect) -> None:
    client = connect()
    for wrong in ((), ("a", "a"), ("a", ""), ("a", "\x1f"), tuple(map(str, range(LOCKS_MAX + 1)))):
        with pytest.raises(fencelock.InvalidRequestError):
            client.lock_all(*wrong)
    with pytest.raises(TypeError):
        client.lock_all("a", b"b")  # type: ignore[arg-type]


async def test_tasks_hold_several_locks(paxos_addresses: str, names: tuple[str, str, str]) -> None:
    async with fencelock.aio.connect(paxos_addresses, cluster=FACES) as client:
        async with client.lock_all(*names) as holds:
            assert holds.fences[names[0]] == holds.fence
            waits = asyncio.create_task(client.lock_all(*names).acquire())
            while not (await client.status(names[2])).waiters:
                pass
            waits.cancel()
            assert await client.lock(names[0]).acquire(blocking=False) is None
        again = present(await client.lock_all(*names).acquire(timeout=PATIENCE_S))
        await again.release()


def test_an_ask_holds_several_locks(paxos_nodes: list[Node], names: tuple[str, str, str]) -> None:
    node = paxos_nodes[0]
    granted = checked(Granted, ask(node, AcquireAll(locks=names)))
    assert granted.count == 3
    assert ask(node, Inspect(lock=names[2])).holder.fence == granted.fence + 2
    assert ask(node, Release(lock=granted.lock, fence=granted.fence)).count == 0
    named = ask(node, AcquireAll(locks=names, owner="me", request=7))
    ask(node, Cancel(lock=named.lock, session="", owner="me", request=7))
    until(lambda: ask(node, Inspect(lock=names[0])).holder is None)
