"""Judges that follow the log through the reports of nodes about its slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import client_of, titled
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.request import Key, Request
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.paxos.event import Applied, Restore, SlotOutcomes
from fencelock.actors.paxos.message import Ballot, Prepare
from fencelock.actors.session.message import HoldsLost
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError


class SlotSequence(ABC):
    """Judges the reports of nodes about the slots of the log, in the order of the slots.

    Each slot is judged once, by the report of the first node that applied it. A slot that a node
    applied without a report had no outcomes. If no node reports a slot, because all nodes crashed,
    the state is unknown from there on, and nothing more is judged.
    """

    REQUESTS: ClassVar[tuple[type[Request], ...]] = ()
    """The types of the requests to keep in `commands`."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotOutcomes] = {}
        """Reports of slots that wait for the reports of earlier slots."""
        self.empty: set[int] = set()
        """Slots without outcomes that wait for the reports of earlier slots."""
        self.next = 0
        """The slot to judge next, 0 before the first."""
        self.applied_by: dict[str, int] = {}
        """The slot up to which each node has applied the log in its present life."""
        self.commands: dict[Key, Any] = {}
        """The requests that nodes have received, by their keys."""
        self.outcomes: dict[Key, object] = {}
        """The first outcome of each request; see `is_first`."""
        self.queues: dict[str, list[Key]] = defaultdict(list)
        """The requests that wait for each object, in order; see `follow_queue`."""
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        """Checks, each with the slot up to which all must be known first; see `when_known`."""

    def is_first(self, key: Key, outcome: object) -> bool:
        """Return whether ``outcome`` is the first of its request; all must be equal."""
        if key not in self.outcomes:
            self.outcomes[key] = outcome
            return True
        if self.outcomes[key] != outcome:
            raise ViolationError(f"once: {outcome!r} after {self.outcomes[key]!r}")
        return False

    def follow_queue(self, name: str, outcome: Queued | Refused) -> None:
        """Let a request join the queue of ``name``, or leave it."""
        queue = self.queues[name]
        if isinstance(outcome, Refused):
            self.queues[name] = [one for one in queue if one != outcome.key]
        elif outcome.key not in queue:
            queue.append(outcome.key)

    def when_known(self, slot: int, judge: Callable[[], None]) -> None:
        """Call ``judge`` as soon as all slots before ``slot`` are judged."""
        self.waiting.append((slot, judge))
        self._go_on()

    def applied(self, report: SlotOutcomes) -> None:
        """Judge the report of a slot as soon as all earlier slots are judged."""
        self.next = self.next or report.slot
        if report.slot >= self.next:
            self.slots.setdefault(report.slot, report)
        self._go_on()

    def progress(self, node: str, slot: int) -> None:
        """Note that ``node`` has applied all slots before ``slot``.

        Those that it has not reported had no outcomes.
        """
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
        due = [judge for slot, judge in self.waiting if slot <= self.next]
        self.waiting = [one for one in self.waiting if one[0] > self.next]
        for judge in due:
            judge()

    @abstractmethod
    def _judge(self, report: SlotOutcomes, /) -> None: ...


class LogJudge(LockJudge):
    """A `LockJudge` that also judges the outcomes in the log."""

    LOG: ClassVar[type[SlotSequence]]
    """The judge of the outcomes."""

    log: Any
    """The one of this run."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.log = self.LOG()
        self.ballots: set[Ballot] = set()
        """The ballots in which a node stood for election."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        self.follow(delivered)
        super().handled(delivered, effects)

    def follow(self, delivered: Delivery) -> None:
        """Judge what a node has applied; note the requests that it has received."""
        match delivered.event:
            case SlotOutcomes():
                self.log.applied(delivered.event)
            case Applied(slot=slot):
                self.log.progress(delivered.node, slot)
            case Prepare(ballot=ballot, first=first) if ballot not in self.ballots:
                # A node stands from the first slot on that it has not applied.
                self.ballots.add(ballot)
                self.log.progress(node_of(ballot.leader), first)
            case Request() as request if request.session:
                if isinstance(request, self.log.REQUESTS):
                    self.log.commands.setdefault(request.key, request)
            case Restore():  # The node reports no outcomes of the slots that a snapshot covers.
                self.log.applied_by.pop(delivered.node, None)
            case _:
                pass

    def crashed(self, node: str, boot: int) -> None:
        self.log.applied_by.pop(node, None)
        super().crashed(node, boot)


class PassJudge(LogJudge):
    """Judges one run of objects at which contenders pass.

    - Wants: a contender passes at most as often as the log has let it pass.
    """

    passed: type[UpdateReply]
    """The reply that lets a contender pass."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.let_pass: Counter[tuple[Address, str]] = Counter()
        """The passes of each contender and object that are in the log and not yet received."""
        self.known: set[Key] = set()

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case SlotOutcomes():
                for outcome in event.outcomes:
                    if isinstance(outcome, self.passed) and outcome.key not in self.known:
                        self.known.add(outcome.key)
                        contender = address_of(client_of(outcome.session), outcome.owner)
                        self.let_pass[contender, outcome.lock] += 1
            case HoldsLost():
                self.losses += len(event.losses)
            case UpdateReply() if (
                isinstance(event, self.passed) and delivered.to in self.contenders
            ):
                self.grants += 1
                self.let_pass[delivered.to, event.lock] -= 1
                if self.let_pass[delivered.to, event.lock] < 0:
                    raise ViolationError(f"wants: {delivered.to} passes {titled(event.lock)}")
            case _:
                pass
        self.follow(delivered)
