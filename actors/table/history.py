"""The last changes of the objects that can be watched."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from zlib import crc32

from msgspec import Struct, field

from fencelock.actors.api.changes import CHANGES_BYTES_MAX, Change
from fencelock.actors.api.name import titled
from fencelock.actors.table.report import page_of
from fencelock.actors.table.wire import HistoryRecord

CHANGES_MAX = 1_000
"""Maximum number of changes kept for one object. A client that is further behind reads the whole
object again."""

OBJECT_BYTES_MAX = 4 << 20
"""Maximum size of the changes kept for one object (bytes)."""

HISTORY_BYTES_MAX = 32 << 20
"""Maximum size of all kept changes (bytes), which each member has in memory and in snapshots."""

HISTORIES_MAX = 10_000
"""Maximum number of objects whose changes are kept."""

HISTORY_KEEP_MS = 600_000
"""Time without a change (ms) after which the changes of an object are dropped. A client that waits
for the next change does not need them, since each reply takes it to the newest version."""

FORGOTTEN_MAX = 1_000
"""Changes after which a step drops no more objects: 495,000 that are due at once took 0.6 s."""

HISTORY_RECORD_BYTES = 32 << 10
"""Size above which a record of a snapshot takes no more changes (bytes)."""


class History(Struct, eq=False):
    """The last changes of one object: all that came after version ``since``."""

    since: int
    time_ms: int = 0
    """Log time of the last change."""
    size: int = 0
    """The size of the changes (bytes)."""
    changes: deque[Change] = field(default_factory=deque[Change])


class Histories:
    """The last changes of all objects that can be watched.

    Invariants:
        versions-rise   Versions strictly increase, over all objects. The first version is above
            all fences so far. A group that lost everything continues above its old fences, so its
            new versions are also above all versions that its clients have seen.
        no-gap  The history of an object has each of its changes after `History.since`. An object
            without a history has not changed after version ``forgotten``.

    Attributes:
        version: the version of the last change.
        origin: the fence above which versions began.
        forgotten: the highest version in a history that was dropped as a whole.
        size: the size of all changes (bytes).
        held: a checksum of all changes.
        by_object: the histories by the name of the object, the least recently changed first.

    """

    def __init__(self) -> None:
        self.version = self.origin = self.forgotten = self.size = self.held = 0
        self.by_object: OrderedDict[str, History] = OrderedDict()

    def next_version(self, above: int) -> int:
        """Return the version of the next change. The very first version is ``above`` plus 1."""
        return (self.version or above) + 1

    def add(
        self, lock: str, key: str, value: bytes | None, fence: int, time_ms: int, above: int = 0
    ) -> int:
        """Add a change and return its version; ``above`` is as in `next_version`."""
        self.origin = self.origin if self.version else above
        self.version = self.next_version(above)  # versions-rise
        change = Change(self.version, key, value, fence)
        history = self.by_object.get(lock)
        if history is None:
            history = self.by_object[lock] = History(self.forgotten)
        self.by_object.move_to_end(lock)
        history.time_ms = time_ms
        self._append(lock, history, change)
        while len(history.changes) > CHANGES_MAX or history.size > OBJECT_BYTES_MAX:
            history.since = self._drop_first(lock, history)
        self._forget(time_ms)
        return self.version

    def read(
        self, lock: str, after: int, prefix: str = ""
    ) -> tuple[int, tuple[Change, ...]] | None:
        """Return the changes after version ``after``, and the version up to which they are all.

        Only changes of keys that begin with ``prefix`` are returned. Return None if some of the
        changes are no longer kept.
        """
        history = self.by_object.get(lock)
        if after < (self.forgotten if history is None else history.since):
            return None
        newer: list[Change] = []
        for change in reversed(history.changes if history else ()):
            if change.version <= after:
                break
            if change.key.startswith(prefix):
                newer.append(change)
        newer.reverse()
        page, more = page_of(newer, CHANGES_BYTES_MAX, lambda change: change.size)
        return page[-1].version if more else max(after, self.version), page

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Return the objects that have changed after ``version``; None if some are forgotten.

        Before the first change, none of the lost versions up to ``origin`` is known as such.
        """
        if version < max(self.forgotten, self.origin):
            return None
        latest = reversed(self.by_object.items())
        newer = takewhile(lambda one: one[1].changes[-1].version > version, latest)
        return [lock for lock, _ in newer][::-1]

    def changed_keys(self, lock: str, version: int) -> Iterable[str] | None:
        """Return the keys of ``lock`` that changed after ``version``; None if some are forgotten.

        The latest comes first.
        """
        history = self.by_object.get(lock)
        if history is None or version < history.since:
            return None
        newer = takewhile(lambda change: change.version > version, reversed(history.changes))
        return dict.fromkeys(change.key for change in newer)

    def noted(self) -> list[tuple[str, int, int, tuple[Change, ...]]]:
        """Return a copy for `records_of`, which costs little for each change."""
        return [
            (lock, one.since, one.time_ms, tuple(one.changes))
            for lock, one in self.by_object.items()
        ]

    def restore(self, record: HistoryRecord) -> None:
        """Add a record of a snapshot; raise ValueError if its changes are not the latest so far."""
        lock, last = record.lock, record.since
        history = self.by_object.setdefault(lock, History(record.since))
        history.time_ms = record.time_ms
        if history.changes:
            last = history.changes[-1].version
        for change in record.changes:
            if not last < change.version <= self.version:
                raise ValueError(
                    f"the snapshot has change {change.version} of {titled(lock)} after {last}"
                )
            last = change.version
            self._append(lock, history, change)
        if not record.changes:
            raise ValueError(f"the snapshot has a history of {titled(lock)} without changes")

    def _append(self, lock: str, history: History, change: Change) -> None:
        history.changes.append(change)
        history.size += change.size
        self.size += change.size
        self.held += _worth(lock, change)

    def _drop_first(self, lock: str, history: History) -> int:
        change = history.changes.popleft()
        history.size -= change.size
        self.size -= change.size
        self.held -= _worth(lock, change)
        return change.version

    def _forget(self, time_ms: int) -> None:
        """Drop the oldest histories while a limit is exceeded; the newest one stays.

        After `FORGOTTEN_MAX` changes the rest is left for the next step: each adds only one.
        """
        by_object, dropped = self.by_object, 0
        while len(by_object) > 1 and dropped < FORGOTTEN_MAX:
            lock, history = next(iter(by_object.items()))
            old = history.time_ms + HISTORY_KEEP_MS <= time_ms
            if not old and len(by_object) <= HISTORIES_MAX and self.size <= HISTORY_BYTES_MAX:
                return
            dropped += len(history.changes)
            while history.changes:
                self.forgotten = self._drop_first(lock, history)  # no-gap
            del by_object[lock]


def records_of(
    noted: Iterable[tuple[str, int, int, tuple[Change, ...]]],
) -> Iterator[HistoryRecord]:
    for lock, since, time_ms, changes in noted:
        first = size = 0
        for number, change in enumerate(changes, 1):
            size += change.size
            if size > HISTORY_RECORD_BYTES or number == len(changes):
                yield HistoryRecord(lock, since, time_ms, changes[first:number])
                first, size = number, 0


def _worth(lock: str, change: Change) -> int:
    about = f"{lock}\n{change.key}\n{change.fence}\n{change.value is None}".encode()
    return (1 + crc32(change.value or b"", crc32(about))) * change.version
