"""The blocking client at real nodes, to its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.programs import forks, in_child, refusal, run_to_end
from support.real_nodes import CLUSTER, Cluster, started, threads, until

from fencelock.actors.error import (
    AcquireCancelledError,
    ClosedError,
    LimitReachedError,
    LockTimeoutError,
    NotHeldError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.client.client import connect
from fencelock.cluster.client.lock import Hold, Lock
from fencelock.cluster.client.settings import parse_addresses
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.testing.ports import free_ports


@pytest.fixture(params=["central", "lamport", "paxos"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster(str(request.param), 2, tmp_path))


def test_threads_and_clients_that_fight_hold_one_at_a_time_with_rising_fences(
    cluster: Cluster, pool: ThreadPoolExecutor
) -> None:
    inside: list[int] = []
    fences: list[int] = []

    def work(lock: Lock) -> None:
        for _ in range(10):
            with lock as hold:
                inside.append(1)
                assert len(inside) == 1
                fences.append(hold.fence)
                inside.pop()

    clients = [cluster.connect(), cluster.connect()]
    locks = [client.lock("x") for client in clients for _ in range(2)]
    for done in [pool.submit(work, lock) for lock in locks]:
        done.result(PATIENCE_S)
    assert len(fences) == 40
    assert fences == sorted(set(fences))


def test_a_lock_that_another_holds_is_refused_naming_its_holder(cluster: Cluster) -> None:
    holder, other = cluster.connect(), cluster.connect()
    with holder.lock("x") as held:
        lock = other.lock("x", timeout=0.2)
        assert lock.acquire(blocking=False) is None
        assert lock.acquire(timeout=0.1) is None
        with pytest.raises(LockTimeoutError) as caught, lock:
            pass
        assert "held by" in str(caught.value)
        assert str(held.fence) in str(caught.value)
        assert not lock.held
    assert lock.acquire(timeout=PATIENCE_S)
    lock.release()


def test_an_owner_that_holds_waits_for_itself_and_goes_on_holding(cluster: Cluster) -> None:
    client = cluster.connect()
    for lock in (client.lock("x"), client.lock("x", owner="ann")):
        with lock as hold:
            began = time.monotonic()
            assert lock.acquire(timeout=0.2) is None
            assert time.monotonic() - began >= 0.2
            assert hold.held
        assert not lock.held


def test_an_owner_at_its_limit_is_refused_and_goes_on_holding(cluster: Cluster) -> None:
    lock = cluster.connect().rlock("x", limit=1)
    with lock:
        with pytest.raises(LimitReachedError), lock:
            pass
        assert lock.held


def test_status_and_describe_show_who_holds_and_what_nodes_there_are(cluster: Cluster) -> None:
    client = cluster.connect()
    with client.lock("x") as lock:
        holder = present(client.lock("x").status().holder)
        assert client.status("y").holder is None
        statuses = client.describe()
        assert [status.node for status in statuses] == ["n1", "n2"]
        assert {status.protocol for status in statuses} == {client.protocol}
        locks = [lock for status in statuses for lock in status.locks]
        held = [each.holder for each in locks if each.holder]
        assert {(h.session, h.owner) for h in held} == {(holder.session, lock.owner)}
        assert holder.session.partition(".")[0] == client.session


def test_the_error_names_for_each_address_why_it_failed() -> None:
    (port,) = free_ports(1)
    dead, unknown = f"tcp://127.0.0.1:{port}", "tcp://no.such.host.invalid:4040"
    with socket.create_server(("127.0.0.1", 0)) as other:
        mute = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            connect(",".join((dead, unknown, mute)), connect_timeout=0.3)
    text = str(caught.value)
    assert f"{dead}: cannot be reached (connection refused)" in text
    assert f"{unknown}: its host is not" in text
    assert f"{mute}: accepts connections, but no node of the cluster answered" in text
    assert "Are the nodes running" in text
    assert threads() == []


def test_another_cluster_is_an_error_of_its_own(cluster: Cluster) -> None:
    with pytest.raises(WrongClusterError, match=CLUSTER):
        connect(cluster.addresses("n1", "n2"), cluster="other", connect_timeout=PATIENCE_S)


@pytest.mark.parametrize("cluster", ["central", "lamport"], indirect=True)
def test_requests_that_the_protocol_does_not_promise_are_refused_with_the_one_that_does(
    cluster: Cluster,
) -> None:
    client = cluster.connect()
    with pytest.raises(UnsupportedError, match=f"{client.protocol}.*paxos has it"):
        client.rlock("x")
    with pytest.raises(UnsupportedError, match=f"{client.protocol}.*paxos has it"):
        client.rlock("x", limit=2)
    with pytest.raises(UnsupportedError, match="paxos"):
        client.locks()
    refusal = NotHeldError if client.protocol == "central" else UnsupportedError
    with pytest.raises(refusal):
        client.evict("x", 1)


def test_addresses_are_separated_by_commas_and_may_be_ipv6() -> None:
    assert parse_addresses("tcp://a:1, tcp://[::1]:2") == ("tcp://a:1", "tcp://[::1]:2")


@pytest.fixture
def central(tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster("central", 3, tmp_path))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def waiting(cluster: Cluster, name: str, count: int) -> Callable[[], bool]:
    """Whether ``count`` owners wait for ``name``, at whichever node they came by."""
    client = cluster.connect()

    def seen() -> bool:
        locks = [lock for status in client.describe() for lock in status.locks]
        waiters = {
            (w.session, w.owner) for lock in locks if lock.lock == name for w in lock.waiters
        }
        return len(waiters) == count

    return seen


def test_an_interrupted_wait_leaves_nothing(cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    holder, other = cluster.connect(), cluster.connect()
    waits = waiting(cluster, "x", 1)
    main = threading.get_ident()

    def interrupt() -> None:
        until(waits)
        signal.pthread_kill(main, signal.SIGINT)

    lock = other.lock("x")
    with holder.lock("x"):
        done = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        done.result(PATIENCE_S)
        assert not lock.held
        until(waiting(cluster, "x", 0))
    assert lock.acquire(timeout=PATIENCE_S)


def test_closing_releases_holds_and_ends_waits(cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    first, second = cluster.connect(), cluster.connect()
    lost: list[Notice] = []
    first.on_lost(lost.append)
    waits = waiting(cluster, "y", 1)
    assert (_held := first.lock("x").acquire())
    assert (_held2 := second.lock("y").acquire())
    waiter: Future[Hold | None] = pool.submit(first.lock("y").acquire)
    until(waits)
    first.close()
    with pytest.raises(AcquireCancelledError):
        waiter.result(PATIENCE_S)
    assert not lost
    assert (_held3 := second.lock("x").acquire(timeout=PATIENCE_S))


def test_an_interrupted_close_leaves_nothing_running(
    central: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = threads()
    client = connect(central.addresses("n1"), cluster=CLUSTER, connect_timeout=PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(AskReply, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
    assert threads() == before


def test_a_closed_client_raises_so_and_may_be_closed_again(cluster: Cluster) -> None:
    client = cluster.connect()
    lock = client.lock("x")
    client.close()
    client.close()
    assert "closed" in repr(client)
    for use in (
        lock.acquire,
        client.describe,
        lambda: client.lock("x"),
        lambda: client.status("x"),
        client.__enter__,
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_closing_leaves_no_thread_and_no_file_open(cluster: Cluster) -> None:
    def use() -> None:
        with cluster.connect() as client, client.lock("x"):
            client.describe()

    use()
    before, count = open_files(), 10
    idle = threads()
    for _ in range(count):
        use()
        assert threads() == idle
    # The nodes are in this process too, and close their ends when they notice.
    until(lambda: open_files() < before + count)


def test_a_process_that_ends_without_closing_releases_what_it_holds(cluster: Cluster) -> None:
    program = (
        "import sys\n"
        "from fencelock.cluster.client.client import connect\n"
        "print(connect(sys.argv[1], cluster='test').lock('x').acquire().fence)\n"
    )
    addresses = cluster.addresses("n1", "n2")
    ended = run_to_end([sys.executable, "-c", program, addresses], check=True, timeout=PATIENCE_S)
    assert int(ended.stdout) > 0
    assert (_held := cluster.connect().lock("x").acquire(timeout=PATIENCE_S))


@forks
def test_a_forked_child_is_refused_and_does_not_disturb_its_parent(cluster: Cluster) -> None:
    client = cluster.connect()
    with client.lock("x") as lock:

        def is_refused() -> bool:
            text = refusal(ClosedError, lock.release)
            client.close()
            return "connect anew after a fork" in text

        in_child(is_refused)
        assert lock.held
    assert (_held := client.lock("x").acquire(timeout=PATIENCE_S))


def test_any_node_will_do_and_one_that_goes_away_is_left_for_another(central: Cluster) -> None:
    client = central.connect("n2", "n3")
    lock = client.lock("x")
    for node in ("n2", "n3", "n2"):
        central.stop(node)
        with lock:
            assert lock.fence
        central.start(node)
        until(lambda: len(client.describe()) == 2)


def test_a_wait_moves_when_its_node_goes_away(central: Cluster, pool: ThreadPoolExecutor) -> None:
    holder, other = central.connect("n1"), central.connect("n2", "n3")
    held = holder.lock("x")
    held.acquire()
    waiter: Future[Hold | None] = pool.submit(other.lock("x").acquire)

    def proxies() -> list[str]:
        locks = [(status.node, lock) for status in other.describe() for lock in status.locks]
        return [node for node, lock in locks if lock.waiters]

    until(lambda: len(proxies()) == 1)
    (proxy,) = proxies()
    central.stop(proxy)
    until(lambda: len(proxies()) == 1 and proxies() != [proxy])
    held.release()
    assert waiter.result(PATIENCE_S)
