"""Maps: the part that both clients share, and the blocking one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from fencelock.actors.api.changes import ChangesRead
from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.map import (
    MAP,
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntryRequest,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.name import PAGE_MAX, kind_of, object_name, plain_name, titled
from fencelock.actors.error import NotHeldError, VersionMismatchError
from fencelock.cluster.base_lock import BaseLock
from fencelock.cluster.base_object import BaseObject
from fencelock.cluster.connection import Connection
from fencelock.cluster.guarantee import Guarantee
from fencelock.cluster.hold import BaseHold
from fencelock.cluster.lock_options import checked
from fencelock.cluster.operation import Operation, drive
from fencelock.cluster.session_channel import SessionChannel
from fencelock.cluster.settings import Read
from fencelock.cluster.watch import BaseWatch, Waiting

Fence = BaseLock[Any] | BaseHold
"""A lock, or another object, or a hold of one, under whose fence something is changed."""


class Entry(NamedTuple):
    """An entry of a map, as it was at one instant."""

    value: bytes
    version: int
    """The number of its last change, which rises with each change of any entry of the cluster."""
    expires: float | None
    """The time after which it expires (s), counted from the reply; None for never."""
    session: str
    """The handle of the session with which it ends, as `Client.sessions` lists it; or empty."""


class BaseMap(BaseObject):
    """One map of the cluster."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name, MAP, Guarantee.MAPS)

    def _putting(
        self,
        key: str,
        value: bytes,
        ttl: float | None,
        ephemeral: bool,
        fence: Fence | None,
        version: int | None = None,
    ) -> Operation[EntryChanged]:
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(value).__name__
            raise TypeError(f"value is {kind}, and must be bytes: encode a text first")
        guard, number = _guard_of(fence)
        request = PutEntry(
            map=self.name,
            entry_key=key,
            value=value,
            request=1,
            version=version,
            ttl_ms=_ttl_ms_of(ttl),
            ephemeral=ephemeral,
            guard=guard,
            fence=number,
        )
        return self._changing(request)

    def _putting_if_absent(
        self, key: str, value: bytes, ttl: float | None, ephemeral: bool, fence: Fence | None
    ) -> Operation[int | None]:
        reply = yield from self._putting(key, value, ttl, ephemeral, fence, 0)
        return reply.version if reply.changed else None

    def _replacing(
        self,
        key: str,
        value: bytes,
        version: int,
        ttl: float | None,
        ephemeral: bool,
        fence: Fence | None,
    ) -> Operation[int]:
        _check_version(version)
        reply = yield from self._putting(key, value, ttl, ephemeral, fence, version)
        return self._version_of(reply, key, version)

    def _deleting(self, key: str, version: int | None, fence: Fence | None) -> Operation[bool]:
        guard, number = _guard_of(fence)
        if version is not None:
            _check_version(version)
        request = DeleteEntry(
            map=self.name, entry_key=key, request=1, version=version, guard=guard, fence=number
        )
        reply = yield from self._changing(request)
        if version is not None:
            self._version_of(reply, key, version)
        return reply.changed

    def _version_of(self, reply: EntryChanged, key: str, version: int) -> int:
        """Return the version of a change, or raise if the entry had another than ``version``."""
        if reply.changed:
            return reply.version
        has = f"has version {reply.version}" if reply.version else "does not exist"
        raise VersionMismatchError(
            f"{titled(self._full_name)}: entry {key!r} {has}, and version {version} was expected; "
            "nothing was changed",
            reply.version or None,
        )

    def _changing(self, request: EntryRequest) -> Operation[EntryChanged]:
        reply = yield from self._updating(checked(request))
        assert isinstance(reply, EntryChanged)
        return reply

    def _getting(self, key: str, read: Read, max_age: float) -> Operation[Entry | None]:
        age_ms = self._connection.age_ms(read, max_age)
        query = GetEntry(map=self.name, entry_key=key, age_ms=age_ms)
        found = yield from self._channel.ask(checked(query))
        assert isinstance(found, EntryList)
        return _entry_of(found.entries[0]) if found.entries else None

    def _listing(
        self, prefix: str, after: str, limit: int | None, read: Read, max_age: float
    ) -> Operation[list[tuple[str, Entry]]]:
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}, and must be at least 0, or None for no limit")
        age_ms = self._connection.age_ms(read, max_age)
        entries: list[tuple[str, Entry]] = []
        more = limit != 0
        while more:
            most = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(entries))
            query = ListEntries(map=self.name, prefix=prefix, after=after, most=most, age_ms=age_ms)
            page = yield from self._channel.ask(checked(query))
            assert isinstance(page, EntryList)
            entries += [(seen.key, _entry_of(seen)) for seen in page.entries]
            more = page.more and bool(page.entries) and len(entries) != limit
            after = entries[-1][0] if entries else after
        return entries


class MapChange(NamedTuple):
    """A change of an entry, or an entry in a `MapListing`."""

    key: str
    value: bytes | None
    """The new value; None if there is no entry any more."""
    version: int
    """The version of the change."""


class MapListing(NamedTuple):
    """All watched entries of a map, by key: the changes that follow are later ones."""

    entries: tuple[MapChange, ...]
    version: int
    """The version up to which all changes are in it."""


class BaseMapWatch(BaseWatch[MapChange | MapListing]):
    """The changes of a map, one after the other; first its entries."""

    def __init__(self, channel: SessionChannel, name: str, prefix: str, after: int | None) -> None:
        super().__init__(channel, object_name(MAP, name), prefix, after)
        checked(replace(self._question, after=after))
        self._pages = ListEntries(map=name, prefix=prefix, most=PAGE_MAX)
        self._listed: dict[str, int] = {}
        """Versions of entries in the last listing that are above that of the listing."""

    def _items_of(self, read: ChangesRead) -> Operation[list[MapChange | MapListing]]:
        changes = [MapChange(one.key, one.value, one.version) for one in read.changes]
        if not read.resync:
            listed = self._listed
            return [one for one in changes if one.version > listed.get(one.key, 0)]
        more = read.more
        while more:
            page = yield from self._channel.ask(replace(self._pages, after=changes[-1].key))
            assert isinstance(page, EntryList)
            changes += [MapChange(one.key, one.value, one.version) for one in page.entries]
            more = page.more and bool(page.entries)
        self._listed = {one.key: one.version for one in changes if one.version > read.version}
        return [MapListing(tuple(changes), read.version)]


def _entry_of(seen: EntrySeen) -> Entry:
    expires = None if seen.left_ms is None else seen.left_ms / 1000
    return Entry(seen.value, seen.version, expires, seen.session)


def _ttl_ms_of(ttl: float | None) -> int | None:
    """Return a time to live in milliseconds, rounded up.

    Raises:
        ValueError: it is not above 0.

    """
    if ttl is None:
        return None
    if not 0 < ttl < math.inf:
        raise ValueError(f"ttl is {ttl}, and must be above 0 (s), or None for no end")
    return math.ceil(ttl * 1000)


def _check_version(version: int) -> None:
    if version < 1:
        raise ValueError(f"version is {version}, and must be at least 1; see put_if_absent")


def _guard_of(fence: Fence | None) -> tuple[str, int]:
    """Return the object in the table and its fence, empty and 0 for None.

    Raises:
        NotHeldError: the lock is not held here.

    """
    if fence is None:
        return "", 0
    if not isinstance(fence, BaseLock | BaseHold):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"fence is {fence!r}, and must be a lock or a hold")
    name, number = fence.object_name, fence.fence
    if number is None:
        raise NotHeldError(f"{titled(name)} is not held by this object; nothing was changed")
    return (plain_name(name) if kind_of(name) == SEVERAL else name), number


class MapWatch(BaseMapWatch, Waiting[MapChange | MapListing]):
    """The changes of a map, from `Map.watch`: an iterator that waits for each change.

    It goes on while nodes crash and while no node answers. For one thread at a time.
    """


class Map(BaseMap):
    """One map of the cluster, from `Client.map`. Any thread may use it.

    Keys are texts of 1 to 256 bytes without control characters, values are bytes, up to 64 KiB. A
    map need not be created, and leaves no state without entries. All maps of a cluster together
    have at most 100,000 entries and 256 MiB.

    A change takes effect once, however often the client must repeat it, unless the client loses its
    session meanwhile: then it raises `SessionExpiredError`, and it is unknown whether the change
    took effect.
    """

    def get(self, key: str, *, read: Read = "linearizable", max_age: float = 1.0) -> Entry | None:
        """Return the entry under ``key``, or None if there is none.

        Args:
            key: the key.
            read: see `Client.status`.
            max_age: see `Client.status`.

        Raises:
            StaleError: the node's knowledge is older than ``max_age``.
            InvalidRequestError: ``key`` is out of its limits.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            ValueError: ``read`` or ``max_age`` is out of its range.

        """
        return drive(self._getting(key, read, max_age))

    def put(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int:
        """Put ``value`` under ``key``, whether or not there is an entry; return its version.

        Args:
            key: the key.
            value: the value, up to 64 KiB. A text must be encoded.
            ttl: the time after which the entry expires (s), above 0, up to a year; None for never.
            ephemeral: whether the entry ends with the session of this client: when it is closed,
                or when the cluster has received nothing from it for its TTL. Both are those of the
                last put.
            fence: a lock or another object, or a hold of it. The put is refused unless that is held
                under its fence when the cluster applies the put.

        Raises:
            NotHeldError: ``fence`` is not held, or under another fence; nothing was changed.
            OverloadedError: the maps of the cluster are full; nothing was changed.
            InvalidRequestError: an argument is out of its limits.
            SessionExpiredError: the session was lost meanwhile.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                change took effect.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.
            ValueError: ``ttl`` is out of its range.

        """
        return drive(self._putting(key, value, ttl, ephemeral, fence)).version

    def put_if_absent(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int | None:
        """Put ``value`` under ``key`` if there is no entry; return its version, or None.

        Arguments and errors are those of `put`.
        """
        return drive(self._putting_if_absent(key, value, ttl, ephemeral, fence))

    def replace(
        self,
        key: str,
        value: bytes,
        *,
        version: int,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: Fence | None = None,
    ) -> int:
        """Replace the entry under ``key`` if it has that ``version``; return the new version.

        Other arguments and errors are those of `put`.

        Raises:
            VersionMismatchError: the entry has another version, or there is none; nothing was
                changed.

        """
        return drive(self._replacing(key, value, version, ttl, ephemeral, fence))

    def delete(self, key: str, *, version: int | None = None, fence: Fence | None = None) -> bool:
        """Delete the entry under ``key``; return whether there was one.

        Args:
            key: the key.
            version: the version that the entry must have, or None for any.
            fence: see `put`.

        Raises:
            VersionMismatchError: as for `replace`, if ``version`` is given.
            FencelockError: as `put`.

        """
        return drive(self._deleting(key, version, fence))

    def items(
        self,
        prefix: str = "",
        *,
        after: str = "",
        limit: int | None = None,
        read: Read = "linearizable",
        max_age: float = 1.0,
    ) -> list[tuple[str, Entry]]:
        """Return the keys that begin with ``prefix``, with their entries, in the order of UTF-8.

        They are read in pages of up to 1,000 entries or 128 KiB. Each page is true of one instant,
        not all of the same.

        Args:
            prefix: the beginning of the keys.
            after: only keys above this one, such as the last of the page before.
            limit: how many, at least 0; None for all.
            read: see `Client.status`.
            max_age: see `Client.status`.

        Raises:
            FencelockError: as `get`.

        """
        return drive(self._listing(prefix, after, limit, read, max_age))

    def watch(self, prefix: str = "", *, after: int | None = None) -> MapWatch:
        """Return an iterator over the changes of entries whose keys begin with ``prefix``.

        It sends nothing yet. It yields a `MapListing` of the present entries, then a `MapChange`
        for each change in order; none is missing and none comes twice. After more changes than the
        cluster keeps (1,000 of a map) that the watch did not ask for, it yields another listing.

        Args:
            prefix: the beginning of the keys.
            after: a version: then there is no first listing, but the changes after that version.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            TypeError: an argument is of a wrong type.

        """
        return MapWatch(self._channel, self.name, prefix, after)
