"""The changes of watched objects in the dumb model: one list of all changes ever made."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.table import history


class ModelChange(NamedTuple):
    """A change of the object ``lock``."""

    lock: str
    key: str
    version: int
    value: bytes | None
    fence: int
    at: int

    @property
    def size(self) -> int:
        """Its size, as the limits count it (bytes)."""
        return 64 + len(self.key) + len(self.value or b"")


class ModelHistory:
    """All changes, and the version up to which those of each object are dropped."""

    def __init__(self) -> None:
        self.all: list[ModelChange] = []
        self.version = self.origin = 0
        """The version of the last change of any object, and the fence above which they began."""
        self.dropped: dict[str, int] = {}
        self.gone = 0

    def kept(self, lock: str = "") -> list[ModelChange]:
        """Return the changes of an object, or of all, that are not dropped."""
        return [
            one
            for one in self.all
            if lock in ("", one.lock) and one.version > self.dropped.get(one.lock, self.gone)
        ]

    def add(
        self, lock: str, key: str, value: bytes | None, fence: int, now: int, above: int = 0
    ) -> None:
        """Add a change, and drop the changes beyond the limits."""
        if lock not in self.dropped:
            self.dropped[lock] = self.gone
        if not self.version:
            self.version = self.origin = above
        self.version += 1
        self.all.append(ModelChange(lock, key, self.version, value, fence, now))
        while (
            len(self.kept(lock)) > history.CHANGES_MAX
            or sum(one.size for one in self.kept(lock)) > history.OBJECT_BYTES_MAX
        ):
            self.dropped[lock] = self.kept(lock)[0].version
        while True:
            last = {one.lock: one for one in self.kept()}
            oldest = min(last.values(), key=lambda one: one.version)
            late = oldest.at + history.KEEP_MS <= now
            many = len(last) > history.HISTORIES_MAX
            large = sum(one.size for one in self.kept()) > history.BYTES_MAX
            if oldest.lock == lock or not (late or many or large):
                return
            self.gone = oldest.version
            del self.dropped[oldest.lock]

    def read(self, lock: str, after: int, fence: int) -> list[ModelChange] | None:
        """Return the changes of an object after a version, None if some may be missing."""
        old = self.origin if self.version else fence
        if after < self.dropped.get(lock, self.gone) or 0 < after <= old:
            return None
        return [one for one in self.kept(lock) if one.version > after]
