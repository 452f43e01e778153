"""Locks that a client retains, as threads and tasks see them: as others, but without messages."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.faces import FACES, Cables, Connect
from support.programs import forks, in_child, refusal
from support.real_nodes import until

import fencelock
from fencelock import aio
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client import rwlock
from fencelock.cluster.client.hold_registry import HoldRegistry
from fencelock.cluster.client.lock import AsyncLock

READ, WRITE = "read", "write"


@pytest.fixture
def far(cables: Cables) -> Iterator[fencelock.Client]:
    """A client behind cables, whose session is suspect after 0.75 s of silence."""
    addresses = cables.addresses
    with fencelock.connect(addresses, cluster=FACES, ttl=1.5, retain=60) as client:
        yield client
        cables.mend()


def holder_of(lock: Any) -> tuple[str, int]:
    holder = lock.status().holder
    return ("", 0) if holder is None else (holder.owner, holder.fence)


def test_the_client_holds_it_and_its_owners_have_the_fences_of_its_span(
    connect: Connect, name: str
) -> None:
    lock = connect().lock(name, retain=60)
    fences: list[int] = []
    for _ in range(3):
        with lock as hold:
            fences.append(hold.fence)
            assert hold.held
            assert lock.held
            assert lock.locked()
        assert not hold.held
        assert not lock.locked()
    assert fences == [fences[0] + n for n in range(3)]
    assert holder_of(lock) == ("*", fences[0])


def test_an_idle_lock_is_taken_again_without_a_message(
    far: fencelock.Client, cables: Cables, name: str
) -> None:
    lock = far.lock(name)
    with lock:
        pass
    cables.cut()
    with lock as hold:
        assert hold.held
    assert lock.acquire(blocking=False)


def test_a_wait_that_was_left_to_the_cluster_can_be_cancelled(connect: Connect, name: str) -> None:
    lock, rival = connect().lock(name, retain=60), connect().lock(name)
    with lock:
        pass
    with ThreadPoolExecutor(1) as pool, rival:  # A recall: it is not retained for a while.
        waiting = pool.submit(lock.acquire)
        until(lambda: len(rival.status().waiters) == 1)
        lock.cancel()
        with pytest.raises(fencelock.AcquireCancelledError):
            waiting.result(PATIENCE_S)
    assert rival.acquire(blocking=False)


def test_nothing_is_granted_here_while_the_session_is_suspect(
    far: fencelock.Client, cables: Cables, name: str
) -> None:
    lock = far.lock(name)
    watched = far.lock(f"{name} too", retain=0).acquire()
    with lock:
        pass
    cables.cut()
    until(lambda: watched.suspect)
    with pytest.raises(fencelock.UnavailableError):
        lock.acquire(timeout=0.1)


def test_a_span_that_is_used_up_is_followed_by_another(connect: Connect, name: str) -> None:
    lock, last = connect().lock(name, retain=60), 0
    for _ in range(2_100):
        with lock as hold:
            assert hold.fence > last
            last = hold.fence


def test_another_client_has_an_idle_lock_at_once(connect: Connect, name: str) -> None:
    lock, other = connect().lock(name, retain=60), connect().lock(name)
    with lock as mine:
        pass
    with other as theirs:
        assert theirs.fence > mine.fence
        assert holder_of(lock) == (theirs.owner, theirs.fence)
    with lock:  # It is not retained again so soon after a recall.
        assert holder_of(lock)[0] != "*"


def test_another_clients_try_has_an_idle_lock_and_not_one_in_use(
    connect: Connect, name: str
) -> None:
    lock, other = connect().lock(name, retain=60, cohort=1), connect().lock(name)
    with lock:
        assert other.acquire(blocking=False) is None
    with lock:
        pass
    assert other.acquire(blocking=False)


def test_another_client_waits_for_the_owner_that_has_it_and_for_no_other(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    lock, other = connect().lock(name, retain=60), connect().lock(name)
    hold = present(lock.acquire())
    theirs = pool.submit(other.acquire)
    until(lambda: len(lock.status().waiters) == 1)
    mine = pool.submit(lock.acquire)
    until(lambda: len(lock.status().waiters) == 2)
    assert not theirs.done()
    hold.release()
    second = present(theirs.result(PATIENCE_S))
    assert second.fence > hold.fence
    second.release()
    assert present(mine.result(PATIENCE_S)).fence > second.fence


def test_a_cohort_has_it_before_another_client(
    connect: Connect, name: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelock.actors.session.retained.COHORT_MS", 1_000 * PATIENCE_S)
    lock, other = connect().lock(name, retain=60, cohort=2), connect().lock(name)
    hold = present(lock.acquire())
    order: list[str] = []

    def work(who: str, lock: fencelock.Lock) -> None:
        with lock:
            order.append(who)

    mine = [pool.submit(work, "mine", lock) for _ in range(2)]
    until(lambda: len(waiting_here(lock)) == 2)
    theirs = pool.submit(work, "theirs", other)
    until(lambda: len(lock.status().waiters) == 1)
    hold.release()
    for one in [*mine, theirs]:
        one.result(PATIENCE_S)
    assert order == ["mine", "mine", "theirs"]


def waiting_here(lock: Any) -> list[int]:
    """Return the tokens of the local owners that wait for ``lock``."""
    return [*lock._registry.retaining._calls]


def test_owners_here_are_served_in_order(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    lock = connect().lock(name, retain=60)
    order: list[int] = []

    def work(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        waits: list[Any] = []
        for number in range(5):
            waits.append(pool.submit(work, number))
            until(lambda: len(waiting_here(lock)) == len(waits))
    for wait in waits:
        wait.result(PATIENCE_S)
    assert order == [*range(5)]


def test_an_acquire_that_does_not_wait_or_timed_out_leaves_nothing(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    client = connect()
    lock = client.lock(name, retain=60)
    with lock:
        assert pool.submit(lock.acquire, blocking=False).result(PATIENCE_S) is None
        assert pool.submit(lock.acquire, timeout=0.05).result(PATIENCE_S) is None
        with pytest.raises(fencelock.LockTimeoutError, match="of this client"):
            client.lock(name, retain=60, timeout=0.05).__enter__()
        assert holder_of(lock)[0] == "*"
        assert not lock.status().waiters
    assert lock.acquire(timeout=0)


def test_an_rlock_is_entered_again_by_its_owner_only_and_within_its_limit(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    lock = connect().rlock(name, limit=2, retain=60)
    with lock as first, lock as second:
        assert first.fence == second.fence
        assert pool.submit(lock.acquire, blocking=False).result(PATIENCE_S) is None
        with pytest.raises(fencelock.NotHeldError):
            pool.submit(lock.release).result(PATIENCE_S)
        with pytest.raises(fencelock.LimitReachedError, match="held 2 times"):
            lock.acquire()
    assert not lock.held
    assert pool.submit(lock.acquire).result(PATIENCE_S)


def test_readers_of_one_client_share_one_hold(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = connect().rwlock(name, retain=60), connect().rwlock(name)
    with one.read() as first:
        second = present(pool.submit(one.read().acquire).result(PATIENCE_S))
        assert first.fence < second.fence
        assert [holder.owner for holder in one.status().holders] == ["*readers"]
        writer = pool.submit(two.write().acquire)
        until(lambda: len(one.status().waiters) == 1)
        with pytest.raises(fencelock.AlreadyHeldError, match="for reading"):
            one.write().acquire()
    assert not writer.done()
    second.release()
    assert writer.result(PATIENCE_S)


def test_a_retained_writer_reads_and_turns_into_a_reader(connect: Connect, name: str) -> None:
    one, two = connect().rwlock(name, retain=60), connect().rwlock(name)
    with one.write() as hold, one.read():
        assert two.read().acquire(blocking=False) is None
        one.write().downgrade()
        assert two.read().acquire(timeout=PATIENCE_S)
        assert hold.held
    two.read().release() if two.read().held else None
    with one.write():
        pass


def test_an_owner_enters_again_only_while_it_has_the_lock(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of a named owner releases the lock while another is about to enter again."""
    client = connect()
    one, two = (client.rlock(name, owner="job", retain=60) for _ in range(2))
    one.acquire()
    registry, enter = client._connection.hold_registry, HoldRegistry.enter

    def interleaved(*arguments: Any, **named: Any) -> Any:
        blocker = enter(registry, *arguments, **named)
        monkeypatch.undo()
        one.release()
        return blocker

    monkeypatch.setattr(registry, "enter", interleaved)
    assert two.acquire()
    assert two.held
    assert client.lock(name, owner="other", retain=60).acquire(blocking=False) is None
    two.release()


def test_a_loss_during_a_release_is_reported_by_the_release(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    lock = client.lock(name, retain=60)
    hold = present(lock.acquire())
    retaining = client._connection.retaining
    release = retaining.release

    def lost_meanwhile(*arguments: Any) -> None:
        client.evict(name, hold_fence, "root")
        until(lambda: hold.own.retained is None)
        release(*arguments)

    hold_fence = holder_of(lock)[1]
    monkeypatch.setattr(retaining, "release", lost_meanwhile)
    with pytest.raises(fencelock.LockOwnershipLostError):
        hold.release()


def test_a_downgrade_after_an_unseen_loss_leaves_the_next_writer_alone(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = connect(), connect().rwlock(name)
    mine = client.rwlock(name, owner="mine", retain=60).write()
    theirs = client.rwlock(name, owner="theirs", retain=60).write()
    mine.acquire()

    def lost_meanwhile(*arguments: Any) -> None:
        monkeypatch.undo()
        other.evict(other.status().holders[0].fence or 0, "root")
        assert theirs.acquire(timeout=PATIENCE_S)

    monkeypatch.setattr(rwlock, "check_held", lost_meanwhile)
    with pytest.raises((fencelock.LockOwnershipLostError, fencelock.NotHeldError)):
        mine.downgrade()
    assert other.read().acquire(blocking=False) is None
    assert theirs.held


def test_a_lock_that_is_due_sooner_goes_back_sooner(connect: Connect, name: str) -> None:
    client = connect()
    with client.lock(f"{name} late", retain=3_600), client.lock(f"{name} soon", retain=0.2):
        pass
    lock = client.lock(f"{name} soon")
    until(lambda: holder_of(lock) == ("", 0))


def test_waits_end_when_the_client_ends_by_itself(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    client = connect()
    lock = client.lock(name, retain=60)
    lock.acquire()
    wait = pool.submit(lock.acquire)
    until(lambda: len(waiting_here(lock)) == 1)
    client._connection.stop()
    with pytest.raises(fencelock.AcquireCancelledError):
        wait.result(PATIENCE_S)
    with pytest.raises(fencelock.ClosedError):
        lock.acquire()


def test_a_loop_that_is_gone_does_not_stop_the_client(paxos_addresses: str, name: str) -> None:
    """A task waits for a retained lock on a loop that is closed; then its turn comes."""
    with fencelock.connect(paxos_addresses, cluster=FACES, retain=60) as client:
        lock = client.lock(name)
        hold = present(lock.acquire())
        loop = asyncio.new_event_loop()
        waiting = AsyncLock(lock._channel, lock._options)
        tasks: list[asyncio.Task[Any]] = []

        async def begin() -> None:
            tasks.append(loop.create_task(waiting.acquire()))
            while not waiting_here(lock):
                await asyncio.sleep(0)

        loop.run_until_complete(begin())
        loop.close()
        hold.release()
        assert lock.acquire(timeout=PATIENCE_S)


def test_a_lost_lock_is_reported_to_the_owner_that_has_it(connect: Connect, name: str) -> None:
    client = connect()
    lock = client.lock(name, retain=60)
    lost: list[str] = []
    lock.on_lost(lambda notice: lost.append(notice.lock))
    with lock:
        pass
    hold = present(lock.acquire())
    client.evict(name, holder_of(lock)[1], "root")
    until(lambda: bool(lost))
    assert hold.state is HoldState.LOST
    with pytest.raises(fencelock.LockOwnershipLostError, match="taken by 'root"):
        hold.raise_if_lost()
    with pytest.raises(fencelock.LockOwnershipLostError):
        lock.release()
    with lock as again:
        assert again.fence > hold.fence
    assert lost == [name]


def test_an_idle_lock_goes_back_in_time(connect: Connect, name: str) -> None:
    lock = connect().lock(name, retain=0.2)
    with lock:
        pass
    until(lambda: holder_of(lock) == ("", 0))


def test_close_gives_everything_back_and_ends_the_waits(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    client, other = connect(), connect()
    idle, used = client.lock(f"{name} idle", retain=60), client.lock(f"{name} used", retain=60)
    with idle:
        pass
    hold = used.acquire()
    wait = pool.submit(used.acquire)
    until(lambda: len(waiting_here(used)) == 1)
    client.close()
    with pytest.raises(fencelock.AcquireCancelledError, match="the client was closed"):
        wait.result(PATIENCE_S)
    assert hold is not None
    assert not hold.held
    with pytest.raises(fencelock.ClosedError):
        idle.acquire()
    for suffix in ("idle", "used"):
        assert other.lock(f"{name} {suffix}").acquire(timeout=PATIENCE_S)


@forks
def test_a_forked_child_of_a_retaining_client_grants_nothing(connect: Connect, name: str) -> None:
    lock = connect().lock(name, retain=60)
    with lock:
        pass
    in_child(lambda: bool(refusal(fencelock.ClosedError, lock.acquire)))
    assert lock.acquire(timeout=0)


async def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing(
    paxos_addresses: str, name: str
) -> None:
    async with aio.connect(paxos_addresses, cluster=FACES, retain=60) as client:
        lock = client.lock(name)
        async with lock as hold:
            waiting = asyncio.create_task(lock.acquire())
            while not waiting_here(lock):
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with lock as again:
            assert again.fence == hold.fence + 1


def test_threads_that_fight_for_retained_locks_exclude_each_other(
    connect: Connect, name: str
) -> None:
    clients, inside, fences = [connect(), connect()], [0], list[int]()

    def work(client: fencelock.Client, number: int) -> None:
        lock = client.lock(name, retain=60, cohort=number)
        for _ in range(60):
            with lock as hold:
                inside[0] += 1
                assert inside[0] == 1
                fences.append(hold.fence)
                time.sleep(0)
                inside[0] -= 1

    with ThreadPoolExecutor(6) as threads:
        works = [threads.submit(work, clients[n % 2], n % 2) for n in range(6)]
        for one in works:
            one.result(PATIENCE_S)
    assert len(fences) == 360
    assert fences == sorted(set(fences))


def test_a_retained_hold_is_not_renewed(client: fencelock.Client, name: str) -> None:
    with client.lock(name, retain=1) as hold, pytest.raises(fencelock.UnsupportedError):
        hold.renew()


def test_a_client_may_retain_all_its_locks(paxos_addresses: str, name: str) -> None:
    with fencelock.connect(paxos_addresses, cluster=FACES, retain=60) as client:
        for lock, owner in ((client.lock(name), "*"), (client.lock(f"{name} 2", retain=0), "")):
            with lock:
                pass
            assert holder_of(lock)[0] == owner
        with client.lock(f"{name} 3", duration=5) as hold:
            assert hold.deadline is not None


def test_elections_and_semaphores_of_such_a_client_are_as_those_of_others(
    paxos_addresses: str, name: str
) -> None:
    with fencelock.connect(paxos_addresses, cluster=FACES, retain=60) as client:
        election = client.election(name)
        with election.lead("me") as term:
            assert election.leader() == fencelock.Leader("me", term.fence)
        assert election.leader() is None
        with client.semaphore(name, 2):
            assert client.semaphore(name, 2).available() == 1
        assert client.semaphore(name, 2).available() == 2


Step = Callable[[Any], object]

STEPS: dict[str, Step] = {
    "try": lambda lock: lock.acquire(blocking=False) is not None,
    "wait": lambda lock: lock.acquire(timeout=10.0) is not None,
    "wait in vain": lambda lock: lock.acquire(timeout=0.02) is not None,
    "release": lambda lock: lock.release(),
    "release at once": lambda lock: lock.release(wait=False),
    "held": lambda lock: (lock.held, lock.lost, lock.fence is None),
}


def ran(step: str, lock: Any) -> object:
    try:
        return STEPS[step](lock)
    except fencelock.FencelockError as error:
        return type(error).__name__


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_see_what_they_see_with_plain_locks(
    connect: Connect, name: str, seed: int
) -> None:
    """Two locks and an rlock of one client, and one lock of another, of one name, step by step."""
    chance = random.Random(seed)
    steps = [step for step in STEPS if step != "wait in vain"]
    program = [(chance.randrange(4), chance.choice(steps)) for _ in range(25)]
    seen: list[list[object]] = []
    for retain, suffix in ((0.0, "plain"), (60.0, "retained")):
        one, two = connect(), connect()
        named = f"{name} {suffix}"
        locks: list[Any] = [
            one.lock(named, retain=retain),
            one.lock(named, retain=retain, owner="job"),
            one.rlock(named, retain=retain),
            two.lock(named, retain=retain),
        ]
        seen.append([])
        for who, step in program:
            # Only who waits for a name that is taken waits briefly: a slow machine changes nothing.
            in_vain = step == "wait" and any(lock.held for lock in locks)
            outcome = ran("wait in vain" if in_vain else step, locks[who])
            seen[-1].append((who, step, outcome))
    assert seen[0] == seen[1]
