"""Memberships as the log carries them: a change is a separate command, alone in its slot.

Snapshots end with a part for the memberships in force and the highest origin of a batch. Both begin
with `CHANGE`, which begins no command and no part of a state machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import MsgspecError
from msgspec.json import Decoder, encode

from fencelock.actors.membership import MEMBERS_MAX, Membership
from fencelock.actors.paxos.message import NO_BALLOT, NUMBER_MAX, Ballot, Batch

CHANGE = b"members "
"""Beginning of a command that changes the members, and of the part of a snapshot with them."""


TEXT_MAX = 300
"""Maximum length of a member's name or endpoint."""


NUMBERS = range(NUMBER_MAX << 1)
"""Numbers of changes, slots, journals and rounds."""


TERMS_MAX = 2
"""Maximum memberships that are in force at a time."""


class Term(NamedTuple):
    """A membership and the first slot that its members decide."""

    first: int
    membership: Membership


def command_of(membership: Membership) -> bytes:
    """Return the command that puts ``membership`` into force, `WINDOW` slots after its own."""
    return CHANGE + encode(membership)


def change_in(batch: Batch) -> Membership | None:
    """Return the membership that ``batch`` puts into force, or None for any other batch."""
    commands = batch.commands
    if len(commands) != 1 or not commands[0].startswith(CHANGE):
        return None
    try:
        membership = _MEMBERSHIP.decode(commands[0][len(CHANGE) :])
    except (MsgspecError, ValueError):
        return None
    return membership if _is_sound(membership) else None


def log_part(terms: Sequence[Term], origin: Ballot) -> bytes:
    """Return the part of a snapshot that has the memberships, and the highest origin."""
    return CHANGE + encode((terms, origin))


def split(chunks: Sequence[bytes]) -> tuple[Sequence[bytes], tuple[Term, ...], Ballot]:
    """Return what is in the chunks of a snapshot.

    These are the chunks of the state machine, the memberships (none if the members had never
    changed), and the highest origin of a batch (`fencelock.actors.paxos.log.DecidedSlots`).

    Raises:
        ValueError: the last one, which has the state of the log, cannot be read.

    """
    if not chunks or not chunks[-1].startswith(CHANGE):
        return chunks, (), NO_BALLOT  # A cluster that began with a backup.
    text = "the members or the ballot in the snapshot cannot be read"
    try:
        terms, origin = _LOG_PART.decode(chunks[-1][len(CHANGE) :])
    except (MsgspecError, ValueError) as error:
        raise ValueError(f"{text}: {error}") from error
    sound = all(term.first in NUMBERS and _is_sound(term.membership) for term in terms)
    if not sound or len(terms) > TERMS_MAX or origin.round < 0 or len(origin.leader) > TEXT_MAX:
        raise ValueError(text)
    return chunks[:-1], terms, origin


_MEMBERSHIP = Decoder(Membership)
_LOG_PART = Decoder(tuple[tuple[Term, ...], Ballot])


def _is_sound(membership: Membership) -> bool:
    """Return whether all numbers and texts are within their limits, and the names in order."""
    number, members = membership
    return (
        number in NUMBERS
        and 1 <= len(members) <= MEMBERS_MAX
        and all(one.name and "/" not in one.name for one in members)
        and all(len(one.name) <= TEXT_MAX and len(one.endpoint) <= TEXT_MAX for one in members)
        and all(one.journal in NUMBERS for one in members)
        and all(one.name < other.name for one, other in pairwise(members))
    )
