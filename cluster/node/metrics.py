"""Metrics of a node for Prometheus, and its health, over HTTP.

Everything is read when it is asked for, on the node's own thread, so that a scrape sees one state
and no request pays for it. Scrapes at nearly the same time share one reading: it looks at every
role, and a node of `central` has one for each lock.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pykka
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from fencelock import __version__
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.leader import Leader as ElectionLeader
from fencelock.actors.bakery.reconfigurer import Reconfigurer
from fencelock.actors.error import ConfigError
from fencelock.actors.histogram import BOUNDS_MS, Histogram
from fencelock.actors.message import NS_PER_MS, Instant, address_of, later
from fencelock.actors.paxos.reconfigurer import Reconfigurer as LogReconfigurer
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.proxy import Proxy
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.host.watchdog import DROPPED
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.sockets import LISTEN_BACKLOG

KEYS_SHOWN_MAX = 20
"""Keys whose part of their quotas is shown: the nearest to it. Each is a series of its own."""

READ_S = 2.0
"""Longest wait for the node (s): one that takes longer does not live."""

READING_MS = 200
"""Time for which a reading is shared (ms): whoever asks, the node reads five times a second."""

REQUEST_S = 5.0
"""Time for a request and its reply (s), however slowly they come. A scrape takes some ms."""

REQUESTS_MAX, OF_ADDRESS_MAX = 64, 8
"""Limits of connections that are served at a time, in all and from one address; more are closed.
Each has a thread. A stranger at one address shall not take the place of a probe or a scrape."""


class Reading(NamedTuple):
    """The state of a node at one time, as metrics."""

    ready: bool
    metrics: list[Metric]


class MetricsServer:
    """Serves ``/metrics``, ``/live`` and ``/ready`` of one node.

    It listens at ``at``, a ``host:port``; port 0 is for any. `address` has the real one.
    """

    def __init__(self, at: str, dispatcher: Dispatcher, cluster: str) -> None:
        host, _, port = at.rpartition(":")
        node = _NodeCollector(dispatcher, cluster)
        registry = CollectorRegistry()
        registry.register(node)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)

        class Handler(_Handler):
            collector = node
            metrics = registry

        try:
            self._server = _Server((host.strip("[]"), int(port)), Handler)
        except OSError as error:
            raise ConfigError(
                f"metrics: cannot listen at {at}: {error.strerror}. Nodes on one machine have a "
                "port each: metrics under [nodes.n1], and so on"
            ) from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="fencelock-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Serves a limited number of connections, each for a limited time."""

    daemon_threads = True
    request_queue_size = LISTEN_BACKLOG  # A flood must not keep probes out either.

    def __init__(self, at: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._began: dict[Any, tuple[float, str]] = {}
        """The time at which each connection was accepted (s), and the address of its other side."""
        if ":" in at[0]:
            self.address_family = socket.AF_INET6
        super().__init__(at, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, if there is room."""
        began, host = tuple(self._began.values()), client_address[0]
        if len(began) >= REQUESTS_MAX or sum(host == of for _, of in began) >= OF_ADDRESS_MAX:
            self.shutdown_request(request)
            return
        self._began[request] = time.monotonic(), host
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that take too long; called twice a second."""
        now = time.monotonic()
        for request, (began, _) in list(self._began.items()):
            if now - began > REQUEST_S:
                with suppress(OSError):  # It has just ended.
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the other side has closed, or was too slow."""


class _Handler(BaseHTTPRequestHandler):
    collector: _NodeCollector
    metrics: CollectorRegistry

    def do_GET(self) -> None:
        try:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._reply(HTTPStatus.OK, generate_latest(self.metrics), CONTENT_TYPE_LATEST)
                case "/live":
                    self.collector.read()
                    self._reply(HTTPStatus.OK, b"live\n")
                case "/ready" if self.collector.read().ready:
                    self._reply(HTTPStatus.OK, b"ready\n")
                case "/ready":
                    self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")
                case _:
                    self._reply(HTTPStatus.NOT_FOUND, b"/metrics, /live, /ready\n")
        except (pykka.Timeout, pykka.ActorDeadError):
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"the node does not answer\n")

    def version_string(self) -> str:
        """Return the text of the header Server: no version, for whoever scans."""
        return "fencelock"

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a scrape is no event."""


class _NodeCollector(Collector):
    def __init__(self, dispatcher: Dispatcher, cluster: str) -> None:
        self._dispatcher = dispatcher
        self._cluster = cluster
        self._reading: Reading | None = None
        self._read_at = Instant(0)

    def read(self) -> Reading:
        reading: Reading = self._dispatcher.read(self._share, READ_S)
        return reading

    def collect(self) -> Iterable[Metric]:
        return self.read().metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing: no other collector has such names (Prometheus)."""
        return ()

    def _share(self, scheduler: Scheduler) -> Reading:
        """Return the last reading, or another if it is too old."""
        now = scheduler.now()
        if self._reading is None or now >= later(self._read_at, READING_MS):
            self._reading, self._read_at = self._look(scheduler), now
        return self._reading

    def _look(self, scheduler: Scheduler) -> Reading:
        roles = {name: slot.role for name, slot in scheduler.roles.items()}
        proxy = roles.get(address_of(scheduler.node, "proxy"))
        assert proxy is None or isinstance(proxy, Proxy)
        ready = proxy is not None and proxy.backend.is_ready() and not proxy.closed
        labels = {"cluster": self._cluster, "node": scheduler.node, "version": __version__}
        labels["protocol"] = proxy.backend.name if proxy else ""
        parts = [_host(scheduler, labels, ready=ready), _frames(scheduler)]
        if proxy is not None:
            parts.append(_clients(scheduler, proxy))
        for role in roles.values():
            match role:
                case Replica():
                    parts.append(_log(scheduler.node, role))
                case ElectionLeader():
                    parts.append(_tickets(role))
                case ElectionCoordinator():
                    parts.append(_members(role))
                case Reconfigurer() | LogReconfigurer():
                    text = "Members that have been silent for down_after"
                    parts.append(iter([_gauge("members_down", text, len(role.keeper.down))]))
                case Proxy(backend=LockManager() as backend):
                    parts.append(_local(scheduler, backend))
                case _:
                    pass
        metrics: list[Metric] = []
        for part in parts:
            try:
                metrics += part
            except Exception as error:  # noqa: BLE001  # Nothing was changed; the others are shown.
                scheduler.note_fault("a metric", error)
        return Reading(ready, metrics)


def _host(scheduler: Scheduler, labels: dict[str, str], *, ready: bool) -> Iterator[Metric]:
    yield _info(labels)
    yield _gauge("ready", "Whether requests can be granted now", ready)
    yield _gauge("uptime_seconds", "Time since the start", scheduler.uptime_ms() / 1_000)
    yield _gauge("events_waiting", "Events that wait for roles", len(scheduler.ready))
    yield _histogram("sync_seconds", "Syncs of the journal", {"": scheduler.sync_times})


def _clients(scheduler: Scheduler, proxy: Proxy) -> Iterator[Metric]:
    by_id = proxy.clients.by_id
    yield _gauge("clients", "Clients of this node", len(by_id))
    quiet = next(iter(by_id.values())).received_at if by_id else scheduler.now()
    lag_ns = scheduler.now() - quiet
    text = "Time since the last message of the client that has been silent for longest"
    yield _gauge("client_lag_seconds", text, lag_ns / NS_PER_MS / 1_000)
    yield _gauge("requests", "Requests in flight", len(proxy.backend))
    times = proxy.backend.latencies
    yield _histogram("request_seconds", "Requests, by kind", times, "kind")


def _log(node: str, replica: Replica) -> Iterator[Metric]:
    applied = replica.decided.next - 1
    lag = max(0, replica.committed - replica.decided.next)
    yield _gauge("leader", "Whether this node leads", replica.leading_node == node)
    yield _gauge("applied_slot", "The last slot of the log that is applied", applied)
    yield _gauge("lag_slots", "Slots known to be decided that are not applied", lag)
    yield _gauge("view", "Changes of the members so far", replica.config.newest.number)
    yield _gauge("members", "Members that vote", len(replica.config.newest.members))
    proposals = replica.ordering.proposals.queue_commands
    yield _gauge("proposals", "Commands that wait for a slot", proposals)
    machine = replica.machine
    if not isinstance(machine, LockMachine):
        return
    table = machine.table
    yield _gauge("sessions", "Open sessions of clients", len(table.sessions.by_id))
    yield _gauge("holds", "Holds of locks and of semaphores", table.claims - table.waits)
    yield _gauge("retained", "Holds that sessions retain for their own owners", table.retained)
    yield _gauge("waits", "Acquires that wait in queues", table.waits)
    yield _gauge("evictions", "Evictions in the audit, up to its limit", len(table.audit))
    yield _gauge("fence", "The last fence", table.fence)
    shares = GaugeMetricFamily(
        "fencelock_key_share", "Largest part of a quota that a key uses", labels=["key"]
    )
    for share, name in table.accounts.nearest(KEYS_SHOWN_MAX):
        shares.add_metric([name], share)
    yield shares


def _tickets(leader: ElectionLeader) -> Iterator[Metric]:
    """Yield the metrics of the tickets of `bakery`, which every leader knows."""
    leads = leader.epoch_state.serving
    yield _gauge("leader", "Whether this node leads", leads)
    yield _gauge("epoch", "The epoch of the leaders", leader.epoch_state.epoch)
    entries = list(leader.tickets.entries()) if leads else []  # Else they are copies.
    holds = sum(entry.fence > 0 for entry in entries)
    yield _gauge("holds", "Holds of locks and of semaphores", holds)
    yield _gauge("waits", "Acquires that wait in queues", len(entries) - holds)


def _members(election: ElectionCoordinator) -> Iterator[Metric]:
    members = election.electorate.names
    voters = sum(one.votes and one.node in members for one in election.seen)
    yield _gauge("members", "Members that vote", len(members))
    yield _gauge("voters", "Members that are connected and vote", voters)


def _local(scheduler: Scheduler, backend: LockManager) -> Iterator[Metric]:
    """Yield the metrics of the locks through this node, where no node knows all of them."""
    holds = len(backend.claims.holder)
    if backend.confirms:  # `central`
        leads = address_of(scheduler.node, "server") in scheduler.roles
        yield _gauge("leader", "Whether this node leads", leads)
    yield _gauge("local_holds", "Holds of locks through this node", holds)
    yield _gauge("local_waits", "Acquires through this node that wait", len(backend) - holds)


def _frames(scheduler: Scheduler) -> Iterator[Metric]:
    """Yield the metrics of frames, and all other counters by name."""
    counters = scheduler.total_counters()
    frames = CounterMetricFamily("fencelock_frames", "Frames", labels=["direction"])
    frames.add_metric(["in"], scheduler.frames_in)
    frames.add_metric(["out"], scheduler.frames_out)
    yield frames
    dropped = CounterMetricFamily(
        "fencelock_frames_rejected", "Frames and connections dropped, by reason", labels=["reason"]
    )
    events = CounterMetricFamily("fencelock_events", "Counters of roles and host", labels=["name"])
    for name in DROPPED:
        dropped.add_metric([name.partition(".")[2]], counters[name])
    for name, times in sorted(counters.items()):
        events.add_metric([name], times)
    yield dropped
    yield events


def _info(labels: dict[str, str]) -> Metric:
    info = GaugeMetricFamily("fencelock_node", "The node; always 1", labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fencelock_{name}", text, value=value)


def _histogram(name: str, text: str, times: dict[str, Histogram], label: str = "") -> Metric:
    labels = [label] if label else []
    metric = HistogramMetricFamily(f"fencelock_{name}", text, labels=labels)
    for kind, histogram in times.items():
        histogram.fold()
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*BOUNDS_MS, None), histogram.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else f"{bound / 1_000:g}", total))
        metric.add_metric([kind] if label else [], buckets, histogram.sum_ns / NS_PER_MS / 1_000)
    return metric
