"""Renewals that one leader knows nothing of, while a quorum holds; losses that one clock claims."""

from __future__ import annotations

import pytest

from fencelock.actors.bakery.config import later, leader_of
from fencelock.actors.bakery.door_message import NotLeading, Prolong, Prolonged
from fencelock.actors.bakery.step_message import Extend, Extended
from fencelock.actors.client.message import HoldsLost
from fencelock.actors.lock.message import Acquire, Granted, Reason, Refused
from fencelock.actors.lock.session_message import HoldLost, Renew, Renewed
from fencelock.actors.message import Instant
from fencelock.cluster.simulation.bakery_bench import ANN, FENCE, LIVES, Three
from fencelock.cluster.simulation.bakery_town import GRACE_MS, HOLD_MS, Town
from fencelock.cluster.simulation.parley import ANN as USER
from fencelock.cluster.simulation.parley import WATCHER, A, Parley, of, one

TTL_MS = 600_000
LEASE_MS = HOLD_MS + GRACE_MS


def forget_at(town: Town, name: str, *, lapsed: bool) -> None:
    """Have a leader's clock take all it holds for over; or have it never have voted."""
    leader = town.leader(name)
    now = Instant(town.world.nodes[name].now())
    for entry in list(leader.tickets.entries()):
        leader.courses.agenda.forget(entry)
        if lapsed:
            assert leader.tickets.forget(entry, later(now, LEASE_MS))
        else:
            leader.tickets.remove(entry)


def renew(town: Town, gate: str, granted: Granted) -> int:
    town.number += 1
    word = Renew(
        lock="x", fence=granted.fence, session="u", owner=granted.owner, request=town.number
    )
    town.say(gate, word)
    return town.number


@pytest.mark.parametrize("lapsed", [True, False])
@pytest.mark.parametrize("through", [0, 1, 2])
def test_a_hold_that_two_of_three_leaders_have_is_renewed_through_the_third(
    through: int, *, lapsed: bool
) -> None:
    """The first of them owned it, as the others still believe."""
    town = Town(3).start().ready()
    town.until(lambda: len(town.serving()) == 3)
    owner = town.serving()[0]
    granted = town.lock(owner)
    town.run(100)
    forget_at(town, town.serving()[through], lapsed=lapsed)
    waiting = town.acquire(owner, owner="ben")
    asked = renew(town, town.serving()[through], granted)
    town.until(lambda: bool(town.answers(Renewed, asked)), 1_000)
    town.run(HOLD_MS)
    assert town.answers(Refused) == town.answers(Granted, waiting) == []
    assert town.granted(waiting).fence > granted.fence


def test_a_hold_that_one_leader_has_alone_is_lost_once_all_were_asked() -> None:
    town = Town(3).start().ready()
    town.until(lambda: len(town.serving()) == 3)
    first, *others = town.serving()
    granted = town.lock(first)
    town.run(100)
    town.release(first, granted)
    town.run(100)
    assert all(town.leader(name).tickets.size == 0 for name in others)
    asked = renew(town, first, granted)
    town.until(lambda: bool(town.answers(Refused, asked)), 1_000)
    assert town.answers(Refused, asked)[0].reason is Reason.NOT_HELD


def prolong(*missed: str) -> Prolong:
    return Prolong(lock="x", who=ANN, fence=FENCE, hold_ms=0, number=9, missed=missed)


def three_connected(*voters: str) -> Three:
    """Have ``voters`` hold what all of them take for n1's."""
    three = Three()
    three.hold(*voters)
    for leader in three.leaders.values():
        leader.clerk.connected = {one.node: one.life for one in LIVES}
    return three


def test_a_renewal_is_left_to_its_owner_unless_that_does_not_have_it() -> None:
    three = three_connected("n2", "n3")
    three.ask("n2", prolong())
    assert [word.owner for word in three.heard(NotLeading)] == ["n1"]
    three.ask("n2", prolong("n3"))
    assert len(three.heard(NotLeading)) == 2
    three.ask("n2", prolong("n1"))
    three.settle()
    assert [word.fence for word in three.heard(Prolonged)] == [FENCE]


def test_a_renewal_that_names_more_leaders_than_there_can_be_is_not_taken() -> None:
    three = three_connected("n2", "n3")
    three.ask("n2", prolong("n1", "n4", "n5", "n6"))
    three.settle()
    assert three.told == []


def test_who_holds_alone_says_so_once_both_others_refuse() -> None:
    """They know that it was dropped, and this one missed that."""
    three = three_connected("n1")
    for name in ("n2", "n3"):
        three.leaders[name].tickets.drop("x", ANN, 1, 0)
    three.ask("n1", prolong())
    assert three.heard(Prolonged) == []
    three.settle()
    assert [word.fence for word in three.heard(Prolonged)] == [0]
    assert three.leaders["n1"].endings.by_number == {}


def test_one_refusal_of_two_decides_nothing() -> None:
    three = three_connected("n1")
    three.leaders["n2"].tickets.drop("x", ANN, 1, 0)
    three.lost = {(Extend, "n1", "n3")}
    three.ask("n1", prolong())
    three.settle()
    assert three.heard(Prolonged) == []
    three.say(leader_of("n3"), "n1", Extended(epoch=1, number=1, kept=True))
    assert [word.fence for word in three.heard(Prolonged)] == [FENCE]


def test_a_loss_that_is_told_before_a_client_stops_to_believe_in_its_hold_is_not_heeded() -> None:
    """One leader's clock took it for over; two of three hold it, and let nobody else in."""
    parley = Parley(TTL_MS)
    asked = one(Acquire, parley.open(parley.acquire()), A)
    granted = Granted(
        lock="x",
        fence=7,
        session=asked.session,
        owner=asked.owner,
        request=asked.request,
        hold_ms=1_000,
        grace_ms=5_000,
    )
    assert one(Granted, parley.hear(A, granted), USER).fence == 7
    lost = HoldLost(lock="x", fence=7, session=asked.session, owner=asked.owner, detail="over")
    assert of(HoldsLost, parley.hear(A, lost)) == []
    assert parley.counted[-1] == "client.early_loss_dropped"
    assert of(HoldsLost, parley.run_kept(5_000, A)) == []
    assert one(HoldsLost, parley.run_kept(1_000, A), WATCHER).losses[0].lock == "x"
