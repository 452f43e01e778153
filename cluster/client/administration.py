"""The part of both clients that reads and changes the cluster as a whole, mostly for operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from fencelock.actors.api.account import (
    AccountUsage,
    Amounts,
    ListedMap,
    ListMaps,
    MapList,
    Purge,
    Purged,
    Quota,
    QuotaSet,
    ReadUsage,
    SetQuota,
    UsageRead,
)
from fencelock.actors.api.backup_message import BackupPart, ReadBackup
from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MembersChanged,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.name import LIST_PAGE_MAX
from fencelock.actors.api.operator_message import (
    CloseSession,
    ListedEviction,
    ListedLock,
    ListedObject,
    ListedSession,
    ListLocks,
    ListRecords,
    LockList,
    RecordList,
    Records,
    SessionClosed,
)
from fencelock.actors.error import UnavailableError
from fencelock.actors.message import Message
from fencelock.actors.session.event import SURVEY_MS, Survey, Surveyed
from fencelock.cluster.client.base_client import BaseClient
from fencelock.cluster.client.operation import Operation, operation
from fencelock.cluster.client.owner import operator_named
from fencelock.cluster.client.settings import Read, checked, name_text_of, text_of

A = TypeVar("A")
L = TypeVar("L", ListedLock, ListedObject)
R = TypeVar("R", LockList, MapList, RecordList, UsageRead)

SILENT_SHARE = 2 / 3
"""Part of the time that is left in which a node must describe itself. The other replies would be
lost if the survey itself ended too late."""


class Administration(BaseClient):
    """The part of a client that reads and changes the cluster as a whole."""

    @operation
    def status(
        self, name: str, read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[LockStatus]:
        """Return the holder and the queue of ``name``, in order; stale on arrival.

        A wait that has ended, as by a timeout, is listed until the cluster has recorded that, for
        some ms.

        Args:
            name: the name of the lock.
            read: ``"linearizable"``: the state at some instant between request and reply, if the
                protocol guarantees that; ``"local"``: the state as one node knows it.
            max_age: how old a local answer may be (s), 0 to an hour.

        Raises:
            InvalidRequestError: ``name`` is out of its limits.
            UnsupportedError: the protocol has no local reads, since none of its nodes can
                prove how old its answer is; `paxos` has them.
            StaleError: the node's knowledge is older than ``max_age``.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            ValueError: ``read`` or ``max_age`` is not one of these.

        """
        connection = self._connection
        age_ms = connection.age_ms(read, max_age)
        return connection.line.inspecting(name_text_of(name), age_ms)

    @operation
    def locks(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[tuple[ListedLock, ...]]:
        """Return the held locks whose names begin with ``prefix``, by name.

        They are read in pages of 1,000. Each page is true of one instant, not all of the same.

        Raises:
            UnsupportedError: the protocol keeps no table of locks.
            StaleError: see `status`, as for the others.

        """
        return self._listed(prefix, read, max_age, lambda page: page.lines)

    @operation
    def objects(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[tuple[ListedObject, ...]]:
        """Return the objects that nobody can hold, such as latches; arguments as for `locks`."""
        return self._listed(prefix, read, max_age, lambda page: page.objects, unheld=True)

    @operation
    def clientless_holds(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> Operation[tuple[ListedLock, ...]]:
        """Return those of `locks` that belong to no client: detached, or held through Redis doors.

        They outlive the clients that made them. `purge` with the kind ``"key"`` ends them.
        """
        return self._listed(prefix, read, max_age, lambda page: page.lines, clientless=True)

    @operation
    def sessions(self) -> Operation[tuple[ListedSession, ...]]:
        """Return the open sessions of all clients, the oldest first.

        Raises:
            UnsupportedError: the protocol keeps no table of locks.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        return self._records(Records.SESSIONS, lambda page: page.sessions)

    @operation
    def evictions(self) -> Operation[tuple[ListedEviction, ...]]:
        """Return the last 1,000 forced releases, the oldest first: whose lock, and by whom.

        Raises:
            UnsupportedError: as for `sessions`, as are the others.

        """
        return self._records(Records.EVICTIONS, lambda page: page.evictions)

    @operation
    def backup_part(self, node: str = "", slot: int = 0, chunk: int = 0) -> Operation[BackupPart]:
        """Return part ``chunk`` of the snapshot of ``slot``; with ``slot`` 0, begin a snapshot.

        ``fencelock backup`` is made of this. See `BackupPart` for a snapshot that is being made.
        Name the ``node`` that made it; empty for any.

        Raises:
            UnavailableError: the node has no such snapshot, or none answered for 10 s.
            UnsupportedError: the protocol keeps no table of locks.
            ClosedError: the client is closed.

        """
        return self._channel.ask(ReadBackup(node=node, slot=slot, chunk=chunk))

    @operation
    def evict(self, name: str, fence: int, operator: str | None = None) -> Operation[Contender]:
        """Take the lock ``name`` from its holder under ``fence``; return that holder.

        The holder is notified, and may still act on the protected resource: only a fence that is
        checked stops it. The cluster's log records the eviction and the operator's name.

        Args:
            name: the name of the lock.
            fence: the fence of the hold, as `status` shows it: a later holder is not affected.
            operator: the name of the person who does it, up to 200 bytes; by default user and host.

        Raises:
            NotHeldError: it is not held under ``fence``.
            UnsupportedError: the protocol keeps no table of locks.
            InvalidRequestError: an argument is out of its limits.
            UnavailableError: no answer came for 10 s; repeating it does no harm.
            ClosedError: the client is closed.

        """
        return self._connection.evicting(name, fence, operator)

    @operation
    def close_session(self, handle: str, operator: str | None = None) -> Operation[SessionClosed]:
        """Close the session with that ``handle``; return its label and the number of its claims.

        Its locks go to the next waiters at once. Its client is notified, opens a new session, and
        may still act on the protected resources: only fences that are checked stop it. `evictions`
        lists the closing.

        Args:
            handle: the ``id`` of the session in `sessions`.
            operator: the name of the person who does it, as for `evict`.

        Raises:
            NotHeldError: no session with that handle is open.
            FencelockError: see `evict`.

        """
        who = operator_named(operator)
        return self._channel.ask(CloseSession(handle=handle, operator=who))

    @operation
    def usage(self) -> Operation[tuple[AccountUsage, ...]]:
        """Return what each key has in the cluster, and what it may have; see `set_quota`.

        The name ``""`` stands for all clients without a key, ``"*"`` for every key without a quota
        of its own.

        Raises:
            UnsupportedError: as for `sessions`, as are the others.

        """
        return self._all(
            UsageRead,
            lambda page: page.accounts,
            lambda known: ReadUsage(after=known[-1].account if known else None, most=LIST_PAGE_MAX),
        )

    @operation
    def set_quota(self, key: str, quota: Quota, operator: str | None = None) -> Operation[Amounts]:
        """Replace the quota of a key, or of a name of `usage`, by ``quota``; return its limits.

        A limit that is None does not mean without limit. It is that of ``"*"``, every other key,
        if that is set, else a quarter of what all may have together; for ``""``, the clients
        without a key, it is the whole. What the key has beyond its quota stays. `evictions` lists
        the change.

        Args:
            key: the name of the key.
            quota: the limits.
            operator: the name of the person who does it, as for `evict`.

        Raises:
            ForbiddenError: the client's own key has not the role operator.
            FencelockError: see `evict`.

        """
        who = operator_named(operator)
        asked = SetQuota(account=key, quota=quota, operator=who)
        reply: QuotaSet = yield from self._channel.ask(asked)
        return reply.limits

    @operation
    def maps(self, prefix: str = "") -> Operation[tuple[ListedMap, ...]]:
        """Return the maps that have entries and whose names begin with ``prefix``, by name."""
        asked = checked(ListMaps(prefix=prefix, most=LIST_PAGE_MAX))
        return self._all(
            MapList,
            lambda page: page.maps,
            lambda known: replace(asked, after=known[-1].name if known else ""),
        )

    @operation
    def purge(self, purge: Purge) -> Operation[int]:
        """Delete entries of maps, latches and the like, or holds; return their number.

        Clients that wait for a deleted object are refused; the next one gets the lock of a hold
        that ends. It works in small steps, and other requests are served between the
        steps. If an error ends the work, repeating it does no harm. `evictions` lists it, unless
        the client's key itself made all that was deleted.

        Raises:
            ForbiddenError: the client's key does not allow these names.
            FencelockError: see `evict`.

        """
        removed, more = 0, True
        while more:
            reply: Purged = yield from self._channel.ask(purge)
            removed, more = removed + reply.removed, reply.more
            purge = replace(purge, after=reply.after, after_key=reply.after_key)
        return removed

    @operation
    def members(self) -> Operation[MembersRead]:
        """Return the nodes of the cluster: who leads, who votes, and how far each is behind.

        Raises:
            UnsupportedError: the members of the protocol never change; see `describe`.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        return self._channel.ask(ReadMembers())

    @operation
    def change_members(self, change: ChangeMembers) -> Operation[MembersChanged]:
        """Begin a change of the members, or return how far it is; repeat it until it is done.

        Raises:
            MembershipError: the members cannot change so; the text says what to do instead.
            UnsupportedError: as for `members`.
            FencelockError: see `evict`.

        """
        return self._channel.ask(change)

    @operation
    def describe(self, *, roles: bool = False) -> Operation[tuple[NodeStatus, ...]]:
        """Return the status of each node of the address list, in that order.

        With ``roles`` a `NodeStatus` also describes the node's roles.

        A node that is silent for 2 s, or known to be down, is missing. If less time is left, see
        `reply_by`, a node is given two thirds of it.

        Raises:
            UnavailableError: no node answered.
            ClosedError: the client is closed.

        """
        return (yield from self._surveying(roles)).statuses

    @operation
    def survey(self, *, roles: bool = False) -> Operation[Surveyed]:
        """Return what `describe` does, and the addresses that did not answer, with the reasons."""
        return self._surveying(roles)

    def reply_by(self, ends_at: float) -> None:
        """Let later requests fail at ``ends_at`` (s, of ``time.monotonic``); not those of locks.

        They raise `UnavailableError`.
        """
        self._channel.ends_at = ends_at

    def _listed(
        self,
        prefix: str,
        read: Read,
        max_age: float,
        items: Callable[[LockList], Sequence[L]],
        *,
        unheld: bool = False,
        clientless: bool = False,
    ) -> Operation[tuple[L, ...]]:
        age_ms = self._connection.age_ms(read, max_age)
        prefix = text_of("prefix", prefix)
        asked = ListLocks(
            prefix=prefix, most=LIST_PAGE_MAX, age_ms=age_ms, unheld=unheld, clientless=clientless
        )

        return self._all(
            LockList, items, lambda known: replace(asked, after=known[-1].lock if known else "")
        )

    def _records(
        self, kind: Records, items: Callable[[RecordList], Sequence[A]]
    ) -> Operation[tuple[A, ...]]:
        return self._all(
            RecordList,
            items,
            lambda known: ListRecords(kind=kind, skip=len(known), most=LIST_PAGE_MAX),
        )

    def _all(
        self, kind: type[R], items: Callable[[R], Sequence[A]], ask: Callable[[list[A]], Message]
    ) -> Operation[tuple[A, ...]]:
        """End with the items of all pages, which are of ``kind``."""
        found: list[A] = []
        more = True
        while more:
            page = yield from self._channel.ask(ask(found))
            assert isinstance(page, kind)
            found += items(page)
            more = page.more and bool(items(page))
        return tuple(found)

    def _surveying(self, roles: bool) -> Operation[Surveyed]:
        within_ms = math.ceil(min(SURVEY_MS, self._channel.left_s() * SILENT_SHARE * 1000))
        survey = Survey(roles=roles, within_ms=within_ms)
        surveyed: Surveyed = yield from self._channel.ask(survey)
        if not surveyed.statuses:
            self._channel.check()
            raise UnavailableError(f"no node described itself: {', '.join(surveyed.silent)}")
        return surveyed
