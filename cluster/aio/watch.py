"""The asyncio part of a watch."""

from __future__ import annotations

from typing import Self

from fencelock.actors.error import ClosedError
from fencelock.cluster.aio.loop import drive
from fencelock.cluster.watch import BaseWatch, T


class Waiting(BaseWatch[T]):
    """The part of a watch with which a task waits for changes. Cancelling a wait loses nothing."""

    async def get(self) -> T:
        """Wait for the next item and return it."""
        return await drive(self._next())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item, as `get` does; end the loop if the watch is closed."""
        try:
            return await drive(self._next())
        except ClosedError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the watch."""
        self.close()
