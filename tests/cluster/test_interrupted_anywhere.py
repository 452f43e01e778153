"""An exception of a signal's handler at every step of an acquire and of a release.

CPython runs such handlers when a Python function begins, and after calls of functions in C: a
profiler sees just these instants, and may raise there, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from fencelock import Client, NotHeldError
from fencelock.testing import LocalCluster, local


def again(lock: Any) -> Any:
    """Return a lock that its client retains already."""
    with lock:
        return lock


MAKERS: dict[str, Callable[[Client, str], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "named": lambda client, name: client.lock(name, owner="job"),
    "rlock": lambda client, name: client.rlock(name),
    "lock_all": lambda client, name: client.lock_all(name, f"{name} too"),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "write": lambda client, name: client.rwlock(name).write(),
    "retained": lambda client, name: client.lock(name, retain=60, cohort=1),
    "retained_again": lambda client, name: again(client.lock(name, retain=60, cohort=1)),
}

PATIENCE_S = 10.0
STRIDE = 3
"""Every third instant is tried; the kinds begin at different ones."""

BEGUN = 10
"""Instants from the end of a ``with`` block to the first step of the release, and some more."""


class Interrupted(Exception):  # noqa: N818
    """What the handler of a signal raises."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local() as cluster:
        yield cluster


def interrupted(work: Callable[[], object], instant: int) -> bool:
    """Do ``work``, interrupt it at that instant, and return whether it took that long."""
    left = instant
    codes = {work.__code__, interrupted.__code__}

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        del argument
        if event not in ("call", "c_return") or frame.f_code in codes:
            return
        left -= 1
        if left < 0:
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(look)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("kind", MAKERS)
def test_an_acquire_that_is_interrupted_anywhere_leaves_nothing_held(
    cluster: LocalCluster, kind: str
) -> None:
    client, other = cluster.connect(), cluster.connect()
    instant = len(kind) % STRIDE
    while True:
        lock = MAKERS[kind](client, "acquire")
        hold = None

        def work(lock: Any = lock) -> None:
            nonlocal hold
            hold = lock.acquire()

        hit = interrupted(work, instant)
        assert (hold is None) == hit
        if hold is not None:
            hold.release()
        again = MAKERS[kind](other, "acquire").acquire(timeout=PATIENCE_S)
        assert again is not None, f"still held after an interrupt at instant {instant}"
        again.release()
        if not hit:
            break
        instant += STRIDE
    assert instant > 20
    client.close()
    other.close()


@pytest.mark.parametrize("kind", MAKERS)
def test_a_release_that_is_interrupted_anywhere_may_be_repeated(
    cluster: LocalCluster, kind: str
) -> None:
    client, other = cluster.connect(), cluster.connect()
    instant = len(kind) % STRIDE
    while True:
        hold = MAKERS[kind](client, "release").acquire(timeout=PATIENCE_S)
        assert hold is not None

        def work(hold: Any = hold) -> None:
            hold.release()

        hit = interrupted(work, instant)
        if hit:
            with suppress(NotHeldError):  # The interrupted release happens all the same.
                hold.release()
        again = MAKERS[kind](other, "release").acquire(timeout=PATIENCE_S)
        assert again is not None, f"still held after an interrupt at instant {instant}"
        again.release()
        if not hit:
            break
        instant += STRIDE
    assert instant > 15
    client.close()
    other.close()


def test_a_body_that_is_interrupted_as_it_leaves_has_left(cluster: LocalCluster) -> None:
    """Once ``with`` has begun to release, no interrupt keeps the lock."""
    client, other = cluster.connect(), cluster.connect()
    instant, hit = 0, True
    while hit:
        lock = client.lock("leaving")
        lock.acquire()

        def work(lock: Any = lock) -> None:
            lock.__exit__(None, None, None)

        hit = interrupted(work, instant + BEGUN)
        again = other.lock("leaving").acquire(timeout=PATIENCE_S)
        assert again is not None, f"still held after an interrupt at instant {instant}"
        again.release()
        instant += 1
    assert instant > 20
    client.close()
    other.close()
