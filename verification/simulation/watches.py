"""Users that also watch objects, and the judge of the changes that they see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.message import Refused
from fencelock.actors.api.name import titled
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, node_of
from fencelock.actors.role import Host
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import LockUser

PAUSE_MS = 200
"""Time after which a refused watcher sends its request again (ms)."""

WATCH = 1 << 40
"""The number of all requests of watchers, which distinguishes their replies from others."""


class WatchAgain(Timer):
    """Watch the object ``lock`` again."""

    lock: str


class Watching(LockUser):
    """A user that also watches some objects, from its start on."""

    _named = (*LockUser._named, ChangesRead, WatchAgain)

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.watched = self.locks
        """The names of the watched objects."""
        self.versions: dict[str, int] = {}
        """The version up to which the user has seen the changes of each object."""

    def begin(self, now: Instant) -> Effects:
        return [*super().begin(now), *map(self._watch, self.watched)]

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
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
        """Act upon the changes in ``read``."""
        return ()

    def _watch(self, lock: str) -> Send:
        after = self.versions.get(lock)
        return Send(self.session, ReadChanges(lock=lock, after=after, request=WATCH))


def is_of_watch(refused: Refused) -> bool:
    """Return whether ``refused`` is the refusal of a watcher's request."""
    return refused.request == WATCH


class Span(NamedTuple):
    """The changes in one reply to a watcher: all after one version and up to another."""

    contender: Address
    after: int
    until: int
    seen: frozenset[int]

    def missed(self, known: Iterable[int]) -> list[int]:
        """Return the versions among ``known`` that the reply should have and does not have."""
        return [v for v in known if self.after < v <= self.until and v not in self.seen]


Present = tuple[tuple[str, bytes | None, int], ...]
"""The keys of an object with their values and fences, in order."""


@dataclass(slots=True)
class Watcher:
    """The state of one object as one watcher has seen it."""

    version: int
    present: dict[str, tuple[bytes | None, int]]


@dataclass
class WatchJudge:
    """Judges the changes of objects that watchers see.

    - Watches: each watcher sees the changes of an object once, in the order of their versions. All
      watchers see the same change under a version, and the same state of the object at a version.
    - Gaps: a change that one watcher sees is seen by all watchers that pass its version.
    """

    changes: dict[str, dict[int, Change]] = field(default_factory=dict[str, dict[int, Change]])
    """All changes that any watcher has seen, by object and version."""
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    states: dict[tuple[str, int], Present] = field(default_factory=dict[tuple[str, int], Present])
    """The state of each object at each version that a watcher has reached."""
    watchers: dict[tuple[Address, str], Watcher] = field(
        default_factory=dict[tuple[Address, str], Watcher]
    )

    def left(self, client: str) -> None:
        for key in [key for key in self.watchers if node_of(key[0]) == client]:
            del self.watchers[key]

    def see(self, contender: Address, read: ChangesRead) -> None:
        """Judge the next reply that a watcher receives."""
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
