"""Objects, and keys of Redis doors, in the table compared with the dumb model; planted bugs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import (
    Plant,
    demand_found,
    hold_of,
    repetitions_count,
    with_fields,
    without,
)
from support.table_comparison import (
    BarrierComposer,
    CounterComposer,
    KeyComposer,
    LatchComposer,
    LogComposer,
    PoolComposer,
    RetainedKeyComposer,
    compare,
    log_seeds,
    steps_of,
)

from fencelock.actors.api.counter import VALUE_MAX
from fencelock.actors.api.latch import LatchPassed
from fencelock.actors.api.pool import GivePermits
from fencelock.actors.api.redis import ChangeKeys, KeyState
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table import barrier, counter, latch, pool, redis, requests, snapshot
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.counter import Counter
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import Wait
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import (
    BarrierRecord,
    CounterRecord,
    LatchRecord,
    PoolRecord,
    Result,
)


@pytest.mark.parametrize(
    "composer",
    [
        LatchComposer,
        BarrierComposer,
        CounterComposer,
        PoolComposer,
        KeyComposer,
        RetainedKeyComposer,
    ],
)
@pytest.mark.parametrize("seed", log_seeds(30))
def test_objects_do_what_the_model_does(seed: int, composer: type[LogComposer]) -> None:
    """Check count-falls and pass-together too."""
    compare(steps_of(seed), composer)


def nothing(*_: Any) -> None:
    pass


def only_a_lone_waiter_passes(sound: Any) -> Any:
    def broken(table: TableState, wait: Wait, answer: Any, out: list[Result]) -> None:
        if not isinstance(answer, LatchPassed) or table.objects[answer.lock].waiting == 1:
            sound(table, wait, answer, out)

    return broken


def a_latch_is_kept(change: int) -> Plant:
    """Return a bug that removes latches ``change`` later (ms)."""

    def plant(sound: Any) -> Any:
        def broken(table: TableState, owner_state: Any, command: Any, out: list[Result]) -> Any:
            command = replace(command, keep_ms=command.keep_ms + change)
            return sound(table, owner_state, command, out)

        return broken

    return plant


def a_latch_passes_at_1(sound: Any) -> Any:
    def broken(table: TableState, owner_state: Any, out: list[Result]) -> bool:
        one = table.objects[owner_state.lock]
        if isinstance(one, Latch) and one.left == 1:
            passed = LatchPassed(**owner_state.fields())
            requests.conclude(table, owner_state, passed, out)
            return False
        return bool(sound(table, owner_state, out))

    return broken


LATCH_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated count counts again": (requests, "begin_update", repetitions_count),
    "only a lone waiter passes": (TableState, "reply_to_wait", only_a_lone_waiter_passes),
    "a latch is gone too late": (latch, "_latch_of", a_latch_is_kept(30)),
    "a latch is gone too early": (latch, "_latch_of", a_latch_is_kept(-30)),
    "a latch passes at 1": (latch, "has_room", a_latch_passes_at_1),
    "a latch that nobody counted down stays": (Latch, "note_end", lambda _: nothing),
    "a snapshot without latches": (snapshot, "_rest", without(LatchRecord)),
}


def the_last_gets_the_first_index(sound: Any) -> Any:
    def broken(owner_state: Any, index: int, generation: int) -> Any:
        return sound(owner_state, 0 if index == 2 else index, generation)

    return broken


def a_try_breaks_nothing(sound: Any) -> Any:
    def broken(barrier: Barrier, table: TableState, why: Why, out: list[Result]) -> None:
        if why.cause is not Cause.PARTY_DID_NOT_WAIT:
            sound(barrier, table, why, out)

    return broken


def a_party_is_refused_only(sound: Any) -> Any:
    def broken(barrier: Barrier, table: TableState, why: Why, out: list[Result]) -> None:
        if not barrier.queue:
            sound(barrier, table, why, out)

    return broken


def any_number_of_parties_is_accepted(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: list[Result]) -> Any:
        one = table.objects.get(command.lock)
        owner_state = sound(table, command, out)
        if isinstance(one, Barrier) and owner_state is not None:
            one.parties = command.parties
        return owner_state

    return broken


BARRIER_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated arrival counts again": (requests, "begin_update", repetitions_count),
    "the last gets the first index": (barrier, "_passed", the_last_gets_the_first_index),
    "a try breaks nothing": (Barrier, "remove", a_try_breaks_nothing),
    "a party leaves without the others": (Barrier, "remove", a_party_is_refused_only),
    "any number of parties is accepted": (
        requests,
        "begin_update",
        any_number_of_parties_is_accepted,
    ),
    "a snapshot without barriers": (snapshot, "_rest", without(BarrierRecord)),
}


def guards_are_not_checked(sound: Any) -> Any:
    def broken(table: TableState, owner_state: Any, command: Any, out: list[Result]) -> Any:
        return sound(table, owner_state, replace(command, guard="", fence=0), out)

    return broken


def a_sum_beyond_the_limits_stays_at_them(sound: Any) -> Any:
    def broken(table: TableState, owner: Any, command: Any, after: Any, out: Any) -> None:
        sound(table, owner, command, VALUE_MAX if after is None else after, out)

    return broken


def any_value_is_the_expected_one(sound: Any) -> Any:
    def broken(table: TableState, owner: Any, command: Any, after: Any, out: Any) -> None:
        sound(table, owner, command, getattr(command, "value", after), out)

    return broken


def a_counter_at_0_stays(sound: Any) -> Any:
    def broken(table: TableState, one: Any) -> None:
        if not isinstance(one, Counter):
            sound(table, one)

    return broken


COUNTER_PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "a repeated change counts again": (requests, "begin_update", repetitions_count),
    "guards are not checked": (counter, "holds_guard", guards_are_not_checked),
    "a sum beyond the limits": (counter, "_change", a_sum_beyond_the_limits_stays_at_them),
    "any value is the expected one": (counter, "_change", any_value_is_the_expected_one),
    "a counter at 0 stays": (TableState, "drop", a_counter_at_0_stays),
    "a snapshot without counters": (snapshot, "_rest", without(CounterRecord)),
}


def what_is_taken_is_given_back_at_the_end(sound: Any) -> Any:
    """Permits do not outlive the session that took them last."""

    def broken(table: TableState, session: Any, *how: Any) -> None:
        pools = [one for one in table.objects.values() if isinstance(one, Pool)]
        sound(table, session, *how)
        for one in pools:
            if one.name in table.objects and one.taken and not one.queue:
                one.change(table, one.size, 0)
                table.drop(one)

    return broken


def all_waits_are_served(sound: Any) -> Any:
    def broken(one: Pool, table: TableState, out: list[Result]) -> None:
        size, one.size = one.size, 99
        table.marked += 0
        sound(one, table, out)
        one.size = size

    return broken


def a_give_beyond_what_is_taken_gives_all(sound: Any) -> Any:
    def broken(table: TableState, owner_state: Any, command: Any, out: list[Result]) -> None:
        one = table.objects.get(command.lock)
        taken = one.taken if isinstance(one, Pool) else 0
        sound(table, owner_state, replace(command, amount=min(command.amount, taken)), out)

    return broken


POOL_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a repeated take counts again": (requests, "begin_update", repetitions_count),
    "permits end with a session": (TableState, "close", what_is_taken_is_given_back_at_the_end),
    "all waits are served": (Pool, "serve", all_waits_are_served),
    "a wait that ends serves nobody": (Pool, "note_end", lambda _: nothing),
    "too much given back": (
        RULES,
        GivePermits,
        lambda _: requests.updating(a_give_beyond_what_is_taken_gives_all(pool.give_permits)),
    ),
    "a snapshot without pools": (snapshot, "_rest", without(PoolRecord)),
}


def any_value_is_expected(sound: Any) -> Any:
    def broken(table: TableState, name: str, command: ChangeKeys) -> KeyState:
        state: KeyState = sound(table, name, command)
        return KeyState.EQUAL if state is KeyState.OTHER and command.expected else state

    return broken


def any_value_is_reserved(sound: Any) -> Any:
    def broken(table: TableState, name: str, command: ChangeKeys) -> KeyState:
        hold = hold_of(table, name)
        if isinstance(hold, KeyHold):
            command = replace(command, value=hold.key.value)
        return KeyState(sound(table, name, command))

    return broken


def a_deadline_never_becomes_earlier(sound: Any) -> Any:
    def broken(hold: KeyHold, table: TableState, deadline_ms: int | None) -> None:
        if hold.ends_at_ms is None or deadline_ms is None or deadline_ms > hold.ends_at_ms:
            sound(hold, table, deadline_ms)

    return broken


def force_keeps_the_fence(sound: Any) -> Any:
    def broken(command: ChangeKeys, state: KeyState) -> bool:
        return state is not KeyState.OTHER and bool(sound(command, state))

    return broken


def keys_end_with_a_session_of_a_door(sound: Any) -> Any:
    def broken(table: TableState, session: Any, reason: Any, request: int, out: Any) -> None:
        sound(table, session, reason, request, out)
        for state in [*table.redis.owner_states.values()]:
            if state.hold is not None:
                table.end_hold(state.hold, out)

    return broken


def a_queue_comes_before_force(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, why: Why, out: list[Result]) -> None:
        for name in hold.objects if why.cause is Cause.TAKEN else ():
            table.resources[name].free = max(0, table.resources[name].free)
        sound(table, hold, why, out)

    return broken


KEY_PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a repeated change counts again": (requests, "begin_update", repetitions_count),
    "any value is expected": (redis, "_state_of", any_value_is_expected),
    "any value is reserved": (redis, "_state_of", any_value_is_reserved),
    "a deadline never becomes earlier": (KeyHold, "move", a_deadline_never_becomes_earlier),
    "force keeps the fence": (redis, "_is_new", force_keeps_the_fence),
    "keys end with a session": (TableState, "close", keys_end_with_a_session_of_a_door),
    "the queue comes before force": (TableState, "take", a_queue_comes_before_force),
    "a snapshot without values": (snapshot, "_claimant_record", with_fields(key=None)),
}

PLANTED = [
    (composer, name, plant)
    for composer, plants in (
        (LatchComposer, LATCH_PLANTS),
        (BarrierComposer, BARRIER_PLANTS),
        (CounterComposer, COUNTER_PLANTS),
        (PoolComposer, POOL_PLANTS),
        (KeyComposer, KEY_PLANTS),
    )
    for name, plant in plants.items()
]


@pytest.mark.parametrize(("composer", "bug", "planted"), PLANTED)
def test_every_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch,
    composer: type[LogComposer],
    bug: str,
    planted: tuple[Any, Any, Plant],
) -> None:
    del bug
    demand_found(monkeypatch, composer, *planted)
