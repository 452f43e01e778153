"""Connections of strangers: silent ones are closed, too many are ended, and all others live."""

from __future__ import annotations

import os
import re
import resource
import socket as tcp
import subprocess
import sys
import threading
import time
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.collected import Lines
from support.expect import PATIENCE_S
from support.hub_station import Make, Station, describe, is_ended, until
from support.programs import run_to_end

from fencelock.actors.proxy.access import key_of
from fencelock.actors.quota import Quotas
from fencelock.transport import connections
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX
from fencelock.transport.descriptors import (
    SpareDescriptors,
    borrow,
    connections_max,
    filter_of,
    peer_of,
)
from fencelock.transport.sockets import ZMQ_PART_BYTES_MAX, bound_router

ALONE = "FENCELOCK_TEST_ALONE"
"""Set in the process of its own in which a test changes a limit of the process."""


def dealer(
    node: Station,
    name: str,
    heartbeats: int = 200,
    reconnects: int = -1,  # What the node ends stays ended.
) -> zmq.Socket[bytes]:
    options = ((zmq.HEARTBEAT_IVL, heartbeats), (zmq.RECONNECT_IVL, reconnects))
    return node.dealer(f"{name}#1", *options)


def used(node: Station, count: int) -> list[zmq.Socket[bytes]]:
    """Return the sockets of the clients ``good0``, ``good1`` and so on; each has sent a frame."""
    good = [sender(node, f"good{number}") for number in range(count)]
    until(lambda: node.came.total() == count, node)
    return good


def send_each(good: list[zmq.Socket[bytes]]) -> None:
    """Let each of these clients send a frame."""
    for number, socket in enumerate(good):
        socket.send(describe(f"good{number}"))


def sender(node: Station, name: str) -> zmq.Socket[bytes]:
    """Return the socket of a client that has sent a frame, which the node has not taken yet."""
    one = dealer(node, name)
    one.send(describe(name))
    return one


def strangers(node: Station, count: int) -> list[tcp.socket]:
    return [node.stranger(f"stranger{number}") for number in range(count)]


def is_open(descriptor: int) -> bool:
    """Return whether this process has a file of that number open."""
    with suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


def test_a_connection_that_greets_and_then_is_silent_is_closed_and_others_are_not(
    station: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 0.5)
    monkeypatch.setattr(connections, "SILENT_LOOK_S", 0.1)
    node = station("n1")
    silent = strangers(node, 20)
    spoken, beating = dealer(node, "me", 0), dealer(node, "standby", 50)
    spoken.send(describe("me"))
    until(lambda: all(is_ended(one) for one in silent), node)
    assert node.counters["wire.silent_closed"] == len(silent)

    for name, socket in (("me", spoken), ("standby", beating)):
        before = node.came[name]
        socket.send(describe(name))
        until(lambda name=name, before=before: node.came[name] > before, node)  # type: ignore[misc]


def test_a_poll_without_a_limit_ends_when_a_silent_connection_is_to_be_closed(
    station: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 0.2)
    node = station("n1")
    strangers(node, 1)
    rescue = threading.Timer(PATIENCE_S, node.hub.ring)
    rescue.start()
    try:
        while not node.counters["wire.silent_closed"] and rescue.is_alive():
            node.hub.poll(None)
            node.hub.events()
        assert rescue.is_alive()
    finally:
        rescue.cancel()


TOO_MANY = [
    ({"connections_max": 10}, "wire.connections_full"),
    ({"quotas": Quotas(connections=10)}, "wire.address_full"),
]


@pytest.mark.parametrize(("limit", "counter"), TOO_MANY)
def test_too_many_connections_end_the_silent_ones_and_not_those_that_are_used(
    station: Make, limit: dict[str, Any], counter: str
) -> None:
    node = station("n1", **limit)
    good = used(node, 8)
    others = strangers(node, 40)
    until(lambda: sum(map(is_ended, others)) >= 38, node)
    assert node.counters[counter] >= 38

    late = sender(node, "late")
    until(lambda: node.came["late"] == 1, node)
    send_each(good)
    late.send(describe("late"))
    until(lambda: node.came.total() == 2 * len(good) + 2, node)


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        (TOO_MANY[0][0], r"10 connections, the limit; ended [1-9]\d* more\. "),
        (TOO_MANY[1][0], r"10 connections from 127.0.0.1, the quota of one address; "),
    ],
    ids=["of all", "of one address"],
)
def test_an_operator_reads_why_connections_are_closed(
    station: Make, lines: Lines, limit: dict[str, Any], line: str
) -> None:
    node = station("n1", **limit)
    others = strangers(node, 20)
    until(lambda: len(lines.values) > 0, node)
    assert re.match(f"{node.hub.endpoint}: {line}", lines.values[0][2])
    assert any(map(is_ended, others))


@pytest.mark.parametrize(("limit", "counter"), TOO_MANY)
def test_a_frame_over_the_descriptor_of_an_ended_connection_is_not_lost(
    station: Make, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any], counter: str
) -> None:
    node = station("n1", **limit)
    used(node, 8)
    others = strangers(node, 20)  # The node has accepted them, and the events of that wait.
    # One turn processes most events of their acceptance, and leaves those of their ends.
    monkeypatch.setattr(connections, "CONNECTION_EVENTS_MAX", len(others))
    node.turn()
    known = node.hub._listener.connections._all  # type: ignore[union-attr]
    ended = list(known.by_state[connections.State.ENDED])
    assert node.counters[counter] == len(ended) > 0

    until(lambda: not any(map(is_open, ended)))
    monkeypatch.setattr(connections, "CONNECTION_EVENTS_MAX", 0)
    sender(node, "late")
    until(lambda: node.came["late"] == 1, node)
    monkeypatch.setattr(connections, "CONNECTION_EVENTS_MAX", 16)
    until(lambda: known.count(connections.State.USED) == 9, node)


@pytest.mark.parametrize(("limit", "counter"), TOO_MANY)
def test_the_newest_is_refused_if_all_others_are_used_unless_it_is_a_member(
    station: Make, limit: dict[str, Any], counter: str
) -> None:
    node = station("n1", peers={"n2": "tcp://127.0.0.1:9"}, **limit)
    good = used(node, 10)
    sender(node, "late")
    until(lambda: node.counters[counter] == 1, node)
    member = sender(node, "n2")
    until(lambda: node.came["n2"] == 1, node)
    send_each(good)
    member.send(describe("n2"))
    until(lambda: node.came["n2"] == 2 and node.came.total() == 2 * len(good) + 2, node)
    assert node.came["late"] == 0
    assert node.counters[counter] == 1


def test_links_of_members_are_not_counted_for_their_address_but_one_each(station: Make) -> None:
    peers = {"n2": "tcp://127.0.0.1:9", "n3": "tcp://127.0.0.1:9"}
    node = station("n1", peers=peers, quotas=Quotas(connections=4))
    for name in ("n2", "n3", *(f"good{number}" for number in range(4))):
        sender(node, name)
        until(lambda name=name: node.came[name] == 1, node)  # type: ignore[misc]
    assert node.counters["wire.address_full"] == 0
    again = node.dealer("n2#2")  # Another link in the name of n2: the former is counted.
    again.send(describe("n2"))
    until(lambda: node.came["n2"] == 2, node)
    sender(node, "late")
    until(lambda: node.counters["wire.address_full"] > 0, node)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_addresses_of_one_ipv6_network_are_counted_together(host: str, counted: str) -> None:
    assert connections.counted_address(host) == counted


STRANGER = """
import contextlib, socket
input()
with contextlib.suppress(ConnectionError):  # The node may have stopped to listen before.
    connection = socket.create_connection({where!r})
input()
"""


def test_a_node_that_ran_out_of_descriptors_accepts_connections_again(
    station: Make, lines: Lines
) -> None:
    """libzmq closes all connections when it stops to listen, and reports the end of none.

    The limit of descriptors is one of the process: other tests run beside this one.
    """
    if ALONE not in os.environ:
        this = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].partition("::")[2]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        alone = run_to_end(
            [*command, "-p", "no:xdist", f"{__file__}::{this}"], env={**os.environ, ALONE: "1"}
        )
        assert alone.returncode == 0, alone.stdout[-4_000:]
        return
    node = station("n1", connections_max=8, quotas=Quotas(connections=8))
    strangers(node, 8)
    host, port = node.hub.endpoint.removeprefix("tcp://").split(":")
    program = STRANGER.format(where=(host, int(port)))
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as stranger:
        assert stranger.stdin is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            stranger.stdin.write(b"connect\n")
            stranger.stdin.flush()
            until(lambda: node.counters["wire.descriptors_exhausted"] > 0, node)
            text = f"{node.hub.endpoint}: out of descriptors with 8 connections; no new ones for a"
            assert lines.values[-1][2].startswith(text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        before = node.counters["wire.address_full"]
        others = [os.dup(0) for _ in range(32)]  # They take the descriptors that became free.
        late = dealer(node, "late", reconnects=100)
        late.send(describe("late"))
        until(lambda: node.came["late"] == 1, node)
        for number in range(4):
            sender(node, f"more{number}")
        until(lambda: all(node.came[f"more{number}"] for number in range(4)), node)
        assert node.counters["wire.address_full"] == before
        stranger.stdin.write(b"leave\n")
        for one in others:
            os.close(one)


def test_a_sender_of_messages_of_no_version_is_muted_for_a_while(station: Make) -> None:
    node = station("n1")
    bad, large, good = (dealer(node, name) for name in ("bad", "large", "good"))
    for number in range(300):
        bad.send(b"\xff" * 100)
        if number % 10 == 0:  # Not so many that the node closes it for the memory they take.
            large.send(bytes(CLIENT_FRAME_BYTES_MAX + 1))
    good.send(describe("good"))
    until(lambda: node.came["good"] == 1 and sum(node.counters.values()) >= 330, node)
    # One frame a second of each is looked at, however slow this machine is.
    assert 1 <= node.counters["wire.malformed"] <= 100
    assert 1 <= node.counters["wire.oversized"] <= 10
    assert node.counters["wire.muted"] >= 200


def test_a_message_of_very_many_parts_is_discarded_within_bounds(station: Make) -> None:
    node = station("n1")
    bad, good = dealer(node, "bad"), dealer(node, "good")
    bad.send_multipart([b"x"] * 5000)
    good.send(describe("good"))
    until(lambda: node.came["good"] == 1 and node.counters["wire.malformed"] == 1, node)
    until(lambda: node.counters["wire.held_closed"] == 1, node)


def until_waiting(node: Station, owners: set[str]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while set(node.hub.waiting) != owners:
        assert time.monotonic() < ends
        node.hub.poll(10)
        node.hub.events()
        node.hub.receive_members(1000)


def test_a_request_of_one_client_is_taken_before_the_second_frame_of_another(station: Make) -> None:
    node = station("n1")
    greedy, modest = dealer(node, "greedy"), dealer(node, "modest")
    for _ in range(50):
        greedy.send(describe("greedy", 40))
    modest.send(describe("modest"))
    until_waiting(node, {"greedy", "modest"})
    order: list[str] = []
    while "modest" not in order:
        arrivals, used = node.hub.receive_clients(8, 10**9)
        assert 0 < used <= 8
        order += [link for link, _ in arrivals]
    assert order.index("modest") <= 2


def test_a_client_that_connects_anew_over_the_same_descriptor_keeps_its_id(station: Make) -> None:
    node = station("n1")
    former: set[str] = set()
    for number in range(1, 6):  # Sockets of other tests that close now may move the descriptors.
        before = _descriptors()
        client = sender(node, "ann")
        until(lambda number=number: node.came["ann"] == number, node)  # type: ignore[misc]
        opened = _descriptors() - before
        if opened == former:
            break
        former = opened
        client.close(linger=0)
        until(lambda opened=opened: not opened & _descriptors(), node)  # type: ignore[misc]
    else:
        pytest.fail(f"the connections had other descriptors each time, at last {former}")
    node.dealer("ann#2").send(describe("ann"))
    until(lambda: node.counters["wire.client_id_taken"] > 0 or node.came["ann"] > number, node)
    assert node.came["ann"] == number


def _descriptors() -> set[str]:
    """Return the TCP connections of this process."""
    found = {one: Path("/proc/self/fd", one) for one in os.listdir("/proc/self/fd")}
    inodes = {line.split()[9] for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]}
    return {
        one
        for one, path in found.items()
        if path.is_symlink() and str(path.readlink())[8:-1] in inodes
    }


def test_clients_with_one_key_wait_for_one_turn_and_have_one_limit(station: Make) -> None:
    """The keys are not checked here: a listener without a guard is set to count by them."""
    node = station("n1")
    listener = node.hub._listener  # pyright: ignore[reportPrivateUsage]
    assert listener is not None
    listener._owner_of = key_of  # pyright: ignore[reportPrivateUsage]
    greedy = [dealer(node, f"shop@{number}") for number in range(20)]
    modest = dealer(node, "bob@1")
    for number, socket in enumerate(greedy):
        socket.send(describe(f"shop@{number}", 40))
    modest.send(describe("bob@1"))
    until_waiting(node, {"shop", "bob"})
    order: list[str] = []
    while "bob@1" not in order:
        order += [link for link, _ in node.hub.receive_clients(8, 10**9)[0]]
    assert order.index("bob@1") <= 2
    until(lambda: all(node.came[f"shop@{number}"] for number in range(1, 20)), node)


def test_the_cap_leaves_descriptors_for_files() -> None:
    assert connections_max(1024) == 672
    assert connections_max(100) == 16
    assert connections_max(1 << 20) == 10_000


def test_a_file_is_opened_with_a_spare_descriptor_if_no_other_is_left(tmp_path: Path) -> None:
    program = """
import os, resource, sys
from fencelock.transport.descriptors import SpareDescriptors, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
assert raise_limit() == 128
spares, hoard = SpareDescriptors(2), []
try:
    while True:
        hoard.append(os.dup(0))
except OSError:
    pass
for number in range(2):
    os.pwrite(spares.spend(lambda: os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)), b"x", number)
try:
    spares.spend(lambda: os.open(sys.argv[1], os.O_RDWR))
except OSError as error:
    print("full", error.errno)
"""
    done = run_to_end(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert done.stdout == "full 24\n"
    assert (tmp_path / "file").read_bytes() == b"xx"


def test_spare_descriptors_are_opened_again() -> None:
    spares = SpareDescriptors(3)
    failures = [24, 24]

    def opening() -> int:
        if failures:
            raise OSError(failures.pop(), os.strerror(24))
        return 7

    assert spares.spend(opening) == 7
    spares.fill()
    failures = [24, 24, 24]
    assert spares.spend(opening) == 7
    failures = [24]
    with pytest.raises(OSError, match="open files"):
        spares.spend(opening)
    spares.close()


def test_networks_that_differ_in_any_part_have_different_filters() -> None:
    networks = ("2001:db8:0:1::/64", "2001:db8:0:2::/64", "2001:db9:0:1::/64", "10.0.0.1/32")
    assert len({filter_of([ip_network(one)]) for one in networks}) == len(networks)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_peer_of_a_descriptor_is_read_by_the_family_of_its_address(host: str) -> None:
    family = tcp.AF_INET6 if ":" in host else tcp.AF_INET
    with tcp.create_server((host, 0), family=family) as server:
        with tcp.create_connection(server.getsockname()[:2]) as there, server.accept()[0] as here:
            assert borrow(here.fileno(), peer_of) == there.getsockname()
        assert borrow(server.fileno(), peer_of) is None


def test_a_descriptor_that_another_kind_of_file_has_got_has_no_peer() -> None:
    """A file or a UNIX socket may get the number of a connection that libzmq has closed."""
    here, there = tcp.socketpair(tcp.AF_UNIX)
    with here, there, Path(os.devnull).open() as file:
        assert borrow(here.fileno(), peer_of) is None
        assert borrow(file.fileno(), peer_of) is None
        assert here.send(b"x") == 1


def test_libzmq_ends_a_connection_that_sends_a_part_beyond_the_limit() -> None:
    with (
        zmq.Context() as context,
        bound_router(context, "tcp://127.0.0.1:0") as router,
        context.socket(zmq.DEALER) as peer,
        peer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as ended,
    ):
        peer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
        peer.send(b"x" * ZMQ_PART_BYTES_MAX)
        assert router.poll(1_000 * PATIENCE_S)
        assert len(router.recv_multipart()[1]) == ZMQ_PART_BYTES_MAX
        assert not ended.poll(0)

        peer.send(b"x" * (ZMQ_PART_BYTES_MAX + 1))

        assert ended.poll(1_000 * PATIENCE_S)
        assert not router.poll(0)
