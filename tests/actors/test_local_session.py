"""Callers inside the process of a node: its session and proxy over a table, a log in between.

The log here loses nothing and takes no time, unless it is silent.
"""

from __future__ import annotations

import pytest
from support.local_callers import ONE, THREE, TWO, A, LocalCallers

from fencelock.actors.api.message import (
    Abandon,
    Acquire,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.message import Address, Message
from fencelock.actors.session.lease import LINGER_MS
from fencelock.actors.session.session import TTL_MS
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
    assert inside.heard(TWO, Granted) == []
    inside.do(THREE, Release(lock="a", fence=fence))
    (released,) = inside.heard(THREE, Released)
    assert (released.lock, released.owner, released.count) == ("a", "", 0)
    assert [granted.owner for granted in inside.heard(ONE, Granted)] == [""]
    assert inside.fence(TWO) > fence


def test_an_owner_that_is_named_may_hold_more_than_once(inside: LocalCallers) -> None:
    again = Acquire(lock="a", owner="w", limit=2)
    for ask in (ONE, TWO, THREE):
        inside.do(ask, again)
    assert [granted.count for ask in (ONE, TWO) for granted in inside.heard(ask, Granted)] == [1, 2]
    assert inside.reason(THREE) is Reason.LIMIT_REACHED
    release = Release(lock="a", fence=inside.fence(ONE))
    for left in (1, 0):
        inside.do(Address(f"n1/ask-{9 - left}"), release)
        assert inside.heard(Address(f"n1/ask-{9 - left}"), Released)[0].count == left
    assert inside.table.resources == {}
    assert inside.is_idle()


def test_a_release_of_what_is_not_held_is_refused_without_the_log(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    before = len(inside.commands)
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE) + 1))
    assert inside.reason(TWO) is Reason.NOT_HELD
    assert len(inside.commands) == before


def test_a_second_release_is_refused(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE)))
    inside.do(THREE, Release(lock="a", fence=inside.fence(ONE)))
    assert inside.reason(THREE) is Reason.NOT_HELD


def test_a_try_and_a_wait_with_a_limit_are_decided_by_the_log(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, Acquire(lock="a", wait_ms=0))
    assert inside.reason(TWO) is Reason.TIMED_OUT
    inside.do(THREE, Acquire(lock="a", wait_ms=400))
    inside.pass_time(399, 399)
    assert inside.heard(THREE, Refused) == []
    inside.pass_time(1)
    (refused,) = inside.heard(THREE, Refused)
    assert refused.reason is Reason.TIMED_OUT
    assert "waited 400 ms; held by 'ask-1'" in refused.detail


def test_an_ask_that_gave_up_leaves_no_wait_and_no_hold(inside: LocalCallers) -> None:
    inside.do(ONE, A)
    inside.do(TWO, A)
    inside.do(TWO, Abandon())
    assert inside.table.status("a").waiting == 0
    inside.do(ONE, Abandon())
    assert inside.table.resources == {}
    assert inside.is_idle()
    assert inside.heard(TWO, Message) == []


def test_an_ask_that_gave_up_one_of_two_holds_leaves_the_other(inside: LocalCallers) -> None:
    again = Acquire(lock="a", owner="w", limit=0)
    inside.do(ONE, again)
    inside.do(TWO, again)
    inside.do(TWO, Abandon())
    holder = inside.table.status("a").holder
    assert holder is not None
    assert holder.times == 1
    inside.do(THREE, Release(lock="a", fence=inside.fence(ONE)))
    assert inside.table.resources == {}


def test_an_ask_that_gave_up_before_there_was_a_session_is_forgotten(inside: LocalCallers) -> None:
    inside.silent = True
    inside.do(ONE, A)
    inside.do(ONE, Abandon())
    assert inside.locks_after_reply(TIMING.outcome_ms) == {}


def test_the_session_lives_while_anything_is_held_and_then_ends_by_itself(
    inside: LocalCallers,
) -> None:
    inside.do(ONE, A)
    inside.pass_time(3 * TTL_MS)
    assert "a" in inside.table.resources
    inside.do(TWO, Release(lock="a", fence=inside.fence(ONE)))
    assert len(inside.heard(TWO, Released)) == 1
    inside.pass_time(LINGER_MS + 2 * TTL_MS)
    assert inside.table.sessions.by_id == {}
    assert inside.node.proxy.ticking is False
    inside.do(THREE, A)
    assert inside.fence(THREE) > inside.fence(ONE)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Acquire(lock=""), "0 bytes"),
        (Acquire(lock="a", owner="o" * 300), "owner of 300"),
        (Acquire(lock="a", wait_ms=-1), "wait_ms is -1"),
        (Acquire(lock="a", limit=-1), "limit is -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_ask_is_told_its_field_value_and_limit(
    inside: LocalCallers, request_: Acquire, words: str
) -> None:
    inside.do(ONE, request_)
    (refused,) = inside.heard(ONE, Refused)
    assert (refused.reason, words in refused.detail) == (Reason.INVALID, True)
    assert not any(isinstance(command, Acquire) for command in inside.commands)
