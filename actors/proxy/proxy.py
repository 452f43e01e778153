"""The proxy of a node: clients send requests here, and the protocol behind it decides.

`Proxy` serves the clients of a node for every protocol. It admits a request (its sender may use
that session), checks it (`Request.check_new`), and hands it to the protocol's *backend*: an object
inside the role, with the interface of `backend.py`, that is, a table of handlers by request type,
one by event type, and a few methods. A request without a handler is refused as unsupported. A
handler that raises a `RefusedError` or an `UnavailableError` refuses the request with that text.
Once the backend says that its node must not serve any more (`closed`), the proxy only describes the
node.

::

    access.py                         which requests a key allows, where keys are used
    clients.py                        the clients of the node, and the callers inside its process:
                                      their sessions, their limits, when they last sent something
    queries.py, description.py        reads in flight; the description of the node
    role_asks.py                      requests of other processes to roles of the node
    lock_manager.py                   the backend of `lamport` and `central`: who waits, who holds
    event.py                          events between the proxy and other roles of its node

*The log* (`paxos/backend.py`). The backend keeps a request only until its outcome is known;
everything else is in the table of locks. It proposes the request unchanged to its node's replica: a
request that changes the table is a `Command`, which the log stores as it is. The table's outcome is
the reply, and has the same `key` as the request, so the backend finds the request in flight. It
proposes the same bytes again when the leader changes, or when no outcome arrives. So any proxy
serves any session, and a message that is lost between client, proxy and log is repeated and takes
effect once.

*Leaders* (`bakery/backend.py`). The backend sends each request to a leader, and to another one when
that is lost.

*`lamport` and `central`* share a backend that keeps who waits and who holds. It sends the protocol
`AcquireLock`, `ReleaseLock` and `QueryLock`; it receives `LockGranted`, `QueueFull`, `LockRevoked`,
`LockDescription` and `Ready`. Where holds outlive a node (`central`), the protocol also confirms
releases and ends of sessions.

*Callers inside the process* use the same `ClientSession` as clients elsewhere: each node has one as
``<node>/session``, with its own proxy as the only endpoint; ``node.proxy`` is the reference of that
role. A caller that names no owner is an owner of its own, and its release must name the fence of
its grant. The session is named ``<node>/<life>``, a name that no client may use. When the node
stops, the session ends with all it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fencelock.actors.api.cluster_message import Describe, Probe
from fencelock.actors.api.lock_message import ERROR_REASONS, Reason, Refused, refused, refused_by
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.request import Request
from fencelock.actors.api.role_request import AskRole, RoleReply
from fencelock.actors.api.session_message import End, Ended, KeepAlive, Open, Opened
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.error import ForbiddenError, RefusedError, UnavailableError, UnsupportedError
from fencelock.actors.fault import internal, reading
from fencelock.actors.message import (
    Address,
    Event,
    Instant,
    Timer,
    address_of,
    node_of,
    role_of,
    with_derived,
)
from fencelock.actors.proxy.access import AccessControl, Rights, RightsChanged
from fencelock.actors.proxy.backend import Backend, Handler, Status
from fencelock.actors.proxy.clients import OverQuotaError
from fencelock.actors.proxy.description import Description
from fencelock.actors.proxy.event import AskReplied, Report, Reported
from fencelock.actors.proxy.role_asks import RoleAsks
from fencelock.actors.quota import DEFAULT_QUOTAS, Quotas
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import LinkDown, LinkUp

ERROR_REASONS[OverQuotaError] = Reason.OVERLOADED

K = TypeVar("K", bound=Event)
H = TypeVar("H")


class Tick(Timer):
    """Repeat the requests that are due, and end those that time out."""


class Proxy(Role[Request]):
    """Serves the clients of a node, whatever protocol decides.

    The proxy replies itself to requests that concern only the node: probes, descriptions and, where
    no sessions are kept, `Open` and `KeepAlive`. Its backend replies to all others.

    Args:
        backend: the protocol's part.
        rights: the rights of each key; None where no keys are used, and all is allowed.
        quotas: the quotas of each client.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        backend: Backend,
        rights: tuple[Rights, ...] | None = None,
        quotas: Quotas = DEFAULT_QUOTAS,
    ) -> None:
        super().__init__(address, host)
        self.node = backend.node
        self.backend = backend
        self.clients = backend.clients
        self.clients.quotas, self.clients.keyed = quotas, rights is not None
        self.access = None if rights is None else AccessControl(self.node, rights)
        self.description = Description(self.node, backend.name, self.access)
        self.role_asks = RoleAsks(self.node, self.clients)
        self.ticking = False
        self.closed = False
        """Whether the node must not serve any more; the backend knows why."""
        requests: dict[type[Request], Handler] = {
            KeepAlive: self._on_keep_alive,
            Open: self._on_open,
            AskRole: self.role_asks.on_ask,
        }
        events: dict[type[Event], Handler] = {
            Describe: self._on_describe,
            Probe: self._on_probe,
            AskReplied: self.role_asks.on_replied,
            RoleReply: self.role_asks.on_reply,
            LinkUp: self.role_asks.on_link,
            LinkDown: self.role_asks.on_link,
            Reported: self._on_reported,
            RightsChanged: self._on_rights_changed,
            Tick: self._on_tick,
        }
        self._requests = requests | _by_type(backend.requests)
        self._handlers = events | _by_type(backend.events)
        self._on_refusal = self._handlers.get(Refused)
        self._handlers[Refused] = self._on_refused
        self._named = (Request, *self._handlers)

    def handle(self, sender: Address, event: Event, now: Instant) -> Effects:
        handler = self._handlers.get(type(event))
        if self.closed:
            if not self.backend.removed or handler is None or isinstance(event, Request | Reported):
                return self._after_service(sender, event, now)
            effects = handler(sender, event, now)
            self.closed = bool(self.backend.closed)
            return effects
        if handler is not None:
            effects = handler(sender, event, now)
        else:
            request: Any = event  # Of all events that a proxy accepts, only requests are left.
            effects = self._on_request(sender, request, now)
        if self.description.requests:
            effects = [*effects, *self._describe(now)]
        if self.backend.closed:
            return [*effects, *self._close(now)]
        if self.ticking or not (
            self.description.requests or self.role_asks.open or self.backend.is_busy()
        ):
            return effects
        self.ticking = True
        return [*effects, Wake(self.backend.TICK_MS, Tick())]

    def summary(self) -> Summary:
        known = len(self.clients.by_id) + (self.clients.local is not None)
        ready = self.backend.is_ready() and not self.closed
        return ("clients", known), ("in flight", len(self.backend)), ("serves", ready)

    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        client = self.clients.latest
        try:
            if client is None or client.session != request.session or client.address != sender:
                self.clients.admit(sender, request, now)
            else:
                client.received_at = now
            client = self.clients.latest
            if client is not None:
                usage = client.usage
                usage.counted += 1
                if usage.counted > self.clients.quotas.requests_per_s:
                    self.clients.check_rate(usage, request, now)
            if self.access is not None:
                self.access.check(node_of(sender), request)
            take = self._requests.get(type(request))
            if take is None:
                raise UnsupportedError(  # noqa: TRY301  (a function more for each request)
                    self.backend.unsupported(request)
                )
            request.check_new()
            return take(sender, request, now)
        except (RefusedError, UnavailableError) as error:
            return self._refuse(sender, request, error, now)
        except Exception as error:  # noqa: BLE001  # The proxy itself promises nothing.
            return internal(sender, request, self.node, error)

    def _refuse(
        self,
        sender: Address,
        request: Request,
        error: RefusedError | UnavailableError,
        now: Instant,
    ) -> Effects:
        no = refused_by(request, error)
        over = isinstance(error, OverQuotaError)
        counted = Observe("proxy.over_quota" if over else "proxy.refused")
        effects: list[Effect] = [Send(sender, no), counted]
        if self.access is not None and type(error) is ForbiddenError:
            effects += self.access.refused(node_of(sender), request, now)
        return effects

    def _on_refused(self, sender: Address, refused: Refused, now: Instant) -> Effects:
        """Process a refusal by another node's proxy, or an outcome of the protocol."""
        if self._on_refusal is None or role_of(sender) == role_of(self.address):
            return self.role_asks.on_reply(sender, refused, now)
        return self._on_refusal(sender, refused, now)

    def _on_rights_changed(self, sender: Address, changed: RightsChanged, now: Instant) -> Effects:
        if self.access is None:
            return ()
        self.access.replace(changed.rights)
        removed = [client for client in self.clients.by_id if not self.access.knows(client)]
        return self.backend.cancel_waits(removed, now) if removed else ()

    def _on_keep_alive(self, sender: Address, request: KeepAlive, now: Instant) -> Effects:
        return [Send(sender, self.backend.alive(request))]

    def _on_open(self, sender: Address, request: Open, now: Instant) -> Effects:
        """Reply without keeping a session.

        The session of a client of another process is its own id, whatever later name it
        requested: it counts the sessions that it began, including those that were never opened.
        """
        local = node_of(sender) == self.node
        opened = Opened(
            session=request.session,
            assigned=request.session if local else node_of(sender),
            ttl_ms=0,
            node=self.node,
            request=request.request,
        )
        return [Send(sender, opened)]

    def _on_probe(self, sender: Address, probe: Probe, now: Instant) -> Effects:
        if len(probe.session) > OWNER_BYTES_MAX:
            return [Observe("proxy.session_malformed")]
        reply = self.backend.probe_reply(probe.session, probe.request)
        return [Send(sender, reply), Observe("proxy.probed")]

    def _on_describe(self, sender: Address, describe: Describe, now: Instant) -> Effects:
        if len(describe.session) > OWNER_BYTES_MAX:  # It would be kept until the answer.
            return [Observe("proxy.session_malformed")]
        had_roles = self.description.wants_roles
        if not self.description.add(sender, describe):
            return [Observe("proxy.describe_dropped")]
        effects: list[Effect] = []
        wants_roles = self.description.wants_roles
        if len(self.description.requests) == 1 or wants_roles != had_roles:
            effects.append(Send(address_of(self.node, "node"), Report(roles=wants_roles)))
        if len(self.description.requests) == 1 and not self.closed:
            effects += self.backend.gather_status(now)
        return effects

    def _on_reported(self, sender: Address, reported: Reported, now: Instant) -> Effects:
        self.description.reported = reported
        return ()

    def _describe(self, now: Instant) -> Effects:
        """Answer all requests for a description, once nothing is missing."""
        if not self.description.is_reported or not self.description.requests:
            return ()
        requests = self.description.requests
        replies = reading("a description", lambda: self._replies(now))
        if not isinstance(replies, Fault):
            return replies
        self.description.clear()
        error = replies.error
        return [no for one in requests for no in internal(*one, self.node, error)]

    def _replies(self, now: Instant) -> Effects:
        status = Status(False, self.backend.closed) if self.closed else self.backend.status(now)
        if status is None:
            return ()
        return self.description.replies(self.backend.members, status)

    def _on_tick(self, sender: Address, tick: Tick, now: Instant) -> Effects:
        self.ticking = False
        for times in self.backend.latencies.values():
            times.fold()
        silent = self.clients.forget_silent(now)
        forgotten = self.backend.forget(silent, now) if silent else ()
        return [*forgotten, *self.role_asks.expire(now), *self.backend.tick(now)]

    def _close(self, now: Instant) -> list[Effect]:
        """End the service: refuse the requests of callers inside the process, and notify them."""
        self.closed = True
        effects: list[Effect] = []
        for sender, request in self.backend.pending():
            effects += self._refuse_local(sender, request)
        local = self.clients.local
        if local is not None:
            effects.append(self._ended(local.address, local.session))
        if self.description.requests:
            report = Report(roles=self.description.wants_roles)
            effects += [Send(address_of(self.node, "node"), report), *self._describe(now)]
        return [*effects, Observe("proxy.closed")]

    def _after_service(self, sender: Address, event: Event, now: Instant) -> Effects:
        """Describe this node, or refuse.

        A client elsewhere gets no reply, as if the node had crashed: it moves to another node, and
        keeps its session, holds and waits.
        """
        local = node_of(sender) == self.node
        match event:
            case Describe():
                return self._on_describe(sender, event, now)
            case Reported():
                self.description.reported = event
                return self._describe(now)
            case End() if local:
                return [self._ended(sender, event.session)]
            case Request() if local and not isinstance(event, KeepAlive | Probe):
                return self._refuse_local(sender, event)
            case _:
                return [Observe("proxy.closed_ignores")]

    def _ended(self, local: Address, session: str) -> Send:
        return Send(local, Ended(session=session, detail=self.backend.closed))

    def _refuse_local(self, sender: Address, request: Request) -> list[Effect]:
        if node_of(sender) != self.node:
            return []
        text = f"node {self.node} does not serve: {self.backend.closed}"
        return [Send(sender, refused(request, Reason.UNAVAILABLE, text))]


def _by_type(handlers: Mapping[type[K], H]) -> dict[type[K], H]:
    """Return ``handlers`` with an entry for each message type that derives from one of its keys."""
    return {kind: handler for base, handler in handlers.items() for kind in with_derived((base,))}
