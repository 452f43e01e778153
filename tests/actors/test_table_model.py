"""Random logs: the table does what a simple model does, and planted bugs are found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import planted_bugs as bugs
from support.planted_bugs import (
    Plant,
    as_plant,
    demand_found,
    hold_of,
    instead,
    nothing,
    with_fields,
    without,
)
from support.table_comparison import (
    AllComposer,
    BarrierComposer,
    CounterComposer,
    DeadlineComposer,
    Dice,
    ElectionComposer,
    FewComposer,
    HandoverComposer,
    KeyComposer,
    LatchComposer,
    LogComposer,
    MapComposer,
    MixedComposer,
    PoolComposer,
    RetainedComposer,
    RetainedKeyComposer,
    RWComposer,
    SeveralComposer,
    compare,
    log_seeds,
    steps_of,
)

from fencelock.actors.api.handover import Detach, digest_of
from fencelock.actors.api.lock_message import Acquire, Reason, Release
from fencelock.actors.api.operator_message import CloseSession
from fencelock.actors.api.pool import GivePermits
from fencelock.actors.api.redis import ChangeKeys, KeyAction, KeyState
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.api.semaphore import AcquirePermits, ResizeSemaphore
from fencelock.actors.api.session_message import CloseReason, Ended, Open
from fencelock.actors.table import (
    barrier,
    counter,
    history,
    key,
    latch,
    lock_rules,
    pool,
    redis,
    rules,
    snapshot,
)
from fencelock.actors.table import table as table_module
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.counter import Counter
from fencelock.actors.table.history import Histories
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import Resource, TableHold, Wait
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Session, Sessions
from fencelock.actors.table.state import ENDS_MAX, TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import (
    BarrierRecord,
    CounterRecord,
    LatchRecord,
    LogCommand,
    PoolRecord,
    Result,
)
from fencelock.verification.model import table as model_module
from fencelock.verification.model.table import Model, summary_of


@given(st.lists(st.tuples(st.integers(0, 19), *[st.integers(0, 63)] * 5), max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_table_does_what_the_model_does(steps: list[Dice]) -> None:
    """Rule equals-the-model: reentrant, not reentrant and limited."""
    compare(steps)


@pytest.mark.parametrize("seed", log_seeds(12))
def test_long_logs_too(seed: int) -> None:
    compare(steps_of(seed))


@pytest.mark.parametrize(
    "composer",
    [MixedComposer, RWComposer, SeveralComposer, DeadlineComposer, RetainedComposer, AllComposer],
)
@pytest.mark.parametrize("seed", log_seeds(10))
def test_logs_about_locks_and_other_objects(seed: int, composer: type[LogComposer]) -> None:
    """Also capacity-kept, no-overtaking and all-at-once."""
    compare(steps_of(seed), composer)


def test_ends_beyond_those_of_one_log_time_come_at_the_next_ones() -> None:
    table, model = LockTable(), Model()
    log: list[tuple[int, LogCommand]] = [(0, Open(session="a", ttl_ms=5_000))]
    about = {"session": "a.1", "lock": "L", "wait_ms": 50}
    log += [(1, Acquire(**about, owner=f"p{n}", request=n)) for n in range(1, ENDS_MAX)]  # type: ignore[arg-type]
    for at, command in log:
        assert [summary_of(one) for one in table.apply(at, command)] == model.apply(at, command)
    ends = [len(table.advance(at)) for at in (51, 52, 53)]
    assert ends == [len(model.advance(at)) for at in (51, 52, 53)]
    assert ends == [ENDS_MAX // 2, ENDS_MAX // 2 - 2, 0]


def test_a_door_does_not_delete_a_lock_that_an_owner_without_a_name_detached() -> None:
    table, model = LockTable(), Model()
    about: dict[str, Any] = {"session": "a.1", "owner": "", "lock": "L"}
    digest = digest_of(b"v")
    log: list[LogCommand] = [
        Open(session="a", ttl_ms=5_000),
        Acquire(**about, request=1),
        Detach(**about, request=2, fence=1, digest=digest, ttl_ms=400),
        ChangeKeys(
            session="a.1",
            owner="q",
            request=3,
            keys=("L",),
            action=KeyAction.DELETE,
            states=(KeyState.EQUAL,),
            expected=digest,
        ),
    ]
    for command in log:
        assert [summary_of(one) for one in table.apply(0, command)] == model.apply(0, command)


@pytest.mark.parametrize("seed", log_seeds(30))
def test_logs_in_which_some_ends_are_left_to_later_log_times(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """What is overdue is as it was. Where a new leader has moved an end, looking counts as one."""
    for module in (table_module, model_module):
        monkeypatch.setattr(module, "ENDS_MAX", 1 + seed % 4)
    compare(steps_of(seed), FewComposer, late=True)


def keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits of histories, so that short logs reach them."""
    limits = {
        "CHANGES_MAX": 6,
        "HISTORIES_MAX": 2,
        "HISTORY_KEEP_MS": 500,
        "OBJECT_BYTES_MAX": 500,
        "HISTORY_BYTES_MAX": 800,
        "HISTORY_RECORD_BYTES": 150,
    }
    for name, value in limits.items():
        monkeypatch.setattr(history, name, value)


@pytest.mark.parametrize("composer", [ElectionComposer, MapComposer, AllComposer])
@pytest.mark.parametrize("little", [False, True])
@pytest.mark.parametrize("seed", log_seeds(15))
def test_logs_about_elections_and_maps_with_their_watchers(
    monkeypatch: pytest.MonkeyPatch, seed: int, little: bool, composer: type[LogComposer]
) -> None:
    """Check versions-rise and no-gap too: no reply hides a change that is no longer kept."""
    if little:
        keep_little(monkeypatch)
    compare(steps_of(seed), composer)


@as_plant
def reused_fence(sound: Any, table: TableState, hold: Any, out: list[Result]) -> None:
    sound(table, hold, out)
    table.fence -= hold.owner_state.lock not in table.resources


@as_plant
def last_come_first_served(sound: Any, table: TableState, hold: Any, out: list[Result]) -> None:
    waits = table.resources[hold.owner_state.lock].queue
    if waits:
        waits.move_to_end(next(reversed(waits)), last=False)
    sound(table, hold, out)


def closing_forgets(what: str, *reasons: CloseReason) -> Plant:
    @as_plant
    def plant(sound: Any, table: TableState, session: Any, reason: CloseReason, *rest: Any) -> int:
        for owner_state in session.owner_states.values():
            if reason in reasons:
                setattr(owner_state, what, None)
        return int(sound(table, session, reason, *rest))

    return plant


def release_as(*words: str) -> Plant:
    @as_plant
    def plant(sound: Any, table: TableState, command: Release, out: list[Result]) -> None:
        hold = hold_of(table, command.lock)
        if hold is not None:
            holder = hold.owner_state
            right: dict[str, Any] = {
                "fence": hold.fence,
                "session": holder.session.id,
                "owner": holder.owner,
            }
            command = replace(command, **{name: right[name] for name in words})
        sound(table, command, out)

    return plant


@as_plant
def timed_out_wait_stays(
    sound: Any, table: TableState, wait: Any, reason: Reason, *rest: Any
) -> None:
    sound(table, wait, reason, *rest)
    if reason is Reason.TIMED_OUT:
        table.resources[wait.owner_state.lock].enqueue(dataclasses.replace(wait, due_ms=None))


@as_plant
def no_floor(sound: Any, session: Session) -> None:
    before = session.floor
    sound(session)
    session.floor = before


@as_plant
def same_number_again(sound: Any, sessions: Sessions, session: Any) -> None:
    sound(sessions, session)
    sessions.opened -= 1


def any_session_of_the_client(sessions: Sessions, handle: str) -> Session | None:
    return sessions.by_name.get(handle.partition(".")[0])


@as_plant
def closings_are_not_kept(sound: Any, table: TableState, command: Any, *about: Any) -> Any:
    entry = sound(table, command, *about)
    if isinstance(command, CloseSession):
        del table.audit[command.by, command.request]
    return entry


@as_plant
def no_operator(
    sound: Any, table: TableState, session: Any, reason: Any, request: int, out: Any, by: str = ""
) -> int:
    return int(sound(table, session, reason, request, out))


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a closing hits a later session": (Sessions, "find", instead(any_session_of_the_client)),
    "a repeated closing is refused": (rules, "record", closings_are_not_kept),
    "who closed a session is not recorded": (TableState, "close", no_operator),
    "a fence given back": (TableState, "_pass_on", reused_fence),
    "last come first served": (TableState, "_pass_on", last_come_first_served),
    "waits outlive their session": (TableState, "close", closing_forgets("wait", *CloseReason)),
    "expiry frees nothing": (TableState, "close", closing_forgets("hold", CloseReason.EXPIRED)),
    "a wait that timed out stays": (TableState, "end_wait", timed_out_wait_stays),
    "a retry is applied again": (lock_rules, "begin", bugs.repetitions_count),
    "any fence releases": (RULES, Release, release_as("fence")),
    "any owner releases": (RULES, Release, release_as("session", "owner", "fence")),
    "a snapshot without memos": (
        snapshot,
        "_claimant_record",
        with_fields(request=0, freed=None, denial=None),
    ),
    "a snapshot without deadlines": (snapshot, "_wait_record", with_fields(due_ms=None)),
    "the forgotten may do it again": (Session, "_forget_first", no_floor),
    "no owner is forgotten": (Session, "forget", instead(nothing)),
    "commands are no sign of life": (lock_rules, "keep", instead(nothing)),
    "a new leader extends nothing": (Sessions, "extend", instead(nothing)),
    "an old session id again": (Sessions, "drop", same_number_again),
}


def a_drain_overtakes_the_queue(resource: Resource, amount: int) -> bool:
    return amount <= resource.free and not (resource.queue and amount)


@as_plant
def a_drain_takes_one_permit(
    sound: Any, table: TableState, command: AcquirePermits, out: list[Result]
) -> None:
    sound(table, command if command.amount else replace(command, amount=1), out)


@as_plant
def too_large_claims_wait_on(
    sound: Any, table: TableState, command: ResizeSemaphore, out: list[Result]
) -> None:
    resource = table.resources.get(command.lock)
    waits = [] if resource is None else [wait.amount for wait in resource.waits]
    sound(table, replace(command, size=max([command.size, *waits])), out)


def one_permit_is_never_given(resource: Resource, amount: int) -> bool:
    """The free permits are compared with < in place of <=."""
    return not resource.queue and amount < resource.free


@as_plant
def a_repeated_acquire_counts_again(sound: Any, owner_state: Any, command: Any) -> Any:
    hold = owner_state.hold
    if hold is not None and isinstance(command, AcquirePermits):
        hold.amount = hold.granted_count = hold.amount + command.amount
    return sound(owner_state, command)


@as_plant
def any_capacity_is_accepted(
    sound: Any, table: TableState, command: Any, out: list[Result]
) -> None:
    resource = table.resources.get(command.lock)
    if resource is not None and command.amount <= resource.capacity:
        command = replace(command, permits=resource.capacity)
    sound(table, command, out)


@as_plant
def waits_of_a_closed_session_block(
    sound: Any, table: TableState, lock: str, out: list[Result]
) -> None:
    if not isinstance(out[-1], Ended):
        sound(table, lock, out)


PERMIT_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a smaller claim overtakes the head": (
        Resource,
        "next_wait",
        instead(bugs.smaller_claims_overtake),
    ),
    "a drain overtakes the queue": (Resource, "admits", instead(a_drain_overtakes_the_queue)),
    "a smaller size frees as many": (Resource, "resize", bugs.a_smaller_size_is_not_counted),
    "claims that are too large wait on": (RULES, ResizeSemaphore, too_large_claims_wait_on),
    "a drain takes one permit": (RULES, AcquirePermits, a_drain_takes_one_permit),
    "a try overtakes the queue": (Resource, "admits", instead(bugs.a_try_overtakes_the_queue)),
    "one permit is never given": (Resource, "admits", instead(one_permit_is_never_given)),
    "a hold frees one permit": (Resource, "remove", bugs.a_hold_frees_one_permit),
    "a repeated acquire counts again": (lock_rules, "_repeat", a_repeated_acquire_counts_again),
    "any capacity is accepted": (RULES, AcquirePermits, any_capacity_is_accepted),
    "who waited behind a closed session waits on": (
        TableState,
        "serve",
        waits_of_a_closed_session_block,
    ),
    "a snapshot without amounts": (snapshot, "_wait_record", with_fields(amount=1)),
}


def a_downgrade_lets_no_reader_in(table: TableState, hold: TableHold, amount: int, _: Any) -> None:
    hold.amount -= amount
    table.resources[hold.owner_state.lock].free += amount


@as_plant
def a_writer_that_reads_frees_the_rest(
    sound: Any,
    table: TableState,
    owner_state: Any,
    hold: TableHold,
    command: Any,
    out: list[Result],
) -> None:
    sound(table, owner_state, hold, command, out)
    hold.amount = min(hold.amount, getattr(command, "amount", 1))


RW_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a reader passes a waiting writer": (
        Resource,
        "admits",
        instead(bugs.a_try_overtakes_the_queue),
    ),
    "a reader becomes a writer": (lock_rules, "_enter_again", bugs.an_upgrade_is_counted),
    "a downgrade lets no reader in": (
        TableState,
        "give_back",
        instead(a_downgrade_lets_no_reader_in),
    ),
    "a writer that reads writes no more": (
        lock_rules,
        "_enter_again",
        a_writer_that_reads_frees_the_rest,
    ),
    "a snapshot without counts": (snapshot, "_hold_record", with_fields(times=1)),
}


@as_plant
def waits_in_one_queue(sound: Any, table: TableState, wait: Wait, capacity: int) -> None:
    details = wait.details
    wait.details = dataclasses.replace(details, locks=details.locks[:1])
    sound(table, wait, capacity)
    wait.details = details


@as_plant
def waiters_of_a_lock_are_lost(sound: Any, table: TableState, wait: Wait, capacity: int) -> None:
    for name in wait.details.locks:
        resource = table.resources.get(name)
        if resource is not None and resource.queue and resource.waiting > 1:
            resource.queue.popitem()
    sound(table, wait, capacity)


SEVERAL_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "it waits in the first queue only": (TableState, "enqueue", waits_in_one_queue),
    "the waiters of a lock are lost": (TableState, "enqueue", waiters_of_a_lock_are_lost),
    "fences are given twice": (TableState, "grant", bugs.one_fence_for_all),
    "only the first lock is given back": (Resource, "remove", bugs.only_the_first_is_freed),
    "a snapshot without locks": (snapshot, "_claimant_record", with_fields(locks=())),
}


@as_plant
def a_change_comes_twice(
    sound: Any, histories: Histories, lock: str, after: int, prefix: str
) -> Any:
    return sound(histories, lock, max(0, after - 1), prefix)


@as_plant
def dropped_histories_are_forgotten(sound: Any, histories: Histories, time_ms: int) -> None:
    before = histories.forgotten
    sound(histories, time_ms)
    histories.forgotten = before


@as_plant
def a_value_waits_in_vain(sound: Any, table: TableState, wait: Wait, capacity: int) -> None:
    wait.details = dataclasses.replace(wait.details, value=None)
    sound(table, wait, capacity)


def nothing_is_noted(histories: Histories) -> list[Any]:
    return []


ELECTION_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "the end of a term is no change": (TableState, "_note_leader", bugs.ends_are_not_noted),
    "a change comes twice": (Histories, "read", a_change_comes_twice),
    "a gap is not seen": (Histories, "_drop_first", bugs.a_gap_is_not_seen),
    "dropped histories are forgotten": (Histories, "_forget", dropped_histories_are_forgotten),
    "a candidate that waited has no value": (TableState, "enqueue", a_value_waits_in_vain),
    "a snapshot without changes": (Histories, "noted", instead(nothing_is_noted)),
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
    "composer",
    [
        LatchComposer,
        BarrierComposer,
        CounterComposer,
        PoolComposer,
        KeyComposer,
        RetainedKeyComposer,
        HandoverComposer,
    ],
)
@pytest.mark.parametrize("seed", log_seeds(15))
def test_objects_do_what_the_model_does(seed: int, composer: type[LogComposer]) -> None:
    """Check count-falls and pass-together too."""
    compare(steps_of(seed), composer)


LATCH_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated count counts again": (lock_rules, "begin_update", bugs.repetitions_count),
    "only a lone waiter passes": (TableState, "reply_to_wait", bugs.only_a_lone_waiter_passes),
    "a latch is gone too late": (latch, "_latch_of", bugs.a_latch_is_kept(4)),
    "a latch is gone too early": (latch, "_latch_of", bugs.a_latch_is_kept(1 / 4)),
    "a latch passes at 1": (latch, "has_room", bugs.a_latch_passes_at_1),
    "a latch that was never counted down stays": (Latch, "note_end", instead(nothing)),
    "a snapshot without latches": (snapshot, "_rest", without(LatchRecord)),
}


@as_plant
def the_last_gets_the_first_index(sound: Any, owner_state: Any, index: int, generation: int) -> Any:
    return sound(owner_state, 0 if index == 2 else index, generation)


@as_plant
def a_try_breaks_nothing(
    sound: Any, barrier: Barrier, table: TableState, why: Why, out: list[Result]
) -> None:
    if why.cause is not Cause.PARTY_DID_NOT_WAIT:
        sound(barrier, table, why, out)


@as_plant
def any_number_of_parties_is_accepted(
    sound: Any, table: TableState, command: Any, out: list[Result]
) -> Any:
    one = table.objects.get(command.lock)
    owner_state = sound(table, command, out)
    if isinstance(one, Barrier) and owner_state is not None:
        one.parties = command.parties
    return owner_state


BARRIER_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated arrival counts again": (lock_rules, "begin_update", bugs.repetitions_count),
    "the last gets the first index": (barrier, "_passed", the_last_gets_the_first_index),
    "a try breaks nothing": (Barrier, "remove", a_try_breaks_nothing),
    "a party leaves without the others": (
        Barrier,
        "remove",
        bugs.a_party_leaves_without_the_others,
    ),
    "any number of parties is accepted": (
        lock_rules,
        "begin_update",
        any_number_of_parties_is_accepted,
    ),
    "a snapshot without barriers": (snapshot, "_rest", without(BarrierRecord)),
}


@as_plant
def a_counter_at_0_stays(sound: Any, table: TableState, one: Any) -> None:
    if not isinstance(one, Counter):
        sound(table, one)


COUNTER_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated change counts again": (lock_rules, "begin_update", bugs.repetitions_count),
    "guards are not checked": (counter, "holds_guard", bugs.guards_are_not_checked),
    "a sum beyond the limits": (counter, "_change", bugs.a_sum_stays_at_the_limit),
    "any value is the expected one": (counter, "_change", bugs.any_value_is_the_expected_one),
    "a counter at 0 stays": (TableState, "drop", a_counter_at_0_stays),
    "a snapshot without counters": (snapshot, "_rest", without(CounterRecord)),
}


@as_plant
def what_is_taken_is_given_back_at_the_end(
    sound: Any, table: TableState, session: Any, *how: Any
) -> int:
    """Permits do not outlive the session that took them last."""
    pools = [one for one in table.objects.values() if isinstance(one, Pool)]
    ended: int = sound(table, session, *how)
    for one in pools:
        if one.name in table.objects and one.taken and not one.queue:
            one.change(table, one.size, 0)
            table.drop(one)
    return ended


@as_plant
def all_waits_are_served(sound: Any, one: Pool, table: TableState, out: list[Result]) -> None:
    size, one.size = one.size, 99
    table.marked += 0
    sound(one, table, out)
    one.size = size


@as_plant
def a_give_beyond_what_is_taken_gives_all(
    sound: Any, table: TableState, owner_state: Any, command: Any, out: list[Result]
) -> None:
    one = table.objects.get(command.lock)
    taken = one.taken if isinstance(one, Pool) else 0
    sound(table, owner_state, replace(command, amount=min(command.amount, taken)), out)


POOL_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a repeated take counts again": (lock_rules, "begin_update", bugs.repetitions_count),
    "permits end with a session": (TableState, "close", what_is_taken_is_given_back_at_the_end),
    "all waits are served": (Pool, "serve", all_waits_are_served),
    "a wait that ends serves no other": (Pool, "note_end", instead(nothing)),
    "too much given back": (
        RULES,
        GivePermits,
        instead(lock_rules.updating(a_give_beyond_what_is_taken_gives_all(pool.give_permits))),
    ),
    "a snapshot without pools": (snapshot, "_rest", without(PoolRecord)),
}


@as_plant
def keys_end_with_a_session_of_a_door(
    sound: Any, table: TableState, session: Any, reason: Any, request: int, out: Any
) -> int:
    ended: int = sound(table, session, reason, request, out)
    for state in [*table.key_session.owner_states.values()]:
        if state.hold is not None:
            table.end_hold(state.hold, out)
    return ended


@as_plant
def a_queue_comes_before_force(
    sound: Any, table: TableState, hold: Any, why: Why, out: list[Result]
) -> None:
    for name in hold.objects if why.cause is Cause.TAKEN else ():
        table.resources[name].free = max(0, table.resources[name].free)
    sound(table, hold, why, out)


@as_plant
def a_receipt_is_not_looked_at(
    sound: Any, table: TableState, owner_state: Any, command: ChangeKeys, out: Any
) -> None:
    held = hold_of(table, command.receipt) if command.receipt else None
    if held is not None:
        command = replace(command, receipt="")
    sound(table, owner_state, command, out)


KEY_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a repeated change counts again": (lock_rules, "begin_update", bugs.repetitions_count),
    "any value is expected": (redis, "_state_of", bugs.any_value_is_expected),
    "any value is reserved": (redis, "_state_of", bugs.any_value_is_reserved),
    "a deadline never becomes earlier": (KeyHold, "move", bugs.a_deadline_never_becomes_earlier),
    "force keeps the fence": (redis, "_is_new", bugs.force_keeps_the_fence),
    "keys end with a session": (TableState, "close", keys_end_with_a_session_of_a_door),
    "the queue comes before force": (TableState, "take", a_queue_comes_before_force),
    "a receipt is not looked at": (
        RULES,
        ChangeKeys,
        instead(lock_rules.updating(a_receipt_is_not_looked_at(redis.change_keys))),
    ),
    "no receipt is kept": (redis, "_remember", instead(nothing)),
    "a snapshot without values": (snapshot, "_claimant_record", with_fields(key=None)),
}


@as_plant
def a_door_changes_what_is_detached(
    sound: Any, table: TableState, name: str, command: ChangeKeys
) -> KeyState:
    state: KeyState = sound(table, name, command)
    return KeyState.OTHER if isinstance(hold_of(table, name), KeyHold) else state


HANDOVER_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "any secret attaches": (key, "digest_of", instead(bugs.AnyDigest)),
    "a door changes it": (redis, "_state_of", a_door_changes_what_is_detached),
    "the queue is served": (Resource, "kept", instead(bugs.serves_the_queue)),
}

PLANTED: dict[str, tuple[Any, ...]] = {
    f"{composer.__name__}: {bug}": (composer, *plant)
    for composer, plants in (
        (LogComposer, PLANTS),
        (MixedComposer, PERMIT_PLANTS),
        (RWComposer, RW_PLANTS),
        (SeveralComposer, SEVERAL_PLANTS),
        (LatchComposer, LATCH_PLANTS),
        (BarrierComposer, BARRIER_PLANTS),
        (CounterComposer, COUNTER_PLANTS),
        (PoolComposer, POOL_PLANTS),
        (KeyComposer, KEY_PLANTS),
        (HandoverComposer, HANDOVER_PLANTS),
    )
    for bug, plant in plants.items()
}


@pytest.mark.parametrize("bug", PLANTED)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    demand_found(monkeypatch, *PLANTED[bug])
