"""The replica: slots, log time, replies, messages to its listener, and forwarding."""

from __future__ import annotations

from hashlib import sha256

import pytest
from support.log_workload import Counted, LogCounter
from support.role_harness import T0, at, sends, sent
from support.table_scene import HERE, LISTENER, replica_of_a

from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.config import WINDOW, acceptor_of, catchup_of, leader_of
from fencelock.actors.paxos.replica import GAP_MS, REPORT_SLOTS, Replica
from fencelock.verification.simulation.paxos_machine import OrderRead, ReadOrder

BALLOT = messages.Ballot(3, leader_of("a"))
COMMANDER = address_of("a", "commander-3")
OTHER = address_of("b", "proxy")
OPENING = b"opening"


class Alarm(LogCounter):
    """A tally of which something is due at log time 50, once."""

    def due_ms(self, before: int | None = None) -> int | None:
        return None if self.rung else 50

    def __init__(self) -> None:
        super().__init__()
        self.rung = False

    def advance(self, time_ms: int) -> tuple[Counted, ...]:
        if self.rung or time_ms < 50:
            return ()
        self.rung = True
        return (Counted(number=50),)


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


def propose(number: int = 1, client: Address = LISTENER, command: bytes = b"x") -> messages.Propose:
    return messages.Propose(client=client, number=number, command=command)


def gather(replica: Replica) -> Effects:
    """Let the replica receive the end of a turn."""
    return replica.handle(replica.address, events.Gather(), T0)


def order(slot: int, *commands: bytes, time_ms: int = 0) -> Send:
    batch = messages.Batch(time_ms=time_ms, commands=commands, origin=BALLOT)
    return Send(COMMANDER, events.Order(slot=slot, batch=batch))


def decide(replica: Replica, slot: int, *commands: bytes, time_ms: int = 0) -> list[Effect]:
    batch = messages.Batch(time_ms=time_ms, commands=commands, origin=BALLOT)
    decided = events.Decided(slot=slot, batch=batch)
    return list(replica.handle(COMMANDER, decided, T0))


def learned(slot: int) -> events.Learned:
    return events.Learned(
        slots=((slot, messages.Batch(time_ms=slot, commands=(b"x",))),), committed=slot + 1
    )


def happened(slot: int, *counts: int, time_ms: int = 0) -> Send:
    outcomes = tuple(Counted(number=count) for count in counts)
    return Send(LISTENER, events.SlotOutcomes(slot=slot, time_ms=time_ms, outcomes=outcomes))


def orders(effects: Effects) -> list[events.Order]:
    return sent(effects, events.Order)


def test_a_listener_first_learns_that_no_leader_is_known(replica: Replica) -> None:
    assert replica.begin(T0) == [Send(LISTENER, events.LeaderChanged(leader=""))]


def test_a_leadership_begins_with_a_batch_of_its_own(replica: Replica) -> None:
    assert lead(replica) == [order(1, OPENING), Send(LISTENER, events.LeaderChanged(leader="a"))]


def test_a_command_gets_a_slot_at_once_later_ones_share_the_next(replica: Replica) -> None:
    lead(replica)
    for number in range(1, WINDOW):
        assert replica.handle(LISTENER, propose(number), T0) == [Send(HERE, events.Gather())]
        (only,) = orders(gather(replica))
        assert only.slot == number + 1
    for number in range(WINDOW, WINDOW + messages.BATCH_COMMANDS_MAX + 1):
        replica.handle(LISTENER, propose(number), T0)
    assert gather(replica) == []

    (full,) = orders(decide(replica, 1, OPENING))
    (rest,) = orders(decide(replica, 2, b"x"))

    assert len(full.batch.commands) == messages.BATCH_COMMANDS_MAX
    assert len(rest.batch.commands) == 1


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


def test_the_listener_receives_outcomes_once_and_far_clients_directly(leading: Replica) -> None:
    leading.handle(LISTENER, propose(7), T0)
    gather(leading)
    leading.handle(OTHER, propose(8, OTHER), T0)
    gather(leading)

    own, others = decide(leading, 2, b"x"), decide(leading, 3, b"x")

    assert own == [happened(2, 2)]
    assert others == [Send(OTHER, Counted(number=3)), happened(3, 3)]


def test_an_exception_that_cost_a_command_is_reported_once(leading: Replica) -> None:
    fault = Fault("the command x", ValueError())
    leading.machine.faults.append(fault)
    assert fault in decide(leading, 2, b"x")
    assert fault not in decide(leading, 3, b"y")


def test_the_acceptor_learns_every_few_slots_what_is_applied(replica: Replica) -> None:
    lead(replica)
    effects = [
        decide(replica, slot, OPENING if slot == 1 else b"x")
        for slot in range(1, 2 * REPORT_SLOTS + 1)
    ]

    reports = [
        send
        for after_slot in effects
        for send in sends(after_slot)
        if isinstance(send.message, events.Applied)
    ]
    assert reports == [
        Send(acceptor_of("a"), events.Applied(slot=REPORT_SLOTS + 1)),
        Send(acceptor_of("a"), events.Applied(slot=2 * REPORT_SLOTS + 1)),
    ]


def test_a_heartbeat_with_proof_has_the_acceptor_learn_what_is_applied(replica: Replica) -> None:
    replica.handle(catchup_of("a"), learned(1), T0)
    fresh = events.Fresh(since=T0, slot=2)

    assert list(replica.handle(acceptor_of("a"), fresh, T0)) == [
        Send(acceptor_of("a"), events.Applied(slot=2))
    ]
    assert list(replica.handle(acceptor_of("a"), fresh, T0)) == []


def test_a_leader_that_stands_learns_of_each_applied_slot_until_it_leads(replica: Replica) -> None:
    replica.handle(leader_of("a"), events.ReportApplied(), T0)
    standing = replica.handle(catchup_of("a"), learned(1), T0)
    lead(replica, first=2)
    leading = decide(replica, 2, OPENING)

    assert Send(leader_of("a"), events.Applied(slot=2)) in standing
    assert not [
        effect for effect in leading if effect == Send(leader_of("a"), events.Applied(slot=3))
    ]


def test_a_leader_that_steps_down_is_sent_no_more_reports(replica: Replica) -> None:
    replica.handle(leader_of("a"), events.ReportApplied(), T0)
    deposed = events.SteppedDown(pause_ms=0)
    replica.handle(leader_of("a"), deposed, T0)

    effects = replica.handle(catchup_of("a"), learned(1), T0)

    assert Send(leader_of("a"), events.Applied(slot=2)) not in effects


def test_deadlines_that_a_tick_ends_are_reported_too() -> None:
    replica = replica_of_a(machine=Alarm(), opening=(OPENING,))
    lead(replica)
    armed = decide(replica, 1, OPENING)
    assert armed[-1] == Wake(50, events.LogTimeDue(ballot=BALLOT, due_ms=50))

    due_at_50 = events.LogTimeDue(ballot=BALLOT, due_ms=50)
    ticked = replica.handle(HERE, due_at_50, at(50))
    assert replica.handle(HERE, due_at_50, at(50)) == []  # That one is under way.
    due = decide(replica, 2, time_ms=50)

    assert list(ticked) == [order(2, time_ms=50), Observe("paxos.ticked")]
    outcome = Counted(number=50)
    assert due[0] == Send(LISTENER, events.SlotOutcomes(slot=2, time_ms=50, outcomes=(outcome,)))


def test_log_time_does_not_go_back_from_one_leadership_to_the_next(replica: Replica) -> None:
    replica.handle(
        acceptor_of("a"),
        events.Learned(slots=((1, messages.Batch(time_ms=70, commands=())),), committed=2),
        at(1_000),
    )
    (first,) = orders(lead(replica, first=2, time_ms=90))

    assert first.batch.time_ms == 90


def test_slots_are_applied_in_order_and_a_gap_is_asked_for(replica: Replica) -> None:
    replica.handle(leader_of("a"), events.LeaderChanged(leader="c"), T0)
    later = events.Learned(slots=((2, messages.Batch(time_ms=2, commands=(b"2",))),), committed=3)

    assert replica.handle(acceptor_of("a"), later, T0) == [Wake(GAP_MS, events.GapCheck(slot=1))]
    asked = replica.handle(HERE, events.GapCheck(slot=1), T0)
    assert asked[0] == Send(catchup_of("a"), events.Lacking(first=1, target=3, leader="c"))
    both = replica.handle(
        catchup_of("a"),
        events.Learned(slots=((1, messages.Batch(time_ms=1, commands=(b"1",))),), committed=0),
        T0,
    )
    assert list(both) == [happened(1, 1, time_ms=1), happened(2, 2, time_ms=2)]
    assert list(replica.handle(HERE, events.GapCheck(slot=1), T0)) == []  # It is closed.


def test_a_leader_that_yields_finishes_its_slots_and_declines_the_rest(leading: Replica) -> None:
    leading.handle(LISTENER, propose(7), T0)
    assert leading.handle(leader_of("a"), events.Drain(ballot=BALLOT), T0) == []
    declined = messages.Declined(number=8, why=messages.Decline.NOT_LEADER, leader="a")
    assert leading.handle(LISTENER, propose(8), T0) == (Send(LISTENER, declined),)

    done = decide(leading, 2, b"x")

    assert done[-1] == Send(leader_of("a"), events.Drained(ballot=BALLOT))


def test_a_leader_that_drains_or_has_anothers_lease_answers_no_read(leading: Replica) -> None:
    lease = events.LeaseHeld(ballot=BALLOT, until=at(250), confirmed=at(0))
    query = events.ReadMachine(number=1, query=ReadOrder(), age_ms=None)
    machine_read = events.MachineRead(
        number=1,
        reply=OrderRead(position=1, chain=sha256(OPENING).digest()),
        slot=2,
        age_ms=0,
        quiet_ms=10,
    )
    answer = Send(LISTENER, machine_read)
    leading.handle(
        leader_of("a"),
        events.LeaseHeld(ballot=messages.NO_BALLOT, until=at(250), confirmed=at(0)),
        T0,
    )
    assert answer not in leading.handle(LISTENER, query, at(10))
    assert answer in leading.handle(leader_of("a"), lease, at(10))

    leading.handle(leader_of("a"), events.Drain(ballot=BALLOT), at(11))

    assert answer not in leading.handle(leader_of("a"), lease, at(12))
    assert answer not in leading.handle(LISTENER, query, at(12))


def test_two_batches_for_one_slot_end_the_node(replica: Replica) -> None:
    decide(replica, 1, b"x")

    with pytest.raises(AssertionError):
        decide(replica, 1, b"y")
