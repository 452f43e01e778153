"""A session that the cluster keeps, over gates that come and go: anything may be asked anywhere."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, ME, A, B, SessionHarness, of, one

from fencelock.actors.api import message as api
from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.session_message import (
    End,
    Evict,
    Evicted,
    ListLocks,
    LockList,
    Open,
    Opened,
)
from fencelock.actors.effect import Send
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.actors.session.message import Close, Closed, HoldsLost


def down(parley: SessionHarness, node: str = "a") -> list[Send]:
    return parley.hear(ME, LinkDown(node=node))


def test_a_wait_moves_under_its_number_for_what_is_left_and_nothing_is_withdrawn(
    parley: SessionHarness,
) -> None:
    asked = one(api.Acquire, parley.open(parley.acquire(wait_ms=9_000)))
    parley.run(150)
    said = down(parley)
    moved = one(api.Acquire, said, B)
    assert (moved.request, moved.wait_ms) == (asked.request, 8_850)
    assert of(api.Cancel, said) == []


def test_a_release_moves_under_its_number(parley: SessionHarness) -> None:
    parley.hold()
    asked = one(api.Release, parley.release(), A)
    said = down(parley)
    assert one(api.Release, said, B) == asked
    assert one(api.Released, parley.free(said), ANN).count == 0


def test_a_cancel_moves_and_any_gate_may_confirm_it(parley: SessionHarness) -> None:
    parley.open(parley.acquire())
    asked = one(api.Cancel, parley.hear(ANN, api.Abandon()), A)
    said = down(parley)
    assert one(api.Cancel, said, B) == asked
    parley.undo(said)
    assert of(api.Cancel, parley.run(60_000)) == []


def test_a_hold_belongs_to_the_session_and_is_released_where_the_session_is(
    parley: SessionHarness,
) -> None:
    parley.hold()
    down(parley)
    assert one(api.Release, parley.release(), B).session == "c.1"


def test_an_answer_of_a_gate_that_was_left_counts(parley: SessionHarness) -> None:
    asked = parley.open(parley.acquire())
    moved = down(parley)
    assert one(api.Granted, parley.grant(asked), ANN).fence == 7
    assert parley.grant(moved) == []
    assert of(api.Cancel, parley.run_kept(5_000, B)) == []


def test_to_open_moves_to_another_gate_too(parley: SessionHarness) -> None:
    parley.acquire()
    said = down(parley)
    assert one(Open, said, B).session == "c"
    assert one(api.Acquire, parley.open(said), B).session == "c.1"


def test_with_every_gate_silent_all_are_asked_to_open(parley: SessionHarness) -> None:
    parley.acquire()
    said = parley.run(20_000)
    assert of(Open, said, A)
    assert of(Open, said, B)


@pytest.mark.parametrize("known_before", ["", "b"])
def test_the_master_is_preferred_once_it_is_known_which_gate_it_is(
    parley: SessionHarness, known_before: str
) -> None:
    for greeting in parley.begun:
        parley.alive(greeting, master=known_before)
    said = parley.open(parley.acquire(), master="b")
    assert one(api.Acquire, said, B).session == "c.1"
    assert parley.acquire(BEN)[0].to == B


def test_what_is_unanswered_goes_to_a_new_master(parley: SessionHarness) -> None:
    for greeting in parley.begun:
        parley.alive(greeting)
    parley.open(parley.acquire(), master="a")
    (keep,) = [s for s in parley.run(1_300) if isinstance(s.message, api.KeepAlive)]
    said = parley.alive(keep, master="b")
    assert of(api.Acquire, said, B)
    assert parley.alive(keep, master="b") == []


def test_a_master_that_cannot_be_reached_is_not_gone_back_to(parley: SessionHarness) -> None:
    for greeting in parley.begun:
        parley.alive(greeting)
    parley.open(parley.acquire(), master="a")
    (keep,) = [s for s in down(parley) if isinstance(s.message, api.KeepAlive)]
    assert parley.alive(keep, master="a") == []
    assert parley.acquire(BEN)[0].to == B


def test_a_master_whose_link_is_back_is_preferred_again(parley: SessionHarness) -> None:
    for greeting in parley.begun:
        parley.alive(greeting)
    parley.open(parley.acquire(), master="a")
    down(parley)
    assert of(api.Acquire, parley.hear(ME, LinkUp(node="a")), A)


def test_a_gate_that_confirms_nothing_is_left_though_its_link_is_up(parley: SessionHarness) -> None:
    parley.hold()
    said = parley.run_kept(7_000, B)
    assert of(api.KeepAlive, said, B)
    assert of(HoldsLost, said) == []


def test_a_repeated_question_asks_its_gate_for_a_sign_of_life(parley: SessionHarness) -> None:
    parley.hold()
    parley.run_kept(60_000, A)
    parley.free(parley.release())
    parley.run_kept(1_500, A)
    parley.acquire(BEN)
    assert of(api.KeepAlive, parley.run(400), A)


def test_without_any_usable_gate_the_session_is_kept_through_all(parley: SessionHarness) -> None:
    parley.hold()
    down(parley)
    down(parley, "b")
    said = parley.run(3_000)
    assert of(api.KeepAlive, said, A)
    assert of(api.KeepAlive, said, B)


def test_a_part_of_a_backup_is_requested_from_the_node_that_has_it(
    parley: SessionHarness,
) -> None:
    parley.hold()
    parley.hear(B, api.Alive(session="c", node="n2", request=0))
    for node, endpoint in (("n2", B), ("", A), ("n9", A)):
        (asked,) = parley.hear(ANN, ReadBackup(node=node, slot=9, request=3))
        assert isinstance(asked.message, ReadBackup)
        assert (asked.to, asked.message.node) == (endpoint, node)


def test_questions_without_a_session_are_answered_in_the_clients_own_name(
    parley: SessionHarness,
) -> None:
    parley.hold()
    (asked,) = parley.hear(ANN, ListLocks(prefix="p", request=3))
    assert isinstance(asked.message, ListLocks)
    answer = LockList(lines=(), more=False, session="c", request=asked.message.request)
    assert one(LockList, parley.hear(A, answer), ANN).request == 3
    (asked,) = parley.hear(ANN, Evict(lock="x", fence=7, operator="me", request=4))
    assert isinstance(asked.message, Evict)
    holder = api.Contender("d", "d.1", "o", 7, 10)
    evicted = Evicted(lock="x", fence=7, holder=holder, session="c", request=asked.message.request)
    assert one(Evicted, parley.hear(A, evicted), ANN).request == 4
    (asked,) = parley.hear(ANN, api.Inspect(lock="x", age_ms=50, request=5))
    assert isinstance(asked.message, api.Inspect)
    assert asked.message.age_ms == 50
    status = api.LockStatus(
        lock="x",
        holder=None,
        waiters=(),
        waits_for=(),
        session="c",
        request=asked.message.request,
    )
    assert one(api.LockStatus, parley.hear(A, status), ANN).request == 5


def test_an_unanswered_eviction_says_that_it_may_be_repeated(parley: SessionHarness) -> None:
    parley.hear(ANN, Evict(lock="x", fence=7, operator="me"))
    refused = one(api.Refused, parley.run(10_200), ANN)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "no harm" in refused.detail


def test_an_owner_that_enters_again_leaves_as_often(parley: SessionHarness) -> None:
    parley.hold(limit=0)
    parley.hold(limit=0, count=2)
    first = parley.release(token=1)
    second = parley.release(token=2)
    assert of(api.Release, second) == []  # One question of a claim at a time.
    said = parley.free(first, count=1)
    assert one(api.Released, said, ANN).request == 1
    assert one(api.Released, parley.free(said), ANN).request == 2
    assert parley.role.session_state.holds == {}


def test_more_releases_than_entries_are_refused_without_asking(parley: SessionHarness) -> None:
    parley.hold(limit=0)
    parley.release()
    assert one(api.Refused, parley.release(), ANN).reason is api.Reason.NOT_HELD


def test_a_new_entry_waits_until_an_earlier_release_is_confirmed(parley: SessionHarness) -> None:
    parley.hold(limit=0)
    parley.hold(limit=0, count=2)
    leaving = parley.release()
    assert of(api.Acquire, parley.acquire(limit=0)) == []
    assert of(api.Acquire, parley.free(leaving, count=1), A)


def test_a_release_that_another_gate_refused_goes_on_since_a_copy_may_be_done(
    parley: SessionHarness,
) -> None:
    parley.hold()
    said = parley.release()
    assert parley.refuse(said, api.Reason.OVERLOADED) == []
    assert of(api.Release, parley.run(1_000))
    assert one(api.Released, parley.free(said), ANN)


def test_what_an_ask_that_gave_up_was_granted_is_released_beside_a_users_own_release(
    parley: SessionHarness,
) -> None:
    parley.hold(limit=0)
    gone = [s for s in parley.acquire(BEN, limit=0) if isinstance(s.message, api.Acquire)]
    assert gone[0].message != api.Acquire(lock="x")
    parley.hear(BEN, api.Abandon())
    parley.undo(parley.run(300))
    parley.hold(ANN, limit=0, count=2)
    said = parley.hear(ANN, api.Abandon())  # Both grants went to an ask of that address.
    assert len(of(api.Release, said)) == 1
    said = parley.free(said, count=1)
    assert len(of(api.Release, said)) == 1
    parley.free(said)
    assert parley.role.session_state.holds == {}


def test_a_cancelled_reentry_keeps_the_release_waiting_until_it_is_undone(
    parley: SessionHarness,
) -> None:
    parley.hold(limit=0, token=1)
    parley.acquire(limit=0, token=2)
    said = parley.hear(ANN, api.Cancel(lock="x", session="", owner="ann", request=2))
    assert of(api.Cancel, said, A)
    assert of(api.Release, parley.release()) == []
    assert of(api.Release, parley.undo(said), A)


def test_a_hold_granted_under_another_fence_replaces_one_that_was_lost_unheard(
    parley: SessionHarness,
) -> None:
    parley.hold(limit=0)
    said = parley.hold(limit=0, fence=9)
    assert one(HoldsLost, said).losses[0].fence == 7
    assert one(api.Refused, parley.release(fence=7), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert of(api.Release, parley.release(fence=9))


def test_a_cluster_that_keeps_no_sessions_is_served_as_ever(parley: SessionHarness) -> None:
    said = parley.acquire()
    opened = one(Open, said, A)
    asked = parley.hear(
        A, Opened(session="c", assigned="c", ttl_ms=0, node="a", request=opened.request)
    )
    assert one(api.Acquire, asked, A).session == "c"
    parley.grant(asked)
    assert of(HoldsLost, parley.run(60_000)) == []
    down(parley)
    assert one(api.Release, parley.release(), A).fence == 7
    said = parley.hear(BEN, Close())
    assert of(End, said) == []
    assert one(Closed, said, BEN).unanswered == 1


def test_to_close_while_a_session_is_being_opened_leaves_nothing_behind(
    parley: SessionHarness,
) -> None:
    said = parley.acquire()
    closing = parley.hear(BEN, Close())
    assert one(api.Refused, closing, ANN).reason is api.Reason.CANCELLED
    assert one(Closed, closing, BEN).unanswered == 0
    assert parley.open(said) == []
    parley.run(1_000)
    assert parley.alarms == []
