"""A client's session with objects: read/write locks, semaphores, and updates that hold nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.expect import checked
from support.local_callers import ONE, TWO, LocalCallers
from support.session_harness import ANN, BEN, A, B, SessionHarness, last, of, one

from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.lock_message import (
    Abandon,
    Acquire,
    Cancel,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.map import EntryChanged, PutEntry
from fencelock.actors.api.name import object_name, titled
from fencelock.actors.api.operator_message import CloseSession
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits, ReleasePermits
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, role_of
from fencelock.actors.session.event import Close, HoldsLost
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.lease import LINGER_MS
from fencelock.actors.session.requests import UNANSWERED_MS, LockKey
from fencelock.actors.table.latch import Latch

RWLOCK_KEY = LockKey(object_name(RWLOCK, "S"), "ann")
SEMAPHORE_NAME = object_name(SEMAPHORE, "S")
SEMAPHORE_KEY = LockKey(SEMAPHORE_NAME, "ann")
PLAIN_KEY = LockKey("S", "ann")


def state_of(harness: SessionHarness, key: LockKey) -> HoldState | None:
    found = harness.role.session_state.holds.get(key)
    return None if found is None else found.state


def acquire_rwlock(harness: SessionHarness, token: int = 4, *, write: bool = True) -> list[Send]:
    asked = AcquireReadWrite(rwlock="S", write=write, owner="ann", request=token)
    return harness.receive(ANN, asked)


def downgrade(harness: SessionHarness) -> list[Send]:
    return harness.receive(ANN, Downgrade(rwlock="S", fence=7, owner="ann"))


def hold_rwlock(harness: SessionHarness) -> None:
    harness.grant(harness.open(acquire_rwlock(harness)))


def test_a_writer_reads_under_the_same_hold_and_releases_twice(harness: SessionHarness) -> None:
    hold_rwlock(harness)
    sends = acquire_rwlock(harness, 5, write=False)
    assert one(AcquireReadWrite, sends).write is False
    assert one(Granted, harness.grant(sends, count=2), ANN).count == 2
    for left in (1, 0):
        sends = harness.receive(ANN, Release(lock=RWLOCK_KEY.lock, fence=7, owner="ann"))
        assert one(Released, harness.free(sends, left), ANN).count == left
    assert state_of(harness, RWLOCK_KEY) is None


def test_a_refused_upgrade_leaves_the_hold(harness: SessionHarness) -> None:
    hold_rwlock(harness)
    sends = harness.refuse(acquire_rwlock(harness, 5), Reason.ALREADY_HELD)
    assert one(Refused, sends, ANN).reason is Reason.ALREADY_HELD
    assert state_of(harness, RWLOCK_KEY) is HoldState.HELD


def test_a_downgrade_keeps_the_hold_and_all_its_levels(harness: SessionHarness) -> None:
    hold_rwlock(harness)
    harness.grant(acquire_rwlock(harness, 5, write=False), count=2)
    assert one(Released, harness.free(downgrade(harness), 1), ANN).count == 1
    assert state_of(harness, RWLOCK_KEY) is HoldState.HELD
    assert of(Release, harness.run(1_000)) == []  # The session owes nothing.
    for left in (1, 0):
        sends = harness.receive(ANN, Release(lock=RWLOCK_KEY.lock, fence=7, owner="ann"))
        harness.free(sends, left)
    assert state_of(harness, RWLOCK_KEY) is None


def acquire_permits(harness: SessionHarness, user: Address = ANN, amount: int = 3) -> list[Send]:
    owner = role_of(user)
    permits = AcquirePermits(semaphore="S", permits=5, amount=amount, owner=owner, request=4)
    return harness.receive(user, permits)


def part(harness: SessionHarness, amount: int, user: Address = ANN) -> list[Send]:
    return harness.receive(user, ReleasePermits(semaphore="S", fence=7, amount=amount, owner="ann"))


def hold_permits(harness: SessionHarness) -> None:
    sends = acquire_permits(harness)
    harness.grant(harness.open(sends), count=3)


def test_a_claim_goes_out_in_its_session_and_its_grant_comes_back(harness: SessionHarness) -> None:
    sends = harness.open(acquire_permits(harness))
    sent = one(AcquirePermits, sends)
    assert (sent.lock, sent.session, sent.amount, sent.permits) == (SEMAPHORE_NAME, "c.1", 3, 5)
    granted = one(Granted, harness.grant(sends, count=3), ANN)
    assert (granted.lock, granted.count, granted.request) == (SEMAPHORE_NAME, 3, 4)
    assert state_of(harness, SEMAPHORE_KEY) is HoldState.HELD


def test_a_release_of_a_part_leaves_the_hold(harness: SessionHarness) -> None:
    hold_permits(harness)
    sends = part(harness, 2)
    assert state_of(harness, SEMAPHORE_KEY) is HoldState.RELEASING
    assert one(Released, harness.free(sends, 1), ANN).count == 1
    assert state_of(harness, SEMAPHORE_KEY) is HoldState.HELD
    assert of(Release, harness.run(1_000)) == []  # The session owes nothing.
    harness.free(part(harness, 1), 0)
    assert state_of(harness, SEMAPHORE_KEY) is None


def test_parts_are_sent_one_after_the_other_and_each_once(harness: SessionHarness) -> None:
    hold_permits(harness)
    first = part(harness, 1)
    assert of(ReleasePermits, part(harness, 1, BEN)) == []
    then = harness.free(first, 2)
    assert one(Released, then, ANN).count == 2
    assert one(Released, harness.free(then, 1), BEN).count == 1
    assert state_of(harness, SEMAPHORE_KEY) is HoldState.HELD


def test_a_part_without_a_waiting_user_still_happens(harness: SessionHarness) -> None:
    hold_permits(harness)
    sends = part(harness, 1)
    harness.receive(ANN, Abandon())
    full = Release(lock=SEMAPHORE_NAME, fence=7, owner="ann")
    assert (
        of(Release, harness.receive(BEN, full)) == []
    )  # It waits for the part, and is not merged.
    then = harness.free(sends, 2)
    harness.free(then, 0)
    assert state_of(harness, SEMAPHORE_KEY) is None


def test_a_grant_without_a_waiting_user_is_given_back_whole(harness: SessionHarness) -> None:
    hold_permits(harness)
    release = one(Release, harness.receive(ANN, Abandon()))
    assert (release.lock, release.fence, release.owner) == (SEMAPHORE_NAME, 7, "ann")


def hold_plain(harness: SessionHarness) -> None:
    harness.hold(lock="S")


def detach(harness: SessionHarness) -> list[Send]:
    asked = Detach(lock="S", fence=7, digest=b"d" * 32, ttl_ms=900, owner="ann", request=4)
    return harness.receive(ANN, asked)


GIVE: dict[str, tuple[Any, Any, type[Any], LockKey]] = {
    "downgrade": (hold_rwlock, downgrade, Downgrade, RWLOCK_KEY),
    "part": (hold_permits, partial(part, amount=2), ReleasePermits, SEMAPHORE_KEY),
    "detach": (hold_plain, detach, Detach, PLAIN_KEY),
}
"""How an owner comes to hold an object, and gives back a part of the hold, or passes it on."""

each_give = pytest.mark.parametrize(("hold", "give", "kind", "key"), GIVE.values(), ids=GIVE)


@each_give
def test_a_request_that_gives_back_is_repeated_under_its_number_without_an_answer(
    harness: SessionHarness, hold: Any, give: Any, kind: type[Any], key: LockKey
) -> None:
    hold(harness)
    first = one(kind, give(harness))
    assert state_of(harness, key) is HoldState.RELEASING
    assert set(of(kind, harness.run(2_000))) == {first}


@each_give
@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.UNSUPPORTED])
def test_a_request_that_gives_back_and_is_refused_leaves_the_hold(
    harness: SessionHarness, hold: Any, give: Any, kind: type[Any], key: LockKey, reason: Reason
) -> None:
    hold(harness)
    assert one(Refused, harness.refuse(give(harness), reason), ANN).reason is reason
    assert state_of(harness, key) is HoldState.HELD


@each_give
def test_a_request_that_gives_back_what_was_lost_is_refused_as_lost(
    harness: SessionHarness, hold: Any, give: Any, kind: type[Any], key: LockKey
) -> None:
    hold(harness)
    lost = one(HoldsLost, harness.run(60_000))
    assert [(loss.lock, loss.fence) for loss in lost.losses] == [(key.lock, 7)]
    refused = one(Refused, give(harness), ANN)
    assert refused.reason is Reason.OWNERSHIP_LOST
    assert refused.detail.startswith(f"{titled(key.lock)}: ")


def test_a_detached_lock_is_not_held_any_more(harness: SessionHarness) -> None:
    hold_plain(harness)
    assert one(Released, harness.free(detach(harness)), ANN).request == 4
    assert state_of(harness, PLAIN_KEY) is None


LATCH_NAME = object_name(LATCH, "L")


def count_down(harness: SessionHarness, user: Address = ANN, owner: str = "") -> list[Send]:
    return harness.receive(user, CountDown(latch="L", count=3, owner=owner, request=4))


def wait(harness: SessionHarness, wait_ms: int | None = None, user: Address = ANN) -> list[Send]:
    return harness.receive(user, AwaitLatch(latch="L", count=3, wait_ms=wait_ms, request=5))


def counted(harness: SessionHarness, sends: list[Send], left: int = 2) -> list[Send]:
    to, asked = last(CountDown, sends)
    return harness.receive(to, CountedDown(**asked.fields(), left=left))


def refuse(harness: SessionHarness, sent: CountDown, reason: Reason) -> Refused:
    no = Refused(**sent.fields(), reason=reason, detail="no")
    return one(Refused, harness.receive(A, no), ANN)


def test_an_update_goes_out_with_session_and_number_and_its_reply_comes_back(
    harness: SessionHarness,
) -> None:
    sends = harness.open(count_down(harness))
    sent = one(CountDown, sends)
    assert (sent.lock, sent.session, sent.owner, sent.count) == (LATCH_NAME, "c.1", "ann", 3)
    reply = one(CountedDown, counted(harness, sends), ANN)
    assert (reply.left, reply.request, reply.owner) == (2, 4, "")
    assert harness.role.session_state.holds == {}


def test_an_update_without_a_reply_is_repeated_under_its_number_and_answered_once(
    harness: SessionHarness,
) -> None:
    sends = harness.open(count_down(harness))
    again = harness.run(2_000)
    assert {sent.request for sent in of(CountDown, again)} == {one(CountDown, sends).request}
    assert of(CountedDown, counted(harness, sends)) != []
    assert counted(harness, sends) == []


def test_an_update_moves_to_the_next_endpoint_under_its_number(harness: SessionHarness) -> None:
    first = one(CountDown, harness.open(count_down(harness)))
    assert one(CountDown, harness.lose_link("a"), B).request == first.request


def test_a_reply_of_another_kind_is_dropped(harness: SessionHarness) -> None:
    sent = one(CountDown, harness.open(count_down(harness)))
    assert of(LatchPassed, harness.receive(A, LatchPassed(**sent.fields()))) == []


def test_an_owner_sends_one_update_at_a_time(harness: SessionHarness) -> None:
    harness.open(count_down(harness, owner="o"))
    refused = one(Refused, count_down(harness, BEN, owner="o"), BEN)
    assert refused.reason is Reason.ALREADY_HELD
    assert of(CountDown, count_down(harness, BEN)) != []


def test_an_unanswered_update_ends_with_an_unknown_outcome(harness: SessionHarness) -> None:
    harness.open(count_down(harness))
    sends = harness.run_kept(12_000, A, B)
    refused = one(Refused, sends, ANN)
    assert refused.reason is Reason.UNAVAILABLE
    assert "it is unknown whether the request took effect" in refused.detail
    assert of(Cancel, sends) != []


def test_an_update_never_sent_reports_that_no_node_could_be_asked(harness: SessionHarness) -> None:
    count_down(harness)
    refused = one(Refused, harness.run(12_000), ANN)
    assert refused.detail.startswith("latch 'L': no node could be asked for it")
    assert "unknown" not in refused.detail


def test_a_session_that_ends_leaves_a_sent_update_unknown(harness: SessionHarness) -> None:
    sent = one(CountDown, harness.open(count_down(harness)))
    refused = refuse(harness, sent, Reason.SESSION_EXPIRED)
    assert refused.reason is Reason.SESSION_EXPIRED
    assert refused.detail == (
        "latch 'L': the session ended: the cluster does not know the session (any more): no; it is "
        "unknown whether the request took effect"
    )
    assert of(CountDown, harness.run(5_000)) == []


def test_an_update_that_was_not_sent_goes_on_in_the_next_session(harness: SessionHarness) -> None:
    first = harness.open(count_down(harness))
    harness.receive(ANN, Abandon())  # While its cancel is unanswered, no other request is sent.
    blocked = count_down(harness)
    assert of(CountDown, blocked) == []
    sent = one(CountDown, first)
    no = Refused(**sent.fields(), reason=Reason.SESSION_EXPIRED, detail="no")
    sends = harness.open(harness.receive(A, no))
    assert one(CountDown, sends).session.endswith(".2")


def test_a_wait_that_may_happen_twice_goes_on_in_the_next_session(harness: SessionHarness) -> None:
    sent = one(AwaitLatch, harness.open(wait(harness)))
    no = Refused(**sent.fields(), reason=Reason.SESSION_EXPIRED, detail="no")
    sends = harness.receive(A, no)
    assert of(Refused, sends, ANN) == []
    assert one(AwaitLatch, harness.open(sends)).session.endswith(".2")


def test_a_wait_takes_what_is_left_of_its_time_along(harness: SessionHarness) -> None:
    wait(harness, 3_000)
    harness.now_ms += 1_000
    sends = harness.run(700)
    sent = one(AwaitLatch, harness.open(sends))
    assert sent.wait_ms is not None
    assert 1_000 < sent.wait_ms <= 2_000


def test_a_wait_that_is_abandoned_is_cancelled(harness: SessionHarness) -> None:
    sent = one(AwaitLatch, harness.open(wait(harness)))
    cancel = one(Cancel, harness.receive(ANN, Abandon()))
    assert (cancel.lock, cancel.owner, cancel.request) == (LATCH_NAME, sent.owner, sent.request)


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.UNAVAILABLE])
def test_a_node_that_refuses_a_copy_reveals_nothing_about_an_earlier_one(
    harness: SessionHarness, reason: Reason
) -> None:
    sends = harness.open(count_down(harness))
    assert "unknown" not in refuse(harness, one(CountDown, sends), reason).detail
    sends = count_down(harness)
    harness.run(700)
    assert "unknown" in refuse(harness, one(CountDown, sends), reason).detail


def test_a_client_that_closes_leaves_the_outcome_unknown(harness: SessionHarness) -> None:
    harness.open(count_down(harness))
    refused = one(Refused, harness.receive(BEN, Close()), ANN)
    assert "unknown" in refused.detail


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


@pytest.mark.parametrize("ephemeral", [False, True])
def test_only_an_entry_that_ends_with_the_session_keeps_an_idle_session_alive(
    harness: SessionHarness, ephemeral: bool
) -> None:
    put = PutEntry(map="m", entry_key="k", value=b"v", ephemeral=ephemeral, request=4)
    sent = one(PutEntry, harness.open(harness.receive(ANN, put)))
    assert one(EntryChanged, harness.receive(A, EntryChanged(**sent.fields(), version=1)), ANN)
    harness.run_kept(LINGER_MS + 1_000, A, B)
    kept = [send for send in harness.run_kept(20_000, A, B) if send.to == A]
    assert bool(of(KeepAlive, kept)) == ephemeral


def attach(harness: SessionHarness) -> list[Send]:
    return harness.receive(ANN, Attach(lock="S", secret=b"s", owner="ann", request=5))


def test_an_attach_is_granted_refused_or_cancelled_without_a_reply(harness: SessionHarness) -> None:
    sends = harness.refuse(harness.open(attach(harness)), Reason.NOT_HELD)
    assert one(Refused, sends, ANN).reason is Reason.NOT_HELD
    sent = attach(harness)
    late = harness.run(UNANSWERED_MS + 500)
    assert one(Refused, late, ANN).reason is Reason.UNAVAILABLE
    assert of(Cancel, late)[0].request == one(Attach, sent).request
    harness.undo(late)
    assert one(Granted, harness.grant(attach(harness)), ANN).fence == 7
    assert one(Refused, attach(harness), ANN).reason is Reason.ALREADY_HELD
