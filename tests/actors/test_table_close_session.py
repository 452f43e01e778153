"""Sessions that an operator closes in the replicated table, by their handles."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.table_scene import text_of

from fencelock.actors.api import message as api
from fencelock.actors.api.name import without_secret
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    Ended,
    Evict,
    Open,
    Opened,
    Records,
    SessionClosed,
    ended,
)
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result

SECRET = "~" + "0123456789abcdef" * 2
VICTIM, HANDLE = f"bob{SECRET}.1", "bob.1"
NEXT = "ann.2"
CLOSE = CloseSession(handle=HANDLE, operator="eve", session="root.9", request=7)
BY = "eve (root)"


def acquire(session: str, request: int, lock: str = "a", owner: str = "o") -> api.Acquire:
    return api.Acquire(session=session, owner=owner, request=request, lock=lock)


def closed(claims: int) -> SessionClosed:
    return SessionClosed(handle=HANDLE, label="host:1", claims=claims, session="root.9", request=7)


@pytest.fixture
def table() -> LockTable:
    made = LockTable()
    for name, label in ((f"bob{SECRET}", "host:1"), ("ann", "host:2")):
        (opened,) = made.apply(0, Open(session=name, ttl_ms=9_000, label=label))
        assert isinstance(opened, Opened)
    return made


def applied(table: LockTable, *commands: api.Acquire) -> None:
    for command in commands:
        table.apply(0, command)


def grants(outcomes: list[Result]) -> list[tuple[str, str, int]]:
    return [(o.session, o.lock, o.fence) for o in outcomes if isinstance(o, api.Granted)]


def test_a_closed_sessions_locks_go_to_the_next_waiters_and_its_waits_end(
    table: LockTable,
) -> None:
    applied(table, acquire(NEXT, 1, "c"), acquire(VICTIM, 2, "a"), acquire(VICTIM, 3, "b", "p"))
    applied(table, acquire(VICTIM, 4, "c", "q"), acquire(NEXT, 5, "a"), acquire(NEXT, 6, "b", "p"))
    first, wait_ended, end, *passed_on = table.apply(50, CLOSE)
    assert first == closed(3)
    assert isinstance(wait_ended, api.Refused)
    assert (wait_ended.owner, wait_ended.reason) == ("q", api.Reason.SESSION_EXPIRED)
    assert end == ended(VICTIM, CloseReason.FORCED, 0, BY)
    assert isinstance(end, Ended)
    assert text_of(end).endswith("has ended: an operator ended it: 'eve (root)'")
    assert text_of(end).startswith("session 'bob.1' has")
    assert grants(passed_on) == [(NEXT, "a", 4), (NEXT, "b", 5)]
    assert table.status("c").waiting == 0
    assert list(table.sessions.by_id) == [NEXT]
    assert table.claims == 3
    (late,) = table.apply(60, acquire(VICTIM, 8))
    assert isinstance(late, api.Refused)
    assert late.reason is api.Reason.SESSION_EXPIRED


def test_permits_of_a_closed_session_are_granted_to_others(table: LockTable) -> None:
    mine = AcquirePermits(semaphore="s", permits=2, amount=2, session=VICTIM, owner="o", request=1)
    table.apply(0, mine)
    table.apply(0, replace(mine, session=NEXT, amount=1))
    assert [held.count for held in table.apply(0, CLOSE) if isinstance(held, api.Granted)] == [1]


def test_the_audit_lists_a_closed_session_with_the_operator_and_the_time(table: LockTable) -> None:
    applied(table, acquire(VICTIM, 1), acquire(VICTIM, 2, "b"))
    table.apply(50, CLOSE)
    table.apply(50, Open(session="late", ttl_ms=9_000))
    table.apply(60, acquire("late.3", 1))
    table.apply(60, Evict(lock="a", fence=3, operator="eve", session="root.9", request=8))
    table.advance(110)
    one, other = table.records(Records.EVICTIONS, 0, 10).evictions
    assert (one.lock, one.fence, one.operator, one.ago_ms) == ("", 0, BY, 60)
    assert (one.holder.session, one.holder.label, one.holder.times) == (VICTIM, "host:1", 2)
    assert (other.lock, other.ago_ms) == ("a", 50)
    copy = LockTable.restore(table.snapshot())
    assert copy.digest() == table.digest()
    assert copy.apply(120, CLOSE) == [closed(2)]


def test_a_repeated_request_has_the_same_outcome_and_closes_nothing_else(table: LockTable) -> None:
    applied(table, acquire(VICTIM, 1))
    assert table.apply(0, CLOSE)[0] == closed(1)
    (again,) = table.apply(0, Open(session=f"bob{SECRET}", ttl_ms=9_000))
    assert isinstance(again, Opened)
    assert again.assigned == f"bob{SECRET}.3"
    assert table.apply(0, CLOSE) == [closed(1)]
    later = replace(CLOSE, session="root~2.11")  # Its first session was lost.
    assert table.apply(0, later) == [replace(closed(1), session="root~2.11")]
    assert list(table.sessions.by_id) == [NEXT, again.assigned]
    assert len(table.forced()) == 1


@pytest.mark.parametrize(
    "handle", ["bob.2", "bob.01", "bob", "bob.", "ann.1", "bob.3", VICTIM, "bob.\u0661", "1"]
)
def test_a_handle_of_no_session_is_refused_in_words(table: LockTable, handle: str) -> None:
    (refused,) = table.apply(0, replace(CLOSE, handle=handle))
    assert isinstance(refused, api.Refused)
    assert (refused.reason, refused.session, refused.request) == (api.Reason.NOT_HELD, "root.9", 7)
    assert text_of(refused).startswith(f"session '{without_secret(handle)[:8]}")
    assert "is not open" in text_of(refused)
    assert len(table.sessions.by_id) == 2
    assert table.forced() == ()


def test_a_session_that_was_closed_before_is_not_closed_by_another_request(
    table: LockTable,
) -> None:
    table.apply(0, CLOSE)
    (refused,) = table.apply(0, replace(CLOSE, request=8))
    assert isinstance(refused, api.Refused)
    assert refused.reason is api.Reason.NOT_HELD


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"handle": "x" * 277}, "handle of 277 bytes"),
        ({"handle": "a\n.1"}, "handle"),
        ({"operator": "x" * 300}, "operator and client together have 307 bytes"),
        ({"request": 0}, "request is 0"),
    ],
)
def test_a_field_beyond_its_limit_is_refused(
    table: LockTable, wrong: dict[str, str | int], words: str
) -> None:
    (refused,) = table.apply(0, replace(CLOSE, **wrong))
    assert isinstance(refused, api.Refused)
    assert refused.reason is api.Reason.INVALID
    assert words in text_of(refused, replace(CLOSE, **wrong))
