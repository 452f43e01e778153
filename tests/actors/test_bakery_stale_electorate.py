"""`bakery`: a coordinator that proposed before it learned of other members."""

from __future__ import annotations

import pytest
from support.expect import present
from support.leader_trio import begun_coordinator, linked, registry

from fencelock.actors.bakery.config import election_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.event import Connected, ElectionDue
from fencelock.actors.bakery.message import Chosen, Install, Member, Promised, Propose, Seating
from fencelock.actors.effect import Send
from fencelock.actors.membership import Member as Seat
from fencelock.actors.message import NS_PER_MS, Instant

JOURNALS = {f"n{number}": number for number in range(1, 6)}
FIVE = tuple(Seat(name, "", journal) for name, journal in JOURNALS.items())
FIRST = tuple(Chosen(name, 1) for name in ("n1", "n2", "n3"))
FOUNDED = Seating(1, FIRST, 1_000)
LATER = Seating(6, (Chosen("n2", 1), Chosen("n3", 2), Chosen("n4", 1)), 1_000)
GROWN = Electorate(2, FIVE)
BEGAN = Instant(10**12)


def coordinator(seating: Seating, electorate: Electorate) -> ElectionCoordinator:
    """Return the coordinator of n1, which knows ``seating``."""
    voting = registry({name: JOURNALS[name] for name in ("n1", "n2", "n3")}, 1)
    return begun_coordinator(voting, Install(seating=seating, electorate=electorate), began=BEGAN)


def connected(*members: tuple[str, Seating, Electorate], restarted: str = "n3") -> Connected:
    """Return the members as beats describe them; ``restarted`` has a second life."""
    described = [
        Member(
            name,
            2 if name == restarted else 1,
            14,
            1,
            seating.epoch,
            seating,
            0,
            0,
            True,
            electorate,
            JOURNALS[name],
        )
        for name, seating, electorate in members
    ]
    return Connected(members=linked(*described))


def after(ms: int) -> Instant:
    return Instant(BEGAN + ms * NS_PER_MS)


@pytest.mark.parametrize("informed", [True, False])
def test_a_proposal_does_not_go_on_with_members_that_changed_meanwhile(informed: bool) -> None:
    role = coordinator(FOUNDED, FOUNDERS)
    role.highest = 10
    role.handle(
        election_of("n1"),
        connected(*((name, FOUNDED, FOUNDERS) for name in ("n1", "n2", "n3"))),
        BEGAN,
    )
    role.handle(election_of("n1"), ElectionDue(), after(400))
    election = present(role.election)
    assert election.electorate.names == ("n1", "n2", "n3")
    effects = role.handle(election_of("n1"), election.proposal, after(400))
    (own,) = (
        one.message
        for one in effects
        if isinstance(one, Send) and isinstance(one.message, Promised)
    )
    role.handle(election_of("n1"), own, after(400))
    if informed:  # By a beat: two changes came into force without n1.
        seen = [("n1", FOUNDED, FOUNDERS), ("n2", LATER, GROWN), ("n3", LATER, GROWN)]
        role.handle(election_of("n1"), connected(*seen), after(500))
    former = Install(seating=LATER, electorate=GROWN)
    promised = Promised(epoch=election.epoch, former=former, quiet_ms=0, voter=2)
    role.handle(election_of("n2"), promised, after(500))
    assert role.election is None
    assert role.electorate == GROWN


def test_a_node_does_not_promise_the_members_of_before_a_change_that_it_knows() -> None:
    role = coordinator(LATER, GROWN)
    assert role.handle(election_of("n2"), Propose(epoch=11, leaders=FIRST), BEGAN)
    assert role.promises.promised == LATER.epoch


def test_a_seating_with_the_members_of_before_a_change_does_not_undo_the_change() -> None:
    role = coordinator(LATER, GROWN)
    seen = [("n1", LATER, GROWN), ("n2", LATER, GROWN), ("n3", LATER, FOUNDERS)]
    role.handle(election_of("n1"), connected(*seen), BEGAN)
    assert role.electorate == GROWN
