"""A share of a core for each node: as if nodes and clients had machines of their own."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from secrets import token_hex
from typing import Self

from fencelock.actors.error import ConfigError

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
