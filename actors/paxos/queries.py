"""Reads of the replicated table for a node's proxy, from the replica of the same node."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from fencelock.actors.api.backup_message import BackupPart, LockQuery, ReadBackup
from fencelock.actors.api.changes import WATCH_AGE_MS, ReadChanges
from fencelock.actors.api.lock_message import LockStatus, Reason, refused
from fencelock.actors.api.request import TableReply, is_watch
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.error import UnavailableError
from fencelock.actors.fault import internal, reading
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.paxos.event import Export, Exported, MachineRead, ReadMachine
from fencelock.actors.paxos.log_requests import QuorumContact
from fencelock.actors.proxy.backend import Status
from fencelock.actors.proxy.clients import RemoteClients
from fencelock.actors.proxy.queries import NextQueries, PendingQueries, PendingQuery, QueryTurns
from fencelock.actors.table.report import DescribeLocks, LocksDescribed

READY_AGE_MS = 2_500
"""A node whose state is at most this old (ms) can serve; else a majority may be lost."""

LOOK_AGE_MS = 60_000
"""Maximum age of the state that is shown (ms)."""

DESCRIBE_MS = 500
"""Timeout of a description's query to the replica (ms); then it does without."""


class Queries:
    """The queries of clients, and the one for the locks that a node's description shows.

    A client's query that is sent again is forwarded once.
    """

    def __init__(
        self, node: str, replica: Address, contact: QuorumContact, clients: RemoteClients
    ) -> None:
        self.node = node
        self.replica = replica
        self.contact = contact
        self.pending = PendingQueries(node, clients)
        self.watches = PendingQueries(node, clients, watches=True)
        self.turns = {True: QueryTurns(), False: QueryTurns()}
        """The linearizable queries, which may wait for a majority, and the others."""
        self.ticking = False
        """Whether the `NextQueries` timer runs."""
        self.shown: tuple[TableReply, int, TableReply] | None = None
        """The last reply of the replica, the time that it has been true (ms), and what it is by
        now: replicas send the same reply to all clients that ask the same while nothing changes."""
        self.describing = 0
        """The number of the query that describes the locks, 0 once it is answered."""
        self.described_at = Instant(0)
        """The time at which that query was sent."""
        self.description: MachineRead | None = None

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

    def on_next(self, sender: Address, event: NextQueries, now: Instant) -> Effects:
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
        if isinstance(request, ReadBackup):
            export = Export(number=number, slot=request.slot, chunk=request.chunk)
            return Send(self.replica, export)
        # Equal queries of several clients are one to the replica.
        query = replace(cast("Any", request), session="", request=0, age_ms=None)
        watched = request.lock if isinstance(request, ReadChanges) and request.waits else ""
        read_request = ReadMachine(
            number=number, query=query, age_ms=_age_of(request), watched=watched
        )
        return Send(self.replica, read_request)

    def on_machine_read(self, sender: Address, machine_read: MachineRead, now: Instant) -> Effects:
        fault = machine_read.reply
        if machine_read.number == self.describing:
            self.describing, self.description = 0, machine_read
            return (fault,) if isinstance(fault, Fault) else ()
        query = self._end(machine_read.number)
        if query is None:
            return ()
        if not isinstance(fault, Fault):
            reply = reading("a reply", lambda: self._reply(query, machine_read, now))
            if not isinstance(reply, Fault):
                return reply
            fault = reply
        return internal(query.sender, query.request, self.node, fault.error)

    def _reply(self, query: PendingQuery, machine_read: MachineRead, now: Instant) -> Effects:
        sender, request = query.sender, query.request
        reply = machine_read.reply
        if isinstance(reply, TableReply):
            return [Send(sender, self._dated(reply, request, machine_read))]
        most_ms = _age_of(request)
        if most_ms is None:
            return self._give_up(query, now)
        known = in_words(machine_read.age_ms)
        text = f"node {self.node}: {known}, at most {most_ms} ms were allowed"
        return [Send(sender, refused(request, Reason.STALE, text)), Observe("proxy.stale_read")]

    def _dated(
        self, reply: TableReply, request: LockQuery, machine_read: MachineRead
    ) -> TableReply:
        """Return the ``reply`` of the table as the client of ``request`` gets it."""
        slot, age_ms, quiet_ms = machine_read.slot, machine_read.age_ms, machine_read.quiet_ms
        if self.shown is None or self.shown[0] is not reply or self.shown[1] != quiet_ms:
            self.shown = reply, quiet_ms, reply.at(slot, age_ms, quiet_ms)
        dated: TableReply = replace(
            cast("Any", self.shown[2]),
            session=request.session,
            request=request.request,
            slot=slot,
            age_ms=age_ms,
        )
        return dated

    def on_exported(self, sender: Address, exported: Exported, now: Instant) -> Effects:
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
        ended = (*self.pending.end_old(now), *self.watches.end_old(now))
        return [effect for query in ended for effect in self._give_up(query, now)]

    def _give_up(self, query: PendingQuery, now: Instant) -> list[Effect]:
        if node_of(query.sender) != self.node:
            return [Observe("proxy.read_unanswered")]
        text = f"nothing read for {ms_between(query.since, now)} ms"
        text = f"{text}: {self.contact.in_words(now)}"
        return [Send(query.sender, refused(query.request, Reason.UNAVAILABLE, text))]

    def describe(self, now: Instant) -> Effects:
        """Query the replica for the locks."""
        self.described_at, self.description = now, None
        self.describing = self.pending.next_number()
        query = DescribeLocks()
        read_request = ReadMachine(number=self.describing, query=query, age_ms=LOOK_AGE_MS)
        return [Send(self.replica, read_request)]

    def status(self, leader: str, now: Instant) -> Status | None:
        """Return the status once the locks are described, or time is up."""
        if self.describing and ms_between(self.described_at, now) < DESCRIBE_MS:
            return None
        self.describing = 0
        ready, detail = self._readiness(leader, now)
        return Status(ready, detail, self._locks(), leader)

    def _readiness(self, leader: str, now: Instant) -> tuple[bool, str]:
        """Return whether a request made now can be granted, and the reason in words."""
        seen, silence = self.description, self.contact.in_words(now)
        if seen is None:
            return False, f"{silence}; locks are not shown"
        age = in_words(seen.age_ms)
        if seen.reply is None:
            return False, f"{silence}; {age}, locks are not shown"
        if seen.age_ms > READY_AGE_MS:
            return False, f"{silence}; {age}"
        if not leader:
            return False, f"no leader is known; {age}"
        leads = leader == self.node
        return True, "ready, leads" if leads else f"ready, follows {leader}"

    def _locks(self) -> tuple[LockStatus, ...]:
        """Return the locks with their waiters, as many as fit a frame."""
        seen = self.description
        if seen is None or not isinstance(seen.reply, LocksDescribed):
            return ()
        return tuple(one.at(seen.slot, seen.age_ms, seen.quiet_ms) for one in seen.reply.locks)


def _age_of(request: LockQuery) -> int | None:
    """Return the maximum age of the state for a reply (ms), None for a linearizable read."""
    if isinstance(request, ReadBackup):
        return None
    return WATCH_AGE_MS if is_watch(request) else request.age_ms


def in_words(age_ms: int) -> str:
    """Describe the possible age of this node's state, as `MachineRead` gives it."""
    if age_ms < 0:
        return "it is not known how old its state is"
    return f"its state may be {age_ms} ms old"
