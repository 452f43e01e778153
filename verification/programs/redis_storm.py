"""A storm over three nodes with Redis doors: exit 1 for a violation.

That is: two holders, a fence that does not rise, or a release that took effect twice or not at all.

    python verification/programs/redis_storm.py --seconds 60 [--seed 1]

Clients of redis-py, raw connections that are cut in the middle of a pipeline, clients that wait as
python-redis-lock does, clients that count their holds as Redisson does, and native clients contend
for a few locks, each at a door or node of its choice. Meanwhile nodes, mostly the leader, are
killed, stopped, or cut off from the other nodes, while clients still reach their doors. All clients
are threads of this process, so one judge sees when each enters and leaves. A client whose reply is
lost holds nothing, but its request may still take effect: its token is deleted again and again
until that is no longer possible.
"""

from __future__ import annotations

import json
import socket as tcp
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import redis
from beside import options_of
from redis.backoff import NoBackoff
from redis.retry import Retry

import fencelock
from fencelock.actors.redis.shapes import Operation, text_of
from fencelock.verification.bench.failover import LeaderDeath, RelayedMembers
from fencelock.verification.bench.members import described, leader_among

KEYS = "storm/a", "storm/b", "lock:storm"
WAITED = "storm"
"""The lock for which clients wait by ``BLPOP lock-signal:storm``."""
TTL_MS = 120_000
"""Longer than a storm: no hold may end by itself while its client believes in it."""
WORK_S = 0.01
TIMEOUT_S = 15.0
SETTLE_S = 15.0
"""Time after which a request whose reply was lost has no effect (s): doors repeat it for 10 s."""
RELEASE, ENTER, LEAVE = map(
    text_of, (Operation.COMPARE_DELETE, Operation.ENTER, Operation.LEAVE_ONCE)
)
CUTS = LeaderDeath.CUT_OFF, LeaderDeath.CUT_OFF_FROM_FOLLOWERS
DEATHS = (LeaderDeath.KILL, LeaderDeath.SIGSTOP, *CUTS)
LOST = redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError


@dataclass
class Judge:
    """The counts of what clients did, and of what must not happen."""

    grants: Counter[str] = field(default_factory=Counter[str])
    """By kind of client."""
    unknown: int = 0
    """Replies that were lost."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """By the way in which a node failed."""
    longest_gap_s: float = 0.0
    problems: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, str] = {}
        self._fences: dict[str, int] = {}
        self._deleted: Counter[str] = Counter()
        self._last_grant = time.monotonic()

    def entered(self, kind: str, key: str, who: str, fence: int) -> None:
        with self._lock:
            holder = self._holders.setdefault(key, who)
            if holder != who:
                self.problems.append(f"{key}: {who} entered while {holder} was inside")
            if fence <= self._fences.get(key, 0):
                self.problems.append(f"{key}: fence {fence} of {who} is not above the last one")
            self._fences[key] = max(fence, self._fences.get(key, 0))
            self.grants[kind] += 1
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, round(now - self._last_grant, 2))
            self._last_grant = now

    def left(self, key: str, who: str) -> None:
        """A client is about to release a lock."""
        with self._lock:
            if self._holders.get(key) == who:
                del self._holders[key]

    def deleted(self, token: str, count: int, *, sure: bool) -> None:
        """A compare-and-delete replied; ``sure`` if the token was held, and no reply was lost."""
        with self._lock:
            self._deleted[token] += count
            if self._deleted[token] > 1:
                self.problems.append(f"{token} was deleted {self._deleted[token]} times")
            if sure and not count:
                self.problems.append(f"{token} was gone before it was deleted")

    def unlocked(self, token: str, replies: list[int]) -> None:
        """Two unlocks of a lock that was held twice replied."""
        if replies != [0, 1]:
            self.problems.append(f"{token} was unlocked twice, with the replies {replies}")

    def lost(self) -> None:
        with self._lock:
            self.unknown += 1


class Storm:
    """The nodes, their clients, and what happens to them."""

    def __init__(self, nodes: RelayedMembers, seed: int) -> None:
        self.nodes = nodes
        self.judge = Judge()
        self.stops = threading.Event()
        self._random = Random(seed)
        self._threads: list[threading.Thread] = []
        self._debts: dict[tuple[str, str], float] = {}

    def begin(self, kind: str, work: Callable[[str, Random], None]) -> None:
        """Let a client work on a thread until the storm is over."""
        who, random = f"{kind}-{len(self._threads)}", Random(self._random.random())

        def run() -> None:
            count = 0
            while not self.stops.is_set():
                count += 1
                try:
                    work(f"{who}-{count}", random)
                except Exception as error:  # noqa: BLE001  # A client must not end in silence.
                    self.judge.problems.append(f"{who}: {error!r}")
                    return

        self._threads.append(threading.Thread(target=run, name=who))
        self._threads[-1].start()

    def end(self) -> None:
        """Stop the clients, and settle what they left."""
        self.stops.set()
        for thread in self._threads:
            thread.join()
        while self._debts:
            self.settle("", self._random)

    def client(self, random: Random) -> Any:
        """Return a client of redis-py at any door, which repeats nothing by itself."""
        port = random.choice([*self.nodes.doors.values()])
        return redis.Redis(
            port=port, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), protocol=2
        )

    def of_redis_py(self, token: str, random: Random) -> None:
        """``SET NX``, some work, and the script that releases."""
        key = random.choice(KEYS)
        with self.client(random) as client, self.perhaps_held(key, token):
            if not client.set(key, token, nx=True, px=TTL_MS):
                time.sleep(WORK_S)
                return
            fence = client.execute_command("LOCK.FENCE", key)
            self.work("redis-py", key, token, fence, random)
            self.judge.deleted(token, client.eval(RELEASE, 1, key, token), sure=True)

    def work(self, kind: str, key: str, who: str, fence: int, random: Random) -> None:
        self.judge.entered(kind, key, who, fence)
        time.sleep(WORK_S * random.random())
        self.judge.left(key, who)

    @contextmanager
    def perhaps_held(self, key: str, token: str) -> Generator[None]:
        """If a reply is lost here, end, and let the token be deleted, see `delete`."""
        try:
            yield
        except LOST:
            self.judge.lost()
            self.delete(key, token)

    def delete(self, key: str, token: str) -> None:
        """Note that a token may be held, or will be: `settle` deletes it."""
        self._debts[key, token] = time.monotonic() + SETTLE_S

    def settle(self, who: str, random: Random) -> None:
        """Delete the tokens whose replies were lost, if they are held."""
        time.sleep(10 * WORK_S)
        with suppress(*LOST), self.client(random) as client:
            for key in KEYS:
                token = (client.get(key) or b"").decode()
                if (key, token) in self._debts:
                    self.judge.deleted(token, client.eval(RELEASE, 1, key, token), sure=False)
        now = time.monotonic()
        for debt, ends in list(self._debts.items()):
            if ends < now:
                del self._debts[debt]

    def of_raw_client(self, token: str, random: Random) -> None:
        """Send a pipeline, a part of it perhaps, and cut the connection at any time."""
        key = random.choice(KEYS)
        port = random.choice([*self.nodes.doors.values()])
        pipeline = (
            f"SET {key} {token} NX PX {TTL_MS}\r\nGET {key}\r\nPING\r\nDEL {token}\r\n"
            f"PEXPIRE {token} 5\r\n"
        ).encode()
        with suppress(OSError), tcp.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
            client.sendall(pipeline[: random.randrange(len(pipeline) + 1)])
            if random.random() < 0.5:
                client.recv(64)
        self.judge.lost()
        self.delete(key, token)

    def of_redisson(self, token: str, random: Random) -> None:
        """Enter twice, and leave twice; a leave is repeated until it has a reply."""
        key = random.choice(KEYS)
        fence = 0
        with self.client(random) as client, self.perhaps_held(key, token):
            for _ in range(2):
                if client.eval(ENTER, 1, key, TTL_MS, token) is not None:
                    time.sleep(WORK_S)
                    return
            fence = client.execute_command("LOCK.FENCE", key)
        if not fence:
            return
        self.work("redisson", key, token, fence, random)
        self.judge.unlocked(token, [self.leave(key, token, number, random) for number in (1, 2)])

    def leave(self, key: str, token: str, number: int, random: Random) -> int:
        """End one hold; return 1 if that was the last one, 0 if not, and -1 if it is not held."""
        keys = key, "channel", f"redisson_unlock_latch:{token}:{number}"
        while True:
            with self.client(random) as client, suppress(*LOST):
                sent = LEAVE, 3, *keys, 0, TTL_MS, token, "PUBLISH", TTL_MS
                if random.random() < 0.5:
                    client.eval(*sent)
                reply = client.eval(*sent)
                return -1 if reply is None else int(reply)
            self.judge.lost()
            time.sleep(WORK_S)

    def of_waiting_client(self, token: str, random: Random) -> None:
        """Acquire and wait as python-redis-lock does."""
        key = f"lock:{WAITED}"
        with self.client(random) as client:
            try:
                while not client.set(key, token, nx=True, px=TTL_MS):
                    client.blpop(f"lock-signal:{WAITED}", 5)
                    if self.stops.is_set():
                        break
                else:
                    fence = client.execute_command("LOCK.FENCE", key)
                    self.work("waiting", key, token, fence, random)
            except LOST:
                self.judge.lost()
            self.delete(key, token)

    def of_native_client(self, client: fencelock.Client) -> Callable[[str, Random], None]:
        """Return what a native client does."""

        def work(who: str, random: Random) -> None:
            key = random.choice(KEYS)
            hold = None
            with suppress(fencelock.UnavailableError):  # A node was stopped when time was up.
                hold = client.lock(key).acquire(timeout=5)
            if hold is not None:
                self.work("native", key, who, hold.fence, random)
                hold.release()
                time.sleep(WORK_S)

        return work

    def fault(self, watcher: fencelock.Client) -> None:
        """Let a node fail for a while, mostly the leader."""
        random = self._random
        leader = leader_among(described(watcher)) or "n1"
        node = leader if random.random() < 0.7 else random.choice(self.nodes.names)
        death = random.choice(DEATHS)
        _, undo = self.nodes.strike(node, death)
        self.judge.faults[death] += 1
        time.sleep(random.uniform(0.2, 5.0 if death in CUTS else 2.0))
        undo()
        self.nodes.wait_until_ready(watcher)
        time.sleep(random.uniform(0.5, 2.0))


def storm(seconds: float, seed: int, folder: Path) -> Judge:
    with ExitStack() as last:
        nodes = last.enter_context(RelayedMembers(folder, "paxos", 3, redis=True))
        watcher, native = (last.enter_context(nodes.ready_client()) for _ in range(2))
        one = Storm(nodes, seed)
        one.begin("settling", one.settle)
        last.callback(one.end)
        for kind, work in (
            *(("redis-py", one.of_redis_py),) * 6,
            *(("raw", one.of_raw_client),) * 2,
            *(("waiting", one.of_waiting_client),) * 3,
            *(("redisson", one.of_redisson),) * 2,
            *(("native", one.of_native_client(native)),) * 2,
        ):
            one.begin(kind, work)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not one.judge.problems:
            one.fault(watcher)
        nodes.wait_until_ready(watcher)
        one.end()
        with one.client(Random(seed)) as client:
            left = [key.decode() for key in client.keys("*storm*")]
            if left:
                one.judge.problems.append(f"still held in the end: {left}")
        return one.judge


def main() -> int:
    numbers = {"seconds": (60.0, "duration (s)"), "seed": (1, "of all that is drawn")}
    options = options_of(__doc__, has_json=False, **numbers)
    with tempfile.TemporaryDirectory() as folder:
        judge = storm(options.seconds, options.seed, Path(folder))
    outcome = {name: value for name, value in vars(judge).items() if not name.startswith("_")}
    print(json.dumps(outcome))
    return 1 if judge.problems else 0


if __name__ == "__main__":
    sys.exit(main())
