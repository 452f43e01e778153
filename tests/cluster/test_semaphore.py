"""Semaphores and read/write locks as users of both clients meet them, on a real cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pytest
from support.expect import PATIENCE_S, checked, present
from support.faces import Connect, both_kinds, threads_only
from support.real_nodes import until
from support.table_scene import amounts, hold_to_read, hold_to_write, until_queued

import fencelock
from fencelock.actors.api.lock_message import Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.api.semaphore import SEMAPHORE, ReleasePermits
from fencelock.actors.error import (
    ForbiddenError,
    InvalidRequestError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
)
from fencelock.actors.message import Event
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.host.pending_asks import AskReply

client_kind = both_kinds


def test_all_permits_that_are_free_are_taken_in_one_step(connect: Connect, name: str) -> None:
    one, two = (connect().semaphore(name, 5) for _ in range(2))
    assert one.available() == two.available() == 5
    hold = present(two.acquire(2))
    assert one.available() == 3
    assert one.drain() == 3
    assert (one.held, one.available(), one.drain(), two.drain()) == (True, 0, 0, 0)
    assert one.locked()
    hold.release()
    assert (two.available(), two.locked()) == (2, False)
    one.release(2)
    assert two.drain() == 4
    two.release(4)
    with pytest.raises(ValueError, match="2 permits were released, 1 are held"):
        one.release(2)
    one.release()
    assert one.available(read="local", max_age=60) in range(6)
    assert (one.available(), one.held) == (5, False)
    assert two.drain() == 5
    other = connect().semaphore(name, 4)
    with pytest.raises(InvalidRequestError, match="has 5 permits; this client asked for one with"):
        other.drain()
    two.release(5)


def test_a_held_semaphore_is_resized(connect: Connect, pool: ThreadPoolExecutor, name: str) -> None:
    client = connect()
    one, two = client.semaphore(name, 2), connect().semaphore(name, 2)
    assert one.resize(3) == one.permits == 3  # It is free.
    assert one.resize(2) == 2
    assert one.acquire(2)
    waits = pool.submit(two.acquire, timeout=PATIENCE_S)
    until_queued(one, 1)
    assert one.resize(4) == 1
    assert waits.result(PATIENCE_S)
    assert (one.permits, one.available(), two.permits) == (4, 1, 2)
    with pytest.raises(InvalidRequestError, match="has 4 permits; this client asked for one with"):
        two.acquire()
    assert two.resize(4) == 1  # The cluster has this size already.
    assert two.acquire()
    assert one.resize(1) == one.available() == 0  # Four are held.
    one.release(2)
    assert one.acquire(blocking=False) is None
    two.release(2)
    with one:
        assert one.available() == 0
    with two, pytest.raises(InvalidRequestError, match="has 4 permits; this client asked for one"):
        one.resize(3)


def test_permits_are_given_back_in_parts_and_never_more_than_were_acquired(
    client: fencelock.Client, name: str
) -> None:
    semaphore = client.semaphore(name, 5)
    semaphore.acquire(2)
    semaphore.acquire(3)
    semaphore.release()
    assert amounts(semaphore.status()) == ([2, 2], [])
    semaphore.release(3)
    assert amounts(semaphore.status()) == ([1], [])
    with pytest.raises(ValueError, match="2 permits were released, 1 are held"):
        semaphore.release(2)
    semaphore.release()
    status = semaphore.status()
    assert (status.holder, status.holders, status.permits) == (None, (), 1)
    with pytest.raises(ValueError, match="1 permits were released, 0 are held"):
        semaphore.release()


def test_a_hold_gives_back_what_is_left_of_it(client: fencelock.Client, name: str) -> None:
    semaphore = client.semaphore(name, 4)
    hold = present(semaphore.acquire(3))
    assert (hold.name, hold.held) == (name, True)
    semaphore.release(2)
    assert hold.held
    hold.release()
    assert not hold.held
    assert semaphore.status().holder is None
    hold.release()  # Does nothing.


def test_with_holds_one_permit(client: fencelock.Client, name: str) -> None:
    semaphore = client.semaphore(name, 2, timeout=0)
    with semaphore as first, semaphore as second:
        assert first.fence < second.fence
        with pytest.raises(LockTimeoutError, match="2 of 2 permits are held"), semaphore:
            raise AssertionError
    assert semaphore.status().holder is None


def test_objects_of_one_name_and_other_kinds_differ(client: fencelock.Client, name: str) -> None:
    with (
        client.semaphore(name, 1),
        client.lock(name, timeout=0),
        client.rwlock(name, timeout=0).write(),
        client.election(name, timeout=0).lead("me"),
    ):
        assert (client.status(name).holders, client.status(name).permits) == ((), 1)
        assert len(client.status(object_name(SEMAPHORE, name)).holders) == 1
        listed = [one.lock for one in client.locks(name)]
        names = [(fencelock.kind_of(lock), fencelock.plain_name(lock)) for lock in listed]
        kinds = ["", "election", "rwlock", "semaphore"]
        assert sorted(names) == [(kind, name) for kind in kinds]
        assert client.semaphore(name, 1).acquire(blocking=False) is None


def test_a_wait_that_ends_lets_the_next_one_in(
    client: fencelock.Client, name: str, pool: ThreadPoolExecutor
) -> None:
    semaphore = client.semaphore(name, 3)
    semaphore.acquire()
    large = pool.submit(semaphore.acquire, 3, timeout=0.5)
    until_queued(semaphore, 3)
    assert semaphore.acquire(2, timeout=PATIENCE_S)
    assert large.result(PATIENCE_S) is None
    assert amounts(semaphore.status()) == ([1, 2], [])


def test_an_operator_takes_the_permits_of_one_grant(connect: Connect, name: str) -> None:
    semaphore, operator = connect().semaphore(name, 3), connect().semaphore(name, 3)
    kept, taken = semaphore.acquire(), semaphore.acquire(2)
    assert kept
    assert taken
    assert operator.evict(taken.fence, "root").times == 2
    until(lambda: taken.lost)
    assert kept.held
    with pytest.raises(LockOwnershipLostError, match="root"):
        taken.release()
    assert amounts(operator.status()) == ([1], [])


# Read/write locks


WRITES = RWLOCK_PERMITS


def test_readers_share_it_and_a_writer_waits_for_them_and_is_alone(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    first, second = one.read().acquire(), two.read().acquire()
    assert first
    assert second
    assert first.fence < second.fence
    writer = pool.submit(hold_to_write, one)
    until_queued(one, WRITES)
    reader = pool.submit(hold_to_read, two)
    until_queued(one, WRITES, 1)
    assert amounts(one.status()) == ([1, 1], [WRITES, 1])
    first.release()
    second.release()
    assert second.fence < writer.result(PATIENCE_S) < reader.result(PATIENCE_S)
    assert one.status().holder is None


def test_a_reader_holds_it_several_times_and_a_writer_reads(connect: Connect, name: str) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    with one.read() as first, one.read() as second:
        assert first.fence == second.fence
        assert amounts(two.status()) == ([2], [])
    with one.write(), one.read():
        assert amounts(two.status()) == ([WRITES], [])
        assert two.read().acquire(blocking=False) is None
    assert two.status().holder is None


@pytest.mark.parametrize("blocking", [True, False])
def test_a_refused_upgrade_keeps_the_hold(connect: Connect, name: str, blocking: bool) -> None:
    rw = connect().rwlock(name)
    with rw.read() as hold:
        with pytest.raises(
            fencelock.AlreadyHeldError, match="release it before you acquire it for writing"
        ):
            rw.write().acquire(blocking=blocking)
        assert hold.held
    with rw.write() as hold:
        assert hold.held


def test_the_write_side_is_held_only_by_an_owner_that_writes(connect: Connect, name: str) -> None:
    client = connect()
    rw, same, entries = client.rwlock(name), client.rwlock(name), client.map(name)
    with rw.read():
        assert (rw.read().held, rw.write().held, rw.write().fence) == (True, False, None)
        with pytest.raises(fencelock.NotHeldError):
            entries.put("k", b"by a reader", fence=rw.write())
    with rw.write() as hold:
        assert (rw.write().held, rw.read().held, same.write().held) == (True, True, True)
        entries.put("k", b"by a writer", fence=rw.write())
        with rw.read():
            assert rw.write().fence == rw.read().fence == hold.fence
        rw.write().downgrade()
        assert (rw.write().held, rw.read().held, hold.held) == (False, True, True)
        with pytest.raises(fencelock.NotHeldError, match="holds it to read, not to write"):
            rw.write().raise_if_lost()
    assert not rw.read().held


def test_a_downgrade_lets_readers_in_under_the_same_fence(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name)
    with one.write() as hold:
        reader = pool.submit(hold_to_read, two)
        until_queued(one, 1)
        one.write().downgrade()
        assert reader.result(PATIENCE_S) > hold.fence
        assert hold.held
        assert two.write().acquire(blocking=False) is None
        with pytest.raises(fencelock.InvalidRequestError, match="nothing to downgrade"):
            one.read().downgrade()
        assert hold.held
    assert one.status().holder is None
    with pytest.raises(fencelock.NotHeldError):
        one.write().downgrade()


def test_an_operator_takes_the_hold_of_a_reader(connect: Connect, name: str) -> None:
    rw = connect().rwlock(name)
    hold = present(rw.read().acquire())
    rw.evict(hold.fence, "root")
    with pytest.raises(LockOwnershipLostError):
        rw.read().release()
    assert rw.status().holder is None


@threads_only
def test_an_interrupted_downgrade_may_have_taken_effect(connect: Connect, name: str) -> None:
    rw = connect().rwlock(name)
    with rw.write() as hold:
        side = rw.write()
        downgrading = cast("Any", side.downgrade).__wrapped__(side)
        next(downgrading)
        downgrading.close()
        assert (rw.write().held, rw.read().held, hold.held) == (False, True, True)


def test_a_thread_does_not_release_what_another_holds(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    rw = connect().rwlock(name)
    with rw.read(), pytest.raises(fencelock.NotHeldError):
        pool.submit(rw.read().release).result(PATIENCE_S)
    shared = connect().rwlock(name, owner="job 7")
    shared.write().acquire()
    pool.submit(shared.write().release).result(PATIENCE_S)
    assert rw.status().holder is None


def test_a_wait_that_times_out_lets_the_next_one_in(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name), connect().rwlock(name, timeout=0.5)
    with one.read():
        writer = pool.submit(hold_to_write, two)
        until_queued(one, WRITES)
        assert pool.submit(hold_to_read, connect().rwlock(name)).result(PATIENCE_S)
        with pytest.raises(fencelock.LockTimeoutError, match="1 owners read"):
            writer.result(PATIENCE_S)


@threads_only
def test_permits_whose_release_is_refused_may_be_released_again(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a key whose rights were narrowed for a while."""
    semaphore = connect().semaphore(name, 5)
    channel = checked(SessionChannel, vars(semaphore)["_channel"])
    submit = channel.submit

    def refuse(message: Event, reply: AskReply) -> None:
        if isinstance(message, Release | ReleasePermits):
            reply.fail(ForbiddenError("not now"))
        else:
            submit(message, reply)

    for taken in ([2], [2, 1], [3]):
        for amount in taken:
            semaphore.acquire(amount)
        for released in (sum(taken), 1):  # All, or a part of a hold.
            with monkeypatch.context() as patch:
                patch.setattr(channel, "submit", refuse)
                with pytest.raises(ForbiddenError, match="not now"):
                    semaphore.release(released)
        assert f"{sum(taken)} of 5 permits held here" in repr(semaphore)
        semaphore.release(sum(taken))
        assert semaphore.available() == 5


@threads_only
def test_a_lost_hold_is_gone_once_all_its_parts_were_released(connect: Connect, name: str) -> None:
    semaphore = connect().semaphore(name, 5)
    semaphore.evict(present(semaphore.acquire(3)).fence)
    for _ in range(3):
        with pytest.raises((NotHeldError, LockOwnershipLostError)):
            semaphore.release()
    assert "0 of 5 permits held here" in repr(semaphore)
    semaphore.acquire(2)
    semaphore.release()
    semaphore.release()
    assert semaphore.available() == 5


@threads_only
def test_a_part_of_a_hold_whose_rest_another_thread_releases_first_is_released(
    connect: Connect, name: str
) -> None:
    semaphore = connect().semaphore(name, 4)
    semaphore.acquire(3)
    semaphore.acquire(1)
    slow = cast("Any", semaphore)._releasing_permits(2)  # One alone, and one of three.
    wait = next(slow)
    semaphore.release(2)  # The other two of the three.

    with suppress(StopIteration):
        while True:
            try:
                answered = wait.get(timeout=PATIENCE_S)
            except NotHeldError as error:
                wait = slow.throw(error)
            else:
                wait = slow.send(answered)
    assert semaphore.available() == 4
