"""The door of a node: clients ask here for locks, whichever protocol runs behind it."""

from __future__ import annotations

from dataclasses import replace

from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.error import InvalidRequestError
from holdfast.actors.lock.backend import Full, Got, Look, Ready, Reported, Seen, Taken
from holdfast.actors.lock.claim import Phase
from holdfast.actors.lock.description import Description, has_room
from holdfast.actors.lock.desk import Desk
from holdfast.actors.lock.message import (
    Abandon,
    Acquire,
    Alive,
    Cancel,
    Describe,
    Inspect,
    KeepAlive,
    LockStatus,
    NodeStatus,
    Reason,
    Release,
)
from holdfast.actors.lock.name import (
    OWNER_BYTES_MAX,
    check_lock_name,
    check_owner,
    check_request,
    check_wait,
)
from holdfast.actors.lock.session_message import End, Ended, Evict, ListLocks, Open, Opened
from holdfast.actors.lock.timer import Sweep, TryLook, WaitOver
from holdfast.actors.lock.wording import WAITERS_SHOWN_MAX, locks_of, refuse
from holdfast.actors.message import Address, Instant, ms_between, node_of
from holdfast.actors.role import Host, Role

QUESTIONS_MAX = 10_000
"""Unanswered `Inspect` requests of one node."""

CLIENT_SILENCE_MS = 15_000
"""A waiting client that says nothing for so long is gone; its waits end, its holds stay."""

SWEEP_MS = 1_000
"""How often silent clients are looked for, while any client is known."""

AboutLocks = Acquire | Release | Cancel | Inspect
AboutTable = Open | End | ListLocks | Evict
FromClient = AboutLocks | AboutTable | Describe | KeepAlive
FromNode = Abandon | Got | Full | Taken | Seen | Ready | Reported | WaitOver | TryLook | Sweep
Heard = (
    Acquire
    | Release
    | Cancel
    | Inspect
    | Describe
    | KeepAlive
    | Open
    | End
    | ListLocks
    | Evict
    | Abandon
    | Got
    | Full
    | Taken
    | Seen
    | Ready
    | Reported
    | WaitOver
    | TryLook
    | Sweep
)


class Proxy(Role[Heard]):
    """Serves clients: checks what they ask and passes it to the desk, which remembers.

    It keeps no sessions in the cluster: a hold lives here, where it was granted, and however
    silent its client may be. So there is nothing that an operator could take, or list.

    Args:
        node: this node.
        nodes: all members, for status.
        protocol: the name of what runs behind, for texts.
        backend: who gets locks; it speaks `holdfast.actors.lock.backend`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        nodes: tuple[str, ...],
        protocol: str,
        backend: Address,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.nodes = nodes
        self.protocol = protocol
        self.backend = backend
        self.desk = Desk(node=node, protocol=protocol, backend=backend)
        self.inspections: dict[int, tuple[Address, Inspect]] = {}
        self.description = Description()
        self.heard_at: dict[str, Instant] = {}
        self.sweeping = False
        self.ready = False
        self.detail = "starting"

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Answer clients, and pass what they want to the backend."""
        if isinstance(event, FromClient):
            return self._on_client(sender, event, now)
        return self._on_node(sender, event, now)

    def _on_client(self, asker: Address, event: FromClient, now: Instant) -> Effects:
        if not isinstance(event, Describe | KeepAlive):
            reason, problem = self._problem(asker, event)
            if problem:
                return [refuse(asker, event, reason, problem)]
        elif len(event.session) > OWNER_BYTES_MAX:  # It would be kept until the answer.
            return [Observe("proxy.session_malformed")]
        return [*self._hear(asker, event.session, now), *self._serve(asker, event, now)]

    def _serve(self, asker: Address, event: FromClient, now: Instant) -> Effects:
        match event:
            case Acquire():
                return self.desk.acquire(asker, event, now)
            case Release():
                return self.desk.release(asker, event)
            case Cancel():
                return self.desk.cancel(asker, event)
            case Inspect():
                return self._on_inspect(asker, event)
            case Describe():
                return self._on_describe(asker, event)
            case KeepAlive():
                alive = Alive(session=event.session, node=self.node, request=event.request)
                return [Send(asker, alive)]
            case Open():
                return [Send(asker, self._opened(asker, event))]
            case End():
                text = "what it held here was given back"
                ended = Ended(session=event.session, detail=text, request=event.request)
                return [*self.desk.end(event.session), Send(asker, ended)]
            case ListLocks() | Evict():
                text = f"{self.protocol} keeps no table of locks to list, or to take one from"
                return [refuse(asker, event, Reason.UNSUPPORTED, f"{text}; paxos does")]

    def _on_node(self, sender: Address, event: FromNode, now: Instant) -> Effects:
        match event:
            case Abandon():
                return self.desk.abandon(sender)
            case Got():
                return self.desk.got(event, now)
            case Full():
                return self.desk.full(event)
            case Taken():
                return self.desk.taken(event)
            case Seen():
                return self._on_seen(event, now)
            case Ready():
                self.ready, self.detail = event.ready, event.detail
                return ()
            case Reported():
                return self._on_reported(event, now)
            case WaitOver():
                return self.desk.wait_over(event, now)
            case TryLook():
                return self.desk.try_look(event)
            case Sweep():
                return self._on_sweep(now)

    def _on_inspect(self, asker: Address, inspect: Inspect) -> Effects:
        if len(self.inspections) >= QUESTIONS_MAX:
            text = f"node {self.node} has {QUESTIONS_MAX} unanswered questions, its limit"
            return [refuse(asker, inspect, Reason.OVERLOADED, text)]
        self.desk.looks += 1
        self.inspections[self.desk.looks] = (asker, inspect)
        return [Send(self.backend, Look(lock=inspect.lock, query=self.desk.looks))]

    def _on_seen(self, seen: Seen, now: Instant) -> Effects:
        ended = self.desk.seen(seen, now)
        if ended is not None:
            return ended
        if self.description.see(seen):
            return self._describe(now)
        asked = self.inspections.pop(seen.query, None)
        return [_status(*asked, seen)] if asked is not None else ()

    def _on_describe(self, asker: Address, describe: Describe) -> Effects:
        asked = self.description.asked
        if not has_room(self.node, asked, asker):
            return [Observe("proxy.describe_dropped")]
        asked.append((asker, describe))
        return self.description.begin(self.desk) if len(asked) == 1 else ()

    def _on_reported(self, report: Reported, now: Instant) -> Effects:
        self.description.reported = report
        return self._describe(now)

    def _describe(self, now: Instant) -> Effects:
        """Answer everybody who asked for a description, once nothing is missing."""
        gathered = self.description
        if gathered.reported is None or gathered.looking:
            return ()
        status = NodeStatus(
            node=self.node,
            protocol=self.protocol,
            nodes=self.nodes,
            ready=self.ready,
            detail=self.detail,
            uptime_ms=gathered.reported.uptime_ms,
            counters=gathered.reported.counters,
            locks=locks_of(self.node, self.desk.claims, gathered.seen, now),
        )
        asked, gathered.asked = gathered.asked, []
        return [
            Send(asker, replace(status, session=describe.session, request=describe.request))
            for asker, describe in asked
        ]

    def _on_sweep(self, now: Instant) -> Effects:
        silent = {
            session
            for session, heard in self.heard_at.items()
            if ms_between(heard, now) >= CLIENT_SILENCE_MS
        }
        effects: list[Effect] = []
        for claim in list(self.desk.claims.by_key.values()):
            if claim.key.session in silent and claim.phase is Phase.WAITING:
                effects += self.desk.withdraw(claim)
                effects.append(Observe("proxy.wait_of_silent_client_ended"))
        self.heard_at = {s: at for s, at in self.heard_at.items() if s not in silent}
        self.sweeping = bool(self.heard_at)
        return [*effects, Wake(SWEEP_MS, Sweep())] if self.sweeping else effects

    def _hear(self, asker: Address, session: str, now: Instant) -> Effects:
        """Note that a client of another process lives."""
        if node_of(asker) == self.node or session != node_of(asker):
            return ()
        self.heard_at[session] = now
        if self.sweeping:
            return ()
        self.sweeping = True
        return (Wake(SWEEP_MS, Sweep()),)

    def _opened(self, asker: Address, opening: Open) -> Opened:
        """Let a client of another process speak as itself, under whichever later name it came.

        A client counts the sessions it began, those among them that nobody opened.
        """
        client = node_of(asker)
        return Opened(
            session=opening.session,
            assigned=opening.session if client == self.node else client,
            ttl_ms=0,
            node=self.node,
            request=opening.request,
        )

    def _problem(self, asker: Address, request: AboutLocks | AboutTable) -> tuple[Reason, str]:
        """Return what is wrong with ``request``; the empty string if nothing is."""
        client = node_of(asker)
        later = isinstance(request, Open) and request.session.startswith(f"{client}~")
        if client not in (self.node, request.session) and not later:
            text = f"session {request.session[:80]!r} is not the client {client!r} itself"
            return Reason.INVALID, text
        if isinstance(request, Open | End) and not request.session:
            return Reason.INVALID, "session is empty; there is none to open or to end"
        try:
            check_owner(request.session)
            if isinstance(request, AboutLocks):
                check_lock_name(request.lock)
                if not isinstance(request, Inspect):
                    check_owner(request.owner)
            if isinstance(request, Acquire):
                check_wait(request.wait_ms)
                check_request(request.request)
        except InvalidRequestError as problem:
            return Reason.INVALID, str(problem)
        if isinstance(request, Acquire) and request.limit != 1:
            text = f"limit {request.limit} asks for a lock that its owner may hold more than once"
            return Reason.UNSUPPORTED, f"{text}; {self.protocol} has none, paxos has"
        return Reason.INVALID, ""


def _status(asker: Address, inspect: Inspect, seen: Seen) -> Send:
    status = LockStatus(
        lock=seen.lock,
        holder=seen.holder,
        waiters=seen.waiters[:WAITERS_SHOWN_MAX],
        waits_for=seen.waits_for,
        session=inspect.session,
        request=inspect.request,
    )
    return Send(asker, status)
