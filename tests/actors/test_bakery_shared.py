"""Read/write locks on `bakery`: step by step, as votes, and taken over beside another vote."""

from __future__ import annotations

import pytest
from support.leader_trio import GRACE_MS, HOLD_MS, LIVES, NAMES, NOW, LeaderTrio, lock_request
from support.proxy_scene import MEMBERS, reply_to
from support.role_harness import sent

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX, REFRESH_MS, election_of, leader_of
from fencelock.actors.bakery.in_flight import Poll
from fencelock.actors.bakery.leader_requests import query_result
from fencelock.actors.bakery.state_transfer import parts_of
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import (
    AddTicket,
    Collected,
    Entering,
    Error,
    Export,
    Extend,
    HoldRenewed,
    Lead,
    Lock,
    Locked,
    LockFailed,
    Query,
    QueryResult,
    RenewHold,
    Seating,
    Table,
)
from fencelock.actors.effect import Observe
from fencelock.transport.codec import decode, encode

NAME = object_name(RWLOCK, "x")


def who(owner: str) -> Who:
    return Who("c", owner)


def lock(owner: str, *, shared: bool, request: int = 1, wait_ms: int | None = None) -> Lock:
    return lock_request(who(owner), lock=NAME, request=request, wait_ms=wait_ms, shared=shared)


def read(trio: LeaderTrio, to: str, owner: str) -> None:
    trio.ask(to, lock(owner, shared=True))
    trio.settle()


def write(trio: LeaderTrio, to: str, owner: str) -> None:
    trio.ask(to, lock(owner, shared=False))
    trio.settle()


def release(trio: LeaderTrio, to: str, owner: str) -> None:
    trio.unlock(to, 0, lock=NAME, who=who(owner), request=1)
    trio.settle()


def granted(trio: LeaderTrio) -> list[str]:
    return [locked.who.owner for locked in trio.received(Locked)]


def fence_of(trio: LeaderTrio, owner: str) -> int:
    (fence,) = {int(one.fence) for one in trio.received(Locked) if one.who.owner == owner}
    return fence


def test_readers_of_different_leaders_hold_it_together() -> None:
    trio = LeaderTrio()
    for node, owner in zip(NAMES, ("ann", "bob", "cid"), strict=True):
        trio.ask(node, lock(owner, shared=True))
    trio.settle()
    assert sorted(granted(trio)) == ["ann", "bob", "cid"]
    assert len({fence_of(trio, owner) for owner in ("ann", "bob", "cid")}) == 3


def test_a_writer_waits_for_all_readers_and_readers_behind_it_wait_for_the_writer() -> None:
    trio = LeaderTrio()
    read(trio, "n1", "ann")
    read(trio, "n2", "bob")
    write(trio, "n3", "wil")
    read(trio, "n1", "cid")
    read(trio, "n2", "dan")
    assert granted(trio) == ["ann", "bob"]
    release(trio, "n1", "ann")
    assert granted(trio) == ["ann", "bob"]
    release(trio, "n3", "bob")
    assert granted(trio) == ["ann", "bob", "wil"]
    release(trio, "n3", "wil")
    assert sorted(granted(trio)[3:]) == ["cid", "dan"]
    fences = [fence_of(trio, owner) for owner in ("ann", "bob", "wil", "cid", "dan")]
    assert fences[2] > max(fences[:2])
    assert fences[2] < min(fences[3:])


def test_many_readers_behind_a_writer_are_granted_together() -> None:
    trio = LeaderTrio()
    write(trio, "n1", "wil")
    readers = [f"r{number}" for number in range(30)]
    for number, owner in enumerate(readers):
        read(trio, NAMES[number % 3], owner)
    assert granted(trio) == ["wil"]
    release(trio, "n2", "wil")
    assert sorted(granted(trio)[1:]) == sorted(readers)


def test_a_reader_that_does_not_wait_gives_up_behind_a_waiting_writer() -> None:
    trio = LeaderTrio()
    read(trio, "n1", "ann")
    write(trio, "n2", "wil")
    trio.ask("n1", lock("eve", shared=True, wait_ms=0))
    trio.settle()
    (failed,) = trio.received(LockFailed)
    assert (failed.who.owner, failed.error) == ("eve", Error.TIMED_OUT)
    assert failed.detail.startswith("rwlock 'x': waited 0 ms; another request is ahead")


def test_a_reader_renews_its_hold_beside_others_and_a_writer_waits_until_it_is_over() -> None:
    trio = LeaderTrio()
    read(trio, "n1", "ann")
    read(trio, "n2", "bob")
    write(trio, "n3", "wil")
    trio.pass_time(HOLD_MS)
    fence = fence_of(trio, "ann")
    trio.ask("n1", RenewHold(lock=NAME, who=who("ann"), fence=fence, hold_ms=0, number=50))
    trio.settle()
    (renewed,) = trio.received(HoldRenewed)
    assert (renewed.number, renewed.fence) == (50, fence)
    trio.pass_time(GRACE_MS + 1)  # Bob's lease is over.
    assert "wil" not in granted(trio)
    trio.pass_time(HOLD_MS)
    trio.pass_time(REFRESH_MS)
    assert granted(trio)[-1] == "wil"


def test_a_leader_that_missed_the_vote_takes_up_a_reader_beside_another_not_beside_a_writer() -> (
    None
):
    trio = LeaderTrio()
    trio.lose_between("n1", "n3", AddTicket)
    read(trio, "n1", "ann")
    trio.lost.clear()
    read(trio, "n2", "bob")
    entry = next(
        one for one in trio.leaders["n1"].tickets.entries() if one.ticket.who.owner == "ann"
    )
    extend = Extend(epoch=1, ticket=entry.ticket, fence=entry.fence, number=1)
    table = trio.leaders["n3"].tickets
    trio.deliver(leader_of("n1"), "n3", extend)
    assert len(table.queues[NAME].shared.holding) == 2
    release(trio, "n2", "ann")
    release(trio, "n2", "bob")
    write(trio, "n2", "wil")
    trio.deliver(leader_of("n1"), "n3", extend)
    assert not table.queues[NAME].shared.holding


@pytest.mark.parametrize("first", [True, False])
def test_a_request_is_refused_in_the_other_mode(*, first: bool) -> None:
    trio = LeaderTrio()
    trio.ask("n1", lock("ann", shared=first))
    trio.settle()
    trio.ask("n1", lock("ann", shared=not first))
    trio.settle()
    (failed,) = trio.received(LockFailed)
    assert (failed.error, failed.detail) == (
        Error.DUPLICATE,
        "rwlock 'x': request 1 is known in the other mode",
    )
    entry = next(trio.leaders["n1"].tickets.entries())
    turn = entry.ticket.turn
    other = entry.ticket._replace(turn=turn._replace(serial=-turn.serial))
    add = AddTicket(epoch=1, ticket=other, round=9, fence=entry.fence, taken=False)
    effects = trio.leaders["n2"].handle(leader_of("n1"), add, trio.now)
    assert Observe("bakery.step_malformed") in effects
    assert sent(effects, Collected) == []


def test_an_owner_that_reads_is_refused_a_second_hold() -> None:
    trio = LeaderTrio()
    read(trio, "n1", "ann")
    trio.ask("n1", lock("ann", shared=False, request=2))
    trio.settle()
    (failed,) = trio.received(LockFailed)
    assert failed.error is Error.HELD
    assert "this owner holds it, under fence" in failed.detail


def test_a_leader_names_all_holders_with_their_modes() -> None:
    trio = LeaderTrio()
    read(trio, "n1", "ann")
    read(trio, "n2", "bob")
    write(trio, "n3", "wil")
    read(trio, "n3", "cid")
    table = trio.leaders["n3"].tickets
    result = query_result(table, Query(lock=NAME, number=1), 1, trio.now)
    assert [(one.owner, one.times) for one in result.holders] == [("ann", 1), ("bob", 1)]
    assert [(one.owner, one.times) for one in result.waiters] == [
        ("wil", RWLOCK_PERMITS),
        ("cid", 1),
    ]


def hand_over(trio: LeaderTrio, *, lost: str) -> None:
    """Let n1 and n2 take over from epoch 1 as leaders of epoch 2, without the leader ``lost``."""
    former = Seating(1, LIVES, 10_000)
    leaders = tuple(one for one in LIVES if one.node != lost)
    trio.lost |= {
        (kind, a, b) for kind in (Export, Table) for a in NAMES for b in NAMES if lost in (a, b)
    }
    for one in leaders:
        lead = Lead(seating=Seating(2, leaders, 0), former=former, empty=False)
        trio.perform(one.node, trio.leaders[one.node].handle(election_of("n1"), lead, trio.now))
    trio.settle()


def test_all_readers_hold_after_a_hand_over_and_keep_their_mode() -> None:
    trio = LeaderTrio()
    for node, owner in zip(NAMES, ("ann", "bob", "cid"), strict=True):
        read(trio, node, owner)
    write(trio, "n1", "wil")
    hand_over(trio, lost="n3")
    for name in ("n1", "n2"):
        queue = trio.leaders[name].tickets.queues[NAME]
        assert [one.ticket.who.owner for one in queue.holders()] == ["ann", "bob", "cid"]
        assert [one.ticket.shared for one in queue.waiters(9)] == [False]


def test_a_table_keeps_the_modes_on_the_wire_and_distinguishes_ends_of_readers_and_writers() -> (
    None
):
    trio = LeaderTrio()
    write(trio, "n1", "wil")
    release(trio, "n1", "wil")
    for owner in ("ann", "bob"):
        read(trio, "n1", owner)
    release(trio, "n1", "ann")
    (table,) = parts_of(trio.leaders["n1"].tickets, 2, 1, trio.now)
    (record,) = table.records
    assert record.ticket.shared
    assert decode(encode(table)) == table
    ends = {end.who.owner: end.exclusive for end in table.ended}
    assert ends == {"ann": fence_of(trio, "wil"), "wil": fence_of(trio, "wil")}


def holder(owner: str, fence: int, times: int = 1) -> Contender:
    return Contender("n1", "c", owner, fence, 5, "", times)


A, B, C = holder("ann", 7), holder("bob", 9), holder("cid", 11)
WRITER = holder("wil", 12, RWLOCK_PERMITS)


def answer(*holders: Contender, expired_ms: int | None = None) -> QueryResult:
    return reply_to(Query(lock=NAME, number=1, nonce=7), *holders, expired_ms=expired_ms)


def decide(*answers: QueryResult) -> tuple[Contender, ...] | None:
    poll = Poll(7, NOW, dict(zip(MEMBERS, answers, strict=False)))
    decided = poll.decide(2, NOW)
    return None if decided is None else decided.holders


@pytest.mark.parametrize(
    ("answers", "holders"),
    [
        ((answer(A, B),), None),
        ((answer(A, B), answer(A, B)), (A, B)),
        ((answer(A, B), answer(B, C)), None),
        ((answer(A, B), answer(B, C), answer(A)), (A, B)),
        ((answer(A), answer(), answer()), ()),
        ((answer(WRITER), answer(WRITER)), (WRITER,)),
        ((answer(WRITER), answer(A), answer(A)), (A,)),
        ((answer(A, B), answer(A, expired_ms=0), answer(A, expired_ms=0)), None),
        ((answer(A, B), answer(A, expired_ms=9_000), answer(A)), (A,)),
    ],
)
def test_an_owner_holds_it_if_a_quorum_of_leaders_reports_so(
    answers: tuple[QueryResult, ...], holders: tuple[Contender, ...] | None
) -> None:
    assert decide(*answers) == holders


def test_a_report_of_many_readers_ends_where_a_leader_has_no_room() -> None:
    many = [holder(f"r{fence}", fence) for fence in range(1, HOLDERS_SHOWN_MAX + 2)]
    found = decide(answer(*many[:-1]), answer(*many[1:]))
    assert found is None  # The first may still hold it: another leader has to answer.
    assert decide(answer(*many[:-1]), answer(*many[1:]), answer()) == tuple(many[1:-1])


@pytest.mark.parametrize("shared", [False, True])
def test_a_hold_that_is_taken_over_and_renewed_stands_beside_no_vote_of_the_same_leader(
    *, shared: bool
) -> None:
    """n3 votes for bob, unknown to the other leaders; then it receives ann's grant by n1 and n2."""
    trio = LeaderTrio()
    trio.lose_between("n1", "n3", Entering, AddTicket)
    trio.ask("n1", lock("ann", shared=shared))
    trio.settle()
    (granted,) = trio.received(Locked)
    trio.pass_time(200)
    trio.lost = {(AddTicket, "n3", "n1"), *((kind, "n3", "n2") for kind in (AddTicket, Extend))}
    trio.ask("n3", lock("bob", shared=False))
    trio.settle()
    trio.ask("n3", lock("ann", shared=shared))
    trio.settle()
    trio.pass_time(HOLD_MS - 200)
    trio.ask("n3", RenewHold(lock="x", who=granted.who, fence=granted.fence, hold_ms=0, number=5))
    trio.settle()
    renewals = [one for one in trio.received(HoldRenewed) if one.fence]
    trio.pass_time(GRACE_MS + 1)  # Ann's lease is over at n2, which missed the renewal.
    trio.lost = {(AddTicket, "n3", "n1")}
    trio.pass_time(100)
    bob = [one for one in trio.received(Locked) if one.who.owner == "bob"]
    assert not (renewals and bob)
