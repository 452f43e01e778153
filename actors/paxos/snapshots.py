"""Snapshots of a replica's state, and catch-up: slots or a snapshot for members that lack them.

A snapshot lets the journal drop the slots before it, and is sent to members that lack slots which
no replica keeps any more. Freezing the state costs a fraction of writing it, which is done part by
part, between the turns of all other roles (`Snapshots`). `CatchUp` fetches the slots that this node
lacks, and sends others the slots that they lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Persist, Send, Wake
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Message,
    address_of,
    ms_between,
    node_of,
)
from fencelock.actors.paxos.config import MemberArguments, MemberRole, catchup_of, monitor_of
from fencelock.actors.paxos.event import (
    ExpireSnapshot,
    Export,
    FetchRetry,
    FetchSlots,
    Lacking,
    Learned,
    ResendChunk,
    Restore,
    SnapshotBegun,
    SnapshotTaken,
    Trimmed,
    WriteChunk,
)
from fencelock.actors.paxos.exports import Exports, chunk_of, in_the_making
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.member_event import Fetched
from fencelock.actors.paxos.membership import Term, terms_part
from fencelock.actors.paxos.message import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    NUMBER_MAX,
    PAGE,
    Batch,
    Fetch,
    Slots,
    SnapshotChunk,
    page_of,
)
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import Level, RoleNotice

MS_PER_S = 1_000

JOURNAL_BYTES = 8 << 20
"""Bytes applied before the journal is cut (8 MiB). Bounds recovery to a second or two."""


PART_PAUSE_MS = 1
"""Pause between two parts (ms): sockets and other roles have their turn meanwhile."""


BACKUP_PAUSE_MS = 5
"""The same for a backup, which has time (ms): most of the processor is left for requests."""


FETCH_MS = 100
"""First timeout of a fetch (ms); then another member is asked."""


FETCH_DOUBLINGS_MAX = 3
"""Number of times that the timeout doubles. A part takes time over a slow link, and a member may
have to make its snapshot first."""


MAKING_MS = 500
"""A member that is making its snapshot is asked again after this long (ms)."""


SILENT_MS = 10_000
"""A member that did not answer a fetch is asked last for this long (ms)."""


SNAPSHOT_KEPT_MS = 60_000
"""A snapshot is dropped when no part of it was requested for this long (ms)."""


LARGE_SLOTS = 1_000
"""A catch-up of this many slots, or of a snapshot, is reported in the log."""


PROGRESS_MS = 5_000
"""Interval of those reports (ms)."""


CatchUpEvent = (
    Lacking
    | Slots
    | SnapshotChunk
    | FetchRetry
    | Fetch
    | SnapshotBegun
    | SnapshotTaken
    | Export
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
        journal_bytes: applied bytes after which the journal is cut, or 0 for never.
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
        self.journaled = False
        """Whether it will be written to the journal, or is for a backup only."""
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
        self,
        machine: Machine,
        slot: int,
        time_ms: int,
        terms: tuple[Term, ...],
        *,
        journaled: bool,
    ) -> list[Wake]:
        """Freeze the state after all slots before ``slot``; `write_part` does the rest.

        Args:
            machine: the state machine to freeze.
            slot: the first slot that it has not applied.
            time_ms: log time.
            terms: the memberships, if they ever changed.
            journaled: whether it is also for the journal, and not only for a backup.

        """
        assert not self.under_way
        self.under_way, self.journaled = True, journaled
        self.terms = terms
        self.slot, self.time_ms = slot, time_ms
        self._parts = machine.snapshot()
        return [self.pause()]

    def pause(self) -> Wake:
        """Return the pause before the next part."""
        return Wake(PART_PAUSE_MS if self.journaled else BACKUP_PAUSE_MS, WriteChunk())

    def announcement(self) -> SnapshotChunk:
        """Return the reply to members that must wait for the snapshot being made."""
        return in_the_making(self.slot, self.time_ms)

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
        So they can replace all that was written before. There are none for a backup.
        """
        if self.terms:
            self.chunks.append(terms_part(self.terms))
        slot, time_ms, chunks = self.slot, self.time_ms, tuple(self.chunks)
        taken = SnapshotTaken(
            receivers=tuple(self.receivers), slot=slot, time_ms=time_ms, chunks=chunks
        )
        if self.journaled:
            records = records_of(slot, time_ms, chunks, tuple(self.since))
            grown = sum(batch.size for batch in self.since)
        else:
            records, grown = (), self.grown
        self.replace(slot, chunks)
        self.grown = grown
        return taken, records

    def replace(self, slot: int, chunks: tuple[bytes, ...]) -> None:
        """Make ``chunks``, of ``slot``, the last snapshot; one being made is dropped."""
        self.grown, self.size, self.slot = 0, sum(len(chunk) for chunk in chunks), slot
        self.chunks, self.since, self.receivers, self._parts = [], [], {}, None
        self.under_way, self.due = False, self._threshold()


class Progress:
    """Measures one catch-up, and reports a large one in the log now and then.

    Args:
        node: the id of its node.
        first: the first slot that is missing.
        since: the beginning.

    """

    def __init__(self, node: str, first: int, since: Instant) -> None:
        self.node = node
        self.first = first
        self.target = first
        self.since = self.reported_at = since
        self.reports = 0
        self.bytes = 0
        """Bytes of slots and of parts of snapshots that have arrived."""
        self.parts: tuple[int, int] = (0, 0)
        """The number of parts of the snapshot that have arrived, and of all; 0 without one."""

    def in_words(self, next_slot: int) -> str:
        """Describe the parts that have arrived."""
        wanted = f"{next_slot - self.first} of {self.target - self.first} slots"
        parts = f", {self.parts[0]} of {self.parts[1]} parts of a snapshot" if self.parts[1] else ""
        return f"{wanted}{parts}, {self.bytes} bytes"

    def report(self, next_slot: int, target: int, source: str, now: Instant) -> list[Effect]:
        """Return how much is left, and a line for the log if one is due."""
        self.target = target
        done, left = self._left(next_slot)
        size = self.bytes * left // done if done else 0
        told: list[Effect] = [Send(monitor_of(self.node), Fetched(bytes_left=size))] if size else []
        large = target - self.first >= LARGE_SLOTS or self.parts[1] > 0
        if not large or (self.reports and ms_between(self.reported_at, now) < PROGRESS_MS):
            return told
        self.reports += 1
        self.reported_at = now
        text = f"{self.node} catches up from {source}: {self.in_words(next_slot)}"
        took_ms = ms_between(self.since, now)
        if took_ms >= MS_PER_S and done:
            text = f"{text}, about {took_ms * left // done // MS_PER_S} s left"
        return [*told, *self._notice(text)]

    def end(self, next_slot: int, source: str, now: Instant) -> list[Effect]:
        """Return the last line, if there were others."""
        if not self.reports:
            return []
        took = ms_between(self.since, now)
        words = self.in_words(next_slot)
        return self._notice(f"{self.node} has caught up, last from {source}: {words} in {took} ms")

    def _left(self, next_slot: int) -> tuple[int, int]:
        """Return how much has arrived and how much is left, in parts or in slots."""
        done, parts = self.parts
        if done < parts:
            return done, parts - done
        return next_slot - self.first, max(0, self.target - next_slot)

    def _notice(self, text: str) -> list[Effect]:
        return [Send(address_of(self.node, "node"), RoleNotice(level=Level.INFO, text=text))]


class CatchUp(MemberRole[CatchUpEvent]):
    """Fetches in small parts, one at a time: the receiver sets the pace.

    Everything fetched is decided, so its source and age do not matter. The master has enough to do,
    so it is asked only for slots that no other member has. Fetched slots are written to the
    journal, since that may hold votes of older ballots for them. These records are removed when the
    replica's stream covers them (P16).

    Args:
        node: the id of its node.
        config: the membership.

    """

    def __init__(self, address: Address, host: Host, **member: Unpack[MemberArguments]) -> None:
        super().__init__(address, host, **member)
        self.next = 1
        """The first slot that is still missing."""
        self.target = 0
        """Slots before it are wanted, or 0 if none are."""
        self.source = ""
        """The member that is asked."""
        self.master = ""
        """The node that leads, if any is known."""
        self.likely = ""
        """The member that has the missing slots, if one is known."""
        self.tried: set[str] = set()
        """Members that did not have the next slots, or did not reply."""
        self.silent_until: dict[str, Instant] = {}
        """Members that did not answer lately."""
        self.progress: Progress | None = None
        self.question: Fetch | None = None
        self.attempt = 0
        self.unanswered = 0
        """Requests that timed out since slots were last missing."""
        self.making = False
        """Whether the source has answered that it is making its snapshot."""
        self.begun: SnapshotChunk | None = None
        """The first part of the snapshot being fetched."""
        self.parts: list[bytes] = []
        self.snapshot: SnapshotTaken | None = None
        """The last snapshot made here; its parts are requested one by one."""
        self.used = 0
        """Number of parts of it that were sent."""
        self.exports = Exports(address_of(self.node, "proxy"), self.replica)
        self.expiring = False
        """Whether the `ExpireSnapshot` timer runs."""
        self.written = 0
        """All slots written since the stream was cut are before this one."""

    def handle(self, sender: Address, event: CatchUpEvent, now: Instant) -> Effects:
        """Send a fetch, or answer one."""
        match event:
            case Lacking():
                return self._on_lacking(event, now)
            case Slots():
                return self._on_slots(sender, event, now)
            case SnapshotChunk():
                return self._on_chunk(sender, event, now)
            case FetchRetry():
                return self._on_retry(event, now)
            case Fetch():
                return self._on_fetch(sender, event)
            case Export():
                return self.exports.on_export(event)
            case SnapshotBegun():
                return self.exports.on_begun(event)
            case SnapshotTaken():
                self.snapshot = event
                self.exports.taken(event)
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
        """Return which slots it fetches, from which node, and how many bytes have arrived."""
        progress = self.progress
        return (
            ("next", self.next),
            ("target", self.target),
            ("source", self.source or "none"),
            ("received", "nothing" if progress is None else progress.in_words(self.next)),
        )

    def _on_lacking(self, lacking: Lacking, now: Instant) -> Effects:
        self.master, self.likely = lacking.master, lacking.source
        if not self._others():
            return ()
        busy = self.target > self.next
        self.target = max(self.target, lacking.target)
        if busy and lacking.first <= self.next:
            return ()
        self.next = max(self.next, lacking.first) if busy else lacking.first
        if self.progress is None:
            self.progress = Progress(self.node, self.next, now)
        self.tried.clear()
        return self._ask_anew(now)

    def _others(self) -> list[str]:
        """Return the nodes to ask, without this one; each node begins with another one.

        These are the members, and the node that was seen to have more. It need not be a member
        that is known here: the members may have changed in the slots that are lacking.
        """
        known = {self.likely} & set(self.config.nodes)
        nodes = sorted({*self.config.members, *known})
        return [m for m in nodes if m > self.node] + [m for m in nodes if m < self.node]

    def _choose(self, now: Instant) -> str:
        """Return the member to ask: the master and silent members are the last resort."""
        others = self._others() or [self.source]  # All others may have left meanwhile.
        return min(
            [member for member in others if member not in self.tried] or others,
            key=lambda member: (
                self.silent_until.get(member, now) > now,
                member == self.master,
                member != self.likely,
            ),
        )

    def _ask_anew(self, now: Instant) -> list[Effect]:
        """Request the next slots, if the other member still has them, or else a snapshot."""
        self.begun, self.parts = None, []
        progress = self.progress
        if self.next >= self.target:
            self.target, self.question, self.unanswered, self.progress = 0, None, 0, None
            done = [] if progress is None else progress.end(self.next, self.source, now)
            return [*done, Send(self.monitor, Fetched(bytes_left=0))]
        self.source = self._choose(now)
        asked = self._ask(Fetch(first=self.next, slot=0, chunk=0))
        if progress is None:
            return asked
        return [*asked, *progress.report(self.next, self.target, self.source, now)]

    def _ask(self, fetch: Fetch) -> list[Effect]:
        self.question, self.making = fetch, False
        self.attempt += 1
        retry = FetchRetry(attempt=self.attempt)
        wait_ms = FETCH_MS << min(self.unanswered, FETCH_DOUBLINGS_MAX)
        return [Send(catchup_of(self.source), fetch), Wake(wait_ms, retry)]

    def _on_retry(self, retry: FetchRetry, now: Instant) -> Effects:
        """Ask another member: this one did not reply, or does not have the slots."""
        if self.question is None or retry.attempt != self.attempt:
            return ()
        if self.making:
            self.making = False
            return self._ask(self.question)
        self.unanswered += 1
        if self.source not in self.tried:
            self.silent_until[self.source] = Instant(now + SILENT_MS * NS_PER_MS)
        return [*self._ask_another(now), Observe("paxos.fetched_elsewhere")]

    def _ask_another(self, now: Instant) -> list[Effect]:
        self.tried.add(self.source)
        if self.tried.issuperset(self._others()):
            self.tried.clear()
        return self._ask_anew(now)

    def _is_answer(self, sender: Address, first: int, slot: int, chunk: int) -> bool:
        asked = Fetch(first=first, slot=slot, chunk=chunk)
        return node_of(sender) == self.source and self.question == asked

    def _on_slots(self, sender: Address, slots: Slots, now: Instant) -> Effects:
        if not self._is_answer(sender, slots.first, 0, 0) or len(slots.batches) > PAGE:
            return (Observe("paxos.slots_ignored"),)
        if not slots.batches:
            return self._on_refusal(now)
        self.next = self.written = slots.first + len(slots.batches)
        self._answered(sum(batch.size for batch in slots.batches))
        learned = Learned(slots=tuple(enumerate(slots.batches, start=slots.first)), committed=0)
        return [
            Persist(slots),
            Send(self.replica, learned),
            *self._ask_anew(now),
            Observe("paxos.slots_fetched", len(slots.batches)),
        ]

    def _on_refusal(self, now: Instant) -> Effects:
        """Ask the next member at once; once all were asked, wait for the retry."""
        if self.tried.issuperset(set(self._others()) - {self.source}):
            self.tried.add(self.source)
            return ()
        return self._ask_another(now)

    def _answered(self, size: int) -> None:
        """Note that the source sent ``size`` of the missing bytes."""
        self.tried.clear()
        self.silent_until.pop(self.source, None)
        if self.progress is not None:
            self.progress.bytes += size

    def _on_chunk(self, sender: Address, part: SnapshotChunk, now: Instant) -> Effects:
        """Take the next part. The first one answers a request for slots."""
        if part.count == 0 and self._is_answer(sender, self.next, 0, 0):
            self.making = True
            self.attempt += 1
            return (Wake(MAKING_MS, FetchRetry(attempt=self.attempt)),)
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
        self._answered(len(part.content))
        if self.progress is not None:
            self.progress.parts = len(self.parts), part.count
        if len(self.parts) < part.count:
            asked = self._ask(Fetch(first=self.next, slot=part.slot, chunk=len(self.parts)))
            if self.progress is None:
                return asked
            return [*asked, *self.progress.report(self.next, self.target, self.source, now)]
        self.exports.kept.clear()  # The one that is being made will never be complete.
        restore = Restore(slot=part.slot, time_ms=part.time_ms, chunks=tuple(self.parts))
        self.next = part.slot
        return [Send(self.replica, restore), *self._ask_anew(now)]

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
        part = chunk_of(snapshot, chunk)
        if part is None:
            return (Observe("paxos.impossible_slot"),)
        self.used += 1
        return (Send(receiver, part),)

    def _start_expiry(self) -> list[Effect]:
        """Drop the snapshot after a while, since it may be large."""
        if self.expiring:
            return []
        self.expiring = True
        use = self.used + self.exports.used
        return [Wake(SNAPSHOT_KEPT_MS, ExpireSnapshot(use=use))]

    def _on_expire(self, expire: ExpireSnapshot) -> Effects:
        self.expiring = False
        if expire.use != self.used + self.exports.used:
            return self._start_expiry()
        self.snapshot = None
        self.exports.drop()
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
    pages: list[Slots] = []
    start = 0
    while start < len(since):
        end = start + page_of(since[start : start + PAGE])
        pages.append(Slots(first=slot + start, batches=since[start:end]))
        start = end
    return (*parts, *pages)


def _is_sound(part: SnapshotChunk) -> bool:
    return (
        1 <= part.slot < NUMBER_MAX
        and 0 <= part.time_ms < NUMBER_MAX
        and 0 <= part.chunk < part.count <= CHUNKS_MAX
        and len(part.content) <= CHUNK_BYTES_MAX
    )
