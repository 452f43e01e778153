"""The end of clients, waits and nodes: by interrupt, close, exit, fork, or the loss of a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.stoppable_cluster import CLUSTER, PATIENCE_S, Cluster, started, threads

from fencelock.actors.error import AcquireCancelledError, ClosedError
from fencelock.cluster.client.client import connect
from fencelock.cluster.client.lock import Hold
from fencelock.cluster.host.pending_asks import AskReply


@pytest.fixture(params=["central", "lamport", "paxos"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster(str(request.param), 2, tmp_path))


@pytest.fixture
def central(tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster("central", 3, tmp_path))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


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


def test_an_interrupt_ends_the_wait_and_leaves_nothing_behind(
    cluster: Cluster, pool: ThreadPoolExecutor
) -> None:
    holder, other = cluster.connect(), cluster.connect()
    waits = waiting(cluster, "x", 1)
    main = threading.get_ident()

    def interrupt() -> None:
        wait_for(waits)
        signal.pthread_kill(main, signal.SIGINT)

    lock = other.lock("x")
    with holder.lock("x"):
        done = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        done.result(PATIENCE_S)
        assert not lock.held
        wait_for(waiting(cluster, "x", 0))
    assert lock.acquire(timeout=PATIENCE_S)


def test_closing_releases_what_is_held_and_ends_what_waits(
    cluster: Cluster, pool: ThreadPoolExecutor
) -> None:
    first, second = cluster.connect(), cluster.connect()
    waits = waiting(cluster, "y", 1)
    assert first.lock("x").acquire()
    assert second.lock("y").acquire()
    waiter: Future[Hold | None] = pool.submit(first.lock("y").acquire)
    wait_for(waits)
    first.close()
    with pytest.raises(AcquireCancelledError):
        waiter.result(PATIENCE_S)
    assert second.lock("x").acquire(timeout=PATIENCE_S)


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


def test_a_closed_client_says_so_and_may_be_closed_again(cluster: Cluster) -> None:
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
    wait_for(lambda: open_files() < before + count)


def test_a_process_that_ends_without_closing_releases_what_it_holds(cluster: Cluster) -> None:
    program = (
        "import sys\n"
        "from fencelock.cluster.client.client import connect\n"
        "print(connect(sys.argv[1], cluster='test').lock('x').acquire().fence)\n"
    )
    addresses = cluster.addresses("n1", "n2")
    ended = subprocess.run(
        [sys.executable, "-c", program, addresses],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
        text=True,
    )
    assert int(ended.stdout) > 0
    assert cluster.connect().lock("x").acquire(timeout=PATIENCE_S)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_disturb_its_parent(cluster: Cluster) -> None:
    client = cluster.connect()
    with client.lock("x") as lock:
        child = os.fork()
        if child == 0:  # No assertion and no cleanup of pytest's may run here.
            status = 1
            with suppress(BaseException):
                try:
                    lock.release()
                except ClosedError as error:
                    client.close()
                    status = 0 if "connect anew after a fork" in str(error) else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.held
    assert client.lock("x").acquire(timeout=PATIENCE_S)


def test_any_node_will_do_and_one_that_goes_away_is_left_for_another(central: Cluster) -> None:
    client = central.connect("n2", "n3")
    lock = client.lock("x")
    for node in ("n2", "n3", "n2"):
        central.stop(node)
        with lock:
            assert lock.fence
        central.start(node)
        wait_for(lambda: len(client.describe()) == 2)


def test_a_wait_moves_to_another_node_when_its_own_goes_away(
    central: Cluster, pool: ThreadPoolExecutor
) -> None:
    holder, other = central.connect("n1"), central.connect("n2", "n3")
    held = holder.lock("x")
    held.acquire()
    waiter: Future[Hold | None] = pool.submit(other.lock("x").acquire)

    def proxies() -> list[str]:
        locks = [(status.node, lock) for status in other.describe() for lock in status.locks]
        return [node for node, lock in locks if lock.waiters]

    wait_for(lambda: len(proxies()) == 1)
    (proxy,) = proxies()
    central.stop(proxy)
    wait_for(lambda: len(proxies()) == 1 and proxies() != [proxy])
    held.release()
    assert waiter.result(PATIENCE_S)
