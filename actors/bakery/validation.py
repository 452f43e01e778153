"""Checks on a proxy's request, and the replies to invalid ones. Pure."""

from __future__ import annotations

from fencelock.actors.api.name import OWNER_BYTES_MAX, check_lock_name, check_wait
from fencelock.actors.bakery.config import LEADERS_MAX, Terms
from fencelock.actors.bakery.proxy_message import Error, Lock, LockFailed, RenewHold, Unlock
from fencelock.actors.bakery.table import TicketTable
from fencelock.actors.bakery.ticket import ADDRESS_BYTES_MAX, TERM_MS_MAX
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant

TICKETS_MAX = 100_000
"""Maximum tickets in one leader's table: some 100 MB."""

ENTERING_MAX = 1_000
"""Maximum tickets that enter one lock at a time; the source has 100."""


def problem_of(
    door: Address, asked: Lock | Unlock | RenewHold, table: TicketTable, terms: Terms, now: Instant
) -> Effect | None:
    """Return the reply to a request that is not accepted, None for one that is."""
    who = asked.who
    if len(who.session) > ADDRESS_BYTES_MAX or len(who.owner) > OWNER_BYTES_MAX:
        return Observe("bakery.request_malformed")
    try:
        check_lock_name(asked.lock)
    except InvalidRequestError:
        return Observe("bakery.request_malformed")
    if not isinstance(asked, Lock):
        sound = isinstance(asked, Unlock) or (
            len(asked.missed) <= LEADERS_MAX
            and (asked.hold_ms == 0 or _why_invalid(asked.hold_ms, terms) == "")
        )
        return None if sound else Observe("bakery.request_malformed")
    if len(asked.label) > OWNER_BYTES_MAX or asked.request < 1:
        return Observe("bakery.request_malformed")
    error, text = _judge(asked, table, terms, now)
    if error is None:
        return None
    failed = LockFailed(lock=asked.lock, who=who, request=asked.request, error=error, detail=text)
    return Send(door, failed)


def _judge(asked: Lock, table: TicketTable, terms: Terms, now: Instant) -> tuple[Error | None, str]:
    for name, value in (("duration", asked.hold_ms), ("grace", asked.grace_ms)):
        why = _why_invalid(value, terms)
        if why:
            return Error.INVALID, f"lock {asked.lock!r}: {name} is {value} ms, {why}"
    try:
        check_wait(asked.wait_ms)
    except InvalidRequestError as problem:
        return Error.INVALID, str(problem)
    of_owner = [entry for entry in table.of(asked.lock, asked.who) if not entry.is_over(now)]
    if any(entry.ticket.request > asked.request for entry in of_owner):
        text = f"lock {asked.lock!r}: a later request of the same owner is known"
        return Error.DUPLICATE, text
    if any(entry.fence and entry.ticket.request < asked.request for entry in of_owner):
        text = f"lock {asked.lock!r}: this owner holds it, under fence {of_owner[0].fence}"
        return Error.DUPLICATE, text
    queue = table.queues.get(asked.lock)
    if any(entry.ticket.request == asked.request for entry in of_owner):
        return None, ""
    if table.size >= TICKETS_MAX:
        return Error.OVERFLOW, f"{TICKETS_MAX} tickets are in the table, its limit"
    if queue is not None and len(queue.entering) >= ENTERING_MAX:
        text = f"lock {asked.lock!r}: {ENTERING_MAX} requests enter at once, the limit"
        return Error.OVERFLOW, text
    return None, ""


def _why_invalid(term_ms: int, terms: Terms) -> str:
    """Return why a duration or a grace is refused, empty if it is not."""
    if terms.least_ms <= term_ms <= TERM_MS_MAX:
        return ""
    return f"{terms.least_ms} to {TERM_MS_MAX} ms are allowed"
