"""Waits and holds through one node: the table of its proxy, independent of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fencelock.actors.api.request import Reply
from fencelock.actors.message import Address, Instant

ANSWERS_MAX = 100_000
"""Maximum number of last replies kept for repeated requests; the oldest is dropped first."""


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
    """One acquire that waits or holds.

    Attributes:
        ticket: its number at the backend.
        request: the owner's request number.
        asker: receiver of replies; it changes when the request is sent again.
        since: the time at which it began to wait, or was granted.
        wait_ms: its timeout (ms), None for no limit.
        fence: the fence of the hold; 0 while waiting.
        query: the request to the backend whose answer its refusal waits for.

    """

    key: Key
    ticket: int
    request: int
    asker: Address
    since: Instant
    wait_ms: int | None
    phase: Phase = Phase.WAITING
    fence: int = 0
    query: int | None = None


@dataclass(slots=True)
class LockRequests:
    """All claims of a node, found by owner, by ticket and by lock."""

    by_key: dict[Key, LockRequest] = field(default_factory=dict[Key, LockRequest])
    by_ticket: dict[int, LockRequest] = field(default_factory=dict[int, LockRequest])
    holder: dict[str, LockRequest] = field(default_factory=dict[str, LockRequest])
    """The claim that holds a lock through this node, by lock."""
    answers: dict[Key, tuple[int, Reply]] = field(default_factory=dict[Key, tuple[int, Reply]])
    """The last reply to each owner about each lock, for a request that is sent again."""

    def add(self, claim: LockRequest) -> None:
        """Add a new claim; its key must be free."""
        assert claim.key not in self.by_key
        self.by_key[claim.key] = claim
        self.by_ticket[claim.ticket] = claim

    def grant(self, claim: LockRequest, fence: int, now: Instant) -> None:
        """Turn a waiting claim into a hold."""
        assert claim.phase is Phase.WAITING
        assert claim.key.lock not in self.holder
        claim.phase = Phase.HELD
        claim.fence = fence
        claim.since = now
        self.holder[claim.key.lock] = claim

    def drop(self, claim: LockRequest) -> None:
        """Drop a claim, held or not."""
        del self.by_key[claim.key]
        del self.by_ticket[claim.ticket]
        if self.holder.get(claim.key.lock) is claim:
            del self.holder[claim.key.lock]

    def record(self, key: Key, request: int, answer: Reply) -> None:
        """Remember the reply to ``request``, so that a repetition gets the same."""
        self.answers.pop(key, None)
        self.answers[key] = (request, answer)
        if len(self.answers) > ANSWERS_MAX:
            self.answers.pop(next(iter(self.answers)))
