"""Updates of a client's session that hold nothing, with a real proxy and table."""

from __future__ import annotations

from support.expect import checked
from support.local_callers import ONE, TWO, LocalCallers

from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.lock_message import Abandon, Acquire, Reason, Refused
from fencelock.actors.api.name import object_name
from fencelock.actors.api.operator_message import CloseSession
from fencelock.actors.table.latch import Latch

LATCH_NAME = object_name(LATCH, "L")


# The tests below use a real proxy and table.

C = CountDown(latch="L", count=2)
W = AwaitLatch(latch="L", count=2)


def left(callers: LocalCallers) -> int:
    latch = checked(Latch, callers.table.objects[LATCH_NAME])
    return latch.left


def test_a_lost_reply_and_a_repetition_count_once() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True  # The log applies the command, but its outcome is lost.
    callers.do(TWO, C)
    callers.table.apply(callers.ms, callers.commands[-1])
    assert left(callers) == 1
    callers.silent = False
    callers.pass_time(5_000)
    assert [one.left for one in callers.received(TWO, CountedDown)] == [1]
    assert left(callers) == 1
    assert len([one for one in callers.commands if isinstance(one, CountDown)]) > 1


def test_a_wait_passes_when_the_count_is_0() -> None:
    callers = LocalCallers()
    callers.do(ONE, W)
    callers.do(TWO, C)
    assert callers.received(ONE, LatchPassed) == []
    callers.do(TWO, C)
    assert len(callers.received(ONE, LatchPassed)) == 1
    assert callers.is_idle()


def test_a_wait_that_times_out_and_one_that_is_cancelled_leave_nothing_in_the_queue() -> None:
    callers = LocalCallers()
    callers.do(ONE, AwaitLatch(latch="L", count=2, wait_ms=1_000))
    callers.do(TWO, W)
    assert callers.table.objects[LATCH_NAME].waiting == 2
    callers.do(TWO, Abandon())
    callers.pass_time(2_000)
    assert callers.reason(ONE) is Reason.TIMED_OUT
    (refused,) = callers.received(ONE, Refused)
    assert refused.detail == "latch 'L': waited 1000 ms; its count is 2 of 2"
    assert LATCH_NAME not in callers.table.objects
    assert callers.table.claims == 0
    assert callers.is_idle()


def test_an_update_whose_session_has_ended_at_the_cluster_is_answered_once() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True
    callers.do(TWO, C)
    (session,) = callers.table.sessions.by_id
    close = CloseSession(handle=session, operator="eve", request=1)
    ended = callers.table.apply(callers.ms, close)
    callers.silent = False
    callers.happens(ended)
    callers.pass_time(5_000)
    (refused,) = callers.received(TWO, Refused)
    assert refused.reason is Reason.SESSION_EXPIRED
    assert "unknown" in refused.detail
    assert LATCH_NAME not in callers.table.objects


def test_a_copy_that_the_table_has_forgotten_has_an_unknown_outcome() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True
    callers.do(TWO, C)
    sent = checked(CountDown, callers.commands[-1])
    callers.happens([Refused(**sent.fields(), reason=Reason.FORGOTTEN, detail="no")])
    (refused,) = callers.received(TWO, Refused)
    assert refused.reason is Reason.UNAVAILABLE
    assert "unknown" in refused.detail
