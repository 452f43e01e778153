"""Reads of a replica, which wait until its state is provably fresh enough.

A read is never put into the log. It looks at the state of one replica, and the question is what
that state may lack. There are three kinds:

- *linearizable*: it sees everything that was acknowledged to anybody before it was sent;
- *local*, with a maximum age: it sees everything decided at least that long ago;
- *watched*: a local read that is answered once its object has changed.

Nothing here is estimated. Each reply rests on a proof that reads one clock only, and assumes
neither the rate of another clock nor the delay of a message. Only the lease assumes a rate: the
failure detector keeps it shorter than the promises behind it.

How a read is answered
----------------------

::

    kind          on          answered at once if            else waits for
    linearizable  the leader  settled, and the lease holds   a heartbeat sent after the read that
                                                             a majority answers: ConfirmLease,
                                                             then LeaseHeld
    linearizable  a follower  never                          ReadIndexReached from the leader, and
                                                             then until that slot is applied
    local         the leader  settled; the age counts from   the next LeaseHeld
                              the last confirmed heartbeat
                              (0 while the lease holds)
    local         a follower  `Freshness` proves the age     the next Fresh, for ``age_wait_ms``;
                                                             then it is refused

On the leader
-------------

A leader knows all that it decided itself: its commander sends `Decided` here before any client
learns of it. Two things may be missing.

- What *earlier* leaders decided. Phase one found all of it, but it may not be applied. It lies
  before the opening slot, the first that this leader filled itself; when that one is applied, the
  state is *settled*.
- What a *later* leader decided, if there is one. There is none at an instant at which a majority
  still promised to follow this one. While the lease holds, that is so. Without a lease, a heartbeat
  that is sent after the read arrived shows it, once a majority has answered: each of them had
  promised nothing higher at some time after the read was sent. One such round serves all reads that
  wait.

On a follower
-------------

A follower sends the leader `ReadIndex`. The leader makes sure of the same two things and returns
the first slot that it has not applied; whoever has applied all before that slot has what was
acknowledged before the request. One request is under way at a time, and serves all reads that came
before it was sent; later ones wait for the next. It is repeated after ``again_ms``, and a new
leader is asked anew. Numbers begin at random in each life, so no reply to an earlier life
counts.

The age of a follower's state
-----------------------------

Heartbeats say which replies their leader has received, and which heartbeat a majority has answered.
From two heartbeats an acceptor concludes: at some instant of its own clock, no node knew a decided
slot at or beyond a certain slot (`StalenessBound` has the argument). It sends that to its replica
as `Fresh`, which counts once the replica has applied all before it (`Freshness`). The age is the
time since that instant. A node that is no member receives no heartbeats: it asks other nodes how
old their states are (`locator.py`).

Watches
-------

Objects that can be watched (`WATCHED_KINDS` in ``api/changes.py``) have a history: the table keeps
their last changes (``table/history.py``), each under a version from one counter. A watch is a read
that waits. The proxy passes `ReadChanges` to the replica of its node as a `ReadMachine` that names
the object (``watched``). If nothing has changed, the read is parked here, under the prefix of the
keys that it is about. After each slot, `Machine.changed_since` names the objects that have changed,
and `Machine.changed_keys` their keys. The reads under the beginnings of these keys fall due; the
others have seen this change, which is not about them. The replica looks up at most `DUE_MAX` reads
in one step, the others after a pause. The client sends the next request with the version of the
reply. So no state of a watch is replicated, and a change costs only its watchers.

Invariants:
    seen-or-due  No key of a parked read has changed after the read's version and up to ``seen``,
        unless the read is due. One that is due is looked up from what was seen before.

Bounds
------

`WAITING_READS_MAX` reads of each kind wait; a linearizable one is dropped after `READ_MS_MAX`
without a reply, and the proxy's client asks again. A local read is refused, with the age that is
known, after one heartbeat and its replies: a client that accepts an older state can say so.

This keeps reads-are-fresh. Source: D. Ongaro: Consensus: Bridging Theory and Practice (2014),
sections 6.4 (read index, lease), for the leader; the rest is ours.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.changes import CHANGES_WATCH_MS, WATCH_AGE_MS, ChangesRead, ReadChanges
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.fault import reading
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, ms_between, node_of
from fencelock.actors.paxos.config import LogBounds, LogConfig, monitor_of, replica_of
from fencelock.actors.paxos.event import (
    AgeCheck,
    ConfirmLease,
    Fresh,
    LeaseHeld,
    MachineRead,
    ReadAgain,
    ReadMachine,
    ServeDue,
    WatchCheck,
)
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.wire import NO_BALLOT, Heartbeat, ReadIndex, ReadIndexReached

WAITING_READS_MAX = 10_000
"""Reads of each kind that may wait on a node; more are dropped."""

DUE_MAX = 200
"""Watched reads that are looked up in one step: some milliseconds."""

READ_MS_MAX = 15_000
"""A linearizable read that was not confirmed for this long is dropped (ms)."""

NOTHING_PROVEN = -1
"""The age of the state of a node that cannot bound it (ms)."""

BEATS_MAX = 64
"""Heartbeats whose replies may still prove something; see `failure_detector.ASKED_MAX`."""

PROOFS_MAX = 64
"""Proofs that wait for slots to be applied; a replica that lags further uses the older ones."""


ReadEvent = (
    ReadMachine
    | ReadIndex
    | ReadIndexReached
    | Fresh
    | ReadAgain
    | AgeCheck
    | WatchCheck
    | ServeDue
)


class Reads:
    """Answers reads at once if it can, otherwise when they are confirmed or have timed out.

    The header of this module explains on which proofs. One round of heartbeats, or one `ReadIndex`,
    serves all reads that wait for it.

    Args:
        node: where it is.
        machine: the state machine to read.
        bounds: the views, with the first slot that is not applied.
        first_number: a random start, so that no earlier life of this node used a `ReadIndex` near
        it.

    """

    def __init__(self, node: str, machine: Machine, bounds: LogBounds, first_number: int) -> None:
        self.node = node
        self.machine = machine
        self.bounds = bounds
        self.config = bounds.config
        timing = self.config.timing
        self.again_ms = timing.heartbeat_ms + 2 * timing.reply_ms
        """Timeout of a `ReadIndex` before it is sent again (ms): the leader may have to ask first,
        with its next heartbeat."""
        self.age_wait_ms = timing.heartbeat_ms + timing.reply_ms
        """Maximum wait of a local read for a newer proof (ms): a heartbeat, its replies, the next
        one."""
        self.applied_at = Instant(0)
        """The time at which the last slot was applied."""
        self.waiting = False
        """Whether something may wait for slots to be applied: if not, `progress` has nothing to do.
        """
        self.opening: int | None = None
        """While this node leads, the first slot that it fills itself."""
        self.lease: LeaseHeld | None = None
        self.confirming: Instant | None = None
        """The time at which a heartbeat was requested that no majority has answered yet."""
        self.freshness = Freshness()
        self.indexes = ReadIndexes(node, first_number)
        self.linear: list[Read] = []
        """Linearizable reads without a read index, in the order of arrival."""
        self.local: list[Read] = []
        """Reads of the local state that need a newer proof."""
        self.again = False
        """Whether the `ReadAgain` timer runs."""
        self.parked = ParkedReads()
        self.seen = 0
        """The version up to which their changes are known: see seen-or-due."""
        self.checking = False
        """Whether the `WatchCheck` timer runs."""
        self.serving = False
        """Whether the `ServeDue` timer runs."""
        self.last: tuple[int, Event, Event] | None = None
        """The last query and its reply, and the first slot that was not applied then: many queries
        are about one lock."""

    def handle(self, sender: Address, event: ReadEvent, now: Instant) -> Effects:
        self.waiting = True
        match event:
            case ReadMachine():
                return self._on_read_machine(sender, event, now)
            case Fresh():
                self.freshness.take(event, self.config.applied)
                return self._serve(now) if self.local else ()
            case ReadAgain():
                return self._on_again(now)
            case AgeCheck():
                return self._on_age_check(now)
            case WatchCheck():
                return self._on_watch_check(now)
            case ServeDue():
                self.serving = False
                return self._serve_due(now)
            case ReadIndex() | ReadIndexReached():
                node = node_of(sender)
                if sender != replica_of(node) or node not in self.config.nodes:
                    return (Observe("paxos.stranger_reads"),)
                if isinstance(event, ReadIndex):
                    return self._on_read_index(sender, event, now)
                return self._on_read_index_reached(sender, event, now)

    def leased(self, leased: LeaseHeld, now: Instant) -> Effects:
        """Note the lease, and the last round that a majority answered."""
        self.lease = leased
        if self.confirming is not None and leased.confirmed >= self.confirming:
            self.confirming = None
        return [*self._serve(now), *self._request(now)] if self._is_waited_for() else ()

    @property
    def settled(self) -> bool:
        """Whether this node leads and has applied all that earlier leaders decided."""
        return self.opening is not None and self.config.applied > self.opening

    def progress(self, now: Instant) -> list[Effect]:
        """Answer the reads that waited for the slots applied now."""
        if self.freshness.pending:
            self.freshness.progress(self.config.applied)
        served = self._serve_parked(now) if self.parked else []
        waited_for = self._is_waited_for()
        self.waiting = waited_for or bool(self.freshness.pending or self.parked)
        return [*served, *self._serve(now), *self._request(now)] if waited_for else served

    def follow(self, leader: str, now: Instant) -> list[Effect]:
        """Note which node leads: another, this one or, if it is empty, none that is known."""
        if leader == self.indexes.leader:
            return []
        if leader != self.node:
            self.opening, self.lease, self.confirming = None, None, None
        self.linear = self.indexes.turn_to(leader) + self.linear
        return self._request(now)

    def _on_read_machine(self, client: Address, read_request: ReadMachine, now: Instant) -> Effects:
        age_ms, watched = read_request.age_ms, read_request.watched
        read = Read(client, read_request.number, read_request.query, now, age_ms, watched)
        if watched:
            return self._read_watched(read, now)
        if age_ms is not None:
            return self._read_local(read, now)
        if self._is_sure(now):
            return [self._reply(read, 0, now)]
        if len(self.linear) + len(self.indexes) >= WAITING_READS_MAX:
            return (Observe("paxos.reads_full"),)
        self.linear.append(read)
        return self._request(now)

    def _on_read_index(self, replica: Address, request: ReadIndex, now: Instant) -> Effects:
        """Send another member's replica its read index, as soon as that is known."""
        if not self.settled:
            return (Observe("paxos.read_index_elsewhere"),)  # It asks again, perhaps another node.
        if self._is_sure(now):
            slot = self.config.applied
            return (Send(replica, ReadIndexReached(number=request.number, slot=slot)),)
        self.indexes.admit(replica, request.number, now)
        return self._request(now)

    def _on_read_index_reached(
        self, replica: Address, reached: ReadIndexReached, now: Instant
    ) -> Effects:
        what = "that a read needs all slots before"
        if refused := self.bounds.refuse_slot(replica, what, reached.slot, now):
            return refused
        if not self.indexes.take(replica, reached):
            return (Observe("paxos.read_index_ignored"),)
        return [*self._serve(now), *self._request(now)]

    def _on_again(self, now: Instant) -> Effects:
        """Ask again, and drop reads that have waited too long."""
        self.again = False
        before = len(self.linear) + len(self.indexes)
        self.linear = [read for read in self.linear if _is_young(read, now)]
        self.indexes.drop(lambda read: not _is_young(read, now))
        self.confirming = None
        gone = before - len(self.linear) - len(self.indexes)
        marks = [Observe("paxos.reads_dropped", gone)] if gone else []
        return [*marks, *self.indexes.repeat(), *self._request(now)]

    def _on_age_check(self, now: Instant) -> Effects:
        """Answer the local reads that have waited for long enough."""
        effects: list[Effect] = self._serve(now)
        late = [read for read in self.local if ms_between(read.at, now) >= self.age_wait_ms]
        self.local = [read for read in self.local if ms_between(read.at, now) < self.age_wait_ms]
        return [*effects, *(self._refuse(read, now) for read in late)]

    def _read_local(self, read: Read, now: Instant) -> Effects:
        reply = self._reply_local(read, now)
        if reply is not None:
            return [reply]
        if len(self.local) >= WAITING_READS_MAX:
            return [self._refuse(read, now), Observe("paxos.reads_full")]
        self.local.append(read)
        return [Wake(self.age_wait_ms, AgeCheck())]

    def _read_watched(self, read: Read, now: Instant) -> Effects:
        """Answer a read if its object has changed, or let it wait for a change."""
        if _is_news(self._look_up(read.query)):
            return [self._reply(read, self.age_ms(now), now)]
        if not self.parked:
            self.seen, _ = self.machine.changed_since(self.seen)
        self.parked.add(read)
        if self.checking:
            return ()
        self.checking = True
        return [Wake(READS_CHECK_MS, WatchCheck())]

    def _serve_parked(self, now: Instant) -> list[Effect]:
        before = self.seen
        self.seen, changed = self.machine.changed_since(before)  # seen-or-due
        if changed is None:
            self.parked.fall_due(self.parked.of(None), before)
        else:
            for name in changed:
                if name in self.parked.by_object:
                    keys = self.machine.changed_keys(name, before)
                    self.parked.fall_due(self.parked.of(name, keys), before)
        return self._serve_due(now)

    def _serve_due(self, now: Instant) -> list[Effect]:
        """Look up the next reads that are due, unless a pause has begun."""
        if self.serving or not self.parked.due:
            return []
        age_ms = self.age_ms(now)
        effects: list[Effect] = []
        for read in self.parked.take_due(DUE_MAX):
            if _is_news(self._look_up(read.query)) or _is_late(read, now):
                self.parked.end(read)
                effects.append(self._reply(read, age_ms, now))
            else:
                self.parked.park(read)
        if self.parked.due:
            self.serving = True
            effects.append(Wake(1, ServeDue()))
        return effects

    def _on_watch_check(self, now: Instant) -> Effects:
        """Answer the reads that have waited for long enough; refuse all if the state is too old."""
        age_ms = self.age_ms(now)
        self.parked.fall_due(self.parked.late(now), self.seen)
        effects = self._serve_due(now)
        if age_ms == NOTHING_PROVEN or age_ms > WATCH_AGE_MS:
            for read in self.parked.take_all():
                effects.append(self._refuse(read, now))
        self.checking = bool(self.parked)
        return [*effects, Wake(READS_CHECK_MS, WatchCheck())] if self.checking else effects

    def _reply_local(self, read: Read, now: Instant) -> Send | None:
        age_ms = self.age_ms(now)
        if age_ms == NOTHING_PROVEN or read.age_ms is None or age_ms > read.age_ms:
            return None
        return self._reply(read, age_ms, now)

    def age_ms(self, now: Instant) -> int:
        """Return an upper bound on the state's age (ms), `NOTHING_PROVEN` if there is none."""
        if self._is_sure(now):
            return 0
        if self.settled and self.lease is not None:
            return ms_up(self.lease.confirmed, now)
        return self.freshness.age_ms(now)

    def _is_sure(self, now: Instant) -> bool:
        """Return whether everything decided anywhere is applied here."""
        return self.settled and self.lease is not None and now < self.lease.until

    def _reply(self, read: Read, age_ms: int, now: Instant) -> Send:
        machine_read = MachineRead(
            number=read.number,
            reply=self._look_up(read.query),
            slot=self.config.applied,
            age_ms=age_ms,
            quiet_ms=ms_between(self.applied_at, now),
        )
        return Send(read.client, machine_read)

    def _look_up(self, query: Event) -> Event | Fault:
        """Return the machine's reply to ``query``, or the fault if a bug of ours raised."""
        last, applied = self.last, self.config.applied
        if last is None or last[0] != applied or last[1] != query:
            reply = reading("a read of the table", lambda: self.machine.read(query))
            if isinstance(reply, Fault):
                return reply
            self.last = last = applied, query, reply
        return last[2]

    def _refuse(self, read: Read, now: Instant) -> Send:
        machine_read = MachineRead(
            number=read.number, reply=None, slot=self.config.applied, age_ms=self.age_ms(now)
        )
        return Send(read.client, machine_read)

    def _is_waited_for(self) -> bool:
        return bool(self.linear or self.local or len(self.indexes))

    def _serve(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        effects += [self._reply(read, 0, now) for read in self.indexes.pop(self.config.applied)]
        if self.settled and self.lease is not None:
            # Reads up to then are confirmed; while the lease holds, all of them are.
            until = now if self._is_sure(now) else self.lease.confirmed
            effects += [self._reply(read, 0, now) for read in self.linear if read.at <= until]
            self.linear = [read for read in self.linear if read.at > until]
            effects += self.indexes.pass_on(until, self.config.applied)
        waiting, self.local = self.local, []
        for read in waiting:
            reply = self._reply_local(read, now)
            if reply is None:
                self.local.append(read)
            else:
                effects.append(reply)
        return effects

    def _request(self, now: Instant) -> list[Effect]:
        """Request what linearizable reads wait for, unless that is under way."""
        effects: list[Effect] = []
        if self.indexes.leader == self.node:
            if self.settled and self.confirming is None and (self.linear or self.indexes.asked):
                self.confirming = now
                effects.append(Send(monitor_of(self.node), ConfirmLease()))
        elif self.linear and self.indexes.is_free():
            reads, self.linear = self.linear, []
            effects.append(self.indexes.ask(reads))
        if not self.again and (self.linear or len(self.indexes)):
            self.again = True
            effects.append(Wake(self.again_ms, ReadAgain()))
        return effects


READS_CHECK_MS = 1_000
"""Interval between two checks of the waiting reads (ms)."""

ReadKey = tuple[Address, int]
"""A role and the number of its read."""


class Read(Struct, frozen=True):
    """A read of the machine by another role of this node."""

    client: Address
    number: int
    query: Event
    at: Instant
    """The time at which it was requested."""
    age_ms: int | None
    watched: str = ""
    """The object whose change it waits for; empty for a read that does not wait for one."""


class ParkedReads:
    """The reads that wait for a change."""

    def __init__(self) -> None:
        self.by_object: dict[str, dict[str, dict[ReadKey, Read]]] = {}
        """Those that are not due, by object and by the prefix of the keys that they are about."""
        self.due: dict[ReadKey, int] = {}
        """Those to be looked up, in the order of their turns, and the version seen before that."""
        self._order: OrderedDict[ReadKey, Read] = OrderedDict()
        """All reads, in the order of arrival."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, read: Read) -> None:
        """Add a read that has to wait, in place of an earlier one with its number."""
        key = read.client, read.number
        if (known := self._order.pop(key, None)) and self.due.pop(key, None) is None:
            self._take_out(known)
        self.park(read)

    def park(self, read: Read) -> None:
        """Let a read wait: a new one, or one that `take_due` returned, which keeps its place."""
        key = read.client, read.number
        self.by_object.setdefault(read.watched, {}).setdefault(_prefix_of(read), {})[key] = read
        self._order[key] = read

    def of(self, watched: str | None, keys: Iterable[str] | None = None) -> list[Read]:
        """Return the reads about ``keys`` of an object, all for None, that are not due.

        Its cost follows the length of the keys, however many reads are about other ones.
        """
        if watched is None:
            return [read for name in self.by_object for read in self.of(name)]
        by_prefix = self.by_object[watched]
        if keys is None:
            prefixes: Iterable[str] = by_prefix
        else:
            starts = (key[:end] for key in keys for end in range(len(key) + 1))
            prefixes = dict.fromkeys(start for start in starts if start in by_prefix)
        return [read for prefix in prefixes for read in by_prefix[prefix].values()]

    def fall_due(self, reads: Iterable[Read], seen: int) -> None:
        """Let ``reads`` be looked up for changes after version ``seen``, unless they are due."""
        for read in reads:
            key = read.client, read.number
            if key not in self.due:
                self.due[key] = seen
                self._take_out(read)

    def take_due(self, most: int) -> list[Read]:
        """Return the first ``most`` reads that are due, with what they have seen in their queries.

        Each of them must then `end` or be parked.
        """
        first = [*islice(self.due, most)]
        return [_after(self._order[key], self.due.pop(key)) for key in first]

    def end(self, read: Read) -> None:
        """Remove a read that `take_due` returned."""
        del self._order[read.client, read.number]

    def take_all(self) -> list[Read]:
        reads = [*self._order.values()]
        self.by_object, self.due, self._order = {}, {}, OrderedDict()
        return reads

    def late(self, now: Instant) -> list[Read]:
        return list(takewhile(lambda read: _is_late(read, now), self._order.values()))

    def _take_out(self, read: Read) -> None:
        by_prefix, prefix = self.by_object[read.watched], _prefix_of(read)
        waiting = by_prefix[prefix]
        del waiting[read.client, read.number]
        if not waiting:
            del by_prefix[prefix]
        if not by_prefix:
            del self.by_object[read.watched]


def _prefix_of(read: Read) -> str:
    return read.query.prefix if isinstance(read.query, ReadChanges) else ""


def _after(read: Read, seen: int) -> Read:
    """Return ``read`` for the changes after version ``seen``, if it is about earlier ones, too."""
    query = read.query
    if not isinstance(query, ReadChanges) or query.after is None or query.after >= seen:
        return read
    return replace(read, query=replace(query, after=seen))


def _is_news(reply: Event | Fault) -> bool:
    """Return whether ``reply`` to a watched read has changes, or the object itself."""
    return not isinstance(reply, ChangesRead) or reply.resync or bool(reply.changes)


def _is_late(read: Read, now: Instant) -> bool:
    return ms_between(read.at, now) >= CHANGES_WATCH_MS


class ReadIndexes:
    """One read index is requested at a time; all reads that came before it wait for it.

    Args:
        node: where it is.
        number: one below the number of the first request.

    """

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.leader = ""
        self.waiting: list[Read] = []
        """Reads whose read index was requested."""
        self.reached: list[tuple[int, Read]] = []
        """Reads that wait until all slots before their read index are applied."""
        self.asked: dict[Address, tuple[int, Instant]] = {}
        """On the leader: the request of each other replica, and its time."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.reached) + len(self.asked)

    def is_free(self) -> bool:
        return bool(self.leader) and self.leader != self.node and not self.waiting

    def ask(self, reads: list[Read]) -> Send:
        """Request a read index for ``reads``, when `is_free`."""
        self.number += 1
        self.waiting = reads
        return Send(replica_of(self.leader), ReadIndex(number=self.number))

    def repeat(self) -> list[Send]:
        if not self.waiting:
            return []
        return [Send(replica_of(self.leader), ReadIndex(number=self.number))]

    def take(self, replica: Address, reached: ReadIndexReached) -> bool:
        """Note the read index of the waiting reads; return whether the message was the reply."""
        known = replica == replica_of(self.leader) and reached.number == self.number
        if not known or not self.waiting:
            return False
        self.reached += [(reached.slot, read) for read in self.waiting]
        self.waiting = []
        return True

    def pop(self, applied: int) -> list[Read]:
        """Return the reads that can be answered once all slots before ``applied`` are applied."""
        if not self.reached:
            return []
        ready = [read for slot, read in self.reached if slot <= applied]
        self.reached = [(slot, read) for slot, read in self.reached if slot > applied]
        return ready

    def turn_to(self, leader: str) -> list[Read]:
        """Follow another leader; return the reads that need a new request."""
        self.leader = leader
        self.asked = {}
        again, self.waiting = self.waiting, []
        return again

    def drop(self, is_old: Callable[[Read], bool]) -> None:
        """Drop the reads of this node that ``is_old`` selects."""
        self.waiting = [read for read in self.waiting if not is_old(read)]
        self.reached = [(slot, read) for slot, read in self.reached if not is_old(read)]

    def admit(self, replica: Address, number: int, now: Instant) -> None:
        """On the leader: let another replica's request wait, in place of its earlier one."""
        if self.asked.get(replica, (number - 1, now))[0] != number:
            self.asked[replica] = (number, now)

    def pass_on(self, until: Instant, applied: int) -> list[Send]:
        """On the leader: answer the requests received up to ``until``."""
        ready = [replica for replica, (_, at) in self.asked.items() if at <= until]
        numbers = [(replica, self.asked.pop(replica)[0]) for replica in ready]
        return [Send(to, ReadIndexReached(number=n, slot=applied)) for to, n in numbers]


class StalenessBound:
    """An acceptor's side: the slots that the heartbeats of one leader prove to be decided.

    Let this acceptor have answered heartbeat ``i`` of ballot ``b`` at ``a`` (by its own
    clock, the first time it did). If heartbeat ``j`` reports that reply as received, ``j``
    was sent after ``a``. If a later one reports that a majority answered ``j`` (or one after
    ``j``), then each of that majority had promised nothing above ``b`` at some time after
    ``a``. Promises never go back, so before ``a`` no majority had accepted anything under a
    ballot above ``b``: everything decided before ``a`` was decided under ``b`` or below.

    - Below ``b``: phase one of ``b`` found it, so it lies before the first slot that
      ``b`` filled itself. A heartbeat lists received replies only once that slot
      is decided, so it lies before the ``committed`` of ``j``.
    - Under ``b``: any node knows of it only through the commander of ``b``, which sent all it knew
      up to the first gap (nothing is applied beyond it) as ``committed`` of ``j``.

    So everything known anywhere to be decided at ``a`` is before the ``committed`` of ``j``.
    Only one clock was read, and no clock rate or message delay was estimated.

    Args:
        node: this member.
        config: the views. Heartbeats report the replies of the members of the newest.

    """

    def __init__(self, node: str, config: LogConfig) -> None:
        self.node = node
        self.config = config
        self.ballot = NO_BALLOT
        self.acked: dict[int, Instant] = {}
        """The time at which each heartbeat was first answered, by number, rising."""
        self.last = 0
        """The last heartbeat in ``acked``; an older one that arrives again proves nothing."""
        self.beats: dict[int, Fresh] = {}
        """The proof that each heartbeat gives once a majority has answered it, by number,
        rising."""

    def take(self, beat: Heartbeat, now: Instant) -> Fresh | None:
        """Take a heartbeat that gets a reply at ``now``; return its proof, if it is one.

        Its ballot is not below the previous one, and its leader was checked.
        """
        if beat.ballot != self.ballot:
            self.ballot, self.last = beat.ballot, 0
            self.acked, self.beats = {}, {}
        self._note(beat, now)
        proven: Fresh | None = None
        for number in list(self.beats):
            if number > beat.confirmed:
                break
            proven = self.beats.pop(number)
        return proven

    def _note(self, beat: Heartbeat, now: Instant) -> None:
        newest = next(reversed(self.beats), 0)
        view = self.config.newest
        members = view.members
        known = beat.view == view.number and len(beat.acked) == len(members)
        if known and self.node in members and beat.number > newest:
            since = self.acked.get(beat.acked[members.index(self.node)])
            if since is not None:
                self.beats[beat.number] = Fresh(since=since, slot=beat.committed)
                if len(self.beats) > BEATS_MAX:
                    del self.beats[next(iter(self.beats))]
        if beat.number > self.last:
            self.last = beat.number
            self.acked[beat.number] = now
            if len(self.acked) > BEATS_MAX:
                del self.acked[next(iter(self.acked))]


class Freshness:
    """A replica's freshness: the instant up to which it has applied everything known anywhere."""

    def __init__(self) -> None:
        self.since: Instant | None = None
        """Everything known anywhere to be decided at this instant (own clock) is applied."""
        self.pending: deque[Fresh] = deque(maxlen=PROOFS_MAX)
        """Proofs that count as soon as their slots are applied; the last few."""

    def take(self, fresh: Fresh, applied: int) -> None:
        """Take a proof; all slots before ``applied`` are applied."""
        if fresh.slot <= applied:
            self._count(fresh)
        else:
            self.pending.append(fresh)

    def progress(self, applied: int) -> None:
        for fresh in [one for one in self.pending if one.slot <= applied]:
            self._count(fresh)
            self.pending.remove(fresh)  # One for a slot that is never reached blocks no other.

    def _count(self, fresh: Fresh) -> None:
        self.since = fresh.since if self.since is None else max(self.since, fresh.since)

    def age_ms(self, now: Instant) -> int:
        """Return an upper bound on the state's age (ms, rounded up), or `NOTHING_PROVEN`."""
        return NOTHING_PROVEN if self.since is None else ms_up(self.since, now)


def _is_young(read: Read, now: Instant) -> bool:
    return now - read.at < READ_MS_MAX * NS_PER_MS


def ms_up(earlier: Instant, later: Instant) -> int:
    """Return the milliseconds from ``earlier`` to ``later``, rounded up, never below 0."""
    return max(0, -((earlier - later) // NS_PER_MS))
