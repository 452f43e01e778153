"""The table of fenced locks as the log carries it: commands and snapshots as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Union

from msgspec import ValidationError, convert, defstruct

from fencelock.actors.api.lock_message import AcquireRequest, Granted, Refused, Released
from fencelock.actors.api.request import Command
from fencelock.actors.effect import Fault
from fencelock.actors.message import Event, Message
from fencelock.actors.paxos.machine import Fingerprint, Part, state_of
from fencelock.actors.paxos.wire import Figure
from fencelock.actors.table.lock_rules import keeps_waiting
from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.rules import LOG_COMMANDS, TABLE_QUERIES
from fencelock.actors.table.snapshot import FrozenPart
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, TablePart, TableSnapshot
from fencelock.transport.cbor import MalformedFrameError, load_each
from fencelock.transport.codec import NATIVE, decode, encode, prepare

KNOWN_MAX = 4096
"""Limit of decoded commands kept from when this node writes or admits them until it applies
them: about as many as are in flight."""

KNOWN_BYTES_MAX = 4 << 10
"""Maximum size of a command that is kept in decoded form (bytes). It bounds the kept commands to
16 MiB; larger commands are decoded again."""

PATIENT_MS = 100
"""Acquires with a shorter timeout than this (ms) are never delayed for batching."""


class LockMachine:
    """The `Machine` of the `paxos` replicas, over a `LockTable`; see `Machine` for its methods."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.table = LockTable()
        self.table.faults = self.faults
        self.outcomes_checksum = 0
        """A checksum of all outcomes of this process, without the grants (`granted` has those)."""
        self._known: dict[bytes, LogCommand] = {}
        """Decoded commands by their bytes, so that this node's commands are not decoded again."""

    def write(self, command: LogCommand, *, check: bool = True) -> bytes:
        """Return ``command`` as the log carries it; ``check`` the types of its fields."""
        written, known = encode(command, check=check), self._known
        if len(written) > KNOWN_BYTES_MAX:
            return written
        if len(known) >= KNOWN_MAX:
            known.clear()  # Most were for a leader elsewhere, and come back as new bytes.
        # A message that a local caller made may hold a `bytearray` or a list, which may change.
        if (own := read_command(written) if check else command) is not None:
            known[written] = own
        return written

    def admits(self, command: bytes) -> bool:
        if command in self._known:
            return True
        read = read_command(command)
        if read is None or len(command) > KNOWN_BYTES_MAX:
            return read is not None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[command] = read
        return True

    def version_of(self, command: bytes) -> int:
        known = self._known.get(command) or read_command(command)
        return known.SINCE if isinstance(known, Command) else 1

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        known = self._known.get(command)
        if not isinstance(known, AcquireRequest):
            return False
        if known.wait_ms is not None and known.wait_ms < PATIENT_MS:
            return False
        return keeps_waiting(self.table, known, behind_others=undecided)

    def advance(self, time_ms: int) -> Sequence[Message]:
        outcomes = self.table.advance(time_ms)
        self.outcomes_checksum += _weight((outcomes,))
        return outcomes

    def apply(self, time_ms: int, commands: Sequence[bytes]) -> list[Sequence[Message]]:
        """Do ``commands`` at log time ``time_ms``. Unreadable ones do nothing, on every replica."""
        outcomes: list[Sequence[Message]] = []
        for command in self._take(commands) if self._known else _read_all(commands):
            outcomes.append(() if command is None else self.table.apply(time_ms, command))
        self.outcomes_checksum += _weight(outcomes)
        return outcomes

    def skip(self, time_ms: int, commands: Sequence[bytes], slot: int) -> list[Sequence[Message]]:
        """Perform ``commands``, but refuse those that damage the table; see `poison`.

        Raises:
            PoisonError: what fell due raised, so no skip helps.

        """
        copy, grants = self.table.snapshot(), self.table.grants_checksum
        poison: set[int] = set()
        read = _read_all(commands)
        while True:
            outcomes: list[Sequence[Message]] = []
            try:
                for place, command in enumerate(read):
                    if command is None:
                        outcomes.append(())
                    elif place in poison and isinstance(command, Command):
                        due = self.table.advance(time_ms)
                        outcomes.append([*due, *self.table.refuse_skipped(command, slot, place)])
                    else:
                        outcomes.append(self.table.apply(time_ms, command))
            except PoisonError as error:
                if error.command is None:
                    raise
                poison.add(len(outcomes))
                self._replace(copy)
                self.table.grants_checksum = grants
            else:
                self.outcomes_checksum += _weight(outcomes)
                return outcomes

    def due_ms(self, before: int | None = None) -> int | None:
        return self.table.due_ms(before)

    def read(self, query: Event) -> Event:
        return TABLE_QUERIES[type(query)](self.table, query)

    def changed_since(self, version: int) -> tuple[int, Iterable[str] | None]:
        histories = self.table.histories
        return histories.version, histories.changed_since(version)

    def changed_keys(self, name: str, version: int) -> Iterable[str] | None:
        return self.table.histories.changed_keys(name, version)

    def snapshot(self) -> Iterator[Part | None]:
        frozen = self.table.freeze()
        return (None if part is None else _TableContent(part) for part in frozen)

    def restore(self, chunks: Sequence[bytes]) -> None:
        try:
            parts = [decode(chunk) for chunk in chunks]
        except MalformedFrameError as error:
            raise ValueError(f"a part of the table cannot be read: {error}") from error
        self._replace(tuple(part for part in parts if isinstance(part, TablePart)))

    def digest(self) -> bytes:
        return self.table.digest()

    def fingerprint(self) -> Fingerprint:
        table = self.table
        counters = (
            Figure("fence", table.fence),
            Figure("sessions", len(table.sessions.by_id)),
            Figure("objects held", len(table.resources)),
            Figure("holds and waits", table.claims),
            Figure("log time", table.time_ms),
        )
        return Fingerprint(
            state_of(table.numbers()), self.outcomes_checksum + table.grants_checksum, counters
        )

    def _replace(self, parts: TableSnapshot) -> None:
        self.faults.clear()
        self.table = LockTable.restore(parts)
        self.table.faults = self.faults

    def _take(self, commands: Sequence[bytes]) -> list[LogCommand | None]:
        read = list(map(self._known.pop, commands, repeat(None)))
        if not all(read):
            unknown = [n for n, command in enumerate(read) if command is None]
            for n, command in zip(unknown, _read_all([commands[n] for n in unknown]), strict=True):
                read[n] = command
        return read


class _TableContent(NamedTuple):
    """A part of the table that is encoded when it is needed."""

    part: FrozenPart

    def encoded(self) -> bytes:
        return encode(self.part.thaw())


def _weight(outcomes: Sequence[Sequence[Message]]) -> int:
    """Return a checksum of ``outcomes``: of their kinds and their numbers.

    The factors are odd and have few common divisors. `TableState.grants_checksum` already
    covers the owner and the fence of every grant.
    """
    weight = 0
    for of_command in outcomes:
        for one in of_command:
            if type(one) is Granted or type(one) is Released:
                weight += 0x9E3779B1 * one.TAG * one.request + 0x85EBCA77 * one.count
            elif type(one) is Refused:
                weight += 0xC2B2AE3D * one.request + 0x27D4EB2F * one.reason
            else:
                weight += one.TAG * 0x165667B1
    return weight


_AnyCommand: Any = Union[LOG_COMMANDS]  # noqa: UP007
_Commands: Any = defstruct("_Commands", [("each", list[_AnyCommand])], array_like=True)
prepare(_Commands)


def read_command(command: bytes) -> LogCommand | None:
    """Return ``command`` decoded; None if it is no command of the log."""
    read = _read_together((command,))
    return None if read is None else read[0]


def _read_all(commands: Sequence[bytes]) -> list[LogCommand | None]:
    """Return each of ``commands`` decoded; None is in place of one that is no command."""
    read: list[Any] | None = _read_together(commands)
    return [*map(read_command, commands)] if read is None else read


def _read_together(commands: Sequence[bytes]) -> list[LogCommand] | None:
    """Return ``commands`` decoded, all in one call.

    None if one of them is no command of the log, or has undeclared fields.
    """
    values = load_each(commands)
    if values is None:
        return None
    try:
        read: list[Any] = convert([values], _Commands, builtin_types=NATIVE).each
    except ValidationError:
        return None
    for items, command in zip(values, read, strict=True):
        if len(items) > command.ITEMS:
            return None
    return read
