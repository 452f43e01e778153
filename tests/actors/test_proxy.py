"""The proxy of a node over a backend that the test plays, and over that of each protocol."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from support.proxy_scene import ANN, BACKEND, PROXY, acquire, manager_of, proxy_of_n1
from support.role_harness import HOST, T0, RoleHarness, at, only_sent, sent

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.account import ListMaps, ReadUsage
from fencelock.actors.api.cluster_message import Describe, Probe, ProbeReply, Watch
from fencelock.actors.api.lock_message import (
    Acquire,
    ConfirmHold,
    DisownHold,
    Granted,
    Inspect,
    Reason,
    Refused,
    Renew,
)
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.operator_message import CloseSession, Evict, ListLocks
from fencelock.actors.api.request import Request
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.session_message import Alive, KeepAlive, NodeAddress, Open
from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.config import Terms
from fencelock.actors.bakery.wire import Locked
from fencelock.actors.effect import Observe
from fencelock.actors.message import ADDRESS_PART_BYTES_MAX, Address
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.proxy import lock_manager
from fencelock.actors.proxy.backend import ANNOUNCED_MAX, Backend
from fencelock.actors.proxy.event import (
    LockGranted,
    MembersKnown,
    QueryLock,
    Relay,
    Relayed,
    ReleaseLock,
)
from fencelock.actors.proxy.lock_manager import (
    CLAIMS_ENDED_MAX,
    CLAIMS_ENDED_MS,
    CONFIRM_AFTER_MS,
    CONFIRMS_MAX,
    Key,
    LockManager,
    LockRequests,
)
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.transport.codec import encode


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


def test_a_hold_of_a_session_that_can_be_no_clients_is_not_confirmed(proxy: Proxy) -> None:
    manager = manager_of(proxy)
    confirm = vars(LockManager)["_confirm"]
    long = "\u00e9" * ADDRESS_PART_BYTES_MAX  # Twice as many bytes.
    assert confirm(manager, "a", 7, long) == Observe("proxy.session_malformed")
    known = confirm(manager, "a", 7, "x" * ADDRESS_PART_BYTES_MAX)
    assert known.message == ConfirmHold(lock="a", fence=7, session="x" * ADDRESS_PART_BYTES_MAX)


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
