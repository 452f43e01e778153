"""Groups of real nodes: one is founded, lost journals do not vote, and a rogue member is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.collected import Line, Lines
from support.expect import PATIENCE_S, checked
from support.real_nodes import change_members, config_in, running, until
from support.rogue_roles import ROGUE, with_rogue
from typer.testing import CliRunner

import fencelock
from fencelock import FencelockError, MemberAction, UnavailableError
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node import topology
from fencelock.cluster.node.config import parse
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports

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
        self._clients = ExitStack()

    def start(self, *names: str, knows: tuple[str, ...] = FOUNDERS, found: bool = False) -> None:
        for name in names:
            lines = ['cluster = "orders"', f'protocol = "{self.protocol}"', 'data = "data"']
            for other in sorted({*knows, name}):
                lines += [f"[nodes.{other}]", f'address = "tcp://127.0.0.1:{self.at[other]}"']
            config = parse("\n".join(lines), self.folder)
            self.running[name] = Node.start(config, name, found=found)

    def stop(self, *names: str) -> None:
        for name in names:
            assert self.running.pop(name).stop(PATIENCE_S)

    def close(self) -> None:
        self._clients.close()
        self.stop(*self.running)

    def folder_of(self, name: str) -> Path:
        return self.folder / "data" / name

    def wipe(self, *names: str) -> None:
        self.stop(*names)
        for name in names:
            shutil.rmtree(self.folder_of(name))

    def status(self, name: str) -> NodeStatus:
        node = self.running[name]
        return checked(NodeStatus, node.proxy.ask(Describe(roles=True), timeout=PATIENCE_S))

    def wait_for(self, name: str, text: str) -> None:
        """Wait until the status of a node has ``text``."""
        seen = [""]

        def is_there() -> bool:
            seen[0] = self.status(name).detail
            return text in seen[0]

        until(is_there, name, text, seen)

    def bootstrap(self, name: str) -> dict[str, str]:
        """Return what a node knows of its group, and of its journal in it."""
        roles = {role.name: dict(role.summary) for role in self.status(name).roles}
        return roles["bootstrap"]

    def group(self, name: str) -> str:
        """Return the group of a node, empty if it knows none."""
        return self.bootstrap(name)["group"]

    def addresses(self, *names: str) -> str:
        return ",".join(f"tcp://127.0.0.1:{self.at[name]}" for name in names)

    def client(self, *names: str, ttl: float = 15.0) -> fencelock.Client:
        return fencelock.connect(
            self.addresses(*names), cluster="orders", connect_timeout=PATIENCE_S, ttl=ttl
        )

    def lock(self, name: str, through: str, timeout: float = PATIENCE_S) -> int | None:
        """Take a lock through one node, and keep it; return its fence, None without a majority."""
        client = self._clients.enter_context(self.client(through, ttl=60))
        try:
            hold = client.lock(name).acquire(timeout=timeout)
        except UnavailableError:
            return None
        return None if hold is None else hold.fence


@pytest.fixture(params=["paxos", "bakery"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """Return nodes of each protocol, of which none runs."""
    with closing(Nodes(tmp_path, request.param)) as nodes:
        yield nodes


@pytest.fixture
def founders(nodes: Nodes) -> Nodes:
    nodes.start(*FOUNDERS, found=True)
    return nodes


@pytest.fixture
def paxos(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path, "paxos")) as nodes:
        yield nodes


def test_founders_without_disks_and_later_members_found_nothing(founders: Nodes) -> None:
    with founders.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            founders.start(name)
            change_members(client, MemberAction.JOIN, name)
        lock = client.lock("x")
        assert lock.acquire(timeout=PATIENCE_S)
        group = founders.group("n4")
        assert group

    reached = dict(founders.at)
    founders.wipe(*FOUNDERS)
    founders.at.update(zip(FOUNDERS, free_ports(3), strict=True))  # Others cannot reach them there.
    founders.start(*FOUNDERS)
    for name in FOUNDERS:
        founders.wait_for(name, "no cluster is known to n1, n2, n3")
        assert founders.group(name) == ""
    with founders.client(*FOUNDERS) as other, pytest.raises(FencelockError):
        other.lock("x", timeout=1).acquire()

    founders.stop(*FOUNDERS)
    founders.at = reached
    founders.start(*FOUNDERS)
    for name in FOUNDERS:
        until(lambda: founders.group(name) == group, f"{name} does not know its group")  # noqa: B023
        assert "lost its journal" in founders.status(name).detail


def test_replaced_founders_that_start_empty_found_nothing_and_serve_no_client(
    founders: Nodes,
) -> None:
    with founders.client("n1", "n2", "n3") as client:
        for old, new in zip(FOUNDERS, ("n4", "n5", "n6"), strict=True):
            founders.start(new, knows=(*FOUNDERS, *(one for one in ("n4", "n5") if one < new)))
            change_members(client, MemberAction.REPLACE, old, new)
        group = founders.group("n4")
        founders.wipe(*FOUNDERS)

        founders.start(*FOUNDERS)
        # Whether they learn of the group depends on which links to former members are left.
        known = "no other node has confirmed it"
        texts = ["no cluster is known", known, "serves nobody", "n1 lost its journal"]
        # n1 may have heard of it only by others, or from a member that left it before it replied.
        texts += ["will not begin a cluster", "waiting for its reply"]
        seen = [""]

        def reports() -> bool:
            seen[0] = founders.status("n1").detail
            return any(one in seen[0] for one in texts)

        until(reports, "n1 reports what it knows", seen)
        assert {founders.group(name) for name in FOUNDERS} <= {"", group}
        with client.lock("x", timeout=PATIENCE_S):  # The group of the others goes on.
            pass

        founders.wipe("n1")
        founders.stop("n2", "n3")  # They may know the group, but not yet that n1 was replaced.
        founders.start("n1", knows=(*FOUNDERS, "n4", "n5"))  # It believes two.
        until(lambda: founders.group("n1") == group, "n1 does not know the group")
        founders.wait_for("n1", "serves nobody")
        assert not founders.status("n1").ready
        founders.start("n2", "n3")
        change_members(client, MemberAction.JOIN, "n1")
        until(lambda: founders.status("n1").ready, founders.status("n1").detail)


def test_founders_that_lost_their_disks_learn_of_the_group_there_is(founders: Nodes) -> None:
    with founders.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            founders.start(name)
            change_members(client, MemberAction.JOIN, name)
    group = founders.group("n4")
    founders.wipe(*FOUNDERS)
    down_at = founders.status("n4").uptime_ms
    until(lambda: founders.status("n4").uptime_ms > down_at + DOWN_MS, "n4 tries to connect seldom")

    founders.start(*FOUNDERS, found=True)

    for name in FOUNDERS:
        until(lambda: founders.group(name) != "", f"{name} knows no group")  # noqa: B023
        assert founders.group(name) == group


def test_a_node_that_starts_empty_again_joins_with_its_new_journal(founders: Nodes) -> None:
    with founders.client(*FOUNDERS) as client:
        founders.start("n4")
        until(lambda: "n4" in known_to(client), "n4 is not known")
        founders.wipe("n4")
        founders.start("n4")
        change_members(client, MemberAction.JOIN, "n4")
        until(lambda: founders.bootstrap("n4")["standing"] == "VOTER", founders.status("n4").detail)


def test_two_groups_of_one_cluster_refuse_each_other(nodes: Nodes) -> None:
    for name in ("n1", "n2"):
        nodes.start(name, knows=(name,), found=True)
        until(lambda: nodes.status(name).ready, f"{name} founds a group")  # noqa: B023
    nodes.stop("n1", "n2")

    nodes.start("n1", "n2", knows=("n1", "n2"))

    arguments = ["status", "--connect", nodes.addresses("n1", "n2"), "--cluster", "orders"]
    shown = "There are two groups under this cluster's name: refused by n1 ("
    until(lambda: shown in status_text(arguments), "status shows the refusals")
    assert nodes.group("n1") != nodes.group("n2")


def status_text(arguments: list[str]) -> str:
    """Return what a command prints, without its line breaks."""
    return " ".join(CliRunner().invoke(app, arguments).output.split())


def known_to(client: fencelock.Client) -> set[str]:
    """Return the nodes that have described themselves to the one that decides."""
    return {report.node for report in client.members().nodes if report.last_message_ms is not None}


def test_a_client_learns_that_nobody_has_founded_the_cluster(nodes: Nodes, lines: Lines) -> None:
    nodes.start(*FOUNDERS)
    for name in FOUNDERS:
        nodes.wait_for(name, "no cluster is known")
    with nodes.client(*FOUNDERS) as client:
        with pytest.raises(UnavailableError, match="If it is new, begin it: fencelock found"):
            client.lock("x").acquire(timeout=4)
        level, _, text = lines.until(lambda line: "lock 'x': waiting for 2 s: " in line[2])
        assert level == "WARNING"
        assert "no cluster is known to n1, n2, n3. If it is new, begin it" in text
        assert text.count("lock 'x'") == 1


def test_a_new_cluster_waits_for_all_members_and_names_the_missing_ones(
    paxos: Nodes,
) -> None:
    paxos.start("n1", "n2", found=True)
    paxos.wait_for("n1", "waiting for n3: a new cluster")
    assert paxos.lock("a", "n1", timeout=0.2) is None

    paxos.start("n3", found=True)

    assert paxos.lock("a", "n2") is not None


def test_a_lock_is_not_granted_twice_if_a_member_lost_its_journal(paxos: Nodes) -> None:
    paxos.start(*FOUNDERS, found=True)
    paxos.lock("warm", "n3")
    paxos.stop("n3")
    assert paxos.lock("a", "n1") is not None
    paxos.stop("n1", "n2")

    shutil.rmtree(paxos.folder_of("n2"))
    paxos.start("n2", "n3", found=True)

    assert paxos.lock("a", "n3", timeout=1) is None
    paxos.wait_for("n2", "and no other node has confirmed it")
    paxos.start("n1", found=True)
    paxos.wait_for("n2", "n2 lost its journal")
    assert paxos.lock("b", "n2") is not None  # It serves, and the other two decide.
    assert "does not vote" in paxos.status("n2").detail


def test_an_old_copy_of_a_journal_does_not_vote(paxos: Nodes, tmp_path: Path) -> None:
    paxos.start(*FOUNDERS, found=True)
    paxos.lock("warm", "n1")
    paxos.stop("n2")
    copy = tmp_path / "copy"
    shutil.copytree(paxos.folder_of("n2"), copy)
    paxos.start("n2", found=True)
    fence = paxos.lock("a", "n2")
    until(lambda: "does not vote" not in paxos.status("n2").detail, "n2")
    paxos.stop("n2")

    shutil.rmtree(paxos.folder_of("n2"))
    shutil.copytree(copy, paxos.folder_of("n2"))
    paxos.start("n2", found=True)

    paxos.wait_for("n2", "old copy of its journal")
    later = paxos.lock("b", "n2")
    assert fence is not None
    assert later is not None
    assert later > fence


NAMED = {
    "paxos": (f"{ROGUE} sent that slots are decided", f"{ROGUE} sent the digest of its state"),
    "bakery": (f"{ROGUE} sent the members {ROGUE} after",),
}


def is_error(line: Line, text: str) -> bool:
    level, node, what = line
    return level == "ERROR" and node != ROGUE and what.startswith(text)


def fence_of(nodes: dict[str, Node]) -> int:
    """Acquire a lock through a node that is honest, and release it."""
    addresses = [node.address for name, node in nodes.items() if name != ROGUE]
    with (
        fencelock.connect(addresses, connect_timeout=PATIENCE_S) as client,
        client.lock("a", timeout=PATIENCE_S) as hold,
    ):
        assert hold.fence is not None
        return hold.fence


@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_a_rogue_member_is_named_and_stops_no_other(
    protocol: str, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path, protocol)
    with monkeypatch.context() as patch:
        patch.setitem(
            topology.PROTOCOLS, protocol, with_rogue(topology.PROTOCOLS[protocol], protocol)
        )
        with running(config) as nodes:
            for text in NAMED[protocol]:
                lines.until(lambda line, text=text: is_error(line, text))  # type: ignore[misc]
            fences = [fence_of(nodes) for _ in range(3)]

    with running(config) as nodes:  # All are honest now, and have read their journals.
        assert fence_of(nodes) > max(fences)
