"""The same commands to a Redis and to a Redis door get the same replies, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from support.programs import redis_server
from support.redis_door import RawClient, door_node, port_of
from support.redisson import SCRIPTS

from fencelock.cluster.node.node import Node

DELETE = """if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1]) else return 0 end"""
EXTEND = """local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then return 0 end
    local expiration = redis.call('pttl', KEYS[1])
    if not expiration then expiration = 0 end
    if expiration < 0 then return 0 end
    local newttl = ARGV[2]
    if ARGV[3] == "0" then newttl = ARGV[2] + expiration end
    redis.call('pexpire', KEYS[1], newttl) return 1"""
ACQUIRE_ALL = """for i, key in ipairs(KEYS) do
    if redis.call("exists", key) == 1 then return 0 end end
    for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end return #KEYS"""
EXTEND_ALL = """for i, key in ipairs(KEYS) do
    if redis.call("get", key) ~= ARGV[1] then return 0 end end
    for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end return #KEYS"""
RELEASE_ALL = """local count = 0 for i, key in ipairs(KEYS) do
    if redis.call("get", key) == ARGV[1] then redis.pcall("del", key) count = count + 1 end end
    return count"""
THREE = """local val = redis.call("GET", KEYS[1]) if val == ARGV[1] then
    return redis.call("DEL", KEYS[1]) elseif val == false then return -1 else return 0 end"""
VALUE_AND_TIME = 'return { redis.call("get", KEYS[1]), redis.call("pttl", KEYS[1]) }'
ALLOWED = """if (redis.call("exists", KEYS[1]) == 0 and ARGV[3] == "yes")
    or redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2]) end"""
MINE_OR_MISSING = """local identifier = redis.call('get', KEYS[1])
    if not identifier then return redis.status_reply('OK') elseif identifier == ARGV[1] then
    return redis.call("del", KEYS[1]) else return redis.error_reply('ERROR') end"""
CODES = """if redis.call("get", KEYS[1]) ~= ARGV[1] then return 1
    elseif redis.call("ttl", KEYS[1]) < 0 then return 2
    else redis.call("expire", KEYS[1], ARGV[2]) return 0 end"""

_UNLOCK = """
    if redis.call("get", KEYS[1]) ~= ARGV[1] then
        return 1
    else
        redis.call("del", KEYS[2])
        redis.call("lpush", KEYS[2], 1)
{}        redis.call("del", KEYS[1])
        return 0
    end
"""
_RESET = """
    redis.call('del', KEYS[2])
    redis.call('lpush', KEYS[2], 1)
{}    return redis.call('del', KEYS[1])
"""
_EXPIRES = (
    ('        redis.call("expire", KEYS[2], 1)\n', "    redis.call('expire', KEYS[2], 1)\n"),
    ("", ""),
    (
        '        redis.call("pexpire", KEYS[2], KEYS[3])\n',
        "    redis.call('pexpire', KEYS[2], KEYS[3])\n",
    ),
)
OLD_UNLOCKS = [(_UNLOCK.format(one), _RESET.format(other)) for one, other in _EXPIRES]
"""The scripts of python-redis-lock 3.0, 3.2 and 3.4."""
OLD_EXTEND = """
    if redis.call("get", KEYS[1]) ~= ARGV[2] then
        return 1
    elseif redis.call("ttl", KEYS[1]) < 0 then
        return 2
    else
        redis.call("expire", KEYS[1], ARGV[1])
        return 0
    end
"""
OLDEST_UNLOCK = """
    if redis.call("get", KEYS[1]) == ARGV[1] then
        redis.call("lpush", KEYS[2], 1)
        return redis.call("del", KEYS[1])
    else
        return 0
    end
"""

CHANNEL = "redisson_lock__channel:{a}"
ENTER = ["EVAL", SCRIPTS["enter 3.19"], "1", "a", "100000"]
FORCE = ["EVAL", SCRIPTS["force 3.22"], "2", "a", "c", "0", "PUBLISH"]


def unlock(latch: int, client: int) -> list[str]:
    keys = ["3", "a", "c", f"redisson_unlock_latch:{latch}"]
    arguments = ["0", "100000", f"u:{client}", "PUBLISH", "100000"]
    return ["EVAL", SCRIPTS["leave 3.24"], *keys, *arguments]


PROGRAMS: dict[str, Sequence[Sequence[str | bytes]]] = {
    "set": [
        ["SET", "a", "1", "NX", "PX", "100000"], ["SET", "a", "2", "NX", "PX", "100000"],
        ["GET", "a"], ["SET", "a", "3", "XX"], ["TTL", "a"], ["SET", "b", "1", "XX"],
        ["SET", "a", "4", "GET"], ["SET", "a", "5", "KEEPTTL"], ["SET", "a", "5", "EX", "100"],
        ["SET", "a", "6", "KEEPTTL"], ["TTL", "a"], ["SET", "c", "x", "NX", "GET"],
        ["SET", "c", "y", "NX", "GET"], ["SET", "d", "x", "PXAT", "3990000000000"],
        ["set", "D", "x", "exat", "3990000000"], ["SET", "e", "v", "xx", "get"],
        ["SETNX", "f", "1"], ["SETNX", "f", "2"], ["SETEX", "g", "100", "v"], ["TTL", "g"],
        ["PSETEX", "g", "100000", "w"], ["GET", "g"],
    ],
    "errors of set": [
        ["SET", "a"], ["SET", "a", "1", "FOO"], ["SET", "a", "1", "NX", "XX"],
        ["SET", "a", "1", "EX"], ["SET", "a", "1", "EX", "x"], ["SET", "a", "1", "EX", "0"],
        ["SET", "a", "1", "PX", "-5"], ["SET", "a", "1", "EX", "5", "PX", "6"],
        ["SET", "a", "1", "EX", "5", "KEEPTTL"], ["SET", "a", "1", "PX", "1.5"],
        ["SET", "a", "1", "EX", "9223372036854775807"], ["SETEX", "a", "0", "v"],
        ["SETNX", "a"], ["SET", "a", "1", "NX", "EX", "99999999999999999999"],
    ],
    "expiry": [
        ["TTL", "a"], ["PTTL", "a"], ["EXPIRE", "a", "10"], ["PERSIST", "a"], ["SET", "a", "1"],
        ["TTL", "a"], ["PTTL", "a"], ["PERSIST", "a"], ["EXPIRE", "a", "100"], ["TTL", "a"],
        ["EXPIRE", "a", "200", "NX"], ["EXPIRE", "a", "50", "GT"], ["EXPIRE", "a", "200", "GT"],
        ["EXPIRE", "a", "50", "LT"], ["TTL", "a"], ["PERSIST", "a"], ["TTL", "a"],
        ["EXPIRE", "a", "60", "XX"], ["EXPIRE", "a", "60", "GT"], ["EXPIRE", "a", "60", "LT"],
        ["PEXPIRE", "a", "1000000"], ["TTL", "a"], ["EXPIRE", "a", "x"], ["EXPIRE", "a"],
        ["EXPIRE", "a", "5", "FOO"], ["EXPIRE", "a", "-1"], ["EXISTS", "a"], ["SET", "a", "1"],
        ["PEXPIRE", "a", "0"], ["GET", "a"],
        ["SET", "a", "1", "EX", "100"], ["EXPIRE", "a", "-1", "NX"], ["EXPIRE", "a", "-1", "GT"],
        ["EXPIRE", "a", "-1", "LT"], ["EXISTS", "a"],
    ],
    "keys": [
        ["DEL", "a"], ["SET", "a:1", "1"], ["SET", "a:2", "2"], ["SET", "b", "3"],
        ["EXISTS", "a:1", "a:1", "b", "x"], ["TYPE", "a:1"], ["TYPE", "x"], ["DBSIZE"],
        ["KEYS", "b"], ["KEYS", "a:[1]"], ["KEYS", "a:[^1]"], ["KEYS", "?:2"], ["KEYS", "z*"],
        ["KEYS", "\\a:1"], ["KEYS", "a:[0-1]"], ["SCAN", "0", "MATCH", "b", "COUNT", "100"],
        ["SCAN", "0", "COUNT", "100", "MATCH", "none*"], ["SCAN", "0", "COUNT", "0"],
        ["SCAN", "0", "FOO", "1"], ["SCAN", "x"], ["GETDEL", "a:1"], ["GETDEL", "a:1"],
        ["DEL", "a:1", "a:2", "b"], ["UNLINK", "b"], ["FLUSHDB"], ["DBSIZE"], ["FLUSHALL", "SYNC"],
    ],
    "connection": [
        ["PING"], ["ping", "x"], ["ECHO", "a b"], ["SELECT", "0"], ["SELECT", "99"],
        ["SELECT", "x"], ["CLIENT", "SETNAME", "me"], ["CLIENT", "GETNAME"],
        ["CLIENT", "SETNAME", "a b"], ["AUTH", "x"], ["AUTH", "me", "x"], ["ECHO"],
        ["PING", "a", "b"], ["HELLO", "4"], ["HELLO", "x"], ["RESET"], ["CLIENT", "GETNAME"],
        ["SCRIPT", "EXISTS", "0" * 40], ["EVALSHA", "0" * 40, "0"], ["SCRIPT", "FLUSH"],
        ["EVALSHA", "0" * 40, "0", "x"],
    ],
    "scripts": [
        ["SCRIPT", "LOAD", DELETE], ["EVAL", DELETE, "1", "a", "t"], ["SET", "a", "t"],
        ["EVAL", DELETE, "1", "a", "u"], ["EVAL", DELETE, "1", "a", "t"], ["GET", "a"],
        ["SET", "a", "t", "PX", "100000"], ["EVAL", EXTEND, "1", "a", "t", "100000", "0"],
        ["TTL", "a"], ["EVAL", EXTEND, "1", "a", "t", "50000", "1"], ["TTL", "a"],
        ["EVAL", EXTEND, "1", "a", "u", "50000", "1"], ["PERSIST", "a"],
        ["EVAL", EXTEND, "1", "a", "t", "50000", "1"], ["EVAL", VALUE_AND_TIME, "1", "a"],
        ["EVAL", VALUE_AND_TIME, "1", "none"], ["EVAL", DELETE, "-1"], ["EVAL", DELETE, "x"],
        ["EVAL", DELETE, "9", "a"], ["EVAL", THREE, "1", "none", "t"],
        ["EVAL", THREE, "1", "a", "u"], ["EVAL", THREE, "1", "a", "t"],
        ["EVAL", ALLOWED, "1", "r", "t", "1000000", "no"],
        ["EVAL", ALLOWED, "1", "r", "t", "1000000", "yes"],
        ["EVAL", ALLOWED, "1", "r", "t", "2000000", "no"],
        ["EVAL", ALLOWED, "1", "r", "u", "1000000", "yes"], ["TTL", "r"],
        ["EVAL", MINE_OR_MISSING, "1", "r", "u"], ["EVAL", MINE_OR_MISSING, "1", "r", "t"],
        ["EVAL", MINE_OR_MISSING, "1", "r", "t"], ["SET", "k", "t"],
        ["EVAL", CODES, "2", "k", "s", "t", "9"], ["EVAL", CODES, "2", "k", "s", "u", "9"],
        ["EXPIRE", "k", "1000"], ["EVAL", CODES, "2", "k", "s", "t", "2000"], ["TTL", "k"],
    ],
    "scripts of several keys": [
        ["EVAL", ACQUIRE_ALL, "3", "a", "b", "c", "t", "1000000"],
        ["EVAL", ACQUIRE_ALL, "2", "c", "d", "u", "1000000"], ["EXISTS", "a", "b", "c", "d"],
        ["EVAL", EXTEND_ALL, "3", "a", "b", "c", "t", "2000000"], ["TTL", "b"],
        ["EVAL", EXTEND_ALL, "3", "a", "b", "c", "u", "2000000"],
        ["EVAL", EXTEND_ALL, "2", "a", "d", "t", "3000000"], ["TTL", "a"], ["DEL", "b"],
        ["EVAL", RELEASE_ALL, "3", "a", "b", "c", "t"], ["EXISTS", "a", "b", "c"],
        ["EVAL", RELEASE_ALL, "1", "a", "t"],
    ],
    "a lock of Redisson": [
        [*ENTER, "u:1"], [*ENTER, "u:1"], [*ENTER, "u:2"], ["HGET", "a", "u:1"],
        ["HGET", "a", "u:2"], ["HEXISTS", "a", "u:1"], ["HEXISTS", "a", "u:2"], ["HLEN", "a"],
        ["EXISTS", "a"], ["PTTL", "a"], ["EVAL", SCRIPTS["renew 2.4"], "1", "a", "200000", "u:1"],
        ["EVAL", SCRIPTS["renew 2.4"], "1", "a", "200000", "u:2"], ["PTTL", "a"],
        unlock(1, 2), unlock(2, 1),
        unlock(2, 1), ["HGET", "a", "u:1"], ["PTTL", "a"],
        unlock(3, 1), unlock(3, 1),
        ["GET", "redisson_unlock_latch:3"], ["DEL", "redisson_unlock_latch:3"],
        unlock(3, 1), ["HGET", "a", "u:1"], ["HLEN", "a"],
        ["HEXISTS", "a", "u:1"], [*ENTER, "u:2"], FORCE, FORCE,
    ],
    "older releases of Redisson": [
        *(
            command
            for release in ("0.9", "3.12.3", "3.19")
            for command in (
                ["EVAL", SCRIPTS[f"enter {release}"], "1", "a", "100000", "u:1"],
                ["EVAL", SCRIPTS[f"enter {release}"], "1", "a", "100000", "u:1"],
                ["EVAL", SCRIPTS[f"enter {release}"], "1", "a", "100000", "u:2"],
            )
        ),
        *(
            ["EVAL", SCRIPTS[f"leave {release}"], "2", "a", "c", "0", "100000", field, "PUBLISH"]
            for release in ("0.9", "3.10.6", "3.22")
            for field in ("u:1", "u:2", "u:1", "u:1")
        ),
        ["EVAL", SCRIPTS["force 0.9"], "2", "a", "c", "0"],
        ["EVAL", SCRIPTS["enter fenced 3.19"], "2", "a", "t", "100000", "u:1"],
        ["EVAL", SCRIPTS["enter fenced 3.19"], "2", "a", "t", "100000", "u:2"],
        ["EVAL", SCRIPTS["enter token 3.19"], "2", "a", "t", "100000", "u:2"],
        ["EVAL", SCRIPTS["force 0.9"], "2", "a", "c", "0"],
    ],
    "many locks of Redisson": [
        *(["EVAL", SCRIPTS["enter 3.19"], "1", f"a{n}", "100000", f"u:{n % 3}"] for n in range(99)),
        ["EVAL", SCRIPTS["renew 3.44"], "100", *(f"a{n}" for n in range(100)), "200000",
        *(f"u:{n % 4}" for n in range(100))], ["PTTL", "a0"], ["PTTL", "a3"],
    ],
    "channels": [
        ["SET", "a", "x"], ["SUBSCRIBE", CHANNEL], ["SUBSCRIBE", CHANNEL], ["PING"], ["PING", "x"],
        ["SUBSCRIBE"], ["UNSUBSCRIBE", "x"], ["UNSUBSCRIBE", CHANNEL], ["UNSUBSCRIBE"],
        ["UNSUBSCRIBE", CHANNEL], ["PING"], ["SUBSCRIBE", CHANNEL], ["RESET"], ["GET", "a"],
    ],
    "old releases of python-redis-lock": [
        *(
            command
            for unlock, reset in OLD_UNLOCKS
            for command in (
                ["SET", "lock:a", "t", "EX", "1000"],
                ["EVAL", OLD_EXTEND, "1", "lock:a", "2000", "u"],
                ["EVAL", OLD_EXTEND, "1", "lock:a", "2000", "t"], ["TTL", "lock:a"],
                ["EVAL", unlock, "3", "lock:a", "lock-signal:a", "1000", "u"],
                ["EVAL", unlock, "3", "lock:a", "lock-signal:a", "1000", "t"],
                ["SET", "lock:a", "t"], ["EVAL", OLD_EXTEND, "1", "lock:a", "2000", "t"],
                ["EVAL", reset, "3", "lock:a", "lock-signal:a", "1000"],
                ["EVAL", reset, "3", "lock:a", "lock-signal:a", "1000"],
            )
        ),
        ["SET", "lock:a", "t"], ["EVAL", OLDEST_UNLOCK, "2", "lock:a", "lock-signal:a", "u"],
        ["EVAL", OLDEST_UNLOCK, "2", "lock:a", "lock-signal:a", "t"], ["EXISTS", "lock:a"],
    ],
    "bytes": [
        [b"SET", b"k", bytes(range(256)), b"PX", b"100000"], [b"GET", b"k"],
        [b"SET", b"k", b"x" * 1024], [b"GET", b"k"], [b"SET", b"k", b""], [b"GET", b"k"],
        [b"SET", "läßt/öffnen ✓".encode(), b"1"], [b"KEYS", b"*ffnen*"],
    ],
}  # fmt: skip


@pytest.fixture(scope="module", name="servers")
def started() -> Generator[tuple[str, Node]]:
    with redis_server() as client, door_node() as node:
        yield client.connection_pool.connection_kwargs["path"], node


def asked(client: RawClient, program: Sequence[Sequence[str | bytes]]) -> list[bytes]:
    replies = [client.ask(b"FLUSHALL")]
    for command in program:
        arguments = (one.encode() if isinstance(one, str) else one for one in command)
        replies.append(without_time(client.ask(*arguments)))
    return replies


def without_time(reply: bytes) -> bytes:
    """Round times of a second and more in milliseconds, which differ from run to run."""
    return re.sub(rb":(\d+)\d{4}\r\n", lambda ms: b":%d....\r\n" % round(int(ms[1]), -1), reply)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("version", [b"2", b"3"])
def test_same_commands_same_replies(servers: tuple[str, Node], name: str, version: bytes) -> None:
    path, node = servers
    replies: list[Any] = []
    for where in (path, port_of(node)):
        with RawClient(where) as client:
            client.ask(b"HELLO", version)
            replies.append(asked(client, PROGRAMS[name]))
    expected, found = replies
    shown = [["FLUSHALL"], *PROGRAMS[name]]
    differing = [
        (command, redis, ours)
        for command, redis, ours in zip(shown, expected, found, strict=True)
        if redis != ours
    ]
    assert differing == []


GARBAGE = [
    b"*x\r\n", b"*1\r\n$x\r\n", b"*1\r\n$-1\r\n", b"*1\r\n:5\r\n", b'"a\r\n', b"*-99\r\nPING\r\n",
    b"*99999999999999\r\n", b"\r\n\r\nPING\r\n", b"*0\r\nPING\r\n", b'PING "a\\x41b"\r\n',
]  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE)
def test_the_same_garbage_gets_the_same_reply(servers: tuple[str, Node], data: bytes) -> None:
    path, node = servers
    replies: list[bytes] = []
    for where in (path, port_of(node)):
        with RawClient(where) as client:
            client.send(data)
            replies.append(client.reply())
    assert replies[0] == replies[1]
