"""Memberships as the log carries them: a change is a separate command, alone in its slot.

Snapshots end with a part for the memberships in force and the highest origin of a batch. Both begin
with `CHANGE`, which begins no command and no part of a state machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fencelock.actors.membership import MEMBERS_MAX, Member, Membership
from fencelock.actors.message import Address
from fencelock.actors.paxos.message import NO_BALLOT, NUMBER_MAX, Ballot, Batch

CHANGE = b"members "
"""Beginning of a command that changes the members, and of the part of a snapshot with them."""


TEXT_MAX = 300
"""Maximum length of a member's name or endpoint."""


class Term(NamedTuple):
    """A membership and the first slot that its members decide."""

    first: int
    membership: Membership


def command_of(membership: Membership) -> bytes:
    """Return the command that puts ``membership`` into force, `WINDOW` slots after its own."""
    return CHANGE + json.dumps(membership, separators=(",", ":")).encode()


def change_in(batch: Batch) -> Membership | None:
    """Return the membership that ``batch`` puts into force, or None for any other batch."""
    commands = batch.commands
    if len(commands) != 1 or not commands[0].startswith(CHANGE):
        return None
    return _membership(_load(commands[0]))


def log_part(terms: Sequence[Term], origin: Ballot) -> bytes:
    """Return the part of a snapshot that has the memberships, and the highest origin."""
    return CHANGE + json.dumps([terms, origin], separators=(",", ":")).encode()


class SnapshotContent(NamedTuple):
    """What is in the chunks of a snapshot."""

    chunks: Sequence[bytes]
    """Those of the state machine."""
    terms: tuple[Term, ...]
    """The memberships; none if the members had never changed."""
    origin: Ballot
    """The highest origin of a batch, see `fencelock.actors.paxos.log.DecidedSlots`."""


def split(chunks: Sequence[bytes]) -> SnapshotContent:
    """Return what is in the chunks of a snapshot.

    Raises:
        ValueError: the last one, which has the state of the log, cannot be read.

    """
    if not chunks or not chunks[-1].startswith(CHANGE):
        return SnapshotContent(chunks, (), NO_BALLOT)  # A cluster that began with a backup.
    listed, *rest = _list(_load(chunks[-1]), 2)
    terms = tuple(_term(one) for one in _list(listed))
    sound = [term for term in terms if term is not None]
    origin = _ballot(rest[0]) if rest else None
    if len(sound) != len(terms) or len(sound) > 2:  # noqa: PLR2004
        raise ValueError("the members in the snapshot cannot be read")
    if origin is None:
        raise ValueError("the ballot in the snapshot cannot be read")
    return SnapshotContent(chunks[:-1], tuple(sound), origin)


def _load(content: bytes) -> Any:
    try:
        return json.loads(content[len(CHANGE) :])
    except (ValueError, RecursionError):
        return None


def _list(value: Any, length: int | None = None) -> list[Any]:
    if type(value) is not list or length not in (None, len(value)):  # pyright: ignore[reportUnknownArgumentType]
        return [None]
    items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    return items


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < NUMBER_MAX << 1


def _ballot(value: Any) -> Ballot | None:
    number, *rest = _list(value, 2)
    return Ballot(number, Address(rest[0])) if _number(number) and _text(*rest) else None


def _term(value: Any) -> Term | None:
    first, *rest = _list(value, 2)
    membership = _membership(rest[0]) if rest else None
    return Term(first, membership) if _number(first) and membership is not None else None


def _membership(value: Any) -> Membership | None:
    """Return the membership in ``value``, or None if it is not one."""
    number, *rest = _list(value, 2)
    listed = _list(rest[0]) if rest else []
    if not _number(number) or not 1 <= len(listed) <= MEMBERS_MAX:
        return None
    members = [_member(one) for one in listed]
    sound = tuple(member for member in members if member is not None)
    names = [member.name for member in sound]
    in_order = all(one < other for one, other in pairwise(names))
    return Membership(number, sound) if len(sound) == len(members) and in_order else None


def _member(value: Any) -> Member | None:
    name, *rest = _list(value, 3)
    if len(rest) != 2 or not _text(name) or not _text(rest[0]) or not _number(rest[1]):  # noqa: PLR2004
        return None
    return Member(name, *rest) if name and "/" not in name else None


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= TEXT_MAX
