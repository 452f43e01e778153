"""Operators' commands about members, with a fake client, and about roles, over real nodes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.expect import PATIENCE_S, with_long
from support.made_client import MadeClient
from support.programs import run_to_end
from support.real_nodes import running_nodes
from support.samples import READY
from typer.testing import CliRunner, Result

import fencelock
from fencelock import ChangeMembers, MemberAction, MembersChanged, MembersRead, NodeReport, NodeRole
from fencelock.actors.api.role_request import SetLog
from fencelock.actors.error import MembershipError, UnavailableError
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.cli.members import CHANGE_REPLY_S, ChangeProgress

READ = MembersRead(
    node="n1",
    view=3,
    nodes=(
        NodeReport("n1", "tcp://10.0.0.1:4040", NodeRole.MEMBER, 3, 120_344, 0, 0, "0.1.0", 0xA1),
        NodeReport("n2", "tcp://10.0.0.2:4040", NodeRole.LEADER, 3, 120_344, 0, 12, "0.1.0", 0xA2),
        NodeReport(
            "n3", "tcp://10.0.0.3:4040", NodeRole.NON_VOTING, 3, 9, 120_335, 40, "0.1.0", 0xA3
        ),
        NodeReport(
            "n4", "tcp://a-host-with-a-long-name:4040", NodeRole.OBSERVER, 2, 0, None, None, ""
        ),
    ),
)
DONE = MembersChanged(done=True, detail="", view=4, members=("n1", "n2", "n4"))


def waits(slots: int = 0) -> MembersChanged:
    return MembersChanged(done=False, detail="n4 learns", view=3, members=("n1",), slots_left=slots)


@dataclass
class MadeCluster(MadeClient):
    """A client that gives the answers in order, and remembers the changes."""

    answers: list[MembersChanged | Exception] = field(
        default_factory=list[MembersChanged | Exception]
    )
    changes: list[ChangeMembers] = field(default_factory=list[ChangeMembers])
    stale: list[MembersRead] = field(default_factory=list[MembersRead])
    """The first answers to a request for the members."""

    failing: bool = False
    """Whether no node can report the members."""

    def members(self) -> MembersRead:
        if self.failing:
            raise UnavailableError("no node answered within 10.0 s")
        return self.stale.pop(0) if self.stale else READ

    def change_members(self, change: ChangeMembers) -> MembersChanged:
        self.changes.append(change)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MadeCluster:
    made = MadeCluster()
    monkeypatch.setattr("fencelock.cluster.client.client.connect_to", made.connect_to)
    monkeypatch.setattr("fencelock.cluster.cli.members.CHANGE_RETRY_S", 0)
    monkeypatch.setenv("FENCELOCK_CONNECT", "tcp://127.0.0.1:4041")
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def test_members_shows_each_node_in_eighty_columns_and_what_to_do(client: MadeCluster) -> None:
    done = run("members")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == "3 members; n2 leads; 3 changes so far"
    table = done.output[: done.output.index("n3 is a member")]
    assert max(map(len, table.splitlines())) <= 80
    for cell in ("120344", "12ms", "120335", "never", "0.1.0", "no vote", "observer", "?"):
        assert cell in table
    assert "fencelock replace n3" in done.output
    assert "fencelock join n4" in done.output


@pytest.mark.parametrize("role", [NodeRole.MEMBER, NodeRole.DOWN])
def test_without_a_leader_members_advises_nothing_that_cannot_work(
    client: MadeCluster, role: NodeRole
) -> None:
    """A replacement needs a majority: the silent members must be started again."""
    silent = READ.nodes[1]._replace(role=role, last_message_ms=9_000)
    client.stale = [replace(READ, nodes=(READ.nodes[0], silent, *READ.nodes[2:]))]
    done = run("members")
    text = " ".join(done.output.split())
    assert done.exit_code == ExitStatus.UNSERVED
    assert "No node leads, so the members cannot be changed now." in text
    assert "start n2 again, with its own data folder" in text
    assert "n3 is a member whose journal was lost or is not its own: it does not vote." in text
    assert "only from a majority that votes" in text
    assert "`fencelock serve --found-again CLUSTER`" in text
    for advice in ("To give", "To make", "fencelock join", "fencelock replace n"):
        assert advice not in text


def test_an_election_is_not_shown_as_the_loss_of_a_majority(client: MadeCluster) -> None:
    here = [one._replace(role=NodeRole.MEMBER, last_message_ms=12) for one in READ.nodes]
    client.stale = [replace(READ, nodes=tuple(here))]
    output = run("members").output
    assert "An election takes a second." in output
    assert "lost" not in output


def test_members_as_json_has_roles_as_words(client: MadeCluster) -> None:
    read = json.loads(run("members", "--json").output)
    assert read["view"] == 3
    assert [node["role"] for node in read["nodes"]] == [
        "member",
        "leader",
        "non_voting",
        "observer",
    ]
    assert read["nodes"][0]["journal"] == "a1"
    assert read["nodes"][3]["lag"] is None


def test_a_join_is_asked_for_until_it_is_done(client: MadeCluster) -> None:
    client.answers = [waits(4_000), UnavailableError("no node answered"), waits(10), DONE]
    done = run("join", "n4")
    assert done.exit_code == 0
    assert client.changes == [ChangeMembers(action=MemberAction.JOIN, node="n4")] * 4
    assert "n4 learns (4,000 slots left)" in done.stderr
    assert done.stdout == "The members are n1, n2, n4.\n"


def test_a_change_without_a_reply_says_so_first_while_some_nodes_can_answer(
    client: MadeCluster,
) -> None:
    lost = replace(READY, node="n2", ready=False, detail="n2 lost its journal")
    client.nodes = (READY, lost)
    client.answers = [UnavailableError("no node answered within 10.0 s")]
    client.failing = True
    done = run("replace", "n2", "--wait", "0.05")
    said = " ".join(done.stderr.split())
    assert "no node answered within 10.0 s. n2: n2 lost its journal" in said


@pytest.mark.parametrize("command", [("join", "n4"), ("replace", "n3"), ("remove", "n3")])
def test_a_change_that_no_node_can_decide_says_at_once_why_and_for_how_long(
    client: MadeCluster, command: tuple[str, ...]
) -> None:
    """A cluster that is not founded, for example."""
    why = "no cluster is known to n1, n2, n3. If it is new, begin it: fencelock found"
    client.nodes = tuple(
        replace(READY, node=node, ready=False, detail=why) for node in ("n1", "n2")
    )
    client.answers = [UnavailableError("no node answered within 10.0 s")]
    client.failing = True
    done = run(*command, "--wait", "0.05")
    assert done.exit_code == ExitStatus.FAILED
    said = " ".join(done.stderr.split())
    assert f"No node can answer now. n1: {why}; n2: {why}" in said
    assert "This waits for up to 0.05 s (--wait)." in said
    asked = [ends_at - time.monotonic() for ends_at in client.limits]
    assert (
        max(asked) <= CHANGE_REPLY_S
    )  # No reply is awaited for longer before the reasons are shown.


def test_a_change_of_an_unknown_node_changes_nothing_and_reports_it(client: MadeCluster) -> None:
    client.answers = [DONE]
    done = run("leave", "n9")
    assert done.stdout == "Nothing had to be changed for n9.\nThe members are n1, n2, n4.\n"


def test_a_transfer_prints_who_leads_and_not_who_the_members_are(client: MadeCluster) -> None:
    client.answers = [waits(0), DONE]
    assert run("transfer", "n2").stdout == "n2 leads.\n"


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("leave", "n4"), ChangeMembers(action=MemberAction.LEAVE, node="n4")),
        (("remove", "n3"), ChangeMembers(action=MemberAction.REMOVE, node="n3")),
        (("transfer", "n2"), ChangeMembers(action=MemberAction.TRANSFER, node="n2")),
        (
            ("replace", "n3"),
            ChangeMembers(action=MemberAction.REPLACE, node="n3", replacement="n3", journal=0xA3),
        ),
        (
            ("replace", "n3", "n6"),
            ChangeMembers(action=MemberAction.REPLACE, node="n3", replacement="n6"),
        ),
    ],
    ids=["leave", "remove", "transfer", "replace by itself", "replace by another"],
)
def test_each_command_asks_for_its_change(
    client: MadeCluster, arguments: tuple[str, ...], change: ChangeMembers
) -> None:
    client.answers = [DONE]
    done = run(*arguments, "--json")
    assert client.changes == [change]
    assert json.loads(done.stdout)["members"] == ["n1", "n2", "n4"]


def test_a_member_that_votes_is_not_replaced_by_itself(client: MadeCluster) -> None:
    client.answers = [DONE]
    done = run("replace", "n2")
    assert isinstance(done.exception, MembershipError)
    assert "n2 votes: there is nothing to replace" in str(done.exception)
    assert client.changes == []


def test_a_replacement_waits_for_a_report_from_after_the_restart(client: MadeCluster) -> None:
    """For seconds after a restart other nodes may know only what the node was before."""
    before = READ.nodes[2]._replace(role=NodeRole.LEADER, last_message_ms=1_500, journal=0xB3)
    silent = before._replace(role=NodeRole.MEMBER, last_message_ms=None)
    client.stale = [replace(READ, nodes=(*READ.nodes[:2], one)) for one in (before, silent)]
    client.answers = [DONE]
    done = run("replace", "n3")
    assert (done.exit_code, [change.journal for change in client.changes]) == (0, [0xA3])
    assert "n3 has sent no message yet: start it with an empty data folder" in done.stderr


def test_without_a_leader_no_member_is_said_to_vote(client: MadeCluster) -> None:
    """The node that replies may be the one that lost its disk."""
    nodes = [one._replace(role=NodeRole.MEMBER, last_message_ms=0) for one in READ.nodes]
    client.stale = [replace(READ, nodes=tuple(nodes))] * 10_000
    done = run("replace", "n3", "--wait", "0.01")
    assert done.exit_code == 1
    assert "no node leads, so no member can be replaced" in done.stderr
    assert client.changes == []


def test_a_replacement_of_a_node_that_never_comes_back_ends(client: MadeCluster) -> None:
    silent = READ.nodes[2]._replace(role=NodeRole.MEMBER, last_message_ms=None)
    client.stale = [replace(READ, nodes=(*READ.nodes[:2], silent))] * 10_000
    done = run("replace", "n3", "--wait", "0.01")
    assert done.exit_code == 1
    assert "not done within 0.01 s: n3 has sent no message yet" in done.stderr
    assert client.changes == []


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_no_running_member_is_removed_not_even_the_leader(client: MadeCluster, node: str) -> None:
    client.answers = [DONE]
    done = run("remove", node)
    assert isinstance(done.exception, MembershipError)
    assert f"{node} runs: run fencelock leave {node}" in str(done.exception)
    assert client.changes == []
    assert run("remove", node, "--yes").exit_code == 0
    assert client.changes == [ChangeMembers(action=MemberAction.LEAVE, node=node)]


def test_a_member_that_was_just_stopped_is_removed_once_it_is_silent(client: MadeCluster) -> None:
    parts = (
        READ.nodes[0]._replace(last_message_ms=last_message_ms)
        for last_message_ms in (1_000, 1_900, 2_001)
    )
    client.stale = [replace(READ, nodes=(one, *READ.nodes[1:])) for one in parts]
    client.answers = [DONE]
    assert run("remove", "n1").exit_code == 0
    assert client.stale == []
    assert client.changes == [ChangeMembers(action=MemberAction.REMOVE, node="n1")]


def test_no_member_is_removed_before_a_node_reports_whether_it_runs(client: MadeCluster) -> None:
    client.failing, client.answers = True, [DONE]
    done = run("remove", "n3", "--wait", "0.01")
    assert done.exit_code == 1
    assert client.changes == []


def test_a_refusal_is_the_error_of_the_command(client: MadeCluster) -> None:
    client.answers = [MembershipError("n3 answers: let it leave instead (fencelock leave n3)")]
    done = run("remove", "n3")
    assert isinstance(done.exception, MembershipError)
    assert done.stdout == ""


def test_a_change_that_takes_too_long_prints_how_to_go_on(client: MadeCluster) -> None:
    client.answers = [waits(7)]
    done = run("join", "n4", "--wait", "0.01")
    assert done.exit_code == 1
    assert "not done within 0.01 s: n4 learns (7 slots left" in done.stderr
    assert "Run the command again" in done.stderr


def test_progress_is_not_shown_again_only_because_an_age_grew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fencelock.cluster.cli.members.LINE_S", 0)
    progress = ChangeProgress(600)
    for ms in (500, 900):
        progress.show(f"no majority has answered for {ms} ms")
    progress.show("n4 learns")
    assert capsys.readouterr().err.splitlines() == [
        "no majority has answered for 500 ms",
        "This waits for up to 600 s (--wait).",
        "n4 learns",
    ]


def test_progress_shows_how_much_is_left_and_for_how_long() -> None:
    progress = ChangeProgress(600)
    first = MembersChanged(
        done=False, detail="n4 learns", view=0, members=(), slots_left=3_000, bytes_left=10_240
    )
    assert progress.described(first, 5.0) == "n4 learns (3,000 slots, 10 KiB left)"
    assert progress.described(waits(2_000), 6.0) == "n4 learns (2,000 slots, about 2s left)"
    assert progress.described(waits(), 7.0) == "n4 learns"
    half = replace(first, bytes_left=5_120)
    assert progress.described(half, 15.0) == "n4 learns (3,000 slots, 5 KiB, about 10s left)"


@pytest.mark.parametrize("command", ["members", "join", "leave", "remove", "replace", "transfer"])
def test_help_teaches_by_example_in_eighty_columns(command: str) -> None:
    done: Any = run(command, "--help")
    assert f"fencelock {command}" in done.output.split("For example")[1]
    assert max(map(len, done.output.splitlines())) <= 80


# Roles


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
    status, output, _ = shell("ask", "n1/clock", "--connect", lamport)
    assert (status, output.splitlines()[0].startswith("time: ")) == (0, True)
    status, output, _ = shell("ask", "n2/proxy", "DescribeRole", "--json", "--connect", lamport)
    assert json.loads(output)["kind"] == "Proxy"
    status, _, error = shell("ask", "n1/log", "ReadClock", "--connect", lamport)
    assert status == 2
    assert "it takes DescribeRole, ReadState, ReadTrace, SetLog" in " ".join(error.split())
    status, _, error = shell("ask", "n1/log", "Nonsense", "--connect", lamport)
    assert (status, "no request to a role" in error) == (2, True)
    status, _, error = shell("ask", "n1/log", "SetLog", "colour=red", "--connect", lamport)
    assert (status, "fields of SetLog: level, roles" in error) == (2, True)


def test_the_log_level_of_a_node_is_shown_and_changed(lamport: str) -> None:
    with fencelock.connect(lamport) as client:
        client.ref("n1/log").ask(SetLog(level="INFO", roles=()), timeout=PATIENCE_S)
    options = ("log", "n1", "--connect", lamport, "--json")
    assert json.loads(shell(*options)[1]) == {"node": "n1", "level": "INFO", "trace": []}
    changed = shell(*options, "--level", "error", "--trace", "process,clock")[1]
    assert json.loads(changed) == {"node": "n1", "level": "ERROR", "trace": ["process", "clock"]}
    plain = options[:-1]
    for given, line in (
        ((), "ERROR on"),
        (("--level", "TRACE"), "TRACE on, traced roles: process, clock"),
        (("--trace", "all"), "TRACE on, traced roles: all"),
        (("--level", "INFO"), "INFO on"),
    ):
        assert shell(*plain, *given)[1] == f"n1 logs from level {line}\n"
    status, _, error = shell("log", "n1", "--level", "loud", "--connect", lamport)
    assert (status, "--level is LOUD" in error) == (2, True)


def test_a_trace_draws_the_messages_of_a_lock_in_causal_order(address: str, tmp_path: Path) -> None:
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
        status, output, error = shell(
            *("trace", "--seconds", "1.5", "--lock", "a", "--svg", str(svg), "--connect", address)
        )
    finally:
        ended.set()
        user.join(PATIENCE_S)
    assert (status, error) == (0, "")
    lines = output.splitlines()
    assert any(
        " proxy sends Granted(" in one.replace("/", " ") and "lock='a'" in one for one in lines
    )
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
    status, _, error = shell(
        *("trace", "--seconds", "0.5", "--svg", str(tmp_path), "--connect", address)
    )
    assert (status, error) == (2, f"--svg: {tmp_path} cannot be written: Is a directory\n")


def test_a_trace_of_no_message_says_so(address: str) -> None:
    of_no_role = shell("trace", "--seconds", "0.5", "--roles", "clock", "--connect", address)
    assert of_no_role == (
        0,
        "",
        "no such message was sent in that time. Use a lock while this runs, or set --seconds\n",
    )


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("bakery", "central", "lamport")]


@pytest.mark.parametrize("protocol", ["paxos", *LATER])
def test_a_seed_is_drawn(protocol: str, tmp_path: Path) -> None:
    svg = tmp_path / "seed.svg"
    options = ("simulate", "--protocol", protocol, "--seed", "1", "--diagram", str(svg))
    status, output, error = shell(*options)
    assert (status, "is clean" in output) == (0, True), error
    assert "Granted" in svg.read_text()
    assert shell(*options, "--members")[0] == 2
