"""Who wants and who holds what through one node: the proxy's table, without any protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fencelock.actors.lock.message import Answer
from fencelock.actors.message import Address, Instant

ANSWERS_MAX = 100_000
"""How many last answers are kept for repeated requests; the oldest go first."""


class Key(NamedTuple):
    """One owner's relation to one lock; an owner is sequential, so there is one at a time."""

    session: str
    owner: str
    lock: str


class Phase(Enum):
    """Where a claim stands."""

    WAITING = "waiting"
    HELD = "held"
    ENDING = "ending"
    """The wait is over, the refusal is being worded; never granted any more."""


@dataclass(slots=True)
class LockRequest:
    """One acquisition on its way, or held.

    Attributes:
        ticket: its number at the backend.
        request: the owner's request number, 0 for a caller inside the node.
        asker: where answers go; it moves when the request is sent again.
        named: the session as the asker wrote it, empty for a caller inside the node.
        since: when it began to wait, then when it was granted.
        wait_ms: how long it may wait, None for without limit.
        fence: of the hold; 0 while waiting.
        query: the look at the backend that is to word this claim's refusal.

    """

    key: Key
    ticket: int
    request: int
    asker: Address
    named: str
    since: Instant
    wait_ms: int | None
    phase: Phase = Phase.WAITING
    fence: int = 0
    query: int | None = None


@dataclass(slots=True)
class LockRequests:
    """All claims of a node, found by owner, by ticket, by lock and by asker."""

    by_key: dict[Key, LockRequest] = field(default_factory=dict[Key, LockRequest])
    by_ticket: dict[int, LockRequest] = field(default_factory=dict[int, LockRequest])
    holder: dict[str, LockRequest] = field(default_factory=dict[str, LockRequest])
    """The claim that holds a lock through this node, by lock."""
    by_asker: dict[Address, LockRequest] = field(default_factory=dict[Address, LockRequest])
    """Claims of callers inside the node, who may give up asking."""
    answers: dict[Key, tuple[int, Answer]] = field(default_factory=dict[Key, tuple[int, Answer]])
    """The last answer to each owner about each lock, for a request that is sent again."""

    def add(self, claim: LockRequest) -> None:
        """Enter a new claim; its key must be free."""
        assert claim.key not in self.by_key
        self.by_key[claim.key] = claim
        self.by_ticket[claim.ticket] = claim
        if not claim.named:
            self.by_asker[claim.asker] = claim

    def grant(self, claim: LockRequest, fence: int, now: Instant) -> None:
        """Turn a waiting claim into a hold."""
        assert claim.phase is Phase.WAITING
        assert claim.key.lock not in self.holder
        claim.phase = Phase.HELD
        claim.fence = fence
        claim.since = now
        self.holder[claim.key.lock] = claim

    def drop(self, claim: LockRequest) -> None:
        """Forget a claim, held or not."""
        del self.by_key[claim.key]
        del self.by_ticket[claim.ticket]
        if self.holder.get(claim.key.lock) is claim:
            del self.holder[claim.key.lock]
        if not claim.named:
            self.by_asker.pop(claim.asker, None)

    def record(self, key: Key, request: int, answer: Answer) -> None:
        """Remember what was answered to ``request``, so that a repetition hears the same."""
        self.answers.pop(key, None)
        self.answers[key] = (request, answer)
        if len(self.answers) > ANSWERS_MAX:
            self.answers.pop(next(iter(self.answers)))
