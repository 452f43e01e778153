"""Retained holds in the replicated table: spans of fences, recalls, snapshots; planted bugs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.planted_bugs import Plant, as_plant, demand_found, instead, nothing, with_fields
from support.table_comparison import RetainedComposer, compare, steps_of
from support.table_scene import A, B, C, applied, summary, text_of

from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.retained import SPAN_MAX, AcquireRetained, Recall
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.api.session_message import Evict
from fencelock.actors.table import requests, retained, rules, snapshot, state
from fencelock.actors.table.resource import Resource
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result

READ_WRITE = object_name(RWLOCK, "a")


def retain(session: str = A, lock: str = "a", request: int = 1, **fields: Any) -> AcquireRetained:
    made = AcquireRetained(lock=lock, span=10, session=session, owner="*", request=request)
    return replace(made, **fields)


def acquire(session: str, lock: str = "a", request: int = 1, **fields: Any) -> Acquire:
    return replace(Acquire(lock=lock, session=session, owner="o", request=request), **fields)


def release(fence: int, session: str = A, lock: str = "a", request: int = 2) -> Release:
    return Release(lock=lock, fence=fence, session=session, owner="*", request=request)


def recall(fence: int, session: str = A, lock: str = "a", waiting: int = 1) -> Recall:
    return Recall(lock=lock, fence=fence, session=session, owner="*", waiting=waiting)


def recalls(table: LockTable, command: Any) -> list[Recall]:
    return [one for one in table.apply(table.time_ms, command) if isinstance(one, Recall)]


def test_a_fence_in_the_middle_of_a_span_neither_releases_nor_evicts(table: LockTable) -> None:
    """Rule only-holders-release: an owner inside the session may have the lock under that fence."""
    applied(table, retain())
    applied(table, acquire(B))
    assert applied(table, release(5)) == ["s.1 NOT_HELD"]
    evict = Evict(lock="a", fence=5, operator="root", session=C, request=1)
    assert applied(table, evict) == ["u.3 NOT_HELD"]
    assert applied(table, replace(evict, fence=1, request=2)) == [
        "Evicted 1",
        "HoldLost 1",
        "t.2 holds 1 under 11",
    ]


@pytest.mark.parametrize("fence", [1, 5, 10, 11, 0])
def test_an_entry_is_guarded_by_each_fence_of_a_span(table: LockTable, fence: int) -> None:
    applied(table, retain())
    put = PutEntry(map="m", entry_key="k", value=b"v", session=A, owner="o", request=1)
    guarded = summary(table.apply(0, replace(put, guard="a", fence=fence))[0])
    assert guarded == ("EntryChanged" if 1 <= fence <= 10 else f"{A} {refusal_of(fence)}")


def refusal_of(fence: int) -> str:
    return "NOT_HELD" if fence else "INVALID"


def test_the_first_claim_that_waits_recalls_the_lock(table: LockTable) -> None:
    """Rule waits-recall: others that wait need not ask again."""
    applied(table, retain())
    assert recalls(table, acquire(B)) == [recall(1)]
    assert recalls(table, acquire(C)) == []
    applied(table, Cancel(lock="a", session=B, owner="o", request=1))
    assert recalls(table, acquire(B, request=2)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"span": 0}, "span is 0"),
        ({"span": SPAN_MAX + 1}, f"span is {SPAN_MAX + 1}"),
        ({"permits": 2}, "lock 'a': permits is 2, 1 to 1 are allowed"),
        ({"lock": READ_WRITE}, f"permits is 1, {RWLOCK_PERMITS} to {RWLOCK_PERMITS} are allowed"),
        ({"lock": object_name("latch", "a")}, "latch 'a' cannot be retained"),
        ({"lock": object_name("election", "a")}, "election 'a' cannot be retained"),
    ],
)
def test_objects_that_cannot_be_retained_are_refused_with_a_reason(
    table: LockTable, fields: dict[str, Any], words: str
) -> None:
    command = retain(**fields)
    refusal = only(Refused, table.apply(0, command))
    assert refusal.reason is Reason.INVALID
    assert words in text_of(refusal, command)
    assert table.resources == {}


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
    "a wait recalls nothing": (requests, "recall_first", instead(nothing)),
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
