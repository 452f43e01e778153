"""A workload with a watched map and with locks that guard it, and its judge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.map import (
    MAP,
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntryRequest,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.message import Cancelled, Granted, Refused, Released
from fencelock.actors.api.name import kind_of, object_name, titled, without_secret
from fencelock.actors.api.object_request import GuardedRequest, UpdateReply
from fencelock.actors.api.session_message import Ended, HoldLost
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, node_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.verification.simulation.log_judge import LogJudge, SlotSequence
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
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


class State(NamedTuple):
    """The state of an entry from ``slot`` on."""

    slot: int
    version: int
    """The version of the change, which may be a deletion."""
    put: PutEntry | None
    """The put that made the entry; None if there is no entry."""
    session: str = ""
    """The session with which the entry ends, or empty."""


class GuardLog(SlotSequence):
    """Replays, in the order of the log, who holds the locks that guard changes."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[str, tuple[int, str, str] | None] = {}
        """The fence, session and owner of the holder of each lock; None if it is not known."""
        self.next = 1

    def _judge(self, report: SlotOutcomes, /) -> None:
        for one in report.outcomes:
            match one:
                case Granted():
                    self.holders[one.lock] = one.fence, one.session, one.owner
                case Released(count=0) if self._holder(one.lock) == (one.session, one.owner):
                    del self.holders[one.lock]
                case Cancelled() if self._holder(one.lock) == (one.session, one.owner):
                    self.holders[one.lock] = None
                case HoldLost():
                    self.holders.pop(one.lock, None)
                case Ended():
                    self._end(one.session, report.slot)
                case UpdateReply():
                    self._change(one, report.slot)
                case _:
                    pass

    @abstractmethod
    def _change(self, changed: Any, slot: int) -> None:
        """Judge the reply to an update."""

    def _holder(self, lock: str) -> tuple[str, str] | None:
        holder = self.holders.get(lock)
        return None if holder is None else holder[1:]

    def _end(self, session: str, slot: int) -> None:
        for lock in [lock for lock in self.holders if (self._holder(lock) or ("",))[0] == session]:
            del self.holders[lock]

    def _judge_guard(self, command: GuardedRequest) -> None:
        """Check that the guard of a change is held, which was applied."""
        holder = self.holders.get(command.guard, (0, "", "")) if command.guard else None
        if holder is not None and holder[0] != command.fence:
            raise ViolationError(f"guard: {command!r} was applied while the holder was {holder}")


class MapLog(GuardLog):
    """Replays the changes of the map in the order of the log, from the outcomes of each slot.

    Outcomes do not show when an entry expires. So an entry with a TTL may or may not exist.
    """

    REQUESTS = (EntryRequest,)

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, list[State]] = {key: [State(0, 0, None)] for key in KEYS}
        self.slots_of: dict[int, int] = {}
        """The slot of each version."""

    def _end(self, session: str, slot: int) -> None:
        super()._end(session, slot)
        for states in self.states.values():
            if states[-1].session == session:
                states.append(State(slot, states[-1].version, None))

    def _change(self, changed: Any, slot: int) -> None:
        if not isinstance(changed, EntryChanged) or not self.is_first(changed.key, changed):
            return
        command = self.commands[changed.key]
        states = self.states[command.entry_key]
        last = states[-1]
        may_be_gone = last.put is not None and last.put.ttl_ms is not None
        found = {0} if last.put is None else {last.version, *([0] if may_be_gone else ())}
        if not changed.changed:
            if changed.version not in found:
                raise ViolationError(f"versions: {changed!r}, but the entry was {last!r}")
            return
        self._judge_change(command, changed, found)
        put = command if isinstance(command, PutEntry) else None
        session = changed.session if put is not None and put.ephemeral else ""
        states.append(State(slot, changed.version, put, session))
        self.slots_of[changed.version] = slot

    def _judge_change(self, command: EntryRequest, changed: EntryChanged, found: set[int]) -> None:
        if command.version is not None and command.version not in found:
            raise ViolationError(f"versions: {command!r} was applied at version {found}")
        if changed.version <= max(self.slots_of, default=0):
            raise ViolationError(f"versions: {changed!r} after {max(self.slots_of)}")
        self._judge_guard(command)

    def at(self, key: str, slot: int) -> State:
        return next(state for state in reversed(self.states[key]) if state.slot < slot)


class MapJudge(LogJudge):
    """Judges the locks of one run as `LockJudge` does, and the map that they guard.

    - Order: in the order of the log, versions rise, and each change found the version that it
      required. No change is applied twice.
    - Guard: a change that names a hold is applied only while the lock is held under that fence.
    - Reads: a read returns exactly the entries that exist before its slot, and none of an ended
      session. Its slot comes after all changes that any user knew when the read was requested.
      Together with the order, this makes the history of each key linearizable.
    - Watches and gaps: see `WatchJudge`. Each value that a watcher sees was put in the log.
    """

    LOG = MapLog
    log: MapLog

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: dict[Address, tuple[GetEntry | ListEntries, int]] = {}
        """The read of each user in flight, and the `floor` when it was requested."""
        self.floor = 0
        """The slot after all changes that any user knows by a reply or by a read."""
        self.judged = 0
        self.watches = WatchJudge()

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, user = delivered.event, delivered.to
        if user not in self.contenders:
            super().handled(delivered, effects)
            return
        if isinstance(event, Refused) and kind_of(event.lock) == MAP:
            if not is_of_watch(event):
                self.asked.pop(user, None)
            return
        super().handled(delivered, effects)
        match event:
            case ChangesRead():
                self._see(user, event)
            case EntryChanged(version=version):
                slot = self.log.slots_of.get(version, 0)
                self.floor = max(self.floor, slot + 1)
            case EntryList() if user in self.asked:
                self.floor = max(self.floor, event.slot)
                read = partial(self._judge_read, user, self.asked.pop(user), event)
                self.log.when_known(event.slot, read)
            case _:
                pass
        for query in sent(effects, GetEntry):
            self.asked[user] = query, self.floor
        for query_of_all in sent(effects, ListEntries):
            self.asked[user] = query_of_all, self.floor

    def left(self, client: str) -> None:
        """End all waits and holds of ``client``. Its reads get no reply any more."""
        super().left(client)
        self.watches.left(client)
        for user in [user for user in self.asked if user.startswith(f"{client}/")]:
            del self.asked[user]

    def _see(self, user: Address, read: ChangesRead) -> None:
        self.watches.see(user, read)
        for change in read.changes:
            for state in self.log.states[change.key]:
                put = state.put if state.version == change.version else None
                if put is not None and change.value not in (put.value, None):
                    raise ViolationError(f"watches: {user} sees {change!r} of {put!r}")

    def _judge_read(
        self, user: Address, asked: tuple[GetEntry | ListEntries, int], read: EntryList
    ) -> None:
        self.judged += 1
        query, floor = asked
        if read.slot < floor:
            raise ViolationError(
                f"reads: {user} read the state before slot {read.slot}, but {floor} was known"
            )
        keys = (query.entry_key,) if isinstance(query, GetEntry) else KEYS
        seen = {one.key: one for one in read.entries}
        for key in keys:
            state = self.log.at(key, read.slot)
            if not _agrees(state, seen.pop(key, None)):
                raise ViolationError(f"reads: {user} read {read!r}, but {key} was {state!r}")
        if seen:
            raise ViolationError(f"reads: {user} read {read!r} in reply to {query!r}")


def _agrees(state: State, seen: EntrySeen | None) -> bool:
    put = state.put
    if put is None or seen is None:
        return seen is None and (put is None or put.ttl_ms is not None)
    right = state.version, put.value, without_secret(state.session)
    return (seen.version, seen.value, seen.session) == right


MAPS = Workload(MapUser, MapJudge)
