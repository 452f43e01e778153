"""The log of a replica: decided slots, the machine that applies them, and their snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.effect import CheckpointEnd, Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Message, node_of
from fencelock.actors.paxos.config import (
    CHANGE_PREFIX,
    LOG_BYTES_MAX,
    VOTES_BYTES_MAX,
    VOTES_MAX,
    LogBounds,
    acceptor_of,
    catchup_of,
    change_in,
    log_part,
    split,
)
from fencelock.actors.paxos.divergence import Digests, DivergenceWatch
from fencelock.actors.paxos.event import (
    Compare,
    ExpireSnapshot,
    Export,
    Exported,
    Isolate,
    LogFull,
    MinApplied,
    Trimmed,
    WriteChunk,
)
from fencelock.actors.paxos.journal import Base, Recovered
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.snapshots import SharedSnapshots, Snapshots
from fencelock.actors.paxos.wire import (
    CHUNKS_MAX,
    NO_BALLOT,
    PAGE,
    Ballot,
    Batch,
    Fetch,
    Slots,
    TableDigest,
    page_of,
)
from fencelock.actors.table.poison import PoisonError

LogEvent = (
    MinApplied
    | Fetch
    | Export
    | ExpireSnapshot
    | WriteChunk
    | LogFull
    | TableDigest
    | Compare
    | Isolate
)


class Log:
    """Applies slots in order, each once, and drops them when a snapshot covers them.

    Invariants:
        trimmed-is-durable: Nothing that led to a state is dropped before that state is durable:
            roles that trim learn of it by a `Send` behind the `CheckpointEnd`.

    """

    def __init__(
        self,
        node: str,
        bounds: LogBounds,
        machine: Machine,
        listener: Address,
        *,
        log_max: int,
        journal_bytes: int,
        digest_slots: int,
    ) -> None:
        self.node = node
        self.bounds = bounds
        self.config = config = bounds.config
        self.machine = machine
        self.decided = DecidedSlots(log_max)
        members = config.newest.members
        place = members.index(node) if node in members else len(members)
        self.snapshots = Snapshots(journal_bytes, place, len(members))
        self.shared = SharedSnapshots()
        self.digests = Digests(node, config, digest_slots)
        journal = journal_bytes > 0
        self.divergence = DivergenceWatch(self.digests, bounds, listener, journal=journal)
        self.skips: frozenset[int] = frozenset()
        """The slots whose commands an operator skips, if they damage the state."""
        self.views_changed = False
        """Whether other roles have still to be notified of a change of the views."""

    def handle(self, sender: Address, event: LogEvent, now: Instant) -> Effects:
        match event:
            case MinApplied():
                self.decided.trim(event.slot)
                return ()
            case Fetch():
                return self._on_fetch(sender, event, now)
            case Export():
                return self._on_export(sender, event)
            case ExpireSnapshot():
                return self.shared.expire(event)
            case WriteChunk():
                return self._on_write_chunk()
            case LogFull():
                if event.written <= 2 * self.snapshots.grown:
                    return ()  # Most of it was applied, and a snapshot is due when that is enough.
                return self._begin_snapshot()
            case TableDigest():
                return self.divergence.on_digest(sender, event, self.decided.next, now)
            case Compare():
                return self.divergence.on_compare(event)
            case Isolate():
                return self.divergence.isolate()

    def recover(self, recovered: Recovered) -> list[Effect]:
        """Apply the journal to the machine, and compare the result with other members."""
        base, self.skips = recovered.base, recovered.skips
        empty = base is None or not base.chunks
        self.digests.begin(self.machine.fingerprint() if empty else None)
        if base is not None:
            if base.chunks:
                self._take(base)
            else:  # The machine starts at the slot, empty.
                self.decided.jump(base.slot, base.time_ms, NO_BALLOT)
            self.snapshots.cut(sum(map(len, base.chunks)))
        for slot, batch in enumerate(recovered.decided, start=self.decided.next):
            self.decided.take(slot, batch)
            self.apply()  # The outcomes were sent in an earlier life.
        for slot in sorted(recovered.later):
            self.decided.take(slot, recovered.later[slot])
        self.digests.recovered()
        return self.divergence.flush()

    def apply(self) -> tuple[Batch, list[Sequence[Message]]]:
        """Apply the next slot, which is decided; return its batch and its outcomes.

        There is one tuple of outcomes for each command; the first command also advances the time.
        For a batch without commands, they are the outcomes of the deadlines that expired.
        """
        decided, snapshots, config = self.decided, self.snapshots, self.config
        batch = decided.advance()
        if config.pending and config.advance(decided.next):
            self.views_changed = True
            self.snapshots.hurry()  # A change is done once a majority has it in its journal.
        snapshots.grown += batch.size
        if snapshots.writer is not None:
            snapshots.writer.since.append(batch)
        commands = batch.commands
        if len(commands) == 1 and commands[0].startswith(CHANGE_PREFIX):
            membership = change_in(batch)
            if membership is not None:
                self.views_changed |= config.change(decided.next - 1, membership)
            commands = ()
        try:
            if not commands:
                outcomes = [self.machine.advance(decided.time_ms)]
            elif decided.next - 1 in self.skips:
                outcomes = self.machine.skip(decided.time_ms, commands, decided.next - 1)
            else:
                outcomes = self.machine.apply(decided.time_ms, commands)
        except PoisonError as error:
            raise error.at(decided.next - 1) from error.error
        if decided.next % self.digests.step == 0:
            self.digests.note(decided.next, self.machine.fingerprint())
        return batch, outcomes

    def trim(self, *, leading: bool) -> list[Effect]:
        """Compare the state if that is due, and make a snapshot if the journal should be cut."""
        compared = self.divergence.flush() if self.digests.due else []
        if not self.snapshots.is_due(leading=leading):
            return compared
        return [*compared, *self._begin_snapshot()]

    def restore(self, base: Base) -> list[Wake] | None:
        """Replace the state with a later one; return None if it is not later, or is invalid.

        Until the state is written, the journal has all that led to the former one
        (trimmed-is-durable).
        """
        if base.slot <= self.decided.next:
            return None
        try:
            self._take(base)
        except ValueError:
            return None
        self.digests.begin(None)
        self.shared.drop_awaited()
        return self.snapshots.restore(base)

    def _take(self, base: Base) -> None:
        """Replace the state of the machine, the views and the place in the log.

        Raises:
            ValueError: ``base`` cannot be read; nothing was changed.

        """
        chunks, terms, origin = split(base.chunks)
        self.machine.restore(chunks)
        self.views_changed |= self.config.restore(terms)
        self.decided.jump(base.slot, base.time_ms, origin)

    def _begin_snapshot(self, *, journaled: bool = True) -> list[Effect]:
        """Begin a snapshot, unless one is being made or the state is empty."""
        snapshots = self.snapshots
        if (
            snapshots.under_way
            or self.decided.next == 1
            or (journaled and snapshots.writer is not None)
        ):
            return []
        self.digests.wanted = True
        part = log_part(self.config.terms(), self.decided.origin)
        journaled = journaled and snapshots.journal_bytes > 0
        time_ms = self.decided.time_ms
        begun = snapshots.begin(self.machine, self.decided.next, time_ms, part, journaled=journaled)
        return [*begun, Observe("paxos.snapshot_begun")]

    def _on_write_chunk(self) -> Effects:
        """Divide the snapshot further, or write its next part."""
        snapshots = self.snapshots
        snapshots.ticking = False
        effects: list[Effect] = []
        if snapshots.under_way:
            frozen = snapshots.divide()
            if frozen is not None:
                effects += self.shared.take(frozen)
        elif self.divergence.why:
            snapshots.writer = None  # The record that this node has diverged must be kept.
        elif (written := snapshots.write()) is not None:
            part, is_last = written
            effects.append(part)
            if is_last:
                effects += self._end_checkpoint()
        if not snapshots.due and snapshots.is_due(leading=False):
            effects += self._begin_snapshot()
        return [*effects, *snapshots.tick()]

    def _end_checkpoint(self) -> list[Effect]:
        """Let other roles drop what was applied, now that it is written (trimmed-is-durable)."""
        trimmed = Trimmed(slot=self.decided.next)
        return [
            CheckpointEnd(),
            Send(acceptor_of(self.node), trimmed),
            Send(catchup_of(self.node), trimmed),
            Observe("paxos.trimmed"),
        ]

    def _on_fetch(self, receiver: Address, fetch: Fetch, now: Instant) -> Effects:
        """Send decided slots, or a part of the last snapshot, or a new one once it is made."""
        if node_of(receiver) not in self.config.nodes:
            return (Observe("paxos.stranger_fetches"),)
        what = "a request for slots from"
        if refused := self.bounds.refuse_slot(receiver, what, fetch.first, now):
            return refused
        if not 0 <= fetch.chunk < CHUNKS_MAX:
            text = f"a request for part {fetch.chunk} of a snapshot"
            return self.bounds.report(receiver, "paxos.impossible_slot", text, now)
        latest = self.shared.latest
        if fetch.slot:
            if latest is None or latest.slot != fetch.slot:
                return ()  # A newer snapshot has replaced it; the asking member begins again.
            return (self.shared.send(receiver, latest, fetch.chunk),)
        batches = self.decided.page(fetch.first)
        if batches is not None:
            return (Send(receiver, Slots(first=fetch.first, batches=batches)),)
        slot = 0 if latest is None else latest.slot
        if latest is None or slot <= fetch.first or not self.decided.reaches_back_to(slot):
            begun = self._begin_snapshot(journaled=False)
            self.shared.receivers[receiver] = None
            return [*begun, Send(receiver, self.snapshots.announcement())]
        return (self.shared.send(receiver, latest, 0),)

    def _on_export(self, proxy: Address, export: Export) -> Effects:
        """Return a part of a snapshot for a backup, or begin one."""
        begun: list[Effect] = []
        part, why, slot = None, "", export.slot
        if slot == 0:
            begun = self._begin_snapshot(journaled=False)
            slot = self.snapshots.slot
            if self.snapshots.under_way:
                self.shared.await_backup(slot)
        if slot not in self.shared.backups:
            why = f"no snapshot of slot {slot}" if slot else "nothing is decided yet"
        elif (made := self.shared.backups[slot]) is None:
            part = self.snapshots.announcement()
        elif (part := self.shared.part(made, export.chunk)) is None:
            why = f"the snapshot has no part {export.chunk}"
        return [*begun, Send(proxy, Exported(number=export.number, part=part, why=why))]


class DecidedSlots:
    """Hands out decided slots without a gap, and counts log time.

    Log time is the highest stamp that was handed out, but stamps of *leftovers* do not count. Say
    that a leader lost its majority and went on stamping, and only its own acceptor has those
    batches. The next leader does not see them, and its log time goes on from an earlier stamp. It
    gives way to a third leader, whose majority includes that acceptor, and which must propose what
    it finds: the second leader's batches, and in later slots the leftovers of the first. Their
    stamps run ahead of the second leader's, under which clients renewed their sessions, so they
    would end sessions on which clients rely.

    A leftover is known by its origin, the ballot under which it was proposed first, which is below
    that of an earlier slot. In other cases origins never fall: a leader whose own batch is in a
    slot found none for later slots in its majority, so none of lower ballots was chosen there.

    Invariants:
        decisions-stay: The batch decided for a slot never changes.
        slots-in-order: Slots are handed out in order, each once.

    """

    def __init__(self, log_max: int) -> None:
        self.log_max = log_max
        self.next = 1
        """The first slot not yet handed out."""
        self.time_ms = 0
        self.origin = NO_BALLOT
        """The highest origin of the batches that were handed out."""
        self.ready: dict[int, Batch] = {}
        """Decided slots from ``next`` on."""
        self.kept: dict[int, Batch] = {}
        """Slots that were handed out, in order, without a gap."""
        self.ready_bytes = 0
        self.kept_bytes = 0

    def take(self, slot: int, batch: Batch) -> bool:
        """Store a decided slot; return False if there was no room for it."""
        before = self.kept.get(slot) or self.ready.get(slot)
        # decisions-stay
        assert before is None or before == batch, f"slot {slot}: {before} and {batch}"
        if slot < self.next or before is not None:
            return True
        size = batch.size
        if slot >= self.next + VOTES_MAX or (
            slot > self.next and self.ready_bytes + size > VOTES_BYTES_MAX
        ):
            return False
        self.ready[slot] = batch
        self.ready_bytes += size
        return True

    def advance(self) -> Batch:
        """Hand out the batch of slot ``next``, which must be in ``ready`` (slots-in-order)."""
        slot, kept = self.next, self.kept
        batch = self.ready.pop(slot)
        self.next = slot + 1
        if batch.origin >= self.origin:
            self.origin = batch.origin
            self.time_ms = max(self.time_ms, batch.time_ms)
        self.ready_bytes -= batch.size
        kept[slot] = batch
        self.kept_bytes += batch.size
        while len(kept) > self.log_max or self.kept_bytes > LOG_BYTES_MAX:
            self.kept_bytes -= kept.pop(next(iter(kept))).size
        return batch

    def jump(self, slot: int, time_ms: int, origin: Ballot) -> None:
        """Continue from ``slot``: a snapshot of all slots before it was restored."""
        assert slot > self.next
        self.next, self.time_ms = slot, max(self.time_ms, time_ms)
        self.origin = max(self.origin, origin)
        self.ready = {at: batch for at, batch in self.ready.items() if at >= slot}
        self.ready_bytes = sum(batch.size for batch in self.ready.values())
        self.kept, self.kept_bytes = {}, 0

    def page(self, first: int) -> tuple[Batch, ...] | None:
        """Return a page of decided batches from slot ``first`` on; None if they are not kept."""
        if first >= self.next:
            return ()
        if first not in self.kept:
            return None
        batches = tuple(self.kept[slot] for slot in range(first, min(first + PAGE, self.next)))
        return batches[: page_of(batches)]

    def trim(self, slot: int) -> None:
        """Drop the slots before ``slot``, which every member has applied."""
        kept = self.kept
        while kept and (oldest := next(iter(kept))) < slot:
            self.kept_bytes -= kept.pop(oldest).size

    def reaches_back_to(self, slot: int) -> bool:
        """Return whether everything from ``slot`` on is still kept here."""
        return slot == self.next or slot in self.kept
