"""The end of a client's session: its trust lost, unanswered waits, surveys, closing."""

from __future__ import annotations

import re

import pytest
from support.session_harness import (
    ANN,
    BEN,
    ME,
    WATCHER,
    A,
    B,
    SessionHarness,
    UnkeptSession,
    node_status,
    of,
    one,
    refusal,
)

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.counter import AddToCounter
from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    HoldLost,
    Inspect,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.api.map import GetEntry
from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, ReadMembers
from fencelock.actors.api.operator_message import CloseSession, Evict, ListLocks, ListRecords
from fencelock.actors.api.session_message import Alive, End, Ended, KeepAlive, Open
from fencelock.actors.effect import Send
from fencelock.actors.error import WrongClusterError
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.message import NS_PER_MS, Instant, Message
from fencelock.actors.role_message import LinkRefused
from fencelock.actors.session import holds
from fencelock.actors.session.event import (
    Close,
    Closed,
    HoldsLost,
    Loss,
    Survey,
    Surveyed,
    Suspected,
)
from fencelock.actors.session.holds import CONFIRMED_MAX, ENDINGS_MAX, HoldState
from fencelock.actors.session.lease import FOREVER, Ending, SessionLease
from fencelock.actors.session.requests import RETRY_MS_MAX


def test_a_limited_number_of_lost_sessions_is_ended_again_and_again_for_two_ttls(
    harness: SessionHarness,
) -> None:
    harness.hold()
    state = harness.role.session_state
    state.endings = {f"old{n}": Ending(FOREVER, FOREVER) for n in range(ENDINGS_MAX)}
    sends = harness.run(TTL_MS)
    assert list(state.endings) == [*(f"old{n}" for n in range(1, ENDINGS_MAX)), "c.1"]
    ends = of(End, [*sends, *harness.run(2 * TTL_MS + RETRY_MS_MAX)])
    assert {end.session for end in ends} == {"c.1"}
    assert len({end.request for end in ends}) == len(ends) == 11
    assert "c.1" not in state.endings
    assert "client.end_unconfirmed" in harness.counted


@pytest.mark.parametrize(("wait_ms", "ends_ms"), [(2_000, 2_500), (0, 1_500)])
def test_a_wait_with_a_limit_that_no_endpoint_decides_ends_a_margin_after_it(
    unkept: UnkeptSession, wait_ms: int, ends_ms: int
) -> None:
    """An acquire that does not wait has time to be decided too."""
    unkept.acquire(wait_ms=wait_ms)
    assert of(Refused, unkept.run_kept(ends_ms - 100, A)) == []
    assert refusal(unkept.run_kept(300, A)).reason is Reason.UNAVAILABLE


def test_a_wait_ends_when_every_endpoint_is_silent_naming_each(unkept: UnkeptSession) -> None:
    unkept.acquire(wait_ms=6_000)
    assert of(Refused, unkept.run(5_900)) == []
    answer = refusal(unkept.run(200))
    assert answer.reason is Reason.UNAVAILABLE
    assert "a (silent for" in answer.detail
    assert "b (silent for" in answer.detail
    assert of(Cancel, unkept.run(60_000))  # What it may still be granted is withdrawn.


def test_a_wait_with_every_link_broken_ends_when_its_limit_does(unkept: UnkeptSession) -> None:
    unkept.lose_link("a")
    unkept.lose_link("b")
    unkept.acquire(wait_ms=0)
    assert refusal(unkept.run(200)).reason is Reason.UNAVAILABLE
    unkept.acquire(wait_ms=2_000)
    assert of(Refused, unkept.run(1_900)) == []
    assert refusal(unkept.run(300)).reason is Reason.UNAVAILABLE


def test_a_wait_without_limit_goes_on_forever(unkept: UnkeptSession) -> None:
    unkept.acquire()
    assert of(Refused, unkept.run(3_600_000)) == []


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            Inspect(lock="x"),
            "lock 'x': no node sent its status within 10.0 s; nodes: a (silent for ",
        ),
        (Describe(), "no node described itself within 10.0 s; nodes: "),
        (ListRecords(), "no node listed sessions or evictions within 10.0 s; "),
        (ListLocks(), "no node listed the held locks within 10.0 s; "),
        (ReadMembers(), "no node listed the members within 10.0 s; "),
        (ReadBackup(), "no node sent its part of a backup within 10.0 s; "),
        (GetEntry(map="m", entry_key="k"), "map 'm': no node answered within 10.0 s; "),
        (
            SetQuota(account="key", quota=Quota(), operator="ops"),
            "no node confirmed that the quota is set within 10.0 s; ",
        ),
        (
            Purge(kind="counter", prefix="", exact=False, operator="ops"),
            "no node confirmed within 10.0 s that anything was deleted; asking again does no harm",
        ),
        (
            Evict(lock="x", fence=7, operator="ops"),
            "lock 'x': no node confirmed within 10.0 s that it was taken from its holder under "
            "fence 7; asking again does no harm; nodes: ",
        ),
        (
            CloseSession(handle="ann#3", operator="ops"),
            "no node confirmed within 10.0 s that session 'ann#3' was closed; asking again does no "
            "harm; nodes: ",
        ),
        (
            ChangeMembers(action=MemberAction.JOIN, node="n4"),
            "no node answered within 10.0 s whether the change of n4 is done; asking again does no "
            "harm; nodes: ",
        ),
    ],
)
def test_a_request_ends_unanswered_after_its_time_and_says_what_is_unknown(
    unkept: UnkeptSession, request_: Message, text: str
) -> None:
    unkept.receive(ANN, request_)
    assert of(Refused, unkept.run(9_900)) == []
    answer = refusal(unkept.run(300))
    assert answer.reason is Reason.UNAVAILABLE
    assert answer.detail.startswith(text)
    unkept.run(1_000)
    assert unkept.alarms == []


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            Acquire(lock="y", wait_ms=0),
            "lock 'y': no node decided within 1.5 s, and the outcome is unknown; the client "
            "cancels the request as soon as it is connected again, and releases the lock if it was "
            "granted meanwhile; nodes: a (silent for ",
        ),
        (
            AddToCounter(counter="c"),
            "counter 'c': no node answered within 10.0 s, and it is unknown whether the request "
            "took effect; nodes: ",
        ),
        (
            Release(lock="x", fence=7, owner="ann"),
            "lock 'x': its release was not confirmed by b within 10.0 s; it goes on being repeated "
            "in the background until it is; nodes: ",
        ),
    ],
)
def test_a_change_that_ends_unanswered_says_how_it_goes_on(
    harness: SessionHarness, request_: Message, text: str
) -> None:
    harness.hold()
    harness.receive(ANN, request_)
    assert refusal(harness.run(10_200)).detail.startswith(text)


def test_an_acquire_for_which_no_session_was_opened_was_sent_to_nobody(
    harness: SessionHarness,
) -> None:
    harness.acquire(wait_ms=0)
    text = "lock 'x': no node could be asked for it within 1.5 s; nodes: "
    assert refusal(harness.run(2_000)).detail.startswith(text)


def test_each_request_ends_so_if_all_endpoints_are_of_another_cluster(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    assert of(Refused, unkept.receive(ME, LinkRefused(node="a", detail="cluster 'd'"))) == []
    answer = refusal(unkept.receive(ME, LinkRefused(node="b", detail="cluster 'e'")))
    assert answer.reason is Reason.WRONG_CLUSTER
    assert "cluster 'd'" in answer.detail
    assert "cluster 'e'" in answer.detail
    assert isinstance(answer.error(), WrongClusterError)
    assert refusal(unkept.receive(ANN, Describe())).reason is Reason.WRONG_CLUSTER
    assert unkept.role.session_state.in_flight.cancels == {}


def test_a_key_that_no_endpoint_accepts_is_forbidden_and_the_text_says_where_to_give_one(
    unkept: UnkeptSession,
) -> None:
    unkept.receive(ME, LinkRefused(node="a", detail="the key is not known", by_key=True))
    unkept.receive(ME, LinkRefused(node="b", detail="cluster 'e'"))
    answer = refusal(unkept.receive(ANN, Describe()))
    assert answer.reason is Reason.FORBIDDEN
    begin = "no node accepts the connection: a (the key is not known), b (cluster 'e'). Give "
    assert answer.detail.startswith(begin)
    assert "--key, FENCELOCK_KEY, or key= of connect" in answer.detail
    assert "fencelock keys add" in answer.detail


def test_a_refused_endpoint_is_not_asked_while_another_is_there(unkept: UnkeptSession) -> None:
    unkept.receive(ME, LinkRefused(node="a", detail="cluster 'd'"))
    assert unkept.acquire().to == B


def test_a_survey_asks_every_endpoint_and_keeps_their_order(unkept: UnkeptSession) -> None:
    sends = unkept.receive(ANN, Survey())
    assert [send.to for send in sends] == [A, B]
    assert unkept.receive(B, node_status("b", 2)) == []
    answer = one(Surveyed, unkept.receive(A, node_status("a", 1)), ANN)
    assert [status.node for status in answer.statuses] == ["a", "b"]
    assert answer.silent == ()


@pytest.mark.parametrize("broken", [True, False])
def test_a_survey_does_not_wait_for_an_endpoint_that_is_down_or_silent(
    unkept: UnkeptSession, broken: bool
) -> None:
    unkept.receive(ANN, Survey())
    unkept.receive(A, node_status("a", 1))
    sends = unkept.lose_link("b") if broken else unkept.run(2_200)
    assert one(Surveyed, sends, ANN).silent == ("b",)
    assert unkept.role.session_state.in_flight.pending == {}


def test_a_survey_waits_for_a_silent_endpoint_as_long_as_it_is_told(unkept: UnkeptSession) -> None:
    unkept.receive(ANN, Survey(within_ms=500))
    unkept.receive(A, node_status("a", 1))
    assert of(Surveyed, unkept.run(400)) == []
    assert one(Surveyed, unkept.run(300), ANN).silent == ("b",)


def test_closing_releases_cancels_and_answers_when_all_is_confirmed(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.acquire(BEN, lock="y")
    unkept.receive(ANN, Inspect(lock="z"))
    sends = unkept.receive(ANN, Close())
    assert one(Release, sends, A).fence == 7
    assert one(Cancel, sends, A).lock == "y"
    assert {answer.reason for answer in of(Refused, sends)} == {Reason.CANCELLED}
    assert len(of(Refused, sends)) == 2
    unkept.undo(sends)
    end = one(End, unkept.free(sends), A)
    assert end.session == "c"
    ended = unkept.receive(A, Ended(session="c", detail="", request=end.request))
    assert ended == [Send(ANN, Closed(unanswered=0))]
    assert unkept.receive(BEN, Close()) == [Send(BEN, Closed(unanswered=0))]


def test_closing_waits_neither_forever_nor_for_a_broken_link(unkept: UnkeptSession) -> None:
    unkept.held()
    assert Closed(unanswered=1) not in [send.message for send in unkept.receive(ANN, Close())]
    sends = unkept.run(2_200)
    assert Send(ANN, Closed(unanswered=1)) in sends
    other = UnkeptSession()
    other.held()
    other.lose_link("a")
    assert Send(ANN, Closed(unanswered=1)) in other.receive(ANN, Close())


def test_closing_ends_the_session_at_another_endpoint_if_the_one_that_granted_is_down(
    unkept: UnkeptSession,
) -> None:
    """Where holds belong to sessions, that frees holds that the granting node cannot release."""
    unkept.held()
    unkept.lose_link("a")
    unkept.receive(B, Alive(session="c", node="b", request=1))
    end = one(End, unkept.receive(ANN, Close()), B)
    assert end.session == "c"
    assert Send(ANN, Closed(unanswered=1)) in unkept.receive(
        B, Ended(session="c", detail="", request=end.request)
    )


@pytest.mark.parametrize("event", [Acquire(lock="x"), Inspect(lock="x"), Describe(), Survey()])
def test_a_closed_session_serves_no_request(
    unkept: UnkeptSession, event: Acquire | Inspect | Describe | Survey
) -> None:
    unkept.receive(ANN, Close())
    answer = refusal(unkept.receive(ANN, event))
    assert answer.reason is Reason.CANCELLED
    assert "closed" in answer.detail


def test_closing_answers_a_survey_with_what_there_is(unkept: UnkeptSession) -> None:
    unkept.receive(BEN, Survey())
    unkept.receive(A, node_status("a", 1))
    sends = unkept.receive(ANN, Close())
    assert [type(send.message) for send in sends if send.to == BEN] == [Surveyed]


TTL_MS = 15_000
SURE_MS = TTL_MS * (1_000_000 - DRIFT_PPM) / (1_000_000 + DRIFT_PPM)


def ms(instant: Instant) -> float:
    return instant / NS_PER_MS


def test_trust_in_a_session_counts_from_when_it_was_asked_for(harness: SessionHarness) -> None:
    sends = harness.acquire()
    harness.now_ms += 400
    harness.open(sends)
    assert ms(harness.trust.until) == pytest.approx(1_000 + SURE_MS)
    assert ms(harness.trust.suspect_at) == pytest.approx(1_000 + TTL_MS / 2)


def test_a_second_attempt_to_open_counts_from_when_it_was_made(harness: SessionHarness) -> None:
    first = harness.acquire()
    harness.open(harness.run(700))
    assert ms(harness.trust.until) > 1_000 + SURE_MS
    assert harness.open(first) == []


def test_trust_grows_with_each_keep_alive_from_when_it_was_sent(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.run(3_100)
    assert len(of(KeepAlive, sends)) == 1
    sent_ms = 4_000
    harness.now_ms += 2_000
    harness.alive(sends)
    assert ms(harness.trust.until) == pytest.approx(sent_ms + SURE_MS, abs=150)


def test_a_confirmed_command_counts_as_a_keep_alive(harness: SessionHarness) -> None:
    harness.hold()
    harness.now_ms += 5_000
    sends = harness.release()
    harness.now_ms += 300
    harness.free(sends)
    assert ms(harness.trust.until) == pytest.approx(6_000 + SURE_MS)


def test_a_grant_after_a_long_wait_proves_only_what_was_so_before(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    harness.run_kept(9_000, A)
    until = harness.trust.until
    harness.grant(asked)
    assert harness.trust.until == until > asked_until()


def asked_until() -> Instant:
    return SessionLease.trusted_until(Instant(1_000 * NS_PER_MS), TTL_MS)


def test_the_watcher_receives_nothing_while_all_is_well(harness: SessionHarness) -> None:
    sends = harness.hold()
    sends += harness.run_kept(TTL_MS, A)
    sends += harness.free(harness.release())
    assert [send for send in sends if send.to == WATCHER] == []


def test_an_unconfirmed_session_is_suspect_at_half_its_ttl_and_lost_at_its_end(
    harness: SessionHarness,
) -> None:
    harness.hold()
    hold = harness.ann_holds
    assert of(Suspected, harness.run(7_400)) == []
    suspected = one(Suspected, harness.run(200), WATCHER)
    assert 7_400 <= suspected.silent_ms <= 7_700
    assert 7_200 <= suspected.left_ms <= 7_500
    assert of(HoldsLost, harness.run(7_200)) == []
    sends = harness.run(300)
    lost = one(HoldsLost, sends, WATCHER)
    assert lost.losses == (Loss("x", "ann", 7),)
    assert re.fullmatch(
        r"nothing confirmed the session for 1[45]\.\d s, its TTL is 15 s; nodes: a \(silent for "
        r"\d+\.\d s\), b \(silent for \d+\.\d s, and has never answered\)",
        lost.detail,
    )
    assert (hold.state, hold.reason) == (HoldState.LOST, lost.detail)
    assert {end.session for end in of(End, sends)} == {"c.1"}


def test_a_suspect_session_is_trusted_again_when_it_is_confirmed(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.run(8_000)
    assert of(Suspected, sends, WATCHER)
    harness.alive(sends)
    assert harness.trust.suspect_at > harness.now_ms * NS_PER_MS
    assert of(HoldsLost, harness.run(7_000)) == []


def test_a_lost_hold_stays_lost_whatever_arrives_later(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.run(14_800)
    harness.now_ms += 5_000  # The process was paused; the answer was there all the time.
    trust = harness.trust
    late = harness.alive(sends)
    assert one(HoldsLost, late, WATCHER).losses == (Loss("x", "ann", 7),)
    assert trust.until < harness.now_ms * NS_PER_MS
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_nothing_held_is_no_reason_to_worry_the_watcher(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    sends = harness.run(16_000)
    assert of(Suspected, sends) == []
    assert of(HoldsLost, sends) == []


def test_a_wait_goes_on_under_its_number_when_its_session_can_not_be_believed_any_more(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(token=4))
    sends = harness.run(16_000)
    assert of(api.Refused, sends) == []
    assert {end.session for end in of(End, sends)} == {"c.1"}
    again = harness.open(sends)
    assert one(api.Acquire, again).request == one(api.Acquire, asked).request
    assert of(api.Granted, harness.grant(asked)) == []
    assert one(api.Granted, harness.grant(again, fence=8), ANN).fence == 8


def test_the_end_of_a_session_given_up_is_repeated_until_confirmed(harness: SessionHarness) -> None:
    harness.hold()
    sends = harness.run(16_000)
    assert len(of(End, sends)) > 1
    assert harness.end(sends) == []
    assert of(End, harness.run(60_000)) == []
    assert harness.alarms == []


def test_the_end_of_a_session_given_up_is_not_repeated_forever(harness: SessionHarness) -> None:
    harness.hold()
    assert 8 <= len(of(End, harness.run(120_000))) <= 20
    assert harness.alarms == []


def test_an_operators_eviction_loses_that_hold_alone(harness: SessionHarness) -> None:
    harness.hold()
    hold = harness.ann_holds
    harness.hold(BEN, lock="y", fence=8)
    lost = HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops")
    sends = harness.receive(A, lost)
    assert one(HoldsLost, sends, WATCHER) == HoldsLost(
        losses=(Loss("x", "ann", 7),), detail="by ops"
    )
    assert (hold.state, hold.reason) == (HoldState.LOST, "by ops")
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert of(api.Release, harness.release(BEN, lock="y", fence=8))
    assert harness.receive(A, lost) == []


def test_a_notice_that_is_repeated_is_confirmed_by_a_release(harness: SessionHarness) -> None:
    harness.hold()
    lost = HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops", decided=True)
    assert of(api.Release, harness.receive(A, lost)) == []
    sends = harness.receive(A, lost)
    release = one(api.Release, sends, A)
    assert (release.owner, release.fence) == ("ann", 7)
    assert harness.receive(A, lost) == []
    assert harness.refuse(sends, api.Reason.OWNERSHIP_LOST) == []
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_a_broken_node_that_names_ever_new_losses_gets_few_releases(
    harness: SessionHarness,
) -> None:
    harness.hold()
    releases = [
        sent
        for number in range(2 * CONFIRMED_MAX)
        for sent in of(
            api.Release,
            harness.receive(
                A,
                HoldLost(
                    lock=f"l{number}",
                    fence=number + 8,
                    session="c.1",
                    owner="ann",
                    detail="",
                    decided=True,
                ),
            ),
        )
    ]
    assert len(releases) == CONFIRMED_MAX


def test_an_eviction_that_overtakes_its_grant_is_reported_instead(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    harness.receive(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    sends = harness.grant(asked)
    assert of(api.Granted, sends) == []
    assert one(api.Refused, sends, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert harness.role.session_state.holds == {}


def test_an_eviction_whose_notice_was_lost_is_learned_from_the_release(
    harness: SessionHarness,
) -> None:
    harness.hold()
    sends = harness.refuse(harness.release(), api.Reason.OWNERSHIP_LOST)
    assert one(api.Refused, sends, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(HoldsLost, sends, WATCHER).losses == (Loss("x", "ann", 7),)
    assert harness.role.session_state.holds == {}


def test_each_of_several_levels_is_notified_of_the_loss_once(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    harness.run(16_000)
    reasons = [one(api.Refused, harness.release(), ANN).reason for _ in range(3)]
    assert reasons == [api.Reason.OWNERSHIP_LOST, api.Reason.OWNERSHIP_LOST, api.Reason.NOT_HELD]


def test_memory_of_losses_is_bounded(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "HOLDS_MAX", 1)
    harness.hold()
    harness.hold(lock="y", fence=8)
    harness.run(16_000)
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD
    assert (
        one(api.Refused, harness.release(lock="y", fence=8), ANN).reason
        is api.Reason.OWNERSHIP_LOST
    )


@pytest.mark.parametrize("ttl_ms", [2_000, TTL_MS])
def test_an_endpoint_that_confirms_nothing_is_left_in_time_though_its_link_is_up(
    ttl_ms: int,
) -> None:
    harness = SessionHarness(ttl_ms)
    harness.hold()
    sends = harness.run_kept(10_000, B)
    assert of(HoldsLost, sends) == []
    assert of(Suspected, sends) == []
    assert of(KeepAlive, sends, B)


def test_the_session_is_confirmed_at_once_through_another_endpoint_when_a_link_breaks(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.run(100)
    (keep,) = of(KeepAlive, harness.lose_link("a"), B)
    assert keep.session == "c.1"


def test_a_release_done_before_an_eviction_is_confirmed_after_it(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    leaving = harness.release(token=3)
    harness.receive(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    assert one(api.Released, harness.free(leaving, count=1), ANN).request == 3
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


@pytest.mark.parametrize(
    "reason", [one for one in api.Reason if one is not api.Reason.SESSION_EXPIRED]
)
def test_a_session_that_is_refused_for_any_reason_refuses_what_waits_for_it(
    harness: SessionHarness, reason: api.Reason
) -> None:
    sends = [sent for sent in harness.acquire() if isinstance(sent.message, Open)]
    refused = of(api.Refused, [*harness.refuse(sends, reason), *harness.run(20_000)], ANN)
    assert len(refused) == 1


def test_a_session_without_waiting_users_is_not_opened_forever(harness: SessionHarness) -> None:
    harness.acquire()
    harness.receive(ANN, api.Abandon())
    assert of(Open, harness.run(60_000))
    assert harness.run(60_000) == []
    assert harness.alarms == []


def test_an_unconfirmed_close_ends_and_keeps_nothing_alive(harness: SessionHarness) -> None:
    harness.hold()
    sends = [*harness.receive(BEN, Close()), *harness.run(2_500)]
    assert len(of(End, sends)) > 1
    assert one(Closed, sends, BEN).unanswered == 1
    assert harness.run(60_000) == []
    assert harness.alarms == []


def test_a_wait_that_ends_with_the_session_of_a_closing_client_is_no_loss(
    harness: SessionHarness,
) -> None:
    harness.hold()
    waits = harness.acquire(BEN, lock="y")
    harness.receive(BEN, Close())
    sends = harness.refuse(waits, api.Reason.SESSION_EXPIRED)
    assert one(Closed, sends, BEN).unanswered == 0
    assert of(HoldsLost, [*sends, *harness.run(60_000)]) == []
