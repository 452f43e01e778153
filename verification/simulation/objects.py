"""The workloads of objects that are no locks, each alone or all kinds in one run."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from fencelock.actors.api.lock_all import SEVERAL, AcquireAll
from fencelock.actors.api.lock_message import Acquire, Granted
from fencelock.actors.api.name import kind_of
from fencelock.actors.effect import Effects, Send
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address, address_of, role_of
from fencelock.actors.session.event import HoldsLost
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.verification.simulation.counters import COUNTERS
from fencelock.verification.simulation.deadlines import DEADLINES, HANDOVERS
from fencelock.verification.simulation.elections import ELECTIONS
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.maps import MAPS
from fencelock.verification.simulation.passing import BARRIERS, LATCHES, POOLS
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.semaphores import RWLOCKS, SEMAPHORES
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import LockUser, release_in

SEVERAL_SHARE = 0.6
"""Share of acquires that are for several locks."""


class SeveralUser(LockUser):
    """Wants several locks at once, in any order, or one of them."""

    MAY_ENTER_AGAIN = False

    def _ask(self, wait_ms: int | None) -> Send:
        if self.random.random() >= SEVERAL_SHARE:
            return super()._ask(wait_ms)
        names = self.random.sample(self.locks, self.random.randint(1, len(self.locks)))
        acquire = AcquireAll(locks=tuple(names), owner=self.owner, wait_ms=wait_ms)
        self.lock = acquire.lock
        return Send(self.session, acquire)


class SeveralJudge(LockJudge):
    """Judges each lock of a claim for several as `LockJudge` does.

    A contender enters all of them when it handles the grant, and leaves all together.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.claimed: dict[Address, tuple[str, ...]] = {}
        """The locks of the last claim of each contender for several."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, contender = delivered.event, delivered.to
        if contender not in self.contenders:
            super().handled(delivered, effects)
            return
        if isinstance(event, Granted) and kind_of(event.lock) == SEVERAL:
            self._enter_all(delivered, event)
        else:
            super().handled(delivered, effects)
        for effect in effects:
            release = release_in(effect)
            if type(effect) is Send and type(effect.message) is AcquireAll:
                self.claimed[contender] = effect.message.locks
            elif release is not None and kind_of(release.lock) == SEVERAL:
                for name in self.claimed.get(contender, ()):
                    self._leave(contender, name)

    def _enter_all(self, delivered: Delivery, granted: Granted) -> None:
        names = self.claimed.get(delivered.to, ())
        if granted.count != len(names):
            raise ViolationError(f"{delivered.to} was granted {granted!r}, and wanted {names}")
        for fence, name in enumerate(names, granted.fence):
            self.wants[delivered.to] = Acquire(lock=name)
            self._enter(delivered, replace(granted, lock=name, fence=fence, count=1))

    def _lose(self, client: str, lost: HoldsLost) -> None:
        super()._lose(client, lost)
        for loss in lost.losses:
            contender = address_of(client, loss.owner)
            if kind_of(loss.lock) != SEVERAL:
                continue
            for fence, name in enumerate(self.claimed.get(contender, ()), loss.fence):
                hold = self.inside.get(name)
                if hold is not None and (hold.contender, hold.fence) == (contender, fence):
                    del self.inside[name]


LOCK_ALL = Workload(SeveralUser, SeveralJudge)


class MixedJudge(LockJudge):
    """Lets the judge of each kind observe the contenders of its kind.

    Args:
        kinds: the workloads of the kinds. The place of a workload among them ends the names of its
            owners.

    """

    def __init__(
        self,
        kinds: Sequence[Workload],
        members: tuple[str, ...],
        contenders: tuple[Address, ...],
        **options: Any,
    ) -> None:
        super().__init__(members, contenders, **options)
        self.parts = [
            kind.judge(
                members,
                tuple(one for one in contenders if role_of(one).endswith(f"-{place}")),
                **options,
            )
            for place, kind in enumerate(kinds)
        ]
        self.inside = cast("Any", ChainMap(*(cast("Any", part.inside) for part in self.parts)))

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for part in self.parts:
            part.handled(delivered, effects)
        self.grants = sum(part.grants for part in self.parts)

    def crashed(self, node: str, boot: int) -> None:
        for part in self.parts:
            part.crashed(node, boot)

    def left(self, client: str) -> None:
        for part in self.parts:
            part.left(client)


def mixed(kinds: Sequence[Workload]) -> Workload:
    """Return a workload of all ``kinds`` at once; each client has owners of each kind."""
    first, *others = (kind.user for kind in kinds)
    doors = next((kind.doors for kind in kinds if kind.doors is not None), None)
    return Workload(first, partial(MixedJudge, kinds), tuple(others), doors=doors)


WORKLOADS: dict[Guarantee, Workload] = {
    Guarantee.SEMAPHORES: SEMAPHORES,
    Guarantee.RWLOCKS: RWLOCKS,
    Guarantee.LOCK_ALL: LOCK_ALL,
    Guarantee.ELECTIONS: ELECTIONS,
    Guarantee.DEADLINES: DEADLINES,
    Guarantee.MAPS: MAPS,
    Guarantee.LATCHES: LATCHES,
    Guarantee.BARRIERS: BARRIERS,
    Guarantee.COUNTERS: COUNTERS,
    Guarantee.POOLS: POOLS,
    Guarantee.REDIS: REDIS_DOORS,
    Guarantee.HANDOVERS: HANDOVERS,
}
"""The workloads, each by the guarantee that it needs from the protocol."""

ALL = "all"
"""The name for the workloads of all kinds in one run."""


def workload_of(word: str, protocol: str) -> Workload:
    """Return the workload that ``word`` names: the word of a guarantee, or `ALL` for all of them.

    Raises:
        ConfigError: there is no such workload.
        UnsupportedError: the protocol does not have the objects of the workload.

    """
    words = {guarantee.word: guarantee for guarantee in WORKLOADS}
    if word == ALL:
        for guarantee in WORKLOADS:
            demand(protocol, guarantee)
        return mixed([*WORKLOADS.values()])
    if word not in words:
        raise ConfigError(f"--objects is {word!r}, and must be one of {', '.join((*words, ALL))}")
    demand(protocol, words[word])
    return WORKLOADS[words[word]]
