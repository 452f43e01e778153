"""A hold: suspect, lost, reported, acquired anew, and with two faults at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress

import pytest
from support.expect import PATIENCE_S, checked, only, present
from support.lock_scene import Scene, ScriptedSession

from fencelock import aio
from fencelock.actors.api.lock_message import Acquire, Cancel, Release
from fencelock.actors.error import (
    ClosedError,
    LockOwnershipLostError,
    NotHeldError,
    UnavailableError,
)
from fencelock.actors.message import Instant
from fencelock.actors.session.event import Suspected
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.client.lock import RLock
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply


def test_a_hold_is_judged_by_the_clock_when_it_is_looked_at(scene: Scene) -> None:
    lock = scene.lock()
    states = [(lock.state, lock.held, lock.lost)]
    lock.acquire()
    states.append((lock.state, lock.held, lock.lost))  # Without sessions nothing runs out.
    scene.trust(suspect_at=50, until=100)
    for now in (49, 50, 99, 100):
        scene.session.now = Instant(now)
        states.append((lock.state, lock.held, lock.lost))
    assert states == [
        (HoldState.FREE, False, False),
        (HoldState.HELD, True, False),
        (HoldState.HELD, True, False),
        (HoldState.SUSPECT, True, False),
        (HoldState.SUSPECT, True, False),
        (HoldState.LOST, False, True),
    ]


def test_late_news_do_not_bring_back_what_was_over(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(100)
    assert lock.state is HoldState.LOST
    scene.trust(suspect_at=150, until=200)
    assert lock.state is HoldState.LOST
    with pytest.raises(LockOwnershipLostError):
        lock.release()
    assert scene.session.received == [
        Release(lock="x", fence=1, owner="ann")
    ]  # The session may hold on.


def test_news_in_time_end_the_doubt(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(99)
    scene.trust(suspect_at=150, until=200)
    assert lock.state is HoldState.HELD


def test_a_release_after_the_loss_reports_it_and_then_it_is_not_held(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.lose(fence=1)
    assert (lock.state, lock.held, lock.fence) == (HoldState.LOST, False, 1)
    with pytest.raises(LockOwnershipLostError, match="fence 1: the session ended"):
        lock.release()
    assert (lock.state, lock.fence) == (HoldState.FREE, None)
    with pytest.raises(NotHeldError):
        lock.release()
    assert not [asked for asked, _ in scene.session.asked if isinstance(asked, Release)]


def test_the_loss_of_a_session_is_reported_once(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.lose(fence=1, detail="lock 'x': taken by root@ops")
    with pytest.raises(LockOwnershipLostError) as caught:
        lock.release()
    assert (
        str(caught.value) == "lock 'x': owner 'ann' lost its hold under fence 1: taken by root@ops"
    )


def test_a_loss_of_another_fence_or_owner_is_not_this_holds(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.lose(fence=7)
    scene.lose(fence=1, owner="bob")
    assert lock.held


def test_raise_if_lost_raises_each_time_and_the_handle_can_acquire_again(scene: Scene) -> None:
    lock = scene.lock()
    with pytest.raises(NotHeldError):
        lock.raise_if_lost()
    lock.acquire()
    lock.raise_if_lost()
    scene.lose(fence=1)
    for _ in range(2):
        with pytest.raises(LockOwnershipLostError):
            lock.raise_if_lost()
    assert lock.acquire()
    assert lock.fence == 2
    lock.raise_if_lost()


def test_an_acquire_after_an_unreported_loss_reports_it_once(scene: Scene) -> None:
    lock = scene.rlock()
    lock.acquire()
    scene.lose(fence=1)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    assert lock.acquire(blocking=False)
    assert lock.fence == 2


def test_a_loss_while_entering_again_is_reported_and_the_new_grant_given_back(scene: Scene) -> None:
    lock = scene.rlock()
    lock.acquire()
    scene.session.before = lambda: scene.lose(fence=1)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    asked = checked(Acquire, scene.session.asked[-1][0])
    cancel = Cancel(lock="x", session="", owner="ann", request=asked.request)
    assert scene.session.received == [cancel]
    assert lock.state is HoldState.FREE


def test_a_grant_that_comes_when_the_session_is_over_is_no_hold(scene: Scene) -> None:
    lock = scene.lock()
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(100)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    assert lock.state is HoldState.FREE


def test_the_end_of_with_reports_the_loss(scene: Scene) -> None:
    lock = scene.lock()
    with pytest.raises(LockOwnershipLostError), lock:
        scene.lose(fence=1)
    with lock:
        assert lock.fence == 2


def test_the_bodys_error_goes_on_with_a_note_about_the_loss(scene: Scene) -> None:
    def work() -> None:
        with scene.lock():
            scene.lose(fence=1)
            raise KeyError("body")

    with pytest.raises(KeyError) as caught:
        work()
    (note,) = caught.value.__notes__
    assert note.startswith("and the lock was lost before: lock 'x'")


def test_a_body_that_checks_raises_the_loss_itself_without_a_note(scene: Scene) -> None:
    def work() -> None:
        with scene.lock() as lock:
            scene.lose(fence=1)
            lock.raise_if_lost()

    with pytest.raises(LockOwnershipLostError) as caught:
        work()
    assert not hasattr(caught.value, "__notes__")


def test_callbacks_receive_doubt_and_loss_once_and_may_block(scene: Scene) -> None:
    notices: list[Notice] = []
    lost = threading.Event()
    lock, other = scene.rlock(limit=1), scene.rlock(limit=1)

    def note(notice: Notice) -> None:
        notices.append(notice)
        lost.set()

    lock.on_suspect(notices.append)
    other.on_lost(notices.append)  # It acquired nothing.
    scene.hold_registry.listeners.add(HoldState.LOST, note)

    def acquire_again(_: Notice) -> None:
        with suppress(LockOwnershipLostError):
            lock.acquire()

    lock.on_lost(acquire_again)
    lock.acquire()
    scene.hold_registry.on_event(Suspected(silent_ms=7, left_ms=8))
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(100)
    assert lock.lost
    scene.lose(fence=1)
    assert lost.wait(PATIENCE_S)
    assert [(n.lock, n.owner, n.fence, n.state) for n in notices] == [
        ("x", "ann", 1, HoldState.SUSPECT),
        ("x", "ann", 1, HoldState.LOST),
    ]
    assert "7 ms" in notices[0].detail
    assert "TTL" in notices[1].detail


def test_a_hold_whose_owner_was_granted_the_lock_anew_is_lost(scene: Scene) -> None:
    """The loss came, and was reported, while the owner was acquiring once more."""
    lock, session = scene.rlock(), scene.session
    first = present(lock.acquire())
    session.mute = True
    again = lock._acquiring(True, None)  # pyright: ignore[reportPrivateUsage]
    reply = next(again)
    scene.lose(fence=1)
    with pytest.raises(LockOwnershipLostError):
        first.raise_if_lost()
    session.mute = False
    asked, call = session.asked[-1]
    call.set(session.answer(asked))
    assert call is reply
    with pytest.raises(StopIteration) as ended:
        again.send(call.get())
    assert (ended.value.value.held, ended.value.value.fence) == (True, 2)
    assert (first.state, first.held, first.lost) == (HoldState.LOST, False, True)
    with pytest.raises(LockOwnershipLostError, match="granted the lock anew"):
        first.raise_if_lost()


@pytest.fixture
def lock(scene: Scene) -> RLock:
    return scene.rlock()


def waiting(script: ScriptedSession) -> list[AskReply]:
    return [reply for asked, reply in script.asked if isinstance(asked, Acquire)]


def tokens(script: ScriptedSession) -> list[int]:
    return [asked.request for asked in script.asks()]


def test_each_level_is_released_though_unconfirmed(lock: RLock, script: ScriptedSession) -> None:
    """The session repeats the inner release; for the outer level the lock sends a cancel."""

    def work() -> None:
        with lock, lock:
            script.refusal = UnavailableError("silent")

    with pytest.raises(UnavailableError):
        work()
    cancel = only(Cancel, script.received)
    assert (cancel.lock, cancel.owner, cancel.request) == ("x", "ann", tokens(script)[0])
    script.refusal, script.count = None, 2
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


def test_a_grant_to_a_task_of_a_closed_loop_is_given_back(
    scene: Scene, script: ScriptedSession
) -> None:
    hold_registry = scene.hold_registry
    script.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)  # "Task was destroyed but it is pending".

    async def begin() -> asyncio.Task[aio.Hold | None]:
        lock = scene.aio_lock()
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    (reply,) = waiting(script)
    reply.set(script.grant("x", "ann", 1))
    assert only(Cancel, script.received).request == tokens(script)[0]
    assert (script.abandoned, hold_registry.find("x", "ann")) == ([reply], None)
    assert not task.done()


@pytest.mark.parametrize("later", [True, False])
def test_so_is_what_was_granted_just_before_the_loop_was_closed(
    scene: Scene, script: ScriptedSession, later: bool
) -> None:
    hold_registry = scene.hold_registry
    script.mute = True
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)

    async def begin() -> list[asyncio.Task[aio.Hold]]:
        locks = [scene.aio_lock(name) for name in "xy"]
        tasks = [asyncio.create_task(lock.acquire()) for lock in locks]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    first, second = waiting(script)
    first.set(script.grant("x", "ann", 1))
    loop.close()
    if later:
        second.set(
            script.grant("y", "ann", 2)
        )  # The last one to be notified finds the loop closed.
    else:
        tasks.clear()
        del first, second, loop
        script.asked.clear()
        gc.collect()
    cancelled = {cancel.lock for cancel in script.received if isinstance(cancel, Cancel)}
    assert cancelled == {"x", "y"}
    assert (hold_registry.find("x", "ann"), hold_registry.find("y", "ann")) == (None, None)


def test_a_loop_whose_thread_was_interrupted_is_notified_of_the_next_reply(
    scene: Scene, script: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_registry = scene.hold_registry
    bobs, anns = (scene.aio_lock(owner=who) for who in ("bob", "ann"))

    async def contend() -> aio.Hold | None:
        script.mute = True
        bob_waits = asyncio.create_task(bobs.acquire())
        await asyncio.sleep(0)
        script.mute = False
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await anns.acquire()
        waiting(script)[0].set(script.grant("x", "bob", 7))
        return await asyncio.wait_for(bob_waits, PATIENCE_S)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # As the handler of a signal may, at any time.

    loop = asyncio.new_event_loop()
    try:
        assert present(loop.run_until_complete(contend())).fence == 7
    finally:
        loop.close()
    assert hold_registry.find("x", "ann") is None
