"""Fuzz a Redis door: exit 1 if its node exits, stalls, grows without bound or says nothing.

    python verification/programs/redis_fuzz.py --seconds 60 --connections 10000 [--seed 1]

A node of its own process serves clients that send random bytes, requests with changed, missing or
repeated bytes, huge lengths, nested arrays, unknown scripts, long pipelines, and any command with
any arguments. Some send a byte now and then, some never read, and many do nothing. Meanwhile a
client sets and deletes a key, and takes the time of each pair.
"""

from __future__ import annotations

import json
import socket as tcp
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import psutil
from beside import Pairs, options_of

from fencelock.actors.redis.command import KEY_COMMANDS
from fencelock.actors.redis.door import SCRIPTED, SUBSCRIBING, RedisDoor
from fencelock.actors.redis.shapes import Operation, text_of
from fencelock.transport.descriptors import raise_limit
from fencelock.transport.stream import FULL
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.simulation.redis_doors import encoded

GROWTH_BYTES_MAX = 256 << 20
"""The most by which the node may grow: the limits of the door, and what Python adds to them."""

WAIT_S = 10.0
FUZZERS = 24
"""Connections that send something, beside those that are slow or idle."""

CHUNK = 4_096
WORDS = [
    *(
        name.encode()
        for name in [*KEY_COMMANDS, *RedisDoor.ABOUT_CONNECTIONS, *SCRIPTED, *SUBSCRIBING]
    ),
    *b"NX XX GET EX PX EXAT PXAT KEEPTTL MATCH COUNT LOAD EXISTS FLUSH a b c * [".split(),
    *(b"0", b"1", b"-1", b"10", b"9223372036854775807", b"99999999999999999999", b"1e309", b""),
    *(b"9" * 5_000, b"-9223372036854775808", b"nan", b"1e400", b"-0.5"),
    *(b"lock-signal:a", b"lock:a", b"\xff\xfe", b"x" * 2_000, b"a/b", "läßt".encode(), b"\0"),
    *(b"redisson_lock__channel:{a}", b"redisson_unlock_latch:{a}:1", b"subscribe", b"unsubscribe"),
    b"return redis.call('get', KEYS[1])",
    *map(text_of, (Operation.COMPARE_DELETE, Operation.ENTER, Operation.LEAVE_ONCE)),
    *map(text_of, (Operation.LEAVE_BY_FORCE, Operation.RENEW, Operation.RENEW_EACH)),
]
GARBAGE = [
    b"*1000000000\r\n", b"*-1\r\n", b"*1\r\n$1000000000\r\n", b"$5\r\nhello\r\n", b"*x\r\n",
    b"*1\r\n" * 200, b"*3\r\n$3\r\nSET\r\n:1\r\n", b"*" * 100, b"%1\r\n+a\r\n+b\r\n", b'"' * 50,
    b">1\r\n", b"\r\n" * 500, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\0",
]  # fmt: skip


@dataclass
class Report:
    """The outcome, which is printed as JSON."""

    requests: int = 0
    replies_bytes: int = 0
    closed: int = 0
    connections: int = 0
    served: int = 0
    """Idle clients that were answered in the end; others were told that there were too many."""
    pairs: int = 0
    slowest_pair_ms: float = 0.0
    slow_turns: int = 0
    grown_mib: float = 0.0
    exited: bool = False
    refused_in_words: bool = False

    @property
    def ok(self) -> bool:
        """Whether the door kept its promise; a pair also waits for other processes."""
        return (
            not self.exited
            and self.pairs > 0
            and self.refused_in_words
            and self.slow_turns == 0
            and self.grown_mib < GROWTH_BYTES_MAX >> 20
        )


def drawn(random: Random) -> bytes:
    """Return bytes to send: requests, changed requests, or garbage."""
    kind = random.randrange(10)
    if kind == 0:
        return random.randbytes(random.choice((1, 10, 100, CHUNK)))
    if kind == 1:
        return random.choice(GARBAGE)
    sent = b"".join(
        encoded([random.choice(WORDS) for _ in range(random.randrange(1, 7))])
        for _ in range(random.choice((1, 1, 1, 5, 100)))
    )
    if kind == 2:
        return b" ".join(random.choice(WORDS) for _ in range(4)) + b"\r\n"
    if kind == 3:
        at = random.randrange(len(sent))
        return sent[:at] + bytes([random.randrange(256)]) + sent[at + 1 :]
    if kind == 4:
        return sent[: random.randrange(len(sent))]
    if kind == 5:
        at = random.randrange(len(sent))
        return sent[:at] + sent[at // 2 : at] + sent[at:]
    return sent


class Crowd:
    """The connections of all clients that misbehave, on one thread."""

    def __init__(self, port: int, random: Random, report: Report) -> None:
        self._port = port
        self._random = random
        self._report = report
        self.fuzzers = [self.connected() for _ in range(FUZZERS)]
        self.idle: list[tcp.socket] = []
        self.slow: list[tcp.socket] = []
        self.deaf: list[tcp.socket] = []

    def connected(self) -> tcp.socket:
        client = tcp.create_connection(("127.0.0.1", self._port), WAIT_S)
        client.setblocking(False)
        self._report.connections += 1
        return client

    def fill(self, connections: int) -> None:
        """Open idle, slow and deaf connections."""
        self.slow += [self.connected() for _ in range(50)]
        self.deaf += [self.connected() for _ in range(20)]
        for client in self.deaf:
            client.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, CHUNK)
        left = max(0, connections - FUZZERS - 70 - 2)
        for number in range(left):
            self.idle.append(self.connected())
            if number % 200 == 0:
                self.step()

    def step(self) -> None:
        random, report = self._random, self._report
        for at, client in enumerate(self.fuzzers):
            try:
                client.send(drawn(random))
                report.requests += 1
                with suppress(BlockingIOError):
                    while data := client.recv(1 << 16):
                        report.replies_bytes += len(data)
                        report.refused_in_words |= b"-ERR " in data
                    raise ConnectionResetError  # As if the kernel said so.
                ends = random.random() < 0.01  # In the middle of anything.
            except BlockingIOError:
                continue
            except OSError:
                report.closed += 1
                ends = True
            if ends:
                client.close()
                self.fuzzers[at] = self.connected()
        for client in random.sample(self.slow, min(5, len(self.slow))):
            with suppress(OSError):
                client.send(random.choice((b"*", b"1", b"\r", b"\n", b"$", b"5", b"P")))
        for client in random.sample(self.deaf, min(5, len(self.deaf))):
            with suppress(OSError):
                client.send(b"COMMAND\r\nINFO\r\nKEYS *\r\n" * 50)

    def pinged(self) -> bool:
        """Return whether each idle client is answered, or was told that there were too many."""
        self._report.served = 0
        for client in self.idle:
            client.settimeout(WAIT_S)
            try:
                with suppress(OSError):
                    client.sendall(b"PING\r\n")
                answer = client.recv(len(FULL))
            except OSError:
                return False
            self._report.served += answer == b"+PONG\r\n"
            if answer not in (b"+PONG\r\n", FULL):
                return False
        return True

    def close(self) -> None:
        for client in (*self.fuzzers, *self.idle, *self.slow, *self.deaf):
            client.close()


class PairKey:
    """A key that a client sets and deletes."""

    def __init__(self, client: tcp.socket) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._ask(b"SET pair x NX PX 60000\r\n")

    def __exit__(self, *error: object) -> None:
        self._ask(b"DEL pair\r\n")

    def _ask(self, request: bytes) -> None:
        self._client.sendall(request)
        if not self._client.recv(CHUNK):
            raise ConnectionResetError("the door closed the connection of the pairs")


def fuzz(seconds: float, connections: int, seed: int, folder: Path) -> Report:
    report = Report()
    with ExitStack() as stack:
        nodes = NodeProcesses(folder, "paxos", 1, durable=False, redis=True)
        with (folder / "cluster.toml").open("a", encoding="utf-8") as file:
            file.write(f"[limits]\nconnections = {2 * connections + 1_000}\n")
        stack.enter_context(nodes)
        stack.enter_context(nodes.ready_client())
        process = psutil.Process(nodes.processes["n1"].pid)
        before = process.memory_info().rss
        port = nodes.doors["n1"]
        # It connects before the crowd, which takes all connections.
        client = stack.enter_context(tcp.create_connection(("127.0.0.1", port), WAIT_S))
        with Pairs(PairKey(client)) as pairs:
            crowd = Crowd(port, Random(seed), report)
            stack.callback(crowd.close)
            crowd.fill(connections)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                crowd.step()
                grown = (process.memory_info().rss - before) / (1 << 20)
                report.grown_mib = max(report.grown_mib, round(grown, 1))
            answered = crowd.pinged()
        took_ms = [1_000 * took for took in pairs.took()]
        report.pairs, report.slowest_pair_ms = len(took_ms), round(max(took_ms, default=0.0), 1)
        report.exited = nodes.processes["n1"].poll() is not None or not answered
        log = (folder / "n1.log").read_text(encoding="utf-8", errors="replace")
        report.slow_turns = log.count("slow_turn")
        if not report.ok:
            print(log[-4_000:], file=sys.stderr)
    return report


def main() -> int:
    options = options_of(
        __doc__,
        has_json=False,
        seconds=(60.0, "duration (s)"),
        connections=(1_000, "of all clients"),
        seed=(1, "of all that is sent"),
    )
    raise_limit()
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz(options.seconds, options.connections, options.seed, Path(folder))
    print(json.dumps(asdict(report) | {"ok": report.ok}))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
