"""The cost of network and disk: three bare processes of Python, ZeroMQ and CBOR.

No lock service and no peer to beat: it shows how near fencelock is to the limits of its own parts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cbor2
import zmq

from fencelock.cluster.testing.ports import free_ports
from peers.peer import ComparedPeer, Handle, PeerConnection, Spec
from peers.servers import Servers

MEMBER = Path(__file__).with_name("bare_member.py")
PROBE_REPLY_MS = 200
"""Time for which a probe waits for its reply (ms)."""


class Bare(ComparedPeer):
    """A leader and two followers; see ``bare_member.py``."""

    name = "bare"

    def __init__(self) -> None:
        self._servers: Servers | None = None
        self._port = 0

    def version(self) -> str:
        return f"three bare processes, libzmq {zmq.zmq_version()}, no protocol around the path"

    def start(self, folder: Path) -> None:
        self._servers = Servers(folder)
        self._port, *others = free_ports(3)
        followers = [str(port) for port in others]
        python, member = sys.executable, str(MEMBER)
        for index, port in enumerate(followers, start=1):
            log = str(folder / f"log-{index}")
            self._servers.start(index, [python, member, "follower", port, log])
        log = str(folder / "log-0")
        self._servers.start(0, [python, member, "leader", str(self._port), log, *followers])
        self._servers.wait_until(self._serves)

    def spec(self) -> Spec:
        return {"port": self._port}

    def stop(self) -> None:
        if self._servers is not None:
            self._servers.stop()

    def _serves(self) -> bool:
        connection = BareConnection(self._port)
        try:
            handle = connection.handle("probe")
            handle.say(take=True)
            if not handle.socket.poll(PROBE_REPLY_MS):
                return False
            handle.release()
        finally:
            connection.close()
        return True


class BareHandle:
    """One lock for one thread, with a socket of its own."""

    def __init__(self, socket: Any, name: str) -> None:
        self.socket = socket
        self._name = name

    def say(self, *, take: bool) -> None:
        self.socket.send(cbor2.dumps([take, self._name]))

    def acquire(self) -> None:
        self.say(take=True)
        self.socket.recv()

    def release(self) -> None:
        self.say(take=False)
        self.socket.recv()


class BareConnection:
    """One process's sockets."""

    def __init__(self, port: int) -> None:
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._context: zmq.Context[Any] = zmq.Context()

    def handle(self, name: str) -> BareHandle:
        socket: Any = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        return BareHandle(socket, name)

    def lock(self, name: str) -> Handle:
        return self.handle(name)

    def close(self) -> None:
        self._context.destroy(linger=0)


def open_connection(spec: Spec) -> PeerConnection:
    return BareConnection(int(spec["port"]))
