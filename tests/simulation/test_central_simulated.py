"""`central` under every fault it survives, and mutants of it that the judges catch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from support.central_scene import (
    GrantsAreNotCompared,
    GrantsOfTheRetiredAreKept,
    HeldLocksAreGranted,
    HoldersAreNotReminded,
    LocksAreHandedOnLocally,
    ReleasesAreNotCompared,
)
from support.judged import clean, seen_in

from fencelock.actors.api.lock_message import ConfirmHold
from fencelock.actors.central import wire as messages
from fencelock.actors.central.broker import Broker
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server import Holding, LockServer
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, Message, address_of
from fencelock.actors.proxy.event import AcquireLock
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.role import Role
from fencelock.actors.session.session import ClientSession
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings, central
from fencelock.verification.simulation.faults import Faults, promise_of
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.planting import in_place, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.workload import MakeSession, client_session

SEEDS = 25
SEEDS_FOR_A_MUTANT = 600
JOURNAL = ProtocolSettings(central_journal=True)
FORGETFUL = ProtocolSettings()


def run(
    seed: int,
    make_roles: MakeRoles = central,
    settings: ProtocolSettings = FORGETFUL,
    make_session: MakeSession = client_session,
    plan: RunPlan | None = None,
) -> RunReport:
    return run_seed(
        make_roles,
        seed,
        settings=settings,
        promise=promise_of("central", settings),
        make_session=make_session,
        plan=plan,
    )


def with_role(mutant: type[Role[Any]]) -> MakeRoles:
    return planted(central, in_place(mutant))


def with_client(mutant: type[LockClient]) -> MakeRoles:
    """Let brokers spawn ``mutant`` for a lock client."""

    class Spawns(Broker):
        def _spawn(self, client: Address, acquire: AcquireLock) -> Spawn:
            return replace(super()._spawn(client, acquire), role=mutant)

    return with_role(Spawns)


@pytest.mark.parametrize(
    ("settings", "met"),
    [
        (FORGETFUL, ("given_back", "grant_repeated", "holder_reminded", "release_old")),
        (JOURNAL, ("given_back", "holdings_replayed", "looked_in_vain", "release_old")),
    ],
    ids=["without a journal", "with a journal and crashes of the server"],
)
def test_no_seed_breaks_a_promise_and_every_fault_occurred(
    settings: ProtocolSettings, met: tuple[str, ...]
) -> None:
    """Nodes restart while their clients live, and clients close in the middle of it."""
    seen = clean(run(seed, settings=settings) for seed in range(SEEDS))
    met += ("freed", "granted_to_earlier_life", "revoke_repeated")
    assert seen["crash"] >= SEEDS
    assert seen["close of a client"] >= SEEDS // 4
    assert seen["client.hold_disowned"] >= SEEDS // 10
    assert [name for name in met if not seen[f"central.{name}"]] == []
    assert seen["grants"] >= 10 * SEEDS


class ReleasesAreSentOnce(LockClient):
    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, messages.ClientRetransmit) and self.mode is messages.Mode.RELEASING:
            return ()
        return super().handle(sender, event, now)


class GrantsAreNotWritten(LockServer):
    def _record(self, record: Message) -> Effects:
        return () if isinstance(record, messages.Held) else super()._record(record)


class GrantsAreWrittenTooLate(LockServer):
    def _grant(self, request: messages.Request, now: Instant) -> Effects:
        return tuple(reversed(super()._grant(request, now)))


class NoClientIsAskedWhetherItHolds(Broker):
    def _doubt(self, grant: messages.Grant, now: Instant) -> Effects:
        return ()


class EndedSessionsAreForgotten(LockServer):
    def _on_end_session(self, sender: Address, end: messages.EndSession, now: Instant) -> Effects:
        effects = super()._on_end_session(sender, end, now)
        self.ended.clear()
        return effects


class FreedByAnySession(LockServer):
    def _on_free(self, sender: Address, free: messages.Free, now: Instant) -> Effects:
        holding = self.held.get(free.lock)
        number = free.number if holding is None else holding.number
        return super()._on_free(sender, replace(free, number=number), now)


def holds_end_with_the_life_of_a_node(context: NodeContext) -> RoleSet:
    """Run a proxy that only knows holds of its own life."""
    role_set = central(context)
    clients = address_of(context.node, "clients")
    forgetful = {"backend": LockManager(context.node, context.nodes, "central", clients)}
    roles = (replace(s, arguments=forgetful) if s.role is Proxy else s for s in role_set.roles)
    return dataclasses.replace(role_set, roles=tuple(roles))


class DisownsAndGoesOnWaiting(ClientSession):
    """Reports that it does not hold the lock, and takes a late grant of it all the same."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if not isinstance(event, ConfirmHold):
            return super().handle(sender, event, now)
        waits, self.session_state.in_flight.waits = self.session_state.in_flight.waits, {}
        effects = super().handle(sender, event, now)
        self.session_state.in_flight.waits = waits
        return effects


def careless_proxy(context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    return replace(client_session(context, proxies), role=DisownsAndGoesOnWaiting)


MUTANTS: dict[str, tuple[MakeRoles, ProtocolSettings, str, int]] = {
    "held locks are granted": (with_role(HeldLocksAreGranted), FORGETFUL, "mutual exclusion", 0),
    "releases are not compared": (
        with_role(ReleasesAreNotCompared),
        FORGETFUL,
        "mutual exclusion",
        140,
    ),
    "grants are not compared": (with_client(GrantsAreNotCompared), FORGETFUL, "fences", 0),
    "locks are handed on": (with_client(LocksAreHandedOnLocally), FORGETFUL, "fences", 0),
    "releases are sent once": (with_client(ReleasesAreSentOnce), FORGETFUL, "progress", 0),
    "holders are not reminded": (with_role(HoldersAreNotReminded), FORGETFUL, "progress", 30),
    "the retired keep grants": (with_role(GrantsOfTheRetiredAreKept), FORGETFUL, "progress", 11),
    "grants are not written": (with_role(GrantsAreNotWritten), JOURNAL, "fences", 0),
    "holds end with a node": (holds_end_with_the_life_of_a_node, FORGETFUL, "progress", 0),
    "no client is asked": (with_role(NoClientIsAskedWhetherItHolds), FORGETFUL, "progress", 62),
    "any number is freed": (with_role(FreedByAnySession), JOURNAL, "mutual exclusion", 127),
    "grants are written too late": (with_role(GrantsAreWrittenTooLate), JOURNAL, "fences", 280),
}
"""The function that makes the roles, its settings, the judge that must find the bug, and the first
seed of the search, which keeps it short."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_caught(mutant: str) -> None:
    make_roles, settings, judge, first = MUTANTS[mutant]
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    assert seen_in(judge, (run(seed, make_roles, settings) for seed in seeds))


LATE = RunPlan(
    clients=4,
    owners=2,
    locks=1,
    chaos_ms=6_000,
    faults=Faults(
        late_per_mille=150, late_ms=2_500, crash_every_ms=250, down_ms=5, reordering=True
    ),
)
"""Nodes restart all the time, and their last messages arrive late."""


CLOSINGS = dataclasses.replace(LATE, closings_ms=(2_000, 3_000, 4_000, 5_000))
"""Clients close meanwhile, so that requests of ended sessions arrive."""


def closing(seed: int, make_roles: MakeRoles) -> RunReport:
    return run(seed, make_roles, JOURNAL, plan=CLOSINGS)


@pytest.mark.long
def test_a_server_that_forgets_ended_sessions_is_caught() -> None:
    """It grants late requests to clients that ended, forever; a sound server does not."""
    forgetful = with_role(EndedSessionsAreForgotten)
    seed = next(s for s in range(100) if seen_in("progress", [closing(s, forgetful)]))
    sound = clean(closing(number, central) for number in range(max(seed + 1, 10)))
    assert sound["central.request_of_ended_session"] >= 20


CLOSED_WHILE_DOWN = 700496
"""A seed with one node: a client closes while it is down, and leaves a hold in its journal."""


def test_an_operator_evicts_the_hold_of_a_client_that_closed_while_no_node_answered() -> None:
    assert clean([run(CLOSED_WHILE_DOWN, settings=JOURNAL)])["proxy.evicted"] == 1


class ReleasesOfOneSessionAreLost(LockServer):
    """Confirms the releases of a client that lives on, without freeing the lock."""

    def _matches(self, holding: Holding, release: messages.Release) -> bool:
        return holding.session != "c2" and super()._matches(holding, release)


def test_a_lost_release_of_a_living_client_is_caught_although_an_operator_evicts() -> None:
    lossy = with_role(ReleasesOfOneSessionAreLost)
    assert seen_in("progress", [run(CLOSED_WHILE_DOWN, lossy, JOURNAL)])


class HoldsOutliveTheirSession(LockServer):
    """Confirms the end of a session, without freeing its locks."""

    def _on_end_session(self, sender: Address, end: messages.EndSession, now: Instant) -> Effects:
        return (Send(sender, messages.SessionEnded(session=end.session)),)


def test_a_hold_that_outlives_the_confirmed_end_of_its_session_is_caught() -> None:
    make_roles = with_role(HoldsOutliveTheirSession)
    assert seen_in("progress", (closing(seed, make_roles) for seed in range(20)))


def disowning(seed: int, make_session: MakeSession) -> RunReport:
    return run(seed, make_session=make_session, plan=LATE)


def test_a_client_that_disowns_a_hold_takes_no_late_grant_of_it() -> None:
    seen = clean(disowning(seed, client_session) for seed in range(8))
    assert seen["client.hold_disowned"] >= 8


def test_a_client_that_disowns_a_hold_and_takes_it_later_is_caught() -> None:
    assert seen_in("fences", (disowning(seed, careless_proxy) for seed in range(50)))
