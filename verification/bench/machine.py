"""The machine of a measurement: without it a figure means nothing."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

SYNCS = 50
APPENDED = bytes(200)
"""A write about as long as the group of one command in a journal."""


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """A machine and its state when the measurement began.

    Attributes:
        cores: the number of cores that this process may run on.
        processor: its name in the kernel; empty if there is none.
        system: kernel and architecture.
        python: implementation and version.
        load: runnable processes in the minute before (load average).
        sync_us: median time to append 200 bytes to a file and sync them, in the folder of the
            nodes' journals (us).

    """

    cores: int
    processor: str
    system: str
    python: str
    load: float
    sync_us: float

    def in_words(self) -> str:
        """Return all of it in a line."""
        return (
            f"{self.cores} cores ({self.processor or 'unnamed'}), {self.system}, {self.python}, "
            f"load {self.load:.1f} before, append and sync {self.sync_us:.0f} us"
        )


def this_machine(folder: Path) -> MachineInfo:
    """Return a description of this machine; its disk is measured briefly in ``folder``."""
    return MachineInfo(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load=os.getloadavg()[0],
        sync_us=_sync_us(folder / "sync"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def _sync_us(path: Path) -> float:
    took: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(APPENDED)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    path.unlink()
    return 1e6 * statistics.median(took)
