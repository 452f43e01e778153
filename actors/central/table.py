"""The lock server's table: holds, ended holds, ended sessions, and their journal records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from fencelock.actors.api.message import Contender
from fencelock.actors.central.message import (
    Free,
    FreeReply,
    Held,
    Numbered,
    Revoke,
    Revoked,
    SessionEnded,
)
from fencelock.actors.message import Address, Instant, Message, ms_between, node_of
from fencelock.actors.proxy.backend import Freeing

LOCKS_MAX = 100_000
"""Maximum locks held at one time. An entry is under a kilobyte, so the table is below 100 MB."""

ENDED_MAX = 10_000
"""Ended holds, and ended sessions, that are remembered, for requests that are repeated or very
late. The oldest is dropped first; a release repeated after that is refused as not held."""

K = TypeVar("K")
V = TypeVar("V")


class Holding(NamedTuple):
    """The holder of one lock, with the time and number of its grant."""

    client: Address
    number: int
    session: str
    owner: str
    since: Instant


class Ended(NamedTuple):
    """A hold that has ended: its session, and its holder if an operator took it."""

    session: str
    taken_from: Contender | None = None


def contender_of(holding: Holding, now: Instant) -> Contender:
    """Return the holder as other clients see it."""
    return Contender(
        node=node_of(holding.client),
        session=holding.session,
        owner=holding.owner,
        fence=holding.number,
        since_ms=ms_between(holding.since, now),
    )


def holder_in_words(holding: Holding) -> str:
    """Return the holder as ``node/session/owner``, without the parts that it does not have."""
    parts = (node_of(holding.client), holding.session, holding.owner)
    return "/".join(part for part in parts if part)


def may_free(free: Free, holding: Holding) -> bool:
    """Return whether ``free`` ends this hold: its session or an operator sent it."""
    return holding.number == free.number and free.session in ("", holding.session)


def reply_to(free: Free, ended: Ended | None) -> FreeReply:
    """Return the reply to ``free``, the same for each repetition of it.

    Args:
        free: the request, which has been performed if possible.
        ended: the end of the hold; None if no such hold is known.

    """
    outcome, holder = Freeing.NOT_HELD, None
    if ended is not None and free.session == ended.session:
        outcome = Freeing.FREED if ended.taken_from is None else Freeing.TAKEN
    elif ended is not None and not free.session and ended.taken_from is not None:
        outcome, holder = Freeing.FREED, ended.taken_from
    return FreeReply(
        lock=free.lock,
        number=free.number,
        session=free.session,
        outcome=outcome,
        holder=holder,
    )


def confirms(revoked: Revoked, revoke: Revoke) -> bool:
    """Return whether ``revoked`` answers ``revoke``."""
    return (revoked.client, revoked.number) == (revoke.client, revoke.number)


def remember(memory: dict[K, V], key: K, value: V, most: int) -> None:
    """Add an entry to a bounded dict, which drops its oldest."""
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


def held_record(lock: str, holding: Holding) -> Held:
    """Return the journal's record of a hold."""
    return Held(
        lock=lock,
        client=holding.client,
        number=holding.number,
        session=holding.session,
        owner=holding.owner,
    )


def records_of(
    granted: int,
    held: Mapping[str, Holding],
    revoked: Iterable[Revoke],
    sessions: Iterable[str],
) -> tuple[Message, ...]:
    """Return the records of a whole table, to compact a journal."""
    return (
        Numbered(number=granted),
        *(held_record(lock, holding) for lock, holding in held.items()),
        *revoked,
        *(SessionEnded(session=session) for session in sessions),
    )
