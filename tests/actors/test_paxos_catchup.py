"""Catch-up of a lagging member: which member is asked, and what operators see of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.effects import HOST, T0, at
from support.replicas import config_of

from fencelock.actors.effect import Effect, Send, Wake
from fencelock.actors.message import Instant, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import message as messages
from fencelock.actors.paxos.config import catchup_of, monitor_of, replica_of
from fencelock.actors.paxos.member_event import Fetched
from fencelock.actors.paxos.snapshots import MAKING_MS, PROGRESS_MS, SILENT_MS, CatchUp
from fencelock.actors.role_message import RoleNotice

PAGE = messages.PAGE


@pytest.fixture
def role() -> CatchUp:
    config = config_of()
    return CatchUp(catchup_of("a"), HOST, node="a", config=config)


def lack(
    role: CatchUp, first: int, target: int, *, leader: str = "b", now: Instant = T0
) -> Iterable[Effect]:
    event = events.Lacking(first=first, target=target, leader=leader)
    return role.handle(replica_of("a"), event, now)


def send_slots(role: CatchUp, first: int, count: int, now: Instant = T0) -> Iterable[Effect]:
    slots = messages.Slots(first=first, batches=(messages.NO_OP,) * count)
    return role.handle(catchup_of(role.source), slots, now)


def asked(effects: Iterable[Effect]) -> list[str]:
    return [
        effect.to.partition("/")[0]
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, messages.Fetch)
    ]


def notices(effects: Iterable[Effect]) -> list[str]:
    return [
        effect.message.text
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, RoleNotice)
    ]


def expire(role: CatchUp, now: Instant = T0) -> Iterable[Effect]:
    return role.handle(role.address, events.FetchRetry(attempt=role.attempt), now)


@pytest.mark.parametrize(("leader", "follower"), [("b", "c"), ("c", "b"), ("", "b")])
def test_slots_are_fetched_from_a_follower(role: CatchUp, leader: str, follower: str) -> None:
    assert asked(lack(role, 1, 40, leader=leader)) == [follower]
    assert asked(send_slots(role, 1, PAGE)) == [follower]


def test_the_leader_is_asked_at_once_for_what_no_follower_has(role: CatchUp) -> None:
    assert asked(lack(role, 1, 40)) == ["c"]
    assert asked(send_slots(role, 1, 0)) == ["b"]
    assert asked(send_slots(role, 1, PAGE)) == ["c"]  # It may have applied more meanwhile.


def test_the_leader_is_asked_if_the_follower_is_silent_and_stays_the_source_for_a_while(
    role: CatchUp,
) -> None:
    lack(role, 1, 3)
    assert asked(expire(role)) == ["b"]
    send_slots(role, 1, 2)

    assert asked(lack(role, 3, 5, now=at(SILENT_MS - 1))) == ["b"]
    send_slots(role, 3, 2)
    assert asked(lack(role, 5, 7, now=at(SILENT_MS))) == ["c"]


def test_a_member_known_to_have_the_slots_is_asked_first(role: CatchUp) -> None:
    lacking = events.Lacking(first=1, target=9, source="c")

    assert asked(role.handle(address_of("a", "leader"), lacking, T0)) == ["c"]


def test_nobody_is_asked_in_circles_for_what_nobody_has(role: CatchUp) -> None:
    lack(role, 1, 9)
    assert asked(send_slots(role, 1, 0)) == ["b"]
    assert asked(send_slots(role, 1, 0)) == []

    assert asked(expire(role)) == ["c"]


def test_a_follower_that_is_making_its_snapshot_is_waited_for(role: CatchUp) -> None:
    lack(role, 1, 9_000)
    making = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=0, content=b"")
    for _ in range(3):
        attempt = role.attempt + 1
        assert role.handle(replica_of("c"), making, T0) == (
            Wake(MAKING_MS, events.FetchRetry(attempt=attempt)),
        )
        assert asked(expire(role)) == ["c"]

    part = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=1, content=b"x")
    effects = role.handle(catchup_of("c"), part, T0)
    restore = events.Restore(slot=9_000, time_ms=7, chunks=(b"x",))
    assert Send(replica_of("a"), restore) in effects


def test_another_member_cannot_delay_a_catch_up(role: CatchUp) -> None:
    lack(role, 1, 9_000)
    making = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=0, content=b"")

    role.handle(replica_of("b"), making, T0)

    assert not role.making


def test_a_large_catch_up_is_described_and_reported_now_and_then(role: CatchUp) -> None:
    begun = notices(lack(role, 1, 3_201))
    assert begun == ["a catches up from c: 0 of 3200 slots, 0 bytes"]
    assert notices(send_slots(role, 1, PAGE, at(PROGRESS_MS - 1))) == []

    (text,) = notices(send_slots(role, 17, PAGE, at(PROGRESS_MS)))

    size = 2 * PAGE * messages.NO_OP.size
    assert text == f"a catches up from c: 32 of 3200 slots, {size} bytes, about 495 s left"
    assert ("received", f"32 of 3200 slots, {size} bytes") in role.summary()
    last: list[str] = []
    for first in range(33, 3_200, PAGE):
        last = notices(send_slots(role, first, PAGE, at(PROGRESS_MS)))
    size = 3_200 * messages.NO_OP.size
    words = f"3200 of 3200 slots, {size} bytes in {PROGRESS_MS} ms"
    assert last == [f"a has caught up, last from c: {words}"]
    assert ("received", "nothing") in role.summary()


def test_the_parts_of_a_snapshot_are_counted(role: CatchUp) -> None:
    lack(role, 1, 500)
    for chunk in range(3):
        part = messages.SnapshotChunk(slot=500, time_ms=7, chunk=chunk, count=4, content=b"xy")
        effects = role.handle(catchup_of("c"), part, at(2_000 * chunk))
        if chunk == 0:
            assert notices(effects) == [
                "a catches up from c: 0 of 499 slots, 1 of 4 parts of a snapshot, 2 bytes"
            ]

        left = 2 * (3 - chunk)
        assert Send(monitor_of("a"), Fetched(bytes_left=left)) in effects
    words = "0 of 499 slots, 3 of 4 parts of a snapshot, 6 bytes"
    assert ("received", words) in role.summary()


def test_a_small_catch_up_is_not_reported(role: CatchUp) -> None:
    assert notices(lack(role, 1, 17)) == []
    assert notices(send_slots(role, 1, PAGE)) == []


def test_a_member_that_is_left_alone_while_it_fetches_does_not_stop(role: CatchUp) -> None:
    lack(role, 1, 9)
    role.config.members = ("a",)

    assert asked(expire(role)) == ["c"]
