"""A table with the sessions s.1, t.2 and u.3, and its outcomes in words."""

from __future__ import annotations

from fencelock.actors.api.message import Granted, Refused, Released
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Ended, Evicted, HoldLost, Open
from fencelock.actors.table.sentences import is_sound, worded
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Queued, Result, TablePart
from fencelock.transport.codec import decode, encode


def table_of_three() -> LockTable:
    """Return a table with three open sessions."""
    table = LockTable()
    for name in "stu":
        table.apply(0, Open(session=name, ttl_ms=10_000))
    return table


def restored(table: LockTable) -> LockTable:
    """Return a table restored from the bytes of a snapshot; it has the same state."""
    through = [decode(encode(part)) for part in table.snapshot()]
    copy = LockTable.restore(tuple(part for part in through if isinstance(part, TablePart)))
    assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())
    assert copy.snapshot() == table.snapshot()
    return copy


def applied(table: LockTable, command: LogCommand) -> list[str]:
    """Apply a command; return the outcomes in words."""
    return [said(one) for one in table.apply(table.time_ms, command)]


def text_of(outcome: Result, command: Command | None = None) -> str:
    """Return the text that the proxy writes about an outcome, of ``command`` if that matters."""
    assert isinstance(outcome, Refused | HoldLost | Ended)
    assert outcome.detail == ""
    assert not isinstance(outcome, Refused) or outcome.why is None or is_sound(outcome.why)
    return worded(outcome, command).detail


def said(outcome: Result) -> str:
    """Return an outcome in words."""
    match outcome:
        case Granted():
            return f"{outcome.session} holds {outcome.count} under {outcome.fence}"
        case Released():
            return f"{outcome.session} has {outcome.count} left"
        case Queued():
            return f"{outcome.session} waits"
        case Refused():
            return f"{outcome.session} {outcome.reason.name}"
        case Evicted() | HoldLost():
            return f"{type(outcome).__name__} {outcome.fence}"
        case _:
            return type(outcome).__name__
