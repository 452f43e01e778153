"""Screens of the commands that look at a cluster, with a client that is made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.text import Text
from support.made_client import MadeClient
from typer.testing import CliRunner, Result

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Absence, Contender, LockStatus
from fencelock.actors.api.membership_message import MembersRead, NodeReport, NodeRole
from fencelock.actors.api.operator_message import ListedEviction, ListedLock, ListedSession
from fencelock.actors.error import UnavailableError
from fencelock.cluster.cli import screen
from fencelock.cluster.cli.exit_status import Unanswered
from fencelock.cluster.cli.main import app
from fencelock.cluster.cli.screen import View, line, present
from fencelock.cluster.log import printable
from fencelock.cluster.node.config import loopback, starting_config

FENCE = 1_763_724_000_123_456_789
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\r\nn9 leads\u202e\x9b31m"
"""ANSI and OSC sequences, rich's markup, a line end, a direction control, a C1 control."""
LOCKS = (
    "orders/eu-west-1/warehouse-17/pick-list/2026-11-22",
    "invoices/2026/11/nightly-settlement-run",
    "reports/daily",
)
CLIENTS = (
    "settlement-worker-7f9c6d5b8-x2x4k:1 nightly run of 2026-11-22",
    "web-3.prod.example.com:4711",
    "web-4:99",
)


def contender(label: str, fence: int | None = FENCE) -> Contender:
    return Contender("", f"client-{'1f' * 8}.17", "host-4711-thread-1", fence, 125_000, label)


def held(place: int) -> LockStatus:
    waiters = (contender(CLIENTS[0], None), contender(CLIENTS[2], None)) if place == 0 else ()
    return LockStatus(
        lock=LOCKS[place],
        holder=contender(CLIENTS[place]),
        waiters=waiters,
        waits_for=(),
        slot=7,
        age_ms=0,
    )


def node(name: str, leader: str, *, ready: bool = True) -> NodeStatus:
    return NodeStatus(
        node=name,
        protocol="paxos",
        nodes=tuple(f"fencelock-{n}.fencelock.prod" for n in range(3)),
        ready=ready,
        detail=("ready, leads" if name == leader else f"ready, follows {leader}")
        if ready
        else "a majority has not answered for 5031 ms; locks are not shown",
        uptime_ms=3_605_000,
        counters=(),
        locks=tuple(map(held, range(3))) if ready else (),
        leader=leader if ready else "",
    )


NODES = tuple(node(f"fencelock-{n}.fencelock.prod", "fencelock-0.fencelock.prod") for n in range(3))
UNSERVED = tuple(replace(node(one.node, "", ready=False)) for one in NODES)


def report(name: str, role: NodeRole, version: str = "0.1.0") -> NodeReport:
    return NodeReport(
        node=name,
        role=role,
        endpoint=f"tcp://{name}.svc.cluster.local:4040",
        journal=7,
        view=3,
        applied=120_344,
        lag=0,
        last_message_ms=12,
        version=version,
    )


READ = MembersRead(
    node="n1",
    view=3,
    nodes=tuple(
        report(f"fencelock-{n}", NodeRole.MEMBER if n else NodeRole.LEADER) for n in range(3)
    ),
)


LONGEST = held(0)
SESSIONS = tuple(
    ListedSession(f"client-{number:016x}.17", label, 15_000, 14_200, 3)
    for number, label in enumerate(CLIENTS)
)
LISTED = tuple(
    ListedLock(name, contender(client), 3) for name, client in zip(LOCKS, CLIENTS, strict=True)
)
TAKEN = (
    ListedEviction(LOCKS[0], FENCE, contender(CLIENTS[0]), "alice (client-1f)", 61_000),
    ListedEviction("", 0, contender(CLIENTS[1])._replace(session="client-2a.18"), "bob (op)", 5),
)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeClient:
    made = MadeClient(
        nodes=NODES, state=LONGEST, listed=LISTED, read=READ, open=SESSIONS, taken=TAKEN
    )
    monkeypatch.setattr("fencelock.cluster.client.client.connect_to", made.connect_to)
    monkeypatch.setenv("FENCELOCK_CONNECT", "tcp://127.0.0.1:4041,tcp://127.0.0.1:4042")
    monkeypatch.chdir(tmp_path)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "command", ["status", "locks", "who orders/1", "members", "sessions", "audit"]
)
def test_every_screen_keeps_real_names_whole(
    client: MadeClient, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    done = run(*command.split())
    assert done.exit_code == 0
    assert client.nodes == NODES
    lines = Text.from_ansi(done.output).plain.splitlines()
    assert max(map(len, lines)) <= width
    whole = {
        "status": (*LOCKS, *CLIENTS, str(FENCE), NODES[1].node),
        "locks": (*LOCKS, *CLIENTS, str(FENCE)),
        "who orders/1": (LOCKS[0], CLIENTS[0], CLIENTS[2]),
        "sessions": (*CLIENTS, SESSIONS[2].id),
        "audit": (
            *(LOCKS[0], CLIENTS[0], str(FENCE), "alice (client-1f)", "1m 1s"),
            *("session client-2a.18", "bob (op)"),
        ),
        "members": ("fencelock-1", "tcp://fencelock-1.svc.cluster.local:4040", "120344"),
    }[command]
    assert [name for name in whole if not any(name in line for line in lines)] == []


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "status --roles",
        "status --ready",
        "locks",
        "who orders/1",
        "members",
        "sessions",
        "audit",
        "release a --fence 7 -y",
        "sessions close a.1 -y",
    ],
)
def test_nothing_a_peer_names_is_shown_unescaped(client: MadeClient, command: str) -> None:
    evil = Contender(HOSTILE, HOSTILE, HOSTILE, FENCE, 1, HOSTILE)
    nameless = evil._replace(label="")
    client.state = LockStatus(
        lock=HOSTILE, holder=evil, waiters=(evil, nameless), waits_for=(Absence(HOSTILE, 1),)
    )
    one = replace(NODES[0], node=HOSTILE, leader=HOSTILE, detail=HOSTILE, locks=(client.state,))
    other = replace(one, protocol=HOSTILE, ready=False)
    client.nodes, client.silent = (one, other), (HOSTILE,)
    client.listed = (ListedLock(HOSTILE, evil, 1), ListedLock(HOSTILE, nameless, 1))
    client.read = MembersRead(
        node=HOSTILE, view=1, nodes=(report(HOSTILE, NodeRole.OBSERVER, HOSTILE),)
    )
    client.open = (ListedSession(HOSTILE, HOSTILE, 1, 1, 1),)
    client.taken = (
        ListedEviction(HOSTILE, 7, evil, HOSTILE, 1),
        ListedEviction("", 0, evil, HOSTILE, 1),
    )
    done = run(*command.split())
    output = done.output + done.stderr
    assert printable(HOSTILE[:4]) in output.replace("\n", "")
    assert [one for one in output if not one.isprintable() and one != "\n"] == []
    assert "[bold red]x[/]" in output.replace("\n", "")
    assert [line for line in output.splitlines() if line.startswith("n9 leads")] == []


def test_the_reason_of_a_node_is_harmless_too(client: MadeClient) -> None:
    client.nodes = (replace(UNSERVED[0], detail=HOSTILE),)
    client.error = UnavailableError(HOSTILE)
    done = run("who", "orders/1")
    assert done.exit_code == 3
    assert printable(HOSTILE) in done.stderr
    assert "\x1b" not in done.stderr


def test_status_without_a_leader_exits_with_3_and_calls_no_lock_free(client: MadeClient) -> None:
    client.nodes = UNSERVED
    done = run("status")
    assert done.exit_code == 3
    assert "No lock is held" not in done.output
    assert "Which locks are held is not known now." in done.output
    assert "Nothing is served now" in done.output
    assert run("status", "--json").exit_code == 3


def test_unconfirmed_locks_are_shown_as_old(client: MadeClient) -> None:
    old = tuple(replace(lock, age_ms=61_000) for lock in NODES[0].locks)
    client.nodes = (replace(UNSERVED[0], locks=old),)
    done = run("status")
    assert done.exit_code == 3
    assert "These locks were held 1m 1s ago; who holds them now is not known." in done.output


def test_no_lock_is_held_is_printed_only_if_that_is_known(client: MadeClient) -> None:
    client.nodes = tuple(replace(one, locks=()) for one in NODES)
    done = run("status")
    assert (done.exit_code, "No lock is held or waited for." in done.output) == (0, True)


def test_a_node_of_another_protocol_is_an_error_with_a_reason(client: MadeClient) -> None:
    client.nodes = (*NODES[:2], replace(NODES[2], protocol="lamport"))
    done = run("status")
    assert done.exit_code == 3
    words = " ".join(done.output.split())
    assert f"do not belong together: {NODES[0].node} and {NODES[1].node} run paxos" in words
    assert f"{NODES[2].node} runs lamport" in words


def test_a_probe_exits_with_0_or_1(client: MadeClient) -> None:
    done = run("status", "--ready")
    assert (done.exit_code, done.output.startswith("ready: ")) == (0, True)
    client.nodes = UNSERVED
    done = run("status", "--ready")
    assert (done.exit_code, done.output.startswith("not ready: ")) == (1, True)


def test_members_without_a_leader_exits_with_3(client: MadeClient) -> None:
    client.read = replace(READ, nodes=(report("n1", NodeRole.MEMBER),))
    assert run("members").exit_code == 3
    assert json.loads(run("members", "--json").stdout)["nodes"][0]["role"] == "member"


def test_a_watch_shows_each_look_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Iterator[View | Unanswered] = iter(
        [View([line("one")]), Unanswered("nobody answers", 1), View([line("two")])]
    )

    def look() -> View:
        try:
            found = next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(screen, "WATCH_S", 0)
    assert present(look, watch=True) == 0
    assert capsys.readouterr().out.split("\n") == ["one", "nobody answers", "two", ""]


def completed(words: str, place: int) -> list[str]:
    """Return the completions of bash for word number ``place`` of ``words``."""
    env = {"_FENCELOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    return CliRunner().invoke(app, [], prog_name="fencelock", env=env).stdout.split()


def test_a_shell_completes_commands_locks_and_nodes(
    client: MadeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {"status", "who", "locks", "members"} <= set(completed("fencelock ", 1))
    assert completed("fencelock who o", 2) == [LOCKS[0]]
    assert set(completed("fencelock release ", 2)) == set(LOCKS)
    assert completed("fencelock lock inv", 2) == [LOCKS[1]]
    assert completed("fencelock remove fencelock-1", 2) == [NODES[1].node]
    (tmp_path / "cluster.toml").write_text(starting_config(loopback(3)))
    assert completed("fencelock serve --id n", 3) == ["n1", "n2", "n3"]

    hostile = ListedLock(HOSTILE, contender("c"), 0)
    client.listed = (hostile,)
    assert completed("fencelock who ", 2) == []

    def nobody(where: object, *, timeout: float) -> MadeClient:
        raise UnavailableError(f"no node of {where} answers within {timeout} s")

    monkeypatch.setattr("fencelock.cluster.client.client.connect_to", nobody)
    assert completed("fencelock who ", 2) == []
