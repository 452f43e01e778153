"""Cancels and unawaited releases under all faults."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.judged import clean
from support.stepped_client import KINDS, Caller, assert_all_free, random_steps, two_clients

from fencelock.actors.api.lock_message import Cancel, Release
from fencelock.actors.effect import Effects, Spawn
from fencelock.actors.error import AlreadyHeldError, FencelockError
from fencelock.actors.message import Address, Instant, address_of
from fencelock.actors.session import refusals
from fencelock.actors.session.event import ReleaseUnawaited, SessionTick
from fencelock.actors.session.session import ClientSession, Event
from fencelock.cluster.client import base_lock, hold
from fencelock.cluster.client.hold_registry import HoldRegistry, Ownership
from fencelock.cluster.client.semaphore import Semaphore
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.node.topology import NodeContext
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.run import run_seed

STEPS = 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_acquire_may_be_tried_again_after_any_step(kind: str) -> None:
    """Not sent, sent, granted, granted and not resumed; cancel not sent, in flight, and so on."""
    log, client, _ = two_clients()
    fence = 0
    for cancel_after in range(7):
        for retry_after in range(7):
            caller = Caller(kind, partial(KINDS[kind], client, "ann"))
            caller.acquire()
            log.take_due(cancel_after)
            caller.cancel()
            log.take_due(retry_after)
            caller.acquire()
            log.settle()
            assert caller.answered, (cancel_after, retry_after)
            caller.go_on()
            (hold,) = caller.holds
            assert hold.held
            assert hold.fence > fence
            fence = hold.fence
            caller.release()
            log.settle()
            caller.go_on()
            assert_all_free(log)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_acquire_after_a_cancelled_release_is_granted(kind: str) -> None:
    log, client, _ = two_clients()
    for cancel_after in range(5):
        caller = Caller(kind, partial(KINDS[kind], client, "ann"))
        caller.acquire()
        log.settle()
        caller.go_on()
        caller.release()
        log.take_due(cancel_after)
        caller.cancel()
        caller.acquire()
        log.settle()
        while not caller.holds:
            assert caller.answered, cancel_after
            caller.go_on()
            log.settle()
        caller.release()
        log.settle()
        caller.go_on()
        assert_all_free(log)


def test_an_acquire_after_a_cancelled_one_waits_for_nothing() -> None:
    """It is an owner of its own: it is sent at once, though the cancel is not confirmed."""
    log, client, _ = two_clients()
    owners: set[str] = set()
    for _ in range(6):
        caller = Caller("lock", partial(client.lock, "lock"))
        caller.acquire()
        while client.arrivals:
            client.take_arrival()
        (acquire,) = (one for one in log.commands if getattr(one, "owner", "") not in owners)
        owners.add(acquire.owner)
        caller.cancel()
        while client.arrivals:
            client.take_arrival()
    log.settle()
    assert_all_free(log)
    caller = Caller("lock", partial(client.lock, "lock"))
    caller.acquire()
    log.settle()
    caller.go_on()
    assert caller.holds[0].owner in owners, "names of owners are used again"


@pytest.mark.parametrize("seed", range(30))
def test_callers_that_are_cancelled_at_random_meet_no_error_and_leave_nothing(seed: int) -> None:
    random_steps(seed, STEPS)


def _refuse_while_releasing(state: Any, acquire: Any, claim: Any) -> Any:
    if claim in state.holds and acquire.limit == 1:
        raise AlreadyHeldError("it is not released yet")
    return _check_acquire(state, acquire, claim)


_check_acquire = refusals._check_acquire  # pyright: ignore[reportPrivateUsage]


def _lose_cancels(patch: pytest.MonkeyPatch) -> None:
    for module in (base_lock, hold):
        patch.setattr(module, "undo", lambda *_: None)
    patch.setattr(SessionChannel, "abandon", lambda *_: None)


def _grant_to_an_unknown_role(patch: pytest.MonkeyPatch) -> None:
    """Keep a grant that its cancelled caller did not resume for."""

    def give_up(self: HoldRegistry, call: Any) -> int:
        call.undone = call.token
        if call.own.acquiring == call.token:
            call.own.acquiring = 0
        return int(call.token)

    patch.setattr(HoldRegistry, "give_up", give_up)


def _cancel_nothing_granted(patch: pytest.MonkeyPatch) -> None:
    undo = hold.undo

    def waiting_only(channel: SessionChannel, own: Ownership, token: int) -> None:
        undo(channel, own, token + 1)

    for module in (base_lock, hold):
        patch.setattr(module, "undo", waiting_only)
    patch.setattr(SessionChannel, "abandon", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    [
        lambda patch: patch.setattr(refusals, "_check_acquire", _refuse_while_releasing),
        _lose_cancels,
        _grant_to_an_unknown_role,
        _cancel_nothing_granted,
    ],
    ids=["refused while releasing", "cancels lost", "granted to an unknown role", "wrong token"],
)
def test_the_judge_finds_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = 0
    for seed in range(20):
        try:
            random_steps(seed, STEPS)
        except (AssertionError, FencelockError):
            found += 1
    assert found


def test_an_interrupted_release_of_permits_gives_back_all_parts_once() -> None:
    """Another caller has released one of the parts meanwhile."""
    log, client, _ = two_clients()
    semaphore = Semaphore(client.connection, "two", 2, None, "")
    callers = [Caller(name, lambda: semaphore) for name in ("one", "two")]
    for caller in callers:
        caller.acquire()
        log.settle()
        caller.go_on()
    releasing = semaphore._releasing_permits(2)  # pyright: ignore[reportPrivateUsage]
    next(releasing)
    caller = callers[0]
    caller.release()
    log.settle()
    caller.go_on()
    with pytest.raises(KeyboardInterrupt):
        releasing.throw(KeyboardInterrupt())
    assert not any(isinstance(message, Cancel) for message, _ in client.arrivals)
    log.settle()
    assert_all_free(log)


# Users that do not wait for their releases, under all faults, and planted bugs


PLAN = RunPlan(nodes=3, clients=2, owners=2, locks=1, chaos_ms=2_000, unawaited_share=1.0)


class Forgetful(ClientSession):
    """Planted bug: drops a release for which no user waits."""

    def handle(self, sender: Address, event: Event | SessionTick, now: Instant) -> Effects:
        return () if isinstance(event, ReleaseUnawaited) else super().handle(sender, event, now)


class Hasty(ClientSession):
    """Planted bug: releases a hold before the user asks for it."""

    def handle(self, sender: Address, event: Event | SessionTick, now: Instant) -> Effects:
        effects = [*super().handle(sender, event, now)]
        for lock_key, held in list(self.session_state.holds.items()):
            if lock_key not in self.session_state.in_flight.releases:
                release = Release(lock=lock_key.lock, fence=held.fence, owner=lock_key.owner)
                user = address_of(self.address.partition("/")[0], "nobody")
                effects += super().handle(user, ReleaseUnawaited(release=release), now)
        return effects


def session(kind: type[ClientSession], context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    arguments = {"session": context.node, "endpoints": proxies, "random": context.random}
    return Spawn(address_of(context.node, "session"), kind, arguments)


@pytest.mark.parametrize("protocol", ["paxos", "central", "bakery", "lamport"])
def test_every_protocol_serves_users_that_do_not_wait_for_their_releases(protocol: str) -> None:
    for seed in range(5):
        assert clean([run_seed(protocol, seed, plan=PLAN)])["contender.released_later"]


@pytest.mark.parametrize(("bug", "broken"), [(Forgetful, "progress"), (Hasty, "mutual exclusion")])
def test_a_planted_bug_is_caught(bug: type[ClientSession], broken: str) -> None:
    for seed in range(10):
        report = run_seed("paxos", seed, plan=PLAN, make_session=partial(session, bug))
        if report.violation is not None:
            assert broken in str(report.violation)
            return
    raise AssertionError("no seed finds it")
