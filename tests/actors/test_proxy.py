"""The proxy of a node over a backend that the test plays, and over that of each protocol."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.proxy_scene import (
    ANN,
    BACKEND,
    BOB,
    BOB_HOLDS,
    FREE,
    LOCAL,
    PROXY,
    acquire,
    claims_of,
    hold,
    manager_of,
    proxy_of_n1,
    waits,
)
from support.role_harness import HOST, T0, RoleHarness, at, only_sent, sent

from fencelock.actors.api import message as api
from fencelock.actors.api.account import ListMaps, ReadUsage
from fencelock.actors.api.cluster_message import Probe, ProbeReply, Watch
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.message import (
    Acquire,
    Alive,
    Describe,
    Granted,
    Inspect,
    KeepAlive,
    NodeAddress,
    Reason,
    Refused,
)
from fencelock.actors.api.request import Request
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.session_message import (
    CloseSession,
    ConfirmHold,
    DisownHold,
    Evict,
    ListLocks,
    Open,
    Renew,
)
from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.config import Terms
from fencelock.actors.bakery.message import Locked
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.message import PART_BYTES_MAX, Address
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.proxy import lock_manager
from fencelock.actors.proxy.backend import ANNOUNCED_MAX, Backend
from fencelock.actors.proxy.lock_manager import (
    CLAIMS_ENDED_MAX,
    CLAIMS_ENDED_MS,
    CONFIRM_AFTER_MS,
    CONFIRMS_MAX,
    TRY_MS,
    TRY_QUERY_MS,
    Key,
    LockManager,
    LockRequests,
    TryQuery,
    WaitsDue,
)
from fencelock.actors.proxy.message import (
    AcquireLock,
    LockGranted,
    MembersKnown,
    QueryLock,
    QueueFull,
    Relay,
    Relayed,
    ReleaseLock,
)
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.transport.codec import encode


def test_a_request_of_a_client_goes_to_the_backend_and_the_grant_comes_back(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(), T0)
    assert sent(effects, AcquireLock) == [AcquireLock(lock="a", ticket=1, session="ann", owner="o")]

    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    granted = api.Granted(lock="a", fence=7, session="ann", owner="o", request=1)
    assert Send(ANN, granted) in effects


def test_a_request_that_is_sent_again_is_asked_once_and_answered_again(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    assert sent(proxy.handle(ANN, acquire(), T0), AcquireLock) == []
    first = sent(proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0), api.Granted)
    assert sent(proxy.handle(ANN, acquire(), T0), api.Granted) == first


def test_a_release_gives_the_lock_back_once_however_often_it_is_sent(proxy: Proxy) -> None:
    hold(proxy)
    release = api.Release(lock="a", fence=7, session="ann", owner="o", request=2)
    effects = proxy.handle(ANN, release, T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    released = sent(effects, api.Released)
    assert len(released) == 1
    again = proxy.handle(ANN, release, T0)
    assert sent(again, ReleaseLock) == []
    assert sent(again, api.Released) == released


def test_an_acquire_that_arrives_after_its_release_is_dropped(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(ANN, api.Release(lock="a", fence=7, session="ann", owner="o", request=2), T0)
    assert sent(proxy.handle(ANN, acquire(request=1), T0), AcquireLock) == []


@pytest.mark.parametrize(
    "release",
    [
        api.Release(lock="a", fence=6, session="ann", owner="o", request=2),
        api.Release(lock="a", fence=7, session="ann", owner="other", request=2),
        api.Release(lock="b", fence=7, session="ann", owner="o", request=2),
    ],
    ids=["fence", "owner", "lock"],
)
def test_only_the_holder_releases_and_only_under_its_fence(
    proxy: Proxy, release: api.Release
) -> None:
    hold(proxy)
    effects = proxy.handle(ANN, release, T0)
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.NOT_HELD]
    assert sent(effects, ReleaseLock) == []


def test_a_wait_that_is_over_names_the_silent_node_and_is_never_granted(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(wait_ms=500), T0)
    assert waits(effects) == [Wake(500, WaitsDue(at=at(500)))]

    effects = proxy.handle(PROXY, WaitsDue(at=at(500)), at(500))
    asked = [e.message for e in effects if isinstance(e, Send)]
    assert asked == [QueryLock(lock="a", query=1), ReleaseLock(lock="a", ticket=1)]
    assert proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), at(501)) == ()

    seen = replace(FREE, waits_for=(api.Absence("n2", 4_200),))
    (refused,) = sent(proxy.handle(BACKEND, seen, at(502)), api.Refused)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "n2 (silent for 4200 ms)" in refused.detail


def test_waits_that_time_out_together_end_a_bounded_number_at_a_time() -> None:
    harness = RoleHarness(lambda _: proxy_of_n1())
    waits = 3 * CLAIMS_ENDED_MAX
    for number in range(waits):
        session = f"ann~{number}"
        harness.receive(ANN, acquire(session=session, wait_ms=500))
    assert len(harness.alarms) <= 2  # Theirs, and the tick.

    harness.run(499)
    ended = [len(sent(harness.run(1), QueryLock)) for _ in range(1 + 3 * CLAIMS_ENDED_MS)]

    assert [count for count in ended if count] == [CLAIMS_ENDED_MAX] * 3
    assert [ms for ms, count in enumerate(ended) if count] == [
        turn * CLAIMS_ENDED_MS for turn in range(3)
    ]


def test_a_wait_that_is_granted_after_its_timeout_but_before_its_end_holds() -> None:
    harness = RoleHarness(lambda _: proxy_of_n1())
    for number in range(CLAIMS_ENDED_MAX + 1):
        harness.receive(ANN, acquire(session=f"ann~{number}", wait_ms=500))
    harness.run(500)

    last = LockGranted(lock="a", ticket=CLAIMS_ENDED_MAX + 1, fence=7)
    assert only_sent(harness.receive(BACKEND, last), Granted).fence == 7
    assert sent(harness.run(CLAIMS_ENDED_MS), ReleaseLock) == []


def test_a_wait_that_is_over_names_the_holder(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(wait_ms=500), T0)
    proxy.handle(PROXY, WaitsDue(at=at(500)), at(500))
    seen = replace(FREE, holder=BOB_HOLDS)
    (refused,) = sent(proxy.handle(BACKEND, seen, at(502)), api.Refused)
    assert refused.reason is api.Reason.TIMED_OUT
    assert "held by bob-1 on n2 under fence 9" in refused.detail
    assert sent(proxy.handle(ANN, acquire(wait_ms=500), at(600)), api.Refused) == [refused]


def test_a_request_that_will_not_wait_is_refused_as_soon_as_another_is_ahead(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(wait_ms=0), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1)]
    assert waits(effects) == [Wake(TRY_MS, WaitsDue(at=at(TRY_MS)))]
    assert proxy.handle(BACKEND, FREE, T0) == [Wake(TRY_QUERY_MS, TryQuery(ticket=1))]
    assert sent(proxy.handle(PROXY, TryQuery(ticket=1), T0), QueryLock) == [
        QueryLock(lock="a", query=2)
    ]
    effects = proxy.handle(BACKEND, replace(FREE, query=2, holder=BOB_HOLDS), T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.TIMED_OUT]


def test_an_owner_that_holds_is_refused_and_does_not_wait_for_itself(proxy: Proxy) -> None:
    hold(proxy)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.ALREADY_HELD]


def test_a_new_wait_of_an_owner_ends_its_old_one(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert [r.reason for r in sent(effects, api.Refused)] == [api.Reason.CANCELLED]
    assert [want.ticket for want in sent(effects, AcquireLock)] == [2]


def test_a_cancel_ends_a_wait_or_a_hold_and_can_be_repeated(proxy: Proxy) -> None:
    cancel = api.Cancel(lock="a", session="ann", owner="o", request=1)
    hold(proxy)
    effects = proxy.handle(ANN, cancel, T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert len(sent(effects, api.Cancelled)) == 1
    again = proxy.handle(ANN, cancel, T0)
    assert (sent(again, ReleaseLock), len(sent(again, api.Cancelled))) == ([], 1)
    assert sent(proxy.handle(ANN, acquire(request=1), T0), AcquireLock) == []


def test_a_cancel_that_overtakes_its_acquire_still_wins(proxy: Proxy) -> None:
    proxy.handle(ANN, api.Cancel(lock="a", session="ann", owner="o", request=1), T0)
    effects = proxy.handle(ANN, acquire(request=1), T0)
    assert (len(sent(effects, api.Cancelled)), sent(effects, AcquireLock)) == (1, [])


def test_a_cancelled_acquire_stays_cancelled_while_an_older_one_waits(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(request=1), T0)
    proxy.handle(ANN, api.Cancel(lock="a", session="ann", owner="o", request=2), T0)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert (len(sent(effects, api.Cancelled)), sent(effects, AcquireLock)) == (1, [])


def test_the_session_of_callers_inside_is_a_client_like_others(proxy: Proxy) -> None:
    mine: dict[str, Any] = {"lock": "a", "session": "n1/b00", "owner": "ask-1", "request": 1}
    for caller in (ANN, LOCAL):
        effects = proxy.handle(caller, api.Acquire(**mine), T0)
        assert len(sent(effects, api.Refused)) == (caller == ANN)
    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    assert Send(LOCAL, api.Granted(fence=7, **mine)) in effects
    proxy.handle(LOCAL, api.Cancel(**mine), T0)
    assert proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0) == ()


@pytest.mark.parametrize(
    "request_",
    [
        api.Acquire(lock="a", owner="o", request=1),
        api.Release(lock="a", fence=7, request=1),
        api.Cancel(lock="a", session="", owner="o", request=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_request_that_names_no_session_is_sent_to_the_role_that_has_one(
    proxy: Proxy, request_: api.Acquire | api.Release | api.Cancel
) -> None:
    (refused,) = sent(proxy.handle(Address("n1/ask-1"), request_, T0), api.Refused)
    assert refused.reason is api.Reason.INVALID
    assert "session is empty; the role 'session' of n1 has one" in refused.detail


def test_a_full_backend_is_an_overload_for_the_asker(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(BACKEND, QueueFull(lock="a", ticket=1, detail="10000 wait"), T0)
    assert [(r.reason, r.detail) for r in sent(effects, api.Refused)] == [
        (api.Reason.OVERLOADED, "10000 wait")
    ]


def test_a_lock_granted_twice_through_a_node_stays_with_its_first_holder(proxy: Proxy) -> None:
    """A `central` server without a journal forgets all holders when it restarts."""
    hold(proxy, fence=7)
    proxy.handle(BOB, acquire(session="bob"), T0)
    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=2, fence=8), T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=2)]
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.UNAVAILABLE]
    assert claims_of(proxy).holder["a"].fence == 7


def test_the_waits_of_a_silent_client_end_and_its_holds_stay(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(BOB, acquire(session="bob"), T0)
    effects = proxy.handle(PROXY, Tick(), at(LockManager.CLIENT_SILENCE_MS))
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=2)]
    assert claims_of(proxy).holder["a"].key.session == "ann"


def test_a_client_that_keeps_alive_keeps_its_wait(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(
        ANN, api.KeepAlive(session="ann", request=3), at(LockManager.CLIENT_SILENCE_MS - 1)
    )
    assert sent(effects, api.Alive) == [api.Alive(session="ann", node="n1", request=3)]
    effects = proxy.handle(PROXY, Tick(), at(LockManager.CLIENT_SILENCE_MS))
    assert (sent(effects, ReleaseLock), effects[-1]) == ([], Wake(LockManager.TICK_MS, Tick()))


def test_an_acquire_without_a_limit_has_no_timer(proxy: Proxy) -> None:
    assert waits(proxy.handle(ANN, acquire(wait_ms=None), T0)) == []
    assert len(waits(proxy.handle(BOB, acquire(session="bob", wait_ms=500), T0))) == 1


MEMBERS = ("n1", "n2", "n3")


def backend_of(protocol: str) -> Backend:
    match protocol:
        case "paxos":
            return PaxosBackend("n1", MEMBERS, encode)
        case "bakery":
            return BakeryBackend("n1", MEMBERS, Terms(), Random(1), 1)
        case _:
            return LockManager("n1", MEMBERS, protocol, BACKEND)


def proxy_over(protocol: str) -> Proxy:
    proxy = Proxy(PROXY, HOST, backend=backend_of(protocol))
    proxy.begin(T0)
    return proxy


WATCH, RENEW = Watch(session="ann.7"), Renew(lock="a", fence=1, session="ann.7", request=1)
LIST = ListLocks(session="ann.7", request=1)
MEMBERS_ROLE = Address("n1/members")
READ_MEMBERS = ReadMembers(session="ann.7", request=1)
REMOVE = ChangeMembers(action=MemberAction.REMOVE, node="n3", session="ann.7", request=1)
EVICT = Evict(lock="a", fence=1, operator="o", session="ann.7", request=1)
DISOWN = DisownHold(lock="a", fence=1, session="ann.7")
CLOSE = CloseSession(handle="bob.1", operator="o", session="ann.7", request=1)
RETAIN = AcquireRetained(lock="a", span=10, session="ann.7", owner="*", request=1)


@pytest.mark.parametrize(
    ("protocol", "request_", "has_it"),
    [
        ("paxos", WATCH, "bakery"),
        ("lamport", WATCH, "bakery"),
        ("lamport", RENEW, "bakery and paxos have it"),
        ("lamport", LIST, "keeps no table of locks to list"),
        ("lamport", EVICT, "paxos takes locks by force"),
        ("bakery", LIST, "keeps no table of locks to list"),
        ("bakery", EVICT, "paxos takes locks by force"),
        ("lamport", RETAIN, "paxos has it"),
        ("bakery", RETAIN, "paxos has it"),
        ("paxos", DISOWN, "central and lamport have it"),
        ("bakery", DISOWN, "central and lamport have it"),
        ("lamport", CLOSE, "paxos closes sessions"),
        ("bakery", CLOSE, "paxos closes sessions"),
        ("central", CLOSE, "`fencelock who` names the client"),
        ("lamport", REMOVE, "paxos and bakery change their members while they serve"),
        ("bakery", ReadUsage(session="ann.7", request=1), "has no quotas, and counts nothing by"),
        ("bakery", ListMaps(session="ann.7", request=1), "has no maps, latches or other things"),
        ("central", READ_MEMBERS, "paxos and bakery change their members while they serve"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_request_without_a_handler_is_refused_with_the_protocol_that_has_it(
    protocol: str, request_: Request, has_it: str
) -> None:
    (refused,) = sent(proxy_over(protocol).handle(ANN, request_, T0), Refused, ANN)
    assert refused.reason is Reason.UNSUPPORTED
    assert protocol in refused.detail
    assert has_it in refused.detail
    assert f"{protocol} has it" not in refused.detail


def test_the_log_leaves_requests_about_members_to_the_role_that_changes_them() -> None:
    proxy = proxy_over("paxos")
    for request in (READ_MEMBERS, REMOVE):
        relayed = sent(proxy.handle(ANN, request, T0), Relay, MEMBERS_ROLE)
        assert relayed == [Relay(client=ANN, request=request)]
    read = MembersRead(node="n1", view=3, nodes=(), session="ann.7", request=1)
    effects = proxy.handle(MEMBERS_ROLE, Relayed(client=ANN, reply=read), T0)
    assert sent(effects, MembersRead, ANN) == [read]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (ChangeMembers(action=MemberAction.JOIN, node="N4"), "node is 'N4'"),
        (ChangeMembers(action=MemberAction.LEAVE, node="x" * 33), "1 to 32 of a-z, 0-9 and -"),
        (
            ChangeMembers(action=MemberAction.JOIN, node="n4", endpoint="tcp://0.0.0.0:1"),
            "endpoint is 'tcp://0.0.0.0:1'",
        ),
        (ChangeMembers(action=MemberAction.JOIN, node="n4", endpoint="ipc://x"), "endpoint is"),
        (ChangeMembers(action=MemberAction.JOIN, node="n4", journal=-1), "journal is -1"),
        (ChangeMembers(action=MemberAction.REPLACE, node="n1"), "replacement is ''"),
        (
            ChangeMembers(action=MemberAction.REMOVE, node="n1", replacement="n2"),
            "REMOVE needs none",
        ),
    ],
)
def test_a_change_of_members_with_a_bad_field_is_refused(
    change: ChangeMembers, problem: str
) -> None:
    (refused,) = sent(
        proxy_over("paxos").handle(ANN, replace(change, session="ann.7"), T0), Refused, ANN
    )
    assert refused.reason is Reason.INVALID
    assert problem in refused.detail


def test_clients_are_notified_of_new_members_at_once_and_some_at_a_time() -> None:
    proxy = proxy_over("paxos")
    names = [f"c{number}" for number in range(ANNOUNCED_MAX + 1)]
    for name in names:
        proxy.handle(Address(f"{name}/session"), KeepAlive(session=name, request=1), T0)
    known = MembersKnown(view=1, members=(NodeAddress("n4", "tcp://d:4"),))
    effects = proxy.handle(MEMBERS_ROLE, known, T0)
    notices = sent(effects, Alive, Address("c0/session"))
    assert [(one.request, one.view, one.members) for one in notices] == [(0, 1, known.members)]
    assert len(sent(effects, Alive)) == ANNOUNCED_MAX
    (last,) = sent(proxy.handle(proxy.address, Tick(), at(250)), Alive)
    assert last.session == names[-1]


def test_keep_alives_name_the_members_as_they_are_now() -> None:
    proxy = proxy_over("paxos")
    before, after = (NodeAddress("n1", "tcp://a:1"),), (NodeAddress("n4", "tcp://d:4"),)
    proxy.handle(MEMBERS_ROLE, MembersKnown(view=1, members=before), T0)
    proxy.handle(MEMBERS_ROLE, MembersKnown(view=2, members=after), T0)
    (alive,) = sent(proxy.handle(ANN, KeepAlive(session="ann", request=1), T0), Alive, ANN)
    assert (alive.view, alive.members) == (2, after)


def test_a_backend_need_not_name_the_requests_that_it_does_not_have() -> None:
    backend = backend_of("lamport")
    backend.requests = {
        kind: take for kind, take in backend.requests.items() if kind is not Inspect
    }
    proxy = Proxy(PROXY, HOST, backend=backend)
    (refused,) = sent(proxy.handle(ANN, Inspect(lock="a", session="ann"), T0), Refused, ANN)
    assert (refused.reason, refused.detail) == (
        Reason.UNSUPPORTED,
        "lamport has no Inspect; paxos has it",
    )


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "lamport"])
def test_every_protocol_answers_a_probe_at_once(protocol: str) -> None:
    effects = proxy_over(protocol).handle(ANN, Probe(session="ann.7", request=4), T0)
    (reply,) = sent(effects, ProbeReply, ANN)
    assert (reply.node, reply.request) == ("n1", 4)


def test_a_proxy_accepts_requests_and_the_events_of_its_own_protocol() -> None:
    events = {"paxos": SlotOutcomes, "bakery": Locked, "lamport": LockGranted}
    for protocol in events:
        accepted = proxy_over(protocol).accepts
        assert {Acquire, Open, Describe, Probe, Watch} <= accepted
        assert {name for name, kind in events.items() if kind in accepted} == {protocol}
    assert Granted in proxy_over("paxos").accepts  # The leader's replica sends it.
    assert Granted not in proxy_over("bakery").accepts
    assert proxy_over("paxos").accepts > Proxy.accepts >= {Acquire, Watch}


def test_a_hold_that_its_client_does_not_know_is_released(proxy: Proxy) -> None:
    hold(proxy)
    manager = manager_of(proxy)
    assert sent(manager.tick(at(CONFIRM_AFTER_MS - 1)), ConfirmHold) == []
    asked = sent(manager.tick(at(CONFIRM_AFTER_MS)), ConfirmHold, ANN)
    assert asked == [ConfirmHold(lock="a", fence=7, session="ann")]
    for fence, gives in [(6, []), (7, [ReleaseLock(lock="a", ticket=1)]), (7, [])]:
        disown = DisownHold(lock="a", fence=fence, session="ann")
        assert sent(proxy.handle(ANN, disown, T0), ReleaseLock) == gives


def test_a_hold_of_a_session_that_can_be_no_clients_is_not_confirmed(proxy: Proxy) -> None:
    manager = manager_of(proxy)
    confirm = vars(LockManager)["_confirm"]
    long = "\u00e9" * PART_BYTES_MAX  # Twice as many bytes.
    assert confirm(manager, "a", 7, long) == Observe("proxy.session_malformed")
    known = confirm(manager, "a", 7, "x" * PART_BYTES_MAX)
    assert known.message == ConfirmHold(lock="a", fence=7, session="x" * PART_BYTES_MAX)


def test_holds_are_confirmed_a_bounded_number_at_a_time_and_all_in_turn(proxy: Proxy) -> None:
    names = {f"lock-{number}" for number in range(CONFIRMS_MAX + 50)}
    for ticket, lock in enumerate(names, 1):
        proxy.handle(ANN, acquire(lock, request=ticket), T0)
        proxy.handle(BACKEND, LockGranted(lock=lock, ticket=ticket, fence=ticket), T0)
    due = at(CONFIRM_AFTER_MS)
    rounds = [sent(manager_of(proxy).tick(due), ConfirmHold) for _ in range(2)]
    assert [len(asked) for asked in rounds] == [CONFIRMS_MAX, 50]
    assert {confirm.lock for asked in rounds for confirm in asked} == names


def test_a_role_of_the_node_without_the_nodes_session_is_no_clients_expense() -> None:
    proxy = proxy_over("paxos")
    proxy.handle(ANN, Acquire(lock="a", session="ann.7", owner="o", request=1), T0)
    other = Acquire(lock="b", session="n1.7", owner="o", request=1)
    proxy.handle(Address("n1/~ask.1"), other, T0)
    assert (len(proxy.backend), proxy.clients.by_id["ann"].usage.in_flight) == (2, 1)
    assert proxy.clients.latest is None


def test_the_oldest_reply_is_dropped_once_too_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_manager, "REPLIES_MAX", 2)
    first, second, third = (Key("ann", "o", lock) for lock in "abc")
    requests = LockRequests()

    for number, key in enumerate((first, second, first, third), 1):
        requests.record(key, number, api.Released(lock=key.lock, request=number))

    assert {key: number for key, (number, _) in requests.replies.items()} == {first: 3, third: 4}
