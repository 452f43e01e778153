"""Texts of a proxy for people: refusals in words, and status from claims."""

from __future__ import annotations

from collections.abc import Mapping

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Cancelled,
    Contender,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.session_message import (
    DisownHold,
    End,
    Evict,
    HoldLost,
    ListLocks,
    Open,
    Opened,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.proxy.lock_request import Key, LockRequest, LockRequests, Phase
from fencelock.actors.proxy.message import Seen

LOCKS_SHOWN_MAX = 1_000
"""Maximum locks in one `NodeStatus`."""

WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of one lock: 64 KiB with the longest names."""

LOCKS_BYTES_MAX = 1 << 19
"""Maximum text of the locks in one `NodeStatus` (bytes), half of its frame. Without it, the
status of a node with many waits would not fit any frame."""


Asked = Acquire | Release | Cancel | Inspect | DisownHold | Open | End | ListLocks | Evict
"""Requests that may be refused."""


def granted(claim: LockRequest) -> Granted:
    """Return the grant for the holder of ``claim``."""
    return Granted(
        lock=claim.key.lock,
        fence=claim.fence,
        session=claim.key.session,
        owner=claim.key.owner,
        request=claim.request,
    )


def released(release: Release) -> Released:
    """Return the reply to a release that is done."""
    return Released(
        lock=release.lock,
        session=release.session,
        owner=release.owner,
        request=release.request,
    )


def cancelled(key: Key, request: int) -> Cancelled:
    """Return the reply to a cancel of the acquire numbered ``request``."""
    return Cancelled(lock=key.lock, session=key.session, owner=key.owner, request=request)


def refused(claim: LockRequest, reason: Reason, detail: str) -> Refused:
    """Return the refusal of the acquire behind ``claim``."""
    return Refused(
        lock=claim.key.lock,
        reason=reason,
        detail=detail,
        session=claim.key.session,
        owner=claim.key.owner,
        request=claim.request,
    )


def lost(claim: LockRequest, detail: str) -> HoldLost:
    """Return the notification for the holder of ``claim`` when it is taken away."""
    return HoldLost(
        lock=claim.key.lock,
        fence=claim.fence,
        session=claim.key.session,
        owner=claim.key.owner,
        detail=detail,
    )


def refuse(asker: Address, asked: Asked, reason: Reason, detail: str) -> Send:
    """Return the refusal of ``asked``, addressed to its asker."""
    no = Refused(
        lock=getattr(asked, "lock", ""),
        reason=reason,
        detail=detail,
        session=asked.session,
        owner=getattr(asked, "owner", ""),
        request=asked.request,
    )
    return Send(asker, no)


def opened(node: str, asker: Address, opening: Open) -> Opened:
    """Give a client of another process its own id as session, whatever later name it requested.

    A client counts the sessions that it began, including those that were never opened.
    """
    client = node_of(asker)
    return Opened(
        session=opening.session,
        assigned=opening.session if client == node else client,
        ttl_ms=0,
        node=node,
        request=opening.request,
    )


def status_of(asker: Address, inspect: Inspect, seen: Seen, *, linearizable: bool) -> Send:
    """Return the reply to ``inspect``; a refusal if the holder is not known."""
    if seen.unknown:
        text = f"lock {seen.lock!r}: it is not known who holds it: {seen.unknown}"
        return refuse(asker, inspect, Reason.UNAVAILABLE, text)
    status = LockStatus(
        lock=seen.lock,
        holder=seen.holder,
        waiters=seen.waiters[:WAITERS_SHOWN_MAX],
        waits_for=seen.waits_for,
        session=inspect.session,
        request=inspect.request,
        age_ms=0 if linearizable else None,
    )
    return Send(asker, status)


def name_contender(contender: Contender) -> str:
    """Return ``contender`` as a text for users."""
    who = contender.owner or contender.session or "somebody"
    fence = "" if contender.fence is None else f" under fence {contender.fence}"
    return f"{who} on {contender.node}{fence}"


def why_it_ended(protocol: str, claim: LockRequest, seen: Seen, now: Instant) -> tuple[Reason, str]:
    """Return why a wait ended without a grant, naming the nodes that are missing."""
    waited = f"lock {claim.key.lock!r}: waited {ms_between(claim.since, now)} ms"
    if seen.waits_for:
        absent = ", ".join(f"{a.node} (silent for {a.silent_ms} ms)" for a in seen.waits_for)
        return (
            Reason.UNAVAILABLE,
            f"{waited} for {absent}; {protocol} grants nothing without it",
        )
    if seen.unknown:
        return Reason.UNAVAILABLE, f"{waited}; it is not known who holds it: {seen.unknown}"
    if seen.holder is None:
        return Reason.TIMED_OUT, f"{waited}, and it was about to be granted or changed hands"
    return Reason.TIMED_OUT, f"{waited}; it is held by {name_contender(seen.holder)}"


def contender_of(node: str, claim: LockRequest, now: Instant) -> Contender:
    """Return ``claim`` as other clients see it."""
    return Contender(
        node=node,
        session=claim.key.session,
        owner=claim.key.owner,
        fence=claim.fence if claim.phase is Phase.HELD else None,
        since_ms=ms_between(claim.since, now),
    )


def locks_of(
    node: str, claims: LockRequests, seen: Mapping[str, Seen], now: Instant
) -> tuple[LockStatus, ...]:
    """Return every lock that is held or awaited through this node, sorted by name.

    Args:
        node: this node.
        claims: its claims; waiters are in the order of their requests here.
        seen: the backend's knowledge of awaited locks: their holders on other nodes, and
            the nodes that must reply before this node can be granted them.
        now: the time on this node's clock.

    """
    waiters: dict[str, list[Contender]] = {lock: [] for lock in claims.holder}
    for claim in claims.by_key.values():
        if claim.phase is not Phase.HELD:
            waiters.setdefault(claim.key.lock, []).append(contender_of(node, claim, now))
    statuses: list[LockStatus] = []
    left = LOCKS_BYTES_MAX
    for lock in sorted(waiters)[:LOCKS_SHOWN_MAX]:
        held, known = claims.holder.get(lock), seen.get(lock)
        holder = known.holder if known is not None else None
        status = LockStatus(
            lock=lock,
            holder=holder if held is None else contender_of(node, held, now),
            waiters=tuple(waiters[lock][:WAITERS_SHOWN_MAX]),
            waits_for=known.waits_for if known is not None else (),
        )
        left -= _bytes_of(status)
        if left < 0:
            break
        statuses.append(status)
    return tuple(statuses)


def _bytes_of(status: LockStatus) -> int:
    """Return the approximate size of ``status`` in a frame (bytes)."""
    contenders = (status.holder, *status.waiters)
    texts = ["".join(c[:3]) for c in contenders if c] + [a.node for a in status.waits_for]
    return sum(len(text.encode()) + 32 for text in (status.lock, *texts))
