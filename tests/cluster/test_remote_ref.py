"""`ask` and `tell` from a client to the roles of real nodes, with threads and with tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type, cast

import pykka
import pytest
from support.expect import PATIENCE_S
from support.own_role import AwaitCount, Count, Counted, Counter, Fail, Internal, Refuse
from support.real_nodes import NODES, keyed_nodes, running_nodes, until

import fencelock
from fencelock import aio
from fencelock.actors.api.lock_message import (
    Acquire,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Release,
    Released,
)
from fencelock.actors.api.role_request import (
    ASK_MS_MAX,
    REPLY_BYTES_MAX,
    ROLE_REQUEST_BYTES_MAX,
    ClockTime,
    DescribeRole,
    ReadClock,
    ReadLeaders,
    RoleDescription,
    RoleRequest,
)
from fencelock.actors.error import (
    ClosedError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    LimitReachedError,
    MembershipError,
    OverloadedError,
    UnsupportedError,
)
from fencelock.actors.proxy.role_asks import CLIENT_MAX
from fencelock.actors.session.asker import AskTimeoutError, RoleGoneError
from fencelock.cluster.node.node import Node
from fencelock.verification.bench.members import NodeProcesses

ONE_S = 1.0


class Text(RoleRequest[Counted], tag=0xFD10):
    text: str


@pytest.fixture(scope="module", params=["bakery", "central", "lamport", "paxos"])
def nodes(request: Any, tmp_path_factory: Any) -> Iterator[dict[str, Node]]:
    folder: Path = tmp_path_factory.mktemp("nodes")
    with running_nodes(folder, request.param) as nodes:
        nodes["n2"].add_role(Counter, start=10)
        yield nodes


def addresses(nodes: dict[str, Node]) -> list[str]:
    return [node.address for node in nodes.values()]


@pytest.fixture
def client(nodes: dict[str, Node]) -> Iterator[fencelock.Client]:
    with fencelock.connect(addresses(nodes), connect_timeout=PATIENCE_S) as client:
        yield client


def answers(clock: fencelock.RemoteRef) -> bool:
    try:
        clock.ask(ReadClock(), timeout=PATIENCE_S)
    except pykka.ActorDeadError:
        return False
    return True


def total_of(counter: fencelock.RemoteRef) -> int:
    return counter.ask(Count(amount=0), timeout=PATIENCE_S).total


def test_the_clock_of_each_node_is_asked_as_in_its_process(
    nodes: dict[str, Node], client: fencelock.Client
) -> None:
    for name, node in nodes.items():
        before = node.ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time
        seen = client.ref(f"{name}/clock").ask(ReadClock(), timeout=PATIENCE_S)
        assert_type(seen, ClockTime)
        assert before <= seen.time <= node.ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time


def test_every_role_of_a_node_describes_itself_to_another_process(
    nodes: dict[str, Node], client: fencelock.Client
) -> None:
    (status,) = (one for one in client.describe(roles=True) if one.node == "n2")
    for role in status.roles:
        seen = client.ref(f"n2/{role.name}").ask(DescribeRole(), timeout=PATIENCE_S)
        assert_type(seen, RoleDescription)
        assert (seen.name, seen.kind) == (role.name, role.kind)
    assert "counter" in {role.name for role in status.roles}


def test_an_ask_that_does_not_block_returns_a_future_of_pykka(client: fencelock.Client) -> None:
    future = client.ref("n2/counter").ask(Count(amount=0), block=False)
    assert isinstance(future, pykka.Future)
    assert_type(future, pykka.Future[Counted])
    total = future.get(timeout=PATIENCE_S).total
    assert future.get(timeout=0).total == total
    assert future.map(lambda counted: counted.total + 1).get(timeout=PATIENCE_S) == total + 1
    gone = client.ref("n2/nothing").ask(Count(amount=0), block=False)
    with pytest.raises(pykka.ActorDeadError):
        gone.get(timeout=PATIENCE_S)


def test_a_role_a_node_lacks_is_refused_with_those_it_has(client: fencelock.Client) -> None:
    with pytest.raises(RoleGoneError, match=r"node n2 has no role 'clokc'; it has .*\bclock, "):
        client.ref("n2/clokc").ask(ReadClock(), timeout=PATIENCE_S)


def test_a_node_that_there_is_not_is_refused_with_those_there_are(client: fencelock.Client) -> None:
    with pytest.raises(pykka.ActorDeadError, match=r"n9 cannot be reached.* links to .*n2"):
        client.ref("n9/clock").ask(ReadClock(), timeout=PATIENCE_S)


def test_a_client_of_one_node_asks_roles_of_another_through_it(nodes: dict[str, Node]) -> None:
    n1 = nodes["n1"].address
    with fencelock.connect(n1, connect_timeout=PATIENCE_S, stay=True) as client:
        until(lambda: answers(client.ref("n2/clock")))  # The nodes may just have started.
        before = nodes["n2"].ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time
        assert client.ref("n2/clock").ask(ReadClock(), timeout=PATIENCE_S).time >= before
        counter = client.ref("n2/counter")
        total = total_of(counter)
        counter.tell(Count(amount=5))
        until(lambda: total_of(counter) == total + 5)
        with pytest.raises(UnsupportedError, match="role clock of node n2 does not take Count"):
            client.ref("n2/clock").ask(Count(amount=0), timeout=PATIENCE_S)


def test_a_request_no_role_takes_is_refused_with_those_it_takes(client: fencelock.Client) -> None:
    takes = "from another process; it takes DescribeRole, ReadClock, ReadState"
    with pytest.raises(
        UnsupportedError, match=f"clock of node n1 does not take ReadLeaders {takes}"
    ):
        client.ref("n1/clock").ask(ReadLeaders(), timeout=PATIENCE_S)


def test_only_requests_to_roles_leave_the_process(client: fencelock.Client) -> None:
    counter: Any = client.ref("n2/counter")
    for message in (Internal(), Acquire(lock="a"), "text"):
        with pytest.raises(TypeError, match=r"is no RoleRequest.*client.proxy"):
            counter.ask(message, timeout=PATIENCE_S)
        with pytest.raises(TypeError, match="is no RoleRequest"):
            counter.tell(message)
    wrong: Any = "many"
    with pytest.raises(TypeError, match=r"Count.amount: 'many': expected `int`, got `str`"):
        counter.ask(Count(amount=wrong), timeout=PATIENCE_S)


def test_a_timeout_of_a_wrong_type_or_size_is_refused_before_anything_is_sent(
    client: fencelock.Client,
) -> None:
    clock, sent = client.ref("n2/clock"), ReadClock()
    for wrong in ("1", True):
        with pytest.raises(TypeError, match=rf"^timeout is {wrong!r}, and must be 0 to 60 s"):
            clock.ask(sent, timeout=cast("float", wrong))
    for size in (-1, 61, float("nan")):
        with pytest.raises(InvalidRequestError, match=rf"^timeout is {size}, and must be 0 to 60"):
            clock.ask(sent, timeout=size)


def test_a_reply_may_come_much_later_than_the_request(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    total = total_of(counter)
    future = counter.ask(AwaitCount(total=total + 2), block=False)
    assert counter.ask(Count(amount=1), timeout=PATIENCE_S).total == total + 1
    with pytest.raises(pykka.Timeout):
        future.get(timeout=0)
    assert counter.ask(Count(amount=1), timeout=PATIENCE_S).total == total + 2
    assert future.get(timeout=PATIENCE_S).total == total + 2


def test_a_request_sent_by_tell_reaches_the_role_and_its_reply_is_dropped(
    client: fencelock.Client,
) -> None:
    counter = client.ref("n2/counter")
    total = total_of(counter)
    counter.tell(Count(amount=5))
    assert total_of(counter) == total + 5
    client.ref("n2/nothing").tell(Count(amount=5))
    client.ref("n9/clock").tell(ReadClock())
    client.ref("n2/clock").tell(Count(amount=5))
    assert total_of(counter) == total + 5


def test_an_ask_times_out_and_its_role_is_notified(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    began = time.monotonic()
    with pytest.raises(AskTimeoutError, match=r"n2/counter sent no reply within 0.1 s") as caught:
        counter.ask(AwaitCount(total=10**9), timeout=0.1)
    assert 0.1 <= time.monotonic() - began < PATIENCE_S / 2
    assert isinstance(caught.value, pykka.Timeout)
    assert isinstance(caught.value, TimeoutError)
    future = counter.ask(AwaitCount(total=10**9), block=False, timeout=0.1)
    with pytest.raises(AskTimeoutError, match=r"n2/counter sent no reply within 0.1 s"):
        future.get(timeout=PATIENCE_S)
    until(lambda: counter.ask(Count(amount=0), timeout=PATIENCE_S).waiting == 0)


def test_a_role_refuses_and_its_caller_receives_the_error(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    with pytest.raises(MembershipError, match="no"):
        counter.ask(Refuse(reason=Reason.MEMBERSHIP), timeout=PATIENCE_S)


def test_a_client_has_a_limit_of_unanswered_asks_at_a_node(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    total = total_of(counter)
    waits = [counter.ask(AwaitCount(total=total + 1), block=False) for _ in range(CLIENT_MAX)]
    with pytest.raises(OverloadedError, match=f"has {CLIENT_MAX} unanswered requests to roles"):
        counter.ask(Count(amount=1), timeout=PATIENCE_S)
    client.ref("n1/clock").ask(ReadClock(), timeout=PATIENCE_S)
    counter.tell(Count(amount=1))
    assert {wait.get(timeout=PATIENCE_S).total for wait in waits} == {total + 1}
    assert total_of(counter) == total + 1


def test_requests_and_replies_have_limits(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    with pytest.raises(InvalidRequestError, match=rf"at most {ROLE_REQUEST_BYTES_MAX} are sent"):
        client.ref("n2/clock").ask(Text(text="x" * ROLE_REQUEST_BYTES_MAX), timeout=PATIENCE_S)
    assert len(counter.ask(Count(amount=0, padding=100_000), timeout=PATIENCE_S).padding) == 100_000
    with pytest.raises(LimitReachedError, match=f"at most {REPLY_BYTES_MAX} are sent"):
        counter.ask(Count(amount=0, padding=REPLY_BYTES_MAX), timeout=PATIENCE_S)
    for timeout in (-1, float("nan"), ASK_MS_MAX / 1000 + 1):
        with pytest.raises(InvalidRequestError, match=r"timeout is .*0 to 60 s"):
            counter.ask(Count(amount=0), timeout=timeout)
    for address in ("n2", "n2/", "/clock", "n2/a/b", "*/clock"):
        with pytest.raises(InvalidRequestError, match="such as 'n1/clock'"):
            client.ref(address)


def test_many_threads_ask_through_one_reference(client: fencelock.Client) -> None:
    counter = client.ref("n2/counter")
    before = total_of(counter)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(counter.ask, Count(amount=1), timeout=PATIENCE_S) for _ in range(400)]
        totals = [one.result().total for one in asked]
    assert sorted(totals) == list(range(before + 1, before + 401))


def test_a_closed_client_sends_no_request(nodes: dict[str, Node]) -> None:
    client = fencelock.connect(addresses(nodes), connect_timeout=PATIENCE_S)
    counter, proxy = client.ref("n2/counter"), client.proxy
    waiting = counter.ask(AwaitCount(total=10**9), block=False, timeout=ONE_S)
    client.close()
    with pytest.raises(pykka.ActorDeadError):
        waiting.get(timeout=PATIENCE_S)
    with pytest.raises(ClosedError):
        counter.ask(Count(amount=1), timeout=PATIENCE_S)
    with pytest.raises(ClosedError):
        counter.tell(Count(amount=1))
    with pytest.raises(ClosedError):
        client.ref("n2/counter")
    with pytest.raises(ClosedError):
        _ = client.proxy
    with pytest.raises(pykka.ActorDeadError):
        proxy.ask(Acquire(lock="a"), timeout=PATIENCE_S)


def test_the_proxy_of_a_client_takes_requests_about_locks(client: fencelock.Client) -> None:
    granted = client.proxy.ask(Acquire(lock="proxied"), timeout=PATIENCE_S)
    assert_type(granted, Granted)
    waiting = client.proxy.ask(Acquire(lock="proxied"), block=False)
    assert_type(waiting, pykka.Future[Granted])
    with pytest.raises(fencelock.LockTimeoutError):
        client.proxy.ask(Acquire(lock="proxied", wait_ms=0), timeout=PATIENCE_S)
    status = client.proxy.ask(Inspect(lock="proxied"), timeout=PATIENCE_S)
    assert_type(status, LockStatus)
    assert status.holder is not None
    released = client.proxy.ask(Release(lock="proxied", fence=granted.fence), timeout=PATIENCE_S)
    assert_type(released, Released)
    assert (waiting.get(timeout=PATIENCE_S).fence > granted.fence, released.count) == (True, 0)


async def test_tasks_ask_as_threads_do(nodes: dict[str, Node]) -> None:
    async with aio.connect(addresses(nodes), connect_timeout=PATIENCE_S) as client:
        counter = client.ref("n2/counter")
        total = (await counter.ask(Count(amount=0), timeout=PATIENCE_S)).total
        clock = await client.ref("n1/clock").ask(ReadClock(), timeout=PATIENCE_S)
        assert_type(clock, ClockTime)
        counter.tell(Count(amount=1))
        later = asyncio.create_task(counter.ask(AwaitCount(total=total + 2)))
        counts = await asyncio.gather(*(counter.ask(Count(amount=0)) for _ in range(20)))
        assert {count.total for count in counts} == {total + 1}
        counter.tell(Count(amount=1))
        assert (await later).total == total + 2
        with pytest.raises(RoleGoneError, match="n9 cannot be reached"):
            await client.ref("n9/clock").ask(ReadClock(), timeout=PATIENCE_S)
        with pytest.raises(TimeoutError, match=r"n2/counter sent no reply within 0.05 s"):
            await counter.ask(AwaitCount(total=10**9), timeout=0.05)
        cancelled = asyncio.create_task(counter.ask(AwaitCount(total=10**9), timeout=0.3))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        while (await counter.ask(Count(amount=0), timeout=PATIENCE_S)).waiting:
            await asyncio.sleep(0.01)
        granted = await client.proxy.ask(Acquire(lock="task"), timeout=PATIENCE_S)
        with pytest.raises(TimeoutError):
            await client.proxy.ask(Acquire(lock="task"), timeout=0.05)
        release = Release(lock="task", fence=granted.fence)
        assert (await client.proxy.ask(release, timeout=PATIENCE_S)).count == 0
    with pytest.raises(ClosedError):
        await counter.ask(Count(amount=1), timeout=PATIENCE_S)


def test_a_role_that_raises_stops_alone_and_its_callers_know(
    nodes: dict[str, Node], client: fencelock.Client
) -> None:
    nodes["n1"].add_role(Counter, "failing")
    counter = client.ref("n1/failing")
    waiting = counter.ask(AwaitCount(total=1), block=False)
    with pytest.raises(RoleGoneError, match="n1/failing has stopped"):
        counter.ask(Fail(), timeout=PATIENCE_S)
    with pytest.raises(RoleGoneError, match="n1/failing has stopped"):
        waiting.get(timeout=PATIENCE_S)
    with pytest.raises(RoleGoneError, match="n1 has no role 'failing'"):
        counter.ask(Count(amount=1), timeout=PATIENCE_S)
    client.ref("n1/clock").ask(ReadClock(), timeout=PATIENCE_S)


def test_a_node_that_stops_ends_the_asks_that_wait_for_its_roles(tmp_path: Path) -> None:
    with running_nodes(tmp_path, "lamport") as nodes:
        nodes["n2"].add_role(Counter)
        with fencelock.connect(addresses(nodes), connect_timeout=PATIENCE_S) as client:
            counter = client.ref("n2/counter")
            counter.ask(Count(amount=1), timeout=PATIENCE_S)
            waiting = counter.ask(AwaitCount(total=10**9), block=False)
            counter.ask(Count(amount=1), timeout=PATIENCE_S)  # So the other one has arrived.
            nodes["n2"].stop()
            with pytest.raises(
                RoleGoneError, match=r"link to node n2 .* broke before role counter"
            ):
                waiting.get(timeout=PATIENCE_S)
            with pytest.raises(RoleGoneError, match="node n2"):
                counter.ask(Count(amount=1), timeout=PATIENCE_S)


def test_a_killed_node_is_gone_for_who_waits_and_back_when_it_is(tmp_path: Path) -> None:
    with (
        NodeProcesses(tmp_path, "paxos", 3, durable=True) as members,
        members.ready_client() as client,
    ):
        clock, kind = client.ref("n2/clock"), client.ref("n2/leader")
        first = clock.ask(ReadClock(), timeout=PATIENCE_S).time
        assert kind.ask(DescribeRole(), timeout=PATIENCE_S).kind == "Leader"
        members.kill("n2")
        until(lambda: not answers(clock))  # The broken link is noticed some time later.
        with pytest.raises(RoleGoneError, match=r"node n2 .*the client has links to n1, n3,"):
            clock.ask(ReadClock(), timeout=PATIENCE_S)
        assert client.ref("n1/clock").ask(ReadClock(), timeout=PATIENCE_S).time > 0
        members.start("n2")

        until(lambda: answers(clock))
        assert clock.ask(ReadClock(), timeout=PATIENCE_S).time > first


@pytest.mark.parametrize("protocol", ["paxos", "lamport"])
def test_only_operators_ask_more_than_the_proxy_if_there_are_keys(
    protocol: str, tmp_path: Path
) -> None:
    with keyed_nodes(tmp_path, protocol) as keyed:
        with keyed.connect("alice") as operator:
            for node in NODES:
                assert operator.ref(f"{node}/clock").ask(ReadClock(), timeout=PATIENCE_S).time > 0
        with keyed.connect("shop") as shop:
            assert shop.ref("n1/proxy").ask(DescribeRole(), timeout=PATIENCE_S).kind == "Proxy"
            for role in ("clock", "leader", "nothing"):
                with pytest.raises(ForbiddenError, match="AskRole needs the role operator"):
                    shop.ref(f"n1/{role}").ask(DescribeRole(), timeout=PATIENCE_S)
        with keyed.connect("alice", only="n1") as operator:
            until(lambda: answers(operator.ref("n2/clock")))
        with keyed.connect("shop", only="n1") as shop:
            assert shop.ref("n2/proxy").ask(DescribeRole(), timeout=PATIENCE_S).kind == "Proxy"
            with pytest.raises(ForbiddenError, match="AskRole needs the role operator"):
                shop.ref("n2/clock").ask(ReadClock(), timeout=PATIENCE_S)
        assert keyed.count("proxy.forbidden") >= 4


def test_an_error_in_a_reply_is_a_bug_of_the_role_and_not_of_the_node(
    nodes: dict[str, Node], client: fencelock.Client
) -> None:
    nodes["n1"].add_role(Counter, "full", start=2**63 - 1)
    counter = client.ref("n1/full")
    with pytest.raises(InternalError, match="its reply, a Counted, cannot be sent"):
        counter.ask(Count(amount=1), timeout=PATIENCE_S)
    counter.tell(Count(amount=-1))
    assert total_of(counter) == 2**63 - 1
