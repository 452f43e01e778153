"""A map for asyncio tasks."""

from __future__ import annotations

from fencelock.cluster.aio.loop import drive
from fencelock.cluster.aio.watch import Waiting
from fencelock.cluster.map import BaseMap, BaseMapWatch, Entry, Fence, MapChange, MapListing
from fencelock.cluster.settings import Read


class MapWatch(BaseMapWatch, Waiting[MapChange | MapListing]):
    """An iterator over the changes of a map, from `Map.watch`; see `fencelock.MapWatch`."""


class Map(BaseMap):
    """One map of the cluster, from `fencelock.aio.Client.map`.

    Arguments, return values and errors are those of `fencelock.Map`. It is unknown whether a
    cancelled change takes effect.
    """

    async def get(
        self, key: str, *, read: Read = "linearizable", max_age: float = 1.0
    ) -> Entry | None:
        """Return the entry under ``key``, or None if there is none."""
        return await drive(self._getting(key, read, max_age))

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int:
        """Put ``value`` under ``key``; return its version."""
        return (await drive(self._putting(key, value, ttl, ephemeral, fence))).version

    async def put_if_absent(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int | None:
        """Put ``value`` if ``key`` has no entry; return the new version, or None if it has one."""
        return await drive(self._putting_if_absent(key, value, ttl, ephemeral, fence))

    async def replace(
        self,
        key: str,
        value: bytes,
        *,
        version: int,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int:
        """Replace the entry under ``key`` if it has that ``version``; return the new version."""
        return await drive(self._replacing(key, value, version, ttl, ephemeral, fence))

    async def delete(
        self, key: str, *, version: int | None = None, fence: Fence | None = None
    ) -> bool:
        """Delete the entry under ``key``; return whether there was one."""
        return await drive(self._deleting(key, version, fence))

    async def items(
        self,
        prefix: str = "",
        *,
        after: str = "",
        limit: int | None = None,
        read: Read = "linearizable",
        max_age: float = 1.0,
    ) -> list[tuple[str, Entry]]:
        """Return the keys that begin with ``prefix`` and their entries, in the order of UTF-8."""
        return await drive(self._listing(prefix, after, limit, read, max_age))

    def watch(self, prefix: str = "", *, after: int | None = None) -> MapWatch:
        """Return an iterator for ``async for`` over the changes; see `fencelock.Map.watch`."""
        return MapWatch(self._channel, self.name, prefix, after)
