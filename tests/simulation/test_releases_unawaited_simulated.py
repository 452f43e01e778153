"""Users that do not wait for their releases, under all faults, and planted bugs."""

from __future__ import annotations

from functools import partial

import pytest

from fencelock.actors.api.message import Release
from fencelock.actors.effect import Effects, Spawn
from fencelock.actors.message import Address, Instant, address_of
from fencelock.actors.session.message import ReleaseUnawaited, SessionTick
from fencelock.actors.session.session import ClientSession, Event
from fencelock.cluster.node.topology import NodeContext
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.run import run_seed

PLAN = RunPlan(nodes=3, clients=2, owners=2, locks=1, chaos_ms=2_000, unawaited_share=1.0)


class Forgetful(ClientSession):
    """Planted bug: drops a release for which no user waits."""

    def handle(self, sender: Address, event: Event | SessionTick, now: Instant) -> Effects:
        return () if isinstance(event, ReleaseUnawaited) else super().handle(sender, event, now)


class Hasty(ClientSession):
    """Planted bug: releases a hold before the user asks for it."""

    def handle(self, sender: Address, event: Event | SessionTick, now: Instant) -> Effects:
        effects = [*super().handle(sender, event, now)]
        for lock_key, hold in list(self.session_state.holds.items()):
            if lock_key not in self.session_state.in_flight.releases:
                release = Release(lock=lock_key.lock, fence=hold.fence, owner=lock_key.owner)
                user = address_of(self.address.partition("/")[0], "nobody")
                effects += super().handle(user, ReleaseUnawaited(release=release), now)
        return effects


def session(kind: type[ClientSession], context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    arguments = {"session": context.node, "endpoints": proxies, "random": context.random}
    return Spawn(address_of(context.node, "session"), kind, arguments)


@pytest.mark.parametrize("protocol", ["paxos", "central", "bakery", "lamport"])
def test_every_protocol_serves_users_that_do_not_wait_for_their_releases(protocol: str) -> None:
    for seed in range(5):
        report = run_seed(protocol, seed, plan=PLAN)
        assert report.violation is None, report.violation
        assert report.marks["contender.released_later"]


@pytest.mark.parametrize(("bug", "broken"), [(Forgetful, "progress"), (Hasty, "mutual exclusion")])
def test_a_planted_bug_is_caught(bug: type[ClientSession], broken: str) -> None:
    for seed in range(10):
        report = run_seed("paxos", seed, plan=PLAN, make_session=partial(session, bug))
        if report.violation is not None:
            assert broken in str(report.violation)
            return
    raise AssertionError("no seed finds it")
