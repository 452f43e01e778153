"""Fenced writes: what a lock protects refuses writes under a stale fence.

A process that was paused cannot know that it lost its lock. So it sends its fence with each write,
and the store refuses a fence that is lower than one it has seen. See docs/fenced-writes.md.
"""

from fencelock.actors.error import StaleFenceError
from fencelock.cluster.client.guard.guard import FileGuard, Guard, MemoryGuard, RedisGuard
from fencelock.cluster.client.guard.http import FenceMiddleware, WsgiFenceMiddleware, fence_headers
from fencelock.cluster.client.guard.sql import AsyncSqlGuard, SqlGuard

__all__ = [
    "AsyncSqlGuard",
    "FenceMiddleware",
    "FileGuard",
    "Guard",
    "MemoryGuard",
    "RedisGuard",
    "SqlGuard",
    "StaleFenceError",
    "WsgiFenceMiddleware",
    "fence_headers",
]
