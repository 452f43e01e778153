"""The status of a node, for tests that describe one."""

from __future__ import annotations

from fencelock.actors.api.message import NodeStatus

READY = NodeStatus(
    node="n1",
    protocol="paxos",
    nodes=("n1",),
    ready=True,
    detail="ready",
    uptime_ms=1,
    counters=(),
    locks=(),
)
"""A node that serves alone and knows of no lock; see `dataclasses.replace`."""
