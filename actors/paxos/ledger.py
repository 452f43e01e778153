"""The decided slots of one replica: those not yet applied, and those kept for others. Pure."""

from __future__ import annotations

from fencelock.actors.paxos.config import LOG_BYTES_MAX, VOTES_BYTES_MAX, VOTES_MAX
from fencelock.actors.paxos.message import PAGE, Batch


class Ledger:
    """Hands out decided slots without a gap.

    Invariants:
        P11 The batch decided for a slot never changes.
        P12 Slots are handed out in order, each once.

    Args:
        log_max: maximum number of handed-out slots that are kept.
        log_bytes_max: maximum bytes of commands that are kept.

    """

    def __init__(self, log_max: int, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        self.log_max = log_max
        self.log_bytes_max = log_bytes_max
        self.next = 1
        """The first slot not yet handed out."""
        self.time_ms = 0
        """Log time: the highest stamp that was handed out."""
        self.ready: dict[int, Batch] = {}
        """Decided slots from ``next`` on."""
        self.kept: dict[int, Batch] = {}
        """Slots that were handed out, in order, without a gap."""
        self.ready_bytes = 0
        self.kept_bytes = 0

    def take(self, slot: int, batch: Batch) -> bool:
        """Store a decided slot; return False if there was no room for it."""
        before = self.kept.get(slot) or self.ready.get(slot)
        assert before is None or before == batch, f"slot {slot}: {before} and {batch}"  # P11
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
        """Hand out the batch of slot ``next``, which must be in ``ready`` (P12)."""
        slot, kept = self.next, self.kept
        batch = self.ready.pop(slot)
        self.next = slot + 1
        self.time_ms = max(self.time_ms, batch.time_ms)
        self.ready_bytes -= batch.size
        kept[slot] = batch
        self.kept_bytes += batch.size
        while len(kept) > self.log_max or self.kept_bytes > self.log_bytes_max:
            self.kept_bytes -= kept.pop(next(iter(kept))).size
        return batch

    def jump(self, slot: int, time_ms: int) -> None:
        """Continue from ``slot``: a snapshot of all slots before it was restored."""
        assert slot > self.next
        self.next, self.time_ms = slot, max(self.time_ms, time_ms)
        self.ready = {at: batch for at, batch in self.ready.items() if at >= slot}
        self.ready_bytes = sum(batch.size for batch in self.ready.values())
        self.kept, self.kept_bytes = {}, 0

    def page(self, first: int) -> tuple[Batch, ...] | None:
        """Return decided batches from slot ``first`` on, up to `PAGE`; None if they are gone."""
        if first >= self.next:
            return ()
        if first not in self.kept:
            return None
        return tuple(self.kept[slot] for slot in range(first, min(first + PAGE, self.next)))

    def trim(self, slot: int) -> None:
        """Drop the slots before ``slot``, which every member has applied."""
        kept = self.kept
        while kept and (oldest := next(iter(kept))) < slot:
            self.kept_bytes -= kept.pop(oldest).size

    def reaches_back_to(self, slot: int) -> bool:
        """Return whether everything from ``slot`` on is still kept here."""
        return slot == self.next or slot in self.kept
