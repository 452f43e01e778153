"""Exactly once: a repeated command has no second effect, and the table forgets. Rules 41 to 54."""

from __future__ import annotations

import pytest
from support.expect import present
from support.session_harness import (
    DAY_MS,
    acquire,
    applied,
    cancel,
    freed,
    held,
    one_session,
    queued,
    reasons,
    release,
    undone,
)
from support.table_scene import text_of

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import Evict, Evicted, HoldLost
from fencelock.actors.table.session import IDLE_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, Result


@pytest.fixture
def table() -> LockTable:
    return one_session()


def test_a_granted_acquire_asked_again_counts_once(table: LockTable) -> None:
    """Rule one-outcome."""
    assert applied(table, acquire("a", 1), acquire("a", 1)) == [held("a", 1, 1)]
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]


def test_a_re_entry_asked_again_counts_once(table: LockTable) -> None:
    """Rule one-outcome: nor does a late copy of the first acquire count again."""
    applied(table, acquire("a", 1), acquire("a", 2))
    assert applied(table, acquire("a", 2)) == [held("a", 2, 1, 2)]
    assert reasons(applied(table, acquire("a", 1))) == [("a", 1, api.Reason.SUPERSEDED)]
    assert applied(table, release("a", 3, 1)) == [freed("a", 3, 1)]


@pytest.mark.parametrize("wait_ms", [None, 0, 50])
def test_a_waiting_acquire_asked_again_neither_cancels_nor_doubles(
    table: LockTable, wait_ms: int | None
) -> None:
    """Rule one-outcome: a repeated acquire that still waits gets a reply that it waits."""
    applied(table, acquire("a", 1), acquire("b", 2, 100))
    assert applied(table, acquire("b", 2, wait_ms)) == [queued("b", 2)]
    assert len(table.status("L").waiters) == len(table.timeouts.items) == 1
    assert table.due_ms() == 100


@pytest.mark.parametrize("wait_ms", [None, 100])
def test_a_new_acquire_cancels_the_owners_wait_and_queues_at_the_tail(
    table: LockTable, wait_ms: int | None
) -> None:
    """Rule new-request-ends-the-wait."""
    applied(table, acquire("a", 1), acquire("b", 2), acquire("c", 3))
    outcomes = applied(table, acquire("b", 4, wait_ms))
    assert reasons(outcomes) == [("b", 2, api.Reason.CANCELLED)]
    assert outcomes[1:] == [queued("b", 4)]
    assert [w.request for w in table.status("L").waiters] == [3, 4]


def test_a_release_while_waiting_cancels_the_wait_and_is_refused(table: LockTable) -> None:
    """Rule new-request-ends-the-wait."""
    applied(table, acquire("a", 1), acquire("b", 2))
    said = reasons(applied(table, release("b", 3, 1)))
    assert said == [("b", 2, api.Reason.CANCELLED), ("b", 3, api.Reason.NOT_HELD)]
    assert applied(table, release("a", 4, 1)) == [freed("a", 4)]


def test_a_wait_granted_while_its_answer_was_lost_has_the_same_fence_again(
    table: LockTable,
) -> None:
    """Rules release-grants-the-next, one-outcome."""
    applied(table, acquire("a", 1), acquire("b", 2))
    assert applied(table, release("a", 3, 1))[1:] == [held("b", 2, 2)]
    assert applied(table, acquire("b", 2)) == [held("b", 2, 2)]
    assert applied(table, release("b", 4, 2)) == [freed("b", 4)]


def test_a_release_asked_again_succeeds_without_effect_on_who_holds_now(
    table: LockTable,
) -> None:
    """Rule one-outcome."""
    applied(table, acquire("a", 1), release("a", 2, 1), acquire("b", 3))
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]
    holder = present(table.status("L").holder)
    assert (holder.owner, holder.fence) == ("b", 2)


def test_a_wait_and_its_copy_end_together(table: LockTable) -> None:
    """Rule one-outcome: one answer is addressed to both."""
    applied(table, acquire("a", 1), acquire("b", 2, 100), acquire("b", 2, 100))
    assert reasons(table.advance(100)) == [("b", 2, api.Reason.TIMED_OUT)]
    assert reasons(applied(table, acquire("b", 2, 100))) == [("b", 2, api.Reason.TIMED_OUT)]


@pytest.mark.parametrize("wait_ms", [0, 100])
def test_a_failed_acquire_asked_again_when_the_lock_is_free_stays_failed(
    table: LockTable, wait_ms: int
) -> None:
    """Rule one-outcome."""
    applied(table, acquire("a", 1), acquire("b", 2, wait_ms))
    table.advance(100)
    applied(table, release("a", 3, 1))
    assert reasons(applied(table, acquire("b", 2, wait_ms))) == [("b", 2, api.Reason.TIMED_OUT)]
    assert table.resources == {}


def test_what_an_owner_does_with_one_lock_does_not_touch_what_it_does_with_another(
    table: LockTable,
) -> None:
    """Rules one-outcome, new-request-ends-the-wait: for each lock by itself."""
    applied(table, acquire("a", 1), acquire("b", 2), acquire("b", 3, lock="M"))
    assert applied(table, acquire("b", 2)) == [queued("b", 2)]
    applied(table, release("a", 4, 1))
    assert applied(table, acquire("b", 2)) == [held("b", 2, 3)]
    assert applied(table, acquire("b", 3, lock="M")) == [held("b", 3, 2, lock="M")]
    assert applied(table, release("a", 4, 1)) == [freed("a", 4)]


def test_a_release_that_later_requests_for_other_locks_overtook_is_still_done(
    table: LockTable,
) -> None:
    """A release may be repeated in the background long after later requests."""
    applied(table, acquire("a", 1), acquire("a", 9, lock="M"))
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]


def test_a_number_used_for_something_else_does_nothing(table: LockTable) -> None:
    applied(table, acquire("a", 1))
    assert reasons(applied(table, release("a", 1, 1))) == [("a", 1, api.Reason.SUPERSEDED)]
    applied(table, release("a", 2, 1))
    assert reasons(applied(table, acquire("a", 2))) == [("a", 2, api.Reason.SUPERSEDED)]


def test_a_cancelled_wait_is_over_and_stays_so(table: LockTable) -> None:
    applied(table, acquire("a", 1), acquire("b", 2, 100))
    outcomes = applied(table, cancel("b", 2))
    assert outcomes[0] == undone("b", 2)
    assert reasons(outcomes) == [("b", 2, api.Reason.CANCELLED)]
    assert applied(table, cancel("b", 2)) == [undone("b", 2)]
    assert reasons(applied(table, acquire("b", 2, 100))) == [("b", 2, api.Reason.CANCELLED)]


def test_a_cancel_after_the_grant_takes_the_lock_back_for_the_next(table: LockTable) -> None:
    applied(table, acquire("a", 1), acquire("b", 2))
    expected: list[Result] = [undone("a", 1), held("b", 2, 2)]
    assert applied(table, cancel("a", 1)) == expected
    assert reasons(applied(table, acquire("a", 1))) == [("a", 1, api.Reason.CANCELLED)]


def test_a_cancel_of_a_re_entry_takes_back_one_hold_once(table: LockTable) -> None:
    applied(table, acquire("a", 1), acquire("a", 2), cancel("a", 2), cancel("a", 2))
    assert applied(table, release("a", 3, 1)) == [freed("a", 3)]


def test_a_cancel_that_overtakes_its_acquire_wins(table: LockTable) -> None:
    applied(table, acquire("a", 1), acquire("b", 2))
    assert applied(table, cancel("a", 3)) == [undone("a", 3)]
    assert reasons(applied(table, acquire("a", 3))) == [("a", 3, api.Reason.CANCELLED)]
    outcomes = applied(table, cancel("b", 4))
    assert reasons(outcomes) == [("b", 2, api.Reason.CANCELLED)]
    assert table.status("L").waiters == ()


def test_an_operator_takes_a_lock_and_all_hear_of_it(table: LockTable) -> None:
    """Audited; the next holder has a new fence; the former owner's release is told why."""
    applied(table, acquire("a", 1), acquire("b", 2))
    table.advance(70)
    take = Evict(operator="root", request=1, lock="L", fence=1)
    forced, lost, next_held = applied(table, take)
    assert isinstance(forced, Evicted)
    assert (forced.operator, forced.holder.owner, forced.fence, forced.time_ms) == (
        "root ()",
        "a",
        1,
        70,
    )
    assert (forced.session, forced.request, forced.holder.since_ms) == ("", 1, 70)
    assert isinstance(lost, HoldLost)
    assert lost == HoldLost(
        session="s.1", owner="a", lock="L", fence=1, detail="", decided=True, why=lost.why
    )
    assert "taken by 'root ()'" in text_of(lost)
    assert next_held == held("b", 2, 2)
    assert table.forced() == (forced,)
    assert reasons(applied(table, acquire("a", 1))) == [("a", 1, api.Reason.OWNERSHIP_LOST)]
    assert reasons(applied(table, release("a", 3, 1))) == [("a", 3, api.Reason.OWNERSHIP_LOST)]
    assert reasons(applied(table, release("a", 3, 1))) == [("a", 3, api.Reason.OWNERSHIP_LOST)]
    assert reasons(applied(table, release("a", 4, 1))) == [("a", 4, api.Reason.NOT_HELD)]


def test_a_forced_release_asked_again_does_not_hit_the_next_holder(table: LockTable) -> None:
    take = Evict(operator="root", request=1, lock="L", fence=1)
    first = applied(table, acquire("a", 1), acquire("b", 2), take)[0]
    assert applied(table, take) == [first]
    late = Evict(operator="root", request=2, lock="L", fence=1)
    assert reasons(applied(table, late)) == [("", 2, api.Reason.NOT_HELD)]
    assert present(table.status("L").holder).owner == "b"


def test_the_last_outcome_is_kept_for_a_ttl_after_the_last_release(table: LockTable) -> None:
    """Rule outcomes-are-kept: longer than a client repeats a request."""
    applied(table, acquire("a", 1), release("a", 2, 1))
    applied(table, api.KeepAlive(session="s.1"))
    table.advance(DAY_MS - 1)
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(DAY_MS)
    assert reasons(applied(table, release("a", 2, 1))) == [("a", 2, api.Reason.FORGOTTEN)]
    assert reasons(applied(table, acquire("a", 1))) == [("a", 1, api.Reason.FORGOTTEN)]
    assert applied(table, cancel("a", 1)) == [undone("a", 1)]
    session = table.sessions.by_id["s.1"]
    assert (session.owner_states, session.idle, session.floor) == ({}, {}, 2)
    assert applied(table, acquire("a", 3)) == [held("a", 3, 2)]


def test_a_new_leader_lets_what_was_asked_before_it_be_asked_again(table: LockTable) -> None:
    """Rule outcomes-are-kept: however long there was no leader."""
    applied(table, acquire("a", 1), release("a", 2, 1))
    table.apply(3 * DAY_MS, ExtendSessions(leader="m"))
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(4 * DAY_MS - 1)
    assert applied(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(4 * DAY_MS)
    assert reasons(applied(table, release("a", 2, 1))) == [("a", 2, api.Reason.FORGOTTEN)]


def test_an_owner_that_holds_or_waits_is_not_forgotten_however_old_its_request(
    table: LockTable,
) -> None:
    """Rule outcomes-are-kept."""
    applied(table, acquire("a", 1), acquire("b", 2))
    for half_day in range(1, 7):
        table.advance(half_day * DAY_MS // 2)
        applied(table, api.KeepAlive(session="s.1"))
    assert applied(table, acquire("a", 1)) == [held("a", 1, 1)]
    assert applied(table, acquire("b", 2)) == [queued("b", 2)]


def test_one_outcome_is_kept_of_an_owner_and_lock_however_much_it_asks(table: LockTable) -> None:
    """Rule outcomes-are-bounded: also of what failed."""
    applied(table, acquire("a", 1))
    for request in range(2, 5_000):
        applied(table, acquire("b", request, 0, lock="L"))
    owner_states = table.sessions.by_id["s.1"].owner_states
    assert len(owner_states) == 2
    assert owner_states["b", "L"].request == 4_999


def test_the_quietest_are_forgotten_beyond_a_bound_and_what_they_asked_is_not_redone(
    table: LockTable,
) -> None:
    """Rule outcomes-are-bounded: an owner per task is no leak."""
    applied(table, acquire("holder", 1))
    total = IDLE_MAX + 10
    for i in range(total):
        applied(table, acquire(f"t{i}", i + 2, 0))
    session = table.sessions.by_id["s.1"]
    assert len(session.owner_states) == IDLE_MAX + 1
    assert session.floor == 11
    applied(table, release("holder", total + 2, 1))
    assert reasons(applied(table, acquire("t9", 11))) == [("t9", 11, api.Reason.FORGOTTEN)]
    assert reasons(applied(table, acquire("t11", 13))) == [("t11", 13, api.Reason.TIMED_OUT)]
    assert applied(table, acquire("t9", total + 3)) == [held("t9", total + 3, 2)]


def test_a_request_that_many_others_overtook_may_be_asked_anew(table: LockTable) -> None:
    """Rule outcomes-are-bounded: it never took effect, and holds nothing."""
    for i in range(IDLE_MAX + 6):
        applied(table, cancel(f"t{i}", i + 6))
    assert reasons(applied(table, acquire("late", 5))) == [("late", 5, api.Reason.FORGOTTEN)]
    assert table.resources == {}
    request = IDLE_MAX + 20
    assert applied(table, acquire("late", request)) == [held("late", request, 1)]
