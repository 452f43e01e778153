"""etcd: three members with real fsync, locks through its v3 Lock service over gRPC.

Sources: etcd 3.4, ``etcdserver/api/v3lock/v3lockpb/v3lock.proto`` and
``etcdserver/etcdserverpb/rpc.proto``; their messages are small enough to be written by hand, in as
much of the protobuf wire format as they need
(https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from fencelock.cluster.testing.ports import free_ports
from peers.peer import Handle, ReplicatedPeer, Spec, output_of

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Fields = dict[int, int | bytes]
"""Field number to its value: an int, or the bytes of a string or of a message inside."""


def encode(fields: Fields) -> bytes:
    """Return the message with these fields; ints are not negative."""
    parts: list[bytes] = []
    for number, value in fields.items():
        if isinstance(value, bytes):
            parts += [_varint(number << 3 | BYTES), _varint(len(value)), value]
        else:
            parts += [_varint(number << 3 | VARINT), _varint(value)]
    return b"".join(parts)


def decode(message: bytes) -> Fields:
    """Return the fields of a message; of a repeated one the last.

    Raises:
        ValueError: it is no such message.

    """
    fields: Fields = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            fields[number], at = _read_varint(message, at)
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _read_varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError(f"no protobuf: field {number} of kind {kind} at byte {at}")
        fields[number] = message[at : at + size]
        at += size
    return fields


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte <= 0x7F:
            return value, at
        shift += 7
    raise ValueError("no protobuf: it ends inside a number")


LEASE_S = 600
"""Outlives every run, so that nobody spends time on renewing it."""
PATIENCE_S = 0.3
"""Time after which a request is sent again to another member (s). A waiter keeps its place only
while its request is open, so this is used only without contention."""
LOCK, UNLOCK = "/v3lockpb.Lock/Lock", "/v3lockpb.Lock/Unlock"
GRANT, STATUS = "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Maintenance/Status"
CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100))


class Etcd(ReplicatedPeer):
    """Three members with the default settings."""

    name = "etcd"
    packages = ("grpc",)
    programs = (("etcd", "etcd-server"),)

    def __init__(self) -> None:
        super().__init__()
        self._peers: list[int] = []

    def missing(self) -> str | None:
        missing = super().missing()
        return None if missing is None else missing.replace("install grpc", "install grpcio")

    def version(self) -> str:
        return f"{output_of('etcd', '--version')}, grpcio {metadata.version('grpcio')}, v3lock"

    def start(self, folder: Path) -> None:
        ports = free_ports(2 * self.count)
        self._ports, self._peers = ports[: self.count], ports[self.count :]
        self.start_servers(folder)

    def leader(self) -> int | None:
        statuses = [_status(port) for port in self._ports]
        for index, status in enumerate(statuses):
            if status is not None and status[0] == status[1]:
                return index
        return None

    def serves(self) -> bool:
        statuses = [_status(port) for port in self._ports]
        leaders = {status[1] if status is not None else 0 for status in statuses}
        return len(leaders) == 1 and 0 not in leaders

    def start_server(self, index: int) -> None:
        names = [f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(self._peers)]
        client = f"http://127.0.0.1:{self._ports[index]}"
        peer = f"http://127.0.0.1:{self._peers[index]}"
        options = {
            "name": f"m{index}",
            "data-dir": str(self.servers.folder / f"member-{index}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(names),
            "initial-cluster-state": "new",
            "log-level": "error",
        }
        command = [f"--{option}={value}" for option, value in options.items()]
        self.servers.start(index, ["etcd", *command])


def _status(port: int) -> tuple[int, int] | None:
    """Return a member's id and whom it takes for the leader (0: none); None if it is silent."""
    grpc: Any = import_module("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{port}", CHANNEL) as channel:
        try:
            status = decode(channel.unary_unary(STATUS)(b"", timeout=1.0))
        except grpc.RpcError:
            return None
    header = status.get(1)
    member = decode(header).get(2, 0) if isinstance(header, bytes) else 0
    leader = status.get(4, 0)
    return (member, leader) if isinstance(member, int) and isinstance(leader, int) else None


class EtcdConnection:
    """A channel for each member; all threads share them, and use the one that answered last."""

    def __init__(self, spec: Spec) -> None:
        self._grpc: Any = import_module("grpc")
        self._patience_s: float | None = PATIENCE_S if spec.get("failover") else None
        self._channels: list[Any] = [
            self._grpc.insecure_channel(f"127.0.0.1:{port}", CHANNEL) for port in spec["ports"]
        ]
        self._calls: dict[str, list[Callable[..., bytes]]] = {
            method: [channel.unary_unary(method) for channel in self._channels]
            for method in (LOCK, UNLOCK, GRANT)
        }
        self._used = 0

    def lock(self, name: str) -> Handle:
        """Return a handle with a lease of its own, which is its owner's name to etcd."""
        lease = self.ask(GRANT, {1: LEASE_S})[2]
        assert isinstance(lease, int)
        return EtcdHandle(self, name.encode(), lease)

    def ask(self, method: str, fields: Fields) -> Fields:
        """Ask the member in use, and the others in turn while it fails."""
        request = encode(fields)
        while True:
            used = self._used
            try:
                return decode(self._calls[method][used](request, timeout=self._patience_s))
            except self._grpc.RpcError:
                if self._patience_s is None:
                    raise
                if self._used == used:  # Not yet given up by another thread.
                    self._used = (used + 1) % len(self._channels)
                time.sleep(0.01)  # Members that refuse at once are not to be flooded.

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class EtcdHandle:
    """A lock under one lease; to ask twice under the same lease is to ask once."""

    def __init__(self, connection: EtcdConnection, name: bytes, lease: int) -> None:
        self._connection = connection
        self._question: Fields = {1: name, 2: lease}
        self._key: int | bytes = b""

    def acquire(self) -> None:
        self._key = self._connection.ask(LOCK, self._question)[2]

    def release(self) -> None:
        self._connection.ask(UNLOCK, {1: self._key})
