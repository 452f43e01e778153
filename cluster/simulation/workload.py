"""Who wants the locks: contenders behind a client's session, who may be told of a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from itertools import count
from random import Random
from typing import NamedTuple

from fencelock.actors.client.message import HoldsLost, Leased, Suspected, Trusted
from fencelock.actors.effect import Effects, Observe, Send, Spawn, Wake
from fencelock.actors.lock.message import (
    Acquire,
    Granted,
    Refused,
    Release,
    Released,
)
from fencelock.actors.lock.session_message import Unlocking
from fencelock.actors.message import (
    Address,
    Instant,
    Local,
    Timer,
    address_of,
    local,
    node_of,
    timer,
)
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.topology import NodeContext, Recipe

HOLD_MS_MAX = 150
REST_MS_MAX = 250
WAIT_MS_MAX = 2_000
LEVELS = 2
"""How often a contender that enters again holds a lock at most."""
REENTRY_SHARE = 0.3
LONG_SHARE = 0.5
"""How often a lock is held for so long that its session may end meanwhile."""


class Mood(Enum):
    """What a contender is doing."""

    RESTS = "rests"
    WANTS = "wants"
    HOLDS = "holds"
    LEAVES = "leaves"
    DONE = "is done"


@local
class Finish(Local):
    """Misfortune is over: get a lock once more, without limit, release it, and be done."""


@local
class Bereft(Local):
    """What was held under that fence is held no more."""

    lock: str
    fence: int


@timer
class Rested(Timer):
    """Want something, if this is still the ``turn``."""

    turn: int


@timer
class Used(Timer):
    """Release what is held, if this is still the ``turn``."""

    turn: int


Met = Finish | Bereft | Rested | Used | Granted | Refused | Released


class Contender(Role[Met]):
    """Wants one lock of a few, holds it for a while, releases it, rests, and again.

    Args:
        session: the client's session, on the same node.
        owner: who this is in that client.
        locks: the names to choose from.
        random: what it wants, how long it waits, holds and rests.
        lease_ms: how long what it holds outlives its client's silence, 0 if there is no such
            thing; then it sometimes holds for longer.
        levels: how often it holds a lock at once at most; with more than one it sometimes
            enters again.

    """

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
        levels: int = 1,
    ) -> None:
        super().__init__(address, host)
        self.lease_ms = lease_ms
        self.most = levels
        self.session = session
        self.owner = owner
        self.locks = locks
        self.random = random
        self.mood = Mood.RESTS
        self.lock = ""
        self.fence = 0
        self.levels = 0
        """How often it holds the lock at once."""
        self.turn = 0
        self.finishing = False
        self.served = False
        """Whether a lock was granted since `Finish` came."""

    def begin(self, now: Instant) -> Effects:
        """Rest first."""
        del now
        return self._rest()

    def handle(self, sender: Address, event: Met, now: Instant) -> Effects:
        """Go on to the next thing a contender does."""
        del sender, now
        match event:
            case Finish():
                self.finishing = True
                return self._want() if self.mood is Mood.RESTS else ()
            case Rested():
                return self._want() if self._is_current(event.turn, Mood.RESTS) else ()
            case Used():
                return self._leave() if self._is_current(event.turn, Mood.HOLDS) else ()
            case Granted():
                return self._on_granted(event)
            case Bereft():
                return self._on_bereft(event)
            case Refused():
                return self._on_end(left=0)
            case Released():
                return self._on_end(left=event.count)

    def _is_current(self, turn: int, mood: Mood) -> bool:
        return turn == self.turn and mood is self.mood

    def _want(self) -> Effects:
        self.turn += 1
        self.mood = Mood.WANTS
        self.lock = self.random.choice(self.locks)
        limit = self.random.choice((None, None, None, 0, self.random.randint(1, WAIT_MS_MAX)))
        wait_ms = None if self.finishing else limit
        return [self._ask(wait_ms), Observe("contender.wants")]

    def _ask(self, wait_ms: int | None) -> Send:
        acquire = Acquire(lock=self.lock, owner=self.owner, wait_ms=wait_ms, limit=self.most)
        return Send(self.session, acquire)

    def _on_granted(self, granted: Granted) -> Effects:
        if self.mood is not Mood.WANTS or granted.lock != self.lock:
            return [Observe("contender.granted_out_of_turn")]  # A judge has seen it.
        self.fence, self.levels = granted.fence, granted.count
        self.served = self.finishing
        twice = self.most > 1 and self.random.random() < REENTRY_SHARE
        if twice and self.levels < self.most:
            return [self._ask(None), Observe("contender.enters_again")]
        self.mood = Mood.HOLDS
        may = self.lease_ms > 0 and not self.finishing
        longer = may and self.random.random() < LONG_SHARE
        most = 2 * self.lease_ms if longer else HOLD_MS_MAX
        return [Wake(self.random.randint(0, most), Used(turn=self.turn))]

    def _on_bereft(self, bereft: Bereft) -> Effects:
        if self.mood is not Mood.HOLDS or (bereft.lock, bereft.fence) != (self.lock, self.fence):
            return [Observe("contender.lost_while_leaving")]  # The answer is on its way.
        return [Observe("contender.bereft"), *self._on_end(left=0)]

    def _leave(self) -> Effects:
        self.mood = Mood.LEAVES
        release = Release(lock=self.lock, fence=self.fence, owner=self.owner)
        return [Send(self.session, release)]

    def _on_end(self, left: int) -> Effects:
        """Go on when something is over; of what is held, ``left`` times are left."""
        self.levels = left
        if self.mood is Mood.LEAVES and left:
            return self._leave()
        if self.mood in {Mood.LEAVES, Mood.HOLDS} and self.served:
            self.mood = Mood.DONE
            return ()
        return self._rest() if self.mood in {Mood.WANTS, Mood.LEAVES, Mood.HOLDS} else ()

    def _rest(self) -> Effects:
        self.mood = Mood.RESTS
        return [Wake(self.random.randint(1, REST_MS_MAX), Rested(turn=self.turn))]


class Herald(Role[Trusted | Leased | Unlocking | Suspected | HoldsLost]):
    """Tells the contenders of its node what they lost; judges look on (session's watcher)."""

    def handle(
        self,
        sender: Address,
        event: Trusted | Leased | Unlocking | Suspected | HoldsLost,
        now: Instant,
    ) -> Effects:
        """Pass losses on."""
        del sender, now
        match event:
            case Trusted() | Leased():
                return ()
            case Unlocking():
                return [Observe("herald.unlocking")]
            case Suspected():
                return [Observe("herald.suspected")]
            case HoldsLost():
                node = node_of(self.address)
                return [
                    Send(address_of(node, loss.owner), Bereft(lock=loss.lock, fence=loss.fence))
                    for loss in event.losses
                ]


Door = Callable[[NodeContext, tuple[Address, ...]], Spawn]
"""How a client's role ``session`` is made, from its seat and the gates it may use."""


class Client(NamedTuple):
    """A node of users: what they share, and how many they are."""

    gates: tuple[Address, ...]
    owners: tuple[str, ...]
    locks: tuple[str, ...]
    door: Door
    ttl_ms: int = 0
    """Of its session, where the cluster keeps such; 0 where it does not."""
    levels: int = 1
    """How often an owner holds a lock at once at most."""

    def recipe(self) -> Recipe:
        """Return the roles of such a node: one session, and a contender for each owner.

        It lives once: when it is switched on again nobody is there, as when a process that
        died is not the one that is started next.
        """
        lives = count(1)
        return lambda seat: self._cast(seat) if next(lives) == 1 else RoleSet(())

    def _cast(self, seat: NodeContext) -> RoleSet:
        session = self.door(seat, self.gates)
        contenders = tuple(
            Spawn(
                address_of(seat.node, owner),
                Contender,
                {
                    "session": session.address,
                    "owner": owner,
                    "locks": self.locks,
                    "random": Random(f"{seat.boot}/{owner}"),
                    "lease_ms": self.ttl_ms,
                    "levels": self.levels if self.ttl_ms else 1,
                },
            )
            for owner in self.owners
        )
        if not self.ttl_ms:
            return RoleSet((session, *contenders))
        executor = Spawn(address_of(seat.node, WATCHER), Herald)
        arguments = {**session.arguments, "watcher": executor.address, "ttl_ms": self.ttl_ms}
        return RoleSet((executor, replace(session, arguments=arguments), *contenders))


WATCHER = "watcher"
"""The role of a client's node that hears of its session's life."""


def session_door(seat: NodeContext, gates: tuple[Address, ...]) -> Spawn:
    """Return the product's own session of a client: `ClientSession`."""
    from fencelock.actors.client.session import ClientSession  # noqa: PLC0415

    arguments = {"session": seat.node, "gates": gates, "random": seat.random}
    return Spawn(address_of(seat.node, "session"), ClientSession, arguments)
