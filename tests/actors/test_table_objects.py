"""Latches, barriers, counters and pools in the replicated table: objects that cannot be held."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import A, B, C, applied, outcome, status_of, summary, text_of

from fencelock.actors.api.account import Purge
from fencelock.actors.api.barrier import AwaitBarrier, BarrierPassed
from fencelock.actors.api.counter import (
    COUNTER,
    AddToCounter,
    CounterChanged,
    CounterRequest,
    SetCounter,
)
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.pool import POOL, PermitsTaken, ResizePool, TakePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.message import REGISTRY
from fencelock.actors.table import account, requests
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import KeptReply

NOTHING: tuple[Any, ...] = ({}, 0, 0, 0, {})


def left_behind(table: LockTable) -> tuple[Any, ...]:
    """Return the objects, claims, sums of what is kept, and deadlines: `NOTHING` in the end."""
    timeouts = table.timeouts.items
    return table.objects, table.claims, table.marked, table.waits_checksum, timeouts


def down(session: str = A, **fields: Any) -> CountDown:
    made = CountDown(latch="L", count=2, session=session, owner="o", request=1)
    return replace(made, **fields)


def wait(session: str = A, **fields: Any) -> AwaitLatch:
    made = AwaitLatch(latch="L", count=2, session=session, owner="w", request=1)
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
def test_another_size_than_the_present_one_is_refused_with_a_reason(
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


# Barriers


def passed(table: LockTable, command: AwaitBarrier) -> list[tuple[str, int, int]]:
    """Return the owners that pass, each with its index and generation."""
    outcomes = table.apply(table.time_ms, command)
    return [
        (one.session, one.index, one.generation)
        for one in outcomes
        if isinstance(one, BarrierPassed)
    ]


def test_all_pass_when_the_last_has_arrived_and_the_next_can_begin(table: LockTable) -> None:
    generations: list[int] = []
    for request in (1, 2):
        for session in (B, A, A):  # An arrival that is sent again is no other party.
            assert applied(table, arrive(session, request)) == [f"{session} waits"]
        outcomes = passed(table, arrive(C, request))
        assert [one[:2] for one in outcomes] == [(B, 0), (A, 1), (C, 2)]
        assert passed(table, arrive(A, request)) == [outcomes[1]]
        assert passed(table, arrive(C, request)) == [outcomes[2]]
        (generation,) = {one[2] for one in outcomes}
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
    assert [summary(late), summary(other)] == ["s.1 TIMED_OUT", "t.2 BROKEN"]
    assert text_of(late) == "barrier 'B': waited 50 ms; 2 of 3 parties have arrived"
    assert text_of(other).startswith("barrier 'B': generation ")
    assert "is broken: a party stopped waiting" in text_of(other)
    assert table.apply(50, arrive(B))[0] == other
    assert left_behind(table) == NOTHING
    assert applied(table, arrive(C)) == ["u.3 waits"]  # The next generation is clean.


# Counters


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


# Pools


def test_a_drain_takes_what_is_free(table: LockTable) -> None:
    applied(table, take(A, 1))
    assert only(PermitsTaken, table.apply(0, take(B, 0, wait_ms=0))).amount == 2
    _, text = refusal(table, take(C, 0, wait_ms=0))
    assert text == "pool 'P': 0 of 3 permits are free, 0 in its queue"
    assert applied(table, take(C, 0, 2)) == ["u.3 INVALID"]


def test_a_key_pays_for_its_pools_until_an_operator_deletes_them(table: LockTable) -> None:
    table.apply(0, Open(session="shop@a", ttl_ms=10_000))
    applied(table, take("shop@a.4", 3))
    applied(table, take(B))
    assert table.accounts.by_name["shop"].objects == 1
    purge = Purge(kind=POOL, prefix="P", exact=True, operator="root", session="x", request=1)
    assert applied(table, purge) == ["t.2 CANCELLED", "Purged"]
    assert table.accounts.by_name["shop"].objects == 0
    assert left_behind(table) == NOTHING
