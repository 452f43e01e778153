"""How a hold that was entered more than once, or whose release is in doubt, ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencelock.actors.client.message import HoldsLost, Loss, Trusted
from fencelock.actors.error import LockOwnershipLostError, UnavailableError
from fencelock.actors.lock.message import Acquire, Granted, Release, Released
from fencelock.actors.message import Event, Instant
from fencelock.cluster.callback_executor import ThreadExecutor
from fencelock.cluster.hold_registry import HoldRegistry
from fencelock.cluster.host.reply import Reply
from fencelock.cluster.local_hold import HoldState
from fencelock.cluster.lock import Lock
from fencelock.cluster.lock_options import LockOptions
from fencelock.cluster.session_channel import SessionChannel

PATIENCE_S = 30


class Desk:
    """A session that grants what it is asked, counts what is held, and is told the rest."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.fence = 0
        self.count = 0
        self.told: list[Event] = []
        self.refusal: Exception | None = None
        self.mute = False
        self.asked: list[tuple[Event, Reply]] = []
        self.before: Callable[[], None] = lambda: None

    def submit(self, message: Event, reply: Reply) -> None:
        self.asked.append((message, reply))
        self.before()
        if self.refusal is not None:
            reply.fail(self.refusal)
        elif not self.mute:
            reply.set(self.answer(message))

    def answer(self, message: Event) -> Granted | Released:
        match message:
            case Acquire(lock=lock):
                self.fence += self.count == 0
                self.count += 1
                return Granted(lock=lock, fence=self.fence, count=self.count)
            case Release(lock=lock):
                self.count -= 1
                return Released(lock=lock, count=self.count)
            case _:
                raise AssertionError(message)

    def abandon(self, reply: Reply) -> None:
        del reply

    def tell(self, message: Event) -> None:
        self.told.append(message)


class Scene:
    """A lock, whose session and clock are moved by hand."""

    def __init__(self, lock_manager: Desk, executor: ThreadExecutor) -> None:
        self.lock_manager = lock_manager
        self.hold_registry = HoldRegistry(lambda: lock_manager.now, executor)
        self.line = SessionChannel(lock_manager)

    def lock(self, **terms: Any) -> Lock:
        return Lock(self.line, self.hold_registry, LockOptions("x", owner="ann", **terms))

    def trust(self, suspect_at: int, until: int) -> None:
        self.hold_registry.hear(Trusted(suspect_at=Instant(suspect_at), until=Instant(until)))

    def lose(self, fence: int, owner: str = "ann") -> None:
        self.lock_manager.count = 0
        losses = (Loss(lock="x", owner=owner, fence=fence),)
        self.hold_registry.hear(HoldsLost(losses=losses, detail="the session ended"))


@pytest.fixture
def scene() -> Iterator[Scene]:
    executor = ThreadExecutor()
    yield Scene(Desk(), executor)
    executor.stop(PATIENCE_S)


def test_each_level_of_a_lost_hold_is_told(scene: Scene) -> None:
    lock = scene.lock(limit=0)
    levels: list[str] = []

    def work() -> None:
        with lock:
            with pytest.raises(LockOwnershipLostError), lock:
                scene.lose(fence=1)
            levels.append("outer")

    with pytest.raises(LockOwnershipLostError):
        work()
    assert levels == ["outer"]
    assert lock.state is HoldState.FREE


def test_a_reentrant_hold_is_released_as_often_as_it_was_entered(scene: Scene) -> None:
    lock = scene.lock(limit=0)
    with lock:
        with lock:
            assert lock.fence == 1
        assert (lock.held, scene.lock_manager.count) == (True, 1)
    assert (lock.held, scene.lock_manager.count) == (False, 0)


def test_an_unconfirmed_release_of_one_level_does_not_eat_the_next(scene: Scene) -> None:
    """The outer end of ``with`` waits for the inner release and then does its own."""
    lock = scene.lock(limit=0)
    with lock:
        with pytest.raises(UnavailableError), lock:
            scene.lock_manager.refusal = UnavailableError("silent")
        scene.lock_manager.refusal = None
        assert lock.held
    assert scene.lock_manager.count == 0
    assert lock.state is HoldState.FREE


def test_a_release_in_the_background_is_noticed_when_it_is_asked_for_again(scene: Scene) -> None:
    lock = scene.lock(limit=0)
    lock.acquire()
    lock.acquire()
    scene.lock_manager.refusal = UnavailableError("silent")
    with pytest.raises(UnavailableError):
        lock.release()
    scene.lock_manager.refusal, scene.lock_manager.count = None, 1  # The first was done meanwhile.
    lock.release()
    assert lock.state is HoldState.FREE


def test_a_release_that_finds_the_loss_raises_it(scene: Scene) -> None:
    lock = scene.lock()
    lock.acquire()
    scene.lock_manager.refusal = LockOwnershipLostError("taken by root@ops")
    with pytest.raises(LockOwnershipLostError, match="root@ops"):
        lock.release()
    assert lock.state is HoldState.FREE


def test_an_acquire_waits_for_the_release_that_was_interrupted_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, lock_manager = scene.lock(), scene.lock_manager
    lock.acquire()
    lock_manager.mute = True
    interrupted = Reply.get

    def get(self: Reply, *, timeout: float | None = None) -> Any:
        monkeypatch.setattr(Reply, "get", interrupted)
        raise KeyboardInterrupt

    monkeypatch.setattr(Reply, "get", get)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    assert (lock.held, lock_manager.told) == (True, [])  # The release goes on.
    release, reply = lock_manager.asked[-1]
    lock_manager.mute = False
    answer = threading.Timer(0.02, lambda: reply.set(lock_manager.answer(release)))
    answer.start()
    assert lock.acquire() == 2
    answer.join(PATIENCE_S)
    assert [type(asked) for asked, _ in lock_manager.asked] == [Acquire, Release, Acquire]
