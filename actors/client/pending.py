"""One question of a client's user without an answer, and one wait that must be undone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from fencelock.actors.client.backoff import RETRY_MS
from fencelock.actors.fast_construction import copier
from fencelock.actors.lock.message import Acquire, Cancel, Cancelled, Describe, Inspect, Release
from fencelock.actors.lock.session_message import Evict, ListLocks, Renew
from fencelock.actors.message import Address, Instant, ms_between

ANY_GATE = Address("")
"""In a `CancelKey`: whichever gate is in use may settle it."""


class Claim(NamedTuple):
    """Which owner wants or has which lock."""

    lock: str
    owner: str


class CancelKey(NamedTuple):
    """Which gate owes a `Cancelled` for which claim."""

    gate: Address
    claim: Claim


CLAIMS_MAX = 4_096
"""Claims that are kept at hand: most locks are asked for again and again."""

Question = Acquire | Release | Renew | Inspect | Describe | ListLocks | Evict


@dataclass
class Pending:
    """A question of a user that has no answer yet.

    Each request makes one: what most of them change late or never they do not begin with, but
    have of their class.
    """

    number: int
    user: Address | None
    """None for a release that nobody waits for."""
    asked: Question
    """As the user said it."""
    claim: Claim | None
    """What it wants done within a session, None if it needs none."""
    gate: Address
    asked_at: Instant
    ends_at: Instant | None
    """An `Acquire`: when its wait is over. Others: when the user is told of the silence."""
    resend_at: Instant | None = field(init=False, default=None)
    """When it is said again; None until a tick asks for that: most are answered before."""
    step_ms: int = field(init=False, default=RETRY_MS)
    said: int = field(init=False, default=0)
    """How often it was said, under this number and in this session."""
    said_at: Instant | None = field(init=False, default=None)
    """When that was done for the first time."""
    survey: int = field(init=False, default=0)
    """The survey it belongs to; such a question stays at its gate."""
    owed: bool = field(init=False, default=False)
    """A release of what was given back, and not of what a user holds still."""
    renewed_at: Instant | None = field(init=False, default=None)
    """An `Acquire` that was granted late: when the renewal of its lease was asked for first."""


@dataclass(slots=True)
class PendingCancel:
    """A wait that was sent to a gate under ``number`` and must not be granted any more."""

    number: int
    said_at: Instant
    resend_at: Instant
    step_ms: int = RETRY_MS
    last_said_at: Instant | None = None
    """When it was said last; None until it was said again."""


@lru_cache(maxsize=CLAIMS_MAX)
def claim_named(lock: str, owner: str) -> Claim:
    """Return the claim of ``owner`` to ``lock``, mostly one that was made before."""
    return Claim(lock, owner)


def claim_of(question: Question) -> Claim | None:
    """Return what ``question`` wants done within a session, None if it needs none."""
    match question:
        case Acquire() | Release() | Renew():
            return claim_named(question.lock, question.owner)
        case _:
            return None


def as_said(pending: Pending, session: str, now: Instant) -> Question:
    """Return the question of ``pending`` as a gate is to hear it in ``session``."""
    asked = pending.asked
    match asked:
        case Inspect():
            return _inspect_said(asked, session, pending.number)
        case Acquire():
            wait_ms = None if pending.ends_at is None else ms_between(now, pending.ends_at)
            return acquire_said(asked, session, pending.number, wait_ms)
        case Release():
            return release_said(asked, session, pending.number)
        case _:
            return replace(asked, session=session, request=pending.number)


acquire_said = copier(Acquire, "session", "request", "wait_ms")
release_said = copier(Release, "session", "request")
_inspect_said = copier(Inspect, "session", "request")
"""Return what a gate is to hear: in which session, under which number."""


def cancel_of(debt: CancelKey, withdrawal: PendingCancel, session: str) -> Cancel:
    """Return what undoes the wait of ``withdrawal``."""
    claim, number = debt.claim, withdrawal.number
    return Cancel(lock=claim.lock, session=session, owner=claim.owner, request=number)


def settle(
    withdrawals: dict[CancelKey, PendingCancel], gates: Iterable[Address], cancelled: Cancelled
) -> tuple[CancelKey, PendingCancel] | None:
    """Take note that a wait was undone; return who owed it, None if nobody did."""
    claim = Claim(cancelled.lock, cancelled.owner)
    for gate in (ANY_GATE, *gates):
        debt = CancelKey(gate, claim)
        withdrawal = withdrawals.get(debt)
        if withdrawal is not None and withdrawal.number == cancelled.request:
            del withdrawals[debt]
            return debt, withdrawal
    return None
