"""The rules of fenced locks as users meet them: threads, tasks and asks, on a `paxos` cluster."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.collected import Collected
from support.expect import PATIENCE_S, present
from support.faces import FACES, Cables, Face
from support.programs import Child
from support.real_nodes import Cluster, started, until
from support.samples import fence_of

import fencelock
from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.error import (
    ClosedError,
    InvalidRequestError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    StaleError,
    UnavailableError,
)
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.client.client import AsyncClient
from fencelock.cluster.node.node import Node

Deed = Callable[[Any], Any]


HOW: dict[str, Deed] = {
    "wait": lambda lock: lock.acquire(),
    "try": lambda lock: lock.acquire(blocking=False),
    "limit": lambda lock: lock.acquire(timeout=PATIENCE_S),
}
how = pytest.mark.parametrize("acquire", HOW.values(), ids=HOW.keys())


def release(lock: Any) -> Any:
    return lock.release()


def status(lock: Any) -> Any:
    return lock.status()


def seen(user: Callable[[Deed], Any]) -> tuple[int | None, int, int]:
    """The holder's fence and how often it holds, and how many wait."""
    now: LockStatus = user(status)
    holder = now.holder
    if holder is None:
        return None, 0, len(now.waiters)
    return holder.fence, holder.times, len(now.waiters)


def started_face(kind: str, nodes: list[Node]) -> Iterator[Face]:
    face = Face(kind, ",".join(node.address for node in nodes), nodes[0])
    yield face
    face.close()


@pytest.fixture(params=["threads", "tasks", "asks"])
def face(request: pytest.FixtureRequest, paxos_nodes: list[Node]) -> Iterator[Face]:
    yield from started_face(str(request.param), paxos_nodes)


@pytest.fixture(params=["threads", "tasks"])
def client_face(request: pytest.FixtureRequest, paxos_nodes: list[Node]) -> Iterator[Face]:
    yield from started_face(str(request.param), paxos_nodes)


@how
def test_a_free_lock_is_held_under_a_fence(face: Face, name: str, acquire: Deed) -> None:
    user = face.user(name)
    fence = user(acquire)
    assert fence > 0
    assert user(lambda lock: (lock.held, lock.fence)) == (True, fence)
    assert seen(user) == (fence, 1, 0)
    user(release)


@how
def test_a_holder_enters_again_under_the_same_fence_and_leaves_as_often(
    client_face: Face, name: str, acquire: Deed
) -> None:
    user, other = (client_face.user(name, rlock=True) for _ in range(2))
    (fence,) = {user(acquire) for _ in range(3)}
    for times in (3, 2, 1):
        assert user(lambda lock: (lock.held, lock.fence)) == (True, fence)
        assert seen(other) == (fence, times, 0)
        assert other(HOW["try"]) is None
        user(release)
    assert seen(other) == (None, 0, 0)


def test_a_lock_that_another_owner_holds_is_not_granted_at_once(face: Face, name: str) -> None:
    holder, other = face.user(name), face.user(name)
    fence = holder(HOW["wait"])
    assert other(HOW["try"]) is None
    assert other(lambda lock: (lock.held, lock.fence)) == (False, None)
    assert seen(holder) == (fence, 1, 0)
    holder(release)


@pytest.mark.parametrize("timeout", [0.1, 1.6])
def test_a_wait_that_runs_out_changes_nothing(face: Face, name: str, timeout: float) -> None:
    holder, other = face.user(name), face.user(name)
    fence = holder(HOW["wait"])
    began = time.monotonic()
    assert other(lambda lock: lock.acquire(timeout=timeout)) is None
    assert time.monotonic() - began >= timeout
    assert seen(holder) == (fence, 1, 0)
    holder(release)


def test_the_next_holder_has_a_greater_fence_and_the_last_has_none(face: Face, name: str) -> None:
    holder, other = face.user(name), face.slow_user(name)
    fence = holder(HOW["wait"])
    waiting = other(HOW["limit"])
    until(lambda: seen(holder) == (fence, 1, 1))
    holder(release)
    next_fence = waiting.result(PATIENCE_S)
    assert next_fence > fence
    assert holder(lambda lock: (lock.held, lock.fence)) == (False, None)
    assert seen(holder) == (next_fence, 1, 0)
    other(release).result(PATIENCE_S)


def test_the_first_waiter_is_served_first_and_waits_without_limit(face: Face, name: str) -> None:
    holder = face.user(name)
    holder(HOW["wait"])
    order: list[int] = []

    def note(number: int, done: Future[Any]) -> None:
        order.append(number)

    waiters = [face.slow_user(name) for _ in range(4)]
    waits: list[Future[Any]] = []
    for number, waiter in enumerate(waiters):
        waits.append(waiter(HOW["wait"]))
        until(lambda: seen(holder)[2] == len(waits))
        waits[-1].add_done_callback(partial(note, number))
    holder(release)
    fences: list[int] = []
    for waiter, wait in zip(waiters, waits, strict=True):
        fences.append(wait.result(PATIENCE_S))
        waiter(release).result(PATIENCE_S)
    assert order == [0, 1, 2, 3]
    assert fences == sorted(fences)


def test_a_release_frees_it_and_of_what_is_free_is_refused(face: Face, name: str) -> None:
    user = face.user(name)
    with pytest.raises(NotHeldError):
        user(release)
    user(HOW["wait"])
    user(release)
    assert user(lambda lock: (lock.held, lock.fence)) == (False, None)
    assert seen(user) == (None, 0, 0)
    with pytest.raises(NotHeldError):
        user(release)


def test_a_hold_of_another_owner_cannot_be_released(face: Face, name: str) -> None:
    holder, other = face.user(name), face.user(name)
    fence = holder(HOW["wait"])
    with pytest.raises(NotHeldError):
        other(release)
    assert seen(other) == (fence, 1, 0)
    holder(release)


def test_a_read_is_linearizable_unless_a_local_one_is_asked_for(
    client_face: Face, name: str
) -> None:
    user = client_face.user(name)
    fence = user(HOW["wait"])
    assert user(status).age_ms == 0

    def known() -> bool:
        local: LockStatus = user(lambda lock: lock.status(read="local", max_age=60))
        return local.holder is not None and local.holder.fence == fence

    until(known)
    user(release)


@pytest.mark.parametrize("limit", [1, 2])
def test_beyond_the_limit_is_refused_at_once(client_face: Face, name: str, limit: int) -> None:
    user = client_face.user(name, rlock=True, limit=limit)
    (fence,) = {user(HOW["wait"]) for _ in range(limit)}
    with pytest.raises(LimitReachedError):
        user(HOW["wait"])
    assert user(HOW["try"]) is None
    began = time.monotonic()
    with pytest.raises(LimitReachedError):  # Not None: who loops until it holds would spin.
        user(HOW["limit"])
    assert time.monotonic() - began < PATIENCE_S / 2
    assert seen(user) == (fence, limit, 0)
    for _ in range(limit):
        user(release)
    assert seen(user) == (None, 0, 0)


def test_a_client_that_closes_frees_its_locks_and_serves_no_more(
    client_face: Face, face: Face, name: str
) -> None:
    user, other = client_face.user(name), face.slow_user(name)
    fence = user(HOW["wait"])
    waiting = other(HOW["wait"])
    until(lambda: seen(user)[2] == 1)
    client_face.client.close()
    assert waiting.result(PATIENCE_S) > fence
    for use in (HOW["wait"], release, status):
        with pytest.raises(ClosedError, match="closed"):
            user(use)
    with pytest.raises(ClosedError, match="closed"):
        client_face.client.lock(name)
    other(release).result(PATIENCE_S)


def test_a_wait_through_with_that_runs_out_names_who_holds_it(client_face: Face, name: str) -> None:
    """The body never runs without the lock."""
    holder, other = client_face.user(name), client_face.user(name, timeout=0.1)
    fence = holder(HOW["wait"])
    with pytest.raises(LockTimeoutError, match=f"fence {fence}"):
        other(lambda lock: lock.__enter__())
    holder(release)


def test_people_see_who_holds_what_by_name_and_label(client_face: Face, name: str) -> None:
    user = client_face.user(name, label="nightly report")
    fence = user(HOW["wait"])
    client = client_face.client
    (line,) = client.locks(name)
    assert (line.lock, line.holder.fence, line.waiting) == (name, fence, 0)
    assert "nightly report" in line.holder.label
    assert client.locks(f"{name}-not") == ()
    user(release)


TTL_S = 1.5

Do = Callable[[Deed], Any]


@pytest.fixture(params=[("threads", TTL_S), ("tasks", TTL_S)], ids=["threads", "tasks"])
def far(request: pytest.FixtureRequest, paxos_nodes: list[Node], cables: Cables) -> Iterator[Face]:
    """Users behind cables. Their session lives for one TTL without a message."""
    kind, ttl = request.param
    face = Face(kind, cables.addresses, paxos_nodes[0], ttl)
    yield face
    cables.mend()
    face.close()


@pytest.fixture
def near(paxos_addresses: str) -> Iterator[fencelock.Client]:
    """A client without faults."""
    with fencelock.connect(paxos_addresses, cluster=FACES, connect_timeout=PATIENCE_S) as client:
        yield client


def acquire(lock: Any) -> Any:
    return lock.acquire(timeout=PATIENCE_S)


def state(lock: Any) -> HoldState:
    found: HoldState = lock.state
    return found


class LossLog(Collected[tuple[float, Notice]]):
    """The notices that callbacks got, and their times."""

    def note(self, notice: Notice) -> None:
        self.add((time.monotonic(), notice))

    def until(self, kind: HoldState) -> tuple[float, Notice]:
        """Return the first notice of that kind, once it is there."""
        return self.wait_for(
            lambda lines: next((one for one in lines if one[1].state is kind), None)
        )


def logged(user: Do) -> LossLog:
    log = LossLog()
    user(lambda lock: lock.on_suspect(log.note))
    user(lambda lock: lock.on_lost(log.note))
    return log


def test_a_client_that_is_cut_off_knows_of_the_loss_before_the_next_holds(
    far: Face, near: fencelock.Client, cables: Cables, name: str
) -> None:
    user = far.user(name, rlock=True)
    log = logged(user)
    fence = user(acquire)
    cables.cut()
    began = time.monotonic()
    next_hold = present(near.lock(name).acquire(timeout=PATIENCE_S))
    got = next_hold.fence
    assert not user(lambda lock: lock.held)  # By its own clock, whatever it received.
    assert got > fence
    suspected_at, suspicion = log.until(HoldState.SUSPECT)
    lost_at, loss = log.until(HoldState.LOST)
    assert began <= suspected_at < lost_at  # Jeopardy, then loss.
    assert {(n.lock, n.fence) for n in (suspicion, loss)} == {(name, fence)}
    assert user(lambda lock: (lock.held, lock.lost, lock.fence)) == (False, True, fence)
    with pytest.raises(LockOwnershipLostError):
        user(lambda lock: lock.raise_if_lost())
    with pytest.raises(LockOwnershipLostError):
        user(release)
    assert user(state) is HoldState.FREE
    with pytest.raises(NotHeldError):
        user(release)
    next_hold.release()
    cables.mend()
    again = user(acquire)  # The same object.
    assert again > got
    assert user(lambda lock: (lock.held, lock.lost)) == (True, False)
    user(release)


def test_an_owner_that_enters_again_after_the_loss_gets_an_error(
    far: Face, cables: Cables, name: str
) -> None:
    user = far.user(name, rlock=True)
    log = logged(user)
    user(acquire)
    cables.cut()
    log.until(HoldState.LOST)
    cables.mend()
    with pytest.raises(LockOwnershipLostError):
        user(acquire)
    user(acquire)
    user(release)


def test_a_new_session_of_the_same_client_does_not_hide_the_loss(
    far: Face, cables: Cables, name: str
) -> None:
    user, other = far.user(name), far.user(name)
    log = logged(user)
    fence = user(acquire)
    cables.cut()
    log.until(HoldState.LOST)
    cables.mend()
    assert other(acquire) > fence
    assert user(lambda lock: (lock.held, lock.lost)) == (False, True)
    with pytest.raises(LockOwnershipLostError):
        user(release)
    assert other(lambda lock: lock.held)
    other(release)


@pytest.mark.parametrize("far", [("threads", 5.0), ("tasks", 5.0)], indirect=True)
def test_a_short_cut_is_survived(far: Face, cables: Cables, name: str) -> None:
    user = far.user(name)
    log = logged(user)
    fence = user(acquire)
    cables.cut()
    log.until(HoldState.SUSPECT)
    cables.mend()
    until(lambda: user(state) is not HoldState.SUSPECT)
    assert user(state) is HoldState.HELD
    assert user(lambda lock: lock.fence) == fence
    user(release)


def test_a_client_that_only_waited_goes_on_waiting_in_the_next_session(
    far: Face, near: fencelock.Client, cables: Cables, name: str
) -> None:
    held = near.lock(name)
    fence = fence_of(held.acquire())
    holding = far.user(f"{name}-held")
    log = logged(holding)
    holding(acquire)
    waiter = far.slow_user(name)
    waiting = waiter(acquire)
    cables.cut()
    log.until(HoldState.LOST)
    cables.mend()
    until(lambda: any("~" in waiting.session for waiting in held.status().waiters))
    held.release()
    assert waiting.result(PATIENCE_S) > fence
    waiter(release).result(PATIENCE_S)


def test_an_eviction_is_reported_at_once_and_the_reason_names_the_operator(
    far: Face, near: fencelock.Client, name: str
) -> None:
    user = far.user(name)
    log = logged(user)
    fence = user(acquire)
    holder = near.evict(name, fence, "root@ops")
    assert holder.fence == fence
    _, loss = log.until(HoldState.LOST)
    assert "root@ops" in loss.detail
    with pytest.raises(NotHeldError):
        near.evict(name, fence)  # A repetition has no effect.
    for wrong in (0, -1, 1 << 63):
        with pytest.raises(InvalidRequestError, match="fence"):
            near.evict(name, wrong)
    next_hold = present(near.lock(name).acquire())
    got = next_hold.fence
    assert got > fence
    with pytest.raises(LockOwnershipLostError, match="root@ops"):
        user(release)
    assert near.status(name).holder is not None
    next_hold.release()


def test_a_stopped_process_that_wakes_up_knows_that_it_lost_the_lock(
    paxos_addresses: str, near: fencelock.Client, name: str
) -> None:
    """All it missed waits in its sockets, and must not make it believe it holds."""
    program = (
        "import sys, fencelock\n"
        f"client = fencelock.connect(sys.argv[1], cluster={FACES!r}, ttl=1.0)\n"
        "lock = client.lock(sys.argv[2])\n"
        "print(lock.acquire().fence, flush=True)\n"
        "sys.stdin.readline()\n"
        "print(lock.held, lock.state.name, flush=True)\n"
        "try:\n"
        "    lock.release()\n"
        "except fencelock.LockOwnershipLostError as error:\n"
        "    print(type(error).__name__, flush=True)\n"
        "client.close()\n"
    )
    with Child("-c", program, paxos_addresses, name) as child:
        fence = int(child.line())
        child.send_signal(signal.SIGSTOP)
        next_hold = present(near.lock(name).acquire(timeout=PATIENCE_S))
        got = next_hold.fence
        child.send("")
        child.send_signal(signal.SIGCONT)
        output = child.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert got > fence
    assert output == ["False LOST", "LockOwnershipLostError"]
    next_hold.release()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster("paxos", 3, tmp_path))


def leader(client: fencelock.Client) -> str:
    """The node that the others take for their leader, once they agree."""
    found: set[str] = set()

    def agree() -> bool:
        found.clear()
        found.update(status.leader for status in client.describe())
        return len(found) == 1 and "" not in found

    until(agree)
    return found.pop()


def test_a_request_that_goes_on_at_another_node_is_the_same_request(
    cluster: Cluster,
) -> None:
    holder, other, witness = (cluster.connect() for _ in range(3))
    held, waited = holder.lock("x"), other.lock("x")
    fence = fence_of(held.acquire())
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[fencelock.Hold | None] = pool.submit(waited.acquire)
        until(lambda: len(witness.status("x").waiters) == 1)
        for _ in range(2):
            gone = leader(witness)
            cluster.stop(gone)
            now = witness.status("x")
            assert now.holder is not None
            assert (now.holder.fence, len(now.waiters)) == (fence, 1)
            cluster.start(gone)
        assert held.held
        held.release()
        got = fence_of(waiting.result(PATIENCE_S))
    assert got > fence
    now = witness.status("x")
    assert now.holder is not None
    assert (now.holder.fence, now.holder.times, now.waiters) == (got, 1, ())


def test_holds_turn_suspect_and_lost_without_a_majority_and_nothing_is_granted(
    cluster: Cluster,
) -> None:
    client, other = cluster.connect(ttl=1.0), cluster.connect()
    states: list[HoldState] = []
    lost = threading.Event()
    lock = client.lock("x")
    lock.on_suspect(lambda notice: states.append(notice.state))
    lock.on_lost(lambda notice: states.append(notice.state))
    client.on_lost(lambda _: lost.set())
    fence = fence_of(lock.acquire())
    gone = list(cluster.running)[:2]
    cluster.stop(*gone)
    assert lost.wait(PATIENCE_S)
    assert states[-2:] == [HoldState.SUSPECT, HoldState.LOST]
    with pytest.raises(LockOwnershipLostError):
        lock.release()
    with pytest.raises(UnavailableError):  # Never a mere "somebody else has it".
        other.lock("x").acquire(timeout=0.2)
    with pytest.raises(StaleError):
        other.status("x", read="local", max_age=0.05)
    cluster.start(*gone)
    assert fence_of(other.lock("x").acquire(timeout=PATIENCE_S)) > fence


def test_a_rolling_restart_of_all_nodes_costs_no_hold(cluster: Cluster) -> None:
    client = cluster.connect()
    lost: list[fencelock.Notice] = []
    client.on_lost(lost.append)
    lock = client.lock("x")
    fence = fence_of(lock.acquire())
    for node in list(cluster.running):
        cluster.stop(node)
        with client.lock("y", timeout=PATIENCE_S):
            assert lock.held
        cluster.start(node)
        until(lambda: all(status.ready for status in client.describe()))
    now = lock.status()
    assert now.holder is not None
    assert now.holder.fence == fence
    lock.release()
    assert lost == []


@pytest.mark.parametrize("client", [fencelock.Client, AsyncClient])
def test_help_shows_what_a_call_returns(client: Any) -> None:
    assert inspect.signature(client.status).return_annotation == "LockStatus"
    assert inspect.iscoroutinefunction(client.status) is (client is AsyncClient)


def test_help_of_each_client_states_the_arguments_and_errors_of_a_method_itself() -> None:
    for client in (fencelock.Client, AsyncClient):
        methods = inspect.getmembers(client, inspect.isfunction)
        texts = {name: inspect.getdoc(one) or "" for name, one in methods if name[0] != "_"}
        assert not [name for name, text in texts.items() if "see `fencelock.Client." in text]
