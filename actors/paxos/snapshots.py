"""Snapshots of a replica's state, and catch-up: slots or a snapshot for members that lack them.

A snapshot lets the journal drop what led to it, and is sent to members that lack slots
which no replica keeps any more. Freezing the state costs a fraction of writing it, which
is done part by part, between the turns of all other roles (`Snapshots`). `CatchUp` fetches what
this node lacks, and sends others what they lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Persist, Send, Wake
from fencelock.actors.message import Address, Instant, Message, node_of
from fencelock.actors.paxos.config import MemberArguments, MemberRole, catchup_of
from fencelock.actors.paxos.event import (
    CaughtUp,
    ExpireSnapshot,
    FetchRetry,
    FetchSlots,
    Lacking,
    Learned,
    ResendChunk,
    Restore,
    SnapshotTaken,
    Trimmed,
    WriteChunk,
)
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.membership import Term, part_of
from fencelock.actors.paxos.message import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    NUMBER_MAX,
    PAGE,
    Batch,
    Fetch,
    Slots,
    SnapshotChunk,
)
from fencelock.actors.role import Host, Summary

JOURNAL_BYTES = 8 << 20
"""Bytes applied before the journal is cut (8 MiB). Bounds recovery to a second or two."""


PART_PAUSE_MS = 1
"""Pause between two parts (ms): sockets and other roles have their turn meanwhile."""


FETCH_MS = 100
"""First timeout of a fetch (ms); then another member is asked."""


FETCH_DOUBLINGS_MAX = 3
"""Number of times that the timeout doubles. A part takes time over a slow link, and a member may
have to make its snapshot first."""


SNAPSHOT_KEPT_MS = 60_000
"""A snapshot is dropped when no part of it was requested for this long (ms)."""


CatchUpEvent = (
    Lacking
    | Slots
    | SnapshotChunk
    | FetchRetry
    | Fetch
    | SnapshotTaken
    | ResendChunk
    | Trimmed
    | ExpireSnapshot
)


class Snapshots:
    """Decides when to make a snapshot, and keeps the one being made.

    The journal is cut when `JOURNAL_BYTES` were applied, and at least twice the size of the last
    snapshot: so the work for snapshots is bounded by that for commands. Members are staggered,
    so that two are rarely busy with it at once. A master waits longest: a slow follower goes
    unnoticed.

    Args:
        journal_bytes: applied bytes after which the journal is cut; 0 for never.
        place: index of this member.
        members: number of members.

    """

    def __init__(self, journal_bytes: int, place: int, members: int) -> None:
        self.journal_bytes = journal_bytes
        self.patience = 8 + place % max(1, members)
        """Factor on the threshold, in eighths."""
        self.grown = 0
        """Bytes applied since the journal was cut."""
        self.size = 0
        """Size of the last snapshot (bytes)."""
        self.slot = 0
        """The last snapshot, or the one being made, is of the state before this slot."""
        self.time_ms = 0
        self.chunks: list[bytes] = []
        self.terms: tuple[Term, ...] = ()
        """The memberships that belong to ``slot``."""
        self.since: list[Batch] = []
        """Batches applied since ``slot``, while a snapshot is being made."""
        self.receivers: dict[Address, None] = {}
        """Addresses that requested the snapshot being made."""
        self._parts: Iterator[bytes | None] | None = None
        self.under_way = False
        """Whether a snapshot is being made."""
        self.due = self._threshold()
        """A snapshot may be due once ``grown`` is this much; see `is_due`."""

    def _threshold(self) -> int:
        return max(self.journal_bytes, 2 * self.size) * self.patience // 8

    def is_due(self, *, leading: bool) -> bool:
        """Return whether the journal should be cut now."""
        if not self.journal_bytes or self.under_way:
            return False
        return self.grown >= (self.due * 3 // 2 if leading else self.due)

    def begin(
        self, machine: Machine, slot: int, time_ms: int, terms: tuple[Term, ...]
    ) -> list[Wake]:
        """Freeze the state after all slots before ``slot``; `write_part` does the rest.

        Args:
            machine: the state machine to freeze.
            slot: the first slot that it has not applied.
            time_ms: log time.
            terms: the memberships, if they ever changed.

        """
        assert not self.under_way
        self.under_way = True
        self.terms = terms
        self.slot, self.time_ms = slot, time_ms
        self._parts = machine.snapshot()
        return [Wake(PART_PAUSE_MS, WriteChunk())]

    def write_part(self) -> bool:
        """Make the next part; return whether the snapshot is complete."""
        if self._parts is None:
            return False
        for part in self._parts:
            if part is not None:
                self.chunks.append(part)
            return False
        return True

    def finish(self) -> tuple[SnapshotTaken, tuple[Message, ...]]:
        """Return a complete snapshot as catch-up sends it, and as a journal keeps it.

        The records cover everything applied so far: batches applied since the snapshot follow it.
        So they can replace all that was written before.
        """
        if self.terms:
            self.chunks.append(part_of(self.terms))
        slot, time_ms, chunks = self.slot, self.time_ms, tuple(self.chunks)
        records = records_of(slot, time_ms, chunks, tuple(self.since))
        taken = SnapshotTaken(
            receivers=tuple(self.receivers), slot=slot, time_ms=time_ms, chunks=chunks
        )
        grown = sum(batch.size for batch in self.since)
        self.replace(slot, chunks)
        self.grown = grown
        return taken, records

    def replace(self, slot: int, chunks: tuple[bytes, ...]) -> None:
        """Make ``chunks``, of ``slot``, the last snapshot; one being made is dropped."""
        self.grown, self.size, self.slot = 0, sum(len(chunk) for chunk in chunks), slot
        self.chunks, self.since, self.receivers, self._parts = [], [], {}, None
        self.under_way, self.due = False, self._threshold()


class CatchUp(MemberRole[CatchUpEvent]):
    """Fetches in small parts, one at a time: the receiver sets the pace.

    Everything fetched is decided, so its source and age do not matter. Fetched slots are written
    to the journal, since that may hold votes of older ballots for them. These records are
    removed when the replica's stream covers them (P16).

    Args:
        node: the id of its node.
        config: the membership.

    """

    def __init__(self, address: Address, host: Host, **member: Unpack[MemberArguments]) -> None:
        super().__init__(address, host, **member)
        self.next = 1
        """The first slot that is still missing."""
        self.target = 0
        """Slots before it are wanted; 0 if none are."""
        self.source = ""
        """The member that is asked."""
        self.question: Fetch | None = None
        self.attempt = 0
        self.unanswered = 0
        """Requests that timed out since slots were last missing."""
        self.begun: SnapshotChunk | None = None
        """The first part of the snapshot being fetched."""
        self.parts: list[bytes] = []
        self.snapshot: SnapshotTaken | None = None
        """The last snapshot made here; its parts are requested one by one."""
        self.used = 0
        """Number of parts of it that were sent."""
        self.expiring = False
        """Whether the `ExpireSnapshot` timer runs."""
        self.written = 0
        """All slots written since the stream was cut are before this one."""

    def handle(self, sender: Address, event: CatchUpEvent, now: Instant) -> Effects:
        """Send a fetch, or answer one."""
        del now
        match event:
            case Lacking():
                return self._on_lacking(event)
            case Slots():
                return self._on_slots(sender, event)
            case SnapshotChunk():
                return self._on_chunk(sender, event)
            case FetchRetry():
                return self._on_retry(event)
            case Fetch():
                return self._on_fetch(sender, event)
            case SnapshotTaken():
                self.snapshot = event
                parts = [
                    part for receiver in event.receivers for part in self._part(receiver, event, 0)
                ]
                return [*parts, *self._start_expiry()]
            case ResendChunk():
                given = self.snapshot
                return self._part(event.receiver, given, 0) if given is not None else ()
            case Trimmed():
                return self._on_trimmed(event)
            case ExpireSnapshot():
                return self._on_expire(event)

    def summary(self) -> Summary:
        """Return what it fetches, and from which node."""
        return (
            ("next", self.next),
            ("target", self.target),
            ("source", self.source or "none"),
        )

    def _on_lacking(self, lacking: Lacking) -> Effects:
        known = lacking.source in self.config.nodes and lacking.source != self.node
        others = [lacking.source] if known else self._others()
        if not others:
            return ()
        busy = self.target > self.next
        self.target = max(self.target, lacking.target)
        if busy and lacking.first <= self.next:
            return ()
        self.next = max(self.next, lacking.first) if busy else lacking.first
        self.source = others[0]
        return self._ask_anew()

    def _others(self) -> list[str]:
        """Return the members that can be asked."""
        return [member for member in self.config.members if member != self.node]

    def _ask_anew(self) -> list[Effect]:
        """Request what comes next: slots, if the other member still has them."""
        self.begun, self.parts = None, []
        if self.next >= self.target:
            self.target, self.question, self.unanswered = 0, None, 0
            return [Send(self.monitor, CaughtUp())]
        return self._ask(Fetch(first=self.next, slot=0, chunk=0))

    def _ask(self, fetch: Fetch) -> list[Effect]:
        self.question = fetch
        self.attempt += 1
        retry = FetchRetry(attempt=self.attempt)
        wait_ms = FETCH_MS << min(self.unanswered, FETCH_DOUBLINGS_MAX)
        return [Send(catchup_of(self.source), fetch), Wake(wait_ms, retry)]

    def _on_retry(self, retry: FetchRetry) -> Effects:
        """Ask the next member after the one that does not answer, or does not have it."""
        if self.question is None or retry.attempt != self.attempt:
            return ()
        self.unanswered += 1
        others = self._others()
        place = others.index(self.source) if self.source in others else -1
        self.source = others[(place + 1) % len(others)] if others else self.source
        return [*self._ask_anew(), Observe("paxos.fetched_elsewhere")]

    def _is_answer(self, sender: Address, first: int, slot: int, chunk: int) -> bool:
        asked = Fetch(first=first, slot=slot, chunk=chunk)
        return node_of(sender) == self.source and self.question == asked

    def _on_slots(self, sender: Address, slots: Slots) -> Effects:
        if not self._is_answer(sender, slots.first, 0, 0) or len(slots.batches) > PAGE:
            return (Observe("paxos.slots_ignored"),)
        if not slots.batches:
            return ()  # The member has none of them; the retry asks another.
        self.next = self.written = slots.first + len(slots.batches)
        learned = Learned(slots=tuple(enumerate(slots.batches, start=slots.first)), committed=0)
        return [
            Persist(slots),
            Send(self.replica, learned),
            *self._ask_anew(),
            Observe("paxos.slots_fetched", len(slots.batches)),
        ]

    def _on_chunk(self, sender: Address, part: SnapshotChunk) -> Effects:
        """Take the next part. The first one answers a request for slots."""
        first = self.begun is None
        expected = 0 if first else part.slot
        if not self._is_answer(sender, self.next, expected, part.chunk) or not _is_sound(part):
            return (Observe("paxos.chunk_ignored"),)
        if part.slot <= self.next:
            return ()
        if self.begun is None:
            self.begun = part
        elif (part.slot, part.count) != (self.begun.slot, self.begun.count):
            return (Observe("paxos.chunk_ignored"),)
        self.parts.append(part.content)
        if len(self.parts) < part.count:
            return self._ask(Fetch(first=self.next, slot=part.slot, chunk=len(self.parts)))
        restore = Restore(slot=part.slot, time_ms=part.time_ms, chunks=tuple(self.parts))
        self.next = part.slot
        return [Send(self.replica, restore), *self._ask_anew()]

    def _on_fetch(self, receiver: Address, fetch: Fetch) -> Effects:
        if node_of(receiver) not in self.config.nodes:
            return (Observe("paxos.stranger_fetches"),)
        if not 1 <= fetch.first < NUMBER_MAX or not 0 <= fetch.chunk < CHUNKS_MAX:
            return (Observe("paxos.impossible_slot"),)
        if fetch.slot == 0:
            slot = 0 if self.snapshot is None else self.snapshot.slot
            fetch_slots = FetchSlots(receiver=receiver, first=fetch.first, slot=slot)
            return (Send(self.replica, fetch_slots),)
        snapshot = self.snapshot
        if snapshot is None or snapshot.slot != fetch.slot:
            return ()  # A newer snapshot has replaced it; the asking member begins again.
        return self._part(receiver, snapshot, fetch.chunk)

    def _part(self, receiver: Address, snapshot: SnapshotTaken, chunk: int) -> Effects:
        if chunk >= len(snapshot.chunks):
            return (Observe("paxos.impossible_slot"),)
        self.used += 1
        part = SnapshotChunk(
            slot=snapshot.slot,
            time_ms=snapshot.time_ms,
            chunk=chunk,
            count=len(snapshot.chunks),
            content=snapshot.chunks[chunk],
        )
        return (Send(receiver, part),)

    def _start_expiry(self) -> list[Effect]:
        """Drop the snapshot after a while, since it may be large."""
        if self.expiring:
            return []
        self.expiring = True
        return [Wake(SNAPSHOT_KEPT_MS, ExpireSnapshot(use=self.used))]

    def _on_expire(self, expire: ExpireSnapshot) -> Effects:
        self.expiring = False
        if expire.use != self.used:
            return self._start_expiry()
        self.snapshot = None
        return ()

    def _on_trimmed(self, trimmed: Trimmed) -> Effects:
        """Drop the written slots from the journal, if the replica's snapshot covers all of them."""
        if not self.written or self.written > trimmed.slot:
            return ()
        self.written = 0
        return (Checkpoint(()),)


def records_of(
    slot: int, time_ms: int, chunks: tuple[bytes, ...], since: tuple[Batch, ...] = ()
) -> tuple[Message, ...]:
    """Return the state before ``slot`` and the batches from there on, as a journal keeps them."""
    parts = [
        SnapshotChunk(slot=slot, time_ms=time_ms, chunk=index, count=len(chunks), content=chunk)
        for index, chunk in enumerate(chunks)
    ]
    pages = [
        Slots(first=slot + start, batches=since[start : start + PAGE])
        for start in range(0, len(since), PAGE)
    ]
    return (*parts, *pages)


def _is_sound(part: SnapshotChunk) -> bool:
    return (
        1 <= part.slot < NUMBER_MAX
        and 0 <= part.time_ms < NUMBER_MAX
        and 0 <= part.chunk < part.count <= CHUNKS_MAX
        and len(part.content) <= CHUNK_BYTES_MAX
    )
