"""`bakery` with real processes: lost leaders, and a watched cluster that goes down and up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.collected import Collected
from support.expect import PATIENCE_S, present
from support.programs import run_to_end
from support.real_nodes import running_nodes, until
from support.samples import fence_of

import fencelock
from fencelock import aio
from fencelock.actors.error import LockOwnershipLostError, NotHeldError, UnavailableError
from fencelock.verification.bench.members import NodeProcesses

CLUSTER = "bakery-real"
READERS, WRITERS = 16, 2


class Processes(NodeProcesses):
    """``fencelock serve`` processes with short durations of holds."""

    cluster = CLUSTER

    def __init__(self, folder: Path, nodes: int, *, copies: bool = True) -> None:
        super().__init__(folder, "bakery", nodes, durable=False, copies=copies)
        with self.configuration_of("n1").open("a", encoding="utf-8") as bakery:
            bakery.write("".join(f"{key} = 0.5\n" for key in ("duration", "grace", "least")))

    def kill_at_once(self, *nodes: str) -> None:
        for node in nodes:
            self.processes[node].kill()
        for node in nodes:
            self.processes[node].wait(PATIENCE_S)


def elected(client: fencelock.Client) -> fencelock.Elected:
    """Return the nodes' reports of the last election; no leaders if none replies."""
    try:
        statuses = [status.elected for status in client.describe() if status.elected]
    except UnavailableError:
        statuses = []
    return max(statuses, key=lambda one: one.epoch, default=fencelock.Elected(0, (), ()))


def ready(client: fencelock.Client) -> set[str]:
    try:
        return {status.node for status in client.describe() if status.ready}
    except UnavailableError:
        return set()


def agreed(client: fencelock.Client) -> set[str]:
    """The nodes that are ready in the latest epoch: also the stopped ones have learned of it."""
    latest = elected(client).epoch
    return {
        status.node
        for status in client.describe()
        if status.ready and status.elected and status.elected.epoch == latest
    }


@contextmanager
def connected(five: Processes) -> Generator[fencelock.Client]:
    """Connect a client, and return when all nodes are ready."""
    with fencelock.connect(five.connect, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        until(lambda: len(ready(client)) == len(five.addresses))
        yield client


def keepers(client: fencelock.Client) -> set[str]:
    """Return the members that keep what is held, as the coordinators of the latest epoch know."""
    epoch, names = 0, set[str]()
    for status in client.describe(roles=True):
        for role in status.roles:
            if role.kind == "ElectionCoordinator":
                known = {fact.name: fact.value for fact in role.summary}
                if int(known["epoch"]) >= epoch:
                    epoch = int(known["epoch"])
                    names = {*known["leaders"].split(", "), *known["copies"].split(", ")}
    return names


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("five"), 5) as processes:
        yield processes


@pytest.fixture
def five(shared: Processes) -> Iterator[Processes]:
    """Return nodes that all run; those that the test kills or stops run again afterwards."""
    yield shared
    for node, process in shared.processes.items():
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
        else:
            shared.start(node)


@pytest.fixture
def client(five: Processes) -> Iterator[fencelock.Client]:
    with connected(five) as client:
        yield client


def test_a_killed_leader_is_replaced_and_what_is_held_stays_held(
    five: Processes, client: fencelock.Client
) -> None:
    before = elected(client)
    held = client.lock("held", owner="holder", duration=60)
    fence = fence_of(held.acquire(timeout=PATIENCE_S))
    five.kill(before.leaders[0])
    assert (_held := client.lock("free", duration=60).acquire(timeout=PATIENCE_S)) is not None
    until(lambda: elected(client).epoch > before.epoch and len(elected(client).leaders) == 3)
    after = elected(client)
    assert after.epoch > before.epoch
    assert set(before.leaders[1:]) < set(after.leaders)
    assert len(after.leaders) == len(before.leaders)
    until(lambda: len(ready(client)) == len(five.addresses) - 1)
    assert client.lock("held", owner="other").acquire(timeout=0.5) is None
    held.release()
    later = fence_of(client.lock("held", owner="other", duration=60).acquire(timeout=PATIENCE_S))
    assert later > fence


@pytest.mark.long
def test_nothing_is_granted_without_copies_before_the_longest_lease_has_expired(
    tmp_path: Path,
) -> None:
    """The nodes have granted no longer lease before, so they are its own."""
    with Processes(tmp_path, 5, copies=False) as five, connected(five) as client:
        leaders = elected(client).leaders
        lease_s = 5.0
        held = client.lock("held", owner="holder", duration=lease_s - 1, grace=1)
        fence = fence_of(held.acquire(timeout=PATIENCE_S))
        five.kill_at_once(*leaders[:2])
        killed = time.monotonic()
        until(lambda: any("s at most" in one.detail for one in client.describe()))
        status = next(one for one in client.describe() if "s at most" in one.detail)
        assert "too many leaders were lost at once" in status.detail
        assert not status.ready
        for _ in range(2):  # The second is not held up by the cancel of the first.
            with pytest.raises(UnavailableError, match=r"every lease must be over first, in . s"):
                client.lock("free").acquire(timeout=0.3)
        later = fence_of(
            client.lock("held", owner="other", duration=60).acquire(timeout=PATIENCE_S)
        )
        assert time.monotonic() - killed >= lease_s * 0.9
        assert later > fence
        assert not held.held


def test_a_leader_that_is_stopped_and_goes_on_later_serves_in_no_old_epoch(
    five: Processes, client: fencelock.Client
) -> None:
    before = elected(client)
    stopped = before.leaders[0]
    five.processes[stopped].send_signal(signal.SIGSTOP)
    until(lambda: elected(client).epoch > before.epoch)
    fence = fence_of(client.lock("order", owner="one", duration=60).acquire(timeout=PATIENCE_S))
    five.processes[stopped].send_signal(signal.SIGCONT)
    # Until it learns of the epoch that began without it, its replies show the earlier state.
    until(lambda: len(agreed(client)) == len(five.addresses))
    assert present(client.status("order").holder).fence == fence
    assert client.lock("order", owner="two").acquire(blocking=False) is None


class Copies:
    """Two copies of a number. Readers must see them equal; writers change one after the other."""

    def __init__(self, client: fencelock.Client) -> None:
        self.client = client
        self.left = self.right = 0
        self.done = threading.Event()
        self.reading: set[int] = set()
        self.most = 0
        """The highest number of readers that held the lock together."""
        self.fences: list[int] = []

    def side(self, owner: str) -> fencelock.RWLock:
        return self.client.rwlock("copies", owner=owner, duration=PATIENCE_S)

    def read(self, number: int) -> int:
        """Read until the test is over; return the number of reads."""
        times, rw = 0, self.side(f"reader {number}")
        while not self.done.is_set():
            with rw.read() as hold:
                self.reading.add(number)
                self.most = max(self.most, len(self.reading))
                self.fences.append(hold.fence)
                before = self.left
                time.sleep(0.005)
                assert (self.left, self.right) == (before, before)
                self.reading.discard(number)
            times += 1
        return times

    def write(self, number: int) -> int:
        """Write until the test is over; return the number of writes."""
        times, rw = 0, self.side(f"writer {number}")
        while not self.done.is_set():
            with rw.write() as hold:
                assert not self.reading
                assert all(fence < hold.fence for fence in self.fences)
                self.fences.append(hold.fence)
                self.left += 1
                time.sleep(0.005)
                self.right += 1
                assert self.left == self.right
            times += 1
            time.sleep(0.02)
        return times

    def wait_for_writes(self) -> None:
        written = self.right
        until(lambda: self.right > written + 3)


def kill_and_restart_a_leader(five: Processes, client: fencelock.Client) -> None:
    leader = elected(client).leaders[0]
    five.kill(leader)
    until(lambda: leader not in elected(client).leaders)
    five.start(leader)
    until(lambda: len(ready(client)) == len(five.addresses))


class Storm:
    """Owners that take one lock in turns, and check that they are alone in it."""

    def __init__(self, client: fencelock.Client) -> None:
        self.client = client
        self.inside: set[str] = set()
        self.fences: list[int] = []
        self.done = threading.Event()
        self.problems: list[BaseException] = []
        """The errors that ended an owner's turns."""

    def take_turns(self, owner: str) -> None:
        try:
            self._take_turns(owner)
        except BaseException as error:
            self.problems.append(error)
            raise

    def _take_turns(self, owner: str) -> None:
        lock = self.client.lock("storm", owner=owner, duration=1)
        while not self.done.is_set():
            try:
                hold = lock.acquire(timeout=1)
            except UnavailableError:
                continue
            if hold is None:
                continue
            fence = fence_of(hold)
            assert self.inside == set(), f"{owner} under {fence}"
            self.inside.add(owner)
            self.fences.append(fence)
            time.sleep(0.005)
            self.inside.discard(owner)
            with suppress(NotHeldError, LockOwnershipLostError, UnavailableError):
                lock.release()

    def wait_for_grants(self) -> None:
        before = len(self.fences)
        until(lambda: self.problems or len(self.fences) > before + 10)
        assert not self.problems, self.problems


@pytest.mark.long
def test_two_and_three_leaders_are_lost_at_once_again_and_again(
    five: Processes, client: fencelock.Client
) -> None:
    """After two, a majority knows what is held. After three, it is waited for."""
    storm, keep_s = Storm(client), 8.0
    with ThreadPoolExecutor(WRITERS * 2) as threads:
        owners = [threads.submit(storm.take_turns, f"owner {n}") for n in range(WRITERS * 2)]
        try:
            for lost in (2, 3, 2, 3, 2):
                storm.wait_for_grants()
                kept = client.lock("kept", owner=f"before {lost}", duration=keep_s)
                fence = fence_of(kept.acquire(timeout=PATIENCE_S))
                leaders = elected(client).leaders[:lost]
                five.kill_at_once(*leaders)
                killed = time.monotonic()
                if lost == 2:
                    storm.wait_for_grants()
                    assert time.monotonic() - killed < keep_s
                    kept.renew()
                    assert present(client.status("kept").holder).fence == fence
                for node in leaders:
                    five.start(node)
                storm.wait_for_grants()
                if lost == 3:  # No leader knows what was held, so all leases have expired.
                    assert time.monotonic() - killed > keep_s
                else:
                    kept.release()
                until(lambda: keepers(client) == set(five.addresses))
        finally:
            storm.done.set()
        for owner in owners:
            owner.result(PATIENCE_S)
    assert storm.fences == sorted(set(storm.fences))


@pytest.mark.long
def test_readers_and_writers_exclude_each_other_while_leaders_are_killed(
    five: Processes, client: fencelock.Client
) -> None:
    copies = Copies(client)
    with ThreadPoolExecutor(READERS + WRITERS) as threads:
        readers = [threads.submit(copies.read, number) for number in range(READERS)]
        writers = [threads.submit(copies.write, number) for number in range(WRITERS)]
        try:
            for _ in range(2):
                copies.wait_for_writes()
                kill_and_restart_a_leader(five, client)
            copies.wait_for_writes()
        finally:
            copies.done.set()
        reads = sum(reader.result(PATIENCE_S) for reader in readers)
        writes = sum(writer.result(PATIENCE_S) for writer in writers)
    assert (copies.left, copies.right) == (writes, writes)
    assert reads >= READERS
    assert copies.most > READERS // 2
    assert len(set(copies.fences)) == len(copies.fences)


def test_garbage_at_a_nodes_port_changes_nothing(five: Processes, client: fencelock.Client) -> None:
    for address in five.addresses.values():
        host, _, port = address.removeprefix("tcp://").partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as wire:
            wire.sendall(os.urandom(4096))
    lock = client.lock("parcel")
    assert lock.acquire(timeout=PATIENCE_S) is not None
    lock.release()
    assert all(process.poll() is None for process in five.processes.values())


@pytest.mark.long
def test_status_shows_members_leaders_epoch_and_the_missing_condition(
    five: Processes, client: fencelock.Client
) -> None:
    statuses = status(five)
    (epoch,) = {one["elected"]["epoch"] for one in statuses}
    assert epoch == elected(client).epoch
    assert [one["node"] for one in statuses[0]["elected"]["members"]] == list(five.addresses)
    assert {one["priority"] for one in statuses[0]["elected"]["members"]} == {14}
    assert "lead in epoch" in shown(five)
    lost = [node for node in five.addresses if node != "n1"][:3]
    five.kill_at_once(*lost)
    until(lambda: "cluster is down: 2 of 5 members are connected, 3 are needed" in shown(five))


def status(five: Processes) -> list[dict[str, Any]]:
    statuses: list[dict[str, Any]] = json.loads(run(five, "--json"))
    return statuses


def shown(five: Processes) -> str:
    return " ".join(run(five).split())


def run(five: Processes, *options: str) -> str:
    """Return the output of ``status``, which exits with 3 while the cluster is down."""
    command = [sys.executable, "-m", "fencelock", "status", "--connect", five.connect]
    done = run_to_end(
        [*command, "--cluster", CLUSTER, *options], env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == (3 if "is down" in done.stdout else 0), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Return nodes that all run. Each test starts again what it kills."""
    with Processes(tmp_path_factory.mktemp("trio"), 3) as processes:
        yield processes


class SeenNews(Collected[fencelock.ClusterState]):
    """The notices that a callback got, and a way to wait for one of them."""

    def until(self, holds: Callable[[fencelock.ClusterState], bool]) -> fencelock.ClusterState:
        """Wait until the last notice is such."""
        return self.wait_for(lambda states: states[-1] if states and holds(states[-1]) else None)


def is_ready(state: fencelock.ClusterState) -> bool:
    return state.up and state.ready and state.complete


def test_a_client_is_notified_when_its_cluster_goes_down_and_when_it_is_up_again(
    trio: Processes,
) -> None:
    with fencelock.connect(trio.connect, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        seen = SeenNews()
        client.on_cluster(seen.add)
        first = seen.until(is_ready)
        assert (first.reason, len(first.leaders)) == ("ready", 3)
        assert client.cluster == first
        for node in ("n2", "n3"):
            trio.kill(node)
        down = seen.until(lambda state: "1 of 3 members" in state.reason)
        assert (down.up, down.complete, down.ready) == (False, False, False)
        for node in ("n2", "n3"):
            trio.start(node)
        again = seen.until(is_ready)
        assert again.epoch > first.epoch
        for node in trio.names:
            trio.kill(node)
        lost = seen.until(lambda state: "no node says how it is" in state.reason)
        assert (lost.up, lost.ready, lost.epoch, lost.leaders) == (False, False, 0, ())
        for address in trio.addresses.values():
            assert address in lost.reason
        for node in trio.names:
            trio.start(node)
        seen.until(is_ready)
        pairs = zip(seen.values, seen.values[1:], strict=False)
        assert all(earlier != later for earlier, later in pairs)


def test_silent_nodes_no_longer_count_for_the_state_of_the_cluster(trio: Processes) -> None:
    address = trio.addresses["n1"]
    with fencelock.connect(address, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=3) as client:
        seen = SeenNews()
        client.on_cluster(seen.add)
        seen.until(is_ready)
        for process in trio.processes.values():  # The client follows the members.
            process.send_signal(signal.SIGSTOP)
        try:
            silent = seen.until(lambda state: not state.up)
            assert "no node says how it is" in silent.reason
            assert not client.cluster.ready
        finally:
            for process in trio.processes.values():
                process.send_signal(signal.SIGCONT)
        seen.until(is_ready)


def test_a_task_is_notified_on_its_loop_and_an_error_in_a_callback_is_counted(
    trio: Processes,
) -> None:
    async def live() -> tuple[bool, int]:
        loop = asyncio.get_running_loop()
        on_loop: list[bool] = []
        notified = asyncio.Event()

        def see(state: fencelock.ClusterState) -> None:
            on_loop.append(asyncio.get_running_loop() is loop)
            if state.ready:
                notified.set()
            raise RuntimeError(state.reason)

        async with aio.connect(trio.connect, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
            assert not client.cluster.up
            client.on_cluster(see)
            async with asyncio.timeout(PATIENCE_S):
                await notified.wait()
            assert client.cluster.ready
            assert (_held := await client.lock("x").acquire(timeout=PATIENCE_S)) is not None
            return all(on_loop), client.callbacks_failed - len(on_loop)

    assert asyncio.run(live()) == (True, 0)


def test_a_caller_inside_the_process_asks_until_something_changes(tmp_path: Path) -> None:
    with running_nodes(tmp_path, "bakery", nodes=1) as nodes:
        node, number = nodes["n1"], 0
        news: fencelock.ClusterUp | fencelock.ClusterDown
        ends = time.monotonic() + PATIENCE_S
        while True:
            news = node.ref("proxy").ask(fencelock.Watch(known=number), timeout=PATIENCE_S)
            assert news.number != number
            number = news.number
            if isinstance(news, fencelock.ClusterUp) and news.ready:
                break
            assert time.monotonic() < ends
        assert (news.complete, news.leaders) == (True, ("n1",))
        waits = node.ref("proxy").ask(fencelock.Watch(known=number), block=False)
        assert not waits.done


def test_paxos_refuses_to_watch_and_names_the_protocol_that_can(tmp_path: Path) -> None:
    with (
        running_nodes(tmp_path, nodes=1) as nodes,
        fencelock.connect(nodes["n1"].address, connect_timeout=PATIENCE_S) as client,
    ):
        for watch in (lambda: client.cluster, lambda: client.on_cluster(print)):
            with pytest.raises(fencelock.UnsupportedError, match="bakery has it"):
                watch()
        with pytest.raises(fencelock.UnsupportedError, match="bakery has it"):
            nodes["n1"].ref("proxy").ask(fencelock.Watch(), timeout=PATIENCE_S)
