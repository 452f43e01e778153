"""What a replica applies commands to: a state that depends on nothing but the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fencelock.actors.message import Local, Message
from fencelock.actors.paxos.digest import Fingerprint


class Machine(Protocol):
    """A deterministic state machine. Log time is the only time it knows.

    It tells repetitions of a command by what the command says, and answers each with the
    outcome of the first.
    """

    def admits(self, command: bytes) -> bool:
        """Return whether ``command`` can be read; what cannot is never put into the log."""
        ...

    def is_patient(self, command: bytes) -> bool:
        """Return whether ``command``, applied now, would only wait for some later command."""
        ...

    def advance(self, time_ms: int) -> Sequence[Message]:
        """Do what falls due up to log time ``time_ms``, and return what came of it."""
        ...

    def apply(self, time_ms: int, commands: Sequence[bytes]) -> list[Sequence[Message]]:
        """Do what falls due up to ``time_ms``, then ``commands``; return what came of each.

        The machine orders time and command itself: one that puts ends off must come first.
        What fell due belongs to the first command that is one.
        """
        ...

    def due_ms(self) -> int | None:
        """Return the log time at which `advance` would next do something, None for never."""
        ...

    def read(self, question: Local) -> Local:
        """Answer a question about the state, and change nothing."""
        ...

    def photograph(self) -> Iterator[bytes | None]:
        """Freeze the state now, and return it in one part or more, each made when it is taken.

        A part has at most `CHUNK_BYTES_MAX`. What is applied meanwhile does not show in it.
        None is no part: it says that some of the work is done, which none takes long.
        """
        ...

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Take the state that `photograph` returned elsewhere in place of one's own.

        Raises:
            ValueError: the chunks are none; nothing was changed.

        """
        ...

    def digest(self) -> bytes:
        """Return a hash of the state: equal on replicas that applied the same slots. Slow."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Return a short digest of the state, at a cost that does not depend on its size.

        ``state`` is equal for equal states, also if one was restored from a photograph. ``decided``
        grows with everything that this process decided: from one slot to another it grows by the
        same on all replicas that decided the same.
        """
        ...
