"""Acquires that a signal or a cancellation interrupts, and that are tried again."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from types import FrameType
from typing import Any

import pytest
from support.expect import present

from fencelock import AcquireCancelledError, Client, Hold, LockStatus, NotHeldError, aio
from fencelock.cluster.client.hold import BaseHold
from fencelock.testing import LocalCluster, local


def again(lock: Any) -> Any:
    """Return a lock that its client retains already."""
    with lock:
        return lock


PLAIN: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "named": lambda client, name: client.lock(name, owner="job"),
    "rlock": lambda client, name: client.rlock(name),
    "lock_all": lambda client, name: client.lock_all(name, f"{name} too"),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "write": lambda client, name: client.rwlock(name).write(),
}
MAKERS: dict[str, Callable[[Client, str], Any]] = {
    **PLAIN,
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
    # Python ignores what is raised in a finalizer, here of a hold that was released before.
    codes = {work.__code__, interrupted.__code__, BaseHold.__del__.__code__}

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event not in ("call", "c_return") or frame.f_code in codes:
            return
        left -= 1
        if left < 0:
            sys.setprofile(None)
            raise Interrupted

    gc.disable()  # Python ignores what is raised in its callbacks, too.
    sys.setprofile(look)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


Clients = tuple[Client, Client]


@pytest.fixture
def clients(cluster: LocalCluster) -> Iterator[Clients]:
    with cluster.connect() as one, cluster.connect() as other:
        yield one, other


def at_every_instant(kind: str, clients: Clients, once: Callable[[int], bool], least: int) -> None:
    """Call ``once`` with one instant after the other, until it is over before it is interrupted.

    Afterwards the other client is granted the object each time.
    """
    instant = len(kind) % STRIDE
    hit = True
    while hit:
        hit = once(instant)
        again = MAKERS[kind](clients[1], "interrupted").acquire(timeout=PATIENCE_S)
        assert again is not None, f"still held after an interrupt at instant {instant}"
        again.release()
        instant += STRIDE
    assert instant > least + STRIDE


@pytest.mark.parametrize("kind", MAKERS)
def test_an_acquire_interrupted_anywhere_leaves_nothing_held(clients: Clients, kind: str) -> None:
    def once(instant: int) -> bool:
        lock, hold = MAKERS[kind](clients[0], "interrupted"), None

        def work() -> None:
            nonlocal hold
            hold = lock.acquire()

        hit = interrupted(work, instant)
        assert (hold is None) == hit
        if hold is not None:
            hold.release()
        return hit

    at_every_instant(kind, clients, once, least=10)


GIVING_UP: list[tuple[str, Callable[[Any], object]]] = [
    *((kind, lambda hold: hold.release()) for kind in MAKERS),
    *((kind, lambda hold: hold.detach(within=0.02)) for kind in ("lock", "rlock", "retained")),
]
"""The kinds of holds, and the ways to give them up."""


@pytest.mark.parametrize(("kind", "give_up"), GIVING_UP)
def test_a_release_or_detach_interrupted_anywhere_leaves_nothing_held(
    clients: Clients, kind: str, give_up: Callable[[Any], object]
) -> None:
    """A lock that was detached stays held for the time of its token at most."""

    def once(instant: int) -> bool:
        hold = MAKERS[kind](clients[0], "interrupted").acquire(timeout=PATIENCE_S)

        def work() -> None:
            give_up(hold)

        hit = interrupted(work, instant)
        with suppress(NotHeldError):  # What was interrupted happens all the same.
            hold.release()
        return hit

    at_every_instant(kind, clients, once, least=15)


@pytest.mark.parametrize(("acquires", "permits"), [([1, 1], 2), ([2], 1), ([2, 1], 2)])
def test_permits_whose_release_is_interrupted_anywhere_are_not_held_forever(
    clients: Clients, acquires: list[int], permits: int
) -> None:
    """They are of several acquires, or a part of one."""
    instant, hit, most = 0, True, sum(acquires)
    while hit:
        semaphore = clients[0].semaphore("parts", most)
        for amount in acquires:
            semaphore.acquire(amount)

        def work(semaphore: Any = semaphore) -> None:
            semaphore.release(permits)

        hit = interrupted(work, instant)
        with suppress(ValueError):  # No more are held.
            while True:
                semaphore.release(1)
        again = clients[1].semaphore("parts", most).acquire(most, timeout=PATIENCE_S)
        assert again is not None, f"still held after an interrupt at instant {instant}"
        again.release()
        instant += 1
    assert instant > 30


def test_an_attach_interrupted_anywhere_leaves_token_good_or_lock_free(clients: Clients) -> None:
    client, other = clients
    instant, used = 0, 0
    while True:
        token = other.lock("attach").acquire().detach()
        hold = None

        def work(token: str = token) -> None:
            nonlocal hold
            hold = client.attach(token)

        hit = interrupted(work, instant)
        assert (hold is None) == hit
        try:
            (hold or client.attach(token)).release()
        except NotHeldError:
            used += 1
        with other.lock("attach", timeout=PATIENCE_S):
            pass
        if not hit:
            break
        instant += STRIDE
    assert instant > 15
    assert 0 < used < instant // STRIDE


def test_a_body_that_is_interrupted_as_it_leaves_has_left(clients: Clients) -> None:
    """Once ``with`` has begun to release, no interrupt keeps the lock."""
    client, other = clients
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
    assert instant > 10


KINDS: dict[str, Callable[[Any, str], Any]] = {
    **PLAIN,
    "duration": lambda client, name: client.lock(name, duration=30),
    "election": lambda client, name: client.election(name).lead("here"),
    "read": lambda client, name: client.rwlock(name).read(),
}
"""Objects of which one caller at a time is inside, except for readers."""

TRIES = 134
"""Attempts of each kind with each client: 2,412 in all."""

FROM_S, TO_S = 0.0001, 0.002
"""An attempt is cut short after a time between these, in which most are just granted."""

FREE_S = 5.0
"""Limit for the client's own releases in the background."""


def names_of(kind: str, name: str) -> tuple[str, ...]:
    """Return the names by which the table knows the object ``name``."""
    if kind == "lock_all":
        return name, f"{name} too"
    prefix = {"election": "election", "semaphore": "semaphore", "read": "rwlock", "write": "rwlock"}
    return (f"{prefix[kind]}\x1f{name}",) if kind in prefix else (name,)


def is_free(status: LockStatus) -> bool:
    return not (status.holders or status.holder or status.waiters)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_acquire_may_be_tried_again_at_once(cluster: LocalCluster, kind: str) -> None:
    random = Random(kind)
    name = f"tasks {kind}"
    outcomes: Counter[str] = Counter()
    inside: set[object] = set()

    async def attempt(client: aio.Client) -> None:
        me = object()
        try:
            async with asyncio.timeout(random.uniform(FROM_S, TO_S)):
                async with KINDS[kind](client, name) as hold:
                    assert hold.held
                    inside.add(me)
                    assert len(inside) == 1 or kind == "read"
                    outcomes["held"] += 1
                    await asyncio.sleep(0)
                    inside.discard(me)
        except TimeoutError:
            inside.discard(me)
            outcomes["cancelled"] += 1

    async def attempts(client: aio.Client, tries: int) -> None:
        for _ in range(tries):
            await attempt(client)

    async def run() -> None:
        async with cluster.connect_aio() as client, asyncio.timeout(60):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(attempts(client, TRIES // 2))
                tasks.create_task(attempts(client, TRIES // 2))
            for known in names_of(kind, name):
                ends = time.monotonic() + FREE_S
                while not is_free(await client.status(known)):
                    assert time.monotonic() < ends, f"{known!r} is still held"

    asyncio.run(run())
    assert outcomes["held"] + outcomes["cancelled"] >= TRIES
    assert outcomes["cancelled"] > TRIES // 20


class Alarm:
    """Interrupts the main thread once within a body; at the end of it, no more."""

    armed = False

    def after(self, seconds: float) -> None:
        """Interrupt in ``seconds``, unless `armed` is false by then."""
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def ring(self, number: int, frame: FrameType | None) -> None:
        """Interrupt (the signal's handler)."""
        if self.armed:
            self.armed = False
            raise Interrupted


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    gc.disable()  # Python ignores what is raised in its callbacks.
    yield alarm
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def release(alarm: Alarm, hold: Hold, after: float) -> None:
    """Release ``hold``, and again if that is interrupted after ``after`` (s)."""
    try:
        alarm.armed = True
        alarm.after(after)
        hold.release()
        alarm.armed = False
    except Interrupted:
        with suppress(NotHeldError):  # The interrupted release happens all the same.
            hold.release()


@pytest.mark.parametrize("kind", KINDS)
def test_an_acquire_that_a_signal_interrupted_may_be_tried_again_at_once(
    cluster: LocalCluster, kind: str, alarm: Alarm
) -> None:
    random = Random(kind)
    name = f"threads {kind}"
    client = cluster.connect()
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def contend() -> None:
        """Keep the object busy, from a thread that gets no signals."""
        while not stop.is_set():
            lock = KINDS[kind](client, name)
            if lock.acquire(timeout=1):
                lock.release()
            stop.wait(0.005)

    thread = threading.Thread(target=contend)
    thread.start()
    try:
        for _ in range(TRIES):
            hold = None
            try:
                lock = KINDS[kind](client, name)
                alarm.armed = True
                alarm.after(random.uniform(FROM_S, TO_S))
                hold = lock.acquire(timeout=5)
                alarm.armed = False
            except Interrupted:
                outcomes["interrupted"] += 1
            if hold is not None:
                outcomes["held"] += 1
                assert hold.held
                release(alarm, hold, random.uniform(FROM_S, TO_S))
    finally:
        stop.set()
        thread.join()
    for known in names_of(kind, name):
        ends = time.monotonic() + FREE_S
        while not is_free(client.status(known)):
            assert time.monotonic() < ends, f"{known!r} is still held: {client.status(known)}"
    client.close()
    assert outcomes["held"] + outcomes["interrupted"] >= TRIES
    assert outcomes["interrupted"] > TRIES // 20


def cancelled(lock: Any) -> AcquireCancelledError:
    """Let a thread wait for ``lock``, cancel that wait, and return the error of the thread."""
    errors: list[AcquireCancelledError] = []

    def wait() -> None:
        try:
            lock.acquire()
        except AcquireCancelledError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while waiter.is_alive():
        lock.cancel()
        waiter.join(0.01)
    return errors[0]


@pytest.mark.parametrize("kind", MAKERS)
def test_another_thread_may_cancel_an_acquire_that_waits(cluster: LocalCluster, kind: str) -> None:
    client, other = cluster.connect(), cluster.connect()
    lock, name = MAKERS[kind](client, f"cancel {kind}"), f"cancel {kind}"
    with MAKERS[kind](other, name):
        error = cancelled(lock)
    assert "the wait was cancelled" in str(error)
    for one in (lock, MAKERS[kind](other, name)):
        hold = present(one.acquire(timeout=PATIENCE_S))
        one.cancel()  # What was granted stays held.
        assert hold.held
        hold.release()
    client.close()


def test_an_owner_that_waits_for_itself_may_be_cancelled(cluster: LocalCluster) -> None:
    lock = cluster.connect().lock("own", owner="job")
    with lock:
        assert cancelled(lock)


async def test_another_task_may_cancel_an_acquire_that_waits(cluster: LocalCluster) -> None:
    async with cluster.connect_aio() as client, client.lock("task"):
        lock = client.lock("task")
        waiter = asyncio.create_task(lock.acquire())
        while not waiter.done():
            lock.cancel()
            await asyncio.sleep(0)
        with pytest.raises(AcquireCancelledError):
            await waiter
