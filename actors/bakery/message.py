"""Messages between nodes: elections and hand-overs (0x40-0x4f), steps of tickets (0xb0-0xba), 0xe8.

A *life* is one run of a node; a leader is one node in one life, since its table dies with it.
A *seating* names the leaders of an epoch. Each epoch has one, since a member promises an epoch
once, and a seating counts when a majority of all members promised it.

Each message about a step carries its epoch; a leader replies only to messages of its own epoch.
Each reply names its ticket, and its round or drop, and counts once per sender.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.ticket import EndedRequests, Record, Ticket, Turn, Who
from fencelock.actors.message import Message, message

EPOCH_MAX = (1 << 30) - 1
"""Epochs fit 30 bits, so that an epoch and a counter of 32 bits pack into a positive fence."""


class Chosen(NamedTuple):
    """A leader: a node in one of its lives."""

    node: str
    life: int


class Seating(NamedTuple):
    """The leaders of ``epoch``. A cluster that never had leaders is in epoch 0."""

    epoch: int
    leaders: tuple[Chosen, ...]
    """One to three, in order of rank; empty only in epoch 0."""
    bound_ms: int
    """The longest lease at the beginning of this epoch: duration and grace together (ms)."""


class BoundStatement(NamedTuple):
    """The last statement of a leader about the leases for which it votes; see `max_lease.py`."""

    leader: str
    number: int
    bound_ms: int


NOBODY = Seating(0, (), 0)


@message(0x40)
class Beat(Message):
    """Source: LOCK_STARTED. A heartbeat with the sender's state, sent to every other member.

    ``echo`` is the number of the receiver's last beat that arrived, in its life ``echo_life``
    (both 0 if none did). A receiver that gets its own numbers back is connected both ways, and
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
    """No lower epoch is obeyed by the sender, which promised this one, nor by its leader."""
    seating: Seating
    """The highest seating that it knows to be installed."""
    serving: int
    """The epoch in which it leads and serves, or 0 for none."""
    waiting_ms: int
    """Time for which a coordinator still waits until every lease is over (ms), or 0 if it does
    not."""
    voter: int = 0
    """The id under which the sender votes (`bootstrap.vote_id`), or 0 if it does not vote. Only
    beats of registered voters count in a majority."""
    electorate: Electorate = FOUNDERS
    """The electorate of ``seating``."""
    reaches: tuple[Chosen, ...] = ()
    """The members that are connected with the sender both ways, each in its present life."""


@message(0x41)
class Propose(Message):
    """Let ``leaders`` lead in ``epoch``. Also the record of the promise in a member's journal."""

    epoch: int
    leaders: tuple[Chosen, ...]
    electorate: Electorate = FOUNDERS
    """The electorate of that epoch; a change of the members begins with it."""

    TRIMMED = True


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
    electorate: Electorate = FOUNDERS
    """The electorate of ``seating``."""
    statements: tuple[BoundStatement, ...] = ()
    """The last statement that I know of each leader of ``seating``."""


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
    bound_ms: int = 0
    """Leases of up to this may be voted for before the seating is installed (ms)."""


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
    electorate: Electorate = FOUNDERS
    """The electorate of ``seating``."""
    statements: tuple[BoundStatement, ...] = ()
    """The last statement that is known of each leader."""

    TRIMMED = True


@message(0x49)
class Vouch(Message):
    """Statement ``number`` of my leader in ``epoch``: its votes last ``bound_ms`` at most (ms)."""

    epoch: int
    number: int
    bound_ms: int


@message(0x4A)
class Vouched(Message):
    """I know, durably, the statement ``number`` of your leader in ``epoch``.

    ``voter`` is the id under which the sender votes.
    """

    epoch: int
    number: int
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
    ended: tuple[EndedRequests, ...]
    """The last ended requests there, so that no other table brings them back."""
    exclusive: tuple[int, ...] = ()
    """For each of ``ended``, the fence up to which its exclusive tickets have ended. Releases
    without shared tickets send none: all their ended fences are those of exclusive tickets."""


@message(0xB0)
class Entering(Message):
    """Source: LOCK_ENTERING and GET_MAX_TICKET. ``ticket`` is about to draw a number."""

    epoch: int
    ticket: Ticket


@message(0xB1)
class MaxTicket(Message):
    """Source: LOCK_ENTERED and MAX_TICKET. I know that the ticket enters.

    ``highest`` is the highest number or counter that was drawn for the lock here. ``held`` is
    the fence under which this very request holds the lock already, as far as I know, or 0.
    """

    epoch: int
    lock: str
    who: Who
    request: int
    highest: int
    held: int
    known: int
    """The highest round of this request that I know."""


@message(0xB2)
class AddTicket(Message):
    """Source: ADD_TICKET, LOCK_EXITING and ACTIVATE_LOCK, in one.

    ``ticket`` has its number, and enters no more. With a ``fence`` it also requests a vote: to
    hold the lock under it. Of the rounds of one request only the highest counts. With ``taken``
    the request may hold the lock under ``fence`` already, through another owner.
    """

    epoch: int
    ticket: Ticket
    round: int
    fence: int
    """0 if it did not vote."""
    taken: bool


@message(0xB3)
class Collected(Message):
    """Source: TICKET_ADDED and LOCK_ACTIVATED. The ticket is in my table.

    ``voted`` says that the ticket holds the lock at this leader, which votes for no other until the
    ticket drops or yields, or its lease is over. Otherwise ``ahead`` is the first ticket that is
    ahead of it (number 0: that one still enters).
    """

    epoch: int
    lock: str
    who: Who
    request: int
    round: int
    voted: bool
    ahead: Turn | None
    highest: int
    known: int
    """The highest round of this request that the sender knows: a lower one is not accepted."""


@message(0xB4)
class Yield(Message):
    """My ticket did not get enough votes in the rounds before ``round``: take your vote back."""

    epoch: int
    lock: str
    who: Who
    request: int
    round: int


@message(0xB5)
class DropTicket(Message):
    """Source: DROP_TICKET. Forget this request, whether it waits or holds.

    It is named by its ``request``, or by the ``fence`` under which it holds, or by both; an unknown
    number is 0.
    """

    epoch: int
    lock: str
    who: Who
    request: int
    fence: int
    number: int
    """Matches answers to the drops of one leader, or 0 if no answer is wanted."""
    mine: bool
    """Whether no client asked for it: only the ticket that this leader owns is meant."""


@message(0xB6)
class TicketDropped(Message):
    """The request is not in my table. ``found``: it was, or I know that it was dropped before."""

    epoch: int
    number: int
    found: bool
    request: int
    """Number of the request, or 0 if I never knew it: others may know it by nothing else."""


@message(0xB7)
class Extend(Message):
    """Restart the lease of ``ticket``, held under ``fence``."""

    epoch: int
    ticket: Ticket
    fence: int
    number: int


@message(0xB8)
class Extended(Message):
    """Whether the lease restarts here."""

    epoch: int
    number: int
    kept: bool


@message(0xB9)
class TicketEnded(Message):
    """To the owner of a ticket: this request, or a later one, was dropped before."""

    epoch: int
    lock: str
    who: Who
    request: int


@message(0xBA)
class Owned(Message):
    """To another owner of the same request: I rank before you, leave it to me."""

    epoch: int
    lock: str
    who: Who
    request: int


@message(0xE8)
class NodeInfo(Message):
    """A node describes itself to the other nodes, now and then."""

    epoch: int
    """The highest epoch whose seating it knows."""
    number: int
    """The number of the changes of the members that it knows."""
    journal: int
    """The id of its journal."""
    ready: bool
    """Whether it would vote as a member: others have confirmed that its journal is no old copy."""
    endpoint: str
    """The endpoint at which other nodes reach it, empty if its configuration does not say."""
    version: str
