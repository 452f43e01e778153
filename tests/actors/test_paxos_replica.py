"""The replica: versions of commands, faults of the machine, and two batches for one slot."""

from __future__ import annotations

import pytest
from support.role_harness import T0, sent
from support.table_scene import LISTENER, replica_of_a

from fencelock.actors.effect import Effect, Effects, Fault, Send
from fencelock.actors.message import address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.config import leader_of
from fencelock.actors.paxos.replica import Replica

BALLOT = messages.Ballot(3, leader_of("a"))
COMMANDER = address_of("a", "commander-3")
OPENING = b"opening"


@pytest.fixture
def replica() -> Replica:
    return replica_of_a(opening=(OPENING,))


def lead(replica: Replica, first: int = 1, time_ms: int = 0) -> list[Effect]:
    leadership = events.Leadership(ballot=BALLOT, commander=COMMANDER, first=first, time_ms=time_ms)
    return list(replica.handle(leader_of("a"), leadership, T0))


@pytest.fixture
def leading(replica: Replica) -> Replica:
    """Return the replica of a leader whose opening is decided."""
    lead(replica)
    decide(replica, 1, OPENING)
    return replica


def gather(replica: Replica) -> Effects:
    """Let the replica receive the end of a turn."""
    return replica.handle(replica.address, events.Gather(), T0)


def decide(replica: Replica, slot: int, *commands: bytes, time_ms: int = 0) -> list[Effect]:
    batch = messages.Batch(time_ms=time_ms, commands=commands, origin=BALLOT)
    decided = events.Decided(slot=slot, batch=batch)
    return list(replica.handle(COMMANDER, decided, T0))


def orders(effects: Effects) -> list[events.Order]:
    return sent(effects, events.Order)


def test_a_command_above_the_log_version_of_a_member_is_declined(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version_of(command: bytes) -> int:
        return 3 if command == b"new" else 1

    lead(replica)
    monkeypatch.setattr(replica.machine, "version_of", version_of)
    for lower, too_new in (({"b": 2, "c": 3}, True), ({"c": 3}, False), ({}, False)):
        replica.config.lower_versions = dict[str, int](lower)
        batch = events.ProposalBatch(client=LISTENER, numbers=(1, 2), commands=(b"x", b"new"))
        effects = [*replica.handle(LISTENER, batch, T0), *gather(replica)]
        (ordered,) = orders(effects)
        assert ordered.batch.commands == ((b"x",) if too_new else (b"x", b"new"))
        declined = messages.Declined(number=2, why=messages.Decline.INVALID, leader="a")
        assert (Send(LISTENER, declined) in effects) is too_new


def test_an_exception_that_cost_a_command_is_reported_once(leading: Replica) -> None:
    fault = Fault("the command x", ValueError())
    leading.machine.faults.append(fault)
    assert fault in decide(leading, 2, b"x")
    assert fault not in decide(leading, 3, b"y")


def test_two_batches_for_one_slot_end_the_node(replica: Replica) -> None:
    decide(replica, 1, b"x")

    with pytest.raises(AssertionError):
        decide(replica, 1, b"y")
