"""A workload of claims for several locks, beside claims for one, and its judge."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.lock_all import SEVERAL, AcquireAll
from fencelock.actors.api.message import Granted
from fencelock.actors.api.name import kind_of
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, address_of
from fencelock.actors.role import Host
from fencelock.actors.session.message import HoldsLost
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import LockUser, release_in

SEVERAL_SHARE = 0.6
"""Share of acquires that are for several locks."""


class SeveralUser(LockUser):
    """Wants several locks at once, in any order, or one of them."""

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        options["acquisitions"] = 1
        super().__init__(address, host, **options)

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
            self.wants[delivered.to] = name
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
