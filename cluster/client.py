"""The blocking client: `connect` to a cluster, then lock by name from any thread."""

from __future__ import annotations

import atexit
import contextlib
import re
import secrets
import threading
import time
from collections import Counter
from random import Random
from types import TracebackType
from typing import Self

import pykka

from holdfast.actors.client.gate import GATES_MAX
from holdfast.actors.client.message import Close
from holdfast.actors.client.session import CLOSE_MS, ClientSession
from holdfast.actors.clock import Clock
from holdfast.actors.effect import Spawn
from holdfast.actors.error import (
    ConfigError,
    HoldfastError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from holdfast.actors.lock.message import Describe, LockStatus, NodeStatus
from holdfast.actors.lock.name import check_lock_name, check_owner
from holdfast.actors.message import address_of
from holdfast.cluster.guarantee import Guarantee, demand
from holdfast.cluster.host.dispatcher import Dispatcher
from holdfast.cluster.line import Line
from holdfast.cluster.lock import Lock, wait_ms_of
from holdfast.cluster.recipe import Cast
from holdfast.transport.bridge import Bridge
from holdfast.transport.frame import check_cluster

PORT_MAX = 65_535

STOP_S = 5.0
"""How long `Client.close` waits for the client's own thread (s); it needs milliseconds."""


class Client:
    """A connection to a cluster, for all threads of one process. From `connect`.

    It leaves nothing running after `close`, which ``with`` and the end of the process
    call. After a fork only the parent may use it.
    """

    def __init__(self, session: str, dispatcher: Dispatcher, protocol: str) -> None:
        self._session = session
        self._dispatcher = dispatcher
        self._role = dispatcher.ref(address_of(session, "session"))
        self._line = Line(self._role)
        self._protocol = protocol
        self._closing = threading.Lock()
        atexit.register(self.close)

    @property
    def session(self) -> str:
        """The id of this client in the cluster, as `Lock.status` shows it."""
        return self._session

    @property
    def protocol(self) -> str:
        """Which protocol the cluster runs."""
        return self._protocol

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        reentrant: bool = False,
        owner: str | None = None,
    ) -> Lock:
        """Return the lock called ``name``; asks nobody yet.

        Args:
            name: 1 to 256 bytes of printable text.
            timeout: how long ``with``, and `Lock.acquire` unless told otherwise, wait
                (s), 0 to a week; None for without limit.
            reentrant: whether a thread may acquire what it holds once more.
            owner: who holds the lock, up to 256 bytes of printable text, for every thread
                that uses the returned object; None for each thread by itself.

        Raises:
            InvalidRequestError: ``name`` or ``owner`` is out of its limits.
            UnsupportedError: the cluster's protocol has no reentrant locks; the text says
                which one does.
            ClosedError: the client is closed, or this process was forked from its own.
            ValueError: ``timeout`` is out of its range.

        """
        self._line.check()
        check_lock_name(name)
        wait_ms_of(timeout)
        if owner is not None:
            if not owner:
                raise InvalidRequestError("owner is empty; leave it out for one per thread")
            check_owner(owner)
        if reentrant:
            demand(self._protocol, Guarantee.REENTRANT)
            raise UnsupportedError("this release's client has no reentrant locks")
        return Lock(self._line, name, timeout=timeout, owner=owner)

    def status(self, name: str) -> LockStatus:
        """Return who holds ``name`` and who waits, as one node knows it; stale on arrival.

        Raises:
            InvalidRequestError: ``name`` is out of its limits.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        return self._line.status(name)

    def describe(self) -> tuple[NodeStatus, ...]:
        """Return what each node of the address list says of itself, in that order.

        A node that is silent for 2 s, or known to be down, is missing.

        Raises:
            UnavailableError: all are.
            ClosedError: the client is closed.

        """
        surveyed = self._line.survey()
        if not surveyed.statuses:
            raise UnavailableError(f"no node described itself: {', '.join(surveyed.silent)}")
        return surveyed.statuses

    def close(self) -> None:
        """Release what is held, cancel what waits, and leave nothing running.

        Waits up to 2 s for nodes that can be heard to confirm. Threads that wait for a
        lock get `CancelledError`. To close again, or in a forked process, does nothing.
        """
        if self._line.forked:
            return
        with self._closing:
            if self._line.closed:
                return
            self._line.closed = True
            try:
                with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout, HoldfastError):
                    self._role.ask(Close(), timeout=2 * CLOSE_MS / 1000)
            finally:  # Also when a second Ctrl-C ends the wait: nobody closes it again.
                self._line.grips.clear()
                self._dispatcher.stop(STOP_S)
                atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._line.closed else f"of a {self._protocol} cluster"
        return f"<Client {self._session} {state}>"


def connect(addresses: str, *, cluster: str = "holdfast", timeout: float = 10.0) -> Client:
    """Connect to a cluster and return once a node answered.

    Args:
        addresses: one or more nodes, ``"tcp://10.0.0.1:4040,tcp://10.0.0.2:4040"``. Any
            will do; one that goes away is left for another.
        cluster: the id of the cluster, as in its config.
        timeout: how long to wait for the first answer (s), above 0.

    Raises:
        ConfigError: ``addresses``, ``cluster`` or ``timeout`` is not usable.
        WrongClusterError: what answers belongs to another cluster or version.
        UnavailableError: nobody answered in time.

    """
    endpoints = parse_addresses(addresses)
    try:
        check_cluster(cluster)
    except ValueError as error:
        raise ConfigError(f"cluster: {error}") from None
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ConfigError(f"timeout is {timeout}, and must be above 0 (s)")
    session = f"client-{secrets.token_hex(8)}"
    dispatcher = _start(session, endpoints, cluster)
    try:
        status = _first_answer(dispatcher, session, endpoints, timeout)
        return Client(session, dispatcher, status.protocol)
    except BaseException:
        dispatcher.stop(STOP_S)
        raise


def parse_addresses(addresses: str) -> tuple[str, ...]:
    """Return the nodes' addresses in ``addresses``, in order.

    Raises:
        ConfigError: one is not ``tcp://host:port``, stands twice, or they are too many.

    """
    endpoints = tuple(part.strip() for part in addresses.split(","))
    for endpoint in endpoints:
        match = re.fullmatch(r"tcp://([^\s:/\[\]]+|\[[0-9a-fA-F:.%\w]+\]):(\d{1,5})", endpoint)
        if match is None or not 1 <= int(match[2]) <= PORT_MAX:
            raise ConfigError(
                f"addresses: {endpoint!r} in {addresses!r} must be like tcp://host:4040, "
                f"with a port from 1 to {PORT_MAX}; several are separated by commas"
            )
        if endpoints.count(endpoint) > 1:
            raise ConfigError(f"addresses: {endpoint!r} stands in {addresses!r} twice")
    if len(endpoints) > GATES_MAX:
        raise ConfigError(f"addresses: {len(endpoints)} given, at most {GATES_MAX} are allowed")
    return endpoints


def _start(session: str, endpoints: tuple[str, ...], cluster: str) -> Dispatcher:
    """Start the client's own small node: one thread, a session and a clock."""
    links = {f"gate-{number}": endpoint for number, endpoint in enumerate(endpoints)}
    counters: Counter[str] = Counter()
    bridge = Bridge(
        node=session,
        boot=secrets.randbits(63),
        cluster=cluster,
        listen=None,
        peers=links,
        gates=True,
        count=lambda name, times: counters.update({name: times}),
    )
    arguments = {
        "session": session,
        "gates": tuple(address_of(link, "proxy") for link in links),
        "random": Random(secrets.randbits(64)),
        "labels": endpoints,
    }
    cast = Cast(
        roles=(
            Spawn(address_of(session, "session"), ClientSession, arguments),
            Spawn(address_of(session, "clock"), Clock),
        )
    )
    try:
        dispatcher = Dispatcher(session, bridge, members=frozenset(), counters=counters)
        dispatcher.start(cast)
    except BaseException:
        bridge.close()
        raise
    return dispatcher


def _first_answer(
    dispatcher: Dispatcher, session: str, endpoints: tuple[str, ...], timeout: float
) -> NodeStatus:
    role = dispatcher.ref(address_of(session, "session"))
    end = time.monotonic() + timeout
    why = f"nothing was heard of {', '.join(endpoints)}"
    while (left := end - time.monotonic()) > 0:
        try:
            status = role.ask(Describe(), timeout=left)
        except WrongClusterError:
            raise
        except UnavailableError as error:
            why = str(error)
        except pykka.Timeout:
            break
        else:
            assert isinstance(status, NodeStatus)
            return status
    raise UnavailableError(
        f"no node answered within {timeout:g} s: {why}. Are the nodes running, are these "
        "their hosts and ports, and does no firewall stand between?"
    )
