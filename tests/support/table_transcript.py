"""The player of transcripts of the replicated table (`transcript.py`).

``at MS`` and ``at MS COMMAND``
    Let log time pass, until a command in a batch of that time.
``times NUMBER COMMAND``
    Apply a command so many times, each under its own number; return what came of the last.
``limit NAME NUMBER``
    Set a limit, in all modules of `actors` that have it.
``NAME means MESSAGE``
    Let another name stand for a message with some fields, to which others may be added.
``due``
    Return when something falls due next.
``left``
    Return what is left in the table: objects, claims, sums of what is kept, and deadlines.
``session ID`` and ``used ACCOUNT``
    Return what the table keeps of a session, and what a key is charged for.

Other lines are queries and commands. A command of ``s.1/p#3`` is request 3 of owner ``p``. Without
an owner it is of ``o``, and without a number it has the next one of its session. An outcome is
named after its request where that is another one. A refusal is written as its reason and text.

A file without ``before each`` has the sessions ``s.1``, ``t.2`` and ``u.3``. A copy of the table
that was restored from a snapshot plays each line too, and the same comes of it
(snapshots-are-complete). A request out of its limits changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from fencelock.actors.api.lock_message import HoldLost, Refused
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.refusal import Cause
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Ended
from fencelock.actors.table.rules import TABLE_QUERIES
from fencelock.actors.table.sentences import is_sound, worded
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result
from support.role_transcript import limit
from support.table_scene import restored
from support.transcript import KINDS, message_of, written

BY = re.compile(r"(?:(\S*?\.\d+)(?:/([^#\s]+))?(?:#(\d+))?\s+)?(.*)")
"""A session, an owner, a number, and a message; only the last must be there."""

OWNER = "o"
LEAP_MS = 1_000
"""Log time that passes in a leap of at most this (ms) also passes in steps, with equal outcomes."""

T = TypeVar("T")


def key_of(message: Any) -> tuple[Any, ...]:
    """Return the session, the owner and the number of a request or an outcome."""
    return tuple(getattr(message, name, "") for name in ("session", "owner", "request"))


class CommandReader:
    """Reads commands and queries. It knows the last number of each session, and what names mean."""

    def __init__(self) -> None:
        self.last = Counter[str]()
        self.meanings: dict[str, str] = {}

    def message(self, line: str) -> Any:
        match = BY.fullmatch(line)
        assert match is not None
        session, owner, given, words = match.groups("")
        words = self.meant(words)
        if KINDS[words.split()[0]] in TABLE_QUERIES:
            return message_of(words)
        number = int(given or self.last[session] + 1)
        self.last[session] = max(self.last[session], number)
        return message_of(words, session=session, owner=owner or OWNER, request=number)

    def meant(self, words: str) -> str:
        name, _, fields = words.partition(" ")
        return f"{self.meanings.get(name, name)} {fields}"


def commands(text: str) -> tuple[Command, ...]:
    """Return the commands of which each line names one."""
    reader = CommandReader()
    return tuple(reader.message(line.strip()) for line in text.strip().splitlines())


class TablePlayer(CommandReader):
    """A table, and the numbers of the last requests of its sessions."""

    def __init__(self, table: LockTable, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.table = table
        self.patch = patch

    def __call__(self, line: str) -> Iterable[str]:
        table = self.table
        match line.split(maxsplit=2):
            case ["at", ms]:
                steps, outcomes = restored(table), self.twice(lambda one: one.advance(int(ms)))
                if int(ms) - steps.time_ms <= LEAP_MS:
                    times = range(steps.time_ms + 1, int(ms) + 1)
                    assert [one for time_ms in times for one in steps.advance(time_ms)] == outcomes
                return [outcome_of(one, None) for one in outcomes]
            case ["at", ms, command]:
                return self.play(command, int(ms))
            case ["times", number, command]:
                for _ in range(int(number) - 1):
                    table.apply(table.time_ms, self.message(command))
                return self.play(command)
            case ["limit", name, number]:
                limit(self.patch, name, int(number))
                return ()
            case [name, "means", words]:
                self.meanings[name] = self.meant(words)
                return ()
            case ["due"]:
                return [str(table.due_ms())]
            case ["left"]:
                return [left_in(table)]
            case ["session", name]:
                return [kept_of(table, name)]
            case ["used", name]:
                account = table.accounts.by_name.get(name.strip("'"))
                return ["nothing" if account is None else written(account.used)]
            case _:
                return self.play(line)

    def play(self, line: str, time_ms: int = 0) -> list[str]:
        """Apply a command, or answer a query."""
        message = self.message(line)
        query = TABLE_QUERIES.get(message.__class__)
        if query is not None:
            reply: Any = self.twice(lambda one: query(one, message))
            first = {"holder": reply.holders[0]} if getattr(reply, "holders", ()) else {}
            return [written(reply, lock=message.lock, **first)]
        before = self.table.digest()
        outcomes = self.twice(lambda one: one.apply(time_ms, message))
        if outcomes and getattr(getattr(outcomes[-1], "why", None), "cause", None) is Cause.INVALID:
            assert self.table.digest() == before
        return [outcome_of(one, message) for one in outcomes]

    def twice(self, change: Callable[[LockTable], T]) -> T:
        """Change the table and a restored copy of it, with the same result."""
        copy = restored(self.table)
        result = change(self.table)
        assert change(copy) == result
        return result


def outcome_of(one: Result, command: Any) -> str:
    """Return an outcome of ``command`` in short, after the request whose outcome it is."""
    session, owner, request = key = key_of(one)
    by = f"{session}{f'/{owner}' * (owner not in ('', OWNER))}{f'#{request}' * bool(request)}"
    by = f"{by} " if by and key != key_of(command) else ""
    known = {"session": session, "owner": owner, "request": request}
    known["lock"] = getattr(command, "lock", "")
    if not isinstance(one, Refused | HoldLost | Ended):
        return by + written(one, **known)
    assert one.detail == ""
    assert not isinstance(one, Refused) or one.why is None or is_sound(one.why)
    one = worded(one, command)
    if isinstance(one, Refused):
        return f"{by}{one.reason.name}: {one.detail}"
    return f"{by}{written(one, **known, detail=one.detail)}: {one.detail}"


def left_in(table: LockTable) -> str:
    return counted(
        resources=(*table.resources,),
        objects=(*table.objects,),
        entries=table.maps.count,
        bytes=table.maps.bytes,
        claims=table.claims,
        waits=table.waits,
        sums=bool(table.marked or table.waits_checksum),
        timeouts=len(table.timeouts.items),
    )


def kept_of(table: LockTable, name: str) -> str:
    session = table.key_session if name == NO_CLIENT else table.sessions.by_id.get(name)
    if session is None:
        return "no session"
    return counted(
        owners=len(session.owner_states),
        idle=len(session.idle),
        claims=session.claims,
        losses=len(session.losses),
        floor=session.floor,
    )


def counted(**counts: Any) -> str:
    shown = [f"{name}={written(value)}" for name, value in counts.items() if value]
    return " ".join(shown) or "nothing"
