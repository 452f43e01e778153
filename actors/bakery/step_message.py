"""Messages about the steps of a ticket, between the leaders of one epoch. Tags 0xb0-0xbf.

Each carries its epoch; a leader answers only those of its own. Each answer names its ticket,
and its round or drop, and counts once per sender.
"""

from __future__ import annotations

from fencelock.actors.bakery.ticket import Ticket, Turn, Who
from fencelock.actors.message import Message, message


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
    """0 for no vote."""
    taken: bool


@message(0xB3)
class Collected(Message):
    """Source: TICKET_ADDED and LOCK_ACTIVATED. The ticket is in my table.

    ``voted`` says that it holds the lock here, as far as I am concerned, and that I vote for no
    other until it drops, yields, or its lease is over. Else ``ahead`` is the first ticket that
    is in its way (number 0: it enters).
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
    """The highest round of this request that I know: a lower one is not heeded."""


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

    It is named by its ``request``, or by the ``fence`` under which it holds, or by both; what
    is not known is 0.
    """

    epoch: int
    lock: str
    who: Who
    request: int
    fence: int
    number: int
    """Matches answers to the drops of one leader; 0 if no answer is wanted."""
    mine: bool
    """Whether no client asked for it: only the ticket that this leader owns is meant."""


@message(0xB6)
class TicketDropped(Message):
    """The request is not in my table. ``found``: it was, or I know that it was dropped before."""

    epoch: int
    number: int
    found: bool
    request: int
    """Number of the request, 0 if I never knew it: others may know it by nothing else."""


@message(0xB7)
class Extend(Message):
    """Let the lease of ``ticket``, held under ``fence``, begin anew."""

    epoch: int
    ticket: Ticket
    fence: int
    number: int


@message(0xB8)
class Extended(Message):
    """Whether the lease begins anew here."""

    epoch: int
    number: int
    kept: bool


@message(0xB9)
class Ended(Message):
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
