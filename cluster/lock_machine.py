"""The table of fenced locks as the log carries it: commands and snapshots as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from holdfast.actors.lock.command import Command
from holdfast.actors.lock.table import LockTable
from holdfast.actors.lock.table_record import TablePart
from holdfast.actors.message import Message
from holdfast.transport.wire import MalformedFrameError, decode, encode

COMMANDS: tuple[type[Message], ...] = get_args(Command)


class LockMachine:
    """A `Machine` over a `LockTable`: what the replicas of the `paxos` protocol apply."""

    def __init__(self) -> None:
        self.table = LockTable()

    def admits(self, command: bytes) -> bool:
        """Return whether ``command`` is one of the table's, written as the wire writes it."""
        return self._read(command) is not None

    def advance(self, time_ms: int) -> Sequence[Message]:
        """Do what falls due up to log time ``time_ms``."""
        return self.table.advance(time_ms)

    def apply(self, time_ms: int, command: bytes) -> Sequence[Message]:
        """Do ``command`` at log time ``time_ms``; what cannot be read does nothing, everywhere."""
        read = self._read(command)
        return () if read is None else self.table.apply(time_ms, read)

    def due_ms(self) -> int | None:
        """Return the log time at which `advance` would next do something."""
        return self.table.due_ms()

    def snapshot(self) -> tuple[bytes, ...]:
        """Return the table in parts."""
        return tuple(encode(part) for part in self.table.snapshot())

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Take another replica's table in place of this one."""
        parts = [decode(chunk) for chunk in chunks]
        self.table = LockTable.restore(tuple(part for part in parts if isinstance(part, TablePart)))

    def digest(self) -> bytes:
        """Return a hash of the table."""
        return self.table.digest()

    def _read(self, command: bytes) -> Command | None:
        try:
            read = decode(command)
        except MalformedFrameError:
            return None
        return read if isinstance(read, COMMANDS) else None  # type: ignore[return-value]
