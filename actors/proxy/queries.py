"""Queries that wait for an answer of the protocol. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from fencelock.actors.api.backup_message import LockQuery
from fencelock.actors.api.changes import CHANGES_WATCH_MS
from fencelock.actors.error import OverloadedError
from fencelock.actors.message import NS_PER_MS, Address, Instant, Timer, ms_between, node_of
from fencelock.actors.proxy.clients import OverQuotaError, RemoteClients

NODE_QUERIES_MAX = 10_000
"""Maximum unanswered queries of one node."""

QUERY_MS = 10_000
"""Timeout of a query (ms). A caller inside the node is then refused; a client in another process
has sent it again meanwhile, or has given up by its own timeout."""

TURN_QUERIES_MAX = 32
"""Queries that are asked at a time, and in a millisecond: their replies have up to 130 KiB each,
and other clients wait while these are encoded (10 ms)."""

WATCHES_MAX = 100_000
"""Maximum number of reads that wait for a change at one node."""


@dataclass(slots=True, eq=False)
class PendingQuery:
    """One query in flight."""

    number: int
    sender: Address
    request: LockQuery
    since: Instant
    owner: str
    """The client whose quota it uses."""
    turns: QueryTurns | None = None
    """The queue in which it waits for its turn, unless it waits for a change."""


class PendingQueries:
    """All queries in flight by number, in the order of arrival.

    Args:
        node: this node.
        clients: knows the quota of a client.
        watches: whether these queries wait for a change.

    """

    def __init__(self, node: str, clients: RemoteClients, *, watches: bool = False) -> None:
        self.node = node
        self._clients = clients
        self._watches = watches
        self._limit_ms = CHANGES_WATCH_MS + QUERY_MS if watches else QUERY_MS
        self._of_owner: Counter[str] = Counter()
        """Number of queries of each client or, with keys, of each key."""
        self.number = 0
        self.by_number: OrderedDict[int, PendingQuery] = OrderedDict()
        self._known: set[tuple[Address, LockQuery]] = set()

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def add(
        self, sender: Address, request: LockQuery, now: Instant, number: int = 0
    ) -> PendingQuery | None:
        """Add a query and return it; return None if the same query is in flight.

        The query gets ``number``, or the next number if that is 0.

        Raises:
            OverloadedError: this client, or all clients together, have too many queries in flight.

        """
        if (sender, request) in self._known:
            return None
        client, quotas = node_of(sender), self._clients.quotas
        quota = quotas.watches if self._watches else quotas.queries
        owner = self._clients.owner_of(client)
        if self._of_owner[owner] >= quota and client != self.node:
            wait, name = ("a change", "watches") if self._watches else ("an answer", "queries")
            raise OverQuotaError(
                f"{self._of_owner[owner]} queries of {owner} wait for {wait} at node "
                f"{self.node}, and its quota {name} is {quota}"
            )
        most = WATCHES_MAX if self._watches else NODE_QUERIES_MAX
        if len(self.by_number) >= most:
            text = f"node {self.node} has {most} unanswered queries, its limit"
            raise OverloadedError(text)
        number = number or self.next_number()
        query = self.by_number[number] = PendingQuery(number, sender, request, now, owner)
        self._known.add((sender, request))
        self._of_owner[owner] += 1
        return query

    def end(self, number: int) -> PendingQuery | None:
        """Remove and return a query, or None if it is over."""
        query = self.by_number.pop(number, None)
        if query is not None:
            self._known.discard((query.sender, query.request))
            if query.turns is not None:
                query.turns.end(number)
            owner = query.owner
            self._of_owner[owner] -= 1
            if not self._of_owner[owner]:
                del self._of_owner[owner]
        return query

    def end_old(self, now: Instant) -> list[PendingQuery]:
        ended: list[PendingQuery] = []
        for query in self.by_number.values():
            if ms_between(query.since, now) < self._limit_ms:
                break
            ended.append(query)
        for query in ended:
            self.end(query.number)
        return ended


class NextQueries(Timer):
    """Ask for the answers to the queries whose turn it is."""


class QueryTurns:
    """Lets queries wait, so that the replies of one turn are few. Each owner has its turn.

    Without it, thousands of small requests for large pages would be answered in one turn.

    Args:
        most: maximum queries that are asked at a time, and in a millisecond.

    """

    def __init__(self, most: int = TURN_QUERIES_MAX) -> None:
        self.most = most
        self._waiting: OrderedDict[str, deque[int]] = OrderedDict()
        """The numbers of the queries that wait, by owner; the first is next."""
        self._asked: set[int] = set()
        self._began = Instant(0)
        self._count = 0
        """Queries that were asked since then, for a millisecond."""

    def __bool__(self) -> bool:
        """Return whether any queries wait."""
        return bool(self._waiting)

    def enter(self, number: int, owner: str, now: Instant) -> bool:
        """Add a query; return whether it is its turn at once."""
        if not self._waiting and self._has_room(now):
            self._ask(number)
            return True
        self._waiting.setdefault(owner, deque()).append(number)
        return False

    def was_asked(self, number: int) -> bool:
        return number in self._asked

    def end(self, number: int) -> None:
        self._asked.discard(number)

    def next(self, now: Instant) -> list[int]:
        numbers: list[int] = []
        while self._waiting and self._has_room(now):
            owner, waiting = self._waiting.popitem(last=False)
            number = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            self._ask(number)
            numbers.append(number)
        return numbers

    def _ask(self, number: int) -> None:
        self._asked.add(number)
        self._count += 1

    def _has_room(self, now: Instant) -> bool:
        if now - self._began >= NS_PER_MS:
            self._began, self._count = now, 0
        return len(self._asked) < self.most and self._count < self.most
