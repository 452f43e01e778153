"""The fast path of a session takes the same steps as the general path, under any fault."""

from __future__ import annotations

import copy
from collections import Counter
from random import Random
from typing import Any

import pytest
from support.effects import HOST

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Granted, Release, Released
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.effect import Effect, Effects
from fencelock.actors.message import Address, Instant
from fencelock.actors.session import fast_path
from fencelock.actors.session.pending import claim_named
from fencelock.actors.session.session import ClientSession
from fencelock.actors.session.session_lease import Stage
from fencelock.actors.session.session_state import SessionState
from fencelock.cluster.simulation.promise import promise_of
from fencelock.cluster.simulation.run import LOCKS, Workload, run_seed
from fencelock.cluster.simulation.rwlocks import RWLOCKS
from fencelock.cluster.simulation.semaphores import SEMAPHORES
from fencelock.cluster.simulation.several import LOCK_ALL
from fencelock.cluster.topology import ProtocolSettings

SEEDS = 4
HANDLE: Any = vars(ClientSession)["handle"]


class BothWays:
    """Also lets each session take the general path, on a copy of its state, and compares."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.taken: Counter[str] = Counter()
        """Number of uses of the fast path by decision, and of the general path."""
        self.left: Counter[str] = Counter()
        self.ways = {kind: fast_path.WAYS[kind] for kind in kinds}
        self.role: Any = None

    def handle(self, role: ClientSession, sender: Address, event: Any, now: Instant) -> Effects:
        self.role = role
        effects: Effects = HANDLE(role, sender, event, now)
        return effects

    def decide(
        self, ledger: SessionState, sender: Address, event: Any, now: Instant
    ) -> list[Effect] | None:
        """Stand for each of `plain.WAYS`."""
        name, random = type(event).__name__, self.role.session_state.in_flight.random
        twin, drawn = copy.deepcopy(ledger, {id(random): random}), random.getstate()
        way = self.ways[type(event)]
        assert way is not None
        effects = way(ledger, sender, event, now)
        if effects is None:
            self.left[name] += 1
            assert (ledger, random.getstate()) == (twin, drawn)
            return None
        self.taken[name] += 1
        after = random.getstate()
        random.setstate(drawn)
        self.role.session_state = twin
        assert self.role._decide(sender, event, now) == effects
        assert (twin, random.getstate()) == (ledger, after)
        self.role.session_state = ledger
        return effects


REPLIES = (Release, Granted, Released)


@pytest.mark.parametrize(
    ("protocol", "acquires", "workload", "plainly"),
    [
        ("paxos", (Acquire,), LOCKS, True),
        ("central", (Acquire,), LOCKS, False),
        ("paxos", (AcquirePermits,), SEMAPHORES, True),
        ("paxos", (AcquireReadWrite,), RWLOCKS, True),
        ("paxos", (Acquire, AcquireAll), LOCK_ALL, True),
    ],
)
def test_both_ways_take_the_same_steps(
    protocol: str,
    acquires: tuple[type, ...],
    workload: Workload,
    plainly: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = BothWays((*acquires, *REPLIES))
    for kind in both.ways:
        monkeypatch.setitem(fast_path.WAYS, kind, both.decide)

    def handle(role: ClientSession, *told: Any) -> Effects:
        return both.handle(role, *told)

    monkeypatch.setattr(ClientSession, "handle", handle)
    for seed in range(SEEDS):
        promise = promise_of(protocol, ProtocolSettings())
        report = run_seed(protocol, seed, promise=promise, workload=workload)
        assert report.violation is None
    kinds = {kind.__name__ for kind in both.ways}
    assert set(both.left) == kinds
    assert set(both.taken) == (kinds if plainly else set())


def test_what_a_stranger_or_nobody_may_name_is_not_kept() -> None:
    """A name in a memory of names is checked before, so that the memory is bounded."""
    ledger = ClientSession(
        Address("c/session"), HOST, session="c", endpoints=(Address("a/proxy"),), random=Random(1)
    ).session_state
    ledger.session_lease.enter(Stage.OPEN)
    kept = claim_named.cache_info().currsize
    for user in (Address("a/proxy"), Address("c/ask-1")):
        release = Release(lock="n" * 100_000, fence=7, owner="o")
        assert fast_path.on_release(ledger, user, release, Instant(0)) is None
    assert claim_named.cache_info().currsize == kept
