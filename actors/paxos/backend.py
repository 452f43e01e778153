"""The replicated log behind a node's proxy: it proposes requests and returns their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.lock_message import (
    Cancel,
    CancellableRequest,
    Granted,
    HoldLost,
    Reason,
    Refused,
    Released,
    ReleaseRequest,
    refused,
)
from fencelock.actors.api.name import quoted, titled, without_secret
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.operator_message import Evicted, OperatorCommand
from fencelock.actors.api.request import Command, Outcome, Request, TableQuery
from fencelock.actors.api.retained import Recall
from fencelock.actors.api.rwlock import NO_DEADLINES, AcquireReadWrite
from fencelock.actors.api.session_message import Alive, CloseReason, Ended, KeepAlive, Open, Opened
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.error import OverloadedError, SessionExpiredError, UnsupportedError
from fencelock.actors.message import Address, Instant, Message, address_of, node_of
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.event import (
    Divergence,
    Exported,
    Gather,
    Isolated,
    LeaderChanged,
    MachineRead,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.log_requests import (
    CLIENT_COMMANDS_BYTES_MAX,
    COMMANDS_BYTES_MAX,
    CommandEncoder,
    LogRequest,
    LogRequests,
    QuorumContact,
)
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.paxos.wire import Decline, Declined
from fencelock.actors.proxy.backend import MembersBackend, Status
from fencelock.actors.proxy.clients import (
    NODE_REQUESTS_MAX,
    OpenSessions,
    OverQuotaError,
    RemoteClient,
    is_full,
)
from fencelock.actors.proxy.event import MembersKnown, eviction_notice
from fencelock.actors.proxy.queries import NextQueries
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.session.event import Undecided
from fencelock.actors.table.sentences import is_sound, worded
from fencelock.actors.table.wire import Queued, Result
from fencelock.actors.timing import TIMING, Timing

REPEAT_MAX = 500
"""Maximum commands proposed again per tick: repetitions under load must not double the load."""

NEW_LEADER_REPEAT_MAX = 5_000
"""Maximum commands proposed again when the leader changes: half of its queue."""

EXPIRED_LINES_MAX = 10
"""Sessions that expire at one log time and have a line each in the log; the others share one."""

_NOTIFIED: frozenset[type[Message]] = frozenset({HoldLost, Recall, Ended, Evicted})
"""Outcomes that concern this node although no request of its clients waits for them."""

_MAKES_ROOM: frozenset[type[Message]] = frozenset({Cancel, KeepAlive})
"""Requests that make earlier ones needless."""


class PaxosBackend(MembersBackend):
    """Puts requests into the log and sends their outcomes to clients.

    The log remembers; the proxy does not. A request is translated, proposed, and kept only until
    its outcome arrives from this node's own replica or, sooner, from the leader's. Requests of
    one turn are proposed together (`ProposalBatch`). Until the outcome arrives a request is
    proposed again unchanged: the log performs it once, however often it comes and through
    whichever proxy. A request that is sent again after its reply is also proposed again, and
    gets the outcome of the first time.

    While no majority answers, requests wait, since their outcome is not known. A client has its own
    timeout and cancels; the session of callers inside the process receives `Undecided` with the
    reason. Clients keep their own sessions alive, through any proxy.

    Args:
        node: this node.
        members: the nodes that vote, at first, by name: only outcomes from their replicas count.
        encode: encodes a command for the log.
        endpoints: where members are reached, at first, as far as that is known.
        timing: the times of this member.

    """

    name = "paxos"
    TICK_MS = 250
    CLIENT_SILENCE_MS = 60_000
    """A client's session is independent of this; it ends in the log, by its TTL."""

    def __init__(
        self,
        node: str,
        members: tuple[str, ...],
        encode: CommandEncoder,
        endpoints: Mapping[str, str] | None = None,
        timing: Timing = TIMING,
    ) -> None:
        super().__init__(node, members, endpoints)
        replica = replica_of(node)
        self.contact = QuorumContact(self.members)
        self.in_flight = LogRequests(self.proxy, replica, encode, timing.outcome_ms)
        self.sessions = OpenSessions()
        self.queries = Queries(node, replica, self.contact, self.clients)
        self.leader = ""
        self.isolated = False
        """Whether this node leads without a majority."""
        self.why_diverged = ""
        """Description of the members' differences; empty if none is known."""
        self.requests = {
            Command: self._take,
            AcquireReadWrite: self._on_read_write,
            TableQuery: self._on_query,
            **self.member_requests,
            ReadBackup: self._on_query,
        }
        self.events = {
            SlotOutcomes: self._on_slot_outcomes,
            Gather: self.in_flight.on_gather,
            Outcome: self._on_direct,
            HoldLost: self._on_direct,
            Recall: self._on_direct,
            Declined: self._on_declined,
            MachineRead: self.queries.on_machine_read,
            Exported: self.queries.on_exported,
            NextQueries: self.queries.on_next,
            LeaderChanged: self._on_leader_changed,
            Isolated: self._on_isolated,
            Skipped: self._on_skipped,
            VotingStatus: self._on_voting_status,
            Divergence: self._on_divergence,
            **self.member_events,
        }
        self.expired = 0
        """Sessions that expired in the slot whose outcomes are processed."""

    def __len__(self) -> int:
        return len(self.in_flight.by_key)

    def is_busy(self) -> bool:
        queries = self.queries
        reads = queries.pending.by_number or queries.watches.by_number
        return bool(self.in_flight.by_key or reads or self.unannounced)

    def _take(self, sender: Address, request: Command, now: Instant) -> Effects:
        """Take a request, or note that it was sent again."""
        if "." not in request.session and not isinstance(request, Open | OperatorCommand):
            return self._without_session(sender, request)
        in_flight, key = self.in_flight, request.key
        by_key = in_flight.by_key
        known = by_key.get(key)
        if known is not None:
            if type(known.request) is type(request):
                in_flight.repeat(known, request, sender, self.clients.latest)
                return ()
            in_flight.end(known)  # The client has used the number again.
        count = len(by_key)
        if count >= NODE_REQUESTS_MAX and is_full(count, NODE_REQUESTS_MAX, eases=request.EASES):
            raise self._overloaded(f"{NODE_REQUESTS_MAX} requests")
        if not count:
            self._expect_reply(now)
        if in_flight.bytes >= COMMANDS_BYTES_MAX and is_full(
            in_flight.bytes, COMMANDS_BYTES_MAX, eases=request.EASES
        ):
            raise self._overloaded(f"{COMMANDS_BYTES_MAX >> 20} MiB of requests")
        client = self.clients.latest
        size = 0 if client is None else client.usage.bytes
        most = CLIENT_COMMANDS_BYTES_MAX
        if size >= most and client is not None and is_full(size, most, eases=request.EASES):
            raise OverQuotaError(
                f"{size >> 10} KiB of requests of {client.usage.owner} are under way at node "
                f"{self.node}, {most >> 10} KiB are allowed; nothing was done"
            )
        count = 0 if client is None else client.usage.in_flight
        quota = self.clients.quotas.requests
        if count >= quota and client is not None and is_full(count, quota, eases=request.EASES):
            raise OverQuotaError(
                f"{count} requests of {client.usage.owner} are under way at node {self.node}, its "
                f"quota requests is {quota}; nothing was done"
            )
        if type(request) is Open:
            self.sessions.check(request.session, self.clients.quotas.sessions, self.node)
        if type(request) in _MAKES_ROOM:
            in_flight.make_room(request, key, client)
        gathered = in_flight.gathered
        gathered.append(in_flight.add(request, key, now, sender=sender, client=client))
        return (Send(self.proxy, Gather()),) if len(gathered) == 1 else ()

    def _without_session(self, sender: Address, request: Command) -> Effects:
        """Answer a request in a name that is not a session's id, since ids have a number."""
        if isinstance(request, KeepAlive):
            return [Send(sender, self.alive(request))]
        raise SessionExpiredError(
            f"{request.session[:80]!r} is no session, but a name: open one under it"
        )

    def _overloaded(self, limit: str) -> OverloadedError:
        text = f"{limit} are under way at node {self.node}, its limit; nothing was done"
        return OverloadedError(text)

    def _expect_reply(self, now: Instant) -> None:
        if not (self.in_flight.by_key or self.queries.pending.by_number):
            self.contact.expected_at = now

    def _on_slot_outcomes(self, sender: Address, slot: SlotOutcomes, now: Instant) -> Effects:
        """Process the outcomes of one slot; this node's replica sends them for every slot."""
        self.contact.received_at = now
        outcomes = slot.outcomes
        if not self.in_flight.by_key and _NOTIFIED.isdisjoint(map(type, outcomes)):
            return []  # Usual with few clients: only notifications would matter here.
        self.expired = 0
        effects = self._take_each(outcomes, now, warning=True)
        if self.expired > EXPIRED_LINES_MAX:
            more = self.expired - EXPIRED_LINES_MAX
            text = f"{more} more sessions expired at the same time. Their locks are free for others"
            fields = (("event", "sessions_expired"), ("count", str(more)))
            effects.append(self._notice(RoleNotice(level=Level.INFO, text=text, fields=fields)))
        return effects

    def _on_direct(self, sender: Address, outcome: Result, now: Instant) -> Effects:
        """Process an outcome that the leader's replica sent, ahead of this node's own replica.

        A node that lags behind and catches up by snapshots never applies the slot itself. So a
        recall counts here, too: others wait for the lock.
        """
        if node_of(sender) not in self.members:
            return [Observe("paxos.stranger_ignored")]
        if isinstance(outcome, Refused) and outcome.why is not None and not is_sound(outcome.why):
            return [Observe("paxos.outcome_malformed")]
        self.contact.received_at = now
        return self._take_each((outcome,), now, warning=isinstance(outcome, Recall))

    def _on_read_write(self, sender: Address, request: AcquireReadWrite, now: Instant) -> Effects:
        """Take a request about a read/write lock; refuse it if it asks for a deadline."""
        if request.hold_ms or request.grace_ms:
            raise UnsupportedError(f"{titled(request.lock)}: {NO_DEADLINES}")
        return self._take(sender, request, now)

    def _take_each(
        self, outcomes: tuple[Message, ...], now: Instant, *, warning: bool
    ) -> list[Effect]:
        """Reply to the requests that wait here; count all replies together.

        The ``outcomes`` are messages, of which only an `Outcome` answers a request.
        """
        effects: list[Effect] = []
        in_flight, latencies = self.in_flight, self.latencies
        granted = released = denied = unknown = 0
        for outcome in outcomes:
            kind = type(outcome)
            if warning and kind in _NOTIFIED:
                self._warn(outcome, effects)
            if kind is not Granted and kind is not Released and not isinstance(outcome, Outcome):
                continue  # It answers no request.
            answer: Any = outcome
            known = in_flight.by_key.get(answer.key)
            replies_to = CancellableRequest if kind is Queued else answer.REPLIES_TO
            if known is None or not isinstance(known.request, replies_to):
                continue  # No local caller waits for this outcome, or it has the wrong type.
            if kind is Queued:
                in_flight.known(known, now)
                continue
            took = now - known.since
            if kind is Granted:
                granted += 1
                latencies["wait" if known.number in in_flight.queued else "acquire"].add(took)
                in_flight.end(known)
            elif kind is Released:
                released += 1
                latencies["release"].add(took)
                in_flight.end(known)
            else:
                in_flight.end(known)
                latencies["other"].add(took)
                if isinstance(outcome, Refused):
                    denied += 1
                    unknown += outcome.reason is Reason.SESSION_EXPIRED
                reply = self._finished(answer, known.request)
                effects.append(Send(known.sender, reply))
                if isinstance(outcome, Opened):
                    self.sessions.opened(outcome.assigned)
                    effects.append(self._notice(notice_of(outcome)))
                continue
            effects.append(Send(known.sender, outcome))
        counts = ("granted", granted), ("released", released), ("refused", denied)
        for name, count in (*counts, ("unknown_session", unknown)):
            if count:
                effects.append(Observe(f"proxy.{name}", count))
        return effects

    def _finished(self, reply: Outcome, request: Command) -> Outcome:
        """Return the table's ``reply`` to ``request`` as the client gets it.

        The table does not know which node replies.
        """
        if isinstance(reply, Refused):
            return self._refusal(reply, request)
        if isinstance(reply, Ended):
            return worded(reply)
        if isinstance(reply, Evicted):
            return replace(reply, holder=reply.holder.shown())
        if isinstance(reply, Alive | Opened):
            view, members = self.known.view, self.known.members
            return replace(reply, node=self.node, leader=self.leader, view=view, members=members)
        return reply

    def _refusal(self, reply: Refused, request: Command) -> Refused:
        """Return the table's refusal of ``request`` with its text.

        The table distinguishes requests that came too late from forgotten ones. For an acquire or a
        release nothing was done in either case; the effect of an update is unknown.
        """
        reply = worded(reply, request)
        if reply.reason not in (Reason.SUPERSEDED, Reason.FORGOTTEN):
            return reply
        if isinstance(request, UpdateRequest):
            text = f"{titled(reply.lock)}: it came too late; it is unknown whether an earlier"
            return replace(
                reply, reason=Reason.UNAVAILABLE, detail=f"{text} copy of it took effect"
            )
        nothing = Reason.NOT_HELD if isinstance(request, ReleaseRequest) else Reason.CANCELLED
        return replace(reply, reason=nothing)

    def _notice(self, notice: RoleNotice) -> Send:
        return Send(address_of(self.node, "node"), notice)

    def _warn(self, outcome: Message, effects: list[Effect]) -> None:
        """Log a loss, and notify the client that it or a recall concerns, if it is here."""
        if isinstance(outcome, Ended):
            self.sessions.ended(outcome.session)
            self.expired += outcome.reason is CloseReason.EXPIRED
        if isinstance(outcome, Evicted) or (
            isinstance(outcome, Ended)
            and (outcome.reason is not CloseReason.EXPIRED or self.expired <= EXPIRED_LINES_MAX)
        ):
            effects.append(self._notice(notice_of(outcome)))
        if isinstance(outcome, Ended) and outcome.reason is CloseReason.GRACEFUL:
            return
        if not isinstance(outcome, Ended | HoldLost | Recall):
            return
        client = self.clients.of(outcome.session)
        if client is None:
            return
        if isinstance(outcome, Recall):
            effects += [Send(client.address, outcome), Observe("proxy.recalled")]
        else:
            effects.append(Send(client.address, worded(outcome)))

    def _on_declined(self, sender: Address, declined: Declined, now: Instant) -> Effects:
        """Process the rejection of a proposal.

        Most are proposed again, later or to another leader. A new request that an overloaded leader
        rejected is refused here: nothing was done.
        """
        if node_of(sender) not in self.members:
            return [Observe("paxos.stranger_ignored")]
        mark = Observe(f"paxos.proposal_declined_{declined.why.name.lower()}")
        known = self.in_flight.numbered(declined.number)
        if known is None:
            return [mark]
        if declined.why is Decline.INVALID:
            text = "not all members can read this request: run one release on all of them"
            no = refused(known.request, Reason.INVALID, text)
        elif declined.why is Decline.OVERLOADED and declined.leader and _is_untried(known):
            text = f"too much waits for a place in the log at {declined.leader}; nothing was done"
            no = refused(known.request, Reason.OVERLOADED, text)
        else:
            return [mark]
        self.in_flight.end(known)
        return [Send(known.sender, no), mark]

    def _on_leader_changed(self, sender: Address, event: LeaderChanged, now: Instant) -> Effects:
        if not (event.leader or self.leader):
            return self.queries.ask_again()  # The replica begins; earlier queries were dropped.
        served = self.serving()[0]
        self.leader = event.leader
        notices = self._notify_if_changed(served)
        if not event.leader:
            return notices
        self.in_flight.doubt(now)
        return [*notices, *self._repeat(now, NEW_LEADER_REPEAT_MAX)]

    def _on_isolated(self, sender: Address, event: Isolated, now: Instant) -> Effects:
        served = self.serving()[0]
        self.isolated = event.isolated
        return self._notify_if_changed(served)

    def _on_skipped(self, sender: Address, event: Skipped, now: Instant) -> Effects:
        """Propose requests again that may be in slots that this node did not apply."""
        self.sessions.clear()
        self.in_flight.doubt(now, queued=True)
        return self._repeat(now, NEW_LEADER_REPEAT_MAX)

    def _on_voting_status(self, sender: Address, event: VotingStatus, now: Instant) -> Effects:
        self.let_serve(event)
        return ()

    def _on_divergence(self, sender: Address, event: Divergence, now: Instant) -> Effects:
        """Show the difference; stop serving if this node is the one that diverged."""
        self.why_diverged = event.why
        if event.quarantined:
            self.closed = event.why
        return ()

    def serving(self) -> tuple[bool, str]:
        """Return whether requests can reach a leader, and the node that leads, empty if unknown."""
        return bool(self.leader) and not self.isolated, self.leader

    def leader_for(self, session: str) -> str:
        return self.leader

    def _notify_if_changed(self, served: bool) -> list[Effect]:
        """Notify the clients that wait for a reply whether this node serves, if that changed."""
        if served == self.serving()[0]:
            return []
        waiting: dict[RemoteClient, None] = {
            known.client: None
            for known in self.in_flight.by_key.values()
            if known.client is not None
        }
        return [Send(one.address, self.probe_reply(one.session, 0)) for one in waiting]

    def on_members_known(self, sender: Address, event: MembersKnown, now: Instant) -> Effects:
        effects = super().on_members_known(sender, event, now)
        self.contact.name(self.members)
        return effects

    def _on_query(self, sender: Address, query: Any, now: Instant) -> Effects:
        self._expect_reply(now)
        return self.queries.take(sender, query, now)

    def gather_status(self, now: Instant) -> Effects:
        self._expect_reply(now)
        return self.queries.describe(now)

    def status(self, now: Instant) -> Status | None:
        """Return readiness and locks, with the faults of this member or another."""
        status = self.queries.status(self.leader, now)
        if status is None:
            return None
        problems = [*filter(None, (self.why_diverged, self.why_no_vote, self.why_times))]
        # What a node that serves does comes first; of any other node, its problems do.
        parts = [status.detail, *problems] if status.ready else [*problems, status.detail]
        return status._replace(detail="; ".join(parts))

    def tick(self, now: Instant) -> Effects:
        """Propose the requests again that are due, and end those that time out."""
        explained = [*self._explain(now), *self.announce_members()]
        return [*explained, *self.queries.end_old(now), *self._repeat(now, REPEAT_MAX)]

    def _explain(self, now: Instant) -> list[Effect]:
        """Notify the session of callers inside the process why its requests are not decided."""
        local = self.clients.local
        if local is None or not local.usage.in_flight:
            return []
        if self.contact.silent_ms(now) < self.in_flight.repeat_ms:
            return []
        return [Send(local.address, Undecided(detail=self.contact.in_words(now)))]

    def _repeat(self, now: Instant, most: int) -> list[Effect]:
        return [self.in_flight.propose(known) for known in self.in_flight.due(now, most)]

    def forget(self, clients: list[str], now: Instant) -> Effects:
        gone = self.in_flight.forget_silent(self.clients, now)
        return [Observe("proxy.request_of_silent_client_forgotten", gone)]

    def cancel_waits(self, clients: list[str], now: Instant) -> Effects:
        """Cancel the requests of ``clients`` that may wait, in the log."""
        removed, gathered = set(clients), self.in_flight.gathered
        was_empty = not gathered
        for known in list(self.in_flight.by_key.values()):
            wait = known.request
            if isinstance(wait, CancellableRequest) and node_of(known.sender) in removed:
                self.in_flight.end(known)
                cancel = Cancel(
                    lock=wait.lock, session=wait.session, owner=wait.owner, request=wait.request
                )
                gathered.append(self.in_flight.add(cancel, cancel.key, now, sender=known.sender))
        return (Send(self.proxy, Gather()),) if was_empty and gathered else ()

    def pending(self) -> Iterable[tuple[Address, Request]]:
        return [(known.sender, known.request) for known in self.in_flight.by_key.values()]


def notice_of(outcome: Opened | Ended | Evicted) -> RoleNotice:
    line = _line_of(outcome)
    fields = tuple((key, without_secret(value)) for key, value in line.fields)
    return replace(line, text=without_secret(line.text), fields=fields)


def _line_of(outcome: Opened | Ended | Evicted) -> RoleNotice:
    match outcome:
        case Evicted():
            fence, holder = outcome.fence, outcome.holder
            return eviction_notice(outcome.lock, fence, holder, outcome.operator)
        case Opened():
            fields: tuple[tuple[str, str], ...] = (
                ("event", "session_opened"),
                ("session", outcome.assigned),
            )
            text = f"session {outcome.assigned} is open, with a TTL of {outcome.ttl_ms} ms"
            return RoleNotice(level=Level.DEBUG, text=text, fields=fields)
        case Ended():
            level, what, why = _ENDINGS[outcome.reason]
            fields = (("event", f"session_{what}"), ("session", outcome.session))
            if operator := outcome.operator:
                fields += (("operator", operator),)
                why = f"it was ended by force, by {quoted(operator)}. Its locks are free for others"
            text = f"session {outcome.session} {what}: {why}"
            return RoleNotice(level=level, text=text, fields=fields)


_ENDINGS = {
    CloseReason.GRACEFUL: (Level.DEBUG, "closed", "its client ended it"),
    CloseReason.EXPIRED: (
        Level.INFO,
        "expired",
        "nothing came from its client for its TTL, so the client died or is cut off. Its locks are "
        "free for others",
    ),
    CloseReason.FORCED: (Level.WARNING, "closed", "an operator ended it. Its locks are free"),
}
"""The level of the log line about the end of a session, the event, and the reason."""


def _is_untried(known: LogRequest) -> bool:
    """Return whether the request is new work that cannot be in the log yet."""
    return known.proposed_at == known.since and isinstance(
        known.request, Open | CancellableRequest | OperatorCommand
    )
