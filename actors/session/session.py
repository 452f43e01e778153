"""The session role of a client: sends requests, repeats them, and leaves silent endpoints."""

from __future__ import annotations

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.changes import WATCH_MS
from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp
from fencelock.actors.api.message import (
    Abandon,
    Alive,
    Cancel,
    CancellableRequest,
    Cancelled,
    Describe,
    Granted,
    Released,
    ReleaseRequest,
)
from fencelock.actors.api.probe_message import ProbeReply
from fencelock.actors.api.query import is_watch
from fencelock.actors.api.session_message import ConfirmHold, Ended, HoldLost, Opened, Unlocking
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, node_of
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session import (
    cancellation,
    endpoint_selection,
    fast_path,
    maintenance,
    replies,
    session_loss,
)
from fencelock.actors.session.admission import why_not
from fencelock.actors.session.cancellation import CLOSED, ClientClosing
from fencelock.actors.session.endpoint import ENDPOINTS_MAX, Endpoint, Endpoints
from fencelock.actors.session.holding import Hold
from fencelock.actors.session.in_flight import InFlight
from fencelock.actors.session.keep_alive import greet, open_session
from fencelock.actors.session.message import (
    Close,
    EndpointChanged,
    SessionTick,
    Survey,
    Undecided,
    WatchCluster,
)
from fencelock.actors.session.pending import ANSWER_MS, Claim, Question, RandomSource, later
from fencelock.actors.session.read_window import windows
from fencelock.actors.session.rejection import Answer, refused
from fencelock.actors.session.session_lease import SessionLease
from fencelock.actors.session.session_loss import judge_belief
from fencelock.actors.session.session_state import Broadcast, SessionState

SURVEY_MS = 2_000
"""Timeout of a survey for the last endpoint (ms)."""

TTL_MS = 15_000
"""Default time for which the holds of a dead client stay taken (ms)."""

TICK_MS = 100
"""Resolution of the session's timers (ms): they may be late by this much."""

_TICK_NS = TICK_MS * NS_PER_MS

FromUser = Question | Cancel
News = ClusterUp | ClusterDown
FromEndpoint = (
    Answer
    | Cancelled
    | Alive
    | Opened
    | Ended
    | HoldLost
    | ConfirmHold
    | Unlocking
    | ProbeReply
    | News
)
FromFace = Abandon | Close | Survey | WatchCluster
Said = FromUser | FromEndpoint | FromFace | Undecided | LinkUp | LinkDown | LinkRefused


class ClientSession(Role[Said | SessionTick]):
    """Serves the threads of one client process, or roles of its own node.

    A user's ``session`` is ignored and its ``request`` is its own token, which the reply
    returns. On the wire the session numbers its own requests.

    Where the cluster keeps sessions, one is opened for the first acquire. All holds and waits
    belong to it, and any endpoint will do for any request. When it can no longer be trusted,
    its holds are lost, and its waits continue in the next one.

    Invariants:
        C1  A user receives one reply to a request, from an endpoint or the session.
        C2  A grant that no user waits for any more is cancelled until that is confirmed.
        C3  Without a kept session a claim waits at one endpoint at a time, or is held through one,
            never both.
        C4  Nothing is held after ``session_lease.until``, whatever the cluster sends later.

    Args:
        session: the id of this client, from which its node is named; without ``~`` and ``.``. The
            session of callers inside a node is named after the node and its life: ``n1/5f3a``.
        endpoints: the proxies it may use, 1 to `ENDPOINTS_MAX`, each on its own node; the first
            one is chosen at random, the others follow in order.
        random: chooses the first endpoint, and jitter.
        labels: the user's names of the endpoints, for texts; by default their nodes.
        watcher: the role of this node that receives `Trusted`, `Suspected`, `HoldsLost`.
        ttl_ms: time for which the cluster keeps the session without a keep-alive (ms).
        label: description of this client for people, such as host and process.
        secret: random digits in the names of its sessions, so that nobody else can use them.
        holds: an empty table for the holds, which the client's threads may read; see `Hold`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: str,
        endpoints: tuple[Address, ...],
        random: RandomSource,
        labels: tuple[str, ...] = (),
        watcher: Address | None = None,
        ttl_ms: int = TTL_MS,
        label: str = "",
        secret: str = "",
        holds: dict[Claim, Hold] | None = None,
    ) -> None:
        super().__init__(address, host)
        labels = labels or tuple(node_of(endpoint) for endpoint in endpoints)
        assert 1 <= len(endpoints) <= ENDPOINTS_MAX
        assert len({node_of(endpoint) for endpoint in endpoints}) == len(endpoints) == len(labels)
        assert not set("~.") & set(session.rpartition("/")[2])
        table = {
            endpoint: Endpoint(endpoint, label)
            for endpoint, label in zip(endpoints, labels, strict=True)
        }
        known = Endpoints(table, endpoints[random.randrange(len(endpoints))])
        session_lease = SessionLease(session, ttl_ms, label, secret)
        home = f"{node_of(address)}/"
        reads = windows(local=all(endpoint.startswith(home) for endpoint in endpoints))
        in_flight = InFlight(random, known, session_lease, reads)
        self.session_state = SessionState(known, in_flight, session_lease, home, watcher)
        if holds is not None:
            self.session_state.holds = holds
        self.used = table[known.current].label
        """The endpoint in use at the last tick, as its user named it."""
        self.surveys_begun = 0
        self.closing = ClientClosing()
        self.round = 0
        self.wake_at: Instant | None = None

    def begin(self, now: Instant) -> Effects:
        """Send every endpoint a keep-alive, so that it is known which ones reply."""
        if all(
            endpoint.startswith(self.session_state.home)
            for endpoint in self.session_state.endpoints.table
        ):
            return ()  # The proxy of its own node does.
        return [
            *greet(self.session_state, self.session_state.endpoints.table, now),
            *self._rearm(TICK_MS, now),
        ]

    def summary(self) -> Summary:
        """Return the session in force, empty if there is none, and the number of its holds."""
        return ("session", self.session_state.session_lease.assigned), (
            "holds",
            len(self.session_state.holds),
        )

    def handle(self, sender: Address, event: Said | SessionTick, now: Instant) -> Effects:
        """Process a request or a message, and make sure that the next tick comes in time."""
        state = self.session_state
        lost: list[Effect] = []
        lapses_at = state.lapses_at
        if now >= state.session_lease.until or (lapses_at is not None and now >= lapses_at):
            lost = judge_belief(state, now)  # C4: before any message that came meanwhile.
        way, effects = fast_path.WAYS[type(event)], None
        if way is not None and not self.closing.begun:
            effects = way(state, sender, event, now)
        if effects is None:
            if isinstance(event, SessionTick):
                return [*lost, *self._on_tick(event, now)]
            effects = self._decide(sender, event, now)
            effects += state.in_flight.send_held_back(now)
            if self.closing.due_at is not None:
                effects += self.closing.finish(state, now)
        if lost:
            effects = [*lost, *effects]
        if (self.wake_at is None or self.wake_at > now + _TICK_NS) and state.busy():
            effects += self._rearm(TICK_MS, now)
        return effects

    def _decide(self, sender: Address, event: Said, now: Instant) -> list[Effect]:
        if isinstance(event, (Granted, Released)):
            return replies.on_answer(self.session_state, sender, event, now)
        if isinstance(event, FromUser):
            if not sender.startswith(self.session_state.home):
                return [Observe("client.stranger_dropped")]
            return self._on_user(sender, event, now)
        state = self.session_state
        match event:
            case LinkUp():
                return maintenance.on_link_up(state, event.node, now)
            case LinkDown():
                return maintenance.on_link_down(state, event.node, now)
            case LinkRefused():
                return maintenance.on_link_refused(state, event, now)
            case Abandon():
                return cancellation.on_abandon(state, sender, now)
            case Survey():
                return self._on_survey(sender, event, now)
            case WatchCluster():
                return [] if self.closing.begun else maintenance.watch(state, now)
            case Close():
                return self.closing.begin(state, sender, now)
            case Undecided():
                state.endpoints.note_excuse(sender, event.detail, now)
                return []
            case _:
                return self._on_endpoint(sender, event, now)

    def _on_endpoint(self, sender: Address, event: FromEndpoint, now: Instant) -> list[Effect]:
        state = self.session_state
        match event:
            case Cancelled():
                return replies.on_cancelled(state, sender, event, now)
            case Alive():
                return replies.on_alive(state, sender, event, now)
            case Opened():
                return replies.on_opened(state, sender, event, now)
            case Ended() if self.closing.ends(event.session):
                return self.closing.ended(state)
            case Ended():
                return session_loss.on_ended(state, sender, event, now)
            case HoldLost():
                return session_loss.on_hold_lost(state, sender, event, now)
            case ConfirmHold() if self.closing.is_over:
                return []
            case ConfirmHold():
                return session_loss.on_confirm_hold(state, sender, event, now)
            case ProbeReply():
                return endpoint_selection.on_reply(state, sender, event, now)
            case Unlocking():
                return session_loss.on_unlocking(state, sender, event, now)
            case ClusterUp() | ClusterDown():
                return maintenance.on_news(state, sender, event, now)
            case _:
                return replies.on_answer(state, sender, event, now)

    def _on_user(self, user: Address, event: FromUser, now: Instant) -> list[Effect]:
        if isinstance(event, Cancel):
            return cancellation.on_cancel(self.session_state, user, event, now)
        state = self.session_state
        claim = state.claim_of(user, event)
        no = CLOSED if self.closing.begun else why_not(state, event, claim, now)
        if no is not None:
            return [Send(user, refused(event, self.session_state.session_lease.name, no))]
        if isinstance(event, ReleaseRequest):
            assert claim is not None
            return self._on_release(user, event, claim, now)
        limit_ms: int | None = ANSWER_MS
        if isinstance(event, CancellableRequest):
            limit_ms = event.wait_ms if event.WAITS else ANSWER_MS
            state.session_lease.need(now)
        elif is_watch(event):
            limit_ms = WATCH_MS + ANSWER_MS
        only = event.node if isinstance(event, ReadBackup) else ""
        endpoint = state.endpoints.choose_on(only)
        effects = state.in_flight.ask(user, event, claim, endpoint.address, now, limit_ms=limit_ms)
        return effects or open_session(state, now)  # Without a session nothing was sent yet.

    def _on_release(
        self, user: Address, release: ReleaseRequest, claim: Claim, now: Instant
    ) -> list[Effect]:
        state, in_flight = self.session_state, self.session_state.in_flight
        state.session_lease.need(now)
        for number in in_flight.releases.get(claim, ()):
            pending = in_flight.pending[number]
            asked = pending.asked
            same = type(asked) is type(release) and not release.PARTIAL
            same = same and isinstance(asked, ReleaseRequest) and asked.fence == release.fence
            if pending.user is None and same:  # It is in flight already: wait for its reply.
                pending.user, pending.asked, pending.requested_at = user, release, now
                pending.ends_at, pending.owed = later(now, ANSWER_MS), False
                in_flight.hurry(pending.endpoint, now)
                return in_flight.repeat(now)
        endpoint = state.endpoint_for(state.holds[claim])
        effects = in_flight.ask(user, release, claim, endpoint, now, limit_ms=ANSWER_MS)
        state.match_state(claim)
        return effects

    def _on_survey(self, user: Address, survey: Survey, now: Instant) -> list[Effect]:
        state = self.session_state
        no = CLOSED if self.closing.begun else why_not(state, Describe(), None, now)
        if no is not None:
            return [Send(user, refused(Describe(), self.session_state.session_lease.name, no))]
        self.surveys_begun += 1
        number = self.surveys_begun
        effects: list[Effect] = []
        missing: dict[Address, int] = {}
        for endpoint in state.endpoints.table:
            effects += state.in_flight.ask(
                None,
                Describe(roles=survey.roles),
                None,
                endpoint,
                now,
                limit_ms=SURVEY_MS,
                survey=number,
            )
            missing[endpoint] = state.in_flight.number
        state.surveys[number] = Broadcast(user, missing)
        return [*effects, *state.finish_surveys()]

    def _on_tick(self, tick: SessionTick, now: Instant) -> Effects:
        if tick.round != self.round:
            return ()
        self.wake_at = None
        effects = [
            *maintenance.keep_up(self.session_state, now),
            *self.session_state.in_flight.send_held_back(now),
            *self._endpoint_news(),
            *self.closing.finish(self.session_state, now),
        ]
        due = self.session_state.next_at(now)
        if self.closing.due_at is not None:
            due = self.closing.due_at if due is None else min(due, self.closing.due_at)
        if due is None:
            return effects
        return [*effects, *self._rearm(max(TICK_MS, -((now - due) // NS_PER_MS)), now)]

    def _endpoint_news(self) -> list[Effect]:
        """Notify the watcher if another endpoint is used than at the last tick."""
        endpoints, watcher = self.session_state.endpoints, self.session_state.watcher
        former, self.used = self.used, endpoints.table[endpoints.current].label
        if watcher is None or former == self.used:
            return []
        return [Send(watcher, EndpointChanged(endpoint=self.used, former=former))]

    def _rearm(self, after_ms: int, now: Instant) -> list[Effect]:
        """Set a timer for a tick in ``after_ms``, unless one comes before that."""
        at = Instant(now + after_ms * NS_PER_MS)
        if self.wake_at is not None and self.wake_at <= at:
            return []
        self.round += 1
        self.wake_at = at
        return [Wake(after_ms, SessionTick(round=self.round))]
