"""Queries that wait for an answer of the protocol. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from fencelock.actors.api.changes import WATCH_MS
from fencelock.actors.api.query import LockQuery
from fencelock.actors.error import OverloadedError
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.proxy.clients import OverQuotaError, RemoteClients

QUERIES_MAX = 10_000
"""Maximum unanswered queries of one node."""

READ_MS = 10_000
"""Timeout of a query (ms). A caller inside the node is then refused; a client in another process
has sent it again meanwhile, or has given up by its own timeout."""

WATCHES_MAX = 100_000
"""Maximum number of reads that wait for a change at one node."""


@dataclass(slots=True, eq=False)
class PendingQuery:
    """One query in flight."""

    number: int
    sender: Address
    request: LockQuery
    since: Instant


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
        self._limit_ms = WATCH_MS + READ_MS if watches else READ_MS
        self._of_owner: Counter[str] = Counter()
        """Number of queries of each client or, with keys, of each key."""
        self.number = 0
        self.by_number: OrderedDict[int, PendingQuery] = OrderedDict()
        self._known: set[tuple[Address, LockQuery]] = set()

    def next_number(self) -> int:
        """Return a number that no query had."""
        self.number += 1
        return self.number

    def add(self, sender: Address, request: LockQuery, now: Instant, number: int = 0) -> int:
        """Add a query and return its number; return 0 if the same query is in flight.

        The query gets ``number``, or the next number if that is 0.

        Raises:
            OverloadedError: this client, or all clients together, have too many queries in flight.

        """
        if (sender, request) in self._known:
            return 0
        client, quotas = node_of(sender), self._clients.quotas
        quota = quotas.watches if self._watches else quotas.queries
        owner = self._clients.owner_of(client)
        if self._of_owner[owner] >= quota and client != self.node:
            wait, name = ("a change", "watches") if self._watches else ("an answer", "queries")
            raise OverQuotaError(
                f"{self._of_owner[owner]} queries of {owner} wait for {wait} at node "
                f"{self.node}, and its quota {name} is {quota}"
            )
        most = WATCHES_MAX if self._watches else QUERIES_MAX
        if len(self.by_number) >= most:
            text = f"node {self.node} has {most} unanswered queries, its limit"
            raise OverloadedError(text)
        number = number or self.next_number()
        self.by_number[number] = PendingQuery(number, sender, request, now)
        self._known.add((sender, request))
        self._of_owner[owner] += 1
        return number

    def end(self, number: int) -> PendingQuery | None:
        """Remove and return a query, or None if it is over."""
        query = self.by_number.pop(number, None)
        if query is not None:
            self._known.discard((query.sender, query.request))
            owner = self._clients.owner_of(node_of(query.sender))
            self._of_owner[owner] -= 1
            if not self._of_owner[owner]:
                del self._of_owner[owner]
        return query

    def end_old(self, now: Instant) -> list[PendingQuery]:
        """Remove and return the queries that have timed out."""
        ended: list[PendingQuery] = []
        for query in self.by_number.values():
            if ms_between(query.since, now) < self._limit_ms:
                break
            ended.append(query)
        for query in ended:
            self.end(query.number)
        return ended
