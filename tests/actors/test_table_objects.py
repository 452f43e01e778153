"""Latches, barriers, counters and pools in the replicated table: objects that nobody holds."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import (
    advanced,
    applied,
    outcome,
    restored,
    said,
    status_of,
    text_of,
    unheld,
)

from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.barrier import AwaitBarrier, BarrierPassed
from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    CounterRequest,
    SetCounter,
)
from fencelock.actors.api.latch import AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.pool import (
    POOL,
    GivePermits,
    PermitsGiven,
    PermitsTaken,
    ResizePool,
    TakePermits,
)
from fencelock.actors.api.semaphore import Resized
from fencelock.actors.api.session_message import End, ListedObject, Open
from fencelock.actors.message import REGISTRY
from fencelock.actors.table import account, requests
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import KeptReply

A, B, C = "s.1", "t.2", "u.3"
NOTHING: tuple[Any, ...] = ({}, 0, 0, 0, {})


def left_behind(table: LockTable) -> tuple[Any, ...]:
    """Return the objects, claims, sums of what is kept, and deadlines: `NOTHING` in the end."""
    timeouts = table.timeouts.items
    return table.objects, table.claims, table.marked, table.waits_checksum, timeouts


def down(session: str = A, request: int = 1, **fields: Any) -> CountDown:
    made = CountDown(latch="L", count=2, session=session, owner="o", request=request)
    return replace(made, **fields)


def wait(session: str = A, request: int = 1, **fields: Any) -> AwaitLatch:
    made = AwaitLatch(latch="L", count=2, session=session, owner="w", request=request)
    return replace(made, **fields)


def arrive(session: str = A, request: int = 1, **fields: Any) -> AwaitBarrier:
    made = AwaitBarrier(barrier="B", parties=3, session=session, owner="o", request=request)
    return replace(made, **fields)


def add(amount: int = 1, request: int = 1, session: str = A, **fields: Any) -> AddToCounter:
    made = AddToCounter(counter="C", amount=amount, session=session, owner="o", request=request)
    return replace(made, **fields)


def put(value: int, request: int = 1, session: str = A, **fields: Any) -> SetCounter:
    made = SetCounter(counter="C", value=value, session=session, owner="o", request=request)
    return replace(made, **fields)


def take(session: str = A, amount: int = 1, request: int = 1, **fields: Any) -> TakePermits:
    made = TakePermits(pool="P", size=3, amount=amount, session=session, owner="o", request=request)
    return replace(made, **fields)


def give(session: str = A, amount: int = 1, request: int = 2) -> GivePermits:
    return GivePermits(pool="P", amount=amount, session=session, owner="g", request=request)


def resize(session: str, size: int, request: int = 1, permits: int = 3) -> ResizePool:
    fields: dict[str, Any] = {"session": session, "owner": "r", "request": request}
    return ResizePool(pool="P", permits=permits, size=size, **fields)


def cancel(command: Any) -> Cancel:
    about = command.session, command.owner, command.request
    return Cancel(lock=command.lock, session=about[0], owner=about[1], request=about[2])


def change(table: LockTable, command: CounterRequest) -> tuple[int, int, bool]:
    """Return the values before and after, and whether the counter was changed."""
    one = only(CounterChanged, table.apply(table.time_ms, command))
    assert one.key == command.key
    return one.before, one.after, one.changed


def refusal(table: LockTable, command: Any) -> tuple[Reason, str]:
    one = only(Refused, table.apply(table.time_ms, command))
    return one.reason, text_of(one, command)


def left(table: LockTable, kind: str) -> int | None:
    """Return the value of counter ``C``, or the free permits of pool ``P``."""
    return status_of(table, object_name(kind, {COUNTER: "C", POOL: "P"}[kind])).left


# Objects of every kind

CHANGES = [down(), add(2), put(7), put(7, expected=0), take(), resize(A, 5)]
"""Requests that change an object, or make it."""

changes = pytest.mark.parametrize("command", CHANGES, ids=lambda one: type(one).__name__)


@changes
def test_a_change_that_is_sent_again_counts_once_and_has_the_same_reply(
    table: LockTable, command: Any
) -> None:
    """Also when another client has changed the object meanwhile."""
    first, numbers = outcome(table, command), table.numbers()
    assert outcome(table, command) == first
    assert table.numbers() == numbers
    outcome(table, replace(command, session=B))
    assert outcome(table, command) == first
    outcome(table, replace(command, request=2))
    assert refusal(table, command)[0] is Reason.SUPERSEDED


@changes
def test_a_cancel_that_comes_first_keeps_a_change_from_counting_and_undoes_none(
    table: LockTable, command: Any
) -> None:
    applied(table, cancel(command))
    assert refusal(table, command)[0] is Reason.CANCELLED
    assert left_behind(table) == NOTHING
    done = replace(command, request=2)
    outcome(table, done)
    before = list(table.objects), table.marked
    applied(table, cancel(done))
    assert (list(table.objects), table.marked) == before


@pytest.mark.parametrize(
    ("first", "command", "text"),
    [
        (down(), down(B, count=5), "latch 'L' has count 2; this client asked for one with 5"),
        (down(), wait(B, count=5), "latch 'L' has count 2; this client asked for one with 5"),
        (
            arrive(),
            arrive(B, parties=5),
            "barrier 'B' has 3 parties; this client asked for one with 5",
        ),
        (take(), take(B, size=5), "pool 'P' has 3 permits; this client asked for one with 5"),
    ],
)
def test_another_size_than_the_present_one_is_refused_in_words(
    table: LockTable, first: Any, command: Any, text: str
) -> None:
    applied(table, first)
    for _ in range(2):
        assert refusal(table, command) == (Reason.INVALID, text)


@pytest.mark.parametrize("command", [down(), arrive(), add(), take()])
def test_the_table_has_a_limit(
    table: LockTable, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setattr(requests, "OBJECTS_MAX", 1)
    applied(table, down(B, latch="M"))
    reason, text = refusal(table, command)
    assert reason is Reason.OVERLOADED
    assert "this cluster has 1 latches, barriers, counters and pools, 1" in text
    assert table.claims == 0
    assert account.OBJECTS_MAX > 1


def test_a_snapshot_can_keep_every_reply_to_an_update() -> None:
    declared = {one for one in REGISTRY.values() if issubclass(one, UpdateReply)}
    assert declared == set(get_args(KeptReply))


# Latches


def test_all_who_wait_pass_in_order_when_the_count_is_0(table: LockTable) -> None:
    assert applied(table, wait(B)) == ["t.2 waits"]
    assert applied(table, wait(C)) == ["u.3 waits"]
    assert outcome(table, down()) == CountedDown(**down().fields(), left=1)
    told = table.apply(0, down(request=2))
    assert [(type(one), getattr(one, "session", "")) for one in told] == [
        (CountedDown, A),
        (LatchPassed, B),
        (LatchPassed, C),
    ]
    assert applied(table, wait()) == ["LatchPassed"]
    assert (table.claims, table.waits_checksum) == (0, 0)


def test_a_wait_for_a_latch_ends_by_time_by_cancel_and_with_its_session(table: LockTable) -> None:
    for command in (wait(A, wait_ms=50), wait(B), wait(C)):
        applied(table, command)
    assert applied(table, wait(C, owner="x", wait_ms=0)) == ["u.3 TIMED_OUT"]
    late = only(Refused, table.advance(50))
    assert text_of(late) == "latch 'L': waited 50 ms; its count is 2 of 2"
    assert applied(table, cancel(wait(B))) == ["Cancelled", "t.2 CANCELLED"]
    assert applied(table, End(session=C)) == ["u.3 SESSION_EXPIRED", "Ended"]
    assert left_behind(table) == NOTHING


def test_a_latch_at_0_is_kept_for_its_time_and_then_gone(table: LockTable) -> None:
    table.apply(5, down(amount=7, keep_ms=100))
    assert table.due_ms() == 105
    assert table.advance(104) == []
    assert applied(table, wait()) == ["LatchPassed"]
    table.advance(105)
    assert left_behind(table) == NOTHING
    assert applied(table, wait(request=2)) == ["s.1 waits"]


# Barriers


def passed(table: LockTable, command: AwaitBarrier) -> list[tuple[str, int, int]]:
    """Return the owners that pass, each with its index and generation."""
    told = table.apply(table.time_ms, command)
    return [
        (one.session, one.index, one.generation) for one in told if isinstance(one, BarrierPassed)
    ]


def test_all_pass_when_the_last_has_arrived_and_the_next_can_begin(table: LockTable) -> None:
    generations: list[int] = []
    for request in (1, 2):
        for session in (B, A, A):  # An arrival that is sent again is no other party.
            assert applied(table, arrive(session, request)) == [f"{session} waits"]
        told = passed(table, arrive(C, request))
        assert [one[:2] for one in told] == [(B, 0), (A, 1), (C, 2)]
        assert passed(table, arrive(A, request)) == [told[1]]
        assert passed(table, arrive(C, request)) == [told[2]]
        (generation,) = {one[2] for one in told}
        generations.append(generation)
        assert left_behind(table) == NOTHING
    assert generations[0] < generations[1]


def test_a_lone_party_passes_at_once(table: LockTable) -> None:
    first = passed(table, arrive(A, parties=1, wait_ms=0))
    second = passed(table, arrive(A, 2, parties=1))
    assert (first[0][:2], second[0][:2]) == ((A, 0), (A, 0))
    assert first[0][2] < second[0][2]


def two_wait(table: LockTable) -> None:
    applied(table, arrive(A, wait_ms=50))
    applied(table, arrive(B))


def test_a_party_whose_time_runs_out_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    late, other = table.advance(50)
    assert [said(late), said(other)] == ["s.1 TIMED_OUT", "t.2 BROKEN"]
    assert text_of(late) == "barrier 'B': waited 50 ms; 2 of 3 parties have arrived"
    assert text_of(other).startswith("barrier 'B': generation ")
    assert "is broken: a party stopped waiting" in text_of(other)
    assert table.apply(50, arrive(B))[0] == other
    assert left_behind(table) == NOTHING
    assert applied(table, arrive(C)) == ["u.3 waits"]  # The next generation is clean.


def test_a_party_that_is_cancelled_or_arrives_anew_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    assert applied(table, cancel(arrive())) == ["Cancelled", "s.1 CANCELLED", "t.2 BROKEN"]
    applied(table, arrive(B, 2))
    assert applied(table, arrive(B, 3)) == ["t.2 CANCELLED", "t.2 waits"]


def test_a_session_that_ends_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    applied(table, arrive(A, 2, owner="x", barrier="other"))
    told = ["s.1 SESSION_EXPIRED", "s.1 SESSION_EXPIRED", "Ended", "t.2 BROKEN"]
    assert applied(table, End(session=A)) == told
    assert left_behind(table) == NOTHING


def test_a_party_that_does_not_wait_breaks_it_unless_it_is_the_last(table: LockTable) -> None:
    assert applied(table, arrive(C, wait_ms=0)) == ["u.3 TIMED_OUT"]
    two_wait(table)
    assert len(passed(table, arrive(C, 2, wait_ms=0))) == 3
    applied(table, arrive(A, 2))
    assert applied(table, arrive(C, 3, wait_ms=0)) == ["u.3 TIMED_OUT", "s.1 BROKEN"]


def test_another_number_of_parties_is_good_once_nobody_waits(table: LockTable) -> None:
    two_wait(table)
    assert applied(table, arrive(C, parties=5)) == ["u.3 INVALID"]
    assert len(passed(table, arrive(C, 2))) == 3
    assert len(passed(table, arrive(A, 2, parties=1))) == 1


# Counters


def test_amounts_add_up_over_all_owners(table: LockTable) -> None:
    assert change(table, add(2)) == (0, 2, True)
    assert change(table, add(5, session=B)) == (2, 7, True)
    assert change(table, add(-10, 2)) == (7, -3, True)
    assert change(table, add(0, 3)) == (-3, -3, True)
    (line,) = unheld(table)
    assert line == ListedObject(object_name(COUNTER, "C"), waiting=0, left=-3, permits=0)


def test_a_counter_is_set_to_any_value_or_only_from_the_expected_one(table: LockTable) -> None:
    assert change(table, put(8)) == (0, 8, True)
    assert change(table, put(9, 2, expected=7)) == (8, 8, False)
    assert change(table, put(9, 3, expected=8)) == (8, 9, True)
    assert change(table, put(-9, 4)) == (9, -9, True)


def test_a_counter_at_0_leaves_no_state(table: LockTable) -> None:
    assert change(table, put(5, expected=0)) == (0, 5, True)
    assert len(table.objects) == 1
    assert change(table, add(-5, 2)) == (5, 0, True)
    assert (table.objects, table.marked, left(table, COUNTER)) == ({}, 0, None)
    assert change(table, put(1, 3, expected=5)) == (0, 0, False)
    assert change(table, put(0, 4)) == (0, 0, True)
    assert left_behind(table) == NOTHING


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_the_limits_changes_nothing(table: LockTable, sign: int) -> None:
    most = sign * VALUE_MAX
    assert change(table, put(most)) == (0, most, True)
    assert change(table, add(sign, 2)) == (most, most, False)
    assert change(table, add(sign * VALUE_MAX, 3)) == (most, most, False)
    assert change(table, add(-sign, 4)) == (most, most - sign, True)
    assert change(table, add(sign, 5)) == (most - sign, most, True)
    assert left(restored(table), COUNTER) == most


def test_a_guard_must_be_held_under_its_fence(table: LockTable) -> None:
    guard = Acquire(lock="L", session=B, owner="o", request=1)
    assert applied(table, guard) == ["t.2 holds 1 under 1"]
    assert change(table, add(guard="L", fence=1)) == (0, 1, True)
    assert refusal(table, put(7, 2, guard="L", fence=2))[0] is Reason.NOT_HELD
    applied(table, Release(lock="L", fence=1, session=B, owner="o", request=2))
    assert refusal(table, add(1, 3, guard="L", fence=1)) == (
        Reason.NOT_HELD,
        "counter 'C': nothing was changed: lock 'L' is not held under fence 1; nobody holds it",
    )
    assert left(table, COUNTER) == 1
    assert add(guard=object_name("rwlock", "R"), fence=1).reach == ("C", "R")
    assert add().reach == ("C",)


def test_a_counter_outlives_its_session_but_the_outcomes_do_not(table: LockTable) -> None:
    assert change(table, add(4)) == (0, 4, True)
    applied(table, End(session=A))
    assert refusal(table, add(4))[0] is Reason.SESSION_EXPIRED
    assert left(table, COUNTER) == 4


def test_a_counter_counts_as_an_object_until_it_is_at_0(
    table: LockTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OBJECTS_MAX", 1)
    change(table, add())
    assert change(table, add(0, 2, B, counter="D")) == (0, 0, True)
    change(table, add(-1, 2))
    assert change(table, add(1, 3, B, counter="D")) == (0, 1, True)


def test_a_key_pays_for_the_counters_that_it_made(table: LockTable) -> None:
    table.apply(0, Open(session="shop@a", ttl_ms=10_000))
    session = "shop@a.4"
    root: dict[str, Any] = {"operator": "root", "session": "x", "account": "shop"}
    table.apply(0, SetQuota(quota=Quota(objects=1), request=1, **root))
    assert change(table, add(session=session)) == (0, 1, True)
    assert change(table, add(5, session=B)) == (1, 6, True)
    reason, text = refusal(table, add(counter="D", session=session))
    assert reason is Reason.OVERLOADED
    assert (
        "key 'shop' has 1 latches, barriers, counters and pools, and the quota objects is 1" in text
    )
    copy = restored(table)
    for one in (table, copy):
        one.apply(0, Purge(kind=COUNTER, prefix="", request=2, **root))
        assert (one.objects, one.marked) == ({}, 0)
        assert change(one, add(2, 2, session)) == (0, 2, True)


# Pools


def test_permits_are_taken_until_none_is_free_and_then_in_order(table: LockTable) -> None:
    assert only(PermitsTaken, table.apply(0, take(A, 2))).amount == 2
    assert left(table, POOL) == 1
    assert applied(table, take(B, 2)) == ["t.2 waits"]
    assert applied(table, take(C)) == ["u.3 waits"]  # It does not overtake.
    assert applied(table, take(C, owner="p", wait_ms=0)) == ["u.3 TIMED_OUT"]
    told = applied(table, give(C, 2))  # Anybody may.
    assert told == ["PermitsGiven", "PermitsTaken", "PermitsTaken"]
    assert (left(table, POOL), table.claims) == (0, 0)


def test_a_taken_permit_outlives_its_session_and_is_given_back_by_another(table: LockTable) -> None:
    applied(table, take(A, 3))
    applied(table, take(B))
    assert applied(table, End(session=A)) == ["Ended"]
    assert left(table, POOL) == 0
    assert applied(table, give(C, 1)) == ["PermitsGiven", "PermitsTaken"]
    assert applied(table, give(C, 3, 3)) == ["PermitsGiven"]
    assert left_behind(table) == NOTHING


def test_permits_that_are_not_taken_cannot_be_given_back(table: LockTable) -> None:
    applied(table, take(A, 2))
    given = only(PermitsGiven, table.apply(0, give(B, 3)))
    assert (given.changed, given.taken, left(table, POOL)) == (False, 2, 1)
    given = only(PermitsGiven, table.apply(0, replace(give(B, 1, 3), pool="other")))
    assert (given.changed, given.taken) == (False, 0)


def test_permits_that_are_given_back_again_under_one_number_count_once(table: LockTable) -> None:
    applied(table, take(A, 2))
    for _ in range(2):
        assert applied(table, give(A, 1)) == ["PermitsGiven"]
    assert left(table, POOL) == 2


def test_a_drain_takes_what_is_free(table: LockTable) -> None:
    applied(table, take(A, 1))
    assert only(PermitsTaken, table.apply(0, take(B, 0, wait_ms=0))).amount == 2
    _, text = refusal(table, take(C, 0, wait_ms=0))
    assert text == "pool 'P': 0 of 3 permits are free, 0 in its queue"
    assert applied(table, take(C, 0, 2)) == ["u.3 INVALID"]


def test_a_wait_for_permits_ends_with_its_time_and_its_cancel(table: LockTable) -> None:
    for command in (take(A, 2), take(A, 3, owner="x", wait_ms=50), take(B, 3), take(C)):
        applied(table, command)
    assert advanced(table, 50) == ["s.1 TIMED_OUT"]
    assert applied(table, cancel(take(B, 3))) == ["Cancelled", "t.2 CANCELLED", "PermitsTaken"]
    assert (left(table, POOL), table.waits, table.timeouts.items) == (0, 0, {})


def test_a_pool_is_resized_while_permits_are_taken(table: LockTable) -> None:
    applied(table, take(A, 3))
    applied(table, take(B, 3))
    applied(table, take(C))
    told = table.apply(0, resize(A, 2))
    assert [said(one) for one in told] == ["Resized", "t.2 INVALID"]
    assert isinstance(told[0], Resized)
    assert (told[0].size, told[0].free, left(table, POOL)) == (2, -1, 0)
    assert applied(table, give(A, 1)) == ["PermitsGiven"]  # Two of two are taken.
    assert applied(table, give(A, 1, 3)) == ["PermitsGiven", "PermitsTaken"]
    assert applied(table, take(B, request=2)) == ["t.2 INVALID"]
    assert applied(table, resize(B, 5, 2, permits=4)) == ["t.2 INVALID"]
    assert applied(table, resize(B, 5, 3, permits=2)) == ["Resized"]
    assert left(table, POOL) == 3


def test_a_key_pays_for_its_pools_until_an_operator_deletes_them(table: LockTable) -> None:
    table.apply(0, Open(session="shop@a", ttl_ms=10_000))
    applied(table, take("shop@a.4", 3))
    applied(table, take(B))
    assert table.accounts.by_name["shop"].objects == 1
    purge = Purge(kind=POOL, prefix="P", exact=True, operator="root", session="x", request=1)
    assert applied(table, purge) == ["t.2 CANCELLED", "Purged"]
    assert table.accounts.by_name["shop"].objects == 0
    assert left_behind(table) == NOTHING
