"""Locks that a client detaches, and another one attaches: secrets, queues, deadlines, quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import present
from support.table_scene import applied, held, restored, status_of, text_of

from fencelock.actors.api.account import Quota, SetQuota
from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Contender, Release
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.redis import ChangeKeys, Expiry, KeyAction, KeyState, ListKeys, ReadKeys
from fencelock.actors.api.session_message import End, Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.redis import list_keys, read_keys
from fencelock.actors.table.table import LockTable

WEB, WORKER, DOOR = "shop@web.1", "shop@worker.2", "n1/5f.3"
SECRET = b"\x00\xffsixteen-bytes!"


@pytest.fixture
def table() -> LockTable:
    """A table in which ``web`` holds the lock ``k`` under fence 1."""
    table = LockTable()
    for session in ("shop@web", "shop@worker", "n1/5f"):
        table.apply(0, Open(session=session, label=session, ttl_ms=1_000_000))
    assert applied(table, acquire(1)) == [f"{WEB} holds 1 under 1"]
    return table


def acquire(request: int, session: str = WEB, **more: Any) -> Acquire:
    fields: dict[str, Any] = {"owner": "o", **more}
    return Acquire(lock="k", session=session, request=request, **fields)


def detach(request: int = 2, fence: int = 1, ttl_ms: int = 1_000, **more: Any) -> Detach:
    fields: dict[str, Any] = {"session": WEB, "owner": "o", "digest": digest_of(SECRET), **more}
    return Detach(lock="k", fence=fence, ttl_ms=ttl_ms, request=request, **fields)


def attach(request: int = 1, secret: bytes = SECRET, session: str = WORKER, **more: Any) -> Attach:
    fields: dict[str, Any] = {"session": session, "owner": "w", **more}
    return Attach(lock="k", secret=secret, request=request, **fields)


def release(fence: int, session: str = WORKER, owner: str = "w") -> Release:
    return Release(lock="k", fence=fence, session=session, owner=owner, request=90)


def holder(table: LockTable) -> Contender:
    return present(status_of(table, "k").holder)


def test_a_detached_lock_is_attached_once_and_no_other_owner_gets_it_between(
    table: LockTable,
) -> None:
    """Rules nobody-between, attached-once, fences-rise, one-outcome, snapshots-are-complete."""
    applied(table, acquire(3, WORKER))
    detached = [f"{WEB} has 0 left", f"{NO_CLIENT} holds 1 under 2"]
    assert applied(table, detach()) == detached
    assert applied(table, End(session=WEB)) == ["Ended"]
    copy = restored(table)
    for one in (table, copy):
        assert applied(one, attach()) == [f"{WORKER} holds 1 under 3"]
        assert applied(one, attach()) == [f"{WORKER} holds 1 under 3"]  # It is sent again.
        (no,) = one.apply(0, attach(2, owner="v"))
        said_so = "this token does not attach it: it was used, or its time is over"
        assert said_so in text_of(no)
        assert applied(one, release(3))[1:] == [f"{WORKER} holds 1 under 4"]
    assert copy.digest() == table.digest()
    assert (table.key_session.claims, table.key_session.owner_states, table.marked) == (0, {}, 0)


def test_the_status_shows_who_detached_it_and_not_the_secret(table: LockTable) -> None:
    applied(table, detach())
    seen = holder(table)
    assert (seen.session, seen.owner) == (NO_CLIENT, "o")
    assert (seen.label, status_of(table, "k").left_ms) == ("shop@web, detached", 1_001)
    (no,) = table.apply(0, acquire(3, WORKER, wait_ms=0))
    wanted = f"lock 'k': held by shop@web, detached ('o' of '{NO_CLIENT}') under fence 2"
    assert text_of(no) == wanted
    assert digest_of(SECRET).hex() not in str((seen, held(table, "", "", 9)))


def test_a_hold_of_several_acquires_or_locks_stays_as_it_is(table: LockTable) -> None:
    applied(table, acquire(2, limit=0))
    (no,) = table.apply(0, detach(3))
    wanted = "its owner holds it 2 times: only a lock that is held once can be detached"
    assert text_of(no) == f"lock 'k': {wanted}"
    applied(table, Release(lock="k", fence=1, session=WEB, owner="o", request=4))
    assert applied(table, detach(5))[0] == f"{WEB} has 0 left"
    several = AcquireAll(locks=("a", "b"), session=WEB, owner="o", request=1)
    applied(table, several)
    both = Detach(lock=several.lock, fence=3, digest=digest_of(b"x"), ttl_ms=1, owner="o")
    assert applied(table, replace(both, session=WEB, request=2)) == [f"{WEB} INVALID"]


def test_a_token_stays_good_if_there_is_no_room_for_the_hold(table: LockTable) -> None:
    quota = SetQuota(account="", quota=Quota(claims=0), operator="ann", session=WEB, request=5)
    applied(table, quota)
    applied(table, detach())
    before = table.digest()
    assert applied(table, attach(session=DOOR)) == [f"{DOOR} OVERLOADED"]
    assert (table.claims, table.accounts.by_name["shop"].claims) == (1, 1)
    assert before != table.digest()  # The refusal is kept.
    assert applied(table, attach()) == [f"{WORKER} holds 1 under 3"]


def test_a_redis_door_sees_a_detached_lock_as_held_by_a_native_client(table: LockTable) -> None:
    applied(table, detach())
    (seen,) = read_keys(table, ReadKeys(keys=("k",))).keys
    assert (seen.native, seen.value, seen.left_ms) == (True, b"no-client/o", 1_001)
    assert list_keys(table, ListKeys()).keys == ("k",)

    states = (KeyState.EQUAL, KeyState.OTHER)
    delete = ChangeKeys(keys=("k",), action=KeyAction.DELETE, states=states, owner="c")
    expire = replace(delete, action=KeyAction.EXPIRE, expiry=Expiry.NEVER)
    for number, one in enumerate((delete, expire), 1):
        asked = replace(one, session=DOOR, request=number, expected=digest_of(SECRET))
        table.apply(0, asked)
    assert status_of(table, "k").left_ms == 1_001


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: detach(ttl_ms=0), "ttl_ms is 0, 1 to 604800000 are allowed"),
        (lambda: detach(digest=b"x"), "length of digest is 1, 32 to 32 are allowed"),
        (lambda: attach(secret=b""), "length of secret is 0, 1 to 64 are allowed"),
        (lambda: attach(secret=b"x" * 65), "length of secret is 65, 1 to 64 are allowed"),
    ],
)
def test_a_field_out_of_its_limits_is_refused(make: Callable[[], Attach], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        make().check()
