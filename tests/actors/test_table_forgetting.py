"""What the table forgets of a live session, and what is answered then. Rules 53, 54."""

from __future__ import annotations

import pytest
from support.one_session import (
    DAY_MS,
    acquire,
    cancel,
    freed,
    held,
    one_session,
    play,
    queued,
    reasons,
    release,
    undone,
)

from fencelock.actors.api import message as api
from fencelock.actors.table.message import ExtendSessions
from fencelock.actors.table.session import QUIET_MAX
from fencelock.actors.table.table import LockTable


@pytest.fixture
def table() -> LockTable:
    return one_session()


def test_the_last_outcome_is_kept_for_a_ttl_after_the_last_release(table: LockTable) -> None:
    """Rule 53: longer than a client goes on asking; then what was asked is not done again."""
    play(table, acquire("a", 1), release("a", 2, 1))
    play(table, api.KeepAlive(session="s.1"))
    table.advance(DAY_MS - 1)
    assert play(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(DAY_MS)
    assert reasons(play(table, release("a", 2, 1))) == [("a", 2, api.Reason.FORGOTTEN)]
    assert reasons(play(table, acquire("a", 1))) == [("a", 1, api.Reason.FORGOTTEN)]
    assert play(table, cancel("a", 1)) == [undone("a", 1)]
    session = table.sessions.by_id["s.1"]
    assert (session.owner_states, session.quiet, session.floor) == ({}, {}, 2)
    assert play(table, acquire("a", 3)) == [held("a", 3, 2)]


def test_a_new_master_lets_what_was_asked_before_it_be_asked_again(table: LockTable) -> None:
    """Rule 53: however long there was no master."""
    play(table, acquire("a", 1), release("a", 2, 1))
    table.apply(3 * DAY_MS, ExtendSessions(master="m"))
    assert play(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(4 * DAY_MS - 1)
    assert play(table, release("a", 2, 1)) == [freed("a", 2)]
    table.advance(4 * DAY_MS)
    assert reasons(play(table, release("a", 2, 1))) == [("a", 2, api.Reason.FORGOTTEN)]


def test_who_holds_or_waits_is_not_forgotten_however_long_ago_it_asked(table: LockTable) -> None:
    """Rule 53."""
    play(table, acquire("a", 1), acquire("b", 2))
    for half_day in range(1, 7):
        table.advance(half_day * DAY_MS // 2)
        play(table, api.KeepAlive(session="s.1"))
    assert play(table, acquire("a", 1)) == [held("a", 1, 1)]
    assert play(table, acquire("b", 2)) == [queued("b", 2)]


def test_one_outcome_is_kept_of_an_owner_and_lock_however_much_it_asks(table: LockTable) -> None:
    """Rule 54, P58: also of what failed."""
    play(table, acquire("a", 1))
    for request in range(2, 5_000):
        play(table, acquire("b", request, 0, lock="L"))
    owner_states = table.sessions.by_id["s.1"].owner_states
    assert len(owner_states) == 2
    assert owner_states["b", "L"].request == 4_999


def test_the_quietest_are_forgotten_beyond_a_bound_and_what_they_asked_is_not_redone(
    table: LockTable,
) -> None:
    """Rule 54, P58: an owner per task is no leak, and a forgotten request is not done twice."""
    play(table, acquire("holder", 1))
    total = QUIET_MAX + 10
    for i in range(total):
        play(table, acquire(f"t{i}", i + 2, 0))
    session = table.sessions.by_id["s.1"]
    assert len(session.owner_states) == QUIET_MAX + 1
    assert session.floor == 11
    play(table, release("holder", total + 2, 1))
    assert reasons(play(table, acquire("t9", 11))) == [("t9", 11, api.Reason.FORGOTTEN)]
    assert reasons(play(table, acquire("t11", 13))) == [("t11", 13, api.Reason.TIMED_OUT)]
    assert play(table, acquire("t9", total + 3)) == [held("t9", total + 3, 2)]


def test_a_request_that_many_others_overtook_may_be_asked_anew(table: LockTable) -> None:
    """Rule 54: it was never done, and is told what is true of it too: that it holds nothing."""
    for i in range(QUIET_MAX + 6):
        play(table, cancel(f"t{i}", i + 6))
    assert reasons(play(table, acquire("late", 5))) == [("late", 5, api.Reason.FORGOTTEN)]
    assert table.locks == {}
    request = QUIET_MAX + 20
    assert play(table, acquire("late", request)) == [held("late", request, 1)]
