"""A client's connection to a cluster: its own small node and the operations of both clients."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from os import urandom
from random import Random
from typing import TYPE_CHECKING
from weakref import WeakSet

import pykka

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import Acquire, Contender
from fencelock.actors.api.name import (
    LABEL_BYTES_MAX,
    NAME_END,
    SECRET_DIGITS,
    check_new_lock_name,
    check_owner,
    without_secret,
)
from fencelock.actors.api.operator_message import Evict, Evicted
from fencelock.actors.api.retained import RETAINERS
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Spawn
from fencelock.actors.error import (
    FencelockError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    WrongClusterError,
)
from fencelock.actors.message import Event, address_of
from fencelock.actors.session.asker import Asker
from fencelock.actors.session.event import (
    Close,
    ClusterState,
    EndpointChanged,
    Survey,
    Waiting,
    WatchCluster,
)
from fencelock.actors.session.holds import ClientHold
from fencelock.actors.session.requests import CancelKey, LockKey, PendingCancel
from fencelock.actors.session.retainer import Retainer
from fencelock.actors.session.session import SESSION_CLOSE_MS, ClientSession
from fencelock.cluster.client.callback_executor import CallbackExecutor, ClusterWatch
from fencelock.cluster.client.hold_registry import HoldRegistry
from fencelock.cluster.client.operation import AwaitReply, Operation, drive
from fencelock.cluster.client.owner import operator_named, process_label
from fencelock.cluster.client.retaining import Retaining
from fencelock.cluster.client.session_channel import SessionChannel, Uncopyable
from fencelock.cluster.client.settings import (
    COHORT_MAX,
    DEFAULT_ADDRESS,
    LockOptions,
    Read,
    Settings,
    age_ms_of,
    check_int,
    check_range,
    check_text,
    name_text_of,
    retain_ms_of,
    term_ms_of,
    text_of,
    wait_ms_of,
)
from fencelock.cluster.client.waiting import CONNECT_ALL_S, LocalWaits, looking, report
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.gateway import Links
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.host.role_set import Closing, RoleSet
from fencelock.cluster.host.scheduler import READ_CLOCK
from fencelock.cluster.log import inform
from fencelock.transport.codec import check_types
from fencelock.transport.hub import SocketHub

if TYPE_CHECKING:
    from fencelock.cluster.keys import KeyFile

STOP_S = 5.0
"""Timeout for stopping the client's own threads (s); they need milliseconds."""

NUMBER_END = 1 << 63
"""End of the range of fences and limits: they cross the wire as signed 64 bits."""

START_ONE = "Start a node with `fencelock dev`, or name those of your cluster."
"""Advice where no node answers at the default address."""


def _key_in(path: str) -> KeyFile:
    from pathlib import Path  # noqa: PLC0415 (as the next)

    from fencelock.cluster.keys import client_key  # noqa: PLC0415 (pydantic)

    return client_key(Path(path))


def alias_of(number: int) -> str:
    """Return the name of the link to an endpoint. Its node is not known before it replies."""
    return f"endpoint.{number}"


class Connection:
    """One client's node: a thread with a session role; see `Client` for its operations.

    The methods that end in -ing are operations, for a client to drive. Its thread does not refer to
    it, so that it ends with the last object that uses it; see `SessionChannel`.
    """

    def __init__(self, settings: Settings, executor: CallbackExecutor) -> None:
        key = settings.target.key
        own = None if key is None else _key_in(key)
        random = urandom(8).hex()
        self.session = f"client-{random}" if own is None else f"{own.name}{NAME_END}{random}"
        self.protocol = ""
        self.endpoints = settings.target.endpoints
        self._source = settings.target.source
        self._timeout = settings.timeout
        self._retain = settings.retain
        self.executor = executor
        self.owners = defaultdict[str, list[str]](list)
        """Owners without a request in flight, by kind; see `BaseObject`."""
        refs: dict[str, RoleRef] = {}
        tell = partial(_tell, refs)
        self.cluster_watch = ClusterWatch(executor, lambda: tell(WatchCluster()))
        self._guard = threading.Lock()
        links = {alias_of(number): endpoint for number, endpoint in enumerate(self.endpoints)}
        counters: Counter[str] = Counter()
        hub = SocketHub(
            node=self.session,
            boot=int.from_bytes(urandom(8)) >> 1,
            cluster=settings.target.cluster,
            listen=None,
            peers=links,
            client=True,
            key=None if own is None else own.link,
            count=lambda name, times: counters.update({name: times}),
        )
        self.links: Links = hub
        try:
            self._dispatcher = Dispatcher(self.session, hub, counters=counters)
            holds: dict[LockKey, ClientHold] = {}
            cancels: dict[CancelKey, PendingCancel] = {}
            self.hold_registry = HoldRegistry(READ_CLOCK, holds, cancels, executor, tell)
            self.retaining = Retaining(
                self.hold_registry,
                lambda message: refs["retainer"].tell(message),  # noqa: PLW0108 (it comes later)
            )
            self.hold_registry.retaining = self.retaining
            endpoints = self.endpoints
            self.hold_registry.waits = LocalWaits(
                lambda event: report(executor, refs["session"], endpoints, event)
            )
            role_set = self._roles(settings, tuple(links), holds, cancels)
            self._dispatcher.start(role_set)
            _running.add(self._dispatcher)
            self._dispatcher.ended.add_done_callback(partial(_running.discard, self._dispatcher))
            self._dispatcher.ended.add_done_callback(self.retaining.close)
            self._dispatcher.ended.add_done_callback(
                partial(_end, self._dispatcher, self.hold_registry, executor)
            )
        except BaseException:
            hub.close()
            raise
        try:
            for role in ("session", "retainer", "asker"):
                refs[role] = self._dispatcher.ref(address_of(self.session, role))
            self.session_ref, self.asker = refs["session"], refs["asker"]
            self.line = SessionChannel(self.session_ref, self.hold_registry)
            self.line.later = self._dispatcher.enter
            self.line.dropped = self._dispatcher.end
            _open.add(self)
        except BaseException:
            self._dispatcher.stop(STOP_S, at_once=True)
            raise

    def _roles(
        self,
        settings: Settings,
        links: tuple[str, ...],
        holds: dict[LockKey, ClientHold],
        cancels: dict[CancelKey, PendingCancel],
    ) -> RoleSet:
        label = process_label(LABEL_BYTES_MAX)
        if settings.label is not None:
            label = text_of("label", settings.label)
        arguments = {
            "session": self.session,
            "endpoints": tuple(address_of(link, "proxy") for link in links),
            "random": Random(int.from_bytes(urandom(8))),
            "labels": self.endpoints,
            "watcher": self._dispatcher.listen(
                "watcher",
                partial(notify, self.executor, self.cluster_watch, self.hold_registry),
            ),
            "retainer": address_of(self.session, "retainer"),
            "ttl_ms": math.ceil(settings.ttl * 1000),
            "label": label,
            "secret": urandom(SECRET_DIGITS // 2).hex(),
            "holds": holds,
            "cancels": cancels,
            "stays": settings.stay,
            "advice": START_ONE if self.endpoints == (DEFAULT_ADDRESS,) else "",
        }
        session = Spawn(address_of(self.session, "session"), ClientSession, arguments)
        retaining = {
            "session": session.address,
            "watcher": self._dispatcher.listen("retaining", self.retaining.on_event),
            "holds": holds,
            "locks": self.retaining.locks,
            "guard": self.retaining.mending,
        }
        retainer = Spawn(address_of(self.session, "retainer"), Retainer, retaining)
        labels = dict(zip(links, self.endpoints, strict=True))
        connected_to = {"client": self.session, "labels": labels}
        asker = Spawn(address_of(self.session, "asker"), Asker, connected_to)
        clock = Spawn(address_of(self.session, "clock"), Clock)
        return RoleSet(
            (session, retainer, asker, clock),
            closings=(Closing(session.address, Close(), 2 * SESSION_CLOSE_MS),),
        )

    def present(self) -> Connection:
        """Return the connection to use here and now: itself, unless its client is lazy."""
        return self

    def check(self) -> None:
        self.line.check()

    def demand(self, guarantee: Guarantee) -> None:
        """Return if the protocol gives ``guarantee``; while it is unknown, the nodes judge that."""
        if self.protocol:
            demand(self.protocol, guarantee)

    def watching(self) -> ClusterWatch:
        """Return the cluster watch, where nodes report their state; see `BaseClient.on_cluster`."""
        self.line.check()
        self.demand(Guarantee.CLUSTER_EVENTS)
        return self.cluster_watch

    def greeting(self) -> Operation[None]:
        """Wait for the first answer of any node."""
        limit = self._timeout
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0:
            self.line.check()
            reply = AskReply()
            self.line.submit(Describe(), reply)
            try:
                status: NodeStatus = yield AwaitReply(reply, left)
            except WrongClusterError:
                raise
            except UnavailableError:
                continue
            except TimeoutError:
                break
            self.protocol = status.protocol
            return
        tried = yield from self._tried()
        source = self._source or "as given"
        advice = (
            "Are the nodes running, are these their hosts and ports, and is no firewall in between?"
        )
        if self.endpoints == (DEFAULT_ADDRESS,):
            advice = START_ONE
        raise UnavailableError(
            f"no node answered within {limit:g} s. Tried {tried} ({source}). {advice}"
        ) from None

    def _tried(self) -> Operation[str]:
        """End with the addresses that were tried, and why each failed, as far as that is known."""
        survey = AskReply()
        self.line.submit(Survey(within_ms=round(CONNECT_ALL_S * 500)), survey)
        reached = looking(self.endpoints)
        refused: tuple[str, ...] = ()
        with suppress(TimeoutError, FencelockError, pykka.ActorDeadError):
            surveyed = yield AwaitReply(survey, CONNECT_ALL_S)
            refused = tuple(one for one in surveyed.silent if " " in one)  # With a reason.
        try:
            tried = yield AwaitReply(reached, 2 * CONNECT_ALL_S)
        except TimeoutError:  # The machine is busy.
            tried = ", ".join(self.endpoints)
        return f"{tried}; refused: {'; '.join(refused)}" if refused else tried

    def options(
        self,
        name: str,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
        retain: float | None = None,
        cohort: int = 0,
        *,
        kind: str = "lock",
        reentrant: bool = False,
        limit: int | None = None,
    ) -> LockOptions:
        """Check the arguments for a lock, or another ``kind`` of object; see `LockFactory.lock`."""
        self.check()
        name = name_text_of(name, kind)
        check_new_lock_name(name, kind)
        wait_ms_of(timeout)
        if owner is not None:
            owner = text_of("owner", owner)
            if not owner:
                raise InvalidRequestError("owner is empty; without it, each acquire is an owner")
            check_owner(owner)
        label = text_of("label", label)
        check_text("label", label, InvalidRequestError)
        if limit is not None:
            allowed = "an int of at least 1, or None for no limit"
            check_int("limit", limit, allowed, lambda n: 1 <= n < NUMBER_END)
        most = limit if limit is not None else (0 if reentrant else 1)
        if most != 1:
            self.demand(Guarantee.REENTRANT)
        hold_ms, grace_ms = term_ms_of("duration", duration), term_ms_of("grace", grace)
        if hold_ms or grace_ms:
            self.demand(Guarantee.DEADLINES)
        # Check the types once for all later acquires: roles trust those of local messages.
        check_types(Acquire(lock=name, owner=owner or "", limit=most, label=label))
        if type(confirm_release) is not bool:
            raise TypeError(f"confirm_release is {confirm_release!r}, and must be True or False")
        has_deadline = bool(hold_ms or grace_ms)
        if retain is None:
            retain = 0.0 if has_deadline else self._retain
        retain_ms = retain_ms_of(retain)
        check_range("cohort", cohort, 0, COHORT_MAX)
        if retain_ms and has_deadline:
            raise InvalidRequestError(
                f"retain is {retain}: a lock that is retained has no duration and no grace"
            )
        if retain_ms:
            self.demand(Guarantee.RETAINED)
        if owner in RETAINERS:
            raise InvalidRequestError(f"owner is {owner!r}, a name reserved for retained locks")
        asked = name, timeout, owner, reentrant, most, label, hold_ms, grace_ms
        return LockOptions(*asked, confirm_release, retain_ms, cohort)

    def age_ms(self, read: Read, max_age: float) -> int | None:
        age_ms = age_ms_of(read, max_age)
        if age_ms is not None:
            self.demand(Guarantee.BOUNDED_READS)
        return age_ms

    def evicting(self, name: str, fence: int, operator: str | None) -> Operation[Contender]:
        name = name_text_of(name)
        check_int("fence", fence, "an int of at least 1", lambda n: 1 <= n < NUMBER_END)
        who = operator_named(operator)
        reply: Evicted = yield from self.line.ask(Evict(lock=name, fence=fence, operator=who))
        return reply.holder

    def __str__(self) -> str:
        kind = f"a {self.protocol} cluster" if self.protocol else ", ".join(self.endpoints)
        state = "closed" if self.line.closed else f"of {kind}"
        return f"{self.session} {state}"

    def closing(self) -> Operation[None]:
        """Release all holds, cancel all waits, and stop all threads."""
        if self.line.forked:
            return
        with self._guard:
            first, self.line.closed = not self.line.closed, True
        if not first:
            with suppress(TimeoutError):
                yield AwaitReply(self._dispatcher.ended, STOP_S)
            return
        try:
            self.retaining.close()
            self._dispatcher.enter(self._dispatcher.end)  # After all that was asked before.
            with suppress(TimeoutError):
                yield AwaitReply(self._dispatcher.ended, min(STOP_S, self.line.left_s()))
        finally:  # Also when a second Ctrl-C ends the wait: no later call would close it.
            self.stop()

    def stop_later(self) -> None:
        """Begin to stop in order, without waiting."""
        self.line.closed = True
        self._dispatcher.end()

    def stop(self) -> None:
        """Stop at once; the nodes notice later that holds and waits are abandoned."""
        self.line.closed = True
        _open.discard(self)
        self._dispatcher.stop(STOP_S, at_once=True)
        self.executor.stop(STOP_S)
        self.hold_registry.clear()


class Connected(Uncopyable):
    """A client, or an object that is used and not held: it uses the connection here and now."""

    def __init__(self, connection: Connection) -> None:
        self._given = connection

    @property
    def _connection(self) -> Connection:
        return self._given.present()

    @property
    def _channel(self) -> SessionChannel:
        return self._given.present().line


def _tell(refs: dict[str, RoleRef], message: Event) -> None:
    with suppress(pykka.ActorDeadError, OverloadedError):
        refs["session"].tell(message)


def _end(dispatcher: Dispatcher, registry: HoldRegistry, executor: CallbackExecutor) -> None:
    """Stop calling callbacks, once the thread of the client has ended.

    If it has ended with an error of ours, which the log has, no role keeps the holds any more: all
    are lost, and the callbacks for that come first.
    """
    if dispatcher.failure is None:
        executor.stop(0)
        return
    failure = without_secret(repr(dispatcher.failure))
    registry.lose_all(f"the client stopped with an error, see its log: {failure}; connect anew")
    executor.call(lambda _: executor.stop(0), None)


def notify(
    executor: CallbackExecutor, watch: ClusterWatch, registry: HoldRegistry, event: Event
) -> None:
    """Handle what the session reports; on the dispatcher's thread."""
    if isinstance(event, ClusterState):
        watch.on_event(event)
    elif isinstance(event, EndpointChanged):
        executor.call(inform, f"{event.former} is left; requests go to {event.endpoint}")
    elif isinstance(event, Waiting):
        registry.waits.report(event)
    else:
        registry.on_event(event)


_open: WeakSet[Connection] = WeakSet()
"""Those that were not closed; in a forked process also its parent's, which `closing` leaves."""


_running: set[Dispatcher] = set()
"""The threads of all clients, also of those that were dropped, until they end."""


@atexit.register
def close_all() -> None:
    """Close the clients that nobody has closed. It may be repeated."""
    for connection in list(_open):
        drive(connection.closing())
    for dispatcher in list(_running):
        dispatcher.stop(STOP_S)
