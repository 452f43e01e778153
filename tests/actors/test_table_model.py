"""The replicated table against a dumb model of it, and planted bugs that this must find.

Both get the same random log, with repetitions, expiry, force and restores; the outcomes of each
command are compared exactly, and the invariants are checked on the table alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.planted_bugs import Plant, demand_found, hold_of, with_fields
from support.table_comparison import (
    AllComposer,
    DeadlineComposer,
    Dice,
    ElectionComposer,
    LogComposer,
    MapComposer,
    MixedComposer,
    RetainedComposer,
    RWComposer,
    SeveralComposer,
    compare,
    log_seeds,
    steps_of,
)

from fencelock.actors.api.message import Reason, Release
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits, ResizeSemaphore
from fencelock.actors.api.session_message import CloseReason, CloseSession, Ended
from fencelock.actors.table import history, requests, rules, snapshot
from fencelock.actors.table.history import Histories, History
from fencelock.actors.table.resource import ClaimDetails, Resource, TableHold, Wait
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Session, Sessions
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import Result


@given(st.lists(st.tuples(st.integers(0, 19), *[st.integers(0, 63)] * 5), max_size=60))
@settings(max_examples=250, deadline=None)
def test_the_table_does_what_the_model_does(steps: list[Dice]) -> None:
    """Rule equals-the-model: reentrant, not reentrant and limited."""
    compare(steps)


@pytest.mark.parametrize("seed", log_seeds(20))
def test_long_logs_too(seed: int) -> None:
    compare(steps_of(seed))


@pytest.mark.parametrize(
    "composer",
    [
        MixedComposer,
        RWComposer,
        SeveralComposer,
        DeadlineComposer,
        RetainedComposer,
        AllComposer,
    ],
)
@pytest.mark.parametrize("seed", log_seeds(15))
def test_logs_about_locks_and_other_objects(seed: int, composer: type[LogComposer]) -> None:
    """Also capacity-kept, no-overtaking and all-at-once."""
    compare(steps_of(seed), composer)


def keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits of histories, so that short logs reach them."""
    limits = {
        "CHANGES_MAX": 6,
        "HISTORIES_MAX": 2,
        "KEEP_MS": 500,
        "OBJECT_BYTES_MAX": 500,
        "BYTES_MAX": 800,
        "RECORD_BYTES": 150,
    }
    for name, value in limits.items():
        monkeypatch.setattr(history, name, value)


@pytest.mark.parametrize("composer", [ElectionComposer, MapComposer, AllComposer])
@pytest.mark.parametrize("little", [False, True])
@pytest.mark.parametrize("seed", log_seeds(20))
def test_logs_about_elections_and_maps_with_their_watchers(
    monkeypatch: pytest.MonkeyPatch, seed: int, little: bool, composer: type[LogComposer]
) -> None:
    """Check versions-rise and no-gap too: no reply hides a change that is no longer kept."""
    if little:
        keep_little(monkeypatch)
    compare(steps_of(seed), composer)


def reused_fence(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Result]) -> None:
        sound(table, hold, out)
        table.fence -= hold.owner_state.lock not in table.resources

    return broken


def last_come_first_served(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: list[Result]) -> None:
        waits = table.resources[hold.owner_state.lock].queue
        if waits:
            waits.move_to_end(next(reversed(waits)), last=False)
        sound(table, hold, out)

    return broken


def closing_forgets(what: str, *reasons: CloseReason) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, session: Any, reason: CloseReason, *rest: Any) -> None:
            for owner_state in session.owner_states.values():
                if reason in reasons:
                    setattr(owner_state, what, None)
            sound(table, session, reason, *rest)

        return broken

    return plant


def retry_is_applied_again(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: list[Result]) -> Any:
        session = table.sessions.by_id.get(command.session)
        key = command.owner, command.lock
        owner_state = session.owner_states.get(key) if session is not None else None
        if (
            owner_state is not None
            and owner_state.request == command.request
            and not owner_state.wait
        ):
            owner_state.request -= 1
        return sound(table, command, out)

    return broken


def release_as(*words: str) -> Plant:
    def plant(sound: Any) -> Any:
        def broken(table: TableState, command: Release, out: list[Result]) -> None:
            hold = hold_of(table, command.lock)
            if hold is not None:
                holder = hold.owner_state
                right: dict[str, Any] = {
                    "fence": hold.fence,
                    "session": holder.session.id,
                    "owner": holder.owner,
                }
                command = replace(command, **{word: right[word] for word in words})
            sound(table, command, out)

        return broken

    return plant


def timed_out_wait_stays(sound: Any) -> Any:
    def broken(table: TableState, wait: Any, reason: Reason, *rest: Any) -> None:
        sound(table, wait, reason, *rest)
        if reason is Reason.TIMED_OUT:
            table.resources[wait.owner_state.lock].enqueue(dataclasses.replace(wait, due_ms=None))

    return broken


def no_memos(sound: Any) -> Any:
    def broken(owner_state: Any) -> Any:
        return sound(owner_state)._replace(request=0, freed=None, denial=None)

    return broken


def no_deadlines(sound: Any) -> Any:
    def broken(*parts: Any) -> Any:
        return sound(*parts)._replace(due_ms=None)

    return broken


def nothing(*_: Any) -> None:
    pass


def no_floor(sound: Any) -> Any:
    def broken(session: Session) -> None:
        before = session.floor
        sound(session)
        session.floor = before

    return broken


def same_number_again(sound: Any) -> Any:
    def broken(sessions: Sessions, session: Any) -> None:
        sound(sessions, session)
        sessions.opened -= 1

    return broken


def any_session_of_the_client(sessions: Sessions, handle: str) -> Session | None:
    return sessions.by_name.get(handle.partition(".")[0])


def closings_are_not_kept(sound: Any) -> Any:
    def broken(table: TableState, command: Any, *about: Any) -> Any:
        entry = sound(table, command, *about)
        if isinstance(command, CloseSession):
            del table.audit[command.by, command.request]
        return entry

    return broken


def no_operator(sound: Any) -> Any:
    def broken(
        table: TableState, session: Any, reason: Any, request: int, out: Any, by: str = ""
    ) -> None:
        del by
        sound(table, session, reason, request, out)

    return broken


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a closing hits a later session": (Sessions, "find", lambda _: any_session_of_the_client),
    "a repeated closing is refused": (rules, "record", closings_are_not_kept),
    "who closed a session is not told": (TableState, "close", no_operator),
    "a fence given back": (TableState, "_pass_on", reused_fence),
    "last come first served": (TableState, "_pass_on", last_come_first_served),
    "waits outlive their session": (TableState, "close", closing_forgets("wait", *CloseReason)),
    "expiry frees nothing": (TableState, "close", closing_forgets("hold", CloseReason.EXPIRED)),
    "a wait that timed out stays": (TableState, "end_wait", timed_out_wait_stays),
    "a retry is applied again": (requests, "begin", retry_is_applied_again),
    "any fence releases": (RULES, Release, release_as("fence")),
    "any owner releases": (
        RULES,
        Release,
        release_as("session", "owner", "fence"),
    ),
    "a snapshot without memos": (snapshot, "_claimant_record", no_memos),
    "a snapshot without deadlines": (snapshot, "_wait_record", no_deadlines),
    "the forgotten may do it again": (Session, "_forget_first", no_floor),
    "nobody is forgotten": (Session, "forget", lambda _: nothing),
    "commands are no sign of life": (Sessions, "keep", lambda _: nothing),
    "a new leader extends nothing": (Sessions, "extend", lambda _: nothing),
    "an old session id again": (Sessions, "drop", same_number_again),
}


def smaller_claims_overtake(resource: Resource) -> Wait | None:
    """A claim that fits is granted, although a larger one is at the head of the queue."""
    fitting = [wait for wait in resource.waits if wait.amount <= resource.free]
    return fitting[0] if fitting else None


def a_try_overtakes_the_queue(resource: Resource, amount: int) -> bool:
    return amount <= resource.free


def a_drain_overtakes_the_queue(resource: Resource, amount: int) -> bool:
    return amount <= resource.free and not (resource.queue and amount)


def a_drain_takes_one_permit(sound: Any) -> Any:
    def broken(table: TableState, command: AcquirePermits, out: list[Result]) -> None:
        sound(table, command if command.amount else replace(command, amount=1), out)

    return broken


def a_smaller_size_is_not_counted(sound: Any) -> Any:
    def broken(resource: Resource, capacity: int) -> None:
        free = resource.free
        sound(resource, capacity)
        resource.free = max(free, resource.free)

    return broken


def too_large_claims_wait_on(sound: Any) -> Any:
    def broken(table: TableState, command: ResizeSemaphore, out: list[Result]) -> None:
        resource = table.resources.get(command.lock)
        waits = [] if resource is None else [wait.amount for wait in resource.waits]
        sound(table, replace(command, size=max([command.size, *waits])), out)

    return broken


def one_permit_is_never_given(resource: Resource, amount: int) -> bool:
    """The free permits are compared with < in place of <=."""
    return not resource.queue and amount < resource.free


def a_session_frees_one_permit_a_hold(resource: Resource, hold: TableHold, fence: int) -> None:
    REMOVE(resource, hold, fence)
    resource.free -= hold.amount - 1


REMOVE = Resource.remove


def a_repeated_acquire_counts_again(sound: Any) -> Any:
    def broken(owner_state: Any, command: Any) -> Any:
        hold = owner_state.hold
        if hold is not None and isinstance(command, AcquirePermits):
            hold.amount = hold.granted_count = hold.amount + command.amount
        return sound(owner_state, command)

    return broken


def any_capacity_is_accepted(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: list[Result]) -> None:
        resource = table.resources.get(command.lock)
        if resource is not None and command.amount <= resource.capacity:
            command = replace(command, permits=resource.capacity)
        sound(table, command, out)

    return broken


def waits_of_a_closed_session_block(sound: Any) -> Any:
    def broken(table: TableState, lock: str, out: list[Result]) -> None:
        if not isinstance(out[-1], Ended):
            sound(table, lock, out)

    return broken


PERMIT_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a smaller claim overtakes the head": (
        Resource,
        "next_wait",
        lambda _: smaller_claims_overtake,
    ),
    "a drain overtakes the queue": (Resource, "admits", lambda _: a_drain_overtakes_the_queue),
    "a smaller size frees as many": (Resource, "resize", a_smaller_size_is_not_counted),
    "claims that are too large wait on": (RULES, ResizeSemaphore, too_large_claims_wait_on),
    "a drain takes one permit": (RULES, AcquirePermits, a_drain_takes_one_permit),
    "a try overtakes the queue": (Resource, "admits", lambda _: a_try_overtakes_the_queue),
    "one permit is never given": (Resource, "admits", lambda _: one_permit_is_never_given),
    "a hold frees one permit": (Resource, "remove", lambda _: a_session_frees_one_permit_a_hold),
    "a repeated acquire counts again": (requests, "_repeat", a_repeated_acquire_counts_again),
    "any capacity is accepted": (RULES, AcquirePermits, any_capacity_is_accepted),
    "who waited behind a closed session waits on": (
        TableState,
        "serve",
        waits_of_a_closed_session_block,
    ),
    "a snapshot without amounts": (snapshot, "_wait_record", with_fields(amount=1)),
}


def an_upgrade_is_counted(sound: Any) -> Any:
    def broken(
        table: TableState, owner_state: Any, hold: TableHold, command: Any, out: list[Result]
    ) -> None:
        if isinstance(command, AcquireReadWrite):
            command = replace(command, write=False)
        sound(table, owner_state, hold, command, out)

    return broken


def a_downgrade_lets_nobody_in(table: TableState, hold: TableHold, amount: int, _: Any) -> None:
    hold.amount -= amount
    table.resources[hold.owner_state.lock].free += amount


def a_writer_that_reads_frees_the_rest(sound: Any) -> Any:
    def broken(
        table: TableState, owner_state: Any, hold: TableHold, command: Any, out: list[Result]
    ) -> None:
        sound(table, owner_state, hold, command, out)
        hold.amount = min(hold.amount, getattr(command, "amount", 1))

    return broken


RW_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a reader passes a waiting writer": (Resource, "admits", lambda _: a_try_overtakes_the_queue),
    "a reader becomes a writer": (requests, "_enter_again", an_upgrade_is_counted),
    "a downgrade lets nobody in": (TableState, "give_back", lambda _: a_downgrade_lets_nobody_in),
    "a writer that reads writes no more": (
        requests,
        "_enter_again",
        a_writer_that_reads_frees_the_rest,
    ),
    "a snapshot without counts": (snapshot, "_hold_record", with_fields(times=1)),
}


def waits_in_one_queue(sound: Any) -> Any:
    def broken(table: TableState, wait: Wait, capacity: int) -> None:
        details = wait.details
        wait.details = dataclasses.replace(details, locks=details.locks[:1])
        sound(table, wait, capacity)
        wait.details = details

    return broken


def waiters_of_a_lock_are_lost(sound: Any) -> Any:
    def broken(table: TableState, wait: Wait, capacity: int) -> None:
        for name in wait.details.locks:
            resource = table.resources.get(name)
            if resource is not None and resource.queue and resource.waiting > 1:
                resource.queue.popitem()
        sound(table, wait, capacity)

    return broken


def fences_are_given_twice(sound: Any) -> Any:
    def broken(table: TableState, owner_state: Any, details: ClaimDetails, *how: Any) -> None:
        sound(table, owner_state, details, *how)
        table.fence -= len(details.locks[1:])

    return broken


def one_name_is_given_back(sound: Any) -> Any:
    def broken(resource: Resource, hold: TableHold, fence: int) -> None:
        if fence == hold.fence:
            sound(resource, hold, fence)

    return broken


SEVERAL_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "it waits in the first queue only": (TableState, "enqueue", waits_in_one_queue),
    "the waiters of a lock are lost": (TableState, "enqueue", waiters_of_a_lock_are_lost),
    "fences are given twice": (TableState, "grant", fences_are_given_twice),
    "only the first lock is given back": (Resource, "remove", one_name_is_given_back),
    "a snapshot without locks": (snapshot, "_claimant_record", with_fields(locks=())),
}


def ends_are_not_noted(sound: Any) -> Any:
    def broken(table: TableState, hold: TableHold, value: bytes | None) -> None:
        if value is not None:
            sound(table, hold, value)

    return broken


def a_change_comes_twice(sound: Any) -> Any:
    def broken(histories: Histories, lock: str, after: int, prefix: str) -> Any:
        return sound(histories, lock, max(0, after - 1), prefix)

    return broken


def a_gap_is_not_seen(sound: Any) -> Any:
    def broken(histories: Histories, lock: str, kept: History) -> int:
        sound(histories, lock, kept)
        return 0

    return broken


def dropped_histories_are_forgotten(sound: Any) -> Any:
    def broken(histories: Histories, time_ms: int) -> None:
        before = histories.forgotten
        sound(histories, time_ms)
        histories.forgotten = before

    return broken


def a_value_waits_in_vain(sound: Any) -> Any:
    def broken(table: TableState, wait: Wait, capacity: int) -> None:
        wait.details = dataclasses.replace(wait.details, value=None)
        sound(table, wait, capacity)

    return broken


def nothing_is_noted(histories: Histories) -> list[Any]:
    del histories
    return []


ELECTION_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "the end of a term is no change": (TableState, "_note_leader", ends_are_not_noted),
    "a change comes twice": (Histories, "read", a_change_comes_twice),
    "a gap is not seen": (Histories, "_drop_first", a_gap_is_not_seen),
    "dropped histories are forgotten": (Histories, "_forget", dropped_histories_are_forgotten),
    "a candidate that waited has no value": (TableState, "enqueue", a_value_waits_in_vain),
    "a snapshot without changes": (Histories, "noted", lambda _: nothing_is_noted),
    "a snapshot without values": (snapshot, "_claimant_record", with_fields(value=None)),
    "a snapshot without versions": (
        snapshot,
        "_head",
        with_fields(version=0, forgotten=0, origin=0),
    ),
}


@pytest.mark.parametrize("bug", ELECTION_PLANTS)
def test_every_bug_planted_in_elections_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    keep_little(monkeypatch)
    demand_found(monkeypatch, ElectionComposer, *ELECTION_PLANTS[bug])


@pytest.mark.parametrize(
    ("composer", "bug", "planted"),
    [
        (composer, bug, plants[bug])
        for composer, plants in (
            (MixedComposer, PERMIT_PLANTS),
            (RWComposer, RW_PLANTS),
            (SeveralComposer, SEVERAL_PLANTS),
        )
        for bug in plants
    ],
)
def test_every_bug_planted_in_other_objects_is_found(
    monkeypatch: pytest.MonkeyPatch,
    composer: type[LogComposer],
    bug: str,
    planted: tuple[Any, Any, Plant],
) -> None:
    del bug
    demand_found(monkeypatch, composer, *planted)


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    demand_found(monkeypatch, LogComposer, *PLANTS[bug])
