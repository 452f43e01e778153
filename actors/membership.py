"""Members of a group that changes them, one at a time. Each votes under the journal it names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from fencelock.actors.message import Address, Int64

Mark = TypeVar("Mark", bound=int)

MEMBERS_MAX = 64
"""Maximum number of members; every leader sends each of them every slot."""


class Member(NamedTuple):
    """A node that votes under one journal."""

    name: str
    endpoint: str
    """The address at which other nodes reach it, empty if only the configuration has it."""
    journal: Int64


class Membership(NamedTuple):
    """All members after ``number`` changes, sorted by name."""

    number: int
    members: tuple[Member, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def voters(self) -> frozenset[tuple[str, int]]:
        """The names and journals of the members. Configurations may differ in endpoints."""
        return frozenset((member.name, member.journal) for member in self.members)

    def with_member(self, member: Member) -> Membership:
        return Membership(self.number + 1, tuple(sorted((*self.members, member))))

    def without(self, name: str) -> Membership:
        left = tuple(member for member in self.members if member.name != name)
        return Membership(self.number + 1, left)

    def is_next_of(self, before: Membership) -> bool:
        """Return whether this is ``before`` with one member more or less (views-overlap)."""
        changed = self.voters ^ before.voters
        return self.number == before.number + 1 and len(changed) == 1


class VoterIds:
    """The ids that the votes of members name, in a mapping that `Bootstrap` shares.

    `Bootstrap` removes members that run on old copies of their journals.

    Args:
        voters: the shared mapping, with the ids of those founders that may vote.
        id_of: returns the id that the votes of a member name.
        voter: returns the address of the role of a member that votes.
        founders: the founders, also those that may not vote.

    """

    def __init__(
        self,
        voters: dict[Address, int],
        id_of: Callable[[Member], int],
        voter: Callable[[str], Address],
        founders: Iterable[Member] = (),
    ) -> None:
        self.voters = voters
        self.id_of = id_of
        self.voter = voter
        self._ids = {**voters, **self._ids_of(founders)}

    def register(self, members: Iterable[Member]) -> None:
        """Let votes name the ids of the journals of ``members``, where these have changed."""
        wanted = self._ids_of(members)
        for voter in [one for one in self._ids if one not in wanted]:
            self.voters.pop(voter, None)
        changed = {one: wanted[one] for one in wanted if wanted[one] != self._ids.get(one)}
        self.voters.update(changed)
        self._ids = wanted

    def _ids_of(self, members: Iterable[Member]) -> dict[Address, int]:
        return {self.voter(member.name): self.id_of(member) for member in members}


def reached_by_majority(members: Collection[str], marks: Mapping[str, Mark]) -> Mark | None:
    """Return the highest of the ``marks`` that a majority of ``members`` has reached, if any."""
    ranked = sorted(map(marks.__getitem__, marks.keys() & members), reverse=True)
    majority = len(members) // 2 + 1
    return ranked[majority - 1] if len(ranked) >= majority else None
