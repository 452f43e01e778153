"""A workload with counters and with locks that guard them, and its judge."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    CounterRequest,
    SetCounter,
)
from fencelock.actors.api.lock_message import Inspect, LockStatus, Refused
from fencelock.actors.api.name import client_of, kind_of, object_name
from fencelock.actors.api.request import RequestKey
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, Timer, address_of, node_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.maps import GUARD_SHARE, PAUSE_MS_MAX, STALE_SHARE
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
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


class CounterJudge(LockJudge):
    """Judges the locks of one run as `LockJudge` does, and the counters that they guard.

    - Once: a user's changes are at most as many as the user sent.
    - Replies: a user receives the outcome that its change has in the log, which was applied after
      all changes that any user knew when it was sent.
    - Reads: see `TableReplay.judge_read`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: dict[Address, tuple[CounterRequest | Inspect, int]] = {}
        """The request of each user in flight, and the slot that was known when it was sent."""
        self.sent: Counter[tuple[Address, str]] = Counter()
        """The changes of each user and counter that are not in the log."""
        self.slots: dict[RequestKey, int] = {}
        """The slot of each change in the log."""
        self.unheard: dict[tuple[Address, str], list[tuple[int, CounterChanged]]] = defaultdict(
            list
        )
        """The outcomes in the log, with their slots, that their users have not received."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, user = delivered.event, delivered.to
        if user not in self.contenders:
            if isinstance(event, SlotOutcomes):
                for one in event.outcomes:
                    if isinstance(one, CounterChanged):
                        self._note(one, event.slot)
            super().handled(delivered, effects)
            return
        match event:
            case CounterChanged():
                self._hear(user, event)
            case LockStatus():
                if user not in self.asked:
                    raise ViolationError(f"reads: {user} asked for nothing, and read {event!r}")
                _, floor = self.asked.pop(user)
                self.replay.judge_read(user, floor, event, {(event.lock, ""): event.left or None})
            case Refused() if kind_of(event.lock) == COUNTER:
                self.asked.pop(user, None)
            case _:
                super().handled(delivered, effects)
        for request in sent(effects, CounterRequest):
            self.asked[user] = request, self.replay.floor
            self.sent[user, request.lock] += 1
        for query in sent(effects, Inspect):
            self.asked[user] = query, self.replay.floor

    def left(self, client: str) -> None:
        """End all waits and holds of ``client``, whose requests get no reply any more."""
        super().left(client)
        for user in [user for user in self.asked if node_of(user) == client]:
            del self.asked[user]

    def _note(self, changed: CounterChanged, slot: int) -> None:
        """Note an outcome in the log, which may be that of a repetition."""
        if changed.key in self.slots:
            return
        self.slots[changed.key] = slot
        about = address_of(client_of(changed.session), changed.owner), changed.lock
        self.unheard[about].append((slot, changed))
        self.sent[about] -= 1
        if self.sent[about] < 0:
            raise ViolationError(f"once: {changed!r} is one change more than {about[0]} sent")

    def _hear(self, user: Address, changed: CounterChanged) -> None:
        asked = self.asked.pop(user, None)
        result = changed.before, changed.after, changed.changed
        found = [
            slot
            for slot, one in self.unheard.pop((user, changed.lock), ())
            if (one.before, one.after, one.changed) == result
        ]
        if asked is None or not found or found[-1] < asked[1]:
            raise ViolationError(f"replies: {user} received {changed!r} of slot {found} to {asked}")
        self.replay.knows(found[-1])


COUNTERS = Workload(CounterUser, CounterJudge)
