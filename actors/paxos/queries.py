"""Reads of the replicated table for a node's proxy, from the replica of the same node."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.api.backup_message import BackupPart, ReadBackup
from fencelock.actors.api.changes import WATCH_AGE_MS, ChangesRead, ReadChanges
from fencelock.actors.api.message import Contender, Inspect, LockStatus, Reason, refused
from fencelock.actors.api.name import client_of, without_secret
from fencelock.actors.api.query import LockQuery, is_watch
from fencelock.actors.api.request import TableQuery
from fencelock.actors.api.session_message import (
    ListedLock,
    ListedObject,
    ListLocks,
    ListRecords,
    LockList,
    RecordList,
)
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.error import UnavailableError
from fencelock.actors.fault import internal, reading
from fencelock.actors.message import Address, Instant, Message, ms_between, node_of
from fencelock.actors.paxos.event import Export, Exported, MachineRead, ReadMachine, Unreadable
from fencelock.actors.paxos.in_flight import QuorumContact
from fencelock.actors.proxy.backend import Status
from fencelock.actors.proxy.clients import RemoteClients
from fencelock.actors.proxy.queries import NextQueries, PendingQueries, PendingQuery, QueryTurns
from fencelock.actors.table.report import (
    Browse,
    Browsed,
    Changed,
    HolderSeen,
    LockLine,
    LockReport,
    Looked,
    LookUp,
    MachineQuery,
    ReadHistory,
    ReadRecords,
    ReadTable,
    RecordsRead,
    TableRead,
    WaiterSeen,
    page_of,
)

SHOWN_BYTES_MAX = 1 << 19
"""Maximum text of one reply (bytes), half of a frame."""

PAGE_BYTES_MAX = 64 << 10
"""Maximum text of a page of a list (bytes): to make one takes some 3 ms, in which others wait."""

LOCKS_SHOWN_MAX = 100
"""Held locks in a description; `ListLocks` has all of them."""

LOOKS_MAX = 20
"""Maximum number of locks whose waiters are shown."""

READY_AGE_MS = 2_500
"""A node whose state is at most this old (ms) can serve; else a majority may be lost."""

LOOK_AGE_MS = 60_000
"""Maximum age of the state that is shown (ms)."""

DESCRIBE_MS = 500
"""Timeout of a description's queries to the replica (ms); then it does without."""


_Shown = tuple[LockReport, int, Contender | None, tuple[Contender, ...], tuple[Contender, ...]]
"""A report, how long it has been true (ms), and its holder, its holders and its waiters as clients
see them."""


class Queries:
    """The queries of clients. One that is sent again is forwarded once.

    Args:
        node: this node.
        replica: the replica of the same node.
        contact: measures how long the log has been silent.
        clients: knows the quota of a client.

    """

    def __init__(
        self, node: str, replica: Address, contact: QuorumContact, clients: RemoteClients
    ) -> None:
        self.node = node
        self.replica = replica
        self.contact = contact
        self.pending = PendingQueries(node, clients)
        self.watches = PendingQueries(node, clients, watches=True)
        """The queries that wait for a change."""
        self.turns = {True: QueryTurns(), False: QueryTurns()}
        """The linearizable queries, which may wait for a majority, and the others."""
        self.ticking = False
        """Whether the `NextQueries` timer runs."""
        self.shown: _Shown | None = None
        """The last report with its texts: replicas return the same report to all clients while the
        lock does not change."""

    def take(self, sender: Address, request: LockQuery, now: Instant) -> Effects:
        """Query the replica, unless the same query is in flight.

        Raises:
            UnavailableError: only another node can answer it.

        """
        if isinstance(request, ReadBackup) and request.node not in ("", self.node):
            raise UnavailableError(f"node {self.node} has no snapshots of {request.node}")
        if is_watch(request):
            watch = self.watches.add(sender, request, now, self.pending.next_number())
            return () if watch is None else [self._asking(watch.number, request)]
        query = self.pending.add(sender, request, now)
        if query is None:
            return ()
        linear = not isinstance(request, ReadBackup) and request.age_ms is None
        query.turns = self.turns[linear]
        if query.turns.enter(query.number, query.owner, now):
            return [self._asking(query.number, request)]
        return self._tick()

    def on_next(self, now: Instant) -> Effects:
        """Send the queries whose turn it is."""
        self.ticking = False
        effects: list[Effect] = []
        for turns in self.turns.values():
            for number in turns.next(now):
                query = self.pending.by_number.get(number)
                if query is None:  # It has timed out.
                    turns.end(number)
                else:
                    effects.append(self._asking(number, query.request))
        return [*effects, *self._tick()] if any(self.turns.values()) else effects

    def _tick(self) -> list[Effect]:
        if self.ticking:
            return []
        self.ticking = True
        return [Wake(1, NextQueries())]

    def _end(self, number: int) -> PendingQuery | None:
        """Remove and return a query that was asked, or None if it is over."""
        return self.pending.end(number) or self.watches.end(number)

    def ask_again(self) -> list[Effect]:
        """Send all queries once more, since the replica did not run when they were sent."""
        pending = (*self.pending.by_number.values(), *self.watches.by_number.values())
        return [
            self._asking(query.number, query.request)
            for query in pending
            if query.turns is None or query.turns.was_asked(query.number)
        ]

    def _asking(self, number: int, request: LockQuery) -> Send:
        """Return what asks this node for the reply to ``request``."""
        watched = ""
        match request:
            case ReadChanges(watched=lock, after=after, prefix=prefix):
                query: MachineQuery = ReadHistory(lock=lock, after=after, prefix=prefix)
                watched = lock if request.waits else ""
            case Inspect():
                query = LookUp(lock=request.lock)
            case ListLocks():
                query = Browse(
                    prefix=request.prefix,
                    after=request.after,
                    most=request.most,
                    unheld=request.unheld,
                )
            case ListRecords():
                query = ReadRecords(kind=request.kind, skip=request.skip, most=request.most)
            case TableQuery():
                query = ReadTable(query=request)
            case ReadBackup():
                export = Export(number=number, slot=request.slot, chunk=request.chunk)
                return Send(self.replica, export)
        read_request = ReadMachine(
            number=number, query=query, age_ms=_age_of(request), watched=watched
        )
        return Send(self.replica, read_request)

    def on_machine_read(self, machine_read: MachineRead, now: Instant) -> Effects:
        """Answer a query, or refuse it with a reason."""
        query = self._end(machine_read.number)
        if query is None:
            return ()
        unread = machine_read.reply
        if isinstance(unread, Unreadable):
            return internal(query.sender, query.request, self.node, unread.fault.error)
        reply = reading("a reply", lambda: self._reply(query, machine_read, now))
        if isinstance(reply, Fault):
            return internal(query.sender, query.request, self.node, reply.error)
        return reply

    def _reply(self, query: PendingQuery, machine_read: MachineRead, now: Instant) -> Effects:
        sender, request = query.sender, query.request
        match machine_read.reply, request:
            case (Looked(report=report), Inspect()):
                return [Send(sender, self._status(report, request, machine_read))]
            case (Browsed(), ListLocks()):
                return [Send(sender, _list(machine_read.reply, request, machine_read))]
            case (RecordsRead(), ListRecords()):
                return [Send(sender, _records(machine_read.reply, request, machine_read))]
            case (Changed(), ReadChanges()):
                return [Send(sender, _changes(machine_read.reply, request, machine_read))]
            case (TableRead(reply=reply), TableQuery()):
                return [
                    Send(
                        sender,
                        reply.at(machine_read.slot, machine_read.age_ms, machine_read.quiet_ms),
                    )
                ]
            case _ if not isinstance(request, ReadBackup) and _age_of(request) is not None:
                known = in_words(machine_read.age_ms)
                text = f"node {self.node}: {known}, at most {_age_of(request)} ms were allowed"
                no = refused(request, Reason.STALE, text)
                return [Send(sender, no), Observe("proxy.stale_read")]
            case _:
                return self._give_up(query, now)

    def on_exported(self, exported: Exported) -> Effects:
        """Answer a request for a part of a backup, or refuse it with a reason."""
        query = self._end(exported.number)
        if query is None:
            return ()
        request, part = query.request, exported.part
        if part is None:
            text = f"node {self.node} has no such part of a backup: {exported.why}"
            return [Send(query.sender, refused(request, Reason.UNAVAILABLE, text))]
        reply = BackupPart(
            node=self.node,
            slot=part.slot,
            time_ms=part.time_ms,
            chunk=part.chunk,
            count=part.count,
            content=part.content,
            session=request.session,
            request=request.request,
        )
        return [Send(query.sender, reply)]

    def end_old(self, now: Instant) -> list[Effect]:
        """End queries that have timed out."""
        ended = (*self.pending.end_old(now), *self.watches.end_old(now))
        return [effect for query in ended for effect in self._give_up(query, now)]

    def _status(self, report: LockReport, inspect: Inspect, machine_read: MachineRead) -> Message:
        quiet_ms = machine_read.quiet_ms
        if self.shown is None or self.shown[0] is not report or self.shown[1] != quiet_ms:
            holder = None if report.holder is None else holder_of(report.holder, quiet_ms)
            shown = shown_of(report, SHOWN_BYTES_MAX, quiet_ms)
            self.shown = report, quiet_ms, holder, *shown
        _, _, holder, holders, waiters = self.shown
        return LockStatus(
            lock=inspect.lock,
            holder=holder,
            waiters=waiters,
            waits_for=(),
            session=inspect.session,
            request=inspect.request,
            slot=machine_read.slot,
            age_ms=machine_read.age_ms,
            permits=report.permits,
            holders=holders,
            left_ms=left_of(report.holder, quiet_ms),
            left=report.left,
            free=report.free,
        )

    def _give_up(self, query: PendingQuery, now: Instant) -> list[Effect]:
        if node_of(query.sender) != self.node:
            return [Observe("proxy.read_unanswered")]
        text = f"nothing read for {ms_between(query.since, now)} ms"
        text = f"{text}: {self.contact.in_words(now)}"
        return [Send(query.sender, refused(query.request, Reason.UNAVAILABLE, text))]


class TableStatus:
    """The table's part of a node's description: the locks, and the age of this state.

    Args:
        queries: gives the queries to the replica their numbers.

    """

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.since = Instant(0)
        self.browsing = 0
        """The number of the query that lists the locks, 0 once it is answered."""
        self.browsed: MachineRead | None = None
        self.lines: tuple[LockLine, ...] = ()
        self.looking: set[int] = set()
        self.reports: dict[str, LockReport] = {}

    def gather(self, now: Instant) -> Effects:
        """Query the replica for the locks."""
        self.since = now
        self.browsed = None
        self.lines, self.reports = (), {}
        self.looking.clear()
        self.browsing = self.queries.pending.next_number()
        browse = Browse(prefix="", after="", most=LOCKS_SHOWN_MAX)
        read_request = ReadMachine(number=self.browsing, query=browse, age_ms=LOOK_AGE_MS)
        return [Send(self.queries.replica, read_request)]

    def on_machine_read(self, machine_read: MachineRead) -> Effects | None:
        """Process a reply of the replica; return None if it belongs elsewhere."""
        if machine_read.number == self.browsing:
            return self._on_browsed(machine_read)
        if machine_read.number not in self.looking:
            return None
        self.looking.remove(machine_read.number)
        if isinstance(machine_read.reply, Unreadable):
            return (machine_read.reply.fault,)
        if isinstance(machine_read.reply, Looked):
            self.reports[machine_read.reply.report.lock] = machine_read.reply.report
        return ()

    def _on_browsed(self, machine_read: MachineRead) -> Effects:
        self.browsing = 0
        self.browsed = machine_read
        if isinstance(machine_read.reply, Unreadable):
            return (machine_read.reply.fault,)
        if not isinstance(machine_read.reply, Browsed):
            return ()
        self.lines = machine_read.reply.lines
        effects: list[Effect] = []
        several = [line for line in self.lines if line.waiting or line.permits > 1]
        for line in several[:LOOKS_MAX]:
            number = self.queries.pending.next_number()
            self.looking.add(number)
            query = LookUp(lock=line.lock)
            read_request = ReadMachine(number=number, query=query, age_ms=LOOK_AGE_MS)
            effects.append(Send(self.queries.replica, read_request))
        return effects

    def finish(self, leader: str, now: Instant) -> Status | None:
        """Return the status once nothing is missing, or time is up."""
        waits = self.browsing or self.looking
        if waits and ms_between(self.since, now) < DESCRIBE_MS:
            return None
        self.browsing = 0
        self.looking.clear()
        ready, detail = self._readiness(leader, now)
        return Status(ready, detail, self._locks(), leader)

    def _readiness(self, leader: str, now: Instant) -> tuple[bool, str]:
        """Return whether a request made now can be granted, and the reason in words."""
        seen, silence = self.browsed, self.queries.contact.in_words(now)
        if seen is None:
            return False, f"{silence}; locks are not shown"
        age = in_words(seen.age_ms)
        if seen.reply is None:
            return False, f"{silence}; {age}, locks are not shown"
        if seen.age_ms > READY_AGE_MS:
            return False, f"{silence}; {age}"
        if not leader:
            return False, f"no leader is known; {age}"
        leads = leader == self.queries.node
        return True, "ready, leads" if leads else f"ready, follows {leader}"

    def _locks(self) -> tuple[LockStatus, ...]:
        """Return the locks with their waiters, as many as fit a frame."""
        statuses: list[LockStatus] = []
        left = SHOWN_BYTES_MAX
        seen = self.browsed
        slot, quiet_ms = (0, 0) if seen is None else (seen.slot, seen.quiet_ms)
        age_ms = None if seen is None else seen.age_ms
        for line in self.lines:
            holder = None if line.holder is None else holder_of(line.holder, quiet_ms)
            left -= (size_of(holder) if holder else 0) + len(line.lock.encode()) + 32
            if left < 0:
                break
            report = self.reports.get(line.lock)
            holders, waiters = shown_of(report, left, quiet_ms) if report else ((), ())
            left -= sum(map(size_of, (*holders, *waiters)))
            status = LockStatus(
                lock=line.lock,
                holder=holder,
                waiters=waiters,
                waits_for=(),
                slot=slot,
                age_ms=age_ms,
                permits=line.permits,
                holders=holders,
                left_ms=left_of(line.holder, quiet_ms),
                left=line.left,
            )
            statuses.append(status)
        return tuple(statuses)


def _age_of(
    request: Inspect | ListLocks | ListRecords | TableQuery,
) -> int | None:
    """Return the maximum age of the state for a reply (ms), None for a linearizable read."""
    return WATCH_AGE_MS if is_watch(request) else request.age_ms


def _changes(changed: Changed, request: ReadChanges, machine_read: MachineRead) -> ChangesRead:
    return ChangesRead(
        lock=request.lock,
        version=changed.version,
        changes=changed.changes,
        resync=changed.resync,
        more=changed.more,
        session=request.session,
        request=request.request,
        slot=machine_read.slot,
        age_ms=machine_read.age_ms,
    )


def in_words(age_ms: int) -> str:
    """Describe the possible age of this node's state, as `MachineRead` gives it."""
    if age_ms < 0:
        return "it is not known how old its state is"
    return f"its state may be {age_ms} ms old"


def holder_of(seen: HolderSeen, quiet_ms: int) -> Contender:
    """Return a holder as clients see it, ``quiet_ms`` after the report."""
    return Contender(
        node=client_of(seen.session),
        session=without_secret(seen.session),
        owner=seen.owner,
        fence=seen.fence,
        since_ms=seen.held_ms + quiet_ms,
        label=seen.label,
        times=seen.times,
        span=seen.span,
    )


def left_of(seen: HolderSeen | None, quiet_ms: int) -> int | None:
    """Return the time until the deadline of a hold (ms), or None if it has none.

    ``quiet_ms`` is the time since the report ``seen``.
    """
    if seen is None or seen.left_ms is None:
        return None
    return max(0, seen.left_ms - quiet_ms)


def shown_holder(holder: Contender) -> Contender:
    return holder._replace(session=without_secret(holder.session))


def shown_of(
    report: LockReport, bytes_max: int, quiet_ms: int
) -> tuple[tuple[Contender, ...], tuple[Contender, ...]]:
    """Return holders and waiters of an object as clients see them, in order, as many as fit."""
    holders = _fitting((holder_of(seen, quiet_ms) for seen in report.holders), bytes_max)
    left = bytes_max - sum(map(size_of, holders))
    return holders, _fitting((_waiter(seen, quiet_ms) for seen in report.waiters), left)


def _fitting(contenders: Iterable[Contender], bytes_max: int) -> tuple[Contender, ...]:
    """Return the first of ``contenders``, as many as fit."""
    shown: list[Contender] = []
    for contender in contenders:
        bytes_max -= size_of(contender)
        if bytes_max < 0:
            break
        shown.append(contender)
    return tuple(shown)


def size_of(contender: Contender) -> int:
    """Return a lower bound on the size of ``contender`` in a frame (bytes)."""
    texts = (contender.node, contender.session, contender.owner, contender.label)
    return sum(len(text.encode()) + 3 for text in texts) + 32


def _waiter(seen: WaiterSeen, quiet_ms: int) -> Contender:
    return Contender(
        node=client_of(seen.session),
        session=without_secret(seen.session),
        owner=seen.owner,
        fence=None,
        since_ms=seen.waited_ms + quiet_ms,
        label=seen.label,
        times=seen.amount,
    )


def _list(browsed: Browsed, request: ListLocks, machine_read: MachineRead) -> Message:
    quiet_ms = machine_read.quiet_ms
    listed, cut = page_of(
        (_listed(line, quiet_ms) for line in browsed.lines), PAGE_BYTES_MAX, _listed_bytes
    )
    return LockList(
        lines=tuple(one for one in listed if isinstance(one, ListedLock)),
        objects=tuple(one for one in listed if isinstance(one, ListedObject)),
        more=browsed.more or cut,
        session=request.session,
        request=request.request,
        slot=machine_read.slot,
        age_ms=machine_read.age_ms,
    )


def _listed(line: LockLine, quiet_ms: int) -> ListedLock | ListedObject:
    if line.holder is None:
        return ListedObject(line.lock, line.waiting, line.left or 0, line.permits)
    return ListedLock(line.lock, holder_of(line.holder, quiet_ms), line.waiting)


def _listed_bytes(one: ListedLock | ListedObject) -> int:
    holder = size_of(one.holder) if isinstance(one, ListedLock) else 0
    return holder + len(one.lock.encode()) + 16


def _records(read: RecordsRead, request: ListRecords, machine_read: MachineRead) -> Message:
    """Return a page, cut to what fits a frame, with durations up to now."""
    quiet_ms = machine_read.quiet_ms
    sessions, cut = page_of(
        read.sessions,
        PAGE_BYTES_MAX,
        lambda one: len(one.id.encode()) + len(one.label.encode()) + 48,
    )
    evictions, cut_too = page_of(
        read.evictions,
        PAGE_BYTES_MAX,
        lambda one: size_of(one.holder) + len(one.lock.encode()) + len(one.operator.encode()) + 32,
    )
    return RecordList(
        sessions=tuple(
            one._replace(id=without_secret(one.id), left_ms=max(0, one.left_ms - quiet_ms))
            for one in sessions
        ),
        evictions=tuple(
            one._replace(holder=shown_holder(one.holder), ago_ms=one.ago_ms + quiet_ms)
            for one in evictions
        ),
        more=read.more or cut or cut_too,
        session=request.session,
        request=request.request,
        slot=machine_read.slot,
        age_ms=machine_read.age_ms,
    )
