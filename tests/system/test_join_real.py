"""`fencelock serve --join`: nodes that are in no file, beside real nodes with and without keys."""

from __future__ import annotations

import socket
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, with_long
from support.real_nodes import (
    NODES,
    KeyedProcesses,
    change_members,
    config_in,
    keyed_nodes,
    loopback_addresses,
    running,
    running_nodes,
    until,
)

import fencelock
from fencelock import MemberAction, NodeRole, UnavailableError
from fencelock.actors.config_source import DIALS_MAX
from fencelock.actors.error import ConfigError
from fencelock.actors.proxy.access import CLIENT, NODE, Rights
from fencelock.cluster.keys import add_key
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.joining import Joining, joined
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses

GROWING = pytest.mark.parametrize("protocol", with_long(["paxos", "bakery"], "bakery"))
SPARES = "target_members = 3\nreplace_after_s = 1.0\n"


@contextmanager
def serving(folder: Path, seed: str, *options: str) -> Generator[None]:
    """Run `fencelock serve --join` in a process; kill it, and print what it printed."""
    command = [sys.executable, "-m", "fencelock", "serve", "--join", seed, *options]
    path = folder / "joins.log"
    with path.open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        print(path.read_text())


def roles(operator: fencelock.Client) -> dict[str, NodeRole]:
    """Return the part of each node that answered recently; nothing while no node leads."""
    try:
        nodes = operator.members().nodes
    except UnavailableError:
        return {}
    return {
        one.node: one.role
        for one in nodes
        if one.last_message_ms is not None and one.last_message_ms < 1_000
    }


def votes(operator: fencelock.Client, node: str) -> bool:
    return roles(operator).get(node) in (NodeRole.LEADER, NodeRole.MEMBER)


@pytest.mark.long
@GROWING
def test_a_node_in_no_file_replaces_a_dead_member_by_itself_and_starts_again(
    protocol: str, tmp_path: Path
) -> None:
    nodes = NodeProcesses(tmp_path, protocol, 3, durable=True)
    with (tmp_path / "cluster.toml").open("a", encoding="utf-8") as file:
        file.write(SPARES)
    with nodes, nodes.ready_client() as operator:
        seed = nodes.addresses["n2"]
        with serving(tmp_path, seed, "--id", "n4"):
            until(lambda: roles(operator).get("n4") is NodeRole.OBSERVER, "n4 is a guest")
            nodes.kill("n3")
            until(lambda: votes(operator, "n4"), "n4 is a member")
            until(lambda: "n3" not in {one.node for one in operator.members().nodes}, "n3 is out")
        until(lambda: not votes(operator, "n4"), "n4 is gone")
        nodes.kill("n2")  # The address that it joined at: it needs that no more.
        nodes.start("n2")
        with serving(tmp_path, seed, "--id", "n4"):
            until(lambda: votes(operator, "n4"), "n4 is back")
            with operator.lock("a", timeout=PATIENCE_S) as hold:
                assert hold.fence


@GROWING
def test_a_node_with_a_key_joins_under_the_name_of_its_key(protocol: str, tmp_path: Path) -> None:
    nodes = KeyedProcesses(tmp_path, protocol, 3, durable=True)
    add_key(tmp_path / "keys", Rights("n4", NODE))
    with nodes, nodes.client("alice") as operator:
        nodes.wait_until_ready(operator)
        with serving(tmp_path, nodes.addresses["n1"], "--key", "keys/n4.key"):
            until(lambda: roles(operator).get("n4") is NodeRole.OBSERVER, "n4 is a guest")
            change_members(operator, MemberAction.JOIN, "n4")
            assert votes(operator, "n4")


def refusal(joining: Joining) -> str:
    """Return why a node cannot join; nothing is written."""
    with pytest.raises((ConfigError, UnavailableError)) as caught:
        joined(joining)
    assert not joining.data.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path) as nodes:
        yield nodes


def test_a_mistake_is_one_line_with_what_to_do_next(nodes: dict[str, Node], tmp_path: Path) -> None:
    seed, n2 = nodes["n1"].address, nodes["n2"].address
    right = Joining(seed, tmp_path / "joins")
    port, other = free_ports(2)
    assert "like tcp://10.0.0.1:4040" in refusal(right._replace(seed="10.0.0.1"))
    nobody = refusal(right._replace(seed=f"tcp://127.0.0.1:{port}"))
    assert "connection refused" in nobody
    assert "--join tcp://HOST:PORT" in nobody
    foreign = refusal(right._replace(cluster="shop"))
    assert "belongs to the cluster fencelock" in foreign
    assert f"at {n2}: choose another name" in refusal(right._replace(node="n2"))
    assert "1 to 32 of a-z" in refusal(right._replace(node="../n9"))
    listen = f"tcp://127.0.0.1:{port}"
    unreached = right._replace(address=f"tcp://127.0.0.1:{other}", listen=listen)
    assert f"n1 cannot reach this node at tcp://127.0.0.1:{other}" in refusal(unreached)
    with socket.create_server(("127.0.0.1", other)):
        assert "leads to another program" in refusal(unreached)
    for _ in range(DIALS_MAX + 1):  # None of them occupies the node for good.
        nowhere = right._replace(address=f"tcp://a..b:{port}", listen=listen)
        assert "its host is neither" in refusal(nowhere)
    assert "'4040' is no address like" in refusal(right._replace(listen="4040"))
    assert "is the address of n2" in refusal(right._replace(address=n2, listen=listen))
    assert f"cannot listen on {n2}" in refusal(right._replace(address=n2))
    assert "like tcp://10.0.0.4:4040" in refusal(right._replace(address="tcp://0.0.0.0:4040"))


def test_a_member_that_lost_its_folder_comes_back_at_its_address_only(
    nodes: dict[str, Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelock.cluster.node.joining.RUNS_MS", 0)  # So it counts as silent.
    with fencelock.connect(nodes["n1"].address, connect_timeout=PATIENCE_S) as operator:
        until(lambda: votes(operator, "n2"), "n2 answers")
    n2 = nodes.pop("n2")
    assert n2.stop(PATIENCE_S)
    lost = Joining(nodes["n1"].address, tmp_path / "joins", "n2")
    text = refusal(lost)
    assert f"n2 is a member at {n2.address}" in text
    assert "fencelock replace n2 NAME" in text
    config, name = joined(lost._replace(address=n2.address))
    assert (name, config.nodes["n2"]) == ("n2", n2.address)


def test_the_file_has_the_shared_settings_and_later_starts_read_it(tmp_path: Path) -> None:
    text = starting_config(loopback_addresses(), cluster="orders")
    text = text.replace("# heartbeat_ms = 50", "heartbeat_ms = 40")
    config = parse(text.replace("# insecure", "insecure"), tmp_path)
    joining = Joining(next(iter(config.nodes.values())), tmp_path / "joins", cluster="orders")
    with running(config):
        mine, name = joined(joining)
        again, same = joined(joining._replace(seed="tcp://127.0.0.1:9"))
    assert (again, same) == (mine, name)
    assert (mine.cluster, mine.protocol, mine.insecure) == ("orders", "paxos", True)
    assert mine.settings == config.settings
    assert set(mine.nodes) == {*NODES, name}
    assert mine.folder_of(name) == tmp_path / "joins" / name
    with pytest.raises(ConfigError, match="has joined with orders"):
        joined(joining._replace(cluster="shop"))
    (tmp_path / "joins" / "n9.toml").write_text((joining.data / f"{name}.toml").read_text())
    with pytest.raises(ConfigError, match="--id: missing"):
        joined(joining)


def test_two_nodes_of_one_machine_get_names_and_ports_of_their_own(
    nodes: dict[str, Node], tmp_path: Path
) -> None:
    seed = nodes["n1"].address
    config, name = joined(Joining(seed, tmp_path / "one"))
    with fencelock.connect(seed, connect_timeout=PATIENCE_S) as operator:
        first = Node.start(config, name)
        try:
            until(lambda: name in roles(operator), "it answers")
            others, other = joined(Joining(seed, tmp_path / "two"))
        finally:
            first.stop(PATIENCE_S)
    assert other != name
    assert others.nodes[other] != config.nodes[name]


@pytest.mark.parametrize("protocol", ["lamport", "central"])
def test_protocols_without_changes_print_where_to_add_nodes(protocol: str, tmp_path: Path) -> None:
    with running_nodes(tmp_path, protocol) as nodes:
        text = refusal(Joining(nodes["n1"].address, tmp_path / "joins"))
    assert "whose nodes are those of its configuration" in text


def test_a_cluster_that_is_not_founded_cannot_be_joined_yet(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with Node.start(config, "n1") as alone:
        assert "n1" in refusal(Joining(alone.address, tmp_path / "joins"))


def test_a_node_needs_a_key_that_the_cluster_accepts(tmp_path: Path) -> None:
    with keyed_nodes(tmp_path) as cluster:
        keys, seed = cluster.keys, cluster.addresses[0]
        joining = Joining(seed, tmp_path / "joins", "n4")
        without = refusal(joining)
        assert "it requires a key" in without
        assert "fencelock keys add n4 --role node" in without
        add_key(keys, Rights("n4", NODE))  # No node has read it.
        add_key(keys, Rights("n5", CLIENT))
        mine = joining._replace(key=keys / "n4.key")
        assert "it does not know this key" in refusal(mine)
        cluster.reload()
        client = refusal(mine._replace(key=keys / "n5.key", node="n5"))
        assert "is the key of a client" in client
        assert "fencelock keys add n5 --role node" in client
        assert "--id n4 or left out" in refusal(mine._replace(node="n6"))
        alone = tmp_path / "alone"
        alone.mkdir(0o700)
        (alone / "n4.key").write_bytes((keys / "n4.key").read_bytes())
        (alone / "n4.key").chmod(0o600)
        assert "copy them beside" in refusal(mine._replace(key=alone / "n4.key"))
        config, name = joined(mine)
    with running_nodes(tmp_path / "open") as nodes:
        assert "leave --key out" in refusal(
            mine._replace(seed=nodes["n1"].address, data=alone / "d")
        )
    assert name == "n4"
    assert config.keys == keys.resolve()
    file = tomllib.loads((tmp_path / "joins" / "n4.toml").read_text("utf-8"))
    assert file["nodes"]["n4"]["address"] == config.nodes["n4"]
