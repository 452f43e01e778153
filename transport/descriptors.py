"""Descriptors of this process: its limit, and some kept in reserve for files."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from errno import EMFILE, ENFILE
from typing import TypeVar

T = TypeVar("T")

DESCRIPTORS_MAX = 65_536
"""The limit is not raised beyond this: some programs walk through all possible descriptors."""

CONNECTIONS_MAX = 10_000
"""Limit of connections to one node: as many as it remembers clients."""

CONNECTIONS_MIN = 16

RESERVED = 128
"""Descriptors that a node keeps free of connections: its sockets, files, links and libraries."""

RESERVE = 8
"""Descriptors that are held open, to be given to a file when no other is free."""


def raise_limit() -> int:
    """Raise the limit of open descriptors of this process as far as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def connections_max(limit: int) -> int:
    """Return the limit of connections of a node that may open ``limit`` descriptors.

    A quarter stays free beside `RESERVED`: connections are accepted on a thread of libzmq, and
    are counted only afterwards.
    """
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, (limit - RESERVED) * 3 // 4))


class Reserve:
    """Some open descriptors that are given up, one by one, for a file that must be opened.

    Args:
        size: the number of descriptors.

    Attributes:
        missing: the number of descriptors that `fill` has to open.

    """

    def __init__(self, size: int = RESERVE) -> None:
        self.missing = size
        self._kept: list[int] = []
        self.fill()

    def fill(self) -> None:
        """Open the missing descriptors, as far as the limit allows."""
        with contextlib.suppress(OSError):
            while self.missing:
                self._kept.append(os.eventfd(0, os.EFD_CLOEXEC))
                self.missing -= 1

    def spend(self, opening: Callable[[], T]) -> T:
        """Return what ``opening`` returns; while no descriptor is free, give one up and try again.

        Raises:
            OSError: the last error of ``opening``.

        """
        while True:
            try:
                return opening()
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE) or not self._kept:
                    raise
                os.close(self._kept.pop())
                self.missing += 1

    def close(self) -> None:
        """Close all. Calling it twice does nothing."""
        while self._kept:
            os.close(self._kept.pop())


NO_RESERVE = Reserve(0)
"""An empty reserve, for files that are opened while a node starts."""
