"""The header of a backup, which tests copy with other values."""

from __future__ import annotations

from fencelock.cluster.node.storage.backup import BackupHeader

HEADER = BackupHeader(
    cluster="orders",
    protocol="paxos",
    node="n2",
    date="2025-11-22T13:47:33+00:00",
    slot=54,
    time_ms=1859,
    fence=3,
    parts=1,
    release="0.1.0",
)
