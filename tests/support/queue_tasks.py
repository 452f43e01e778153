"""A task for real workers of Dramatiq and RQ, which reports when it runs, and ends on request."""

from __future__ import annotations

import os
from typing import Any

import dramatiq
from dramatiq.brokers import redis as brokers
from redis import Redis

import fencelock

TTL_S = 2.0

redis = Redis(unix_socket_path=os.environ["BROKER"])
made: Any = brokers.RedisBroker
dramatiq.set_broker(made(client=redis, heartbeat_timeout=1_000, maintenance_chance=1_000_000))
fencelock.configure(ttl=TTL_S)


@fencelock.locked("report/{day}", timeout=0)
def report(day: str) -> None:
    """Say which process writes the report of ``day``, until the latch ``end/day`` opens."""
    fencelock.map("processes").put(day, str(os.getpid()).encode())
    fencelock.counter(f"runs/{day}").add(1)
    fencelock.latch(f"end/{day}", 1).wait()
    fencelock.counter(f"ends/{day}").add(1)


actor = dramatiq.actor(max_retries=None, min_backoff=100, max_backoff=200)(report)
