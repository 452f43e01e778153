"""Notices to users when a lock is lost: cut off, stopped, or taken by an operator."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

import pytest
from support.holds import fence_of

import fencelock
from fencelock.actors.error import InvalidRequestError, LockOwnershipLostError, NotHeldError
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.node.node import Node

PATIENCE_S = 60
CLUSTER = "faces"
TTL_S = 1.5

Deed = Callable[[Any], Any]
Do = Callable[[Deed], Any]


class Face(Protocol):
    """See `conftest.py`."""

    client: Any

    def user(self, name: str, **terms: Any) -> Do: ...

    def slow_user(self, name: str, **terms: Any) -> Callable[[Deed], Future[Any]]: ...

    def on_loop(self, work: Any) -> Any: ...

    def close(self) -> None: ...


class Cable(Protocol):
    """A way to a node; see `conftest.py`."""

    address: str

    def cut(self) -> None: ...

    def mend(self) -> None: ...


@pytest.fixture(params=[("threads", TTL_S), ("tasks", TTL_S)], ids=["threads", "tasks"])
def far(
    request: pytest.FixtureRequest,
    make_face: Callable[[str, str, float], Face],
    cables: list[Cable],
) -> Iterator[Face]:
    """Users behind cables. Their session lives for one TTL without a message."""
    kind, ttl = request.param
    face = make_face(kind, ",".join(cable.address for cable in cables), ttl)
    yield face
    mend(cables)
    face.close()


@pytest.fixture
def near(paxos_addresses: str) -> Iterator[fencelock.Client]:
    """A client whom nothing befalls."""
    with fencelock.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        yield client


def cut(cables: list[Cable]) -> None:
    for cable in cables:
        cable.cut()


def mend(cables: list[Cable]) -> None:
    for cable in cables:
        cable.mend()


def acquire(lock: Any) -> Any:
    return lock.acquire(timeout=PATIENCE_S)


def release(lock: Any) -> Any:
    return lock.release()


def state(lock: Any) -> HoldState:
    found: HoldState = lock.state
    return found


class LossLog:
    """The notices that callbacks got, and their times."""

    def __init__(self) -> None:
        self.notices: list[tuple[float, Notice]] = []
        self._changed = threading.Condition()

    def note(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append((time.monotonic(), notice))
            self._changed.notify_all()

    def wait_for(self, kind: HoldState) -> tuple[float, Notice]:
        def found() -> tuple[float, Notice] | None:
            return next((line for line in self.notices if line[1].state is kind), None)

        with self._changed:
            line = self._changed.wait_for(found, PATIENCE_S)
        assert line is not None
        return line


def logged(user: Do) -> LossLog:
    log = LossLog()
    user(lambda lock: lock.on_suspect(log.note))
    user(lambda lock: lock.on_lost(log.note))
    return log


def test_who_is_cut_off_knows_of_the_loss_before_the_next_holds(
    far: Face, near: fencelock.Client, cables: list[Cable], name: str
) -> None:
    user = far.user(name, rlock=True)
    log = logged(user)
    fence = user(acquire)
    cut(cables)
    began = time.monotonic()
    next_hold = near.lock(name).acquire(timeout=PATIENCE_S)
    assert next_hold is not None
    got = next_hold.fence
    assert not user(lambda lock: lock.held)  # By its own clock, whatever it received.
    assert got > fence
    suspected_at, suspicion = log.wait_for(HoldState.SUSPECT)
    lost_at, loss = log.wait_for(HoldState.LOST)
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
    mend(cables)
    again = user(acquire)  # The same object.
    assert again > got
    assert user(lambda lock: (lock.held, lock.lost)) == (True, False)
    user(release)


def test_who_enters_again_after_the_loss_is_told(far: Face, cables: list[Cable], name: str) -> None:
    user = far.user(name, rlock=True)
    log = logged(user)
    user(acquire)
    cut(cables)
    log.wait_for(HoldState.LOST)
    mend(cables)
    with pytest.raises(LockOwnershipLostError):
        user(acquire)
    user(acquire)
    user(release)


def test_a_new_session_of_the_same_client_does_not_hide_the_loss(
    far: Face, cables: list[Cable], name: str
) -> None:
    user, other = far.user(name), far.user(name)
    log = logged(user)
    fence = user(acquire)
    cut(cables)
    log.wait_for(HoldState.LOST)
    mend(cables)
    assert other(acquire) > fence
    assert user(lambda lock: (lock.held, lock.lost)) == (False, True)
    with pytest.raises(LockOwnershipLostError):
        user(release)
    assert other(lambda lock: lock.held)
    other(release)


@pytest.mark.parametrize("far", [("threads", 5.0), ("tasks", 5.0)], indirect=True)
def test_a_short_cut_is_survived(far: Face, cables: list[Cable], name: str) -> None:
    user = far.user(name)
    log = logged(user)
    fence = user(acquire)
    cut(cables)
    log.wait_for(HoldState.SUSPECT)
    mend(cables)
    end = time.monotonic() + PATIENCE_S
    while (now := user(state)) is HoldState.SUSPECT:
        assert time.monotonic() < end
    assert now is HoldState.HELD
    assert user(lambda lock: lock.fence) == fence
    user(release)


def test_who_only_waited_goes_on_waiting_in_the_next_session(
    far: Face, near: fencelock.Client, cables: list[Cable], name: str
) -> None:
    held = near.lock(name)
    fence = fence_of(held.acquire())
    holding = far.user(f"{name}-held")
    log = logged(holding)
    holding(acquire)
    waiter = far.slow_user(name)
    waiting = waiter(acquire)
    cut(cables)
    log.wait_for(HoldState.LOST)
    mend(cables)
    end = time.monotonic() + PATIENCE_S
    while "~" not in "".join(waiting.session for waiting in held.status().waiters):
        assert time.monotonic() < end
    held.release()
    assert waiting.result(PATIENCE_S) > fence
    waiter(release).result(PATIENCE_S)


def test_an_eviction_is_told_at_once_and_the_reason_names_the_operator(
    far: Face, near: fencelock.Client, name: str
) -> None:
    user = far.user(name)
    log = logged(user)
    fence = user(acquire)
    holder = near.evict(name, fence, "root@ops")
    assert holder.fence == fence
    _, loss = log.wait_for(HoldState.LOST)
    assert "root@ops" in loss.detail
    with pytest.raises(NotHeldError):
        near.evict(name, fence)  # A repetition hits nobody.
    for wrong in (0, -1, 1 << 63):
        with pytest.raises(InvalidRequestError, match="fence"):
            near.evict(name, wrong)
    next_hold = near.lock(name).acquire()
    assert next_hold is not None
    got = next_hold.fence
    assert got > fence
    with pytest.raises(LockOwnershipLostError, match="root@ops"):
        user(release)
    assert near.status(name).holder is not None
    next_hold.release()


def test_a_stopped_process_that_wakes_up_knows_that_it_lost_the_lock(
    paxos_nodes: list[Node], near: fencelock.Client, name: str
) -> None:
    """All it missed waits in its sockets, and must not make it believe it holds."""
    program = (
        "import sys, fencelock\n"
        f"client = fencelock.connect(sys.argv[1], cluster={CLUSTER!r}, ttl=1.0)\n"
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
    addresses = ",".join(node.address for node in paxos_nodes)
    command = [sys.executable, "-c", program, addresses, name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        fence = int(child.stdout.readline())
        child.send_signal(signal.SIGSTOP)
        next_hold = near.lock(name).acquire(timeout=PATIENCE_S)
        assert next_hold is not None
        got = next_hold.fence
        child.stdin.write("\n")
        child.stdin.flush()
        child.send_signal(signal.SIGCONT)
        said = child.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert got > fence
    assert said == ["False LOST", "LockOwnershipLostError"]
    next_hold.release()
