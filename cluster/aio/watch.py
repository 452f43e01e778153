"""The part of a watch by which an asyncio task waits for each change."""

from __future__ import annotations

from typing import Self

from fencelock.cluster.aio.loop import drive
from fencelock.cluster.watch import BaseWatch, T


class Waiting(BaseWatch[T]):
    """The part of a watch by which a task waits. A cancelled wait loses nothing."""

    async def get(self) -> T:
        """Return what comes next."""
        return await drive(self._next())

    def close(self) -> None:
        """Stop waiting for changes; the watch may be used again."""
        self._closing()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return what comes next."""
        return await drive(self._next())
