"""Sessions under faults that strike holders, and bugs of a client that the judges catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from support.judged import clean

from fencelock.actors.api.lock_message import Acquire, Granted, Release
from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Event, Instant, node_of
from fencelock.actors.session.event import HoldsLost, Loss
from fencelock.actors.session.holds import ClientHold, HoldState
from fencelock.actors.session.lease import SessionLease, SessionTrust
from fencelock.actors.session.session import ClientSession
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.faults import FaultKind, Faults, promise_of
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.plan import RunPlan, draw_plan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import PauseEnded

SEEDS = 10
SEEDS_FOR_A_MUTANT = 20
PLAN = RunPlan(
    clients=3,
    owners=2,
    locks=1,
    chaos_ms=6_000,
    served_ms=20_000,
    ttl_ms=500,
    strikes_every_ms=400,
    deaths_ms=(2_000,),
    faults=Faults(late_per_mille=100, late_ms=1_500, reordering=True),
)
ANN, BEN = Address("c1/ann"), Address("c2/ben")


def run(seed: int) -> RunReport:
    return run_seed("paxos", seed, plan=PLAN)


def test_no_holder_believes_too_long_and_a_dead_clients_locks_are_granted_to_others() -> None:
    seen = clean(map(run, range(SEEDS)))
    for mark in ("client.holds_lost", "contender.lost", "contender.enters_again"):
        assert seen[mark], mark
    for fault in ("death of a client", "a holder was cut off", "a holder was paused"):
        assert seen[fault], fault


def believes_for_three_ttls(patch: pytest.MonkeyPatch) -> None:
    until = SessionLease.trusted_until

    def thrice(sent_at: Instant, ttl_ms: int) -> Instant:
        return until(sent_at, 3 * ttl_ms)

    patch.setattr(SessionLease, "trusted_until", staticmethod(thrice))


def counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    confirm, handle = SessionLease.confirm, ClientSession.handle
    received = Instant(0)

    def timed(self: ClientSession, sender: Address, event: Any, now: Instant) -> Effects:
        nonlocal received
        received = now
        return handle(self, sender, event, now)

    def late(self: SessionLease, sent_at: Instant) -> None:
        confirm(self, received)

    patch.setattr(ClientSession, "handle", timed)
    patch.setattr(SessionLease, "confirm", late)


def leaves_only_once(patch: pytest.MonkeyPatch) -> None:
    def freed(self: ClientHold, count: int, token: int | None) -> None:
        self.acquisitions = ()

    patch.setattr(ClientHold, "freed", freed)


@pytest.mark.parametrize(
    ("plant", "judge"),
    [
        (believes_for_three_ttls, "mutual exclusion"),
        (counts_from_the_answer, "mutual exclusion"),
        (leaves_only_once, "progress"),
    ],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(judge in (run(seed).violation or "") for seed in range(SEEDS_FOR_A_MUTANT))


class SessionWorld:
    """A judge of two contenders; the test sets the clocks of their clients."""

    def __init__(self, *, clocks_true: bool = True) -> None:
        self.clocks = {"c1": 0, "c2": 0}
        self.holds: dict[str, ClientHold] = {}
        self.judge = LockJudge(
            ("n1",), (ANN, BEN), clients=cast("Any", self), clocks_true=clocks_true
        )

    def now(self, client: str) -> Instant:
        return Instant(self.clocks[client])

    def hold_of(self, client: str, lock: str, owner: str) -> ClientHold | None:
        assert lock == "x"
        return self.holds.get(f"{client}/{owner}")

    def tell(self, to: Address, event: Event, *effects: Effect) -> None:
        sender = Address(f"{node_of(to)}/session")
        self.judge.handled(Delivery(0, node_of(to), sender, to, event, 1), effects)

    def enter(self, user: Address, fence: int, count: int = 1) -> None:
        self.give(user, fence, count)
        self.tell(user, Granted(lock="x", fence=fence, count=count))

    def give(self, user: Address, fence: int, count: int = 1) -> None:
        """Let ``user`` want the lock, and its session hold it and pass the grant on."""
        trust = SessionTrust(suspect_at=Instant(50), until=UNTIL)
        self.holds[user] = ClientHold(Address("n1/proxy"), fence, (), trust)
        self.pass_on(user, fence, count)

    def pass_on(self, user: Address, fence: int, count: int = 1) -> None:
        self.tell(user, PauseEnded(turn=1), Send(Address("s/s"), Acquire(lock="x")))
        granted = Granted(lock="x", fence=fence, count=count)
        self.tell(Address(f"{node_of(user)}/session"), granted, Send(user, granted))


UNTIL = Instant(100)


def test_a_holder_counts_as_inside_until_its_own_clock_has_passed_what_it_may_rely_on() -> None:
    bench = SessionWorld()
    bench.enter(ANN, 1)
    bench.clocks["c1"] = 99
    with pytest.raises(ViolationError, match="mutual exclusion"):
        bench.enter(BEN, 2)
    bench = SessionWorld()
    bench.enter(ANN, 1)
    bench.clocks["c1"] = 100
    bench.enter(BEN, 2)
    assert bench.judge.inside["x"].contender == BEN


def test_a_holder_is_outside_once_its_session_reported_it_or_its_client_died() -> None:
    bench = SessionWorld()
    bench.enter(ANN, 1)
    lost = HoldsLost(losses=(Loss("x", "ann", 1),), detail="")
    bench.tell(Address("c1/watcher"), lost)
    bench.enter(BEN, 2)
    bench.judge.crashed("c2", 1)
    bench.enter(ANN, 3)
    assert (bench.judge.losses, bench.judge.inside["x"].fence) == (1, 3)


def test_a_user_may_not_enter_what_it_cannot_rely_on() -> None:
    bench = SessionWorld()
    bench.clocks["c1"] = 100
    with pytest.raises(ViolationError, match="belief"):
        bench.enter(ANN, 1)


def test_a_grant_of_which_the_client_has_no_hold_is_a_violation() -> None:
    bench = SessionWorld()
    bench.pass_on(ANN, 1)
    with pytest.raises(ViolationError, match="belief"):
        bench.tell(ANN, Granted(lock="x", fence=1))


def test_a_hold_that_the_client_gave_back_while_its_user_is_inside_counts() -> None:
    bench = SessionWorld()
    bench.enter(ANN, 1)
    for state in (HoldState.RELEASING, HoldState.RELEASED):
        bench.holds[ANN].move(state)
    with pytest.raises(ViolationError, match="mutual exclusion"):
        bench.enter(BEN, 2)


def test_a_grant_that_its_session_lost_while_it_was_on_its_way_is_no_violation() -> None:
    bench = SessionWorld()
    bench.give(ANN, 1)
    bench.holds[ANN].lose("the session ended")
    bench.tell(ANN, Granted(lock="x", fence=1, count=1))
    bench.enter(BEN, 2)
    assert bench.judge.inside["x"].contender == BEN


def test_a_re_entry_is_no_new_hold_and_shows_the_same_fence() -> None:
    bench = SessionWorld()
    bench.enter(ANN, 1)
    bench.enter(ANN, 1, count=2)
    bench.tell(ANN, PauseEnded(turn=2), Send(Address("s/s"), Release(lock="x", fence=1)))
    bench.enter(BEN, 2)
    with pytest.raises(ViolationError, match="fences"):
        bench.enter(ANN, 2, count=2)


def test_fences_are_judged_alone_when_clocks_are_further_off_than_declared() -> None:
    bench = SessionWorld(clocks_true=False)
    bench.enter(ANN, 3)
    bench.enter(BEN, 4)
    bench.enter(ANN, 2)
    with pytest.raises(ViolationError, match="had before"):
        bench.enter(BEN, 3)


def test_most_plans_have_clocks_that_keep_to_what_is_declared() -> None:
    promise = promise_of("paxos", ProtocolSettings())
    plans = [draw_plan(seed, promise) for seed in range(200)]
    true = sum(promise.clocks_true(plan.faults) for plan in plans)
    assert 120 <= true < 200
    assert any(plan.deaths_ms for plan in plans)
    assert any(plan.strikes_every_ms for plan in plans)
    assert FaultKind.DRIFT in promise.survives
