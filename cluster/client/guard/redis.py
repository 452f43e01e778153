"""Fenced writes into Redis: a script checks the fence and writes, in one step."""

from __future__ import annotations

from typing import Any, Protocol

from fencelock.actors.error import StaleFenceError
from fencelock.cluster.client.guard.guard import check_fence

PREFIX = "fence:"

DIGITS = 19
"""Fences are kept with leading zeros and compared as text: Lua's numbers have 53 bits."""

SCRIPT = """
local highest = redis.call('GET', KEYS[1])
if highest and ARGV[1] < highest then
  return {highest}
end
redis.call('SET', KEYS[1], ARGV[1])
local replies, at = {}, 2
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return {'', replies}
"""
"""Writes the commands in ARGV, each after its number of words, unless a higher fence did before."""


class RedisClient(Protocol):
    """The part of a blocking client of redis-py that a guard needs."""

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script."""
        ...


class RedisGuard:
    """Keeps the highest fence of each resource in a key of Redis, without an expiry.

    For example::

        RedisGuard(redis).write("orders/42", hold.fence, ("SET", "orders:42", state))

    It is as durable as the server: one that forgets its last second accepts fences of that
    second again. In Redis Cluster, put a hash tag into resource and keys: ``{orders}/42``.

    Args:
        client: a blocking client of redis-py.
        prefix: the beginning of the keys that hold fences.

    """

    def __init__(self, client: RedisClient, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource``; see `Guard.check`.

        A later command is not protected by it: use `write`.
        """
        self.write(resource, fence)

    def write(self, resource: str, fence: int, *commands: tuple[Any, ...]) -> list[Any]:
        """Run ``commands`` under ``fence`` in one step, and return their replies.

        Each is a tuple like ``("SET", key, value)``. If one fails, those before it stay written.

        Raises:
            StaleFenceError: see `Guard.check`; none of the commands was run.

        """
        check_fence(fence)
        words: list[Any] = []
        for command in commands:
            words += [len(command), *command]
        key = self._prefix + resource
        reply = self._client.eval(SCRIPT, 1, key, f"{fence:0{DIGITS}}", *words)
        if highest := reply[0]:
            raise StaleFenceError(resource, fence, int(highest))
        return list(reply[1])
