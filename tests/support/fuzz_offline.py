"""Every message with each field at its extremes, given to roles by hand."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from enum import IntEnum
from functools import cache, partial
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import fencelock.actors
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.api.request import Request
from fencelock.actors.api.role_request import (
    DescribeRole,
    ReadClock,
    ReadLeaders,
    ReadQueues,
    ReadState,
)
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.message import NS_PER_MS, REGISTRY, Address, Message, address_of
from fencelock.actors.paxos.journal import recover
from fencelock.actors.paxos.wire import Accept, Commit, Diverged, Pledged, Slots
from fencelock.actors.table.rules import LOG_COMMANDS
from fencelock.actors.table.wire import TablePart
from fencelock.cluster.host.role_set import RoleSlot
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.storage.directory import JournalDamagedError
from fencelock.cluster.node.storage.record import (
    SALT_BYTES,
    FileKind,
    Header,
    encode_group,
    encode_header,
    entries_of,
    scan,
)
from fencelock.cluster.node.topology import make_roles_of
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.cbor import INT_MIN, FrameTooLargeError, MalformedFrameError
from fencelock.transport.codec import decode, encode
from fencelock.transport.frame import Envelope, Frame, encode_frame
from fencelock.verification.simulation.network import CLUSTER
from fencelock.verification.simulation.world import World

PACKAGE = "fencelock."
"""Tests define messages of their own, which no node knows."""

for _module in pkgutil.walk_packages(fencelock.actors.__path__, "fencelock.actors."):
    importlib.import_module(_module.name)  # So `REGISTRY` has every message.

INTEGERS = (
    *(0, 1, -1, 2, 255, 1_001, 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1),
    *(2**61, 2**62 - 2, 2**62 - 1, 2**62, INT_MAX - 1, INT_MAX, -(2**31), -(2**62), INT_MIN),
)
TEXTS = (
    *("", "x", "n1", "n2", "n1/proxy", "n2/replica", "a/b", "//", "*", "a.1", "me~2.17", "1", "-1"),
    *("\x00", "\n", "\x1f", "latch\x1fx", "rwlock\x1fx", "\u202e", "\u200b", "é" * 128, "é" * 129),
    *("\U0010ffff", "x" * 256, "x" * 257, "/" * 300, "tcp://127.0.0.1:1", "tcp://", "x" * 20_000),
)
BYTES = (b"", b"\x00", b"\xff" * 16, b"\x80", b"\x9f", b"fencelock-command", b"x" * 60_000)
EXTREMES: dict[Any, tuple[Any, ...]] = {
    NoneType: (None,),
    bool: (False, True),
    int: INTEGERS,
    str: TEXTS,
    bytes: BYTES,
}
PLAUSIBLE: dict[Any, Any] = {bool: False, int: 1, str: "x", bytes: b"x"}
MANY = 300
"""Length of the longest tuple."""

Values = Mapping[str, Any]
"""Plausible values of fields, by name."""


@cache
def plain(hint: Any) -> Any:
    """Return the type behind a `NewType` or an optional one."""
    hint = getattr(hint, "__supertype__", hint)
    if get_origin(hint) in (Union, UnionType):
        return next(plain(one) for one in get_args(hint) if one is not NoneType)
    return hint


@cache
def arms(hint: Any) -> list[Any]:
    """Return all types that ``hint`` joins."""
    if get_origin(hint) in (Union, UnionType):
        return [arm for one in get_args(hint) for arm in arms(one)]
    return [getattr(hint, "__supertype__", hint)]


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the declared types of a message or a named tuple."""
    hints = get_type_hints(cls)
    names: tuple[str, ...] = getattr(cls, "_fields", ()) or cls.__struct_fields__
    return {name: hints[name] for name in names}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a field of that type may have ``value``."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(one, get_args(kind)[0]) for one in value)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, kind)


class Composer:
    """Makes messages.

    Args:
        values: the plausible values.

    """

    def __init__(self, values: Values) -> None:
        self.values = values

    def sound(self, cls: Any) -> Any:
        """Return a plausible instance of a message or a named tuple."""
        return cls(**{name: self.value(name, hint) for name, hint in hints_of(cls).items()})

    def value(self, name: str, hint: Any) -> Any:
        """Return a plausible value of the field ``name``."""
        known = self.values.get(name, MISSING)
        kind = plain(hint)
        if known is not MISSING and _fits(known, kind):
            return known
        if kind in PLAUSIBLE:
            return PLAUSIBLE[kind]
        if get_origin(kind) is tuple:
            return (self.value(name, get_args(kind)[0]),)
        if issubclass(kind, IntEnum):
            return next(iter(kind))
        return self.sound(kind)

    def extremes(self, name: str, hint: Any) -> Iterator[Any]:
        """Yield the extremes of the field ``name``."""
        for kind in arms(hint):
            if kind in EXTREMES:
                yield from EXTREMES[kind]
            elif get_origin(kind) is tuple:
                yield from self._tuples(name, get_args(kind)[0])
            elif issubclass(kind, IntEnum):
                yield from kind
            else:
                yield from self.variants(kind)

    def _tuples(self, name: str, item: Any) -> Iterator[Any]:
        yield ()
        one = self.value(name, item)
        yield from ((one,), (one, one), (one,) * MANY)
        for extreme in self.extremes(name, item):
            yield (extreme,)
            yield (one, extreme)

    def variants(self, cls: Any) -> Iterator[Any]:
        """Yield plausible instances of ``cls``, each with one field at one extreme."""
        hints = hints_of(cls)
        sound = {name: self.value(name, hint) for name, hint in hints.items()}
        yield cls(**sound)
        for name, hint in hints.items():
            for extreme in self.extremes(name, hint):
                yield cls(**{**sound, name: extreme})

    def drawn(self, cls: Any, random: Random) -> Any:
        """Return an instance of ``cls`` with some fields at extremes, chosen at random."""
        hints = hints_of(cls)
        share = random.choice((0.1, 0.3, 1.0))
        return cls(**{name: self._draw(name, hints[name], random, share) for name in hints})

    def _draw(self, name: str, hint: Any, random: Random, share: float) -> Any:
        if random.random() >= share:
            return self.value(name, hint)
        kind = random.choice(arms(hint))
        if kind in EXTREMES:
            return random.choice(EXTREMES[kind])
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            count = random.choice((0, 1, 1, 2, 3))
            return tuple(self._draw(name, item, random, share) for _ in range(count))
        if issubclass(kind, IntEnum):
            return random.choice(list(kind))
        return self.drawn(kind, random)


def requests() -> list[type[Request]]:
    return [cls for cls in messages() if issubclass(cls, Request)]


def messages() -> list[type[Message]]:
    """Return all messages by tag, whichever role sends them."""
    return [
        REGISTRY[tag] for tag in sorted(REGISTRY) if REGISTRY[tag].__module__.startswith(PACKAGE)
    ]


def variants_of(kinds: Sequence[type[Message]], values: Values) -> Iterator[Message]:
    """Yield all variants of all ``kinds``, one of each kind in turn."""
    composer = Composer(values)
    left = [iter(composer.variants(kind)) for kind in kinds]
    while left:
        for variants in [*left]:
            message = next(variants, None)
            if message is None:
                left.remove(variants)
            else:
                yield cast("Message", message)


NODES = ("n1", "n2", "n3")
CLIENT = "client-1f"
FORMING_MS = 4_000
"""Virtual time in which a cluster forms and elects (ms)."""

STEP_MS = 20
"""Virtual time between two steps (ms)."""

ROLE_REQUESTS = DescribeRole, ReadClock, ReadLeaders, ReadQueues, ReadState
"""What an `AskRole` may carry."""

INPUTS_MAX = 3_000
"""Inputs to one cluster; then another is formed, since most of it is out of order by then."""

BURST = 40
"""Inputs between two steps."""


@dataclass
class Findings:
    """Exceptions that an input raised, each place once."""

    inputs: int = 0
    by_place: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, entry: str, what: object, error: BaseException) -> None:
        """Note that ``what``, at the entry point ``entry``, raised ``error``."""
        root = error
        while root.__cause__ is not None:
            root = root.__cause__
        frames = traceback.extract_tb(root.__traceback__)
        place = f"{type(root).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
        trace = "".join(traceback.format_exception(root))[-3_000:]
        self.by_place.setdefault(place, f"{entry}: {_short(what)}\n{trace}")

    def __str__(self) -> str:
        return "\n\n".join(f"{place}\n{trace}" for place, trace in self.by_place.items())


class FuzzedWorld(World):
    """Three nodes of a protocol in virtual time, and a client with a session.

    Frames that a node would drop do not reach it: no honest node sends any in a `World`.

    Args:
        protocol: the protocol.
        random: draws ids and delays.

    """

    def __init__(self, protocol: str, random: Random) -> None:
        super().__init__(random.getrandbits(62))
        self.replies: deque[Message] = deque(maxlen=100)
        self._random = random
        self._client = FrameValidator(CLIENT, CLUSTER, client=True)
        self.validators = {
            node: FrameValidator(node, CLUSTER, client=False, members=set(NODES) - {node})
            for node in NODES
        }
        self._arriving: list[tuple[str, str, bytes]] = []
        endpoints = {node: f"tcp://127.0.0.1:{4_000 + n}" for n, node in enumerate(NODES)}
        make_roles = make_roles_of(protocol)
        for node in NODES:
            self.add(
                node,
                lambda context: make_roles(replace(context, endpoints=endpoints)),
                member=True,
            )
        self.power_on_all()
        self.pass_time(FORMING_MS)
        self.session = CLIENT
        for node in NODES:
            self.ask(node, Open(session=CLIENT, ttl_ms=60_000, request=1))
        self.pass_time(FORMING_MS // 4)
        opened = [reply for reply in self.replies if isinstance(reply, Opened)]
        self.serves = bool(opened)
        if opened:
            self.session = opened[0].assigned

    def joined(self, node: str, group: int) -> None:
        self.validators[node].group = group
        self.may_found = False

    def ask(self, node: str, message: Message) -> None:
        there, here = address_of(node, "proxy"), address_of(CLIENT, "x")
        raw = encode_frame(Frame(CLUSTER, 0, 0, (Envelope(there, here, message),)), check=False)
        self.take(node, CLIENT, raw)

    def take(self, node: str, link: str, raw: bytes) -> None:
        """Let a frame of ``link`` arrive at ``node`` when time passes, unless it is dropped."""
        if not isinstance(self.validators[node].admit(link, raw), Dropped):
            self._arriving.append((node, link, raw))

    def carry(self, source: str, boot: int, to: str, frame: bytes) -> None:
        if to == CLIENT:
            read = self._client.admit(source, frame)
            if isinstance(read, Frame):
                self.replies.extend(envelope[2] for envelope in read.envelopes)
        elif to in self.nodes and not isinstance(self.validators[to].admit(source, frame), Dropped):
            super().carry(source, boot, to, frame)

    def pass_time(self, ms: int = STEP_MS) -> None:
        """Let the frames that were taken arrive, and some time pass."""
        arriving, self._arriving = self._arriving, []
        for node, link, raw in arriving:
            self.nodes[node].arrive(link, 1, raw)
        self.run(self.time + ms * NS_PER_MS)

    def values(self) -> Values:
        """Return plausible values of fields."""
        return {
            "session": self.session,
            "lock": "a",
            "owner": "o",
            "request": self._random.randrange(1, 1_000),
            "fence": self._random.randrange(1, 5),
            "wait_ms": self._random.choice((0, 1_000, None)),
            "limit": 1,
            "ttl_ms": 60_000,
            "permits": 3,
            "amount": 1,
            "parties": 2,
            "count": 2,
            "most": 100,
            "locks": ("a", "b"),
            "node": "n2",
            "client": address_of("n2", "proxy"),
            "view": 0,
            "age_ms": 1_000,
            "slot": self._random.randrange(1, 10),
            "epoch": self._random.randrange(1, 5),
            "role": self._random.choice(("clock", "proxy", "leader", "process", "server")),
            "body": encode(self._random.choice(ROLE_REQUESTS)()),
        }

    def roles(self, node: str) -> dict[Address, RoleSlot]:
        return self.nodes[node].scheduler.roles


RECORDS = (Pledged, Commit, Accept, Slots, Diverged)
"""Records of the log."""

_TABLE_VALUES = {
    **{"session": "me.1", "lock": "a", "owner": "o", "request": 2, "fence": 1, "wait_ms": 1_000},
    **{"limit": 1, "permits": 3, "amount": 1, "parties": 2, "count": 2, "locks": ("a", "b")},
}


def member_messages(
    protocol: str, given: Iterable[Message], seed: int
) -> Iterator[tuple[str, str, Message]]:
    """Yield each message with roles that accept it, and with likely senders."""
    cluster = FuzzedWorld(protocol, Random(seed))
    accepts = {
        address.partition("/")[2]: slot.accepts for address, slot in cluster.roles("n1").items()
    }
    for message in given:
        for role, kinds in accepts.items():
            if type(message) in kinds:
                for sender in dict.fromkeys((role, "leader", "proxy")):
                    yield role, sender, message


class OfflineFuzzer:
    """Feeds inputs to entry points in turn.

    Args:
        seed: of everything that is drawn.

    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.findings = Findings()
        self.served: Counter[str] = Counter()
        """Clusters that formed, by protocol."""

    def frames(self, most: int) -> None:
        """Check bytes as frames: sound ones, with bytes changed, cut or repeated."""
        random, composer = self.random, Composer({})
        kinds = messages()
        for node, client in (("n1", False), (CLIENT, True)):
            validator = FrameValidator(node, CLUSTER, client=client, members={"n2"})
            for _ in range(most // 2):
                link = random.choice(("n2", CLIENT))
                raw = self._frame(composer, random.choice(kinds), node, link)
                raw = _damaged(raw, random)
                self._feed("frame", raw, partial(validator.admit, link, raw))
                self._feed("refusals", raw, partial(validator.field_refusals, CLIENT, raw))

    def _frame(self, composer: Composer, kind: type[Message], node: str, link: str) -> bytes:
        message = composer.drawn(kind, self.random)
        envelope = Envelope(address_of(node, "proxy"), address_of(link, "x"), message)
        try:
            return encode_frame(
                Frame(CLUSTER, 0, self.random.getrandbits(8), (envelope,)), check=False
            )
        except FrameTooLargeError:
            return b""

    def roles(
        self, protocol: str, inputs: Iterable[Message] | None, most: int, *, peers: bool
    ) -> None:
        """Send messages to the roles of nodes, as a client or as a member.

        Args:
            protocol: of the nodes.
            inputs: the messages, or None to draw them.
            most: the maximum number of messages.
            peers: whether they come from another member.

        """
        kinds = messages() if peers else requests()
        given = None if inputs is None else iter(inputs)
        left = most
        while left > 0:
            cluster = self._formed(protocol)
            composer = Composer(cluster.values())
            for _ in range(min(left, INPUTS_MAX) // BURST + 1):
                left -= BURST
                sent: list[Message] = []
                for _ in range(BURST):
                    if given is None:
                        message = composer.drawn(self.random.choice(kinds), self.random)
                    else:
                        found = next(given, None)
                        if found is None:
                            return
                        message = found
                    sent.append(message)
                    self._send(cluster, message, peers=peers)
                composer.values = cluster.values()
                if not self._feed(f"roles of {protocol}", sent, cluster.pass_time):
                    break  # The node has ended.

    def _formed(self, protocol: str) -> FuzzedWorld:
        cluster = FuzzedWorld(protocol, self.random)
        self.served[protocol] += cluster.serves
        return cluster

    def _send(self, cluster: FuzzedWorld, message: Message, *, peers: bool) -> None:
        random = self.random
        node = random.choice(NODES)
        link = random.choice([one for one in NODES if one != node]) if peers else CLIENT
        accepting = [
            address
            for address, slot in cluster.roles(node).items()
            if type(message) in slot.accepts
        ]
        to = random.choice(accepting or list(cluster.roles(node))) if peers else f"{node}/proxy"
        there = Address(str(to))
        name = there.partition("/")[2] if peers else "x"
        senders = [address_of(link, name), address_of(link, "leader"), address_of(link, "proxy")]
        envelope = Envelope(there, random.choice(senders) if peers else senders[0], message)
        try:
            group = cluster.validators[node].group if peers else 0
            raw = encode_frame(Frame(CLUSTER, group, 1, (envelope,)), check=False)
        except FrameTooLargeError:
            return
        what = (link, there, message)
        self._feed("frame of a role", what, partial(cluster.take, node, link, raw))

    def commands(self, most: int) -> None:
        """Apply fuzzed commands to a table, as the log carries them."""
        random, machine = self.random, self._machine()
        session = next(iter(machine.table.sessions.by_id))
        values = {**_TABLE_VALUES, "session": session}
        composer = Composer(values)
        kinds = [kind for kind in messages() if kind in LOG_COMMANDS]
        time_ms = machine.table.time_ms
        for number in range(most):
            values["request"] = number + 2
            message = composer.drawn(random.choice(kinds), random)
            time_ms += random.choice((0, 0, 0, 1, 50))
            command = machine.write(message)
            if random.random() < 0.2:
                command = _damaged(command, random)
            at = random.choice((time_ms, time_ms, time_ms, 0))
            self._feed("command", message, partial(machine.apply, at, [command]))
            if number % 500 == 499 or session not in machine.table.sessions.by_id:
                self._feed("snapshot", number, partial(_restored, machine))
                machine = self._machine()
                time_ms = machine.table.time_ms

    def _machine(self) -> LockMachine:
        machine = LockMachine()
        machine.apply(1, [machine.write(Open(session="me", ttl_ms=60_000, request=1))])
        return machine

    def snapshots(self, most: int) -> None:
        """Restore tables from parts with fields at extremes, or with damaged bytes."""
        random, composer = self.random, Composer(_TABLE_VALUES)
        source = self._machine()
        session = next(iter(source.table.sessions.by_id))
        for n in range(20):
            lock = Acquire(lock=f"l{n % 15}", session=session, owner=f"o{n}", request=n + 2)
            source.apply(2, [source.write(lock)])
        sound = parts_of(source)
        for _ in range(most):
            parts = list(sound)
            if random.random() < 0.5:
                parts[0] = _damaged(parts[0], random)
            else:
                try:
                    parts = [encode(composer.drawn(TablePart, random))]
                except FrameTooLargeError:
                    continue
            machine = LockMachine()
            self._feed("snapshot", parts, partial(machine.restore, parts), ValueError)

    def records(self, most: int) -> None:
        """Read damaged segments, and records of roles whose fields are at extremes."""
        random, composer = self.random, Composer({})
        for _ in range(most // 2):
            content = _segment(composer, random)
            damaged = _damaged(content, random)
            self._feed(
                "segment",
                damaged,
                partial(_read_segment, damaged),
                (JournalDamagedError, MalformedFrameError),
            )
            record = _damaged(
                encode(composer.drawn(random.choice(RECORDS), random), check=False), random
            )
            self._feed("record", record, partial(decode, record), MalformedFrameError)

    def _feed(
        self,
        entry: str,
        what: object,
        call: Callable[[], object],
        allowed: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> bool:
        self.findings.inputs += 1
        try:
            call()
        except allowed:
            pass
        except Exception as error:  # noqa: BLE001  # That is what is looked for.
            self.findings.add(entry, what, error)
            return False
        return True


def parts_of(machine: LockMachine) -> list[bytes]:
    return [part.encoded() for part in machine.snapshot() if part is not None]


def _restored(machine: LockMachine) -> None:
    """Check that a table restored from its snapshot is the same."""
    parts = parts_of(machine)
    other = LockMachine()
    other.restore(parts)
    assert other.table.numbers() == machine.table.numbers()
    assert other.digest() == machine.digest()


def _short(what: object) -> str:
    items: list[object] = what if isinstance(what, list) else [what]  # pyright: ignore[reportUnknownVariableType]
    return "\n".join(repr(one)[:300] for one in items)


def _damaged(raw: bytes, random: Random) -> bytes:
    """Return ``raw`` with some bytes changed, cut or repeated, or as it is."""
    data = bytearray(raw)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        if not data:
            break
        at = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[at] = random.getrandbits(8)
            case 1:
                data[at] ^= 1 << random.randrange(8)
            case 2:
                del data[at : at + random.randrange(1, 9)]
            case _:
                data[at:at] = data[at : at + random.randrange(1, 9)]
    return bytes(data)


def _segment(composer: Composer, random: Random) -> bytes:
    """Return a segment of a journal with a few records, and room behind them."""
    salt = random.randbytes(SALT_BYTES)
    content = encode_header(Header(FileKind.SEGMENT, 1, 1, salt, bytes(SALT_BYTES)))
    for sequence in range(1, 4):
        records = [
            ("acceptor", encode(composer.drawn(random.choice(RECORDS), random), check=False))
            for _ in range(2)
        ]
        content += encode_group(records, salt=salt, offset=len(content), sequence=sequence)
    return content + bytes(random.choice((0, 512)))


def _read_segment(content: bytes) -> None:
    """Read a segment, its records, and what a replica recovers from them."""
    groups = scan(content, "segment", FileKind.SEGMENT).groups
    entries = [entry for group in groups for entry in entries_of(content, group, "a journal")]
    recover([decode(entry.payload) for entry in entries if isinstance(entry.payload, bytes)])
