"""The holds of a client: their states, their acquires, and their loss.

The session role is the only writer of `ClientHold.state`, and moves it only along `MOVES`:

     granted
        │           its duration ended
        v ───────────────────────────────>
      HELD                                UNLOCKING
      │  ^ <─────────── renewed ────────── │
      │  │                                 │
      │  │ an acquire is left, or no       │
      v  │ release is under way            v
    RELEASING <────── a release ───────────┘
        │
        v the last release was confirmed
    RELEASED                          each of the three ──> LOST

The client's threads read holds without asking the role; see `ClientHold`. A thread may read a hold
before the role has handled the time that passed. It then decides by the same clock and the same
times, in `ClientHold.state_at`, which also finds SUSPECT.

The session decides a loss in four cases. Each ends in `ClientHold.lose`, except that `let_go` drops
a hold whose release was already under way (`SessionState.drop_hold`):

- its session may have ended, by the client's clock (`judge_belief`), or the cluster ended it
  (`on_ended`): all holds are lost;
- the deadline of a hold has passed, by the client's clock (`judge_deadlines`);
- the cluster took one hold away (`on_hold_lost`);
- the cluster no longer knows the hold (`let_go`).

`session.py` explains why the client may count by its own clock. A renewal never shortens a hold.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from fencelock.actors.api.lock_message import (
    AcquireRequest,
    ConfirmHold,
    DisownHold,
    Granted,
    HoldLost,
    Reason,
    Refused,
    Release,
    Released,
    ReleaseRequest,
    Renew,
    Renewed,
    Unlocking,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.retained import Recall
from fencelock.actors.api.session_message import Ended
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import SessionExpiredError
from fencelock.actors.message import NS_PER_MS, Address, Instant, later, ms_between
from fencelock.actors.session.endpoints import note_life
from fencelock.actors.session.event import Loss
from fencelock.actors.session.lease import (
    Ending,
    SessionLease,
    SessionTrust,
    end_sessions,
    open_session,
)
from fencelock.actors.session.refusals import HOLDS_MAX, lost, unfinished
from fencelock.actors.session.requests import LockKey, Pending

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

EXPIRED = "its duration and its grace are over"
UNCONFIRMED = "the cluster did not confirm the session within its TTL"
"""Reasons for a loss that the clock alone decides."""


class HoldState(Enum):
    """The state of a lock for one owner. Chubby calls SUSPECT jeopardy."""

    followers: tuple[HoldState, ...]
    """The states to which the session may move a hold next."""

    FREE = "free"
    """This owner neither holds nor lost the lock."""
    HELD = "held"
    """No other owner can hold the lock now."""
    SUSPECT = "suspect"
    """Like HELD, but the cluster has not confirmed the session for half its TTL. It follows from
    the clock: no hold is moved to it."""
    UNLOCKING = "unlocking"
    """Like HELD, but its duration has ended: release or renew it before its grace also ends."""
    RELEASING = "releasing"
    """Like HELD, but a release was requested. It is repeated until the cluster confirms it."""
    RELEASED = "released"
    """Its last release was confirmed. Final."""
    LOST = "lost"
    """Another owner may hold the lock: the hold's time is over, or the cluster ended it. Final."""


MOVES: dict[HoldState, tuple[HoldState, ...]] = {
    HoldState.FREE: (),
    HoldState.HELD: (
        HoldState.UNLOCKING,
        HoldState.RELEASING,
        HoldState.LOST,
    ),
    HoldState.SUSPECT: (),
    HoldState.UNLOCKING: (HoldState.HELD, HoldState.RELEASING, HoldState.LOST),
    HoldState.RELEASING: (HoldState.HELD, HoldState.RELEASED, HoldState.LOST),
    HoldState.RELEASED: (),
    HoldState.LOST: (),
}
"""The moves of a hold. HELD follows UNLOCKING when the hold was renewed, and RELEASING when only
one of several acquires was released, or when no release of it is under way any more."""

for _state, _followers in MOVES.items():
    _state.followers = _followers  # A member is found faster than its entry in a table.

HOLDING = (HoldState.HELD, HoldState.SUSPECT, HoldState.UNLOCKING, HoldState.RELEASING)
"""The states in which no other owner can hold the lock."""


class Acquisition(Struct, frozen=True, gc=False):
    """One acquire of a lock by its owner."""

    user: Address
    token: int
    """The number of the user's `Acquire`, by which the user can cancel it."""


class Lease(Struct):
    """Deadlines of a hold, by the client's own clock."""

    ends_at: Instant
    """Before this its duration has certainly not ended."""
    until: Instant
    """From then on another owner may hold the lock."""
    warn_at: Instant | None
    """Time at which the user is notified that the duration is over; None once it was."""

    @property
    def next_at(self) -> Instant:
        return self.until if self.warn_at is None else min(self.warn_at, self.until)


class ClientHold(Struct, gc=False):
    """A lock granted to an owner of this client, once or more often.

    Any thread of the client may read it at any time. That is safe because the session role alone
    writes it, each field with one assignment, and because of two invariants:

        lost-is-final: LOST and RELEASED are final, and `state` moves to them only once.
        trust-only-grows: `trust.until` and `lease.until` only grow. `trust` never changes: a later
            session has its own `SessionTrust`. So a reader that finds a time passed may be too
            careful, never too confident.

    Of a lock that the client retains, the session's hold has owner ``*``. Each local owner has a
    `ClientHold` besides, which `HoldRegistry` alone writes, under its guard.

    A thread that finds the hold lost by its clock sets `disowned` (`HoldRegistry`). From then on
    all readers find it lost, even if the session receives a confirmation at that moment and keeps
    the hold.
    """

    endpoint: Address
    """The endpoint that granted it. Where the cluster keeps no sessions, only it knows the hold."""
    fence: int
    acquisitions: tuple[Acquisition, ...]
    """Its acquires without a confirmed release, oldest first."""
    trust: SessionTrust | None
    """The trust in its session; None where the cluster keeps no sessions."""
    state: HoldState = HoldState.HELD
    """HELD, UNLOCKING, RELEASING, RELEASED or LOST. Read `state_at` for all."""
    reason: str = ""
    """The reason for its loss."""
    owed: int = 0
    """Number of further holds at the cluster that no user owns; they are to be released."""
    lease: Lease | None = None
    """Its deadlines, where holds have them."""
    disowned: bool = False
    """Whether a thread of the client found it lost by the clock. The session never reads it."""

    def move(self, to: HoldState) -> None:
        if to not in self.state.followers:
            raise AssertionError(f"a hold in state {self.state.value} cannot be {to.value}")
        self.state = to

    def lose(self, reason: str) -> None:
        """Enter LOST; a thread that sees the state also sees the ``reason``."""
        self.reason = reason
        self.move(HoldState.LOST)

    def state_at(self, now: Instant) -> HoldState:
        """Return the state at ``now``; for any thread. A hold is lost once its time is over."""
        state, trust = self.state, self.trust
        if state is HoldState.LOST or state is HoldState.RELEASED:
            return state
        if self.disowned or now >= (trust.until if trust is not None else now + 1):
            return HoldState.LOST
        if (lease := self.lease) is not None and now >= lease.until:
            return HoldState.LOST
        if trust is not None and now >= trust.suspect_at and state is not HoldState.RELEASING:
            return HoldState.SUSPECT
        return state

    def until(self) -> Instant | None:
        """Return until when it is certain, None for no limit; for any thread."""
        trust, lease = self.trust, self.lease
        if trust is None:
            return None if lease is None else lease.until
        return trust.until if lease is None else min(trust.until, lease.until)

    def why(self, now: Instant) -> str:
        """Return the reason for its loss, which `state_at` found at ``now``."""
        if self.state is HoldState.LOST:
            return self.reason
        lease = self.lease
        return EXPIRED if lease is not None and now >= lease.until else UNCONFIRMED

    def take(self, found: Acquisition) -> None:
        """Remove that acquire; its hold is now to be released."""
        self._remove(self.acquisitions.index(found))
        self.owed += 1

    def freed(self, count: int, token: int | None) -> None:
        """Note one confirmed release; ``count`` holds are left at the cluster.

        It was a release of the acquire with that ``token``, or, with None, of one that no user
        owns.
        """
        if token is not None and self.acquisitions:
            tokens = [acquisition.token for acquisition in self.acquisitions]
            self._remove(tokens.index(token) if token in tokens else len(tokens) - 1)
        self.owed = max(0, count - len(self.acquisitions))

    def _remove(self, at: int) -> None:
        self.acquisitions = self.acquisitions[:at] + self.acquisitions[at + 1 :]


class UnreportedLosses(Struct):
    """Losses that no release has reported yet: bounded, oldest first."""

    losses: OrderedDict[tuple[LockKey, int], tuple[int, str]] = field(
        default_factory=OrderedDict[tuple[LockKey, int], tuple[int, str]]
    )
    """Number of holds lost, and the reason, by lock key and fence."""

    def add(self, lock_key: LockKey, fence: int, times: int, detail: str) -> None:
        """Remember a loss of ``lock_key``, which ``times`` releases may still report."""
        if times < 1:
            return
        self.losses[lock_key, fence] = (times, detail)
        self.losses.move_to_end((lock_key, fence))
        if len(self.losses) > HOLDS_MAX:
            self.losses.popitem(last=False)

    def take_reason(self, lock_key: LockKey, fence: int) -> str | None:
        """Return the reason of that loss, once for each time it was held; None without a loss."""
        times, detail = self.losses.pop((lock_key, fence), (0, ""))
        if times > 1:
            self.losses[lock_key, fence] = (times - 1, detail)
        return detail if times else None


def is_known(state: SessionState, granted: Granted) -> bool:
    """Return whether the owner already has the hold: acquiring it again moves no deadline."""
    hold = state.holds.get(LockKey(granted.lock, granted.owner))
    return hold is not None and hold.fence == granted.fence


def is_given_back(state: SessionState, lock_key: LockKey, granted: Granted) -> bool:
    """Return whether the hold was lost at its deadline and its release is not confirmed yet."""
    numbers = state.in_flight.releases.get(lock_key, ())
    request = (state.in_flight.pending[number].request for number in numbers)
    released = any(
        isinstance(one, ReleaseRequest) and one.fence == granted.fence for one in request
    )
    return released and not is_known(state, granted)


def is_late(state: SessionState, pending: Pending, granted: Granted, now: Instant) -> bool:
    """Return whether less than half of the duration may be left of a grant that came late."""
    if not granted.hold_ms or pending.sent_at is None or is_known(state, granted):
        return False
    if pending.renewed_at is not None:
        return True
    ends = SessionLease.trusted_until(pending.sent_at, granted.hold_ms)
    return ends - now < granted.hold_ms * NS_PER_MS // 2


def renew_first(state: SessionState, pending: Pending, granted: Granted, now: Instant) -> Effect:
    """Renew the lease before the user receives the grant."""
    if pending.renewed_at is None:
        pending.renewed_at = now
    renew = Renew(
        lock=granted.lock,
        fence=granted.fence,
        session=state.session_lease.assigned,
        owner=granted.owner,
        request=pending.number,
    )
    return state.in_flight.send(pending.endpoint, renew, now)


def begin_lease(
    state: SessionState, lock_key: LockKey, pending: Pending, granted: Granted, now: Instant
) -> None:
    """Count the lease from the send time of the request that brought it."""
    sent_at = pending.renewed_at if pending.renewed_at is not None else pending.sent_at
    assert sent_at is not None
    _count_from(state, lock_key, sent_at, granted, now)


def take_renewal(
    state: SessionState, pending: Pending, reply: Renewed, now: Instant
) -> list[Effect]:
    """Count the lease from the renewal's send time, and reply; unless the hold is lost by now."""
    lock_key = LockKey(reply.lock, reply.owner)
    hold = state.holds.get(lock_key)
    if hold is None or hold.fence != reply.fence or pending.sent_at is None:
        return state.reply_no(pending, lost(lock_key, reply.fence, EXPIRED))
    _count_from(state, lock_key, pending.sent_at, reply, now)
    return state.reply(pending, reply)


def _count_from(
    state: SessionState, lock_key: LockKey, sent_at: Instant, reply: Granted | Renewed, now: Instant
) -> None:
    hold, hold_ms, grace_ms = state.holds[lock_key], reply.hold_ms, reply.grace_ms
    until = SessionLease.trusted_until(sent_at, hold_ms + grace_ms)
    if hold.lease is None or hold.lease.until <= until:
        # The cluster's own notification comes some time after `ends_at`; this replaces a lost one.
        warn_at = min(later(now, hold_ms), later(sent_at, hold_ms + grace_ms // 2))
        ends_at = SessionLease.trusted_until(sent_at, hold_ms)
        hold.lease = Lease(ends_at, until, warn_at)
        if hold.state is HoldState.UNLOCKING:
            hold.move(HoldState.HELD)
    lease = hold.lease
    if state.expires_at is None or lease.next_at < state.expires_at:
        state.expires_at = lease.next_at


def judge_deadlines(state: SessionState, now: Instant) -> list[Effect]:
    """Lose the holds with leases that may be over; notify users of holds past their duration."""
    if state.expires_at is None or now < state.expires_at:
        return []
    effects: list[Effect] = []
    for lock_key, hold in list(state.holds.items()):
        lease = hold.lease
        if lease is None or now < lease.next_at:
            continue
        effects += (
            _lose_at_deadline(state, lock_key, now)
            if lease.until <= now
            else warn(state, lock_key, now)
        )
    leases = [hold.lease for hold in state.holds.values() if hold.lease is not None]
    state.expires_at = min((lease.next_at for lease in leases), default=None)
    return effects


def warn(state: SessionState, lock_key: LockKey, now: Instant) -> list[Effect]:
    """Notify the watcher, once for each duration, that it is over: the holder must decide."""
    hold = state.holds[lock_key]
    assert hold.lease is not None
    hold.lease.warn_at = None
    if hold.state is HoldState.HELD:
        hold.move(HoldState.UNLOCKING)
    if state.watcher is None:
        return []
    event = Unlocking(
        lock=lock_key.lock,
        fence=hold.fence,
        grace_ms=ms_between(now, hold.lease.until),
        session=state.session_lease.name,
        owner=lock_key.owner,
    )
    return [Send(state.watcher, event), Observe("client.unlocking")]


def _lose_at_deadline(state: SessionState, lock_key: LockKey, now: Instant) -> list[Effect]:
    """Lose a hold whose lease may be over; release all its acquires in case it is not over yet."""
    hold = state.holds[lock_key]
    fence, times = hold.fence, len(hold.acquisitions) + hold.owed
    effects = [Observe("client.lease_over"), *state.lose_hold(lock_key, EXPIRED)]
    for number in list(state.in_flight.releases.get(lock_key, ())):
        pending = state.in_flight.pending[number]
        if pending.user is not None:
            effects += state.reply_no(pending, lost(lock_key, fence, EXPIRED))
        if isinstance(pending.request, ReleaseRequest):
            pending.user, pending.ends_at = None, None
        else:
            state.in_flight.drop(pending)
    effects += state.in_flight.go_on(lock_key, now)
    for _ in range(times - len(state.in_flight.releases.get(lock_key, ()))):
        effects += release_lost(state, lock_key, fence, now)
    return effects


def release_lost(state: SessionState, lock_key: LockKey, fence: int, now: Instant) -> list[Effect]:
    """Release one acquire of a lost hold, which the cluster may still have for a while."""
    release = Release(lock=lock_key.lock, fence=fence, owner=lock_key.owner)
    endpoint = state.endpoints.choose().address
    return state.in_flight.ask(None, release, lock_key, endpoint, now, limit_ms=None, owed=True)


END_TTLS = 2
"""Number of TTLs for which `End` is sent for a session given up; after them it is over."""

ENDINGS_MAX = 16
"""Maximum sessions given up at a time; beyond it the oldest expires by itself."""

CONFIRMED_MAX = 100
"""Limit of locks with a release under way, above which no notice of a loss is confirmed by another:
the cluster keeps at most as many unreported losses of a session."""

GONE = frozenset({Reason.NOT_HELD, Reason.OWNERSHIP_LOST})
"""Refusals after which there is no hold to release."""


def judge_belief(state: SessionState, now: Instant) -> list[Effect]:
    """Lose the session if it may have ended: later messages of the cluster do not count."""
    session_lease = state.session_lease
    if not session_lease.passed(now):
        return judge_deadlines(state, now) if state.expires_at is not None else []
    silent = ms_between(session_lease.confirmed_at, now) / 1000
    detail = (
        f"nothing confirmed the session for {silent:.1f} s, its TTL is "
        f"{session_lease.lived_ms / 1000:g} s; nodes: {state.endpoints.describe(now)}"
    )
    return lose(state, detail, now, ended=False)


def lose(state: SessionState, detail: str, now: Instant, *, ended: bool) -> list[Effect]:
    """Give up the session: its holds are lost, its waits continue in the next one.

    Unless the cluster has ``ended`` it, `End` is sent, since it may live.
    """
    requests, holds = state.pending_of_locks(), dict(state.holds)
    needed = bool(requests or holds or state.in_flight.cancels)
    session = state.session_lease.drop()
    for hold in holds.values():
        hold.lose(detail)
    state.in_flight.cancels.clear()
    effects: list[Effect] = [Observe("client.session_lost")]
    if holds:
        losses = tuple(
            Loss(lock_key.lock, lock_key.owner, hold.fence) for lock_key, hold in holds.items()
        )
        effects += state.report_losses(losses, detail)
    notified: dict[LockKey, int] = {}
    for pending in requests:
        effects += _end_or_go_on(state, pending, holds, notified, detail)
    for lock_key, hold in holds.items():
        times = len(hold.acquisitions) - notified.get(lock_key, 0)
        state.note_loss(lock_key, hold, times, detail)
    state.drop_holds()
    if needed and not ended:
        if len(state.endings) >= ENDINGS_MAX:
            del state.endings[next(iter(state.endings))]
        gives_up_at = later(now, END_TTLS * state.session_lease.lived_ms)
        state.endings[session] = Ending(gives_up_at, now)
        effects += end_sessions(state, now)
    if state.pending_of_locks():
        state.session_lease.need(now)
        effects += open_session(state, now)
    return effects


def _end_or_go_on(
    state: SessionState,
    pending: Pending,
    holds: dict[LockKey, ClientHold],
    notified: dict[LockKey, int],
    detail: str,
) -> list[Effect]:
    """Report the loss to a lock key that held the lock; let others wait on.

    An update that was sent in the lost session may have taken effect. It is not sent again, and its
    user receives SESSION_EXPIRED.
    """
    lock_key = pending.lock_key
    assert lock_key is not None
    hold = holds.get(lock_key)
    request = pending.request
    if isinstance(request, UpdateRequest) and pending.times_sent and not request.IDEMPOTENT:
        state.in_flight.drop(pending)
        text = f"{titled(lock_key.lock)}: the session ended: {detail}"
        return state.reply_no(pending, unfinished(pending, SessionExpiredError(text)))
    if hold is None:
        pending.times_sent, pending.sent_at, pending.renewed_at = 0, None, None
        return []
    state.in_flight.drop(pending)
    if isinstance(request, ReleaseRequest) and pending.user is not None and not request.PARTIAL:
        notified[lock_key] = notified.get(lock_key, 0) + 1
    return state.reply_no(pending, lost(lock_key, hold.fence, detail))


def let_go(
    state: SessionState, lock_key: LockKey, pending: Pending, reply: Refused
) -> list[Effect]:
    """Drop a hold that has ended; a later one, under another fence, is not affected."""
    hold = state.holds.get(lock_key)
    if hold is None or reply.reason not in GONE:
        return []
    match pending.request:
        case ReleaseRequest(fence=fence) if fence == hold.fence:
            notified, others = pending.user is not None, len(hold.acquisitions) > (not pending.owed)
            if pending.request.PARTIAL:
                notified, others = False, True
        case Renew(fence=fence) if fence == hold.fence:
            notified, others = False, True
        case AcquireRequest():
            notified, others = False, True
        case _:
            return []
    if others or reply.reason is Reason.OWNERSHIP_LOST:  # A user believes that it is held.
        return state.lose_hold(lock_key, reply.detail, notified=int(notified))
    state.drop_hold(lock_key)
    return []


def on_ended(state: SessionState, sender: Address, ended: Ended, now: Instant) -> list[Effect]:
    """Note that a session has ended: one that was given up, or the one in force."""
    closing = state.closing
    if closing.begun and ended.session == closing.session != "":
        return on_own_end(state)
    if state.endings.pop(ended.session, None) is not None:
        return note_life(state, sender, now)
    if not state.session_lease.kept or ended.session != state.session_lease.assigned:
        return [Observe("client.late_answer_dropped")]
    effects = note_life(state, sender, now)
    return effects + lose(state, f"the session ended: {ended.detail}", now, ended=True)


def on_hold_lost(
    state: SessionState, sender: Address, event: HoldLost, now: Instant
) -> list[Effect]:
    """Note that one hold was taken away, possibly before its grant arrived."""
    if not state.session_lease.ready or event.session != state.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = note_life(state, sender, now)
    lock_key = LockKey(event.lock, event.owner)
    hold = state.holds.get(lock_key)
    if hold is not None and hold.fence == event.fence:
        if hold.lease is not None and now < hold.lease.until and not event.decided:
            # One leader's clock is early; the others keep the hold, so no other owner gets it yet.
            return [*effects, Observe("client.early_loss_dropped")]
        return effects + state.lose_hold(lock_key, event.detail)
    if hold is None and lock_key in state.in_flight.waits:
        state.unreported.add(lock_key, event.fence, 1, event.detail)
    elif hold is None and event.decided and _is_unconfirmed(state, lock_key):
        # Keep-alives repeat it until the cluster knows that its owner has learned of it.
        effects += release_lost(state, lock_key, event.fence, now)
    return effects


def _is_unconfirmed(state: SessionState, lock_key: LockKey) -> bool:
    """Return whether a release is to be sent for a loss of ``lock_key``.

    A broken node may name any number of locks that were never held, so few are released at a time.
    """
    releases = state.in_flight.releases
    return lock_key not in releases and len(releases) < CONFIRMED_MAX


def on_confirm_hold(
    state: SessionState, sender: Address, event: ConfirmHold, now: Instant
) -> list[Effect]:
    """Notify a node that lost its memory if this client does not have the hold.

    A client that disowns a hold must never take a late grant of it. So each wait for the lock
    is sent again under a new number: only a grant of the latest number is accepted.
    """
    if state.closing.begun and state.closing.due_at is None:
        return []  # The client is closed.
    session_lease, in_flight = state.session_lease, state.in_flight
    known = (
        event.session in (session_lease.name, session_lease.assigned)
        and sender in state.endpoints.table
    )
    if session_lease.kept or not known:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = note_life(state, sender, now)
    if any(
        lock_key.lock == event.lock and h.fence == event.fence
        for lock_key, h in state.holds.items()
    ):
        return effects
    for number in [n for lock_key, n in in_flight.waits.items() if lock_key.lock == event.lock]:
        waiting = in_flight.pending[number]
        if waiting.sent_at is not None:
            effects += in_flight.again(waiting, waiting.endpoint, now)
    disown = DisownHold(lock=event.lock, fence=event.fence, session=event.session)
    return [*effects, Send(sender, disown), Observe("client.hold_disowned")]


def on_unlocking(
    state: SessionState, sender: Address, event: Unlocking, now: Instant
) -> list[Effect]:
    """Notify the holder that a duration is over, unless it was renewed since."""
    if not state.session_lease.kept or event.session != state.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = note_life(state, sender, now)
    lock_key = LockKey(event.lock, event.owner)
    hold = state.holds.get(lock_key)
    if hold is None or hold.fence != event.fence or hold.lease is None:
        return effects
    if now < hold.lease.ends_at or hold.lease.warn_at is None:
        return [*effects, Observe("client.late_unlocking_dropped")]
    return effects + warn(state, lock_key, now)


def on_recall(state: SessionState, sender: Address, event: Recall, now: Instant) -> list[Effect]:
    if not state.session_lease.kept or event.session != state.session_lease.assigned:
        return [Observe("client.answer_of_another_session_dropped")]
    effects = note_life(state, sender, now)
    if state.retainer is None:
        return [*effects, Observe("client.unfit_answer_dropped")]
    return [*effects, Send(state.retainer, event), Observe("client.recalled")]


def on_own_end(state: SessionState) -> list[Effect]:
    """Note that the session which this client ends has ended: nothing is held any more."""
    closing = state.closing
    session, closing.session = closing.session, ""
    state.endings.pop(session, None)
    effects: list[Effect] = []
    if not state.session_lease.kept:
        return effects
    for pending in state.pending_of_locks():
        lock_key = pending.lock_key
        assert lock_key is not None
        state.in_flight.drop(pending)
        released = Released(lock=lock_key.lock, session=session, owner=lock_key.owner)
        effects += state.reply(pending, released)
    state.drop_holds()
    state.in_flight.cancels.clear()
    state.session_lease.drop()
    return effects
