"""Messages that members of `bakery` refuse from each other: impossible and late ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.leader_trio import (
    ANN,
    LIVES,
    add_ticket,
    beat,
    cluster_status,
    serving_leader,
    ticket_of,
    voters,
)
from support.role_harness import RoleHarness, at
from support.session_harness import of, one

from fencelock.actors.bakery.beats import GUESTS_MAX, ClusterStatus
from fencelock.actors.bakery.config import (
    BEAT_MS,
    COPY_MS,
    election_of,
    leader_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.event import BeatContents, Connected
from fencelock.actors.bakery.leader import SWEEP_MS, Leader
from fencelock.actors.bakery.wire import (
    NO_SEATING,
    Beat,
    Collected,
    DropTicket,
    Entering,
    MaxTicket,
    Member,
    Seating,
    TicketDropped,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, address_of


def status() -> RoleHarness[ClusterStatus]:
    harness = RoleHarness(lambda host: cluster_status(voters(), host))
    harness.receive(election_of("n1"), BeatContents(promised=0, seating=NO_SEATING, waiting_ms=0))
    return harness


def beat_of(harness: RoleHarness[ClusterStatus], **claims: Any) -> Beat:
    """Return a beat of n2 that echoes the last beat of n1."""
    return beat(echo=harness.role.number, **claims)


def seen(sends: list[Send]) -> list[str]:
    words = of(Connected, sends, election_of("n1"))
    return [member.node for member in words[-1].members] if words else []


def test_a_member_that_echoes_is_connected() -> None:
    harness = status()
    assert seen(harness.receive(status_of("n2"), beat_of(harness))) == ["n1", "n2"]


@pytest.mark.parametrize("sender", [status_of("n1"), address_of("n2", "proxy"), Address("n2")])
def test_only_the_status_of_another_node_has_a_beat(sender: Address) -> None:
    """Its own name, or another role's."""
    harness = status()
    assert harness.receive(sender, beat_of(harness)) == []


def test_beats_of_a_guest_about_leaders_are_ignored() -> None:
    """It may join, so it is connected. It counts in no majority, and teaches nothing."""
    play = status()
    claims = beat_of(play, promised=9, seating=Seating(9, LIVES, 1), serving=9, voter=12)
    play.receive(status_of("n9"), claims)
    (guest,) = [one for one in play.role.seen if one.node == "n9"]
    assert guest == Member("n9", 2, 14, 7, 0, NO_SEATING, 0, 0, votes=False, reaches=())


def test_a_node_answers_only_so_many_guests() -> None:
    play = status()
    for number in range(GUESTS_MAX + 5):
        play.receive(status_of(f"g{number}"), beat_of(play))
    assert len(play.role.peers) == 2 + GUESTS_MAX
    assert play.counted == ["bakery.guest_ignored"] * 5


def test_a_member_known_from_others_alone_is_not_connected() -> None:
    """In the original a leader that another node named counts as if its message had arrived."""
    harness = status()
    named = beat_of(harness, seating=Seating(1, LIVES, 1))
    assert seen(harness.receive(status_of("n2"), named)) == ["n1", "n2"]
    one_way = replace(beat_of(harness), echo=0, echo_life=0)
    assert seen(harness.receive(status_of("n3"), one_way)) == []
    harness.run(BEAT_MS)
    assert [member.node for member in harness.role.seen] == ["n1", "n2"]


class InputHarness(RoleHarness[Leader]):
    """The leader of n1, which serves in epoch 1 with n2 and n3."""

    def __init__(self) -> None:
        super().__init__(lambda host: serving_leader(now=at(1_000), host=host))


def entering(epoch: int = 1) -> Entering:
    return Entering(epoch=epoch, ticket=ticket_of(number=0))


@pytest.fixture
def harness() -> InputHarness:
    return InputHarness()


def test_the_highest_number_of_a_lock_that_was_never_held_is_0(harness: InputHarness) -> None:
    """A ticket that enters twice gets the reply twice."""
    for _ in range(2):
        reply = one(MaxTicket, harness.receive(leader_of("n2"), entering()), leader_of("n2"))
        assert (reply.highest, reply.held) == (0, 0)


@pytest.mark.parametrize(
    ("sender", "epoch"),
    [(leader_of("n2"), 2), (leader_of("n2"), 0), (leader_of("n9"), 1), (proxy_of("n2"), 1)],
)
def test_a_step_of_another_epoch_or_a_stranger_is_not_taken(
    harness: InputHarness, sender: Address, epoch: int
) -> None:
    """Who leads is known by an epoch that a majority promised."""
    assert harness.receive(sender, entering(epoch)) == []
    assert harness.counted == ["bakery.step_of_another_epoch"]


def test_a_vote_is_given_once_and_repeated_on_request(harness: InputHarness) -> None:
    """A leader votes, and only the owner of a ticket grants."""
    harness.receive(leader_of("n2"), entering())
    for _ in range(2):
        sends = harness.receive(leader_of("n2"), add_ticket(ticket_of()))
        assert one(Collected, sends, leader_of("n2")).voted
        assert {send.to for send in sends} == {leader_of("n2")}
    drop = DropTicket(epoch=1, lock="x", who=ANN, request=1, fence=0, number=4, mine=False)
    assert one(TicketDropped, harness.receive(leader_of("n2"), drop)).found
    assert of(TicketDropped, harness.receive(leader_of("n2"), drop))
    assert len(harness.role.tickets) == 0


def test_an_answer_to_what_this_leader_never_asked_has_no_effect(harness: InputHarness) -> None:
    """The original continues as if the ticket were its own."""
    harness.receive(leader_of("n2"), entering())
    collected = Collected(
        epoch=1, lock="x", who=ANN, request=1, round=1, voted=True, ahead=None, highest=1, known=1
    )
    assert harness.receive(leader_of("n3"), collected) == []
    highest = MaxTicket(epoch=1, lock="x", who=ANN, request=1, highest=9, held=0, known=0)
    assert harness.receive(leader_of("n3"), highest) == []
    assert "bakery.late_answer" in harness.counted
    (entry,) = harness.role.tickets.entries()
    assert (entry.owner, entry.ticket.turn.number, entry.fence) == ("n2", 0, 0)


def test_a_copy_that_its_owner_does_not_repeat_is_forgotten(harness: InputHarness) -> None:
    """A leader keeps no ticket whose owner is silent."""
    harness.receive(leader_of("n2"), entering())
    assert len(harness.role.tickets) == 1
    harness.run(COPY_MS + SWEEP_MS)
    assert len(harness.role.tickets) == 0
    assert "bakery.copies_forgotten" in harness.counted
