"""Bugs to plant in the table, of which random logs or the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from fencelock.actors.table.poison import PoisonError
from fencelock.actors.table.resource import Resource, TableHold
from fencelock.actors.table.state import TableState
from support.table_comparison import LogComposer, compare, steps_of

Plant = Callable[[Any], Any]
"""From a sound function to a broken one."""

LOGS = 20
"""Random logs that must find a bug."""


def demand_found(
    monkeypatch: pytest.MonkeyPatch,
    composer: type[LogComposer],
    place: Any,
    name: Any,
    plant: Plant,
    logs: int = LOGS,
) -> None:
    """Plant a bug in an attribute, or a value of a dictionary, and play logs that must find it.

    They find it by a difference, by a judge, or by an assertion or a hole in the table itself.
    """
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, plant(place[name]))  # pyright: ignore[reportUnknownArgumentType]
    else:
        monkeypatch.setattr(place, name, plant(getattr(place, name)))
    with pytest.raises((AssertionError, KeyError, ValueError, PoisonError)):
        compare((step for seed in range(logs) for step in steps_of(seed)), composer)


class AnyDigest(bytes):
    """Equals every digest."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def serves_the_queue(resource: Resource) -> AbstractContextManager[None]:
    """Let the end of a hold serve the queue, where it must not."""
    del resource
    return nullcontext()


def hold_of(table: TableState, lock: str) -> TableHold | None:
    """Return the first hold of an object, None if nobody holds it."""
    resource = table.resources.get(lock)
    return None if resource is None else next(iter(resource.holds), None)


def taken_unchecked(resource: Resource, hold: TableHold, fence: int) -> None:
    """A planted `Resource.grant` with a bug: more than the capacity may be held."""
    resource.add(hold, fence)


def without(kind: type) -> Plant:
    """Return a plant by which a snapshot has no records of that kind."""

    def plant(sound: Any) -> Any:
        def broken(table: TableState) -> Any:
            return [record for record in sound(table) if not isinstance(record, kind)]

        return broken

    return plant


def repetitions_count(sound: Any) -> Any:
    """Return ``begin_update`` with a bug: a request that was answered and is sent again is new."""

    def broken(table: TableState, command: Any, out: Any) -> Any:
        session = table.sessions.by_id.get(command.session)
        states: dict[Any, Any] = {} if session is None else session.owner_states
        owner_state = states.get((command.owner, command.lock))
        if owner_state is not None and owner_state.wait is None:
            owner_state.request -= owner_state.request == command.request
        return sound(table, command, out)

    return broken


def with_fields(**fields: Any) -> Plant:
    """Return a bug that makes records of a snapshot with these ``fields``."""

    def plant(sound: Any) -> Any:
        def broken(*how: Any) -> Any:
            return sound(*how)._replace(**fields)

        return broken

    return plant
