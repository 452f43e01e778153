"""The users of locks in a run: contenders behind a client's session, which reports losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import count
from random import Random
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import (
    Acquire,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
    Unlocking,
)
from fencelock.actors.api.name import object_name
from fencelock.actors.api.retained import RETAINERS
from fencelock.actors.effect import Effect, Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, Local, Timer, address_of, node_of
from fencelock.actors.role import Host, Role
from fencelock.actors.session.event import HoldsLost, ReleaseUnawaited, Suspected
from fencelock.actors.session.retained import RetainTerms
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.retaining import LockLost, retaining

HOLD_MS_MAX = 150
PAUSE_MS_MAX = 250
WAIT_MS_MAX = 2_000
LEVELS = 2
"""The most holds of a contender that enters a lock again."""
REENTRY_SHARE = 0.3
LONG_SHARE = 0.5
"""Share of holds that last so long that their session may end meanwhile."""

HANDED = "handed-"
"""The beginning of the names of locks that are handed over. Other workloads do not use them."""

UNAWAITED = 1
"""The number of a release for which its contender does not wait. Other requests of locks have 0."""


class ContenderPhase(Enum):
    """The state of a contender."""

    PAUSED = "is paused"
    WAITING = "waits"
    HOLDING = "holds"
    RELEASING = "releases"
    DONE = "is done"


class Finish(Local):
    """The faults are over: get a lock once more, without limit, release it, and be done.

    A proposer of the log finishes one more request, and deposes no leader any more.
    """


class PauseEnded(Timer):
    """Request a lock, if this is still the ``turn``."""

    turn: int


class UseEnded(Timer):
    """Release the hold, if this is still the ``turn``."""

    turn: int


ContenderEvent = Finish | LockLost | PauseEnded | UseEnded | Granted | Refused | Released


class LockUser(Role[ContenderEvent]):
    """Wants one lock of a few, holds it for a while, releases it, pauses, and again.

    Args:
        session: the client's session, on the same node, or its `LocalOwners`.
        owner: its owner name in that client.
        locks: the names to choose from.
        random: decides its choices and the lengths of waits, holds and pauses.
        lease_ms: time that its holds outlive its client's silence, or 0 if there is no such limit;
            with one it sometimes holds for longer.
        acquisitions: limit of its holds of a lock at once; with more than one it sometimes
            enters again.
        unawaited_share: the share of its releases for which it does not wait.

    """

    KIND: ClassVar[str] = ""
    """The kind of the objects that it uses; empty for locks."""

    MAY_LEAVE_UNAWAITED: ClassVar = True
    """Whether it can go on without the reply: it tells it from others, and counts its holds."""

    MAY_ENTER_AGAIN: ClassVar = True
    """Whether it can have several holds of a lock at once."""

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: Address,
        owner: str,
        locks: tuple[str, ...],
        random: Random,
        lease_ms: int = 0,
        acquisitions: int = 1,
        unawaited_share: float = 0.0,
    ) -> None:
        super().__init__(address, host)
        self.unawaited_share = unawaited_share if self.MAY_LEAVE_UNAWAITED else 0.0
        self.lease_ms = lease_ms
        self.most = acquisitions if self.MAY_ENTER_AGAIN else 1
        self.session, self.owner = session, owner
        self.locks = tuple(object_name(self.KIND, lock) if self.KIND else lock for lock in locks)
        self.random = random
        self.phase = ContenderPhase.PAUSED
        self.lock = ""
        self.fence = 0
        self.acquisitions = 0
        """The number of its holds of the lock."""
        self.turn = 0
        self.finishing = False
        self.served = False
        """Whether a lock was granted since `Finish` came."""

    def begin(self, now: Instant) -> Effects:
        return self._pause()

    def handle(self, sender: Address, event: ContenderEvent, now: Instant) -> Effects:
        match event:
            case Finish():
                self.finishing = True
                return self._request() if self.phase is ContenderPhase.PAUSED else ()
            case PauseEnded():
                return (
                    self._request() if self._is_current(event.turn, ContenderPhase.PAUSED) else ()
                )
            case UseEnded():
                return (
                    self._release() if self._is_current(event.turn, ContenderPhase.HOLDING) else ()
                )
            case Granted():
                return self._on_granted(event)
            case LockLost():
                return self._on_lock_lost(event)
            case Refused(request=number) | Released(request=number) if number == UNAWAITED:
                return [Observe("contender.released_later")]
            case Refused():
                refused = Observe(f"contender.refused_{event.reason.name.lower()}")
                return [refused, *self._on_end(self._left_by(event))]
            case Released():
                return self._on_end(left=event.count)

    def _left_by(self, refused: Refused) -> int:
        """Return how many holds are left: a release that no node confirmed goes on being sent."""
        is_release = self.phase is ContenderPhase.RELEASING
        return self.acquisitions - 1 if is_release and refused.reason is Reason.UNAVAILABLE else 0

    def _is_current(self, turn: int, phase: ContenderPhase) -> bool:
        return turn == self.turn and phase is self.phase

    def _request(self) -> Effects:
        self.turn += 1
        self.phase = ContenderPhase.WAITING
        self.lock = self.random.choice(self.locks)
        limit = self.random.choice((None, None, None, 0, self.random.randint(1, WAIT_MS_MAX)))
        wait_ms = None if self.finishing else limit
        return [self._ask(wait_ms), Observe("contender.requests")]

    def _ask(self, wait_ms: int | None) -> Send:
        acquire = Acquire(lock=self.lock, owner=self.owner, wait_ms=wait_ms, limit=self.most)
        return Send(self.session, acquire)

    def _on_granted(self, granted: Granted) -> Effects:
        if self.phase is not ContenderPhase.WAITING or granted.lock != self.lock:
            return [Observe("contender.granted_out_of_turn")]  # A judge has seen it.
        self.fence, self.acquisitions = granted.fence, granted.count
        self.served = self.finishing
        twice = self.most > 1 and self.random.random() < REENTRY_SHARE
        if twice and self.acquisitions < self.most:
            return [self._ask(None), Observe("contender.enters_again")]
        self.phase = ContenderPhase.HOLDING
        may = self.lease_ms > 0 and not self.finishing
        longer = may and self.random.random() < LONG_SHARE
        most = 2 * self.lease_ms if longer else HOLD_MS_MAX
        return [Wake(self.random.randint(0, most), UseEnded(turn=self.turn))]

    def _on_lock_lost(self, lost: LockLost) -> Effects:
        if self.phase is not ContenderPhase.HOLDING or (lost.lock, lost.fence) != (
            self.lock,
            self.fence,
        ):
            return [Observe("contender.lost_while_releasing")]  # The reply is in flight.
        return [Observe("contender.lost"), *self._on_end(left=0)]

    def _release(self) -> Effects:
        self.phase = ContenderPhase.RELEASING
        release = Release(lock=self.lock, fence=self.fence, owner=self.owner)
        if not self.unawaited_share or self.random.random() >= self.unawaited_share:
            return [Send(self.session, release)]
        unawaited = ReleaseUnawaited(release=replace(release, request=UNAWAITED))
        return [Send(self.session, unawaited), *self._on_end(left=self.acquisitions - 1)]

    def _on_end(self, left: int) -> Effects:
        """Go on after the end of a wait or a hold; ``left`` holds of the lock are left."""
        self.acquisitions = left
        if self.phase is ContenderPhase.RELEASING and left:
            return self._release()
        if self.phase in {ContenderPhase.RELEASING, ContenderPhase.HOLDING} and self.served:
            self.phase = ContenderPhase.DONE
            return ()
        return (
            self._pause()
            if self.phase
            in {ContenderPhase.WAITING, ContenderPhase.RELEASING, ContenderPhase.HOLDING}
            else ()
        )

    def _pause(self) -> Effects:
        self.phase = ContenderPhase.PAUSED
        return [Wake(self.random.randint(1, PAUSE_MS_MAX), PauseEnded(turn=self.turn))]


def release_in(effect: Effect) -> Release | None:
    """Return the release that a contender sends with ``effect``, whether or not it waits for it."""
    message = effect.message if type(effect) is Send else None
    if type(message) is ReleaseUnawaited:
        return message.release
    return message if type(message) is Release else None


class LossNotifier(Role[Unlocking | Suspected | HoldsLost]):
    """Notifies the contenders of its node of losses; the session's watcher, which judges see."""

    def handle(
        self,
        sender: Address,
        event: Unlocking | Suspected | HoldsLost,
        now: Instant,
    ) -> Effects:
        match event:
            case Unlocking():
                return [Observe("watcher.unlocking")]
            case Suspected():
                return [Observe("watcher.suspected")]
            case HoldsLost():
                node = node_of(self.address)
                return [
                    Send(address_of(node, loss.owner), LockLost(lock=loss.lock, fence=loss.fence))
                    for loss in event.losses
                    if loss.owner not in RETAINERS  # Its local owners are notified one by one.
                ]


MakeSession = Callable[[NodeContext, tuple[Address, ...]], Spawn]
"""Makes a client's role ``session``, from its context and the proxies it may use."""


class ClientPlan(NamedTuple):
    """One client: the common options of its users, and the role of each user by its name."""

    proxies: tuple[Address, ...]
    owners: Mapping[str, type[LockUser]]
    locks: tuple[str, ...]
    make_session: MakeSession
    ttl_ms: int = 0
    """TTL of its session, where the cluster has sessions; 0 where it has not."""
    acquisitions: int = 1
    """Limit of an owner's holds of a lock at once."""
    unawaited_share: float = 0.0
    """Share of releases for which a contender does not wait."""
    retained: RetainTerms | None = None
    """Says for how long it retains locks, if it does."""

    def make_roles(self) -> MakeRoles:
        """Return the roles of such a node: one session, and a contender for each owner.

        It lives once: a second start has no roles, as a new process is not the one that died.
        """
        lives = count(1)
        return lambda context: self._make_roles(context) if next(lives) == 1 else RoleSet(())

    def _make_roles(self, context: NodeContext) -> RoleSet:
        session = self.make_session(context, self.proxies)
        owners: list[Spawn] = []
        if self.ttl_ms and self.retained is not None:
            session, *owners = retaining(session, self.retained)
        contenders = tuple(
            Spawn(
                address_of(context.node, owner),
                user,
                {
                    "session": (*owners, session)[0].address,
                    "owner": owner,
                    "locks": self.locks,
                    "random": Random(f"{context.boot}/{owner}"),
                    "lease_ms": self.ttl_ms,
                    "acquisitions": self.acquisitions if self.ttl_ms else 1,
                    "unawaited_share": self.unawaited_share,
                },
            )
            for owner, user in self.owners.items()
        )
        if not self.ttl_ms:
            return RoleSet((session, *contenders))
        watcher = Spawn(address_of(context.node, WATCHER), LossNotifier)
        arguments = {**session.arguments, "watcher": watcher.address, "ttl_ms": self.ttl_ms}
        return RoleSet((watcher, replace(session, arguments=arguments), *owners, *contenders))


WATCHER = "watcher"
"""The role of a client's node that receives the events of its session."""


def client_session(context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    from fencelock.actors.session.session import ClientSession  # noqa: PLC0415

    arguments = {"session": context.node, "endpoints": proxies, "random": context.random}
    return Spawn(address_of(context.node, "session"), ClientSession, arguments)
