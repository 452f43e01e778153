"""The asyncio part of a watch."""

from __future__ import annotations

from typing import Self

from fencelock.cluster.aio.loop import drive
from fencelock.cluster.watch import BaseWatch, T


class Waiting(BaseWatch[T]):
    """The part of a watch with which a task waits for changes. Cancelling a wait loses nothing."""

    async def get(self) -> T:
        """Wait for the next item and return it."""
        return await drive(self._next())

    def close(self) -> None:
        """Cancel the request for changes. The watch can still be used: it sends another one."""
        self._closing()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item; see `get`."""
        return await drive(self._next())
