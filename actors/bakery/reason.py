"""Whether locks can be granted and, if not, the missing condition in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.bakery.config import quorum
from fencelock.actors.bakery.event import Member, Readiness
from fencelock.actors.bakery.leader_selection import can_hand_over, choose
from fencelock.actors.bakery.message import Chosen, Seating
from fencelock.actors.role_message import Leaders

MS_PER_S = 1_000


def readiness(
    seating: Seating, seen: Sequence[Member], configured: int, *, heeded: bool
) -> Readiness:
    """Return the readiness for a proxy.

    Args:
        seating: the highest that this node knows.
        seen: the connected members.
        configured: number of members in the configuration.
        heeded: whether a majority heeded the seating lately.

    """
    missing = _missing(seating, seen, configured, heeded=heeded)
    return Readiness(
        epoch=seating.epoch,
        leaders=seating.leaders,
        reachable=tuple(member.node for member in seen),
        ready=not missing,
        detail=missing or "ready",
        members=tuple(member._replace(waiting_ms=0) for member in seen),
    )


def leadership(node: str, epoch: int, leaders: Sequence[Chosen]) -> Leaders:
    """Return what a role of ``node`` replies to `ReadLeaders`."""
    names = tuple(leader.node for leader in leaders)
    return Leaders(leaders=names, number=epoch, here=node in names)


def _missing(seating: Seating, seen: Sequence[Member], configured: int, *, heeded: bool) -> str:
    """Return the first condition that is not met, in words; empty if all are."""
    choice = choose(seating, seen, configured)
    if choice.why_not:
        return choice.why_not
    waiting_ms = max((member.waiting_ms for member in seen), default=0)
    if waiting_ms > 0:
        seconds = -(-waiting_ms // MS_PER_S)
        return (
            "too many leaders were lost at once: nobody knows who holds what, so every lease "
            f"must be over first, in {seconds} s at most"
        )
    if seating.epoch == 0:
        return "no leaders yet: an election is under way"
    names = ", ".join(leader.node for leader in seating.leaders)
    if not can_hand_over(seating, seen) or not heeded:
        return f"an election is under way: epoch {seating.epoch}, led by {names}, is over"
    serving = sum(member.serving == seating.epoch for member in seen)
    if serving < quorum(len(seating.leaders)):
        return f"hand-over: {serving} of the leaders {names} serve in epoch {seating.epoch}"
    return ""
