"""A client whose thread ends with an error of ours: nothing it held counts as held from then on."""

from __future__ import annotations

from typing import Any

import pytest
from support.collected import Lines
from support.expect import PATIENCE_S
from support.faces import Connect, both_kinds
from support.real_nodes import until

from fencelock.actors.error import ClosedError, LockOwnershipLostError
from fencelock.actors.session.event import Survey
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.session import HANDLERS
from fencelock.cluster.client.callback_executor import Notice

BUG = "planted bug"

client_kind = both_kinds


def broken(*args: object) -> Any:
    raise OverflowError(BUG)


def test_a_client_that_fails_loses_all_its_holds_at_once(
    connect: Connect, name: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HANDLERS, Survey, broken)
    client = connect()
    notices: list[Notice] = []
    client.on_lost(notices.append)
    locks = [
        client.lock(f"{name}/plain"),
        client.rlock(f"{name}/again"),
        client.lock(f"{name}/retained", retain=60),
    ]
    holds = [lock.acquire() for lock in locks]
    released = client.lock(f"{name}/released")
    released.acquire()
    released.release()
    with pytest.raises(ClosedError):
        client.describe()
    until(lambda: len(notices) == len(locks), notices)
    assert [hold.held for hold in holds] == [False] * len(holds)
    assert [lock.state for lock in (*locks, released)] == [HoldState.LOST] * 3 + [HoldState.FREE]
    assert sorted(notice.lock for notice in notices) == sorted(lock.name for lock in locks)
    assert all(BUG in notice.detail for notice in notices)
    for lock in locks:
        with pytest.raises(LockOwnershipLostError, match=BUG):
            lock.release()
    with pytest.raises(ClosedError):
        locks[0].acquire(timeout=PATIENCE_S)
    lines.until(lambda line: line[0] == "CRITICAL" and BUG in line[2])
