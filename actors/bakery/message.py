"""Messages of elections in `bakery`: beats, proposals and hand-overs of tables. Tags 0x40-0x4f.

A *life* is one run of a node; a leader is one node in one life, since its table dies with it.
A *seating* names the leaders of an epoch. Each epoch has one, since a member promises an epoch
once, and a seating counts when a majority of all members promised it.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.bakery.ticket import End, Record
from fencelock.actors.message import Message, message

EPOCH_MAX = (1 << 30) - 1
"""Epochs fit 30 bits, so that an epoch and a counter of 32 bits pack into a positive fence."""


class Chosen(NamedTuple):
    """A leader: a node in one of its lives."""

    node: str
    life: int


class Seating(NamedTuple):
    """The leaders of ``epoch``; epoch 0 is that of a cluster that never had any."""

    epoch: int
    leaders: tuple[Chosen, ...]
    """One to three, in order of rank; empty only in epoch 0."""
    bound_ms: int
    """The longest lease in this epoch: duration and grace together (ms)."""


NOBODY = Seating(0, (), 0)


@message(0x40)
class Beat(Message):
    """Source: LOCK_STARTED. A heartbeat with the sender's state, sent to every other member.

    ``echo`` is the number of the receiver's last beat that arrived, in its life ``echo_life``
    (both 0 for none). A receiver that gets its own numbers back is connected both ways, and
    knows that the sender had not promised more than ``promised`` when that beat arrived.
    """

    life: int
    number: int
    """Number of the beat in this life, from 1."""
    echo_life: int
    echo: int
    priority: int
    """1 to 14, the smaller the likelier to lead; `OFF` never."""
    pid: int
    promised: int
    """The highest epoch that the sender promised."""
    seating: Seating
    """The highest seating that it knows to be installed."""
    serving: int
    """The epoch in which it leads and serves, 0 for none."""
    waiting_ms: int
    """Time for which a coordinator still waits until every lease is over (ms), 0 if it does not."""
    voter: int = 0
    """The id under which the sender votes (`bootstrap.vote_id`), 0 if it does not vote. Only beats
    of registered voters count in a majority."""


@message(0x41)
class Propose(Message):
    """Let ``leaders`` lead in ``epoch``. Also the record of the promise in a member's journal."""

    epoch: int
    leaders: tuple[Chosen, ...]


@message(0x42)
class Promised(Message):
    """I heed no lower epoch, and no other leaders in this one.

    ``quiet_ms`` is how long I have heeded no leader of ``seating`` already, in this life (ms).
    ``voter`` is the id under which the sender votes.
    """

    epoch: int
    seating: Seating
    """The highest installed one that I know: no set of leaders after it has ever served."""
    quiet_ms: int
    voter: int = 0


@message(0x43)
class Outbid(Message):
    """I have promised ``epoch``, or other leaders in it: propose a higher one."""

    epoch: int


@message(0x44)
class Lead(Message):
    """To a proposed leader: prepare, with the tables of ``former``'s leaders.

    With ``empty`` the coordinator has waited until all their leases are over: start with an
    empty table.
    """

    epoch: int
    leaders: tuple[Chosen, ...]
    former: Seating
    empty: bool


@message(0x45)
class Merged(Message):
    """I am ready to lead in ``epoch``; the longest lease in my table ends in ``left_ms`` (ms)."""

    epoch: int
    left_ms: int


@message(0x46)
class Install(Message):
    """The record of a seating that is known to be ready. Between nodes, beats carry it.

    Source: LOCK_LEADERS, which is not compared with anything there.
    """

    seating: Seating


@message(0x49)
class Vouch(Message):
    """Leases of up to ``bound_ms`` are requested in ``epoch``; also the record of that."""

    epoch: int
    bound_ms: int


@message(0x4A)
class Vouched(Message):
    """I know, durably, that leases of ``epoch`` may last ``bound_ms``.

    ``voter`` is the id under which the sender votes.
    """

    epoch: int
    bound_ms: int
    voter: int = 0


@message(0x4B)
class Export(Message):
    """To a former leader: from now on heed no epoch below ``epoch``, and send me your table."""

    epoch: int


@message(0x4C)
class Table(Message):
    """A part of the table as it was when its leader stopped. Source: LOCK_TICKETS.

    Parts are numbered from 0 to ``parts`` - 1.
    """

    epoch: int
    life: int
    """Life of the leader that had the table."""
    part: int
    parts: int
    records: tuple[Record, ...]
    ended: tuple[End, ...]
    """The last ended requests there, so that no other table brings them back."""
