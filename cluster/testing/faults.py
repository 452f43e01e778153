"""Faults for the tests of a service: a client loses a hold, its session, or its connection.

Nothing here pretends: an evicted hold is evicted by the cluster, an expired session has ended
there, and what a partitioned client sends does not arrive. So the service sees what it would see
in production, with the same errors and callbacks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.role_request import DescribeRole
from fencelock.actors.api.session_message import End
from fencelock.actors.message import MS_PER_S, address_of
from fencelock.cluster.client.base_client import BaseClient
from fencelock.cluster.client.connection import Connection, alias_of
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.client.operation import drive
from fencelock.cluster.host.gateway import Links
from fencelock.transport.frame import Frame
from fencelock.transport.listener import Arrival

PATIENCE_S = 10.0
"""Time within which a fault must have its effect (s); it needs milliseconds."""

EFFECT_LOOK_S = 0.001
"""Pause between two looks at the effect (s)."""


class LinkFaults:
    """The faults of the links of a client, or of a node. Its methods replace those of the links.

    Attributes:
        cut: whether nothing is sent or received.
        cut_off: the peers to and from which nothing is.
        delay_s: how much later each message is sent (s).

    """

    def __init__(self, links: Links) -> None:
        self.cut = False
        self.cut_off: set[str] = set()
        self.delay_s = 0.0
        self.ring = links.ring
        self._send, self._poll = links.send, links.poll
        self._receive = links.receive_members
        self._waiting: deque[tuple[float, str, Frame]] = deque()
        """Messages to be sent, with the time at which each is due."""
        for method in (self.send, self.poll, self.receive_members):
            setattr(links, method.__name__, method)

    def put(self, link: str, frame: Frame) -> None:
        """Send ``frame``, after the delay; from any thread."""
        self._waiting.append((time.monotonic() + self.delay_s, link, frame))
        self.ring()

    def send(self, link: str, frame: Frame) -> None:
        """Send ``frame``, later, or not at all (Links)."""
        if self.cut or link in self.cut_off:
            return
        if self.delay_s or self._waiting:
            self._waiting.append((time.monotonic() + self.delay_s, link, frame))
        else:
            self._send(link, frame)

    def receive_members(self, most: int) -> Iterable[Arrival]:
        """Return the frames that arrived, but for those that are cut off (Links)."""
        arrivals = self._receive(most)
        return [] if self.cut else [one for one in arrivals if one[0] not in self.cut_off]

    def poll(self, timeout_ms: int | None, expects_reply: bool) -> None:
        """Send the messages that are due, and wake for the next of them (Links)."""
        while self._waiting:
            due, link, frame = self._waiting[0]
            left_ms = int((due - time.monotonic()) * MS_PER_S) + 1
            if self.delay_s and left_ms > 0 and due > time.monotonic():
                timeout_ms = left_ms if timeout_ms is None else min(timeout_ms, left_ms)
                break
            self._waiting.popleft()
            if not self.cut:
                self._send(link, frame)
        self._poll(timeout_ms, expects_reply)


def _connection_of(client: Any) -> Connection:
    given: object = client
    if not isinstance(given, BaseClient):
        raise TypeError(f"client is {client!r}, and must be a client, as fencelock.connect returns")
    connection: Connection = client._connection
    return connection


_faults: WeakKeyDictionary[object, LinkFaults] = WeakKeyDictionary()


def _faults_of(client: BaseClient) -> LinkFaults:
    found = _faults.get(client)
    if found is None:
        found = _faults[client] = LinkFaults(_connection_of(client).links)
    return found


def lose(hold: BaseHold) -> None:
    """Take the lock from ``hold``, as an operator does with ``fencelock release``.

    Returns once ``hold.lost`` is true. Another client may hold the lock from then on. Callbacks
    of an asyncio client run when its loop runs again.

    Raises:
        NotHeldError: it was released, or lost already.
        UnsupportedError: the cluster's protocol cannot evict.

    """
    held: Any = hold
    given: object = held
    if not isinstance(given, BaseHold):
        raise TypeError(f"hold is {hold!r}, and must be a hold, as acquire of a lock returns")
    evict = Evict(lock=hold.object_name, fence=hold.fence, operator="fencelock.testing")
    drive(held._channel.ask(evict))
    _wait_until(lambda: hold.lost, f"{hold!r} was evicted and does not know it")


def expire(client: BaseClient) -> None:
    """End the session of ``client``, as the cluster does after a long silence.

    Everything that it holds is lost. Returns once it knows; its next acquire opens a new session.

    Raises:
        ValueError: it has no session, since it has not acquired a lock yet, or since the
            cluster's protocol keeps no sessions.

    """
    session = _session_of(client)
    if not session:
        raise ValueError("the client has no session: it opens one for its first acquire")
    faults, connection = _faults_of(client), _connection_of(client)
    role = address_of(client.session, "session")
    for number in range(len(connection.endpoints)):
        link = alias_of(number)
        end = (address_of(link, "proxy"), role, End(session=session))
        faults.put(link, Frame(connection.links.cluster, connection.links.group, 0, [end]))
    _wait_until(lambda: _session_of(client) != session, f"session {session} did not end")


@contextmanager
def partition(client: BaseClient) -> Generator[None]:
    """Cut ``client`` off from its cluster: what it sends and what it is sent disappears.

    Its holds are suspect after half of its TTL and lost soon after, by its own clock; connect it
    with ``ttl=1`` to see that within a second. At the end messages flow again.
    """
    faults = _faults_of(client)
    faults.cut = True
    try:
        yield
    finally:
        faults.cut = False
        faults.ring()


@contextmanager
def delay(client: BaseClient, seconds: float) -> Generator[None]:
    """Have each message of ``client`` arrive ``seconds`` later."""
    faults = _faults_of(client)
    faults.delay_s = seconds
    try:
        yield
    finally:
        faults.delay_s = 0.0
        faults.ring()


def _session_of(client: BaseClient) -> str:
    """Return the id of the session that the cluster keeps for ``client``; empty without one."""
    description = drive(_connection_of(client).line.ask(DescribeRole()))
    return str(dict(description.summary)["session"])


def _wait_until(done: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}, after {PATIENCE_S:g} s")
        time.sleep(EFFECT_LOOK_S)
