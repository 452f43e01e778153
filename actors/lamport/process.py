"""Lamport's mutual exclusion: a process enters when all others know that it is its turn."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.role_request import QUEUES_MAX, Queues, ReadQueues, queue_of
from fencelock.actors.clock import STAMP_MAX, Post, Stamped
from fencelock.actors.effect import Effect, Effects, Fault, Observe, Send, Wake
from fencelock.actors.fault import reading
from fencelock.actors.lamport.order import (
    LAMPORT_REQUESTS_MAX,
    Evidence,
    LocalTicket,
    PeerContact,
    PendingRequests,
    QueuePlace,
    Rejoin,
    Requests,
    pack_fence,
)
from fencelock.actors.lamport.wire import (
    Acknowledge,
    Busy,
    Content,
    Delivered,
    Greet,
    Neighbors,
    PeerJoined,
    Probe,
    ProbeDue,
    ProofDue,
    Release,
    Request,
    Welcome,
)
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.proxy.event import (
    WAITERS_SHOWN_MAX,
    AcquireLock,
    LockDescription,
    LockGranted,
    QueryLock,
    QueueFull,
    Ready,
    ReleaseLock,
)
from fencelock.actors.role import Facts, Host, Role, Summary

AHEAD_PROBE_MS = 500
"""Interval of probes to processes whose requests are ahead of ours (ms)."""

Received = (
    Neighbors
    | AcquireLock
    | ReleaseLock
    | QueryLock
    | Delivered
    | PeerJoined
    | Busy
    | ProbeDue
    | ProofDue
    | ReadQueues
)


class LockProcess(Role[Received]):
    """Serves every lock of one node. Source: Lamport 1978, the five rules; the Erlang essay.

    It computes no time: its messages go through the clock, which stamps and sends them in
    one order, and its own request comes back to it stamped. Were a request stamped here and
    sent later, an acknowledgement stamped after it could overtake it.

    Acknowledging is safe before this process is ready: it promises that later messages have
    later stamps, and a process that has sent no request has sent nothing earlier.

    Invariants:
        one-holder: One process at a time is granted a lock: first-with-later-messages, of which
            only one can be first.
        granted-in-order: Places are unique, and locks are granted in their order.
        first-with-later-messages: A lock is granted only to the first, with a later message from
            every other process.
        one-request-a-lock: A process has at most one request for a lock, removed by its own release
            only.

    Args:
        node: the node this process is on; ``boot`` is the id of its life.
        clock: stamps posted messages and passes them on.
        proxy: requests locks and receives grants.

    """

    def __init__(
        self, address: Address, host: Host, *, node: str, boot: int, clock: Address, proxy: Address
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.boot = boot
        self.clock = clock
        self.proxy = proxy
        self.nodes: tuple[str, ...] = ()
        self.others: tuple[str, ...] = ()
        self.rejoin = Rejoin(None)
        self.contact = PeerContact((), Instant(0))
        self.evidence = Evidence(())
        self.requests = Requests()
        self.pending = PendingRequests()
        self.proofs: dict[int, Proof] = {}
        """The reads that wait for a proof, by the numbers of their queries, in order of arrival."""
        self.busy: set[str] = set()
        """The nodes that have much of ours to confirm: no request is begun meanwhile, and none of
        their greetings answered."""
        self.greetings: dict[str, Greet] = {}
        """The latest greeting of the present life of each node."""
        self.unanswered: set[str] = set()
        """The nodes whose greeting is answered once there is room for it."""
        self.probing = False
        self.reported = ""
        """The detail of the last `Ready` sent to the proxy."""

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        """Process one event; all are from roles of this node, and only queries use ``sender``."""
        match event:
            case Delivered():
                return self._on_delivered(event, now)
            case AcquireLock():
                return self._on_acquire_lock(event, now)
            case ReleaseLock():
                return self._on_release_lock(event, now)
            case QueryLock():
                return self._on_query(event, now)
            case PeerJoined():
                return self._on_peer_joined(event, now)
            case Busy():
                return self._on_busy(event, now)
            case ProbeDue():
                return self._on_probe_due(now)
            case ProofDue():
                return self._on_proof_due(event, now)
            case Neighbors():
                return self._on_neighbors(event, now)
            case ReadQueues():
                return [Send(sender, self._queues())]

    def summary(self) -> Summary:
        return (
            ("ready", self.rejoin.ready),
            ("locks", len(self.requests.queues)),
            ("requests", sum(len(known) for known in self.requests.known.values())),
            ("tickets of this node", self.pending.tickets),
        )

    def facts(self, now: Instant) -> Facts:
        """Return the evidence of each process, this node's requests, and the queue of each lock.

        A queue is in the order in which its requests enter: the stamps of rule 5, with their nodes.
        """
        yield from self.summary()
        yield "missing before it may request", ", ".join(self.rejoin.missing())
        for node, stamp in self.evidence.received.items():
            yield f"latest stamp of {node}", stamp
        for lock, ours in self.pending.by_lock.items():
            ticket = f"ticket {ours.ticket.number}"
            if ours.place is None:
                yield f"own request for {lock}", f"{ticket} has no stamp yet"
            elif ours.granted_at is not None:
                held_ms = ms_between(ours.granted_at, now)
                yield f"own request for {lock}", f"{ticket} holds it since {held_ms} ms"
            elif self.evidence.covers(ours.place):
                yield f"own request for {lock}", f"{ticket} waits for earlier requests"
            else:
                missing = ", ".join(self.evidence.missing(ours.place))
                yield f"own request for {lock}", f"{ticket} waits for later messages of {missing}"
        for lock, queue in self.requests.queues.items():
            places = (f"{one.node} at {one.stamp}" for one in queue.places)
            yield f"queue of {lock}", ", ".join(places)

    def _queues(self) -> Queues:
        """Return the nodes that request each lock, in the order in which they will enter."""
        names = nsmallest(QUEUES_MAX, self.requests.queues)
        return Queues(
            queues=tuple(
                queue_of(name, [place.node for place in self.requests.in_order(name)])
                for name in names
            ),
            locks=len(self.requests.queues),
        )

    # Requests of the node for its clients.

    def _on_acquire_lock(self, acquire: AcquireLock, now: Instant) -> Effects:
        if self.pending.tickets >= LAMPORT_REQUESTS_MAX:
            text = (
                f"{LAMPORT_REQUESTS_MAX} tickets wait or hold through node {self.node}, its limit"
            )
            full = QueueFull(lock=acquire.lock, ticket=acquire.ticket, detail=text)
            return [Send(self.proxy, full), Observe("lamport.want_refused")]
        self.pending.queue(
            acquire.lock, LocalTicket(acquire.ticket, acquire.session, acquire.owner, now)
        )
        return self._request_next(acquire.lock, now)

    def _request_next(self, lock: str, now: Instant) -> list[Effect]:
        self.pending.enter(lock)
        return self._request_waiting(now)

    def _request_waiting(self, now: Instant) -> list[Effect]:
        """To request a lock, send a request to every process; one for each lock at a time."""
        effects: list[Effect] = []
        while self.rejoin.ready and not self.busy and (lock := self.pending.begin()) is not None:
            effects += self._post(self.nodes, Request(lock=lock))
        if not effects:
            return []
        self.contact.requested(self.others, now)
        if self.others and not self.probing:
            self.probing = True
            effects.append(Wake(AHEAD_PROBE_MS, ProbeDue()))
        return effects

    def _on_release_lock(self, release: ReleaseLock, now: Instant) -> Effects:
        if self.pending.leave(release.lock, release.ticket):
            return ()
        ours = self.pending.by_lock.get(release.lock)
        if ours is None or ours.ticket.number != release.ticket or ours.withdrawn:
            return (Observe("lamport.give_unknown"),)
        if ours.place is None:
            ours.withdrawn = True
            return ()
        self.requests.remove(release.lock, self.node)
        return self._release(release.lock, ours.place, now)

    def _release(self, lock: str, place: QueuePlace, now: Instant) -> list[Effect]:
        """To release the lock, or give up waiting, notify every other process."""
        self.pending.end(lock)
        release = Release(lock=lock, request=place.stamp)
        return [*self._post(self.others, release), *self._request_next(lock, now)]

    def _settle(self, lock: str, now: Instant) -> list[Effect]:
        """Grant the lock to our request, if it has one that may enter."""
        ours = self.pending.by_lock.get(lock)
        if ours is None or ours.place is None or ours.granted_at is not None:
            return []
        if not self._may_enter(lock, ours.place):
            return []
        ours.granted_at = now
        fence = pack_fence(ours.place.stamp, self.nodes.index(self.node))
        granted = LockGranted(lock=lock, ticket=ours.ticket.number, fence=fence)
        return [Send(self.proxy, granted), Observe("lamport.entry")]

    def _may_enter(self, lock: str, place: QueuePlace) -> bool:
        # first-with-later-messages
        return self.requests.first(lock) == place and self.evidence.covers(place)

    def _on_query(self, query: QueryLock, now: Instant) -> Effects:
        description, faults = self._describe(query, now)
        proves = query.proven and description.holder is None and self.nodes != (self.node,)
        if faults or not proves:
            return (Send(self.proxy, description), *faults)
        self.proofs[query.query] = Proof(query)
        return (*self._probe_for_queries(now), Wake(PROOF_MS, ProofDue(query=query.query)))

    def _describe(self, query: QueryLock, now: Instant) -> tuple[LockDescription, list[Fault]]:
        """Return what is known of a lock, and the fault if a bug of ours keeps it from that."""
        found = reading(repr(query), lambda: self._description(query, now))
        if not isinstance(found, Fault):
            return found, []
        description = LockDescription(
            lock=query.lock,
            query=query.query,
            holder=None,
            waiters=(),
            waits_for=(),
            unknown=f"a bug in fencelock, see the log of {self.node}",
        )
        return description, [found]

    def _description(self, query: QueryLock, now: Instant) -> LockDescription:
        most = WAITERS_SHOWN_MAX if query.waiters else 0
        holder, waiters = self._contenders(query.lock, most, now)
        return LockDescription(
            lock=query.lock,
            query=query.query,
            holder=holder,
            waiters=waiters,
            waits_for=self.contact.absences(self._missing(query.lock), now),
        )

    def _contenders(
        self, lock: str, most: int, now: Instant
    ) -> tuple[Contender | None, tuple[Contender, ...]]:
        """Return the holder of ``lock``, if any, and the first ``most`` waiters, in their order.

        For this node's own request it is known whether it holds. The earliest request
        of another node holds, or is about to; its client is not known here.
        """
        holder: Contender | None = None
        waiters: list[Contender] = []
        for ahead, place in enumerate(self.requests.in_order(lock)):
            contender, holds = self._contender(lock, place, now, first=ahead == 0)
            if holds:
                fence = pack_fence(place.stamp, self.nodes.index(place.node))
                holder = contender._replace(fence=fence)
            else:
                waiters.append(contender)
        ours = self.pending.by_lock.get(lock)
        if ours is not None and ours.place is None and not ours.withdrawn:
            waiters.append(self._ours(ours.ticket, ours.ticket.since, now))
        line = self.pending.in_line(lock, max(0, most - len(waiters)))
        waiters += [self._ours(ticket, ticket.since, now) for ticket in line]
        return holder, tuple(waiters[:most])

    def _contender(
        self, lock: str, place: QueuePlace, now: Instant, *, first: bool
    ) -> tuple[Contender, bool]:
        """Return the owner of the request, and whether it holds the lock."""
        if place.node != self.node:
            since_ms = ms_between(self.requests.known[place.node][lock], now)
            return Contender(place.node, "", "", None, since_ms), first
        ours = self.pending.by_lock[lock]
        since = ours.ticket.since if ours.granted_at is None else ours.granted_at
        return self._ours(ours.ticket, since, now), ours.granted_at is not None

    def _ours(self, ticket: LocalTicket, since: Instant, now: Instant) -> Contender:
        return Contender(self.node, ticket.session, ticket.owner, None, ms_between(since, now))

    def _missing(self, lock: str) -> tuple[str, ...]:
        """Return the nodes that must answer before a ticket of ours is granted ``lock``.

        Before this process is ready, those are the nodes that have not welcomed it. While the lock
        waits for its turn to be requested, they are the busy nodes. Then they are
        the nodes whose evidence is missing. If none is, it is the node with the first request,
        if it owes us an answer: one that holds the lock and answers is not at fault.
        """
        ours = self.pending.by_lock.get(lock)
        if ours is None:
            waits = lock in self.pending.lines
            return self.rejoin.missing() or tuple(sorted(self.busy)) if waits else ()
        if ours.granted_at is not None:
            return ()
        missing = self.evidence.missing(ours.place or UNSTAMPED)
        first = self.requests.first(lock)
        if not missing and first is not None and self.contact.owes(first.node):
            return (first.node,)
        return missing

    def _probe_for_queries(self, now: Instant) -> list[Effect]:
        """Probe every process for each query that waits, once this process is ready."""
        if not self.rejoin.ready:
            return []
        effects: list[Effect] = []
        for proof in [one for one in self.proofs.values() if not one.probed]:
            proof.probed = True
            self.contact.requested(self.others, now)
            effects += self._post(self.nodes, Probe())
        return effects

    def _reply_to_queries(self, now: Instant) -> list[Effect]:
        """Answer the queries whose probes are covered."""
        effects: list[Effect] = []
        for number, proof in list(self.proofs.items()):
            if proof.place is None or not self.evidence.covers(proof.place):
                break  # The others were probed later.
            del self.proofs[number]
            description, faults = self._describe(proof.query, now)
            effects += [Send(self.proxy, description), *faults]
        return effects

    def _on_proof_due(self, due: ProofDue, now: Instant) -> Effects:
        """Report that the holder of a lock is not known, unless it is."""
        proof = self.proofs.get(due.query)
        if proof is None:
            return ()
        if proof.probed and proof.place is None:  # Its own probe has yet to come back.
            return (Wake(PROOF_MS, due),)
        del self.proofs[due.query]
        missing = self.rejoin.missing()
        if proof.place is not None:
            missing = self.evidence.missing(proof.place)
        description, faults = self._describe(proof.query, now)
        if faults:
            return (Send(self.proxy, description), *faults)
        if description.holder is None:
            why = f"nothing received for {PROOF_MS} ms from {', '.join(missing)}"
            description = replace(description, unknown=why)
        return (Send(self.proxy, description), Observe("lamport.query_unproven"))

    # Messages of other processes, once each and in order.

    def _on_delivered(self, delivered: Delivered, now: Instant) -> Effects:
        origin, message = delivered.origin, delivered.message
        if origin == self.node:
            if isinstance(message, Probe):  # The oldest proof without a place gets it.
                waiting = (one for one in self.proofs.values() if one.probed and one.place is None)
                next(waiting).place = QueuePlace(message.stamp, origin)
                return ()
            assert isinstance(message, Request)
            return self._on_own_request(message, now)
        if origin not in self.others:
            return (Observe("lamport.stranger_dropped"),)
        if not self.evidence.received[origin] < message.stamp <= STAMP_MAX:
            return (Observe("lamport.impossible_stamp"),)
        self.contact.received(origin, now)
        effects = self._on_message(origin, message, now)
        if isinstance(message, Welcome) and not message.complete:
            return effects  # Requests from before its stamp are still to come.
        return [*effects, *self._note(origin, message.stamp, now)]

    def _on_own_request(self, request: Request, now: Instant) -> Effects:
        place = QueuePlace(request.stamp, self.node)
        ours = self.pending.stamped(request.lock, place)
        if ours.withdrawn:
            return self._release(request.lock, place, now)
        self.requests.add(request.lock, place, now)
        return [*self._settle(request.lock, now), *self._request_waiting(now)]

    def _on_message(self, origin: str, message: Content, now: Instant) -> list[Effect]:
        match message:
            case Request():
                place = QueuePlace(message.stamp, origin)
                problem = self.requests.learn(message.lock, place, now)
                if problem:
                    return [Observe(problem)]
                return self._post((origin,), Acknowledge(lock=message.lock))
            case Release():
                # Remove the request it names, and no other (one-request-a-lock).
                if self.requests.stamp(message.lock, origin) != message.request:
                    return [Observe("lamport.release_unmatched")]
                self.requests.remove(message.lock, origin)
                return self._settle(message.lock, now)
            case Greet():
                return self._on_greet(origin, message)
            case Welcome():
                return self._on_welcome(origin, message, now)
            case Probe():
                return self._post((origin,), Acknowledge(lock=""))
            case Acknowledge():
                return []  # It is evidence, like every message.

    def _on_greet(self, origin: str, greet: Greet) -> list[Effect]:
        """Answer a restarted process, once a round: a short greeting has a long answer."""
        former = self.greetings.get(origin)
        if former is not None and greet.round <= former.round:
            return [Observe("lamport.repeated_greet_dropped")]
        self.greetings[origin] = greet
        if origin in self.busy:
            self.unanswered.add(origin)
            return [Observe("lamport.greet_deferred")]
        return self._welcome(origin)

    def _welcome(self, node: str) -> list[Effect]:
        """Send a restarted process those of our requests that it must know."""
        parts = self.requests.welcomes(self.node, self.greetings[node])
        return [effect for part in parts for effect in self._post((node,), part)]

    def _on_busy(self, event: Busy, now: Instant) -> list[Effect]:
        """Note whether a node has much to confirm.

        If it no longer has, answer its latest greeting; if none has, go on requesting.
        """
        if event.busy:
            self.busy.add(event.node)
            return []
        self.busy.discard(event.node)
        greeted = event.node in self.unanswered
        self.unanswered.discard(event.node)
        welcome = self._welcome(event.node) if greeted else []
        return [*welcome, *self._request_waiting(now)]

    def _note(self, origin: str, stamp: int, now: Instant) -> list[Effect]:
        """Store evidence, and grant requests that lacked only this."""
        self.evidence.note(origin, stamp)
        locks = self.pending.covered(self.evidence)
        effects = [effect for lock in locks for effect in self._settle(lock, now)]
        return [*effects, *self._reply_to_queries(now)] if self.proofs else effects

    def _on_welcome(self, origin: str, welcome: Welcome, now: Instant) -> list[Effect]:
        """Queue the requests in it; one acknowledgement is later than all of them."""
        problems = self.requests.learn_all(origin, welcome, now)
        effects: list[Effect] = [*map(Observe, problems)]
        if welcome.requests:
            effects += self._post((origin,), Acknowledge(lock=welcome.requests[-1].lock))
        if welcome.complete and welcome.boot == self.boot:
            self.rejoin.welcome(origin, welcome.round)
            effects += self._report_ready(now)
        return effects

    # The nodes.

    def _on_neighbors(self, neighbors: Neighbors, now: Instant) -> Effects:
        self.nodes = tuple(sorted({*neighbors.nodes, self.node}))
        self.others = tuple(node for node in self.nodes if node != self.node)
        self.rejoin = Rejoin(self.others)
        self.contact = PeerContact(self.others, now)
        self.evidence = Evidence(self.others)
        return self._report_ready(now)

    def _report_ready(self, now: Instant) -> list[Effect]:
        """Notify the proxy whether this process may request; if so, make waiting requests."""
        ready, missing = self.rejoin.ready, ", ".join(self.rejoin.missing())
        detail = "ready" if ready else f"nothing received since the start from {missing}"
        if detail == self.reported:
            return []
        self.reported = detail
        requests = self._request_waiting(now)
        probes = self._probe_for_queries(now)
        return [Send(self.proxy, Ready(ready=ready, detail=detail)), *requests, *probes]

    def _on_peer_joined(self, joined: PeerJoined, now: Instant) -> Effects:
        """Drop requests and evidence of a former life of the node; greet it if we are new."""
        self.requests.remove_all(joined.node)
        self.greetings.pop(joined.node, None)
        self.unanswered.discard(joined.node)
        self.evidence.forget(joined.node)
        self.pending.renew()
        self.contact.received(joined.node, now)
        greeted = self.rejoin.meet(joined.node, joined.boot)
        self.contact.requested(greeted, now)
        greet = Greet(boot=self.boot, round=self.rejoin.round)
        # Its former life may have lost the probe of a query that waits.
        probed = self._post((joined.node,), Probe()) if self.proofs else []
        return [*self._post(greeted, greet), *probed, *self._report_ready(now)]

    def _on_probe_due(self, now: Instant) -> Effects:
        """Probe the processes that are ahead of us, so that a dead one can be named."""
        waiting = self.pending.waiting()
        self.probing = bool(waiting)
        if not waiting:
            return ()
        firsts = {place.node for lock in waiting if (place := self.requests.first(lock))}
        quiet = tuple(n for n in self.others if n in firsts and not self.contact.owes(n))
        self.contact.requested(quiet, now)
        return [*self._post(quiet, Probe()), Wake(AHEAD_PROBE_MS, ProbeDue())]

    def _post(self, nodes: tuple[str, ...], message: Stamped) -> list[Effect]:
        """Stamp and send ``message``, and count it once for each receiver."""
        if not nodes:
            return []
        counter = f"lamport.{type(message).__name__.lower()}"
        sent = sum(node != self.node for node in nodes)
        return [Send(self.clock, Post(nodes=nodes, message=message)), Observe(counter, sent)]


UNSTAMPED = QueuePlace(STAMP_MAX, "")
"""Stands for the place of a request that is not stamped yet: later than all received stamps."""


PROOF_MS = 2_000
"""Time limit for the replies of all other processes to a read (ms): several resendings."""


@dataclass(slots=True)
class Proof:
    """A query that waits until no other process can hold the lock.

    A process may be granted a lock before its request is known here: any later-stamped message
    from here is evidence for it, also one that was sent before the request arrived. So an empty
    queue proves nothing by itself. But the holder at the start of the query had received a message
    of this process stamped above its request. So that request is stamped before the query's probe.
    And messages of a process arrive in the order of their stamps. Once every process has sent
    something stamped above the probe, that request is in the queue, unless it was released.

    Attributes:
        probed: whether a `Probe` was posted for it, to all processes and to this one.
        place: of that probe, None until it comes back stamped.

    """

    query: QueryLock
    probed: bool = False
    place: QueuePlace | None = None
