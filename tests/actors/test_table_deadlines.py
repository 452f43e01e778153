"""Deadlines of holds in the replicated table, and planted bugs that the model finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked
from support.planted_bugs import (
    Plant,
    acquiring_again_tells_the_whole,
    as_plant,
    demand_found,
    hold_of,
    instead,
    the_time_without_a_leader_counts,
    with_fields,
)
from support.table_comparison import DeadlineComposer
from support.table_scene import (
    advanced,
    applied,
    outcome,
    restored,
    said,
    status_of,
    table_of_three,
    text_of,
)

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Cancel, Granted, KeepAlive, Reason, Release
from fencelock.actors.api.session_message import End, Evict, Renew, Renewed
from fencelock.actors.table import snapshot
from fencelock.actors.table.deadline import GRACE_MS, ROUNDING_MS, LeasedHold
from fencelock.actors.table.resource import TableHold
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, LogCommand, Result

A, B, C = "s.1", "t.2", "u.3"
LEASE_MS = 400 + 100 + ROUNDING_MS
WEEK_MS = 7 * 24 * 3_600_000


def acquire(session: str = A, request: int = 1, **fields: Any) -> Acquire:
    made = Acquire(lock="L", session=session, owner="o", request=request)
    return replace(made, hold_ms=400, grace_ms=100, **fields)


def plain(session: str, request: int = 1) -> Acquire:
    return Acquire(lock="L", session=session, owner="o", request=request)


def renew(request: int = 2, fence: int = 1, **fields: Any) -> Renew:
    made = Renew(lock="L", fence=fence, session=A, owner="o", request=request)
    return replace(made, **fields)


def left_ms(table: LockTable) -> int | None:
    status = status_of(table, "L")
    assert status.holder is not None
    return status.left_ms


def ended_at(table: LockTable, before_ms: int = 2_000) -> list[int]:
    """Return the log times at which holds end, found by advancing millisecond by millisecond."""
    return [
        at
        for at in range(table.time_ms + 1, before_ms)
        for one in table.advance(at)
        if said(one).startswith("HoldLost")
    ]


def test_a_hold_ends_after_its_grace_and_the_next_has_a_higher_fence(table: LockTable) -> None:
    granted = outcome(table, acquire())
    assert (granted.hold_ms, granted.grace_ms) == (400, 100)
    assert applied(table, plain(B)) == ["t.2 waits"]
    assert advanced(table, LEASE_MS - 1) == []
    lost, given = table.advance(LEASE_MS)
    assert [said(lost), said(given)] == ["HoldLost 1", "t.2 holds 1 under 2"]
    assert getattr(lost, "decided") is True  # noqa: B009
    assert "taken away when its duration and its grace were over" in text_of(lost)
    assert table.advance(10_000 - 1) == []  # The next hold has no deadline.


def test_a_hold_without_a_duration_lasts_as_long_as_its_session(table: LockTable) -> None:
    assert (outcome(table, plain(A)).hold_ms, table.timeouts.items) == (0, {})
    assert type(hold_of(table, "L")) is TableHold
    assert table.advance(9_999) == []


def test_a_grace_that_is_not_named_is_five_seconds(table: LockTable) -> None:
    assert outcome(table, replace(acquire(), grace_ms=0)).grace_ms == GRACE_MS == 5_000


@pytest.mark.parametrize(
    ("hold_ms", "grace_ms", "text"),
    [
        (99, 100, "duration is 99 ms, 100 to 604800000 ms are allowed"),
        (WEEK_MS + 1, 100, "duration is 604800001 ms, 100 to 604800000 ms are allowed"),
        (-1, 0, "duration is -1 ms, 100 to 604800000 ms are allowed"),
        (100, 99, "grace is 99 ms, 100 to 604800000 ms are allowed"),
        (100, WEEK_MS + 1, "grace is 604800001 ms, 100 to 604800000 ms are allowed"),
        (0, 100, "grace is 100 ms, and needs a duration: without one a hold has no end"),
    ],
)
def test_terms_out_of_their_limits_are_refused_in_words(
    table: LockTable, hold_ms: int, grace_ms: int, text: str
) -> None:
    command = replace(acquire(), hold_ms=hold_ms, grace_ms=grace_ms)
    no = outcome(table, command)
    assert (no.reason, text_of(no, command)) == (Reason.INVALID, f"lock 'L': {text}")
    assert outcome(table, acquire()).fence == 1


def test_a_renewal_restarts_the_duration_and_a_repetition_moves_nothing(table: LockTable) -> None:
    table.apply(0, acquire())
    table.advance(300)
    done = outcome(table, renew())
    assert done == Renewed(**renew().fields(), fence=1, hold_ms=400, grace_ms=100)
    table.advance(600)
    assert outcome(table, renew()) == done
    assert ended_at(table) == [300 + LEASE_MS]


def test_a_renewal_may_change_the_duration_and_never_shortens_a_hold(table: LockTable) -> None:
    table.apply(0, acquire())
    assert outcome(table, renew(2, hold_ms=100)).hold_ms == 100
    table.advance(450)
    assert outcome(table, renew(3)).hold_ms == 100  # The last duration stays.
    assert ended_at(table) == [450 + 100 + 100 + ROUNDING_MS]


def test_a_grant_may_be_renewed_under_the_number_of_its_acquire(table: LockTable) -> None:
    """A client does so if the grant comes late, before its user receives it."""
    table.apply(0, acquire())
    table.advance(200)
    assert applied(table, renew(1)) == ["Renewed"]
    assert applied(table, acquire()) == ["s.1 holds 1 under 1"]
    assert ended_at(table) == [200 + LEASE_MS]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (renew(fence=2), Reason.NOT_HELD),
        (renew(owner="other"), Reason.NOT_HELD),
        (renew(lock="M"), Reason.NOT_HELD),
        (renew(hold_ms=99), Reason.INVALID),
        (renew(session="s.9"), Reason.SESSION_EXPIRED),
    ],
    ids=["fence", "owner", "lock", "duration", "session"],
)
def test_what_is_not_held_is_not_renewed(table: LockTable, command: Renew, reason: Reason) -> None:
    table.apply(0, acquire())
    assert outcome(table, command).reason is reason
    assert ended_at(table) == [LEASE_MS]


def test_a_hold_without_a_deadline_is_not_renewed(table: LockTable) -> None:
    table.apply(0, plain(A))
    assert outcome(table, renew()).reason is Reason.UNSUPPORTED


@pytest.mark.parametrize("ends", [None, Evict(lock="L", fence=1, operator="ann", request=1)])
def test_a_lost_hold_is_not_renewed_and_its_loss_is_told_once(
    table: LockTable, ends: LogCommand | None
) -> None:
    table.apply(0, acquire())
    if ends is None:
        table.advance(LEASE_MS)
    else:
        table.apply(0, ends)
    assert applied(table, renew()) == ["s.1 NOT_HELD"]
    assert applied(table, acquire()) == ["s.1 OWNERSHIP_LOST"]
    release = Release(lock="L", fence=1, session=A, owner="o", request=3)
    assert applied(table, release) == ["s.1 OWNERSHIP_LOST"]
    assert applied(table, replace(release, request=4)) == ["s.1 NOT_HELD"]


def test_a_late_renewal_below_a_later_request_has_no_effect(table: LockTable) -> None:
    table.apply(0, acquire(limit=0))
    table.apply(0, acquire(request=5, limit=0))
    assert applied(table, renew(4)) == ["s.1 SUPERSEDED"]
    assert applied(table, renew(6)) == ["Renewed"]
    assert applied(table, renew(5)) == ["s.1 SUPERSEDED"]


def test_acquiring_again_leaves_the_deadline_which_ends_all_levels(table: LockTable) -> None:
    table.apply(0, acquire(limit=0))
    table.advance(300)
    again = outcome(table, acquire(request=2, limit=0))
    assert (again.count, again.hold_ms, again.grace_ms) == (2, 100, 100)  # The time left.
    table.advance(450)
    assert outcome(table, acquire(request=2, limit=0)) == again
    again = outcome(table, acquire(request=3, limit=0))
    assert (again.count, again.hold_ms, again.grace_ms) == (3, 1, 49)
    assert ended_at(table) == [LEASE_MS]
    assert (table.resources, table.claims) == ({}, 0)


def test_an_owner_that_acquires_in_the_last_millisecond_gets_one_more(table: LockTable) -> None:
    """Log time is rounded down, so the client can rely on nothing of that millisecond."""
    table.apply(0, acquire(limit=0))
    table.advance(LEASE_MS - 1)
    again = outcome(table, acquire(request=2, limit=0))
    assert (again.hold_ms, again.grace_ms) == (1, 0)
    assert ended_at(table) == [LEASE_MS + 1]


def test_a_plain_hold_gets_no_deadline_by_acquiring_again(table: LockTable) -> None:
    table.apply(0, replace(plain(A), limit=0))
    assert outcome(table, acquire(request=2, limit=0)).hold_ms == 0
    assert ended_at(table) == []


def test_a_waiter_gets_its_duration_from_its_grant_on(table: LockTable) -> None:
    table.apply(0, plain(A))
    table.apply(0, acquire(B))
    table.advance(700)
    told = table.apply(700, Release(lock="L", fence=1, session=A, owner="o", request=2))
    granted = next(one for one in told if isinstance(one, Granted))
    assert (granted.session, granted.hold_ms, granted.grace_ms) == (B, 400, 100)
    assert ended_at(table) == [700 + LEASE_MS]


def test_a_lock_that_is_claimed_with_others_keeps_its_deadline(table: LockTable) -> None:
    table.apply(0, acquire())
    every = AcquireAll(locks=("L", "M"), session=B, owner="o", request=1)
    assert applied(table, every) == ["t.2 waits"]
    table.apply(0, acquire(C))
    told = advanced(table, LEASE_MS)
    assert told == ["HoldLost 1", "t.2 holds 2 under 2"]
    release = Release(lock=every.lock, fence=2, session=B, owner="o", request=2)
    assert applied(table, release) == ["t.2 has 0 left", "u.3 holds 1 under 4"]
    assert ended_at(table) == [2 * LEASE_MS]


def test_a_wait_that_ends_when_the_hold_does_is_not_granted(table: LockTable) -> None:
    table.apply(0, acquire())
    table.apply(0, replace(plain(B), wait_ms=LEASE_MS))
    told = advanced(table, LEASE_MS)
    assert told == ["t.2 TIMED_OUT", "HoldLost 1"]


@pytest.mark.parametrize(
    "ends",
    [
        Release(lock="L", fence=1, session=A, owner="o", request=2),
        Cancel(lock="L", session=A, owner="o", request=1),
        End(session=A),
        Evict(lock="L", fence=1, operator="ann", request=1),
    ],
    ids=["release", "cancel", "end", "evict"],
)
def test_no_deadline_is_left_of_a_hold_that_ended(table: LockTable, ends: LogCommand) -> None:
    table.apply(0, acquire())
    table.apply(0, ends)
    assert (table.timeouts.items, table.deadlines.checksum(), table.resources) == ({}, 0, {})
    assert ended_at(table) == []


def test_after_a_change_of_the_leader_each_hold_has_the_rest_of_its_time(table: LockTable) -> None:
    """The time between two leaderships never counts for a deadline, however often they change."""
    table.apply(0, acquire())
    table.advance(300)
    table.apply(5_000, ExtendSessions(leader="b"))  # The hold has 201 ms left.
    table.apply(5_100, plain(B))
    assert left_ms(table) == 101
    table.apply(9_000, ExtendSessions(leader="c"))  # The hold has 101 ms left.
    assert ended_at(table, 9_500) == [9_101]


def test_a_new_leader_does_not_lengthen_a_hold_that_it_grants(table: LockTable) -> None:
    table.apply(4_000, ExtendSessions(leader="b"))
    table.apply(4_000, acquire())
    assert ended_at(table, 5_000) == [4_000 + LEASE_MS]


def test_ends_come_in_the_order_of_their_times_also_with_another_leader(table: LockTable) -> None:
    """A wait, whose timeout does not move, may end before a deadline that has moved."""
    table.apply(0, acquire())
    table.apply(0, replace(plain(B), wait_ms=600))
    table.apply(200, ExtendSessions(leader="b"))
    told = advanced(table, 2_000)
    assert told == ["t.2 TIMED_OUT", "HoldLost 1"]


def test_a_renewal_keeps_the_session(table: LockTable) -> None:
    table.apply(0, acquire(A))
    table.apply(0, replace(acquire(A, 2), lock="M", hold_ms=WEEK_MS))
    table.advance(9_000)
    table.apply(9_000, renew(3, lock="M", fence=2))
    assert advanced(table, 18_999) == ["Ended", "Ended"]
    assert applied(table, KeepAlive(session=A)) == ["Alive"]


def test_status_tells_the_time_that_is_left(table: LockTable) -> None:
    table.apply(0, acquire())
    table.advance(100)
    assert left_ms(table) == LEASE_MS - 100


def busy() -> LockTable:
    table = table_of_three()
    table.apply(0, acquire(limit=0))
    table.apply(0, acquire(B))
    table.apply(100, replace(acquire(C), lock="M", hold_ms=5_000))
    table.apply(150, renew(hold_ms=700))
    table.apply(900, ExtendSessions(leader="b"))
    return table


def test_a_snapshot_holds_deadlines_renewals_and_durations_of_waits() -> None:
    table = busy()
    copy = restored(table)
    assert outcome(copy, renew(hold_ms=700)) == outcome(table, renew(hold_ms=700))
    for one in (table, copy):
        assert ended_at(one) == [900 + 700 + 100 + ROUNDING_MS]
        hold = checked(LeasedHold, hold_of(one, "L"))
        assert (hold.owner_state.session.id, hold.replied) == (B, (400, 100))


def test_the_numbers_and_the_digest_tell_deadlines_apart() -> None:
    table = busy()
    (part,) = table.snapshot()
    at, known = next((at, one) for at, one in enumerate(part.owner_states) if one.hold)
    assert known.hold is not None
    assert known.hold.lease is not None
    lease = known.hold.lease._replace(deadline_ms=known.hold.lease.deadline_ms + 1)
    later = known._replace(hold=known.hold._replace(lease=lease))
    changed = (*part.owner_states[:at], later, *part.owner_states[at + 1 :])
    other = LockTable.restore((replace(part, owner_states=changed),))
    assert other.numbers() != table.numbers()
    assert other.digest() != table.digest()


def test_the_numbers_do_not_depend_on_how_often_the_leader_changed() -> None:
    table = busy()
    table.apply(1_000, ExtendSessions(leader="c"))
    copy = LockTable.restore(table.snapshot())
    assert copy.deadlines.skipped_ms == 0
    for one in (table, copy):
        one.apply(1_500, ExtendSessions(leader="d"))
        one.apply(1_500, renew(9))
    assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())


def renews_with(change: Callable[[LeasedHold, Renew], Renew]) -> Plant:
    @as_plant
    def plant(sound: Any, table: TableState, command: Renew, out: list[Result]) -> None:
        hold = hold_of(table, command.lock)
        sound(table, change(hold, command) if isinstance(hold, LeasedHold) else command, out)

    return plant


def a_repetition_counts_again(hold: LeasedHold, command: Renew) -> Renew:
    if hold.renewal == command.request:
        hold.renewal = 0
    return command


def any_fence_is_right(hold: LeasedHold, command: Renew) -> Renew:
    owner = hold.owner_state.owner
    return replace(command, fence=hold.fence) if owner == command.owner else command


def a_renewal_may_shorten(hold: LeasedHold, table: TableState) -> None:
    if hold.table is not None:
        hold.end(table)
        hold.table = None
    hold.extend(table, table.time_ms + hold.lasts_ms + hold.grace_ms + ROUNDING_MS)


@as_plant
def ended_holds_stay_in_the_heap(sound: Any, hold: LeasedHold, table: TableState) -> None:
    sound(hold, table)
    table.timeouts.add(hold)


PLANTS: dict[str, tuple[Any, str, Plant]] = {
    "time without a leader counts": (LockTable, "shift", instead(the_time_without_a_leader_counts)),
    "a renewal may shorten": (LeasedHold, "restart", instead(a_renewal_may_shorten)),
    "ended holds stay in the heap": (LeasedHold, "end", ended_holds_stay_in_the_heap),
    "acquiring again tells the whole": (
        LeasedHold,
        "acquire_again",
        instead(acquiring_again_tells_the_whole),
    ),
    "a snapshot loses deadlines": (snapshot, "_hold_record", with_fields(lease=None)),
    "a wait loses its terms": (snapshot, "_wait_record", with_fields(hold_ms=0)),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    demand_found(monkeypatch, DeadlineComposer, *PLANTS[bug])


@pytest.mark.parametrize("change", [a_repetition_counts_again, any_fence_is_right])
def test_every_bug_planted_in_renewals_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[LeasedHold, Renew], Renew]
) -> None:
    demand_found(monkeypatch, DeadlineComposer, RULES, Renew, renews_with(change))
