"""A workload of elections in place of locks, with watchers of all of them, and its judge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.message import Granted, Refused
from fencelock.actors.api.name import client_of, kind_of, object_name, plain_name, titled
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, address_of, node_of, timer
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.cluster.simulation.judge import LockJudge
from fencelock.cluster.simulation.run import Workload
from fencelock.cluster.simulation.semaphores import LogOrder
from fencelock.cluster.simulation.trace import Delivery
from fencelock.cluster.simulation.violation import ViolationError
from fencelock.cluster.simulation.workload import LockUser, Met, Mood

PAUSE_MS = 200
"""Time after which a refused watcher asks again (ms)."""


@timer
class WatchAgain(Timer):
    """Watch the election ``lock`` again."""

    lock: str


class Candidate(LockUser):
    """Wants to lead in one election of a few, and watches all of them.

    It is done only when its watch has shown the end of its own last term.
    """

    _named = (*LockUser._named, ChangesRead, WatchAgain)

    def __init__(
        self, address: Address, host: Host, *, locks: tuple[str, ...], **options: Any
    ) -> None:
        names = tuple(object_name(ELECTION, lock) for lock in locks)
        options["levels"] = 1
        super().__init__(address, host, locks=names, **options)
        self.versions: dict[str, int] = {}
        """The version up to which each election was watched."""
        self.ended: dict[str, int] = {}
        """The fence of the last term of each election that was seen to end."""

    def begin(self, now: Instant) -> Effects:
        """Watch, and pause before the first request."""
        return [*super().begin(now), *map(self._watch, self.locks)]

    def handle(
        self, sender: Address, event: Met | ChangesRead | WatchAgain, now: Instant
    ) -> Effects:
        """Go on to the next action, or watch on."""
        match event:
            case ChangesRead():
                return self._on_changes(event)
            case WatchAgain():
                return [self._watch(event.lock)]
            case Refused() if not event.owner:
                refused = Observe(f"contender.watch_{event.reason.name.lower()}")
                return [refused, Wake(PAUSE_MS, WatchAgain(lock=event.lock))]
            case _:
                return super().handle(sender, event, now)

    def _watch(self, lock: str) -> Send:
        return Send(self.session, ReadChanges(watched=lock, after=self.versions.get(lock)))

    def _on_changes(self, read: ChangesRead) -> Effects:
        effects: list[Effect] = []
        if read.resync and read.lock in self.versions:
            effects.append(Observe("contender.resynced"))
        if read.resync and not read.changes:
            self.ended[read.lock] = self.fence  # All terms before it have ended.
        for change in read.changes:
            effects.append(Observe("contender.sees_a_change"))
            ended = change.fence if change.value is None else change.fence - 1
            self.ended[read.lock] = max(ended, self.ended.get(read.lock, 0))
        self.versions[read.lock] = read.version
        if self.mood is Mood.LEAVES and not self.levels and self._has_seen_its_end():
            self.mood = Mood.DONE
        return [*effects, self._watch(read.lock)]

    def _has_seen_its_end(self) -> bool:
        return self.ended.get(self.lock, 0) >= self.fence

    def _ask(self, wait_ms: int | None) -> Send:
        lead = Lead(
            election=plain_name(self.lock),
            value=f"{self.address}/{self.turn}",
            owner=self.owner,
            wait_ms=wait_ms,
        )
        return Send(self.session, lead)

    def _on_end(self, left: int) -> Effects:
        effects = super()._on_end(left)
        if self.mood is Mood.DONE and not self._has_seen_its_end():
            self.mood = Mood.LEAVES
        return effects


@dataclass(slots=True)
class Watcher:
    """The knowledge of one watcher of one election."""

    version: int
    leads: int
    """The fence of the present leader, 0 if nobody leads."""
    last: int
    """The highest fence that it has seen, 0 if it does not know of any."""


class Span(NamedTuple):
    """The changes that one watcher saw at a time: all after one version up to another."""

    contender: Address
    after: int
    until: int
    seen: frozenset[int]

    def missed(self, known: Iterable[int]) -> list[int]:
        """Return the versions among ``known`` that it should have seen and did not."""
        return [v for v in known if self.after < v <= self.until and v not in self.seen]


class ElectionJudge(LockJudge):
    """Judges one run of elections: the leaders as `LockJudge` does, and their watchers.

    - Watches: each watcher sees the changes of an election in order, and each once. The end of a
      term follows its beginning, before the next one begins under a higher fence.
    - Gaps: what one watcher sees between two versions, all that pass them see. No leader that the
      log shows is left out, but for those before a resync.
    - Values: the value of a leader is that of the candidate that was granted the fence.
    - Order: in the log, no candidate leads before an earlier one that still waits.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.log = LogOrder()
        self.leaders: dict[str, dict[int, Address]] = {}
        """The candidate of each fence in the log, by election."""
        self.changes: dict[str, dict[int, Change]] = {}
        """All changes that any watcher has seen, by election and version."""
        self.spans: dict[str, list[Span]] = {}
        """What watchers saw at a time, by election."""
        self.watchers: dict[tuple[Address, str], Watcher] = {}

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Watch the log, candidates that enter, leave and want, and watchers."""
        event = delivered.event
        if isinstance(event, SlotOutcomes):
            self.log.applied(event.slot, event.outcomes)
            for outcome in event.outcomes:
                if isinstance(outcome, Granted) and kind_of(outcome.lock) == ELECTION:
                    candidate = address_of(client_of(outcome.session), outcome.owner)
                    self.leaders.setdefault(outcome.lock, {})[outcome.fence] = candidate
        elif isinstance(event, ChangesRead) and delivered.to in self.contenders:
            self._see(delivered.to, event)
        if not (isinstance(event, Refused) and not event.owner):  # That is of a watch.
            super().handled(delivered, effects)
        for effect in effects if delivered.to in self.contenders else ():
            match effect:
                case Send(message=Lead() as lead):
                    self.wants[delivered.to] = lead.lock
                case _:
                    pass

    def left(self, client: str) -> None:
        """End all waits, terms and watches of ``client``, which died or closes."""
        super().left(client)
        for key in [key for key in self.watchers if node_of(key[0]) == client]:
            del self.watchers[key]

    def _see(self, contender: Address, read: ChangesRead) -> None:
        watcher = self.watchers.get((contender, read.lock))
        if read.resync:
            self._begin(contender, read, watcher)
            return
        if watcher is None or read.version < watcher.version:
            raise ViolationError(f"watches: {contender} was at {watcher} and is told {read!r}")
        known = self.changes.setdefault(read.lock, {})
        spans, count = self.spans.setdefault(read.lock, []), len(known)
        versions = frozenset(change.version for change in read.changes)
        spans.append(Span(contender, watcher.version, read.version, versions))
        for change in read.changes:
            if not watcher.version < change.version <= read.version:
                raise ViolationError(f"watches: {contender} after {watcher}: {change!r}")
            if known.setdefault(change.version, change) != change:
                other = known[change.version]
                raise ViolationError(f"watches: {contender} sees {change!r}, others {other!r}")
            self._judge_change(contender, read.lock, watcher, change)
            watcher.version = change.version
        watcher.version = read.version
        for span in spans if len(known) > count else spans[-1:]:
            if missed := span.missed(known):
                name = titled(read.lock)
                raise ViolationError(f"gaps: {span.contender} of {name} did not see {missed}")

    def _begin(self, contender: Address, read: ChangesRead, before: Watcher | None) -> None:
        """Take what a watcher sees first, or after a resync."""
        if len(read.changes) > 1 or (before is not None and read.version < before.version):
            raise ViolationError(f"watches: {contender} was at {before} and is told {read!r}")
        fence = read.changes[0].fence if read.changes else 0
        self.watchers[contender, read.lock] = Watcher(read.version, fence, fence)
        for change in read.changes:
            self._judge_value(contender, read.lock, change)

    def _judge_change(
        self, contender: Address, lock: str, watcher: Watcher, change: Change
    ) -> None:
        name = titled(lock)
        if change.value is None:
            if change.fence != watcher.leads:
                raise ViolationError(f"watches: {contender} of {name} at {watcher}: {change!r}")
            watcher.leads = 0
            return
        if watcher.leads or change.fence <= watcher.last:
            raise ViolationError(f"watches: {contender} of {name} at {watcher}: {change!r}")
        missed = [
            fence
            for fence in self.leaders.get(lock, ())
            if watcher.last and watcher.last < fence < change.fence
        ]
        if missed:
            raise ViolationError(f"gaps: {contender} of {name} did not see {missed}: {change!r}")
        self._judge_value(contender, lock, change)
        watcher.leads = watcher.last = change.fence

    def _judge_value(self, contender: Address, lock: str, change: Change) -> None:
        leader = self.leaders.get(lock, {}).get(change.fence)
        value = (change.value or b"").decode()
        if leader is not None and not value.startswith(f"{leader}/"):
            raise ViolationError(f"values: {contender} sees {change!r} of {leader}")


ELECTIONS = Workload(Candidate, ElectionJudge)
