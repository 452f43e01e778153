"""The local owners of a simulated client that retains locks, as its threads are in production.

The contenders of such a client send their requests to `LocalOwners` instead of the session. It
decides with `RetainedLocks`, which it shares with the `Retainer`, and carries out at once what was
decided, as `cluster/client/retaining.py` does: one turn of this role stands for one section under
the guard there. What is diverted goes to the session.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.lock_message import Acquire, Granted, Reason, Refused, Release, Released
from fencelock.actors.api.retained import READERS, RETAINER, RETAINERS, WRITERS
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.effect import Effect, Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, Local, Timer, address_of, ms_between, node_of
from fencelock.actors.role import Host, Role
from fencelock.actors.session.event import Close, Closed, ReleaseUnawaited
from fencelock.actors.session.holds import UNCONFIRMED, ClientHold, HoldState
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.retained import (
    Admit,
    Divert,
    GiveBack,
    LockAct,
    Lose,
    Refuse,
    Request,
    RetainedLocks,
    RetainTerms,
    Withdraw,
)
from fencelock.actors.session.retainer import Decided, Perform, Retainer, WatchIdle

RETAINER_ROLE = "retainer"
OWNERS_ROLE = "owners"
"""The names of the two roles in a client that retains locks."""

_NOWHERE = Address("")
"""The endpoint of a local owner's hold, which no request names."""


class LockLost(Local):
    """To a contender: its hold under that fence was lost."""

    lock: str
    fence: int


class WaitEnded(Timer):
    """The wait ``token`` of a local owner has lasted as long as it may."""

    token: int


@dataclass(slots=True)
class LocalWait:
    """An acquire that waits for `RetainedLocks`."""

    asked: Acquire | AcquireReadWrite
    since: Instant

    @property
    def key(self) -> LockKey:
        """The key under which the session retains the lock for this acquire."""
        asked = self.asked
        if isinstance(asked, Acquire):
            return LockKey(asked.lock, RETAINER)
        return LockKey(asked.lock, WRITERS if asked.write else READERS)


@dataclass(slots=True)
class LocalHold:
    """A local owner that has a retained lock."""

    token: int
    key: LockKey
    """The key under which the session retains the lock."""
    hold: ClientHold
    reads: bool
    """Whether it may only read."""
    acquisitions: int = 1
    """The number of its acquires that it has not released."""


OwnersEvent = (
    Acquire
    | AcquireReadWrite
    | Attach
    | Detach
    | Downgrade
    | Release
    | ReleaseUnawaited
    | Close
    | Closed
    | WaitEnded
    | Decided
    | Granted
    | Refused
    | Released
)


class LocalOwners(Role[OwnersEvent]):
    """Lets the contenders of a client share the locks that it retains; see the head of the module.

    Args:
        retainer: the `Retainer`, whose watcher this role is.
        holds: the holds of the session, which this role only reads.
        locks: the retained locks, which the `Retainer` shares.
        terms: says for how long they are retained.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: Address,
        retainer: Address,
        holds: dict[LockKey, ClientHold],
        locks: RetainedLocks,
        terms: RetainTerms,
    ) -> None:
        super().__init__(address, host)
        self.session, self.retainer = session, retainer
        self.holds, self.locks, self.terms = holds, locks, terms
        self.waiting: dict[int, LocalWait] = {}
        """The acquires that wait, by token."""
        self.inside: dict[LockKey, LocalHold] = {}
        """The local owners that have a lock."""
        self.surrendering: dict[int, LockKey] = {}
        """The local owners that wait for the reply to a `Downgrade` or `Detach`, by its number."""
        self.tokens = 0
        self.closed = False

    def handle(self, sender: Address, event: OwnersEvent, now: Instant) -> Effects:
        match event:
            case Acquire() | AcquireReadWrite():
                return self._on_acquire(event, now)
            case Attach():
                return [Send(self.session, event)]
            case Downgrade() | Detach():
                return self._on_surrender(event, now)
            case Release() | ReleaseUnawaited():
                return self._on_release(event, now)
            case WaitEnded(token=token):
                return self._on_wait_ended(token, now)
            case Decided():
                return self._on_decided(event, now)
            case Granted() | Refused() | Released():
                if event.owner in RETAINERS:
                    return self._on_surrendered(event, now)
                return [Send(self._contender(event.owner), event)]
            case Close() | Closed():
                return self._on_close(event, now)

    def _on_decided(self, decided: Decided, now: Instant) -> Effects:
        effects: list[Effect] = []
        for act in decided.acts:
            match act:
                case Admit(token, fence):
                    effects += self._admit(token, fence, decided.trust)
                case Divert(token):
                    effects += self._divert(token, now)
                case Refuse(token):
                    assert decided.no is not None
                    effects += self._refuse(token, decided.no)
                case Lose(token, _):
                    effects += self._lose(token, decided.detail)
        return effects

    def _on_close(self, event: Close | Closed, now: Instant) -> Effects:
        if isinstance(event, Closed):
            return ()
        self.closed = True
        return [*self._carried_out(self.locks.close(), now), Send(self.session, event)]

    def _contender(self, owner: str) -> Address:
        return address_of(node_of(self.address), owner)

    def _on_acquire(self, asked: Acquire | AcquireReadWrite, now: Instant) -> Effects:
        place = LockKey(asked.lock, asked.owner)
        held = self.inside.get(place)
        if held is not None and held.hold.state_at(now) is not HoldState.LOST:
            return [self._enter_again(asked, held)]
        self.inside.pop(place, None)  # It finds its loss before the session does.
        if self.closed or place in self.holds:
            return [Send(self.session, asked)]
        self.tokens = token = self.tokens + 1
        wait = self.waiting[token] = LocalWait(asked, now)
        terms = self.terms._replace(shared=wait.key.owner == READERS)
        acts = self.locks.acquire(wait.key, token, terms, now, waits=asked.wait_ms != 0)
        effects = self._carried_out(acts, now)
        if token in self.waiting and asked.wait_ms:
            effects.append(Wake(asked.wait_ms, WaitEnded(token=token)))
        return effects

    def _enter_again(self, asked: Acquire | AcquireReadWrite, held: LocalHold) -> Send:
        if held.reads and isinstance(asked, AcquireReadWrite) and asked.write:
            no = Refused(lock=asked.lock, reason=Reason.ALREADY_HELD, detail="it only reads")
            return self._refused(asked, no)
        held.acquisitions += 1
        return self._granted(asked, held)

    def _on_surrender(self, asked: Downgrade | Detach, now: Instant) -> Effects:
        """Downgrade or detach the hold of the session, which goes back with its local owner."""
        place = LockKey(asked.lock, asked.owner)
        held = self.inside.get(place)
        if held is None or held.hold.fence != asked.fence:
            return [Send(self.session, asked)]
        lock = self.locks.by_key.get(held.key)
        is_lost = held.hold.state_at(now) is HoldState.LOST
        if is_lost or lock is None or held.token not in (lock.users or ()):
            return self._end_lost(asked, held, now)
        self.tokens = number = self.tokens + 1
        self.surrendering[number] = place
        held.reads = isinstance(asked, Downgrade)
        effects = self._carried_out([(held.key, act) for act in lock.surrender()], now)
        request = replace(asked, fence=lock.fence, owner=held.key.owner, request=number)
        return [
            *effects,
            Send(self.session, request),
            Observe(f"owners.{type(asked).__name__.lower()}"),
        ]

    def _on_surrendered(self, reply: Granted | Refused | Released, now: Instant) -> Effects:
        place = self.surrendering.pop(reply.request)
        held = self.inside.get(place)
        effects: list[Effect] = []
        if held is not None and (isinstance(reply, Refused) or not reply.count):
            del self.inside[place]  # Its contender gives it up, or has detached it.
            effects = self._carried_out(self.locks.release(held.key, held.token, now), now)
        reply = replace(reply, owner=place.owner, request=0)
        if held is not None and isinstance(reply, Released) and reply.count:
            reply = replace(reply, count=held.acquisitions)
        return [*effects, Send(self._contender(place.owner), reply)]

    def _on_release(self, event: Release | ReleaseUnawaited, now: Instant) -> Effects:
        release = event if isinstance(event, Release) else event.release
        place = LockKey(release.lock, release.owner)
        held = self.inside.get(place)
        if held is None or held.hold.fence != release.fence:
            return [Send(self.session, event)]
        if held.hold.state_at(now) is HoldState.LOST:
            return self._end_lost(release, held, now)
        held.acquisitions -= 1
        effects: list[Effect] = []
        if not held.acquisitions:
            del self.inside[place]
            effects = self._carried_out(self.locks.release(held.key, held.token, now), now)
        released = Released(
            lock=release.lock, owner=release.owner, request=release.request, count=held.acquisitions
        )
        return [*effects, Send(self._contender(release.owner), released)]

    def _end_lost(
        self, asked: Release | Downgrade | Detach, held: LocalHold, now: Instant
    ) -> Effects:
        """Refuse ``asked``: its owner finds the loss, maybe before the session does."""
        del self.inside[LockKey(asked.lock, asked.owner)]
        acts = self.locks.release(held.key, held.token, now)
        no = Refused(
            lock=asked.lock,
            reason=Reason.OWNERSHIP_LOST,
            detail=UNCONFIRMED,
            owner=asked.owner,
            request=asked.request,
        )
        return [*self._carried_out(acts, now), Send(self._contender(asked.owner), no)]

    def _on_wait_ended(self, token: int, now: Instant) -> Effects:
        wait = self.waiting.get(token)
        if wait is None:
            return ()
        lock = self.locks.by_key.get(wait.key)
        effects: list[Effect] = []
        if lock is not None and lock.users:
            effects = self._refuse_in_time(token)
        acts = self.locks.withdraw(wait.key, token, now)
        return [*effects, *self._carried_out(acts, now), *self._divert(token, now)]

    def _carried_out(self, acts: list[LockAct], now: Instant) -> list[Effect]:
        """Return the effects of what was decided, in order."""
        effects: list[Effect] = []
        for key, act in acts:
            match act:
                case Admit(token, fence):
                    effects += self._admit(token, fence, self.locks.by_key[key].trust)
                case Divert(token):
                    effects += self._divert(token, now)
                case Lose(token, _):
                    effects += self._lose(token, UNCONFIRMED)
                case Request() | Withdraw() | GiveBack():
                    effects.append(Send(self.retainer, Perform(key=key, act=act)))
                case Refuse(token):
                    effects += self._refuse_in_time(token)
        if self.locks.is_watch_due():
            effects.append(Send(self.retainer, WatchIdle()))
        return effects

    def _admit(self, token: int, fence: int, trust: SessionTrust | None) -> list[Effect]:
        wait = self.waiting.pop(token, None)
        if wait is None:
            return []  # It has given up: that has released the lock.
        hold = ClientHold(_NOWHERE, fence, (), trust)
        held = LocalHold(token, wait.key, hold, reads=wait.key.owner == READERS)
        self.inside[LockKey(wait.asked.lock, wait.asked.owner)] = held
        return [self._granted(wait.asked, held), Observe("owners.admitted")]

    def _granted(self, asked: Acquire | AcquireReadWrite, held: LocalHold) -> Send:
        granted = Granted(
            lock=asked.lock,
            fence=held.hold.fence,
            owner=asked.owner,
            request=asked.request,
            count=held.acquisitions,
        )
        return Send(self._contender(asked.owner), granted)

    def _divert(self, token: int, now: Instant) -> list[Effect]:
        """Let an owner acquire the lock from the cluster, for the rest of its wait."""
        wait = self.waiting.pop(token, None)
        if wait is None:
            return []
        asked, left_ms = wait.asked, wait.asked.wait_ms
        if self.closed:
            closed = Refused(lock=asked.lock, reason=Reason.CANCELLED, detail="it was closed")
            return [self._refused(asked, closed)]
        if left_ms:
            left_ms = max(0, left_ms - ms_between(wait.since, now))
        return [Send(self.session, replace(asked, wait_ms=left_ms)), Observe("owners.diverted")]

    def _refuse_in_time(self, token: int) -> list[Effect]:
        """Refuse an acquire whose time is over: another local owner has the lock, or waits."""
        wait = self.waiting.get(token)
        lock = "" if wait is None else wait.asked.lock
        return self._refuse(token, Refused(lock=lock, reason=Reason.TIMED_OUT, detail="used here"))

    def _refuse(self, token: int, no: Refused) -> list[Effect]:
        wait = self.waiting.pop(token, None)
        return [] if wait is None else [self._refused(wait.asked, no)]

    def _refused(self, asked: Acquire | AcquireReadWrite, no: Refused) -> Send:
        refused = replace(no, owner=asked.owner, request=asked.request)
        return Send(self._contender(asked.owner), refused)

    def _lose(self, token: int, detail: str) -> list[Effect]:
        for place, held in self.inside.items():
            if held.token == token:
                del self.inside[place]
                held.hold.lose(detail)
                lost = LockLost(lock=place.lock, fence=held.hold.fence)
                return [Send(self._contender(place.owner), lost), Observe("owners.lost")]
        return []


def retaining(session: Spawn, terms: RetainTerms) -> tuple[Spawn, Spawn, Spawn]:
    """Return the ``session`` of a client that retains locks, its `LocalOwners` and `Retainer`."""
    node = node_of(session.address)
    retainer, owners = address_of(node, RETAINER_ROLE), address_of(node, OWNERS_ROLE)
    holds: dict[LockKey, ClientHold] = {}
    locks = RetainedLocks()
    shared = {"session": session.address, "holds": holds, "locks": locks}
    arguments = {**session.arguments, "retainer": retainer, "holds": holds}
    return (
        replace(session, arguments=arguments),
        Spawn(owners, LocalOwners, {**shared, "retainer": retainer, "terms": terms}),
        Spawn(retainer, Retainer, {**shared, "watcher": owners}),
    )
