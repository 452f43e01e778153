"""Counters in the replicated table: changes, conditions, limits, repetitions, snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import applied, restored, status_of, text_of, unheld

from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    CounterRequest,
    SetCounter,
)
from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import End, ListedObject, Open
from fencelock.actors.table import account, requests
from fencelock.actors.table.table import LockTable

LOCK = object_name(COUNTER, "C")
A, B = "s.1", "t.2"


def add(amount: int = 1, request: int = 1, session: str = A, **fields: Any) -> AddToCounter:
    made = AddToCounter(counter="C", amount=amount, session=session, owner="o", request=request)
    return replace(made, **fields)


def put(value: int, request: int = 1, session: str = A, **fields: Any) -> SetCounter:
    made = SetCounter(counter="C", value=value, session=session, owner="o", request=request)
    return replace(made, **fields)


def change(table: LockTable, command: CounterRequest) -> tuple[int, int, bool]:
    """Return the values before and after, and whether the counter was changed."""
    one = only(CounterChanged, table.apply(table.time_ms, command))
    assert one.key == command.key
    return one.before, one.after, one.changed


def refusal(table: LockTable, command: CounterRequest) -> tuple[Reason, str]:
    one = only(Refused, table.apply(table.time_ms, command))
    return one.reason, text_of(one, command)


def value_of(table: LockTable) -> int | None:
    return status_of(table, LOCK).left


def test_amounts_add_up_over_all_owners(table: LockTable) -> None:
    assert change(table, add(2)) == (0, 2, True)
    assert change(table, add(5, session=B)) == (2, 7, True)
    assert change(table, add(-10, 2)) == (7, -3, True)
    assert change(table, add(0, 3)) == (-3, -3, True)
    assert value_of(table) == -3


def test_a_change_that_is_sent_again_counts_once(table: LockTable) -> None:
    assert change(table, add(2)) == (0, 2, True)
    assert change(table, add(2, session=B)) == (2, 4, True)
    assert change(table, add(2)) == (0, 2, True)
    assert change(table, put(9, 2, expected=4)) == (4, 9, True)
    assert change(table, put(9, 2, expected=4)) == (4, 9, True)
    assert refusal(table, add(2))[0] is Reason.SUPERSEDED
    assert value_of(table) == 9


def test_a_counter_is_set_to_any_value_or_only_from_the_expected_one(table: LockTable) -> None:
    assert change(table, put(8)) == (0, 8, True)
    assert change(table, put(9, 2, expected=7)) == (8, 8, False)
    assert change(table, put(9, 3, expected=8)) == (8, 9, True)
    assert change(table, put(-9, 4)) == (9, -9, True)


def test_a_counter_at_0_leaves_no_state(table: LockTable) -> None:
    assert change(table, put(5, expected=0)) == (0, 5, True)
    assert len(table.objects) == 1
    assert change(table, add(-5, 2)) == (5, 0, True)
    assert (table.objects, table.marked, value_of(table)) == ({}, 0, None)
    assert change(table, put(1, 3, expected=5)) == (0, 0, False)
    assert change(table, put(0, 4)) == (0, 0, True)
    assert (table.objects, table.marked) == ({}, 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_the_limits_changes_nothing(table: LockTable, sign: int) -> None:
    most = sign * VALUE_MAX
    assert change(table, put(most)) == (0, most, True)
    assert change(table, add(sign, 2)) == (most, most, False)
    assert change(table, add(sign * VALUE_MAX, 3)) == (most, most, False)
    assert change(table, add(-sign, 4)) == (most, most - sign, True)
    assert change(table, add(sign, 5)) == (most - sign, most, True)
    assert status_of(restored(table), LOCK).left == most


@pytest.mark.parametrize(
    "command",
    [
        add(VALUE_MAX + 1),
        add(-VALUE_MAX - 1),
        put(VALUE_MAX + 1),
        put(1, expected=-VALUE_MAX - 1),
        add(guard="lock", fence=0),
        add(guard="", counter=""),
    ],
)
def test_a_field_out_of_its_limits_is_refused(table: LockTable, command: CounterRequest) -> None:
    reason, text = refusal(table, command)
    assert reason is Reason.INVALID
    assert "allowed" in text
    assert table.objects == {}


def test_a_guard_must_be_held_under_its_fence(table: LockTable) -> None:
    assert applied(table, Acquire(lock="L", session=B, owner="o", request=1)) == [
        "t.2 holds 1 under 1"
    ]
    assert change(table, add(guard="L", fence=1)) == (0, 1, True)
    assert refusal(table, put(7, 2, guard="L", fence=2))[0] is Reason.NOT_HELD
    applied(table, Release(lock="L", fence=1, session=B, owner="o", request=2))
    assert refusal(table, add(1, 3, guard="L", fence=1)) == (
        Reason.NOT_HELD,
        "counter 'C': nothing was changed: lock 'L' is not held under fence 1; nobody holds it",
    )
    assert value_of(table) == 1


def test_a_guarded_change_is_about_both_names() -> None:
    assert add(guard=object_name("rwlock", "R"), fence=1).reach == ("C", "R")
    assert add().reach == ("C",)


def test_a_cancelled_change_that_has_not_arrived_counts_no_more(table: LockTable) -> None:
    applied(table, Cancel(lock=LOCK, session=A, owner="o", request=1))
    assert refusal(table, add())[0] is Reason.CANCELLED
    assert change(table, add(3, 2)) == (0, 3, True)
    applied(table, Cancel(lock=LOCK, session=A, owner="o", request=2))
    assert value_of(table) == 3  # A cancel undoes nothing.


def test_a_counter_outlives_its_session_but_the_outcomes_do_not(table: LockTable) -> None:
    assert change(table, add(4)) == (0, 4, True)
    applied(table, End(session=A))
    assert value_of(table) == 4
    assert refusal(table, add(4))[0] is Reason.SESSION_EXPIRED
    assert value_of(table) == 4


def test_counters_count_as_objects_until_they_are_at_0(
    table: LockTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OBJECTS_MAX", 1)
    assert change(table, add()) == (0, 1, True)
    reason, text = refusal(table, add(counter="D", session=B))
    assert reason is Reason.OVERLOADED
    assert text.startswith(
        "counter 'D': this cluster has 1 latches, barriers, counters and pools, 1"
    )
    assert change(table, add(0, 2, B, counter="D")) == (0, 0, True)
    assert change(table, add(-1, 2)) == (1, 0, True)
    assert change(table, add(1, 3, B, counter="D")) == (0, 1, True)
    assert account.OBJECTS_MAX > 1


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


def test_a_snapshot_holds_counters_and_replies(table: LockTable) -> None:
    change(table, add(7))
    change(table, put(-3, session=B, counter="D"))
    copy = restored(table)
    for one in (table, copy):
        assert change(one, add(7)) == (0, 7, True)
        assert change(one, add(1, 2)) == (7, 8, True)
    assert copy.digest() == table.digest()


def test_a_snapshot_that_contradicts_itself_is_refused(table: LockTable) -> None:
    change(table, add(7))
    (part,) = table.snapshot()
    (record,) = part.counters
    wrong = ((record, record), (record._replace(value=0),), (record._replace(value=-(1 << 63)),))
    for counters in wrong:
        with pytest.raises(ValueError, match="the snapshot has"):
            LockTable.restore((replace(part, counters=counters),))


def test_lists_and_reports_show_the_value(table: LockTable) -> None:
    change(table, add(7))
    (line,) = unheld(table)
    assert line == ListedObject(LOCK, waiting=0, left=7, permits=0)
