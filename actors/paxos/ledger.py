"""The decided slots of one replica: those not yet applied, and those kept for others. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actors.paxos.config import VOTES_MAX
from holdfast.actors.paxos.message import PAGE, Batch


class Ledger:
    """Hands out decided slots without a gap.

    Invariants:
        P11 What was decided for a slot never changes.
        P12 Slots are handed out in order, each once.

    Args:
        log_max: how many of those that were handed out are kept, at most.

    """

    def __init__(self, log_max: int) -> None:
        self.log_max = log_max
        self.next = 1
        """The first slot that was not handed out."""
        self.time_ms = 0
        """Log time: the highest stamp that was handed out."""
        self.ready: dict[int, Batch] = {}
        """Decided slots from ``next`` on."""
        self.kept: dict[int, Batch] = {}
        """Slots that were handed out, in order, without a gap."""

    def take(self, slot: int, batch: Batch) -> bool:
        """Note that ``slot`` is decided; return whether there was room for that."""
        before = self.kept.get(slot) or self.ready.get(slot)
        assert before is None or before == batch, f"slot {slot}: {before} and {batch}"  # P11
        if slot >= self.next + VOTES_MAX:
            return False
        if slot >= self.next:
            self.ready[slot] = batch
        return True

    def drain(self) -> Iterator[tuple[int, Batch]]:
        """Hand out what comes next, as long as it is there (P12)."""
        while self.next in self.ready:
            slot = self.next
            batch = self.ready.pop(slot)
            self.next += 1
            self.time_ms = max(self.time_ms, batch.time_ms)
            self.kept[slot] = batch
            if len(self.kept) > self.log_max:
                del self.kept[next(iter(self.kept))]
            yield slot, batch

    def jump(self, slot: int, time_ms: int) -> None:
        """Go on from ``slot``: the state after all slots before it was taken over."""
        assert slot > self.next
        self.next, self.time_ms = slot, max(self.time_ms, time_ms)
        self.ready = {at: batch for at, batch in self.ready.items() if at >= slot}
        self.kept = {}

    def page(self, first: int) -> tuple[Batch, ...] | None:
        """Return decided batches from slot ``first`` on, up to `PAGE`; None if they are gone."""
        if first >= self.next:
            return ()
        if first not in self.kept:
            return None
        return tuple(self.kept[slot] for slot in range(first, min(first + PAGE, self.next)))

    def trim(self, slot: int) -> None:
        """Forget what every member has applied: everything before ``slot``."""
        while self.kept and (oldest := next(iter(self.kept))) < slot:
            del self.kept[oldest]
