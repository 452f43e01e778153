"""A replica of the log, on a member of a group of three."""

from __future__ import annotations

from typing import Any

from fencelock.actors.message import address_of
from fencelock.actors.paxos.config import LogConfig, View, replica_of
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.replica import Replica
from support.effects import HOST
from support.log_workload import LogCounter

CONFIG = LogConfig(View(0, ("a", "b", "c")))
HERE, LISTENER = replica_of("a"), address_of("a", "proxy")


def replica_of_a(**options: Any) -> Replica:
    """Return the replica of ``a``, which counts what it applies, with ``options`` of `Replica`."""
    given: dict[str, Any] = {
        "machine": LogCounter(),
        "recovered": Recovered(),
        "listener": LISTENER,
        **options,
    }
    return Replica(HERE, HOST, node="a", config=CONFIG, **given)
