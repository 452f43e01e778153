"""Cancels requests for which no user waits any more, and closes a session with all its holds."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.message import Cancel, Cancelled, Reason, Released, ReleaseRequest
from fencelock.actors.api.name import titled
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address, Instant, ms_between, role_of
from fencelock.actors.session.keep_alive import end_sessions
from fencelock.actors.session.message import Closed
from fencelock.actors.session.pending import ANY_ENDPOINT, Claim, later
from fencelock.actors.session.rejection import Rejection, unfinished
from fencelock.actors.session.session_lease import Ending, Stage
from fencelock.actors.session.session_state import SessionState

LOST_MS = 500
"""A cancel unanswered for this long (ms) may be lost: its endpoint was silent."""

CANCELS_MAX = 100
"""Maximum cancels sent at one sign of life; the rest wait for the next."""


def cancel_again(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Repeat cancels that may have been lost, now that ``endpoint`` has sent something.

    Another owner may be queued behind a wait that is to be cancelled. So a cancel does not wait
    for the end of its pause, which grows while no endpoint replies.
    """
    in_flight = state.in_flight
    effects: list[Effect] = []
    for debt, withdrawal in in_flight.withdrawals.items():
        last = withdrawal.last_sent_at or withdrawal.sent_at
        if debt.endpoint in (ANY_ENDPOINT, endpoint) and ms_between(last, now) >= LOST_MS:
            effects.append(in_flight.cancel(debt, withdrawal, now))
            if len(effects) >= CANCELS_MAX:
                break
    return effects


def on_cancel(state: SessionState, user: Address, cancel: Cancel, now: Instant) -> list[Effect]:
    """Undo an acquire, whether it waits or was granted, and confirm that at once."""
    claim = Claim(cancel.lock, cancel.owner or role_of(user))
    effects: list[Effect] = []
    number = state.in_flight.waits.get(claim)
    waiting = None if number is None else state.in_flight.pending[number]
    if waiting is not None and waiting.asked.request == cancel.request:
        text = f"{titled(claim.lock)}: the wait was cancelled"
        no = unfinished(waiting, Rejection(Reason.CANCELLED, text))
        effects += state.refuse(waiting, no, now)
    elif (hold := state.holds.get(claim)) is not None:
        for level in [level for level in hold.levels if level.token == cancel.request][:1]:
            effects += state.give_back(claim, level, now)
    cancelled = Cancelled(
        lock=cancel.lock,
        session=state.session_lease.name,
        owner=cancel.owner,
        request=cancel.request,
    )
    return [*effects, Send(user, cancelled)]


def on_abandon(state: SessionState, user: Address, now: Instant) -> list[Effect]:
    """Undo what ``user`` waited for, or was just granted: it does not exist any more."""
    effects: list[Effect] = []
    for pending in list(state.in_flight.pending.values()):
        if pending.user != user:
            continue
        if isinstance(pending.asked, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            effects += state.in_flight.withdraw(pending, now)
    for claim, hold in list(state.holds.items()):
        for level in [level for level in hold.levels if level.user == user]:
            effects += state.give_back(claim, level, now)
    return effects


CLOSE_MS = 2_000
"""Timeout for confirmations of releases and cancels, or of the session's end (ms)."""

CLOSED = Rejection(Reason.CANCELLED, "the client is closed")


@dataclass(slots=True)
class ClientClosing:
    """The end of a client, once it begins.

    A session that the cluster keeps is ended as a whole, in one step (rule 89): its waits and holds
    need no further message. Otherwise every hold is released at the endpoint that granted it. Then
    the session is ended too, for a cluster that keeps holds by session: that also frees the holds
    that were granted through an endpoint that is down or forgot them.
    """

    begun: bool = False
    closers: tuple[Address, ...] = ()
    due_at: Instant | None = None
    """Latest time of the reply to the closing call; None when none waits."""
    session: str = ""
    """The session being ended, empty if there is none."""
    said: bool = False
    """Whether the end of a session that the cluster does not keep was requested."""

    def begin(self, state: SessionState, user: Address, now: Instant) -> list[Effect]:
        """End all waits, and release all holds; ``user`` receives `Closed` in the end."""
        self.closers = (*self.closers, user)
        if self.begun:
            self.due_at = self.due_at or now
            return []
        self.begun = True
        state.cluster_poll.wanted = False
        self.due_at = later(now, CLOSE_MS)
        kept = state.session_lease.kept
        effects: list[Effect] = []
        no = Rejection(Reason.CANCELLED, "the client was closed")
        for pending in list(state.in_flight.pending.values()):
            if pending.survey:
                state.in_flight.drop(pending)
            elif not isinstance(pending.asked, ReleaseRequest) and kept:
                effects += state.reply_no(pending, unfinished(pending, no))
                state.in_flight.drop(pending)
            elif not isinstance(pending.asked, ReleaseRequest):
                effects += state.refuse(pending, no, now)
        if kept:
            self.session = state.session_lease.assigned
            state.endings[self.session] = Ending(self.due_at, now)
            effects += end_sessions(state, now)
        else:
            effects += _release_all(state, now)
        return [*effects, *state.finish_surveys()]

    @property
    def is_over(self) -> bool:
        """Whether the client is closed: it sends nothing any more."""
        return self.begun and self.due_at is None

    def ends(self, session: str) -> bool:
        """Return whether ``session`` is the one being ended."""
        return self.begun and session == self.session != ""

    def ended(self, state: SessionState) -> list[Effect]:
        """Note that the session has ended: all is released."""
        effects: list[Effect] = []
        state.endings.pop(self.session, None)
        if not state.session_lease.kept:
            self.session = ""
            return effects
        for pending in state.claims_pending():
            claim = pending.claim
            assert claim is not None
            state.in_flight.drop(pending)
            released = Released(lock=claim.lock, session=self.session, owner=claim.owner)
            effects += state.reply(pending, released)
        state.drop_holds()
        state.in_flight.withdrawals.clear()
        state.session_lease.drop()
        self.session = ""
        return effects

    def finish(self, state: SessionState, now: Instant) -> list[Effect]:
        """Answer the closing calls once nothing more can be confirmed, or time is up."""
        if self.due_at is None:
            return []
        left = state.unconfirmed()
        if now < self.due_at and any(state.endpoints.table[endpoint].usable for endpoint in left):
            return []
        if now < self.due_at and state.session_lease.ready and not state.session_lease.kept:
            endpoint = state.endpoints.choose()
            if not self.said and endpoint.heard_at is not None:
                return self._end_unkept(state, now)
            if self.session and endpoint.usable:
                return []
        closers, self.closers, self.due_at = self.closers, (), None
        if state.session_lease.kept:  # Without keep-alives it ends by its TTL.
            state.session_lease.drop()
            state.drop_holds()
        return [Send(user, Closed(unanswered=len(left))) for user in closers]

    def _end_unkept(self, state: SessionState, now: Instant) -> list[Effect]:
        """End the session at the endpoint in use, since no other reply can come."""
        assert self.due_at is not None
        self.said = True
        self.session = state.session_lease.assigned
        state.endings[self.session] = Ending(self.due_at, now)
        return end_sessions(state, now)


def _release_all(state: SessionState, now: Instant) -> list[Effect]:
    if state.session_lease.stage is Stage.OPENING:
        state.session_lease.drop()
    effects: list[Effect] = []
    for claim, hold in state.holds.items():
        for level in list(hold.levels) if claim not in state.in_flight.releases else ():
            effects += state.give_back(claim, level, now)
    return effects
