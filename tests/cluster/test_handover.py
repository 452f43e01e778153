"""Locks that one client detaches and another attaches: threads, tasks, the default client."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.expect import PATIENCE_S, only, present
from support.faces import FACES, Connect
from support.lock_scene import Scene
from support.real_nodes import Cluster, started, until

import fencelock
from fencelock import NotHeldError, UnsupportedError, aio
from fencelock.actors.api.handover import Detach, digest_of
from fencelock.actors.api.lock_message import Cancel
from fencelock.actors.error import UnavailableError
from fencelock.cluster.client.hold import lock_and_secret, token_of
from fencelock.testing import LocalCluster


@pytest.fixture
def web(connect: Connect) -> fencelock.Client:
    return connect()


@pytest.fixture
def worker(connect: Connect) -> fencelock.Client:
    return connect()


@pytest.mark.parametrize("retain", [0, 60])
def test_a_hold_goes_to_another_client_before_all_who_wait(
    web: fencelock.Client,
    worker: fencelock.Client,
    name: str,
    pool: ThreadPoolExecutor,
    retain: int,
) -> None:
    lost: list[object] = []
    hold = web.lock(name, retain=retain).acquire()
    hold.on_lost(lost.append)
    waiting = pool.submit(worker.lock(name).acquire, timeout=PATIENCE_S)
    until(lambda: worker.status(name).waiters)
    token = hold.detach()
    assert (hold.held, hold.lost, hold.state.value) == (False, False, "released")
    hold.release()
    assert (web.lock(name).locked(), web.lock(name).acquire(blocking=False)) == (True, None)
    taken = worker.attach(json.loads(json.dumps(token)))
    assert (taken.held, taken.name, taken.fence > hold.fence) == (True, name, True)
    assert not waiting.done()
    with pytest.raises(NotHeldError, match="does not attach it: it was used, or its time is over"):
        web.attach(token)
    with pytest.raises(NotHeldError, match="this hold was detached already"):
        hold.detach()
    taken.release()
    after = present(waiting.result(PATIENCE_S))
    assert after.fence > taken.fence
    after.release()
    with web.lock(name, retain=retain):  # The session knows that it holds nothing.
        pass
    assert lost == []


MAKERS: dict[str, Callable[[fencelock.Client, str], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "named": lambda client, name: client.lock(name, owner="job"),
    "retained": lambda client, name: client.lock(name, retain=60),
    "rlock": lambda client, name: client.rlock(name),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_end_of_a_with_statement_leaves_alone_what_was_detached_in_it(
    web: fencelock.Client, name: str, pool: ThreadPoolExecutor, kind: str
) -> None:
    make = MAKERS[kind]
    lock = make(web, name)
    with lock as hold:
        token = hold.detach()
        web.attach(token).release()
        other = pool.submit(lambda: make(web, name).acquire(timeout=PATIENCE_S)).result()
    assert other.held
    other.release()
    lock.acquire().detach(within=0.01)
    with lock as hold:  # This one is released.
        assert hold.held
    assert not hold.held
    with pytest.raises(NotHeldError), lock as hold:
        hold.release()


def test_a_with_statement_inside_one_whose_lock_was_detached_releases_its_own_hold(
    web: fencelock.Client, worker: fencelock.Client, name: str
) -> None:
    lock = web.lock(name)
    with lock as hold:
        worker.attach(hold.detach()).release()
        with lock:
            assert lock.held
        assert not lock.held
        with worker.lock(name, timeout=PATIENCE_S):
            pass
    assert not lock.held


def test_a_detach_outside_a_with_statement_hides_no_error_at_the_end_of_another(
    web: fencelock.Client, name: str
) -> None:
    lock = web.lock(name)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: lock.acquire().detach(within=0.01)).result(PATIENCE_S)
    with pytest.raises(NotHeldError), lock:
        lock.release()


def test_the_end_of_a_with_statement_on_another_thread_leaves_it_alone_too(
    web: fencelock.Client, name: str, pool: ThreadPoolExecutor
) -> None:
    lock = web.lock(name)
    token = pool.submit(lambda: lock.__enter__().detach()).result(PATIENCE_S)
    lock.__exit__(None, None, None)
    with pytest.raises(NotHeldError):
        lock.__exit__(None, None, None)
    web.attach(token).release()


def test_a_token_that_is_not_attached_in_time_expires(
    web: fencelock.Client, worker: fencelock.Client, name: str
) -> None:
    token = web.lock(name).acquire().detach(within=0.05)
    with worker.lock(name):
        pass
    with pytest.raises(NotHeldError, match="nobody holds it"):
        worker.attach(token)


def test_the_status_shows_who_detached_it_but_no_token(web: fencelock.Client, name: str) -> None:
    hold = web.lock(name, label="order 42").acquire()
    owner, token = hold.owner, hold.detach(within=7)
    status = web.status(name)
    assert status.holder is not None
    assert (status.holder.owner, status.holder.session) == (owner, "no-client")
    assert re.fullmatch(rf".*:{os.getpid()}, order 42, detached", status.holder.label)
    assert status.left_ms is not None
    assert 0 < status.left_ms <= 7_001
    secret = lock_and_secret(token)[1]
    assert not any(form in repr((status, hold)) for form in (token, secret.hex(), repr(secret)))
    taken = web.attach(token, label="worker")
    seen = present(web.status(name).holder)
    assert (seen.fence, seen.label.endswith(", worker")) == (taken.fence, True)
    taken.release()


def test_an_attached_hold_has_a_duration_of_its_own(web: fencelock.Client, name: str) -> None:
    token = web.lock(name, duration=60, grace=60).acquire().detach()
    hold = web.attach(token, duration=5, grace=5)
    assert hold.deadline is not None
    assert hold.remaining <= 10
    hold.renew(7)
    assert 10 < hold.remaining <= 12
    token = hold.detach()
    with web.attach(token) as hold:
        assert hold.deadline is None


async def test_tasks_hand_a_lock_over_and_a_cancelled_attach_holds_nothing(
    paxos_addresses: str, name: str
) -> None:
    async with aio.connect(paxos_addresses, cluster=FACES) as client:
        token = await (await client.lock(name).acquire()).detach()
        async with await client.attach(token) as hold:
            assert hold.held
        token = await (await client.lock(name).acquire()).detach()
        task = asyncio.create_task(client.attach(token))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TypeError, match="token is 7, and must be str"):
            await client.attach(7)  # type: ignore[arg-type]
        async with client.lock(name, timeout=PATIENCE_S):
            pass


@pytest.mark.usefixtures("fencelock_cluster")
def test_the_default_clients_attach_what_a_lazy_client_detached(
    fencelock_cluster: LocalCluster,
) -> None:
    with fencelock.connect(fencelock_cluster.addresses, lazy=True) as client:
        token = client.lock("a").acquire().detach()
        with fencelock.attach(token):
            token = client.lock("b").acquire().detach()

    async def run() -> None:
        async with await aio.attach(token) as hold:
            assert hold.name == "b"

    asyncio.run(run())


def test_a_lock_that_is_not_plain_or_held_more_than_once_stays_as_it_is(
    web: fencelock.Client, name: str
) -> None:
    others: list[Any] = [
        web.semaphore(name, 2).acquire(),
        web.rwlock(name).read().acquire(),
        web.lock_all(f"{name}-a", f"{name}-b").acquire(),
    ]
    for hold in others:
        with pytest.raises(UnsupportedError, match="only a plain lock that is held once"):
            hold.detach()
        assert hold.held
    for retain in (0, 60):
        lock = web.rlock(name, retain=retain)
        with lock, lock as twice:
            with pytest.raises(UnsupportedError, match="only a plain lock that is held once"):
                twice.detach()
            assert twice.held
        web.attach(lock.acquire().detach()).release()


@pytest.mark.parametrize("within", [0, -1, float("nan"), 604_801])
def test_a_limit_that_cannot_be_is_refused(web: fencelock.Client, name: str, within: float) -> None:
    with web.lock(name) as hold:
        with pytest.raises(ValueError, match=r"within is .*, and must be a number of seconds"):
            hold.detach(within)
        with pytest.raises(TypeError, match="within is '1'"):
            hold.detach("1")  # type: ignore[arg-type]
        assert hold.held


def test_a_token_is_safe_in_an_address_and_a_changed_one_is_none(web: fencelock.Client) -> None:
    for lock in ("x", "jobs/é ?&=#", "n" * 256):
        secret = os.urandom(16)
        token = token_of(lock, secret)
        assert re.fullmatch(r"[A-Za-z0-9_-]{28,368}", token)
        assert lock_and_secret(token) == (lock, secret)
    changed = "B" if token[9] == "A" else "A"
    for wrong in ("", "x", token[:-1], f"{token[:9]}{changed}{token[10:]}", "é" * 40, "=" * 40):
        with pytest.raises(ValueError, match=rf"no text that detach returned \({len(wrong)} "):
            web.attach(wrong)


def test_a_detach_without_a_reply_is_repeated_with_the_same_token(scene: Scene) -> None:
    hold, session = scene.lock().acquire(), scene.session
    session.refusal = UnavailableError("silence")
    with pytest.raises(UnavailableError):
        hold.detach()
    assert hold.held
    session.refusal = None
    token = hold.detach()
    asked = [one for one, _ in session.asked if isinstance(one, Detach)]
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert asked[0].digest == digest_of(lock_and_secret(token)[1])
    assert not hold.held


def test_an_interrupted_detach_that_was_not_sent_releases_the_lock(scene: Scene) -> None:
    hold, session = scene.lock().acquire(), scene.session

    def interrupt() -> None:
        raise KeyboardInterrupt

    session.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        hold.detach()
    cancel = only(Cancel, session.received)
    assert (cancel.lock, cancel.owner, cancel.request) == ("x", "ann", hold.token)


def test_a_hold_that_is_being_released_is_not_detached(scene: Scene) -> None:
    hold, session = scene.lock().acquire(), scene.session
    session.refusal = UnavailableError("silence")
    with pytest.raises(UnavailableError):
        hold.release()
    with pytest.raises(NotHeldError, match="this hold is being released"):
        hold.detach()
    assert not any(isinstance(one, Detach) for one, _ in session.asked)


@pytest.fixture(params=["lamport", "central", "bakery"])
def other(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Cluster]:
    yield from started(Cluster(request.param, 2, tmp_path))


def test_other_protocols_refuse_with_a_reason(other: Cluster) -> None:
    client = other.connect()
    with client.lock("x") as hold:
        with pytest.raises(UnsupportedError, match="has no Detach; paxos has it"):
            hold.detach()
        assert hold.held
    with pytest.raises(UnsupportedError, match="has no Attach; paxos has it"):
        client.attach(token_of("x", b"s" * 16))
