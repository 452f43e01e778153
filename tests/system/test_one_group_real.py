"""Groups of real nodes: one is founded, lost journals do not vote, and a rogue member is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.collected import Line, Lines
from support.expect import PATIENCE_S, checked, present
from support.real_nodes import Cluster, config_in, running, until
from support.rogue_roles import ROGUE, with_rogue
from typer.testing import CliRunner

import fencelock
from fencelock import ChangeMembers, FencelockError, MemberAction, MembershipError, UnavailableError
from fencelock.actors.api.message import Describe, NodeStatus
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
        status = self.running[name].proxy.ask(Describe(roles=True), timeout=PATIENCE_S)
        assert isinstance(status, NodeStatus)
        return status

    def group(self, name: str) -> str:
        """Return the group of a node, empty if it knows none."""
        roles = {role.name: dict(role.summary) for role in self.status(name).roles}
        return str(roles["bootstrap"]["group"])

    def client(self, *names: str) -> fencelock.Client:
        at = ",".join(f"tcp://127.0.0.1:{self.at[name]}" for name in names)
        return fencelock.connect(at, cluster="orders", connect_timeout=PATIENCE_S)


@pytest.fixture(params=["paxos", "bakery"])
def founders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        founders = Nodes(tmp_path, request.param)
        stack.callback(lambda: founders.stop(*founders.running))
        founders.start(*FOUNDERS, found=True)
        yield founders


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


def test_founders_without_disks_and_later_members_found_nothing(founders: Nodes) -> None:
    with founders.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            founders.start(name)
            change(client, MemberAction.JOIN, name)
        lock = client.lock("x")
        assert lock.acquire(timeout=PATIENCE_S)
        group = founders.group("n4")
        assert group

    reached = dict(founders.at)
    founders.wipe(*FOUNDERS)
    founders.at.update(zip(FOUNDERS, free_ports(3), strict=True))  # Others cannot reach them there.
    founders.start(*FOUNDERS)
    for name in FOUNDERS:
        until(lambda: "no cluster is known to n1, n2, n3" in founders.status(name).detail, name)  # noqa: B023
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
            change(client, MemberAction.REPLACE, old, new)
        group = founders.group("n4")
        founders.wipe(*FOUNDERS)

        founders.start(*FOUNDERS)
        # Whether they learn of the group depends on which links to former members are left.
        texts = ("no cluster is known", "serves nobody", "n1 lost its journal")
        until(
            lambda: any(one in founders.status("n1").detail for one in texts),
            "n1 reports what it knows",
        )
        assert {founders.group(name) for name in FOUNDERS} <= {"", group}
        with client.lock("x", timeout=PATIENCE_S):  # The group of the others goes on.
            pass

        founders.wipe("n1")
        founders.stop("n2", "n3")  # They may know the group, but not yet that n1 was replaced.
        founders.start("n1", knows=(*FOUNDERS, "n4"))
        until(lambda: founders.group("n1") == group, "n1 does not know the group")
        until(lambda: "serves nobody" in founders.status("n1").detail, founders.status("n1").detail)
        assert not founders.status("n1").ready
        founders.start("n2", "n3")
        change(client, MemberAction.JOIN, "n1")
        until(lambda: founders.status("n1").ready, founders.status("n1").detail)


def test_founders_that_lost_their_disks_learn_of_the_group_there_is(founders: Nodes) -> None:
    with founders.client("n1", "n2", "n3") as client:
        for name in ("n4", "n5"):
            founders.start(name)
            change(client, MemberAction.JOIN, name)
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
        change(client, MemberAction.JOIN, "n4")
        until(lambda: standing(founders, "n4") == "VOTER", founders.status("n4").detail)


@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_two_groups_of_one_cluster_refuse_each_other(protocol: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        founders = Nodes(tmp_path, protocol)
        stack.callback(lambda: founders.stop(*founders.running))
        for name in ("n1", "n2"):
            founders.start(name, knows=(name,), found=True)
            until(lambda: founders.status(name).ready, f"{name} founds a group")  # noqa: B023
        founders.stop("n1", "n2")

        founders.start("n1", "n2", knows=("n1", "n2"))

        at = ",".join(f"tcp://127.0.0.1:{founders.at[name]}" for name in ("n1", "n2"))
        arguments = ["status", "--connect", at, "--cluster", "orders"]
        shown = "There are two groups under this cluster's name: refused by n1 ("
        until(lambda: shown in status_text(arguments), "status shows the refusals")
        assert founders.group("n1") != founders.group("n2")


def status_text(arguments: list[str]) -> str:
    """Return what a command prints, without its line breaks."""
    return " ".join(CliRunner().invoke(app, arguments).output.split())


def known_to(client: fencelock.Client) -> set[str]:
    """Return the nodes that have described themselves to the one that decides."""
    return {report.node for report in client.members().nodes if report.last_message_ms is not None}


def standing(founders: Nodes, name: str) -> str:
    """Return whether a node votes, as its journal stands in the group."""
    roles = {role.name: dict(role.summary) for role in founders.status(name).roles}
    return str(roles["bootstrap"]["standing"])


NAMES = ("n1", "n2", "n3")


class IdentityCluster(Cluster):
    """Three members of `paxos`, each with a folder of its own."""

    def folder(self, name: str) -> Path:
        return present(self.config.folder_of(name))

    def lock(self, name: str, through: str, timeout: float = PATIENCE_S) -> int | None:
        """Take a lock through one node, and keep it; return its fence, None without a majority."""
        try:
            hold = self.connect(through, ttl=60).lock(name).acquire(timeout=timeout)
        except UnavailableError:
            return None
        return None if hold is None else hold.fence

    def status(self, name: str) -> NodeStatus:
        return checked(NodeStatus, self.running[name].proxy.ask(Describe(), timeout=PATIENCE_S))

    def wait_until(self, name: str, is_so: Callable[[NodeStatus], bool]) -> None:
        for _ in range(2_000):  # Each request waits for the node's reply.
            if is_so(self.status(name)):
                return
        pytest.fail(f"last status of {name}: {self.status(name)}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[IdentityCluster]:
    cluster = IdentityCluster("paxos", 3, tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("protocol", ["paxos", "bakery"])
def test_a_client_learns_that_nobody_has_founded_the_cluster(
    tmp_path: Path, protocol: str, lines: Lines
) -> None:
    founders = Nodes(tmp_path, protocol)
    with ExitStack() as stack:
        stack.callback(lambda: founders.stop(*founders.running))
        founders.start(*FOUNDERS)
        for name in FOUNDERS:
            until(lambda: "no cluster is known" in founders.status(name).detail, name)  # noqa: B023
        client = stack.enter_context(founders.client(*FOUNDERS))
        with pytest.raises(UnavailableError, match="If it is new, begin it: fencelock found"):
            client.lock("x").acquire(timeout=4)
        level, _, text = lines.until(lambda line: "lock 'x': waiting for 2 s: " in line[2])
        assert level == "WARNING"
        assert "no cluster is known to n1, n2, n3. If it is new, begin it" in text
        assert text.count("lock 'x'") == 1


def test_a_new_cluster_waits_for_all_members_and_names_the_missing_ones(
    cluster: IdentityCluster,
) -> None:
    cluster.start("n1", "n2")
    cluster.wait_until("n1", lambda status: "waiting for n3: a new cluster" in status.detail)
    assert cluster.lock("a", "n1", timeout=0.2) is None

    cluster.start("n3")

    assert cluster.lock("a", "n2") is not None


def test_a_lock_is_not_granted_twice_if_a_member_lost_its_journal(cluster: IdentityCluster) -> None:
    cluster.start(*NAMES)
    cluster.lock("warm", "n3")
    cluster.stop("n3")
    assert cluster.lock("a", "n1") is not None
    cluster.stop("n1", "n2")

    shutil.rmtree(cluster.folder("n2"))
    cluster.start("n2", "n3")

    assert cluster.lock("a", "n3", timeout=1) is None
    cluster.wait_until("n2", lambda status: "n2 lost its journal" in status.detail)
    cluster.start("n1")
    assert cluster.lock("b", "n2") is not None  # It serves, and the other two decide.
    assert "does not vote" in cluster.status("n2").detail


def test_an_old_copy_of_a_journal_does_not_vote(cluster: IdentityCluster, tmp_path: Path) -> None:
    cluster.start(*NAMES)
    cluster.lock("warm", "n1")
    cluster.stop("n2")
    copy = tmp_path / "copy"
    shutil.copytree(cluster.folder("n2"), copy)
    cluster.start("n2")
    fence = cluster.lock("a", "n2")
    cluster.wait_until("n2", lambda status: "does not vote" not in status.detail)
    cluster.stop("n2")

    shutil.rmtree(cluster.folder("n2"))
    shutil.copytree(copy, cluster.folder("n2"))
    cluster.start("n2")

    cluster.wait_until("n2", lambda status: "old copy of its journal" in status.detail)
    later = cluster.lock("b", "n2")
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
