"""A replica of the log, on a member of a group of three."""

from __future__ import annotations

from typing import Any

from fencelock.actors.message import address_of
from fencelock.actors.paxos.config import LogConfig, View, replica_of
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.replica import Replica
from support.effects import HOST
from support.log_workload import LogCounter


def config_of(members: str = "abc") -> LogConfig:
    """Return the views of a group that never changed; each letter is a member."""
    return LogConfig(View(0, tuple(members)))


CONFIG = config_of()
HERE, LISTENER = replica_of("a"), address_of("a", "proxy")


def replica_of_a(**options: Any) -> Replica:
    """Return the replica of ``a``, which counts applied commands, with ``options`` of `Replica`."""
    given: dict[str, Any] = {
        "machine": LogCounter(),
        "recovered": Recovered(),
        "listener": LISTENER,
        "config": CONFIG,
        **options,
    }
    return Replica(HERE, HOST, node="a", **given)
