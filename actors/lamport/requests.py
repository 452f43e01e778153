"""All processes' requests that are not released yet: by lock, in order, and by node."""

from __future__ import annotations

from fencelock.actors.api.name import check_lock_name
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.lamport.message import Greet, Pending, Welcome
from fencelock.actors.lamport.order import Queue, Turn
from fencelock.actors.message import Instant

REQUESTS_MAX = 100_000
"""Requests of one node, and tickets that wait or hold through it; some 50 MB."""

WELCOME_MAX = 100
"""Requests in one part of a welcome: 28 KiB with the longest names."""


class Requests:
    """One queue a lock, kept only while there is a request in it."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.known: dict[str, dict[str, Instant]] = {}
        """The locks that each node has a request for, with the times at which they became known."""

    def add(self, lock: str, turn: Turn, now: Instant) -> None:
        """Queue the request of ``turn.node`` for ``lock``; it must not have one (M5)."""
        self.queues.setdefault(lock, Queue()).add(turn)
        self.known.setdefault(turn.node, {})[lock] = now

    def learn(self, lock: str, turn: Turn, now: Instant) -> str:
        """Queue a request of another process; return what is wrong with it, as a counter.

        A second request beside the first breaks M5. The first is kept and the second is
        not: this may make its process wait, but lets no process in beside another.
        """
        try:
            check_lock_name(lock)
        except InvalidRequestError:
            return "lamport.impossible_lock"
        known = self.stamp(lock, turn.node)
        if known is not None:
            return "" if known == turn.stamp else "lamport.second_request_dropped"
        if len(self.known.get(turn.node, ())) >= REQUESTS_MAX:
            return "lamport.request_beyond_limit"
        self.add(lock, turn, now)
        return ""

    def remove(self, lock: str, node: str) -> None:
        """Remove the request of ``node`` for ``lock``; it must have one."""
        queue = self.queues[lock]
        queue.remove(node)
        if not queue:
            del self.queues[lock]
        del self.known[node][lock]

    def remove_all(self, node: str) -> None:
        """Remove every request of ``node``."""
        for lock in list(self.known.get(node, ())):
            self.remove(lock, node)

    def stamp(self, lock: str, node: str) -> int | None:
        """Return the stamp of the request of ``node`` for ``lock``, None if it has none."""
        queue = self.queues.get(lock)
        return queue.stamps.get(node) if queue is not None else None

    def first(self, lock: str) -> Turn | None:
        """Return the earliest request for ``lock``."""
        queue = self.queues.get(lock)
        return queue.first() if queue is not None else None

    def in_order(self, lock: str) -> list[Turn]:
        """Return the requests for ``lock``, earliest first."""
        queue = self.queues.get(lock)
        return queue.in_order() if queue is not None else []

    def learn_all(self, origin: str, welcome: Welcome, now: Instant) -> list[str]:
        """Queue the requests in a welcome of ``origin``; return what is wrong, as counters."""
        problems: list[str] = []
        for pending in welcome.requests:
            if 0 < pending.stamp < welcome.stamp:
                problems.append(self.learn(pending.lock, Turn(pending.stamp, origin), now))
            else:
                problems.append("lamport.impossible_stamp")
        return [problem for problem in problems if problem]

    def welcomes(self, node: str, greet: Greet) -> list[Welcome]:
        """Return the answer to ``greet``: the requests of ``node``, in one part or more."""
        known = self.known.get(node, {})
        pending = [Pending(lock, self.queues[lock].stamps[node]) for lock in known]
        starts = range(0, max(1, len(pending)), WELCOME_MAX)
        return [
            Welcome(
                boot=greet.boot,
                round=greet.round,
                requests=tuple(pending[start : start + WELCOME_MAX]),
                complete=start == starts[-1],
            )
            for start in starts
        ]
