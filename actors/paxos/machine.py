"""The interface of the state machine behind a replica; its state depends only on the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fencelock.actors.effect import Fault
from fencelock.actors.message import Event, Message
from fencelock.actors.paxos.wire import Figure

MASK = (1 << 63) - 1
"""Digests are non-negative integers on the wire."""


class Fingerprint(NamedTuple):
    """A state machine's summary of its state; see `Machine.fingerprint`."""

    state: int
    decided: int
    counters: tuple[Figure, ...]


class Part(Protocol):
    """A part of a frozen state. It refers to the state's values instead of copying them."""

    def encoded(self) -> bytes:
        """Return the part as it is sent and kept, at most `CHUNK_BYTES_MAX`; equal each time."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part that is encoded already."""

    content: bytes

    def encoded(self) -> bytes:
        return self.content


class Machine(Protocol):
    """A deterministic state machine. Log time is the only time it knows.

    It recognises repeated commands by their content, and answers each with the outcome of the
    first.

    Attributes:
        faults: the exceptions that cost one command each; the replica takes them from here.

    """

    faults: list[Fault]

    def admits(self, command: bytes) -> bool:
        """Return whether ``command`` can be read; an unreadable one is never put into the log."""
        ...

    def version_of(self, command: bytes) -> int:
        """Return the log version of ``command``: members of a lower version cannot apply it."""
        ...

    def is_patient(self, command: bytes, *, undecided: bool) -> bool:
        """Return whether ``command``, applied now, would only wait for some later command.

        If slots are ``undecided``, that command may be in one of them. Then ``command`` must wait
        behind others as well.
        """
        ...

    def advance(self, time_ms: int) -> Sequence[Message]:
        """Perform what falls due up to log time ``time_ms``, and return the outcomes."""
        ...

    def apply(self, time_ms: int, commands: Sequence[bytes]) -> list[Sequence[Message]]:
        """Perform what falls due up to ``time_ms``, then ``commands``; return each one's outcomes.

        The machine orders time and command itself: a command that extends a deadline must come
        first. Outcomes of what fell due belong to the first valid command.
        """
        ...

    def skip(self, time_ms: int, commands: Sequence[bytes], slot: int) -> list[Sequence[Message]]:
        """Perform ``commands`` as `apply` does, but refuse those that damage the state.

        An operator has written that this ``slot`` does. If it does not, this is `apply`.
        """
        ...

    def due_ms(self, before: int | None = None) -> int | None:
        """Return the log time at which `advance` has something to do next, or None for never.

        With ``before`` it may also return None for a time that is not earlier.
        """
        ...

    def read(self, query: Event) -> Event:
        """Answer a query about the state, without changing it."""
        ...

    def changed_since(self, version: int) -> tuple[int, Iterable[str] | None]:
        """Return the version of the last change, and the objects that changed after ``version``.

        Objects that cannot be watched may be missing. None means that any object may have changed.
        """
        ...

    def changed_keys(self, name: str, version: int) -> Iterable[str] | None:
        """Return the keys of object ``name`` that changed after ``version``.

        None means that any of them may have changed.
        """
        ...

    def snapshot(self) -> Iterator[Part | None]:
        """Freeze the state now, and return it in parts.

        Later commands do not show in a part, whenever it is encoded. None is not a part: it marks a
        step of the work, so that no step takes long.
        """
        ...

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Replace the state with one that `snapshot` returned elsewhere.

        Raises:
            ValueError: the chunks are invalid; nothing was changed.

        """
        ...

    def digest(self) -> bytes:
        """Return a hash of the state: equal on replicas that applied the same slots. Slow."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Return a short digest of the state, at a cost that does not depend on its size.

        ``state`` is equal for equal states, also if one was restored from a snapshot. ``decided``
        grows with everything that this process decided: between two slots it grows by the same on
        all replicas that decided the same.
        """
        ...


def state_of(numbers: Iterable[int]) -> int:
    """Return a digest of ``numbers``, for `Fingerprint.state`."""
    spelled = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest()) & MASK
