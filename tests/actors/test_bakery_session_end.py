"""The end of a session with many tickets: some end in each turn of a leader, and none begins."""

from __future__ import annotations

from random import Random

import pytest
from support.leader_trio import ANN, GRACE_MS, HOLD_MS, NAMES, LeaderTrio, lock_request

from fencelock.actors.bakery import leader_requests
from fencelock.actors.bakery.config import leader_of, proxy_of
from fencelock.actors.bakery.event import StepDue
from fencelock.actors.bakery.leader import LEADER_TICK_MS
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import (
    AddTicket,
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
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX
from fencelock.actors.effect import Wake
from fencelock.actors.message import later

OTHER = Who("d", "other")
END = UnlockAll(session="c", number=4)


def who(number: int) -> Who:
    return Who("c", f"o{number}")


def take(trio: LeaderTrio, of: Who, lock: str, at: str = "n1") -> None:
    trio.ask(at, lock_request(of, lock=lock))
    trio.settle()


def tick(trio: LeaderTrio) -> None:
    """Let a tick pass at all leaders, which are trusted meanwhile."""
    trio.now = later(trio.now, LEADER_TICK_MS)
    for name, leader in trio.leaders.items():
        leader.epoch_state.trusted_at = trio.now
        trio.perform(name, leader.handle(leader_of(name), StepDue(), trio.now))


def left(trio: LeaderTrio, at: str = "n1", session: str = "c") -> int:
    return sum(key.who.session == session for key in trio.leaders[at].tickets.by_key)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader end one ticket in a turn."""
    monkeypatch.setattr(leader_requests, "QUEUE_ENDS_MAX", 1)


def test_a_turn_ends_some_of_many_tickets_and_the_reply_comes_after_the_last() -> None:
    trio, many = LeaderTrio(), 2 * QUEUE_ENDS_MAX + 1
    for number in range(many):
        take(trio, who(0), f"x/{number}")
    assert left(trio) == many
    trio.ask("n1", END)
    turns = 1
    while left(trio):
        assert left(trio) == many - turns * QUEUE_ENDS_MAX
        assert len(trio.under_way) == turns * QUEUE_ENDS_MAX * (len(NAMES) - 1)
        assert not trio.received(Unlocked)
        tick(trio)
        turns += 1
    assert turns == 3
    assert trio.received(Unlocked) == [Unlocked(number=4, found=True)]


@pytest.mark.usefixtures("few")
def test_a_leader_with_tickets_of_others_only_ticks_until_it_has_replied() -> None:
    trio = LeaderTrio()
    for number in range(3):
        take(trio, ANN, f"x/{number}")
    leader = trio.leaders["n2"]
    leader.ticking = False
    effects = leader.handle(proxy_of("n2"), END, trio.now)
    assert [one for one in effects if isinstance(one, Wake)] == [Wake(LEADER_TICK_MS, StepDue())]
    trio.ask("n1", UnlockAll(session="c", number=5))
    trio.settle()
    while left(trio):
        tick(trio)
        trio.settle()
    assert left(trio, "n2") == 0
    tick(trio)
    numbers = [reply.number for reply in trio.received(Unlocked)]
    assert sorted(numbers) == [4, 5]


@pytest.mark.usefixtures("few")
def test_a_repeated_end_takes_no_turn_of_its_own_and_each_request_is_answered_once() -> None:
    trio = LeaderTrio()
    for number in range(3):
        take(trio, ANN, f"x/{number}")
    trio.ask("n1", END)
    assert left(trio) == 2
    trio.ask("n1", END)
    trio.ask("n1", UnlockAll(session="c", number=5))
    assert left(trio) == 2
    for _ in range(3):
        tick(trio)
    assert [reply.number for reply in trio.received(Unlocked)] == [4, 5]


@pytest.mark.usefixtures("few")
def test_sessions_that_end_at_the_same_time_have_turns() -> None:
    trio = LeaderTrio()
    for session, count in (("c", 9), ("d", 2)):
        for number in range(count):
            take(trio, Who(session, "o"), f"{session}/{number}")
    for number, session in enumerate("cd"):
        trio.ask("n1", UnlockAll(session=session, number=number))
    tick(trio)
    tick(trio)
    assert [reply.number for reply in trio.received(Unlocked)] == [1]
    assert left(trio) > 0


@pytest.mark.usefixtures("few")
def test_a_session_that_ends_is_granted_nothing_and_the_next_one_is() -> None:
    """Its waits are behind its hold, which ends first."""
    trio = LeaderTrio()
    for number in range(3):
        take(trio, who(number), "x")
    take(trio, OTHER, "x")
    trio.ask("n1", END)
    trio.settle()
    while left(trio):
        tick(trio)
        trio.settle()
    assert [one.who for one in trio.received(Locked)] == [who(0), OTHER]


@pytest.mark.usefixtures("few")
def test_a_session_that_ends_can_neither_acquire_nor_renew() -> None:
    trio = LeaderTrio()
    for number in range(3):
        take(trio, ANN, f"x/{number}")
    *_, last = trio.received(Locked)
    trio.ask("n1", END)
    trio.ask("n1", lock_request(lock="y"))
    trio.ask("n1", lock_request(lock=last.lock))
    refused = [(one.lock, one.error, one.detail) for one in trio.received(LockFailed)]
    assert refused == [
        (name, Error.FAILED, f"lock '{name}': session 'c' ends") for name in ("y", last.lock)
    ]
    renewal = RenewHold(lock=last.lock, who=ANN, fence=last.fence, hold_ms=0, number=7, missed=())
    trio.ask("n1", renewal)
    assert [one.fence for one in trio.received(HoldRenewed)] == [0]
    trio.unlock("n1", last.fence, lock=last.lock)
    trio.settle()
    assert trio.received(Unlocked)[-1].found, "a release is done at once"

    while left(trio):
        tick(trio)
        trio.settle()
    tick(trio)
    take(trio, ANN, "y")
    assert trio.received(Locked)[-1].lock == "y", "its end is over"


@pytest.mark.usefixtures("few")
def test_the_end_of_an_epoch_ends_no_session_later() -> None:
    trio = LeaderTrio()
    for number in range(3):
        take(trio, ANN, f"x/{number}")
    trio.ask("n1", END)
    leader = trio.leaders["n1"]
    leader.transfer.leave(9)
    assert leader.attempts.ending == {}
    tick(trio)
    assert left(trio) == 2, "the proxy asks the leaders of the next epoch"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(20))
def test_all_leaders_that_replied_have_nothing_of_the_session_left(seed: int) -> None:
    """Also while messages are lost, and others wait for the same locks."""
    random, trio = Random(seed), LeaderTrio()
    for number in range(40):
        if random.random() < 0.2:
            one, other = random.sample(NAMES, 2)
            kind = random.choice((Entering, MaxTicket, AddTicket, DropTicket))
            trio.lose_between(one, other, kind)
        of = random.choice((who(number), Who("d", f"o{number}")))
        take(trio, of, f"x/{random.randrange(6)}", random.choice(NAMES))
    before = len(trio.received(Locked))
    for number, name in enumerate(NAMES):
        trio.ask(name, UnlockAll(session="c", number=number))
    trio.settle()
    while len(trio.received(Unlocked)) < len(NAMES):
        tick(trio)
        trio.settle()
        replied: list[Unlocked] = trio.received(Unlocked)
        assert all(left(trio, NAMES[reply.number]) == 0 for reply in replied)
    trio.lost.clear()
    assert all(one.who.session == "d" for one in trio.received(Locked)[before:])
    for _ in range(2 * (HOLD_MS + GRACE_MS) // LEADER_TICK_MS):
        tick(trio)
        trio.settle()
        assert all(left(trio, name) == 0 for name in NAMES)
