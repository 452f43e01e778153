"""The lock as a thread sees it, before a session whose answers are written down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pykka
import pytest
from support.expect import PATIENCE_S, checked, present
from support.lock_scene import AtOnce, Scene, ScriptedSession

from fencelock.actors.api.lock_message import Cancel, Release
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.error import (
    AlreadyHeldError,
    ClosedError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    OverloadedError,
    UnavailableError,
)
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.lock import Hold, Lock, RLock
from fencelock.cluster.host.pending_asks import AskReply

NS_PER_S = 1_000 * NS_PER_MS


@pytest.fixture
def scene(script: ScriptedSession) -> Scene:
    return Scene(script, AtOnce())


@pytest.fixture
def lock(scene: Scene) -> Lock:
    return scene.lock(owner=None)


@pytest.fixture
def hold(lock: Lock) -> Hold:
    return present(lock.acquire())


@pytest.fixture
def rlock(scene: Scene) -> RLock:
    return scene.rlock(owner=None, limit=1)


def elsewhere(work: Callable[[], object]) -> object:
    """Return what ``work`` returns, or the error it raises, in a thread of its own."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  # The test inspects it.
            results.append(error)

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join(PATIENCE_S)
    return results[0]


def test_acquire_returns_a_hold_release_ends_it(lock: Lock, script: ScriptedSession) -> None:
    hold = lock.acquire()
    assert hold
    (acquire,) = script.asks()
    assert (lock.held, lock.fence, hold.held) == (True, hold.fence, True)
    owner = hold.owner
    lock.release()
    assert (lock.held, lock.fence, hold.held) == (False, None, False)
    assert (hold.state, hold.lost) == (HoldState.RELEASED, False)
    release = script.asked[-1][0]
    assert release == Release(lock="x", fence=hold.fence, owner=owner, request=acquire.request)


def test_acquire_returns_none_when_the_time_was_over(lock: Lock, script: ScriptedSession) -> None:
    script.refusal = LockTimeoutError("held by ann")
    assert lock.acquire(timeout=0.5) is None
    assert lock.acquire(blocking=False) is None
    assert [asked.wait_ms for asked in script.asks()] == pytest.approx([500, 0], abs=400)
    assert not lock.held


def test_an_error_other_than_a_timeout_is_raised(lock: Lock, script: ScriptedSession) -> None:
    for error in (UnavailableError("n1"), OverloadedError("x")):
        script.refusal = error
        with pytest.raises(type(error)):
            lock.acquire(timeout=1)
    assert script.received == []


@pytest.mark.parametrize("error", [AlreadyHeldError("x"), LimitReachedError("x")])
def test_a_try_for_an_own_hold_fails_at_once_and_a_wait_is_an_error(
    rlock: RLock, script: ScriptedSession, error: Exception
) -> None:
    """None at once would make a caller spin that loops until it holds the lock."""
    script.refusal = error
    assert rlock.acquire(blocking=False) is None
    with pytest.raises(type(error)):
        rlock.acquire(timeout=1)
    with pytest.raises(type(error)):
        rlock.acquire()
    with pytest.raises(type(error)), rlock:
        pass


def test_a_timeout_without_blocking_is_a_value_error_as_threading_has_it(lock: Lock) -> None:
    with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
        threading.Lock().acquire(blocking=False, timeout=1)


def test_a_timeout_without_its_keyword_is_a_type_error_that_shows_what_to_write(lock: Lock) -> None:
    acquire: Any = lock.acquire
    for argument, text in ((5, "timeout=5"), (0.5, "timeout=0.5"), (0, "timeout=0")):
        with pytest.raises(TypeError, match=text):
            acquire(argument)


def test_a_timeout_of_minus_one_is_without_limit(scene: Scene, script: ScriptedSession) -> None:
    lock = scene.lock(timeout=5)
    assert lock.acquire(timeout=-1)
    (wait_ms,) = [asked.wait_ms for asked in script.asks()]
    assert wait_ms == pytest.approx(WAIT_MS_MAX, abs=10_000)  # It counts from the call.


def test_a_lock_has_the_timeout_of_acquire_and_with(scene: Scene, script: ScriptedSession) -> None:
    lock = scene.lock(timeout=2)
    with lock:
        pass
    lock.acquire()
    lock.release()
    lock.acquire(timeout=3)
    waits_ms = [asked.wait_ms for asked in script.asks()]
    assert waits_ms == pytest.approx([2_000, 2_000, 3_000], abs=900)  # They count from the call.


def test_threads_that_share_an_rlock_are_two_owners(rlock: RLock) -> None:
    rlock.acquire()
    assert elsewhere(lambda: (rlock.held, rlock.fence)) == (False, None)
    error = checked(NotHeldError, elsewhere(rlock.release))
    assert str(error) == ("lock 'x': elsewhere does not hold it; held by MainThread of this client")
    assert rlock.held


def test_threads_that_share_a_lock_may_release_it_for_each_other(lock: Lock, hold: Hold) -> None:
    assert elsewhere(lambda: (lock.held, lock.fence)) == (True, hold.fence)
    assert elsewhere(lock.release) is None
    assert not lock.held
    assert not hold.held


def test_each_of_two_threads_that_acquired_a_lock_sees_and_releases_its_own_hold(
    lock: Lock, hold: Hold, script: ScriptedSession
) -> None:
    script.fence, script.count = 7, 0

    def acquire_and_release() -> None:
        other = present(lock.acquire())
        assert (lock.owner, lock.fence) == (other.owner, 8)
        lock.release()
        assert not other.held
        lock.acquire()

    assert elsewhere(acquire_and_release) is None
    assert hold.held
    assert (lock.owner, lock.fence) == (hold.owner, hold.fence)
    lock.release()
    assert not hold.held
    assert lock.held  # By the other thread.


def test_each_acquire_of_a_lock_is_its_own_owner(scene: Scene, script: ScriptedSession) -> None:
    locks = [scene.lock(owner=None) for _ in range(3)]
    for lock in locks:
        lock.acquire()
    owners = [asked.owner for asked in script.asks()]
    assert len(set(owners)) == 3
    for lock in locks:
        lock.release()
    locks[2].acquire()  # The cluster remembers requests of unused names: use them again.
    assert script.asks()[-1].owner in owners


def test_an_explicit_owner_is_one_for_all_threads(scene: Scene) -> None:
    lock = scene.lock(owner="job 7")
    hold = present(lock.acquire())
    assert elsewhere(lambda: lock.fence) == hold.fence
    assert elsewhere(scene.lock(owner="job 7").release) is None
    assert not lock.held


def test_an_owner_that_waits_for_itself_waits_until_the_hold_is_released(scene: Scene) -> None:
    """As with ``threading.Lock``: it neither spins nor raises."""
    lock, again = scene.lock(owner="job 7"), scene.lock(owner="job 7")
    hold = present(lock.acquire())
    assert again.acquire(blocking=False) is None
    began = time.monotonic()
    assert again.acquire(timeout=0.2) is None
    assert time.monotonic() - began >= 0.2
    timer = threading.Timer(0.05, hold.release)
    timer.start()
    assert again.acquire(timeout=PATIENCE_S)
    timer.join(PATIENCE_S)


def test_locks_of_one_name_and_owner_are_the_same_lock(scene: Scene, rlock: RLock) -> None:
    rlock.acquire()
    other = scene.rlock(owner=None)
    assert other.fence == rlock.fence
    other.release()
    assert not rlock.held


def test_with_holds_or_raises_and_never_enters_unheld(lock: Lock, script: ScriptedSession) -> None:
    with lock as hold:
        assert isinstance(hold, Hold)
        assert (lock.held, hold.held, hold.fence) == (True, True, lock.fence)
    assert not lock.held
    script.refusal = LockTimeoutError("held by ann")
    entered = False
    with pytest.raises(TimeoutError, match="held by ann") as caught, lock:
        entered = True
    assert type(caught.value) is LockTimeoutError
    assert not entered


def test_the_bodys_error_notes_a_failed_release(lock: Lock, script: ScriptedSession) -> None:
    def work() -> None:
        with lock:
            script.refusal = UnavailableError("n1 is silent")
            raise KeyError("body")

    with pytest.raises(KeyError) as caught:
        work()
    assert caught.value.__notes__ == [
        "lock 'x' could not be released either: UnavailableError: n1 is silent"
    ]
    with pytest.raises(UnavailableError):
        lock.release()


@pytest.mark.parametrize("error", [NotHeldError, LockOwnershipLostError])
def test_a_failed_release_after_a_good_body_is_raised(
    lock: Lock, script: ScriptedSession, error: type[Exception]
) -> None:
    def work() -> None:
        with lock:
            script.refusal = error("taken by root@ops")

    with pytest.raises(error, match="root@ops"):
        work()
    assert lock.state is HoldState.FREE


def test_a_release_of_what_is_not_held_sends_no_request(
    lock: Lock, script: ScriptedSession
) -> None:
    with pytest.raises(NotHeldError, match="'x'"):
        lock.release()
    assert script.asked == []


def test_a_hold_is_released_once(lock: Lock, hold: Hold, script: ScriptedSession) -> None:
    hold.release()
    hold.release()
    for release in (lock.release, hold.raise_if_lost):
        with pytest.raises(NotHeldError):
            release()
    assert len([asked for asked, _ in script.asked if isinstance(asked, Release)]) == 1


def test_an_unconfirmed_release_leaves_the_hold_and_may_be_repeated(
    lock: Lock, hold: Hold, script: ScriptedSession
) -> None:
    script.refusal = UnavailableError("n1 is silent")
    with pytest.raises(UnavailableError):
        hold.release()
    assert (lock.fence, hold.held, hold.state) == (hold.fence, True, HoldState.RELEASING)
    script.refusal = NotHeldError("released in the background meanwhile")
    hold.release()
    assert not lock.held
    hold.release()


def test_a_release_that_never_left_did_not_happen(hold: Hold, script: ScriptedSession) -> None:
    script.refusal = OverloadedError("too many events wait")
    script.before = script.holds.clear
    held = dict(script.holds)
    with pytest.raises(OverloadedError):
        hold.release()
    script.refusal, script.before = None, lambda: script.holds.update(held)
    states = [hold.state]
    hold.release()
    assert [*states, hold.state] == [HoldState.HELD, HoldState.RELEASED]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("granted", [True, False])
def test_an_interrupted_acquire_is_cancelled_by_its_own_number(
    lock: Lock,
    script: ScriptedSession,
    error: BaseException,
    granted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: AskReply, *, timeout: float | None = None) -> None:
        raise error

    script.mute = not granted
    monkeypatch.setattr(AskReply, "get", interrupt)
    with pytest.raises(type(error)):
        lock.acquire()
    (asked,) = script.asks()
    cancel = Cancel(lock="x", session="", owner=asked.owner, request=asked.request)
    assert script.received == [cancel]
    assert [reply.done for reply in script.abandoned] == [granted]
    assert not lock.held


def test_every_acquire_has_a_number_of_its_own(lock: Lock, script: ScriptedSession) -> None:
    for _ in range(3):
        with lock:
            pass
    assert len({asked.request for asked in script.asks()}) == 3


def test_a_session_that_stopped_is_a_closed_client(lock: Lock, script: ScriptedSession) -> None:
    script.refusal = pykka.ActorDeadError("gone")
    with pytest.raises(ClosedError):
        lock.acquire()


def test_what_remains_is_judged_by_the_clock(scene: Scene) -> None:
    lock = scene.lock()
    scene.trust(suspect_at=5 * NS_PER_S, until=10 * NS_PER_S)
    hold = present(lock.acquire())
    remaining = [hold.remaining]
    for second in (4, 6, 10):
        scene.session.now = Instant(second * NS_PER_S)
        remaining.append(hold.remaining)
    assert remaining == [10.0, 6.0, 4.0, 0.0]
    assert (hold.suspect, hold.lost) == (False, True)


def test_the_text_of_a_lock_shows_its_name_and_state(lock: Lock) -> None:
    assert "'x'" in repr(lock)
    assert "not held" in repr(lock)
    hold = present(lock.acquire())
    assert f"fence {hold.fence}" in repr(lock)
    assert f"fence {hold.fence}" in repr(hold)
    assert lock.name == hold.name == "x"


@pytest.mark.parametrize("granted", [True, False])
def test_an_acquire_that_was_interrupted_shares_its_owner_with_no_later_one(
    scene: Scene, granted: bool
) -> None:
    """It may have been granted, or may still be. Then it is released in the background."""
    scene.session.mute = not granted
    interrupted = scene.lock(owner=None)._acquiring(True, None)  # pyright: ignore[reportPrivateUsage]
    assert checked(AskReply, next(interrupted)).done is granted
    with pytest.raises(KeyboardInterrupt):
        interrupted.throw(KeyboardInterrupt())
    assert len(scene.session.holds) == granted  # The session has not processed the cancel yet.
    later = scene.lock(owner=None)._acquiring(True, None)  # pyright: ignore[reportPrivateUsage]
    next(later)
    first, second = scene.session.asks()
    assert first.owner != second.owner
