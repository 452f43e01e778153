"""The journal of a node: records of its roles, read back when the node starts again.

A node promises things to others: an acceptor its votes, a server its grants. It may break none of
them after a crash, so each is on disk before it is sent. This module argues why what was synced is
found again, and why nothing else is mistaken for it.

Streams, and what a turn writes
-------------------------------

A node has one journal, and each role a *stream* in it, under its name. One turn of the dispatcher
may append records of several roles; they are written as one *group*, with one append, and synced
once, before any effect that depends on them is performed::

    effect            record in the group                 meaning
    Persist           stream, payload                     one more record
    Checkpoint        stream, none; stream, payload ...   forget all before, then these
    CheckpointPart    stream, Mark.BEGIN; stream, ...     a part; nothing waits for it
    CheckpointEnd     stream, Mark.END                    forget all before Mark.BEGIN

Files, and what moves
---------------------

::

    file               content                                    begins               ends
    00000007.journal   segment: header, groups, zeros (room)      the one before is    a snapshot
                                                                  full, 16 MiB         replaces it
    00000007.snapshot  live records of all segments before 7      `trim`               a newer one
    00000007.partial   a snapshot that is not whole               `trim`               renamed; at a
                                                                                       start removed
    lock               nothing; locked while the folder is open

A segment's header names number, sequence and salt of its predecessor, so a missing file, or one of
another journal, is noticed. When the oldest files hold more than twice their live records and one
segment, the live records are written into a snapshot: a separate file, synced, renamed, its folder
synced. Only then are the files removed. So at each moment the folder has one whole set of files,
and recovery passes over a damaged snapshot only while all files that it replaces are there.

What a crash can leave
----------------------

*One append, one sync*: nothing is appended while something is unsynced (one-append-one-sync). A
group states its own offset, so a valid group proves that all bytes before it were durable before it
was begun. A crash can therefore cut, damage or punch holes into the last group only, in whatever
order its pages reach the disk; and nothing has depended on that group yet, since it was not synced.
Recovery drops it::

    at the end of the last segment          verdict
    a group that is not valid, then zeros   unfinished: cut off, with a warning
    a valid group, then zeros               read back, also if it was never synced: the node acts on
                                            it from now on, so it is synced, and an empty group
                                            is appended that marks it as such
    a damaged group, then another group;    was synced, and the node has acted on it: damage. The
    other bytes, if the length of the       node does not start, and changes nothing
    damaged one can be read; or a later
    segment

If the very last group rots after it was synced, it cannot be told from an unfinished write, and is
cut off like one: the argument is about crashes. A node that went on after damage could break a
promise that it does not remember, so the operator decides (`docs/operations.md`).

After an error of the disk nothing more is written, and the node ends. A failed sync is never tried
again: Linux may report a lost write once, and then call the page clean (PostgreSQL's *fsyncgate*,
2018).

Room
----

The zeros after the last group are written and synced ahead; `segment.py` says why. They mean
nothing to recovery, and are not counted in `Journal.disk_bytes`.

Identity
--------

The first record of a journal has its random id, and the node, cluster and members that it belongs
to (`claim`). A group registers the ids of its members' journals: an empty or an old journal never
votes for a lost one (`actors/bootstrap.py`).

`record.py` has the layout of files, groups and checksums; `recovery.py` reads a folder. The model
for the argument is SQLite's "Atomic commit" and PostgreSQL's write-ahead log.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fencelock.actors.bootstrap_message import SECRET_BYTES
from fencelock.cluster.node.storage.directory import (
    DirectoryLock,
    JournalDamagedError,
    JournalFailedError,
    JournalForeignError,
    make_directory,
    sync_directory,
)
from fencelock.cluster.node.storage.record import (
    SALT_BYTES,
    Entry,
    EntryItems,
    FileKind,
    Header,
    Mark,
    Place,
    encode_group,
    without_forgotten,
)
from fencelock.cluster.node.storage.recovery import NO_SALT, RecoveredFiles, live_entries, recover
from fencelock.cluster.node.storage.segment import (
    LARGE_GROUP_BYTES,
    LARGE_ROOM_BYTES_MIN,
    ROOM_BYTES_MIN,
    SEGMENT_SUFFIX,
    Segment,
    read_header,
    remove,
    segment_path,
    write_at,
    write_snapshot,
)
from fencelock.transport.descriptors import SpareDescriptors
from fencelock.transport.log import logger

SEGMENT_BYTES_MAX = 16 << 20
"""A segment that has grown beyond this gets a successor (bytes, 16 MiB). The disk may hold this
much of forgotten records in addition to twice the live ones."""

ENTRIES = 32
"""Records in one write of `write_all`: parts of the table have some 200 KiB each."""

REMOVED_MAX = 4
"""Maximum files that are removed at a time. One of 16 MiB takes the file system 3 to 9 ms."""

STREAM = "identity"
"""The stream of the one record; no role has that name."""

JOURNAL, SECRET = "journal", "secret"
"""The keys of the journal's id and of its secret in that record."""


class JournalId(NamedTuple):
    """The random id of a journal, and its secret, which no other node learns."""

    id: int
    secret: int


class Journal:
    """A node's records on disk, in streams, and the lock on their folder.

    A stream has the records of one role. A role may at any time forget all that it wrote
    before; `trim` then frees the room. Used by one thread. Made with `Journal.open`. What writes
    raises `JournalFailedError` if the disk refuses, or did before.

    Invariants:
        synced-is-read-back: When `sync` has returned, every record appended before it and not
            forgotten is read back by each later `open`, in the order of its stream.
        no-second-sync: After a failure nothing more is written or synced.
        one-append-one-sync: Nothing is appended while an earlier append is not synced.
        whole-groups: The group that one append wrote is read back as a whole or not at all.
    """

    def __init__(
        self, folder: Path, lock: DirectoryLock, segment_bytes_max: int, found: RecoveredFiles
    ) -> None:
        self.folder = folder
        self.segment_bytes_max = segment_bytes_max
        self.path = segment_path(folder, 1 if found.last is None else found.last.number)
        """The segment that is being written."""
        self.torn_bytes = found.torn
        """Bytes of an unfinished write that were cut off when the folder was opened."""
        self.failure: Exception | None = None
        """The error that ended the use of the journal, if there was one."""
        self.disk_bytes = sum(found.files.values())
        """Bytes written in all files in use, without the room made ahead."""
        self.trim_due = True
        """Whether `trim` may have something to do."""
        self._lock = lock
        self._spares = SpareDescriptors()
        self._full = found.files
        """The other files in use, with their sizes (bytes), oldest first."""
        self._records = found.records
        self._index = found.index
        self._segment: Segment | None = None
        """The segment that is being written; None after a failure, and when closed."""
        self._sequence = found.sequence
        self._unsynced = False
        self._forgot = True
        """Whether records were forgotten since `trim` last looked for files to replace."""
        self._doomed: list[Path] = []
        """Files that a snapshot replaces, still to be removed."""

    @classmethod
    def open(cls, folder: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> Self:
        """Open the journal in ``folder``, which is created if it is missing.

        Args:
            folder: used by this journal alone.
            segment_bytes_max: the size at which a segment ends and the next begins (bytes).

        Raises:
            FolderBusyError: another journal has the folder open.
            JournalDamagedError: data that was synced cannot be read; nothing was changed.
            JournalFailedError: the disk refuses.

        """
        with contextlib.ExitStack() as undo:
            try:
                make_directory(folder)
                lock = DirectoryLock(folder)
                undo.callback(lock.close)
                found = recover(folder)
                journal = cls(folder, lock, segment_bytes_max, found)
                undo.callback(journal.close)
                journal._go_on(found)
            except OSError as error:
                raise JournalFailedError(f"{folder} cannot be opened: {error.strerror}") from error
            undo.pop_all()
        return journal

    def take_records(self) -> dict[str, list[bytes]]:
        """Return the records found at `open`, by stream, oldest first, and drop them here."""
        records, self._records = self._records, {}
        return records

    def append(self, entries: Sequence[EntryItems]) -> None:
        """Write ``entries`` after all others. They are durable once `sync` has returned.

        Args:
            entries: streams and payloads of 1 byte to 1 MiB each; None forgets the stream's
                earlier ones, and a `Mark` begins or ends a checkpoint of it.

        Raises:
            ValueError: a payload is empty or too long; nothing was written.

        """
        segment = self._segment
        if segment is None:
            raise self._refusal()
        assert not self._unsynced, "one-append-one-sync"
        if not entries:
            return
        try:
            if segment.end > self.segment_bytes_max:
                encode_group(entries, salt=b"", offset=0, sequence=0)  # Refuses what cannot be.
                segment = self._begin_segment()
            self._append(segment, entries)
        except OSError as error:
            raise self._failed("written", error) from error

    def _append(self, segment: Segment, entries: Sequence[EntryItems]) -> None:
        """Write a group. After an error of the disk some of it may be written."""
        for _, payload in entries:
            if payload is None:
                entries = without_forgotten(entries)
                self._forgot = True
                break
            if payload is Mark.END:
                self._forgot = True
        header, begin = segment.header, segment.end
        group = encode_group(entries, salt=header.salt, offset=begin, sequence=self._sequence)
        size = len(group)
        self._unsynced = True
        written = os.pwrite(segment.descriptor, group, begin)
        segment.end = begin + size
        segment.room_min = LARGE_ROOM_BYTES_MIN if size >= LARGE_GROUP_BYTES else ROOM_BYTES_MIN
        if written < size:
            write_at(segment.descriptor, group[written:], begin + written)
        self._index.note(self._sequence, header.number, begin, entries)
        self._sequence += 1
        self.disk_bytes += size
        self.trim_due = (
            segment.size - segment.end < segment.room_min
            or self._forgot
            or bool(self._doomed)
            or self._spares.missing > 0
        )

    def write_all(self, entries: Sequence[EntryItems]) -> None:
        """Append ``entries``, which may be large, in groups of a few, and sync each."""
        for first in range(0, len(entries), ENTRIES):
            self.append(entries[first : first + ENTRIES])
            self.sync()

    def sync(self) -> None:
        """Return once everything appended is on disk."""
        segment = self._segment
        if segment is None:
            raise self._refusal()
        try:
            os.fdatasync(segment.descriptor)
        except OSError as error:
            raise self._failed("synced", error) from error
        self._unsynced = False

    def trim(self) -> None:
        """Remove old files, and make room ahead of the next groups. Call it when nothing waits.

        The work for a snapshot is in proportion to the live records that move, and is amortized
        over the writes since the last time: records of a large checkpoint stay where they are. A
        few of the replaced files are removed at each call.
        """
        segment = self._segment
        if segment is None:
            raise self._refusal()
        assert not self._unsynced, "what is not durable cannot stand for anything"
        verb = "trimmed"
        try:
            if self._forgot:
                self._forgot = False
                segment = self._replace_by_snapshot(segment)
            if self._doomed:
                removed, self._doomed = self._doomed[:REMOVED_MAX], self._doomed[REMOVED_MAX:]
                remove(removed)
            verb = "given more room"
            segment.make_room(self.segment_bytes_max)
            if self._spares.missing:
                self._spares.fill()
        except (OSError, JournalDamagedError) as error:
            raise self._failed(verb, error) from error
        self.trim_due = bool(self._doomed)

    def close(self) -> None:
        """Close the files and free the folder. Unsynced records may be lost. Twice does nothing."""
        self._stop_writing()
        self._lock.close()
        self._spares.close()

    def _go_on(self, found: RecoveredFiles) -> None:
        if found.torn:
            logger.warning("%s: cut %s bytes of an unfinished write", found.torn_path, found.torn)
        if found.doomed:
            remove(found.doomed)
            sync_directory(self.folder)
        if found.last is None:
            self._begin_segment()
            return
        end, torn = self._full.pop(self.path), found.torn_path == self.path
        # A process that was killed may have left a whole group that was never synced. The node
        # will act on it now, so it is made durable, and then an empty group marks it as durable.
        self._segment = segment = Segment.reopen(self.folder, found.last, end, torn=torn)
        if not found.marked:
            self._append(segment, [])
            os.fdatasync(segment.descriptor)
            self._unsynced = False

    def _begin_segment(self) -> Segment:
        """Begin the next segment; everything in the previous one is synced."""
        before = self._segment
        header = Header(
            kind=FileKind.SEGMENT,
            number=1 if before is None else before.header.number + 1,
            first=self._sequence,
            salt=os.urandom(SALT_BYTES),
            previous=NO_SALT if before is None else before.header.salt,
        )
        segment = Segment.make(self.folder, header, self._spares)
        if before is not None:
            self._full[before.path] = before.end
            before.close()
        self._segment, self.path = segment, segment.path
        self.disk_bytes += segment.end
        return segment

    def _replace_by_snapshot(self, segment: Segment) -> Segment:
        """Replace the oldest files by a snapshot of their live records, if enough is forgotten.

        Of all numbers of oldest files it takes the one that frees the most room for its work.
        Return the segment to continue.
        """
        live, movable = self._index.in_segments(), self._index.movable()
        sizes = {**self._full, segment.path: segment.end}
        best, gain, best_gain = 0, 0, self.segment_bytes_max
        for path, size in sizes.items():
            number = int(path.stem) if path.suffix == SEGMENT_SUFFIX else 0
            if movable is not None and number >= movable:
                break
            gain += size - 2 * live[number]
            if number and gain > best_gain:
                best, best_gain = number + 1, gain
        if not best:
            return segment
        if best > segment.header.number:
            segment = self._begin_segment()
        old = {path: size for path, size in self._full.items() if int(path.stem) < best}
        header = read_header(segment_path(self.folder, best), self._spares)
        header = header._replace(kind=FileKind.SNAPSHOT, salt=os.urandom(SALT_BYTES))
        entries = live_entries(old, self._index, self._spares)
        path, size = write_snapshot(self.folder, header, entries, self._spares)
        self._index.move(best, Place(header.first - 1, 0, 0))
        self._doomed += old
        self._full = {path: size} | {
            each: bytes_of for each, bytes_of in self._full.items() if each not in old
        }
        self.disk_bytes = sum(self._full.values()) + segment.end
        return segment

    def _stop_writing(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _failed(self, verb: str, error: Exception) -> JournalFailedError:
        """Record that the disk failed, and return the error to raise."""
        self.failure = error  # no-second-sync
        self._stop_writing()
        return JournalFailedError(
            f"{self.path} could not be {verb}: {_description(error)}. What was not synced may be "
            "lost; free or repair the disk and start the node anew"
        )

    def _refusal(self) -> Exception:
        """Return the error that explains why nothing can be written any more."""
        if self.failure is None:
            return ValueError(f"{self.folder} is closed")
        refusal = JournalFailedError(
            f"{self.folder} failed before ({_description(self.failure)}) and takes nothing more: "
            "start the node anew"
        )
        refusal.__cause__ = self.failure
        return refusal


def _description(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def claim(
    journal: Journal, found: Mapping[str, Sequence[bytes]], identity: Mapping[str, str]
) -> JournalId:
    """Return the id of ``journal`` if ``identity`` owns it; a new journal becomes its own.

    A node that uses another node's journal, or votes among other members than those it made
    promises to, can break safety unnoticed. One wrong path in a configuration is enough for
    that, so it is refused.

    The id is drawn when the journal is made; with its secret, the journal proves its starts
    (``actors/bootstrap.py``).

    Args:
        journal: open, with nothing appended yet.
        found: its records when it was opened, by stream.
        identity: the properties that must be the same in every life (cluster, node, members), in
            words.

    Raises:
        JournalForeignError: it is another's; the text names the owner. Nothing was changed.
        JournalFailedError: the disk refuses.

    """
    if not found:
        drawn = JournalId(1 + secrets.randbits(62), secrets.randbits(8 * SECRET_BYTES))
        record = {**identity, JOURNAL: f"{drawn.id:x}", SECRET: f"{drawn.secret:x}"}
        journal.append([Entry(STREAM, json.dumps(record, sort_keys=True).encode())])
        journal.sync()
        return drawn
    records = found.get(STREAM, ())
    known: dict[str, str] = json.loads(records[0]) if records else {}
    wrong = [
        f"{what} {known.get(what, 'unknown')!r} and not {mine!r}"
        for what, mine in identity.items()
        if known.get(what) != mine
    ]
    if wrong:
        raise JournalForeignError(
            f"{journal.folder} is the journal of {', '.join(wrong)}. Give this node the folder "
            "that is its own. If that folder is lost, an empty one is safe: the node will serve "
            "and not vote, as long as the cluster knows the journal that was lost"
        )
    return JournalId(int(known[JOURNAL], 16), int(known[SECRET], 16))
