"""A command that would only wait for a later one shares that one's slot, or goes after a moment."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.effects import T0
from support.replicas import HERE, replica_of_a

from fencelock.actors.api.election import Lead
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Granted, Release
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effects, Send, Wake
from fencelock.actors.message import Local, Message, address_of
from fencelock.actors.paxos.config import leader_of
from fencelock.actors.paxos.event import BatchDelay, Decided, Gather, Leadership, Order
from fencelock.actors.paxos.message import Ballot, Propose
from fencelock.actors.paxos.ordering import BATCH_DELAY_MS
from fencelock.actors.table.wire import LogCommand
from fencelock.cluster.node.lock_machine import LockMachine

ELSEWHERE = address_of("b", "proxy")
COMMANDER = address_of("a", "commander-3")
GATHER, LATER = Send(HERE, Gather()), Wake(BATCH_DELAY_MS, BatchDelay())


class DelayingLeader:
    """A replica that leads, over a real table; whatever gets a slot is decided when told."""

    def __init__(self) -> None:
        self.machine = LockMachine()
        self.replica = replica_of_a(machine=self.machine, listener=None)
        self.number = 0
        ballot = Ballot(3, leader_of("a"))
        reign = Leadership(ballot=ballot, commander=COMMANDER, first=1, time_ms=0)
        self.decide(self.replica.handle(leader_of("a"), reign, T0))
        self.put(Open(session="s", request=1, ttl_ms=60_000))
        self.session = next(iter(self.machine.table.sessions.by_id))

    def propose(self, command: LogCommand) -> Effects:
        self.number += 1
        written = self.machine.write(command)
        word = Propose(client=ELSEWHERE, number=self.number, command=written)
        return self.replica.handle(ELSEWHERE, word, T0)

    def gather(self) -> Effects:
        return self.replica.handle(HERE, Gather(), T0)

    def decide(self, effects: Effects) -> list[Message | Local]:
        """Decide all ordered slots, and return the messages about them."""
        told: list[Message | Local] = []
        for order in orders(effects):
            word = Decided(slot=order.slot, batch=order.batch)
            told += [
                one.message
                for one in self.replica.handle(COMMANDER, word, T0)
                if isinstance(one, Send)
            ]
        return told

    def put(self, command: LogCommand) -> list[Message | Local]:
        assert self.propose(command) == [GATHER]
        return self.decide(self.gather())

    def acquire(self, owner: str, request: int = 1, wait_ms: int | None = None) -> Acquire:
        return Acquire(
            session=self.session,
            owner=owner,
            request=request,
            lock="proxy",
            wait_ms=wait_ms,
            limit=0,
        )


def orders(effects: Effects) -> list[Order]:
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, Order)]


def sizes(effects: Effects) -> list[int]:
    """Return how many commands each slot has that was given."""
    return [len(order.batch.commands) for order in orders(effects)]


@pytest.fixture
def leader() -> DelayingLeader:
    """Return a leader at which owner ``1`` holds the lock."""
    one = DelayingLeader()
    assert isinstance(one.put(one.acquire("1"))[0], Granted)
    return one


def test_who_must_wait_anyway_shares_the_slot_of_the_release_and_is_granted_by_it(
    leader: DelayingLeader,
) -> None:
    assert leader.propose(leader.acquire("2")) == [LATER]
    assert leader.propose(leader.acquire("3")) == []  # That timer serves both.
    release = Release(session=leader.session, owner="1", request=2, lock="proxy", fence=1)

    assert leader.propose(release) == [GATHER]
    ordered = leader.gather()

    assert sizes(ordered) == [3]
    granted = [told for told in leader.decide(ordered) if isinstance(told, Granted)]
    assert [held.owner for held in granted] == ["2"]


def test_without_another_command_it_gets_a_slot_after_a_moment_and_the_next_lingers_again(
    leader: DelayingLeader,
) -> None:
    leader.propose(leader.acquire("2"))

    ordered = leader.replica.handle(HERE, BatchDelay(), T0)

    assert sizes(ordered) == [1]
    leader.decide(ordered)
    assert leader.propose(leader.acquire("3")) == [LATER]


def test_while_a_slot_is_under_way_nothing_lingers_since_the_lock_may_be_free_after_it(
    leader: DelayingLeader,
) -> None:
    leader.propose(Release(session=leader.session, owner="1", request=2, lock="proxy", fence=1))
    assert sizes(leader.gather()) == [1]

    assert leader.propose(leader.acquire("2")) == [GATHER]


@pytest.mark.parametrize("wait_ms", [0, 99])
def test_who_waits_for_a_moment_only_is_queued_at_once(
    leader: DelayingLeader, wait_ms: int
) -> None:
    assert leader.propose(leader.acquire("2", wait_ms=wait_ms)) == [GATHER]


def test_who_holds_the_lock_already_is_answered_at_once(leader: DelayingLeader) -> None:
    assert leader.propose(leader.acquire("1", request=2)) == [GATHER]


Claim = AcquirePermits | AcquireReadWrite | Lead | AcquireAll

LOCK: dict[str, Any] = {"session": "s.1", "owner": "1", "request": 1}
HELD: dict[str, Claim] = {
    "a semaphore": AcquirePermits(semaphore="x", permits=2, amount=2, **LOCK),
    "a read/write lock": AcquireReadWrite(rwlock="x", write=True, **LOCK),
    "an election": Lead(election="x", value="v", **LOCK),
    "several locks": AcquireAll(locks=("x", "y"), **LOCK),
}


@pytest.fixture(params=HELD)
def claim(request: pytest.FixtureRequest, leader: DelayingLeader) -> Claim:
    """Return a claim of which the same one was granted to another owner."""
    held = HELD[request.param]
    assert isinstance(leader.put(held)[0], Granted)
    return held


def test_a_claim_of_every_kind_that_must_wait_is_delayed(
    leader: DelayingLeader, claim: Claim
) -> None:
    assert leader.propose(replace(claim, owner="2")) == [LATER]
    release = Release(session=claim.session, owner="1", request=2, lock=claim.lock, fence=2)
    assert leader.propose(release) == [GATHER]
    ordered = leader.gather()
    assert sizes(ordered) == [2]
    granted = [told for told in leader.decide(ordered) if isinstance(told, Granted)]
    assert [held.owner for held in granted] == ["2"]


def test_a_claim_of_every_kind_that_is_answered_at_once_is_not_delayed(
    leader: DelayingLeader, claim: Claim
) -> None:
    for known in (
        replace(claim, request=2),  # Of the holder.
        replace(claim, owner="2", session="s.9"),  # Without a session.
        replace(claim, owner="2", wait_ms=99),
    ):
        leader.put(known)
    if isinstance(claim, AcquirePermits):
        leader.put(replace(claim, owner="2", permits=3))


def test_a_claim_of_one_lock_waits_for_a_holder_of_several(leader: DelayingLeader) -> None:
    leader.put(AcquireAll(locks=("x", "y"), **LOCK))
    one = replace(leader.acquire("2"), lock="y")
    assert leader.propose(one) == [LATER]


def test_a_claim_behind_others_waits_although_its_permits_are_free(leader: DelayingLeader) -> None:
    leader.put(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK))
    first = replace(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK), owner="2")
    assert leader.propose(first) == [LATER]
    leader.decide(leader.replica.handle(HERE, BatchDelay(), T0))
    behind = replace(AcquirePermits(semaphore="x", permits=3, **LOCK), owner="3")
    assert leader.propose(behind) == [LATER]


def test_a_claim_whose_permits_are_free_is_granted_at_once(leader: DelayingLeader) -> None:
    leader.put(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK))
    (granted,) = leader.put(replace(AcquirePermits(semaphore="x", permits=3, **LOCK), owner="2"))[
        :1
    ]
    assert isinstance(granted, Granted)


def test_when_a_reign_ends_who_lingers_is_told_so_and_the_timer_does_nothing(
    leader: DelayingLeader,
) -> None:
    leader.propose(leader.acquire("2"))
    replica = leader.replica
    assert [asker.number for asker in replica.ordering.end()] == [leader.number]

    assert not replica.handle(HERE, BatchDelay(), T0)
