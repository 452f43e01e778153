"""Quotas by key in a cluster of real nodes: one key cannot fill what others need."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.real_nodes import KeyedNodes, keyed_nodes
from typer.testing import CliRunner

import fencelock
from fencelock.actors.api.account import EVERY_KEY, Quota
from fencelock.actors.proxy.access import CLIENT, Rights
from fencelock.cluster.cli.main import app
from fencelock.cluster.keys import add_key

MANY = 40
SHARE = 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[KeyedNodes, None, None]:
    """Run nodes where each key may have `SHARE` entries and objects, and 1 KiB of entries."""
    with keyed_nodes(tmp_path_factory.mktemp("quotas")) as nodes:
        add_key(nodes.keys, Rights("till", CLIENT, ("tills/",)))
        nodes.reload()
        with nodes.connect("alice") as operator:
            operator.set_quota(EVERY_KEY, Quota(entries=SHARE, bytes=1_024, objects=SHARE))
        yield nodes


def run(cluster: KeyedNodes, key: str, *arguments: str) -> str:
    """Run a command with the key of that name; return its output."""
    target = ("--connect", ",".join(cluster.addresses), "--key", str(cluster.keys / f"{key}.key"))
    done = CliRunner().invoke(app, [*arguments, *target, "--timeout", str(PATIENCE_S)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def refusals(tries: int, act: Callable[[int], object]) -> list[str]:
    """Return the texts of the refusals of ``tries`` requests."""
    found: list[str] = []
    for number in range(tries):
        try:
            act(number)
        except fencelock.OverloadedError as error:
            found.append(str(error))
    return found


def test_a_key_is_refused_at_its_quota_while_others_are_served(cluster: KeyedNodes) -> None:
    with cluster.connect("shop") as hostile, cluster.connect("till") as other:
        many = refusals(MANY, lambda n: hostile.map("orders/m").put(f"k{n}", b""))
        assert len(many) == MANY - SHARE
        assert (
            f"key 'shop' has {SHARE} entries of maps, and the quota entries is {SHARE}" in many[0]
        )
        assert "fencelock map delete" in many[0]
        assert "fencelock keys quota shop --entries N" in many[0]
        latches = refusals(MANY, lambda n: hostile.latch(f"orders/{n}", count=2).count_down())
        assert len(latches) == MANY - SHARE
        assert "quota objects is 10" in latches[0]
        hostile.map("orders/m").put("k1", b"changed")  # It replaces one of its own.
        assert len(refusals(1, lambda _: hostile.map("orders/m").put("k1", bytes(2_000)))) == 1
        other.map("tills/m").put("k", b"v")
        other.latch("tills/l", count=2).count_down()
    with cluster.connect("shop") as again, cluster.connect("till") as other:
        # The session that put the entries has ended, and its key still pays for them.
        assert refusals(1, lambda _: again.map("orders/m").put("new", b""))
        assert other.map("tills/m").put("k2", b"v")
    with cluster.connect("alice") as operator:
        used = {one.account: one.used for one in operator.usage()}
        assert (used["shop"].entries, used["shop"].objects) == (SHARE, SHARE)
        assert used["till"].entries == 2


def test_an_operator_finds_and_deletes_what_a_key_left(cluster: KeyedNodes) -> None:
    with cluster.connect("shop") as hostile:
        refusals(MANY, lambda n: hostile.map(f"orders/{n:02}").put("k", b"value"))
        refusals(MANY, lambda n: hostile.latch(f"orders/{n}", count=2).count_down())
    listed = {one["account"]: one for one in json.loads(run(cluster, "alice", *USAGE))}
    assert listed["shop"]["used"]["entries"] == SHARE
    assert "shop" in run(cluster, "alice", "keys", "usage")
    maps = json.loads(run(cluster, "shop", "map", "list", "--prefix", "orders/", "--json"))
    assert sum(one["entries"] for one in maps) == SHARE
    deleted = json.loads(run(cluster, "alice", "keys", "purge", "shop", "--yes", "--json"))
    assert deleted["deleted"] == {
        "barrier": 0,
        "counter": 0,
        "key": 0,
        "latch": SHARE,
        "map": SHARE,
        "pool": 0,
    }
    listed = {one["account"]: one for one in json.loads(run(cluster, "alice", *USAGE))}
    assert listed.get("shop", {"used": {"entries": 0}})["used"]["entries"] == 0
    audit = json.loads(run(cluster, "alice", "audit", "--json"))
    notes = [(one["lock"], one["holder"]["times"], one["holder"]["label"]) for one in audit]
    assert ("map:", SHARE, "names that begin so, charged to key 'shop'") in notes
    limits = f"entries {SHARE}, bytes 1024, objects {SHARE}, others by default"
    assert ("quota:*", 1, limits) in notes
    assert "set to entries" in run(cluster, "alice", "audit")


USAGE = ("keys", "usage", "--json")


def test_a_client_deletes_below_its_own_prefix_only(cluster: KeyedNodes) -> None:
    with cluster.connect("till") as client:
        client.map("tills/x").put("a1", b"1")
        client.map("tills/x").put("a2", b"2")
        client.map("tills/x").put("b1", b"3")
    entries = json.loads(run(cluster, "till", "map", "list", "tills/x", "--json"))
    assert [one["key"] for one in entries] == ["a1", "a2", "b1"]
    assert run(cluster, "till", "map", "get", "tills/x", "a2") == "2"
    assert "Deleted 2" in run(cluster, "till", "map", "delete", "tills/x", "--prefix", "a", "--yes")
    assert "Deleted 1" in run(cluster, "till", "map", "delete", "tills/x", "b1")
    text = "ListMaps is about all names: ask for such names only, on the command line with --prefix"
    with cluster.connect("till") as client, pytest.raises(fencelock.ForbiddenError, match=text):
        client.maps()
    with pytest.raises(AssertionError, match="ForbiddenError"):
        run(cluster, "till", "map", "delete", "orders/x", "--all", "--yes")
    with pytest.raises(AssertionError, match="ForbiddenError"):
        run(cluster, "till", "latch", "delete", "--all", "--yes")
    with pytest.raises(AssertionError, match="ForbiddenError"):
        run(cluster, "till", "keys", "quota", "till", "--entries", "99")


def test_a_key_with_a_prefix_changes_counters_below_it(cluster: KeyedNodes) -> None:
    with cluster.connect("till") as client:
        counter = client.counter("tills/orders")
        assert counter.add(3) == 3
        with client.lock("tills/orders") as hold:
            assert counter.add(fence=hold) == 4
        with pytest.raises(fencelock.ForbiddenError, match="AddToCounter is about 'orders/1'"):
            client.counter("orders/1").add()
        with pytest.raises(fencelock.ForbiddenError, match="Inspect is about 'orders/1'"):
            client.counter("orders/1").get()
    run(cluster, "till", "counter", "delete", "tills/orders", "--yes")
    with cluster.connect("till") as client:
        assert client.counter("tills/orders").get() == 0


def test_an_operator_raises_the_quota_of_one_key(cluster: KeyedNodes) -> None:
    assert "till may have: map entries 10" in run(cluster, "alice", "keys", "quota", "till")
    output = run(cluster, "alice", "keys", "quota", "till", "--entries", "30", "--bytes", "2KiB")
    assert (
        "till now may have: map entries 30; map bytes 2 KiB; "
        "barriers, counters, latches, pools 10" in output
    )
    with cluster.connect("till") as client:
        assert not refusals(20, lambda n: client.map("tills/more").put(f"k{n}", b""))
    run(cluster, "alice", "keys", "quota", "till", "--entries", "default", "--bytes", "default")
    with cluster.connect("till") as client:
        assert refusals(1, lambda _: client.map("tills/more").put("one more", b""))


def test_a_key_lists_and_deletes_its_own_latches(cluster: KeyedNodes) -> None:
    with cluster.connect("till") as client, cluster.connect("alice") as operator:
        latch = client.latch("tills/gone", count=2)
        latch.count_down()
        listed = run(cluster, "till", "latch", "list", "--prefix", "tills/gone")
        assert "1 of 2 left" in listed
        assert "Deleted 1" in run(cluster, "till", "latch", "delete", "tills/gone", "--yes")
        assert not operator.objects("latch\x1ftills/gone")


def test_a_key_of_bakery_is_refused_at_its_share_of_tickets_at_every_node(tmp_path: Path) -> None:
    limits = f"\n[limits]\ntickets = {SHARE}\n"
    with keyed_nodes(tmp_path, "bakery", more=limits) as cluster:
        add_key(cluster.keys, Rights("till", CLIENT, ("tills/",)))
        cluster.reload()
        with ExitStack() as clients:
            hostile = [
                clients.enter_context(cluster.connect("shop", only=n)) for n in cluster.nodes
            ]
            other = clients.enter_context(cluster.connect("till"))
            held: list[fencelock.Hold] = []

            def acquire(number: int) -> None:
                lock = hostile[number % len(hostile)].lock(f"orders/{number}", duration=60)
                held.append(present(lock.acquire(timeout=PATIENCE_S)))

            assert refusals(SHARE, acquire) == []
            texts = refusals(len(hostile), acquire)
            assert len(texts) == len(hostile)
            assert all(f"key 'shop' has {SHARE} holds and waits, and the quota" in t for t in texts)
            assert all("raise tickets under [limits]" in text for text in texts)
            with other.lock("tills/1", timeout=PATIENCE_S):
                pass
            held[0].release()  # Through the node that is asked next.
            assert refusals(1, acquire) == []
