"""Texts of a leader about a lock, and its answers to queries. Pure."""

from __future__ import annotations

from heapq import nsmallest

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.bakery.entry import Entry, Phase
from fencelock.actors.bakery.proxy_message import Query, QueryResult
from fencelock.actors.bakery.table import Queue, Table
from fencelock.actors.bakery.ticket import Turn
from fencelock.actors.message import Instant, ms_between, node_of

WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of one lock: 64 KiB with the longest names."""

CONTENDERS_SHOWN_MAX = 1_000
"""Maximum contenders shown of all locks: 900 KiB with the longest names; a frame has 1 MiB."""


def ended_before(lock: str) -> str:
    """Return why a request for ``lock`` is not accepted."""
    return f"lock {lock!r}: this request, or a later one, ended before"


def in_the_way(table: Table, entry: Entry, ahead: Turn | None, waited_ms: int, now: Instant) -> str:
    """Return why ``entry`` did not get its lock in time."""
    lock = entry.ticket.lock
    text = f"lock {lock!r}: waited {waited_ms} ms"
    queue = table.queues.get(lock)
    holders = [queue.entries[key] for key in queue.holding] if queue is not None else []
    for holder in holders:
        if holder is not entry:
            ticket = holder.ticket
            held_ms = ms_between(holder.since, now)
            return (
                f"{text}; it is held by {ticket.who.owner or ticket.who.session} through "
                f"{node_of(ticket.door)} under fence {holder.fence}, for {held_ms} ms"
            )
    if ahead is not None:
        return f"{text}; another request is ahead (ticket {ahead.number} of {ahead.leader})"
    return f"{text}, and it was about to be granted, or a quorum of the leaders did not answer"


def peeked(table: Table, peek: Query, epoch: int, now: Instant) -> QueryResult:
    """Return the state of a lock in ``table``, for a leader that serves in ``epoch``."""
    queue = table.queues.get(peek.lock)
    holder, waiters = _contenders(queue, now)
    lapsed = table.lapsed_at(peek.lock, now)
    return QueryResult(
        lock=peek.lock,
        number=peek.number,
        holder=holder,
        waiters=waiters,
        waiting=len(queue.line) if queue is not None else 0,
        epoch=epoch,
        nonce=peek.nonce,
        lapsed_ms=None if lapsed is None else ms_between(lapsed, now),
    )


def _contenders(
    queue: Queue | None, now: Instant
) -> tuple[Contender | None, tuple[Contender, ...]]:
    """Return for whom this leader's vote stands, if for anybody, and who waits."""
    if queue is None:
        return None, ()
    votes = [entry for key in queue.holding if not (entry := queue.entries[key]).is_over(now)]
    holder = max(votes, key=lambda entry: entry.fence, default=None)
    shown = queue.line[:WAITERS_SHOWN_MAX]
    waiters = [_contender(queue.entries[place.key], now) for place in shown]
    return None if holder is None else _contender(holder, now), tuple(waiters)


def tickets_of(table: Table, now: Instant) -> tuple[LockStatus, ...]:
    """Return the state of all locks in ``table``, as many as one answer has room for."""
    found: list[LockStatus] = []
    room = CONTENDERS_SHOWN_MAX
    for lock in nsmallest(CONTENDERS_SHOWN_MAX, table.queues):
        holder, waiters = _contenders(table.queues[lock], now)
        waiters = waiters[:room]
        room -= len(waiters) + 1
        if room < 0:
            break
        if holder is not None or waiters:
            status = LockStatus(lock=lock, holder=holder, waiters=waiters, waits_for=())
            found.append(status)
    return tuple(found)


def _contender(entry: Entry, now: Instant) -> Contender:
    ticket = entry.ticket
    return Contender(
        node=node_of(ticket.door),
        session=ticket.who.session,
        owner=ticket.who.owner,
        fence=entry.fence if entry.phase is Phase.HOLDING else None,
        since_ms=ms_between(entry.since, now),
        label=ticket.label,
    )
