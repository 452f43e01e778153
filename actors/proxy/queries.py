"""Queries that wait for an answer of the protocol. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.message import Inspect
from fencelock.actors.api.request import TableQuery
from fencelock.actors.api.session_message import ListLocks, ListRecords
from fencelock.actors.error import OverloadedError
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.proxy.clients import OverQuotaError, RemoteClients

QUERIES_MAX = 10_000
"""Maximum unanswered queries of one node."""

READ_MS = 10_000
"""Timeout of a query (ms). A caller inside the node is then refused; a client in another process
has sent it again meanwhile, or has given up by its own timeout."""

LockQuery = Inspect | ListLocks | ListRecords | ReadBackup | TableQuery


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

    """

    def __init__(self, node: str, clients: RemoteClients) -> None:
        self.node = node
        self._clients = clients
        self._of_owner: Counter[str] = Counter()
        """Number of queries of each client or, with keys, of each key."""
        self.number = 0
        self.by_number: OrderedDict[int, PendingQuery] = OrderedDict()
        self._known: set[tuple[Address, LockQuery]] = set()

    def next_number(self) -> int:
        """Return a number that no query had."""
        self.number += 1
        return self.number

    def add(self, sender: Address, request: LockQuery, now: Instant) -> int:
        """Add a query and return its number; return 0 if the same query is in flight.

        Raises:
            OverloadedError: there are too many, of this client or of all.

        """
        if (sender, request) in self._known:
            return 0
        client, quota = node_of(sender), self._clients.quotas.queries
        owner = self._clients.owner_of(client)
        if self._of_owner[owner] >= quota and client != self.node:
            raise OverQuotaError(
                f"{self._of_owner[owner]} questions of {owner} wait for an answer at node "
                f"{self.node}, its quota queries is {quota}"
            )
        if len(self.by_number) >= QUERIES_MAX:
            text = f"node {self.node} has {QUERIES_MAX} unanswered questions, its limit"
            raise OverloadedError(text)
        number = self.next_number()
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
            if ms_between(query.since, now) < READ_MS:
                break
            ended.append(query)
        for query in ended:
            self.end(query.number)
        return ended
