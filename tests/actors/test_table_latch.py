"""Count-down latches in the replicated table: counts, waits, repetitions, ends, snapshots."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import applied, outcome, restored, said, table_of_three, text_of

from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown
from fencelock.actors.api.message import Cancel, Reason, Refused
from fencelock.actors.api.name import object_name
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.session_message import End
from fencelock.actors.message import REGISTRY
from fencelock.actors.table import requests
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import KeptReply

LOCK = object_name(LATCH, "L")
A, B, C = "s.1", "t.2", "u.3"


def down(session: str = A, request: int = 1, **fields: Any) -> CountDown:
    made = CountDown(latch="L", count=2, session=session, owner="o", request=request)
    return replace(made, **fields)


def wait(session: str = A, request: int = 1, **fields: Any) -> AwaitLatch:
    made = AwaitLatch(latch="L", count=2, session=session, owner="w", request=request)
    return replace(made, **fields)


def test_all_who_wait_pass_in_order_when_the_count_is_0(table: LockTable) -> None:
    assert applied(table, wait(B)) == ["t.2 waits"]
    assert applied(table, wait(C)) == ["u.3 waits"]
    assert outcome(table, down()).left == 1
    told = table.apply(0, down(request=2))
    assert [(one.session, type(one).__name__) for one in told if not isinstance(one, Refused)] == [
        (A, "CountedDown"),
        (B, "LatchPassed"),
        (C, "LatchPassed"),
    ]
    assert applied(table, wait()) == ["LatchPassed"]
    assert (table.claims, table.waits_checksum) == (0, 0)


def test_a_request_that_is_sent_again_counts_once_and_gets_the_same_reply(
    table: LockTable,
) -> None:
    first = outcome(table, down())
    assert outcome(table, down()) == first == CountedDown(**down().fields(), left=1)
    assert applied(table, wait()) == ["s.1 waits"]
    assert applied(table, wait()) == ["s.1 waits"]
    table.apply(0, down(B))
    assert applied(table, wait()) == ["LatchPassed"]
    assert outcome(table, down(B)).left == 0


def test_another_count_is_refused_in_words(table: LockTable) -> None:
    table.apply(0, down())
    for command in (down(B, count=5), wait(B, count=5)):
        no = outcome(table, command)
        assert (no.reason, text_of(no)) == (
            Reason.INVALID,
            "latch 'L' has count 2; this client asked for one with 5",
        )
        assert outcome(table, command) == no


def test_a_wait_ends_by_time_by_cancel_and_with_its_session(table: LockTable) -> None:
    applied(table, wait(A, wait_ms=50))
    applied(table, wait(B))
    applied(table, wait(C))
    assert applied(table, wait(C, owner="x", wait_ms=0)) == ["u.3 TIMED_OUT"]
    late = only(Refused, table.advance(50))
    assert text_of(late) == "latch 'L': waited 50 ms; its count is 2 of 2"
    cancel = Cancel(lock=LOCK, session=B, owner="w", request=1)
    assert applied(table, cancel) == ["Cancelled", "t.2 CANCELLED"]
    end = End(session=C)
    assert applied(table, end) == ["u.3 SESSION_EXPIRED", "Ended"]
    assert (table.objects, table.claims, table.waits_checksum, table.timeouts.items) == (
        {},
        0,
        0,
        {},
    )


def test_a_latch_that_nobody_counts_down_leaves_no_state(table: LockTable) -> None:
    assert applied(table, wait(A, wait_ms=0)) == ["s.1 TIMED_OUT"]
    assert applied(table, wait(A, request=2)) == ["s.1 waits"]
    assert applied(table, wait(A, request=3)) == ["s.1 CANCELLED", "s.1 waits"]
    applied(table, End(session=A))
    assert (table.objects, table.marked) == ({}, 0)


def test_a_cancel_that_comes_first_keeps_the_request_from_counting(table: LockTable) -> None:
    applied(table, Cancel(lock=LOCK, session=A, owner="o", request=1))
    assert applied(table, down()) == ["s.1 CANCELLED"]
    assert LOCK not in table.objects


def test_a_latch_at_0_is_kept_for_its_time_and_then_gone(table: LockTable) -> None:
    table.apply(5, down(amount=7, keep_ms=100))
    assert table.due_ms() == 105
    assert table.advance(104) == []
    assert applied(table, wait()) == ["LatchPassed"]
    table.advance(105)
    assert (table.objects, table.timeouts.items, table.marked) == ({}, {}, 0)
    assert applied(table, wait(request=2)) == ["s.1 waits"]


def test_the_table_has_a_limit(table: LockTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "OBJECTS_MAX", 1)
    table.apply(0, down())
    assert applied(table, down(B, latch="M")) == ["t.2 OVERLOADED"]
    arrival = AwaitBarrier(barrier="B", parties=2, session=B, owner="o", request=2)
    assert applied(table, arrival) == ["t.2 OVERLOADED"]
    assert table.claims == 0


@pytest.mark.parametrize("fields", [{"count": 0}, {"amount": 0}, {"keep_ms": -1}, {"latch": ""}])
def test_fields_beyond_their_limits_are_refused(table: LockTable, fields: dict[str, Any]) -> None:
    assert applied(table, down(**fields)) == ["s.1 INVALID"]
    assert table.objects == {}


def busy() -> LockTable:
    table = table_of_three()
    table.apply(0, down())
    table.apply(0, wait(B, wait_ms=500))
    table.apply(0, wait(C))
    table.apply(0, down(latch="M", amount=2, keep_ms=70))
    table.apply(0, wait(latch="M", count=2))
    return table


def test_a_snapshot_holds_latches_waits_and_replies() -> None:
    table = busy()
    copy = restored(table)
    for one in (table, copy):
        assert outcome(one, down()).left == 1
        assert [said(two) for two in one.advance(500)] == ["t.2 TIMED_OUT"]
        assert list(one.objects) == [LOCK]
        told = one.apply(500, down(B))
        assert [type(two).__name__ for two in told] == ["CountedDown", "LatchPassed"]


def test_the_numbers_and_the_digest_tell_counts_apart() -> None:
    one, two = busy(), busy()
    record = one.snapshot()[0].latches[0]
    (part,) = two.snapshot()
    wrong = replace(part, latches=(record._replace(left=2), *part.latches[1:]))
    other = LockTable.restore((wrong,))
    assert other.numbers() != one.numbers()
    assert other.digest() != one.digest()


@pytest.mark.parametrize("change", ["twice", "left", "due", "stray reply", "no waits", "waits"])
def test_a_snapshot_that_contradicts_itself_is_refused(change: str) -> None:
    (part,) = busy().snapshot()
    first, second = part.latches
    changes: dict[str, dict[str, Any]] = {
        "twice": {"latches": (first, first)},
        "left": {"latches": (first._replace(left=3), second)},
        "due": {"latches": (first, second._replace(due_ms=None))},
        "stray reply": {"replies": (*part.replies, *part.replies)},
        "no waits": {"latches": (first, second, first._replace(lock=f"{LATCH}\x1fN", left=2))},
        "waits": {"latches": (first._replace(left=0, ticket=99, due_ms=70), second)},
    }
    with pytest.raises(ValueError, match="the snapshot has a"):
        LockTable.restore((replace(part, **changes[change]),))


def test_a_snapshot_can_keep_every_reply_to_an_update() -> None:
    declared = {one for one in REGISTRY.values() if issubclass(one, UpdateReply)}
    assert declared == set(get_args(KeptReply))


class Ephemeral:
    """An item that ends with a session."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name, self.ended = name, ended

    def end_with_session(self, table: Any, out: list[Any]) -> None:
        self.ended.append(f"{self.name} after {len(out)}")
        assert A not in table.sessions.by_id


def test_what_is_attached_to_a_session_ends_after_it_by_ticket(table: LockTable) -> None:
    ended: list[str] = []
    attached = table.sessions.by_id[A].attached
    attached[2], attached[1] = Ephemeral("second", ended), Ephemeral("first", ended)
    table.apply(0, End(session=A))
    assert ended == ["first after 1", "second after 1"]
    assert attached == {}


class Item:
    """An item that falls due again and again."""

    ticket = 1

    def __init__(self) -> None:
        self.due_ms: int | None = 10
        self.fell: list[int] = []

    def fall_due(self, table: Any, out: list[Any]) -> None:
        self.fell.append(table.timeouts.heap[0][0])
        table.timeouts.drop(self)
        assert self.due_ms is not None
        self.due_ms += 10
        table.timeouts.add(self)


def test_an_item_that_is_added_again_falls_due_at_its_new_time(table: LockTable) -> None:
    item = Item()
    table.timeouts.add(item)
    table.timeouts.drop(item)
    item.due_ms = 25
    table.timeouts.add(item)
    table.advance(20)
    assert item.fell == []
    table.advance(46)
    assert item.fell == [25, 35, 45]
