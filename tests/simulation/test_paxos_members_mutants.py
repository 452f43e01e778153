"""Bugs planted in changes of the members, each seen by its judge; seeds under every fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.judged import PlantedBug, log_run
from support.planted_bugs import as_plant, hold_of, instead, repetitions_count, returning

from fencelock.actors.api.lock_message import Acquire, Granted, Release
from fencelock.actors.api.session_message import CloseReason
from fencelock.actors.bootstrap_message import journals_of
from fencelock.actors.membership import Membership
from fencelock.actors.membership_changes import MemberChanges
from fencelock.actors.message import Address
from fencelock.actors.paxos import member, reconfigurer, replica
from fencelock.actors.paxos.config import WINDOW, LogConfig, Term, View
from fencelock.actors.paxos.event import ProposeChange
from fencelock.actors.paxos.reads import Reads
from fencelock.actors.paxos.reconfigurer import Facts, LogChanges
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import PAXOS_NUMBER_MAX
from fencelock.actors.table import lock_rules
from fencelock.actors.table import state as table_state
from fencelock.actors.table.resource import TableHold
from fencelock.actors.table.retained import add_span
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Sessions
from fencelock.actors.table.state import TableState
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.verification.simulation import paxos_judge_votes
from fencelock.verification.simulation.paxos_run import run_log_seed
from fencelock.verification.simulation.plan import draw_members_plan, draw_target_plan

pytestmark = pytest.mark.long

SEEDS = 40
"""Seeds of which one must show a planted bug."""


@as_plant
def at_once(sound: Any, config: LogConfig, slot: int, membership: Membership) -> Any:
    """Put a change into force right after the slot that decides it."""
    return sound(config, slot + 1 - WINDOW, membership)


@as_plant
def in_flight_or_not(sound: Any, role: Replica, event: ProposeChange, now: Any) -> Any:
    """Propose a change whether or not another one is in flight."""
    role.change_slot = 0
    return sound(role, event, now)


@as_plant
def with_those_removed(sound: Any, config: LogConfig, term: Term) -> None:
    """Count the members of the view before as well."""
    number, seats = term.membership
    before = config.views[-1][1].seats if config.views else ()
    every = tuple(sorted({*before, *seats}))
    names = tuple(seat.name for seat in every)
    if len(set(names)) == len(names):
        config.views.append((term.first, View(number, names, config.newest.registered, every)))
    else:
        sound(config, term)


def always(config: LogConfig, acceptor: Address, voter: int) -> range:
    """Let every node vote on every slot."""
    return range(PAXOS_NUMBER_MAX)


@as_plant
def by_name(sound: Any, group: Any, name: str, journal: int | None = None) -> Any:
    """Let votes of founders name the member, whichever journal it has."""
    return sound(group, name, None if name in journals_of(group) else journal)


def oldest(config: LogConfig, slot: int) -> View:
    """Let the view in force also decide slots of the next one."""
    return config.current[0]


@as_plant
def always_current(sound: Any, reads: Reads, now: Any) -> Any:
    """Let a node that is no member take its state for current."""
    return sound(reads, now) if reads.node in reads.config.members else 0


# Bugs in locks and sessions.


@as_plant
def without_sessions(sound: Any, machine: LockMachine, chunks: Sequence[bytes]) -> None:
    """Take over a snapshot without the sessions, and so without holds and waits."""
    sound(machine, chunks)
    for session in list(machine.table.sessions.by_id.values()):
        machine.table.close(session, CloseReason.EXPIRED, 0, [])


@as_plant
def to_everybody(sound: Any, table: TableState, command: Any, out: list[Any]) -> None:
    """Grant a lock to every client that requests it."""
    table.resources.pop(command.lock, None)
    sound(table, command, out)


@as_plant
def from_one(sound: Any, table: TableState, *grant: Any) -> Any:
    """Begin with the first fence again after every tenth."""
    table.fence %= 10
    return sound(table, *grant)


def with_a_new_fence(
    table: Any, owner_state: Any, hold: TableHold, command: Any, out: list[Any]
) -> None:
    """Let an owner that enters again have another fence."""
    hold.count += 1
    hold.granted_count, hold.request = hold.count, command.request
    hold.fence += 1
    out.append(hold.answer())


@as_plant
def to_the_last(sound: Any, table: TableState, hold: TableHold, out: list[Any]) -> None:
    """Grant a lock to the one that has waited for the shortest time."""
    queue = table.resources[hold.owner_state.lock].queue
    if queue:
        queue.move_to_end(next(reversed(queue)), last=False)
    sound(table, hold, out)


@as_plant
def to_ended(sound: Any, table: TableState, command: Any, out: list[Any]) -> None:
    """Grant a lock in a session that has ended."""
    if command.session in table.sessions.by_id:
        sound(table, command, out)
        return
    table.fence += 1
    granted = Granted(
        lock=command.lock,
        fence=table.fence,
        session=command.session,
        owner=command.owner,
        request=command.request,
    )
    out.append(granted)


def of_any_client(table: TableState, command: Release, out: list[Any]) -> None:
    """Release a lock, whichever client holds it."""
    session, hold = table.sessions.by_id.get(command.session), hold_of(table, command.lock)
    if session is None or hold is None:
        lock_rules.release(table, command, out)
        return
    key = (command.owner, command.lock)
    owner_state = session.owner_states.get(key) or session.enter(key)
    owner_state.request = command.request
    out.append(owner_state.released(0))
    table.end_hold(hold, out)


@as_plant
def too_early(sound: Any, sessions: Sessions, session: Any) -> Any:
    """Let sessions end after half of their TTL."""
    return sound(sessions, session) - int(session.ttl_ms) // 2


@as_plant
def once_in_force(sound: Any, changes: LogChanges) -> str:
    """Reply that a change is done as soon as it is in force, whichever members have stored it."""
    changes.stored = PAXOS_NUMBER_MAX
    return str(sound(changes))


MUTANTS = {
    "a change is done before it is stored": PlantedBug(
        "changes-stored", ((LogChanges, "pending", once_in_force),)
    ),
    "a change is in force at once": PlantedBug(
        "distinct-majority", ((LogConfig, "change", at_once),)
    ),
    "two changes are in flight": PlantedBug(
        "one-change-at-a-time", ((Replica, "_on_propose_change", in_flight_or_not),)
    ),
    "a node joins before it caught up": PlantedBug(
        "joiners-caught-up",
        (
            (reconfigurer, "LEARNED_SLOTS", instead(PAXOS_NUMBER_MAX)),
            (replica, "JOIN_SLOTS", instead(PAXOS_NUMBER_MAX)),
            # The logs of these runs are short.
            (paxos_judge_votes, "JOIN_SLOTS", instead(4 * WINDOW)),
        ),
        first=17,
    ),
    "a removed member counts": PlantedBug(
        "only-members-vote", ((LogConfig, "_append", with_those_removed),)
    ),
    "the view of a slot is not checked": PlantedBug(
        "distinct-majority", ((LogConfig, "at", instead(oldest)),), first=17
    ),
    "a snapshot lacks the members": PlantedBug(
        "distinct-majority", ((LogConfig, "terms", returning(())),), first=11
    ),
    "a learner votes": PlantedBug(
        "lost-journals-do-not-vote", ((LogConfig, "seat", instead(always)),), first=16
    ),
    "an observer claims to be current": PlantedBug(
        "reads-are-fresh", ((Reads, "age_ms", always_current),)
    ),
    "a replaced journal keeps its vote": PlantedBug(
        "lost-journals-do-not-vote", ((member, "vote_id", by_name),), first=7
    ),
    # Locks and sessions while the members change.
    "a snapshot lacks the sessions": PlantedBug(
        "one-holder",
        ((LockMachine, "restore", without_sessions),),
        first=38,
        seen_as="fences: ",
    ),
    "a held lock is granted": PlantedBug("one-holder", ((RULES, Acquire, to_everybody),)),
    "fences begin again": PlantedBug("fences-rise", ((TableState, "grant", from_one),)),
    "the fences of a span are granted again": PlantedBug(
        "fences-rise", ((table_state, "begin_span", instead(add_span)),)
    ),
    "an owner enters under another fence": PlantedBug(
        "same-fence-again", ((lock_rules, "_enter_again", instead(with_a_new_fence)),)
    ),
    "the last waiter is first": PlantedBug(
        "queue-in-log-order", ((TableState, "_pass_on", to_the_last),)
    ),
    "an ended session is granted": PlantedBug("ended-gets-nothing", ((RULES, Acquire, to_ended),)),
    "any client releases": PlantedBug(
        "release-by-fence", ((RULES, Release, instead(of_any_client)),), first=12
    ),
    "a repetition is done": PlantedBug("one-outcome", ((lock_rules, "begin", repetitions_count),)),
    "a session ends too early": PlantedBug(
        "session-outlives-trust", ((Sessions, "deadline", too_early),)
    ),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    MUTANTS[bug].assert_seen(monkeypatch, log_run(draw_members_plan), SEEDS)


@pytest.mark.parametrize(
    "seed",
    [
        0,
        1,
        # The session of a client that died expires after the end of the faults, when its node is
        # up.
        810_025,
        # Requests that arrive after half a minute extend the sessions of clients that are done.
        900_207,
        # A founder keeps its disk as the others lose theirs, and loses it before it is up again.
        981_748,
        # The founder that keeps its disk when the others lose theirs had lost an earlier disk.
        1_102_359,
        # A member restarts, does not know that it is one, and receives a proposal below its
        # promise.
        1_102_452,
        # A member that knew the founders only leads, and learns from others that the members
        # changed.
        1_301_911,
        # A leader asks for its change again: a later leader's batch is in the slot of the first
        # one.
        1_401_141,
        # A leader has not applied the change of members that others have applied. It needs their
        # votes on slots that only the former view decides.
        1_500_154,
        # The node of a client that retains a lock never applies a slot, so the recall comes
        # directly.
        1_810_182,
        # A leader loses the lead and gets it back between two looks at who is silent.
        1_911_116,
        # A frame full of votes, which a member may send, arrives after it was removed.
        1_931_317,
        # An answer to a heartbeat of 1.3 s before arrives from a member that has been silent since.
        1_931_465,
        # A leader takes such an answer for a sign of life, and so has a majority.
        1_931_534,
    ],
)
def test_the_members_change_under_every_fault(seed: int) -> None:
    report = run_log_seed(seed, plan=draw_members_plan(seed))

    assert report.violation is None


# Leaders that keep the group at a target size.


def answers_or_not(facts: Facts, member: str, led_ms: int) -> int:
    """Take a member for silent since the leader began to lead, though it answers that leader."""
    return led_ms


def never(facts: Facts, member: str) -> bool:
    """Take no answer for one, as a member does that is cut off from another follower."""
    return member == facts.node


REPLACED = "only-silent-replaced"
TARGET_MUTANTS = {
    "no majority would remain": PlantedBug(
        REPLACED, ((MemberChanges, "has_majority", returning(True)),), first=60
    ),
    "the member answers the leader": PlantedBug(
        REPLACED,
        (
            (Facts, "silent_ms", instead(answers_or_not)),
            (Facts, "votes", instead(never)),
            (MemberChanges, "has_majority", returning(True)),
        ),
    ),
}


@pytest.mark.parametrize("bug", TARGET_MUTANTS)
def test_a_leader_that_replaces_members_wrongly_is_seen(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    TARGET_MUTANTS[bug].assert_seen(monkeypatch, log_run(draw_target_plan), 60)


@pytest.mark.parametrize(
    "seed",
    [
        0,
        1,
        # A scout gets a majority without the later pages of a member that has applied more. It does
        # not count that member, nor the slots that it has applied.
        900_080,
        # A leader asks again for a change that is decided, and of which it does not know that.
        861_473,
        # A leader asks for another change while it does not know yet that its last one is decided.
        980_336,
        # A leader that was cut off asks for a change: a later leader has made one in a slot for
        # which the former had proposed something else.
        1_200_479,
    ],
)
def test_leaders_keep_the_group_at_its_size_under_every_fault(seed: int) -> None:
    report = run_log_seed(seed, plan=draw_target_plan(seed))

    assert report.violation is None
