"""Rules by which leaders are chosen, and the conditions that are missing, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from fencelock.actors.api.role_request import Leaders
from fencelock.actors.bakery.config import COPIES_FROM, LEADERS_MAX, OFF, exports_needed, quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.message import Chosen, Member, Seating


class Identity(NamedTuple):
    """Fields by which candidates are compared, in order; the smallest leads first.

    Source: four of the five parts of snaplock's id, which it joins to a text and compares as such.
    The fifth, the address, decides nothing, since names are unique.
    """

    priority: int
    random: int
    """Random number of this life, so that leadership moves between nodes."""
    pid: int
    name: str


class LeaderSelection(NamedTuple):
    """The leaders to propose; empty if no change is needed or possible."""

    leaders: tuple[Chosen, ...]
    why_not: str
    """Text that names the missing condition of an election; empty if there is none."""
    deaf: bool = False
    """Whether they are proposed only because the present ones do not reach each other."""


NO_CHANGE = LeaderSelection((), "")


def identity_of(member: Member) -> Identity:
    """Return the fields by which ``member`` is compared; its life is the random number."""
    return Identity(member.priority, member.life, member.pid, member.node)


def candidates_of(members: Sequence[Member], electorate: Electorate) -> list[Member]:
    """Return the connected ``members`` that may be elected, the best first."""
    names = frozenset(electorate.names)
    offered = (one for one in members if one.votes and one.node in names and one.priority != OFF)
    return sorted(offered, key=identity_of)


def coordinator_of(members: Sequence[Member], electorate: Electorate) -> str:
    """Return the smallest voter that reaches a quorum, or an empty text if none does.

    A smaller one that reaches only some members could not have leaders elected.
    """
    for member in members:
        reached = [member.node, *(one.node for one in member.reaches)]
        if member.votes and electorate.is_quorum(reached):
            return member.node
    return ""


def living(seating: Seating, members: Sequence[Member], electorate: Electorate) -> list[Chosen]:
    """Return the leaders of ``seating`` that are connected, in the life in which they were chosen.

    A leader that this node does not reach counts if voters reach it that are a quorum with it. Two
    coordinators that each do not reach a leader of the other would else replace them in turns.
    """
    lives = {member.node: member.life for member in members}

    def lives_on(leader: Chosen) -> bool:
        if leader.node in lives:
            return lives[leader.node] == leader.life
        witnesses = [one.node for one in members if one.votes and leader in one.reaches]
        return electorate.is_quorum([leader.node, *witnesses])

    return [leader for leader in seating.leaders if lives_on(leader)]


def copies_for(
    leaders: Sequence[Chosen], seating: Seating, members: Sequence[Member], electorate: Electorate
) -> tuple[Chosen, ...]:
    """Return the members that are to keep copies beside ``leaders``, after ``seating``.

    A keeper that is not connected stays one, in the life that kept the table. Otherwise two
    coordinators that do not see the same members would replace each other's keepers forever.
    """
    if len(electorate.members) < COPIES_FROM:
        return ()
    lives = {one.node: one for one in seating.keepers}
    lives |= {one.node: one.chosen for one in members if one.votes}
    leading = {one.node for one in leaders}
    return tuple(lives[name] for name in electorate.names if name in lives and name not in leading)


def has_tables(former: Seating, members: Sequence[Member]) -> bool:
    """Return whether enough keepers of ``former`` live to know all that was held."""
    known = {member.chosen for member in members}
    return len(known & {*former.keepers}) >= exports_needed(len(former.keepers))


def can_merge(former: Seating, keepers: Sequence[Chosen], members: Sequence[Member]) -> bool:
    """Return whether a quorum of ``keepers`` reaches enough of those of ``former``.

    It is not known of a keeper that this node does not reach.
    """
    needed = exports_needed(len(former.keepers)) if former.keepers else 0
    known = {member.chosen: member for member in members}

    def reaches_enough(keeper: Chosen) -> bool:
        member = known.get(keeper)
        if member is None:
            return False
        return len({keeper, *member.reaches} & {*former.keepers}) >= needed

    return sum(map(reaches_enough, keepers)) >= quorum(len(keepers))


def working(
    leaders: Sequence[Chosen], members: Sequence[Member], electorate: Electorate
) -> tuple[int, int]:
    """Return how many of ``leaders`` can grant locks, and how many pairs of them are connected.

    A leader needs a quorum of the electorate that trusts it, and enough of the other leaders. Two
    leaders of which this node reaches neither are assumed to reach each other.
    """
    known = {one.chosen: one.reaches for one in members}

    def connected(one: Chosen, other: Chosen) -> bool:
        return (one not in known or other in known[one]) and (
            other not in known or one in known[other]
        )

    def is_trusted(one: Chosen) -> bool:
        reached = known.get(one)
        return reached is None or electorate.is_quorum([one.node, *(each.node for each in reached)])

    others = quorum(len(leaders)) - 1
    degrees = [sum(connected(one, other) for other in leaders if other != one) for one in leaders]
    able = sum(
        degree >= others and is_trusted(one) for one, degree in zip(leaders, degrees, strict=True)
    )
    return able, sum(degrees) // 2


def choose(seating: Seating, members: Sequence[Member], electorate: Electorate) -> LeaderSelection:
    """Return the leaders that should follow ``seating``.

    A non-voting member is never chosen. One that stops voting while it leads keeps its seat:
    what leaders agree on is in their memory, and not in their journals. One that is a member no
    longer gives its seat up. Leaders that do not reach each other are replaced if others do.
    """
    voters = [member for member in members if member.votes]
    configured = len(electorate.members)
    if not electorate.is_quorum([voter.node for voter in voters]):
        return LeaderSelection((), _why_down(members, electorate))
    staying = frozenset(electorate.names)
    voters = [voter for voter in voters if voter.node in staying]
    offered = [one.chosen for one in candidates_of(voters, electorate)]
    lacking = _why_too_few(len(offered), len(voters), configured)
    lives = living(seating, members, electorate)
    alive = [leader for leader in lives if leader.node in staying]
    teams = Teams(seating, members, electorate, alive, offered)
    if seating.epoch == 0 or len(lives) < exports_needed(len(seating.leaders)):
        return LeaderSelection((), lacking) if lacking else LeaderSelection(teams.best(), "")
    leaves = any(leader.node not in staying for leader in seating.leaders)
    return teams.change(lacking, leaves=leaves)


def as_voting(members: Sequence[Member], electorate: Electorate) -> list[Member]:
    """Return ``members`` as they vote once ``electorate`` is in force: new ones do, too."""
    joins = {*electorate.names} - {seat.name for seat in electorate.former}
    return [one._replace(votes=one.votes or one.node in joins) for one in members]


NEWCOMERS_MAX = 9
"""Maximum candidates that are compared as leaders: those that reach most members."""


class Teams:
    """The sets of leaders that could follow ``seating``.

    Of the present ones those of ``alive`` may stay; the best of ``offered`` comes first.
    """

    def __init__(
        self,
        seating: Seating,
        members: Sequence[Member],
        electorate: Electorate,
        alive: list[Chosen],
        offered: list[Chosen],
    ) -> None:
        self.seating, self.members, self.electorate = seating, members, electorate
        self.alive = alive
        self.seats = min(LEADERS_MAX, len(electorate.members))
        reached = {one.chosen: len(one.reaches) for one in members}
        others = [one for one in offered if one not in alive]
        self.newcomers = sorted(others, key=lambda one: -reached[one])[:NEWCOMERS_MAX]

    def best(self) -> tuple[Chosen, ...]:
        """Return the leaders that work together best, and of these as many present ones as may be.

        Leaders that can take over the tables come before all others.
        """
        everyone = [*self.alive, *self.newcomers]
        sets = combinations(everyone, min(self.seats, len(everyone)))

        def worth(leaders: tuple[Chosen, ...]) -> tuple[bool, tuple[int, int], int]:
            stay = sum(leader in self.alive for leader in leaders)
            return self.can_merge(leaders), self.work(leaders), stay

        return max(sets, key=worth, default=())  # The first of equals, in order of identity.

    def work(self, leaders: Sequence[Chosen]) -> tuple[int, int]:
        return working(leaders, self.members, self.electorate)

    def can_merge(self, leaders: Sequence[Chosen]) -> bool:
        return can_merge(self.seating, leaders, self.members)

    def change(self, lacking: str, *, leaves: bool) -> LeaderSelection:
        """Keep the leaders that live, and fill one seat that was lost, given up, or never filled.

        If some of them do not reach enough of the others, all seats are filled with those that do.
        """
        alive, works = self.alive, self.work(self.alive)[0]
        if works < len(alive):
            best = self.best()
            better = self.work(best)[0] > works
            if better and (self.can_merge(best) or works < quorum(len(alive))):
                return LeaderSelection(best, "", deaf=True)
        if len(alive) < self.seats:
            filled = ((*alive, newcomer) for newcomer in self.newcomers)
            if chosen := max(filter(self.can_merge, filled), key=self.work, default=()):
                return LeaderSelection(chosen, "")
        elif not leaves:
            return NO_CHANGE
        led = len(self.seating.leaders)
        if len(alive) >= quorum(led) or (leaves and alive and not lacking):
            return LeaderSelection(tuple(alive), "") if leaves else NO_CHANGE
        if self.newcomers and not lacking:  # Nobody can take the tables over: leases must end.
            return LeaderSelection(self.best(), "")
        return LeaderSelection((), lacking or f"{len(alive)} of {led} leaders are connected")


def _why_down(connected: Sequence[Member], electorate: Electorate) -> str:
    members = [member for member in connected if member.node in electorate.everyone]
    needed = quorum(len(electorate.members))
    text = f"cluster is down: {len(members)} of {len(electorate.everyone)} members are connected"
    silent = [member.node for member in members if not member.votes]
    if electorate.former:
        text = f"{text} while they change"
    if not silent:
        return f"{text}, {needed} are needed"
    return (
        f"{text}, of which {_do_not_vote(silent)}; {needed} voters are needed. If their disks were "
        'lost, see "Loss of a majority" in docs/operations.md'
    )


def _do_not_vote(silent: Sequence[str]) -> str:
    verb = "does" if len(silent) == 1 else "do"
    return f"{', '.join(silent)} {verb} not vote"


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
    seating: Seating, seen: Sequence[Member], electorate: Electorate, *, obeyed: bool
) -> Readiness:
    """Return whether leaders serve, and if not the missing condition, as proxies are sent it.

    Leaders are ``obeyed`` if a majority accepted beats of the seating recently.
    """
    missing = _missing(seating, seen, electorate, obeyed=obeyed)
    silent = [one.node for one in seen if one.node in electorate.everyone and not one.votes]
    advice = f", but {_do_not_vote(silent)}: fencelock members says what to run" if silent else ""
    return Readiness(
        seating=seating,
        members=tuple(member._replace(waiting_ms=0) for member in seen),
        ready=not missing,
        detail=missing or f"ready{advice}",
        electorate=electorate,
    )


def leadership(node: str, epoch: int, leaders: Sequence[Chosen]) -> Leaders:
    names = tuple(leader.node for leader in leaders)
    return Leaders(leaders=names, number=epoch, here=node in names)


def names_of(leaders: Sequence[Chosen]) -> str:
    return ", ".join(leader.node for leader in leaders)


def _missing(
    seating: Seating, seen: Sequence[Member], electorate: Electorate, *, obeyed: bool
) -> str:
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
    alive = living(seating, seen, electorate)
    if len(alive) < exports_needed(len(seating.leaders)) or not obeyed:
        return f"an election is under way: epoch {seating.epoch}, led by {names}, is over"
    if working(alive, seen, electorate)[0] < quorum(len(seating.leaders)):
        return f"the leaders {names} do not reach each other"
    serving = sum(member.serving == seating.epoch for member in seen)
    if serving < quorum(len(seating.leaders)):
        return f"hand-over: {serving} of the leaders {names} serve in epoch {seating.epoch}"
    return ""
