"""Who wants the locks: contenders behind a client's session, and an auditor that asks the gates."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import NamedTuple

from holdfast.actors.effect import Effects, Observe, Send, Spawn, Wake
from holdfast.actors.lock.message import (
    Acquire,
    Describe,
    Granted,
    NodeStatus,
    Refused,
    Release,
    Released,
)
from holdfast.actors.message import Address, Instant, Local, Timer, address_of, local, timer
from holdfast.actors.role import Host, Role
from holdfast.cluster.recipe import Cast, Recipe, Seat

HOLD_MS_MAX = 150
REST_MS_MAX = 250
WAIT_MS_MAX = 2_000


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


@timer
class Rested(Timer):
    """Want something, if this is still the ``turn``."""

    turn: int


@timer
class Used(Timer):
    """Release what is held, if this is still the ``turn``."""

    turn: int


class Contender(Role[Finish | Rested | Used | Granted | Refused | Released]):
    """Wants one lock of a few, holds it for a while, releases it, rests, and again.

    Args:
        session: the client's session, on the same node.
        owner: who this is in that client.
        locks: the names to choose from.
        random: what it wants, how long it waits, holds and rests.

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
    ) -> None:
        super().__init__(address, host)
        self.session = session
        self.owner = owner
        self.locks = locks
        self.random = random
        self.mood = Mood.RESTS
        self.lock = ""
        self.fence = 0
        self.turn = 0
        self.finishing = False
        self.served = False
        """Whether a lock was granted since `Finish` came."""

    def begin(self, now: Instant) -> Effects:
        """Rest first."""
        del now
        return self._rest()

    def handle(
        self,
        sender: Address,
        event: Finish | Rested | Used | Granted | Refused | Released,
        now: Instant,
    ) -> Effects:
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
            case Refused() | Released():
                return self._on_end()

    def _is_current(self, turn: int, mood: Mood) -> bool:
        return turn == self.turn and mood is self.mood

    def _want(self) -> Effects:
        self.turn += 1
        self.mood = Mood.WANTS
        self.lock = self.random.choice(self.locks)
        limit = self.random.choice((None, None, None, 0, self.random.randint(1, WAIT_MS_MAX)))
        wait_ms = None if self.finishing else limit
        acquire = Acquire(lock=self.lock, owner=self.owner, wait_ms=wait_ms)
        return [Send(self.session, acquire), Observe("contender.wants")]

    def _on_granted(self, granted: Granted) -> Effects:
        if self.mood is not Mood.WANTS or granted.lock != self.lock:
            return [Observe("contender.granted_out_of_turn")]  # A judge has seen it.
        self.mood = Mood.HOLDS
        self.fence = granted.fence
        self.served = self.finishing
        return [Wake(self.random.randint(0, HOLD_MS_MAX), Used(turn=self.turn))]

    def _leave(self) -> Effects:
        self.mood = Mood.LEAVES
        release = Release(lock=self.lock, fence=self.fence, owner=self.owner)
        return [Send(self.session, release)]

    def _on_end(self) -> Effects:
        if self.mood is Mood.LEAVES and self.served:
            self.mood = Mood.DONE
            return ()
        return self._rest() if self.mood in {Mood.WANTS, Mood.LEAVES} else ()

    def _rest(self) -> Effects:
        self.mood = Mood.RESTS
        return [Wake(self.random.randint(1, REST_MS_MAX), Rested(turn=self.turn))]


AUDIT_MS = 500


@timer
class Audit(Timer):
    """Ask the gates again."""


class Auditor(Role[NodeStatus | Audit]):
    """Asks every gate what is held or waited for through it, until it is nothing.

    Args:
        gates: the proxies to ask.

    """

    def __init__(self, address: Address, host: Host, *, gates: tuple[Address, ...]) -> None:
        super().__init__(address, host)
        self.gates = gates
        self.left: dict[str, str] = dict.fromkeys(gates, "it never answered")
        """What is wrong at a gate still, by its address."""

    def begin(self, now: Instant) -> Effects:
        """Ask for the first time."""
        del now
        return self._ask()

    def handle(self, sender: Address, event: NodeStatus | Audit, now: Instant) -> Effects:
        """Take note of an answer, or ask again."""
        del now
        match event:
            case Audit():
                return self._ask() if self.left else ()
            case NodeStatus(locks=()):
                self.left.pop(sender, None)
            case NodeStatus():
                if sender in self.left:
                    self.left[sender] = f"it still has {event.locks!r}"
        return ()

    def _ask(self) -> Effects:
        session = self.address.partition("/")[0]
        asked = [Send(Address(gate), Describe(session=session)) for gate in self.left]
        return [*asked, Wake(AUDIT_MS, Audit())]


Door = Callable[[Seat, tuple[Address, ...]], Spawn]
"""How a client's role ``session`` is made, from its seat and the gates it may use."""


class Client(NamedTuple):
    """A node of users: what they share, and how many they are."""

    gates: tuple[Address, ...]
    owners: tuple[str, ...]
    locks: tuple[str, ...]
    door: Door

    def recipe(self) -> Recipe:
        """Return the roles of such a node: one session, and a contender for each owner."""
        return self._cast

    def _cast(self, seat: Seat) -> Cast:
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
                },
            )
            for owner in self.owners
        )
        return Cast((session, *contenders))


def session_door(seat: Seat, gates: tuple[Address, ...]) -> Spawn:
    """Return the product's own session of a client: `ClientSession`."""
    from holdfast.actors.client.session import ClientSession  # noqa: PLC0415

    arguments = {"session": seat.node, "gates": gates, "random": seat.random}
    return Spawn(address_of(seat.node, "session"), ClientSession, arguments)
