"""The total order of requests, the queues of all locks, and the evidence needed to enter. Pure.

Source: Lamport 1978, the relation ``=>``: events by clock time, ties by an order of
the processes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from fencelock.actors.api.lock_message import Absence
from fencelock.actors.api.name import check_lock_name, client_of
from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.lamport.wire import Greet, KnownRequest, Welcome
from fencelock.actors.message import Instant, ms_between

RANK_BITS = 7
"""Room for the node in a fence, below the stamp: 56 + 7 is 63."""

LAMPORT_NODES_MAX = 1 << RANK_BITS
"""Maximum nodes, by the fence. The 3(n-1) messages of each entry are a limit long before."""


class QueuePlace(NamedTuple):
    """A place in the order: by stamp, then by node, so that no two are equal."""

    stamp: int
    node: str


def pack_fence(stamp: int, rank: int) -> int:
    """Return the fence of a request: fences have the order of places, and fit 63 bits.

    Args:
        stamp: the request's stamp, 1 to `STAMP_MAX`.
        rank: the place of its node among the sorted nodes, 0 to `LAMPORT_NODES_MAX` - 1.

    """
    assert 1 <= stamp <= STAMP_MAX
    assert 0 <= rank < LAMPORT_NODES_MAX
    return stamp << RANK_BITS | rank


class Queue:
    """The requests for one lock, at most one per node (one-request-a-lock), earliest first."""

    def __init__(self) -> None:
        self.stamps: dict[str, int] = {}
        self.places: list[QueuePlace] = []

    def __len__(self) -> int:
        return len(self.stamps)

    def add(self, place: QueuePlace) -> None:
        assert place.node not in self.stamps  # one-request-a-lock
        self.stamps[place.node] = place.stamp
        insort(self.places, place)

    def remove(self, node: str) -> None:
        place = QueuePlace(self.stamps.pop(node), node)
        del self.places[bisect_left(self.places, place)]

    def first(self) -> QueuePlace | None:
        return self.places[0] if self.places else None


class Evidence:
    """The last stamp received from every other process: one a process, for all locks.

    The essay keeps acknowledgements in the queue, searches all of it for each
    process, and its `remove` loses track of their senders. One stamp a process is
    enough, because messages of a process arrive in the order of their stamps: after
    stamp 7, nothing from before 7 can arrive.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self.received: dict[str, int] = dict.fromkeys(sorted(others), 0)
        self.heap: list[QueuePlace] = [QueuePlace(0, node) for node in self.received]

    def note(self, node: str, stamp: int) -> None:
        """Note a message of ``node`` with ``stamp``, which is above its earlier stamps."""
        assert stamp > self.received[node]
        self.received[node] = stamp
        while (place := self.heap[0]).stamp != (latest := self.received[place.node]):
            heapq.heapreplace(self.heap, QueuePlace(latest, place.node))

    def forget(self, node: str) -> None:
        """Forget the evidence of ``node``, which has restarted: its earlier life proves nothing."""
        self.received[node] = 0
        self.heap = [QueuePlace(stamp, name) for name, stamp in self.received.items()]
        heapq.heapify(self.heap)

    def covers(self, place: QueuePlace) -> bool:
        """Return whether every other process sent something later than ``place``."""
        return not self.heap or self.heap[0] > place

    def missing(self, place: QueuePlace) -> tuple[str, ...]:
        return tuple(
            node for node, stamp in self.received.items() if QueuePlace(stamp, node) <= place
        )


LAMPORT_REQUESTS_MAX = 100_000
"""Requests of one node, and tickets that wait or hold through it; some 50 MB."""

WELCOME_MAX = 100
"""Requests in one part of a welcome: 28 KiB with the longest names."""


class Requests:
    """One queue a lock, kept only while there is a request in it."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.known: dict[str, dict[str, Instant]] = {}
        """The locks that each node has a request for, with the times at which they became known."""

    def add(self, lock: str, place: QueuePlace, now: Instant) -> None:
        self.queues.setdefault(lock, Queue()).add(place)
        self.known.setdefault(place.node, {})[lock] = now

    def learn(self, lock: str, place: QueuePlace, now: Instant) -> str:
        """Queue a request of another process; return the counter of its fault, if it has one.

        A second request beside the first breaks one-request-a-lock. The first is kept and the
        second is not: this may make its process wait, but lets no process in beside another.
        """
        try:
            check_lock_name(lock)
        except InvalidRequestError:
            return "lamport.impossible_lock"
        known = self.stamp(lock, place.node)
        if known is not None:
            return "" if known == place.stamp else "lamport.second_request_dropped"
        if len(self.known.get(place.node, ())) >= LAMPORT_REQUESTS_MAX:
            return "lamport.request_beyond_limit"
        self.add(lock, place, now)
        return ""

    def remove(self, lock: str, node: str) -> None:
        queue = self.queues[lock]
        queue.remove(node)
        if not queue:
            del self.queues[lock]
        del self.known[node][lock]

    def remove_all(self, node: str) -> None:
        for lock in list(self.known.get(node, ())):
            self.remove(lock, node)

    def stamp(self, lock: str, node: str) -> int | None:
        queue = self.queues.get(lock)
        return queue.stamps.get(node) if queue is not None else None

    def first(self, lock: str) -> QueuePlace | None:
        queue = self.queues.get(lock)
        return queue.first() if queue is not None else None

    def in_order(self, lock: str) -> list[QueuePlace]:
        queue = self.queues.get(lock)
        return queue.places if queue is not None else []

    def learn_all(self, origin: str, welcome: Welcome, now: Instant) -> list[str]:
        """Queue the requests in a welcome of ``origin``; return the counters of their faults."""
        problems: list[str] = []
        for pending in welcome.requests:
            if 0 < pending.stamp < welcome.stamp:
                problems.append(self.learn(pending.lock, QueuePlace(pending.stamp, origin), now))
            else:
                problems.append("lamport.impossible_stamp")
        return [problem for problem in problems if problem]

    def welcomes(self, node: str, greet: Greet) -> list[Welcome]:
        """Return the answer to ``greet``: the requests of ``node``, in one part or more."""
        known = self.known.get(node, {})
        pending = [KnownRequest(lock, self.queues[lock].stamps[node]) for lock in known]
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


class LocalTicket(NamedTuple):
    """One acquire through this node."""

    number: int
    session: str
    owner: str
    since: Instant


@dataclass(slots=True)
class PendingRequest:
    """This node's request for a lock, and the ticket that it is for."""

    ticket: LocalTicket
    place: QueuePlace | None = None
    """Its place, None until the clock has stamped it and it came back."""
    granted_at: Instant | None = None
    withdrawn: bool = False
    """Whether it was given up before it was stamped: it is released once the stamp is known."""


SLACK = 16
"""Entries that `PendingRequests.uncovered` may always have beyond twice the requests."""

REQUESTS_POSTED_MAX = 64
"""Maximum requests that this node has posted and that have no stamp yet. Each comes back from the
node's own clock, and by then the channel has reported which nodes have too many to confirm."""


class PendingRequests:
    """Per lock, the waiting tickets, first come first served, and at most one request.

    Messages reach a process in the order in which they are stamped. So thousands of requests at a
    time would delay all that follow, until every process has handled them. Instead, the locks
    have their turns to request, and each client has its own: one that waits for many locks does not
    delay another. Of one client, the first lock has the first turn.
    """

    def __init__(self) -> None:
        self.turns: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """The locks that wait for their turn, by the client of their first ticket; the first client
        is next."""
        self.turn_of: dict[str, str] = {}
        """The client in whose turn a lock is requested."""
        self.unstamped = 0
        """Number of requests that have no stamp yet."""
        self.by_lock: dict[str, PendingRequest] = {}
        """This node's request for each lock, from its turn to the release."""
        self.uncovered: list[tuple[QueuePlace, str]] = []
        """A heap of the requests that may lack evidence, and of some that have ended. Evidence
        rises for all together, so the top is the first to be covered: a message costs a look at the
        top, and not at every request."""
        self.lines: dict[str, OrderedDict[int, LocalTicket]] = {}
        """The tickets of each lock that have no request yet, by number, in order of arrival."""
        self.tickets = 0
        """Number of tickets, waiting or with a request, of all locks."""

    def queue(self, lock: str, ticket: LocalTicket) -> None:
        self.lines.setdefault(lock, OrderedDict())[ticket.number] = ticket
        self.tickets += 1

    def in_line(self, lock: str, most: int) -> list[LocalTicket]:
        line = self.lines.get(lock)
        return [] if line is None else list(islice(line.values(), most))

    def enter(self, lock: str) -> None:
        """Let ``lock`` wait for its turn, if tickets wait for it and it has no request yet."""
        line = self.lines.get(lock)
        if line is None or lock in self.by_lock or lock in self.turn_of:
            return
        client = client_of(next(iter(line.values())).session)
        self.turn_of[lock] = client
        self.turns.setdefault(client, OrderedDict())[lock] = None

    def begin(self) -> str | None:
        """Begin a request for the first ticket of the lock whose turn it is; return the lock."""
        if not self.turns or self.unstamped >= REQUESTS_POSTED_MAX:
            return None
        client, locks = next(iter(self.turns.items()))
        lock = next(iter(locks))
        self._leave_turns(lock)
        if locks:
            self.turns.move_to_end(client)
        line = self.lines[lock]
        _, ticket = line.popitem(last=False)
        self.by_lock[lock] = PendingRequest(ticket)
        self.unstamped += 1
        if not line:
            del self.lines[lock]
        return lock

    def _leave_turns(self, lock: str) -> None:
        client = self.turn_of.pop(lock, None)
        if client is None:
            return
        del self.turns[client][lock]
        if not self.turns[client]:
            del self.turns[client]

    def stamped(self, lock: str, place: QueuePlace) -> PendingRequest:
        """Store the place of the request for ``lock``, which came back from the clock."""
        request = self.by_lock[lock]
        assert request.place is None
        request.place = place
        self.unstamped -= 1
        heapq.heappush(self.uncovered, (place, lock))
        return request

    def covered(self, evidence: Evidence) -> list[str]:
        """Return the locks whose requests now have all evidence; each is returned once."""
        locks: list[str] = []
        while self.uncovered and evidence.covers(self.uncovered[0][0]):
            place, lock = heapq.heappop(self.uncovered)
            request = self.by_lock.get(lock)
            if request is not None and request.place == place:
                locks.append(lock)
        return locks

    def renew(self) -> None:
        """Check all requests again: evidence was lost."""
        waiting = ((one, lock) for lock, one in self.by_lock.items() if one.granted_at is None)
        self.uncovered = [(one.place, lock) for one, lock in waiting if one.place is not None]
        heapq.heapify(self.uncovered)

    def leave(self, lock: str, number: int) -> bool:
        """Remove a ticket from the line; return False if it is not there."""
        line = self.lines.get(lock)
        if line is None or number not in line:
            return False
        del line[number]
        self.tickets -= 1
        if not line:
            del self.lines[lock]
            self._leave_turns(lock)
        return True

    def end(self, lock: str) -> None:
        del self.by_lock[lock]
        self.tickets -= 1
        if len(self.uncovered) > 2 * len(self.by_lock) + SLACK:  # Amortized over as many ends.
            self.renew()

    def waiting(self) -> list[str]:
        return [lock for lock, one in self.by_lock.items() if one.granted_at is None]


PEER_SILENCE_MS = 150
"""Silence after which a process that owes an answer is named (ms): longer than a round trip, and
shorter than the first resending of lost messages."""


class PeerContact:
    """Distinguishes a silent process from one that merely has nothing to send.

    A process owes an answer from the first message that requires one until its next
    message of any kind.

    Args:
        others: every process but this one; each owes a first message.
        now: the time at which this process learned of them.

    """

    def __init__(self, others: Iterable[str], now: Instant) -> None:
        self.received_at: dict[str, Instant] = dict.fromkeys(sorted(others), now)
        self.owing: dict[str, Instant] = dict(self.received_at)

    def received(self, node: str, now: Instant) -> None:
        self.received_at[node] = now
        self.owing.pop(node, None)

    def requested(self, nodes: Iterable[str], now: Instant) -> None:
        """Note that ``nodes`` were sent something that they must answer."""
        for node in nodes:
            self.owing.setdefault(node, now)

    def owes(self, node: str) -> bool:
        return node in self.owing

    def absences(self, nodes: Iterable[str], now: Instant) -> tuple[Absence, ...]:
        """Return the ``nodes`` that have been silent for `PEER_SILENCE_MS` or longer."""
        since = ((node, self.owing.get(node, self.received_at[node])) for node in nodes)
        silent = (Absence(node, ms_between(at, now)) for node, at in since)
        return tuple(absence for absence in silent if absence.silent_ms >= PEER_SILENCE_MS)


class Rejoin:
    """Counts the lives met and the welcomes received, until all other processes have answered.

    A process that starts has lost its clock. Every request that was ever granted was
    answered by every process of its time, so a process that has not restarted since has
    a clock beyond it. But an early welcome may come from before such an answer, and the
    process that was granted may have restarted since and forgotten. So the requests begin
    again, as a new round, with every life met. The round that counts begins when the last of the
    others met is in its present life. The others knew every grant of its earlier lives before they
    replied.

    So stamps, and with them fences, keep rising as long as at any time one process is
    ready. If all lose their clocks at once, no process is left to ask; see the README.

    Args:
        others: every process but this one, or None if they are not known yet.

    """

    def __init__(self, others: Iterable[str] | None) -> None:
        self.others = tuple(sorted(others or ()))
        self.lives: dict[str, int] = {}
        self.round = 0
        self.welcomed: dict[str, int] = {}
        """The latest round in which each process answered in full."""
        self.ready = others is not None and not self.others

    def meet(self, node: str, boot: int) -> tuple[str, ...]:
        """Note that ``node`` is in its life ``boot``; return the nodes to greet, in a new round."""
        self.lives[node] = boot
        if self.ready:
            return ()
        self.round += 1
        return self.others if len(self.lives) == len(self.others) else (node,)

    def welcome(self, node: str, number: int) -> None:
        """Note that ``node`` answered round ``number`` in full."""
        self.welcomed[node] = number
        self.ready = self.ready or not self.missing()

    def missing(self) -> tuple[str, ...]:
        unmet = tuple(node for node in self.others if node not in self.lives)
        late = tuple(node for node in self.others if self.welcomed.get(node) != self.round)
        return () if self.ready else unmet or late
