"""Callers inside the process of a node: its session and proxy over a table, a log in between.

The log here loses nothing and takes no time, unless it is silent.
"""

from __future__ import annotations

from support.expect import checked, present
from support.local_callers import ONE, THREE, TWO, A, LocalCallers
from support.table_scene import status_of

from fencelock.actors.api.lock_message import (
    Abandon,
    Acquire,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.operator_message import CloseSession, Evict, Evicted
from fencelock.actors.message import Address, Message
from fencelock.actors.paxos.event import Divergence, Skipped
from fencelock.actors.session.event import Close, Closed
from fencelock.actors.session.lease import KEEPS_PER_TTL, LINGER_MS
from fencelock.actors.session.requests import (
    CANCEL_MS_MAX,
    DECISION_MS,
    MARGIN_MS,
    RETRY_MS_MAX,
    UNANSWERED_MS,
)
from fencelock.actors.session.session import SESSION_TICK_MS, TTL_MS
from fencelock.actors.timing import TIMING


def test_the_first_ask_opens_the_nodes_session_and_all_share_it(inside: LocalCallers) -> None:
    inside.silent = True
    inside.do(ONE, A)
    inside.do(TWO, Acquire(lock="b"))
    assert [type(command).__name__ for command in inside.commands] == ["Open"]
    inside.silent = False
    inside.pass_time(2 * TIMING.outcome_ms)
    assert inside.fence(ONE) < inside.fence(TWO)
    assert list(inside.table.sessions.by_id) == ["n1/b00.1"]


def test_an_ask_is_an_owner_of_its_own_and_the_fence_its_proof(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, A)
    fence = inside.fence(ONE)
    assert inside.received(TWO, Granted) == []
    inside.do(THREE, Release(lock="a", fence=fence))
    (released,) = inside.received(THREE, Released)
    assert (released.lock, released.owner, released.count) == ("a", "", 0)
    assert [granted.owner for granted in inside.received(ONE, Granted)] == [""]
    assert inside.fence(TWO) > fence


def test_an_owner_that_is_named_may_hold_more_than_once(inside: LocalCallers) -> None:
    again = Acquire(lock="a", owner="w", limit=2)
    for ask in (ONE, TWO, THREE):
        inside.do(ask, again)
    assert [granted.count for ask in (ONE, TWO) for granted in inside.received(ask, Granted)] == [
        1,
        2,
    ]
    assert inside.reason(THREE) is Reason.LIMIT_REACHED
    release = Release(lock="a", fence=inside.fence(ONE))
    for left in (1, 0):
        inside.do(Address(f"n1/ask-{9 - left}"), release)
        assert inside.received(Address(f"n1/ask-{9 - left}"), Released)[0].count == left
    assert inside.table.resources == {}
    assert inside.is_idle()


def test_a_try_and_a_wait_with_a_limit_are_decided_by_the_log(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, Acquire(lock="a", wait_ms=0))
    assert inside.reason(TWO) is Reason.TIMED_OUT
    inside.do(THREE, Acquire(lock="a", wait_ms=400))
    inside.pass_time(399, 399)
    assert inside.received(THREE, Refused) == []
    inside.pass_time(1)
    (refused,) = inside.received(THREE, Refused)
    assert refused.reason is Reason.TIMED_OUT
    assert "waited 400 ms; held by n1 ('ask-1' of" in refused.detail


def test_an_ask_that_gave_up_leaves_no_wait_and_no_hold(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, A)
    inside.do(TWO, Abandon())
    assert inside.table.state_of("a").waiting == 0
    inside.do(ONE, Abandon())
    assert inside.table.resources == {}
    assert inside.is_idle()
    assert inside.received(TWO, Message) == []


def test_an_ask_that_gave_up_one_of_two_holds_leaves_the_other(inside: LocalCallers) -> None:
    again = Acquire(lock="a", owner="w", limit=0)
    inside.do(ONE, again)
    inside.do(TWO, again)
    inside.do(TWO, Abandon())
    assert present(status_of(inside.table, "a").holder).times == 1
    inside.do(THREE, Release(lock="a", fence=inside.fence(ONE)))
    assert inside.table.resources == {}


def test_an_ask_that_gave_up_before_there_was_a_session_is_forgotten(inside: LocalCallers) -> None:
    inside.silent = True
    inside.do(ONE, A)
    inside.do(ONE, Abandon())
    assert inside.locks_after_reply(TIMING.outcome_ms) == {}


def test_the_session_lives_while_anything_is_held_then_ends_itself(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.pass_time(3 * TTL_MS)
    assert "a" in inside.table.resources
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE)))
    assert len(inside.received(TWO, Released)) == 1
    inside.pass_time(LINGER_MS + 2 * TTL_MS)
    assert inside.table.sessions.by_id == {}
    assert inside.node.proxy.ticking is False
    inside.do(THREE, A)
    assert inside.fence(THREE) > inside.fence(ONE)


def test_a_wait_that_gets_no_reply_is_unavailable_and_cancelled(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.silent = True
    inside.do(TWO, Acquire(lock="b", wait_ms=1_000))
    inside.pass_time(1_000)
    assert inside.received(TWO, Refused) == []
    inside.pass_time(MARGIN_MS + 2 * SESSION_TICK_MS)
    (refused,) = inside.received(TWO, Refused)
    assert refused.reason is Reason.UNAVAILABLE
    assert "n1 (a majority of n1, n2, n3 has not answered for" in refused.detail
    inside.silent = False
    inside.pass_time(CANCEL_MS_MAX)
    assert list(inside.table.resources) == ["a"]
    assert inside.received(TWO, Granted) == []
    assert len(inside.node.proxy.backend) == 0


def test_a_wait_for_a_session_is_unavailable_too(inside: LocalCallers) -> None:
    inside.silent = True
    inside.do(ONE, Acquire(lock="b", wait_ms=0))
    inside.pass_time(DECISION_MS + 2 * SESSION_TICK_MS)
    assert inside.reason(ONE) is Reason.UNAVAILABLE
    (refused,) = inside.received(ONE, Refused)
    assert "a majority of n1, n2, n3 has not answered for" in refused.detail
    assert inside.locks_after_reply(CANCEL_MS_MAX) == {}


def test_a_hold_that_cannot_be_confirmed_in_time_is_lost_before_the_log_can_end_it(
    inside: LocalCallers,
) -> None:
    inside.do(ONE, A)
    inside.silent = True
    inside.pass_time(TTL_MS - 2 * TTL_MS // 1_000 - 1)
    assert inside.held() == [("a", inside.fence(ONE))]
    inside.pass_time(2 * SESSION_TICK_MS)
    assert inside.held() == []
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE)))
    (refused,) = inside.received(TWO, Refused)
    assert refused.reason is Reason.OWNERSHIP_LOST
    assert "nothing confirmed the session" in refused.detail
    assert "a majority of n1, n2, n3 has not answered for" in refused.detail
    assert inside.locks_after_reply(RETRY_MS_MAX + TIMING.outcome_ms) == {}, (
        "the session that was given up is ended"
    )


def test_waits_of_a_lost_session_go_on_in_the_next(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, A)
    inside.do(THREE, Acquire(lock="a", wait_ms=1_000))
    closed = CloseSession(handle="n1/b00.1", operator="eve", request=1)
    inside.happens(inside.table.apply(inside.ms, closed))
    assert inside.fence(TWO) > inside.fence(ONE)
    assert list(inside.table.sessions.by_id) == ["n1/b00~2.2"]
    inside.pass_time(1_000)
    assert inside.reason(THREE) is Reason.TIMED_OUT
    inside.do(Address("n1/ask-4"), Release(lock="a", fence=inside.fence(ONE)))
    assert inside.reason(Address("n1/ask-4")) is Reason.OWNERSHIP_LOST


def test_a_release_under_way_when_the_session_is_lost_reports_the_loss(
    inside: LocalCallers,
) -> None:
    inside.do(ONE, A)
    inside.silent = True
    inside.pass_time(TTL_MS - UNANSWERED_MS // 2)
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE)))
    inside.pass_time(UNANSWERED_MS // 2 + SESSION_TICK_MS)
    assert inside.reason(TWO) is Reason.OWNERSHIP_LOST
    assert inside.locks_after_reply(RETRY_MS_MAX + TIMING.outcome_ms) == {}


def test_a_grant_that_arrives_too_late_is_not_believed(inside: LocalCallers) -> None:
    inside.do(ONE, Acquire(lock="b"))
    inside.do(TWO, Release(lock="b", fence=inside.fence(ONE)))
    inside.silent = True
    inside.do(THREE, A)
    acquire = checked(Acquire, inside.commands[-1])
    session, owner, request = acquire.session, acquire.owner, acquire.request
    late = Granted(session=session, owner=owner, request=request, lock="a", fence=9, count=1)
    inside.ms += TTL_MS
    inside.happens([late])
    assert inside.received(THREE, Granted) == []
    assert inside.held() == []
    inside.silent = False
    inside.pass_time(2 * TIMING.outcome_ms)
    assert inside.fence(THREE) != 9


def test_a_caller_inside_evicts_as_an_operator(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    fence = inside.fence(ONE)
    inside.do(TWO, Evict(lock="a", fence=fence, operator="eve"))
    (evicted,) = inside.received(TWO, Evicted)
    assert (evicted.fence, evicted.holder.owner) == (fence, "ask-1")
    assert inside.table.forced()[0].operator == "eve (n1)"
    inside.do(THREE, Evict(lock="a", fence=fence, operator="eve"))
    assert inside.reason(THREE) is Reason.NOT_HELD


def test_a_state_that_was_taken_over_is_checked_for_the_session(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    closed = CloseSession(handle="n1/b00.1", operator="eve", request=1)
    inside.table.apply(inside.ms, closed)
    inside.node.receive(Skipped(slot=9))
    inside.pass_time(TTL_MS // KEEPS_PER_TTL + SESSION_TICK_MS)
    assert inside.held() == []


def test_a_node_that_is_stopped_ends_its_session_and_reports_when(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, A)
    inside.silent = True
    inside.do(THREE, Close())
    assert inside.received(THREE, Closed) == []
    inside.silent = False
    inside.pass_time(TIMING.outcome_ms)
    assert inside.replies[-1] == (THREE, Closed(unanswered=0))
    assert (inside.table.resources, inside.table.sessions.by_id) == ({}, {})
    inside.do(THREE, Close())
    assert inside.replies[-1] == (THREE, Closed(unanswered=0))


def test_a_quarantined_node_takes_the_holds_and_refuses_the_rest(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.silent = True
    inside.do(TWO, A)
    inside.do(THREE, Acquire(lock="b", wait_ms=0))
    inside.node.receive(Divergence(why="its state differs", quarantined=True))
    inside.pass_time(SESSION_TICK_MS)
    for caller in (TWO, THREE):
        (refused,) = inside.received(caller, Refused)
        assert refused.reason is Reason.UNAVAILABLE
        assert "its state differs" in refused.detail
    four, five = Address("n1/ask-4"), Address("n1/ask-5")
    inside.do(four, Release(lock="a", fence=inside.fence(ONE)))
    assert inside.reason(four) is Reason.OWNERSHIP_LOST
    inside.do(five, A)
    assert inside.reason(five) is Reason.UNAVAILABLE
    inside.do(five, Close())
    assert inside.replies[-1] == (five, Closed(unanswered=0))
