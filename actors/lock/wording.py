"""What a proxy tells people: refusals in words, and status from claims."""

from __future__ import annotations

from holdfast.actors.lock.backend import Seen
from holdfast.actors.lock.claim import Claim, Claims, Phase
from holdfast.actors.lock.message import Contender, LockStatus, Reason
from holdfast.actors.message import Instant, ms_between

LOCKS_SHOWN_MAX = 1_000
"""How many locks one `NodeStatus` tells of; a frame has a limit too."""


def name_contender(contender: Contender) -> str:
    """Return ``contender`` as a user would want to read it."""
    who = contender.owner or contender.session or "somebody"
    fence = "" if contender.fence is None else f" under fence {contender.fence}"
    return f"{who} on {contender.node}{fence}"


def why_it_ended(protocol: str, claim: Claim, seen: Seen, now: Instant) -> tuple[Reason, str]:
    """Return why a wait ended without a grant, with the nodes that are missing by name."""
    waited = f"lock {claim.key.lock!r}: waited {ms_between(claim.since, now)} ms"
    if seen.waits_for:
        absent = ", ".join(f"{a.node} (silent for {a.silent_ms} ms)" for a in seen.waits_for)
        return (
            Reason.UNAVAILABLE,
            f"{waited} for {absent}; {protocol} grants nothing without it",
        )
    if seen.holder is None:
        return Reason.TIMED_OUT, f"{waited}, and it was about to be granted or changed hands"
    return Reason.TIMED_OUT, f"{waited}; it is held by {name_contender(seen.holder)}"


def contender_of(node: str, claim: Claim, now: Instant) -> Contender:
    """Return ``claim`` as others may see it."""
    return Contender(
        node=node,
        session=claim.key.session,
        owner=claim.key.owner,
        fence=claim.fence if claim.phase is Phase.HELD else None,
        since_ms=ms_between(claim.since, now),
    )


def locks_of(node: str, claims: Claims, now: Instant) -> tuple[LockStatus, ...]:
    """Return every lock that is held or waited for through this node, sorted by name."""
    holders: dict[str, Contender] = {}
    waiters: dict[str, list[Contender]] = {}
    for claim in claims.by_key.values():
        contender = contender_of(node, claim, now)
        if claim.phase is Phase.HELD:
            holders[claim.key.lock] = contender
        else:
            waiters.setdefault(claim.key.lock, []).append(contender)
    names = sorted(holders.keys() | waiters.keys())[:LOCKS_SHOWN_MAX]
    return tuple(
        LockStatus(
            lock=name,
            holder=holders.get(name),
            waiters=tuple(waiters.get(name, ())),
            waits_for=(),
        )
        for name in names
    )
