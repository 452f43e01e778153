"""Bugs planted in changes of the members, each seen by the judge named for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from support.judged import assert_seen

from fencelock.actors.bootstrap_message import journals_of, vote_id
from fencelock.actors.membership import Membership
from fencelock.actors.membership_changes import MemberChanges
from fencelock.actors.message import Address
from fencelock.actors.paxos import member, reconfigurer, replica
from fencelock.actors.paxos.config import WINDOW, LogConfig, View
from fencelock.actors.paxos.member_event import ProposeChange
from fencelock.actors.paxos.membership import Term
from fencelock.actors.paxos.message import NUMBER_MAX
from fencelock.actors.paxos.node_facts import Facts
from fencelock.actors.paxos.reads import Reads
from fencelock.actors.paxos.replica import Replica
from fencelock.verification.simulation import paxos_judge_votes
from fencelock.verification.simulation.paxos_plan import draw_members_plan, draw_target_plan
from fencelock.verification.simulation.paxos_run import run_log_seed
from fencelock.verification.simulation.report import RunReport

Patch = tuple[Any, str, Any]
"""An object, the name of an attribute, and its wrong value."""


def at_once(config: LogConfig, slot: int, membership: Membership) -> bool:
    """Put a change into force right after the slot that decides it."""
    return RIGHT_CHANGE(config, slot + 1 - WINDOW, membership)


def in_flight_or_not(role: Replica, event: ProposeChange, now: Any) -> Any:
    """Propose a change whether or not another one is in flight."""
    role.change_slot = 0
    return RIGHT_PROPOSE(role, event, now)


def with_those_removed(config: LogConfig, term: Term) -> None:
    """Count the members of the view before as well."""
    number, seats = term.membership
    before = config.views[-1][1].seats if config.views else ()
    every = tuple(sorted({*before, *seats}))
    names = tuple(seat.name for seat in every)
    if len(set(names)) == len(names):
        config.views.append((term.first, View(number, names, config.newest.registered, every)))
    else:
        RIGHT_APPEND(config, term)


def always(config: LogConfig, acceptor: Address, voter: int) -> range:
    """Let every node vote on every slot."""
    del config, acceptor, voter
    return range(NUMBER_MAX)


def by_name(group: Any, name: str, journal: int | None = None) -> int:
    """Let votes of founders name the member, whichever journal it has."""
    return RIGHT_ID(group, name, None if name in journals_of(group) else journal)


def oldest(config: LogConfig, slot: int) -> View:
    """Let the view in force also decide slots of the next one."""
    del slot
    return config.current[0]


def always_current(reads: Reads, now: Any) -> int:
    """Let a node that is no member take its state for current."""
    return RIGHT_AGE(reads, now) if reads.node in reads.config.members else 0


def no_terms(config: LogConfig) -> tuple[Term, ...]:
    """Leave the members out of snapshots."""
    del config
    return ()


RIGHT_CHANGE: Callable[..., bool] = LogConfig.change
RIGHT_PROPOSE: Callable[..., Any] = vars(Replica)["_on_propose_change"]
RIGHT_APPEND: Callable[..., None] = vars(LogConfig)["_append"]
RIGHT_ID: Callable[..., int] = vote_id
RIGHT_AGE: Callable[..., int] = Reads.age_ms


class Mutant(NamedTuple):
    """A bug, which judge is to see it, and in how many runs at most."""

    judge: str
    seeds: int
    patches: tuple[Patch, ...]


MUTANTS = {
    "a change is in force at once": Mutant(
        "distinct-majority", 40, ((LogConfig, "change", at_once),)
    ),
    "two changes are in flight": Mutant(
        "one-change-at-a-time", 40, ((Replica, "_on_propose_change", in_flight_or_not),)
    ),
    "a node joins before it caught up": Mutant(
        "joiners-caught-up",
        40,
        (
            (reconfigurer, "LEARNED_SLOTS", NUMBER_MAX),
            (replica, "JOIN_SLOTS", NUMBER_MAX),
            (paxos_judge_votes, "JOIN_SLOTS", 4 * WINDOW),  # The logs of these runs are short.
        ),
    ),
    "a removed member counts": Mutant(
        "only-members-vote", 40, ((LogConfig, "_append", with_those_removed),)
    ),
    "the view of a slot is not checked": Mutant(
        "distinct-majority", 40, ((LogConfig, "at", oldest),)
    ),
    "a snapshot lacks the members": Mutant(
        "distinct-majority", 40, ((LogConfig, "terms", no_terms),)
    ),
    "a learner votes": Mutant("lost-journals-do-not-vote", 40, ((LogConfig, "seat", always),)),
    "an observer claims to be current": Mutant(
        "reads-are-fresh", 40, ((Reads, "age_ms", always_current),)
    ),
    "a replaced journal keeps its vote": Mutant(
        "lost-journals-do-not-vote", 40, ((member, "vote_id", by_name),)
    ),
}


RARE = {
    "the view of a slot is not checked": 17,
    "a snapshot lacks the members": 11,
    "a node joins before it caught up": 17,
    "a learner votes": 16,
    "a replaced journal keeps its vote": 7,
}
"""The first seed of the search, which keeps the search short."""


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    judge, seeds, patches = MUTANTS[bug]
    for patched, name, value in patches:
        monkeypatch.setattr(patched, name, value)
    first = RARE.get(bug, 0)

    def run(seed: int, judged: frozenset[str]) -> RunReport:
        return run_log_seed(seed, plan=draw_members_plan(seed), judged=judged)

    assert_seen(judge, range(first, first + seeds), run)


EXPIRES_LATE = 810_025
"""The session of a client that died expires after the end of the faults, when its node is up."""


ARRIVES_LATE = 900_207
"""Requests that arrive after half a minute extend the sessions of clients that are done."""


@pytest.mark.parametrize("seed", [0, 1, EXPIRES_LATE, ARRIVES_LATE])
def test_the_members_change_under_every_fault(seed: int) -> None:
    report = run_log_seed(seed, plan=draw_members_plan(seed))

    assert report.violation is None


# Leaders that keep the group at a target size.


def answers_or_not(facts: Facts, member: str, led_ms: int) -> int:
    """Take a member for silent since the leader began to lead, though it answers that leader."""
    del facts, member
    return led_ms


def never(facts: Facts, member: str) -> bool:
    """Take no answer for one, as a member does that is cut off from another follower."""
    return member == facts.node


def at_any_price(changes: MemberChanges, members: tuple[str, ...], joins: int = 0) -> bool:
    """Suppose that a majority answers."""
    del changes, members, joins
    return True


TARGET_MUTANTS: dict[str, tuple[Patch, ...]] = {
    "no majority would remain": ((MemberChanges, "has_majority", at_any_price),),
    "the member answers the leader": (
        (Facts, "silent_ms", answers_or_not),
        (Facts, "votes", never),
        (MemberChanges, "has_majority", at_any_price),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", TARGET_MUTANTS)
def test_a_leader_that_replaces_members_wrongly_is_seen(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    for patched, name, value in TARGET_MUTANTS[bug]:
        monkeypatch.setattr(patched, name, value)
    for seed in range(60):
        report = run_log_seed(
            seed, plan=draw_target_plan(seed), judged=frozenset({"only-silent-replaced"})
        )
        if ": only-silent-replaced, " in (report.violation or ""):
            return
    pytest.fail("not seen by only-silent-replaced in 60 seeds")


WITHOUT_LATER_PAGES = 900_080
"""A scout gets a majority without the later pages of a member that has applied more. It does not
count that member, nor the slots that it has applied."""


ASKS_AGAIN = 861_473
"""A leader asks again for a change that is decided, and of which it does not know that."""


@pytest.mark.parametrize("seed", [0, 1, WITHOUT_LATER_PAGES, ASKS_AGAIN])
def test_leaders_keep_the_group_at_its_size_under_every_fault(seed: int) -> None:
    report = run_log_seed(seed, plan=draw_target_plan(seed))

    assert report.violation is None
