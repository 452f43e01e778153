"""Electorates of `bakery` for tests."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.leader_selection import LeaderSelection, choose
from fencelock.actors.bakery.message import Seating
from fencelock.actors.membership import Member as Seat


def seats(*names: str) -> tuple[Seat, ...]:
    """Return members with the journals 1, 2, and so on."""
    return tuple(Seat(name, "", number) for number, name in enumerate(sorted(names), 1))


def chosen(seating: Seating, members: Sequence[Member], configured: int) -> LeaderSelection:
    """Return the leaders that follow ``seating``, of which all are among the members.

    Args:
        seating: the present leaders.
        members: the connected members.
        configured: the number of members, with those that are not connected.

    """
    leaders = [leader.node for leader in seating.leaders]
    others = [*leaders, *(f"x{number}" for number in range(configured))]
    names = dict.fromkeys([*(member.node for member in members), *others])
    return choose(seating, members, Electorate(0, seats(*list(names)[:configured])))
