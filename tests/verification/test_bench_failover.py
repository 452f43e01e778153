"""Relays that fall silent, and real nodes whose leader dies without a sign."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import run_to_end

from fencelock.verification.bench.failover import (
    CLIENTS,
    LeaderDeath,
    RelayedLink,
    RelayedMembers,
    Relays,
    leader_seen_by,
)

pytestmark = pytest.mark.long

LONG_S = 60.0
SILENT_S = 0.2
"""Nothing may come for so long. A relay that forwards after all would mostly be found."""

LINK = RelayedLink("a", "b")


class EchoThread:
    """A server that sends back all bytes, one connection after the other."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                served, _ = self.listener.accept()
            except OSError:
                return
            with served:
                while chunk := served.recv(1 << 16):
                    served.sendall(chunk)


@pytest.fixture
def relays() -> Iterator[Relays]:
    echo = EchoThread()
    with Relays({LINK: echo.port}) as relays:
        yield relays
    echo.listener.close()


def connected(relays: Relays) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relays.ports[LINK]), timeout=LONG_S)


def received(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        chunk = client.recv(size - len(got))
        assert chunk
        got += chunk
    return got


def test_a_relay_forwards_both_ways_more_than_it_keeps(relays: Relays) -> None:
    many = bytes(range(256)) * (1 << 14)
    with connected(relays) as client:
        sender = threading.Thread(target=client.sendall, args=(many,))
        sender.start()
        assert received(client, len(many)) == many
        sender.join()


def test_a_silent_relay_forwards_nothing_until_it_is_healed(relays: Relays) -> None:
    with connected(relays) as client:
        client.sendall(b"one")
        assert received(client, 3) == b"one"
        relays.silence([LINK])
        client.sendall(b"two")
        client.settimeout(SILENT_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(LONG_S)
        relays.heal([LINK])
        assert received(client, 3) == b"two"


def test_a_silent_relay_accepts_and_sends_nothing_and_closes_that_when_healed(
    relays: Relays,
) -> None:
    relays.silence([LINK])
    with connected(relays) as client:
        client.settimeout(SILENT_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(LONG_S)
        relays.heal([LINK])
        assert client.recv(1) == b""
    with connected(relays) as client:
        client.sendall(b"x")
        assert received(client, 1) == b"x"


def test_relays_that_end_while_they_are_connected_to_leave_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[object] = []

    def noted(unraisable: sys.UnraisableHookArgs) -> None:
        left.append(unraisable.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", noted)
    for count in range(100):
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            relays = stack.enter_context(Relays({LINK: listener.getsockname()[1]}))
            clients = [connected(relays) for _ in range(count % 5 + 1)]
        for client in clients:
            client.close()
    gc.collect()
    assert left == []


def test_a_dropped_link_is_closed(relays: Relays) -> None:
    with connected(relays) as client:
        client.sendall(b"x")
        assert received(client, 1) == b"x"
        relays.drop([LINK])
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    "death",
    [*LeaderDeath],
)
def test_a_lock_is_granted_after_a_leader_of_real_nodes_died(
    death: LeaderDeath, tmp_path: Path
) -> None:
    with (
        RelayedMembers(tmp_path, "paxos", 3) as members,
        members.ready_client() as client,
    ):
        lock = client.lock("x", timeout=LONG_S)
        with lock:
            pass
        leader = leader_seen_by(client)

        _, undo = members.strike(leader, death)

        with lock:
            pass
        assert leader_seen_by(client) not in ("", leader)
        undo()
        members.wait_until_ready(client)


def test_the_links_of_a_node_are_cut_with_or_without_those_of_clients(tmp_path: Path) -> None:
    members = RelayedMembers(tmp_path, "paxos", 3)
    with members.relays:
        every = set(members.links_of("n2", clients=True))
        peers = set(members.links_of("n2", clients=False))

    assert every - peers == {RelayedLink(CLIENTS, "n2")}
    pairs = [("n2", "n1"), ("n1", "n2"), ("n2", "n3"), ("n3", "n2")]
    assert peers == {RelayedLink(*pair) for pair in pairs}


def test_the_command_measures_each_kind_of_death() -> None:
    command = [sys.executable, "-m", "fencelock", "bench", "failover", "--json"]
    options = ["--kind", "cut-off", "--times", "1"]
    done = run_to_end([*command, *options], timeout=3 * LONG_S)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    (gap,) = report["rounds"]["cut_off_gap_ms"]
    assert 0 < gap == report["figures"]["cut_off_gap_ms"]
