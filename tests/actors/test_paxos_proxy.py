"""The proxy of the log: its proposals and replies, repetition, other leaders, refusals, probes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.log_proxy_scene import (
    ACQUIRE,
    ANN,
    CANCEL,
    FAR,
    ME,
    PROXY,
    RELEASE,
    REPLICA,
    acquire,
    denied,
    happens,
    in_flight_at,
    led_by_n2,
    log_proxy,
    messages_to,
    proposals,
    proposed,
)
from support.proxy_scene import UnbatchedProxy
from support.role_harness import T0, at, sent

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Ended,
    Evict,
    Evicted,
    HoldLost,
    Open,
    Opened,
    SessionClosed,
    ended,
)
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Message, node_of
from fencelock.actors.paxos.backend import EXPIRED_LINES_MAX, REPEAT_MAX, PaxosBackend
from fencelock.actors.paxos.event import Isolated, LeaderChanged, Skipped
from fencelock.actors.paxos.log_requests import CHECK_WAIT_MS, SILENT_WAIT_MS, WAIT_CHECKS_MAX
from fencelock.actors.paxos.wire import Decline, Declined
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Queued, Result
from fencelock.actors.timing import TIMING

NODE = Address("n1/node")
OPEN = Open(session="ann", ttl_ms=9_000, label="host:1", request=1)
HELD = api.Granted(session=ME, owner="o", request=2, lock="a", fence=5, count=1)
RETAIN = AcquireRetained(session=ME, owner="*", request=2, lock="a", span=100)
QUEUED = Queued(session=ME, owner="o", request=2, lock="a")


@pytest.fixture
def proxy() -> Proxy:
    return led_by_n2(log_proxy(UnbatchedProxy))


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (OPEN, Opened(session="ann", assigned=ME, ttl_ms=9_000, node="", request=1)),
        (api.KeepAlive(session=ME, request=4), api.Alive(session=ME, node="", request=4)),
        (ACQUIRE, HELD),
        (RETAIN, replace(HELD, owner="*")),
        (RELEASE, api.Released(session=ME, owner="o", request=3, lock="a", count=0)),
        (CANCEL, api.Cancelled(session=ME, owner="o", request=2, lock="a")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_request_is_put_into_the_log_and_its_outcome_is_the_answer(
    proxy: Proxy, request_: Any, outcome: Result
) -> None:
    """The answer to a session has the node and the leader, too."""
    effects = proxy.handle(ANN, request_, T0)
    assert proposed(effects) == [request_]
    assert Wake(PaxosBackend.TICK_MS, Tick()) in effects
    answer = outcome
    if isinstance(outcome, Opened | api.Alive):
        answer = replace(outcome, node="n1", leader="n2")
    assert messages_to(happens(proxy, outcome), Message) == [answer]
    assert len(in_flight_at(proxy)) == 0
    assert messages_to(happens(proxy, outcome), Message) == []


def test_the_end_of_a_session_is_sent_to_the_requester_and_not_again_unasked(proxy: Proxy) -> None:
    (command,) = proposed(proxy.handle(ANN, End(session=ME, request=9), T0))
    assert command == End(session=ME, request=9)
    closed = ended(ME, CloseReason.GRACEFUL, 9)
    (answer,) = messages_to(happens(proxy, closed), Ended)
    assert (answer.session, answer.request) == (ME, 9)
    assert messages_to(happens(proxy, closed), Ended) == []


@pytest.mark.parametrize(
    ("reason", "words"), [(CloseReason.EXPIRED, "TTL"), (CloseReason.FORCED, "operator")]
)
def test_a_client_is_notified_that_its_session_ended(
    proxy: Proxy, reason: CloseReason, words: str
) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    (notice,) = messages_to(happens(proxy, ended(ME, reason)), Ended)
    assert (notice.session, notice.request) == (ME, 0)
    assert words in notice.detail


@pytest.mark.parametrize(
    "wait", [ACQUIRE, AcquirePermits(semaphore="a", permits=3, session=ME, owner="o", request=2)]
)
def test_a_wait_for_any_object_is_cancelled_when_the_key_of_its_client_is_removed(
    proxy: Proxy, wait: api.AcquireRequest
) -> None:
    proxy.handle(ANN, wait, T0)
    proxy.backend.cancel_waits([node_of(ANN)], T0)
    cancel = only(api.Cancel, [command for _, command in proxy.backend.pending()])
    assert cancel.key == (ME, "o", wait.lock, -2)


def test_a_client_is_notified_that_an_operator_took_its_hold(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = Why(Cause.TAKEN, texts=("eve (n2)",))
    lost = HoldLost(session=ME, owner="o", lock="a", fence=5, detail="", why=why)
    (notice,) = messages_to(happens(proxy, lost), HoldLost)
    assert (notice.lock, notice.fence, notice.session, notice.owner) == ("a", 5, ME, "o")
    assert notice.why is None
    assert notice.detail == "lock 'a': the hold under fence 5 was taken by 'eve (n2)'"


def test_a_client_is_notified_that_others_wait_for_what_it_retains(proxy: Proxy) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    recall = Recall(session=ME, owner="*", lock="a", fence=5, waiting=2)
    assert messages_to(happens(proxy, recall), Recall) == [recall]
    alive = api.Alive(session=ME, node="", request=4)
    (*_, repeated) = messages_to(happens(proxy, alive, recall), Message)
    assert repeated == recall
    assert happens(proxy, replace(recall, session="bob.3")) == []


def test_a_recall_that_the_leaders_replica_sends_is_passed_on(proxy: Proxy) -> None:
    """A node that catches up by snapshots never applies the slot itself."""
    recall = Recall(session=ME, owner="*", lock="a", fence=5)
    assert proxy.handle(FAR, recall, T0) == []
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    assert messages_to(proxy.handle(FAR, recall, T0), Recall) == [recall]
    assert proxy.handle(Address("mallory/replica"), recall, T0) == [
        Observe("paxos.stranger_ignored")
    ]


def test_losses_of_clients_that_are_elsewhere_are_not_sent_here(proxy: Proxy) -> None:
    lost = HoldLost(session="bob.3", owner="o", lock="a", fence=5, detail="eve (n2)")
    closed = ended("bob.3", CloseReason.EXPIRED)
    noted = only(Send, happens(proxy, lost, closed))
    assert isinstance(noted.message, RoleNotice)
    assert noted.message.text.startswith("session bob.3 expired: ")


def test_the_leaders_own_outcome_answers_ahead_of_the_log(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert len(messages_to(proxy.handle(FAR, HELD, T0), api.Granted)) == 1
    assert messages_to(happens(proxy, HELD), api.Granted) == []


def test_an_end_that_the_leaders_replica_sends_is_logged_when_the_log_has_it(proxy: Proxy) -> None:
    proxy.handle(ANN, End(session=ME, request=9), T0)
    closed = ended(ME, CloseReason.GRACEFUL, 9)
    ahead = proxy.handle(FAR, closed, T0)
    assert len(messages_to(ahead, Ended)) == 1
    assert sent(ahead, RoleNotice, NODE) == []
    assert len(sent(happens(proxy, closed), RoleNotice, NODE)) == 1


@pytest.mark.parametrize("more", [0, 1, 2])
def test_sessions_that_expire_together_have_a_bounded_number_of_lines(
    proxy: Proxy, more: int
) -> None:
    sessions = [f"s.{number}" for number in range(EXPIRED_LINES_MAX + more)]
    for _ in range(2):  # Each slot has its own lines.
        effects = happens(proxy, *(ended(session, CloseReason.EXPIRED) for session in sessions))
        lines = [notice.text.partition(":")[0] for notice in sent(effects, RoleNotice, NODE)]
        each = [f"session {session} expired" for session in sessions[:EXPIRED_LINES_MAX]]
        rest = f"{more} more sessions expired at the same time. Their locks are free for others"
        assert lines == each + [rest] * (more > 0)


def test_outcomes_count_only_from_members(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    effects = proxy.handle(Address("mallory/replica"), HELD, T0)
    assert effects == [Observe("paxos.stranger_ignored")]
    assert len(in_flight_at(proxy)) == 1


@pytest.mark.parametrize(
    "why",
    [
        Why(Cause.TIMED_OUT),
        Why(Cause.TIMED_OUT, (), ("a",), Obstacle("a")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop", "apples")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop",)),
        Why(Cause.OTHER_SIZE, (1, 2, 3)),
        Why(Cause.DELETED, (1,), ("root",)),
        Why(Cause.PURGED, (1,), ("",)),
    ],
)
def test_a_refusal_without_a_text_is_dropped(proxy: Proxy, why: Why) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    effects = proxy.handle(FAR, replace(denied(api.Reason.TIMED_OUT), why=why), T0)
    assert effects == [Observe("paxos.outcome_malformed")]
    assert len(in_flight_at(proxy)) == 1


def test_an_outcome_of_another_kind_answers_no_request(proxy: Proxy) -> None:
    proxy.handle(ANN, RELEASE, T0)
    grant = api.Granted(session=ME, owner="o", request=3, lock="a", fence=5, count=1)
    assert proxy.handle(FAR, grant, T0) == []
    assert len(in_flight_at(proxy)) == 1


def test_a_wait_is_answered_when_it_is_over_and_not_when_it_is_queued(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert happens(proxy, QUEUED) == []
    assert len(messages_to(happens(proxy, HELD), api.Granted)) == 1


def test_a_cancel_takes_the_place_of_its_acquire(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    assert len(proposed(proxy.handle(ANN, CANCEL, T0))) == 1
    over = denied(api.Reason.CANCELLED)
    effects = happens(proxy, over, api.Cancelled(session=ME, owner="o", request=2, lock="a"))
    assert messages_to(effects, api.Refused) == []
    assert len(messages_to(effects, api.Cancelled)) == 1
    assert len(in_flight_at(proxy)) == 0


@pytest.fixture
def leaderless() -> Proxy:
    return log_proxy(UnbatchedProxy)


def test_a_command_without_an_outcome_is_proposed_again_as_it_was(leaderless: Proxy) -> None:
    first = proposals(leaderless.handle(ANN, acquire(), T0))
    assert proposals(leaderless.handle(PROXY, Tick(), at(TIMING.outcome_ms - 1))) == []
    effects = leaderless.handle(PROXY, Tick(), at(TIMING.outcome_ms))
    assert proposals(effects) == first
    assert effects[-1] == Wake(PaxosBackend.TICK_MS, Tick())


def test_a_wait_that_the_log_knows_is_looked_after_seldom(leaderless: Proxy) -> None:
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, QUEUED)
    leaderless.handle(ANN, acquire(), at(1))
    assert proposals(leaderless.handle(PROXY, Tick(), at(CHECK_WAIT_MS - 1))) == []
    assert len(proposals(leaderless.handle(PROXY, Tick(), at(CHECK_WAIT_MS)))) == 1
    soon = at(CHECK_WAIT_MS + TIMING.outcome_ms)
    assert len(proposals(leaderless.handle(PROXY, Tick(), soon))) == 1
    happens(leaderless, QUEUED, now=soon)
    later = at(CHECK_WAIT_MS + 3 * TIMING.outcome_ms)
    assert proposals(leaderless.handle(PROXY, Tick(), later)) == []


def test_a_wait_of_a_silent_client_is_not_proposed_again_as_that_would_keep_its_session(
    leaderless: Proxy,
) -> None:
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, QUEUED)
    assert proposals(leaderless.handle(PROXY, Tick(), at(SILENT_WAIT_MS))) == []
    assert proposals(leaderless.handle(REPLICA, Skipped(slot=9), at(SILENT_WAIT_MS + 1))) == []
    leaderless.handle(ANN, acquire(), at(SILENT_WAIT_MS + 2))
    assert (
        len(proposals(leaderless.handle(PROXY, Tick(), at(SILENT_WAIT_MS + CHECK_WAIT_MS + 1))))
        == 1
    )


def test_a_client_that_repeats_its_wait_every_five_seconds_is_not_silent(leaderless: Proxy) -> None:
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, QUEUED, now=at(1))
    late = at(CHECK_WAIT_MS + 2)  # The repetition of the wait is on its way.
    assert len(proposals(leaderless.handle(PROXY, Tick(), late))) == 1


def test_a_request_sent_again_is_charged_to_the_client_as_now_known(leaderless: Proxy) -> None:
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, QUEUED)
    clients = leaderless.backend.clients
    ((name, first),) = clients.by_id.items()
    clients.by_id.clear()  # As if many clients had come since.
    clients.latest = None
    leaderless.handle(ANN, acquire(), at(SILENT_WAIT_MS))
    second = clients.by_id[name]
    assert (first.usage.in_flight, second.usage.in_flight) == (0, 1)
    assert (first.usage.bytes, second.usage.bytes) == (0, in_flight_at(leaderless).bytes)
    assert len(proposals(leaderless.handle(PROXY, Tick(), at(SILENT_WAIT_MS)))) == 1


def test_an_idle_proxy_sets_no_timer(leaderless: Proxy) -> None:
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, HELD)
    assert leaderless.handle(PROXY, Tick(), at(PaxosBackend.TICK_MS)) == []
    assert Wake(PaxosBackend.TICK_MS, Tick()) in leaderless.handle(
        ANN, acquire(3, "b"), at(PaxosBackend.TICK_MS)
    )


def test_a_request_that_is_under_way_is_not_proposed_twice_and_answered_where_it_came_from_last(
    leaderless: Proxy,
) -> None:
    leaderless.handle(ANN, acquire(), T0)
    moved = Address("ann/other")
    assert leaderless.handle(moved, acquire(), T0) == ()
    effects = happens(leaderless, HELD)
    assert sent(effects, api.Granted) == sent(effects, api.Granted, moved) == [HELD]


def test_a_request_that_comes_after_its_answer_is_for_the_table(leaderless: Proxy) -> None:
    first = proposed(leaderless.handle(ANN, acquire(), T0))
    happens(leaderless, HELD)
    assert proposed(leaderless.handle(ANN, acquire(), T0)) == first


def test_another_leader_is_asked_at_once_for_what_the_log_does_not_know(leaderless: Proxy) -> None:
    for request in (2, 3, 4):
        leaderless.handle(ANN, acquire(request, f"l{request}"), T0)
    happens(leaderless, Queued(session=ME, owner="o", request=3, lock="l3"))
    assert leaderless.handle(REPLICA, LeaderChanged(leader=""), at(1)) == []
    commands = proposed(leaderless.handle(REPLICA, LeaderChanged(leader="n3"), at(2)))
    assert [c.lock for c in commands if isinstance(c, api.Acquire)] == ["l2", "l4"]
    (alive,) = messages_to(
        leaderless.handle(ANN, api.KeepAlive(session="ann", request=9), at(3)), api.Alive
    )
    assert alive.leader == "n3"


def test_a_state_that_was_taken_over_makes_the_proxy_ask_for_everything(leaderless: Proxy) -> None:
    leaderless.handle(ANN, acquire(2, "a"), T0)
    leaderless.handle(ANN, acquire(3, "b"), T0)
    happens(leaderless, QUEUED)
    commands = proposed(leaderless.handle(REPLICA, Skipped(slot=9), at(1)))
    assert sorted(c.lock for c in commands if isinstance(c, api.Acquire)) == ["a", "b"]


def test_a_crowd_is_proposed_again_in_bounded_portions(leaderless: Proxy) -> None:
    for request in range(2, REPEAT_MAX + 12):
        leaderless.handle(ANN, acquire(request, f"l{request}"), T0)
    first = proposed(leaderless.handle(PROXY, Tick(), at(TIMING.outcome_ms)))
    second = proposed(leaderless.handle(PROXY, Tick(), at(TIMING.outcome_ms + 1)))
    assert (len(first), len(second)) == (REPEAT_MAX, 10)


def test_a_crowd_that_waits_in_the_log_is_looked_after_little_by_little(leaderless: Proxy) -> None:
    for request in range(2, WAIT_CHECKS_MAX + 12):
        leaderless.handle(ANN, acquire(request, f"l{request}"), T0)
        happens(leaderless, Queued(session=ME, owner="o", request=request, lock=f"l{request}"))
    leaderless.handle(ANN, acquire(2, "l2"), at(2))
    first = proposed(leaderless.handle(PROXY, Tick(), at(CHECK_WAIT_MS)))
    second = proposed(leaderless.handle(PROXY, Tick(), at(CHECK_WAIT_MS + 1)))
    assert (len(first), len(second)) == (WAIT_CHECKS_MAX, 10)


def number_of(effects: Effects) -> int:
    (propose,) = proposals(effects)
    return propose.number


def test_proposals_that_no_leader_took_wait_for_the_next(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.NOT_LEADER, leader="")
    effects = leaderless.handle(FAR, declined, T0)
    assert effects == [Observe("paxos.proposal_declined_not_leader")]
    assert len(proposals(leaderless.handle(REPLICA, LeaderChanged(leader="n3"), at(1)))) == 1


def test_new_work_is_refused_by_a_leader_with_too_much_to_do(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.OVERLOADED, leader="n2")
    (refused,) = messages_to(leaderless.handle(FAR, declined, T0), api.Refused)
    assert refused.reason is api.Reason.OVERLOADED
    assert "nothing was done" in refused.detail
    assert len(in_flight_at(leaderless)) == 0


def test_a_command_that_may_be_in_the_log_is_never_reported_as_undone(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    leaderless.handle(PROXY, Tick(), at(TIMING.outcome_ms))
    release = api.Release(lock="b", fence=3, session=ME, owner="o", request=3)
    other = number_of(leaderless.handle(ANN, release, at(TIMING.outcome_ms)))
    for overloaded in (number, other):
        declined = Declined(number=overloaded, why=Decline.OVERLOADED, leader="n2")
        effects = leaderless.handle(FAR, declined, at(TIMING.outcome_ms))
        assert messages_to(effects, api.Refused) == []
    assert len(in_flight_at(leaderless)) == 2


def test_requests_wait_without_a_leader_and_are_not_refused(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.OVERLOADED, leader="")
    assert messages_to(leaderless.handle(REPLICA, declined, T0), api.Refused) == []
    assert len(in_flight_at(leaderless)) == 1


def test_commands_that_the_log_cannot_read_are_refused(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.INVALID, leader="n2")
    (refused,) = messages_to(leaderless.handle(FAR, declined, T0), api.Refused)
    assert refused.reason is api.Reason.INVALID


def test_strangers_decline_nothing_and_old_numbers_are_nobodys(leaderless: Proxy) -> None:
    number = number_of(leaderless.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.INVALID, leader="n2")
    stranger = Address("mallory/replica")
    assert leaderless.handle(stranger, declined, T0) == [Observe("paxos.stranger_ignored")]
    unknown = Declined(number=number + 1, why=Decline.INVALID, leader="n2")
    assert messages_to(leaderless.handle(FAR, unknown, T0), api.Refused) == []
    assert len(in_flight_at(leaderless)) == 1


def replies(effects: Effects) -> list[tuple[bool, str, int]]:
    """Return of each `ProbeReply` to Ann whether the node serves, who leads, and the number."""
    return [(one.serving, one.leader, one.request) for one in messages_to(effects, ProbeReply)]


def probe(leaderless: Proxy, session: str = "ann") -> Effects:
    return leaderless.handle(ANN, Probe(session=session, request=4), T0)


def test_a_probe_is_answered_at_once_by_what_the_node_knows(leaderless: Proxy) -> None:
    assert replies(probe(leaderless)) == [(False, "", 4)]

    leaderless.handle(REPLICA, LeaderChanged(leader="n2"), T0)

    reply = ProbeReply(session="ann", node="n1", serving=True, leader="n2", request=4)
    assert list(probe(leaderless)) == [Send(ANN, reply), Observe("proxy.probed")]


def test_a_probe_that_names_too_long_a_session_is_dropped(leaderless: Proxy) -> None:
    assert list(probe(leaderless, "a" * (OWNER_BYTES_MAX + 1))) == [
        Observe("proxy.session_malformed")
    ]


def test_waiters_learn_at_once_that_the_leader_lost_its_majority(leaderless: Proxy) -> None:
    leaderless.handle(REPLICA, LeaderChanged(leader="n1"), T0)
    leaderless.handle(ANN, acquire(2, "a"), T0)
    leaderless.handle(ANN, acquire(3, "b"), T0)

    assert replies(leaderless.handle(REPLICA, Isolated(isolated=True), T0)) == [(False, "n1", 0)]
    assert replies(probe(leaderless)) == [(False, "n1", 4)]
    assert replies(leaderless.handle(REPLICA, LeaderChanged(leader=""), T0)) == []
    assert replies(leaderless.handle(REPLICA, Isolated(isolated=False), T0)) == []
    assert replies(leaderless.handle(REPLICA, LeaderChanged(leader="n2"), T0)) == [(True, "n2", 0)]


def test_a_client_that_waits_for_nothing_gets_no_notice(leaderless: Proxy) -> None:
    leaderless.handle(REPLICA, LeaderChanged(leader="n1"), T0)
    leaderless.handle(ANN, acquire(2, "a"), T0)
    happens(leaderless, HELD)

    assert replies(leaderless.handle(REPLICA, Isolated(isolated=True), T0)) == []


@pytest.mark.parametrize("reason", [*api.Reason])
def test_a_refusal_of_the_table_reaches_the_client(proxy: Proxy, reason: api.Reason) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = denied(reason, "lock 'a': why")
    (answer,) = messages_to(happens(proxy, why), api.Refused)
    nothing_done = reason in (api.Reason.SUPERSEDED, api.Reason.FORGOTTEN)
    assert answer == (replace(why, reason=api.Reason.CANCELLED) if nothing_done else why)


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (denied(api.Reason.NOT_HELD, "fence 5 was shown", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.OWNERSHIP_LOST, "taken by 'eve'", 3), api.Reason.OWNERSHIP_LOST),
        (denied(api.Reason.SUPERSEDED, "something else", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.FORGOTTEN, "something else", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.SESSION_EXPIRED, "open one", 3), api.Reason.SESSION_EXPIRED),
    ],
    ids=lambda value: value.name if isinstance(value, api.Reason) else "",
)
def test_a_denied_release_is_refused(proxy: Proxy, why: api.Refused, reason: api.Reason) -> None:
    proxy.handle(ANN, RELEASE, T0)
    (answer,) = messages_to(happens(proxy, why), api.Refused)
    assert answer == replace(why, reason=reason)


def test_a_cancel_in_an_ended_session_is_answered_so(proxy: Proxy) -> None:
    proxy.handle(ANN, CANCEL, T0)
    (answer,) = messages_to(
        happens(proxy, denied(api.Reason.SESSION_EXPIRED, request=-2)), api.Refused
    )
    assert answer.reason is api.Reason.SESSION_EXPIRED


def test_a_keep_alive_of_an_ended_session_is_answered_so(proxy: Proxy) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    gone = denied(api.Reason.SESSION_EXPIRED, request=4, lock="")
    (answer,) = messages_to(happens(proxy, gone), api.Refused)
    assert (answer.reason, answer.request) == (api.Reason.SESSION_EXPIRED, 4)


def test_an_eviction_names_the_operator_and_the_client_for_the_log(proxy: Proxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session=ME, request=8)
    (command,) = proposed(proxy.handle(ANN, evict, T0))
    assert command == evict
    assert evict.by == "eve (ann)"
    table = LockTable()
    table.apply(0, Open(session="bob~2", ttl_ms=9_000, label="host:2"))
    (held,) = table.apply(0, api.Acquire(lock="a", session="bob~2.1", owner="p", request=1))
    assert isinstance(held, api.Granted)
    (evicted, _) = table.apply(1, replace(evict, fence=held.fence))
    assert isinstance(evicted, Evicted)
    assert evicted.operator == "eve (ann)"
    assert evicted.holder[:4] == ("bob", "bob~2.1", "p", held.fence)
    assert messages_to(happens(proxy, evicted), Evicted) == [evicted]


def test_a_closed_session_is_notified_and_logged_with_the_operator(proxy: Proxy) -> None:
    """A client that has no session yet may ask, and the victim's client uses this node."""
    bob, secret = Address("bob/session"), "~" + "0123456789abcdef" * 2
    table = LockTable()
    table.apply(0, Open(session=f"bob{secret}", ttl_ms=9_000))
    proxy.handle(bob, api.KeepAlive(session=f"bob{secret}.1", request=1), T0)
    close = CloseSession(handle="bob.1", operator="eve", session="ann", request=8)
    (command,) = proposed(proxy.handle(ANN, close, T0))
    assert command == close
    effects = happens(proxy, *table.apply(1, close))
    (closed,) = messages_to(effects, SessionClosed)
    assert (closed.handle, closed.claims, closed.request) == ("bob.1", 0, 8)
    (ended,) = messages_to(effects, Ended, bob)
    assert (ended.session, ended.reason) == (f"bob{secret}.1", CloseReason.FORCED)
    (notice,) = sent(effects, RoleNotice, NODE)
    assert notice.level is Level.WARNING
    assert notice.text.startswith("session bob.1 closed: it was ended by force, by 'eve (ann)'")
    again = happens(proxy, *table.apply(2, close))
    assert sent(again, RoleNotice, NODE) == []  # A repetition closes nothing.


def test_an_eviction_of_an_owner_that_does_not_hold_is_refused(proxy: Proxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session="ann", request=8)
    proxy.handle(ANN, evict, T0)
    (why,) = LockTable().apply(0, evict)
    (answer,) = messages_to(happens(proxy, why), api.Refused)
    assert (answer.reason, answer.request) == (api.Reason.NOT_HELD, 8)
    assert "fence 5" in answer.detail
