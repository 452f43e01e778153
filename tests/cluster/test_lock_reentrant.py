"""The end of a hold that was acquired more than once, or has an uncertain release."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.lock_scene import PATIENCE_S, Scene

from fencelock.actors.api.message import Acquire, Release
from fencelock.actors.error import LockOwnershipLostError, UnavailableError
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.host.pending_asks import AskReply


def test_each_level_of_a_lost_hold_is_told(scene: Scene) -> None:
    lock = scene.rlock()
    acquisitions: list[str] = []

    def work() -> None:
        with lock:
            with pytest.raises(LockOwnershipLostError), lock:
                scene.lose(fence=1)
            acquisitions.append("outer")

    with pytest.raises(LockOwnershipLostError):
        work()
    assert acquisitions == ["outer"]
    assert lock.state is HoldState.FREE


def test_a_reentrant_hold_is_released_as_often_as_it_was_entered(scene: Scene) -> None:
    lock = scene.rlock()
    with lock:
        with lock:
            assert lock.fence == 1
        assert (lock.held, scene.session.count) == (True, 1)
    assert (lock.held, scene.session.count) == (False, 0)


def test_an_unconfirmed_release_of_one_level_does_not_eat_the_next(scene: Scene) -> None:
    """The outer end of ``with`` waits for the inner release and then does its own."""
    lock = scene.rlock()
    with lock:
        with pytest.raises(UnavailableError), lock:
            scene.session.refusal = UnavailableError("silent")
        scene.session.refusal = None
        assert lock.held
    assert scene.session.count == 0
    assert lock.state is HoldState.FREE


def test_a_release_in_the_background_is_noticed_when_it_is_asked_for_again(scene: Scene) -> None:
    lock = scene.rlock()
    lock.acquire()
    lock.acquire()
    scene.session.refusal = UnavailableError("silent")
    with pytest.raises(UnavailableError):
        lock.release()
    scene.session.refusal, scene.session.count = None, 1  # The first was done meanwhile.
    lock.release()
    assert lock.state is HoldState.FREE


def test_a_release_that_finds_the_loss_raises_it(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.session.refusal = LockOwnershipLostError("taken by root@ops")
    with pytest.raises(LockOwnershipLostError, match="root@ops"):
        lock.release()
    assert lock.state is HoldState.FREE


def test_an_acquire_waits_for_the_release_that_was_interrupted_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, session = scene.lock(), scene.session
    lock.acquire()
    session.mute = True
    interrupted = AskReply.get

    def get(self: AskReply, *, timeout: float | None = None) -> Any:
        monkeypatch.setattr(AskReply, "get", interrupted)
        raise KeyboardInterrupt

    monkeypatch.setattr(AskReply, "get", get)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    assert (lock.held, session.told) == (True, [])  # The release continues.
    release, reply = session.asked[-1]
    session.mute = False
    answer = threading.Timer(0.02, lambda: reply.set(session.answer(release)))
    answer.start()
    assert lock.acquire()
    assert lock.fence == 2
    answer.join(PATIENCE_S)
    assert [type(asked) for asked, _ in session.asked] == [Acquire, Release, Acquire]
