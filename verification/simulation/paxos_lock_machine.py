"""A machine for the log to carry that has the locks of `paxos` beside the list of `Register`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

from fencelock.actors.message import Event, Message
from fencelock.actors.paxos.machine import Fingerprint, Part, state_of
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.verification.simulation.paxos_machine import OPENING, ReadOrder, Register

LIST_MARK, LOCKS_MARK = b"l", b"t"
"""The first byte of a snapshot's part: it belongs to the list, or to the table of locks."""


def is_of_locks(command: bytes) -> bool:
    """Return whether ``command`` is for the table: those for the list are ASCII text."""
    return command[:1] > b"\x7f"


class MarkedPart(NamedTuple):
    """A part of the list or of the table."""

    mark: bytes
    part: Part

    def encoded(self) -> bytes:
        return self.mark + self.part.encoded()


class LockRegister(Register):
    """A list that grows, and a table of locks: each command is for one of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = LockMachine()
        self.faults = self.locks.faults

    @property
    def is_drained(self) -> bool:
        return super().is_drained and not self.locks.table.sessions.by_id

    def admits(self, command: bytes) -> bool:
        return self.locks.admits(command) if is_of_locks(command) else super().admits(command)

    def is_patient(self, command: bytes) -> bool:
        of_locks = is_of_locks(command)
        return self.locks.is_patient(command) if of_locks else super().is_patient(command)

    def advance(self, time_ms: int) -> Sequence[Message]:
        return [*super().advance(time_ms), *self.locks.advance(time_ms)]

    def do(self, time_ms: int, command: bytes) -> Sequence[Message]:
        if is_of_locks(command):
            (outcomes,) = self.locks.apply(time_ms, (command,))
            return [*outcomes, *super().advance(time_ms)]
        if command == OPENING:  # The table's own follows it.
            self.extend(max(self.time_ms, time_ms))
            return super().advance(time_ms)
        return super().do(time_ms, command)

    def due_ms(self, before: int | None = None) -> int | None:
        due = (super().due_ms(before), self.locks.due_ms(before))
        return min((one for one in due if one is not None), default=None)

    def read(self, query: Event) -> Event:
        return super().read(query) if type(query) is ReadOrder else self.locks.read(query)

    def changed_since(self, version: int) -> tuple[int, Iterable[str] | None]:
        return self.locks.changed_since(version)

    def snapshot(self) -> Iterator[Part | None]:
        marked = ((LIST_MARK, super().snapshot()), (LOCKS_MARK, self.locks.snapshot()))
        return chain.from_iterable(
            (part if part is None else MarkedPart(mark, part) for part in parts)
            for mark, parts in marked
        )

    def restore(self, chunks: Sequence[bytes]) -> None:
        self.locks.restore([one[1:] for one in chunks if one[:1] == LOCKS_MARK])
        super().restore([one[1:] for one in chunks if one[:1] == LIST_MARK])

    def digest(self) -> bytes:
        return sha256(super().digest() + self.locks.digest()).digest()

    def fingerprint(self) -> Fingerprint:
        one, other = super().fingerprint(), self.locks.fingerprint()
        state, decided = state_of((one.state, other.state)), one.decided + other.decided
        return Fingerprint(state, decided, (*one.counters, *other.counters))
