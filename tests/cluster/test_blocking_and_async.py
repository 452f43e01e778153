"""The rules of fenced locks as users meet them: threads, tasks and asks, on a `paxos` cluster.

The number of a rule stands in the name of its test. `conftest.py` has the faces: what a test
lets a user do with a lock is one thread's deed, one task's, or an `ask` of a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import pytest

from fencelock.actors.api.message import LockStatus
from fencelock.actors.error import ClosedError, LimitReachedError, LockTimeoutError, NotHeldError

PATIENCE_S = 60

Deed = Callable[[Any], Any]


class Face(Protocol):
    """See `conftest.py`."""

    client: Any

    def user(self, name: str, **terms: Any) -> Callable[[Deed], Any]: ...

    def slow_user(self, name: str, **terms: Any) -> Callable[[Deed], Future[Any]]: ...

    def on_loop(self, work: Any) -> Any: ...


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


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@how
def test_a_free_lock_is_held_under_a_fence(face: Face, name: str, acquire: Deed) -> None:
    user = face.user(name)
    fence = user(acquire)
    assert fence > 0
    assert user(lambda lock: (lock.held, lock.fence)) == (True, fence)
    assert seen(user) == (fence, 1, 0)
    user(release)


@how
def test_who_holds_it_enters_again_under_the_same_fence(
    client_face: Face, name: str, acquire: Deed
) -> None:
    user = client_face.user(name, rlock=True)
    fence = user(acquire)
    assert user(acquire) == fence
    assert seen(user) == (fence, 2, 0)
    user(release)
    user(release)


def test_what_another_holds_is_not_to_be_had_at_once(face: Face, name: str) -> None:
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
    wait_for(lambda: seen(holder) == (fence, 1, 1))
    holder(release)
    next_fence = waiting.result(PATIENCE_S)
    assert next_fence > fence
    assert holder(lambda lock: (lock.held, lock.fence)) == (False, None)
    assert seen(holder) == (next_fence, 1, 0)
    other(release).result(PATIENCE_S)


def test_who_asked_first_is_served_first_and_waits_without_limit(face: Face, name: str) -> None:
    holder = face.user(name)
    holder(HOW["wait"])
    order: list[int] = []

    def note(number: int, done: Future[Any]) -> None:
        del done
        order.append(number)

    waiters = [face.slow_user(name) for _ in range(4)]
    waits: list[Future[Any]] = []
    for number, waiter in enumerate(waiters):
        waits.append(waiter(HOW["wait"]))
        wait_for(lambda: seen(holder)[2] == len(waits))
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


def test_a_lock_entered_twice_is_left_twice(client_face: Face, name: str) -> None:
    user, other = (client_face.user(name, rlock=True) for _ in range(2))
    fence = user(HOW["wait"])
    user(HOW["wait"])
    assert seen(other) == (fence, 2, 0)
    user(release)
    assert user(lambda lock: (lock.held, lock.fence)) == (True, fence)
    assert seen(other) == (fence, 1, 0)
    assert other(HOW["try"]) is None
    user(release)
    assert seen(other) == (None, 0, 0)


def test_what_another_holds_is_not_ones_own_to_release(face: Face, name: str) -> None:
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

    wait_for(known)
    user(release)


def test_without_a_limit_it_is_entered_as_often_as_one_likes(client_face: Face, name: str) -> None:
    user, other = client_face.user(name, rlock=True), client_face.user(name, rlock=True, limit=2)
    fences = {user(HOW["wait"]) for _ in range(20)}
    assert len(fences) == 1
    assert seen(user)[1] == 20
    for _ in range(20):
        user(release)
    assert other(HOW["try"]) == other(HOW["try"]) > fences.pop()
    other(release)
    other(release)


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
    wait_for(lambda: seen(user)[2] == 1)
    client_face.on_loop(client_face.client.close())
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

    def enter(lock: Any) -> Any:
        return lock.__aenter__() if hasattr(lock, "__aenter__") else lock.__enter__()

    with pytest.raises(LockTimeoutError, match=f"fence {fence}"):
        other(enter)
    holder(release)


def test_people_see_who_holds_what_by_name_and_label(client_face: Face, name: str) -> None:
    user = client_face.user(name, label="nightly report")
    fence = user(HOW["wait"])
    client = client_face.client
    (line,) = client_face.on_loop(client.locks(name))
    assert (line.lock, line.holder.fence, line.waiting) == (name, fence, 0)
    assert "nightly report" in line.holder.label
    assert client_face.on_loop(client.locks(f"{name}-not")) == ()
    user(release)
