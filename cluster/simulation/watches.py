"""Users that watch objects, beside what else they do, and the judge of what they see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import titled
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, node_of, timer
from fencelock.actors.role import Host
from fencelock.cluster.simulation.violation import ViolationError
from fencelock.cluster.simulation.workload import LockUser

PAUSE_MS = 200
"""Time after which a refused watcher asks again (ms)."""

WATCH = 1 << 40
"""The number of a watcher's requests, by which it knows their replies."""


@timer
class WatchAgain(Timer):
    """Watch the object ``lock`` again."""

    lock: str


class Watching(LockUser):
    """A user that also watches some objects, from its beginning on."""

    _named = (*LockUser._named, ChangesRead, WatchAgain)

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.watched = self.locks
        """The names of the objects."""
        self.versions: dict[str, int] = {}
        """The version up to which each was watched."""

    def begin(self, now: Instant) -> Effects:
        """Watch, and pause before the first request."""
        return [*super().begin(now), *map(self._watch, self.watched)]

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Go on to the next action, or watch on."""
        match event:
            case ChangesRead():
                resynced = event.resync and event.lock in self.versions
                self.versions[event.lock] = event.version
                effects: list[Effect] = [Observe("contender.resynced")] if resynced else []
                effects += [Observe("contender.sees_a_change")] * len(event.changes)
                return [*effects, self._watch(event.lock), *self._see(event)]
            case WatchAgain():
                return [self._watch(event.lock)]
            case Refused() if is_of_watch(event):
                refused = Observe(f"contender.watch_{event.reason.name.lower()}")
                return [refused, Wake(PAUSE_MS, WatchAgain(lock=event.lock))]
            case _:
                return super().handle(sender, event, now)

    def _see(self, read: ChangesRead) -> Effects:
        """Act upon what was seen."""
        del read
        return ()

    def _watch(self, lock: str) -> Send:
        after = self.versions.get(lock)
        return Send(self.session, ReadChanges(watched=lock, after=after, request=WATCH))


def is_of_watch(refused: Refused) -> bool:
    """Return whether that is the refusal of a watcher's request."""
    return refused.request == WATCH


class Span(NamedTuple):
    """The changes that one watcher saw at a time: all after one version up to another."""

    contender: Address
    after: int
    until: int
    seen: frozenset[int]

    def missed(self, known: Iterable[int]) -> list[int]:
        """Return the versions among ``known`` that it should have seen and did not."""
        return [v for v in known if self.after < v <= self.until and v not in self.seen]


Present = tuple[tuple[str, bytes | None, int], ...]
"""The keys of an object with their values and fences, in order."""


@dataclass(slots=True)
class Watcher:
    """What one watcher knows of one object."""

    version: int
    present: dict[str, tuple[bytes | None, int]]


@dataclass
class WatchJudge:
    """Judges what watchers see of objects.

    - Watches: each watcher sees the changes of an object in the order of their versions, and each
      once. All see the same change under one version, and at one version the same object.
    - Gaps: what one watcher sees between two versions, all that pass them see.
    """

    changes: dict[str, dict[int, Change]] = field(default_factory=dict[str, dict[int, Change]])
    """All changes that any watcher has seen, by object and version."""
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    states: dict[tuple[str, int], Present] = field(default_factory=dict[tuple[str, int], Present])
    """The object at each version at which a watcher was."""
    watchers: dict[tuple[Address, str], Watcher] = field(
        default_factory=dict[tuple[Address, str], Watcher]
    )

    def left(self, client: str) -> None:
        """Forget the watchers of ``client``, which died or closes."""
        for key in [key for key in self.watchers if node_of(key[0]) == client]:
            del self.watchers[key]

    def see(self, contender: Address, read: ChangesRead) -> None:
        """Judge what a watcher sees next."""
        name, watcher = titled(read.lock), self.watchers.get((contender, read.lock))
        before = -1 if watcher is None else watcher.version
        if (watcher is None and not read.resync) or read.version < before:
            raise ViolationError(f"watches: {contender} was at {before} of {name}: {read!r}")
        if watcher is None or read.resync:
            watcher = self.watchers[contender, read.lock] = Watcher(read.version, {})
            watcher.present = {one.key: (one.value, one.fence) for one in read.changes}
        else:
            self._pass(contender, watcher, read)
        present = tuple((key, *watcher.present[key]) for key in sorted(watcher.present))
        others = self.states.setdefault((read.lock, read.version), present)
        if others != present:
            raise ViolationError(
                f"watches: {contender} sees {present} at {read.version} of {name}, others {others}"
            )

    def _pass(self, contender: Address, watcher: Watcher, read: ChangesRead) -> None:
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
            watcher.version = change.version
            if change.value is None:
                watcher.present.pop(change.key, None)
            else:
                watcher.present[change.key] = change.value, change.fence
        watcher.version = read.version
        for span in spans if len(known) > count else spans[-1:]:
            if missed := span.missed(known):
                name = titled(read.lock)
                raise ViolationError(f"gaps: {span.contender} of {name} did not see {missed}")
