"""A client that locks as Redisson does, step by step, with the texts of its scripts.

Source: ``RedissonLock.java``, ``RedissonBaseLock.java``, ``RedissonFencedLock.java``,
``LockTask.java`` and ``PublishSubscribe.java`` of https://github.com/redisson/redisson (Apache
License 2.0): releases 3.10.5 to 3.49, as the name of each script states.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from support.redis_door import RawClient

_ENTERS = "redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); "
_OR_MINE = (
    "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) "
)
_LEFT = "return redis.call('pttl', KEYS[1]);"
_LEAVES = (
    "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil;end; "
    "local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); "
    "if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); "
)
_PUBLISHES = "else redis.call('del', KEYS[1]); redis.call({}, KEYS[2], ARGV[1]); "
_LEAVES_OLD = _LEAVES + "return 0; " + _PUBLISHES + "return 1; end; return nil;"
_FORCES = "if (redis.call('del', KEYS[1]) == 1) then redis.call({}, KEYS[2], ARGV[1]); "

SCRIPTS = {
    "enter 0.9": (
        "if (redis.call('exists', KEYS[1]) == 0) then redis.call('hset', KEYS[1], ARGV[2], 1); "
        "redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; "
        "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then "
        + _ENTERS + "return nil; end; " + _LEFT
    ),
    "enter 3.12.3": (
        "if (redis.call('exists', KEYS[1]) == 0) then " + _ENTERS + "return nil; end; "
        "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then "
        + _ENTERS + "return nil; end; " + _LEFT
    ),
    "enter 3.19": _OR_MINE + "then " + _ENTERS + "return nil; end; " + _LEFT,
    "enter fenced 3.19": (
        _OR_MINE + "then redis.call('incr', KEYS[2]);" + _ENTERS + "return nil; end; " + _LEFT
    ),
    "enter token 3.19": (
        "if (redis.call('exists', KEYS[1]) == 0 or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) "
        "then local token = redis.call('incr', KEYS[2]);" + _ENTERS + "return {-1, token}; end; "
        "return {redis.call('pttl', KEYS[1]), -1};"
    ),
    "leave 0.9": (
        "if (redis.call('exists', KEYS[1]) == 0) then redis.call('publish', KEYS[2], ARGV[1]); "
        "return 1; end;" + _LEAVES_OLD.format("'publish'")
    ),
    "leave 3.10.6": _LEAVES_OLD.format("'publish'"),
    "leave 3.22": _LEAVES_OLD.format("ARGV[4]"),
    "leave 3.24": (
        "local val = redis.call('get', KEYS[3]); if val ~= false then return tonumber(val);end; "
        + _LEAVES + "redis.call('set', KEYS[3], 0, 'px', ARGV[5]); return 0; "
        + _PUBLISHES.format("ARGV[4]") + "redis.call('set', KEYS[3], 1, 'px', ARGV[5]); "
        "return 1; end; "
    ),
    "force 0.9": _FORCES.format("'publish'") + "return 1 else return 0 end",
    "force 3.22": _FORCES.format("ARGV[2]") + "return 1 else return 0 end",
    "renew 2.4": (
        "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then "
        "redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;"
    ),
    "renew 3.44": (
        "local result = {} for i = 1, #KEYS, 1 do "
        "if (redis.call('hexists', KEYS[i], ARGV[i + 1]) == 1) then "
        "redis.call('pexpire', KEYS[i], ARGV[1]); table.insert(result, 1); "
        "else table.insert(result, 0); end; end; return result;"
    ),
}  # fmt: skip
"""By operation and first release."""

LEASE_MS, LATCH_MS = 30_000, 18_000


def channel_of(lock: str) -> str:
    return f"redisson_lock__channel:{lock if '{' in lock else f'{{{lock}}}'}"


def latch_of(lock: str, request: str) -> str:
    """Return the name under which the outcome of an unlock is kept."""
    return f"redisson_unlock_latch:{lock if '{' in lock else f'{{{lock}}}'}:{request}"


@dataclass
class Waiters:
    """The threads of a client that wait for one lock."""

    count: int = 0
    latch: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    subscribed: threading.Event = field(default_factory=threading.Event)


class Redisson:
    """A client: one connection for messages, and one for each thread."""

    def __init__(self, port: int, *, version: int = 2) -> None:
        self.port = port
        self.id = str(uuid4())
        self._waiters: dict[str, Waiters] = {}
        self._mutex = threading.Lock()
        self._messages = RawClient(port)
        if version > 2:
            self._messages.ask(b"HELLO", b"3")
        self._messages.socket.settimeout(None)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._messages.socket.shutdown(2)
        self._reader.join()
        self._messages.close()

    def _read(self) -> None:
        while reply := self._messages.reply():
            words = reply.split(b"\r\n")
            with self._mutex:
                waiters = self._waiters.get(words[4].decode())
                if waiters is not None and words[2] == b"subscribe":
                    waiters.subscribed.set()
                elif words[2] == b"message":
                    assert words[6] == b"0"
                    if waiters is not None:
                        waiters.latch.release()

    def _send(self, *words: str) -> None:
        self._messages.send(" ".join(words).encode() + b"\r\n")

    @contextmanager
    def waiting(self, lock: str) -> Generator[threading.Semaphore]:
        """Be subscribed to the channel of a lock."""
        channel = channel_of(lock)
        with self._mutex:
            waiters = self._waiters.setdefault(channel, Waiters())
            waiters.count += 1
            if waiters.count == 1:
                self._send("SUBSCRIBE", channel)
        assert waiters.subscribed.wait(20)
        try:
            yield waiters.latch
        finally:
            with self._mutex:
                waiters.count -= 1
                if not waiters.count:
                    del self._waiters[channel]
                    self._send("UNSUBSCRIBE", channel)


class RLock:
    """A lock of one thread of a client. ``lease_ms`` and ``old`` as in Redisson's releases."""

    def __init__(self, redisson: Redisson, name: str, thread: int, *, old: bool = False) -> None:
        self.redisson, self.name, self.old = redisson, name, old
        self.field = f"{redisson.id}:{thread}"
        self.connection = RawClient(redisson.port)

    def close(self) -> None:
        self.connection.close()

    def eval(self, script: str, keys: list[str], *arguments: object) -> bytes:
        words = ["EVAL", SCRIPTS[script], len(keys), *keys, *arguments]
        return self.connection.ask(*(str(one).encode() for one in words)).strip()

    def try_acquire(self, lease_ms: int = LEASE_MS) -> int | None:
        """Return None if it was acquired, else the remaining time of the holder (ms)."""
        script = "enter 0.9" if self.old else "enter 3.19"
        reply = self.eval(script, [self.name], lease_ms, self.field)
        if reply in (b"$-1", b"_"):
            return None
        assert reply.startswith(b":"), reply
        return int(reply[1:])

    def lock(self, wait_s: float) -> bool:
        """Acquire it as ``RLock.tryLock`` does."""
        until = time.monotonic() + wait_s
        if self.try_acquire() is None:
            return True
        with self.redisson.waiting(self.name) as latch:
            while True:
                left_ms = self.try_acquire()
                if left_ms is None:
                    return True
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                latch.acquire(timeout=min(left_s, left_ms / 1000) if left_ms >= 0 else left_s)

    def unlock(self) -> bytes:
        """Return 1 if that was the last hold, 0 if not, and a null if it is not held."""
        keys = [self.name, channel_of(self.name)]
        if self.old:
            return self.eval("leave 0.9", keys, 0, LEASE_MS, self.field)
        latch = latch_of(self.name, uuid4().hex)
        reply = self.eval(
            "leave 3.24", [*keys, latch], 0, LEASE_MS, self.field, "PUBLISH", LATCH_MS
        )
        self.connection.ask(b"DEL", latch.encode())
        return reply

    def ask(self, *words: str) -> bytes:
        return self.connection.ask(*(argument.encode() for argument in words)).strip()
