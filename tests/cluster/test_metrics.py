"""Metrics and health of real nodes, over HTTP."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.expect import PATIENCE_S, present
from support.real_nodes import config_in, loopback_addresses, measured, running

import fencelock
from fencelock.actors.error import ConfigError
from fencelock.actors.histogram import BOUNDS_MS, Histogram
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.node import metrics
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.metrics import READING_MS, MetricsServer
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(address: str) -> dict[str, float]:
    """Return the metrics by name and labels, as a Prometheus reads them."""
    text = get(address, "/metrics")[1]
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Node]:
    """Return the only node of a cluster."""
    with running(measured(config_in(tmp_path, nodes=1))) as nodes:
        yield nodes["n1"]


def test_a_scrape_shows_the_log_the_table_and_the_times_of_requests(alone: Node) -> None:
    address = alone.metrics
    with fencelock.connect(alone.address) as client:
        with client.lock("a"):
            pass
        hold = present(client.lock("b").acquire())
        seen = samples(address)
        hold.release()
    assert seen["fencelock_ready"] == seen["fencelock_leader"] == seen["fencelock_members"] == 1
    assert (seen["fencelock_sessions"], seen["fencelock_holds"], seen["fencelock_waits"]) == (
        1,
        1,
        0,
    )
    assert seen["fencelock_retained"] == 0
    assert seen["fencelock_request_seconds_count acquire"] == 2
    assert seen["fencelock_request_seconds_count release"] == 1
    assert seen["fencelock_request_seconds_bucket acquire +Inf"] == 2
    assert seen["fencelock_sync_seconds_count"] >= 4
    assert seen["fencelock_applied_slot"] >= 4
    assert seen["fencelock_lag_slots"] == seen["fencelock_frames_rejected_total malformed"] == 0
    assert seen["fencelock_frames_total in"] >= 3
    assert seen["fencelock_events_total proxy.granted"] == 2
    assert seen["fencelock_events_total proxy.released"] == 1


def test_a_node_is_live_and_ready_and_then_gone(alone: Node) -> None:
    address = alone.metrics
    with fencelock.connect(alone.address) as client, client.lock("a"):
        assert get(address, "/ready") == (200, "ready\n")
    assert get(address, "/live") == (200, "live\n")
    assert get(address, "/locks")[0] == 404
    alone.stop()
    with pytest.raises(urllib.error.URLError):
        get(address, "/live")


class Walked(Scheduler):
    """A scheduler that counts how often all its roles are looked at; the test moves its clock."""

    def __init__(self) -> None:
        self.time = Instant(0)
        self.walks = 0
        super().__init__("n1", lambda role_slot: None, Counter(), lambda: self.time)

    def total_counters(self) -> Counter[str]:
        self.walks += 1
        return super().total_counters()

    def read(self, look: Callable[[Scheduler], Any], timeout: float) -> Any:
        """Return what ``look`` finds, as a dispatcher does."""
        return look(self)


def test_requests_at_nearly_the_same_time_share_one_look_at_the_roles() -> None:
    scheduler: Any = Walked()
    server = MetricsServer("127.0.0.1:0", scheduler, "c")
    walks: list[int] = []
    try:
        for now_ms in (0, 0, READING_MS - 1, READING_MS, READING_MS, 5 * READING_MS):
            scheduler.time = Instant(now_ms * NS_PER_MS)
            uptime = samples(server.address)["fencelock_uptime_seconds"]
            assert now_ms - READING_MS < uptime * 1_000 <= now_ms
            assert get(server.address, "/ready")[0] == 503
            walks.append(scheduler.walks)
    finally:
        server.close()
    assert walks == [1, 1, 1, 2, 2, 3]


def test_a_request_that_comes_byte_by_byte_is_ended_in_time(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 0.5)
    host, port = alone.metrics.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as slow:
        slow.settimeout(0.01)
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            try:
                slow.send(b"G")
                if not slow.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("each byte prolonged it")


@pytest.mark.parametrize("limit", ["REQUESTS_MAX", "OF_ADDRESS_MAX"])
def test_more_connections_than_the_limit_are_closed_and_later_ones_served(
    alone: Node, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(metrics, limit, 2)
    address = alone.metrics
    host, port = address.split(":")
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            for _ in range(3)
        ]
        assert silent[2].recv(1) == b""
        served = b""
        there = socket.create_connection((host, int(port)), PATIENCE_S, ("127.0.0.2", 0))
        with there, suppress(ConnectionError):
            there.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            served = there.recv(15)
        assert served == (b"HTTP/1.0 200 OK" if limit == "OF_ADDRESS_MAX" else b"")
    ends = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError):
            assert get(address, "/live") == (200, "live\n")
            break
        assert time.monotonic() < ends


def test_a_reply_does_not_name_python(alone: Node) -> None:
    address = alone.metrics
    with urllib.request.urlopen(f"http://{address}/live", timeout=PATIENCE_S) as reply:
        assert reply.headers["Server"] == "fencelock"


def test_a_node_without_a_majority_is_live_but_not_ready(tmp_path: Path) -> None:
    with Node.start(measured(config_in(tmp_path)), "n1", found=True) as node:
        address = node.metrics
        assert get(address, "/ready") == (503, "not ready\n")
        assert get(address, "/live")[0] == 200
        assert samples(address)["fencelock_ready"] == 0


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "central", "lamport"])
def test_every_protocol_has_the_times_of_requests_holds_and_leaders(
    tmp_path: Path, protocol: str
) -> None:
    with running(measured(config_in(tmp_path, protocol))) as by_name:
        nodes = by_name.values()
        addresses = [node.address for node in nodes]
        with fencelock.connect(addresses, connect_timeout=PATIENCE_S) as client:
            with client.lock("a", timeout=PATIENCE_S):
                pass
            with client.lock("b", timeout=PATIENCE_S):
                seen = [samples(node.metrics) for node in nodes]
    assert sum(one["fencelock_request_seconds_count acquire"] for one in seen) == 2
    assert sum(one["fencelock_request_seconds_sum acquire"] for one in seen) > 0
    assert sum(one["fencelock_request_seconds_count release"] for one in seen) == 1
    assert max(one["fencelock_clients"] for one in seen) == 1
    assert all(0 <= one["fencelock_client_lag_seconds"] <= PATIENCE_S for one in seen)
    if protocol in ("central", "lamport"):
        assert sum(one["fencelock_local_holds"] for one in seen) == 1
    else:
        assert max(one["fencelock_holds"] for one in seen) == 1
    leaders = [one["fencelock_leader"] for one in seen if "fencelock_leader" in one]
    assert sum(leaders) == {"paxos": 1, "bakery": 3, "central": 1, "lamport": 0}[protocol]


def test_an_address_that_is_taken_stops_the_node_with_an_error(alone: Node, tmp_path: Path) -> None:
    taken = alone.metrics
    text = f'metrics = "{taken}"\n' + starting_config(loopback_addresses(1))
    with pytest.raises(ConfigError, match=f"metrics: cannot listen at {taken}: Address already"):
        Node.start(parse(text, tmp_path / "other"), "n1", found=True)


def test_a_node_that_cannot_start_leaves_its_address_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (port,) = free_ports(1)
        config = replace(
            parse(starting_config(loopback_addresses(1)), tmp_path),
            metrics={"n1": f"127.0.0.1:{port}"},
            redis={"n1": f"tcp://127.0.0.1:{taken.getsockname()[1]}"},
        )
        with pytest.raises(ConfigError, match=r"redis\.address: cannot listen"):
            Node.start(config, "n1", found=True)
    socket.create_server(("127.0.0.1", port)).close()


def test_an_address_may_be_of_ip_version_6(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with running(measured(config_in(tmp_path, nodes=1), "[::1]")) as nodes:
        assert get(nodes["n1"].metrics, "/live") == (200, "live\n")


def test_the_address_stands_for_all_nodes_or_for_one() -> None:
    text = 'metrics = "127.0.0.1:9404"\n' + starting_config(loopback_addresses(2))
    own = text.replace("[nodes.n2]", '[nodes.n2]\nmetrics = "0.0.0.0:9405"')
    assert parse(own, Path()).metrics == {"n1": "127.0.0.1:9404", "n2": "0.0.0.0:9405"}
    assert parse(starting_config(loopback_addresses(2)), Path()).metrics == {}
    with pytest.raises(
        ConfigError, match=r'metrics: "9404" is not usable: an address of this machine'
    ):
        parse(text.replace("127.0.0.1:9404", "9404"), Path())
    with pytest.raises(ConfigError, match=r'metrics: "127\.0\.0\.1:65536" is not usable'):
        parse(text.replace("9404", "65536"), Path())


def test_a_histogram_counts_each_duration_in_one_class() -> None:
    histogram = Histogram()
    for ms in (0, 0.25, 0.26, 10_000, 10_001):
        histogram.add(round(ms * NS_PER_MS))
    histogram.fold()
    counts = dict(zip((*BOUNDS_MS, None), histogram.counts, strict=True))
    assert (counts[0.25], counts[0.5], counts[10_000], counts[None]) == (2, 1, 1, 1)
    assert sum(counts.values()) == 5
