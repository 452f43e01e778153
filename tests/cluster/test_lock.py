"""The lock as a thread sees it, before a session whose answers are written down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pykka
import pytest

from fencelock.actors.api.message import Acquire, Cancel, Granted, Release, Released
from fencelock.actors.error import (
    AlreadyHeldError,
    ClosedError,
    LimitReachedError,
    LockTimeoutError,
    NotHeldError,
    OverloadedError,
    UnavailableError,
)
from fencelock.actors.message import Event, Instant
from fencelock.cluster.hold_registry import HoldRegistry
from fencelock.cluster.host.pending_asks import Reply
from fencelock.cluster.lock import Lock
from fencelock.cluster.lock_options import LockOptions
from fencelock.cluster.owner import owner_of_thread
from fencelock.cluster.session_channel import SessionChannel

PATIENCE_S = 30


class Script:
    """A session that says what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Event] = []
        self.told: list[Event] = []
        self.abandoned: list[Reply] = []
        self.acquire: Callable[[Acquire], int] = lambda asked: asked.request + 100
        self.release: Callable[[Release], None] = lambda _: None

    def submit(self, message: Event, reply: Reply) -> None:
        self.asked.append(message)
        try:
            answer = self.answer(message)
        except Exception as error:  # noqa: BLE001  # It is the answer.
            reply.fail(error)
        else:
            reply.set(answer)

    def answer(self, message: Event) -> Granted | Released:
        match message:
            case Acquire():
                return Granted(lock=message.lock, fence=self.acquire(message))
            case Release():
                self.release(message)
                return Released(lock=message.lock)
            case _:
                raise AssertionError(message)

    def abandon(self, reply: Reply) -> None:
        self.abandoned.append(reply)

    def tell(self, message: Event) -> None:
        self.told.append(message)

    def asks(self) -> list[Acquire]:
        return [asked for asked in self.asked if isinstance(asked, Acquire)]


class Nobody:
    failed = 0

    def call(self, callback: Any, news: Any) -> None:
        raise AssertionError((callback, news))

    def stop(self, timeout: float) -> None:
        del timeout


def raises(error: BaseException) -> Callable[[Any], Any]:
    def refuse(asked: Any) -> Any:
        del asked
        raise error

    return refuse


@pytest.fixture
def script() -> Script:
    return Script()


Make = Callable[[LockOptions], Lock]


@pytest.fixture
def make(script: Script) -> Make:
    line, hold_registry = SessionChannel(script), HoldRegistry(lambda: Instant(0), Nobody())
    return lambda terms: Lock(line, hold_registry, terms)


@pytest.fixture
def lock(make: Make) -> Lock:
    return make(LockOptions("x"))


def elsewhere(work: Callable[[], object]) -> object:
    """Return what ``work`` returns, or the error it raises, in a thread of its own."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  # It is what the test looks at.
            results.append(error)

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join(PATIENCE_S)
    return results[0]


def test_acquire_returns_the_fence_and_release_gives_it_back(lock: Lock, script: Script) -> None:
    fence = lock.acquire()
    assert fence
    assert (lock.held, lock.fence) == (True, fence)
    lock.release()
    assert (lock.held, lock.fence) == (False, None)
    release = script.asked[-1]
    assert release == Release(lock="x", fence=fence, owner=owner_of_thread())


def test_acquire_returns_none_when_the_time_was_over(lock: Lock, script: Script) -> None:
    script.acquire = raises(LockTimeoutError("held by ann"))
    assert lock.acquire(timeout=0.5) is None
    assert lock.acquire(blocking=False) is None
    assert [asked.wait_ms for asked in script.asks()] == [500, 0]
    assert not lock.held


def test_what_is_no_lack_of_time_is_raised(lock: Lock, script: Script) -> None:
    for error in (UnavailableError("n1"), OverloadedError("x")):
        script.acquire = raises(error)
        with pytest.raises(type(error)):
            lock.acquire(timeout=1)
    assert script.told == []


@pytest.mark.parametrize("error", [AlreadyHeldError("x"), LimitReachedError("x")])
def test_who_tries_what_it_holds_hears_no_at_once_and_who_waits_an_error(
    lock: Lock, script: Script, error: Exception
) -> None:
    script.acquire = raises(error)
    assert lock.acquire(blocking=False) is None
    assert lock.acquire(timeout=1) is None
    with pytest.raises(type(error)):
        lock.acquire()
    with pytest.raises(type(error)), lock:
        pass


def test_a_timeout_without_blocking_is_a_value_error_as_threading_has_it(lock: Lock) -> None:
    with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
        threading.Lock().acquire(blocking=False, timeout=1)


def test_the_timeout_of_the_lock_is_the_one_acquire_and_with_use(
    make: Make, script: Script
) -> None:
    lock = make(LockOptions("x", timeout=2))
    with lock:
        pass
    lock.acquire()
    lock.release()
    lock.acquire(timeout=3)
    assert [asked.wait_ms for asked in script.asks()] == [2_000, 2_000, 3_000]


def test_threads_that_share_a_lock_are_two_owners(lock: Lock) -> None:
    lock.acquire()
    assert elsewhere(lambda: (lock.held, lock.fence)) == (False, None)
    assert isinstance(elsewhere(lock.release), NotHeldError)
    assert lock.held


def test_an_explicit_owner_is_one_for_all_threads(make: Make) -> None:
    lock = make(LockOptions("x", owner="job 7"))
    fence = lock.acquire()
    assert elsewhere(lambda: lock.fence) == fence
    assert elsewhere(lock.release) is None
    assert not lock.held


def test_locks_of_one_name_and_owner_are_the_same_lock(make: Make, lock: Lock) -> None:
    lock.acquire()
    other = make(LockOptions("x"))
    assert other.fence == lock.fence
    other.release()
    assert not lock.held


def test_with_holds_or_raises_and_never_enters_unheld(lock: Lock, script: Script) -> None:
    with lock as same:
        assert same is lock
        assert lock.held
    assert not lock.held
    script.acquire = raises(LockTimeoutError("held by ann"))
    entered = False
    with pytest.raises(LockTimeoutError, match="ann"), lock:
        entered = True
    assert not entered


def test_the_bodys_error_wins_over_a_failed_release_which_is_noted(
    lock: Lock, script: Script
) -> None:
    script.release = raises(UnavailableError("n1 is silent"))
    with pytest.raises(KeyError) as caught, lock:
        raise KeyError("body")
    assert caught.value.__notes__ == [
        "lock 'x' could not be released either: UnavailableError: n1 is silent"
    ]
    with pytest.raises(UnavailableError):
        lock.release()


def test_a_failed_release_after_a_good_body_is_raised(lock: Lock, script: Script) -> None:
    script.release = raises(NotHeldError("lost"))
    with pytest.raises(NotHeldError, match="lost"), lock:
        pass
    assert not lock.held


def test_a_release_of_what_is_not_held_asks_nobody(lock: Lock, script: Script) -> None:
    with pytest.raises(NotHeldError, match="'x'"):
        lock.release()
    assert script.asked == []


def test_an_unconfirmed_release_leaves_the_hold_and_may_be_repeated(
    lock: Lock, script: Script
) -> None:
    fence = lock.acquire()
    script.release = raises(UnavailableError("n1 is silent"))
    with pytest.raises(UnavailableError):
        lock.release()
    assert lock.fence == fence
    script.release = raises(NotHeldError("released in the background meanwhile"))
    lock.release()
    assert not lock.held


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("granted", [True, False])
def test_an_interrupted_acquire_is_cancelled_by_its_own_number(
    lock: Lock,
    script: Script,
    error: BaseException,
    granted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: Reply, *, timeout: float | None = None) -> None:
        del self, timeout
        raise error

    if not granted:
        script.acquire = raises(error)
    monkeypatch.setattr(Reply, "get", interrupt)
    with pytest.raises(type(error)):
        lock.acquire()
    (asked,) = script.asks()
    cancel = Cancel(lock="x", session="", owner=lock.owner, request=asked.request)
    assert script.told == [cancel]
    assert [reply.done for reply in script.abandoned] == [granted]
    assert not lock.held


def test_every_acquire_has_a_number_of_its_own(lock: Lock, script: Script) -> None:
    for _ in range(3):
        with lock:
            pass
    assert len({asked.request for asked in script.asks()}) == 3


def test_a_session_that_stopped_is_a_closed_client(lock: Lock, script: Script) -> None:
    script.acquire = raises(pykka.ActorDeadError("gone"))
    with pytest.raises(ClosedError):
        lock.acquire()


def test_the_text_of_a_lock_tells_its_name_and_state(lock: Lock) -> None:
    assert "'x'" in repr(lock)
    assert "not held" in repr(lock)
    assert f"fence {lock.acquire()}" in repr(lock)
    assert lock.name == "x"
