"""What the roles of `bakery` on one node tell each other, and their timers."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.bakery.message import Chosen, Seating
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.lock.message import LockStatus
from fencelock.actors.message import Instant, Local, Timer, local, timer


class Member(NamedTuple):
    """A member that is connected both ways, as its last beat has it."""

    node: str
    life: int
    priority: int
    pid: int
    promised: int
    seating: Seating
    serving: int
    waiting_ms: int
    votes: bool = True
    """Whether it votes, under the journal that is registered for it."""


@local
class Seen(Local):
    """From the cluster status, to the coordinator: who is connected, sorted; this node too."""

    members: tuple[Member, ...]


@local
class Trust(Local):
    """From the cluster status, to the leader: a majority of the members answered a beat.

    All of these vote, and none of them had promised more than ``epoch`` then.
    """

    epoch: int
    at: Instant
    """When the oldest of these beats was said."""


@local
class Standing(Local):
    """From the coordinator, to the cluster status: what this node's beats are to say."""

    promised: int
    seating: Seating
    waiting_ms: int


@local
class Serving(Local):
    """From the leader, to the cluster status: the epoch in which it serves, 0 for none."""

    epoch: int


@local
class Serve(Local):
    """From the coordinator, to the leader: a majority knows the seating of ``epoch``, durably."""

    epoch: int
    leaders: tuple[Chosen, ...]
    bound_ms: int


@local
class Raise(Local):
    """From the leader, to the coordinator: somebody wants a lease of ``bound_ms``.

    Answered by a `Serve` of the same epoch that says so, once a majority knows.
    """

    bound_ms: int


@local
class Readiness(Local):
    """From the coordinator, to the door: who leads, and whether locks can be had now."""

    epoch: int
    leaders: tuple[Chosen, ...]
    reachable: tuple[str, ...]
    """Of the members, sorted."""
    ready: bool
    detail: str
    """The condition of the election that is missing, in words; or ``ready``."""
    members: tuple[Member, ...]


@local
class ListTickets(Local):
    """From the door, to the leader of its node: which tickets are there? Answered by `Tally`."""


@local
class Tally(Local):
    """Locks that are held or waited for, by name; none from a leader that does not serve."""

    serving: bool
    locks: tuple[LockStatus, ...]


@timer
class BeatDue(Timer):
    """Say the next beat."""


@timer
class CampaignDue(Timer):
    """See how the election goes on."""


@timer
class StepDue(Timer):
    """Say again what is unanswered, and see whose time is over."""


@timer
class TicketDue(Timer):
    """Look at the ticket of ``who`` for ``lock`` again."""

    lock: str
    who: Who


@timer
class DoorDue(Timer):
    """Say again what is unanswered, and end what is over."""
