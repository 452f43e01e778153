"""Several locks at once in the replicated table: texts of refusals, costs and limits.

`test_table_model.py` compares who gets them with the model.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import A, B, C, applied, held, status_of, text_of

from fencelock.actors.api.lock_all import LOCKS_MAX, SEVERAL, AcquireAll
from fencelock.actors.api.message import Acquire, Cancel, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import CloseSession, SessionClosed
from fencelock.actors.table import requests
from fencelock.actors.table.resource import Resource, Wait
from fencelock.actors.table.table import LockTable


def both(session: str, locks: str = "ab", **fields: Any) -> AcquireAll:
    made = AcquireAll(locks=tuple(locks), session=session, owner="o", request=1)
    return replace(made, **fields)


def one(session: str, lock: str, request: int = 1, **fields: Any) -> Acquire:
    made = Acquire(lock=lock, session=session, owner="o", request=request, limit=0)
    return replace(made, **fields)


def release(session: str, lock: str, fence: int, request: int = 2) -> Release:
    return Release(lock=lock, fence=fence, session=session, owner="o", request=request)


def test_it_holds_nothing_while_it_waits_and_no_other_overtakes_it(table: LockTable) -> None:
    applied(table, one(A, "b"))
    assert applied(table, both(B)) == ["t.2 waits"]
    report = status_of(table, "a")
    assert (report.holder, len(report.waiters)) == (None, 1)
    assert held(table, "a") == ()
    assert applied(table, one(C, "a")) == ["u.3 waits"]
    assert applied(table, one(C, "a", 2, owner="p", wait_ms=0)) == ["u.3 TIMED_OUT"]
    assert applied(table, release(A, "b", 1)) == ["s.1 has 0 left", "t.2 holds 2 under 2"]
    assert applied(table, release(B, object_name(SEVERAL, "a"), 2)) == [
        "t.2 has 0 left",
        "u.3 holds 1 under 4",
    ]


def test_the_refusal_names_the_lock_that_is_held(table: LockTable) -> None:
    applied(table, one(A, "b"))
    applied(table, both(B, "abc", wait_ms=50))
    no = only(Refused, table.advance(50))
    text = "locks 'a': waited 50 ms; lock 'b': held by 'o' of 's.1' under fence 1, 1 in its queue"
    assert text_of(no) == text


def test_the_end_of_a_wait_for_many_locks_looks_at_each_queue_a_few_times(
    table: LockTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"l{number}" for number in range(LOCKS_MAX))
    applied(table, one(A, names[-1]))
    for session in (B, C):
        applied(table, replace(both(session), locks=names))
    looks: list[Resource] = []
    next_wait = Resource.next_wait

    def counted(resource: Resource) -> Wait | None:
        looks.append(resource)
        return next_wait(resource)

    monkeypatch.setattr(Resource, "next_wait", counted)
    wait = Cancel(lock=object_name(SEVERAL, names[0]), session=C, owner="o", request=1)
    assert applied(table, wait) == ["Cancelled", "u.3 CANCELLED"]
    assert len(looks) <= 4 * LOCKS_MAX


def test_each_lock_counts_as_a_claim(table: LockTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SESSION_CLAIMS_MAX", 6)
    applied(table, both(A, "abc"))
    applied(table, both(A, "abc", owner="p"))
    assert table.claims == 6
    assert applied(table, both(A, "x", owner="q")) == ["s.1 OVERLOADED"]
    (closed, *_) = table.apply(0, CloseSession(handle=A, operator="root", session="m", request=1))
    assert isinstance(closed, SessionClosed)
    assert closed.claims == 6
    assert (table.claims, table.resources) == (0, {})


def test_locks_are_granted_up_to_the_limit(table: LockTable) -> None:
    names = tuple(map(str, range(LOCKS_MAX)))
    assert applied(table, replace(both(A), locks=names)) == [f"s.1 holds {LOCKS_MAX} under 1"]
