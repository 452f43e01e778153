"""The members that decide about leaders, and how they change: one at a time, with each seating.

A majority of the members promises each epoch, must know its seating before it serves, keeps its
leaders trusted, and knows the longest lease. A change of the members may let two majorities decide
that share no member. So each seating has an *electorate*: the members, and during a change also
those before it. Whatever takes a majority takes one of each (a *quorum* of the electorate).

The coordinator makes a change by two steps.

1. It proposes an epoch with the same leaders, or those that stay, whose electorate is the next one:
   the new members, and as ``former`` those of its own seating. That must have no ``former`` itself.
2. Whoever sees that a quorum of both knows this seating durably and promised nothing higher (it is
   *in force*) drops ``former``. It writes that down, and its beats carry it to the others. No
   further epoch is needed.

A coordinator gives up a proposal once it knows of a seating above the one that it follows: that may
have other members. And nobody promises an electorate of fewer changes than it knows.

Why no two sets of leaders serve that do not know each other (one-seating-an-epoch,
seating-known-by-majority): let the seating ``s`` be in force, ``e`` a higher epoch that a quorum of
its electorate promised, and suppose that none of these reported ``s`` or a higher seating. Take the
lowest such ``e``, and for it the lowest such ``s``. Then the seating that ``e`` follows and ``s``
itself both descend from the highest seating in force below ``s``, call it ``g``, since every lower
epoch found the one that was in force. If the electorate of ``g`` is settled, all that follow ``g``
have its members, or change them once: to drop ``former`` takes another seating in force. So each of
their quorums includes a majority of the members of ``g``. If ``g`` has a ``former``, what follows
has the same electorate, or its new members alone, or these and a further change. So each quorum
includes a majority of the new members of ``g``. In both cases the quorum that knew ``s`` and the
one that promised ``e`` share a member. It promised ``e`` after it knew ``s``, since ``s`` was the
highest it had promised when it was counted. So it reported ``s``.

A voter is a member with one journal, and a member that was removed remembers what it promised. It
never counts again: no electorate that follows names it, and an electorate that names it (a node may
not know of the change) has no quorum without a member that reports the newer seating.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

from fencelock.actors.api.membership_message import NODE_ID, is_endpoint
from fencelock.actors.membership import MEMBERS_MAX, Member, Membership, reached_by_majority
from fencelock.actors.message import Int64

ELECTORATE_NUMBER_MAX = 1 << 62
"""Maximum number of changes; journal ids stay below twice this."""


class Electorate(NamedTuple):
    """The members after ``number`` changes; and ``former``, those before, if both must agree."""

    number: Int64
    members: tuple[Member, ...]
    """Sorted by name; empty in messages for the founders, whom every node knows."""
    former: tuple[Member, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def everyone(self) -> dict[str, Member]:
        """All that take part in votes, by name; a former member that stays is the same."""
        seats = {member.name: member for member in (*self.former, *self.members)}
        return dict(sorted(seats.items()))

    def seat_of(self, name: str) -> Member | None:
        """Return the member of that name among all that take part in votes."""
        return next((one for one in (*self.members, *self.former) if one.name == name), None)

    @property
    def groups(self) -> tuple[tuple[Member, ...], ...]:
        return (self.members, self.former) if self.former else (self.members,)

    def reached(self, marks: Mapping[str, int]) -> int | None:
        """Return the highest of the ``marks`` of nodes that a quorum has reached, if any."""
        reached = [
            reached_by_majority([member.name for member in group], marks) for group in self.groups
        ]
        known = [mark for mark in reached if mark is not None]
        return min(known) if len(known) == len(reached) else None

    def is_quorum(self, nodes: Collection[str]) -> bool:
        return self.reached(dict.fromkeys(nodes, 0)) is not None

    @property
    def membership(self) -> Membership:
        return Membership(self.number, self.members)

    @property
    def before(self) -> Membership:
        return Membership(self.number - 1, self.former)

    def settled(self) -> Electorate:
        """Return the electorate once its seating is in force."""
        return self._replace(former=())

    def with_member(self, member: Member) -> Electorate:
        return self._next(self.membership.with_member(member))

    def without(self, name: str) -> Electorate:
        return self._next(self.membership.without(name))

    def _next(self, membership: Membership) -> Electorate:
        return Electorate(membership.number, membership.members, self.members)

    def is_next_of(self, known: Electorate) -> bool:
        """Return whether this changes one member of ``known``, which is settled."""
        follows = self.before.voters == known.membership.voters
        return not known.former and follows and self.is_one_change()

    def is_one_change(self) -> bool:
        return self.membership.is_next_of(self.before)

    def as_sent(self) -> Electorate:
        """Return this electorate as messages and records have it."""
        return self if self.number else FOUNDERS


FOUNDERS = Electorate(0, ())
"""The founders, in messages and records."""


def is_sound(electorate: Electorate) -> bool:
    number, members, former = electorate
    if number == 0:
        return electorate == FOUNDERS
    return (
        0 < number < ELECTORATE_NUMBER_MAX
        and bool(members)
        and all(_is_group(group) for group in (members, former))
        and (not former or electorate.is_one_change())
    )


def can_follow(later: Electorate, known: Electorate, epoch: int) -> bool:
    """Return whether an honest member that knows ``later``, with ``epoch``, can exist beside this.

    Each change of the members takes an epoch, and adds or removes one voter. So two electorates
    differ in no more voters than there are changes between them. ``known`` may have been given up
    while two groups had to agree; then what follows begins with its ``former``.
    """
    begins = [known.membership, known.before] if known.former else [known.membership]
    voters = later.membership.voters
    return later.number <= epoch and any(
        len(voters ^ begin.voters) <= later.number - begin.number for begin in begins
    )


def _is_group(members: tuple[Member, ...]) -> bool:
    in_order = all(one.name < other.name for one, other in pairwise(members))
    return len(members) <= MEMBERS_MAX and in_order and all(map(_is_member, members))


def _is_member(member: Member) -> bool:
    named = NODE_ID.fullmatch(member.name[:33]) is not None
    reached = not member.endpoint or is_endpoint(member.endpoint)
    return named and reached and 0 <= member.journal < ELECTORATE_NUMBER_MAX << 1
