"""The applied state of a replica: its machine, the slots that led to it, its snapshots. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Message
from fencelock.actors.paxos.config import acceptor_of, catchup_of
from fencelock.actors.paxos.digest import Digests
from fencelock.actors.paxos.digest_message import Compare, Isolate, TableDigest
from fencelock.actors.paxos.divergence import DivergenceWatch
from fencelock.actors.paxos.event import (
    FetchSlots,
    LogFull,
    MinApplied,
    ResendChunk,
    Restore,
    Trimmed,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.ledger import Ledger
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.message import Batch, Slots
from fencelock.actors.paxos.snapshots import DEVELOP_MS, Snapshots, records_of
from fencelock.actors.paxos.timer import WriteChunk

PastHears = MinApplied | FetchSlots | WriteChunk | LogFull | TableDigest | Compare | Isolate
"""Events that `State` handles."""


class State:
    """Applies slots in order, each once, and drops them when a snapshot covers them.

    Invariants:
        P16 Nothing that led to a state is dropped before that state is durable: roles
            that trim learn of it by a `Send` behind the `Checkpoint`.

    Args:
        node: the id of its node.
        machine: the state machine that commands are applied to.
        ledger: decided slots.
        snapshots: decides when to make a snapshot.
        watching: compares the state with that of others.

    """

    def __init__(
        self,
        node: str,
        machine: Machine,
        ledger: Ledger,
        snapshots: Snapshots,
        watching: DivergenceWatch,
    ) -> None:
        self.node = node
        self.machine = machine
        self.ledger = ledger
        self.snapshots = snapshots
        self.watching = watching
        self.digests = watching.digests

    @classmethod
    def of(
        cls,
        node: str,
        members: tuple[str, ...],
        machine: Machine,
        listener: Address | None,
        log_max: int,
        journal_bytes: int,
        digest_slots: int,
    ) -> State:
        """Return the state of a replica that has applied nothing; see `Replica` for arguments."""
        snapshots = Snapshots(journal_bytes, members.index(node), len(members))
        digests = Digests(node, members, digest_slots)
        watching = DivergenceWatch(digests, listener, journal=journal_bytes > 0)
        return cls(node, machine, Ledger(log_max), snapshots, watching)

    @property
    def next(self) -> int:
        """The first slot that is not applied."""
        return self.ledger.next

    def handle(self, sender: Address, event: PastHears) -> Effects:
        """Send slots, make snapshots, drop old slots, compare digests."""
        match event:
            case MinApplied():
                self.ledger.trim(event.slot)
                return ()
            case FetchSlots():
                return self._on_excerpt(event)
            case WriteChunk():
                return self._on_develop()
            case LogFull():
                return self._photograph()
            case TableDigest() | Compare() | Isolate():
                return self.watching.handle(sender, event, self.next)

    def recover(self, recovered: Recovered) -> list[Effect]:
        """Apply the journal to the machine, and compare the result with other members."""
        base = recovered.base
        empty = base is None or not base.chunks
        self.digests.begin(self.machine.fingerprint() if empty else None)
        if base is not None:
            if base.chunks:  # Without chunks the machine starts at the slot, empty.
                self.machine.restore(base.chunks)
            self.ledger.jump(base.slot, base.time_ms)
            self.snapshots.replace(base.slot, base.chunks)
        for slot, batch in enumerate(recovered.decided, start=self.next):
            self.ledger.take(slot, batch)
            self.apply()  # The outcomes were sent in an earlier life.
        for slot in sorted(recovered.later):
            self.ledger.take(slot, recovered.later[slot])
        self.digests.recovered()
        return self.watching.flush()

    def apply(self) -> tuple[Batch, list[Sequence[Message]]]:
        """Apply the next slot, which is decided; return its batch and its outcomes.

        Those are the outcomes of each command, the first of which lets time pass itself; for a
        batch without commands, they are those of the deadlines that its time let expire.
        """
        ledger, snapshots = self.ledger, self.snapshots
        batch = ledger.advance()
        snapshots.grown += batch.size
        if snapshots.under_way:
            snapshots.since.append(batch)
        if batch.commands:
            outcomes = self.machine.apply(ledger.time_ms, batch.commands)
        else:
            outcomes = [self.machine.advance(ledger.time_ms)]
        if ledger.next % self.digests.step == 0:
            self.digests.note(ledger.next, self.machine.fingerprint())
        return batch, outcomes

    def trim(self, *, leading: bool) -> list[Effect]:
        """Compare the state if that is due, and make a snapshot if the journal should be cut."""
        compared = self.watching.flush() if self.digests.due else []
        if not self.snapshots.is_due(leading=leading):
            return compared
        return [*compared, *self._photograph()]

    def restore(self, restore: Restore) -> list[Effect] | None:
        """Replace the state with a later one; return None if it is not later, or is invalid.

        When the effects are performed, the caller has sent every role the new slot before.
        """
        if restore.slot <= self.next:
            return None
        try:
            self.machine.restore(restore.chunks)
        except ValueError:
            return None
        self.ledger.jump(restore.slot, restore.time_ms)
        self.snapshots.replace(restore.slot, restore.chunks)
        self.digests.begin(None)
        return self._keep(records_of(restore.slot, restore.time_ms, restore.chunks))

    def _photograph(self) -> list[Effect]:
        """Begin a snapshot, unless one is being made or the state is empty."""
        if self.snapshots.under_way or self.next == 1:
            return []
        self.digests.want()
        begun = self.snapshots.begin(self.machine, self.next, self.ledger.time_ms)
        return [*begun, Observe("paxos.photographed")]

    def _on_develop(self) -> Effects:
        """Continue the snapshot; once it is complete, let it replace what led to it."""
        if not self.snapshots.under_way:
            return ()
        if not self.snapshots.develop():
            return (Wake(DEVELOP_MS, WriteChunk()),)
        photographed, records = self.snapshots.finish()
        return [Send(catchup_of(self.node), photographed), *self._keep(records)]

    def _keep(self, records: tuple[Message, ...]) -> list[Effect]:
        """Write down all that was applied, and only then let other roles drop it (P16)."""
        if not self.snapshots.journal_bytes or self.watching.why:
            return []  # The record that this node has diverged must be kept.
        trimmed = Trimmed(slot=self.next)
        return [
            Checkpoint(records),
            Send(acceptor_of(self.node), trimmed),
            Send(catchup_of(self.node), trimmed),
            Observe("paxos.trimmed"),
        ]

    def _on_excerpt(self, excerpt: FetchSlots) -> Effects:
        """Send decided slots, or the last snapshot, or a new one once it is made."""
        batches = self.ledger.page(excerpt.first)
        if batches is not None:
            return (Send(excerpt.asker, Slots(first=excerpt.first, batches=batches)),)
        if excerpt.slot > excerpt.first and self.ledger.reaches_back_to(excerpt.slot):
            return (Send(catchup_of(self.node), ResendChunk(asker=excerpt.asker)),)
        begun = self._photograph()
        self.snapshots.askers[excerpt.asker] = None
        return begun
