"""Keys on real sockets: who is refused, with which text, count and line of the log."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from support.collected import Lines
from support.expect import PATIENCE_S, checked, present
from support.hub_station import Make, Station, until
from support.real_nodes import KeyedNodes, KeyedProcesses, keyed_nodes

import fencelock
import fencelock.testing
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.lock_message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.message import Message
from fencelock.actors.proxy.access import CLIENT, Rights
from fencelock.cluster.keys import add_key, make_folder, read_key, read_list, remove_key
from fencelock.transport.keys import KeyGuard, LinkKey, ListedKeys
from fencelock.verification.bench.members import NodeProcesses, leader_among

SHORT_S = 0.5
"""Timeout of a client that finds no node (s)."""

SENT = 3
"""Refused frames after which a test goes on."""


def refusals(lines: Lines, words: str) -> list[str]:
    return [text for _, _, text in lines.values if words in text]


@contextmanager
def closing_proxy() -> Generator[str, None, None]:
    """Yield the address of a program that accepts connections and closes them at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_each() -> None:
            with suppress(OSError):  # The server was shut down.
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=close_each)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def link_of(keys: Path, name: str) -> LinkKey:
    return read_key(keys / f"{name}.key").link


def attacker(station: Make, cluster: KeyedNodes, node: str, key: str | None) -> Station:
    """Return a hub of its own that is connected to n1 under the name ``node``."""
    own = None if key is None else link_of(cluster.keys, key)
    peers = {"n1": cluster.nodes["n1"].address}
    one = station(node, peers, cluster="fencelock", listen=None, key=own, client="@" in node)
    until(one.up, one)
    return one


def held(client: fencelock.Client, name: str) -> fencelock.Hold:
    return present(client.lock(name, timeout=PATIENCE_S).acquire())


def use_forever(client: fencelock.Client) -> None:
    while True:
        client.status("orders/1")


def send_until(
    cluster: KeyedNodes, one: Station, message: Message, counter: str, role: str = "proxy"
) -> None:
    """Send ``message`` until n1 has counted ``counter`` so often; nothing comes back."""
    with cluster.connect("alice") as operator:

        def counted() -> bool:
            found = {
                one.name: one.times
                for status in operator.survey().statuses
                if status.node == "n1"
                for one in status.counters
            }
            return found.get(counter, 0) >= SENT

        until(counted, one, again=lambda: one.send("n1", message, role))
    assert one.arrivals == []


def test_a_client_with_a_key_locks_within_its_prefix_only(tmp_path: Path, lines: Lines) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        with cluster.connect("shop") as shop, cluster.connect("alice") as alice:
            with shop.lock("orders/1", timeout=PATIENCE_S):
                assert [one.lock for one in shop.locks("orders/")] == ["orders/1"]
            with (
                shop.semaphore("orders/2", permits=3, timeout=PATIENCE_S),
                shop.lock_all("orders/2", "orders/3", timeout=PATIENCE_S),
            ):
                pass
            with alice.lock("secret", timeout=PATIENCE_S):
                for refused in (
                    lambda: shop.lock("secret").acquire(timeout=PATIENCE_S),
                    lambda: shop.semaphore("secret", permits=2).acquire(),
                    lambda: shop.rwlock("secret").read().acquire(),
                    lambda: shop.lock_all("orders/3", "secret").acquire(),
                    lambda: shop.status("secret"),
                    shop.locks,
                    lambda: shop.locks("order"),
                    lambda: shop.locks("semaphore\x1f"),
                ):
                    with pytest.raises(fencelock.ForbiddenError, match=r"'shop'.*'orders/'"):
                        refused()
                seen = [lock.lock for one in shop.describe() for lock in one.locks]
                assert seen == []
                assert [lock.lock for one in alice.describe() for lock in one.locks] == ["secret"]
        assert cluster.count("proxy.forbidden") == 8
    (line,) = refusals(lines, "n1 refused Inspect of shop@") or refusals(lines, "refused Inspect")
    assert "its key does not allow it" in line
    assert len(refusals(lines, "refused ListLocks")) == 1  # Three times within the interval.


def test_a_client_may_not_do_what_is_for_operators(tmp_path: Path, lines: Lines) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        with cluster.connect("shop") as shop, cluster.connect("alice") as alice:
            hold = held(alice, "orders/1")
            for refused in (
                lambda: shop.evict("orders/1", hold.fence),
                lambda: shop.close_session(alice.sessions()[0].id),
                shop.sessions,
                shop.evictions,
                shop.backup_part,
                lambda: shop.change_members(ChangeMembers(action=MemberAction.LEAVE, node="n1")),
            ):
                with pytest.raises(fencelock.ForbiddenError, match="needs the role operator"):
                    refused()
            assert hold.held
            assert alice.evict("orders/1", hold.fence).fence == hold.fence
        assert cluster.count("proxy.forbidden") == 6
    assert len(refusals(lines, "refused Evict of shop@")) == 1
    assert len(refusals(lines, "refused CloseSession of shop@")) == 1
    (text,) = refusals(lines, "taken by force")
    assert "alice@" in text


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "central", "lamport"])
def test_three_nodes_with_keys_serve_with_every_protocol(protocol: str, tmp_path: Path) -> None:
    with (
        keyed_nodes(tmp_path, protocol) as cluster,
        cluster.connect("shop") as shop,
        shop.lock("orders/1", timeout=PATIENCE_S) as hold,
    ):
        assert hold.held
        with pytest.raises(fencelock.ForbiddenError):
            shop.lock("secret", timeout=PATIENCE_S).acquire()


def test_a_client_without_a_key_is_refused_with_a_reason_at_once(
    tmp_path: Path, lines: Lines
) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        began = time.monotonic()
        with pytest.raises(fencelock.ForbiddenError, match=r"it requires a key.*--key"):
            cluster.connect(None)
        assert time.monotonic() - began < PATIENCE_S / 2
        assert cluster.count("wire.handshake_failed") >= 1
    assert len(refusals(lines, "n1 refused a connection without a key")) == 1


def test_an_unknown_key_is_refused_with_a_reason_and_at_once(tmp_path: Path, lines: Lines) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        add_key(cluster.keys, Rights("late", CLIENT))  # The node has not read it.
        for _ in range(3):
            with pytest.raises(fencelock.ForbiddenError, match="does not know this key"):
                cluster.connect("late")
        assert cluster.count("wire.key_unknown") >= 3
        assert len(refusals(lines, "n1 refused a connection with the unknown key")) == 1
        cluster.reload()
        with cluster.connect("late") as client:
            _held = client.lock("anything", timeout=PATIENCE_S).acquire()


def test_a_key_for_another_cluster_finds_no_node(tmp_path: Path) -> None:
    """Its client cannot distinguish the node from a proxy before one that restarts."""
    make_folder(tmp_path / "other", ())
    stranger = add_key(tmp_path / "other", Rights("shop", CLIENT))
    with keyed_nodes(tmp_path, count=1) as cluster:
        with pytest.raises(fencelock.UnavailableError):
            fencelock.connect(cluster.addresses, key=stranger, connect_timeout=SHORT_S)
        assert cluster.count("wire.handshake_failed") >= 1


def test_many_unknown_keys_are_one_kind_in_the_log(lines: Lines) -> None:
    guard = KeyGuard("n1", ListedKeys("", {}), lambda name, times: None)
    for number in range(300):
        guard.callback("", f"{number:040}"[::-1].encode())
    guard.tend()
    first = "n1 refused a connection with the unknown key 0000000000..."
    assert refusals(lines, "unknown key") == [first]


def test_a_proxy_that_accepts_and_closes_is_no_refusal_of_the_key(tmp_path: Path) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster, closing_proxy() as address:
        key = cluster.keys / "shop.key"
        with pytest.raises(fencelock.UnavailableError):
            fencelock.connect(address, key=key, connect_timeout=SHORT_S)


def test_a_node_without_keys_is_refused_by_a_client_with_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "keys", ())
    key = add_key(tmp_path / "keys", Rights("shop", CLIENT))
    with (
        fencelock.testing.local() as cluster,
        # Which side ends a handshake is chance: often the client learns that there are no keys.
        pytest.raises(
            (fencelock.ForbiddenError, fencelock.UnavailableError),
            match=r"uses no keys|no node answered",
        ),
    ):
        fencelock.connect(cluster.addresses, key=key, connect_timeout=SHORT_S)


def test_a_removed_key_loses_its_links_while_the_node_runs(tmp_path: Path, lines: Lines) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster, cluster.connect("alice") as alice:
        with cluster.connect("shop", ttl=2.0) as shop:
            hold = held(shop, "orders/1")
            remove_key(cluster.keys, "shop")
            cluster.reload()
            with pytest.raises(fencelock.ForbiddenError, match="does not know this key"):
                use_forever(shop)  # Until its link is found closed.
            with alice.lock("orders/1", timeout=PATIENCE_S) as next_hold:  # Its session ends.
                assert next_hold.fence > hold.fence
                assert not hold.held
        assert cluster.count("wire.key_unknown") >= 1
    assert refusals(lines, "n1 read its keys: n1, alice")


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "lamport", "central"])
def test_a_wait_under_a_removed_key_ends_ungranted(protocol: str, tmp_path: Path) -> None:
    count = 1 if protocol == "central" else 3  # There a node knows the waits of its own clients.
    with (
        keyed_nodes(tmp_path, protocol, count=count) as cluster,
        cluster.connect("alice") as alice,
        cluster.connect("shop") as shop,
        ThreadPoolExecutor(1) as pool,
    ):
        hold = held(alice, "orders/1")
        waiting = pool.submit(shop.lock("orders/1").acquire, timeout=PATIENCE_S)
        until(lambda: len(alice.status("orders/1").waiters) == 1)
        remove_key(cluster.keys, "shop")
        cluster.reload()
        until(lambda: not alice.status("orders/1").waiters)
        hold.release()
        assert alice.status("orders/1").holder is None
        assert isinstance(waiting.exception(PATIENCE_S), fencelock.FencelockError)


def test_links_of_a_removed_key_are_closed_even_if_silent(tmp_path: Path, station: Make) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        one = attacker(station, cluster, "shop@1", "shop")
        other = attacker(station, cluster, "alice@1", "alice")
        one.send("n1", Describe(session="shop@1", request=1))
        other.send("n1", Describe(session="alice@1", request=1))
        until(lambda: one.received() and other.received(), one, other)
        remove_key(cluster.keys, "shop")
        cluster.reload()
        until(lambda: not one.up(), one, other)
        assert other.up()
        assert cluster.count("wire.key_revoked") == 0


def test_frames_of_removed_keys_are_dropped(tmp_path: Path, lines: Lines, station: Make) -> None:
    """Its link was never used before, so the node does not know that it is one of that key."""
    with keyed_nodes(tmp_path, count=1) as cluster:
        one = attacker(station, cluster, "shop@1", "shop")
        remove_key(cluster.keys, "shop")
        cluster.reload()
        one.send("n1", Acquire(lock="orders/1", session="shop@1", request=1))
        until(lambda: not one.up(), one)
        assert cluster.count("wire.key_revoked") == 1
    assert len(refusals(lines, "n1 refused frames under the revoked key")) == 1


def test_a_node_does_not_dial_a_node_whose_key_was_removed(tmp_path: Path, station: Make) -> None:
    """The other side of a link that a node dials proves only that it has ``_server.key``."""
    make_folder(tmp_path, ["n1", "n2"])
    listed, secret = read_list(tmp_path).bound, read_key(tmp_path / "_server.key").secret
    keys = ListedKeys(secret, listed)
    removed = station("n2", listed=keys)
    node = station("n1", {"n2": removed.hub.endpoint}, listed=keys, key=link_of(tmp_path, "n1"))
    describe = Describe(session="n2", request=1)
    until(node.up, node, removed)
    node.send("n2", describe)
    until(lambda: removed.arrivals, node, removed)
    removed.send("n1", describe)
    until(lambda: node.arrivals, node, removed)

    node.hub.replace_keys({public: name for public, name in listed.items() if name != "n2"})
    until(lambda: any("lists no node n2" in str(one) for one in node.news), node, removed)
    for before in (len(node.arrivals), len(removed.arrivals)):
        node.send("n2", describe)
        removed.send("n1", describe)
        for _ in range(20):
            node.turn()
            removed.turn()
        assert before == 1
    assert (len(node.arrivals), len(removed.arrivals)) == (1, 1)
    node.hub.connect("n2", removed.hub.endpoint)
    assert not node.up()

    node.hub.replace_keys(listed)
    until(node.up, node, removed)
    node.hub.disconnect("n2")
    node.hub.replace_keys(listed)
    for _ in range(5):
        node.turn()
    assert not node.up()


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ("n2", "n3"),  # A node under another's name.
        ("n2", "shop"),  # A client under a node's name.
        ("alice@1", "shop"),  # A client under another client's name.
        ("shop", "shop"),
        ("shopper@1", "shop"),
        ("shop@1", "n3"),  # A node under a client's name.
        ("n3@1", "n3"),
    ],
)
def test_a_key_may_be_used_only_in_its_own_name(
    node: str, key: str, tmp_path: Path, lines: Lines, station: Make
) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        if key == "n3":
            add_key(cluster.keys, Rights("n3", "node"))
            cluster.reload()
        one = attacker(station, cluster, node, key)
        send_until(cluster, one, Describe(session=node, request=1), "wire.key_misused")
    (text,) = refusals(lines, f"in the name of {node}")
    assert f"the key of {key}" in text


def test_a_client_cannot_use_the_session_of_another(tmp_path: Path, station: Make) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster, cluster.connect("alice") as alice:
        hold = held(alice, "orders/1")
        victim = present(alice.status("orders/1").holder)
        one = attacker(station, cluster, "shop@1", "shop")
        until(
            one.received,
            one,
            again=lambda: one.send("n1", KeepAlive(session=victim.session, request=1)),
        )
        assert "is not of the client 'shop@1' itself" in checked(Refused, one.received()[0]).detail
        assert hold.held


def test_a_client_cannot_send_to_the_roles_of_members(tmp_path: Path, station: Make) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster:
        one = attacker(station, cluster, "shop@1", "shop")
        describe = Describe(session="shop@1", request=1)
        send_until(cluster, one, describe, "wire.misdirected", role="acceptor")


def test_releases_and_cancels_outside_prefixes_reveal_none(tmp_path: Path, station: Make) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster, cluster.connect("alice") as alice:
        hold = held(alice, "secret")
        one = attacker(station, cluster, "shop@1", "shop")
        about = {"lock": "secret", "session": "shop@1", "owner": "o"}
        for message in (Release(**about, fence=1, request=1), Cancel(**about, request=2)):
            until(one.received, one, again=partial(one.send, "n1", message))
            for refused in one.received():
                assert isinstance(refused, Refused)
                assert refused.reason is Reason.FORBIDDEN
                assert "alice" not in refused.detail
            one.arrivals.clear()
        assert hold.held


def test_a_release_after_the_prefixes_became_narrower_is_refused_at_once(tmp_path: Path) -> None:
    with keyed_nodes(tmp_path, count=1) as cluster, cluster.connect("alice") as alice:
        with cluster.connect("shop") as shop:
            hold = held(shop, "orders/1")
            path = cluster.keys / "keys.toml"
            path.write_text(path.read_text().replace('"orders/"', '"carts/"'))
            cluster.reload()
            with pytest.raises(fencelock.ForbiddenError, match="'carts/'"):
                hold.release()
            assert alice.status("orders/1").holder is not None
        assert (
            _held := alice.lock("orders/1", timeout=PATIENCE_S).acquire()
        ) is not None  # The session ended.


def test_nodes_with_keys_go_on_when_their_leader_is_killed(tmp_path: Path) -> None:
    with (
        KeyedProcesses(tmp_path, "paxos", 3, durable=True) as nodes,
        nodes.client("alice") as alice,
        nodes.client("shop") as shop,
    ):
        leader = leader_among(nodes.wait_until_ready(alice))
        hold = held(shop, "orders/1")
        nodes.kill(leader)
        with shop.lock("orders/2", timeout=PATIENCE_S):
            assert hold.held
        hold.release()


def test_a_process_without_keys_ends_on_sighup_as_other_programs_do(tmp_path: Path) -> None:
    with NodeProcesses(tmp_path, "paxos", 1, durable=False) as nodes:
        with fencelock.connect(
            nodes.connect, cluster=nodes.cluster, connect_timeout=PATIENCE_S
        ) as client:
            _held = client.lock("a", timeout=PATIENCE_S).acquire()
        nodes.processes["n1"].send_signal(signal.SIGHUP)
        assert nodes.processes["n1"].wait(PATIENCE_S) == -signal.SIGHUP


def test_a_process_reads_its_keys_again_on_sighup(tmp_path: Path) -> None:
    with (
        KeyedProcesses(tmp_path, "paxos", 1, durable=False) as nodes,
        nodes.client("alice") as alice,
        nodes.client("shop") as shop,
    ):
        hold = held(shop, "orders/1")
        key = tmp_path / "shop.key"
        key.write_bytes((tmp_path / "keys" / "shop.key").read_bytes())
        key.chmod(0o600)
        remove_key(tmp_path / "keys", "shop")
        nodes.processes["n1"].send_signal(signal.SIGHUP)
        with pytest.raises(fencelock.ForbiddenError, match="does not know this key"):
            use_forever(shop)
        with pytest.raises(fencelock.ForbiddenError, match="does not know this key"):
            fencelock.connect(nodes.connect, cluster=nodes.cluster, key=key)
        alice.evict("orders/1", hold.fence)
        broken = "x = " + "[" * 5_000  # The keys in force stay.
        (tmp_path / "keys" / "keys.toml").write_text(broken)
        nodes.processes["n1"].send_signal(signal.SIGHUP)
        assert alice.status("orders/1").holder is None
        log = tmp_path / "n1.log"
        while "SIGHUP: nothing changes" not in log.read_text():
            assert alice.status("orders/1").holder is None
