"""A shared file that any overlap would corrupt, and that refuses a late holder by its fence."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from fencelock.guard import FileGuard, StaleFenceError


@dataclass
class Findings:
    """The errors that one process found at the file."""

    overlaps: int = 0
    fence_regressions: int = 0


class CheckedFile:
    """One file a lock, changed by read, pause and write: two writers at once lose an update.

    A client creates a marker beside the file when it enters, and removes it when it leaves.
    A client that finds the marker knows that another one is also inside.
    """

    def __init__(self, folder: Path, lock: str) -> None:
        self.findings = Findings()
        self._file = folder / f"{lock}.json"
        self._guard = FileGuard(self._file)
        self._marker = folder / f"{lock}.inside"

    def append(self, who: str, fence: int, pause_s: float) -> None:
        """Add one update under ``fence``, taking ``pause_s`` between read and write.

        Raises:
            StaleFenceError: a holder with a higher fence has written; nothing was.

        """
        entered = self._enter()
        try:
            before = self.read()
            time.sleep(pause_s)  # The work that the lock protects takes its time.
            after = {"updates": before["updates"] + 1, "fence": fence}
            with self._guard.writing(fence):
                self._refuse_same(fence)
                self._file.write_text(json.dumps(after), encoding="ascii")
                with self._file.with_suffix(".log").open("a", encoding="utf-8") as log:
                    log.write(f"{fence} {who}\n")
        except StaleFenceError:
            self.findings.fence_regressions += 1
            raise
        finally:
            if entered:
                self._marker.unlink(missing_ok=True)

    def _refuse_same(self, fence: int) -> None:
        """Refuse the fence of the last update: each update belongs to a new hold."""
        if fence == self.read()["fence"]:
            raise StaleFenceError(self._file.stem, fence, fence)

    def read(self) -> dict[str, int]:
        """Return the number of updates so far and the last fence."""
        try:
            kept: dict[str, int] = json.loads(self._file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return {"updates": 0, "fence": 0}  # A torn file shows up as lost updates.
        return kept

    def _enter(self) -> bool:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self.findings.overlaps += 1
            return False
        return True
