"""The quotas of one client at one node; those of the whole cluster are limits of the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What a node does for one client, so that one cannot take it from others.

    Each node may have its own: nothing of this is replicated. Quotas of sessions, holds and waits
    are part of the table (`fencelock.actors.table.session`).
    """

    connections: int = 3_000
    """Connections from one address; more are closed."""
    requests_per_s: int = 20_000
    """Requests; more are refused for the rest of the second."""
    requests: int = 10_000
    """Commands in flight; more are refused. Releases and keep-alives have twice as much room."""
    queries: int = 256
    """Reads without a reply; more are refused."""
    unread_kib: int = 2_048
    """Replies that the client has not read (KiB); then its frames are dropped until it reads."""


DEFAULT_QUOTAS = Quotas()
