"""Where the records that still count lie, and how many bytes they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencelock.cluster.storage.record import ENTRY_BYTES, Entry


class Place(NamedTuple):
    """Where a group lies; ordered as the groups were written."""

    sequence: int
    number: int
    """The segment, 0 for the snapshot: its records are older than any segment's."""
    offset: int


@dataclass(slots=True)
class Extent:
    """What one stream still holds."""

    begins: Place
    """Its records in this group and in later ones count, those before are forgotten."""
    live_bytes: int = 0


class Index:
    """What each stream of a journal still holds, kept up to date group by group."""

    def __init__(self) -> None:
        self.extents: dict[str, Extent] = {}
        self.live_bytes = 0
        """What a snapshot of everything that counts would need, roughly."""

    def note(self, place: Place, entries: Iterable[Entry]) -> None:
        """Take note of the group at ``place``, which comes after all others."""
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
        """Tell whether the records of ``stream`` in the group ``sequence`` still count."""
        extent = self.extents.get(stream)
        return extent is not None and extent.begins.sequence <= sequence

    def begins(self) -> Place | None:
        """Return the first group that holds anything that counts, None if none does."""
        return min((extent.begins for extent in self.extents.values()), default=None)

    def move(self, place: Place) -> None:
        """Take note that all that counts now lies in the snapshot at ``place``."""
        for extent in self.extents.values():
            extent.begins = place


def without_forgotten(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return ``entries`` without those that a later one makes forgotten.

    So within a group nothing comes before the entry that forgets it, and whole groups
    count or do not.
    """
    for _, payload in entries:
        if payload is None:
            break
    else:
        return entries  # As in nearly every group.
    begun = {entry.stream: number for number, entry in enumerate(entries) if entry.payload is None}
    return [entry for number, entry in enumerate(entries) if number >= begun.get(entry.stream, 0)]
