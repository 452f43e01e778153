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
from support.table_transcript import commands

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable

BUG = "planted bug"
FOLDER = str(Path(sys.modules[LockTable.__module__].__file__ or "").parent)
S = "s.1"

STATE = commands("""
    Open session=s ttl_ms=60000
    Open session=t ttl_ms=60000
    s.1#1 Acquire held
    t.2#1 Acquire held
    s.1#1 Acquire leased hold_ms=1000 grace_ms=100
    s.1#1 AcquirePermits sem permits=3 amount=2
    s.1#1 AcquireReadWrite rw write=true
    s.1#1 CountDown l count=2
    t.2#1 AwaitLatch l count=2
    t.2#1 AwaitBarrier b parties=2
    s.1#1 AddToCounter c amount=2
    s.1#1 TakePermits p size=3 amount=2
    t.2#1 TakePermits p size=3 amount=2
    s.1#1 PutEntry m entry_key=k value=v
    s.1#1 Lead e value=v
    s.1#1 AcquireRetained kept span=5
    t.2#1 AcquireRetained kept span=5
    t.2#1 AcquireRetained also span=5
    t.2/d#1 ChangeKeys key value=v ttl_ms=9 action=SET states=FREE expiry=AFTER
    t.2/d#2 ChangeKeys far value=v action=SET states=FREE
    t.2/d#3 AwaitKey key value=w ttl_ms=9
    t.2#1 Acquire gone
    t.2#2 Detach gone fence=19 digest=digest-of:secret ttl_ms=900
""")

COMMANDS = commands("""
    Open session=u ttl_ms=60000
    s.1 KeepAlive
    s.1 End
    s.1#2 Acquire free
    s.1#2 Acquire held limit=2
    s.1#2 Acquire held
    t.2#2 Acquire held wait_ms=0
    s.1#1 Acquire held
    s.1#2 Release held fence=1
    s.1#2 Release held fence=9
    s.1#2 Renew leased fence=2 hold_ms=500
    t.2#1 Cancel held
    s.1#5 Cancel free
    t.2#1 AcquirePermits sem permits=3 amount=2
    t.2#1 AcquirePermits sem permits=3 amount=0 wait_ms=0
    s.1#2 ResizeSemaphore sem permits=3 size=1
    s.1#2 ReleasePermits sem fence=3 amount=1
    t.2#1 AcquireReadWrite rw
    s.1#2 AcquireAll p,q
    s.1#2 AcquireAll p,held
    s.1#2 AcquireRetained free span=5
    s.1#2 AcquireRetained also span=5
    s.1#2 Release kept fence=5
    s.1#2 Detach held fence=1 digest=digest-of:other ttl_ms=900
    s.1#2 Detach held fence=9 digest=digest-of:other ttl_ms=900
    s.1#2 Attach gone secret=secret hold_ms=500
    s.1#2 Attach gone secret=other
    s.1#2 CountDown l count=2
    s.1#2 CountDown new count=2
    s.1#2 AwaitLatch l count=2 wait_ms=0
    s.1#1 AwaitBarrier b parties=2
    s.1#1 AwaitBarrier c parties=2
    s.1#2 AddToCounter c amount=3
    s.1#2 AddToCounter c amount=-2
    s.1#2 AddToCounter new
    s.1#2 TakePermits new size=3
    s.1#2 TakePermits p size=3 amount=0 wait_ms=0
    s.1#2 GivePermits p amount=2
    s.1#2 ResizePool p permits=3 size=1
    s.1#2 ResizePool p permits=3 size=9
    s.1#2 SetCounter c guard=held fence=1 value=5 expected=2
    s.1#2 PutEntry m entry_key=k value=w ttl_ms=1000
    s.1#2 DeleteEntry m entry_key=k
    t.2#1 Lead e value=w
    t.2/d#9 ChangeKeys new,newer value=w ttl_ms=9 action=SET states=FREE expiry=AFTER
    t.2/d#9 ChangeKeys also,new value=w action=SET states=FREE
    t.2/d#9 ChangeKeys held value=w action=SET states=NATIVE returns=true
    t.2/d#9 ChangeKeys key value=w action=SET states=OTHER
    t.2/d#9 ChangeKeys far value=w action=SET states=EQUAL expected=v counts=true
    t.2/d#9 ChangeKeys far action=DELETE states=OTHER counts=true receipt_ms=9 \
        receipt=redisson_unlock_latch
    t.2/d#9 ChangeKeys far ttl_ms=9 action=EXPIRE states=OTHER expiry=FURTHER
    t.2/d#9 ChangeKeys key,far action=DELETE states=EQUAL expected=v each=true
    t.2/d#9 AwaitKey new value=w
    t.2/d#9 AwaitKey also value=w ttl_ms=9
    Evict held session=x operator=alice fence=1
    CloseSession s.1 session=x operator=alice
""")


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
    without = names - {"Downgrade", "SetQuota", "Purge"}
    assert without == set(), "COMMANDS has no example of these"


def test_a_skipped_command_is_refused_when_its_client_sends_it_again() -> None:
    table = filled()
    command, later = commands("s.1#2 CountDown l count=2 \n s.1#3 CountDown l count=2")
    table.refuse_skipped(command, 7, 0)
    for one in (table, restored(table)):
        before = one.numbers()
        assert only(Refused, one.apply(1, command)).reason is Reason.INTERNAL
        assert one.numbers() == before
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
