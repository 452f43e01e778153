"""A workload with counters and with locks that guard them, and its judge."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    SetCounter,
)
from fencelock.actors.api.lock_message import Inspect, LockStatus, Refused
from fencelock.actors.api.name import kind_of, object_name
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer
from fencelock.actors.role import Host
from fencelock.verification.simulation.maps import GUARD_SHARE, PAUSE_MS_MAX, STALE_SHARE
from fencelock.verification.simulation.object_judge import ObjectJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.workload import ContenderEvent, ContenderPhase, LockUser

NAMES = ("hits", "jobs")
AMOUNTS = (1, 1, 1, 2, -1, -3)
"""The amounts that users add."""

LIMITS = (-VALUE_MAX, VALUE_MAX)
"""Values at which an amount can be too much."""

READ_SHARE, SET_SHARE, LIMIT_SHARE = 0.3, 0.2, 0.2


class CounterPauseEnded(Timer):
    """Send the next request about a counter."""


CounterEvent = ContenderEvent | CounterChanged | LockStatus | CounterPauseEnded


class CounterUser(LockUser):
    """Uses locks like a `LockUser`, and at the same time counters, with holds as guards."""

    _named = (*LockUser._named, CounterChanged, LockStatus, CounterPauseEnded)

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.seen: dict[str, int] = dict.fromkeys(NAMES, 0)
        """The last value of each counter that the user has seen."""

    def begin(self, now: Instant) -> Effects:
        return [*super().begin(now), self._pause_counters()]

    def handle(self, sender: Address, event: CounterEvent, now: Instant) -> Effects:
        match event:
            case CounterPauseEnded():
                return () if self.phase is ContenderPhase.DONE else self._use_counter()
            case CounterChanged():
                self.seen[event.lock.removeprefix(object_name(COUNTER, ""))] = event.after
                changed = Observe(f"contender.counter_{'' if event.changed else 'un'}changed")
                return [changed, self._pause_counters()]
            case LockStatus():
                self.seen[event.lock.removeprefix(object_name(COUNTER, ""))] = event.left or 0
                return [Observe("contender.counter_read"), self._pause_counters()]
            case Refused() if kind_of(event.lock) == COUNTER:
                refused = Observe(f"contender.counter_{event.reason.name.lower()}")
                return [refused, self._pause_counters()]
            case _:
                return super().handle(sender, event, now)

    def _pause_counters(self) -> Wake:
        return Wake(self.random.randint(1, PAUSE_MS_MAX), CounterPauseEnded())

    def _use_counter(self) -> Effects:
        chance, name = self.random.random, self.random.choice(NAMES)
        if chance() < READ_SHARE:
            return [Send(self.session, Inspect(lock=object_name(COUNTER, name)))]
        about: dict[str, Any] = {"counter": name, "owner": self.owner}
        share = GUARD_SHARE if self.phase is ContenderPhase.HOLDING else STALE_SHARE
        if chance() < share and self.fence:
            about |= {"guard": self.lock, "fence": self.fence}
        if chance() >= SET_SHARE:
            add = AddToCounter(**about, amount=self.random.choice(AMOUNTS))
            return [Send(self.session, add)]
        limits = chance() < LIMIT_SHARE
        value = self.random.choice(LIMITS) if limits else self.random.randint(-3, 3)
        expected = self.random.choice((None, self.seen[name], self.seen[name], 0))
        return [Send(self.session, SetCounter(**about, value=value, expected=expected))]


class CounterJudge(ObjectJudge):
    """Judges the locks of one run, and the counters that they guard."""

    kind = COUNTER
    query = Inspect

    def values(self, query: Inspect, read: LockStatus) -> dict[tuple[str, str], Any]:
        return {(read.lock, ""): read.left or None}


COUNTERS = Workload(CounterUser, CounterJudge)
