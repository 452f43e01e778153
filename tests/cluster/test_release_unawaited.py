"""A release for which its caller does not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.faces import CLIENT_KINDS, FACES
from support.lock_scene import AtOnce, Scene, ScriptedSession
from support.samples import fence_of

import fencelock
from fencelock.actors.api.lock_message import Acquire, Cancel, Release
from fencelock.actors.error import (
    ForbiddenError,
    LockOwnershipLostError,
    NotHeldError,
    OverloadedError,
    UnavailableError,
)
from fencelock.actors.message import Event
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client import base_lock, hold
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.host.pending_asks import AskReply


@pytest.fixture
def scene(script: ScriptedSession) -> Scene:
    return Scene(script, AtOnce())


def unconfirmed(script: ScriptedSession, lock: Any) -> tuple[Any, Any]:
    """Acquire and release ``lock``; return the release, whose reply is still to come."""
    lock.acquire()
    script.mute = True
    lock.release()
    return script.asked[-1]


def released(script: ScriptedSession) -> int:
    """Return the number of releases that the session received."""
    return sum(isinstance(asked, Release) for asked, _ in script.asked)


KINDS: dict[str, Callable[[Scene, bool], Any]] = {
    "anonymous": lambda scene, confirm: scene.lock(owner=None, confirm_release=confirm),
    "named": lambda scene, confirm: scene.lock(confirm_release=confirm),
    "rlock": lambda scene, confirm: scene.rlock(confirm_release=confirm),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_a_release_returns_unconfirmed(scene: Scene, script: ScriptedSession, kind: str) -> None:
    lock = KINDS[kind](scene, True)
    lock.acquire()
    script.mute = True
    lock.release(wait=False)
    assert released(script) == 1
    assert lock.state is HoldState.RELEASING
    assert lock.held
    (_, reply) = script.asked[-1]
    reply.set(script.answer(script.asked[-1][0]))
    assert not lock.held


@kinds
def test_a_lock_without_confirmation_does_not_wait_unless_asked_to(
    scene: Scene, script: ScriptedSession, kind: str
) -> None:
    lock = KINDS[kind](scene, False)
    release, reply = unconfirmed(script, lock)
    script.mute = False
    reply.set(script.answer(release))
    with lock as held:
        script.mute = True
    assert held.state is HoldState.RELEASING
    script.mute = False
    script.asked[-1][1].set(script.answer(script.asked[-1][0]))
    lock.acquire()
    lock.release(wait=True)
    assert lock.state is HoldState.FREE


def test_a_hold_is_released_without_waiting_too(scene: Scene, script: ScriptedSession) -> None:
    held = present(scene.lock(owner=None).acquire())
    script.mute = True
    held.release(wait=False)
    held.release(wait=False)
    assert released(script) == 1
    assert held.held


@kinds
def test_a_loss_that_the_release_finds_goes_to_on_lost_and_to_the_next_acquire(
    scene: Scene, script: ScriptedSession, kind: str
) -> None:
    notices: list[Notice] = []
    lock = KINDS[kind](scene, False)
    lock.on_lost(notices.append)
    lock.acquire()
    script.refusal = LockOwnershipLostError("lock 'x': it was lost")
    lock.release()
    script.refusal = None
    assert [(notice.state, notice.fence) for notice in notices] == [(HoldState.LOST, 1)]
    script.count, script.fence = 0, 5
    script.holds.clear()
    with pytest.raises(LockOwnershipLostError, match="it was lost"):
        lock.acquire()
    assert fence_of(lock.acquire()) == 6
    assert len(notices) == 1


@kinds
def test_a_loss_that_the_release_finds_goes_to_the_next_release_of_nothing(
    scene: Scene, script: ScriptedSession, kind: str
) -> None:
    lock = KINDS[kind](scene, False)
    lock.acquire()
    script.refusal = NotHeldError("lock 'x': nobody holds it")
    lock.release()
    script.holds.clear()
    with pytest.raises(NotHeldError, match="nobody holds it"):
        lock.release()
    with pytest.raises(NotHeldError, match="does not hold it"):
        lock.release()


def test_the_release_of_a_later_hold_does_not_raise_an_earlier_loss(
    scene: Scene, script: ScriptedSession
) -> None:
    lock = scene.lock(owner=None, confirm_release=False)
    _, first = unconfirmed(script, lock)
    script.mute, script.count = False, 0
    later = present(lock.acquire())
    first.fail(LockOwnershipLostError("lock 'x': it was lost"))
    later.release(wait=True)
    assert released(script) == 2
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()


def test_a_refused_release_leaves_the_hold_and_is_raised_by_the_next_call(
    scene: Scene, script: ScriptedSession
) -> None:
    lock = scene.lock(owner=None, confirm_release=False)
    _, reply = unconfirmed(script, lock)
    script.mute = False
    for one in script.holds.values():
        one.move(HoldState.HELD)
    reply.fail(ForbiddenError("the key does not allow it"))
    with pytest.raises(ForbiddenError):
        lock.acquire()
    assert lock.held
    lock.release(wait=True)


def test_a_release_turned_away_can_be_repeated(scene: Scene, script: ScriptedSession) -> None:
    lock = scene.lock(owner=None)
    lock.acquire()

    def turn_away(message: Event, reply: AskReply) -> None:
        reply.fail(OverloadedError(f"100000 events wait, and {message}"))

    submit, scene.line.submit = scene.line.submit, turn_away
    with pytest.raises(OverloadedError):
        lock.release(wait=False)
    scene.line.submit = submit
    assert lock.held
    lock.release(wait=False)
    assert not lock.held


def test_an_owner_releases_twice_without_waiting(scene: Scene, script: ScriptedSession) -> None:
    lock = scene.rlock(confirm_release=False)
    lock.acquire()
    lock.acquire()
    script.mute = True
    lock.release()
    lock.release()  # The session releases it once the first is confirmed.
    assert released(script) == 1
    assert [type(one) for one in script.received] == [Cancel]


def test_other_acquires_do_not_wait_for_the_release(scene: Scene, script: ScriptedSession) -> None:
    lock = scene.lock(owner=None, confirm_release=False)
    lock.acquire()

    def answer_no_release() -> None:
        script.mute = isinstance(script.asked[-1][0], Release)

    script.before = answer_no_release
    lock.release()
    script.count = 0
    assert fence_of(lock.acquire()) == 2
    release, acquire = [asked for asked, _ in script.asked[-2:]]
    assert isinstance(release, Release)
    assert isinstance(acquire, Acquire)
    assert release.owner != acquire.owner


@kinds
def test_an_acquire_that_does_not_wait_still_waits_for_the_own_release(
    scene: Scene, script: ScriptedSession, kind: str
) -> None:
    lock = KINDS[kind](scene, False)
    release, reply = unconfirmed(script, lock)
    script.mute = False
    threading.Timer(0.05, lambda: reply.set(script.answer(release))).start()
    assert lock.acquire(blocking=False)
    assert [type(asked) for asked, _ in script.asked[-2:]] == [Release, Acquire]


def test_an_acquire_that_does_not_wait_gives_up_when_the_release_is_not_confirmed(
    scene: Scene, script: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_lock, "RELEASE_CONFIRM_MS", 20)
    lock = scene.rlock(confirm_release=False)
    unconfirmed(script, lock)
    assert lock.acquire(blocking=False) is None


def test_an_owner_acquires_again_once_a_refused_release_was_confirmed_in_the_background(
    scene: Scene, script: ScriptedSession
) -> None:
    lock = scene.lock(confirm_release=False)
    _, reply = unconfirmed(script, lock)
    reply.fail(UnavailableError("no node accepts this client"))
    script.mute, script.count = False, 0
    for one in script.holds.values():
        one.move(HoldState.RELEASED)
    script.holds.clear()
    assert fence_of(lock.acquire(timeout=0.5)) == 2


def test_a_second_release_waits_for_the_first_no_longer_than_usual(
    scene: Scene, script: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "UNANSWERED_MS", 20)
    notices: list[Notice] = []
    lock = scene.lock()
    lock.on_lost(notices.append)
    lock.acquire()
    script.mute = True
    lock.release(wait=False)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="background"):
            lock.release()
    (_, reply) = script.asked[-1]
    reply.fail(LockOwnershipLostError("lock 'x': it was lost"))
    assert len(notices) == 1
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()


MADE: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda client, name: client.lock(name, confirm_release=False),
    "named": lambda client, name: client.lock(name, owner="job", confirm_release=False),
    "rlock": lambda client, name: client.rlock(name, confirm_release=False),
    "read": lambda client, name: client.rwlock(name, confirm_release=False).read(),
    "write": lambda client, name: client.rwlock(name, confirm_release=False).write(),
}
made = pytest.mark.parametrize("made", MADE)


@made
@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_pairs_without_confirmation_rise_and_leave_nothing_held(
    client: fencelock.Client, name: str, made: str
) -> None:
    lock = MADE[made](client, name)
    fences: list[int] = []
    for _ in range(50):
        with lock as held:
            fences.append(held.fence)
    assert fences == sorted(set(fences))
    assert not lock.locked()
    assert lock.acquire(blocking=False)
    lock.release(wait=True)


def test_a_hold_taken_by_force_is_reported_after_release(
    client: fencelock.Client, name: str
) -> None:
    lost = threading.Event()
    lock = client.lock(name, confirm_release=False)
    lock.on_lost(lambda notice: lost.set())
    held = present(lock.acquire())
    client.evict(name, held.fence)
    try:
        held.release()
    except LockOwnershipLostError:
        return  # The notice came first, and the release raises what it knows.
    assert lost.wait(PATIENCE_S)
    assert not lock.locked()  # It waits for the reply to the release.
    with pytest.raises(LockOwnershipLostError):
        lock.acquire()


def test_close_releases_the_rest(client: fencelock.Client, paxos_addresses: str, name: str) -> None:
    with fencelock.connect(paxos_addresses, cluster=FACES) as other:
        _held = other.lock(name).acquire()
        with other.lock(f"{name}-2", confirm_release=False):
            pass
    assert (_held2 := client.lock(f"{name}-2").acquire(blocking=False))
    assert (_held3 := client.lock(name).acquire(blocking=False))
