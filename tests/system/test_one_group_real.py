"""A cluster keeps one group: founders that lose their disks after others joined found no other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fencelock
from fencelock import ChangeMembers, FencelockError, MemberAction, MembershipError, UnavailableError
from fencelock.actors.api.message import Describe, NodeStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import parse
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports

LONG_S = 60.0
FOUNDERS = ("n1", "n2", "n3")
DOWN_MS = 2_500
"""Time after which a node tries to connect to a missing one at the longest pauses (ms)."""


class Nodes:
    """Real nodes in this process, each with a configuration and a folder of its own."""

    def __init__(self, folder: Path, protocol: str) -> None:
        self.folder, self.protocol = folder, protocol
        names = [f"n{number}" for number in range(1, 7)]
        self.at = dict(zip(names, free_ports(len(names)), strict=True))
        self.running: dict[str, Node] = {}

    def start(self, *names: str, knows: tuple[str, ...] = FOUNDERS, found: bool = False) -> None:
        for name in names:
            lines = ['cluster = "orders"', f'protocol = "{self.protocol}"', 'data = "data"']
            for other in sorted({*knows, name}):
                lines += [f"[nodes.{other}]", f'address = "tcp://127.0.0.1:{self.at[other]}"']
            config = parse("\n".join(lines), self.folder)
            self.running[name] = Node.start(config, name, found=found)

    def stop(self, *names: str) -> None:
        for name in names:
            self.running.pop(name).stop()

    def wipe(self, *names: str) -> None:
        self.stop(*names)
        for name in names:
            shutil.rmtree(self.folder / "data" / name)

    def status(self, name: str) -> NodeStatus:
        status = self.running[name].proxy.ask(Describe(roles=True), timeout=LONG_S)
        assert isinstance(status, NodeStatus)
        return status

    def group(self, name: str) -> str:
        """Return the group of a node, empty if it knows none."""
        roles = {role.name: dict(role.summary) for role in self.status(name).roles}
        return str(roles["bootstrap"]["group"])

    def client(self, *names: str) -> fencelock.Client:
        at = ",".join(f"tcp://127.0.0.1:{self.at[name]}" for name in names)
        return fencelock.connect(at, cluster="orders", connect_timeout=LONG_S)


@pytest.fixture(params=["paxos", "bakery"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        nodes = Nodes(tmp_path, request.param)
        stack.callback(lambda: nodes.stop(*nodes.running))
        nodes.start(*FOUNDERS, found=True)
        yield nodes


def until(done: Callable[[], bool], what: str, refusals: Sequence[Exception] = ()) -> None:
    ends = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < ends, (what, refusals[-3:])
        time.sleep(0.05)


def change(client: fencelock.Client, action: MemberAction, node: str, new: str = "") -> None:
    wanted = ChangeMembers(action=action, node=node, replacement=new)
    refusals: list[Exception] = []

    def is_done() -> bool:
        try:
            return client.change_members(wanted).done
        except (UnavailableError, MembershipError) as refusal:
            refusals.append(refusal)
            return False

    until(is_done, f"{action.name} {node} {new}", refusals)


def test_founders_that_lost_their_disks_cut_off_from_later_members_found_nothing(
    nodes: Nodes,
) -> None:
    with nodes.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            nodes.start(name)
            change(client, MemberAction.JOIN, name)
        lock = client.lock("x")
        assert lock.acquire(timeout=LONG_S)
        group = nodes.group("n4")
        assert group

    reached = dict(nodes.at)
    nodes.wipe(*FOUNDERS)
    nodes.at.update(zip(FOUNDERS, free_ports(3), strict=True))  # Others cannot reach them there.
    nodes.start(*FOUNDERS)
    for name in FOUNDERS:
        until(lambda: "no cluster is known to n1, n2, n3" in nodes.status(name).detail, name)  # noqa: B023
        assert nodes.group(name) == ""
    with nodes.client(*FOUNDERS) as other, pytest.raises(FencelockError):
        other.lock("x", timeout=1).acquire()

    nodes.stop(*FOUNDERS)
    nodes.at = reached
    nodes.start(*FOUNDERS)
    for name in FOUNDERS:
        until(lambda: nodes.group(name) == group, f"{name} is not told its group")  # noqa: B023
        assert "lost its journal" in nodes.status(name).detail


def test_replaced_founders_that_start_empty_found_nothing_and_serve_nobody(nodes: Nodes) -> None:
    with nodes.client("n1", "n2", "n3") as client:
        for old, new in zip(FOUNDERS, ("n4", "n5", "n6"), strict=True):
            nodes.start(new, knows=(*FOUNDERS, *(one for one in ("n4", "n5") if one < new)))
            change(client, MemberAction.REPLACE, old, new)
        group = nodes.group("n4")
        nodes.wipe(*FOUNDERS)

        nodes.start(*FOUNDERS)
        # Whether they learn of the group depends on which links to former members are left.
        told = ("no cluster is known", "serves nobody", "n1 lost its journal")
        until(
            lambda: any(one in nodes.status("n1").detail for one in told), "n1 says what it knows"
        )
        assert {nodes.group(name) for name in FOUNDERS} <= {"", group}
        with client.lock("x", timeout=LONG_S):  # The group of the others goes on.
            pass

        nodes.wipe("n1")
        nodes.stop("n2", "n3")  # They may know the group, but not yet that n1 was replaced.
        nodes.start("n1", knows=(*FOUNDERS, "n4"))
        until(lambda: nodes.group("n1") == group, "n1 is not told of the group")
        until(lambda: "serves nobody" in nodes.status("n1").detail, nodes.status("n1").detail)
        assert not nodes.status("n1").ready
        nodes.start("n2", "n3")
        change(client, MemberAction.JOIN, "n1")
        until(lambda: nodes.status("n1").ready, nodes.status("n1").detail)


def test_founders_that_lost_their_disks_are_told_of_the_group_before_they_found_another(
    nodes: Nodes,
) -> None:
    with nodes.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            nodes.start(name)
            change(client, MemberAction.JOIN, name)
    group = nodes.group("n4")
    nodes.wipe(*FOUNDERS)
    down_at = nodes.status("n4").uptime_ms
    until(lambda: nodes.status("n4").uptime_ms > down_at + DOWN_MS, "n4 tries to connect seldom")

    nodes.start(*FOUNDERS, found=True)

    for name in FOUNDERS:
        until(lambda: nodes.group(name) != "", f"{name} knows no group")  # noqa: B023
        assert nodes.group(name) == group


def test_a_node_that_starts_empty_again_joins_with_the_journal_that_it_has_now(
    nodes: Nodes,
) -> None:
    with nodes.client(*FOUNDERS) as client:
        nodes.start("n4")
        until(lambda: "n4" in known_to(client), "n4 is not known")
        nodes.wipe("n4")
        nodes.start("n4")
        change(client, MemberAction.JOIN, "n4")
        until(lambda: standing(nodes, "n4") == "VOTER", nodes.status("n4").detail)


@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_two_groups_of_one_cluster_refuse_each_other_and_status_shows_it(
    protocol: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        nodes = Nodes(tmp_path, protocol)
        stack.callback(lambda: nodes.stop(*nodes.running))
        for name in ("n1", "n2"):
            nodes.start(name, knows=(name,), found=True)
            until(lambda: nodes.status(name).ready, f"{name} founds a group")  # noqa: B023
        nodes.stop("n1", "n2")

        nodes.start("n1", "n2", knows=("n1", "n2"))

        at = ",".join(f"tcp://127.0.0.1:{nodes.at[name]}" for name in ("n1", "n2"))
        arguments = ["status", "--connect", at, "--cluster", "orders"]
        shown = "There are two groups under this cluster's name: refused by n1 ("
        until(lambda: shown in told(arguments), "status shows the refusals")
        assert nodes.group("n1") != nodes.group("n2")


def told(arguments: list[str]) -> str:
    """Return what a command prints, without its line breaks."""
    return " ".join(CliRunner().invoke(app, arguments).output.split())


def known_to(client: fencelock.Client) -> set[str]:
    """Return the nodes that have described themselves to the one that decides."""
    return {report.node for report in client.members().nodes if report.last_message_ms is not None}


def standing(nodes: Nodes, name: str) -> str:
    """Return whether a node votes, as its journal stands in the group."""
    roles = {role.name: dict(role.summary) for role in nodes.status(name).roles}
    return str(roles["bootstrap"]["standing"])
