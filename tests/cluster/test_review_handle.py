"""A handle where two misfortunes meet: what is left is released, what is not mine is not held."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from fencelock import aio
from fencelock.actors.api.message import Acquire, Cancel, Granted, Release, Released
from fencelock.actors.error import ClosedError, NotHeldError, UnavailableError
from fencelock.actors.message import Event, Instant
from fencelock.cluster.callback_executor import ThreadExecutor
from fencelock.cluster.fork_counter import ForkCounter
from fencelock.cluster.hold_registry import HoldRegistry
from fencelock.cluster.host.pending_asks import Reply
from fencelock.cluster.local_hold import HoldState
from fencelock.cluster.lock import Lock
from fencelock.cluster.lock_options import LockOptions
from fencelock.cluster.session_channel import SessionChannel

PATIENCE_S = 30


class SlowSession:
    """A session that grants all, and answers releases as it is told."""

    def __init__(self) -> None:
        self.count = 0
        self.silent = self.mute = False
        self.tokens: list[int] = []
        self.told: list[Event] = []
        self.waiting: list[Reply] = []
        self.abandoned: list[Reply] = []

    def submit(self, message: Event, reply: Reply) -> None:
        match message:
            case Acquire(lock=lock, request=token):
                self.count += 1
                self.tokens.append(token)
                self.waiting.append(reply)
                if not self.mute:
                    reply.set(Granted(lock=lock, fence=1, count=self.count))
            case Release() if self.silent:
                reply.fail(UnavailableError("silent"))
            case Release(lock=lock):
                self.count -= 1
                reply.set(Released(lock=lock, count=self.count))
            case _:
                raise AssertionError(message)

    def abandon(self, reply: Reply) -> None:
        self.abandoned.append(reply)

    def tell(self, message: Event) -> None:
        self.told.append(message)


@pytest.fixture
def session() -> SlowSession:
    return SlowSession()


@pytest.fixture
def lock(session: SlowSession) -> Iterator[Lock]:
    executor = ThreadExecutor()
    hold_registry = HoldRegistry(lambda: Instant(0), executor)
    yield Lock(SessionChannel(session), hold_registry, LockOptions("x", owner="ann", limit=0))
    executor.stop(PATIENCE_S)


def test_each_level_is_released_though_no_release_is_confirmed(
    lock: Lock, session: SlowSession
) -> None:
    """The session repeats the inner release; of the outer one it has to be told."""

    def work() -> None:
        with lock, lock:
            session.silent = True

    with pytest.raises(UnavailableError):
        work()
    (cancel,) = session.told
    assert isinstance(cancel, Cancel)
    assert (cancel.lock, cancel.owner, cancel.request) == ("x", "ann", session.tokens[0])
    session.silent, session.count = False, 2
    lock.release()  # To wait for what goes on in the background; the session does the rest.
    assert lock.state is HoldState.FREE
    with pytest.raises(NotHeldError):
        lock.release()


def test_a_forked_process_holds_nothing(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.acquire()
    parent = ForkCounter.forks
    monkeypatch.setattr(ForkCounter, "forks", parent + 1)
    assert (lock.held, lock.state, lock.fence) == (False, HoldState.FREE, None)
    assert "not held here" in repr(lock)
    with pytest.raises(ClosedError):
        lock.release()
    with pytest.raises(NotHeldError):
        lock.raise_if_lost()
    monkeypatch.setattr(ForkCounter, "forks", parent)
    assert (lock.held, lock.fence) == (True, 1)


def test_what_is_granted_to_a_task_of_a_closed_loop_is_given_back(session: SlowSession) -> None:
    executor = ThreadExecutor()
    hold_registry = HoldRegistry(lambda: Instant(0), executor)
    session.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)  # "Task was destroyed but it is pending".

    async def begin() -> asyncio.Task[int | None]:
        lock = aio.Lock(SessionChannel(session), hold_registry, LockOptions("x", owner="ann"))
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    (reply,) = session.waiting
    reply.set(Granted(lock="x", fence=1))
    (cancel,) = session.told
    assert isinstance(cancel, Cancel)
    assert cancel.request == session.tokens[0]
    assert (session.abandoned, hold_registry.find("x", "ann")) == ([reply], None)
    assert not task.done()
    executor.stop(PATIENCE_S)


@pytest.mark.parametrize("later", [True, False])
def test_so_is_what_was_granted_just_before_the_loop_was_closed(
    session: SlowSession, later: bool
) -> None:
    hold_registry = HoldRegistry(lambda: Instant(0), ThreadExecutor())
    session.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)

    async def begin() -> list[asyncio.Task[int | None]]:
        locks = [
            aio.Lock(SessionChannel(session), hold_registry, LockOptions(name, owner="ann"))
            for name in "xy"
        ]
        tasks = [asyncio.create_task(lock.acquire()) for lock in locks]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    first, second = session.waiting
    first.set(Granted(lock="x", fence=1))
    loop.close()
    if later:
        second.set(Granted(lock="y", fence=2))  # Who is told last finds the loop closed.
    else:
        tasks.clear()
        del first, second, loop
        session.waiting.clear()
        gc.collect()
    cancelled = {cancel.lock for cancel in session.told if isinstance(cancel, Cancel)}
    assert cancelled == {"x", "y"}
    assert (hold_registry.find("x", "ann"), hold_registry.find("y", "ann")) == (None, None)


def test_a_loop_whose_thread_was_interrupted_is_told_of_the_next_answer(
    session: SlowSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = ThreadExecutor()
    hold_registry = HoldRegistry(lambda: Instant(0), executor)
    bobs, anns = (
        aio.Lock(SessionChannel(session), hold_registry, LockOptions("x", owner=who))
        for who in ("bob", "ann")
    )

    async def contend() -> int | None:
        session.mute = True
        waiting = asyncio.create_task(bobs.acquire())
        await asyncio.sleep(0)
        session.mute = False
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await anns.acquire()
        session.waiting[0].set(Granted(lock="x", fence=7))
        return await asyncio.wait_for(waiting, PATIENCE_S)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # As the handler of a signal may, at any time.

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(contend()) == 7
    finally:
        loop.close()
        executor.stop(PATIENCE_S)
    assert hold_registry.find("x", "ann") is None
