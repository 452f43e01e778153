"""`fencelock ask`, `log` and `trace` over real nodes, and the diagram of a simulated seed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.expect import PATIENCE_S
from support.long import with_long
from support.programs import run_to_end
from support.real_nodes import running_nodes

import fencelock
from fencelock.actors.api.role_request import SetLog

PROTOCOLS = with_long(["bakery", "central", "lamport", "paxos"], "bakery", "central")


@pytest.fixture(scope="module", params=PROTOCOLS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), request.param) as nodes:
        yield ",".join(node.address for node in nodes.values())


@pytest.fixture(scope="module")
def lamport(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nodes(tmp_path_factory.mktemp("lamport"), "lamport") as nodes:
        yield ",".join(node.address for node in nodes.values())


def shell(*arguments: str) -> tuple[int, str, str]:
    done = run_to_end([sys.executable, "-m", "fencelock", *arguments])
    return done.returncode, done.stdout, done.stderr


def test_a_role_is_asked_and_what_it_does_not_take_is_refused(lamport: str) -> None:
    status, said, _ = shell("ask", "n1/clock", "--connect", lamport)
    assert (status, said.splitlines()[0].startswith("time: ")) == (0, True)
    status, said, _ = shell("ask", "n2/proxy", "DescribeRole", "--json", "--connect", lamport)
    assert json.loads(said)["kind"] == "Proxy"
    status, _, told = shell("ask", "n1/log", "ReadClock", "--connect", lamport)
    assert status == 2
    assert "it takes DescribeRole, ReadState, ReadTrace, SetLog" in " ".join(told.split())
    status, _, told = shell("ask", "n1/log", "Nonsense", "--connect", lamport)
    assert (status, "no request to a role" in told) == (2, True)
    status, _, told = shell("ask", "n1/log", "SetLog", "colour=red", "--connect", lamport)
    assert (status, "fields of SetLog: level, roles" in told) == (2, True)


def test_what_a_node_logs_is_shown_and_changed(lamport: str) -> None:
    with fencelock.connect(lamport) as client:
        client.ref("n1/log").ask(SetLog(level="INFO", roles=()), timeout=PATIENCE_S)
    options = ("log", "n1", "--connect", lamport, "--json")
    assert json.loads(shell(*options)[1]) == {"node": "n1", "level": "INFO", "trace": []}
    changed = shell(*options, "--level", "error", "--trace", "process,clock")[1]
    assert json.loads(changed) == {"node": "n1", "level": "ERROR", "trace": ["process", "clock"]}
    status, _, told = shell("log", "n1", "--level", "loud", "--connect", lamport)
    assert (status, "--level is LOUD" in told) == (2, True)


def test_a_trace_has_the_messages_of_a_lock_in_causal_order_and_draws_them(
    address: str, tmp_path: Path
) -> None:
    ended = threading.Event()

    def use() -> None:
        with fencelock.connect(address) as client:
            while not ended.is_set():
                with client.lock("a"):
                    pass

    user = threading.Thread(target=use, daemon=True)
    user.start()
    try:
        svg = tmp_path / "trace.svg"
        status, said, told = shell(
            *("trace", "--seconds", "1.5", "--lock", "a", "--svg", str(svg), "--connect", address)
        )
    finally:
        ended.set()
        user.join(PATIENCE_S)
    assert (status, told) == (0, "")
    lines = said.splitlines()
    assert any(" proxy sends Granted(lock='a'" in one.replace("/", " ") for one in lines)
    times = [int(one.split()[0]) for one in lines]
    assert times == sorted(times)
    parts = [one.split(" ", 3) for one in lines]
    sent: dict[tuple[str, str, str], int] = {}
    received: dict[tuple[str, str, str], int] = {}
    for at, (_, role, act, rest) in enumerate(parts):
        if act == "sends":  # A slow machine may send a message again, and the first time untraced.
            message, _, peer = rest.rpartition(" to ")
            sent.setdefault((role, message, peer), at)
        elif act == "receives":
            message, _, peer = rest.partition("; ")[0].rpartition(" from ")
            received[peer, message, role] = at
    both = sent.keys() & received.keys()
    assert both
    assert all(received[key] > sent[key] for key in both)
    ElementTree.fromstring(svg.read_text())
    status, _, told = shell(
        *("trace", "--seconds", "0.5", "--svg", str(tmp_path), "--connect", address)
    )
    assert (status, told) == (2, f"--svg: {tmp_path} cannot be written: Is a directory\n")


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("bakery", "central", "lamport")]


@pytest.mark.parametrize("protocol", ["paxos", *LATER])
def test_a_seed_is_drawn(protocol: str, tmp_path: Path) -> None:
    svg = tmp_path / "seed.svg"
    options = ("simulate", "--protocol", protocol, "--seed", "1", "--diagram", str(svg))
    status, said, told = shell(*options)
    assert (status, "is clean" in said) == (0, True), told
    assert "Granted" in svg.read_text()
    assert shell(*options, "--members")[0] == 2
