"""A table and copies of it: what is restored from a snapshot answers all later commands alike.

The commands are of a few sessions with four owners, about one name, so they meet each other; some
are sent again. With few owners remembered, the table forgets some in the middle of everything; with
few ends and grants at a time, nearly everything ends in steps.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.table_comparison import log_seeds

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier
from fencelock.actors.api.counter import COUNTER, AddToCounter
from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import POOL, GivePermits, ResizePool, TakePermits
from fencelock.actors.api.request import Command
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite
from fencelock.actors.api.semaphore import (
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    ResizeSemaphore,
)
from fencelock.actors.api.session_message import End, Evict, Open, Opened, Renew
from fencelock.actors.table import session, state
from fencelock.actors.table import table as whole
from fencelock.actors.table.table import LockTable

NAME = "a"
KINDS = ["", SEMAPHORE, RWLOCK, LATCH, BARRIER, POOL, COUNTER]
SECRET = b"secret"
STEPS = 120


class Writer:
    """Writes commands at random."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.number = 0
        self.fences = [1]
        self.sessions = ["s.1"]
        self.written: list[Command] = []

    def command(self) -> Command:
        chance = self.chance
        if self.written and chance.random() < 0.15:
            return chance.choice(self.written[-8:])
        self.number += 1
        self.written.append(self._new())
        return self.written[-1]

    def _new(self) -> Command:
        pick = self.chance.choice
        lock = object_name(kind, NAME) if (kind := pick(KINDS)) else NAME
        fence, size = pick(self.fences[-6:]), pick([2, 3, 3])
        one = pick(self.sessions[-3:])
        by: dict[str, Any] = {"session": one, "owner": pick("opqr"), "request": self.number}
        wait: dict[str, Any] = {"wait_ms": pick([None, 0, 100, 1_000])}
        hold_ms = pick([0, 0, 500])
        commands: list[Command] = [
            Acquire(lock=NAME, limit=pick([0, 1, 2]), hold_ms=hold_ms, **by, **wait),
            Release(lock=lock, fence=fence, **by),
            Release(lock=lock, fence=fence, **by),
            Renew(lock=NAME, fence=fence, hold_ms=hold_ms, **by),
            AcquirePermits(semaphore=NAME, permits=size, amount=pick([1, 2]), **by, **wait),
            ReleasePermits(semaphore=NAME, fence=fence, amount=pick([0, 1]), **by),
            ResizeSemaphore(semaphore=NAME, permits=size, size=pick([1, 2, 3, 5]), **by),
            AcquireReadWrite(rwlock=NAME, write=pick([False, True]), **by, **wait),
            AcquireAll(locks=(NAME, "z"), **by, **wait),
            AcquireRetained(lock=NAME, span=pick([1, 5]), **by, **wait),
            Detach(lock=NAME, fence=fence, digest=digest_of(SECRET), ttl_ms=500, **by),
            Attach(lock=NAME, secret=pick([SECRET, b"other"]), **by),
            Cancel(lock=lock, **by),
            Cancel(lock=lock, **by),
            CountDown(latch=NAME, count=2, keep_ms=pick([0, 300]), **by),
            AwaitLatch(latch=NAME, count=2, **by, **wait),
            AwaitBarrier(barrier=NAME, parties=pick([3, 5]), **by, **wait),
            AwaitBarrier(barrier=NAME, parties=5, **by),
            TakePermits(pool=NAME, size=size, amount=pick([1, 2]), **by, **wait),
            GivePermits(pool=NAME, amount=1, **by),
            ResizePool(pool=NAME, permits=size, size=pick([1, 2, 3, 5]), **by),
            AddToCounter(counter=NAME, amount=pick([1, -1]), **by),
            PutEntry(map=NAME, entry_key="k", value=b"", guard=NAME, fence=fence, **by),
            KeepAlive(session=one, request=self.number),
            KeepAlive(session=self.sessions[-1], request=self.number),
            Open(session=pick("st"), ttl_ms=1_500, request=self.number),
            End(session=one, request=self.number),
            Evict(lock=lock, fence=fence, operator="op", session="x", request=self.number),
        ]
        return pick(commands)


BOUNDS: dict[str, dict[tuple[Any, str], int]] = {
    "usual": {},
    "few owners remembered": {(session, "IDLE_MAX"): 1, (session, "LOSSES_MAX"): 1},
    "few ends": {(module, "ENDS_MAX"): 2 for module in (state, whole)},
    "few grants": {(module, "SERVED_MAX"): 1 for module in (state, whole)},
    "one end, one grant": {
        (module, most): 1 for module in (state, whole) for most in ("ENDS_MAX", "SERVED_MAX")
    },
}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", log_seeds(60))
def test_a_table_and_its_restored_copies_answer_alike(
    monkeypatch: pytest.MonkeyPatch, seed: int, bounds: str
) -> None:
    """Rules snapshots-are-complete, outcomes-are-bounded."""
    for (module, name), most in BOUNDS[bounds].items():
        monkeypatch.setattr(module, name, most)
    writer, table, now_ms = Writer(seed), LockTable(), 0
    table.apply(0, Open(session="s", ttl_ms=1_500))
    copies: list[LockTable] = []
    for _ in range(STEPS):
        now_ms += writer.chance.choice([0, 0, 1, 5, 50, 300])
        command = writer.command()
        outcomes = table.apply(now_ms, command)
        for copy in copies:
            assert copy.apply(now_ms, command) == outcomes, command
            assert copy.numbers() == table.numbers()
        writer.sessions += [one.assigned for one in outcomes if isinstance(one, Opened)]
        writer.fences += [fence for one in outcomes if (fence := getattr(one, "fence", 0))]
        if writer.chance.random() < 0.1:
            copies = [LockTable.restore(table.snapshot())]
            assert copies[0].digest() == table.digest()
