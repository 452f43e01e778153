"""The owners of one client's locks: who acquires, holds or releases what, and whom to notify.

The session role knows requests and holds (`actors/session/holds.py`). Users know lock objects,
threads, tasks and ``with`` blocks. This module is between them: it knows which *owner* of which
lock began which acquire, and pairs each acquire with its release, whatever interrupts either.

What moves
----------

Each acquire has a token, and goes through these states. Users' threads and tasks move it, but the
dispatcher's thread moves it to GRANTED and RELEASED. Any move but these two may be cut short
by a cancellation, or by an exception that a signal's handler raises between any two steps::

    state      where it is                              followed by
    ACQUIRING  its token is `Ownership.acquiring`       GRANTED; refused; given up: UNDOING
    GRANTED    in `Ownership.acquisitions`; perhaps     LEAVING; lost; given up: UNDOING
               its caller has not resumed yet
    LEAVING    its release is `Ownership.leaving`       RELEASED; refused: GRANTED, unless no caller
                                                        waits for it; interrupted before
                                                        sent: UNDOING
    UNDOING    in `HoldRegistry._undoing` until the     RELEASED, by the session alone
               session has its `Cancel`; then in
               ``holds`` or ``cancels`` of the session
               until the cluster confirms that
               nothing is left
    RELEASED   nowhere

What is UNDOING belongs to the session: an acquire that was interrupted at any point ends there by
one `Cancel`, which names its token and may be repeated. The owner may acquire again meanwhile: the
session sends the requests of one lock key in order.

Owners
------

An *ownership* is the time from an owner's first acquire of a lock to its last release. It has one
acquire at a time, and one release at a time; a thread that comes meanwhile waits for
`Ownership.changed` and then looks again. There are two kinds of owners:

- Owners with a name: a thread or task of an ``rlock``, an owner that the user names. They enter
  again and are counted: ``acquisitions`` has a token for each acquire.
- Acquires that are owners of their own: those of ``client.lock``, of semaphores, of readers. The
  first acquire of a lock uses the name of number 1, further ones at the same time get the next free
  number. Numbers are used again, because the cluster remembers the last request of each owner; the
  last one used comes first, since the table still knows its owner. A number whose acquire is
  UNDOING is not free (`_is_taken`), so no acquire ever waits for the undoing of another.

Threads
-------

``_guard`` is held for moves of ownerships. It is never held while a callback or a request runs. The
session's ``holds`` and ``cancels`` are read without it: only the session's thread writes them, each
field with one assignment (`ClientHold` says why that is safe). `granted` and `released` run on that
thread, so a grant is joined with its hold before any loss of it can be handled.

Losses
------

A hold is lost by the session, or found lost by a thread that looks at the clock first (`state_of`).
If the dispatcher ends with an error of ours, all are lost with it (`lose_all`): no role keeps them
any more. Each loss ends in `_notice_loss`, once for each ownership (loss-reported-once): callbacks
are called, and the ownership is kept until an error has reported the loss to its owner, at most
`LOST_MAX` of them.
A hold that a thread found lost is *disowned*: it stays lost even if the session receives a
confirmation at that moment, and is released: otherwise the cluster would keep it for nobody
(lost-is-final). If no caller waits for a release, and it finds the hold lost, callbacks are called,
and the next call on the lock object raises the error. If the owner was granted the lock again
before it knew of the loss, the new acquire fails with the loss: the owner must not take the second
hold for the first.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from fencelock.actors.api.handover import Detach
from fencelock.actors.api.lock_message import Release, Released, ReleaseRequest, Unlocking
from fencelock.actors.api.name import titled
from fencelock.actors.error import FencelockError, LockOwnershipLostError, NotHeldError
from fencelock.actors.message import Event, Instant
from fencelock.actors.session.event import HoldsLost, Suspected
from fencelock.actors.session.holds import ClientHold, HoldState
from fencelock.actors.session.requests import (
    ANY_ENDPOINT,
    CancelKey,
    LockKey,
    PendingCancel,
    lock_key_named,
)
from fencelock.cluster.client.callback_executor import CallbackExecutor, Listeners, Notice
from fencelock.cluster.client.owner import owner_of_acquire
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.log import warn

if TYPE_CHECKING:
    from fencelock.cluster.client.retaining import Retaining
    from fencelock.cluster.client.waiting import LocalWaits

LOST_MAX = 10_000
"""Limit of remembered losses that no error reported yet. Releasing an older one raises "not
held"."""

UNREPORTED_MAX = 64
"""Limit of lost holds that one lock object remembers until an error reports them."""

NAMED_HOLDS_MAX = 3
"""Limit of holds that one line of the log names."""

tokens = itertools.count(1)
"""Numbers each acquire of this process for the session, so that exactly that one is cancelled."""


class Ownership(Struct, eq=False):
    """The period in which one owner holds or waits for one lock: first acquire to last release.

    Whether the lock is held is not recorded here: the session decides that, in `hold`.
    """

    lock: str
    owner: str
    number: int
    """Number of this owner if it is one acquire, which only its hold and its lock object can
    release; 0 for owners with a name."""
    listeners: list[Listeners]
    """The listeners of the lock objects and holds through which it was acquired."""
    acquisitions: list[int] = field(default_factory=list[int])
    """The tokens of its acquires whose release has not begun, oldest first."""
    hold: ClientHold | None = None
    """The session's hold, once the lock was granted."""
    acquiring: int = 0
    """The token of the acquire that has begun and has no answer, one at a time, or 0 for none. Not
    the call: it would keep the task that waits alive when its loop is closed and gone."""
    leaving: ReleaseCall | None = None
    """The release that has begun and is not confirmed; one at a time."""
    changed: AskReply | None = None
    """Answered when the owner may acquire again, if anybody waits for that."""
    write_fence: int = 0
    """Of a read/write lock: the fence under which it writes, 0 while it only reads."""
    retained: tuple[LockKey, int] | None = None
    """Of a lock that the client retains: the session's key, and the token of the first acquire. The
    session has no hold of this owner."""
    noticed: bool = False
    """Whether the callbacks were notified of its loss."""
    reported: bool = False
    """Whether an error has reported its loss."""

    def is_unreleased(self, token: int) -> bool:
        """Return whether the acquire ``token`` is unreleased, or its release unconfirmed."""
        leaving = self.leaving
        return token in self.acquisitions or (leaving is not None and leaving.token == token)


class AcquireCall(AskReply):
    """One acquire in progress.

    Its reply is joined with the session's hold on the thread that moves holds, so no loss can slip
    in between.
    """

    token: int
    cancels = 0
    """The number of calls of `BaseLock.cancel` when it began."""
    undone = 0
    """The token of the acquire to undo, once this one was given up; 0 before."""
    own: Ownership | None = None
    """The owner that acquires, once it need not wait in this client."""
    lost_before = False
    """Whether the owner lost an earlier hold, and no error had reported that before the grant."""


class ReleaseCall(AskReply):
    """One release in progress. Its reply ends the hold."""

    own: Ownership
    token: int
    sent = False
    """Whether its request surely reached the session."""
    awaited = True
    """Whether a caller waits for its reply, which also reports a loss."""
    unlimited = False
    """Whether the session replies only once it is decided. No caller waited when it began."""
    detach: Detach | None = None
    """The request, if it detaches the lock."""

    def request(self) -> ReleaseRequest:
        own = self.own
        if self.detach is not None:
            return self.detach
        assert own.hold is not None
        return Release(lock=own.lock, fence=own.hold.fence, owner=own.owner, request=self.token)


class Numbers(Struct, eq=False):
    """The numbers of further owners of one lock, which are one acquire each.

    They are used again, because the cluster remembers the last request of each owner.
    """

    highest: int = 1
    free: deque[int] = field(default_factory=deque[int])
    """Those that no acquire uses, the last used last. The session may still undo one of them."""


class HoldRegistry:
    """All owners of a client that acquire, hold or release a lock. For any thread.

    Invariants:
        lost-is-final: A hold that was lost is never held again: a later grant makes another.
        loss-reported-once: Each loss is reported to callbacks once, however it became known.

    Args:
        now: reads the clock that the session uses.
        holds: the session's holds, which this class only reads.
        cancels: the session's unconfirmed cancels, which this class only reads.
        executor: calls callbacks.
        send: sends the session a message that needs no answer.

    """

    def __init__(
        self,
        now: Callable[[], Instant],
        holds: dict[LockKey, ClientHold],
        cancels: dict[CancelKey, PendingCancel],
        executor: CallbackExecutor,
        send: Callable[[Event], None],
    ) -> None:
        self.listeners = Listeners()
        """The callbacks for all locks of the client."""
        self.now = now
        self.retaining: Retaining
        """The retained locks; the connection sets it."""
        self.waits: LocalWaits
        """The acquires that wait for an owner of the client; the connection sets it."""
        self._holds = holds
        self._cancels = cancels
        self._executor = executor
        self._send = send
        self._guard = threading.Lock()
        self._owners: dict[tuple[str, str], Ownership] = {}
        self._first = owner_of_acquire(1)
        self._numbers: dict[str, Numbers] = {}
        self._undoing: dict[tuple[str, str], int] = {}
        """Acquires whose cancel is on its way to the session: the last token, by lock and owner."""
        self._unconfirmed: dict[str, ReleaseCall] = {}
        """The last release by lock for which no caller waits, until it is confirmed."""
        self._lost: deque[Ownership] = deque()
        self._closed = False

    def find(self, lock: str, owner: str) -> Ownership | None:
        return self._owners.get((lock, owner))

    def holders(self, lock: str) -> list[str]:
        with self._guard:
            owners = [own for (name, _), own in self._owners.items() if name == lock]
        return [own.owner for own in owners if own.hold is not None]

    def acquiring(self, listeners: Listeners) -> list[Ownership]:
        """Return the owners whose acquire through the object of ``listeners`` has no answer."""
        with self._guard:
            owners = [*self._owners.values()]
        return [own for own in owners if own.acquiring and listeners in own.listeners]

    def look_again(self, lock: str) -> None:
        """Wake the threads and tasks of this client that wait for an owner of ``lock``."""
        with self._guard:
            for (name, _), own in self._owners.items():
                if name == lock:
                    self._wake(own)

    def state_of(self, own: Ownership) -> HoldState:
        """Return the state of the lock for that owner now, by the clock."""
        hold = own.hold
        if hold is None or self._closed:
            return HoldState.FREE
        now = self.now()
        state = hold.state_at(now)
        if state is HoldState.LOST and not own.noticed:
            self._find_lost(own, hold, now)
            if (retained := self.let_go(own)) is not None:
                self.retaining.free(*retained)
        return state

    def enter_as_new(self, lock: str, call: AcquireCall, listeners: Listeners) -> Ownership:
        """Begin an acquire of ``lock`` by a new owner, whom nothing keeps waiting here."""
        with self._guard:
            owner, number = self._first, 1
            if self._is_taken(lock, owner):
                owner, number = self._another(lock)
            own = Ownership(lock, owner, number, [listeners])
            own.acquiring = call.token
            call.own = self._owners[lock, owner] = own
        return own

    def enter(
        self, lock: str, owner: str, call: AcquireCall, listeners: Listeners, *, once: bool
    ) -> AskReply | None:
        """Begin an acquire of ``lock`` by ``owner``; return the event that it must wait for first.

        With ``once`` the owner may hold the lock only once. It may have lost it: see `forget`.
        """
        with self._guard:
            own = self._owners.get((lock, owner))
            if own is None:
                own = Ownership(lock, owner, 0, [listeners])
                self._owners[lock, owner] = own
            elif own.leaving is not None:
                return own.leaving
            elif own.acquiring or (once and own.acquisitions):
                if own.changed is None:
                    own.changed = AskReply()
                return own.changed
            elif listeners not in own.listeners:
                own.listeners.append(listeners)
            own.acquiring, call.own = call.token, own
        return None

    def forget(self, own: Ownership) -> None:
        """Let the owner of a lost hold begin anew; its users are still notified of the loss."""
        with self._guard:
            self._remove(own)

    def granted(self, call: AcquireCall, reply: Any, error: BaseException | None) -> None:
        """Join the hold that ``call`` was granted with its owner; on the dispatcher's thread."""
        own = call.own
        assert own is not None
        with self._guard:
            if own.acquiring == call.token:
                own.acquiring = 0
            if call.undone or error is not None:
                self._drop_if_done(own)
                return
            hold, earlier = self._holds[lock_key_named(own.lock, own.owner)], own.hold
            if earlier is not None and earlier is not hold:
                if not own.reported and earlier.state is not HoldState.RELEASED:
                    call.lost_before = True
                    self._drop_if_done(own)
                    return
                own.acquisitions.clear()
                own.noticed = own.reported = False
            own.hold = hold
            own.acquisitions.append(call.token)
            if own.changed is not None:
                self._wake(own)

    def admitted(self, own: Ownership, token: int, hold: ClientHold, key: LockKey) -> None:
        """Join ``hold`` of a retained lock with its owner. It may be repeated."""
        with self._guard:
            own.hold, own.retained = hold, (key, token)
            if token not in own.acquisitions:
                own.acquisitions.append(token)
            self._begun(own, token)

    def enter_again(self, own: Ownership, token: int) -> bool:
        """Let the owner of a retained lock acquire it once more, unless it has just released it."""
        with self._guard:
            if own.retained is None or not own.acquisitions:
                return False
            own.acquisitions.append(token)
            self._begun(own, token)
            return True

    def _begun(self, own: Ownership, token: int) -> None:
        if own.acquiring == token:
            own.acquiring = 0
        if own.changed is not None:
            self._wake(own)

    def left(self, own: Ownership, token: int) -> None:
        """Note that the acquire ``token``, which was not granted, has ended."""
        with self._guard:
            if own.acquiring == token:
                own.acquiring = 0
            self._drop_if_done(own)

    def leave_retained(self, own: Ownership, token: int) -> None:
        """Release the acquire ``token`` of a retained lock, of which the session knows nothing.

        With the last one ``own.retained`` becomes None: the lock is to be freed.

        Raises:
            NotHeldError: that acquire was released, or its loss was reported.
            LockOwnershipLostError: the hold was lost; this error reports it for that acquire.

        """
        hold = own.hold
        assert hold is not None
        if hold.state_at(self.now()) is HoldState.LOST and token in own.acquisitions:
            self.state_of(own)
            raise self.report_loss(own, token)
        with self._guard:
            if token not in own.acquisitions:
                raise NotHeldError(f"{titled(own.lock)}: this hold was released already")
            own.acquisitions.remove(token)
            if own.acquisitions:
                return
            own.retained = None
            if hold.state is HoldState.HELD:
                hold.move(HoldState.RELEASING)
                hold.move(HoldState.RELEASED)
            self._drop_if_done(own)

    def let_go(self, own: Ownership) -> tuple[LockKey, int] | None:
        """Take a retained lock from ``own``; return its key and token, or None if that was done."""
        with self._guard:
            retained, own.retained = own.retained, None
            return retained

    def lose(self, owns: list[Ownership], reason: str) -> None:
        """Note that these owners have lost their locks; the session does not report it."""
        with self._guard:
            for own in owns:
                assert own.hold is not None
                own.retained = None
                if HoldState.LOST in own.hold.state.followers:
                    own.hold.lose(reason)
            self._notice_losses(owns, reason)

    def lose_all(self, reason: str) -> None:
        """Note that all holds are lost: no role keeps them any more.

        The dispatcher's thread calls it as it ends, so nothing else moves holds.
        """
        with self._guard:
            owns = list(self._owners.values())
        self.lose(
            [own for own in owns if own.hold and own.hold.state is not HoldState.RELEASED], reason
        )

    def give_up(self, call: AcquireCall) -> int:
        """Drop the present or future grant of ``call``, which was interrupted.

        Return the token of the acquire to undo: that of the owner's latest acquire, if a concurrent
        release has already released this one. After an interrupt this may be called again.
        """
        with self._guard:
            own, token = call.own, call.token
            assert own is not None
            if not call.undone:
                mine = own.acquiring == token or token in own.acquisitions or not own.acquisitions
                call.undone = token if mine else own.acquisitions[-1]
            if own.acquiring == token:
                own.acquiring = 0
            self._undo(own, call.undone)
            return call.undone

    def leave(
        self, own: Ownership, token: int, *, awaited: bool = True, detach: Detach | None = None
    ) -> ReleaseCall:
        """Begin the release of the acquire ``token``; return the call that receives its answer.

        If an earlier release is not confirmed, return its call and begin nothing. With ``awaited``
        the caller waits for the reply. ``detach`` is the request that detaches the lock.

        Raises:
            NotHeldError: that acquire was released, or its loss was reported; or it is being
                released, and was to be detached.
            LockOwnershipLostError: the hold was lost; this error reports it for that acquire.

        """
        assert own.hold is not None
        if own.hold.state_at(self.now()) is HoldState.LOST and token in own.acquisitions:
            self.state_of(own)
            raise self.report_loss(own, token)
        with self._guard:
            leaving = own.leaving
            if leaving is not None:
                if detach is not None and leaving.token == token and leaving.detach is not detach:
                    raise NotHeldError(f"{titled(own.lock)}: this hold is being released")
                return leaving
            if token not in own.acquisitions:
                raise NotHeldError(f"{titled(own.lock)}: this hold was released already")
            leaving = ReleaseCall(self.released)
            leaving.own, leaving.token, leaving.detach = own, token, detach
            own.leaving = leaving
            own.acquisitions.remove(token)
            if not awaited:
                leaving.awaited, leaving.unlimited = False, True
                self._unconfirmed[own.lock] = leaving
            return leaving

    def unconfirmed(self, lock: str) -> ReleaseCall | None:
        """Return the last release of ``lock`` that no caller waits for, if it is not confirmed."""
        return self._unconfirmed.get(lock)

    def await_release(self, leaving: ReleaseCall) -> bool:
        """Let a caller wait for the reply to ``leaving``; return whether it is not there yet."""
        with self._guard:
            if leaving.own.leaving is not leaving:
                return False
            leaving.awaited = True
            return True

    def repeat(self, leaving: ReleaseCall) -> ReleaseCall | None:
        """Return a call for a repetition of a release that failed, or None if it was confirmed."""
        own = leaving.own
        with self._guard:
            if own.leaving is not leaving:
                return own.leaving
            assert own.hold is not None
            if own.hold.state is not HoldState.RELEASING and leaving.sent:
                own.leaving = None  # Confirmed in the background.
                self._drop_if_done(own)
                return None
            again = ReleaseCall(self.released)
            again.own, again.token, again.detach = own, leaving.token, leaving.detach
            own.leaving = again
            return again

    def give_back(self, own: Ownership, token: int) -> bool:
        """Leave the release of the acquire ``token`` to the session; return whether it is due.

        A release that has surely been sent goes on. One that was interrupted before is due, and so
        is one that waits for another to be confirmed.
        """
        with self._guard:
            leaving = own.leaving
            unsent = leaving is not None and leaving.token == token and not leaving.sent
            if not unsent and token not in own.acquisitions:
                return False
            self._undo(own, token)
            if unsent:
                own.leaving = None
                self._drop_if_done(own)
            return True

    def undo_call(self, own: Ownership, token: int) -> AskReply:
        """Return the call for the cancel of an acquire that was given up or given back.

        Once it is answered, on the dispatcher's thread, the acquire belongs to the session.
        """
        key = own.lock, own.owner

        def undone(*_: Any) -> None:
            with self._guard:
                if self._undoing.get(key) == token:
                    del self._undoing[key]

        return AskReply(undone)

    def _undo(self, own: Ownership, token: int) -> None:
        """Leave an acquire to the session. After an interrupt this may be called again."""
        self._undoing[own.lock, own.owner] = token
        if token in own.acquisitions:
            own.acquisitions.remove(token)
        self._drop_if_done(own)

    def released(self, leaving: ReleaseCall, reply: Any, error: BaseException | None) -> None:
        """Handle the outcome of a release; on the dispatcher's thread."""
        own = leaving.own
        with self._guard:
            if not leaving.awaited and self._unconfirmed.get(own.lock) is leaving:
                del self._unconfirmed[own.lock]
            match error:
                case None:
                    assert isinstance(reply, Released)
                    # A repetition may have released the next hold: the cluster's count is right.
                    del own.acquisitions[reply.count :]
                case NotHeldError():
                    own.acquisitions.clear()
                    self._report_later(leaving, error)
                case LockOwnershipLostError():
                    own.reported = True
                    self._report_later(leaving, error)
                case _:
                    assert own.hold is not None
                    if own.hold.state is HoldState.RELEASING:
                        return  # The session keeps repeating it in the background.
                    own.acquisitions.append(leaving.token)  # It was never sent, or it was refused.
                    self._keep_error(leaving, error)
            if own.leaving is leaving:
                own.leaving = None
            if own.acquisitions or own.number > 1 or own.changed is not None or own.acquiring:
                self._drop_if_done(own)
            elif self._owners.get(key := (own.lock, own.owner)) is own:
                del self._owners[key]  # As nearly always.

    def _report_later(self, leaving: ReleaseCall, error: FencelockError) -> None:
        """Report what a release that no caller awaited found: to callbacks and at a later call."""
        if not leaving.awaited:
            own = leaving.own
            self._notice_loss(own, str(error).removeprefix(f"{titled(own.lock)}: "))
            self._keep_error(leaving, error)

    def _keep_error(self, leaving: ReleaseCall, error: BaseException) -> None:
        """Let the next call on the lock object raise ``error``, if no caller waits for it."""
        if not leaving.awaited and isinstance(error, FencelockError):
            unreported = leaving.own.listeners[0].unreported
            unreported.append(error)
            del unreported[:-UNREPORTED_MAX]

    def report_loss(self, own: Ownership, token: int | None) -> LockOwnershipLostError:
        """Return the error for the loss of acquire ``token``; if it is None, of all acquires."""
        with self._guard:
            if token is None:
                own.acquisitions.clear()
            elif token in own.acquisitions:
                own.acquisitions.remove(token)
            self._drop_if_done(own)
        return self.loss_of(own)

    def loss_of(self, own: Ownership) -> LockOwnershipLostError:
        """Return the error that reports the loss of ``own``, and remember that it was reported."""
        own.reported = True
        hold, lock = own.hold, f"{titled(own.lock)}: "
        assert hold is not None
        reason = hold.why(self.now()).removeprefix(lock)
        return LockOwnershipLostError(
            f"{lock}owner {own.owner!r} lost its hold under fence {hold.fence}: {reason}"
        )

    def on_event(self, event: Event) -> None:
        """Pass the session's reports on to callbacks; on the dispatcher's thread."""
        with self._guard:
            match event:
                case Suspected(silent_ms=silent_ms, left_ms=left_ms):
                    reason = (
                        f"the cluster has not confirmed the session for {silent_ms} ms; "
                        f"its locks count as lost in {left_ms} ms"
                    )
                    held = [own for own in self._owners.values() if own.hold and not own.noticed]
                    for own in held:
                        self._notify(own, HoldState.SUSPECT, reason)
                    self._warn("suspect", held, reason)
                case Unlocking(lock=lock, owner=owner, fence=fence, grace_ms=grace_ms):
                    reason = (
                        f"its duration is over: release or renew it, or it is lost in {grace_ms} ms"
                    )
                    if (unlocking := self._holder(lock, owner, fence)) is not None:
                        self._notify(unlocking, HoldState.UNLOCKING, reason)
                case HoldsLost(losses=losses, detail=detail):
                    found = [self._holder(*loss) for loss in losses]
                    self._notice_losses([own for own in found if own is not None], detail)
                case _:
                    raise AssertionError(f"no watcher receives {event}")

    def listen(self, own: Ownership, mine: Listeners) -> None:
        """Also call the callbacks of ``mine`` for that ownership; at once if it is lost."""
        self.state_of(own)
        with self._guard:
            own.listeners.append(mine)
            if own.noticed and own.hold is not None:
                self._notify(own, HoldState.LOST, own.hold.why(self.now()), only=mine)

    def clear(self) -> None:
        """Forget everything: the client is closed."""
        with self._guard:
            self._closed = True
            owners = list(self._owners.values())
            self._owners.clear()
            self._numbers.clear()
            self._undoing.clear()
            self._unconfirmed.clear()
            self._lost.clear()
            for own in owners:
                self._wake(own)

    def _holder(self, lock: str, owner: str, fence: int) -> Ownership | None:
        """Return the holder of ``lock`` under ``fence``, or None if its loss was noticed."""
        own = self._owners.get((lock, owner))
        if own is None or own.noticed or own.hold is None or own.hold.fence != fence:
            return None
        return own

    def _find_lost(self, own: Ownership, hold: ClientHold, now: Instant) -> None:
        """Note that a thread found ``hold`` lost, probably before the session did."""
        with self._guard:
            if own.noticed:
                return  # loss-reported-once
            if hold.state is not HoldState.LOST:
                hold.disowned = True  # lost-is-final
                # The session may yet believe that it is held. A retained lock is freed instead.
                for _ in own.acquisitions if own.retained is None else ():
                    self._send(Release(lock=own.lock, fence=hold.fence, owner=own.owner))
            self._notice_losses([own], hold.why(now))

    def _warn(self, state: str, owns: list[Ownership], reason: str) -> None:
        if not owns:
            return
        named = ", ".join(
            f"{titled(own.lock)} (fence {own.hold.fence})"
            for own in owns[:NAMED_HOLDS_MAX]
            if own.hold
        )
        more = f" and {len(owns) - NAMED_HOLDS_MAX} more" if len(owns) > NAMED_HOLDS_MAX else ""
        self._executor.call(warn, f"{state}: {named}{more}: {reason}")

    def _notice_losses(self, owns: list[Ownership], reason: str) -> None:
        lost = [own for own in owns if not own.noticed]
        for own in lost:
            self._notice_loss(own, reason)
        self._warn("lost", lost, reason)

    def _notice_loss(self, own: Ownership, reason: str) -> None:
        if own.noticed:
            return  # loss-reported-once
        own.noticed = True
        self._wake(own)
        self._lost.append(own)
        if len(self._lost) > LOST_MAX:
            self._remove(self._lost.popleft())
        self._notify(own, HoldState.LOST, reason)

    def _notify(
        self, own: Ownership, state: HoldState, reason: str, only: Listeners | None = None
    ) -> None:
        assert own.hold is not None
        notice = Notice(own.lock, own.owner, own.hold.fence, state, reason)
        for listeners in (only,) if only is not None else (*own.listeners, self.listeners):
            for callback in listeners.of(state):
                self._executor.call(callback, notice)

    def _drop_if_done(self, own: Ownership) -> None:
        if own.changed is not None:
            self._wake(own)
        if not own.acquisitions and own.leaving is None and not own.acquiring:
            self._remove(own)

    def _remove(self, own: Ownership) -> None:
        key = own.lock, own.owner
        if self._owners.get(key) is not own:
            return
        del self._owners[key]
        if own.number > 1:
            numbers = self._numbers[own.lock]
            numbers.free.append(own.number)
            if len(numbers.free) == numbers.highest - 1:
                del self._numbers[own.lock]

    def _another(self, lock: str) -> tuple[str, int]:
        """Return an owner of ``lock`` besides the first, and its number."""
        numbers = self._numbers.setdefault(lock, Numbers())
        free = numbers.free
        # The table saw the last one most recently; the first was undone longest ago.
        for place in (-1, 0) if free else ():
            number = free[place]
            if not self._is_taken(lock, owner_of_acquire(number)):
                del free[place]
                return owner_of_acquire(number), number
        while True:
            numbers.highest = number = numbers.highest + 1
            if not self._is_taken(lock, owner_of_acquire(number)):
                return owner_of_acquire(number), number
            free.append(number)  # Still UNDOING from before the numbers were forgotten.

    def _is_taken(self, lock: str, owner: str) -> bool:
        """Return whether ``owner`` acquires or holds ``lock``, or an acquire of it is UNDOING."""
        key = lock, owner
        return (
            key in self._owners
            or key in self._holds
            or key in self._undoing
            or (bool(self._cancels) and (ANY_ENDPOINT, key) in self._cancels)
        )

    def _wake(self, own: Ownership) -> None:
        """Wake the threads and tasks that wait for ``own``, so that they look again."""
        changed, own.changed = own.changed, None
        if changed is not None:
            changed.set(None)
