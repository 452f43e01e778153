"""Judges that follow the log by what nodes report of each slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from fencelock.actors.paxos.event import Applied, Restore
from fencelock.cluster.simulation.judge import LockJudge
from fencelock.cluster.simulation.trace import Delivery

T = TypeVar("T")


class SlotSequence(ABC, Generic[T]):
    """Judges what nodes report of the slots of the log, slot by slot.

    Each slot counts once, from the first node that applied it. A slot that a node applied without
    a report had no outcomes. If no node reports a slot, since all crashed, the state is not known
    from then on, and nothing more is judged.
    """

    def __init__(self) -> None:
        self.slots: dict[int, T] = {}
        """Reports of slots whose predecessors are not known yet."""
        self.empty: set[int] = set()
        """Such slots that had no outcomes."""
        self.next = 0
        """The slot to judge next, 0 before the first."""
        self.applied_by: dict[str, int] = {}
        """The slot up to which each node has reported what it applied in this life."""

    def applied(self, slot: int, report: T) -> None:
        """Judge the report of a slot, once all slots before it are judged."""
        self.next = self.next or slot
        if slot >= self.next:
            self.slots.setdefault(slot, report)
        self._go_on()

    def progress(self, node: str, slot: int) -> None:
        """Note that ``node`` has applied all slots before ``slot``: the others had no outcomes."""
        known = range(max(self.next, self.applied_by.get(node, slot)), slot)
        self.empty.update(one for one in known if one not in self.slots)
        self.applied_by[node] = slot
        self._go_on()

    def _go_on(self) -> None:
        while self.next in self.slots or self.next in self.empty:
            self.empty.discard(self.next)
            of_next = self.slots.pop(self.next, None)
            self.next += 1
            if of_next is not None:
                self._judge(of_next)

    @abstractmethod
    def _judge(self, report: T, /) -> None: ...


class LogJudge(LockJudge):
    """A `LockJudge` that also judges the outcomes in the log."""

    sequence: SlotSequence[Any]
    """The judge of the log."""

    def note_progress(self, delivered: Delivery) -> None:
        """Note which slots a node has applied."""
        match delivered.event:
            case Applied(slot=slot):
                self.sequence.progress(delivered.node, slot)
            case Restore():  # The outcomes of the slots that it covers are never sent.
                self.sequence.applied_by.pop(delivered.node, None)
            case _:
                pass

    def crashed(self, node: str, boot: int) -> None:
        """Note that ``node`` reports nothing more in this life."""
        self.sequence.applied_by.pop(node, None)
        super().crashed(node, boot)
