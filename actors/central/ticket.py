"""The tickets of one node, and the broker's messages about them to the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fencelock.actors.api.message import Contender
from fencelock.actors.central.message import FreeReply, LocalView, Settled
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.proxy.backend import Freeing, Given, Look

TICKETS_MAX = 10_000
"""Owners of one node that wait or hold: each is under a kilobyte, and sends every 50 ms."""

WAITERS_SHOWN_MAX = 100
"""Waiters listed in one answer to `Look`, so that a status fits its frame."""


class Ticket(NamedTuple):
    """One acquire through this node: its owner, its time, and its number once it holds."""

    lock: str
    session: str
    owner: str
    client: Address
    since: Instant
    number: int | None


def glance_of(look: Look, node: str, tickets: Iterable[Ticket], now: Instant) -> LocalView:
    """Return what ``node`` knows of a lock from its ``tickets`` for it."""
    contenders = [
        Contender(
            node=node,
            session=ticket.session,
            owner=ticket.owner,
            fence=ticket.number,
            since_ms=ms_between(ticket.since, now),
        )
        for ticket in tickets
    ]
    holders = [contender for contender in contenders if contender.fence is not None]
    waiters = [contender for contender in contenders if contender.fence is None]
    return LocalView(
        lock=look.lock,
        query=look.query,
        holder=holders[0] if holders else None,
        waiters=tuple(waiters[:WAITERS_SHOWN_MAX]),
    )


def given_by(event: Settled | FreeReply) -> Given:
    """Return the confirmation of a release for the proxy."""
    outcome, holder = Freeing.FREED, None
    if isinstance(event, FreeReply):
        outcome, holder = event.outcome, event.holder
    return Given(
        lock=event.lock,
        fence=event.number,
        session=event.session,
        outcome=outcome,
        holder=holder,
    )
