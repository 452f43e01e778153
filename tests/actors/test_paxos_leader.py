"""The leader: rounds that are durable before they are used, leads, and giving way."""

from __future__ import annotations

from random import Random

import pytest
from support.effects import HOST, T0, not_counted
from support.replicas import config_of

from fencelock.actors.effect import Checkpoint, Effects, Retire, Send, Spawn
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import leader_of
from fencelock.actors.paxos.event import (
    Adopted,
    Applied,
    Candidate,
    Lacking,
    Leadership,
    LeadershipClaimed,
    ReportApplied,
    SteppedDown,
    Suspect,
    Withdraw,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import DOUBLINGS_MAX, Leader
from fencelock.actors.paxos.message import NO_OP, Ballot, Batch, Pledge, Pledged, Preempted
from fencelock.actors.paxos.scout import Scout
from fencelock.actors.timing import TIMING

CONFIG = config_of()
LEADER = leader_of("a")
MONITOR, REPLICA = address_of("a", "monitor"), address_of("a", "replica")
BATCH = Batch(time_ms=9, commands=(b"x",))


def made(recovered: Recovered | None = None) -> Leader:
    return Leader(
        LEADER, HOST, node="a", config=CONFIG, random=Random(1), recovered=recovered or Recovered()
    )


@pytest.fixture
def leader() -> Leader:
    return made()


def suspect(leader: Leader) -> Effects:
    return leader.handle(MONITOR, Suspect(), T0)


def adopt(leader: Leader, *batches: Batch, floor: int = 1) -> Effects:
    adopted = Adopted(ballot=leader.ballot, floor=floor, source="b", batches=batches)
    return leader.handle(LEADER, adopted, T0)


def spawned(round_: int, first: int = 1) -> Spawn:
    arguments = {"node": "a", "config": CONFIG, "ballot": Ballot(round_, LEADER), "first": first}
    return Spawn(address_of("a", f"scout-{round_}"), Scout, arguments)


def written(round_: int) -> Checkpoint:
    return Checkpoint((Pledged(pledge=Pledge.LED, ballot=Ballot(round_, LEADER)),))


def preempted(round_: int) -> Preempted:
    return Preempted(ballot=Ballot(round_, leader_of("b")))


def test_a_round_is_written_before_a_scout_uses_it(leader: Leader) -> None:
    effects = not_counted(suspect(leader))

    assert effects == [
        written(1),
        spawned(1),
        Send(MONITOR, Candidate(ballot=Ballot(1, LEADER))),
        Send(REPLICA, ReportApplied()),
    ]


def test_a_new_life_stands_above_every_round_of_earlier_ones_and_every_promise() -> None:
    assert not_counted(suspect(made(Recovered(led=6))))[0] == written(7)
    other = Recovered(led=6, promised=Ballot(9, leader_of("b")))
    assert not_counted(suspect(made(other)))[0] == written(10)


def test_it_stands_above_every_ballot_its_monitor_heard_of(leader: Leader) -> None:
    heard = Ballot(5, leader_of("b"))

    assert not_counted(leader.handle(MONITOR, Suspect(above=heard), T0))[0] == written(6)


def test_while_a_scout_asks_another_suspicion_changes_nothing(leader: Leader) -> None:
    suspect(leader)

    assert suspect(leader) == ()


def test_a_majority_makes_it_lead_and_propose_what_was_reported(leader: Leader) -> None:
    suspect(leader)

    effects = not_counted(adopt(leader, BATCH, NO_OP))

    ballot, commander = Ballot(1, LEADER), address_of("a", "commander-1")
    arguments = {"node": "a", "config": CONFIG, "ballot": ballot, "first": 1}
    assert effects == [
        Retire(address_of("a", "scout-1")),
        Spawn(commander, Commander, {**arguments, "batches": (BATCH, NO_OP)}),
        Send(REPLICA, Leadership(ballot=ballot, commander=commander, first=3, time_ms=9)),
        Send(MONITOR, LeadershipClaimed(ballot=ballot, commander=commander)),
    ]


def test_it_learns_what_others_decided_before_it_leads(leader: Leader) -> None:
    suspect(leader)

    wait = not_counted(adopt(leader, NO_OP, BATCH, floor=4))
    assert wait == [Send(address_of("a", "catchup"), Lacking(first=1, target=4, source="b"))]
    assert not_counted(leader.handle(REPLICA, Applied(slot=3), T0)) == []
    leadership = not_counted(leader.handle(REPLICA, Applied(slot=5), T0))

    spawn = leadership[1]
    assert isinstance(spawn, Spawn)
    assert (spawn.arguments["first"], spawn.arguments["batches"]) == (5, (BATCH,))


def test_a_higher_ballot_makes_it_give_way_and_pause(leader: Leader) -> None:
    suspect(leader)
    adopt(leader)

    effects = not_counted(leader.handle(address_of("a", "commander-1"), preempted(5), T0))

    assert effects[0] == Retire(address_of("a", "commander-1"))
    assert [e.to for e in effects if isinstance(e, Send)] == [REPLICA, MONITOR]
    assert not_counted(suspect(leader))[0] == written(6)


def test_pauses_grow_while_attempts_fail_and_are_short_again_after_a_leadership(
    leader: Leader,
) -> None:
    longest = 0
    for round_ in range(2, 40, 2):
        suspect(leader)
        longest = max(longest, pause_of(leader.handle(LEADER, preempted(round_), T0)))
    assert 4 * TIMING.reply_ms < longest <= 2 * TIMING.reply_ms << DOUBLINGS_MAX

    suspect(leader)
    adopt(leader)
    assert pause_of(leader.handle(LEADER, preempted(99), T0)) <= 2 * TIMING.reply_ms


def pause_of(effects: Effects) -> int:
    words = [effect.message for effect in effects if isinstance(effect, Send)]
    return next(word.pause_ms for word in words if isinstance(word, SteppedDown))


def test_it_withdraws_when_the_leader_lives_after_all(leader: Leader) -> None:
    suspect(leader)

    effects = not_counted(leader.handle(MONITOR, Withdraw(), T0))

    assert effects[0] == Retire(address_of("a", "scout-1"))
    assert leader.handle(MONITOR, Withdraw(), T0) == ()


@pytest.mark.parametrize("ballot", [Ballot(1, Address("a/other")), Ballot(2, LEADER)])
def test_the_last_word_of_a_retired_scout_changes_nothing(leader: Leader, ballot: Ballot) -> None:
    suspect(leader)
    word = Adopted(ballot=ballot, floor=1, source="b", batches=())

    assert leader.handle(LEADER, word, T0) == ()


def test_a_preemption_by_its_own_ballot_changes_nothing(leader: Leader) -> None:
    suspect(leader)
    adopt(leader)
    mine = Preempted(ballot=leader.ballot)
    assert leader.handle(address_of("a", "commander-1"), mine, T0) == ()
