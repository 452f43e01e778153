"""Requests that reach a proxy in one turn go into the log together."""

from __future__ import annotations

import pytest
from support.effects import HOST, T0
from support.log_workload import LogCounter
from support.replicas import HERE, LISTENER, replica_of_a

from fencelock.actors.api.message import Acquire, Granted
from fencelock.actors.effect import Effects, Send, Wake
from fencelock.actors.message import address_of
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
from fencelock.actors.paxos.message import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    COMMAND_BYTES_MAX,
    Ballot,
    Decline,
    Declined,
    Propose,
    Proposed,
    fits,
)
from fencelock.actors.paxos.ordering import QUEUE_MAX
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.transport.codec import encode

OTHER, COMMANDER = address_of("b", "proxy"), address_of("a", "commander-3")
BALLOT = Ballot(3, leader_of("a"))
ANN = address_of("ann", "session")


class Patient(LogCounter):
    """A machine whose command ``wait`` would only wait for another."""

    def version_of(self, command: bytes) -> int:
        del command
        return 1

    def is_patient(self, command: bytes) -> bool:
        return command == b"wait"


@pytest.fixture
def replica() -> Replica:
    return replica_of_a(machine=Patient())


@pytest.fixture
def leader(replica: Replica) -> Replica:
    """Return a replica that leads, with nothing under way."""
    leadership = Leadership(ballot=BALLOT, commander=COMMANDER, first=1, time_ms=0)
    decide(replica, replica.handle(leader_of("a"), leadership, T0))
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


def orders(effects: Effects) -> list[Order]:
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, Order)]


def decide(replica: Replica, effects: Effects) -> list[Send]:
    """Decide all ordered slots; return the messages sent then."""
    return [
        effect
        for order in orders(effects)
        for effect in replica.handle(COMMANDER, Decided(slot=order.slot, batch=order.batch), T0)
        if isinstance(effect, Send)
    ]


def declined(number: int, why: Decline, leader: str = "") -> Send:
    return Send(LISTENER, Declined(number=number, why=why, leader=leader))


def acquire(request: int) -> Acquire:
    return Acquire(lock=f"l{request}", session="ann.7", owner="o", request=request)


def test_a_proxy_brings_all_of_a_turn_at_its_end(proxy: Proxy) -> None:
    gather, tick = proxy.handle(ANN, acquire(2), T0)
    assert gather == Send(LISTENER, Gather())
    assert proxy.handle(ANN, acquire(3), T0) == ()

    (brought,) = proxy.handle(LISTENER, Gather(), T0)

    assert isinstance(brought, Send)
    assert isinstance(brought.message, ProposalBatch)
    assert (brought.to, len(brought.message.commands)) == (HERE, 2)
    assert brought.message.numbers == (1, 2)
    assert tick == Wake(250, Tick())
    assert proxy.handle(ANN, acquire(4), T0) == (Send(LISTENER, Gather()),)


def test_a_proxy_that_gathered_nothing_brings_nothing(proxy: Proxy) -> None:
    effects = proxy.handle(LISTENER, Gather(), T0)
    assert not [effect for effect in effects if isinstance(effect, Send)]


def test_each_of_a_bundle_is_answered_by_its_own_outcome(proxy: Proxy) -> None:
    for request in (2, 3):
        proxy.handle(ANN, acquire(request), T0)
    proxy.handle(LISTENER, Gather(), T0)
    outcomes = tuple(
        Granted(session="ann.7", owner="o", request=n, lock=f"l{n}", fence=n, count=1)
        for n in (3, 2)
    )

    effects = proxy.handle(HERE, SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes), T0)

    told = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [one.request for one in told if isinstance(one, Granted)] == [3, 2]


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
    told = [effect.message for effect in decide(leader, ordered) if effect.to == OTHER]
    assert told[-1] == Proposed(number=7, slot=order.slot)


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
    (lingers,) = leader.handle(LISTENER, proposal_batch(b"wait", b"wait"), T0)
    assert isinstance(lingers, Wake)
    assert lingers.timer == BatchDelay()
    (order,) = orders(leader.handle(LISTENER, proposal_batch(b"wait", b"x", first=3), T0))
    assert order.batch.commands == (b"wait", b"wait", b"wait", b"x")


def test_while_another_leads_each_of_a_bundle_goes_there(replica: Replica) -> None:
    replica.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    passed = replica.handle(LISTENER, proposal_batch(b"x", b"y"), T0)

    assert list(passed) == [
        Send(
            replica_of("c"),
            Propose(client=LISTENER, number=number, command=command, forwarded=True),
        )
        for number, command in ((1, b"x"), (2, b"y"))
    ]


def test_a_batch_waits_while_no_node_leads_or_this_leadership_ends(leader: Replica) -> None:
    leader.handle(leader_of("a"), Drain(ballot=BALLOT), T0)
    assert list(leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)) == []

    passed = leader.handle(leader_of("a"), LeaderChanged(leader="c"), T0)

    sent = [effect.message for effect in passed if isinstance(effect, Send)]
    assert [one.command for one in sent if isinstance(one, Propose)] == [b"x", b"y"]


def test_of_a_bundle_only_what_is_too_large_is_declined(leader: Replica) -> None:
    large = b"x" * (COMMAND_BYTES_MAX + 1)
    effects = leader.handle(LISTENER, proposal_batch(large, b"y"), T0)
    assert list(effects) == [declined(1, Decline.INVALID, "a"), Send(HERE, Gather())]


def test_when_too_much_waits_each_of_a_bundle_is_declined(leader: Replica) -> None:
    for _ in range(WINDOW):
        assert orders(leader.handle(LISTENER, proposal_batch(b"x"), T0))
    leader.handle(LISTENER, proposal_batch(*[b"x"] * QUEUE_MAX), T0)
    effects = leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)
    assert list(effects) == [declined(number, Decline.OVERLOADED, "a") for number in (1, 2)]


def test_each_command_of_a_batch_is_declined_when_a_leadership_ends(leader: Replica) -> None:
    leader.handle(LISTENER, proposal_batch(b"x", b"y"), T0)
    deposed = SteppedDown(ballot=BALLOT, by=Ballot(4, leader_of("c")), pause_ms=0)
    effects = leader.handle(leader_of("a"), deposed, T0)
    told = [effect for effect in effects if isinstance(effect, Send)]
    assert told[-2:] == [declined(number, Decline.NOT_LEADER) for number in (1, 2)]
