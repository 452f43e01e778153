"""Snapshots of a replica's state, and catch-up: slots or a snapshot for members that lack them.

The journal of a member would grow forever, and so would a restart. A *snapshot* is the state after
all slots before some slot; it replaces everything that led to it. It is also what a member gets
that lacks slots which no replica keeps any more.

trimmed-is-durable: nothing that led to a state is dropped before that state is durable. The three
streams of the journal that hold slots depend on each other in one direction::

    stream     holds                           dropped when
    replica    a snapshot, and batches since   a newer snapshot is whole and durable (CheckpointEnd)
    acceptor   votes                           the replica sent Trimmed, after its CheckpointEnd
    catchup    slots that were fetched         the same, if the snapshot covers all of them

Making one
----------

::

    step       what                                                 how long
    freeze     the machine returns an iterator over its state       at once
    divide     records are collected into parts of some 128 KiB     small steps, 1 ms between them
    write      each part is encoded, into a `CheckpointPart`,       10 ms between two parts
               with the batches applied meanwhile
    end        CheckpointEnd: forget all that was written before    one sync

Freezing costs a fraction of writing, since the state shares its values with the machine until they
are replaced. Parts of a checkpoint do not hold up other effects, so requests are served all the
while; the last record makes it count. After a crash in between, recovery finds the old records and
some parts, notices that these are not whole, and ignores them.

Batches that are applied while the snapshot is written come first in each part. So they never
collect in memory, and with the last part the records cover everything applied so far. A new
snapshot is due when `JOURNAL_BYTES` were applied, and at least half the size of the last snapshot:
so at most twice as much is written for snapshots as for commands, and a restart reads little more
than the state. One is also due when a view comes into force, because a change of members is done
once a majority's journals have every slot before it. Otherwise members are staggered by their place
in the view, and a leader waits half as long again, because others notice its pauses.

Catching up
-----------

A replica that sees a gap asks `CatchUp` (`Lacking`); so does a leader that must learn before it
leads, and a node that is no member. One fetch is under way at a time: the receiver sets the pace,
so a slow one is never flooded. The other side is `Log._on_fetch` (`log.py`)::

    asked for            the other's replica sends                then
    slots from `first`   Slots: up to a page of decided batches   persist, apply, ask for the next
                         SnapshotChunk 0: these slots are gone    ask for part 1, 2, ... of it
                         SnapshotChunk, count 0: being made       ask again in MAKING_MS
                         nothing, or Slots without batches        ask another member
    part n               SnapshotChunk n                          after the last, Restore
                         nothing: a newer one replaced it, or     drop the parts, and begin again
                         that member died                         at another member

Everything that is fetched was decided, so neither its source nor its age matters. It is still
checked: a batch that no log can have is reported and fetched from another member. Fetched slots are
written to the journal, because that may hold votes of older ballots for the same slots, which a
recovery must not take for what was decided.

Members are asked in this order: those likely to have the slots, those that answered, the leader
(it is busy enough), silent ones. The timeout of a fetch doubles while nobody
answers, up to three times.

A member makes a snapshot for another one only if it has none that is newer than what is lacking;
all who ask meanwhile get the same. It is dropped when no part was asked for in `SNAPSHOT_KEPT_MS`,
since it may be as large as the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Unpack

from fencelock.actors.effect import (
    Checkpoint,
    CheckpointPart,
    Effect,
    Effects,
    Observe,
    Persist,
    Send,
    Wake,
)
from fencelock.actors.message import (
    MS_PER_S,
    NS_PER_MS,
    Address,
    Instant,
    Message,
    ms_between,
    node_of,
)
from fencelock.actors.paxos.config import (
    MemberArguments,
    MemberRole,
    monitor_of,
    replica_of,
    why_impossible,
)
from fencelock.actors.paxos.event import (
    ExpireSnapshot,
    Fetched,
    FetchRetry,
    Lacking,
    Learned,
    Restore,
    Trimmed,
    WriteChunk,
)
from fencelock.actors.paxos.journal import Base
from fencelock.actors.paxos.machine import EncodedPart, Machine, Part
from fencelock.actors.paxos.wire import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    PAGE,
    PAXOS_NUMBER_MAX,
    Batch,
    Fetch,
    Slots,
    SnapshotChunk,
    page_of,
)
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import Level, notice

JOURNAL_BYTES = 8 << 20
"""Bytes applied before the journal is cut (8 MiB). Bounds recovery to a second or two."""

DIVIDE_PAUSE_MS = 1
"""Pause between two steps of dividing a snapshot into parts (ms): sockets and other roles have
their turn meanwhile."""

WRITE_PAUSE_MS = 10
"""Pause between two parts that are written to the journal (ms). A part takes some 3 ms, in which
requests wait; 256 MiB take half a minute."""

FETCH_DOUBLINGS_MAX = 3
"""Number of times that the timeout of a fetch doubles. A part takes time over a slow link, and a
member may have to make its snapshot first."""

MAKING_MS = 500
"""A member that is making its snapshot is asked again after this long (ms)."""

SILENT_SOURCE_MS = 10_000
"""A member that did not answer a fetch is asked last for this long (ms)."""

SNAPSHOT_KEPT_MS = 60_000
"""A snapshot is dropped when no part of it was requested for this long (ms)."""

LARGE_SLOTS = 1_000
"""A catch-up of this many slots, or of a snapshot, is reported in the log."""

PROGRESS_MS = 5_000
"""Interval of those reports (ms)."""

BACKUPS_MAX = 2
"""Maximum snapshots that are kept for backups. Each keeps the values that were replaced since."""


CatchUpEvent = Lacking | Slots | SnapshotChunk | FetchRetry | Trimmed


class Frozen(NamedTuple):
    """A whole snapshot: the state after all slots before ``slot``, at log time ``time_ms``."""

    slot: int
    time_ms: int
    parts: tuple[Part, ...]


class Snapshots:
    """Decides when to make a snapshot, divides it into parts, and writes them to the journal.

    The header of this module explains when, and in which steps. For other members and backups parts
    are encoded when they ask for them. So no more than a part of the state is copied at a time; but
    values that are replaced meanwhile stay in memory.

    Args:
        journal_bytes: applied bytes after which the journal is cut; 0 on a node without a disk.
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
        """Size of the last snapshot in the journal (bytes)."""
        self.slot = 0
        """The snapshot being divided, or the last one, is of the state before this slot."""
        self.time_ms = 0
        self.log_part = b""
        """The part with the state of the log before ``slot``, see `config.log_part`."""
        self.parts: list[Part] = []
        self.writer: CheckpointWriter | None = None
        """Writes the journal anew, beginning with the snapshot that is being divided, or is whole.
        """
        self.ticking = False
        """Whether the `WriteChunk` timer runs."""
        self._frozen: Iterator[Part | None] | None = None
        self.due = self._threshold()
        """Bytes applied after which a snapshot is due; see `is_due`."""

    @property
    def under_way(self) -> bool:
        return self._frozen is not None

    def _threshold(self) -> int:
        return max(self.journal_bytes, self.size // 2) * self.patience // 8

    def hurry(self) -> None:
        """Let a snapshot be due at once.

        If the journal is being written anew, its last part has all that was applied by then.
        """
        if self.journal_bytes and self.writer is None:
            self.due = 0

    def is_due(self, *, leading: bool) -> bool:
        """Return whether a snapshot is due. A leader waits for half as many bytes more."""
        if not self.journal_bytes or self.under_way or self.writer is not None:
            return False
        return self.grown >= (self.due * 3 // 2 if leading else self.due)

    def begin(
        self,
        machine: Machine,
        slot: int,
        time_ms: int,
        log_part: bytes,
        *,
        journaled: bool,
    ) -> list[Wake]:
        """Freeze the state after all slots before ``slot``; `step` does the rest.

        Args:
            machine: the state machine to freeze.
            slot: the first slot that it has not applied.
            time_ms: log time.
            log_part: see `fencelock.actors.paxos.config.log_part`.
            journaled: whether the journal is written anew, unless it is already.

        """
        assert not self.under_way
        self.slot, self.time_ms, self.log_part = slot, time_ms, log_part
        self._frozen = machine.snapshot()
        if journaled and self.writer is None:
            self.writer = CheckpointWriter(slot)
        return self.tick()

    def tick(self) -> list[Wake]:
        """Return the pause before the next step, if there is one."""
        if self.ticking or not (self.under_way or self.writer is not None):
            return []
        self.ticking = True
        return [Wake(DIVIDE_PAUSE_MS if self.under_way else WRITE_PAUSE_MS, WriteChunk())]

    def announcement(self) -> SnapshotChunk:
        """Return the message that stands for the parts of the snapshot being divided."""
        return SnapshotChunk(slot=self.slot, time_ms=self.time_ms, chunk=0, count=0, content=b"")

    def divide(self) -> Frozen | None:
        """Do the next step of dividing a snapshot; return it once it is whole."""
        for part in self._frozen or ():
            if part is None:
                return None
            self.parts.append(part)
        self.parts.append(EncodedPart(self.log_part))
        frozen = Frozen(self.slot, self.time_ms, tuple(self.parts))
        if self.writer is not None and not self.writer.is_filled:
            self.writer.fill(frozen)
        self._drop()
        return frozen

    def write(self) -> tuple[CheckpointPart, bool] | None:
        """Return the next part of the new journal, and whether it is the last."""
        writer = self.writer
        if writer is None or not writer.is_filled:
            return None
        part = writer.step()
        if writer.is_filled:
            return part, False
        self.cut(writer.size)
        self.grown = writer.applied
        return part, True

    def cut(self, size: int) -> None:
        """Note that the journal was cut, and begins with a snapshot of ``size`` bytes."""
        self.writer, self.grown, self.size = None, 0, size
        self.due = self._threshold()

    def restore(self, base: Base) -> list[Wake]:
        """Write the journal anew with a snapshot of another member; drop one being divided."""
        self._drop()
        self.grown, self.slot, self.writer = 0, base.slot, None
        if not self.journal_bytes:
            return []
        self.writer = CheckpointWriter(base.slot)
        parts = tuple(EncodedPart(one) for one in base.chunks)
        self.writer.fill(Frozen(base.slot, base.time_ms, parts))
        return self.tick()

    def _drop(self) -> None:
        self.parts, self._frozen = [], None


class SharedSnapshots:
    """Whole snapshots that other members and backups read part by part.

    A newer snapshot replaces the one for members. A backup may need longer to read one than it
    takes until then, so those for backups are apart.
    """

    def __init__(self) -> None:
        self.latest: Frozen | None = None
        """The last snapshot that was made for other members."""
        self.receivers: dict[Address, None] = {}
        """Members that wait for the snapshot being divided."""
        self.backups: dict[int, Frozen | None] = {}
        """Those for backups by slot, oldest first; None while one is being made."""
        self.used = 0
        """Number of parts that were sent."""
        self.expiring = False
        """Whether the `ExpireSnapshot` timer runs."""

    def await_backup(self, slot: int) -> None:
        """Keep the snapshot of ``slot``, which is being made, for a backup."""
        self.backups.setdefault(slot, None)
        while len(self.backups) > BACKUPS_MAX:
            del self.backups[next(iter(self.backups))]

    def take(self, frozen: Frozen) -> list[Effect]:
        """Keep a snapshot that others wait for, and send its first part to the members."""
        receivers, self.receivers = self.receivers, {}
        if receivers:
            self.latest = frozen
        elif frozen.slot not in self.backups:
            return []
        if frozen.slot in self.backups:
            self.backups[frozen.slot] = frozen
        return [*(self.send(one, frozen, 0) for one in receivers), *self._start_expiry()]

    def send(self, receiver: Address, frozen: Frozen, chunk: int) -> Effect:
        part = self.part(frozen, chunk)
        return Observe("paxos.impossible_slot") if part is None else Send(receiver, part)

    def part(self, frozen: Frozen, chunk: int) -> SnapshotChunk | None:
        """Return a part of a snapshot, or None if it has no such part."""
        if chunk >= len(frozen.parts):
            return None
        self.used += 1
        return SnapshotChunk(
            slot=frozen.slot,
            time_ms=frozen.time_ms,
            chunk=chunk,
            count=len(frozen.parts),
            content=frozen.parts[chunk].encoded(),
        )

    def drop_awaited(self) -> None:
        """Expect no snapshot any more that was being divided: another state has replaced it."""
        self.receivers = {}
        self.backups = {slot: made for slot, made in self.backups.items() if made is not None}

    def _start_expiry(self) -> list[Effect]:
        """Drop the snapshots after a while, since they may be large."""
        if self.expiring:
            return []
        self.expiring = True
        return [Wake(SNAPSHOT_KEPT_MS, ExpireSnapshot(use=self.used))]

    def expire(self, expire: ExpireSnapshot) -> Effects:
        """Drop the snapshots of which no part was requested meanwhile."""
        self.expiring = False
        if expire.use != self.used:
            return self._start_expiry()
        self.latest = None
        self.backups = {slot: made for slot, made in self.backups.items() if made is None}
        return ()


class CheckpointWriter:
    """Writes a snapshot and the batches applied since into the journal, part by part."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.since: list[Batch] = []
        """Batches applied since ``slot`` that are not written."""
        self.next = slot
        """The slot of the first of them."""
        self.applied = self.size = 0
        """Bytes of all batches applied since ``slot``, and of the parts that were written."""
        self._time_ms = self._index = self._count = 0
        self._parts: deque[Part] = deque()

    @property
    def is_filled(self) -> bool:
        return bool(self._parts)

    def fill(self, frozen: Frozen) -> None:
        assert frozen.slot == self.slot
        self._parts.extend(frozen.parts)
        self._time_ms, self._count = frozen.time_ms, len(frozen.parts)

    def step(self) -> CheckpointPart:
        content = self._parts.popleft().encoded()
        chunk = SnapshotChunk(
            slot=self.slot,
            time_ms=self._time_ms,
            chunk=self._index,
            count=self._count,
            content=content,
        )
        pages = pages_of(self.next, self.since)
        self.next += len(self.since)
        self.applied += sum(batch.size for batch in self.since)
        self.size += len(content)
        self.since = []
        self._index += 1
        return CheckpointPart((*pages, chunk), first=self._index == 1)


class Progress:
    """Measures one catch-up, and reports a large one in the log now and then."""

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
        wanted = f"{next_slot - self.first} of {self.target - self.first} slots"
        parts = f", {self.parts[0]} of {self.parts[1]} parts of a snapshot" if self.parts[1] else ""
        return f"{wanted}{parts}, {self.bytes} bytes"

    def report(self, next_slot: int, target: int, source: str, now: Instant) -> list[Effect]:
        """Return how much is left, and a line for the log if one is due."""
        self.target = target
        done, left = self._left(next_slot)
        size = min(PAXOS_NUMBER_MAX - 1, self.bytes * left // done) if done else 0
        effects: list[Effect] = (
            [Send(monitor_of(self.node), Fetched(bytes_left=size))] if size else []
        )
        large = target - self.first >= LARGE_SLOTS or self.parts[1] > 0
        if not large or (self.reports and ms_between(self.reported_at, now) < PROGRESS_MS):
            return effects
        self.reports += 1
        self.reported_at = now
        text = f"{self.node} catches up from {source}: {self.in_words(next_slot)}"
        took_ms = ms_between(self.since, now)
        if took_ms >= MS_PER_S and done:
            text = f"{text}, about {took_ms * left // done // MS_PER_S} s left"
        return [*effects, notice(self.node, Level.INFO, text)]

    def end(self, next_slot: int, source: str, now: Instant) -> list[Effect]:
        """Return the last line, if there were others."""
        if not self.reports:
            return []
        took = ms_between(self.since, now)
        words = self.in_words(next_slot)
        text = f"{self.node} has caught up, last from {source}: {words} in {took} ms"
        return [notice(self.node, Level.INFO, text)]

    def _left(self, next_slot: int) -> tuple[int, int]:
        """Return how much has arrived and how much is left, in parts or in slots."""
        done, parts = self.parts
        if done < parts:
            return done, parts - done
        return next_slot - self.first, max(0, self.target - next_slot)


class CatchUp(MemberRole[CatchUpEvent]):
    """Fetches slots and snapshots for this node; see the header."""

    def __init__(self, address: Address, host: Host, **member: Unpack[MemberArguments]) -> None:
        super().__init__(address, host, **member)
        self.next = 1
        """The first slot that is still missing."""
        self.target = 0
        """Slots before it are wanted, or 0 if none are."""
        self.source = ""
        self.leading_node = ""
        self.likely = ""
        """The member that has the missing slots, if one is known."""
        self.tried: set[str] = set()
        """Members that did not have the next slots, or did not reply."""
        self.silent_until: dict[str, Instant] = {}
        """Members that did not answer recently."""
        self.progress = Progress(self.node, 1, Instant(0))
        self.request: Fetch | None = None
        """The request that was sent last, or None if nothing is missing."""
        self.attempt = 0
        self.unanswered = 0
        """Requests that timed out since slots were last missing."""
        self.making = False
        """Whether the source has answered that it is making its snapshot."""
        self.begun: SnapshotChunk | None = None
        """The first part of the snapshot being fetched."""
        self.parts: list[bytes] = []
        self.written = 0
        """All slots written since the stream was cut are before this one."""

    def handle(self, sender: Address, event: CatchUpEvent, now: Instant) -> Effects:
        match event:
            case Lacking():
                return self._on_lacking(event, now)
            case Slots():
                return self._on_slots(sender, event, now)
            case SnapshotChunk():
                return self._on_chunk(sender, event, now)
            case FetchRetry():
                return self._on_retry(event, now)
            case Trimmed():
                return self._on_trimmed(event)

    def summary(self) -> Summary:
        received = "nothing" if self.request is None else self.progress.in_words(self.next)
        return (
            ("next", self.next),
            ("target", self.target),
            ("source", self.source or "none"),
            ("received", received),
        )

    def _on_lacking(self, lacking: Lacking, now: Instant) -> Effects:
        self.leading_node, self.likely = lacking.leader, lacking.source
        if not self._others():
            return ()
        busy = self.target > self.next
        self.target = max(self.target, lacking.target)
        if busy and lacking.first <= self.next:
            return ()
        self.next = max(self.next, lacking.first) if busy else lacking.first
        if self.request is None:
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
        """Return the member to ask: the leader and silent members are the last resort."""
        others = self._others() or [self.source]  # All others may have left meanwhile.
        return min(
            [member for member in others if member not in self.tried] or others,
            key=lambda member: (
                self.silent_until.get(member, now) > now,
                member == self.leading_node,
                member != self.likely,
            ),
        )

    def _ask_anew(self, now: Instant) -> list[Effect]:
        """Request the next slots, if the other member still has them, or else a snapshot."""
        self.begun, self.parts = None, []
        if self.next >= self.target:
            self.target, self.request, self.unanswered = 0, None, 0
            done = self.progress.end(self.next, self.source, now)
            return [*done, Send(self.monitor, Fetched(bytes_left=0))]
        self.source = self._choose(now)
        return self._ask_next(Fetch(first=self.next, slot=0, chunk=0), now)

    def _ask_next(self, fetch: Fetch, now: Instant) -> list[Effect]:
        asked = self._ask(fetch)
        return [*asked, *self.progress.report(self.next, self.target, self.source, now)]

    def _ask(self, fetch: Fetch) -> list[Effect]:
        self.request, self.making = fetch, False
        self.attempt += 1
        retry = FetchRetry(attempt=self.attempt)
        wait_ms = self.config.timing.reply_ms << min(self.unanswered, FETCH_DOUBLINGS_MAX)
        return [Send(replica_of(self.source), fetch), Wake(wait_ms, retry)]

    def _on_retry(self, retry: FetchRetry, now: Instant) -> Effects:
        """Ask another member: this one did not reply, or does not have the slots."""
        if self.request is None or retry.attempt != self.attempt:
            return ()
        if self.making:
            self.making = False
            return self._ask(self.request)
        self.unanswered += 1
        if self.source not in self.tried:
            self.silent_until[self.source] = Instant(now + SILENT_SOURCE_MS * NS_PER_MS)
        return [*self._ask_another(now), Observe("paxos.fetched_elsewhere")]

    def _ask_another(self, now: Instant) -> list[Effect]:
        self.tried.add(self.source)
        if self.tried.issuperset(self._others()):
            self.tried.clear()
        return self._ask_anew(now)

    def _is_reply(self, sender: Address, first: int, slot: int, chunk: int) -> bool:
        asked = Fetch(first=first, slot=slot, chunk=chunk)
        return node_of(sender) == self.source and self.request == asked

    def _on_slots(self, sender: Address, slots: Slots, now: Instant) -> Effects:
        if not self._is_reply(sender, slots.first, 0, 0) or len(slots.batches) > PAGE:
            return (Observe("paxos.slots_ignored"),)
        if not slots.batches:
            return self._on_refusal(now)
        for slot, batch in enumerate(slots.batches, start=slots.first):
            if why := why_impossible(batch, self.config.latest_ms(slot)):
                text = f"a decision for slot {slot} with {why}"
                refused = self.bounds.report(sender, "paxos.impossible_batch", text, now)
                return [*refused, *self._ask_another(now)]
        self.next = self.written = slots.first + len(slots.batches)
        self._received(sum(batch.size for batch in slots.batches))
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

    def _received(self, size: int) -> None:
        """Note that the source sent ``size`` of the missing bytes."""
        self.tried.clear()
        self.silent_until.pop(self.source, None)
        self.progress.bytes += size

    def _on_chunk(self, sender: Address, part: SnapshotChunk, now: Instant) -> Effects:
        """Take the next part. The first one answers a request for slots."""
        if part.count == 0 and self._is_reply(sender, self.next, 0, 0):
            self.making = True
            self.attempt += 1
            return (Wake(MAKING_MS, FetchRetry(attempt=self.attempt)),)
        first = self.begun is None
        expected = 0 if first else part.slot
        if not self._is_reply(sender, self.next, expected, part.chunk):
            return (Observe("paxos.chunk_ignored"),)
        if part.slot <= self.next:
            return ()
        what = "a snapshot of all slots before"
        refused = self.bounds.refuse_slot(sender, what, part.slot, now)
        if not refused and not (
            _is_sound(part) and part.time_ms <= self.config.latest_ms(part.slot)
        ):
            text = (
                f"part {part.chunk} of {part.count} of a snapshot, with {len(part.content)} bytes, "
                f"of slot {part.slot} at log time {part.time_ms} ms, where no log can be"
            )
            refused = self.bounds.report(sender, "paxos.impossible_snapshot", text, now)
        if refused:
            return [*refused, *self._ask_another(now)]
        if self.begun is None:
            self.begun = part
        elif (part.slot, part.count) != (self.begun.slot, self.begun.count):
            return (Observe("paxos.chunk_ignored"),)
        self.parts.append(part.content)
        self._received(len(part.content))
        self.progress.parts = len(self.parts), part.count
        if len(self.parts) < part.count:
            fetch = Fetch(first=self.next, slot=part.slot, chunk=len(self.parts))
            return self._ask_next(fetch, now)
        restore = Restore(base=Base(part.slot, part.time_ms, tuple(self.parts)))
        self.next = part.slot
        return [Send(self.replica, restore), *self._ask_anew(now)]

    def _on_trimmed(self, trimmed: Trimmed) -> Effects:
        """Drop the written slots from the journal, if the replica's snapshot covers all of them."""
        if not self.written or self.written > trimmed.slot:
            return ()
        self.written = 0
        return (Checkpoint(()),)


def records_of(slot: int, time_ms: int, chunks: Sequence[bytes]) -> tuple[Message, ...]:
    """Return the state before ``slot`` as a journal keeps it."""
    return tuple(
        SnapshotChunk(slot=slot, time_ms=time_ms, chunk=index, count=len(chunks), content=chunk)
        for index, chunk in enumerate(chunks)
    )


def pages_of(first: int, batches: Sequence[Batch]) -> list[Slots]:
    """Return the decided ``batches`` from slot ``first`` on as a journal keeps them."""
    pages: list[Slots] = []
    start = 0
    while start < len(batches):
        end = start + page_of(batches[start : start + PAGE])
        pages.append(Slots(first=first + start, batches=tuple(batches[start:end])))
        start = end
    return pages


def _is_sound(part: SnapshotChunk) -> bool:
    return (
        0 <= part.time_ms < PAXOS_NUMBER_MAX
        and 0 <= part.chunk < part.count <= CHUNKS_MAX
        and len(part.content) <= CHUNK_BYTES_MAX
    )
