"""The role of the Redis door: bytes in, requests and replies out, in order, within its limits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked, only
from support.redisson import SCRIPTS
from support.role_harness import HOST, T0, at, sends, sent

from fencelock.actors.api.lock_message import Cancel, Reason, Refused
from fencelock.actors.api.redis import (
    AwaitKey,
    ChangeKeys,
    KeyAction,
    KeyList,
    KeyOutcome,
    KeysChanged,
    KeySeen,
    KeysRead,
    KeyState,
    ListKeys,
    ReadKeys,
)
from fencelock.actors.effect import Effects, Fault, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.access import Rights, RightsChanged
from fencelock.actors.redis.channels import ALL_MAX, EACH_MAX, MISSED_MAX
from fencelock.actors.redis.command import CURSORS_MAX, FREE, KEY_COMMANDS, MINE, Attempts, glob
from fencelock.actors.redis.door import (
    HELD_BYTES_MAX,
    REQUESTS_AT_ONCE,
    SCRIPTED,
    SLOW_MS,
    SUBSCRIBING,
    TURN_REQUESTS,
    DoorTick,
    DoorTurn,
    RedisDoor,
)
from fencelock.actors.redis.event import Disconnected, HalfClosed, Opened, Received, Transmit

SOCKETS, SESSION, HERE = Address("n1/redis-sockets"), Address("n1/session"), Address("n1/node")
RELEASE = (
    b'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) '
    b"else return 0 end"
)
RELEASES, ENTERS, LEAVES = (
    hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    for script in (RELEASE.decode(), SCRIPTS["enter 3.19"], SCRIPTS["leave 3.24"])
)
SECRETS = {"orders": "s3cret", "root": "r00t"}


def verify(user: str, password: str) -> str | None:
    return next((key for key in SECRETS if user in ("", key) and SECRETS[key] == password), None)


class Door:
    """A door with its clients, stepped by hand."""

    def __init__(self, *, keyed: bool = False, clients: int = 1) -> None:
        rights = (Rights("orders", "client", ("orders/",)), Rights("root", "operator"))
        self.role = RedisDoor(
            Address("n1/redis"),
            HOST,
            node="n1",
            sockets=SOCKETS,
            rights=rights if keyed else None,
            verify=verify if keyed else None,
        )
        for number in range(1, clients + 1):
            self.role.handle(HERE, Opened(connection=number, peer=f"10.0.0.{number}:1"), T0)

    def receive(self, data: bytes, client: int = 1) -> Effects:
        return self.role.handle(HERE, Received(connection=client, data=data, date_ms=1_000), T0)

    def send(self, *words: str, client: int = 1) -> Effects:
        return self.receive(" ".join(words).encode() + b"\r\n", client)

    def call(self, *words: str, client: int = 1) -> bytes:
        """Return the reply to a command that asks the cluster nothing."""
        (transmit,) = transmitted(self.send(*words, client=client))
        return transmit.data

    def ask(self, *words: str, client: int = 1) -> ChangeKeys | AwaitKey | ReadKeys:
        """Return the request that a command sends to the cluster."""
        return asked(self.send(*words, client=client))

    def reply(self, request: ChangeKeys | AwaitKey | ReadKeys, **outcome: Any) -> bytes:
        (transmit,) = transmitted(self.role.handle(SESSION, replied(request, **outcome), T0))
        return transmit.data


@pytest.fixture
def door() -> Door:
    return Door()


def transmitted(effects: Effects) -> list[Transmit]:
    return sent(effects, Transmit)


def to_session(effects: Effects) -> list[object]:
    return [one.message for one in sends(effects) if one.to == SESSION]


def asked(effects: Effects) -> ChangeKeys | AwaitKey | ReadKeys:
    (found,) = to_session(effects)
    assert isinstance(found, ChangeKeys | AwaitKey | ReadKeys)
    return found


def replied(
    request: ChangeKeys | AwaitKey | ReadKeys,
    *,
    changed: bool = True,
    state: KeyState = KeyState.FREE,
    value: bytes | None = None,
    left_ms: int | None = None,
) -> KeysChanged | KeysRead:
    if isinstance(request, ReadKeys):
        seen = KeySeen(request.keys[0], value or b"", False, 7, 0, None, 0)
        return KeysRead(keys=() if value is None else (seen,), request=request.request)
    outcome = KeyOutcome(state, changed=changed, fence=7, left_ms=left_ms, times=0)
    return KeysChanged(
        lock=request.lock,
        keys=(outcome,) * len(request.keys),
        value=value,
        owner=request.owner,
        request=request.request,
    )


def test_set_with_nx_acquires_a_free_key_and_nothing_else(door: Door) -> None:
    request = checked(ChangeKeys, door.ask("SET", "a", "token", "NX", "PX", "5000"))
    assert (request.keys, request.action, request.value) == (("a",), KeyAction.SET, b"token")
    assert request.ttl_ms == 5_000
    assert set(request.states) == {KeyState.FREE, KeyState.RESERVED}
    assert door.reply(request) == b"+OK\r\n"
    again = door.ask("SET", "a", "token", "NX", "PX", "5000")
    assert door.reply(again, changed=False, state=KeyState.OTHER) == b"$-1\r\n"


def test_requests_of_a_pipeline_are_answered_in_order_and_one_at_a_time(door: Door) -> None:
    effects = door.receive(b"PING\r\nGET a\r\nPING\r\nGET b\r\nPING\r\n")
    (first,) = transmitted(effects)
    assert (first.data, first.reads) == (b"+PONG\r\n", False)
    request = asked(effects)
    effects = door.role.handle(SESSION, replied(request, value=b"x"), T0)
    (second,) = transmitted(effects)
    assert (second.data, second.reads) == (b"$1\r\nx\r\n+PONG\r\n", False)
    effects = door.role.handle(SESSION, replied(asked(effects)), T0)
    (third,) = transmitted(effects)
    assert (third.data, third.reads) == (b"$-1\r\n+PONG\r\n", True)


def test_a_long_pipeline_is_served_in_pieces_and_no_client_waits_for_it() -> None:
    door = Door(clients=2)
    effects = door.receive(b"PING\r\n" * 20)
    (first,) = transmitted(effects)
    assert (first.data, first.reads) == (b"+PONG\r\n" * 8, False)
    assert [one for one in effects if isinstance(one, Wake)] == [Wake(0, DoorTurn())]
    assert door.call("PING", client=2) == b"+PONG\r\n"
    (second,) = transmitted(door.role.handle(HERE, DoorTurn(), T0))
    assert (second.data, second.reads) == (b"+PONG\r\n" * 8, False)
    (third,) = transmitted(door.role.handle(HERE, DoorTurn(), T0))
    assert (third.data, third.reads) == (b"+PONG\r\n" * 4, True)


@pytest.mark.parametrize("empty", [b"\n", b"*0\r\n", b" \r\n"])
def test_empty_lines_count_as_requests(empty: bytes) -> None:
    door = Door(clients=2)
    effects = door.receive(empty * 5_000)
    assert [one for one in effects if isinstance(one, Wake)] == [Wake(0, DoorTurn())]
    assert door.role.connections[1].parser.held == (5_000 - REQUESTS_AT_ONCE) * len(empty)


def test_a_turn_begins_few_requests_of_a_thousand_arguments() -> None:
    door = Door(clients=2)
    door.receive((b"*1000\r\n$4\r\nPING\r\n" + b"$0\r\n\r\n" * 999) * 5)
    assert transmitted(door.receive(b"PING\r\n", client=2)) == []  # In the next turn.


def test_one_turn_begins_a_bounded_number_of_requests() -> None:
    clients = TURN_REQUESTS + 10
    door = Door(clients=clients)
    for client in range(1, clients + 1):
        door.receive(b"PING\r\n", client)
    assert len(door.role.waiting) == 10
    assert len(transmitted(door.role.handle(HERE, DoorTurn(), T0))) == 10


def test_a_turn_begins_one_long_script_of_a_stranger(door: Door) -> None:
    script = b"local a = 1 " * 600
    effects = door.receive((b"*3\r\n$4\r\nEVAL\r\n$7200\r\n%b\r\n$1\r\n0\r\n" % script) * 2)
    assert transmitted(effects)[0].data.count(b"executes no Lua") == 1


@pytest.mark.parametrize(("pattern", "most"), [("*", 1_000), ("*" + "a" * 99, 50), ("*" * 256, 19)])
def test_a_page_has_fewer_names_for_a_long_pattern(pattern: str, most: int) -> None:
    door = Door(clients=2)
    for client, command in ((1, f"KEYS {pattern}"), (2, f"SCAN 0 MATCH {pattern} COUNT 5000")):
        page = only(ListKeys, to_session(door.send(command, client=client)))
        assert page.most == most


def test_clients_wait_for_their_own_requests_only() -> None:
    door = Door(clients=2)
    first, second = door.ask("GET", "a"), door.ask("GET", "a", client=2)
    assert door.reply(second, value=b"2") == b"$1\r\n2\r\n"
    assert door.reply(first, value=b"1") == b"$1\r\n1\r\n"


def test_a_reply_to_a_connection_that_is_gone_is_dropped(door: Door) -> None:
    request = door.ask("GET", "a")
    assert door.role.handle(HERE, Disconnected(connection=1), T0) == []
    assert door.role.handle(SESSION, replied(request), T0) == ()
    assert door.role.handle(HERE, Received(connection=1, data=b"PING\r\n", date_ms=0), T0) == ()


def test_a_wait_ends_with_its_connection() -> None:
    for end in (Disconnected(connection=1), HalfClosed(connection=1)):
        door = Door()
        request = door.ask("SET", "lock:a", "me", "NX")
        door.reply(request, changed=False, state=KeyState.OTHER)
        wait = checked(AwaitKey, door.ask("BLPOP", "lock-signal:a", "0.5"))
        assert (wait.keys, wait.value, wait.wait_ms) == (("lock:a",), b"me", 500)
        effects = door.role.handle(HERE, end, T0)
        cancels = sent(effects, Cancel)
        assert [(one.lock, one.owner, one.request) for one in cancels] == [
            (wait.lock, wait.owner, wait.request)
        ]


def test_a_wait_that_begins_after_its_client_left_is_cancelled(door: Door) -> None:
    effects = door.receive(b"SET lock:a me NX\r\nBLPOP lock-signal:a 0\r\n")
    door.role.handle(HERE, HalfClosed(connection=1), T0)
    no = replied(asked(effects), changed=False, state=KeyState.OTHER)
    effects = door.role.handle(SESSION, no, T0)
    assert [type(one) for one in to_session(effects)] == [AwaitKey, Cancel]
    assert door.role.connections == {}


def test_a_wait_that_times_out_is_an_empty_array(door: Door) -> None:
    door.reply(door.ask("SET", "lock:a", "me", "NX"), changed=False, state=KeyState.OTHER)
    wait = checked(AwaitKey, door.ask("BLPOP", "lock-signal:a", "1"))
    no = Refused(lock=wait.lock, reason=Reason.TIMED_OUT, detail="", request=wait.request)
    assert transmitted(door.role.handle(SESSION, no, T0))[0].data == b"*-1\r\n"
    again = door.ask("BLPOP", "lock-signal:a", "1")
    assert door.reply(again) == b"*2\r\n$13\r\nlock-signal:a\r\n$1\r\n1\r\n"


def test_a_refusal_of_the_cluster_is_an_error_with_its_text(door: Door) -> None:
    for reason, code in ((Reason.UNAVAILABLE, "CLUSTERDOWN"), (Reason.INVALID, "ERR")):
        request = door.ask("DEL", "a")
        no = Refused(lock="a", reason=reason, detail="why", request=request.request)
        (transmit,) = transmitted(door.role.handle(SESSION, no, T0))
        assert transmit.data == f"-{code} why\r\n".encode()


REFUSED = {
    "GET": "wrong number of arguments for 'get' command",
    "PING a b": "wrong number of arguments for 'ping' command",
    "HSET a b c": "fencelock serves locks, not data: HSET is not supported; see docs/redis.md",
    "GET \xff": r"a key is the name of a lock, which must be UTF-8: '\xff'",
    f"DEL {' '.join(map(str, range(65)))}": "65 keys, at most 64 are allowed in one command",
    f"KEYS {'a' * 257}": "the pattern has more than 256 bytes",
    "SET a x EX": "syntax error",
    "SET a x BY 5": "syntax error",
    "SET a x NX XX": "syntax error",
    "SET a x PX y": "value is not an integer or out of range",
    "SET a x EX 0": "invalid expire time in 'set' command",
    "SETEX a 0 x": "invalid expire time in 'setex' command",
    "PSETEX a -5 x": "invalid expire time in 'psetex' command",
    "EXPIRE a 99999999999": "invalid expire time in 'expire' command",
    "EXPIRE a 5 EVER": "Unsupported option EVER",
    "EXPIRE a 5 NX GT": "NX and XX, GT or LT options at the same time are not compatible",
    "SCAN x": "invalid cursor",
    "SCAN 0 COUNT": "syntax error",
    "SCAN 0 COUNT 0": "syntax error",
    "SCAN 0 FROM a": "syntax error",
    "SCAN 17": "the scan with cursor 17 has ended, or is too old: begin anew",
    "FLUSHALL NOW": "syntax error",
    "BLPOP lock-signal:a lock-signal:b 0": "BLPOP waits for one lock at a time here",
    "BLPOP lock-signal:a x": "timeout is not a float or out of range",
    "BLPOP lock-signal:a -1": "timeout is negative",
    "BLPOP lock-signal:a 99999999999": "timeout is out of range",
    "BLPOP jobs 0": (
        "BLPOP waits only as python-redis-lock does: for a list lock-signal:NAME, after a SET with "
        "NX of lock:NAME that failed; see docs/redis.md"
    ),
    "SELECT 1": "DB index is out of range",
    "AUTH a b c": "syntax error",
    "AUTH secret": (
        "AUTH <password> called without any password configured for the default user. Are you sure "
        "your configuration is correct?"
    ),
    "HELLO x": "Protocol version is not an integer or out of range",
    "HELLO 3 SAY hi": "Syntax error in HELLO option 'SAY'",
    "CLIENT SETNAME \x80": ("Client names cannot contain spaces, newlines or special characters."),
    "CLIENT KILL 1": (
        "fencelock does not support CLIENT KILL with these arguments; see docs/redis.md"
    ),
    "SCRIPT KILL": "fencelock does not support SCRIPT KILL with these arguments; see docs/redis.md",
    "COMMAND GETKEYS": "fencelock supports COMMAND COUNT, DOCS, INFO and LIST only",
    'EVAL "return 1" 0': (
        "fencelock executes no Lua: the script with SHA1 e0e1f9fabfc9d4800c877a703b823ac0578ff8db "
        "is none of those that it knows. It knows scripts of Redlock, redis-py, python-redis-lock, "
        "Redisson and others that acquire, extend, release or read keys by their values: see "
        "docs/redis.md"
    ),
    f"EVALSHA {RELEASES} -1": "Number of keys can't be negative",
    f"EVALSHA {RELEASES} 2 a": "Number of keys can't be greater than number of args",
    f"EVALSHA {RELEASES} 0": (
        "compare_delete has 1 key and 1 argument, and the script was sent with 0 and 0"
    ),
    f"EVALSHA_RO {RELEASES} 1 a x": "Write commands are not allowed from read-only scripts.",
    f"EVALSHA {ENTERS} 1 {'a' * 191} 5 me": (
        "a lock of Redisson has a name of at most 190 bytes here"
    ),
    f"EVALSHA {ENTERS} 1 {{a}} 5 me": (
        "'{a}' has the same channel as 'a' in Redisson: choose another name"
    ),
    f"EVALSHA {LEAVES} 3 a c d 0 5 me PUBLISH 5": (
        "the third key of Redisson's unlock begins with redisson_unlock_latch"
    ),
}
"""Commands, and the text of each refusal after its code, which is ERR."""


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_door_refuses_itself_has_a_reason(door: Door, command: str) -> None:
    (transmit,) = transmitted(door.receive(command.encode("latin-1") + b"\r\n"))
    assert transmit.data.decode() == f"-ERR {REFUSED[command]}\r\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("EVALSHA 0 0", "NOSCRIPT No matching script. Please use EVAL."),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("AUTH me secret", "WRONGPASS invalid username-password pair or user is disabled."),
    ],
)
def test_other_codes_are_those_of_redis(door: Door, command: str, text: str) -> None:
    assert door.call(command) == f"-{text}\r\n".encode()


def test_a_key_that_others_have_is_refused_by_its_name(door: Door) -> None:
    held = (
        b"-ERR 'a' is held by a client that does not use this door: it releases the lock, or "
        b'"fencelock release" does\r\n'
    )
    for command in ("DEL a", "EXPIRE a 5", "PERSIST a"):
        request = door.ask(command)
        assert door.reply(request, changed=False, state=KeyState.NATIVE) == held
    request = door.ask("SET a x")
    granted = b"-TRYAGAIN 'a' is about to be granted with other locks\r\n"
    assert door.reply(request, changed=False, state=KeyState.OTHER) == granted


def test_a_client_is_listed_with_what_it_says_of_itself() -> None:
    door = Door(clients=2)
    for command in ("SETNAME worker", "SETINFO LIB-VER 5", "SETINFO LIB-NAME py"):
        assert door.call("CLIENT", command) == b"+OK\r\n"
    first = "id=1 addr=10.0.0.1:1 name=worker db=0 resp=2 user=default lib-name=py lib-ver=5\n"
    second = "id=2 addr=10.0.0.2:1 name= db=0 resp=2 user=default \n"
    assert door.call("CLIENT", "INFO") == f"${len(first)}\r\n{first}\r\n".encode()
    listed = first + second
    door.role.handle(HERE, DoorTurn(), T0)  # A list costs as much as many requests.
    assert door.call("CLIENT", "LIST") == f"${len(listed)}\r\n{listed}\r\n".encode()


def test_garbage_is_answered_once_and_the_connection_closed(door: Door) -> None:
    (transmit,) = transmitted(door.receive(b"*1\r\n:1\r\nPING\r\n"))
    assert transmit.closes
    assert transmit.data == b"-ERR Protocol error: expected '$', got ':'\r\n"
    assert door.role.connections == {}


@pytest.mark.parametrize("line", [b"POST / HTTP/1.0", b"PUT / HTTP/1.1\r\nHost: 127.0.0.1:6379"])
def test_a_form_that_a_web_page_posts_is_not_served(door: Door, line: bytes) -> None:
    """Any page may send one to a door on the loopback address of whoever reads it."""
    effects = door.receive(line + b"\r\nOrigin: null\r\n\r\nDEL k\r\n")
    (transmit,) = transmitted(effects)
    assert transmit.data.endswith(b"this is a door for clients of Redis, not for HTTP\r\n")
    assert transmit.closes
    assert not to_session(effects)


def test_a_key_opens_the_door_for_its_names() -> None:
    door = Door(keyed=True)
    assert door.call("GET", "a") == b"-NOAUTH Authentication required.\r\n"
    assert door.call("AUTH", "orders", "wrong").startswith(b"-WRONGPASS ")
    assert door.call("AUTH", "orders", "s3cret") == b"+OK\r\n"
    request = checked(ChangeKeys, door.ask("SET", "orders/1", "x", "NX"))
    assert request.account == "orders"
    door.reply(request)
    assert door.call("GET", "a").startswith(b"-NOPERM key 'orders' has the role client for names")
    assert door.call("FLUSHALL").startswith(b"-NOPERM ")
    assert door.call("RESET") == b"+RESET\r\n"
    assert door.call("GET", "orders/1").startswith(b"-NOAUTH ")


def test_a_password_alone_names_its_key() -> None:
    door = Door(keyed=True)
    assert door.call("AUTH", "r00t") == b"+OK\r\n"
    assert isinstance(door.ask("GET", "anything"), ReadKeys)


def test_a_removed_key_closes_its_connections() -> None:
    door = Door(keyed=True, clients=2)
    door.call("AUTH", "orders", "s3cret")
    door.call("AUTH", "root", "r00t", client=2)
    changed = RightsChanged(rights=(Rights("root", "operator"),))
    (transmit,) = transmitted(door.role.handle(HERE, changed, T0))
    assert (transmit.connection, transmit.closes) == (1, True)


def test_a_slow_request_is_closed_and_an_idle_client_is_not() -> None:
    door = Door(clients=2)
    door.receive(b"PING\r\n", client=1)
    door.receive(b"*2\r\n$4\r\nPI", client=2)
    (transmit,) = transmitted(door.role.handle(HERE, DoorTick(), at(SLOW_MS)))
    assert (transmit.connection, transmit.closes) == (2, True)
    assert list(door.role.connections) == [1]


def test_unfinished_requests_of_all_clients_have_one_limit() -> None:
    clients = HELD_BYTES_MAX // (60 << 10) + 2
    door = Door(clients=clients)
    piece = b"*2\r\n$65536\r\n" + b"x" * (60 << 10)
    closed = [
        transmit.connection
        for client in range(1, clients + 1)
        for transmit in transmitted(door.receive(piece, client))
        if transmit.closes
    ]
    assert 1 <= len(closed) <= 2
    assert door.role.held <= HELD_BYTES_MAX


CHANNEL = "redisson_lock__channel:{a}"
ENTER, LEAVE = SCRIPTS["enter 3.19"].encode(), SCRIPTS["leave 3.24"].encode()


def array(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(
        b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments
    )


UNLOCK = array(
    *(b"EVAL", LEAVE, b"3", b"a", b"c", b"redisson_unlock_latch:{a}:1"),
    *(b"0", b"9000", b"u:1", b"PUBLISH", b"99999999999999"),
)


def enter(door: Door, field: bytes, client: int = 1) -> ChangeKeys:
    script = array(b"EVAL", ENTER, b"1", b"a", b"9000", field)
    return checked(ChangeKeys, asked(door.receive(script, client)))


def subscribed(door: Door, client: int = 1) -> AwaitKey:
    """Subscribe to the channel; return the place in the queue."""
    return only(AwaitKey, to_session(door.send("SUBSCRIBE", CHANNEL, client=client)))


def test_a_subscriber_waits_in_the_queue_and_is_notified_each_time_its_turn_comes() -> None:
    for version, mark in ((b"2", b"*"), (b"3", b">")):
        door = Door()
        door.receive(b"HELLO " + version + b"\r\n")
        effects = door.send("SUBSCRIBE", CHANNEL)
        name = f"${len(CHANNEL)}\r\n{CHANNEL}\r\n".encode()
        assert transmitted(effects)[0].data == mark + b"3\r\n$9\r\nsubscribe\r\n" + name + b":1\r\n"
        (place,) = to_session(effects)
        for _ in range(2):
            assert isinstance(place, AwaitKey)
            assert (place.keys, place.wait_ms, place.ttl_ms) == (("a",), None, 2_000)
            effects = door.role.handle(SESSION, replied(place), T0)
            (push,) = transmitted(effects)
            assert push.data == mark + b"3\r\n$7\r\nmessage\r\n" + name + b"$1\r\n0\r\n"
            assert push.reads
            (place,) = to_session(effects)


def test_a_place_ends_with_its_subscription() -> None:
    ends: tuple[Callable[[Door], Effects], ...] = (
        lambda door: door.send("UNSUBSCRIBE"),
        lambda door: door.send("UNSUBSCRIBE", CHANNEL, "x"),
        lambda door: door.send("RESET"),
        lambda door: door.send("QUIT"),
        lambda door: door.role.handle(HERE, Disconnected(connection=1), T0),
    )
    for end in ends:
        door = Door()
        place = subscribed(door)
        cancel = only(Cancel, to_session(end(door)))
        assert (cancel.lock, cancel.owner, cancel.request) == (
            place.lock, place.owner, place.request,
        )  # fmt: skip
        assert door.role.channels.of(1) == []


def test_a_turn_that_no_client_will_take_is_given_back() -> None:
    def gone(door: Door) -> Effects:
        return door.role.handle(HERE, Disconnected(connection=1), T0)

    def leaves(door: Door) -> Effects:
        return door.send("UNSUBSCRIBE")

    for ends in (gone, leaves):
        for late in (False, True):
            door = Door()
            place = subscribed(door)
            effects = [*ends(door)] if late else []
            effects += door.role.handle(SESSION, replied(place), T0)
            effects += [] if late else ends(door)
            (free,) = (one for one in to_session(effects) if isinstance(one, ChangeKeys))
            assert (free.keys, free.action, free.expected) == (
                ("a",), KeyAction.DELETE, place.value,
            )  # fmt: skip
            assert free.states == (KeyState.EQUAL,)


def test_requests_in_flight_have_different_owners(door: Door) -> None:
    places = [subscribed(door)]
    door.send("UNSUBSCRIBE")
    places.append(subscribed(door))
    cancelled = Refused(lock="a", reason=Reason.CANCELLED, detail="", request=places[0].request)
    door.role.handle(SESSION, cancelled, T0)
    door.send("UNSUBSCRIBE")
    places.append(subscribed(door))
    assert [one.owner for one in places] == ["s0", "s1", "s0"]


def test_a_place_that_is_refused_is_asked_for_again(door: Door) -> None:
    place = subscribed(door)
    no = Refused(lock=place.lock, reason=Reason.OVERLOADED, detail="", request=place.request)
    assert transmitted(door.role.handle(SESSION, no, T0)) == []
    assert to_session(door.role.handle(HERE, DoorTick(), at(5_000)))[0] == replace(
        place, request=place.request + 1
    )


def test_one_who_never_comes_has_to_wait_for_the_next_place() -> None:
    door = Door(clients=2)
    place: object = subscribed(door)
    for turn in range(MISSED_MAX + 1):
        assert isinstance(place, AwaitKey)
        if turn == 1:  # It comes, and it does not matter over which connection.
            taken = replied(enter(door, b"u:1", 2), state=KeyState.RESERVED)
            door.role.handle(SESSION, taken, T0)
        (place,) = to_session(door.role.handle(SESSION, replied(place), T0))
    assert isinstance(place, AwaitKey)
    assert to_session(door.role.handle(SESSION, replied(place), T0)) == []
    assert len(to_session(door.role.handle(HERE, DoorTick(), at(5_000)))) == 1


def test_a_turn_is_taken_by_one_who_failed_before_it_came() -> None:
    door = Door(clients=3)
    door.reply(enter(door, b"u:1"), changed=False, state=KeyState.OTHER, left_ms=9_000)
    place = subscribed(door, 2)
    assert KeyState.RESERVED not in enter(door, b"u:2", 3).states
    door.role.handle(SESSION, replied(place), T0)
    waited = enter(door, b"u:1")
    assert KeyState.RESERVED in waited.states
    assert (waited.counts, waited.turn) == (True, b"redisson_lock__channel")
    assert door.reply(waited, state=KeyState.RESERVED, left_ms=900) == b"$-1\r\n"
    assert KeyState.RESERVED not in enter(door, b"u:1").states


def test_a_newcomer_takes_a_turn_if_it_stays_unused_for_a_while(door: Door) -> None:
    for left_ms, reply in ((1_990, b":50\r\n"), (1_960, b":50\r\n"), (20, None)):
        first = enter(door, b"u:1")
        assert KeyState.RESERVED not in first.states
        no = replied(first, changed=False, state=KeyState.RESERVED, left_ms=left_ms)
        effects = door.role.handle(SESSION, no, T0)
        if reply is None:
            assert asked(effects) == replace(
                first, request=first.request + 1, states=(*FREE, *MINE)
            )
            assert door.reply(asked(effects), state=KeyState.RESERVED) == b"$-1\r\n"
        else:
            assert transmitted(effects)[0].data == reply


def test_a_request_that_counts_is_not_refused_with_a_code_clients_repeat_on(door: Door) -> None:
    def unlock() -> ChangeKeys | AwaitKey | ReadKeys:
        return asked(door.receive(UNLOCK))

    for asks, code in ((lambda: enter(door, b"u:1"), b"-ERR "), (unlock, b"-CLUSTERDOWN ")):
        no = Refused(lock="a", reason=Reason.UNAVAILABLE, detail="", request=asks().request)
        (transmit,) = transmitted(door.role.handle(SESSION, no, T0))
        assert transmit.data.startswith(code)


def test_an_unlock_has_the_reply_that_its_receipt_remembers(door: Door) -> None:
    request = checked(ChangeKeys, asked(door.receive(UNLOCK)))
    assert (request.receipt, request.receipt_ms) == ("redisson_unlock_latch:{a}:1", 600_000)
    assert door.reply(request, changed=False, value=b"1") == b":1\r\n"
    second = asked(door.receive(UNLOCK))
    assert door.reply(second, changed=False, value=b"what else") == b"$-1\r\n"
    third = asked(door.receive(UNLOCK))
    assert door.reply(third, changed=False, state=KeyState.OTHER) == b"$-1\r\n"


def test_a_lock_without_a_deadline_is_never_reported_as_acquired(door: Door) -> None:
    """-1 means that, for ``RFencedLock``; for `RLock`, that there is no deadline."""
    script = SCRIPTS["enter token 3.19"].encode()
    request = asked(door.receive(array(b"EVAL", script, b"2", b"a", b"t", b"9000", b"u:1")))
    reply = door.reply(request, changed=False, state=KeyState.NATIVE)
    assert reply == b"*2\r\n:3600000\r\n:-1\r\n"
    reply = door.reply(enter(door, b"u:1"), changed=False, state=KeyState.NATIVE)
    assert reply == b":-1\r\n"


def test_subscriptions_are_limited_and_of_locks_only(door: Door) -> None:
    for channel in ("news", "redisson_lock__channel:a", "redisson_lock__channel"):
        assert door.call("SUBSCRIBE", channel).startswith(
            b"-ERR SUBSCRIBE is for channels of Redisson's locks, redisson_lock__channel:{NAME}"
        )
    names = [CHANNEL.replace("{a}", f"{{{number}}}") for number in range(EACH_MAX + 1)]
    no = b"-ERR a connection has at most 16 subscriptions here\r\n"
    assert door.call("SUBSCRIBE", *names) == no
    assert len(to_session(door.send("SUBSCRIBE", *names[1:]))) == 16
    assert door.call("SUBSCRIBE", names[0]).startswith(b"-ERR a connection has")
    assert door.call("PSUBSCRIBE", "*").startswith(b"-ERR Can't execute 'psubscribe'")


def test_the_subscriptions_of_all_clients_are_limited_and_cost_by_their_number() -> None:
    clients = ALL_MAX // EACH_MAX + 1
    door = Door(clients=clients)
    names = [CHANNEL.replace("{a}", f"{{{number}}}") for number in range(EACH_MAX)]
    for client in range(1, clients):
        door.send("SUBSCRIBE", *names, client=client)
    turn = TURN_REQUESTS // EACH_MAX  # One turn of the node begins no more of them.
    assert len(door.role.waiting) == clients - 1 - turn
    for _ in range(clients):
        door.role.handle(HERE, DoorTurn(), T0)
    assert door.call("SUBSCRIBE", CHANNEL, client=clients).startswith(
        b"-ERR the clients of this node have 1024 subscriptions, the most"
    )
    door.role.handle(HERE, Disconnected(connection=1), T0)
    assert len(to_session(door.send("SUBSCRIBE", CHANNEL, client=clients))) == 1


def test_a_client_subscribes_to_channels_of_its_names_only() -> None:
    door = Door(keyed=True)
    other = CHANNEL.replace("{a}", "{orders/1}")
    assert door.call("SUBSCRIBE", CHANNEL).startswith(b"-NOAUTH ")
    door.call("AUTH", "orders", "s3cret")
    assert door.call("SUBSCRIBE", CHANNEL).startswith(b"-NOPERM ")
    place = only(AwaitKey, to_session(door.send("SUBSCRIBE", other)))
    assert (place.keys, place.account) == (("orders/1",), "orders")
    changed = RightsChanged(rights=(Rights("orders", "client", ("bills/",)),))
    effects = door.role.handle(HERE, changed, T0)
    assert transmitted(effects)[0].data.startswith(b"-NOPERM ")
    assert [type(one) for one in to_session(effects)] == [Cancel]


def test_a_receipt_belongs_to_its_lock() -> None:
    door = Door(keyed=True)
    door.call("AUTH", "orders", "s3cret")
    for lock, receipt in (("orders/1", "{orders/1}"), ("orders/{1}", "orders/{1}")):
        request = door.ask("DEL", f"redisson_unlock_latch:{receipt}:8a3f")
        assert request.reach == (lock,)
        door.reply(request, changed=False)
    assert door.call("DEL", "redisson_unlock_latch:{bills}:8a3f").startswith(b"-NOPERM ")
    assert door.call("DEL", "redisson_unlock_latch:orders/1:8a3f").startswith(b"-NOPERM ")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (b"*", "", True),
        (b"", "", True),
        (b"", "a", False),
        (b"a*c", "abcabc", True),
        (b"a*c", "abcab", False),
        (b"*a*b*", "xaxxbx", True),
        (b"*ab*ba*", "aba", False),
        (b"?b", "\nb", True),
        (b"?", "\u00e9", False),  # Two bytes, as in Redis.
        (b"[a-c_]x", "_x", True),
        (b"[c-a]x", "bx", True),
        (b"[^a-c]x", "bx", False),
        (b"[^]]", "a]", True),
        (b"[]", "[]", False),
        (b"[a", "a", True),
        (b"[a-", "-", True),
        (b"[a-]x", "x", True),  # From "]" to "a", and x.
        (b"[]]", "]", False),
        (b"[\\]]", "]", True),
        (b"[^]", "a", True),
        (b"[^-]", "-", False),
        (b"\\*", "*", True),
        (b"\\*", "a", False),
        (b"a\\", "a\\", True),
        (b"(.+)\n", "(.+)\n", True),
    ],
)
def test_patterns_match_whole_names(pattern: bytes, name: str, matches: bool) -> None:
    assert glob(pattern)(name) is matches


def test_a_pattern_takes_no_long_time() -> None:
    many, one = glob(b"*a" * 120 + b"*b"), glob(b"*" + b"a" * 126 + b"b")
    began = time.process_time()
    assert not any(matches("a" * 256) for matches in (many, one) for _ in range(1_000))
    assert time.process_time() - began < 1  # 5 s if Python compares the signs.


def test_scan_lists_what_follows_and_forgets_its_oldest_cursors(door: Door) -> None:
    def page(cursor: int, *names: str, more: bool = True) -> bytes:
        door.role.handle(HERE, DoorTurn(), T0)  # A turn has room for a few scans.
        asked = only(ListKeys, to_session(door.send("SCAN", str(cursor))))
        after = names[0] if cursor else ""
        assert asked.after == after
        reply = KeyList(keys=names[1:], more=more, total=9, request=asked.request)
        (transmit,) = transmitted(door.role.handle(SESSION, reply, T0))
        return transmit.data

    assert page(0, "", "a", "b") == b"*2\r\n$1\r\n1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
    assert page(1, "b", "c", more=False) == b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nc\r\n"
    for _ in range(CURSORS_MAX + 1):
        page(0, "", "a")
    door.role.handle(HERE, DoorTurn(), T0)
    assert door.call("SCAN", "1").startswith(b"-ERR the scan with cursor 1 has ended")
    page(2, "a", "b")


EXTREMES = (
    b"9" * 5_000, b"-9223372036854775808", b"9223372036854775807", b"9223372036854775808", b"-1",
    b"0", b"nan", b"inf", b"1e400", b"-0.5", b"1_0", b"", b"\0", b"\xff\xfe", b"x" * (60 << 10),
    b"*" * 300, b"[" * 200, b"[a-", b"\\", "\u0661".encode(), b"\r\n", b"$1", b"lock-signal:",
)  # fmt: skip
USUAL: dict[str, tuple[bytes, ...]] = {
    "set": (b"k", b"v", b"PX", b"5"), "expire": (b"k", b"5", b"GT"), "pexpire": (b"k", b"5", b"LT"),
    "scan": (b"0", b"MATCH", b"*", b"COUNT", b"5", b"TYPE", b"string"), "keys": (b"*",),
    "blpop": (b"lock-signal:k", b"5"), "setex": (b"k", b"5", b"v"), "psetex": (b"k", b"5", b"v"),
    "hello": (b"3", b"AUTH", b"orders", b"s3cret", b"SETNAME", b"me"), "auth": (b"u", b"p"),
    "client": (b"SETINFO", b"LIB-NAME", b"x"), "script": (b"LOAD", b"x"), "select": (b"0",),
    "eval": (RELEASE, b"1", b"k", b"v"), "evalsha": (b"0" * 40, b"1", b"k", b"v"),
    "eval_ro": (RELEASE, b"1", b"k", b"v"), "evalsha_ro": (b"0" * 40, b"1", b"k", b"v"),
    "subscribe": (b"redisson_lock__channel:{k}", b"redisson_lock__channel:a{k}"),
    "unsubscribe": (b"redisson_lock__channel:{k}",), "hget": (b"k", b"f"),
    "command": (b"INFO", b"set"), "flushdb": (b"ASYNC",), "ping": (b"x",), "echo": (b"x",),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*KEY_COMMANDS, *RedisDoor.ABOUT_CONNECTIONS, *SCRIPTED, *SUBSCRIBING]
)
@pytest.mark.parametrize("keyed", [False, True])
def test_an_argument_at_its_extremes_is_served_or_refused(name: str, keyed: bool) -> None:
    usual = USUAL.get(name, (b"k", b"v"))
    for place in range(len(usual)):
        for extreme in EXTREMES:
            door = Door(keyed=keyed)
            effects = door.receive(
                array(name.encode(), *usual[:place], extreme, *usual[place + 1 :])
            )
            assert effects
            assert not [one for one in effects if isinstance(one, Fault)], (place, extreme[:40])


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_argument_of_a_script_at_its_extremes_is_served_or_refused(name: str) -> None:
    usual = (b"1", b"a", b"c", b"redisson_unlock_latch:{a}:1", b"0", b"9000", b"u:1", b"p", b"9000")
    for count in (b"1", b"2", b"3"):
        for place in range(len(usual)):
            for extreme in EXTREMES:
                arguments = (count, *usual[1:place], extreme, *usual[place + 1 :])[: len(usual)]
                effects = Door().receive(array(b"EVAL", SCRIPTS[name].encode(), *arguments))
                assert effects
                assert not [one for one in effects if isinstance(one, Fault)], (place, extreme[:40])


def test_an_exception_costs_the_connection_and_not_the_door() -> None:
    door = Door(clients=2)
    request = door.ask("GET", "a")
    bad = KeyList(keys=(), more=False, total=0, request=request.request)  # Not what GET reads.
    effects = door.role.handle(SESSION, bad, T0)
    assert [type(one.error) for one in effects if isinstance(one, Fault)] == [AssertionError]
    (transmit,) = transmitted(effects)
    assert (transmit.connection, transmit.closes) == (1, True)
    assert transmit.data.startswith(b"-ERR a bug in fencelock made node n1 close this connection")
    assert door.call("PING", client=2) == b"+PONG\r\n"


def test_a_door_remembers_the_last_10_000_attempts() -> None:
    attempts = Attempts()
    for number in range(10_001):
        attempts.failed(1, "a", b"%d" % number)
    attempts.turn_came("a")
    assert [number for number in range(10_001) if not attempts.may_take("a", b"%d" % number)] == [0]
