"""A workload with clients of Redis doors and native users of the same locks, and its judge."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any

from fencelock.actors.api.lock_message import Granted
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.redis import KeysChanged, KeysRead, KeysRequest, KeyState, ReadKeys
from fencelock.actors.api.request import RequestKey
from fencelock.actors.effect import Effect, Effects, Observe, Send, Spawn, Wake
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Local,
    Timer,
    address_of,
    node_of,
    role_of,
)
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.redis.door import RedisDoor
from fencelock.actors.redis.event import Disconnected, Opened, Received, Transmit
from fencelock.actors.redis.shapes import Operation, text_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.node.topology import NodeContext
from fencelock.verification.simulation.faults import PPM
from fencelock.verification.simulation.judge import JudgedHold, LockJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
from fencelock.verification.simulation.workload import PAUSE_MS_MAX, Finish, LockUser

PREFIX = "lock:"
"""The beginning of the names of python-redis-lock."""

CLIENTS = 2
"""Clients of each door."""

TTL_MS = (80, 200, 500)
"""Times for which they hold keys (ms)."""

WAIT_MS_MAX = 1_500

FORCE_SHARE, WAIT_SHARE, CUT_SHARE = 0.1, 0.5, 0.05
"""Shares of requests that take a key by force, of those denied that wait, and of those whose
connection is cut while they are in flight."""

EXTEND_SHARE, READ_SHARE, TWICE_SHARE = 0.25, 0.25, 0.3
"""Shares of what a holder does that extend, and that read; and of deletions that are sent twice."""

COUNT_SHARE, AGAIN_SHARE = 0.4, 0.5
"""Shares of clients that count holds as Redisson does, and of those that enter once more."""

RECEIPT_MS = b"5000"

RELEASE, EXTEND = text_of(Operation.COMPARE_DELETE), text_of(Operation.COMPARE_PEXPIRE)
"""The scripts of Redlock."""

ENTER, LEAVE, RENEW = map(text_of, (Operation.ENTER, Operation.LEAVE_ONCE, Operation.RENEW))
"""The scripts of Redisson."""


class RedisLock(LockUser):
    """A native user of the locks that clients of the doors use too."""

    def __init__(self, address: Address, host: Host, **options: object) -> None:
        super().__init__(address, host, **options)  # type: ignore[arg-type]
        self.locks = tuple(map(key_named, self.locks))


def key_named(lock: str) -> str:
    """Return the key of a lock, as python-redis-lock names it."""
    return f"{PREFIX}{lock}"


class Step(Enum):
    """A report of a door's client to the judge."""

    ASKS = auto()
    """It sends a request that may set the key, or extend it."""
    FORCES = auto()
    ENTERS = auto()
    """Its last request has set the key, or extended it."""
    LEAVES = auto()
    """It does not rely on the key any more."""
    LEAVES_ONE = auto()
    """It ends one of its holds. By its own count it has others, but one of these may be over."""
    DELETED = auto()
    """A compare-and-delete has taken effect."""
    DIFFERS = auto()
    """An unlock that was sent twice had two replies."""


class ClientReport(Local):
    """To itself, for the judge: the client with that token takes a step with a key."""

    step: Step
    lock: str
    token: bytes
    ttl_ms: int = 0


class DoorPause(Timer):
    """Let the client of a connection go on."""

    connection: int


class Doing(Enum):
    """The state of a client."""

    PAUSING = auto()
    LOOKING = auto()
    """It reads a key that it does not hold."""
    SETTING = auto()
    WAITING = auto()
    HOLDING = auto()
    EXTENDING = auto()
    READING = auto()
    RELEASING = auto()
    LISTENING = auto()
    """It waits for the message of a channel."""
    LEAVING = auto()
    """It ends one hold of several."""


@dataclass(slots=True)
class DoorClient:
    """A client and its connection."""

    connection: int
    doing: Doing = Doing.PAUSING
    lock: str = ""
    token: bytes = b""
    ttl_ms: int = 0
    forces: bool = False
    counts: bool = False
    """Whether it counts its holds."""
    times: int = 0
    """Number of its holds that it knows of."""
    channel: bytes = b""
    """The channel to which it is subscribed."""
    unlocked: bytes = b""
    """The first reply to its unlock."""
    expects: int = 0
    """Number of replies in flight."""
    received: bytes = b""


DoorEvent = Transmit | DoorPause | ClientReport | Finish


class DoorClients(Role[DoorEvent]):
    """The sockets of a door, and the clients behind them.

    Each sets a key of a few for a while, extends it, reads it, deletes it, and begins anew. If the
    key is held, it may wait for it, as python-redis-lock does. Others count their holds, and wait
    for a message, as Redisson does. Connections break now and then.
    """

    def __init__(
        self, address: Address, host: Host, *, door: Address, locks: tuple[str, ...], random: Random
    ) -> None:
        super().__init__(address, host)
        self.door, self.locks, self.random = door, locks, random
        self.clients: dict[int, DoorClient] = {}
        self.opened = self.turn = 0
        self.finishing = False

    def begin(self, now: Instant) -> Effects:
        return [effect for _ in range(CLIENTS) for effect in self._connect()]

    def handle(self, sender: Address, event: DoorEvent, now: Instant) -> Effects:
        match event:
            case ClientReport():
                return ()
            case Finish():
                self.finishing = True
                return [effect for one in [*self.clients.values()] for effect in self._cut(one)]
            case DoorPause():
                client = self.clients.get(event.connection)
                return () if client is None or client.expects else self._on_pause(client)
            case Transmit():
                client = self.clients.get(event.connection)
                return () if client is None else self._on_received(client, event.data)

    def _connect(self) -> list[Effect]:
        self.opened += 1
        self.clients[self.opened] = DoorClient(self.opened)
        peer = f"10.0.0.1:{self.opened}"
        opened = Send(self.door, Opened(connection=self.opened, peer=peer))
        hello = Received(connection=self.opened, data=b"HELLO 3\r\n", date_ms=0, turn=self.turn)
        self.clients[self.opened].expects = 1
        return [opened, Send(self.door, hello)]

    def _cut(self, client: DoorClient) -> list[Effect]:
        """Cut a connection, and let its client begin anew on another one."""
        del self.clients[client.connection]
        report = self._report(client, Step.LEAVES)
        gone = Send(self.door, Disconnected(connection=client.connection))
        return [report, gone, *(() if self.finishing else self._connect())]

    def _pause(self, client: DoorClient, most_ms: int = PAUSE_MS_MAX) -> Wake:
        return Wake(self.random.randint(1, most_ms), DoorPause(connection=client.connection))

    def _report(self, client: DoorClient, step: Step, ttl_ms: int = 0) -> Send:
        report = ClientReport(step=step, lock=client.lock, token=client.token, ttl_ms=ttl_ms)
        return Send(self.address, report)

    def _send(self, client: DoorClient, *commands: list[bytes]) -> list[Effect]:
        """Send commands in one piece; now and then the connection is cut with it."""
        self.turn += 1
        client.expects += len(commands)
        data = b"".join(map(encoded, commands))
        received = Received(connection=client.connection, data=data, date_ms=0, turn=self.turn)
        cut = self._cut(client) if self.random.random() < CUT_SHARE else []
        return [Send(self.door, received), *cut]

    def _on_pause(self, client: DoorClient) -> list[Effect]:
        if client.doing is Doing.LISTENING:  # For long enough.
            return self._end(client)
        return self._go_on(client)

    def _go_on(self, client: DoorClient) -> list[Effect]:
        if client.doing is Doing.PAUSING:
            client.lock = self.random.choice(self.locks)
            if self.random.random() < READ_SHARE:
                client.doing = Doing.LOOKING
                return self._send(client, [b"GET", client.lock.encode()])
            client.token = f"{self.address} {self.random.getrandbits(40):x}".encode()
            client.forces = self.random.random() < FORCE_SHARE
            client.counts, client.times = self.random.random() < COUNT_SHARE, 0
            return self._enter(client) if client.counts else self._set(client)
        chance = self.random.random()
        key, token = client.lock.encode(), client.token
        if chance < READ_SHARE:
            client.doing = Doing.READING
            return self._send(client, [b"GET", key], [b"LOCK.FENCE", key])
        if chance < READ_SHARE + EXTEND_SHARE:
            client.doing, client.ttl_ms = Doing.EXTENDING, self.random.choice(TTL_MS)
            ttl = str(client.ttl_ms).encode()
            asks = self._report(client, Step.ASKS, client.ttl_ms)
            extend = [EXTEND, b"1", key, token, ttl]
            renew = [RENEW, b"1", key, ttl, token]
            return [asks, *self._send(client, [b"EVAL", *(renew if client.counts else extend)])]
        if client.counts:
            return self._leave(client)
        client.doing = Doing.RELEASING
        release = [b"EVAL", RELEASE, b"1", key, token]
        twice = self.random.random() < TWICE_SHARE
        leaves = self._report(client, Step.LEAVES)
        return [leaves, *self._send(client, *([release, release] if twice else [release]))]

    def _set(self, client: DoorClient) -> list[Effect]:
        client.doing, client.ttl_ms = Doing.SETTING, self.random.choice(TTL_MS)
        ttl = str(client.ttl_ms).encode()
        command = [b"SET", client.lock.encode(), client.token, b"PX", ttl]
        step = Step.FORCES if client.forces else Step.ASKS
        asks = self._report(client, step, client.ttl_ms)
        return [asks, *self._send(client, command if client.forces else [*command, b"NX"])]

    def _enter(self, client: DoorClient) -> list[Effect]:
        """Hold the key, once more if it is held."""
        client.doing, client.ttl_ms = Doing.SETTING, self.random.choice(TTL_MS)
        ttl = str(client.ttl_ms).encode()
        asks = self._report(client, Step.ASKS, client.ttl_ms)
        enter = [b"EVAL", ENTER, b"1", client.lock.encode(), ttl, client.token]
        return [asks, *self._send(client, enter)]

    def _leave(self, client: DoorClient) -> list[Effect]:
        """End one hold; now and then that is sent twice."""
        last = client.times == 1
        client.doing = Doing.RELEASING if last else Doing.LEAVING
        client.ttl_ms, client.unlocked = self.random.choice(TTL_MS), b""
        receipt = (
            f"redisson_unlock_latch:{{{client.lock}}}:{self.random.getrandbits(64):x}".encode()
        )
        keys = [b"3", client.lock.encode(), b"channel", receipt]
        ttl = str(client.ttl_ms).encode()
        leave = [b"EVAL", LEAVE, *keys, b"0", ttl, client.token, b"PUBLISH", RECEIPT_MS]
        report = self._report(client, Step.LEAVES if last else Step.LEAVES_ONE, client.ttl_ms)
        twice = self.random.random() < TWICE_SHARE
        return [report, *self._send(client, *([leave, leave] if twice else [leave]))]

    def _listen(self, client: DoorClient) -> list[Effect]:
        """Wait for the message that the key is free, and a while longer than that takes."""
        client.doing = Doing.LISTENING
        pause = self._pause(client, WAIT_MS_MAX)
        if client.channel:
            return [pause]
        client.channel = f"redisson_lock__channel:{{{client.lock}}}".encode()
        sent = self._send(client, [b"SUBSCRIBE", client.channel])
        client.expects = 0  # What comes is no reply.
        return [*sent, pause]

    def _on_received(self, client: DoorClient, data: bytes) -> Effects:
        client.received += data
        effects: list[Effect] = []
        while (found := reply_in(client.received)) is not None:
            reply, rest = found
            pushed = client.received[: len(client.received) - len(rest)]
            client.received = rest
            if reply.startswith(b">"):
                if client.doing is Doing.LISTENING and b"\r\nmessage\r\n" in pushed:
                    effects += [Observe("door.notified"), *self._enter(client)]
                continue
            client.expects -= 1
            effects += self._on_reply(client, reply)
        return effects

    def _on_reply(self, client: DoorClient, reply: bytes) -> list[Effect]:
        """Go on after a reply, of which the first line is ``reply``."""
        doing = client.doing
        if reply.startswith(b"-"):
            effects: list[Effect] = [Observe("door.refused")]
            if doing is Doing.EXTENDING:  # It may be extended, and is not relied on.
                client.doing = Doing.RELEASING
            return [*effects, *self._end(client)]
        if client.counts and doing in (Doing.SETTING, Doing.LEAVING, Doing.RELEASING):
            return self._on_counted(client, reply)
        match doing:
            case Doing.SETTING | Doing.EXTENDING if reply in (b"+OK", b":1"):
                return self._hold(client, "door.enters")
            case Doing.SETTING if not client.forces and self.random.random() < WAIT_SHARE:
                client.doing = Doing.WAITING
                signal = client.lock.replace(PREFIX, "lock-signal:", 1).encode()
                seconds = f"{self.random.randint(1, WAIT_MS_MAX) / 1000:.3f}".encode()
                return self._send(client, [b"BLPOP", signal, seconds])
            case Doing.WAITING if reply == b"*2":
                return [Observe("door.granted"), *self._set(client)]
            case Doing.READING:
                if client.expects:
                    return []
                client.doing = Doing.HOLDING
                return [self._pause(client)]
            case Doing.RELEASING:
                deleted = [self._report(client, Step.DELETED)] if reply == b":1" else []
                return [*deleted, *self._end(client)]
            case _:
                return self._end(client)

    def _on_counted(self, client: DoorClient, reply: bytes) -> list[Effect]:
        """Go on after a reply of Redisson's lock or unlock."""
        if client.doing is Doing.SETTING and reply == b"_":
            client.times += 1
            return self._hold(client, "door.again" if client.times > 1 else "door.enters")
        if client.doing is Doing.SETTING:
            waits = client.channel or self.random.random() < WAIT_SHARE
            return self._listen(client) if waits and not client.times else self._end(client)
        differs = client.unlocked not in (b"", reply)
        client.unlocked = reply
        report: list[Effect] = [self._report(client, Step.DIFFERS)] if differs else []
        if client.expects:
            return report
        if client.doing is Doing.RELEASING or reply != b":0":
            return [*report, *self._end(client)]
        client.times -= 1
        return [*report, *self._hold(client, "door.leaves")]

    def _hold(self, client: DoorClient, counter: str) -> list[Effect]:
        client.doing = Doing.HOLDING
        entered: list[Effect] = [self._report(client, Step.ENTERS), Observe(counter)]
        if counter == "door.enters" and client.counts and self.random.random() < AGAIN_SHARE:
            return [*entered, *self._enter(client)]
        return [*entered, self._pause(client, client.ttl_ms // (2 if client.counts else 1))]

    def _end(self, client: DoorClient) -> list[Effect]:
        if client.expects:
            return []
        client.doing = Doing.PAUSING
        leaves: list[Effect] = [self._report(client, Step.LEAVES), self._pause(client)]
        if client.channel:
            client.channel = b""
            ends = self._send(client, [b"UNSUBSCRIBE"])
            client.expects = 0
            return [*ends, *leaves]
        return leaves


def encoded(command: list[bytes]) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in command)
    return b"*%d\r\n%s" % (len(command), parts)


def reply_in(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the first line of a complete reply, and the bytes after it; None if there is none."""
    line, end, rest = data.partition(b"\r\n")
    if not end:
        return None
    size = int(line[1:]) * (2 if line[:1] == b"%" else 1) if line[:1] in b"$*>%" else -1
    if line[:1] == b"$" and size >= 0:
        return (line, rest[size + 2 :]) if len(rest) >= size + 2 else None
    for _ in range(size if line[:1] in b"*>%" else 0):
        item = reply_in(rest)
        if item is None:
            return None
        _, rest = item
    return line, rest


def door_roles(context: NodeContext, locks: tuple[str, ...]) -> tuple[Spawn, ...]:
    door, sockets = (address_of(context.node, role) for role in ("redis", "redis-sockets"))
    clients = {
        "door": door,
        "locks": tuple(map(key_named, locks)),
        "random": Random(f"{context.boot}/redis"),
    }
    return (
        Spawn(door, RedisDoor, {"node": context.node, "sockets": sockets}),
        Spawn(sockets, DoorClients, clients),
    )


class RedisJudge(LockJudge):
    """Judges the locks of one run as `LockJudge` does, and the clients of the doors with them.

    - Mutual exclusion: no client of a door relies on a key, from the reply until it deletes it or
      until its time is over by true time, while another one or a native user does.
    - Deletes: of one hold, one compare-and-delete at most takes effect.
    - Reads: see `TableReplay.judge_read`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.now = 0
        self.commands: dict[RequestKey, KeysRequest] = {}
        """The requests of doors that members have received."""
        self.noted: set[RequestKey] = set()
        """Those with an outcome in the log."""
        self.asked: dict[bytes, tuple[int, bool]] = {}
        """The time until which the last request of each token lets it rely on its key (ns), and
        whether it is by force."""
        self.until: dict[str, int] = {}
        """The time until which the client of a door relies on a key (ns)."""
        self.tokens: dict[str, bytes] = {}
        self.deleted: set[bytes] = set()
        self.taking: dict[str, int] = {}
        """By lock, the fence of the last hold that was taken by force."""
        self.taken: dict[str, dict[int, int]] = defaultdict(dict)
        """By lock, the fence of each hold that was taken by force, and that of the next hold."""
        self.tokens_taken: set[bytes] = set()
        """The tokens of clients of doors whose holds were taken by force."""
        self.miscounted: set[bytes] = set()
        """The tokens whose clients may count a hold that is over."""
        self.reading: dict[tuple[str, int], tuple[tuple[str, ...], int]] = {}
        """The keys of reads in flight, by node and number, and the slot that was known then."""
        self.slots: dict[int, int] = {}
        """The slot in which the log first has each fence of a key."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        self.now = delivered.time
        event = delivered.event
        match event:
            case KeysRequest() if event.session:
                self.commands.setdefault(event.key, event)
            case SlotOutcomes():
                self._note_slot(event)
            case ReadKeys() if role_of(delivered.to) == "session":
                self.reading[delivered.node, event.request] = event.keys, self.replay.floor
            case KeysChanged() if role_of(delivered.to) == "redis":
                self.replay.knows(max(self.slots.get(one.fence, -1) for one in event.keys))
            case KeysRead() if role_of(delivered.to) == "redis":
                self._read(delivered.node, event)
            case _:
                pass
        for report in sent(effects, ClientReport):
            self._step(delivered, report)
        super().handled(delivered, effects)

    def may_be_inside(self, hold: JudgedHold) -> bool:
        if node_of(hold.contender) in self.members:
            return self.now < self.until[hold.lock]
        return super().may_be_inside(hold)

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        """Let a native user enter, unless its lock was taken by force before the grant came.

        The fences of a hold that its client retains are between its first and the next of the lock.
        """
        taken = self.taken[granted.lock].items()
        if any(first <= granted.fence < after for first, after in taken):
            self.wants.pop(delivered.to, None)
        else:
            super()._enter(delivered, granted)

    def left(self, client: str) -> None:
        """End the holds of a client that dies. The clients of a door outlive its node."""
        kept = {lock: hold for lock, hold in self.inside.items() if client in self.members}
        super().left(client)
        self.inside.update(kept)

    def _note_slot(self, slot: SlotOutcomes) -> None:
        for outcome in slot.outcomes:
            if isinstance(outcome, KeysChanged):
                self._note_force(outcome)
                for one in outcome.keys:
                    self.slots.setdefault(one.fence, slot.slot)
            elif isinstance(outcome, Evicted):
                self.taking[outcome.lock] = outcome.fence
                self.tokens_taken.add(outcome.holder.owner.encode())

    def _note_force(self, changed: KeysChanged) -> None:
        """Let the former holder of a key that was taken by force be outside."""
        command = self.commands.get(changed.key)
        if command is None or changed.key in self.noted:
            return
        self.noted.add(changed.key)
        for name, one in zip(command.keys, changed.keys, strict=True):
            if one.changed and one.state in {KeyState.OTHER, KeyState.NATIVE}:
                self.inside.pop(name, None)
                self.taken[name][self.taking[name]] = one.fence

    def _step(self, delivered: Delivery, report: ClientReport) -> None:
        lock, token = report.lock, report.token
        match report.step:
            case Step.ASKS | Step.FORCES | Step.LEAVES_ONE:
                lasts = report.ttl_ms * NS_PER_MS * (PPM - 2 * DRIFT_PPM) // PPM
                self.asked[token] = delivered.time + lasts, report.step is Step.FORCES
                if self.tokens.get(lock) == token:  # It may be for a shorter time than before.
                    self.until[lock] = min(self.until[lock], delivered.time + lasts)
                if report.step is Step.LEAVES_ONE and token in self.miscounted:
                    self._leave_key(
                        lock, token
                    )  # Until the reply says that it still holds the key.
            case Step.ENTERS:
                self.grants += 1
                self._enter_key(delivered, lock, token)
            case Step.LEAVES:
                self._leave_key(lock, token)
            case Step.DELETED:
                if token in self.deleted:
                    raise ViolationError(f"deletes: {token!r} was deleted twice")
                self.deleted.add(token)
            case Step.DIFFERS:
                raise ViolationError(f"once: an unlock by {token!r} was repeated, with two replies")

    def _leave_key(self, lock: str, token: bytes) -> None:
        if self.tokens.get(lock) == token:
            self.inside.pop(lock, None)
            del self.tokens[lock]

    def _enter_key(self, delivered: Delivery, lock: str, token: bytes) -> None:
        until, forces = self.asked[token]
        other = self.inside.get(lock)
        mine = self.tokens.get(lock) == token
        if until <= delivered.time or (mine and self.until[lock] <= delivered.time):
            self.miscounted.add(token)
        if until <= delivered.time or token in self.tokens_taken:
            return  # Its hold was over before the reply came.
        excludes = other is not None and not mine and not forces and self.clocks_true
        if excludes and other is not None and self.may_be_inside(other):
            raise ViolationError(
                f"mutual exclusion: {token!r} holds {lock} while {other.contender} does, since "
                f"{other.since / NS_PER_MS:.3f} ms"
            )
        self.inside[lock] = JudgedHold(delivered.to, lock, 0, delivered.time, "", 0)
        self.until[lock], self.tokens[lock] = until, token

    def _read(self, node: str, read: KeysRead) -> None:
        keys, floor = self.reading.pop((node, read.request), ((), 0))
        seen: dict[tuple[str, str], Any] = dict.fromkeys((name, "") for name in keys)
        seen |= {(one.key, ""): one.value for one in read.keys if not one.native}
        self.replay.judge_read(node, floor, read, seen)


REDIS_DOORS = Workload(RedisLock, RedisJudge, retains=True, doors=door_roles)
