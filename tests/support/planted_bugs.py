"""Bugs to plant in the table.

Random logs must find each (`demand_found`); the judges of the simulator must find many of them too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from fencelock.actors.api.counter import VALUE_MAX
from fencelock.actors.api.latch import LatchPassed
from fencelock.actors.api.redis import ChangeKeys, KeyState
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.table import lock_rules
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.deadline import LeasedHold
from fencelock.actors.table.history import Histories, History
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.resource import ClaimDetails, Resource, TableHold, Wait
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result
from fencelock.verification.simulation.replay import TableReplay
from support.table_comparison import LogComposer, compare, steps_of

Plant = Callable[[Any], Any]
"""From a sound function to a broken one."""

Patch = tuple[Any, Any, Plant]
"""A bug with its place: an attribute of an object, or a value of a dictionary."""

LOGS = 20
"""Random logs that must find a bug."""


def as_plant(broken: Callable[..., Any]) -> Plant:
    """Return a plant of ``broken``, which gets the sound function before its own arguments."""

    def plant(sound: Any) -> Any:
        def planted(*how: Any, **named: Any) -> Any:
            return broken(sound, *how, **named)

        return planted

    return plant


def instead(broken: object) -> Plant:
    """Return a plant of ``broken``, which does not need the sound one."""
    return lambda _: broken


def returning(value: object) -> Plant:
    """Return a plant of a function that returns ``value`` for any arguments."""

    def broken(*_: Any, **__: Any) -> object:
        return value

    return instead(broken)


def nothing(*_: Any) -> None:
    """Do nothing, for `instead`."""


UNREPLAYED: Patch = (TableReplay, "_judge", instead(nothing))
"""Lets the judges of the clients alone find a bug: nothing compares the table with the model."""


def plant(monkeypatch: pytest.MonkeyPatch, place: Any, name: Any, planted: Plant) -> None:
    """Plant a bug in an attribute, or in a value of a dictionary."""
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, planted(place[name]))  # pyright: ignore[reportUnknownArgumentType]
    else:
        monkeypatch.setattr(place, name, planted(getattr(place, name)))


def demand_found(
    monkeypatch: pytest.MonkeyPatch,
    composer: type[LogComposer],
    place: Any,
    name: Any,
    planted: Plant,
    logs: int = LOGS,
) -> None:
    """Plant a bug, and play logs that must find it.

    They find it by a difference, by a judge, or by an assertion or a hole in the table itself.
    """
    plant(monkeypatch, place, name, planted)
    with pytest.raises((AssertionError, KeyError, ValueError, PoisonError)):
        compare((step for seed in range(logs) for step in steps_of(seed)), composer)


class AnyDigest(bytes):
    """Equals every digest."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def serves_the_queue(resource: Resource) -> AbstractContextManager[None]:
    """Let the end of a hold serve the queue, where it must not."""
    return nullcontext()


def hold_of(table: TableState, lock: str) -> TableHold | None:
    """Return the first hold of an object, None if it has none."""
    resource = table.resources.get(lock)
    return None if resource is None else next(iter(resource.holds), None)


def taken_unchecked(resource: Resource, hold: TableHold, fence: int) -> None:
    """A planted `Resource.grant` with a bug: more than the capacity may be held."""
    resource.add(hold, fence)


def without(kind: type) -> Plant:
    """Return a plant by which a snapshot has no records of that kind."""

    @as_plant
    def broken(sound: Any, table: TableState) -> Any:
        return [record for record in sound(table) if not isinstance(record, kind)]

    return broken


@as_plant
def repetitions_count(sound: Any, table: TableState, command: Any, out: Any) -> Any:
    """Return ``begin_update`` with a bug: a request that was answered and is sent again is new."""
    session = table.sessions.by_id.get(command.session)
    states: dict[Any, Any] = {} if session is None else session.owner_states
    owner_state = states.get((command.owner, command.lock))
    if owner_state is not None and owner_state.wait is None:
        owner_state.request -= owner_state.request == command.request
    return sound(table, command, out)


def with_fields(**fields: Any) -> Plant:
    """Return a bug that makes records of a snapshot with these ``fields``."""

    @as_plant
    def broken(sound: Any, *how: Any) -> Any:
        return sound(*how)._replace(**fields)

    return broken


# Semaphores and read/write locks


def smaller_claims_overtake(resource: Resource) -> Wait | None:
    """A claim that fits is granted, although a larger one is at the head of the queue."""
    fitting = [wait for wait in resource.waits if wait.amount <= resource.free]
    return fitting[0] if fitting else None


def a_try_overtakes_the_queue(resource: Resource, amount: int) -> bool:
    """A reader passes a waiting writer, too."""
    return amount <= resource.free


@as_plant
def a_hold_frees_one_permit(sound: Any, resource: Resource, hold: TableHold, fence: int) -> None:
    """The end of a hold frees one permit, however many it had."""
    sound(resource, hold, fence)
    resource.free -= hold.amount - 1


@as_plant
def a_smaller_size_is_not_counted(sound: Any, resource: Resource, capacity: int) -> None:
    """The permits that are free stay free when the number of all becomes smaller."""
    free = resource.free
    sound(resource, capacity)
    resource.free = max(free, resource.free)


@as_plant
def an_upgrade_is_counted(
    sound: Any, table: TableState, owner_state: Any, hold: TableHold, command: Any, out: Any
) -> None:
    """A reader becomes a writer."""
    if isinstance(command, AcquireReadWrite):
        command = replace(command, write=False)
    sound(table, owner_state, hold, command, out)


# Several locks at once


@as_plant
def one_fence_for_all(
    sound: Any, table: TableState, owner_state: Any, details: ClaimDetails, *how: Any
) -> None:
    """The fences of all locks but the first are given again."""
    sound(table, owner_state, details, *how)
    table.fence -= len(details.locks[1:])


@as_plant
def only_the_first_is_freed(sound: Any, resource: Resource, hold: TableHold, fence: int) -> None:
    """The other locks of a hold stay held."""
    if fence == hold.fence:
        sound(resource, hold, fence)


# Deadlines


def the_time_without_a_leader_counts(table: LockTable, time_ms: int) -> None:
    """A new leader extends the sessions, but not the deadlines."""
    table.sessions.extend(max(table.time_ms, time_ms))


def acquiring_again_reports_the_whole(hold: LeasedHold, request: int) -> None:
    """The reply to an acquire by the holder has the whole duration, not the rest of it."""
    TableHold.acquire_again(hold, request)


# Latches and barriers


@as_plant
def only_a_lone_waiter_passes(
    sound: Any, table: TableState, wait: Wait, answer: Any, out: list[Result]
) -> None:
    """An open latch lets its waiters through only if there is one."""
    if not isinstance(answer, LatchPassed) or table.objects[answer.lock].waiting == 1:
        sound(table, wait, answer, out)


@as_plant
def a_latch_passes_at_1(
    sound: Any, table: TableState, owner_state: Any, out: list[Result], names: Any
) -> bool:
    """A wait passes a latch with one left to count down."""
    one = table.objects[owner_state.lock]
    if isinstance(one, Latch) and one.left == 1:
        lock_rules.conclude(table, owner_state, LatchPassed(**owner_state.fields()), out)
        return False
    return bool(sound(table, owner_state, out, names))


def a_latch_is_kept(times: float) -> Plant:
    """A latch is kept for so many times the time for which it should be."""

    @as_plant
    def plant(sound: Any, table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
        kept_ms = int(command.keep_ms * times)
        return sound(table, owner_state, replace(command, keep_ms=kept_ms), out)

    return plant


@as_plant
def a_party_leaves_without_the_others(
    sound: Any, barrier: Barrier, table: TableState, why: Why, out: list[Result]
) -> None:
    """A party that leaves breaks a barrier only if none waits."""
    if not barrier.queue:
        sound(barrier, table, why, out)


# Elections


@as_plant
def ends_are_not_noted(sound: Any, table: TableState, hold: TableHold, value: bytes | None) -> None:
    """The end of a term is no change."""
    if value is not None:
        sound(table, hold, value)


@as_plant
def a_gap_is_not_seen(sound: Any, histories: Histories, lock: str, kept: History) -> int:
    """Changes that are no longer kept were never there."""
    sound(histories, lock, kept)
    return 0


# Counters


@as_plant
def guards_are_not_checked(
    sound: Any, table: TableState, owner_state: Any, command: Any, out: list[Result]
) -> Any:
    """A change needs no hold of the lock that guards it."""
    return sound(table, owner_state, replace(command, guard="", fence=0), out)


@as_plant
def a_sum_stays_at_the_limit(
    sound: Any, table: TableState, owner: Any, command: Any, after: Any, out: Any
) -> None:
    """A sum beyond the limits is not refused."""
    sound(table, owner, command, VALUE_MAX if after is None else after, out)


@as_plant
def any_value_is_the_expected_one(
    sound: Any, table: TableState, owner: Any, command: Any, after: Any, out: Any
) -> None:
    """A change that expects another value is made."""
    sound(table, owner, command, getattr(command, "value", after), out)


# Keys of Redis doors


@as_plant
def any_value_is_expected(
    sound: Any, table: TableState, name: str, command: ChangeKeys
) -> KeyState:
    """A request that expects another value finds its own."""
    state: KeyState = sound(table, name, command)
    return KeyState.EQUAL if state is KeyState.OTHER and command.expected else state


@as_plant
def any_value_is_reserved(
    sound: Any, table: TableState, name: str, command: ChangeKeys
) -> KeyState:
    """A key is reserved for every value."""
    hold = hold_of(table, name)
    if isinstance(hold, KeyHold):
        command = replace(command, value=hold.key.value)
    return KeyState(sound(table, name, command))


@as_plant
def a_deadline_never_becomes_earlier(
    sound: Any, hold: KeyHold, table: TableState, deadline_ms: int | None, *watched: Any
) -> None:
    """A deadline only moves to later."""
    if hold.ends_at_ms is None or deadline_ms is None or deadline_ms > hold.ends_at_ms:
        sound(hold, table, deadline_ms, *watched)


@as_plant
def force_keeps_the_fence(sound: Any, command: ChangeKeys, state: KeyState) -> bool:
    """A SET by force with another value is no new hold."""
    return state is not KeyState.OTHER and bool(sound(command, state))
