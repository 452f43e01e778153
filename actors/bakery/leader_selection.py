"""Who shall lead: the rules of an election, without anybody's word on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencelock.actors.bakery.config import (
    LEADERS_MAX,
    OFF,
    exports_needed,
    majority,
    quorum,
)
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.message import Chosen, Seating


class Identity(NamedTuple):
    """What candidates are compared by, field by field; the smallest leads first.

    Source: the five parts of snaplock's id, which it joins to a text and compares as such.
    """

    priority: int
    random: int
    """Of this life, so that leading travels between nodes."""
    address: str
    pid: int
    name: str


class LeaderSelection(NamedTuple):
    """Whom to propose; nobody if there is nothing to change, or if it cannot be done."""

    leaders: tuple[Chosen, ...]
    why_not: str
    """What is missing for an election, by name and in words; empty if nothing is."""


NO_CHANGE = LeaderSelection((), "")


def identity_of(member: Member) -> Identity:
    """Return by what ``member`` is compared; its life is the random number of this boot."""
    return Identity(member.priority, member.life, member.node, member.pid, member.node)


def living(seating: Seating, members: Sequence[Member]) -> list[Chosen]:
    """Return the leaders of ``seating`` that are connected in the life they were chosen in."""
    lives = {member.node: member.life for member in members}
    return [leader for leader in seating.leaders if lives.get(leader.node) == leader.life]


def can_hand_over(seating: Seating, members: Sequence[Member]) -> bool:
    """Return whether enough leaders of ``seating`` live for all they agreed to be known."""
    needed = exports_needed(len(seating.leaders))
    return seating.epoch == 0 or len(living(seating, members)) >= needed


def choose(seating: Seating, members: Sequence[Member], configured: int) -> LeaderSelection:
    """Return who shall lead after ``seating``.

    A member that does not vote is never chosen. One that stops voting while it leads keeps
    its seat: what leaders agree on is in their memory, and not in their journals.

    Args:
        seating: who leads, or led, as far as is known.
        members: who is connected.
        configured: how many members there are in all.

    """
    voters = [member for member in members if member.votes]
    if len(voters) < majority(configured):
        return LeaderSelection((), _why_down(members, configured))
    candidates = sorted((m for m in voters if m.priority != OFF), key=identity_of)
    offered = [Chosen(member.node, member.life) for member in candidates]
    lacking = _why_too_few(len(offered), len(voters), configured)
    alive = living(seating, members)
    if seating.epoch == 0 or not can_hand_over(seating, members):
        return (
            LeaderSelection((), lacking)
            if lacking
            else LeaderSelection(tuple(_seats(alive, offered)), "")
        )
    return _change(seating, alive, offered, lacking, min(LEADERS_MAX, configured))


def _seats(alive: list[Chosen], offered: list[Chosen]) -> list[Chosen]:
    """Fill all seats, those who lead already first."""
    others = [one for one in offered if one not in alive]
    return [*alive, *others][:LEADERS_MAX]


def _change(
    seating: Seating, alive: list[Chosen], offered: list[Chosen], lacking: str, seats: int
) -> LeaderSelection:
    """Let whoever leads and lives stay, and fill one seat that is lost or was never filled."""
    if len(alive) == seats:
        return NO_CHANGE
    newcomer = next((one for one in offered if one not in alive), None)
    if newcomer is not None:
        return LeaderSelection((*alive, newcomer), "")
    if len(alive) >= quorum(len(seating.leaders)):
        return NO_CHANGE
    return LeaderSelection(
        (), lacking or f"{len(alive)} of {len(seating.leaders)} leaders are connected"
    )


def _why_down(members: Sequence[Member], configured: int) -> str:
    text = f"cluster is down: {len(members)} of {configured} members are connected"
    silent = [member.node for member in members if not member.votes]
    if not silent:
        return f"{text}, {majority(configured)} are needed"
    verb = "does" if len(silent) == 1 else "do"
    names = ", ".join(silent)
    return f"{text}, of which {names} {verb} not vote; {majority(configured)} voters are needed"


def _why_too_few(candidates: int, connected: int, configured: int) -> str:
    """Return why these candidates cannot fill the seats, empty if they can."""
    least = min(2, configured)
    seats = min(LEADERS_MAX, configured)
    if connected == configured and candidates < seats:
        return (
            f"too few candidates: {configured - candidates} of {configured} members have "
            f"priority off, which leaves {candidates} for {seats} seats"
        )
    if candidates < least:
        return f"too few candidates: {candidates} connected, {least} are needed"
    return ""
