"""A hold of a lock, as an acquire returns it: the part that does not depend on how its user waits.

Release and renewal are operations on one acquire; lock objects also use them.
"""

from __future__ import annotations

import math
import time
import warnings
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import urandom
from zlib import crc32

import pykka

from fencelock.actors.api.handover import Detach, digest_of
from fencelock.actors.api.lock_message import HAVE_DEADLINES, Cancel, Release, Renew
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.error import (
    ClosedError,
    FencelockError,
    LockOwnershipLostError,
    NotHeldError,
    UnavailableError,
    UnsupportedError,
)
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.event import ReleaseUnawaited
from fencelock.actors.session.holds import HOLDING, ClientHold, HoldState
from fencelock.actors.session.requests import UNANSWERED_MS
from fencelock.cluster.client.callback_executor import Callback, Listeners, Notifying
from fencelock.cluster.client.hold_registry import HoldRegistry, Ownership, ReleaseCall
from fencelock.cluster.client.operation import AwaitReply, Operation, operation
from fencelock.cluster.client.session_channel import SessionChannel, Uncopyable, closed_meanwhile
from fencelock.cluster.client.settings import term_ms_of, text_of
from fencelock.cluster.host.fork import ForkCounter

WITHIN_MS = 60_000
"""Default time for which the token of a detached lock can be used (ms)."""

SECRET_BYTES = 16
"""Length of the random secret in a token (bytes): nobody guesses it."""

_SUM_BYTES = 4


class HasHold(Notifying, Uncopyable):
    """A hold, or an object that is held. The properties of an object describe its current hold."""

    _registry: HoldRegistry

    @property
    def object_name(self) -> str:
        """The name in the table, which begins with the kind unless the object is a lock."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name under which all clients know the lock."""
        return plain_name(self.object_name)

    @property
    def fence(self) -> int | None:
        """The fence of the hold, None without one."""
        raise NotImplementedError

    @property
    def state(self) -> HoldState:
        """The state of the hold; FREE without one. See `HoldState`."""
        raise NotImplementedError

    def _certain_hold(self) -> ClientHold | None:
        """Return the hold while `held` is true, else None."""
        raise NotImplementedError

    @property
    def held(self) -> bool:
        """Whether it is held, and nobody else can hold the lock now.

        It stays true until a release is confirmed. It turns false at the latest when the
        cluster may end the session, or may take the lock because its deadline has passed.
        """
        return self.state in HOLDING

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold the lock, although it was not released.

        An object that is held shows a loss until an error has reported it.
        """
        return self.state is HoldState.LOST

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is certainly held if nothing more is received.

        0 if it is not held; infinite where the cluster keeps no sessions.
        """
        hold = self._certain_hold()
        if hold is None:
            return 0.0
        until = hold.until()
        return math.inf if until is None else self._seconds_until(until)

    @property
    def deadline(self) -> float | None:
        """The end of the duration and the grace of the hold, as a time of `time.monotonic` (s).

        The lock may be taken away at that time unless the hold is renewed or released. None if the
        hold has no deadline, or the lock is not held.
        """
        hold = self._certain_hold()
        if hold is None or hold.lease is None:
            return None
        return time.monotonic() + self._seconds_until(hold.lease.until)

    def _seconds_until(self, until: Instant) -> float:
        return max(0.0, (until - self._registry.now()) / (1_000 * NS_PER_MS))


class BaseHold(HasHold):
    """One successful acquire, until it is released. It is always true.

    Its properties follow from this client's clock and the last confirmation of the cluster when
    they are read: none uses the network.
    """

    runner: object = None
    """The thread or task that acquired it."""
    entered: Listeners | None = None
    """The callbacks of the lock, if a ``with`` statement acquired it."""
    amount = 0
    """The number of permits, if it is of a semaphore."""
    given_back = 0
    """The permits among them that were given back, perhaps unconfirmed."""
    _detached: tuple[Detach, str] | None = None
    """The request that detaches the lock, which is the same when it is repeated, and the token."""
    _is_detached = False
    """Whether that is confirmed."""

    def __init__(
        self,
        channel: SessionChannel,
        own: Ownership,
        token: int,
        confirm: bool = True,
    ) -> None:
        self._channel = channel
        self._confirm = confirm
        self._registry = channel.registry
        self.token = token
        assert own.hold is not None
        self._hold = own.hold
        self.own = own

    def __del__(self) -> None:
        own: Ownership | None = getattr(self, "own", None)  # An interrupt may have come before it.
        if own is None or not own.number or self.token not in own.acquisitions:
            return
        channel = self._channel
        if channel.later is None or channel.closed or channel.forked:
            return
        if self._hold.state_at(self._registry.now()) is HoldState.LOST:
            return
        channel.later(partial(_release_dropped, channel, own, self.token))
        warnings.warn(
            f"{titled(own.lock)} was released since its hold was dropped: keep the hold, or the "
            "object that acquired it, and release it, or use `with`",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )

    @property
    def object_name(self) -> str:
        return self.own.lock

    @property
    def owner(self) -> str:
        """The owner that holds it, as `status` shows it."""
        return self.own.owner

    @property
    def fence(self) -> int:
        """The fence: greater than the fence of every earlier hold of the lock.

        Resources that check fences refuse requests under the fence of a lost hold.
        """
        return self._hold.fence

    @property
    def state(self) -> HoldState:
        """The state of this hold; see `HoldState`.

        FREE once the client is closed. LOST in a forked process: the lock is its parent's.
        """
        own = self.own
        if self._channel.forked:
            return HoldState.LOST
        if own.hold is not self._hold:  # Its owner was granted the lock anew since.
            released = self._hold.state is HoldState.RELEASED
            return HoldState.RELEASED if released else HoldState.LOST
        state = self._registry.state_of(own)
        if state in (HoldState.LOST, HoldState.FREE) or own.is_unreleased(self.token):
            return state
        return HoldState.RELEASED

    @property
    def suspect(self) -> bool:
        """Whether the cluster has been silent for half of the session's TTL.

        The lock is still held for certain: it is time to finish, or to stop at a safe point.
        """
        return self.state is HoldState.SUSPECT

    def _certain_hold(self) -> ClientHold | None:
        return self._hold if self.held else None

    def raise_if_lost(self) -> None:
        """Return only while the lock is held.

        Raises:
            LockOwnershipLostError: it was lost, or belongs to the process that forked this one.
            NotHeldError: it was released, or its client is closed.

        """
        own = self.own
        if self._channel.forked:
            raise LockOwnershipLostError(f"{titled(own.lock)}: {self._channel.why_forked()}")
        if own.hold is not self._hold:
            raise LockOwnershipLostError(
                f"{titled(own.lock)}: owner {own.owner!r} lost its hold under fence {self.fence}, "
                "and was granted the lock anew"
            )
        check_held(self._channel, own, self.token)
        if self._channel.closed:
            raise NotHeldError(f"{titled(own.lock)}: the client of this hold is closed")

    @operation
    def release(self, *, wait: bool | None = None) -> Operation[None]:
        """Give up this hold. Another call of it does nothing.

        ``wait`` and the errors are those of `Lock.release`. The loss of a hold is an error only if
        no release has reported it.
        """
        return self._releasing(wait)

    @operation
    def renew(self, duration: float | None = None) -> Operation[None]:
        """Start the duration of this hold anew; see `Lock.renew`."""
        return renewing(self._channel, self.own, self.token, duration)

    @operation
    def detach(self, within: float | None = None) -> Operation[str]:
        """Give up this hold, but keep the lock for whoever has the token; return the token.

        `Client.attach` takes the lock over with the token, once, in any process. Nobody in the
        queue gets the lock before that; if nobody attaches it in time, the next in the queue gets
        it. This hold counts as released: `release` does nothing any more, and its fence is refused.

        In a ``with`` statement, what follows this call runs without the lock, and the end of the
        statement releases nothing.

        Args:
            within: how long the token can be used (s), above 0 and at most a week; None for 60.

        Returns:
            Letters, digits, ``-`` and ``_``, at most 368 of them. Whoever has it can take the lock,
            so treat it like a password. The cluster neither keeps nor shows it.

        Raises:
            InvalidRequestError: ``within`` is out of its limits.
            UnsupportedError: it is no plain lock, or its owner holds it more than once, or the
                protocol cannot detach locks (`paxos` can).
            NotHeldError: it was released, or detached already.
            LockOwnershipLostError: it was lost before.
            UnavailableError: no node confirmed it within 10 s. The client keeps repeating it in the
                background; calling `detach` again waits for it, and returns the token. Without the
                token the lock is free after ``within``.
            ClosedError: the client is closed.
            TypeError: ``within`` is no number.

        """
        own, channel, registry = self.own, self._channel, self._registry
        ttl_ms = term_ms_of("within", within) or WITHIN_MS
        if kind_of(own.lock) or len(own.acquisitions) > 1:
            text = "only a plain lock that is held once can be detached"
            raise UnsupportedError(f"{titled(own.lock)}: {text}")
        channel.check()
        if self._is_detached:
            raise NotHeldError(f"{titled(own.lock)}: this hold was detached already")
        again, secret = self._detached is not None, urandom(SECRET_BYTES)
        detach, token = self._detached = self._detached or (
            Detach(
                lock=own.lock,
                fence=self.fence,
                digest=digest_of(secret),
                ttl_ms=ttl_ms,
                owner=own.owner,
                request=self.token,
            ),
            token_of(own.lock, secret),
        )
        if (retained := own.retained) is None:
            yield from releasing(channel, own, self.token, detach=detach)
        else:
            try:
                yield from channel.ask(registry.retaining.surrender(own, detach))
            except NotHeldError:
                if not again:  # If so, it was detached in the background.
                    raise
            registry.retaining.release(own, self.token, retained)
        if self.entered is not None:
            self.entered.detached.add(self.runner)
        self._is_detached = True
        return token

    def __repr__(self) -> str:
        return f"<Hold of {self.name!r} under fence {self.fence}, {self.state.value}>"

    def _listen(self, state: HoldState, callback: Callback) -> None:
        if self._channel.forked:
            raise ClosedError(self._channel.why_forked())
        listeners = Listeners()
        listeners.add(state, callback)
        self._registry.listen(self.own, listeners)

    def _releasing(self, wait: bool | None = None) -> Operation[None]:
        if not self.own.is_unreleased(self.token):
            return  # It was released, or its loss was reported.
        awaited = self._confirm if wait is None else wait
        yield from releasing(self._channel, self.own, self.token, awaited=awaited)

    def _exiting(self, error: BaseException | None) -> Operation[None]:
        return exiting(self._releasing, self.own.lock, error)


def releasing(
    channel: SessionChannel,
    own: Ownership,
    token: int,
    *,
    awaited: bool = True,
    detach: Detach | None = None,
) -> Operation[None]:
    """Release the acquire ``token`` of ``own``, or detach it, and wait until that is confirmed.

    If it is not ``awaited``, end once the session has it, without waiting. The session delivers it
    once, however often it is repeated, and sends it before what it is asked later. A release of
    another acquire of the same owner may be unconfirmed: then the session releases this one after
    it.
    """
    registry = channel.registry
    if channel.closed or channel.forks != ForkCounter.forks:
        channel.check()
    if (retained := own.retained) is not None:
        registry.retaining.release(own, token, retained)
        return
    mine = True
    while True:
        try:
            leaving = registry.leave(own, token, awaited=awaited, detach=detach)
            mine = leaving.token == token
            if awaited and (not mine or leaving.sent or leaving.done):
                yield from confirming(channel, leaving)
            elif not mine:
                give_back(channel, own, token)
            elif awaited:
                channel.submit(leaving.request(), leaving)
                leaving.sent = True
                yield leaving
            elif not leaving.sent:
                release = leaving.request()
                assert isinstance(release, Release)
                channel.submit(ReleaseUnawaited(release=release), leaving)
                leaving.sent = True
                if leaving.done:  # Perhaps it was turned away.
                    with suppress(LockOwnershipLostError, NotHeldError):  # Reported later.
                        leaving.get(timeout=0)
            if mine or token not in own.acquisitions:
                return
            channel.check()
        except pykka.ActorDeadError:
            raise closed_meanwhile() from None
        except BaseException as error:
            # An interrupted release still happens, and so does one that waits for another. One of
            # its own that was refused does not: it may be tried again.
            if not (mine and isinstance(error, FencelockError)):
                give_back(channel, own, token)
            raise


def _release_dropped(channel: SessionChannel, own: Ownership, token: int) -> None:
    with suppress(FencelockError):
        for _ in releasing(channel, own, token, awaited=False):
            raise AssertionError("it does not wait")


def give_back(channel: SessionChannel, own: Ownership, token: int) -> None:
    """Leave the release of the acquire ``token`` to the session, unless it was sent."""
    if channel.registry.give_back(own, token):
        undo(channel, own, token)


def undo(channel: SessionChannel, own: Ownership, token: int) -> None:
    """Let the session undo the acquire ``token``, whether it waits or holds."""
    cancel = Cancel(lock=own.lock, session="", owner=own.owner, request=token)
    if not channel.forked:
        channel.submit(cancel, channel.registry.undo_call(own, token))


def renewing(
    channel: SessionChannel, own: Ownership, token: int, duration: float | None
) -> Operation[None]:
    hold_ms = term_ms_of("duration", duration)
    channel.check()
    check_held(channel, own, token)
    assert own.hold is not None
    if own.retained is not None:
        text = f"{titled(own.lock)}: this hold has no deadline; {HAVE_DEADLINES}"
        raise UnsupportedError(text)
    renew = Renew(lock=own.lock, fence=own.hold.fence, hold_ms=hold_ms, owner=own.owner)
    try:
        yield from channel.ask(renew)
    except NotHeldError:
        check_held(channel, own, token)
        raise


def check_held(channel: SessionChannel, own: Ownership, token: int) -> None:
    if channel.registry.state_of(own) is HoldState.LOST:
        raise channel.registry.loss_of(own)
    if not own.is_unreleased(token):
        raise NotHeldError(f"{titled(own.lock)}: this hold was released already")


def confirming(
    channel: SessionChannel, leaving: ReleaseCall, limit_s: float | None = None
) -> Operation[None]:
    """Wait until a release that began before is confirmed; send it again if necessary.

    Raises:
        TimeoutError: ``limit_s`` (s) are over; the release continues.
        UnavailableError: no node confirmed it in time; the release continues.
        FencelockError: the release failed.

    """
    registry = channel.registry
    if not leaving.awaited and not registry.await_release(leaving):
        return
    if not leaving.sent or leaving.done:
        again = registry.repeat(leaving)
        if again is None:
            return
        leaving = again
        if not leaving.sent:
            channel.submit(leaving.request(), leaving)
            leaving.sent = True
    reply_s = UNANSWERED_MS / 1000 if limit_s is None and leaving.unlimited else limit_s
    try:
        yield leaving if reply_s is None else AwaitReply(leaving, reply_s)
    except TimeoutError:
        if limit_s is not None or reply_s is None:
            raise
        leaving.awaited = False
        raise UnavailableError(
            f"{titled(leaving.own.lock)}: its release was not confirmed within {reply_s:g} s; it "
            "goes on being repeated in the background until it is"
        ) from None
    except pykka.ActorDeadError:
        raise closed_meanwhile() from None
    except NotHeldError:
        return  # Released in the background meanwhile.


def exiting(
    release: Callable[[], Operation[None]], name: str, error: BaseException | None
) -> Operation[None]:
    """Release at the end of ``with``. A failure is added to the body's ``error`` as a note."""
    try:
        yield from release()
    except FencelockError as failure:
        if error is None:
            raise
        if isinstance(error, LockOwnershipLostError):
            return
        if isinstance(failure, LockOwnershipLostError):
            error.add_note(f"and the lock was lost before: {failure}")
        else:
            kind = type(failure).__name__
            error.add_note(f"{titled(name)} could not be released either: {kind}: {failure}")


def token_of(lock: str, secret: bytes) -> str:
    """Return the token of a detached lock: its name, and the secret that attaches it."""
    body = secret + lock.encode()
    return urlsafe_b64encode(_sum(body) + body).decode().rstrip("=")


def lock_and_secret(token: str) -> tuple[str, bytes]:
    """Return the lock that a token names, and its secret.

    The text of an error does not show the token, since most of it may be right.
    """
    token = text_of("token", token)
    with suppress(ValueError):  # It has other characters.
        raw = urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}")
        start, body = raw[:_SUM_BYTES], raw[_SUM_BYTES:]
        secret, name = body[:SECRET_BYTES], body[SECRET_BYTES:]
        if name and start == _sum(body):
            return name.decode(), secret
    raise ValueError(
        f"token is no text that detach returned ({len(token)} characters): was it cut, or changed "
        "on its way?"
    )


def _sum(body: bytes) -> bytes:
    return crc32(body).to_bytes(_SUM_BYTES)
