"""The proxy of the log when things go wrong: repetition, other leaders, refusals, probes."""

from __future__ import annotations

import pytest
from support.effects import T0, at
from support.log_proxy_scene import (
    ANN,
    FAR,
    ME,
    PROXY,
    REPLICA,
    acquire,
    happens,
    in_flight_at,
    log_proxy,
    proposals,
    proposed,
    told,
)
from support.unbatched_proxy import UnbatchedProxy

from fencelock.actors.api import message as api
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.paxos.backend import REPEAT_MAX, PaxosBackend
from fencelock.actors.paxos.event import Isolated, LeaderChanged, Skipped
from fencelock.actors.paxos.in_flight import CHECK_WAIT_MS, SILENT_MS, WAIT_CHECKS_MAX
from fencelock.actors.paxos.message import Decline, Declined, Proposed
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.table.wire import Queued
from fencelock.actors.timing import TIMING


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(UnbatchedProxy)


def held(request: int = 2) -> api.Granted:
    return api.Granted(session=ME, owner="o", request=request, lock="a", fence=5, count=1)


def queued(request: int = 2) -> Queued:
    return Queued(session=ME, owner="o", request=request, lock="a")


def test_what_has_no_outcome_is_proposed_again_as_it_was(proxy: Proxy) -> None:
    first = proposals(proxy.handle(ANN, acquire(), T0))
    assert proposals(proxy.handle(PROXY, Tick(), at(TIMING.outcome_ms - 1))) == []
    effects = proxy.handle(PROXY, Tick(), at(TIMING.outcome_ms))
    assert proposals(effects) == first
    assert effects[-1] == Wake(PaxosBackend.TICK_MS, Tick())


def test_a_wait_that_the_log_knows_is_looked_after_seldom(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    happens(proxy, queued())
    proxy.handle(ANN, acquire(), at(1))
    assert proposals(proxy.handle(PROXY, Tick(), at(CHECK_WAIT_MS - 1))) == []
    assert len(proposals(proxy.handle(PROXY, Tick(), at(CHECK_WAIT_MS)))) == 1
    soon = at(CHECK_WAIT_MS + TIMING.outcome_ms)
    assert len(proposals(proxy.handle(PROXY, Tick(), soon))) == 1
    happens(proxy, queued(), now=soon)
    later = at(CHECK_WAIT_MS + 3 * TIMING.outcome_ms)
    assert proposals(proxy.handle(PROXY, Tick(), later)) == []


def test_a_wait_of_a_silent_client_is_not_proposed_again_as_that_would_keep_its_session(
    proxy: Proxy,
) -> None:
    proxy.handle(ANN, acquire(), T0)
    happens(proxy, queued())
    assert proposals(proxy.handle(PROXY, Tick(), at(SILENT_MS))) == []
    assert proposals(proxy.handle(REPLICA, Skipped(slot=9), at(SILENT_MS + 1))) == []
    proxy.handle(ANN, acquire(), at(SILENT_MS + 2))
    assert len(proposals(proxy.handle(PROXY, Tick(), at(SILENT_MS + CHECK_WAIT_MS + 1)))) == 1


def test_a_client_that_repeats_its_wait_every_five_seconds_is_not_silent(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    happens(proxy, queued(), now=at(1))
    late = at(CHECK_WAIT_MS + 2)  # The repetition of the wait is on its way.
    assert len(proposals(proxy.handle(PROXY, Tick(), late))) == 1


def test_a_request_sent_again_is_charged_to_the_client_as_it_is_known_now(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    happens(proxy, queued())
    clients = proxy.backend.clients
    ((name, first),) = clients.by_id.items()
    clients.by_id.clear()  # As if many clients had come since.
    clients.latest = None
    proxy.handle(ANN, acquire(), at(SILENT_MS))
    second = clients.by_id[name]
    assert (first.usage.in_flight, second.usage.in_flight) == (0, 1)
    assert (first.usage.bytes, second.usage.bytes) == (0, in_flight_at(proxy).bytes)
    assert len(proposals(proxy.handle(PROXY, Tick(), at(SILENT_MS)))) == 1


def test_an_idle_proxy_sets_no_timer(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    happens(proxy, held())
    assert proxy.handle(PROXY, Tick(), at(PaxosBackend.TICK_MS)) == []
    assert Wake(PaxosBackend.TICK_MS, Tick()) in proxy.handle(
        ANN, acquire(3, "b"), at(PaxosBackend.TICK_MS)
    )


def test_a_request_that_is_under_way_is_not_proposed_twice_and_answered_where_it_came_from_last(
    proxy: Proxy,
) -> None:
    proxy.handle(ANN, acquire(), T0)
    moved = Address("ann/other")
    assert proxy.handle(moved, acquire(), T0) == ()
    effects = happens(proxy, held())
    assert (len(told(effects, api.Granted, moved)), len(told(effects, api.Granted))) == (1, 0)


def test_a_request_that_comes_again_after_its_answer_is_for_the_table_to_answer(
    proxy: Proxy,
) -> None:
    first = proposed(proxy.handle(ANN, acquire(), T0))
    happens(proxy, held())
    assert proposed(proxy.handle(ANN, acquire(), T0)) == first


def test_another_leader_is_asked_at_once_for_what_the_log_does_not_know(proxy: Proxy) -> None:
    for request in (2, 3, 4):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
    happens(proxy, Queued(session=ME, owner="o", request=3, lock="l3"))
    assert proxy.handle(REPLICA, LeaderChanged(leader=""), at(1)) == []
    commands = proposed(proxy.handle(REPLICA, LeaderChanged(leader="n3"), at(2)))
    assert [c.lock for c in commands if isinstance(c, api.Acquire)] == ["l2", "l4"]
    (alive,) = told(proxy.handle(ANN, api.KeepAlive(session="ann", request=9), at(3)), api.Alive)
    assert alive.leader == "n3"


def test_a_state_that_was_taken_over_makes_the_proxy_ask_for_everything(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(2, "a"), T0)
    proxy.handle(ANN, acquire(3, "b"), T0)
    happens(proxy, queued())
    commands = proposed(proxy.handle(REPLICA, Skipped(slot=9), at(1)))
    assert sorted(c.lock for c in commands if isinstance(c, api.Acquire)) == ["a", "b"]


def test_a_crowd_is_proposed_again_in_bounded_portions(proxy: Proxy) -> None:
    for request in range(2, REPEAT_MAX + 12):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
    first = proposed(proxy.handle(PROXY, Tick(), at(TIMING.outcome_ms)))
    second = proposed(proxy.handle(PROXY, Tick(), at(TIMING.outcome_ms + 1)))
    assert (len(first), len(second)) == (REPEAT_MAX, 10)


def test_a_crowd_that_waits_in_the_log_is_looked_after_little_by_little(proxy: Proxy) -> None:
    for request in range(2, WAIT_CHECKS_MAX + 12):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
        happens(proxy, Queued(session=ME, owner="o", request=request, lock=f"l{request}"))
    proxy.handle(ANN, acquire(2, "l2"), at(2))
    first = proposed(proxy.handle(PROXY, Tick(), at(CHECK_WAIT_MS)))
    second = proposed(proxy.handle(PROXY, Tick(), at(CHECK_WAIT_MS + 1)))
    assert (len(first), len(second)) == (WAIT_CHECKS_MAX, 10)


def number_of(effects: Effects) -> int:
    (propose,) = proposals(effects)
    return propose.number


def test_what_no_leader_took_waits_for_the_next(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.NOT_LEADER, leader="")
    effects = proxy.handle(FAR, declined, T0)
    assert effects == [Observe("paxos.proposal_declined_not_leader")]
    assert len(proposals(proxy.handle(REPLICA, LeaderChanged(leader="n3"), at(1)))) == 1


def test_new_work_is_refused_by_a_leader_with_too_much_to_do(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.OVERLOADED, leader="n2")
    (refused,) = told(proxy.handle(FAR, declined, T0), api.Refused)
    assert refused.reason is api.Reason.OVERLOADED
    assert "nothing was done" in refused.detail
    assert len(in_flight_at(proxy)) == 0


def test_what_may_be_in_the_log_is_never_said_to_be_undone(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    proxy.handle(PROXY, Tick(), at(TIMING.outcome_ms))
    release = api.Release(lock="b", fence=3, session=ME, owner="o", request=3)
    other = number_of(proxy.handle(ANN, release, at(TIMING.outcome_ms)))
    for overloaded in (number, other):
        declined = Declined(number=overloaded, why=Decline.OVERLOADED, leader="n2")
        assert told(proxy.handle(FAR, declined, at(TIMING.outcome_ms)), api.Refused) == []
    assert len(in_flight_at(proxy)) == 2


def test_without_a_leader_requests_wait_and_are_not_refused(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.OVERLOADED, leader="")
    assert told(proxy.handle(REPLICA, declined, T0), api.Refused) == []
    assert len(in_flight_at(proxy)) == 1


def test_what_the_log_cannot_read_is_refused(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.INVALID, leader="n2")
    (refused,) = told(proxy.handle(FAR, declined, T0), api.Refused)
    assert refused.reason is api.Reason.INVALID


def test_strangers_decline_nothing_and_old_numbers_are_nobodys(proxy: Proxy) -> None:
    number = number_of(proxy.handle(ANN, acquire(), T0))
    declined = Declined(number=number, why=Decline.INVALID, leader="n2")
    stranger = Address("mallory/replica")
    assert proxy.handle(stranger, declined, T0) == [Observe("paxos.stranger_ignored")]
    unknown = Declined(number=number + 1, why=Decline.INVALID, leader="n2")
    assert told(proxy.handle(FAR, unknown, T0), api.Refused) == []
    assert proxy.handle(FAR, Proposed(number=number, slot=4), T0) == ()
    assert len(in_flight_at(proxy)) == 1


def replies(effects: Effects) -> list[tuple[bool, str, int]]:
    """Return of each `ProbeReply` to Ann whether the node serves, who leads, and the number."""
    told = [e.message for e in effects if isinstance(e, Send) and e.to == ANN]
    return [(t.serving, t.leader, t.request) for t in told if isinstance(t, ProbeReply)]


def probe(proxy: Proxy, session: str = "ann") -> Effects:
    return proxy.handle(ANN, Probe(session=session, request=4), T0)


def test_a_probe_is_answered_at_once_by_what_the_node_knows(proxy: Proxy) -> None:
    assert replies(probe(proxy)) == [(False, "", 4)]

    proxy.handle(REPLICA, LeaderChanged(leader="n2"), T0)

    reply = ProbeReply(session="ann", node="n1", serving=True, leader="n2", request=4)
    assert list(probe(proxy)) == [Send(ANN, reply), Observe("proxy.probed")]


def test_a_probe_that_names_too_long_a_session_is_dropped(proxy: Proxy) -> None:
    assert list(probe(proxy, "a" * (OWNER_BYTES_MAX + 1))) == [Observe("proxy.session_malformed")]


def test_who_waits_is_told_at_once_that_the_leader_lost_its_majority(proxy: Proxy) -> None:
    proxy.handle(REPLICA, LeaderChanged(leader="n1"), T0)
    proxy.handle(ANN, acquire(2, "a"), T0)
    proxy.handle(ANN, acquire(3, "b"), T0)

    assert replies(proxy.handle(REPLICA, Isolated(isolated=True), T0)) == [(False, "n1", 0)]
    assert replies(probe(proxy)) == [(False, "n1", 4)]
    assert replies(proxy.handle(REPLICA, LeaderChanged(leader=""), T0)) == []
    assert replies(proxy.handle(REPLICA, Isolated(isolated=False), T0)) == []
    assert replies(proxy.handle(REPLICA, LeaderChanged(leader="n2"), T0)) == [(True, "n2", 0)]


def test_who_waits_for_nothing_is_told_nothing(proxy: Proxy) -> None:
    proxy.handle(REPLICA, LeaderChanged(leader="n1"), T0)
    proxy.handle(ANN, acquire(2, "a"), T0)
    happens(proxy, api.Granted(session=ME, owner="o", request=2, lock="a", fence=1, count=1))

    assert replies(proxy.handle(REPLICA, Isolated(isolated=True), T0)) == []
