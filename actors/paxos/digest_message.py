"""Messages by which members compare tables, and the record of a divergence. Tags 0xad, 0xae."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Local, Message, Timer, local, message, timer

SCHEME = 1
"""Version of the digest computation. Raised with each change: only equal schemes are compared."""

COUNTERS_MAX = 16
"""Maximum counters in a `TableDigest`; they are for people."""

COUNTER_NAME_BYTES_MAX = 32
"""Maximum length of a counter's name (bytes)."""


class Figure(NamedTuple):
    """One counter of a state machine, such as how many sessions are open."""

    name: str
    value: int


@message(0xAD)
class TableDigest(Message):
    """Replica to replica: the digest of my state after all slots before ``slot``.

    A replica that has not sent its own for this slot sends it once it has applied that far. With
    ``asks`` it replies in any case, if it still has the digest.
    """

    scheme: int
    slot: int
    state: int
    """Equal for equal states."""
    decided: int | None
    """Equal if the same was decided since the previous agreed slot; None if the sender restored a
    snapshot since then, so that it did not apply all slots."""
    counters: tuple[Figure, ...]
    asks: bool


@message(0xAE)
class Diverged(Message):
    """A record: this node's state differed from a majority's. It never votes or serves again."""

    slot: int
    why: str


@local
class Divergence(Local):
    """Replica to its listener: members' states differ. ``why`` is empty once they agree again."""

    why: str
    quarantined: bool
    """Whether this node stopped because of it."""


@timer
class Compare(Timer):
    """Ask again for the digests of ``slot`` that are missing."""

    slot: int
    attempt: int


@timer
class Isolate(Timer):
    """The leader of this node has stepped down: end all its roles of the log."""
