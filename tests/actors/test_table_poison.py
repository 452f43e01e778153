"""An exception at any line of a rule leaves the table whole, or stops the member."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from support.expect import checked, only
from support.table_scene import restored

from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.counter import AddToCounter, SetCounter
from fencelock.actors.api.election import Lead
from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import DeleteEntry, PutEntry
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Reason, Refused, Release
from fencelock.actors.api.pool import GivePermits, ResizePool, TakePermits
from fencelock.actors.api.redis import AwaitKey, ChangeKeys, Expiry, KeyAction, KeyState
from fencelock.actors.api.request import Command
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits, ResizeSemaphore
from fencelock.actors.api.session_message import CloseSession, End, Evict, Open, Renew
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable

BUG = "planted bug"
FOLDER = str(Path(sys.modules[LockTable.__module__].__file__ or "").parent)
S, T = "s.1", "t.2"


def request(kind: Any, number: int, session: str = S, owner: str = "o", **more: Any) -> Any:
    return kind(session=session, owner=owner, request=number, **more)


def door(number: int, action: KeyAction, keys: str, *states: KeyState, **more: Any) -> Any:
    names = tuple(keys.split())
    return request(ChangeKeys, number, T, "d", keys=names, action=action, states=states, **more)


STATE: tuple[Command, ...] = (
    Open(session="s", ttl_ms=60_000),
    Open(session="t", ttl_ms=60_000),
    request(Acquire, 1, lock="held"),
    request(Acquire, 1, T, lock="held", wait_ms=None),
    request(Acquire, 1, lock="leased", hold_ms=1_000, grace_ms=100),
    request(AcquirePermits, 1, semaphore="sem", permits=3, amount=2),
    request(AcquireReadWrite, 1, rwlock="rw", write=True),
    request(CountDown, 1, latch="l", count=2),
    request(AwaitLatch, 1, T, latch="l", count=2, wait_ms=None),
    request(AwaitBarrier, 1, T, barrier="b", parties=2, wait_ms=None),
    request(AddToCounter, 1, counter="c", amount=2),
    request(TakePermits, 1, pool="p", size=3, amount=2),
    request(TakePermits, 1, T, pool="p", size=3, amount=2, wait_ms=None),
    request(PutEntry, 1, map="m", entry_key="k", value=b"v"),
    request(Lead, 1, election="e", value="v"),
    request(AcquireRetained, 1, lock="kept", span=5),
    request(AcquireRetained, 1, T, lock="kept", span=5, wait_ms=None),
    request(AcquireRetained, 1, T, lock="also", span=5),
    door(1, KeyAction.SET, "key", KeyState.FREE, value=b"v", expiry=Expiry.AFTER, ttl_ms=9),
    door(2, KeyAction.SET, "far", KeyState.FREE, value=b"v"),
    request(AwaitKey, 3, T, "d", keys=("key",), value=b"w", ttl_ms=9),
    request(Acquire, 1, T, lock="gone"),
    request(Detach, 2, T, lock="gone", fence=19, digest=digest_of(b"secret"), ttl_ms=900),
)

COMMANDS: tuple[Command, ...] = (
    Open(session="u", ttl_ms=60_000),
    KeepAlive(session=S),
    End(session=S),
    request(Acquire, 2, lock="free"),
    request(Acquire, 2, lock="held", limit=2),
    request(Acquire, 2, lock="held", limit=1),
    request(Acquire, 2, T, lock="held", wait_ms=0),
    request(Acquire, 1, lock="held"),
    request(Release, 2, lock="held", fence=1),
    request(Release, 2, lock="held", fence=9),
    request(Renew, 2, lock="leased", fence=2, hold_ms=500),
    request(Cancel, 1, T, lock="held"),
    request(Cancel, 5, lock="free"),
    request(AcquirePermits, 1, T, semaphore="sem", permits=3, amount=2, wait_ms=None),
    request(AcquirePermits, 1, T, semaphore="sem", permits=3, amount=0, wait_ms=0),
    request(ResizeSemaphore, 2, semaphore="sem", permits=3, size=1),
    request(ReleasePermits, 2, semaphore="sem", fence=3, amount=1),
    request(AcquireReadWrite, 1, T, rwlock="rw", write=False, wait_ms=None),
    request(AcquireAll, 2, locks=("p", "q")),
    request(AcquireAll, 2, locks=("p", "held"), wait_ms=None),
    request(AcquireRetained, 2, lock="free", span=5),
    request(AcquireRetained, 2, lock="also", span=5, wait_ms=None),
    request(Release, 2, lock="kept", fence=5),
    request(Detach, 2, lock="held", fence=1, digest=digest_of(b"other"), ttl_ms=900),
    request(Detach, 2, lock="held", fence=9, digest=digest_of(b"other"), ttl_ms=900),
    request(Attach, 2, lock="gone", secret=b"secret", hold_ms=500),
    request(Attach, 2, lock="gone", secret=b"other"),
    request(CountDown, 2, latch="l", count=2),
    request(CountDown, 2, latch="new", count=2),
    request(AwaitLatch, 2, latch="l", count=2, wait_ms=0),
    request(AwaitBarrier, 1, barrier="b", parties=2),
    request(AwaitBarrier, 1, barrier="c", parties=2, wait_ms=None),
    request(AddToCounter, 2, counter="c", amount=3),
    request(AddToCounter, 2, counter="c", amount=-2),
    request(AddToCounter, 2, counter="new"),
    request(TakePermits, 2, pool="new", size=3),
    request(TakePermits, 2, pool="p", size=3, amount=0, wait_ms=0),
    request(GivePermits, 2, pool="p", amount=2),
    request(ResizePool, 2, pool="p", permits=3, size=1),
    request(ResizePool, 2, pool="p", permits=3, size=9),
    request(SetCounter, 2, counter="c", value=5, expected=2, guard="held", fence=1),
    request(PutEntry, 2, map="m", entry_key="k", value=b"w", ttl_ms=1_000),
    request(DeleteEntry, 2, map="m", entry_key="k"),
    request(Lead, 1, T, election="e", value="w", wait_ms=None),
    door(9, KeyAction.SET, "new newer", KeyState.FREE, value=b"w", expiry=Expiry.AFTER, ttl_ms=9),
    door(9, KeyAction.SET, "also new", KeyState.FREE, value=b"w"),
    door(9, KeyAction.SET, "held", KeyState.NATIVE, value=b"w", returns=True),
    door(9, KeyAction.SET, "key", KeyState.OTHER, value=b"w", expiry=Expiry.KEEP),
    door(9, KeyAction.SET, "far", KeyState.EQUAL, value=b"w", expected=b"v", counts=True),
    door(
        9,
        KeyAction.DELETE,
        "far",
        KeyState.OTHER,
        counts=True,
        receipt="redisson_unlock_latch",
        receipt_ms=9,
    ),
    door(9, KeyAction.EXPIRE, "far", KeyState.OTHER, expiry=Expiry.FURTHER, ttl_ms=9),
    door(9, KeyAction.DELETE, "key far", KeyState.EQUAL, expected=b"v", each=True),
    request(AwaitKey, 9, T, "d", keys=("new",), value=b"w"),
    request(AwaitKey, 9, T, "d", keys=("also",), value=b"w", ttl_ms=9),
    Evict(lock="held", fence=1, operator="alice", session="x", request=1),
    CloseSession(handle="s.1", operator="alice", session="x", request=1),
)


def filled() -> LockTable:
    table = LockTable()
    for command in STATE:
        table.apply(1, command)
    return table


class Strike:
    """Raises at one line of the table's modules, counted from the beginning."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.struck = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and "apply" not in frame.f_code.co_name[:5]:
            self.left -= 1
            if self.left == 0:
                self.struck = True
                sys.settrace(None)
                raise OverflowError(BUG)
        return self


def strikes(command: Command) -> Iterator[tuple[LockTable, list[Any] | None]]:
    """Yield the table and the outcomes, None if it is damaged, for an exception at each line."""
    at = 1
    while True:
        table, strike = filled(), Strike(at)
        outcomes: list[Any] | None = None
        former = sys.gettrace()
        sys.settrace(strike)
        try:
            outcomes = table.apply(1, command)
        except PoisonError:
            pass
        finally:
            sys.settrace(former)
        if not strike.struck:
            return
        yield table, outcomes
        at += 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: type(one).__name__)
def test_an_exception_at_any_line_refuses_the_command_or_stops_the_member(command: Command) -> None:
    refusals = 0
    for table, outcomes in strikes(command):
        if outcomes is None:
            continue
        refusals += 1
        assert checked(Refused, outcomes[-1]).reason is Reason.INTERNAL
        assert len(table.faults) == 1
        restored(table)
        assert table.apply(2, command)  # A repetition is answered, and stops nothing.
    assert refusals


def test_rules_cover_every_command() -> None:
    covered = {type(command) for command in COMMANDS}
    names = {kind.__name__ for kind in set(RULES) - covered}
    assert names <= {"Downgrade", "SetQuota", "Purge"}


def test_a_skipped_command_is_refused_when_its_client_sends_it_again() -> None:
    table, command = filled(), request(CountDown, 2, latch="l", count=2)
    table.refuse_skipped(command, 7, 0)
    for one in (table, restored(table)):
        before = one.numbers()
        assert only(Refused, one.apply(1, command)).reason is Reason.INTERNAL
        assert one.numbers() == before
    later = request(CountDown, 3, latch="l", count=2)
    assert not isinstance(table.apply(1, later)[0], Refused)


LOCAL = [MemoryError(), RecursionError(), OSError(5, "disk")]
SHARED = [KeyError("x"), RuntimeError("changed size"), struct.error("out of range"), Exception()]
INVALID = InvalidRequestError("checked too late")


@pytest.mark.parametrize("error", [*LOCAL, *SHARED, INVALID], ids=repr)
def test_an_error_amid_a_change_stops_all_members_unless_it_depends_on_the_process(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(table: TableState, *args: Any) -> None:
        table.changing = True
        raise error

    monkeypatch.setitem(cast("Any", RULES), KeepAlive, broken)
    with pytest.raises(type(error) if error in LOCAL else PoisonError):
        filled().apply(1, KeepAlive(session=S))


@pytest.mark.parametrize("error", [*LOCAL, *SHARED, INVALID, AssertionError()], ids=repr)
def test_an_error_before_any_change_is_a_refusal_unless_it_depends_on_the_process(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*args: Any) -> None:
        raise error

    monkeypatch.setitem(cast("Any", RULES), KeepAlive, broken)
    table = filled()
    if error in LOCAL or isinstance(error, AssertionError):
        with pytest.raises(type(error) if error in LOCAL else PoisonError):
            table.apply(1, KeepAlive(session=S))
        return
    reason = only(Refused, table.apply(1, KeepAlive(session=S))).reason
    assert reason is (Reason.INVALID if error is INVALID else Reason.INTERNAL)


@pytest.mark.parametrize("error", [*LOCAL, *SHARED], ids=repr)
def test_an_error_of_what_falls_due_stops_all_members_unless_it_depends_on_the_process(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*args: Any) -> None:
        raise error

    monkeypatch.setattr(TableState, "first_due", broken)
    with pytest.raises(type(error) if error in LOCAL else PoisonError):
        filled().advance(1_000_000)
