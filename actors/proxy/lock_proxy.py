"""The proxy of a node: clients request locks here, from any protocol behind it."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Alive,
    Cancel,
    Describe,
    Inspect,
    KeepAlive,
    NodeStatus,
    Reason,
    Release,
)
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.session_message import (
    ConfirmHold,
    DisownHold,
    End,
    Ended,
    Evict,
    ListLocks,
    Open,
)
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, address_of, ms_between, node_of
from fencelock.actors.proxy.checking import problem_of
from fencelock.actors.proxy.confirming import Confirming
from fencelock.actors.proxy.lock_description import Description, addressed, has_room
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.lock_request import Phase
from fencelock.actors.proxy.message import (
    Doubt,
    Full,
    Given,
    Got,
    HoldsEnded,
    Look,
    Ready,
    Reported,
    Seen,
    Surrender,
    Taken,
)
from fencelock.actors.proxy.timer import Sweep, TryLook, WaitOver
from fencelock.actors.proxy.wording import locks_of, opened, refuse, status_of
from fencelock.actors.role import Host, Role, Summary

QUESTIONS_MAX = 10_000
"""Unanswered `Inspect` requests of one node."""

CLIENT_SILENCE_MS = 15_000
"""A waiting client that was silent for this long is gone (ms): its waits end, its holds stay."""

SWEEP_MS = 1_000
"""Interval of checks for silent clients (ms), while any client is known."""

ASKERS_MAX = 10_000
"""Clients whose addresses are kept, to ask them about a hold; the oldest is dropped first."""

AboutLocks = Acquire | Release | Cancel | Inspect | DisownHold
AboutTable = Open | End | ListLocks | Evict
FromClient = AboutLocks | AboutTable | Describe | KeepAlive
FromBackend = Got | Full | Taken | Given | HoldsEnded | Doubt | Seen | Ready
FromNode = FromBackend | Reported | WaitOver | TryLook | Sweep
Heard = FromClient | FromNode


class Proxy(Role[Heard]):
    """Serves clients: checks requests and passes them to the lock manager, which remembers them.

    It keeps no sessions in the cluster: a hold lasts however silent its client may be. Either it
    lives here, where it was granted, and an operator cannot evict it. Or the backend keeps it by
    the client's session (``holds_by_session``): then it outlives this node.

    Args:
        node: this node.
        nodes: all members, for status.
        protocol: the name of the protocol behind, for texts.
        backend: the role that grants locks, see `fencelock.actors.proxy.backend`.
        holds_by_session: whether the backend keeps holds by session.

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
        holds_by_session: bool = False,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.nodes = nodes
        self.protocol = protocol
        self.backend = backend
        self.confirming = Confirming(backend) if holds_by_session else None
        self.lock_manager = LockManager(
            node=node, protocol=protocol, backend=backend, confirming=self.confirming
        )
        self.inspections: dict[int, tuple[Address, Inspect]] = {}
        self.description = Description()
        self.heard_at: dict[str, Instant] = {}
        self.askers: dict[str, Address] = {}
        """Address of each session's client, for a backend that may doubt a hold."""
        self.sweeping = False
        self.ready = False
        self.detail = "starting"

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Serve clients, and process the backend's messages."""
        if isinstance(event, FromClient):
            return self._on_client(sender, event, now)
        return self._on_node(event, now)

    def summary(self) -> Summary:
        """Return how many clients it knows, and how many locks are waited for or held."""
        return (
            ("clients", len(self.heard_at)),
            ("claims", len(self.lock_manager.claims.by_key)),
            ("serves", self.ready),
        )

    def _on_client(self, asker: Address, event: FromClient, now: Instant) -> Effects:
        if not isinstance(event, Describe | KeepAlive):
            reason, problem = problem_of(self.node, self.protocol, asker, event)
            if problem:
                return [refuse(asker, event, reason, problem)]
        elif len(event.session) > OWNER_BYTES_MAX:  # It would be kept until the answer.
            return [Observe("proxy.session_malformed")]
        return [*self._hear(asker, event.session, now), *self._serve(asker, event, now)]

    def _serve(self, asker: Address, event: FromClient, now: Instant) -> Effects:
        match event:
            case Acquire():
                return self.lock_manager.acquire(asker, event, now)
            case Release():
                return self.lock_manager.release(asker, event)
            case Cancel():
                return self.lock_manager.cancel(asker, event)
            case Inspect():
                return self._on_inspect(asker, event)
            case Describe():
                return self._on_describe(asker, event)
            case KeepAlive():
                alive = Alive(session=event.session, node=self.node, request=event.request)
                return [Send(asker, alive)]
            case Open():
                return [Send(asker, opened(self.node, asker, event))]
            case DisownHold():
                return self._on_disown(event)
            case End():
                return self._on_end(asker, event)
            case Evict() if self.confirming is not None:
                return self.confirming.evict(asker, event)
            case ListLocks() | Evict():
                text = f"{self.protocol} keeps no table of locks to list, or to take one from"
                return [refuse(asker, event, Reason.UNSUPPORTED, f"{text}; paxos does")]

    def _on_disown(self, disown: DisownHold) -> Effects:
        """Tell the backend that a session does not hold what it was thought to hold."""
        if self.confirming is None:
            return [Observe("proxy.disowned_unasked")]
        given = Surrender(lock=disown.lock, fence=disown.fence, session=disown.session)
        return [Send(self.backend, given), Observe("proxy.hold_disowned")]

    def _on_end(self, asker: Address, end: End) -> Effects:
        effects = self.lock_manager.end(end.session)
        if self.confirming is not None:
            return [*effects, *self.confirming.end(asker, end)]
        text = "what it held here was given back"
        ended = Ended(session=end.session, detail=text, request=end.request)
        return [*effects, Send(asker, ended)]

    def _on_node(self, event: FromNode, now: Instant) -> Effects:
        match event:
            case Reported():
                return self._on_reported(event, now)
            case WaitOver():
                return self.lock_manager.wait_over(event, now)
            case TryLook():
                return self.lock_manager.try_look(event)
            case Sweep():
                return self._on_sweep(now)
            case _:
                return self._on_backend(event, now)

    def _on_backend(self, event: FromBackend, now: Instant) -> Effects:
        match event:
            case Got():
                return self.lock_manager.got(event, now)
            case Full():
                return self.lock_manager.full(event)
            case Taken():
                return self.lock_manager.taken(event)
            case Given():
                return self.lock_manager.given(event)
            case HoldsEnded():
                return self.confirming.ended(event) if self.confirming is not None else ()
            case Doubt():
                asker = self.askers.get(event.session, address_of(event.session, "session"))
                confirm = ConfirmHold(lock=event.lock, fence=event.fence, session=event.session)
                return [Send(asker, confirm)]
            case Seen():
                return self._on_seen(event, now)
            case Ready():
                self.ready, self.detail = event.ready, event.detail
                return ()

    def _on_inspect(self, asker: Address, inspect: Inspect) -> Effects:
        if len(self.inspections) >= QUESTIONS_MAX:
            text = f"node {self.node} has {QUESTIONS_MAX} unanswered questions, its limit"
            return [refuse(asker, inspect, Reason.OVERLOADED, text)]
        self.lock_manager.looks += 1
        self.inspections[self.lock_manager.looks] = (asker, inspect)
        look = Look(lock=inspect.lock, query=self.lock_manager.looks, proven=True)
        return [Send(self.backend, look)]

    def _on_seen(self, seen: Seen, now: Instant) -> Effects:
        ended = self.lock_manager.seen(seen, now)
        if ended is not None:
            return ended
        if self.description.see(seen):
            return self._describe(now)
        asked = self.inspections.pop(seen.query, None)
        return (
            [status_of(*asked, seen, linearizable=self.confirming is not None)]
            if asked is not None
            else ()
        )

    def _on_describe(self, asker: Address, describe: Describe) -> Effects:
        asked = self.description.asked
        if not has_room(self.node, asked, asker):
            return [Observe("proxy.describe_dropped")]
        asked.append((asker, describe))
        return self.description.begin(self.lock_manager) if len(asked) == 1 else ()

    def _on_reported(self, report: Reported, now: Instant) -> Effects:
        self.description.reported = report
        return self._describe(now)

    def _describe(self, now: Instant) -> Effects:
        """Answer all requests for a description, once nothing is missing."""
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
            locks=locks_of(self.node, self.lock_manager.claims, gathered.seen, now),
        )
        asked, gathered.asked = gathered.asked, []
        return [
            Send(asker, addressed(status, describe, gathered.reported.roles))
            for asker, describe in asked
        ]

    def _on_sweep(self, now: Instant) -> Effects:
        silent = {
            session
            for session, heard in self.heard_at.items()
            if ms_between(heard, now) >= CLIENT_SILENCE_MS
        }
        effects: list[Effect] = []
        for claim in list(self.lock_manager.claims.by_key.values()):
            if claim.key.session in silent and claim.phase is Phase.WAITING:
                effects += self.lock_manager.withdraw(claim)
                effects.append(Observe("proxy.wait_of_silent_client_ended"))
        self.heard_at = {s: at for s, at in self.heard_at.items() if s not in silent}
        self.sweeping = bool(self.heard_at)
        return [*effects, Wake(SWEEP_MS, Sweep())] if self.sweeping else effects

    def _hear(self, asker: Address, session: str, now: Instant) -> Effects:
        """Note that a client of another process is alive; the callers of this one need no watch."""
        if session != node_of(asker):
            return ()
        self.heard_at[session] = now
        if self.confirming is not None:
            self.askers.pop(session, None)
            self.askers[session] = asker
            if len(self.askers) > ASKERS_MAX:
                del self.askers[next(iter(self.askers))]
        if self.sweeping:
            return ()
        self.sweeping = True
        return (Wake(SWEEP_MS, Sweep()),)
