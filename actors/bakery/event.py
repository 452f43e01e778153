"""Messages between the roles of `bakery` on one node, and their timers."""

from __future__ import annotations

from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.wire import Member, Seating
from fencelock.actors.message import Instant, Local, Timer


class Connected(Local):
    """Cluster status to coordinator: the connected members, sorted; this node too."""

    members: tuple[Member, ...]


class Trust(Local):
    """Cluster status to leader: a majority of the members answered a beat.

    All of these vote, and none of them had promised more than ``epoch`` then.
    """

    epoch: int
    at: Instant
    """The time at which the oldest of these beats was sent."""


class BeatContents(Local):
    """Coordinator to cluster status: the contents of this node's beats."""

    promised: int
    seating: Seating
    waiting_ms: int
    electorate: Electorate = FOUNDERS


class Known(Local):
    """Coordinator to leader: ``nodes`` are members, or may soon be."""

    nodes: tuple[str, ...]


class ChangeElectorate(Local):
    """To the coordinator: propose an epoch with ``electorate``, the next of the present one."""

    electorate: Electorate


class Serving(Local):
    """Leader to cluster status: the epoch in which it serves, or 0 for none."""

    epoch: int


class Barred(Local):
    """Leader to coordinator: this leader obeys no epoch below ``epoch`` in its life."""

    epoch: int


class Serve(Local):
    """Coordinator to leader: a majority knows ``seating``, durably."""

    seating: Seating


class Readiness(Local):
    """Coordinator to proxy and `Reconfigurer`: the leaders, and whether they can grant locks."""

    seating: Seating
    members: tuple[Member, ...]
    """The connected nodes, sorted."""
    ready: bool
    detail: str
    """The missing condition of the election, in words; or ``ready``."""
    electorate: Electorate = FOUNDERS
    """The members; with those before, while a change of them is not in force."""


class ListTickets(Local):
    """Proxy to the leader of its node: list the tickets. Answered by `Tally`."""


class Tally(Local):
    """Locks that are held or awaited, sorted by name; none from a leader that does not serve."""

    serving: bool
    locks: tuple[LockStatus, ...]


class BeatDue(Timer):
    """Send the next beat."""


class ElectionDue(Timer):
    """Check the election."""


class StepDue(Timer):
    """Send unanswered steps again, and process deadlines."""


class InfoDue(Timer):
    """Describe this node to the others."""
