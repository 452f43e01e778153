"""Pools in the replicated table: permits that outlive sessions, queues, sizes, snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import advanced, applied, restored, said, status_of, text_of

from fencelock.actors.api.account import Purge
from fencelock.actors.api.message import Cancel, Refused
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import (
    POOL,
    GivePermits,
    PermitsGiven,
    PermitsTaken,
    PoolResized,
    ResizePool,
    TakePermits,
)
from fencelock.actors.api.semaphore import PERMITS_MAX
from fencelock.actors.api.session_message import End, Open
from fencelock.actors.table.table import LockTable

LOCK = object_name(POOL, "P")
A, B, C = "s.1", "t.2", "u.3"


def take(session: str, amount: int = 1, request: int = 1, **fields: Any) -> TakePermits:
    made = TakePermits(pool="P", size=3, amount=amount, session=session, owner="o", request=request)
    return replace(made, **fields)


def give(session: str, amount: int, request: int = 2) -> GivePermits:
    return GivePermits(pool="P", amount=amount, session=session, owner="g", request=request)


def resize(session: str, size: int, request: int = 1, permits: int = 3) -> ResizePool:
    fields: dict[str, Any] = {"session": session, "owner": "r", "request": request}
    return ResizePool(pool="P", permits=permits, size=size, **fields)


def left(table: LockTable) -> int | None:
    return status_of(table, LOCK).left


def test_permits_are_taken_until_none_is_free_and_then_in_order(table: LockTable) -> None:
    assert (only(PermitsTaken, table.apply(0, take(A, 2))).amount, left(table)) == (2, 1)
    assert applied(table, take(B, 2)) == ["t.2 waits"]
    assert applied(table, take(C)) == ["u.3 waits"]  # It does not overtake.
    assert applied(table, take(C, owner="p", wait_ms=0)) == ["u.3 TIMED_OUT"]
    told = applied(table, give(C, 2))  # Anybody may.
    assert told == ["PermitsGiven", "PermitsTaken", "PermitsTaken"]
    assert (left(table), table.state_of(LOCK).waiting) == (0, 0)


def test_a_taken_permit_outlives_its_session_and_is_given_back_by_another(
    table: LockTable,
) -> None:
    applied(table, take(A, 3))
    applied(table, take(B))
    assert applied(table, End(session=A)) == ["Ended"]
    assert left(table) == 0
    assert applied(table, give(C, 1)) == ["PermitsGiven", "PermitsTaken"]
    assert applied(table, give(C, 3, 3)) == ["PermitsGiven"]
    assert (table.objects, table.marked, table.claims) == ({}, 0, 0)


def test_permits_that_are_not_taken_cannot_be_given_back(table: LockTable) -> None:
    applied(table, take(A, 2))
    given = only(PermitsGiven, table.apply(0, give(B, 3)))
    assert (given.changed, given.taken, left(table)) == (False, 2, 1)
    given = only(PermitsGiven, table.apply(0, replace(give(B, 1, 3), pool="other")))
    assert (given.changed, given.taken) == (False, 0)


def test_a_repeated_request_counts_once(table: LockTable) -> None:
    for _ in range(2):
        assert applied(table, take(A, 2)) == ["PermitsTaken"]
    for _ in range(2):
        assert applied(table, give(A, 1)) == ["PermitsGiven"]
    assert left(table) == 2


def test_a_drain_takes_what_is_free(table: LockTable) -> None:
    applied(table, take(A, 1))
    assert only(PermitsTaken, table.apply(0, take(B, 0, wait_ms=0))).amount == 2
    no = only(Refused, table.apply(0, take(C, 0, wait_ms=0)))
    assert text_of(no) == "pool 'P': 0 of 3 permits are free, 0 in its queue"
    assert applied(table, take(C, 0, 2)) == ["u.3 INVALID"]


def test_a_wait_ends_with_its_time_its_cancel_or_its_session(table: LockTable) -> None:
    applied(table, take(A, 2))
    applied(table, take(A, 3, owner="x", wait_ms=50))
    applied(table, take(B, 3))
    applied(table, take(C))
    assert advanced(table, 50) == ["s.1 TIMED_OUT"]
    cancel = Cancel(lock=LOCK, session=B, owner="o", request=1)
    assert applied(table, cancel) == ["Cancelled", "t.2 CANCELLED", "PermitsTaken"]
    assert (left(table), table.waits, table.timeouts.items) == (0, 0, {})


def test_a_pool_is_resized_while_permits_are_taken(table: LockTable) -> None:
    applied(table, take(A, 3))
    applied(table, take(B, 3))
    applied(table, take(C))
    told = table.apply(0, resize(A, 2))
    assert [said(one) for one in told] == ["PoolResized", "t.2 INVALID"]
    assert isinstance(told[0], PoolResized)
    assert (told[0].size, told[0].taken, left(table)) == (2, 3, 0)
    assert applied(table, give(A, 1)) == ["PermitsGiven"]  # Two of two are taken.
    assert applied(table, give(A, 1, 3)) == ["PermitsGiven", "PermitsTaken"]
    (no,) = table.apply(0, take(B, request=2))
    assert text_of(no) == "pool 'P' has 2 permits; this client asked for one with 3"
    assert applied(table, resize(B, 5, 2, permits=4)) == ["t.2 INVALID"]
    assert applied(table, resize(B, 5, 3, permits=2)) == ["PoolResized"]
    assert left(table) == 3


@pytest.mark.parametrize(
    "command",
    [take(A, 4), take(A, -1), take(A, size=0), give(A, 0), give(A, PERMITS_MAX + 1), resize(A, 0)],
)
def test_a_number_out_of_its_limits_is_refused(table: LockTable, command: Any) -> None:
    assert applied(table, command) == ["s.1 INVALID"]
    assert table.objects == {}


def test_a_key_pays_for_its_pools_until_an_operator_deletes_them(table: LockTable) -> None:
    table.apply(0, Open(session="shop@a", ttl_ms=10_000))
    applied(table, take("shop@a.4", 3))
    applied(table, take(B))
    assert table.accounts.by_name["shop"].objects == 1
    purge = Purge(kind=POOL, prefix="P", exact=True, operator="root", session="x", request=1)
    assert applied(table, purge) == ["t.2 CANCELLED", "Purged"]
    assert table.accounts.by_name["shop"].objects == 0
    assert (table.objects, table.claims) == ({}, 0)


def test_a_snapshot_holds_pools_with_their_waits(table: LockTable) -> None:
    applied(table, take(A, 2))
    applied(table, take(B, 2))
    copy = restored(table)
    for one in (table, copy):
        assert applied(one, give(C, 1)) == ["PermitsGiven", "PermitsTaken"]
        assert applied(one, take(A, 2)) == ["PermitsTaken"]  # It was sent again.
        assert left(one) == 0
    assert copy.digest() == table.digest()


def test_a_snapshot_that_contradicts_itself_is_refused(table: LockTable) -> None:
    applied(table, take(A, 2))
    applied(table, take(B, 2))
    (part,) = table.snapshot()
    (record,) = part.pools
    wrongs: tuple[dict[str, Any], ...] = (
        {"size": 0},
        {"taken": -1},
        {"taken": 0},
        {"size": 9},
        {"taken": 1 << 31},
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match="the snapshot has a wrong pool 'P'"):
            LockTable.restore((replace(part, pools=(record._replace(**wrong),)),))
