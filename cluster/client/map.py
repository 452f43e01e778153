"""Maps and their watches: what both clients share, then the classes of each client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.account import ListMaps, MapList
from fencelock.actors.api.changes import ChangesRead
from fencelock.actors.api.map import (
    ENTRY_TTL_MS_MAX,
    MAP,
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.name import LIST_PAGE_MAX, object_name, titled
from fencelock.actors.error import InvalidRequestError, VersionMismatchError
from fencelock.cluster.client.base_object import BaseObject, guard_of
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold import HasHold
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.client.settings import Read, check_int, check_number, checked, text_of
from fencelock.cluster.client.watch import AsyncWaiting, BaseWatch, Waiting
from fencelock.cluster.guarantee import Guarantee


class Entry(NamedTuple):
    """An entry of a map, as of one instant."""

    value: bytes
    version: int
    """The version of its last change. Versions rise over all changes of all maps of the cluster."""
    expires: float | None
    """The time from the reply until the entry expires (s), or None if it does not expire."""
    session: str
    """The handle of the session with which the entry ends, as `Client.sessions` lists it. Empty if
    the entry is not ephemeral."""


class BaseMap(BaseObject):
    """One map of the cluster."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name, MAP, Guarantee.MAPS)

    @operation
    def get(
        self, key: str, *, read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[Entry | None]:
        """Return the entry under ``key``, or None if there is none.

        Args:
            key: the key, 1 to 256 bytes.
            read: see `Client.status`.
            max_age: see `Client.status`.

        Raises:
            StaleError: the state of the node is older than ``max_age``.
            InvalidRequestError: ``key`` is out of its limits.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.
            ValueError: ``read`` or ``max_age`` is out of its range.

        """
        age_ms = self._connection.age_ms(read, max_age)
        key = text_of("key", key)
        query = GetEntry(map=self.name, entry_key=key, age_ms=age_ms)
        found = yield from self._channel.ask(checked(query))
        return _entry_of(found.entries[0]) if found.entries else None

    @operation
    def put(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: HasHold | None = None,
    ) -> Operation[int]:
        """Put ``value`` under ``key``, whether or not there is an entry; return its new version.

        ``ttl`` and ``ephemeral`` apply until the next put of the key, which sets its own.

        Args:
            key: the key, 1 to 256 bytes.
            value: the value, up to 64 KiB. A text must be encoded.
            ttl: the time after which the entry expires (s), above 0 and up to a year. None for an
                entry that does not expire.
            ephemeral: whether the entry ends with the session of this client: when the client is
                closed, or when the cluster has received nothing from it for its TTL.
            fence: a lock or another object that is held, or a hold. The put is refused unless the
                object is held under this fence when the cluster applies the put.

        Raises:
            NotHeldError: the object of ``fence`` is not held under that fence. Nothing was changed.
            OverloadedError: the maps of the cluster are full. Nothing was changed.
            InvalidRequestError: an argument is out of its limits.
            SessionExpiredError: the client's session ended during the call. It is unknown whether
                the change took effect.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                change took effect.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.
            ValueError: ``ttl`` is out of its range.

        """
        return (yield from self._putting(key, value, ttl, ephemeral, fence)).version

    @operation
    def put_if_absent(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: HasHold | None = None,
    ) -> Operation[int | None]:
        """Put ``value`` if ``key`` has no entry; return the new version, or None if it has one.

        Arguments and errors are those of `put`.
        """
        reply = yield from self._putting(key, value, ttl, ephemeral, fence, 0)
        return reply.version if reply.changed else None

    @operation
    def replace(
        self,
        key: str,
        value: bytes,
        *,
        version: int,
        ttl: float | None = None,
        ephemeral: bool = False,
        fence: HasHold | None = None,
    ) -> Operation[int]:
        """Replace the entry under ``key`` if it has that ``version``; return the new version.

        The other arguments and errors are those of `put`.

        Raises:
            VersionMismatchError: the entry has another version, or there is none. Nothing was
                changed.
            ValueError: ``version`` is below 1.

        """
        _check_version(version, "use put for any version, put_if_absent for no entry")
        reply = yield from self._putting(key, value, ttl, ephemeral, fence, version)
        return self._version_of(reply, key, version)

    @operation
    def delete(
        self, key: str, *, version: int | None = None, fence: HasHold | None = None
    ) -> Operation[bool]:
        """Delete the entry under ``key``; return whether there was one.

        With ``version``, at least 1, the entry must have that version. ``fence`` and the other
        errors are those of `put`.

        Raises:
            VersionMismatchError: see `replace`; only if ``version`` is given.

        """
        key = text_of("key", key)
        guard, number = guard_of(fence)
        if version is not None:
            _check_version(version, "leave it out to delete any version")
        request = DeleteEntry(
            map=self.name, entry_key=key, request=1, version=version, guard=guard, fence=number
        )
        reply = yield from self._updating(checked(request))
        if version is not None:
            self._version_of(reply, key, version)
        return reply.changed

    @operation
    def items(
        self,
        prefix: str = "",
        *,
        after: str = "",
        limit: int | None = None,
        read: Read = "linearizable",
        max_age: float = 1.0,
    ) -> Operation[list[tuple[str, Entry]]]:
        """Return the keys that begin with ``prefix`` and their entries, in the order of UTF-8.

        The entries are read in pages of up to 1,000 entries or 128 KiB. Each page shows the map at
        one instant, but different pages show different instants.

        Args:
            prefix: the beginning of the keys, up to 256 bytes.
            after: only keys above this one are returned.
            limit: the maximum number of entries, at least 0; None for all.
            read: see `Client.status`.
            max_age: see `Client.status`.

        Raises:
            FencelockError: see `get`.
            TypeError: an argument is of a wrong type.
            ValueError: ``limit`` is below 0, or see `get`.

        """
        prefix = text_of("prefix", prefix)
        after = text_of("after", after)
        if limit is not None:
            allowed = "an int of at least 0, or None for no limit"
            check_int("limit", limit, allowed, lambda n: n >= 0, ValueError)
        age_ms = self._connection.age_ms(read, max_age)
        entries: list[tuple[str, Entry]] = []
        more = limit != 0
        while more:
            most = LIST_PAGE_MAX if limit is None else min(LIST_PAGE_MAX, limit - len(entries))
            query = ListEntries(map=self.name, prefix=prefix, after=after, most=most, age_ms=age_ms)
            page = yield from self._channel.ask(checked(query))
            entries += [(seen.key, _entry_of(seen)) for seen in page.entries]
            more = page.more and bool(page.entries) and len(entries) != limit
            after = entries[-1][0] if entries else after
        return entries

    @operation
    def _count(self) -> Operation[int]:
        found: MapList = yield from self._channel.ask(ListMaps(prefix=self.name, most=1))
        return next((one.entries for one in found.maps if one.name == self.name), 0)

    def _putting(
        self,
        key: str,
        value: bytes,
        ttl: float | None,
        ephemeral: bool,
        fence: HasHold | None,
        version: int | None = None,
    ) -> Operation[EntryChanged]:
        key = text_of("key", key)
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            advice = ": encode a text first" if isinstance(value, str) else ""
            raise TypeError(f"value is {type(value).__name__}, and must be bytes{advice}")
        if not isinstance(ephemeral, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"ephemeral is {ephemeral!r}, and must be True or False")
        guard, number = guard_of(fence)
        request = PutEntry(
            map=self.name,
            entry_key=key,
            value=bytes(value),  # Itself, unless it is of a subclass.
            request=1,
            version=version,
            ttl_ms=_ttl_ms_of(ttl),
            ephemeral=ephemeral,
            guard=guard,
            fence=number,
        )
        return self._updating(checked(request))

    def _version_of(self, reply: EntryChanged, key: str, version: int) -> int:
        """Return the version of a change, or raise if the entry did not have ``version``."""
        if reply.changed:
            return reply.version
        has = f"has version {reply.version}" if reply.version else "does not exist"
        raise VersionMismatchError(
            f"{titled(self._full_name)}: entry {key!r} {has}, but version {version} was expected; "
            "nothing was changed",
            reply.version or None,
        )


class MapChange(NamedTuple):
    """A change of an entry, or one entry of a `MapListing`."""

    key: str
    value: bytes | None
    """The new value; None if the entry was deleted, has expired, or ended with its session."""
    version: int
    """The version of the change."""


class MapListing(NamedTuple):
    """All watched entries of a map, by key. The changes that follow are later."""

    entries: tuple[MapChange, ...]
    version: int
    """The version up to which the listing includes all changes."""


class BaseMapWatch(BaseWatch[MapChange | MapListing]):
    """The changes of a map, one after the other, beginning with a listing of its entries."""

    def __init__(self, channel: SessionChannel, name: str, prefix: str, after: int | None) -> None:
        prefix = text_of("prefix", prefix)
        if after is not None:
            check_int("after", after, "an int of at least 0, or None", lambda n: n >= 0)
        super().__init__(channel, object_name(MAP, name), prefix, after)
        checked(replace(self._request, after=after))
        self._pages = ListEntries(map=name, prefix=prefix, most=LIST_PAGE_MAX)
        self._listed: dict[str, int] = {}
        """The entries of the last listing with versions above that of the listing.

        They changed after its first page was read. Their changes come again, and are left out.
        """

    def _items_of(self, read: ChangesRead) -> Operation[list[MapChange | MapListing]]:
        changes = [MapChange(one.key, one.value, one.version) for one in read.changes]
        if not read.resync:
            listed = self._listed
            return [one for one in changes if one.version > listed.get(one.key, 0)]
        more = read.more
        while more:
            asked = replace(self._pages, after=changes[-1].key)
            page: EntryList = yield from self._asking(asked)
            changes += [MapChange(one.key, one.value, one.version) for one in page.entries]
            more = page.more and bool(page.entries)
        self._listed = {one.key: one.version for one in changes if one.version > read.version}
        return [MapListing(tuple(changes), read.version)]


def _entry_of(seen: EntrySeen) -> Entry:
    expires = None if seen.left_ms is None else seen.left_ms / 1000
    return Entry(seen.value, seen.version, expires, seen.session)


def _ttl_ms_of(ttl: float | None) -> int | None:
    if ttl is None:
        return None
    most_s = ENTRY_TTL_MS_MAX // 1000
    allowed = f"a number of seconds above 0 and at most {most_s}, or None for no end"
    check_number("ttl", ttl, allowed, lambda s: 0 < s < math.inf)
    check_number("ttl", ttl, allowed, lambda s: s <= most_s, InvalidRequestError)
    return math.ceil(ttl * 1000)


def _check_version(version: int, otherwise: str) -> None:
    allowed = f"an int of at least 1; {otherwise}"
    check_int("version", version, allowed, lambda n: n >= 1, ValueError)


class MapWatch(BaseMapWatch, Waiting[MapChange | MapListing]):
    """An iterator over the changes of a map, from `Map.watch`.

    It waits for each change. It goes on while nodes crash and while no node answers. Only one
    thread at a time may wait for its items. Any thread may `close` it, which ends a loop over it.
    """


class Map(BaseMap, InThreads):
    """One map of the cluster, from `Client.map`. Any thread may use it.

    Keys are texts of 1 to 256 bytes without control characters. Values are bytes, up to 64 KiB. A
    map need not be created, and a map without entries leaves no state. All maps of a cluster
    together have at most 100,000 entries and 256 MiB.

    A change takes effect once, however often the client has to send it. If the client's session
    ends during the call, the call raises `SessionExpiredError`, and it is unknown whether the
    change took effect.

    ``key in map``, ``len(map)`` and ``map[key]`` are one request each; the last returns an `Entry`
    or raises `KeyError`. ``for key in map`` reads the map in pages, with the values. A map is true,
    also without entries.
    """

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: str) -> Entry:
        if (found := self.get(key)) is None:
            raise KeyError(key)
        return found

    def __len__(self) -> int:
        return self._count()

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        page = self.items(limit=LIST_PAGE_MAX)
        while page:
            yield from (key for key, _ in page)
            page = self.items(after=page[-1][0], limit=LIST_PAGE_MAX)

    def watch(self, prefix: str = "", *, after: int | None = None) -> MapWatch:
        """Return an iterator over the changes of entries whose keys begin with ``prefix``.

        This call sends nothing yet. The iterator yields a `MapListing` of the present entries, then
        a `MapChange` for each change, in order. No change is missing, and none comes twice. The
        cluster keeps the last 1,000 changes of a map. A watch that is further behind yields another
        listing.

        Args:
            prefix: the beginning of the keys, up to 256 bytes.
            after: None to begin with a listing, or a version to begin with the changes after it.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            TypeError: an argument is of a wrong type.

        """
        return MapWatch(self._channel, self.name, prefix, after)


class AsyncMapWatch(BaseMapWatch, AsyncWaiting[MapChange | MapListing]):
    """An iterator over the changes of a map, from `Map.watch`; see `fencelock.MapWatch`."""


class AsyncMap(BaseMap, InTasks):
    """One map of the cluster, from `fencelock.aio.Client.map`.

    Arguments, return values and errors are those of `fencelock.Map`. It is unknown whether a
    cancelled change takes effect.
    """

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncMapWatch:
        """Return an iterator for ``async for`` over the changes; see `fencelock.Map.watch`."""
        return AsyncMapWatch(self._channel, self.name, prefix, after)
