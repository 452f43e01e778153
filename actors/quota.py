"""The quotas of one client, or of one key, at one node."""

from __future__ import annotations

from msgspec import Struct


class Quotas(Struct, frozen=True, kw_only=True):
    """Limits on the work of a node for one client, so that other clients are served, too.

    With keys, all clients with one key share them, but for `connections`. Each node may have its
    own: nothing of this is replicated.
    """

    connections: int = 3_000
    """Connections from one address; silent ones, else the newest, are closed."""
    requests_per_s: int = 50_000
    """Requests; more are refused for the rest of the second."""
    requests: int = 10_000
    """Commands in flight; more are refused. Releases and keep-alives have twice as much room."""
    queries: int = 256
    """Reads without a reply; more are refused."""
    sessions: int = 10_000
    """Open sessions that were opened through this node; more are refused (`paxos` only)."""
    unread_kib: int = 2_048
    """Replies that the client has not read (KiB); then its frames are dropped until it reads."""
    tickets: int = 25_000
    """Holds and waits, through all nodes, of all clients with one key; more are refused by the
    leaders (`bakery` with keys only). They have a quarter of the table, as keys have on `paxos`."""
    watches: int = 1_000
    """Reads in flight that wait for a change of an object; more are refused (`paxos` only)."""


DEFAULT_QUOTAS = Quotas()
