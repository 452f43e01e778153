"""The state of a client's session, which the functions of this folder read and change."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.api.message import CancellableRequest, NodeStatus, Release, ReleaseRequest
from fencelock.actors.api.session_message import Renew
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, role_of
from fencelock.actors.session.endpoint import Endpoints, Probing
from fencelock.actors.session.holding import Acquisition, Hold, HoldState, UnreportedLosses
from fencelock.actors.session.in_flight import InFlight
from fencelock.actors.session.message import ClusterState, HoldsLost, Loss, Surveyed
from fencelock.actors.session.pending import Claim, Pending, Question, claim_named, later
from fencelock.actors.session.rejection import Answer, Rejection, as_asked, refused
from fencelock.actors.session.session_lease import LINGER_MS, Ending, SessionLease, Stage


@dataclass(slots=True)
class Broadcast:
    """One survey: its user, the endpoints that have not replied, and the replies so far."""

    user: Address
    missing: dict[Address, int]
    """Number of the request at each endpoint that has not replied."""
    statuses: dict[Address, NodeStatus] = field(default_factory=dict[Address, NodeStatus])

    def result(self, endpoints: Endpoints) -> Surveyed:
        """Return the replies, and the silent endpoints, in the order of ``endpoints``."""
        return Surveyed(
            statuses=tuple(
                self.statuses[endpoint] for endpoint in endpoints.table if endpoint in self.statuses
            ),
            silent=tuple(
                endpoints.table[endpoint].named()
                for endpoint in endpoints.table
                if endpoint in self.missing
            ),
        )


WATCH_MS = 5_000
"""Interval of requests to an endpoint without a change (ms): it forgets silent clients."""

FIRST_MS = 500
"""The same while an endpoint has not replied at all (ms)."""

UNSURE_MS = 1_000
"""Time for an endpoint to reply (ms), before an earlier one's reply counts no more."""

NOBODY = Address("")
BEGINNING = Instant(0)


@dataclass(slots=True)
class ClusterPoll:
    """The last reply, its endpoint, and the last state sent to the watcher."""

    wanted: bool = False
    endpoint: Address = NOBODY
    """The endpoint asked last."""
    known: int = 0
    """The number of its last reply; 0 before the first."""
    request: int = 0
    due_at: Instant = BEGINNING
    unsure_since: Instant | None = None
    """The time since which the endpoint in use has not replied, or None if it has."""
    told: ClusterState | None = None
    blind: bool = False
    """Whether the last notification to the watcher was an unknown state."""

    def ask(self, endpoint: Address, session: str, now: Instant) -> Watch | None:
        """Return the message to send to ``endpoint`` now, or None if none is due."""
        if endpoint != self.endpoint:
            self.endpoint, self.known, self.due_at = endpoint, 0, now
            self._doubt(now)
        if self.due_at > now:
            return None
        self.due_at = later(now, WATCH_MS if self.known else FIRST_MS)
        self.request += 1
        return Watch(known=self.known, session=session, request=self.request)

    def forget(self, now: Instant) -> None:
        """Note that no endpoint can be asked: the next one is asked from the beginning."""
        self.endpoint, self.known, self.due_at = NOBODY, 0, later(now, FIRST_MS)
        self._doubt(now)

    def hear(self, endpoint: Address, word: ClusterUp | ClusterDown, now: Instant) -> bool:
        """Take an endpoint's message; return whether it answers the last request."""
        if not self.wanted or endpoint != self.endpoint or word.request != self.request:
            return False
        self.known, self.due_at, self.unsure_since = word.number, now, None
        return True

    def tell(self, watcher: Address | None, state: ClusterState) -> list[Effect]:
        """Send the watcher ``state``, if that is new."""
        self.blind = False
        if state == self.told:
            return []
        self.told = state
        return [] if watcher is None else [Send(watcher, state)]

    def tell_unknown(
        self, watcher: Address | None, endpoints: Endpoints, now: Instant
    ) -> list[Effect]:
        """Report an unknown state, if it has lasted long enough and was not reported."""
        if self.unsure_since is None or self.blind:
            return []
        if endpoints.any_usable() and now - self.unsure_since < UNSURE_MS * NS_PER_MS:
            return []
        told = self.tell(watcher, unknown(f"no node says how it is: {endpoints.describe(now)}"))
        self.blind = True
        return told

    def next_at(self) -> Instant | None:
        """Return the time of the next request, or None if there is none."""
        return self.due_at if self.wanted else None

    def _doubt(self, now: Instant) -> None:
        if self.unsure_since is None:
            self.unsure_since = now


def unknown(reason: str) -> ClusterState:
    """Return the state of a cluster about which nothing is known."""
    return ClusterState(up=False, complete=False, ready=False, reason=reason, epoch=0, leaders=())


def state_of(word: ClusterUp | ClusterDown) -> ClusterState:
    """Return an endpoint's message as a user sees it."""
    up = isinstance(word, ClusterUp)
    return ClusterState(
        up=up,
        complete=isinstance(word, ClusterUp) and word.complete,
        ready=isinstance(word, ClusterUp) and word.ready,
        reason=word.reason,
        epoch=word.epoch,
        leaders=word.leaders,
    )


@dataclass(slots=True)
class SessionState:
    """The session's state. Methods return the effects of their changes."""

    endpoints: Endpoints
    in_flight: InFlight
    session_lease: SessionLease
    home: str
    """Prefix of the users' addresses: they live on the session's own node."""
    watcher: Address | None = None
    """The role that is notified of suspicion and losses."""
    holds: dict[Claim, Hold] = field(default_factory=dict[Claim, Hold])
    """The holds of the users that are not over. The client's threads read them; see `Hold`."""
    anonymous: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Owners of the holds whose acquire named none, by lock and fence: the fence is the proof."""
    unreported: UnreportedLosses = field(default_factory=UnreportedLosses)
    surveys: dict[int, Broadcast] = field(default_factory=dict[int, Broadcast])
    endings: dict[str, Ending] = field(default_factory=dict[str, Ending])
    """Sessions that were given up and may live on at the cluster."""
    lapses_at: Instant | None = None
    """Time at which the first hold with a deadline is lost, unless it is renewed by then."""
    cluster_poll: ClusterPoll = field(default_factory=ClusterPoll)
    probing: Probing = field(default_factory=Probing)
    greetings: int = 0
    greet_at: Instant | None = None

    def claim_of(self, user: Address, question: Question) -> Claim | None:
        """Return the claim of ``question`` that needs a session, or None if it needs none.

        An acquire that names no owner is a separate owner; its fence is enough to release it.
        """
        match question:
            case CancellableRequest():
                return claim_named(question.lock, question.owner or role_of(user))
            case ReleaseRequest() | Renew():
                owner = question.owner or self._owner_of(question.lock, question.fence)
                return claim_named(question.lock, owner)
            case _:
                return None

    def _owner_of(self, lock: str, fence: int) -> str:
        """Return the owner of the hold under ``fence``, empty if there is none."""
        owner = self.anonymous.get((lock, fence))
        if owner is not None:
            return owner
        holds = self.holds.items()
        named = (claim.owner for claim, h in holds if claim.lock == lock and h.fence == fence)
        return next(named, "")

    def drop_hold(self, claim: Claim) -> Hold:
        """Drop a hold that was released or lost, and return it."""
        hold = self.holds.pop(claim)
        if hold.state is not HoldState.LOST:
            hold.move(HoldState.RELEASED)
        if self.anonymous:
            self.anonymous.pop((claim.lock, hold.fence), None)
        return hold

    def drop_holds(self) -> None:
        """Drop all holds; those that are not lost are released."""
        for hold in self.holds.values():
            if hold.state in (HoldState.HELD, HoldState.UNLOCKING):
                hold.move(HoldState.RELEASING)
            if hold.state is HoldState.RELEASING:
                hold.move(HoldState.RELEASED)
        self.holds.clear()
        self.anonymous.clear()

    def note_loss(self, claim: Claim, hold: Hold, times: int, detail: str) -> None:
        """Remember the loss of a hold, which ``times`` releases may still report.

        It is remembered before the hold is dropped: who named no owner does not name it then.
        """
        if (claim.lock, hold.fence) in self.anonymous:
            claim = claim_named(claim.lock, "")
        self.unreported.add(claim, hold.fence, times, detail)

    def reply(self, pending: Pending, answer: Answer) -> list[Effect]:
        """Reply to the user, under its own number; do nothing if no user waits."""
        if pending.user is None:
            return []
        return [Send(pending.user, as_asked(answer, pending.asked))]

    def reply_no(self, pending: Pending, no: Rejection) -> list[Effect]:
        """Reply to the user with the refusal ``no``."""
        return self.reply(pending, refused(pending.asked, self.session_lease.name, no))

    def refuse(self, pending: Pending, no: Rejection, now: Instant) -> list[Effect]:
        """End ``pending`` with ``no``; a wait is cancelled, a release continues unattended."""
        effects = self.reply_no(pending, no)
        if isinstance(pending.asked, ReleaseRequest):
            pending.user, pending.ends_at = None, None
            return effects
        return [*effects, *self.in_flight.withdraw(pending, now)]

    def endpoint_for(self, hold: Hold) -> Address:
        """Return the endpoint for a release of ``hold``."""
        return self.endpoints.choose().address if self.session_lease.kept else hold.endpoint

    def give_back(self, claim: Claim, level: Acquisition, now: Instant) -> list[Effect]:
        """Release one acquisition of ``claim``, though no user waits for the reply."""
        self.holds[claim].take(level)
        return self.release_owed(claim, now)

    def release_owed(self, claim: Claim, now: Instant) -> list[Effect]:
        """Release the holds that no user owns, one after the other."""
        hold = self.holds[claim]
        if hold.owed <= 0 or claim in self.in_flight.releases:
            return []
        release = Release(lock=claim.lock, fence=hold.fence, owner=claim.owner)
        endpoint = self.endpoint_for(hold)
        effects = self.in_flight.ask(None, release, claim, endpoint, now, limit_ms=None, owed=True)
        self.match_state(claim)
        return effects

    def match_state(self, claim: Claim) -> None:
        """Move the hold of ``claim`` to RELEASING while a release of it is in progress."""
        hold = self.holds.get(claim)
        if hold is None:
            return
        numbers = self.in_flight.releases.get(claim, ())
        releasing = any(
            isinstance(self.in_flight.pending[n].asked, ReleaseRequest) for n in numbers
        )
        if releasing != (hold.state is HoldState.RELEASING):
            hold.move(HoldState.RELEASING if releasing else HoldState.HELD)

    def confirm(self, sent_at: Instant | None, now: Instant) -> list[Effect]:
        """Note that the cluster received the message that was sent at ``sent_at``."""
        session_lease = self.session_lease
        if sent_at is None or not session_lease.kept:
            return []
        return self.tell_watcher(now) if session_lease.confirm(sent_at, now) else []

    def tell_watcher(self, now: Instant) -> list[Effect]:
        """Send the watcher the news of the session's life."""
        if self.watcher is None:
            return []
        news = self.session_lease.news(now, holding=bool(self.holds))
        return [Send(self.watcher, word) for word in news]

    def lose_hold(self, claim: Claim, detail: str, told: int = 0) -> list[Effect]:
        """Drop a hold that was taken away; ``told`` of its users are notified in another way."""
        hold = self.holds[claim]
        hold.lose(detail)
        self.note_loss(claim, hold, len(hold.levels) - told, detail)
        self.drop_hold(claim)
        return self.report_losses((Loss(claim.lock, claim.owner, hold.fence),), detail)

    def report_losses(self, losses: tuple[Loss, ...], detail: str) -> list[Effect]:
        """Notify the watcher of lost holds."""
        counted = Observe("client.holds_lost", len(losses))
        if self.watcher is None:
            return [counted]
        return [counted, Send(self.watcher, HoldsLost(losses=losses, detail=detail))]

    def finish_surveys(self) -> list[Effect]:
        """Complete the surveys that no usable endpoint can still contribute to."""
        effects: list[Effect] = []
        for number, survey in list(self.surveys.items()):
            left = [
                pending
                for question in survey.missing.values()
                if (pending := self.in_flight.pending.get(question)) is not None
            ]
            if any(self.endpoints.table[pending.endpoint].usable for pending in left):
                continue
            for pending in left:
                self.in_flight.drop(pending)
            del self.surveys[number]
            effects.append(Send(survey.user, survey.result(self.endpoints)))
        return effects

    def unconfirmed(self) -> list[Address]:
        """Return, for each release and cancel without a reply, the endpoint that owes it.

        A session that the cluster keeps ends as a whole, with all its holds.
        """
        in_flight, current = self.in_flight, self.endpoints.current
        if self.session_lease.kept:
            return [current] * max(1, len(self.holds) + len(in_flight.withdrawals))
        return [
            *(in_flight.pending[n].endpoint for line in in_flight.releases.values() for n in line),
            *(debt.endpoint or current for debt in in_flight.withdrawals),
        ]

    def session_used(self, now: Instant) -> bool:
        """Return whether the session must be kept alive: it is needed, or was lately."""
        in_flight = self.in_flight
        return bool(
            self.holds
            or in_flight.withdrawals
            or in_flight.waits
            or in_flight.releases
            or self.cluster_poll.wanted
            or self.session_lease.pinned
            or now < later(self.session_lease.used_at, LINGER_MS)
        )

    def claims_pending(self) -> list[Pending]:
        """Return the requests that need a session, in order."""
        questions = self.in_flight.pending.values()
        return [pending for pending in questions if pending.claim is not None]

    def busy(self) -> bool:
        """Return whether anything may become due."""
        in_flight, stage = self.in_flight, self.session_lease.stage
        return bool(
            in_flight.pending
            or in_flight.withdrawals
            or self.holds
            or self.endings
            or self.cluster_poll.wanted
            or stage is Stage.OPENING
            or stage is Stage.OPEN
        )

    def next_at(self, now: Instant) -> Instant | None:
        """Return when the next event is due, or None if nothing is in progress."""
        session_lease = self.session_lease
        due = [
            self.in_flight.next_at(),
            self.greet_at,
            self.lapses_at,
            self.cluster_poll.next_at(),
            self.probing.due_at,
            *(ending.resend_at for ending in self.endings.values()),
        ]
        if session_lease.stage is Stage.OPENING:
            due.append(session_lease.due_at)
        elif session_lease.kept:
            due.append(session_lease.until)
            if self.session_used(now):
                due.append(session_lease.due_at)
            if self.holds and not session_lease.suspected:
                due.append(session_lease.suspect_at)
        return min((at for at in due if at is not None), default=None)
