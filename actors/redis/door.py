"""The Redis door of a node: clients of Redis hold locks of the cluster.

The door speaks RESP (`resp.py`) with its clients, and sends their requests to the session of its
node, as a thread of the node's process would: the session repeats them, follows the leader, and
lets each take effect once. A key is a lock, held in the log (`fencelock.actors.api.redis`); the
door itself keeps nothing that matters. When its node dies, clients connect to another one.

::

    sockets ── Opened, Received, Disconnected ──> door ── ChangeKeys, ReadKeys, ... ──> session
            <────────── Transmit ───────────────       <── KeysChanged, Refused, ... ──

One request of a connection is in flight at a time, and the next one begins when it has been
answered. So requests of a pipeline take effect in their order, also while a leader changes, and no
client gets more than its share of the node. Bytes are read from a connection only after all
complete requests in it have been answered: a client that sends faster waits in its own socket.

`resp.py` reads requests and writes replies; `command.py` has the commands about keys, `shapes.py`
the scripts that are known, `script.py` their operations, and `channels.py` the subscriptions of
those that wait for locks of Redisson. This module has the commands about connections, and who may
do what.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Cancelled, Reason, Refused
from fencelock.actors.api.name import LABEL_BYTES_MAX, NAME_END, forbidden_in
from fencelock.actors.api.redis import (
    AwaitKey,
    ChangeKeys,
    KeyList,
    KeysChanged,
    KeysRead,
    ListKeys,
    ReadKeys,
)
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.error import ForbiddenError
from fencelock.actors.message import Address, Instant, Timer, address_of, ms_between
from fencelock.actors.proxy.access import AccessControl, Rights, RightsChanged
from fencelock.actors.redis.channels import UNLOCKED, Channels, awaiting, cancel_of
from fencelock.actors.redis.command import (
    KEY_COMMANDS,
    Answer,
    Asked,
    Attempts,
    Call,
    ClusterRefusalError,
    CommandError,
    Steps,
    integer,
)
from fencelock.actors.redis.event import Disconnected, HalfClosed, Opened, Received, Transmit
from fencelock.actors.redis.resp import (
    VERSION_2,
    Failure,
    ProtocolError,
    Push,
    Reply,
    RequestParser,
    encode_reply,
)
from fencelock.actors.redis.script import scripted
from fencelock.actors.redis.shapes import KNOWN, Operation, operation_of
from fencelock.actors.role import Host, Role, Summary

REDIS_VERSION = "7.4.0"
"""The version that is reported to clients: they choose commands by it."""

HELD_BYTES_MAX = 32 << 20
"""Limit of the bytes of requests that are incomplete, or wait, on all connections (32 MiB)."""

SLOW_MS = 30_000
"""Time within which a request must be complete, and a client authenticated (ms)."""

DOOR_TICK_MS = 5_000
"""Interval of looks for connections that exceed it (ms)."""

SCRIPTS_MAX = 1_024
"""Limit of the SHA1s of loaded scripts that a door remembers; it forgets the oldest."""

CLIENTS_LISTED_MAX = 1_000
"""Limit of connections in one reply to CLIENT LIST."""

TURN_REQUESTS = 64
"""Requests that begin in one turn of the node, of clients that just sent some, and again so many of
those that have waited. So a client that sends one at a time does not wait for long pipelines."""

REQUESTS_AT_ONCE = 8
"""Requests of one connection that begin one after the other, while others wait."""

COSTS = {"client": 16, "command": 16, "script": 16, "eval": 16, "eval_ro": 16, "info": 4}
"""Commands that take longer, and count as several requests."""

COST_BYTES, COST_ARGUMENTS = 128, 64
"""Bytes of arguments, and arguments, that count as one request more: to look at a long script takes
6 ms, to read a thousand arguments one or two."""

HTTP = frozenset((b"post", b"host:"))
"""The first words of lines that each request of HTTP has, and no request of Redis."""

CODES = {Reason.UNAVAILABLE: "CLUSTERDOWN", Reason.FORBIDDEN: "NOPERM"}
"""The code of a refusal; others are ERR."""

Verify = Callable[[str, str], str | None]
"""Returns the name of the key that a user, empty for the default one, proves by a password."""


class DoorTick(Timer):
    """Close connections that are slow."""


class DoorTurn(Timer):
    """Begin the requests that waited for this turn of the node."""


@dataclass(slots=True, eq=False)
class Connection:
    """A client."""

    number: int
    peer: str
    opened_at: Instant
    parser: RequestParser
    key: str = ""
    """The name of its key, empty where none are used."""
    version: int = VERSION_2
    name: str = ""
    library: dict[str, str] = field(default_factory=dict[str, str])
    steps: Steps | None = None
    """The command that has not been answered."""
    request: Asked | None = None
    """Its request in flight."""
    date_ms: int = 0
    incomplete_at: Instant | None = None
    """The time from which the bytes of an incomplete request have waited."""
    held: int = 0
    """The bytes that wait, as they are counted."""
    waits: bool = False
    """Whether its next request waits for a later turn."""
    half_closed: bool = False


DoorEvent = (
    Opened
    | Received
    | HalfClosed
    | Disconnected
    | KeysChanged
    | KeysRead
    | KeyList
    | Refused
    | Cancelled
    | RightsChanged
    | DoorTick
    | DoorTurn
)


class RedisDoor(Role[DoorEvent]):
    """Serves clients of Redis.

    Args:
        sockets: the address of the sockets.
        session: the role that passes requests to the cluster, the node's own session.
        version: the version of fencelock, for INFO.
        rights: the rights of each key; None where no keys are used, and all is allowed.
        verify: checks passwords (`Passwords` in ``cluster/keys.py``); None where no keys are used.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        sockets: Address,
        version: str = "",
        rights: tuple[Rights, ...] | None = None,
        verify: Verify | None = None,
    ) -> None:
        super().__init__(address, host)
        assert (rights is None) == (verify is None)
        self.node = node
        self.sockets = sockets
        self.session = address_of(node, "session")
        self.version = version
        self.access = None if rights is None else AccessControl(node, rights)
        self.connections: dict[int, Connection] = {}
        self.in_flight: dict[int, Connection] = {}
        """The connection of each request in flight, by its number."""
        self.requests = 0
        self.held = 0
        """The bytes that wait on all connections."""
        self.attempts = Attempts()
        self.channels = Channels(self.session, self._numbered)
        self.cursors: dict[int, str] = {}
        self.loaded: OrderedDict[str, Operation] = OrderedDict()
        """The operations of scripts that clients sent, by their SHA1."""
        self.ticking = False
        self.turn = 0
        """The turn of the node, as the sockets count them."""
        self.left = TURN_REQUESTS
        """Requests that may still begin in it."""
        self.waiting: deque[Connection] = deque()
        """Connections whose next request waits for a later turn, first come, first served."""
        self._verify = verify

    def handle(self, sender: Address, event: DoorEvent, now: Instant) -> Effects:
        match event:
            case Received():
                return self._on_received(event, now)
            case KeysChanged() | KeysRead() | KeyList() | Refused():
                return self._on_answer(event, now)
            case Cancelled():  # Of a wait whose client is gone.
                return ()
            case Opened():
                return self._on_opened(event, now)
            case Disconnected():
                connection = self.connections.get(event.connection)
                return () if connection is None else self._forget(connection)
            case HalfClosed():
                return self._on_half_closed(event)
            case RightsChanged():
                return self._on_rights_changed(event)
            case DoorTick():
                return self._on_tick(now)
            case DoorTurn():
                return self._on_turn(now)

    def summary(self) -> Summary:
        return ("clients", len(self.connections)), ("in flight", len(self.in_flight))

    def _on_opened(self, event: Opened, now: Instant) -> Effects:
        trusted = self.access is None
        self.connections[event.connection] = Connection(
            event.connection, event.peer, now, RequestParser(trusted=trusted)
        )
        effects: list[Effect] = [Observe("redis.connected")]
        if not self.ticking:
            self.ticking = True
            effects.append(Wake(DOOR_TICK_MS, DoorTick()))
        return effects

    def _on_received(self, event: Received, now: Instant) -> Effects:
        connection = self.connections.get(event.connection)
        if connection is None:
            return ()
        if event.turn != self.turn:
            self.turn, self.left = event.turn, TURN_REQUESTS
        connection.parser.feed(event.data)
        connection.date_ms = event.date_ms
        if connection.steps is not None:  # Only a host that does not wait for `Transmit` does this.
            return self._bounded(connection)
        return self._serve(connection, b"", now)

    def _on_answer(self, answer: Answer | Refused, now: Instant) -> Effects:
        subscription, effects = self.channels.answered(answer)
        if subscription is not None:
            self.attempts.turn_came(subscription.key)
            message: list[Reply] = [b"message", subscription.channel, UNLOCKED]
            subscriber = self.connections[subscription.connection]
            push = Transmit(
                connection=subscription.connection,
                data=encode_reply(Push([message]), subscriber.version),
                reads=subscriber.steps is None and not subscriber.waits,
            )
            return [Observe("redis.notified"), Send(self.sockets, push), *effects]
        connection = self.in_flight.pop(answer.request, None)
        if connection is None or connection.steps is None:
            return tuple(effects)
        connection.request = None
        try:
            reply = self._advance(connection, answer, effects)
        except Exception as error:  # noqa: BLE001  # As in `_serve`.
            return self._fault(connection, error)
        if reply is None:
            return effects
        return [*effects, *self._serve(connection, reply, now)]

    def _on_half_closed(self, event: HalfClosed) -> Effects:
        """Close a connection that waits for its turn: it would be granted to nobody."""
        connection = self.connections.get(event.connection)
        if connection is None:
            return ()
        connection.half_closed = True
        return self._close(connection) if isinstance(connection.request, AwaitKey) else ()

    def _serve(self, connection: Connection, output: bytes, now: Instant) -> list[Effect]:
        """Serve requests as `_serve_some` does; what raises costs the connection, not the door."""
        try:
            return self._serve_some(connection, output, now)
        except Exception as error:  # noqa: BLE001  # A door promises nothing: the log does.
            return self._fault(connection, error)

    def _fault(self, connection: Connection, error: Exception) -> list[Effect]:
        """Close a connection, since serving it raised ``error``: see `fencelock.actors.fault`."""
        if self.connections.get(connection.number) is not connection:
            return [Fault(f"a request of {connection.peer}", error)]
        connection.steps = None
        text = f"ERR a bug in fencelock made node {self.node} close this connection: its log has it"
        return [
            Observe("redis.internal"),
            Fault(f"a request of {connection.peer}", error),
            *self._close(connection, text),
        ]

    def _serve_some(self, connection: Connection, output: bytes, now: Instant) -> list[Effect]:
        """Answer requests until one is in flight, or none is complete; begin with ``output``.

        Some wait for the next turn of the node: one turn must not be long.
        """
        effects: list[Effect] = []
        closes = False
        share = REQUESTS_AT_ONCE
        while connection.steps is None and not closes:
            if self.left <= 0 or share <= 0:
                if connection.parser.held:
                    effects += self._wait(connection)
                break
            try:
                request = connection.parser.next()
                _check_not_http(request)
            except ProtocolError as error:
                effects.append(Observe("redis.malformed"))
                failure = Failure(f"ERR Protocol error: {error}")
                output += encode_reply(failure, connection.version)
                closes = True
                break
            if request is None:
                break
            self.left -= cost_of(request)
            share -= 1
            if not request:
                continue
            closes = request[0].lower() == b"quit"
            answered = self._begin(connection, request, effects)
            if answered is not None:
                output += answered
        reads = connection.steps is None and not closes and not connection.waits
        if output or reads or closes:
            transmit = Transmit(
                connection=connection.number, data=output, reads=reads, closes=closes
            )
            effects.append(Send(self.sockets, transmit))
        if closes:
            return [*effects, *self._forget(connection)]
        if connection.half_closed and isinstance(connection.request, AwaitKey):
            return [*effects, *self._close(connection)]
        if reads and connection.parser.held:
            connection.incomplete_at = connection.incomplete_at or now
        else:
            connection.incomplete_at = None
        return [*effects, *self._bounded(connection)]

    def _wait(self, connection: Connection) -> list[Effect]:
        connection.waits = True
        self.waiting.append(connection)
        return [Wake(0, DoorTurn())] if len(self.waiting) == 1 else []

    def _on_turn(self, now: Instant) -> Effects:
        effects: list[Effect] = []
        self.left = TURN_REQUESTS
        waiting, self.waiting = self.waiting, deque()
        while waiting and self.left > 0:
            connection = waiting.popleft()
            connection.waits = False
            if self.connections.get(connection.number) is connection:
                effects += self._serve(connection, b"", now)
        if waiting and not self.waiting:
            effects.append(Wake(0, DoorTurn()))
        self.waiting.extendleft(reversed(waiting))
        return effects

    def _begin(
        self, connection: Connection, request: list[bytes], effects: list[Effect]
    ) -> bytes | None:
        """Begin a command; return its reply, or None if a request is in flight for it."""
        name, arguments = request[0].lower().decode(errors="replace"), request[1:]
        try:
            _check_trusted(connection, name)
            if name in SUBSCRIBING:
                reply = self._on_subscribe(connection, name, arguments, effects)
                return encode_reply(reply, connection.version)
            self._check_subscriber(connection, name)
            if (known := self.ABOUT_CONNECTIONS.get(name)) is not None:
                count, handler = known
                _check_count(name, count, arguments)
                reply = handler(self, connection, arguments)
                if name == "reset":
                    effects += self.channels.unsubscribe(connection.number)
                return encode_reply(reply, connection.version)
            connection.steps = self._steps(connection, name, arguments)
        except (CommandError, ForbiddenError) as error:
            return encode_reply(_failure(error, effects), connection.version)
        return self._advance(connection, None, effects)

    def _on_subscribe(
        self, connection: Connection, name: str, arguments: list[bytes], effects: list[Effect]
    ) -> Reply:
        """SUBSCRIBE channel [channel ...], UNSUBSCRIBE [channel ...]."""
        _check_count(name, SUBSCRIBING[name], arguments)
        number = connection.number
        kind = name.encode()
        messages: list[list[Reply]] = []
        if name == "unsubscribe":
            for channel in arguments or self.channels.of(number):
                effects += self.channels.unsubscribe(number, channel)
                messages.append([kind, channel, len(self.channels.of(number))])
            return Push(messages or [[kind, None, 0]])
        self.channels.check_room(number, arguments)
        for channel in arguments:
            self._check_rights(connection, awaiting(channel))
        for channel in arguments:
            effects += self.channels.subscribe(number, channel)
            messages.append([kind, channel, len(self.channels.of(number))])
        return Push(messages)

    def _advance(
        self, connection: Connection, answer: Answer | Refused | None, effects: list[Effect]
    ) -> bytes | None:
        """Continue a command with ``answer``; return its reply, or None if it asks once more."""
        steps = connection.steps
        assert steps is not None
        try:
            if isinstance(answer, Refused):
                asked = steps.throw(ClusterRefusalError(answer))
            else:
                asked = next(steps) if answer is None else steps.send(answer)
            if not isinstance(asked, ListKeys):
                self._check_rights(connection, asked)
        except StopIteration as end:
            reply: Reply = end.value
        except (CommandError, ForbiddenError, ClusterRefusalError) as error:
            reply = _failure(error, effects)
        else:
            effects.append(Send(self.session, self._number(connection, asked)))
            return None
        connection.steps = None
        return encode_reply(reply, connection.version)

    def _check_rights(
        self, connection: Connection, asked: ChangeKeys | AwaitKey | ReadKeys
    ) -> None:
        """Raise ForbiddenError for a request that the key of a client does not allow."""
        if self.access is not None:
            self.access.check(connection.key + NAME_END, asked)

    def _number(self, connection: Connection, asked: Asked) -> Asked:
        numbered: Asked
        if isinstance(asked, ChangeKeys | AwaitKey):
            asked = replace(asked, owner=f"c{connection.number}")
            numbered = self._numbered(connection.number, asked)
        else:
            self.requests += 1
            numbered = replace(asked, request=self.requests)
        self.in_flight[self.requests] = connection
        connection.request = numbered
        return numbered

    def _numbered(self, number: int, asked: ChangeKeys | AwaitKey) -> ChangeKeys | AwaitKey:
        self.requests += 1
        connection = self.connections.get(number)
        if connection is None:
            return replace(asked, request=self.requests)
        label = label_of(self.node, connection)
        return replace(asked, request=self.requests, account=connection.key, label=label)

    def _bounded(self, connection: Connection) -> list[Effect]:
        """Count what waits, and close the connection with the most if that is too much."""
        held = connection.parser.held
        self.held += held - connection.held
        connection.held = held
        if self.held <= HELD_BYTES_MAX:
            return []
        most = max(self.connections.values(), key=lambda one: one.held)
        return [Observe("redis.over_memory"), *self._close(most)]

    def _close(self, connection: Connection, text: str = "") -> list[Effect]:
        data = encode_reply(Failure(text), connection.version) if text else b""
        transmit = Transmit(connection=connection.number, data=data, closes=True)
        return [Send(self.sockets, transmit), *self._forget(connection)]

    def _forget(self, connection: Connection) -> list[Effect]:
        """Drop a connection. What it has changed stays; a wait of its own ends."""
        del self.connections[connection.number]
        self.held -= connection.held
        if connection.steps is not None:
            connection.steps.close()
            connection.steps = None
        effects = self.channels.unsubscribe(connection.number)
        request = connection.request
        if request is not None:
            self.in_flight.pop(request.request, None)
        if isinstance(request, AwaitKey):
            effects.append(Send(self.session, cancel_of(request)))
        return effects

    def _on_rights_changed(self, changed: RightsChanged) -> Effects:
        if self.access is None:
            return ()
        self.access.replace(changed.rights)
        effects: list[Effect] = []
        for one in list(self.connections.values()):
            if one.parser.trusted and not self.access.knows(one.key):
                effects += self._close(one, f"NOAUTH key {one.key!r} was removed")
                continue
            try:
                for channel in self.channels.of(one.number):
                    self._check_rights(one, awaiting(channel))
            except ForbiddenError as error:
                effects += self._close(one, f"NOPERM {error}")
        return effects

    def _on_tick(self, now: Instant) -> Effects:
        self.ticking = bool(self.connections)
        if not self.ticking:
            return ()
        effects: list[Effect] = [Wake(DOOR_TICK_MS, DoorTick()), *self.channels.retry()]
        for one in list(self.connections.values()):
            trusted = one.parser.trusted
            since = one.incomplete_at if trusted else one.opened_at
            if since is not None and ms_between(since, now) >= SLOW_MS:
                what = "complete" if trusted else "authenticated"
                text = f"ERR no request was {what} within {SLOW_MS // 1_000} s"
                effects += [Observe("redis.slow_closed"), *self._close(one, text)]
        return effects

    def _steps(self, connection: Connection, name: str, arguments: list[bytes]) -> Steps:
        rights = None if self.access is None else self.access.rights_of(connection.key)
        call = Call(
            name=name,
            arguments=arguments,
            date_ms=connection.date_ms,
            visible=() if rights is None else rights.prefixes,
            connection=connection.number,
            attempts=self.attempts,
            taken=self.channels.taken,
            cursors=self.cursors,
        )
        if name in SCRIPTED:
            _check_count(name, SCRIPTED[name], arguments)
            return scripted(self._operation(name, arguments[0]), call)
        known = KEY_COMMANDS.get(name)
        if known is None:
            raise CommandError(
                f"ERR fencelock serves locks, not data: {_word(name)} is not supported; see "
                "docs/redis.md"
            )
        _check_count(name, known[0], arguments)
        return known[1](call)

    def _operation(self, name: str, script: bytes) -> Operation:
        if name.startswith("evalsha"):
            digest = script.lower().decode(errors="replace")
            operation = KNOWN.get(digest) or self.loaded.get(digest)
            if operation is None:
                raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
            return operation
        return self._load(script)[1]

    def _load(self, script: bytes) -> tuple[str, Operation]:
        digest, operation = operation_of(script)
        if operation is None:
            raise CommandError(
                f"ERR fencelock executes no Lua: the script with SHA1 {digest} is none of those "
                "that it knows. It knows scripts of Redlock, redis-py, python-redis-lock, Redisson "
                "and others that acquire, extend, release or read keys by their values: see "
                "docs/redis.md"
            )
        if digest not in KNOWN:
            self.loaded[digest] = operation
            if len(self.loaded) > SCRIPTS_MAX:
                self.loaded.popitem(last=False)
        return digest, operation

    def _check_subscriber(self, connection: Connection, name: str) -> None:
        """Refuse what a client may not send that reads messages, in version 2 of the protocol."""
        reads = connection.version == VERSION_2 and self.channels.of(connection.number)
        if reads and name not in ("ping", "quit", "reset"):
            raise CommandError(
                f"ERR Can't execute '{ascii(name[:40])[1:-1]}': only (P|S)SUBSCRIBE / "
                "(P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )

    def _on_ping(self, connection: Connection, arguments: list[bytes]) -> Reply:
        if len(arguments) > 1:
            raise CommandError("ERR wrong number of arguments for 'ping' command")
        if connection.version == VERSION_2 and self.channels.of(connection.number):
            return [b"pong", arguments[0] if arguments else b""]
        return arguments[0] if arguments else "PONG"

    def _on_reset(self, connection: Connection, arguments: list[bytes]) -> Reply:
        connection.version, connection.name = VERSION_2, ""
        connection.key, connection.parser.trusted = "", self.access is None
        return "RESET"

    def _on_select(self, connection: Connection, arguments: list[bytes]) -> Reply:
        if integer(arguments[0]):
            raise CommandError("ERR DB index is out of range")
        return "OK"

    def _on_auth(self, connection: Connection, arguments: list[bytes]) -> Reply:
        """AUTH [user] password: the user is the name of a key, the password its secret."""
        if len(arguments) > 2:  # noqa: PLR2004  (a user and a password)
            raise CommandError("ERR syntax error")
        user = arguments[0] if len(arguments) > 1 else b"default"
        self._authenticate(connection, user, arguments[-1])
        return "OK"

    def _authenticate(self, connection: Connection, user: bytes, password: bytes) -> None:
        if self._verify is None:
            if user == b"default":
                raise CommandError(
                    "ERR AUTH <password> called without any password configured for the default "
                    "user. Are you sure your configuration is correct?"
                )
            raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
        named = "" if user == b"default" else user.decode(errors="replace")
        key = self._verify(named, password.decode(errors="replace"))
        if key is None:
            raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
        connection.key, connection.parser.trusted = key, True

    def _on_hello(self, connection: Connection, arguments: list[bytes]) -> Reply:
        """HELLO [2 | 3 [AUTH user password] [SETNAME name]]."""
        version, rest = connection.version, arguments[1:]
        if arguments:
            try:
                version = integer(arguments[0])
            except CommandError:
                text = "ERR Protocol version is not an integer or out of range"
                raise CommandError(text) from None
            if version not in (VERSION_2, VERSION_2 + 1):
                raise CommandError("NOPROTO unsupported protocol version")
        name = None
        while rest:
            if rest[0].lower() == b"auth" and len(rest) > 2:  # noqa: PLR2004  (a user and a password)
                self._authenticate(connection, rest[1], rest[2])
                rest = rest[3:]
            elif rest[0].lower() == b"setname" and len(rest) > 1:
                name, rest = _client_name(rest[1]), rest[2:]
            else:
                option = rest[0].decode(errors="replace")
                raise CommandError(f"ERR Syntax error in HELLO option '{option}'")
        if not connection.parser.trusted:
            raise CommandError(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
                "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client "
                "and select the RESP protocol version at the same time"
            )
        connection.version = version
        connection.name = connection.name if name is None else name
        return {
            "server": b"redis",
            "version": REDIS_VERSION.encode(),
            "proto": version,
            "id": connection.number,
            "mode": b"standalone",
            "role": b"master",
            "modules": [],
        }

    def _on_client(self, connection: Connection, arguments: list[bytes]) -> Reply:
        match arguments[0].lower(), arguments[1:]:
            case b"setname", [name]:
                connection.name = _client_name(name)
                return "OK"
            case b"getname", []:
                return connection.name.encode() or None
            case b"id", []:
                return connection.number
            case b"setinfo", [what, value] if what.lower() in (b"lib-name", b"lib-ver"):
                connection.library[what.lower().decode()] = _client_name(value)
                return "OK"
            case b"info", []:
                return _shown(connection).encode()
            case b"list", []:
                own = [one for one in self.connections.values() if one.key == connection.key]
                return "".join(map(_shown, own[:CLIENTS_LISTED_MAX])).encode()
            case word, _:
                raise _unsupported("CLIENT", word)

    def _on_script(self, connection: Connection, arguments: list[bytes]) -> Reply:
        match arguments[0].lower(), arguments[1:]:
            case b"load", [text]:
                return self._load(text)[0].encode()
            case b"exists", [_, *_] as digests:
                found = (one.lower().decode(errors="replace") for one in digests)
                return [int(one in KNOWN or one in self.loaded) for one in found]
            case b"flush", ([] | [b"async" | b"sync" | b"ASYNC" | b"SYNC"]):
                self.loaded.clear()
                return "OK"
            case word, _:
                raise _unsupported("SCRIPT", word)

    def _on_command(self, connection: Connection, arguments: list[bytes]) -> Reply:
        """COMMAND [COUNT | LIST | DOCS | INFO]: names and numbers of arguments, and no more."""
        table = {
            **{name: one[0] for name, one in self.ABOUT_CONNECTIONS.items()},
            **SUBSCRIBING,
            **SCRIPTED,
            **{name: one[0] for name, one in KEY_COMMANDS.items()},
        }
        words = [argument.lower().decode(errors="replace") for argument in arguments]
        match words:
            case ["count"]:
                return len(table)
            case ["list"]:
                return [name.encode() for name in table]
            case ["docs", *_]:
                return {}
            case [] | ["info"]:
                wanted = list(table)
            case ["info", *wanted]:
                pass
            case _:
                raise CommandError("ERR fencelock supports COMMAND COUNT, DOCS, INFO and LIST only")
        return [
            [name.encode(), table[name], [], 0, 0, 0, []] if name in table else None
            for name in wanted
        ]

    def _on_info(self, connection: Connection, arguments: list[bytes]) -> Reply:
        sections: dict[str, dict[str, str | int]] = {
            "Server": {
                "redis_version": REDIS_VERSION,
                "redis_mode": "standalone",
                "arch_bits": 64,
                "fencelock_version": self.version,
                "fencelock_node": self.node,
            },
            "Clients": {
                "connected_clients": len(self.connections),
                "blocked_clients": sum(
                    isinstance(one.request, AwaitKey) for one in self.in_flight.values()
                ),
            },
            "Persistence": {"loading": 0},
            "Replication": {"role": "master", "connected_slaves": 0},
            "Cluster": {"cluster_enabled": 0},
        }
        parts = (
            "\r\n".join((f"# {title}", *(f"{name}:{value}" for name, value in facts.items()), ""))
            for title, facts in sections.items()
        )
        return "\r\n".join(parts).encode()

    ABOUT_CONNECTIONS: ClassVar[
        dict[str, tuple[int, Callable[[RedisDoor, Connection, list[bytes]], Reply]]]
    ] = {
        "auth": (-2, _on_auth),
        "client": (-2, _on_client),
        "command": (-1, _on_command),
        "echo": (2, lambda _door, _connection, arguments: arguments[0]),
        "hello": (-1, _on_hello),
        "info": (-1, _on_info),
        "ping": (-1, _on_ping),
        "quit": (-1, lambda _door, _connection, _arguments: "OK"),
        "reset": (1, _on_reset),
        "script": (-2, _on_script),
        "select": (2, _on_select),
    }
    """Commands that are not about keys, as in `KEY_COMMANDS`."""


SUBSCRIBING = {"subscribe": -2, "unsubscribe": -1}
"""Commands about channels, with the number of their arguments as in `KEY_COMMANDS`."""

SCRIPTED = dict.fromkeys(("eval", "evalsha", "eval_ro", "evalsha_ro"), -3)
"""Commands that name a script, likewise."""


def _failure(
    error: CommandError | ForbiddenError | ClusterRefusalError, effects: list[Effect]
) -> Failure:
    """Count a refused command, and return its reply."""
    if isinstance(error, ForbiddenError):
        effects.append(Observe("redis.forbidden"))
        return Failure(f"NOPERM {error}")
    effects.append(Observe("redis.refused"))
    if isinstance(error, ClusterRefusalError):
        return Failure(f"{CODES.get(error.refused.reason, 'ERR')} {error}")
    return Failure(str(error))


def _word(word: str) -> str:
    return ascii(word.upper()[:40])[1:-1]


def _unsupported(command: str, word: bytes) -> CommandError:
    return CommandError(
        f"ERR fencelock does not support {command} {_word(word.decode(errors='replace'))} with "
        "these arguments; see docs/redis.md"
    )


def _check_count(name: str, count: int, arguments: list[bytes]) -> None:
    found = 1 + len(arguments)
    if found < -count or (count > 0 and found != count):
        raise CommandError(f"ERR wrong number of arguments for '{name}' command")


def _check_not_http(request: list[bytes] | None) -> None:
    """Refuse what a browser sends: else each line of a form on any web page is a request.

    A page may let the browser of a developer post to a door on loopback. The first line or the
    second, before the page's own, is one of these.

    Source: ``securityWarningCommand`` in ``networking.c`` of Redis.
    """
    if request and request[0].lower() in HTTP:
        raise ProtocolError("this is a door for clients of Redis, not for HTTP")


def _check_trusted(connection: Connection, name: str) -> None:
    if not connection.parser.trusted and name not in ("auth", "hello", "quit", "reset"):
        raise CommandError("NOAUTH Authentication required.")


def _client_name(argument: bytes) -> str:
    if any(not ord("!") <= sign <= ord("~") for sign in argument):
        raise CommandError(
            "ERR Client names cannot contain spaces, newlines or special characters."
        )
    return argument[:LABEL_BYTES_MAX].decode()


def _shown(connection: Connection) -> str:
    library = " ".join(f"{what}={value}" for what, value in sorted(connection.library.items()))
    return (
        f"id={connection.number} addr={connection.peer} name={connection.name} db=0 "
        f"resp={connection.version} user={connection.key or 'default'} {library}\n"
    )


def cost_of(request: list[bytes]) -> int:
    """Return the number of requests as which one counts; an empty line is one."""
    name = b"".join(request[:1]).lower().decode(errors="replace")
    cost = max(1, len(request) - 1) if name in SUBSCRIBING else COSTS.get(name, 1)
    return cost + sum(map(len, request)) // COST_BYTES + len(request) // COST_ARGUMENTS


def label_of(node: str, connection: Connection) -> str:
    text = f"Redis door of {node}, {connection.peer} {connection.name}".rstrip()
    text = text.encode()[:LABEL_BYTES_MAX].decode(errors="ignore")
    return "redis" if forbidden_in(text) else text
