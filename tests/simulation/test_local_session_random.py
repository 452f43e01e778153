"""Callers inside two nodes over one table, at random: proposals get lost, outcomes come late.

Judged from outside: a lock is held through one node at a time, as far as the nodes believe, and
once everything was released nothing is left.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from support.local_callers import LocalNode

from fencelock.actors.api.lock_message import Abandon, Acquire, Granted, Refused, Release, Released
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.session.session import TTL_MS
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result

SEEDS = range(30)
STEPS = 400
LOCKS = ("a", "b")
LOSS = 0.2
SETTLED_MS = 10_000
"""Less than a TTL: a hold that is left then was not released, and did not end by itself."""
DRIFT_PPM = 900


class CallersOfNode:
    """A node: its session and proxy, its clock, its callers, and the outcomes on their way."""

    def __init__(self, world: TwoNodes, node: str, rate: float) -> None:
        self.world = world
        self.name = node
        self.rate = rate
        self.asks = 0
        self.waiting: dict[Address, str] = {}
        self.holds: list[tuple[str, int]] = []
        self.releasing: dict[Address, tuple[str, int]] = {}
        self.late: deque[tuple[Result, ...]] = deque()
        self.cut_off = False
        self.stubborn = False
        """Whether its callers keep their holds."""
        self.node = LocalNode(node, lambda: self.now, self._propose, self._reply)

    @property
    def now(self) -> Instant:
        return Instant(int(self.world.ms * self.rate * NS_PER_MS))

    def _propose(self, command: Any) -> None:
        if not self.cut_off:
            self.world.propose(command)

    def _reply(self, to: Address, message: Any) -> None:
        match message:
            case Granted():
                del self.waiting[to]
                self.holds.append((message.lock, message.fence))
            case Released():
                del self.releasing[to]
            case Refused():
                self.waiting.pop(to, None)
                self.releasing.pop(to, None)
            case _:
                raise AssertionError(message)

    def act(self, random: Random) -> None:
        """Ask for something, as callers do."""
        ask = Address(f"{self.name}/ask-{self.asks}")
        choice = random.choices((0, 1, 2), (6, 0 if self.stubborn else 4, 1))[0]
        if choice == 0 and len(self.waiting) < 4:
            self.asks += 1
            wait_ms = random.choice((None, 0, 300, 2_000))
            lock = random.choice(LOCKS)
            self.waiting[ask] = lock
            self.node.ask(ask, Acquire(lock=lock, wait_ms=wait_ms))
        elif choice == 1 and self.holds:
            self.asks += 1
            hold = self.holds.pop(random.randrange(len(self.holds)))
            self.releasing[ask] = hold
            self.node.ask(ask, Release(lock=hold[0], fence=hold[1]))
        elif choice == 2 and self.waiting:
            gone = random.choice(sorted(self.waiting))
            del self.waiting[gone]
            self.node.ask(gone, Abandon())

    def pass_time(self) -> None:
        """Receive some of the events, and ring."""
        random, punctual = self.world.random, 0.0 if self.cut_off else self.world.punctual
        while self.late and random.random() < punctual:
            self.node.learn(self.late.popleft())
        self.node.ring()

    def believed(self) -> list[str]:
        """Return the locks that callers hold through this node, as far as it believes."""
        ledger = self.node.session.session_state
        if ledger.session_lease.passed(self.now):
            return []
        held = {(claim.lock, hold.fence) for claim, hold in ledger.holds.items()}
        return [hold[0] for hold in self.holds if hold in held]


class TwoNodes:
    """True time, the table, and two nodes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.ms = 0
        self.punctual = 0.8
        self.loss = LOSS
        self.table = LockTable()
        drifts = (1 + self.random.randint(-DRIFT_PPM, DRIFT_PPM) / 1e6 for _ in range(2))
        self.nodes = [CallersOfNode(self, f"n{n}", rate) for n, rate in enumerate(drifts, start=1)]

    def propose(self, command: Any) -> None:
        if self.random.random() >= self.loss:
            self.happens(self.table.apply(self.ms, command))

    def happens(self, outcomes: list[Result]) -> None:
        for node in self.nodes:
            node.late.append(tuple(outcomes))

    def step(self) -> None:
        self.ms += self.random.choice((1, 20, 150, 400))
        for node in self.nodes:
            if self.random.random() < 0.02:
                node.cut_off = not node.cut_off
                node.stubborn = node.cut_off and self.random.random() < 0.5
        if self.random.random() < 0.05 and any(node.cut_off for node in self.nodes):
            self.ms += TTL_MS // 6
        self.happens(self.table.advance(self.ms))
        for node in self.nodes:
            node.pass_time()
            self.judge()

    def judge(self) -> None:
        held = [lock for node in self.nodes for lock in node.believed()]
        assert len(held) == len(set(held)), f"at {self.ms} ms {held} are held"

    def settle(self) -> None:
        """Let every caller release or leave, and messages of every node arrive again."""
        self.punctual, self.loss = 1.0, 0.0
        for node in self.nodes:
            node.cut_off = False
        for _ in range(SETTLED_MS // 100):
            self.ms += 100
            self.happens(self.table.advance(self.ms))
            for node in self.nodes:
                for gone in list(node.waiting):
                    del node.waiting[gone]
                    node.node.ask(gone, Abandon())
                while node.holds:
                    node.asks += 1
                    lock, fence = node.holds.pop()
                    ask = Address(f"{node.name}/ask-{node.asks}")
                    node.releasing[ask] = (lock, fence)
                    node.node.ask(ask, Release(lock=lock, fence=fence))
                node.pass_time()
            self.judge()
        for node in self.nodes:
            while node.late:
                node.node.learn(node.late.popleft())


@pytest.mark.parametrize("seed", SEEDS)
def test_one_node_at_a_time_believes_in_a_hold_and_nothing_is_left(seed: int) -> None:
    world = TwoNodes(seed)
    for _ in range(STEPS):
        world.random.choice(world.nodes).act(world.random)
        world.step()
    world.settle()
    assert world.table.resources == {}
    assert world.table.fence > 2, "hardly anything was granted: nothing was shown"
    for node in world.nodes:
        ledger = node.node.session.session_state
        outstanding = ledger.in_flight
        assert (node.releasing, len(node.node.proxy.backend)) == ({}, 0)
        assert (ledger.holds, ledger.anonymous) == ({}, {})
        assert (outstanding.pending, outstanding.cancels) == ({}, {})
