"""One turn of a proxy of `bakery`: it is short, however many requests of clients are in flight."""

from __future__ import annotations

from support.proxy_scene import BakeryProxyHarness, acquire
from support.session_harness import of

from fencelock.actors.bakery.config import BAKERY_TIMING, Terms
from fencelock.actors.bakery.message import Lock, Unlock
from fencelock.actors.deadline_queue import ENDS_MAX
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address

WAITS = 5 * ENDS_MAX
LONG_MS = 60_000
SOON_MS = 50
"""The rest of what is due follows within this time, tick or not."""


class TurnsHarness(BakeryProxyHarness):
    """The proxy of n4, and what it sends in each turn."""

    def __init__(self) -> None:
        self.turns: list[list[Send]] = []
        super().__init__(Terms(wait_ms=LONG_MS))
        self.learn()

    def _take(self, effects: Effects) -> list[Send]:
        sends = super()._take(effects)
        self.turns.append(sends)
        return sends

    def wait_for(self, locks: list[str], wait_ms: int | None = None) -> None:
        """Let a client wait for these locks; then forget the turns so far."""
        for number, lock in enumerate(locks, 1):
            asked = acquire(lock, f"c{number}", wait_ms=wait_ms)
            self.receive(Address(f"c{number}/session"), asked)
        self.turns.clear()

    def most(self) -> int:
        return max(map(len, self.turns))


LOCKS = [f"lock-{number:04}" for number in range(WAITS)]


def test_waits_that_are_due_together_are_sent_again_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS)
    again = of(Lock, proxy.run(BAKERY_TIMING.repeat_ms + SOON_MS))
    assert [one.lock for one in again] == LOCKS
    assert proxy.most() <= ENDS_MAX


def test_all_requests_are_sent_to_new_leaders_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS)
    sends = [*proxy.learn(2, ("n2", "n3")), *proxy.run(SOON_MS)]
    assert [one.lock for one in of(Lock, sends)] == LOCKS
    assert proxy.most() <= ENDS_MAX


def test_waits_that_time_out_together_end_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS, wait_ms=2_000)
    dropped = of(Unlock, proxy.run(2_000 + 2 * BAKERY_TIMING.repeat_ms))
    assert [one.lock for one in dropped[:WAITS]] == LOCKS
    assert proxy.most() <= 2 * ENDS_MAX, "a refusal and a drop for each"
