"""Keys that are held through Redis doors: purges of many in steps, and who may send what.

`transcripts/table-redis.txt` shows what the requests of doors do.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked

from fencelock.actors.api.account import Purge, Purged
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.redis import AwaitKey, ChangeKeys, KeyAction, KeyState
from fencelock.actors.api.session_message import Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.table import LockTable

DOOR, CLIENT = "n1/5f.1", "shop@c.2"
NUMBERS = count(1)


@pytest.fixture
def table() -> LockTable:
    table = LockTable()
    for session in ("n1/5f", "shop@c"):
        table.apply(0, Open(session=session, ttl_ms=1_000_000))
    return table


def by_door() -> dict[str, Any]:
    """Return the next number of the door, and an owner of its own."""
    number = next(NUMBERS)
    return {"session": DOOR, "owner": f"c{number}", "request": number}


def set_nx(*keys: str, account: str = "") -> ChangeKeys:
    free, action = (KeyState.FREE,), KeyAction.SET
    return ChangeKeys(
        keys=keys, action=action, states=free, value=b"v", account=account, **by_door()
    )


def wait(key: str) -> AwaitKey:
    return AwaitKey(keys=(key,), value=b"w", account="app", **by_door())


def test_no_session_but_that_of_a_node_sends_the_requests_of_a_door() -> None:
    set_nx("k").check_new()
    for request in (set_nx("k"), wait("k")):
        with pytest.raises(InvalidRequestError, match="is for the Redis doors of nodes"):
            replace(request, session=CLIENT).check_new()


def purge(account: str | None, session: str = "", **more: Any) -> Purge:
    fields: dict[str, Any] = {"kind": "key", "prefix": "", "operator": "root", **more}
    return Purge(**fields, account=account, session=session, request=9)


def steps_of_purge(table: LockTable, command: Purge) -> list[int]:
    """Purge step by step until no more is left; return what each step removed."""
    steps: list[int] = []
    more = True
    while more:
        purged = checked(Purged, table.apply(0, command)[-1])
        steps.append(purged.removed)
        command, more = replace(command, after=purged.after), purged.more
    return steps


def test_a_purge_of_many_holds_has_steps(table: LockTable) -> None:
    names = [f"k{number:04}" for number in range(1_100)]
    for at in range(0, len(names), 64):
        table.apply(0, set_nx(*names[at : at + 64], account="app"))
    for _ in range(600):
        table.apply(0, wait("k0000"))
    steps = steps_of_purge(table, purge("app"))
    assert sum(steps) == 1_700
    assert max(steps) <= 500
    assert (table.claims, len(table.forced())) == (0, 1)


def test_a_purge_by_prefix_looks_at_a_bounded_number_of_holds(table: LockTable) -> None:
    names = [f"{start}{number:04}" for start in "kl" for number in range(600)]
    for at in range(0, len(names), 60):
        table.apply(0, set_nx(*names[at : at + 60], account="app" if at % 120 else "other"))
    assert steps_of_purge(table, purge("app", prefix="l")) == [240, 60]
    assert steps_of_purge(table, purge(None, prefix="l")) == [300]
    assert steps_of_purge(table, purge(None)) == [500, 100]
    assert table.claims == 0


def test_a_purge_of_many_waits_ends_all_of_them_also_if_there_is_no_hold(table: LockTable) -> None:
    table.apply(0, Acquire(lock="n", session=CLIENT, owner="o", request=1))
    for _ in range(1_100):
        table.apply(0, wait("n"))
    assert steps_of_purge(table, purge("app")) == [500, 500, 100]
    assert "app" not in table.accounts.by_name


def test_a_purge_of_holds_is_for_operators_or_of_what_is_ones_own() -> None:
    assert purge("shop", CLIENT).needs_operator() is False
    assert purge("app", CLIENT).needs_operator()
    assert purge("app", CLIENT, kind="map").needs_operator() is False
    for within in ("", "shop/"):
        assert purge("shop", CLIENT, prefix=within).needs_operator() is False
        assert purge(None, CLIENT, prefix=within).needs_operator()
        assert purge(None, prefix=within).reach == (within,)
