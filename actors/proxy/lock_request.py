"""Waits and holds through one node, as its proxy keeps and shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from fencelock.actors.api.message import HOLDER_UNKNOWN, Contender, LockStatus, Reason
from fencelock.actors.api.request import Reply
from fencelock.actors.deadline_queue import DeadlineQueue
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.proxy.message import LockDescription

REPLIES_MAX = 100_000
"""Maximum number of last replies kept for repeated requests; the oldest is dropped first."""

LOCKS_SHOWN_MAX = 1_000
"""Maximum locks in one `NodeStatus`."""

WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of one lock: 64 KiB with the longest names."""

LOCKS_BYTES_MAX = 1 << 19
"""Maximum text of the locks in one `NodeStatus` (bytes), half of its frame. Without it, the
status of a node with many waits would not fit any frame."""


class Key(NamedTuple):
    """One owner's relation to one lock; an owner is sequential, so there is one at a time."""

    session: str
    owner: str
    lock: str


class Phase(Enum):
    """State of a claim."""

    WAITING = "waiting"
    HELD = "held"
    ENDING = "ending"
    """The wait is over and its refusal is being prepared; it is never granted any more."""


@dataclass(slots=True)
class LockRequest:
    """One acquire that waits or holds."""

    key: Key
    ticket: int
    """Its number at the protocol."""
    request: int
    sender: Address
    """Receiver of replies; it changes when the request is sent again."""
    since: Instant
    """The time at which it began to wait, or was granted."""
    wait_ms: int | None
    phase: Phase = Phase.WAITING
    fence: int = 0
    query: int | None = None
    """The request to the protocol whose answer its refusal waits for."""


@dataclass(slots=True)
class LockRequests:
    """All claims of a node, found by owner, by session, by ticket, by lock and by timeout."""

    by_key: dict[Key, LockRequest] = field(default_factory=dict[Key, LockRequest])
    by_ticket: dict[int, LockRequest] = field(default_factory=dict[int, LockRequest])
    by_session: dict[str, dict[int, LockRequest]] = field(
        default_factory=dict[str, dict[int, LockRequest]]
    )
    """The claims of each session that has any, by ticket, the oldest first."""
    holder: dict[str, LockRequest] = field(default_factory=dict[str, LockRequest])
    """The claim that holds a lock through this node, by lock."""
    waits: DeadlineQueue[int] = field(default_factory=DeadlineQueue[int])
    """The tickets whose waits have a timeout."""
    replies: dict[Key, tuple[int, Reply]] = field(default_factory=dict[Key, tuple[int, Reply]])
    """The last reply to each owner about each lock, for a request that is sent again."""

    def add(self, claim: LockRequest) -> None:
        assert claim.key not in self.by_key
        self.by_key[claim.key] = claim
        self.by_ticket[claim.ticket] = claim
        self.by_session.setdefault(claim.key.session, {})[claim.ticket] = claim

    def grant(self, claim: LockRequest, fence: int, now: Instant) -> None:
        assert claim.phase is Phase.WAITING
        assert claim.key.lock not in self.holder
        claim.phase = Phase.HELD
        claim.fence = fence
        claim.since = now
        self.waits.set(claim.ticket, None)
        self.holder[claim.key.lock] = claim

    def drop(self, claim: LockRequest) -> None:
        del self.by_key[claim.key]
        del self.by_ticket[claim.ticket]
        of_session = self.by_session[claim.key.session]
        del of_session[claim.ticket]
        if not of_session:
            del self.by_session[claim.key.session]
        self.waits.set(claim.ticket, None)
        if self.holder.get(claim.key.lock) is claim:
            del self.holder[claim.key.lock]

    def latest_of(self, session: str, most: int) -> list[LockRequest]:
        """Return the claims of ``session``, the newest first, at most ``most``."""
        claims = self.by_session.get(session)
        return [] if claims is None else list(islice(reversed(claims.values()), most))

    def record(self, key: Key, request: int, reply: Reply) -> None:
        """Remember the reply to ``request``, so that a repetition gets the same."""
        self.replies.pop(key, None)
        self.replies[key] = (request, reply)
        if len(self.replies) > REPLIES_MAX:
            self.replies.pop(next(iter(self.replies)))

    def awaited(self) -> list[str]:
        """Return the locks that are awaited through this node, the longest wait first."""
        waiting = (c.key.lock for c in self.by_key.values() if c.phase is Phase.WAITING)
        return list(dict.fromkeys(waiting))


def why_it_ended(
    protocol: str, claim: LockRequest, described: LockDescription, now: Instant
) -> tuple[Reason, str]:
    """Return why a wait ended without a grant, naming the nodes that are missing."""
    waited = f"lock {claim.key.lock!r}: waited {ms_between(claim.since, now)} ms"
    if described.waits_for:
        absent = ", ".join(f"{a.node} (silent for {a.silent_ms} ms)" for a in described.waits_for)
        return Reason.UNAVAILABLE, f"{waited} for {absent}; {protocol} grants nothing without it"
    if described.unknown:
        return Reason.UNAVAILABLE, f"{waited}; {HOLDER_UNKNOWN}{described.unknown}"
    if described.holder is None:
        return Reason.TIMED_OUT, f"{waited}, and it was about to be granted or changed hands"
    holder = described.holder
    name = holder.owner or holder.session or "somebody"
    fence = "" if holder.fence is None else f" under fence {holder.fence}"
    return Reason.TIMED_OUT, f"{waited}; it is held by {name} on {holder.node}{fence}"


def locks_of(
    node: str, claims: LockRequests, described: Mapping[str, LockDescription], now: Instant
) -> tuple[LockStatus, ...]:
    """Return every lock that is held or awaited through this node, sorted by name.

    Waiters are in the order of their requests here. ``described`` has the protocol's knowledge of
    awaited locks.
    """
    waiters: dict[str, list[Contender]] = {lock: [] for lock in claims.holder}
    for claim in claims.by_key.values():
        if claim.phase is not Phase.HELD:
            shown = waiters.setdefault(claim.key.lock, [])
            if len(shown) < WAITERS_SHOWN_MAX:
                shown.append(_contender_of(node, claim, now))
    statuses: list[LockStatus] = []
    left = LOCKS_BYTES_MAX
    for lock in sorted(waiters)[:LOCKS_SHOWN_MAX]:
        held, known = claims.holder.get(lock), described.get(lock)
        holder = known.holder if known is not None else None
        status = LockStatus(
            lock=lock,
            holder=holder if held is None else _contender_of(node, held, now),
            waiters=tuple(waiters[lock]),
            waits_for=known.waits_for if known is not None else (),
        )
        left -= _bytes_of(status)
        if left < 0:
            break
        statuses.append(status)
    return tuple(statuses)


def _contender_of(node: str, claim: LockRequest, now: Instant) -> Contender:
    return Contender(
        node=node,
        session=claim.key.session,
        owner=claim.key.owner,
        fence=claim.fence if claim.phase is Phase.HELD else None,
        since_ms=ms_between(claim.since, now),
    )


def _bytes_of(status: LockStatus) -> int:
    """Return the approximate size of ``status`` in a frame (bytes)."""
    contenders = (status.holder, *status.waiters)
    texts = ["".join(c[:3]) for c in contenders if c] + [a.node for a in status.waits_for]
    return sum(len(text.encode()) + 32 for text in (status.lock, *texts))
