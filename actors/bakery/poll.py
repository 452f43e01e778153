"""One round of a read: each leader's reply about a lock, and what they agree on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.bakery.proxy_message import QueryResult
from fencelock.actors.lease import surely_over
from fencelock.actors.message import Instant, ms_between

NOBODY = ("", "", 0)
"""Stands for the holder of a lock that is free."""


@dataclass(slots=True)
class Poll:
    """The replies to one round of queries to all leaders about a lock.

    A quorum has to agree. A leader that did not vote for a grant knows of no holder, so one
    answer proves nothing. Two of three that know of none prove that no quorum holds the lock,
    unless the votes for a hold moved meanwhile: one leader answers, then it takes part in a
    renewal, then the lease ends at another one, which missed that renewal, and that one
    answers. So a leader's "no holder" does not count if a lease ended there since the round began.

    Attributes:
        nonce: identifies the round.
        began: the start of the round, on the proxy's clock.
        answers: the reply of each leader.

    """

    nonce: int
    began: Instant
    answers: dict[str, QueryResult] = field(default_factory=dict[str, QueryResult])

    def decide(self, quorum: int, now: Instant) -> QueryResult | None:
        """Return what ``quorum`` leaders agree on, None if there is no such thing yet."""
        agreeing: dict[tuple[str, str, int], list[QueryResult]] = {}
        for said in self.answers.values():
            holder = self._holder(said, now)
            if holder is not None:
                agreeing.setdefault(holder, []).append(said)
        for answers in agreeing.values():
            if len(answers) >= quorum:
                return max(answers, key=lambda said: said.waiting)
        return None

    def _holder(self, said: QueryResult, now: Instant) -> tuple[str, str, int] | None:
        """Return who holds the lock as one leader has it, None if that leader is no proof."""
        holder = said.holder
        if holder is not None:
            return (holder.session, holder.owner, holder.fence) if holder.fence else None
        round_ms = surely_over(ms_between(self.began, now) + 1)
        return NOBODY if said.lapsed_ms is None or said.lapsed_ms >= round_ms else None
