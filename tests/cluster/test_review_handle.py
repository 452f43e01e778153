"""A lock object with two faults at once: leftover holds are released, others' locks are not
held."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from support.lock_scene import Scene, ScriptedSession

from fencelock import aio
from fencelock.actors.api.message import Acquire, Cancel
from fencelock.actors.error import ClosedError, NotHeldError, UnavailableError
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.client.lock import RLock
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply

PATIENCE_S = 30


@pytest.fixture
def session() -> ScriptedSession:
    return ScriptedSession()


@pytest.fixture
def scene(session: ScriptedSession) -> Iterator[Scene]:
    executor = ThreadExecutor()
    yield Scene(session, executor)
    executor.stop(PATIENCE_S)


@pytest.fixture
def lock(scene: Scene) -> RLock:
    return scene.rlock()


def waiting(session: ScriptedSession) -> list[AskReply]:
    return [reply for asked, reply in session.asked if isinstance(asked, Acquire)]


def tokens(session: ScriptedSession) -> list[int]:
    return [asked.request for asked in session.asks()]


def test_each_level_is_released_though_no_release_is_confirmed(
    lock: RLock, session: ScriptedSession
) -> None:
    """The session repeats the inner release; of the outer one it has to be told."""

    def work() -> None:
        with lock, lock:
            session.refusal = UnavailableError("silent")

    with pytest.raises(UnavailableError):
        work()
    (cancel,) = session.told
    assert isinstance(cancel, Cancel)
    assert (cancel.lock, cancel.owner, cancel.request) == ("x", "ann", tokens(session)[0])
    session.refusal, session.count = None, 2
    lock.release()  # To wait for the release in the background; the session does the rest.
    assert lock.state is HoldState.FREE
    with pytest.raises(NotHeldError):
        lock.release()


def test_a_forked_process_holds_nothing(lock: RLock, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_granted_to_a_task_of_a_closed_loop_is_given_back(
    scene: Scene, session: ScriptedSession
) -> None:
    hold_registry = scene.hold_registry
    session.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)  # "Task was destroyed but it is pending".

    async def begin() -> asyncio.Task[aio.Hold | None]:
        lock = scene.aio_lock()
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    (reply,) = waiting(session)
    reply.set(session.grant("x", "ann", 1))
    (cancel,) = session.told
    assert isinstance(cancel, Cancel)
    assert cancel.request == tokens(session)[0]
    assert (session.abandoned, hold_registry.find("x", "ann")) == ([reply], None)
    assert not task.done()


@pytest.mark.parametrize("later", [True, False])
def test_so_is_what_was_granted_just_before_the_loop_was_closed(
    scene: Scene, session: ScriptedSession, later: bool
) -> None:
    hold_registry = scene.hold_registry
    session.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)

    async def begin() -> list[asyncio.Task[aio.Hold | None]]:
        locks = [scene.aio_lock(name) for name in "xy"]
        tasks = [asyncio.create_task(lock.acquire()) for lock in locks]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    first, second = waiting(session)
    first.set(session.grant("x", "ann", 1))
    loop.close()
    if later:
        second.set(session.grant("y", "ann", 2))  # Who is told last finds the loop closed.
    else:
        tasks.clear()
        del first, second, loop
        session.asked.clear()
        gc.collect()
    cancelled = {cancel.lock for cancel in session.told if isinstance(cancel, Cancel)}
    assert cancelled == {"x", "y"}
    assert (hold_registry.find("x", "ann"), hold_registry.find("y", "ann")) == (None, None)


def test_a_loop_whose_thread_was_interrupted_is_told_of_the_next_answer(
    scene: Scene, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_registry = scene.hold_registry
    bobs, anns = (scene.aio_lock(owner=who) for who in ("bob", "ann"))

    async def contend() -> aio.Hold | None:
        session.mute = True
        bob_waits = asyncio.create_task(bobs.acquire())
        await asyncio.sleep(0)
        session.mute = False
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await anns.acquire()
        waiting(session)[0].set(session.grant("x", "bob", 7))
        return await asyncio.wait_for(bob_waits, PATIENCE_S)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # As the handler of a signal may, at any time.

    loop = asyncio.new_event_loop()
    try:
        hold = loop.run_until_complete(contend())
        assert hold is not None
        assert hold.fence == 7
    finally:
        loop.close()
    assert hold_registry.find("x", "ann") is None
