"""The share of a leader's table that one key may have: others are served when it is used up."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from support.leader_trio import GRACE_MS, HOLD_MS, NAMES, LeaderTrio, lock_request, merge

from fencelock.actors.api.name import account_of
from fencelock.actors.bakery.leader_requests import LEADER_TICKETS_MAX
from fencelock.actors.bakery.table import TicketTable
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import (
    DropTicket,
    Entering,
    Error,
    HoldRenewed,
    Locked,
    LockFailed,
    MaxTicket,
    RenewHold,
    UnlockAll,
    Unlocked,
)
from fencelock.actors.quota import DEFAULT_QUOTAS
from fencelock.actors.table.account import SHARES

SHARE = 4
SHOP, TILL = Who("shop@1", "o"), Who("till@1", "o")
OTHER_OF_SHOP = Who("shop@2~3", "p")


def trio() -> LeaderTrio:
    return LeaderTrio(share=SHARE)


def ask(leaders: LeaderTrio, at: str, lock: str, who: Who = SHOP, request: int = 1) -> None:
    leaders.ask(at, lock_request(who, lock=lock, request=request))
    leaders.settle()


def filled() -> LeaderTrio:
    """Return leaders at which the key ``shop`` has its share, asked for at each of them."""
    leaders = trio()
    for number in range(SHARE):
        ask(
            leaders, NAMES[number % len(NAMES)], f"shop/{number}", (SHOP, OTHER_OF_SHOP)[number % 2]
        )
    assert len(leaders.received(Locked)) == SHARE
    return leaders


def refusals(leaders: LeaderTrio) -> list[tuple[Error, str]]:
    return [(one.error, one.detail) for one in leaders.received(LockFailed)]


def charges(table: TicketTable) -> dict[str, int]:
    """Return the number of tickets of each key, counted one by one."""
    return dict(Counter(account_of(key.who.session) for key in table.by_key))


@pytest.mark.parametrize("at", NAMES)
def test_a_key_with_its_share_is_refused_at_every_leader_and_others_are_served(at: str) -> None:
    leaders = filled()
    ask(leaders, at, "shop/more")
    why = (
        "lock 'shop/more': key 'shop' has 4 holds and waits, and the quota tickets is 4: release "
        "locks, or give up waits, or let an operator raise tickets under [limits] in the "
        "configuration of all nodes"
    )
    assert refusals(leaders) == [(Error.OVERFLOW, why)]

    ask(leaders, at, "till/1", TILL)
    ask(leaders, at, "free", Who("n1/1f0e", "o"))
    assert len(leaders.received(Locked)) == SHARE + 2


@pytest.mark.parametrize("at", NAMES)
def test_no_leader_learns_of_a_request_that_is_refused(at: str) -> None:
    leaders = filled()
    before = {name: list(one.tickets.by_key) for name, one in leaders.leaders.items()}
    leaders.ask(at, lock_request(SHOP, lock="shop/more"))
    assert not leaders.under_way
    assert {name: list(one.tickets.by_key) for name, one in leaders.leaders.items()} == before


def test_waits_count_as_well() -> None:
    leaders = trio()
    for number in range(SHARE + 1):
        ask(leaders, "n1", "shop/x", Who("shop@1", f"o{number}"))
    assert len(leaders.received(Locked)) == 1
    assert [error for error, _ in refusals(leaders)] == [Error.OVERFLOW]


def test_requests_that_are_known_and_renewals_and_releases_are_never_refused() -> None:
    leaders = filled()
    (first, *_) = leaders.received(Locked)
    ask(leaders, "n1", first.lock, first.who)
    assert leaders.received(Locked)[-1] == first
    renewal = RenewHold(
        lock=first.lock, who=first.who, fence=first.fence, hold_ms=0, number=7, missed=()
    )
    leaders.ask("n1", renewal)
    leaders.settle()
    assert leaders.received(HoldRenewed)[-1].fence == first.fence
    leaders.unlock("n1", first.fence, lock=first.lock, who=first.who)
    leaders.settle()
    assert leaders.received(Unlocked)[-1].found
    assert refusals(leaders) == []

    ask(leaders, "n2", "shop/more")
    assert leaders.received(Locked)[-1].lock == "shop/more", "there is room again"


def test_clients_without_a_key_have_no_share() -> None:
    leaders = trio()
    for number in range(3 * SHARE):
        ask(leaders, "n1", f"x/{number}", Who(f"client-{number % 2}", "o"))
    assert len(leaders.received(Locked)) == 3 * SHARE


def test_leaders_that_do_not_learn_of_each_others_tickets_take_a_share_each_at_most() -> None:
    leaders = trio()
    for one, other in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
        leaders.lose_between(one, other, Entering, MaxTicket, DropTicket)
    for name in NAMES:
        for number in range(2 * SHARE):
            ask(leaders, name, f"shop/{name}/{number}")
    assert [len(one.attempts.own) for one in leaders.leaders.values()] == 3 * [SHARE]


def test_three_default_shares_leave_room_for_others() -> None:
    assert DEFAULT_QUOTAS.tickets == LEADER_TICKETS_MAX // SHARES
    assert len(NAMES) * DEFAULT_QUOTAS.tickets < LEADER_TICKETS_MAX


def test_holds_that_are_handed_over_stay_charged() -> None:
    former = filled().leaders["n2"].tickets
    table = TicketTable()
    merge(table, former, filled().leaders["n3"].tickets)
    assert table.by_account == {"shop": SHARE}


@pytest.mark.parametrize("seed", range(20))
def test_the_charges_of_each_leader_are_those_of_the_tickets_in_its_table(seed: int) -> None:
    """Also while messages are lost, waits give up, and holds expire."""
    random, leaders = Random(seed), trio()
    owners = [SHOP, OTHER_OF_SHOP, TILL, Who("client-1", "o")]
    for request in range(1, 150):
        if random.random() < 0.1:
            leaders.lost.clear()
        if random.random() < 0.1:
            one, other = random.sample(NAMES, 2)
            leaders.lose_between(one, other, random.choice((Entering, MaxTicket, DropTicket)))
        at, who, lock = random.choice(NAMES), random.choice(owners), f"x/{random.randrange(6)}"
        match random.randrange(5):
            case 0 | 1:
                wait_ms = random.choice((0, 300, None))
                leaders.ask(at, lock_request(who, lock=lock, request=request, wait_ms=wait_ms))
            case 2:
                leaders.unlock(at, 0, lock=lock, who=who, request=request)
            case 3 if request % 5 == 0:
                leaders.ask(at, UnlockAll(session=who.session, number=request))
            case _:
                leaders.pass_time(random.choice((25, 200, HOLD_MS + GRACE_MS)))
        leaders.settle()
        for leader in leaders.leaders.values():
            assert leader.tickets.by_account == charges(leader.tickets)
    for leader in leaders.leaders.values():
        for entry in leader.tickets.entries():
            leader.tickets.remove(entry)
        assert leader.tickets.by_account == {}
