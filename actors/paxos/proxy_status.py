"""A node's description of itself, from its host's counters and its replica's table."""

from __future__ import annotations

from fencelock.actors.api.message import Describe, LockStatus, NodeStatus
from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.message import Address, Instant, address_of, ms_between
from fencelock.actors.paxos.event import Consult, Consulted
from fencelock.actors.paxos.proxy_reading import (
    SHOWN_BYTES_MAX,
    Readings,
    holder_of,
    in_words,
    size_of,
    waiters_of,
)
from fencelock.actors.proxy.backend import Report, Reported
from fencelock.actors.proxy.description import addressed, has_room
from fencelock.actors.table.report import Browse, Browsed, LockLine, LockReport, Looked, LookUp

LOCKS_SHOWN_MAX = 100
"""Held locks in a description; `ListLocks` has all of them."""

LOOKS_MAX = 20
"""Maximum number of locks whose waiters are shown."""

READY_AGE_MS = 2_500
"""A node whose state is at most this old (ms) can serve; else a majority may be lost."""

LOOK_AGE_MS = 60_000
"""Maximum age of the state that is shown (ms)."""

DESCRIBE_MS = 500
"""Timeout of a description's queries to the replica (ms); then it does without."""


class Description:
    """The description being gathered, and its receivers; requests that come meanwhile share it.

    Args:
        node: this node.
        members: all members, sorted.
        readings: gives the queries to the replica their numbers.

    """

    def __init__(self, node: str, members: tuple[str, ...], readings: Readings) -> None:
        self.node = node
        self.members = members
        self.readings = readings
        self.asked: list[tuple[Address, Describe]] = []
        self.since = Instant(0)
        self.reported: Reported | None = None
        self.browsing = 0
        """The number of the query that lists the locks, 0 once it is answered."""
        self.browsed: Consulted | None = None
        self.lines: tuple[LockLine, ...] = ()
        self.looking: set[int] = set()
        self.reports: dict[str, LockReport] = {}
        self.why_diverged = ""
        """Description of the members' differences; empty if none is known."""
        self.why_no_vote = ""
        """Reason why this member does not vote; empty if it does."""

    def ask(self, asker: Address, describe: Describe, now: Instant) -> Effects:
        """Begin to gather, unless that is under way."""
        if not has_room(self.node, self.asked, asker):
            return [Observe("proxy.describe_dropped")]
        self.asked.append((asker, describe))
        if len(self.asked) > 1:
            return ()
        self.since = now
        self.reported = self.browsed = None
        self.lines, self.reports = (), {}
        self.looking.clear()
        self.browsing = self.readings.next_number()
        browse = Browse(prefix="", after="", most=LOCKS_SHOWN_MAX)
        consult = Consult(number=self.browsing, question=browse, age_ms=LOOK_AGE_MS)
        return [Send(address_of(self.node, "node"), Report()), Send(self.readings.replica, consult)]

    def on_consulted(self, consulted: Consulted) -> Effects | None:
        """Process an answer of the replica; return None if it belongs elsewhere."""
        if consulted.number == self.browsing:
            return self._on_browsed(consulted)
        if consulted.number not in self.looking:
            return None
        self.looking.remove(consulted.number)
        if isinstance(consulted.answer, Looked):
            self.reports[consulted.answer.report.lock] = consulted.answer.report
        return ()

    def _on_browsed(self, consulted: Consulted) -> Effects:
        self.browsing = 0
        self.browsed = consulted
        if not isinstance(consulted.answer, Browsed):
            return ()
        self.lines = consulted.answer.lines
        effects: list[Effect] = []
        for line in [line for line in self.lines if line.waiting][:LOOKS_MAX]:
            number = self.readings.next_number()
            self.looking.add(number)
            question = LookUp(lock=line.lock)
            consult = Consult(number=number, question=question, age_ms=LOOK_AGE_MS)
            effects.append(Send(self.readings.replica, consult))
        return effects

    def finish(self, master: str, now: Instant) -> Effects:
        """Answer all requests, once nothing is missing or time is up."""
        waits = self.browsing or self.looking
        late = ms_between(self.since, now) >= DESCRIBE_MS
        if not self.asked or self.reported is None or (waits and not late):
            return ()
        self.browsing = 0
        self.looking.clear()
        ready, detail = self._readiness(master, now)
        for why in filter(None, (self.why_no_vote, self.why_diverged)):
            detail = f"{why}; {detail}"
        status = NodeStatus(
            node=self.node,
            protocol="paxos",
            nodes=self.members,
            ready=ready,
            detail=detail,
            uptime_ms=self.reported.uptime_ms,
            counters=self.reported.counters,
            locks=self._locks(),
            master=master,
        )
        asked, self.asked = self.asked, []
        return [
            Send(asker, addressed(status, describe, self.reported.roles))
            for asker, describe in asked
        ]

    def _readiness(self, master: str, now: Instant) -> tuple[bool, str]:
        """Return whether a request made now can be granted, and the reason in words."""
        seen, silence = self.browsed, self.readings.silence.in_words(now)
        if seen is None:
            return False, f"{silence}; locks are not shown"
        age = in_words(seen.age_ms)
        if seen.answer is None:
            return False, f"{silence}; {age}, locks are not shown"
        if seen.age_ms > READY_AGE_MS:
            return False, f"{silence}; {age}"
        if not master:
            return False, f"no master is known; {age}"
        return True, "ready, leads" if master == self.node else f"ready, follows {master}"

    def _locks(self) -> tuple[LockStatus, ...]:
        """Return the locks with their waiters, as many as fit a frame."""
        statuses: list[LockStatus] = []
        left = SHOWN_BYTES_MAX
        slot = self.browsed.slot if self.browsed is not None else 0
        age_ms = self.browsed.age_ms if self.browsed is not None else None
        for line in self.lines:
            holder = holder_of(line.holder)
            left -= size_of(holder) + len(line.lock.encode()) + 32
            if left < 0:
                break
            report = self.reports.get(line.lock)
            waiters = waiters_of(report, left) if report is not None else ()
            left -= sum(map(size_of, waiters))
            status = LockStatus(
                lock=line.lock,
                holder=holder,
                waiters=waiters,
                waits_for=(),
                slot=slot,
                age_ms=age_ms,
            )
            statuses.append(status)
        return tuple(statuses)
