"""Messages between a client's session and its users, besides those about locks."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Release
from fencelock.actors.message import Local, Timer


class Close(Local):
    """Release every hold and cancel every wait. Answered by `Closed`; nothing is served after."""

    EASES = True


class Closed(Local):
    """The session ended; ``unanswered`` releases and cancels were not confirmed in time."""

    unanswered: int


class ReleaseUnawaited(Local):
    """Release a hold, while no user waits. Answered once the release is decided, however late."""

    release: Release

    EASES = True


class EndWait(Local):
    """End an acquire that waits, as its user wishes; one that was granted stays."""

    lock: str
    owner: str
    request: int

    EASES = True


SURVEY_MS = 2_000
"""How long a survey waits for an endpoint, unless its caller has less time (ms)."""


class Survey(Local):
    """Ask every endpoint to describe itself, with or without its roles. Answered by `Surveyed`."""

    roles: bool = False
    within_ms: int = SURVEY_MS
    """How long to wait for an endpoint that is silent (ms)."""


class Surveyed(Local):
    """The endpoints' replies, in order, and those that did not reply, with a reason if known."""

    statuses: tuple[NodeStatus, ...]
    silent: tuple[str, ...]


class Loss(NamedTuple):
    """A hold that ended without having been released."""

    lock: str
    owner: str
    fence: int


class Suspected(Local):
    """To the watcher: the session was not confirmed for ``silent_ms``; it may be yet."""

    silent_ms: int
    left_ms: int
    """Time until the holds count as lost (ms)."""


class Wait(NamedTuple):
    """An acquire that waits."""

    lock: str
    waited_ms: int


class Waiting(Local):
    """To the watcher: acquires that have waited for long, one for each lock."""

    waits: tuple[Wait, ...]
    more: int
    """The number of further locks."""
    silence: str
    """The state of the endpoints, if the one in use does not reply; else empty."""
    excuse: str = ""
    """Why the endpoint in use gets no request decided, if it said so; else empty."""


class HoldsLost(Local):
    """To the watcher: these holds are lost for good; ``detail`` says why."""

    losses: tuple[Loss, ...]
    detail: str


class EndpointChanged(Local):
    """To the watcher: the client has left the endpoint ``former`` and uses ``endpoint``."""

    endpoint: str
    former: str


class Undecided(Local):
    """From the proxy on the session's own node: the reason why requests get no reply yet."""

    detail: str


class WatchCluster(Local):
    """Notify the watcher of the cluster's state, now and whenever it changes."""


class ClusterState(Local):
    """State of the cluster, as the node in use reports it. Immutable.

    While a client has lost its node and no other has replied yet, the cluster counts as neither
    up nor ready, and ``reason`` says why for every node.
    """

    up: bool
    """Whether a majority of the members is connected."""
    complete: bool
    """Whether all members are connected."""
    ready: bool
    """Whether a lock can be granted now, once its turn comes."""
    reason: str
    """The missing condition, in words; or ``ready``."""
    epoch: int
    """Number of the highest election known; 0 before the first."""
    leaders: tuple[str, ...]
    """The nodes elected in it, in order of rank."""


class SessionTick(Timer):
    """Run all due work. Only the tick of the current ``round`` counts, earlier ones are stale."""

    round: int
