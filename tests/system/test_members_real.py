"""`paxos` and `bakery` with real processes whose members change while clients work."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.expect import present
from support.programs import run_to_end
from support.real_nodes import change_members, until
from support.storm import LONG_S, Storm, raging
from typer.testing import CliRunner, Result

import fencelock
from fencelock import MemberAction, NodeRole, StaleError, UnavailableError
from fencelock.cluster.cli.main import app
from fencelock.verification.bench.members import NodeProcesses, described, leader_among

GAP_S = 1.0
"""The longest time without a grant that an idle machine should show (s)."""

PAIR_MS = 100.0
"""The longest acquire and release during a transfer that it should show (ms)."""

SLACK = 5
"""A machine that has much else to do may need so many times as long."""

AGE_S = 1.0
"""The age bound of local reads (s)."""


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    with raging(tmp_path) as storm:
        yield storm


@pytest.fixture
def watcher(storm: Storm) -> Iterator[fencelock.Client]:
    """A client that knew only the first three members."""
    members = storm.members
    with members.ready_client() as watcher:
        yield watcher


def connected_to(storm: Storm, node: str) -> fencelock.Client:
    """Return a client that knows the address of ``node`` alone."""
    members = storm.members
    return fencelock.connect(
        members.addresses[node], cluster=members.cluster, connect_timeout=LONG_S
    )


def role_of(watcher: fencelock.Client, node: str) -> NodeRole | None:
    """Return the part of ``node`` in the cluster, None if it is not known."""
    return next((one.role for one in watcher.members().nodes if one.node == node), None)


def command(storm: Storm, *arguments: str) -> Result:
    members = storm.members
    where = ["--connect", members.connect, "--cluster", members.cluster]
    return CliRunner().invoke(app, [*arguments, *where])


def kill_and_restart(storm: Storm, watcher: fencelock.Client) -> None:
    """Kill any member, often the one that leads, and start it again after some grants."""
    node = storm.choose(leader_among(described(watcher)))
    storm.members.kill(node)
    storm.tell(f"{node} killed")
    storm.wait_for(storm.chance.randrange(1, 20))
    storm.members.start(node)


def join(storm: Storm, watcher: fencelock.Client, node: str) -> None:
    """Start ``node`` and let it become a member, while clients work."""
    storm.members.add(node)
    assert node in change_members(watcher, MemberAction.JOIN, node)
    storm.tell(f"{node} joined")
    storm.wait_for(10)


@pytest.fixture
def loaded(storm: Storm) -> Storm:
    """Return a cluster under the load of clients that were served."""
    storm.start_clients()
    storm.wait_for(10)
    return storm


@pytest.mark.long
def test_three_grow_to_five_and_each_of_the_first_is_replaced_under_load_with_kills(
    loaded: Storm, watcher: fencelock.Client
) -> None:
    storm, members = loaded, loaded.members
    for node in ("n4", "n5"):
        join(storm, watcher, node)
        kill_and_restart(storm, watcher)
        members.wait_until_ready(watcher)
    for old, new in (("n1", "n6"), ("n2", "n7"), ("n3", "n8")):
        members.add(new)
        if storm.chance.random() < 0.5:
            members.kill(old)  # It will never come back.
            storm.tell(f"{old} is gone")
        now = change_members(watcher, MemberAction.REPLACE, old, new)
        assert old not in now
        assert new in now
        members.drop(old)
        storm.tell(f"{new} replaced {old}: {', '.join(now)}")
        storm.wait_for(10)
        kill_and_restart(storm, watcher)
        members.wait_until_ready(watcher)
    read = watcher.members()
    assert [node.node for node in read.nodes] == ["n4", "n5", "n6", "n7", "n8"]
    assert all(node.role in (NodeRole.LEADER, NodeRole.MEMBER) for node in read.nodes)
    assert read.view == 8
    storm.wait_for(20)
    print(f"longest time without a grant: {storm.longest_gap_s:.3f} s (bar {GAP_S} s)")
    assert storm.longest_gap_s < SLACK * GAP_S
    storm.judge(watcher)


@pytest.mark.long
def test_all_members_restart_at_once_with_the_members_in_their_journals(
    storm: Storm, watcher: fencelock.Client
) -> None:
    """The configuration of each names nodes that were removed, and does not name the other."""
    members = storm.members
    for node in ("n4", "n5"):
        members.add(node)
        change_members(watcher, MemberAction.JOIN, node)
    for node in ("n1", "n2", "n3"):
        change_members(watcher, MemberAction.LEAVE, node)
        members.drop(node)
    fence = present(watcher.lock("a").acquire())
    fence.release()
    for node in ("n4", "n5"):
        members.kill(node)
    for node in ("n4", "n5"):
        members.start(node)
    members.wait_until_ready(watcher)
    again = present(watcher.lock("a").acquire(timeout=LONG_S))
    assert again.fence > fence.fence
    with connected_to(storm, "n5") as other:
        assert [node.node for node in other.members().nodes] == ["n4", "n5"]


def test_a_disk_that_is_lost_right_after_a_join_leaves_a_group(
    storm: Storm, watcher: fencelock.Client
) -> None:
    """The other two restart, and must know that the two former members no longer decide alone."""
    members = storm.members
    members.kill("n3")
    change_members(watcher, MemberAction.REMOVE, "n3")
    members.add("n4")
    change_members(watcher, MemberAction.JOIN, "n4")
    leader = leader_among(described(watcher))
    for node in sorted({"n1", "n2", "n4"} - {leader}):
        members.kill(node)
    members.kill(leader)
    shutil.rmtree(storm.folder / "data" / leader)
    for node in ("n1", "n2", "n4"):
        members.start(node)

    assert watcher.lock("a").acquire(timeout=LONG_S)


@pytest.mark.long
def test_a_member_without_its_disk_is_replaced(loaded: Storm, watcher: fencelock.Client) -> None:
    storm, members = loaded, loaded.members
    members.kill("n2")
    shutil.rmtree(storm.folder / "data" / "n2")
    members.start("n2")
    until(lambda: role_of(watcher, "n2") is NodeRole.NON_VOTING, "n2 lost its journal")
    replaced = command(storm, "replace", "n2")
    assert replaced.exit_code == 0, replaced.output
    storm.tell("n2 was replaced")
    members.wait_until_ready(watcher)
    members.kill("n3")  # From now on nothing is decided without n2.
    storm.wait_for(20)
    assert role_of(watcher, "n2") in (NodeRole.LEADER, NodeRole.MEMBER)
    members.start("n3")
    members.wait_until_ready(watcher)
    print(f"longest time without a grant: {storm.longest_gap_s:.3f} s (bar {GAP_S} s)")
    storm.judge(watcher)


def test_the_lead_is_transferred_without_a_pause(storm: Storm, watcher: fencelock.Client) -> None:
    members = storm.members
    stop = threading.Event()
    longest_ms: list[float] = []

    def pairs(client: fencelock.Client) -> None:
        lock = client.lock("transfer")
        longest = 0.0
        while not stop.is_set():
            began = time.monotonic()
            with lock:
                pass
            longest = max(longest, time.monotonic() - began)
        longest_ms.append(1_000 * longest)

    with members.ready_client() as client:
        worker = threading.Thread(target=pairs, args=(client,))
        worker.start()
        for _ in range(3):
            for node in members.names:
                change_members(watcher, MemberAction.TRANSFER, node)
                until(lambda node=node: leader_among(described(watcher)) == node, node)  # type: ignore[misc]
        stop.set()
        worker.join(LONG_S)
    (longest,) = longest_ms
    print(f"longest pair during nine transfers: {longest:.1f} ms (bar {PAIR_MS:g} ms)")
    assert longest < SLACK * PAIR_MS


def test_operators_see_and_change_real_members(storm: Storm, watcher: fencelock.Client) -> None:
    where = ["--connect", storm.members.connect, "--cluster", storm.members.cluster]
    nobody = run_to_end([sys.executable, "-m", "fencelock", "join", "n9", *where])
    assert nobody.returncode == 2
    assert "n9" in nobody.stderr
    assert "Traceback" not in nobody.stderr
    storm.members.add("n4")
    until(lambda: "n4" in {node.node for node in watcher.members().nodes}, "n4 answers")
    assert "fencelock join n4" in command(storm, "members").stdout
    joined = command(storm, "join", "n4")
    assert joined.exit_code == 0, joined.output
    assert "The members are n1, n2, n3, n4." in joined.stdout
    left = command(storm, "leave", "n4", "--json")
    assert json.loads(left.stdout)["members"] == ["n1", "n2", "n3"]
    moved = command(storm, "transfer", "n2")
    assert moved.exit_code == 0, moved.output
    read = json.loads(command(storm, "members", "--json").stdout)
    assert {node["node"]: node["role"] for node in read["nodes"]}["n2"] == "leader"


def test_one_living_address_is_enough_to_begin(storm: Storm, watcher: fencelock.Client) -> None:
    members = storm.members
    with connected_to(storm, "n1") as client:
        until(lambda: len(client.describe()) == len(members.names), "the members are known")
        members.drop("n1")
        hold = present(client.lock("a").acquire(timeout=LONG_S))
        hold.release()
        assert watcher.protocol == "paxos"


def test_an_observer_serves_local_reads_while_any_member_is_stopped(
    storm: Storm, watcher: fencelock.Client
) -> None:
    members = storm.members
    members.add("n4")
    until(lambda: role_of(watcher, "n4") is NodeRole.OBSERVER, "n4 learns")

    def seen(reader: fencelock.Client) -> int | None:
        """Return the fence that the observer reports, None if its state may be too old."""
        try:
            status = reader.status("a", read="local", max_age=AGE_S)
        except StaleError:
            return None  # The next leader is not elected yet, or this machine has much else to do.
        assert status.age_ms is not None
        assert status.age_ms <= 1_000 * AGE_S
        return status.holder.fence if status.holder is not None else 0

    with connected_to(storm, "n4") as reader:
        for node in ("n1", "n2", "n3"):
            members.processes[node].send_signal(signal.SIGSTOP)
            try:
                with watcher.lock("a", timeout=LONG_S) as hold:
                    until(lambda hold=hold: seen(reader) == hold.fence, f"without {node}")  # type: ignore[misc]
                until(lambda: seen(reader) == 0, f"released without {node}")
            finally:
                members.processes[node].send_signal(signal.SIGCONT)
        (status,) = (one for one in reader.describe() if one.node == "n4")
        assert "n4 is an observer" in status.detail
    until(lambda: all(one.version for one in watcher.members().nodes), "each reports its version")
    assert role_of(watcher, "n4") is NodeRole.OBSERVER  # It never becomes a member by itself.


@pytest.mark.long
def test_a_spare_replaces_a_dead_member_by_itself_and_locks_go_on(tmp_path: Path) -> None:
    with raging(tmp_path, "target_members = 3\nreplace_after_s = 2\n") as storm:
        members = storm.members
        with members.ready_client() as watcher:
            members.add("n4")
            until(lambda: role_of(watcher, "n4") is NodeRole.OBSERVER, "n4 learns")
            storm.start_clients()
            storm.wait_for(10)
            dead = min({"n1", "n2", "n3"} - {leader_among(described(watcher))})
            left = {"n1", "n2", "n3", "n4"} - {dead}
            members.kill(dead)
            until(lambda: voting(watcher) == left, f"n4 replaces {dead}")
            storm.tell(f"n4 replaced {dead}")
            storm.wait_for(20)
            logs = "".join(log.read_text("utf-8") for log in tmp_path.glob("n*.log"))
            assert f"{dead} has not answered" in logs
            assert "for 2 s: n4 is to replace it" in logs
            members.start(dead)  # It finds out that it is no member any more.
            until(lambda: role_of(watcher, dead) is NodeRole.OBSERVER, f"{dead} learns")
            storm.wait_for(20)
            assert voting(watcher) == left
            storm.judge(watcher)


def voting(watcher: fencelock.Client) -> set[str]:
    """Return the members, as far as they are known."""
    roles = (NodeRole.LEADER, NodeRole.MEMBER)
    try:
        return {one.node for one in watcher.members().nodes if one.role in roles}
    except UnavailableError:
        return set()


@pytest.mark.long
def test_bakery_grows_from_three_to_five_and_loses_a_member_under_load(tmp_path: Path) -> None:
    with raging(tmp_path, protocol="bakery") as storm:
        members = storm.members
        with members.ready_client() as watcher:
            storm.start_clients()
            storm.wait_for(10)
            for node in ("n4", "n5"):
                join(storm, watcher, node)
            left = json.loads(command(storm, "leave", "n1", "--json").stdout)
            assert left["members"] == ["n2", "n3", "n4", "n5"]
            storm.tell("n1 left")
            storm.wait_for(10)
            members.drop("n1")
            storm.tell("n1 is gone")
            storm.wait_for(10)
            members.kill("n2")
            removed = command(storm, "remove", "n2", "--json")
            assert json.loads(removed.stdout)["members"] == ["n3", "n4", "n5"], removed.stderr
            members.drop("n2")
            storm.tell("n2 was removed")
            storm.wait_for(10)
            members.kill("n3")
            members.start("n3")  # With a configuration of three, of which two were removed.
            members.wait_until_ready(watcher)
            storm.wait_for(10)
            shown = json.loads(command(storm, "members", "--json").stdout)
            roles = {node["node"]: node["role"] for node in shown["nodes"]}
            assert {roles[node] for node in ("n3", "n4", "n5")} <= {"leader", "member"}
            print(f"longest time without a grant: {storm.longest_gap_s:.3f} s")
            storm.judge(watcher)


@pytest.mark.long
def test_a_member_that_is_silent_is_shown_as_down_until_it_is_back(tmp_path: Path) -> None:
    members = NodeProcesses(tmp_path, "paxos", 3, durable=True)
    with (tmp_path / "cluster.toml").open("a", encoding="utf-8") as file:
        file.write("down_after = 1.0\n")
    with members:
        with members.ready_client() as watcher:
            silent = next(one for one in members.names if one != leader_among(described(watcher)))

        def shown() -> str:
            where = ["--connect", members.connect, "--cluster", members.cluster]
            rows = CliRunner().invoke(app, ["members", *where]).stdout.splitlines()
            return next((row for row in rows if silent in row), "")

        members.kill(silent)
        until(lambda: " down " in shown())
        members.start(silent)
        until(lambda: " member " in shown())
