"""Bugs planted in `bakery`, each to be seen by the judge named for it while all others look away.

Only those who see what clients see, exclusion and fences, look on always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from holdfast.actors.bakery import choice, clerk, course, election
from holdfast.actors.bakery.agenda import Course, Step
from holdfast.actors.bakery.campaign import Campaign
from holdfast.actors.bakery.course import Courses
from holdfast.actors.bakery.handover import Import
from holdfast.actors.bakery.message import Chosen
from holdfast.actors.bakery.office import Office
from holdfast.actors.bakery.pledge import Pledges
from holdfast.actors.bakery.succession import Succession
from holdfast.actors.bakery.table import NOTHING_DRAWN, Entry, Table
from holdfast.actors.bakery.ticket import Ticket, Turn, pack_fence
from holdfast.actors.bakery.voting import Voting
from holdfast.actors.message import Instant
from holdfast.cluster.simulation.bakery_nemesis import Blow
from holdfast.cluster.simulation.bakery_run import run_bakery_seed

SEEDS_SOUND = 24


class Patch(NamedTuple):
    """What is planted where."""

    owner: Any
    name: str
    value: Any


class Mutant(NamedTuple):
    """A bug, which judge is to see it, in how many runs at most, and under which blows."""

    judge: str
    seeds: int
    patches: tuple[Patch, ...]
    blows: tuple[Blow, ...] = ()


def first_in_line(table: Table, entry: Entry, now: Instant) -> Turn | None:
    """Ask only who is first by turn, as the source does: whoever holds may be behind."""
    queue = table.queues[entry.ticket.lock]
    turns = [
        other.ticket.turn
        for other in queue.entries.values()
        if other.key not in queue.entering and not other.is_over(now)
    ]
    first = min(turns)
    return first if first < entry.ticket.turn else None


def nobody_enters(table: Table, entry: Entry, now: Instant) -> Turn | None:
    """Look at who waits only."""
    queue = table.queues[entry.ticket.lock]
    first = queue.line[0].turn if queue.line else entry.ticket.turn
    return first if first < entry.ticket.turn else None


def from_anybody(name: str) -> Patch:
    """Take each answer for one of somebody else's."""
    sound: Callable[..., Any] = getattr(Courses, name)

    def count(courses: Courses, leader: str, said: Any, now: Instant) -> Any:
        others = courses.office.others
        return sound(courses, others[said.epoch % len(others)], said, now)

    return Patch(Courses, name, count)


def of_any_round() -> Patch:
    """Take a vote of whichever round for one of the round under way."""
    sound: Callable[..., Any] = Courses.on_collected

    def count(courses: Courses, leader: str, said: Any, now: Instant) -> Any:
        found = courses.agenda.find(said.lock, said.who, said.request)
        round_now = found.entry.round if found is not None else said.round
        return sound(courses, leader, replace(said, round=round_now), now)

    return Patch(Courses, "on_collected", count)


def of_any_request() -> Patch:
    """Take an answer to one request for an answer to any other of the lock."""
    sound: Callable[..., Any] = Courses.on_max

    def count(courses: Courses, leader: str, said: Any, now: Instant) -> Any:
        effects = list(sound(courses, leader, said, now))
        for other in list(courses.agenda.by_key.values()):
            ticket = other.entry.ticket
            if ticket.lock == said.lock and other.step is Step.ENTERING:
                instead = replace(said, who=ticket.who, request=ticket.request)
                effects += sound(courses, leader, instead, now)
        return effects

    return Patch(Courses, "on_max", count)


def by_name(seating: Any, members: Any) -> list[Chosen]:
    """Take a leader that lives anew for the one that was chosen."""
    names = {member.node for member in members}
    return [leader for leader in seating.leaders if leader.node in names]


def own_fence(courses: Courses, entry: Entry) -> int:
    del entry
    return pack_fence(courses.office.epoch, courses.serial)


def no_fence_noted() -> Patch:
    sound: Callable[..., Any] = Table.note
    return Patch(Table, "note", lambda table, lock, highest, fence=0: sound(table, lock, highest))


def again_with_another_fence(entry: Entry) -> Any:
    sound = course.locked(entry)
    assert hasattr(sound.message, "fence")
    return replace(sound, message=replace(sound.message, fence=entry.fence - 1))


def wins_alone() -> Patch:
    sound: Callable[..., Any] = Courses.win

    def win(courses: Courses, one: Course, now: Instant) -> Any:
        quorum, courses.office.quorum = courses.office.quorum, 1
        effects = sound(courses, one, now)
        courses.office.quorum = quorum
        return effects

    return Patch(Courses, "win", win)


TRUSTS_ITSELF = Patch(Office, "trusted", lambda office, now: office.serving)
SAME_NODE = (
    Patch(choice, "living", by_name),
    Patch(Chosen, "__eq__", lambda mine, other: mine.node == other.node),
    Patch(Chosen, "__hash__", lambda chosen: hash(chosen.node)),
)
MUTANTS = {
    "epochs are not kept": Mutant(
        "B1", 20, (Patch(Pledges, "recover", classmethod(lambda cls, records: cls())),)
    ),
    "whatever is proposed is promised": Mutant(
        "B1", 40, (Patch(Pledges, "may_promise", lambda pledges, proposal: True),)
    ),
    "one member knows the seating": Mutant(
        "B2", 10, (Patch(election, "majority", lambda members: 1),)
    ),
    "no hand-over barrier": Mutant("B3", 20, (Patch(Import, "complete", True),)),
    "two leaders lost are not waited out": Mutant(
        "B3", 20, (Patch(Campaign, "left_ms", lambda campaign, now: 0),), (Blow.TWO_LOST,)
    ),
    "a leader returns with an empty table": Mutant("B3", 20, SAME_NODE, (Blow.BOUNCE,)),
    "a table is given away, and goes on": Mutant(
        "B4", 20, (Patch(Succession, "leave", lambda succession, epoch: []),)
    ),
    "a vote though somebody holds": Mutant("B5", 10, (Patch(Table, "ahead", nobody_enters),)),
    "a vote for who is first, as in the source": Mutant(
        "B5", 20, (Patch(Table, "ahead", first_in_line),), (Blow.SLOW,)
    ),
    "a vote is taken back": Mutant(
        "B5", 60, (Patch(Voting, "_leave_to", lambda voting, entry: None),), (Blow.MINORITY,)
    ),
    "votes count for anybody": Mutant("B6", 10, (from_anybody("on_collected"),)),
    "votes count in any round": Mutant("B6", 40, (of_any_round(),), (Blow.SLOW,)),
    "answers count for any request": Mutant("B6", 20, (of_any_request(),)),
    "a quorum of one": Mutant("B7", 5, (wins_alone(),)),
    "a minority goes on granting": Mutant("B7", 40, (TRUSTS_ITSELF,), (Blow.MINORITY,)),
    "numbers begin anew": Mutant("B8", 10, (Patch(Table, "counters_of", lambda *_: NOTHING_DRAWN),)),
    "a fence of the leader's own": Mutant(
        "B8", 10, (Patch(Courses, "_next_fence", own_fence), no_fence_noted())
    ),
    "leases are shorter at leaders": Mutant(
        "B9", 20, (Patch(Ticket, "lease_ms", property(lambda ticket: ticket.hold_ms // 2)),)
    ),
    "what was dropped is taken up again": Mutant(
        "B10", 20, (Patch(Table, "is_done", lambda table, ticket: False),)
    ),
    "an answer said again is another": Mutant(
        "B11", 20, (Patch(clerk, "locked", again_with_another_fence),)
    ),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    judge, seeds, patches, blows = MUTANTS[bug]
    for patch in patches:
        monkeypatch.setattr(patch.owner, patch.name, patch.value)
    for seed in range(seeds):
        report = run_bakery_seed(seed, blows=blows, judged=frozenset({judge}))
        if f": {judge}, " in (report.violation or ""):
            return
    pytest.fail(f"not seen by {judge} in {seeds} seeds")


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_seen_where_nothing_is_planted(part: int) -> None:
    grants = 0
    for seed in range(part, SEEDS_SOUND, 4):
        report = run_bakery_seed(seed)
        assert report.violation is None, f"seed {seed}: {report.violation}"
        grants += report.grants
    assert grants > SEEDS_SOUND
