"""Rules by which leaders are chosen, and the conditions that are missing, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from fencelock.actors.api.role_request import Leaders
from fencelock.actors.bakery.config import COPIES_FROM, LEADERS_MAX, OFF, exports_needed, quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.wire import Chosen, Member, Seating
from fencelock.actors.message import MS_PER_S


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


class ClusterView(NamedTuple):
    """The present or last leaders, and the members, as one node sees them."""

    seating: Seating
    members: Sequence[Member]
    """The connected nodes."""
    electorate: Electorate
    """The members; with those before, while a change of them is not in force."""

    def candidates(self) -> list[Member]:
        """Return the connected members that may be elected, the best first."""
        names = frozenset(self.electorate.names)
        offered = (one for one in self.members if one.votes and one.node in names)
        return sorted((one for one in offered if one.priority != OFF), key=identity_of)

    def coordinator(self) -> str:
        """Return the smallest voter that reaches a quorum, or an empty text if none does.

        A smaller one that reaches only some members could not have leaders elected.
        """
        for member in self.members:
            reached = [member.node, *(one.node for one in member.reaches)]
            if member.votes and self.electorate.is_quorum(reached):
                return member.node
        return ""

    def living(self) -> list[Chosen]:
        """Return the leaders that are connected, in the life in which they were chosen.

        A leader that this node does not reach counts if voters reach it that are a quorum with it.
        Two coordinators that each do not reach a leader of the other would else replace them in
        turns.
        """
        lives = {member.node: member.life for member in self.members}

        def lives_on(leader: Chosen) -> bool:
            if leader.node in lives:
                return lives[leader.node] == leader.life
            witnesses = [one.node for one in self.members if one.votes and leader in one.reaches]
            return self.electorate.is_quorum([leader.node, *witnesses])

        return [leader for leader in self.seating.leaders if lives_on(leader)]

    def copies_for(self, leaders: Sequence[Chosen]) -> tuple[Chosen, ...]:
        """Return the members that are to keep copies beside ``leaders``, in the next seating.

        A keeper that is not connected stays one, in the life that kept the table. Otherwise two
        coordinators that do not see the same members would replace each other's keepers forever.
        One that is connected in another life has lost its table, and must vote to get one again.
        """
        members = self.electorate.names
        if len(members) < COPIES_FROM:
            return ()
        here = {one.node: one.life for one in self.members}
        kept = (one for one in self.seating.keepers if here.get(one.node, one.life) == one.life)
        lives = {one.node: one for one in kept}
        lives |= {one.node: one.chosen for one in self.members if one.votes}
        leading = {one.node for one in leaders}
        return tuple(lives[name] for name in members if name in lives and name not in leading)

    def has_tables(self) -> bool:
        """Return whether enough keepers live to know all that was held."""
        keepers = self.seating.keepers
        known = {member.chosen for member in self.members}
        return len(known & {*keepers}) >= exports_needed(len(keepers))

    def can_merge(self, next_keepers: Sequence[Chosen]) -> bool:
        """Return whether a quorum of ``next_keepers`` reaches enough of the present ones.

        It is not known of a keeper that this node does not reach.
        """
        keepers = self.seating.keepers
        needed = exports_needed(len(keepers)) if keepers else 0
        known = {member.chosen: member for member in self.members}
        able = sum(
            len({keeper, *known[keeper].reaches} & {*keepers}) >= needed
            for keeper in next_keepers
            if keeper in known
        )
        return able >= quorum(len(next_keepers))

    def working(self, leaders: Sequence[Chosen]) -> tuple[int, int]:
        """Return how many of ``leaders`` can grant locks, and how many pairs are connected.

        A leader needs a quorum of the electorate that trusts it, and enough of the other leaders.
        Two leaders of which this node reaches neither are assumed to reach each other.
        """
        known = {one.chosen: one.reaches for one in self.members}

        def connected(one: Chosen, other: Chosen) -> bool:
            return other in known.get(one, (other,)) and one in known.get(other, (one,))

        def is_trusted(one: Chosen) -> bool:
            reached = [one.node, *(each.node for each in known.get(one, ()))]
            return one not in known or self.electorate.is_quorum(reached)

        others = quorum(len(leaders)) - 1
        degrees = {
            one: sum(connected(one, other) for other in leaders if other != one) for one in leaders
        }
        able = sum(degree >= others and is_trusted(one) for one, degree in degrees.items())
        return able, sum(degrees.values()) // 2

    def with_electorate(self, electorate: Electorate) -> ClusterView:
        """Return this view once ``electorate`` is in force: its new members vote, too."""
        joins = {*electorate.names} - {seat.name for seat in electorate.former}
        members = [one._replace(votes=one.votes or one.node in joins) for one in self.members]
        return ClusterView(self.seating, members, electorate)

    def choose(self) -> LeaderSelection:
        """Return the leaders that should follow.

        A non-voting member is never chosen. One that stops voting while it leads keeps its seat:
        what leaders agree on is in their memory, and not in their journals. One that is a member no
        longer gives its seat up. Leaders that do not reach each other are replaced if others do.
        """
        voters = [member.node for member in self.members if member.votes]
        if not self.electorate.is_quorum(voters):
            return LeaderSelection((), _why_down(self.members, self.electorate))
        staying = frozenset(self.electorate.names)
        offered = [one.chosen for one in self.candidates()]
        here = sum(voter in staying for voter in voters)
        lacking = _why_too_few(len(offered), here, len(staying))
        lives, led = self.living(), self.seating.leaders
        alive = [leader for leader in lives if leader.node in staying]
        teams = Teams(self, alive, offered)
        if self.seating.epoch == 0 or len(lives) < exports_needed(len(led)):
            return LeaderSelection((), lacking) if lacking else LeaderSelection(teams.best(), "")
        return teams.change(lacking, leaves=any(leader.node not in staying for leader in led))

    def reelected(self) -> tuple[Chosen, ...]:
        """Return the leaders to propose if a quorum no longer obeys the present ones.

        They are the same ones, unless one was lost: two of three go on without the third as long as
        they are obeyed, also where nobody could take its seat, since too few tables are left.
        """
        alive = self.living()
        if len(alive) == len(self.seating.leaders):
            return self.seating.leaders
        return Teams(self, alive, [one.chosen for one in self.candidates()]).best()

    def why_not_ready(self, *, obeyed: bool) -> str:
        """Return the condition that is missing for leaders to serve, in words.

        Leaders are ``obeyed`` if a majority accepted beats of the seating recently.
        """
        if why_not := self.choose().why_not:
            return why_not
        waiting_ms = max((member.waiting_ms for member in self.members), default=0)
        if waiting_ms > 0:
            seconds = -(-waiting_ms // MS_PER_S)
            return (
                "too many leaders were lost at once, and the holders with them: every lease "
                f"must be over first, in {seconds} s at most"
            )
        epoch, leaders = self.seating.epoch, self.seating.leaders
        if epoch == 0:
            return "no leaders yet: an election is under way"
        names, alive = names_of(leaders), self.living()
        if len(alive) < exports_needed(len(leaders)) or not obeyed:
            return f"an election is under way: epoch {epoch}, led by {names}, is over"
        if self.working(alive)[0] < quorum(len(leaders)):
            return f"the leaders {names} do not reach each other"
        serving = sum(member.serving == epoch for member in self.members)
        if serving < quorum(len(leaders)):
            return f"hand-over: {serving} of the leaders {names} serve in epoch {epoch}"
        return ""

    def advice(self) -> str:
        """Return what an operator can do about members that do not vote, empty if all do."""
        names = self.electorate.everyone
        silent = [one.node for one in self.members if one.node in names and not one.votes]
        if not silent:
            return ""
        return f", but {_do_not_vote(silent)}: fencelock members says what to run"


NEWCOMERS_MAX = 9
"""Maximum candidates that are compared as leaders: those that reach most members."""


class Teams:
    """The sets of leaders that could follow those of ``view``.

    Of the present ones those of ``alive`` may stay; the best of ``offered`` comes first.
    """

    def __init__(self, view: ClusterView, alive: list[Chosen], offered: list[Chosen]) -> None:
        self.view, self.alive = view, alive
        self.seats = min(LEADERS_MAX, len(view.electorate.members))
        reached = {one.chosen: len(one.reaches) for one in view.members}
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
            return self.view.can_merge(leaders), self.view.working(leaders), stay

        return max(sets, key=worth, default=())  # The first of equals, in order of identity.

    def change(self, lacking: str, *, leaves: bool) -> LeaderSelection:
        """Keep the leaders that live, and fill one seat that was lost, given up, or never filled.

        If some of them do not reach enough of the others, all seats are filled with those that do.
        """
        alive, view = self.alive, self.view
        works = view.working(alive)[0]
        if works < len(alive):
            best = self.best()
            better = view.working(best)[0] > works
            if better and (view.can_merge(best) or works < quorum(len(alive))):
                return LeaderSelection(best, "", deaf=True)
        if len(alive) < self.seats:
            filled = ((*alive, newcomer) for newcomer in self.newcomers)
            if chosen := max(filter(view.can_merge, filled), key=view.working, default=()):
                return LeaderSelection(chosen, "")
        elif not leaves:
            return NO_CHANGE
        led = len(view.seating.leaders)
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


def leadership(node: str, epoch: int, leaders: Sequence[Chosen]) -> Leaders:
    names = tuple(leader.node for leader in leaders)
    return Leaders(leaders=names, number=epoch, here=node in names)


def names_of(leaders: Sequence[Chosen]) -> str:
    return ", ".join(leader.node for leader in leaders)
