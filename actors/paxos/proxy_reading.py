"""Queries that do not change the table, sent to the replica of the same node."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fencelock.actors.api.message import Contender, Inspect, LockStatus, Reason
from fencelock.actors.api.name import client_of
from fencelock.actors.api.session_message import ListedLock, LockList
from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Instant, Message, ms_between, node_of
from fencelock.actors.paxos.event import Consult, Consulted
from fencelock.actors.paxos.proxy_event import Query
from fencelock.actors.paxos.proxy_quorum_contact import QuorumContact
from fencelock.actors.paxos.proxy_wording import refuse
from fencelock.actors.table.report import (
    Browse,
    Browsed,
    HolderSeen,
    LockReport,
    Looked,
    LookUp,
    WaiterSeen,
)

_look_up, _consult, _lock_status = maker(LookUp), maker(Consult), maker(LockStatus)

QUESTIONS_MAX = 10_000
"""Maximum unanswered queries of one node."""

READ_MS = 10_000
"""Timeout of a query (ms). A caller inside the node is then refused; a client in another process
has sent it again meanwhile, or has given up by its own timeout."""

SHOWN_BYTES_MAX = 1 << 19
"""Maximum text of one answer (bytes), half of a frame."""


@dataclass(slots=True, eq=False)
class Reading:
    """One query in flight."""

    asker: Address
    question: Query
    since: Instant


class Readings:
    """All queries in flight. One that is sent again is forwarded once.

    Args:
        node: this node.
        replica: the replica of the same node.
        silence: measures how long the log has been silent.

    """

    def __init__(self, node: str, replica: Address, silence: QuorumContact) -> None:
        self.node = node
        self.replica = replica
        self.silence = silence
        self.number = 0
        self.by_number: OrderedDict[int, Reading] = OrderedDict()
        """Queries in flight, in the order of arrival."""
        self.asked: set[tuple[Address, Query]] = set()
        self.shown: tuple[LockReport, Contender | None, tuple[Contender, ...]] | None = None
        """The last report with its texts: replicas return the same report to all clients while the
        lock
        does not change."""

    def ask(self, asker: Address, question: Query, now: Instant) -> Effects:
        """Query the replica, unless the same query is in flight."""
        asked = asker, question
        if asked in self.asked:
            return ()
        if len(self.by_number) >= QUESTIONS_MAX:
            text = f"node {self.node} has {QUESTIONS_MAX} unanswered questions, its limit"
            return [refuse(asker, question, Reason.OVERLOADED, text)]
        self.by_number[self.next_number()] = Reading(asker, question, now)
        self.asked.add(asked)
        match question:
            case Inspect():
                asks: LookUp | Browse = _look_up(lock=question.lock)
            case _:
                asks = Browse(prefix=question.prefix, after=question.after, most=question.most)
        consult = _consult(number=self.number, question=asks, age_ms=question.age_ms)
        return [Send(self.replica, consult)]

    def next_number(self) -> int:
        """Return a number that no query had."""
        self.number += 1
        return self.number

    def on_consulted(self, consulted: Consulted, now: Instant) -> Effects:
        """Answer a query, or refuse it with a reason."""
        reading = self.by_number.get(consulted.number)
        if reading is None:
            return ()
        self._end(consulted.number, reading)
        asker, question = reading.asker, reading.question
        match consulted.answer, question:
            case (Looked(report=report), Inspect()):
                return [Send(asker, self._status(report, question, consulted))]
            case (Browsed(), _) if not isinstance(question, Inspect):
                return [Send(asker, _list(consulted.answer, question, consulted))]
            case _ if question.age_ms is not None:
                known = in_words(consulted.age_ms)
                text = f"node {self.node}: {known}, at most {question.age_ms} ms were allowed"
                return [refuse(asker, question, Reason.STALE, text), Observe("proxy.stale_read")]
            case _:
                return self._give_up(reading, now)

    def end_old(self, now: Instant) -> list[Effect]:
        """End queries that have timed out."""
        effects: list[Effect] = []
        while self.by_number:
            number, reading = next(iter(self.by_number.items()))
            if ms_between(reading.since, now) < READ_MS:
                break
            self._end(number, reading)
            effects += self._give_up(reading, now)
        return effects

    def _status(self, report: LockReport, inspect: Inspect, consulted: Consulted) -> Message:
        if self.shown is None or self.shown[0] is not report:
            holder = None if report.holder is None else holder_of(report.holder)
            self.shown = report, holder, waiters_of(report, SHOWN_BYTES_MAX)
        _, holder, waiters = self.shown
        return _lock_status(
            lock=inspect.lock,
            holder=holder,
            waiters=waiters,
            waits_for=(),
            session=inspect.session,
            request=inspect.request,
            slot=consulted.slot,
            age_ms=consulted.age_ms,
        )

    def _end(self, number: int, reading: Reading) -> None:
        del self.by_number[number]
        self.asked.discard((reading.asker, reading.question))

    def _give_up(self, reading: Reading, now: Instant) -> list[Effect]:
        if node_of(reading.asker) != self.node:
            return [Observe("proxy.read_unanswered")]
        text = f"nothing read for {ms_between(reading.since, now)} ms"
        text = f"{text}: {self.silence.in_words(now)}"
        return [refuse(reading.asker, reading.question, Reason.UNAVAILABLE, text)]


def in_words(age_ms: int) -> str:
    """Describe the possible age of this node's state, as `Consulted` gives it."""
    if age_ms < 0:
        return "it is not known how old its state is"
    return f"its state may be {age_ms} ms old"


def holder_of(seen: HolderSeen) -> Contender:
    """Return a holder as clients see it."""
    return Contender(
        node=client_of(seen.session),
        session=seen.session,
        owner=seen.owner,
        fence=seen.fence,
        since_ms=seen.held_ms,
        label=seen.label,
        times=seen.times,
    )


def waiters_of(report: LockReport, bytes_max: int) -> tuple[Contender, ...]:
    """Return the waiters of a lock as clients see them, in order, as many as fit."""
    shown: list[Contender] = []
    for seen in report.waiters:
        waiter = _waiter(seen)
        bytes_max -= size_of(waiter)
        if bytes_max < 0:
            break
        shown.append(waiter)
    return tuple(shown)


def size_of(contender: Contender) -> int:
    """Return a lower bound on the size of ``contender`` in a frame (bytes)."""
    texts = (contender.node, contender.session, contender.owner, contender.label)
    return sum(len(text.encode()) + 3 for text in texts) + 32


def _waiter(seen: WaiterSeen) -> Contender:
    return Contender(
        node=client_of(seen.session),
        session=seen.session,
        owner=seen.owner,
        fence=None,
        since_ms=seen.waited_ms,
        label=seen.label,
    )


def _list(browsed: Browsed, question: Query, consulted: Consulted) -> Message:
    lines: list[ListedLock] = []
    left = SHOWN_BYTES_MAX
    for line in browsed.lines:
        listed = ListedLock(line.lock, holder_of(line.holder), line.waiting)
        left -= size_of(listed.holder) + len(line.lock.encode()) + 16
        if left < 0:
            break
        lines.append(listed)
    return LockList(
        lines=tuple(lines),
        more=browsed.more or len(lines) < len(browsed.lines),
        session=question.session,
        request=question.request,
        slot=consulted.slot,
        age_ms=consulted.age_ms,
    )
