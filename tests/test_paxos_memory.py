"""Members without a disk: who founds the group, who votes, and what a restart means."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from holdfast.actors.effect import Checkpoint, Effects, Observe, Persist, Send, Spawn, Wake
from holdfast.actors.message import Address, Instant, address_of
from holdfast.actors.paxos.config import Config, View, acceptor_of, leader_of
from holdfast.actors.paxos.event import Franchise, Heard, Learned, Suspect
from holdfast.actors.paxos.founder import (
    AMNESIAC,
    ASK_MS,
    FORMER_MAX,
    GENERATION_MAX,
    SLOTS,
    AskAgain,
    Founder,
    founder_of,
)
from holdfast.actors.paxos.founding_message import Allegiance, Charter, Life, Newborn
from holdfast.actors.paxos.journal import Recovered
from holdfast.actors.paxos.memory import IdleLeader, MemoryAcceptor, SilentAcceptor
from holdfast.actors.paxos.message import (
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    Prepare,
    Promise,
)
from holdfast.cluster.simulation.machine import HOST

T0 = Instant(0)
DATE_MS = 1_800_000_000_000
LISTENER = address_of("a", "proxy")
BATCH = Batch(time_ms=1, commands=(b"x",))


def seat(first: int, votes: bool) -> tuple[Spawn, ...]:
    return (Spawn(address_of("a", f"log-{first}-{votes}"), Founder),)


def founder(node: str, boot: int = 1, members: str = "abc") -> tuple[Founder, Effects]:
    role = Founder(
        founder_of(node),
        HOST,
        members=tuple(members),
        boot=boot,
        date_ms=DATE_MS,
        seat=seat,
        listener=LISTENER,
    )
    return role, role.begin(T0)


def hear(role: Founder, node: str, event: Newborn | Allegiance | Charter) -> list[object]:
    return list(role.handle(founder_of(node), event, T0))


def charter(to: int, a: int = 1, b: int = 2, c: int = 3, generation: int = DATE_MS) -> Charter:
    lives = (Life("a", a), Life("b", b), Life("c", c))
    return Charter(to=to, generation=generation, lives=lives)


def taken_up(*, votes: bool) -> list[object]:
    why = "" if votes else AMNESIAC
    return [
        *seat(1 + DATE_MS * SLOTS, votes),
        Send(LISTENER, Franchise(votes=votes, why=why)),
        Observe("paxos.founded" if votes else "paxos.amnesiac"),
    ]


def test_a_newborn_asks_everybody_and_has_no_part_in_the_log() -> None:
    role, begun = founder("b", boot=2)
    asked = [
        Send(founder_of("a"), Newborn(boot=2)),
        Send(founder_of("c"), Newborn(boot=2)),
        Wake(ASK_MS, AskAgain()),
    ]

    assert begun == asked
    assert role.handle(role.address, AskAgain(), T0) == asked


def test_a_member_alone_is_a_group() -> None:
    _, begun = founder("a", members="a")

    assert list(begun)[1:] == taken_up(votes=True)


def test_the_first_member_founds_the_group_by_the_word_of_all() -> None:
    role, _ = founder("a")
    assert hear(role, "b", Allegiance(founder=1, boot=2)) == []

    effects = hear(role, "c", Allegiance(founder=1, boot=3))

    told = [Send(founder_of("b"), charter(2)), Send(founder_of("c"), charter(3))]
    assert effects == [*told, *taken_up(votes=True)]
    late = hear(role, "c", Newborn(boot=9))
    assert late == [Send(founder_of("c"), charter(9))]


def test_a_word_to_another_life_of_the_founder_or_of_a_life_that_is_over_does_not_count() -> None:
    role, _ = founder("a")
    ignored = [Observe("paxos.allegiance_ignored")]
    assert hear(role, "b", Allegiance(founder=7, boot=2)) == ignored
    hear(role, "b", Allegiance(founder=1, boot=20))
    hear(role, "b", Allegiance(founder=1, boot=2))
    hear(role, "b", Allegiance(founder=1, boot=20))  # Under way for long.

    effects = hear(role, "c", Allegiance(founder=1, boot=3))

    assert effects[0] == Send(founder_of("b"), charter(2))


def test_a_member_follows_the_founders_life_and_never_goes_back_to_one_it_left() -> None:
    role, _ = founder("b", boot=2)
    first = [Send(founder_of("a"), Allegiance(founder=1, boot=2))]
    assert hear(role, "a", Newborn(boot=1)) == first
    assert hear(role, "c", Newborn(boot=3)) == []  # It does not found.
    assert hear(role, "a", Newborn(boot=5)) != []

    assert hear(role, "a", Newborn(boot=1)) == []
    assert hear(role, "a", charter(2, a=1)) == taken_up(votes=False)


def test_a_member_named_in_the_charter_votes_and_another_life_of_it_never_does() -> None:
    role, _ = founder("b", boot=2)
    hear(role, "a", Newborn(boot=1))
    assert hear(role, "c", charter(2)) == taken_up(votes=True)

    again, _ = founder("b", boot=22)
    hear(again, "a", Newborn(boot=1))
    assert hear(again, "a", charter(22)) == taken_up(votes=False)
    assert hear(again, "c", Newborn(boot=33)) == [Send(founder_of("c"), charter(33))]


def test_a_founder_that_came_back_is_told_by_whoever_has_the_charter() -> None:
    role, _ = founder("a", boot=11)

    assert hear(role, "c", charter(11)) == taken_up(votes=False)
    for node, boot in (("b", 2), ("c", 3)):
        ignored = hear(role, node, Allegiance(founder=11, boot=boot))
        assert ignored == [Observe("paxos.allegiance_ignored")]


@pytest.mark.parametrize(
    "wrong",
    [
        charter(to=8),
        charter(to=2, generation=GENERATION_MAX),
        charter(to=2, generation=-1),
        replace(charter(to=2), lives=(Life("a", 1), Life("b", 2))),
        replace(charter(to=2), lives=(Life("b", 2), Life("a", 1), Life("c", 3))),
    ],
)
def test_a_charter_that_is_for_another_life_or_none_is_dropped(wrong: Charter) -> None:
    role, _ = founder("b", boot=2)
    hear(role, "a", Newborn(boot=1))

    assert hear(role, "a", wrong) == [Observe("paxos.charter_ignored")]


def test_strangers_found_nothing() -> None:
    role, _ = founder("b", boot=2)
    stranger = (Observe("paxos.stranger_founds"),)

    for sender in (address_of("a", "other"), founder_of("z"), founder_of("b")):
        assert role.handle(sender, Newborn(boot=1), T0) == stranger


def test_lives_that_are_remembered_are_bounded() -> None:
    role, _ = founder("b", boot=2)
    for boot in range(100, 100 + FORMER_MAX + 1):
        assert hear(role, "a", Newborn(boot=boot)) != []

    assert hear(role, "a", Newborn(boot=99)) == []


def acceptor(kind: type[MemoryAcceptor]) -> MemoryAcceptor:
    config = Config(View(0, ("a", "b", "c")))
    return kind(acceptor_of("a"), HOST, node="a", config=config, recovered=Recovered())


BALLOT = Ballot(5, leader_of("b"))
COMMANDER, SCOUT = address_of("b", "commander-5"), address_of("b", "scout-5")
ACCEPT = Accept(ballot=BALLOT, slot=1, batch=BATCH, committed=1)


def test_a_voter_without_a_disk_writes_nothing_and_votes() -> None:
    role = acceptor(MemoryAcceptor)
    prepared = role.handle(SCOUT, Prepare(ballot=BALLOT, first=1), T0)
    accepted = role.handle(COMMANDER, ACCEPT, T0)

    effects = [*prepared, *accepted]
    assert not any(isinstance(effect, Persist | Checkpoint) for effect in effects)
    said = [type(effect.message) for effect in effects if isinstance(effect, Send)]
    assert said == [Promise, Heard, Accepted]


def test_one_that_came_back_says_nothing_to_others_and_learns() -> None:
    role = acceptor(SilentAcceptor)
    beat = Heartbeat(ballot=BALLOT, number=1, committed=1, everywhere=0)
    commit = Commit(ballot=BALLOT, committed=2)

    words = [Prepare(ballot=BALLOT, first=1), ACCEPT, beat, commit]
    effects = [effect for word in words for effect in role.handle(COMMANDER, word, T0)]

    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert {address.partition("/")[0] for address in (send.to for send in sends)} == {"a"}
    assert sends[-1].message == Learned(slots=((1, BATCH),), committed=2)


def test_one_that_came_back_never_stands() -> None:
    config = Config(View(0, ("a", "b", "c")))
    role = IdleLeader(
        leader_of("a"), HOST, node="a", config=config, random=Random(1), recovered=Recovered()
    )

    assert role.handle(Address("a/monitor"), Suspect(), T0) == (Observe("paxos.cannot_stand"),)
