"""Retained holds in the replicated table: spans of fences, recalls, snapshots; planted bugs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import Plant, as_plant, demand_found, instead, nothing, with_fields
from support.table_comparison import RetainedComposer, compare, steps_of

from fencelock.actors.api.lock_message import Release
from fencelock.actors.table import lock_rules, retained, rules, snapshot, state
from fencelock.actors.table.resource import Resource
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result


@pytest.mark.parametrize("seed", range(5))
def test_repeated_recalls_take_turns_at_random(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(retained, "RECALLS_MAX", 1)
    compare(steps_of(seed), RetainedComposer)


def only_the_first_fence_is_given(table: Any, hold: Any) -> None:
    retained.add_span(table, hold)


@as_plant
def a_middle_fence_releases(
    sound: Any, table: LockTable, command: Release, out: list[Result]
) -> None:
    resource = table.resources.get(command.lock)
    for hold in () if resource is None else resource.holds:
        if hold.fence <= command.fence < hold.fence + hold.details.span:
            command = replace(command, fence=hold.fence)
    sound(table, command, out)


@as_plant
def a_middle_fence_evicts(sound: Any, resource: Resource, name: str, fence: int) -> Any:
    spans = [h for h in resource.holds if h.fence <= fence < h.fence + h.details.span]
    return spans[0] if spans else sound(resource, name, fence)


@as_plant
def the_same_are_repeated(sound: Any, table: Any, session: Any, out: list[Result]) -> None:
    sound(table, session, out)
    session.recalled = 0


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "a span overlaps the next grant": (state, "begin_span", instead(only_the_first_fence_is_given)),
    "the middle of a span releases": (RULES, Release, a_middle_fence_releases),
    "the middle of a span is evicted": (Resource, "find", a_middle_fence_evicts),
    "a wait recalls nothing": (lock_rules, "recall_first", instead(nothing)),
    "a grant before a queue is not recalled": (state, "recall_since", instead(nothing)),
    "a recall that is lost is lost for good": (rules, "recall_again", instead(nothing)),
    "the same recalls are repeated": (rules, "recall_again", the_same_are_repeated),
    "a snapshot without spans of holds": (snapshot, "_hold_record", with_fields(span=0)),
    "a snapshot without spans of waits": (snapshot, "_wait_record", with_fields(span=0)),
    "a snapshot without turns": (snapshot, "_session_record", with_fields(recalled=0)),
    "a restore forgets who waits": (snapshot, "note_awaited", instead(nothing)),
    "a restore leaves holds in disorder": (retained.Spans, "sort", instead(nothing)),
    "a hold is recalled in one wait only": (retained.Spans, "take_back", instead(nothing)),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_bug_planted_in_retained_holds_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.setattr(retained, "RECALLS_MAX", 1)
    demand_found(monkeypatch, RetainedComposer, *PLANTS[bug])
