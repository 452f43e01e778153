"""The judges, with a small lock server that is honest or has a bug for each of them to find."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from support.statuses import READY

from fencelock.actors.api import message as api
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Instant
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.faults import CALM, FaultKind
from fencelock.verification.simulation.plan import RunPlan, draw_plan
from fencelock.verification.simulation.promise import Survival
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed

PLAN = RunPlan(
    nodes=1, clients=3, owners=2, locks=2, chaos_ms=3_000, served_ms=20_000, drained_ms=2_000
)


class Server(Role[api.Acquire | api.Release | api.Describe]):
    """One queue for each lock; the first waiter holds it, even if its wait has timed out."""

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.queues: dict[str, list[tuple[Address, api.Acquire]]] = {}
        self.fence = 0

    def handle(
        self, sender: Address, event: api.Acquire | api.Release | api.Describe, now: Instant
    ) -> Effects:
        match event:
            case api.Acquire():
                return self.on_acquire(sender, event)
            case api.Release():
                return self.on_release(sender, event)
            case api.Describe():
                return [Send(sender, self.status())]

    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        queue = self.queues.setdefault(acquire.lock, [])
        queue.append((sender, acquire))
        return [self.grant(sender, acquire)] if len(queue) == 1 else ()

    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence += 1
        granted = api.Granted(
            lock=acquire.lock, fence=self.fence, owner=acquire.owner, request=acquire.request
        )
        return Send(sender, granted)

    def on_release(self, sender: Address, release: api.Release) -> Effects:
        queue = self.queues[release.lock]
        del queue[0]
        told = Send(sender, api.Released(lock=release.lock, owner=release.owner))
        return [told, self.grant(*queue[0])] if queue else [told]

    def status(self) -> api.NodeStatus:
        return replace(READY, protocol="toy")


class Doorway(Role[api.Acquire | api.Release | api.Granted | api.Released | api.Refused]):
    """A session for a good network: passes everything on."""

    def __init__(self, address: Address, host: Any, *, proxy: Address) -> None:
        super().__init__(address, host)
        self.proxy = proxy

    def handle(
        self,
        sender: Address,
        event: api.Acquire | api.Release | api.Granted | api.Released | api.Refused,
        now: Instant,
    ) -> Effects:
        if isinstance(event, api.Acquire | api.Release):
            return [Send(self.proxy, replace(event, session="s"))]
        return [Send(Address(f"{self.address.partition('/')[0]}/{event.owner}"), event)]


def doorway(context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    return Spawn(Address(f"{context.node}/session"), Doorway, {"proxy": proxies[0]})


def serving(server: type[Server]) -> MakeRoles:
    def make_roles(context: NodeContext) -> RoleSet:
        return RoleSet((Spawn(Address(f"{context.node}/proxy"), server),))

    return make_roles


def run(server: type[Server], plan: RunPlan = PLAN, seed: int = 3) -> RunReport:
    return run_seed(serving(server), seed, plan=plan, make_session=doorway)


def test_an_honest_server_passes_every_judge() -> None:
    report = run(Server)

    assert report.violation is None
    assert report.grants > 40
    assert report.deliveries > 500
    assert report.marks["contender.requests"] == report.grants


class GrantsEverybody(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        return [self.grant(sender, acquire)]

    def on_release(self, sender: Address, release: api.Release) -> Effects:
        return [Send(sender, api.Released(lock=release.lock, owner=release.owner))]


def test_a_server_that_grants_everybody_breaks_mutual_exclusion() -> None:
    assert "mutual exclusion: c" in (run(GrantsEverybody).violation or "")


class ReusesFences(Server):
    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence = 6
        return super().grant(sender, acquire)


def test_a_server_that_uses_a_fence_twice_is_caught() -> None:
    assert "fence 7" in (run(ReusesFences).violation or "")
    assert "had before" in (run(ReusesFences).violation or "")


class LowersFences(Server):
    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence = 10_000 if self.fence == 0 else self.fence - 2
        return super().grant(sender, acquire)


def test_a_server_whose_fences_fall_is_caught() -> None:
    assert "was shown" in (run(LowersFences).violation or "")


class ForgetsWaiters(Server):
    def on_release(self, sender: Address, release: api.Release) -> Effects:
        self.queues[release.lock] = []
        return [Send(sender, api.Released(lock=release.lock, owner=release.owner))]


def test_a_server_that_forgets_who_waits_is_caught_when_the_faults_are_over() -> None:
    violation = run(ForgetsWaiters).violation or ""

    assert violation.startswith("23000.000 ms: progress: 20000 ms after all faults ended")
    assert "waits ('lock-" in violation


class GrantsTwice(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        granted = list(super().on_acquire(sender, acquire))
        return granted + granted


def test_a_want_that_is_granted_twice_is_caught() -> None:
    assert "did not wait for it" in (run(GrantsTwice).violation or "")


class GrantsAfterRefusing(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        refused = api.Refused(
            lock=acquire.lock, reason=api.Reason.TIMED_OUT, detail="", owner=acquire.owner
        )
        return [Send(sender, refused), *super().on_acquire(sender, acquire)]


def test_a_want_that_is_refused_and_then_granted_is_caught() -> None:
    assert "did not wait for it" in (run(GrantsAfterRefusing).violation or "")


class KeepsAResidue(Server):
    def status(self) -> api.NodeStatus:
        residue = api.LockStatus(lock="lock-1", holder=None, waiters=(), waits_for=())
        return replace(super().status(), locks=(residue,))


def test_a_proxy_that_remembers_a_lock_when_everybody_is_done_is_caught() -> None:
    violation = run(KeepsAResidue).violation or ""

    assert "drain: 2000 ms after everybody was done, n1/proxy: it still has" in violation


def test_a_run_with_too_few_grants_proves_nothing_and_fails() -> None:
    assert "void: " in (run(Server, dataclasses.replace(PLAN, grants_min=100_000)).violation or "")


class Fails(Server):
    def on_release(self, sender: Address, release: api.Release) -> Effects:
        raise RuntimeError(f"cannot release {release.lock}")


def test_a_role_that_raises_fails_the_run() -> None:
    violation = run(Fails).violation or ""

    assert "n1/proxy broke in Release" in violation
    assert "RuntimeError: cannot release lock-" in violation


def test_a_violation_is_the_same_each_time_and_comes_with_its_trace() -> None:
    first, second = run(GrantsEverybody), run(GrantsEverybody)

    assert first.violation == second.violation
    assert first.trace() == second.trace()
    assert "Granted(" in first.trace()[-1]


def test_each_fault_is_off_in_about_two_runs_of_five_and_never_on_unpromised() -> None:
    promise = Survival(survives=frozenset({FaultKind.LOSS, FaultKind.PAUSE}))
    plans = [draw_plan(seed, promise) for seed in range(400)]

    for knob in ("loss_per_mille", "pause_every_ms"):
        off = sum(getattr(plan.faults, knob) == 0 for plan in plans)
        assert 120 < off < 200
    assert all(plan.faults.crash_every_ms == 0 for plan in plans)
    assert all(plan.faults.cut_every_ms == 0 for plan in plans)
    assert len({plan.nodes for plan in plans}) == 5


def test_calm_is_calm() -> None:
    report = run(Server, dataclasses.replace(PLAN, faults=CALM))

    assert report.faults == {}
