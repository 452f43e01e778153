"""A hold becomes suspect, lost, reported and acquired anew: session and clock moved by hand."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from support.lock_scene import PATIENCE_S, Scene

from fencelock.actors.api.message import Acquire, Cancel, Release
from fencelock.actors.error import LockOwnershipLostError, NotHeldError
from fencelock.actors.message import Instant
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.message import Suspected
from fencelock.cluster.client.callback_executor import Notice


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
    assert scene.session.told == [
        Release(lock="x", fence=1, owner="ann")
    ]  # The session may hold on.


def test_news_in_time_end_the_doubt(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(99)
    scene.trust(suspect_at=150, until=200)
    assert lock.state is HoldState.HELD


def test_a_release_after_the_loss_says_so_and_then_it_is_not_held(scene: Scene) -> None:
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


def test_what_the_session_says_of_a_loss_is_not_said_twice(scene: Scene) -> None:
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


def test_raise_if_lost_says_it_each_time_and_the_handle_can_acquire_again(scene: Scene) -> None:
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


def test_an_acquire_after_an_untold_loss_tells_it_once(scene: Scene) -> None:
    lock = scene.rlock()
    lock.acquire()
    scene.lose(fence=1)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    assert lock.acquire(blocking=False)
    assert lock.fence == 2


def test_a_loss_while_entering_again_is_told_and_the_new_grant_given_back(
    scene: Scene,
) -> None:
    lock = scene.rlock()
    lock.acquire()
    scene.session.before = lambda: scene.lose(fence=1)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    asked = scene.session.asked[-1][0]
    assert isinstance(asked, Acquire)
    cancel = Cancel(lock="x", session="", owner="ann", request=asked.request)
    assert scene.session.told == [cancel]
    assert lock.state is HoldState.FREE


def test_a_grant_that_comes_when_the_session_is_over_is_no_hold(scene: Scene) -> None:
    lock = scene.lock()
    scene.trust(suspect_at=50, until=100)
    scene.session.now = Instant(100)
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()
    assert lock.state is HoldState.FREE


def test_the_end_of_with_tells_the_loss(scene: Scene) -> None:
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


def test_callbacks_hear_of_doubt_and_loss_once_and_may_block(scene: Scene) -> None:
    heard: list[Notice] = []
    lost = threading.Event()
    lock, other = scene.rlock(limit=1), scene.rlock(limit=1)

    def note(notice: Notice) -> None:
        heard.append(notice)
        lost.set()

    lock.on_suspect(heard.append)
    other.on_lost(heard.append)  # It acquired nothing.
    scene.hold_registry.listeners.lost.append(note)

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
    assert [(n.lock, n.owner, n.fence, n.state) for n in heard] == [
        ("x", "ann", 1, HoldState.SUSPECT),
        ("x", "ann", 1, HoldState.LOST),
    ]
    assert "7 ms" in heard[0].detail
    assert "TTL" in heard[1].detail


def test_a_hold_whose_owner_was_granted_the_lock_anew_is_lost(scene: Scene) -> None:
    """The loss came, and was reported, while the owner was acquiring once more."""
    lock, session = scene.rlock(), scene.session
    first = lock.acquire()
    assert first is not None
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
