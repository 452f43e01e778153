"""The state of a client's session, which the functions of this folder read and change."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import LockReply, Release, ReleaseRequest, refused_by
from fencelock.actors.api.request import Reply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import FencelockError
from fencelock.actors.message import Address, Instant, later
from fencelock.actors.session.endpoints import BROKEN, REFUSED, Endpoints
from fencelock.actors.session.event import HoldsLost, Loss, Surveyed
from fencelock.actors.session.holds import Acquisition, ClientHold, HoldState, UnreportedLosses
from fencelock.actors.session.lease import LINGER_MS, Ending, SessionLease, Stage
from fencelock.actors.session.requests import LockKey, Pending, SessionRequests, lock_key_named
from fencelock.actors.session.upkeep import ClusterPoll


class Broadcast(Struct):
    """One survey: its user, the endpoints that have not replied, and the replies so far."""

    user: Address
    missing: dict[Address, int]
    """Number of the request at each endpoint that has not replied."""
    statuses: dict[Address, NodeStatus] = field(default_factory=dict[Address, NodeStatus])


class Closing(Struct):
    """The end of a client, once it begins."""

    begun: bool = False
    closers: tuple[Address, ...] = ()
    due_at: Instant | None = None
    """Latest time of the reply to the closing call; None when none waits."""
    session: str = ""
    """The session being ended, empty if there is none."""
    end_sent: bool = False
    """Whether the end of a session that the cluster does not keep was requested."""


class SessionState(Struct):
    """The session's state. Methods return the effects of their changes."""

    endpoints: Endpoints
    in_flight: SessionRequests
    session_lease: SessionLease
    home: str
    """Prefix of the users' addresses: they live on the session's own node."""
    watcher: Address | None = None
    """The role that is notified of suspicion and losses."""
    retainer: Address | None = None
    """The role that has the retained locks. It is notified of recalls, and of losses."""
    holds: dict[LockKey, ClientHold] = field(default_factory=dict[LockKey, ClientHold])
    """The holds of the users. The client's threads read them; see `ClientHold`."""
    anonymous: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Owners of the holds whose acquire named none, by lock and fence: the fence is the proof."""
    unreported: UnreportedLosses = field(default_factory=UnreportedLosses)
    closing: Closing = field(default_factory=Closing)
    surveys_begun: int = 0
    surveys: dict[int, Broadcast] = field(default_factory=dict[int, Broadcast])
    endings: dict[str, Ending] = field(default_factory=dict[str, Ending])
    """Sessions that were given up and may live on at the cluster."""
    expires_at: Instant | None = None
    """Time at which the first hold with a deadline is lost, unless it is renewed by then."""
    cluster_poll: ClusterPoll = field(default_factory=ClusterPoll)
    speak_at: Instant | None = None
    """Time of the next look for acquires that wait for long; None while nothing waits."""
    spoken: dict[str, Instant] = field(default_factory=dict[str, Instant])
    """The locks of such acquires, and when the watcher is next notified of each."""
    greetings: int = 0
    greet_at: Instant | None = None

    def owner_of(self, lock: str, fence: int) -> str:
        """Return the owner of the hold under ``fence``, empty if there is none."""
        owner = self.anonymous.get((lock, fence))
        if owner is not None:
            return owner
        holds = self.holds.items()
        named = (
            lock_key.owner for lock_key, h in holds if lock_key.lock == lock and h.fence == fence
        )
        return next(named, "")

    def drop_hold(self, lock_key: LockKey) -> ClientHold:
        hold = self.holds.pop(lock_key)
        if hold.state is not HoldState.LOST:
            hold.move(HoldState.RELEASED)
        if self.anonymous:
            self.anonymous.pop((lock_key.lock, hold.fence), None)
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

    def note_loss(self, lock_key: LockKey, hold: ClientHold, times: int, detail: str) -> None:
        """Remember the loss of a hold, which ``times`` releases may still report.

        It is remembered before the hold is dropped: who named no owner does not name it then.
        """
        if (lock_key.lock, hold.fence) in self.anonymous:
            lock_key = lock_key_named(lock_key.lock, "")
        self.unreported.add(lock_key, hold.fence, times, detail)

    def reply(self, pending: Pending, reply: Reply) -> list[Effect]:
        """Reply to the user, with the owner and number it sent; do nothing if no user waits."""
        user, request = pending.user, pending.request
        if user is None:
            return []
        if isinstance(reply, LockReply):
            owner = getattr(request, "owner", "")
            return [Send(user, replace(reply, owner=owner, request=request.request))]
        return [Send(user, replace(reply, request=request.request))]

    def reply_no(self, pending: Pending, no: FencelockError) -> list[Effect]:
        return self.reply(pending, refused_by(pending.request, no))

    def refuse(self, pending: Pending, no: FencelockError, now: Instant) -> list[Effect]:
        """End ``pending`` with ``no``; a wait is cancelled, a release continues unattended."""
        effects = self.reply_no(pending, no)
        if isinstance(pending.request, ReleaseRequest):
            pending.user, pending.ends_at = None, None
            return effects
        return [*effects, *self.in_flight.withdraw(pending, now)]

    def endpoint_for(self, hold: ClientHold) -> Address:
        return self.endpoints.choose().address if self.session_lease.kept else hold.endpoint

    def give_back(self, lock_key: LockKey, acquisition: Acquisition, now: Instant) -> list[Effect]:
        """Release one acquisition of ``lock_key``, though no user waits for the reply."""
        self.holds[lock_key].take(acquisition)
        return self.release_owed(lock_key, now)

    def release_owed(self, lock_key: LockKey, now: Instant) -> list[Effect]:
        """Release the holds that no user owns, one after the other."""
        hold = self.holds[lock_key]
        if hold.owed <= 0 or lock_key in self.in_flight.releases:
            return []
        release = Release(lock=lock_key.lock, fence=hold.fence, owner=lock_key.owner)
        endpoint = self.endpoint_for(hold)
        effects = self.in_flight.ask(
            None, release, lock_key, endpoint, now, limit_ms=None, owed=True
        )
        self.match_state(lock_key)
        return effects

    def match_state(self, lock_key: LockKey) -> None:
        """Move the hold of ``lock_key`` to RELEASING while a release of it is in progress."""
        hold = self.holds.get(lock_key)
        if hold is None:
            return
        numbers, pending = self.in_flight.releases.get(lock_key, ()), self.in_flight.pending
        releasing = any(isinstance(pending[one].request, ReleaseRequest) for one in numbers)
        if releasing != (hold.state is HoldState.RELEASING):
            hold.move(HoldState.RELEASING if releasing else HoldState.HELD)

    def lose_hold(self, lock_key: LockKey, detail: str, notified: int = 0) -> list[Effect]:
        """Drop a hold that was taken away; ``notified`` of its users know of it already."""
        hold = self.holds[lock_key]
        hold.lose(detail)
        self.note_loss(lock_key, hold, len(hold.acquisitions) - notified, detail)
        self.drop_hold(lock_key)
        return self.report_losses((Loss(lock_key.lock, lock_key.owner, hold.fence),), detail)

    def report_losses(self, losses: tuple[Loss, ...], detail: str) -> list[Effect]:
        event = HoldsLost(losses=losses, detail=detail)
        readers = (reader for reader in (self.retainer, self.watcher) if reader is not None)
        counted = Observe("client.holds_lost", len(losses))
        return [counted, *(Send(reader, event) for reader in readers)]

    def finish_surveys(self) -> list[Effect]:
        """Complete the surveys to which no endpoint with a link can still contribute."""
        table, effects = self.endpoints.table, list[Effect]()
        for number, survey in list(self.surveys.items()):
            left = [
                pending
                for request in survey.missing.values()
                if (pending := self.in_flight.pending.get(request)) is not None
            ]
            if any(table[one.endpoint].state not in (BROKEN, REFUSED) for one in left):
                continue
            for pending in left:
                self.in_flight.drop(pending)
            del self.surveys[number]
            statuses = tuple(survey.statuses[one] for one in table if one in survey.statuses)
            silent = tuple(table[one].named() for one in table if one in survey.missing)
            effects.append(Send(survey.user, Surveyed(statuses=statuses, silent=silent)))
        return effects

    def unconfirmed(self) -> list[Address]:
        """Return, for each release and cancel without a reply, the endpoint that owes it.

        A session that the cluster keeps ends as a whole, with all its holds.
        """
        in_flight, current = self.in_flight, self.endpoints.current
        if self.session_lease.kept:
            return [current] * max(1, len(self.holds) + len(in_flight.cancels))
        return [
            *(in_flight.pending[n].endpoint for line in in_flight.releases.values() for n in line),
            *(cancel_key.endpoint or current for cancel_key in in_flight.cancels),
        ]

    def session_used(self, now: Instant) -> bool:
        """Return whether the session must be kept alive: it is needed, or was recently."""
        in_flight = self.in_flight
        return bool(
            self.holds
            or in_flight.cancels
            or in_flight.waits
            or in_flight.releases
            or self.cluster_poll.wanted
            or self.session_lease.pinned
            or now < later(self.session_lease.used_at, LINGER_MS)
        )

    def pending_of_locks(self) -> list[Pending]:
        """Return the requests that need a session, in order."""
        requests = self.in_flight.pending.values()
        return [pending for pending in requests if pending.lock_key is not None]

    def busy(self) -> bool:
        """Return whether anything may become due."""
        in_flight, stage = self.in_flight, self.session_lease.stage
        return bool(
            in_flight.pending
            or in_flight.cancels
            or self.holds
            or self.endings
            or self.cluster_poll.wanted
            or stage is Stage.OPENING
            or stage is Stage.OPEN
        )

    def next_at(self, now: Instant) -> Instant | None:
        session_lease = self.session_lease
        due = [
            self.in_flight.next_at(),
            self.greet_at,
            self.speak_at,
            self.expires_at,
            self.cluster_poll.due_at if self.cluster_poll.wanted else None,
            self.closing.due_at,
            self.endpoints.next_at(now),
            *(ending.resend_at for ending in self.endings.values()),
        ]
        if session_lease.stage is Stage.OPENING:
            due.append(session_lease.due_at)
        elif (trust := session_lease.trust) is not None:
            due.append(trust.until)
            if self.session_used(now):
                due.append(session_lease.due_at)
            if self.holds and not session_lease.suspected:
                due.append(trust.suspect_at)
        return min((at for at in due if at is not None), default=None)
