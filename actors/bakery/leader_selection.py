"""Rules by which leaders are chosen, and the conditions that are missing, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencelock.actors.bakery.config import LEADERS_MAX, OFF, exports_needed, majority, quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Member, Readiness
from fencelock.actors.bakery.message import Chosen, Seating
from fencelock.actors.role_message import Leaders


class Identity(NamedTuple):
    """Fields by which candidates are compared, in order; the smallest leads first.

    Source: the five parts of snaplock's id, which it joins to a text and compares as such.
    """

    priority: int
    random: int
    """Random number of this life, so that leadership moves between nodes."""
    address: str
    pid: int
    name: str


class LeaderSelection(NamedTuple):
    """The leaders to propose; empty if no change is needed or possible."""

    leaders: tuple[Chosen, ...]
    why_not: str
    """Text that names the missing condition of an election; empty if there is none."""


NO_CHANGE = LeaderSelection((), "")


def identity_of(member: Member) -> Identity:
    """Return the fields by which ``member`` is compared; its life is the random number."""
    return Identity(member.priority, member.life, member.node, member.pid, member.node)


def living(seating: Seating, members: Sequence[Member]) -> list[Chosen]:
    """Return the leaders of ``seating`` that are connected in the life they were chosen in."""
    lives = {member.node: member.life for member in members}
    return [leader for leader in seating.leaders if lives.get(leader.node) == leader.life]


def can_hand_over(seating: Seating, members: Sequence[Member]) -> bool:
    """Return whether enough leaders of ``seating`` live to know everything they agreed."""
    needed = exports_needed(len(seating.leaders))
    return seating.epoch == 0 or len(living(seating, members)) >= needed


def choose(seating: Seating, members: Sequence[Member], electorate: Electorate) -> LeaderSelection:
    """Return the leaders that should follow ``seating``.

    A non-voting member is never chosen. One that stops voting while it leads keeps its seat:
    what leaders agree on is in their memory, and not in their journals. One that is a member no
    longer gives its seat up.

    Args:
        seating: the present or last leaders, as far as is known.
        members: the connected nodes.
        electorate: the members; with those before, while a change of them is not in force.

    """
    voters = [member for member in members if member.votes]
    configured = len(electorate.members)
    if not electorate.is_quorum([voter.node for voter in voters]):
        return LeaderSelection((), _why_down(members, electorate))
    staying = frozenset(electorate.names)
    voters = [voter for voter in voters if voter.node in staying]
    candidates = sorted((m for m in voters if m.priority != OFF), key=identity_of)
    offered = [Chosen(member.node, member.life) for member in candidates]
    lacking = _why_too_few(len(offered), len(voters), configured)
    alive = [leader for leader in living(seating, members) if leader.node in staying]
    if seating.epoch == 0 or not can_hand_over(seating, members):
        return (
            LeaderSelection((), lacking)
            if lacking
            else LeaderSelection(tuple(_seats(alive, offered)), "")
        )
    leaves = any(leader.node not in staying for leader in seating.leaders)
    return _change(seating, alive, offered, lacking, min(LEADERS_MAX, configured), leaves=leaves)


def _seats(alive: list[Chosen], offered: list[Chosen]) -> list[Chosen]:
    """Fill all seats, beginning with those that lead already."""
    others = [one for one in offered if one not in alive]
    return [*alive, *others][:LEADERS_MAX]


def _change(
    seating: Seating,
    alive: list[Chosen],
    offered: list[Chosen],
    lacking: str,
    seats: int,
    *,
    leaves: bool,
) -> LeaderSelection:
    """Keep the leaders that live, and fill one seat that was lost, given up, or never filled."""
    if len(alive) == seats and not leaves:
        return NO_CHANGE
    newcomer = next((one for one in offered if one not in alive), None)
    if newcomer is not None and len(alive) < seats:
        return LeaderSelection((*alive, newcomer), "")
    if len(alive) >= quorum(len(seating.leaders)) or (leaves and alive and not lacking):
        return LeaderSelection(tuple(alive), "") if leaves else NO_CHANGE
    return LeaderSelection(
        (), lacking or f"{len(alive)} of {len(seating.leaders)} leaders are connected"
    )


def _why_down(connected: Sequence[Member], electorate: Electorate) -> str:
    members = [member for member in connected if member.node in electorate.everyone]
    needed = majority(len(electorate.members))
    text = f"cluster is down: {len(members)} of {len(electorate.everyone)} members are connected"
    silent = [member.node for member in members if not member.votes]
    if electorate.former:
        text = f"{text} while they change"
    if not silent:
        return f"{text}, {needed} are needed"
    verb = "does" if len(silent) == 1 else "do"
    names = ", ".join(silent)
    return f"{text}, of which {names} {verb} not vote; {needed} voters are needed"


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


MS_PER_S = 1_000


def readiness(
    seating: Seating, seen: Sequence[Member], electorate: Electorate, *, heeded: bool
) -> Readiness:
    """Return whether leaders serve, and if not the missing condition, as proxies are sent it.

    Args:
        seating: the highest that this node knows.
        seen: the connected members.
        electorate: the members.
        heeded: whether a majority accepted beats of the seating lately.

    """
    missing = _missing(seating, seen, electorate, heeded=heeded)
    return Readiness(
        epoch=seating.epoch,
        leaders=seating.leaders,
        reachable=tuple(member.node for member in seen),
        ready=not missing,
        detail=missing or "ready",
        members=tuple(member._replace(waiting_ms=0) for member in seen),
        electorate=electorate,
    )


def leadership(node: str, epoch: int, leaders: Sequence[Chosen]) -> Leaders:
    """Return the reply of a role of ``node`` to `ReadLeaders`."""
    names = tuple(leader.node for leader in leaders)
    return Leaders(leaders=names, number=epoch, here=node in names)


def names_of(leaders: Sequence[Chosen]) -> str:
    """Return the nodes of ``leaders``, in order of rank."""
    return ", ".join(leader.node for leader in leaders)


def _missing(
    seating: Seating, seen: Sequence[Member], electorate: Electorate, *, heeded: bool
) -> str:
    """Return a text that names the first unmet condition, or an empty text if there is none."""
    choice = choose(seating, seen, electorate)
    if choice.why_not:
        return choice.why_not
    waiting_ms = max((member.waiting_ms for member in seen), default=0)
    if waiting_ms > 0:
        seconds = -(-waiting_ms // MS_PER_S)
        return (
            "too many leaders were lost at once, and the holders with them: every lease "
            f"must be over first, in {seconds} s at most"
        )
    if seating.epoch == 0:
        return "no leaders yet: an election is under way"
    names = names_of(seating.leaders)
    if not can_hand_over(seating, seen) or not heeded:
        return f"an election is under way: epoch {seating.epoch}, led by {names}, is over"
    serving = sum(member.serving == seating.epoch for member in seen)
    if serving < quorum(len(seating.leaders)):
        return f"hand-over: {serving} of the leaders {names} serve in epoch {seating.epoch}"
    return ""
