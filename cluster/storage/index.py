"""An index of the live records, those not yet forgotten: their places and sizes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencelock.cluster.storage.record import ENTRY_BYTES, Entry


class Place(NamedTuple):
    """The place of a group; places sort in the order of writing."""

    sequence: int
    number: int
    """The segment, 0 for the snapshot: its records are older than any segment's."""
    offset: int


@dataclass(slots=True)
class Extent:
    """The live records of one stream."""

    begins: Place
    """The first live group; records of the stream before it are forgotten."""
    live_bytes: int = 0


class Index:
    """The live records of every stream of a journal, updated group by group."""

    def __init__(self) -> None:
        self.extents: dict[str, Extent] = {}
        self.live_bytes = 0
        """Approximate size of a snapshot of all live records (bytes)."""

    def note(self, place: Place, entries: Iterable[Entry]) -> None:
        """Add the group at ``place``, which comes after all others."""
        extents, grown = self.extents, 0
        for stream, payload in entries:
            extent = extents.get(stream)
            if payload is None:
                if extent is not None:
                    grown -= extents.pop(stream).live_bytes
                continue
            if extent is None:
                extent = extents[stream] = Extent(place)
            size = ENTRY_BYTES + len(stream) + len(payload)
            extent.live_bytes += size
            grown += size
        self.live_bytes += grown

    def counts(self, stream: str, sequence: int) -> bool:
        """Return whether the records of ``stream`` in the group ``sequence`` are live."""
        extent = self.extents.get(stream)
        return extent is not None and extent.begins.sequence <= sequence

    def begins(self) -> Place | None:
        """Return the first group with live records, None if there is none."""
        return min((extent.begins for extent in self.extents.values()), default=None)

    def move(self, place: Place) -> None:
        """Record that all live records now lie in the snapshot at ``place``."""
        for extent in self.extents.values():
            extent.begins = place


def without_forgotten(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return ``entries`` without those that a later one forgets.

    So within a group nothing precedes the entry that forgets it, and a group is live or
    forgotten as a whole for each stream.
    """
    for _, payload in entries:
        if payload is None:
            break
    else:
        return entries  # As in nearly every group.
    begun = {entry.stream: number for number, entry in enumerate(entries) if entry.payload is None}
    return [entry for number, entry in enumerate(entries) if number >= begun.get(entry.stream, 0)]
