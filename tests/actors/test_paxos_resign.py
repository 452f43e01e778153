"""A leader that must resign: another leads at once without waiting for a lease; forged messages do
no harm."""

from __future__ import annotations

from random import Random

import pytest
from support.effects import HOST, T0, sends
from support.replicas import config_of

from fencelock.actors.effect import Effects, Observe, Retire, Send
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import message as messages
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import LEASE_MS, acceptor_of, leader_of, monitor_of, replica_of
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader, LeaderPhase
from fencelock.actors.role_message import LinkDown

CONFIG = config_of()
LEADER, ASKER = leader_of("a"), address_of("a", "~ask-1")
BALLOT = messages.Ballot(1, LEADER)
HIGHER = messages.Ballot(2, leader_of("b"))


@pytest.fixture
def leader() -> Leader:
    """Return one that leads under `BALLOT`."""
    role = Leader(LEADER, HOST, node="a", config=CONFIG, random=Random(1), recovered=Recovered())
    role.handle(LEADER, events.LeaderChanged(leader="a"), T0)
    role.handle(monitor_of("a"), events.Succeed(ballot=messages.Ballot(0, LEADER)), T0)
    role.handle(LEADER, events.Adopted(ballot=BALLOT, floor=1, source="b", batches=()), T0)
    assert role.phase is LeaderPhase.LEADING
    return role


def resign(leader: Leader) -> Effects:
    return leader.handle(ASKER, events.Resign(), T0)


def test_who_does_not_lead_says_so_at_once() -> None:
    role = Leader(LEADER, HOST, node="a", config=CONFIG, random=Random(1), recovered=Recovered())
    role.handle(monitor_of("a"), events.LeaderChanged(leader="b"), T0)

    assert resign(role) == (Send(ASKER, events.Resigned(leader="b")),)


def test_a_leader_asks_for_a_successor_and_has_its_replica_finish(leader: Leader) -> None:
    assert sends(resign(leader)) == [Send(monitor_of("a"), events.Nominate())]
    assert sends(resign(leader)) == []  # It has begun.
    named = leader.handle(monitor_of("a"), events.Nominated(node="c"), T0)
    assert named == [Send(replica_of("a"), events.Drain(ballot=BALLOT))]


def test_it_gives_its_lease_back_when_its_replica_trusts_it_no_more(leader: Leader) -> None:
    resign(leader)
    leader.handle(monitor_of("a"), events.Nominated(node="c"), T0)

    effects = leader.handle(replica_of("a"), events.Drained(ballot=BALLOT), T0)

    assert effects[0] == Retire(address_of("a", "commander-1"))
    said = [(send.to, send.message) for send in sends(effects)][2:]
    assert said == [
        *((acceptor_of(node), messages.Release(ballot=BALLOT)) for node in "abc"),
        (monitor_of("c"), messages.TakeOver(ballot=BALLOT)),
    ]
    assert leader.phase is LeaderPhase.FOLLOWING


def test_it_keeps_its_lease_and_goes_when_slots_take_too_long(leader: Leader) -> None:
    resign(leader)
    leader.handle(monitor_of("a"), events.Nominated(node="c"), T0)

    effects = leader.handle(LEADER, events.HandOverLate(ballot=BALLOT), T0)

    words = [send.message for send in sends(effects)]
    assert not any(isinstance(word, messages.Release) for word in words)
    assert words[-1] == messages.TakeOver(ballot=BALLOT)
    assert leader.handle(replica_of("a"), events.Drained(ballot=BALLOT), T0) == ()


def test_who_asked_hears_when_another_leads_or_that_it_takes_too_long(leader: Leader) -> None:
    resign(leader)
    leader.handle(monitor_of("a"), events.Nominated(node="c"), T0)
    leader.handle(replica_of("a"), events.Drained(ballot=BALLOT), T0)

    assert leader.handle(monitor_of("a"), events.LeaderChanged(leader=""), T0) == ()
    followed = leader.handle(monitor_of("a"), events.LeaderChanged(leader="c"), T0)
    assert followed == [Send(ASKER, events.Resigned(leader="c"))]
    assert leader.handle(LEADER, events.ResignedLate(ballot=BALLOT), T0) == []


def test_without_a_successor_it_leads_on_and_says_so_at_once(leader: Leader) -> None:
    resign(leader)

    effects = leader.handle(monitor_of("a"), events.Nominated(node=""), T0)

    assert effects == [Send(ASKER, events.Resigned(leader=""))]
    assert leader.handle(LEADER, events.HandOverLate(ballot=BALLOT), T0) == ()
    assert leader.phase is LeaderPhase.LEADING


def monitor_of_a(members: str = "abc") -> FailureDetector:
    config = config_of(members)
    return FailureDetector(monitor_of("a"), HOST, node="a", config=config, random=Random(1))


def answered(monitor: FailureDetector, node: str, applied: int) -> None:
    ack = messages.HeartbeatAck(ballot=BALLOT, number=monitor.number, applied=applied)
    monitor.handle(acceptor_of(node), ack, T0)


def nominated(monitor: FailureDetector, now_ms: int = 1) -> str:
    (send,) = sends(monitor.handle(LEADER, events.Nominate(), Instant(now_ms * NS_PER_MS)))
    assert isinstance(send.message, events.Nominated)
    return send.message.node


def test_the_successor_answers_and_has_applied_the_most() -> None:
    monitor = monitor_of_a("abcde")
    commander = address_of("a", "commander-1")
    monitor.handle(LEADER, events.LeadershipClaimed(ballot=BALLOT, commander=commander), T0)
    assert nominated(monitor) == ""

    for node, applied in (("b", 7), ("c", 9), ("d", 12), ("a", 99)):
        answered(monitor, node, applied)
    assert nominated(monitor) == "d"
    monitor.handle(monitor.address, LinkDown(node="d"), Instant(1))
    assert nominated(monitor) == "c"
    assert nominated(monitor, LEASE_MS + 1) == ""


def test_only_the_leader_that_is_followed_can_have_a_node_stand() -> None:
    monitor = monitor_of_a()
    heard = events.BallotSeen(ballot=HIGHER, leads=True)
    ignored = (Observe("paxos.take_over_ignored"),)
    word = messages.TakeOver(ballot=HIGHER)
    assert monitor.handle(leader_of("b"), word, T0) == ignored
    monitor.handle(acceptor_of("a"), heard, T0)

    assert monitor.handle(leader_of("c"), word, T0) == ignored
    assert monitor.handle(address_of("b", "other"), word, T0) == ignored
    forged = messages.TakeOver(ballot=messages.Ballot(1 << 50, leader_of("b")))
    assert monitor.handle(leader_of("b"), forged, T0) == ignored
    stand = (Send(leader_of("a"), events.Succeed(ballot=HIGHER)),)
    assert monitor.handle(leader_of("b"), word, T0) == stand


def test_an_acceptor_released_from_its_promise_adopts_another_at_once() -> None:
    role = Acceptor(acceptor_of("c"), HOST, node="c", config=CONFIG, recovered=Recovered())
    commander, scout = address_of("a", "commander-1"), address_of("b", "scout-2")
    beat = messages.Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=0)
    prepare = messages.Prepare(ballot=HIGHER, first=1)
    role.handle(commander, beat, T0)
    assert role.handle(scout, prepare, T0) == (Observe("paxos.lease_kept"),)
    forged = role.handle(address_of("b", "leader"), messages.Release(ballot=BALLOT), T0)
    assert forged == (Observe("paxos.stranger_leads"),)

    role.handle(LEADER, messages.Release(ballot=BALLOT), T0)
    late = role.handle(commander, beat, T0)  # Overtaken on its way: it must not count.

    assert late == [Observe("paxos.late_heartbeat")]
    role.handle(scout, prepare, T0)
    assert role.promised == HIGHER
