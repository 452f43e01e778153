"""A reader in a simulated cluster, and the judge of the replies that it gets.

Both are added to a run by `run_read_seed` only, so that all other seeds run as before.
"""

from __future__ import annotations

from itertools import cycle
from random import Random

from fencelock.actors.api.lock_message import Inspect, LockStatus, Refused
from fencelock.actors.effect import Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Timer, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings, make_roles_of
from fencelock.verification.simulation.bakery_run import draw_bakery_plan
from fencelock.verification.simulation.faults import promise_of
from fencelock.verification.simulation.judge import JudgedHold, LockJudge
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError
from fencelock.verification.simulation.world import World

READ_EVERY_MS = 40
"""The longest pause between two reads (ms)."""

READER = "r"


class ReadNext(Timer):
    """Ask the next proxy about a lock."""


class Onlooker(Role[ReadNext | LockStatus | Refused]):
    """Asks all proxies in turn for the holders of locks, and does not wait for the replies.

    Args:
        proxies: the proxies of the cluster.
        locks: which locks to ask about.
        random: when to ask, and about which lock.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        proxies: tuple[Address, ...],
        locks: tuple[str, ...],
        random: Random,
    ) -> None:
        super().__init__(address, host)
        self.proxies = cycle(proxies)
        self.locks = locks
        self.random = random
        self.request = 0

    def begin(self, now: Instant) -> Effects:
        return [self._again()]

    def handle(
        self, sender: Address, event: ReadNext | LockStatus | Refused, now: Instant
    ) -> Effects:
        """Read, or count an answer."""
        match event:
            case ReadNext():
                self.request += 1
                lock = self.random.choice(self.locks)
                asked = Inspect(lock=lock, session=READER, request=self.request)
                return [Send(next(self.proxies), asked), self._again()]
            case LockStatus():
                name = "free" if event.holder is None else "held"
                return [Observe(f"onlooker.reported_{name}")]
            case Refused():
                return [Observe("onlooker.refused")]

    def _again(self) -> Wake:
        return Wake(self.random.randint(1, READ_EVERY_MS), ReadNext())


class ReadsJudge:
    """Demands that no read says "no holder" of a lock that one contender held all the while.

    A read lasts from its request to its reply. A contender holds a lock
    as `LockJudge` counts it: while it may believe that it does.

    Args:
        locks: knows the holders.
        reader: the address of the `Onlooker`.

    """

    def __init__(self, locks: LockJudge, reader: Address) -> None:
        self.locks = locks
        self.reader = reader
        self.held: dict[int, JudgedHold] = {}
        """By request: who held the lock when it was requested."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        """Note the holder of a lock when a read of it begins; judge the reply."""
        if delivered.to != self.reader:
            return
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Inspect:
                hold = self.locks.inside.get(effect.message.lock)
                if hold is not None and self.locks.may_be_inside(hold):
                    self.held[effect.message.request] = hold
        event = delivered.event
        if type(event) is not LockStatus:
            return
        hold = self.held.pop(event.request, None)
        if hold is None or event.holder is not None:
            return
        if self.locks.inside.get(event.lock) is hold and self.locks.may_be_inside(hold):
            since = f"{hold.since / NS_PER_MS:.3f} ms"
            raise ViolationError(
                f"reads: {delivered.sender} reports no holder of {event.lock!r}, which "
                f"{hold.contender} has held since {since} under fence {hold.fence}"
            )

    def crashed(self, node: str, boot: int) -> None:
        """Do nothing: `LockJudge` ends the holds of clients that died."""


def run_read_seed(protocol: str, seed: int, *, make_roles: MakeRoles | None = None) -> RunReport:
    """Run one seed with a reader in it, and also judge the reads.

    Args:
        protocol: its name.
        seed: fixes everything.
        make_roles: sets up a member, for example with a planted bug; the protocol's own if None.

    """
    promise = promise_of(protocol, ProtocolSettings())
    plan: RunPlan | None = draw_bakery_plan(seed) if protocol == "bakery" else None

    def judges(world: World) -> list[Judge]:
        (locks,) = [judge for judge in world.judges if isinstance(judge, LockJudge)]
        address = address_of(READER, "onlooker")
        proxies = tuple(address_of(name, "proxy") for name in sorted(locks.members))

        def make_roles(context: NodeContext) -> RoleSet:
            random = Random(f"{seed}/onlooker/{context.boot}")
            arguments = {"proxies": proxies, "locks": ("lock-1",), "random": random}
            return RoleSet((Spawn(address, Onlooker, arguments),))

        world.add(READER, make_roles, member=False)
        return [ReadsJudge(locks, address)]

    chosen = make_roles if make_roles is not None else make_roles_of(protocol)
    return run_seed(chosen, seed, plan=plan, promise=promise, judges=judges)
