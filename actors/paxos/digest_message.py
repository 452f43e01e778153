"""How members compare their tables, and what a diverged one writes down. Tags 0xad and 0xae."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Local, Message, Timer, local, message, timer

SCHEME = 1
"""How a digest is computed. Raised with each change, since only equal schemes are compared."""

COUNTERS_MAX = 16
"""Counters in a `TableDigest`; they are for people."""

COUNTER_NAME_BYTES_MAX = 32
"""The name of one of them."""


class Figure(NamedTuple):
    """One counter of a state machine, such as how many sessions are open."""

    name: str
    value: int


@message(0xAD)
class TableDigest(Message):
    """Replica to replica: the digest of my state after all slots before ``slot``.

    A replica that has not sent its own for this slot does so when it gets there. With ``asks`` it
    answers in any case, if it still has it.
    """

    scheme: int
    slot: int
    state: int
    """Equal for equal states."""
    decided: int | None
    """Equal if the same was decided since the agreed slot before; None if the sender did not apply
    all slots since then, but restored a snapshot."""
    counters: tuple[Figure, ...]
    asks: bool


@message(0xAE)
class Diverged(Message):
    """A record: this node's state differed from a majority's. It never votes or serves again."""

    slot: int
    why: str


@local
class Divergence(Local):
    """Replica to its listener: the states of members differ; ``why`` in words, empty if no more."""

    why: str
    quarantined: bool
    """Whether this node stopped because of it."""


@timer
class Compare(Timer):
    """See whose digest of ``slot`` is missing, and ask again."""

    slot: int
    attempt: int


@timer
class Isolate(Timer):
    """The leader of this node has stepped down: end all its roles of the log."""
