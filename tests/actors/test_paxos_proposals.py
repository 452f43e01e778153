"""Proposals on their way into the log: forwarded, ordered, held back, and sent together."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.log_workload import Counted, LogCounter
from support.role_harness import HOST, T0, sends, sent
from support.table_scene import HERE, LISTENER, replica_of_a

from fencelock.actors.api.election import Lead
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import Acquire, Cancel, Granted, Release
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local, Message, address_of
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.config import WINDOW, leader_of, replica_of
from fencelock.actors.paxos.event import (
    BatchDelay,
    Decided,
    Drain,
    Gather,
    LeaderChanged,
    Leadership,
    Order,
    ProposalBatch,
    SlotOutcomes,
    SteppedDown,
)
from fencelock.actors.paxos.ordering import BATCH_DELAY_MS, QUEUE_MAX, Ordering
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    COMMAND_BYTES_MAX,
    Ballot,
    Decline,
    Declined,
    Propose,
    fits,
)
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.table.wire import LogCommand
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.codec import encode

OTHER, COMMANDER = address_of("b", "proxy"), address_of("a", "commander-3")
BALLOT = Ballot(3, leader_of("a"))
ANN = address_of("ann", "session")


class Patient(LogCounter):
    """A machine whose command ``wait`` would only wait for another."""

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        return command == b"wait" and not undecided


@pytest.fixture
def replica() -> Replica:
    return replica_of_a(machine=Patient())


@pytest.fixture
def leader(replica: Replica) -> Replica:
    """Return a replica that leads, with nothing under way."""
    lead(replica)
    return replica


@pytest.fixture
def proxy() -> Proxy:
    members = ("a", "b", "c")
    proxy = Proxy(LISTENER, HOST, backend=PaxosBackend("a", members, encode))
    proxy.begin(T0)
    return proxy


def proposal_batch(*commands: bytes, first: int = 1) -> ProposalBatch:
    numbers = tuple(range(first, first + len(commands)))
    return ProposalBatch(client=LISTENER, numbers=numbers, commands=commands)


def leadership_of_a(time_ms: int = 0) -> Leadership:
    return Leadership(ballot=BALLOT, commander=COMMANDER, first=1, time_ms=time_ms)


def lead(replica: Replica) -> None:
    """Let ``replica`` begin to lead, and decide what it orders then."""
    decide(replica, replica.handle(leader_of("a"), leadership_of_a(), T0))


def orders(effects: Effects) -> list[Order]:
    return sent(effects, Order)


def decide(replica: Replica, effects: Effects) -> list[Send]:
    """Decide all ordered slots; return the messages sent then."""
    decisions = [Decided(slot=order.slot, batch=order.batch) for order in orders(effects)]
    return [send for one in decisions for send in sends(replica.handle(COMMANDER, one, T0))]


def declined(number: int, why: Decline) -> Send:
    return Send(LISTENER, Declined(number=number, why=why, leader="a"))


def acquire(request: int) -> Acquire:
    return Acquire(lock=f"l{request}", session="ann.7", owner="o", request=request)


def test_a_proxy_brings_all_of_a_turn_at_its_end(proxy: Proxy) -> None:
    gather, tick = proxy.handle(ANN, acquire(2), T0)
    assert gather == Send(LISTENER, Gather())
    assert proxy.handle(ANN, acquire(3), T0) == ()

    brought = only(Send, proxy.handle(LISTENER, Gather(), T0))
    assert isinstance(brought.message, ProposalBatch)
    assert (brought.to, len(brought.message.commands)) == (HERE, 2)
    assert brought.message.numbers == (1, 2)
    assert tick == Wake(250, Tick())
    assert proxy.handle(ANN, acquire(4), T0) == (Send(LISTENER, Gather()),)


def test_a_proxy_that_gathered_nothing_brings_nothing(proxy: Proxy) -> None:
    assert sends(proxy.handle(LISTENER, Gather(), T0)) == []


def test_each_of_a_bundle_is_answered_by_its_own_outcome(proxy: Proxy) -> None:
    for request in (2, 3):
        proxy.handle(ANN, acquire(request), T0)
    proxy.handle(LISTENER, Gather(), T0)
    outcomes = tuple(
        Granted(session="ann.7", owner="o", request=n, lock=f"l{n}", fence=n, count=1)
        for n in (3, 2)
    )

    effects = proxy.handle(HERE, SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes), T0)

    assert [one.request for one in sent(effects, Granted)] == [3, 2]


def test_a_bundle_gets_a_slot_at_once(leader: Replica) -> None:
    (order,) = orders(leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0))
    assert order.batch.commands == (b"x", b"y")


def test_a_bundle_shares_the_slot_of_what_another_node_passed_on(leader: Replica) -> None:
    far = Propose(client=OTHER, number=7, command=b"far")
    assert leader.handle(replica_of("b"), far, T0) == [Send(HERE, Gather())]
    assert leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0) == ()

    ordered = leader.handle(HERE, Gather(), T0)

    (order,) = orders(ordered)
    assert order.batch.commands == (b"far", b"x", b"y")
    messages = [effect.message for effect in decide(leader, ordered) if effect.to == OTHER]
    assert messages == [Counted(number=1)]


def test_a_bundle_goes_on_in_the_next_slot_when_one_is_full(leader: Replica) -> None:
    commands = tuple(b"%d" % n for n in range(BATCH_COMMANDS_MAX + 3))
    first, second = orders(leader.handle(LISTENER, proposal_batch(*commands), T0))
    assert first.batch.commands + second.batch.commands == commands
    assert len(first.batch.commands) == BATCH_COMMANDS_MAX

    half = b"x" * (BATCH_BYTES_MAX // 2)
    halves = orders(leader.handle(LISTENER, proposal_batch(*[half] * 5), T0))
    assert [len(order.batch.commands) for order in halves] == [2, 2, 1]


def test_a_command_above_the_limit_of_a_slot_has_one_of_its_own(leader: Replica) -> None:
    large = b"x" * COMMAND_BYTES_MAX
    effects = leader.handle(LISTENER, proposal_batch(b"1", large, large, b"2", b"3"), T0)
    batches = [order.batch for order in orders(effects)]
    assert [batch.commands for batch in batches] == [(b"1",), (large,), (large,), (b"2", b"3")]
    assert all(map(fits, batches))


def test_a_bundle_that_would_only_wait_lingers_but_not_with_others(leader: Replica) -> None:
    lingers = only(Wake, leader.handle(LISTENER, proposal_batch(b"wait", b"wait"), T0))
    assert lingers.timer == BatchDelay()
    (order,) = orders(leader.handle(LISTENER, proposal_batch(b"wait", b"x", first=3), T0))
    assert order.batch.commands == (b"wait", b"wait", b"wait", b"x")


def test_each_proposal_of_a_bundle_goes_to_another_node_that_leads(replica: Replica) -> None:
    replica.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    passed = replica.handle(LISTENER, proposal_batch(b"x", b"y"), T0)

    assert list(passed) == [
        Send(
            replica_of("c"),
            Propose(client=LISTENER, number=number, command=command, forwarded=True),
        )
        for number, command in ((1, b"x"), (2, b"y"))
    ]


def test_a_batch_is_declined_while_this_leadership_ends(leader: Replica) -> None:
    """Its proxy proposes it again when it learns which node leads."""
    leader.handle(leader_of("a"), Drain(ballot=BALLOT), T0)
    effects = leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)
    assert list(effects) == [declined(number, Decline.NOT_LEADER) for number in (1, 2)]


def test_only_the_proposals_of_a_bundle_that_are_too_large_are_declined(leader: Replica) -> None:
    large = b"x" * (COMMAND_BYTES_MAX + 1)
    effects = leader.handle(LISTENER, proposal_batch(large, b"y"), T0)
    assert list(effects) == [declined(1, Decline.INVALID), Send(HERE, Gather())]


def test_each_proposal_of_a_bundle_is_declined_when_too_much_waits(leader: Replica) -> None:
    for _ in range(WINDOW):
        assert orders(leader.handle(LISTENER, proposal_batch(b"x"), T0))
    leader.handle(LISTENER, proposal_batch(*[b"x"] * QUEUE_MAX), T0)
    effects = leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)
    assert list(effects) == [declined(number, Decline.OVERLOADED) for number in (1, 2)]


def test_proposals_are_dropped_when_a_leadership_ends(leader: Replica) -> None:
    """Some may be decided; their proxies repeat all of them when they learn which node leads."""
    leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)
    effects = leader.handle(leader_of("a"), SteppedDown(pause_ms=0), T0)
    assert list(effects) == [Send(LISTENER, LeaderChanged(leader=""))]
    proposals = leader.ordering.proposals
    assert not proposals.queue
    assert not proposals.in_flight
    assert not proposals.queue_commands


@pytest.fixture
def follower() -> Replica:
    return replica_of_a()


def proposal(number: int = 1, client: Address = LISTENER, command: bytes = b"x") -> Propose:
    return Propose(client=client, number=number, command=command)


def test_a_command_goes_to_the_leader_once_and_is_declined_without_one(follower: Replica) -> None:
    mine, forwarded = proposal(1), Propose(client=OTHER, number=2, command=b"y", forwarded=True)
    nobody = [Declined(number=number, why=Decline.NOT_LEADER, leader="") for number in (1, 2)]
    assert follower.handle(LISTENER, mine, T0) == (Send(LISTENER, nobody[0]),)
    assert follower.handle(replica_of("b"), forwarded, T0) == (Send(OTHER, nobody[1]),)

    followed = follower.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    assert list(followed) == [Send(LISTENER, LeaderChanged(leader="c"))]
    passed = Propose(client=LISTENER, number=1, command=b"x", forwarded=True)
    assert follower.handle(LISTENER, mine, T0) == (Send(replica_of("c"), passed),)
    declined = Declined(number=2, why=Decline.NOT_LEADER, leader="c")
    assert follower.handle(replica_of("b"), forwarded, T0) == (Send(OTHER, declined),)


def test_bytes_that_are_no_command_are_declined_or_dropped(follower: Replica) -> None:
    large = proposal(command=b"x" * (COMMAND_BYTES_MAX + 1))
    invalid = Declined(number=1, why=Decline.INVALID, leader="")

    assert follower.handle(LISTENER, large, T0) == (Send(LISTENER, invalid),)
    nobody = proposal(client=Address("nobody"))
    assert follower.handle(LISTENER, nobody, T0) == (Observe("paxos.impossible_client"),)


def ordering(time_ms: int = 0, applied_ms: int = 0) -> Ordering:
    """Return one whose leadership begins at ``T0``; phase one found stamps up to ``time_ms``."""
    one = Ordering((b"open",))
    one.clock.set(applied_ms, T0)
    one.begin(leadership_of_a(time_ms), applied_ms, T0)
    return one


def propose(one: Ordering, number: int) -> None:
    one.proposals.add(OTHER, (number,), (b"x",))


def test_all_commands_of_one_turn_share_a_slot() -> None:
    one = ordering()
    propose(one, 1)
    assert one.gather(HERE) == [GATHER]
    propose(one, 2)
    assert one.gather(HERE) == []  # One is on its way, behind all that has come.

    (both,) = orders(one.order(2, T0))

    assert both.batch.commands == (b"x", b"x")
    assert one.gather(HERE) == [GATHER]


@pytest.mark.parametrize(
    ("found_ms", "ordered_ms"),
    [(3_600_000, 3_600_500), (10, 1_500)],
    ids=["found and not applied here", "lower than what is applied"],
)
def test_log_time_goes_on_from_the_later_of_what_phase_one_found_and_what_is_applied(
    found_ms: int, ordered_ms: int
) -> None:
    """Or it would stand still until this node's own clock had caught up with that stamp."""
    one = ordering(time_ms=found_ms, applied_ms=1_000)
    propose(one, 1)

    (order,) = orders(one.order(2, Instant(T0 + 500 * NS_PER_MS)))

    assert order.batch.time_ms == ordered_ms


GATHER, LATER = Send(HERE, Gather()), Wake(BATCH_DELAY_MS, BatchDelay())


class DelayingLeader:
    """A replica that leads, over a real table; what gets a slot is decided on request."""

    def __init__(self) -> None:
        self.machine = LockMachine()
        self.replica = replica_of_a(machine=self.machine)
        self.number = 0
        lead(self.replica)
        self.put(Open(session="s", request=1, ttl_ms=60_000))
        self.session = next(iter(self.machine.table.sessions.by_id))

    def propose(self, command: LogCommand) -> Effects:
        self.number += 1
        written = self.machine.write(command)
        message = Propose(client=OTHER, number=self.number, command=written)
        return self.replica.handle(OTHER, message, T0)

    def gather(self) -> Effects:
        return self.replica.handle(HERE, Gather(), T0)

    def decide(self, effects: Effects) -> list[Message | Local]:
        return [send.message for send in decide(self.replica, effects)]

    def apply(self, ordered: Effects) -> list[Effect]:
        """Decide the slots of ``ordered``; return what the replica does then."""
        decisions = [Decided(slot=order.slot, batch=order.batch) for order in orders(ordered)]
        return [one for each in decisions for one in self.replica.handle(COMMANDER, each, T0)]

    def put(self, command: LogCommand) -> list[Message | Local]:
        assert self.propose(command) == [GATHER]
        return self.decide(self.gather())

    def release(self, owner: str, fence: int) -> Effects:
        """Propose a release, and return what the replica orders."""
        release = Release(session=self.session, owner=owner, request=2, lock="proxy", fence=fence)
        assert self.propose(release) == [GATHER]
        return self.gather()

    def acquire(self, owner: str, request: int = 1, wait_ms: int | None = None) -> Acquire:
        return Acquire(
            session=self.session,
            owner=owner,
            request=request,
            lock="proxy",
            wait_ms=wait_ms,
            limit=0,
        )


def sizes(effects: Effects) -> list[int]:
    """Return how many commands each slot has that was given."""
    return [len(order.batch.commands) for order in orders(effects)]


@pytest.fixture
def delaying_leader() -> DelayingLeader:
    """Return a leader at which owner ``1`` holds the lock."""
    one = DelayingLeader()
    assert isinstance(one.put(one.acquire("1"))[0], Granted)
    return one


def test_an_acquire_that_must_wait_shares_the_slot_of_the_release_and_is_granted_by_it(
    delaying_leader: DelayingLeader,
) -> None:
    assert delaying_leader.propose(delaying_leader.acquire("2")) == [LATER]
    assert delaying_leader.propose(delaying_leader.acquire("3")) == []  # That timer serves both.
    release = Release(session=delaying_leader.session, owner="1", request=2, lock="proxy", fence=1)

    assert delaying_leader.propose(release) == [GATHER]
    ordered = delaying_leader.gather()

    assert sizes(ordered) == [3]
    granted = [
        message for message in delaying_leader.decide(ordered) if isinstance(message, Granted)
    ]
    assert [held.owner for held in granted] == ["2"]


def test_a_delayed_command_gets_a_slot_after_a_moment_and_the_next_is_delayed_again(
    delaying_leader: DelayingLeader,
) -> None:
    delaying_leader.propose(delaying_leader.acquire("2"))

    ordered = delaying_leader.replica.handle(HERE, BatchDelay(), T0)

    assert sizes(ordered) == [1]
    delaying_leader.decide(ordered)
    assert delaying_leader.propose(delaying_leader.acquire("3")) == [LATER]


def test_no_command_is_delayed_while_a_slot_is_under_way_since_the_lock_may_be_free_after_it(
    delaying_leader: DelayingLeader,
) -> None:
    assert sizes(delaying_leader.release("1", fence=1)) == [1]

    assert delaying_leader.propose(delaying_leader.acquire("2")) == [GATHER]


@pytest.fixture
def contended(delaying_leader: DelayingLeader) -> DelayingLeader:
    """Return the leader, with owner ``2`` in the queue behind ``1``."""
    delaying_leader.propose(delaying_leader.acquire("2"))
    delaying_leader.decide(delaying_leader.replica.handle(HERE, BatchDelay(), T0))
    return delaying_leader


def test_a_claim_behind_a_waiter_is_delayed_though_the_release_is_under_way(
    contended: DelayingLeader,
) -> None:
    released = contended.release("1", fence=1)
    assert contended.propose(contended.acquire("3")) == [LATER]

    assert orders(contended.apply(released)) == []  # It still waits: ``2`` holds the lock.

    assert sizes(contended.release("2", fence=2)) == [2]


def test_a_delayed_claim_gets_a_slot_once_an_applied_one_has_freed_the_lock(
    contended: DelayingLeader,
) -> None:
    released = contended.release("1", fence=1)
    contended.propose(Cancel(session=contended.session, owner="2", request=1, lock="proxy"))
    cancelled = contended.gather()
    assert contended.propose(contended.acquire("3")) == [LATER]

    contended.apply(cancelled)
    ordered = contended.apply(released)

    assert sizes(ordered) == [1]
    assert [one.owner for one in contended.decide(ordered) if isinstance(one, Granted)] == ["3"]


@pytest.mark.parametrize("wait_ms", [0, 99])
def test_a_short_wait_is_queued_at_once(delaying_leader: DelayingLeader, wait_ms: int) -> None:
    assert delaying_leader.propose(delaying_leader.acquire("2", wait_ms=wait_ms)) == [GATHER]


def test_a_holder_that_acquires_again_is_answered_at_once(delaying_leader: DelayingLeader) -> None:
    assert delaying_leader.propose(delaying_leader.acquire("1", request=2)) == [GATHER]


Claim = AcquirePermits | AcquireReadWrite | Lead | AcquireAll

LOCK: dict[str, Any] = {"session": "s.1", "owner": "1", "request": 1}
HELD: dict[str, Claim] = {
    "a semaphore": AcquirePermits(semaphore="x", permits=2, amount=2, **LOCK),
    "a read/write lock": AcquireReadWrite(rwlock="x", write=True, **LOCK),
    "an election": Lead(election="x", value="v", **LOCK),
    "several locks": AcquireAll(locks=("x", "y"), **LOCK),
}


@pytest.fixture(params=HELD)
def claim(request: pytest.FixtureRequest, delaying_leader: DelayingLeader) -> Claim:
    """Return a claim of which the same one was granted to another owner."""
    held = HELD[request.param]
    assert isinstance(delaying_leader.put(held)[0], Granted)
    return held


def test_a_claim_that_must_wait_is_delayed(delaying_leader: DelayingLeader, claim: Claim) -> None:
    assert delaying_leader.propose(replace(claim, owner="2")) == [LATER]
    release = Release(session=claim.session, owner="1", request=2, lock=claim.lock, fence=2)
    assert delaying_leader.propose(release) == [GATHER]
    ordered = delaying_leader.gather()
    assert sizes(ordered) == [2]
    granted = [
        message for message in delaying_leader.decide(ordered) if isinstance(message, Granted)
    ]
    assert [held.owner for held in granted] == ["2"]


def test_a_claim_of_every_kind_that_is_answered_at_once_is_not_delayed(
    delaying_leader: DelayingLeader, claim: Claim
) -> None:
    for known in (
        replace(claim, request=2),  # Of the holder.
        replace(claim, owner="2", session="s.9"),  # Without a session.
        replace(claim, owner="2", wait_ms=99),
    ):
        delaying_leader.put(known)
    if isinstance(claim, AcquirePermits):
        delaying_leader.put(replace(claim, owner="2", permits=3))


def test_a_claim_of_one_lock_waits_for_a_holder_of_several(delaying_leader: DelayingLeader) -> None:
    delaying_leader.put(AcquireAll(locks=("x", "y"), **LOCK))
    one = replace(delaying_leader.acquire("2"), lock="y")
    assert delaying_leader.propose(one) == [LATER]


def test_a_claim_behind_others_waits_with_permits_free(delaying_leader: DelayingLeader) -> None:
    delaying_leader.put(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK))
    first = replace(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK), owner="2")
    assert delaying_leader.propose(first) == [LATER]
    delaying_leader.decide(delaying_leader.replica.handle(HERE, BatchDelay(), T0))
    behind = replace(AcquirePermits(semaphore="x", permits=3, **LOCK), owner="3")
    assert delaying_leader.propose(behind) == [LATER]


def test_a_claim_whose_permits_are_free_is_granted_at_once(delaying_leader: DelayingLeader) -> None:
    delaying_leader.put(AcquirePermits(semaphore="x", permits=3, amount=2, **LOCK))
    (granted,) = delaying_leader.put(
        replace(AcquirePermits(semaphore="x", permits=3, **LOCK), owner="2")
    )[:1]
    assert isinstance(granted, Granted)


def test_delayed_proposals_are_dropped_when_a_leadership_ends_and_the_timer_does_nothing(
    delaying_leader: DelayingLeader,
) -> None:
    delaying_leader.propose(delaying_leader.acquire("2"))
    replica = delaying_leader.replica
    replica.ordering.end()

    assert not replica.handle(HERE, BatchDelay(), T0)
