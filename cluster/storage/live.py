"""Reading live records back from files that are all synced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from fencelock.cluster.storage.error import JournalDamagedError
from fencelock.cluster.storage.folder import SNAPSHOT_SUFFIX
from fencelock.cluster.storage.index import Index
from fencelock.cluster.storage.record import HEADER_BYTES, REJOIN, Entry, Kind
from fencelock.cluster.storage.scan import entries_of, header_of, scan_groups
from fencelock.transport.descriptors import NO_RESERVE, Reserve


def live_entries(
    files: Mapping[Path, int], index: Index, reserve: Reserve = NO_RESERVE
) -> Iterator[Entry]:
    """Read the live records of ``files``, which are in the order in which they were written.

    Each file comes with the number of bytes written, since empty room may follow them. What
    lies before the first live group is not read at all.

    Raises:
        JournalDamagedError: a file differs from what was written.
        OSError: the disk refuses.

    """
    begins = index.begins()
    if begins is None:
        return
    for path, size in files.items():
        snapshot = path.suffix == SNAPSHOT_SUFFIX
        number = 0 if snapshot else int(path.stem)
        if number < begins.number:
            continue
        content = reserve.spend(path.read_bytes)
        header = header_of(content, str(path), Kind.SNAPSHOT if snapshot else Kind.SEGMENT)
        if header is None:
            raise JournalDamagedError(f"{path} is damaged: its header is gone. {REJOIN}")
        offset, sequence = HEADER_BYTES, 0 if snapshot else header.first
        if number == begins.number and not snapshot:
            offset, sequence = begins.offset, begins.sequence
        groups = scan_groups(content, str(path), salt=header.salt, offset=offset, sequence=sequence)
        if (groups[-1].end if groups else offset) != size:
            raise JournalDamagedError(f"{path} is damaged: its end is gone. {REJOIN}")
        for group in groups:
            written = header.first - 1 if snapshot else group.sequence
            for entry in entries_of(content, group):
                if entry.payload is not None and index.counts(entry.stream, written):
                    yield entry
