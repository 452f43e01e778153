"""A workload with a watched map and with locks that guard it, and its judge."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from fencelock.actors.api.changes import ChangesRead, ReadChanges
from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.map import (
    MAP,
    DeleteEntry,
    EntryChanged,
    EntryList,
    GetEntry,
    ListEntries,
    MapQuery,
    PutEntry,
)
from fencelock.actors.api.name import kind_of, object_name, titled
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, node_of
from fencelock.actors.role import Host
from fencelock.verification.simulation.object_judge import ObjectJudge
from fencelock.verification.simulation.replay import TableReplay
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import ContenderEvent, ContenderPhase, LockUser

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
    return refused.request == WATCH


Watched = tuple[str, int, bytes | None, int]
"""A change that a watcher sees: its key, version, value and fence."""


class WatchJudge:
    """Judges the changes of objects that watchers see.

    - Watches: each watcher sees the changes of an object once, in the order of their versions; or
      the state of the object, when it begins and after a gap.
    - Gaps: no change between two replies is missing.
    - Values: each change, and the state, is that of the model at that version.
    """

    def __init__(self, replay: TableReplay) -> None:
        self.replay = replay
        self.versions: dict[tuple[Address, str], int] = {}
        """The version up to which each watcher has seen each object."""

    def left(self, client: str) -> None:
        for key in [key for key in self.versions if node_of(key[0]) == client]:
            del self.versions[key]

    def see(self, contender: Address, read: ChangesRead) -> None:
        before = self.versions.get((contender, read.lock), -1)
        if (before < 0 and not read.resync) or read.version < before:
            name = titled(read.lock)
            raise ViolationError(f"watches: {contender} was at {before} of {name}: {read!r}")
        self.versions[contender, read.lock] = read.version
        judged = partial(self._judge, contender, -1 if read.resync else before, read)
        self.replay.when_known(read.slot, judged)

    def _judge(self, contender: Address, before: int, read: ChangesRead) -> None:
        history = self.replay.model.history.all
        right = [
            (one.key, one.version, one.value, one.fence)
            for one in history
            if one.lock == read.lock and before < one.version <= read.version
        ]
        seen = [(one.key, one.version, one.value, one.fence) for one in read.changes]
        if read.resync:
            right, seen = state_after(right), state_after(seen)
        if seen != right:
            versions = {version for _, version, _, _ in seen}
            missed = [version for _, version, _, _ in right if version not in versions]
            same = [one[:2] for one in seen] == [one[:2] for one in right]
            rule = "gaps" if missed and not read.resync else "values" if same else "watches"
            about = f"{contender} of {titled(read.lock)} after {before}"
            raise ViolationError(f"{rule}: {about}: {read!r}, and the changes are {right}")


def state_after(changes: Iterable[Watched]) -> list[Watched]:
    """Return the state of an object after ``changes``, as changes without a version."""
    present = {key: (key, 0, value, fence) for key, _, value, fence in changes}
    return sorted(one for one in present.values() if one[2] is not None)


NAME = "register"
KEYS = ("x", "y", "z")
TTL_MS = (100, 800)
"""Range of the times to live of entries (ms)."""

PAUSE_MS_MAX = 120
"""Longest pause between two requests of a user (ms)."""

READ_SHARE, DELETE_SHARE, EPHEMERAL_SHARE, TTL_SHARE = 0.4, 0.1, 0.25, 0.2
GUARD_SHARE, STALE_SHARE = 0.7, 0.2
"""Shares of changes that name a hold: while the user has the hold, and after it lost it."""


class MapPauseEnded(Timer):
    """Send the next request about the map."""


class MapUser(Watching):
    """Uses locks like a `LockUser`, and at the same time a map, with holds as guards of changes.

    One user of each client also watches the map.
    """

    _named = (*Watching._named, EntryChanged, EntryList, MapPauseEnded)

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.seen: dict[str, int] = {}
        """The last version of each key that the user has seen."""
        self.puts = 0
        one_of_each_client = self.owner.startswith("owner-1")
        self.watched = (object_name(MAP, NAME),) if one_of_each_client else ()

    def begin(self, now: Instant) -> Effects:
        return [*super().begin(now), self._pause_map()]

    def handle(
        self,
        sender: Address,
        event: ContenderEvent | EntryChanged | EntryList | MapPauseEnded | ChangesRead | WatchAgain,
        now: Instant,
    ) -> Effects:
        match event:
            case MapPauseEnded():
                return () if self.phase is ContenderPhase.DONE else self._use_map()
            case EntryChanged():
                return [self._pause_map()]
            case EntryList():
                self.seen |= {one.key: one.version for one in event.entries}
                return [self._pause_map()]
            case Refused() if kind_of(event.lock) == MAP and not is_of_watch(event):
                refused = Observe(f"contender.map_{event.reason.name.lower()}")
                return [refused, self._pause_map()]
            case _:
                return super().handle(sender, event, now)

    def _pause_map(self) -> Wake:
        return Wake(self.random.randint(1, PAUSE_MS_MAX), MapPauseEnded())

    def _use_map(self) -> Effects:
        chance, key = self.random.random, self.random.choice(KEYS)
        if chance() < READ_SHARE:
            if chance() < READ_SHARE:
                return [Send(self.session, ListEntries(map=NAME))]
            return [Send(self.session, GetEntry(map=NAME, entry_key=key))]
        about: dict[str, Any] = {"map": NAME, "entry_key": key, "owner": self.owner}
        if (
            chance() < (GUARD_SHARE if self.phase is ContenderPhase.HOLDING else STALE_SHARE)
            and self.fence
        ):
            about |= {"guard": self.lock, "fence": self.fence}
        about["version"] = self.random.choice((None, None, 0, self.seen.get(key)))
        if chance() < DELETE_SHARE:
            return [Send(self.session, DeleteEntry(**about))]
        self.puts += 1
        put = PutEntry(
            **about,
            value=f"{self.address}/{self.puts}".encode(),
            ttl_ms=self.random.randint(*TTL_MS) if chance() < TTL_SHARE else None,
            ephemeral=chance() < EPHEMERAL_SHARE,
        )
        return [Send(self.session, put)]


class MapJudge(ObjectJudge):
    """Judges the locks of one run, the map that they guard, and its watchers (`WatchJudge`)."""

    kind = MAP
    query = MapQuery

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.watches = WatchJudge(self.replay)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        if isinstance(event, Refused) and is_of_watch(event):
            return
        if isinstance(event, ChangesRead) and delivered.to in self.contenders:
            self.watches.see(delivered.to, event)
        super().handled(delivered, effects)

    def left(self, client: str) -> None:
        super().left(client)
        self.watches.left(client)

    def values(self, query: MapQuery, read: EntryList) -> dict[tuple[str, str], Any]:
        lock = object_name(MAP, NAME)
        keys = (query.entry_key,) if isinstance(query, GetEntry) else KEYS
        seen: dict[tuple[str, str], Any] = dict.fromkeys((lock, key) for key in keys)
        return seen | {
            (lock, one.key): (one.version, one.value, one.session) for one in read.entries
        }


MAPS = Workload(MapUser, MapJudge)
