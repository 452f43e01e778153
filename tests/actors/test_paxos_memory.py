"""Roles of the log on a node without a disk, and on one that does not vote."""

from __future__ import annotations

from random import Random

from support.role_harness import HOST, T0, sends

from fencelock.actors.bootstrap_message import StopVoting
from fencelock.actors.effect import Checkpoint, Observe, Persist, Send
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import LogConfig, View, acceptor_of, leader_of
from fencelock.actors.paxos.event import BallotSeen, Learned, Suspect
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.paxos.member import MemoryAcceptor

BATCH = messages.Batch(time_ms=1, commands=(b"x",))
VOTERS = {acceptor_of(name): number for number, name in enumerate("abc", start=1)}
CONFIG = LogConfig(View(0, ("a", "b", "c"), VOTERS))
BALLOT = messages.Ballot(5, leader_of("b"))
COMMANDER, SCOUT = address_of("b", "commander-5"), address_of("b", "scout-5")
BOOTSTRAP = address_of("a", "bootstrap")
PREPARE = messages.Prepare(ballot=BALLOT, first=1)
ACCEPT = messages.Accept(ballot=BALLOT, slot=1, batch=BATCH, committed=1)
BEAT = messages.Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=0)
COMMIT = messages.Commit(ballot=BALLOT, committed=2)


def acceptor(
    kind: type[Acceptor] = Acceptor, *, votes: bool = True, recovered: Recovered | None = None
) -> Acceptor:
    known = recovered or Recovered()
    return kind(
        acceptor_of("a"), HOST, node="a", config=CONFIG, recovered=known, voter=1, votes=votes
    )


def leader(*, votes: bool) -> Leader:
    return Leader(
        leader_of("a"),
        HOST,
        node="a",
        config=CONFIG,
        random=Random(1),
        recovered=Recovered(),
        voter=1,
        votes=votes,
    )


def test_a_voter_without_a_disk_writes_nothing_and_votes() -> None:
    role = acceptor(MemoryAcceptor)
    prepared = role.handle(SCOUT, PREPARE, T0)
    accepted = role.handle(COMMANDER, ACCEPT, T0)

    effects = [*prepared, *accepted]
    assert not any(isinstance(effect, Persist | Checkpoint) for effect in effects)
    kinds = [type(send.message) for send in sends(effects)]
    assert kinds == [messages.Promise, BallotSeen, messages.Accepted]


def test_every_vote_names_its_voter() -> None:
    role = acceptor()
    effects = [
        *role.handle(SCOUT, PREPARE, T0),
        *role.handle(COMMANDER, ACCEPT, T0),
        *role.handle(COMMANDER, BEAT, T0),
    ]

    votes = [send.message for send in sends(effects) if send.to.startswith("b/")]
    assert [getattr(vote, "voter", None) for vote in votes] == [1, 1, 1]


def test_an_acceptor_that_does_not_vote_sends_nothing_to_other_nodes_and_learns() -> None:
    role = acceptor(votes=False)

    effects = [
        *role.handle(SCOUT, PREPARE, T0),
        *role.handle(COMMANDER, ACCEPT, T0),
        *role.handle(COMMANDER, BEAT, T0),
        *role.handle(COMMANDER, COMMIT, T0),
    ]

    assert {node_of(send.to) for send in sends(effects)} == {"a"}
    assert sends(effects)[-1].message == Learned(slots=((1, BATCH),), committed=2)


def test_an_acceptor_stops_voting_on_request() -> None:
    role = acceptor()
    role.handle(BOOTSTRAP, StopVoting(), T0)

    effects = role.handle(SCOUT, PREPARE, T0)
    assert SCOUT not in [send.to for send in sends(effects)]


def test_a_leader_that_does_not_vote_never_stands() -> None:
    role = leader(votes=False)

    assert role.handle(Address("a/monitor"), Suspect(), T0) == [Observe("paxos.cannot_stand")]


def test_a_leader_that_must_stop_voting_gives_way_and_stands_no_more() -> None:
    role = leader(votes=True)
    role.handle(Address("a/monitor"), Suspect(), T0)

    gave_way = role.handle(BOOTSTRAP, StopVoting(), T0)

    assert Observe("paxos.withdrawn") in gave_way
    assert role.handle(Address("a/monitor"), Suspect(), T0) == [Observe("paxos.cannot_stand")]


def test_an_acceptor_that_does_not_vote_learns_from_leaders_below_what_its_journal_promised() -> (
    None
):
    promised = Recovered(promised=messages.Ballot(9, leader_of("c")))
    role = acceptor(votes=False, recovered=promised)
    later = messages.Prepare(ballot=messages.Ballot(12, leader_of("c")), first=1)
    role.handle(address_of("c", "scout-12"), later, T0)

    effects = role.handle(COMMANDER, BEAT, T0)

    assert Send(address_of("a", "monitor"), BallotSeen(ballot=BALLOT, leads=True)) in effects
