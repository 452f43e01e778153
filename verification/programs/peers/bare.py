"""The cost of network and disk: three bare processes of Python, ZeroMQ and CBOR.

No lock service and no peer to beat: it shows how near fencelock is to the limits of its own parts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cbor2
import zmq

from peers.peer import ComparedPeer, Handle, Spec

MEMBER = Path(__file__).with_name("bare_member.py")
PROBE_REPLY_MS = 200
"""Time for which a probe waits for its reply (ms)."""


class Bare(ComparedPeer):
    """A leader and two followers; see ``bare_member.py``."""

    name = "bare"

    def version(self) -> str:
        return f"three bare processes, libzmq {zmq.zmq_version()}, no protocol around the path"

    def start_server(self, index: int) -> None:
        role = "follower" if index else "leader"
        ports = [str(port) for port in self._ports]
        log = str(self.servers.folder / f"log-{index}")
        command = [sys.executable, str(MEMBER), role, ports[index], log]
        self.servers.start(index, command if index else [*command, *ports[1:]])

    def serves(self) -> bool:
        connection = BareConnection(self.spec())
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

    def __init__(self, spec: Spec) -> None:
        self._endpoint = f"tcp://127.0.0.1:{spec['ports'][0]}"
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
