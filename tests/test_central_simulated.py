"""`central` under every misfortune it survives, and mutants of it that the judges catch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from holdfast.actors.central.broker import Broker
from holdfast.actors.central.client import LockClient
from holdfast.actors.central.message import ClientRetransmit, Grant, Held, Mode, Release, Request
from holdfast.actors.central.server import Holding, LockServer
from holdfast.actors.effect import Effects, Observe, Send, Spawn
from holdfast.actors.lock.backend import Give, Got, Want
from holdfast.actors.message import Address, Instant, Message
from holdfast.actors.role import Role
from holdfast.cluster.recipe import Cast, Recipe, Seat, Settings, central
from holdfast.cluster.simulation.promise import promise_of
from holdfast.cluster.simulation.run import Report, run_seed

SEEDS = 100
SEEDS_FOR_A_MUTANT = 600
JOURNAL = Settings(central_journal=True)
FORGETFUL = Settings()


def run(seed: int, recipe: Recipe = central, settings: Settings = FORGETFUL) -> Report:
    return run_seed(recipe, seed, settings=settings, promise=promise_of("central", settings))


def with_role(mutant: type[Role[Any]]) -> Recipe:
    """Seat ``mutant`` where its own base class would sit."""

    def recipe(seat: Seat) -> Cast:
        cast = central(seat)
        roles = (replace(s, role=mutant) if issubclass(mutant, s.role) else s for s in cast.roles)
        return replace(cast, roles=tuple(roles))

    return recipe


def with_client(mutant: type[LockClient]) -> Recipe:
    """Let brokers spawn ``mutant`` for a lock client."""

    class Spawns(Broker):
        def _spawn(self, client: Address, want: Want) -> Spawn:
            return replace(super()._spawn(client, want), role=mutant)

    return with_role(Spawns)


@pytest.mark.parametrize(
    ("settings", "met"),
    [
        (FORGETFUL, ("given_back", "grant_repeated", "holder_reminded", "release_old")),
        (JOURNAL, ("given_back", "holdings_replayed", "looked_in_vain", "release_old")),
    ],
    ids=["without a journal", "with a journal and crashes of the server"],
)
def test_no_seed_breaks_a_promise_and_every_misfortune_was_met(
    settings: Settings, met: tuple[str, ...]
) -> None:
    marks: Counter[str] = Counter()
    grants = 0
    for seed in range(SEEDS):
        report = run(seed, settings=settings)
        assert report.violation is None, (seed, report.violation)
        marks.update(report.marks)
        grants += report.grants
    assert [name for name in met if not marks[f"central.{name}"]] == []
    assert grants >= 10 * SEEDS


class HeldLocksAreGranted(LockServer):
    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        return self._grant(request, now)


class ReleasesAreNotCompared(LockServer):
    def _matches(self, holding: Holding, release: Release) -> bool:
        return holding.client == release.client


class HoldersAreNotReminded(LockServer):
    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        effects = super()._on_request(sender, request, now)
        return () if Observe("central.holder_reminded") in effects else effects


class GrantsOfTheRetiredAreKept(Broker):
    def _on_grant(self, sender: Address, grant: Grant) -> Effects:
        return super()._on_grant(sender, grant) if grant.client in self.clients else ()


class GrantsAreNotCompared(LockClient):
    def _is_newer(self, grant: Grant) -> bool:
        return self.mode is not Mode.HELD


class ReleasesAreSaidOnce(LockClient):
    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, ClientRetransmit) and self.mode is Mode.RELEASING:
            return ()
        return super().handle(sender, event, now)


class LocksAreHandedOnLocally(LockClient):
    def _on_give(self, give: Give) -> Effects:
        if give.ticket != self.holding or len(self.tickets) == 1:
            return super()._on_give(give)
        del self.tickets[give.ticket]
        self.holding = next(iter(self.tickets))
        return (
            Send(self.broker, Got(lock=self.lock, ticket=self.holding, fence=self.sequence_num)),
        )


class GrantsAreNotWritten(LockServer):
    def _recorded(self, record: Message) -> Effects:
        return () if isinstance(record, Held) else super()._recorded(record)


class GrantsAreWrittenTooLate(LockServer):
    def _grant(self, request: Request, now: Instant) -> Effects:
        return tuple(reversed(super()._grant(request, now)))


MUTANTS: dict[str, tuple[Recipe, Settings, str]] = {
    "held locks are granted": (with_role(HeldLocksAreGranted), FORGETFUL, "mutual exclusion"),
    "releases are not compared": (with_role(ReleasesAreNotCompared), FORGETFUL, "mutual exclusion"),
    "grants are not compared": (with_client(GrantsAreNotCompared), FORGETFUL, "fences"),
    "locks are handed on": (with_client(LocksAreHandedOnLocally), FORGETFUL, "fences"),
    "releases are said once": (with_client(ReleasesAreSaidOnce), FORGETFUL, "progress"),
    "holders are not reminded": (with_role(HoldersAreNotReminded), FORGETFUL, "progress"),
    "the retired keep grants": (with_role(GrantsOfTheRetiredAreKept), FORGETFUL, "progress"),
    "grants are not written": (with_role(GrantsAreNotWritten), JOURNAL, "fences"),
    "grants are written too late": (with_role(GrantsAreWrittenTooLate), JOURNAL, "fences"),
}
"""The recipe, its settings, and the judge who must see it."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_caught(mutant: str) -> None:
    recipe, settings, judge = MUTANTS[mutant]

    violations = (run(seed, recipe, settings).violation for seed in range(SEEDS_FOR_A_MUTANT))
    caught = (violation for violation in violations if violation and judge in violation)

    assert next(caught, None) is not None
