"""Fuzzed frames for real nodes: as fast as they are taken, beside a client that is probed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import cbor2
import zmq

import fencelock
from fencelock.actors.api.cluster_message import Probe
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.error import FencelockError
from fencelock.actors.message import Message
from fencelock.cluster.keys import read_key
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX, Dropped, FrameValidator
from fencelock.transport.codec import lists_of, pack
from fencelock.verification.bench.members import NodeProcesses, described

STALL_S = 0.2
"""A probe that takes longer is a stall (s)."""

BURST = 50
"""Frames to each node between two probes of the fuzzer."""

ANSWER_S = 10.0
"""Patience with a node (s)."""

IDENTITY_FRAMES = 2_000
"""Frames under one client id; then another is used."""


@dataclass
class LiveReport:
    """The effects of fuzzed frames on the nodes."""

    frames: int = 0
    seconds: float = 0.0
    exits: dict[str, str] = field(default_factory=dict[str, str])
    """The last lines of the log of each node that exited."""
    stalls: list[float] = field(default_factory=list[float])
    """Probes that took longer than `STALL_S` (s)."""
    unanswered: list[str] = field(default_factory=list[str])
    """One text for each probe that a running node did not answer in time: the node, whether it
    answered the next probe, and the end of its log."""
    faults: list[str] = field(default_factory=list[str])
    """Lines in the logs about exceptions that cost one request."""
    probes: int = 0
    counters: Counter[str] = field(default_factory=Counter[str])
    """What the nodes counted, if they still run."""


class Prober:
    """A client that acquires and releases a lock, and measures how long each pair takes."""

    def __init__(self, client: fencelock.Client, report: LiveReport) -> None:
        self._client, self._report = client, report
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        lock = self._client.lock("orders/probe")
        while not self._over.is_set():
            began = time.monotonic()
            try:
                with lock:
                    pass
            except FencelockError:
                pass
            took = time.monotonic() - began
            self._report.probes += 1
            if took > STALL_S:
                self._report.stalls.append(took)
            self._over.wait(0.005)


class Peer:
    """A connection to each node under one id.

    Args:
        members: the nodes.
        name: the id of the client, or of the member that is posed as.
        key: the folder of the keys and the name of ours; None without keys.

    """

    def __init__(
        self, members: NodeProcesses, name: str, key: tuple[Path, str] | None, number: int
    ) -> None:
        self.name = name
        self.session = name
        self.group = 0
        """The group that frames name, 0 of a client."""
        self.seen_group = 0
        """The group of the nodes, once one has answered."""
        self._members = members
        self._request = 1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        for node, address in members.addresses.items():
            if node == name:
                continue
            dealer = self._context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.ROUTING_ID, f"{name}#{os.getpid():x}.{number}".encode())
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.SNDHWM, 10_000)
            if key is not None:
                folder, file = key
                known = read_key(folder / f"{file}.key")
                dealer.setsockopt(zmq.CURVE_SERVERKEY, known.server.encode())
                dealer.setsockopt(zmq.CURVE_PUBLICKEY, known.public.encode())
                dealer.setsockopt(zmq.CURVE_SECRETKEY, known.secret.encode())
            dealer.connect(address)
            self.sockets[node] = dealer

    def close(self) -> None:
        self._context.destroy(linger=0)

    def frame(self, to: str, sender: str, message: Message) -> bytes:
        envelope = [to, sender, [lists_of(pack(message))]]
        return cbor2.dumps([1, self._members.cluster, self.group, 1, [envelope]])

    def ask(self, node: str, message: Message) -> list[Any] | None:
        """Send a request as a client; return the array of its reply, or None."""
        socket = self.sockets[node]
        socket.send(self.frame("*/proxy", f"{self.name}/x", message))
        ends = time.monotonic() + ANSWER_S
        wanted = getattr(message, "request", None)
        while (left := ends - time.monotonic()) > 0:
            if socket.poll(int(left * 1_000)):
                frame = cbor2.loads(socket.recv())
                self.seen_group = frame[2]
                for reply in chain.from_iterable(messages for _, _, messages in frame[4]):
                    if wanted in reply[1:]:
                        return list(reply)
        return None

    def open(self) -> None:
        """Open a session, where the cluster keeps them."""
        for node in self.sockets:
            reply = self.ask(node, Open(session=self.name, ttl_ms=60_000, request=10**9))
            if reply is not None and reply[0] == Opened.TAG:
                self.session = str(reply[2])
                return

    def answers(self, node: str) -> bool:
        """Return whether ``node`` answers a probe, after all frames so far."""
        self._request += 1
        request = 10**12 + self._request
        return self.ask(node, Probe(session=self.name, request=request)) is not None


class LiveFuzzer:
    """Sends messages to real nodes, and watches the nodes and a client.

    Args:
        members: the running nodes.
        keys: the folder of the keys, None without.

    """

    def __init__(self, members: NodeProcesses, keys: Path | None = None) -> None:
        self.members = members
        self.keys = keys
        self.report = LiveReport()
        self._number = 0

    def clients(self, messages: Iterable[Message], key: str = "") -> None:
        """Send ``messages`` as requests of clients with the key of that name."""
        given = iter(messages)
        while part := list(islice(given, IDENTITY_FRAMES)):
            self._number += 1
            name = f"{key}@{self._number:x}" if key else f"fuzz-{self._number:x}"
            peer = Peer(self.members, name, self._key(key), self._number)
            try:
                peer.open()
                frames = [peer.frame("*/proxy", f"{name}/x", one) for one in part]
                self._send(peer, frames)
            finally:
                peer.close()

    def peers(self, node: str, messages: Iterable[tuple[str, str, Message]]) -> None:
        """Send messages as the member ``node``: each with the roles of its receiver and sender."""
        self._number += 1
        peer = Peer(self.members, node, self._key(node), self._number)
        # The sender of a frame that no version of ours sends is muted for a second. Another link of
        # the same member sends these, so that the others reach the roles.
        validator = FrameValidator("fuzz", self.members.cluster, client=False, members={node})
        stray = Peer(self.members, node, self._key(node), -self._number)
        probe = Peer(self.members, *self._prober())
        try:
            for part in _parts(messages, BURST):
                for other, socket in peer.sockets.items():
                    if not peer.group and probe.answers(other):
                        peer.group = probe.seen_group
                    for to, sender, message in part:
                        raw = peer.frame(f"{other}/{to}", f"{node}/{sender}", message)
                        seen = validator.admit(node, raw)
                        muted = isinstance(seen, Dropped) and seen.hostile
                        (stray.sockets[other] if muted else socket).send(raw)
                        self.report.frames += 1
                    if not probe.answers(other):
                        self._look(other, probe)
        finally:
            peer.close()
            stray.close()
            probe.close()

    def _prober(self) -> tuple[str, tuple[Path, str] | None, int]:
        key = "alice" if self.keys is not None else ""
        name = f"{key}@probe{self._number:x}" if key else f"fuzz-probe-{self._number:x}"
        return name, self._key(key), self._number

    def _key(self, name: str) -> tuple[Path, str] | None:
        return None if self.keys is None else (self.keys, name)

    def _send(self, peer: Peer, frames: list[bytes]) -> None:
        for part in _parts(frames, BURST):
            for node, socket in peer.sockets.items():
                for raw in part:
                    if len(raw) <= CLIENT_FRAME_BYTES_MAX:
                        socket.send(raw)
                        self.report.frames += 1
                if not peer.answers(node):
                    self._look(node, peer)

    def _look(self, node: str, peer: Peer | None = None) -> None:
        """Note that ``node`` has exited, or what is known of a probe that it did not answer."""
        process = self.members.processes[node]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        log = (self.members.folder / f"{node}.log").read_text(errors="replace")
        if process.poll() is not None:
            self.report.exits.setdefault(node, log[-4_000:])
        elif peer is not None:
            again = "answered" if peer.answers(node) else "not answered either"
            text = f"{node} did not answer {peer.name} after {self.report.frames:,} frames in all"
            self.report.unanswered.append(
                f"{text}; the next probe was {again}. Its log:\n{log[-1_000:]}"
            )

    def finish(self, watcher: fencelock.Client) -> LiveReport:
        """Note the nodes that have exited, and what their logs and counters say."""
        for status in described(watcher):
            self.report.counters.update({one.name: one.times for one in status.counters})
        for node, process in self.members.processes.items():
            if process.poll() is not None:
                self._look(node)
            log = (self.members.folder / f"{node}.log").read_text(errors="replace")
            self.report.faults += [
                line for line in log.splitlines() if "a bug in fencelock" in line
            ]
        return self.report


def _parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    given = iter(items)
    while part := list(islice(given, size)):
        yield part
