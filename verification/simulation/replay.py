"""The judge of the replicated table: it replays the log of a run through the simple model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from fencelock.actors.api.handover import Attach
from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.lock_message import Granted, Reason
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.redis import RECEIPT, KeyOutcome, KeysChanged
from fencelock.actors.effect import Effects
from fencelock.actors.message import Message
from fencelock.actors.paxos.config import change_in
from fencelock.actors.paxos.event import Decided, Learned, Skipped, SlotOutcomes
from fencelock.actors.paxos.wire import NO_BALLOT, Batch
from fencelock.actors.table.state import INVARIANTS as TABLE_INVARIANTS
from fencelock.actors.table.wire import LogCommand
from fencelock.cluster.node.lock_machine import read_command
from fencelock.verification.model.table import (
    OWNER,
    Model,
    Summary,
    fields_of,
    request_of,
    summary_of,
)
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError, ViolationReport

RULES = {
    **{name: rule for name, rule in TABLE_INVARIANTS.items() if name != "free-leaves-nothing"},
    "served": "a request is granted as soon as it is its turn and what it asks for is free",
    "early": "nothing ends or passes before its time",
    "late": "what is due ends at the first log time at which it may",
    "deadline": "a hold lasts as long as was asked for, and 1 ms of log time more",
    "lost": "a hold that was taken away is not renewed",
    "guard": "a change that names a hold is applied only while the lock is held under that fence",
    "versions": "each change of an entry finds the version that it requires, and versions rise",
    "values": "each change of a counter finds the value that the last one left, and leaves its own",
    "count": "a latch or a pool counts each request once, by its amount",
    "release": "when the count of a latch is 0, all who wait pass, and nobody waits any more",
    "together": "all parties of a barrier pass in one step, each for one arrival",
    "broken": "if a party of a barrier stops waiting, all others are refused in that step",
    "index": "the indices of a generation are in the order of arrival, from 0",
    "capacity": "no more is granted or taken than is free",
    "amount": "a take gets its amount, or all that is free if it drains",
    "size": "a claim that is larger than its object is refused, and a resize shows what is free",
    "state": "a request of a Redis door finds each key as the last one left it",
    "holds": "a key ends with as many removals as there were additions",
    "attach": "a lock is attached only while it is detached, with its secret, and once",
    "between": "from its detach on, a lock is granted to nobody until it is attached or lost",
    "outcome": "each command has the outcomes that the rules of the table give it, in their order",
}
"""The rules that show in the outcomes of commands, by name: those that hold for all objects, and
those of some kinds."""

FIELDS = {
    ("BarrierPassed", "index"): "index",
    ("CountedDown", "left"): "count",
    ("CounterChanged", ""): "values",
    ("EntryChanged", ""): "versions",
    ("Granted", "count"): "same-fence-again",
    ("Granted", "fence"): "fences-rise",
    ("Granted", "grace_ms"): "deadline",
    ("Granted", "hold_ms"): "deadline",
    ("KeysChanged", "changed"): "state",
    ("KeysChanged", "fence"): "fences-rise",
    ("KeysChanged", "left_ms"): "deadline",
    ("KeysChanged", "state"): "state",
    ("KeysChanged", "times"): "holds",
    ("KeysChanged", "value"): "one-outcome",
    ("PermitsGiven", ""): "count",
    ("PermitsTaken", "amount"): "amount",
    ("Released", "count"): "same-fence-again",
    ("Renewed", ""): "deadline",
    ("Resized", ""): "size",
}
"""The rule that is broken if this field of an outcome is wrong; under an empty name, any other."""

MISSING: dict[str | Reason, str] = {
    "BarrierPassed": "together",
    "Ended": "late",
    "Granted": "served",
    "HoldLost": "late",
    "LatchPassed": "release",
    "PermitsTaken": "served",
    Reason.BROKEN: "broken",
    Reason.INVALID: "size",
    Reason.TIMED_OUT: "late",
}
"""The rule that is broken if there is no such outcome, or no refusal for that reason."""

REFUSED = {
    Reason.ALREADY_HELD: "same-fence-again",
    Reason.LIMIT_REACHED: "same-fence-again",
    Reason.SESSION_EXPIRED: "ended-gets-nothing",
}
"""The rule that is broken by any outcome instead of a refusal for that reason."""

UNEXPECTED = {
    "BarrierPassed": "together",
    "CounterChanged": "guard",
    "Ended": "early",
    "EntryChanged": "guard",
    "HoldLost": "early",
    "LatchPassed": "early",
    "PermitsTaken": "capacity",
    "Released": "release-by-fence",
    "Renewed": "lost",
}
"""The rule that is broken by such an outcome where the model has none, or a refusal. For grants
see `TableReplay`."""


class TableReplay(Judge):
    """Judges `RULES`: each slot of the log has the outcomes that the model has for its commands.

    It judges the first report of each slot. If a member reports no outcomes for a slot between two
    others, the slot had none. If no member ever learned a batch, because all of them crashed, the
    state is unknown from there on, and nothing more is judged. It also judges reads, for the judges
    that see them.
    """

    def __init__(self, violation_report: ViolationReport | None = None) -> None:
        self.violation_report = violation_report or ViolationReport(RULES)
        self.model = Model()
        self.batches: dict[int, Batch] = {}
        self.next = 1
        """The slot to replay next."""
        self.compared = 0
        """The number of outcomes that were compared with those of the model."""
        self.floor = 0
        """The slot after all that any user knows by a reply or by a read."""
        self._origin = NO_BALLOT
        self._reports: dict[int, Sequence[Message]] = {}
        """Outcomes of slots that are not yet replayed."""
        self._expected: dict[int, list[Summary]] = {}
        """Outcomes of slots that no member has reported."""
        self._replied: set[Summary] = set()
        """All outcomes of the model in the slots compared so far."""
        self._reported: dict[str, int] = {}
        """The last slot that each member has reported in its present life."""
        self._past: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
        """The values of what can be read, each with the slot after which it is so."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        match delivered.event:
            case Decided(slot=slot, batch=batch):
                self.batches.setdefault(slot, batch)
            case Learned(slots=slots):
                for slot, batch in slots:
                    self.batches.setdefault(slot, batch)
            case SlotOutcomes(slot=slot, outcomes=outcomes):
                for between in range(self._reported.get(delivered.node, slot - 1) + 1, slot):
                    self._report(between, ())
                self._reported[delivered.node] = slot
                self._report(slot, outcomes)
            case Skipped():  # The slots that a snapshot covers are not reported.
                self._reported.pop(delivered.node, None)
            case _:
                pass

    def crashed(self, node: str, boot: int) -> None:
        self._reported.pop(node, None)

    def knows(self, slot: int) -> None:
        """Record that a user knows, by a reply, what the log has in ``slot``."""
        self.floor = max(self.floor, slot + 1)

    def judge_read(
        self, reader: str, floor: int, reply: Any, values: Mapping[tuple[str, str], Any]
    ) -> None:
        """Judge a read: it returns the ``values`` of some objects and keys before its slot.

        The slot comes after all changes that any user knew when the read was sent: that is the
        `floor` of that time. As changes take effect in the order of the log, this makes the history
        of each value linearizable.
        """
        if reply.slot < floor:
            raise ViolationError(f"reads: {reader} received {reply!r}, but {floor} was known")
        self.knows(reply.slot - 1)
        self.when_known(reply.slot, partial(self._judge_values, reader, reply, values))

    def _judge_values(self, reader: str, reply: Any, values: Mapping[tuple[str, str], Any]) -> None:
        right = {(lock, key): self.at(lock, reply.slot, key) for lock, key in values}
        if values != right:
            raise ViolationError(f"reads: {reader} received {reply!r}, and there was {right}")

    def when_known(self, slot: int, check: Callable[[], None]) -> None:
        """Call ``check`` as soon as all slots before ``slot`` are replayed."""
        self._waiting.append((slot, check))
        self._replay_to(slot - 1)

    def at(self, lock: str, slot: int, key: str = "") -> Any:
        """Return the value of an object after all slots before ``slot``, or None.

        It is None, too, for a kind of object that `Model.readable` leaves out.
        """
        past = reversed(self._past[lock, key])
        return next((value for after, value in past if after < slot), None)

    def judge(self, slot: int, batch: Batch, outcomes: Sequence[Message]) -> None:
        """Judge a slot of a log that no role reports."""
        self.batches[slot] = batch
        self._report(slot, outcomes)

    def _report(self, slot: int, outcomes: Sequence[Message]) -> None:
        if slot in self._expected:
            self._compare(slot, outcomes)
        elif slot >= self.next:
            self._reports.setdefault(slot, outcomes)
            self._replay_to(slot)

    def _replay_to(self, slot: int) -> None:
        while self.next <= slot and (batch := self.batches.get(self.next)) is not None:
            self._replay(self.next, batch)
            self.next += 1
        due = [check for known, check in self._waiting if known <= self.next]
        self._waiting = [one for one in self._waiting if one[0] > self.next]
        for check in due:
            check()

    def _replay(self, slot: int, batch: Batch) -> None:
        time_ms = 0 if batch.origin < self._origin else batch.time_ms  # A leftover has no time.
        self._origin = max(self._origin, batch.origin)
        empty = not batch.commands or change_in(batch) is not None
        expected = self.model.advance(time_ms) if empty else []
        for command in commands_of(batch):
            expected += self.model.apply(time_ms, command)
        self._expected[slot] = expected
        if slot in self._reports:
            self._compare(slot, self._reports.pop(slot))
        readable = self.model.readable()
        for name in {*readable, *self._past}:
            past = self._past[name]
            if readable.get(name) != (past[-1][1] if past else None):
                past.append((slot, readable.get(name)))

    def _compare(self, slot: int, outcomes: Sequence[Message]) -> None:
        expected = self._expected.pop(slot)
        self.compared += len(expected)
        if [summary_of(one) for one in outcomes] != expected:
            self._judge(slot, expected, outcomes)
        self._replied.update(expected)

    def _judge(self, slot: int, expected: list[Summary], outcomes: Sequence[Message]) -> None:
        """Report the first difference between the outcomes of a slot and those of the model."""
        seen = [summary_of(one) for one in outcomes]
        missing = [one for one in expected if one not in seen]
        surplus = [one for one in outcomes if summary_of(one) not in expected]
        pairs = zip_longest(expected, outcomes)
        first = next((a, b) for a, b in pairs if b is None or a != summary_of(b))
        wanted = first[0] if first[0] in missing else None
        found = first[1] if first[1] in surplus else None
        if wanted is not None:
            found = next((one for one in surplus if is_of_one(wanted, summary_of(one))), found)
        if found is not None:
            summary = summary_of(found)
            wanted = next((one for one in missing if is_of_one(one, summary)), None)
        elif wanted is None:  # They are in another order.
            wanted, found = first
        commands = [*commands_of(self.batches[slot])]
        one = wanted if found is None else summary_of(found)
        about = () if one is None else request_of(one)
        own = [one for one in commands if tuple(getattr(one, name, "") for name in OWNER) == about]
        instead = f"and not {shown(wanted)}" if wanted else "which the model does not have"
        text = f"{found!r}, {instead}" if found else f"no {shown(wanted or ())}"
        overtaken = [a[1] for a in missing if a[0] == "Granted"]
        self.violation_report(
            self._rule(wanted, found, own, overtaken),
            f"slot {slot} at {self.model.now} ms: {text}, after {own or commands}",
        )

    def _rule(
        self,
        wanted: Summary | None,
        found: Message | None,
        commands: Sequence[LogCommand],
        overtaken: Sequence[str],
    ) -> str:
        """Return the rule that is broken by ``found`` in place of ``wanted``.

        ``commands`` are those of the request, and ``overtaken`` the locks of missing grants.
        """
        if wanted in self._replied:
            return "one-outcome"
        kind = type(found).__name__
        if wanted is not None and found is not None and wanted[0] == kind:
            rule = rule_of_field(wanted, found)
            if rule == "fences-rise" and isinstance(found, Granted):
                holds = self.model.find(fence=wanted[2])
                entered_again = any(one.first != found.request for one in holds)
                return "same-fence-again" if entered_again else rule
            return rule
        reason = wanted[2] if wanted is not None and wanted[0] == "Refused" else None
        if found is not None and reason is not None and reason in REFUSED:
            return REFUSED[reason]
        if isinstance(found, Granted):
            return self._rule_of_grant(found, commands, overtaken)
        if kind in UNEXPECTED:
            return UNEXPECTED[kind]
        if wanted is None:
            return "outcome"
        if wanted[0] == "Granted" and wanted[1].startswith(RECEIPT):
            return "one-outcome"
        return MISSING.get(reason or wanted[0], "outcome")

    def _rule_of_grant(
        self, found: Granted, commands: Sequence[LogCommand], overtaken: Sequence[str]
    ) -> str:
        """Return the rule that is broken by a grant that the model does not have."""
        holder, places = self.model.holder(found.lock), self.model.claims
        waits = [one for one in places if found.lock in one.names and not one.fence]
        first = min(waits, key=lambda one: one.place, default=None)
        if any(isinstance(one, Attach) for one in commands):
            return "attach"
        if holder is not None and holder.detached_by is not None:
            return "between"
        if kind_of(found.lock) == SEVERAL:
            return "all-at-once"
        if found.lock in overtaken:
            return "queue-in-log-order"
        if holder is not None and holder.permits == 1:
            return "one-holder"
        overtakes = first is not None and (first.session, first.owner) != found.key[:2]
        return "queue-in-log-order" if overtakes else "capacity"


def commands_of(batch: Batch) -> Iterator[LogCommand]:
    """Return the commands of a batch. Those that cannot be read do nothing."""
    return filter(None, map(read_command, batch.commands))


def is_of_one(outcome: Summary, other: Summary) -> bool:
    """Return whether two outcomes are of one request."""
    return request_of(outcome) == request_of(other) and any(request_of(outcome)[-1:])


def rule_of_field(wanted: Summary, found: Message) -> str:
    """Return the rule that is broken by the first field that differs."""
    pairs = zip(fields_of(type(found)), wanted[1:], summary_of(found)[1:], strict=True)
    name, one, other = next(pair for pair in pairs if pair[1] != pair[2])
    if isinstance(found, KeysChanged) and name == "keys":
        both = next(pair for pair in zip(one, other, strict=True) if pair[0] != pair[1])
        of_key = zip(KeyOutcome._fields, *both, strict=True)
        name = next(field for field, mine, its in of_key if mine != its)
    kind = type(found).__name__
    return FIELDS.get((kind, name)) or FIELDS.get((kind, ""), "outcome")


def shown(outcome: Summary) -> str:
    return f"{outcome[0]}({', '.join(map(repr, outcome[1:]))})"
