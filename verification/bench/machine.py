"""The machine of a measurement, without which a figure means nothing, and shares of its cores."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Self

from fencelock.actors.error import ConfigError
from fencelock.verification.bench.members import BenchFailedError

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


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process (bytes).

    Raises:
        BenchFailedError: there is no such process, or the system does not report it.

    """
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise BenchFailedError(f"memory of process {process}: {error}") from error
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise BenchFailedError(f"the system does not say how much memory process {process} has")
    return int(found[1]) * 1024


def processor_s(process: int) -> float:
    """Return the processor time that a process has used (s), in steps of some 10 ms.

    Raises:
        BenchFailedError: there is no such process, or the system does not report it.

    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BenchFailedError(f"processor time of process {process}: {error}") from error
    fields = text.rpartition(")")[2].split()  # The name before may have any character.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listener_at(endpoint: str) -> int | None:
    """Return the process of this machine that listens at ``tcp://host:port``.

    None if it runs on another machine or belongs to another user.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not _is_ours(host.strip("[]")):
        return None
    listening = f":{int(port):04X} "
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        fields = [line.split() for line in lines]
        inodes |= {one[9] for one in fields if f"{one[1]} ".endswith(listening) and one[3] == "0A"}
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(opened))
        except OSError:  # It ended, or is not ours to look at.
            continue
        if found is not None and found[1] in inodes:
            return int(opened.parts[2])
    return None


def _is_ours(host: str) -> bool:
    try:
        family, kind, _, _, at = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as own:
            own.bind(at)
    except OSError:
        return False
    return True


ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""The kernel grants the share anew every so often (us)."""
CORES_MIN, CORES_MAX = 0.1, 1.0
"""Below the minimum, heartbeats take much of a node's share."""
EMPTY_S = 5.0
"""Time for the kernel to take ended processes out of their groups (s)."""


class CoreShares:
    """Control groups of Linux that limit processes; the ``with`` block removes them at its end.

    The processes must end before that: the group of one that still runs stays.

    Args:
        cores: what each process gets (cores), `CORES_MIN` to `CORES_MAX`.
        root: the file system of control groups.

    Raises:
        ConfigError: it is out of its limits, or the system has no such groups or does not let
            us make one: only root may.

    """

    def __init__(self, cores: float, root: Path = ROOT) -> None:
        if not CORES_MIN <= cores <= CORES_MAX:
            raise ConfigError(
                f"--node-cores is {cores:g}, and must be from {CORES_MIN:g} to {CORES_MAX:g}"
            )
        self._quota_us = round(cores * PERIOD_US)
        self._first_version = root / "cpu"
        self._root = self._first_version if self._first_version.is_dir() else root
        self._groups: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        ends = time.monotonic() + EMPTY_S
        for group in self._groups:
            while group.exists() and time.monotonic() < ends:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.01)

    def limit(self, process: int) -> None:
        """Limit ``process`` and the threads and processes that it starts.

        Raises:
            ConfigError: the system does not let us.

        """
        group = self._root / f"fencelock-{token_hex(4)}"
        if self._root == self._first_version:
            limits = {
                "cpu.cfs_period_us": f"{PERIOD_US}",
                "cpu.cfs_quota_us": f"{self._quota_us}",
            }
        else:
            limits = {"cpu.max": f"{self._quota_us} {PERIOD_US}"}
        try:
            group.mkdir()
            self._groups.append(group)
            for name, value in (limits | {"cgroup.procs": f"{process}"}).items():
                (group / name).write_text(value, encoding="ascii")
        except OSError as error:
            raise ConfigError(
                "--node-cores needs Linux, control groups that limit processor time, and root: "
                f"{error}"
            ) from error
