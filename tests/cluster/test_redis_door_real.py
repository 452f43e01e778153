"""A real node with a Redis door: beside native clients, with keys, and at its border."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry
from support.expect import PATIENCE_S, present
from support.planted_bugs import as_plant, nothing, plant
from support.real_nodes import make_keys, until
from support.redis_door import RawClient, door_node, port_of
from typer.testing import CliRunner

import fencelock
from fencelock.actors.role import Role
from fencelock.cluster.cli.main import app
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.keys import read_key, remove_key
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports


def client_of(node: Node, **options: Any) -> Any:
    return redis.Redis(
        port=port_of(node), socket_timeout=PATIENCE_S, retry=Retry(NoBackoff(), 0), **options
    )


def test_clients_of_the_door_and_native_clients_exclude_each_other() -> None:
    with door_node() as node, fencelock.connect(node.address) as native, client_of(node) as client:
        assert client.set("a", "token", nx=True, px=60_000)
        first = client.execute_command("LOCK.FENCE", "a")
        assert native.lock("a").acquire(timeout=0) is None
        assert present(native.status("a").holder).fence == first
        client.delete("a")
        with native.lock("a") as hold:
            assert hold.fence > first
            assert not client.set("a", "token", nx=True)
            owner = present(native.status("a").holder).owner
            assert client.get("a").decode().endswith(f"/{owner}")
            assert client.ttl("a") == -1
            assert client.execute_command("LOCK.FENCE", "a") == hold.fence
            with pytest.raises(ResponseError, match="is held by a client that does not use"):
                client.delete("a")
        assert client.set("a", "token", nx=True)


def test_a_native_client_waits_for_a_deadline_of_the_door() -> None:
    with door_node() as node, fencelock.connect(node.address) as native, client_of(node) as client:
        assert client.set("a", "token", nx=True, px=300)
        with native.lock("a", timeout=PATIENCE_S):
            assert not client.set("a", "other", nx=True)


def test_they_wait_in_one_queue() -> None:
    served: list[str] = []
    with door_node() as node, fencelock.connect(node.address) as native, client_of(node) as client:
        assert client.set("lock:a", "first", nx=True)

        def door_waits() -> None:
            with client_of(node, single_connection_client=True) as own:
                assert not own.set("lock:a", "second", nx=True, px=60_000)
                assert own.blpop("lock-signal:a", PATIENCE_S)
                assert own.set("lock:a", "second", nx=True, px=60_000)
                served.append("door")
                own.delete("lock:a")

        def native_waits() -> None:
            with native.lock("lock:a", timeout=PATIENCE_S):
                served.append("native")

        threads = [threading.Thread(target=waits) for waits in (door_waits, native_waits)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(native.status("lock:a").waiters) < number:
                assert thread.is_alive()
        client.delete("lock:a")
        for thread in threads:
            thread.join()
    assert served == ["door", "native"]


def test_a_wait_whose_client_is_gone_gets_nothing() -> None:
    with door_node() as node, fencelock.connect(node.address) as native:
        with RawClient(port_of(node)) as holder, RawClient(port_of(node)) as waiter:
            assert holder.ask(b"SET", b"lock:a", b"1", b"NX") == b"+OK\r\n"
            assert waiter.ask(b"SET", b"lock:a", b"2", b"NX") == b"$-1\r\n"
            waiter.send(b"BLPOP lock-signal:a 0\r\n")
            until(lambda: native.status("lock:a").waiters)
            waiter.close()
            until(lambda: not native.status("lock:a").waiters)
            assert holder.ask(b"DEL", b"lock:a") == b":1\r\n"
        assert native.status("lock:a").holder is None


def test_a_pipeline_is_served_in_order() -> None:
    with door_node() as node, RawClient(port_of(node)) as client:
        client.send(
            b"SET a 1 NX\r\nPING\r\nSET a 2 NX\r\nGET a\r\nDEL a\r\nEXISTS a\r\nQUIT\r\nPING\r\n"
        )
        replies = [client.reply() for _ in range(8)]
    assert replies == [
        *(b"+OK\r\n", b"+PONG\r\n", b"$-1\r\n", b"$1\r\n1\r\n", b":1\r\n", b":0\r\n", b"+OK\r\n"),
        b"",
    ]


@pytest.fixture(name="keys")
def made_keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", ("n1",))
    return tmp_path / "keys"


def test_a_client_authenticates_by_a_key_of_the_cluster(keys: Path) -> None:
    secrets = {name: read_key(keys / f"{name}.key").secret for name in ("shop", "alice", "n1")}
    with door_node(keys=keys) as node:
        with client_of(node) as stranger, pytest.raises(AuthenticationError):
            stranger.set("orders/1", "x", nx=True)
        for user, password in (("shop", secrets["alice"]), ("n1", secrets["n1"]), ("shop", "x")):
            with (
                client_of(node, username=user, password=password) as wrong,
                pytest.raises(AuthenticationError),
            ):
                wrong.ping()
        with client_of(node, username="shop", password=secrets["shop"]) as shop:
            assert shop.set("orders/1", "x", nx=True)
            with pytest.raises(NoPermissionError, match="has the role client for names that begin"):
                shop.set("bills/1", "x", nx=True)
            with pytest.raises(NoPermissionError):
                shop.flushall()
            with client_of(node, password=secrets["alice"]) as alice:
                assert alice.set("bills/1", "x", nx=True)
                assert sorted(alice.keys()) == [b"bills/1", b"orders/1"]
            assert shop.keys() == [b"orders/1"]
            assert shop.dbsize() == 1
            remove_key(keys, "shop")
            node.reload_keys()
            with pytest.raises(redis.RedisError):
                shop.get("orders/1")


def test_a_purge_ends_what_a_removed_key_holds_and_waits_for(keys: Path) -> None:
    secret = read_key(keys / "shop.key").secret.encode()
    with (
        door_node(keys=keys) as node,
        fencelock.connect(node.address, key=keys / "alice.key") as alice,
        RawClient(port_of(node)) as shop,
    ):
        assert shop.ask(b"AUTH", b"shop", secret) == b"+OK\r\n"
        assert shop.ask(b"SET", b"orders/1", b"x", b"NX") == b"+OK\r\n"
        with alice.lock("orders/2"):
            shop.send(b"SUBSCRIBE redisson_lock__channel:{orders/2}\r\n")
            until(lambda: alice.status("orders/2").waiters)
            (usage,) = (one for one in alice.usage() if one.account == "shop")
            assert usage.used.claims == 2
            target = ["--connect", node.address, "--key", str(keys / "alice.key")]
            done = CliRunner().invoke(app, ["keys", "purge", "shop", "--yes", "--json", *target])
            assert json.loads(done.stdout)["deleted"]["key"] == 2
            assert alice.status("orders/1").holder is None
            assert "shop" not in {one.account for one in alice.usage()}


def test_holds_that_outlive_their_client_are_listed_and_deleted_by_prefix(keys: Path) -> None:
    """Those of Redis doors, and detached ones; the locks of open sessions stay."""
    with (
        door_node(keys=keys) as node,
        fencelock.connect(node.address, key=keys / "alice.key") as alice,
        client_of(node, username="shop", password=read_key(keys / "shop.key").secret) as shop,
        client_of(node, password=read_key(keys / "alice.key").secret) as other,
    ):

        def run(who: str, *command: str) -> str:
            target = ["--connect", node.address, "--key", str(keys / f"{who}.key")]
            done = CliRunner().invoke(app, ["holds", *command, *target])
            return str(done.exception) if done.exception else done.stdout

        def listed(*options: str) -> list[str]:
            return [one["lock"] for one in json.loads(run("alice", "list", *options))]

        assert "No clientless hold is in use." in run("alice", "list")
        assert shop.set("orders/1", "x", nx=True)
        assert shop.set("orders/2", "x", nx=True)
        assert other.set("orders/3", "x", nx=True)
        assert other.set("bills/1", "x", nx=True)
        present(alice.lock("orders/4").acquire(timeout=PATIENCE_S)).detach()
        with alice.lock("orders/5"):
            assert listed("--json") == ["bills/1", *(f"orders/{number}" for number in range(1, 5))]
            assert "detached" in run("alice", "list", "--prefix", "orders/4")
            assert "nobody is here to confirm" in run("alice", "delete", "--all")
            own = ("delete", "--prefix", "orders/1", "--charged-to", "shop")
            assert "Deleted 1 of clientless hold orders/1." in run("shop", *own, "--yes")
            assert not alice.evictions()
            for refused in (own[:3], (*own[:3], "--charged-to", "alice")):
                error = run("shop", *refused, "--yes")
                assert "has the role client, and Purge needs the role operator" in error
            done = run("alice", "delete", "--prefix", "orders/", "--yes", "--json")
            assert json.loads(done)["deleted"] == 3
            assert listed("--json") == ["bills/1"]
            assert present(alice.status("orders/5").holder).session != "no-client"
            assert "Deleted 1" in run("alice", "delete", "bills/1", "--yes")
            (noted,) = alice.evictions()
            assert (noted.lock, noted.holder.times) == ("key\x1forders/", 3)


def config_at(address: str, protocol: str = "paxos") -> Config:
    text = starting_config({"n1": f"tcp://127.0.0.1:{free_ports(1)[0]}"}, protocol=protocol)
    return parse(f'{text}\n[redis]\naddress = "{address}"\n', Path())


def test_a_door_without_keys_is_on_loopback_only(tmp_path: Path) -> None:
    config = replace(config_at("tcp://0.0.0.0:6379"), data=tmp_path)
    with pytest.raises(fencelock.ConfigError, match="redis: without keys"):
        Node.start(config, "n1", found=True)


def test_a_protocol_without_a_door_is_refused() -> None:
    with pytest.raises(fencelock.ConfigError, match=r'redis: protocol "central" has no Redis door'):
        config_at("tcp://127.0.0.1:6379", "central")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with door_node() as node:
        config = replace(config_at(node.redis), data=tmp_path)
        with pytest.raises(fencelock.ConfigError, match="another program listens there"):
            Node.start(config, "n1", found=True)


def test_a_client_that_connects_while_the_node_starts_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    config = replace(config_at(f"tcp://127.0.0.1:{port}"), data=tmp_path)
    clients: list[RawClient] = []

    def add(sound: Callable[..., RoleRef], dispatcher: Dispatcher, role: Role[Any]) -> RoleRef:
        with suppress(ConnectionRefusedError):
            clients.append(RawClient(port))
            for _ in range(2):  # Turns in which the node accepts connections.
                dispatcher.read(nothing, None)
        return sound(dispatcher, role)

    plant(monkeypatch, Dispatcher, "add", as_plant(add))
    node = Node.start(config, "n1", found=True)
    try:
        clients.append(RawClient(port))
        for client in clients:
            assert client.ask(b"PING") == b"+PONG\r\n"
            client.close()
    finally:
        node.stop()
