"""A table and copies of it: what is restored from a snapshot answers all later commands alike.

Some commands are of a few sessions with four owners, about one name, so that they meet each other.
The others are about several names: sessions of two keys, claims for several of three locks,
elections, Redis doors, entries of maps that end with a session, and what operators do. Some
commands are sent again. With few owners remembered, the table forgets some in the middle of
everything; with few ends and grants at a time, nearly everything ends in steps.

After each command, each wait that can be served is among those that are served next. The counts of
all sessions and accounts add up, in the table and in each copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from support.table_comparison import log_seeds

from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.barrier import BARRIER, AwaitBarrier
from fencelock.actors.api.counter import COUNTER, AddToCounter
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown
from fencelock.actors.api.lock_all import SEVERAL, AcquireAll
from fencelock.actors.api.map import MAP, DeleteEntry, PutEntry
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Release
from fencelock.actors.api.name import NAME_END, REDIS_KEY, object_name, without_secret
from fencelock.actors.api.pool import POOL, GivePermits, ResizePool, TakePermits
from fencelock.actors.api.redis import AwaitKey, ChangeKeys, Expiry, KeyAction, KeyState
from fencelock.actors.api.request import Command
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import (
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    ResizeSemaphore,
)
from fencelock.actors.api.session_message import CloseSession, End, Evict, Open, Opened, Renew
from fencelock.actors.table import session, state
from fencelock.actors.table import table as whole
from fencelock.actors.table.account import Account
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import TableObject, Wait
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, LogCommand, Result

CLIENTS = ["s", "t", f"key{NAME_END}u"]
NAME = "a"
NAMES = [NAME, "b", "c"]
SOME_KINDS = ["", SEMAPHORE, RWLOCK, LATCH, BARRIER, POOL, COUNTER]
MANY_KINDS = ["", "", SEMAPHORE, RWLOCK, ELECTION, SEVERAL, LATCH, BARRIER, POOL]
SECRET = b"secret"
TTL_MS = 1_500
SET_IN = [
    (KeyState.FREE,),
    (KeyState.FREE, KeyState.EQUAL, KeyState.RESERVED),
    (KeyState.FREE, KeyState.EQUAL, KeyState.OTHER, KeyState.NATIVE, KeyState.RESERVED),
]


class Writer(ABC):
    """Writes commands at random, and some of them again."""

    STEPS: int
    """Commands in all."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.number = 0
        self.held = [(NAME, 1)]
        self.sessions = ["s.1"]
        self.written: list[LogCommand] = []

    def command(self) -> LogCommand:
        if self.written and self.chance.random() < 0.1:
            return self.chance.choice(self.written[-8:])
        self.number += 1
        self.written.append(self._new())
        return self.written[-1]

    def note(self, outcomes: Sequence[Result]) -> None:
        """Note the sessions and the fences of a command, about which later ones may be."""
        self.sessions += [one.assigned for one in outcomes if isinstance(one, Opened)]
        self.held += [(one.lock, fence) for one in outcomes if (fence := getattr(one, "fence", 0))]

    @abstractmethod
    def _new(self) -> LogCommand: ...


class OneName(Writer):
    STEPS = 120

    def _new(self) -> LogCommand:
        pick = self.chance.choice
        lock = object_name(kind, NAME) if (kind := pick(SOME_KINDS)) else NAME
        (_, fence), size = pick(self.held[-6:]), pick([2, 3, 3])
        one = pick(self.sessions[-3:])
        by: dict[str, Any] = {"session": one, "owner": pick("opqr"), "request": self.number}
        wait: dict[str, Any] = {"wait_ms": pick([None, 0, 100, 1_000])}
        hold_ms = pick([0, 0, 500])
        commands: list[LogCommand] = [
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


class SeveralNames(Writer):
    STEPS = 250

    def _new(self) -> LogCommand:
        groups: dict[Callable[[], Sequence[LogCommand]], int] = {
            self._claims: 8,
            self._ends: 5,
            self._objects: 5,
            self._doors: 3,
            self._sessions: 3,
            self._operators: 2,
        }
        (group,) = self.chance.choices([*groups], [*groups.values()])
        return self.chance.choice(group())

    def _by(self) -> dict[str, Any]:
        pick = self.chance.choice
        return {"session": pick(self.sessions[-4:]), "owner": pick("opq"), "request": self.number}

    def _wait(self) -> dict[str, Any]:
        return {"wait_ms": self.chance.choice([None, None, 0, 100, 1_000])}

    def _several(self) -> tuple[str, ...]:
        return tuple(self.chance.sample(NAMES, self.chance.choice([1, 2, 2, 3])))

    def _claims(self) -> list[Command]:
        pick = self.chance.choice
        name, by, wait = pick(NAMES), self._by(), self._wait()
        return [
            Acquire(lock=name, limit=pick([0, 1]), hold_ms=pick([0, 0, 300]), **by, **wait),
            Acquire(lock=name, hold_ms=pick([0, 300]), grace_ms=0, **by, **wait),
            AcquirePermits(semaphore=name, permits=3, amount=pick([1, 1, 2, 3]), **by, **wait),
            AcquireReadWrite(rwlock=name, write=pick([False, False, True]), **by, **wait),
            AcquireAll(locks=self._several(), **by, **wait),
            AcquireAll(locks=self._several(), **by, **wait),
            AcquireRetained(lock=name, span=pick([1, 5]), **by, **wait),
            Lead(election=name, value=pick("xy"), **by, **wait),
        ]

    def _ends(self) -> list[Command]:
        pick = self.chance.choice
        name, by = pick(NAMES), self._by()
        lock, fence = pick(self.held[-12:])
        other = object_name(kind, name) if (kind := pick(MANY_KINDS)) else name
        return [
            Release(lock=lock, fence=fence, **by),
            Release(lock=lock, fence=fence, **by),
            ReleasePermits(semaphore=name, fence=fence, amount=pick([0, 1]), **by),
            Downgrade(rwlock=name, fence=fence, **by),
            Renew(lock=lock, fence=fence, hold_ms=pick([0, 500]), **by),
            Detach(lock=lock, fence=fence, digest=digest_of(SECRET), ttl_ms=500, **by),
            Attach(lock=lock, secret=SECRET, **by),
            Cancel(lock=other, **by),
            ResizeSemaphore(semaphore=name, permits=3, size=pick([1, 2, 3, 5]), **by),
            ResizeSemaphore(semaphore=name, permits=pick([1, 2, 5]), size=3, **by),
        ]

    def _objects(self) -> list[Command]:
        pick = self.chance.choice
        name, by, wait = pick(NAMES), self._by(), self._wait()
        entry: dict[str, Any] = {"map": "m", "entry_key": pick("kl"), **by}
        commands: list[Command] = [
            CountDown(latch=name, count=2, keep_ms=pick([0, 300]), **by),
            AwaitLatch(latch=name, count=2, **by, **wait),
            AwaitBarrier(barrier=name, parties=4, wait_ms=pick([None, 100, 1_000]), **by),
            AwaitBarrier(barrier=name, parties=4, wait_ms=None, **by),
            AwaitBarrier(barrier=name, parties=pick([3, 4]), **by, **wait),
            TakePermits(pool=name, size=3, amount=pick([1, 2, 3]), **by, **wait),
            TakePermits(pool=name, size=3, amount=1, **by, **wait),
            GivePermits(pool=name, amount=pick([1, 3]), **by),
            ResizePool(pool=name, permits=3, size=pick([1, 2, 3, 5]), **by),
            ResizePool(pool=name, permits=pick([1, 2, 5]), size=3, **by),
            PutEntry(value=b"v", ephemeral=True, **entry),
            PutEntry(value=b"v", ephemeral=pick([False, True]), ttl_ms=pick([None, 300]), **entry),
            DeleteEntry(**entry),
        ]
        return commands

    def _doors(self) -> list[Command]:
        pick = self.chance.choice
        by, value = self._by(), pick([b"v", b"w"])
        by |= {"account": pick(["", "key", "door"]), "label": "door"}
        keys = pick([(pick(NAMES),), self._several()])
        ttl: dict[str, Any] = pick([{}, {"ttl_ms": 200, "expiry": Expiry.AFTER}])
        return [
            AwaitKey(keys=(pick(NAMES),), value=value, ttl_ms=pick([0, 200]), **self._wait(), **by),
            ChangeKeys(
                action=KeyAction.SET,
                states=SET_IN[0] if len(keys) > 1 else pick(SET_IN),
                keys=keys,
                value=value,
                expected=value,
                each=pick([False, True]),
                **ttl,
                **by,
            ),
            ChangeKeys(
                action=KeyAction.DELETE,
                states=pick([(KeyState.EQUAL,), (KeyState.EQUAL, KeyState.OTHER)]),
                keys=keys,
                expected=value,
                each=pick([False, True]),
                **by,
            ),
        ]

    def _sessions(self) -> list[LogCommand]:
        pick, number = self.chance.choice, self.number
        opening = Open(session=pick(CLIENTS), ttl_ms=TTL_MS, request=number)
        return [
            opening,
            opening,
            *(KeepAlive(session=one, request=number) for one in self.sessions[-2:]),
            End(session=pick(self.sessions[-4:]), request=number),
            End(session=pick(self.sessions[-4:]), request=number),
            ExtendSessions(leader="n", fence_floor=0),
        ]

    def _operators(self) -> list[Command]:
        pick = self.chance.choice
        by: dict[str, Any] = {"operator": "op", "session": "x", "request": self.number}
        lock, fence = pick(self.held[-12:])
        kind, account = pick([LATCH, BARRIER, POOL, MAP]), pick([None, "", "key"])
        limit = pick([None, 1, 2])
        return [
            Evict(lock=lock, fence=fence, **by),
            Evict(lock=lock, fence=fence, **by),
            Evict(lock=pick(NAMES), fence=fence + pick([0, 1]), **by),
            CloseSession(handle=without_secret(pick(self.sessions[-4:])), **by),
            Purge(kind=kind, prefix=pick(["", "a"]), account=account, **by),
            Purge(kind=REDIS_KEY, prefix="", account=pick(["", "key", "door"]), **by),
            SetQuota(account="key", quota=Quota(claims=pick([None, 3]), sessions=limit), **by),
        ]


def served_next(table: LockTable) -> Iterator[Wait]:
    """Return the first waits that can be served, by a walk over everything."""
    for resource in table.resources.values():
        head = resource.next_wait()
        if head and all(table.resources[name].next_wait() is head for name in head.objects):
            yield head
    for one in table.objects.values():
        first = next(iter(one.waits), None)
        if first is None:
            assert not isinstance(one, Barrier)
        elif one.broken if isinstance(one, Barrier) else _fits(one, first):
            yield first


def _fits(one: TableObject, first: Wait) -> bool:
    return isinstance(one, Pool) and first.amount <= one.free


def charges(table: LockTable) -> dict[str, Any]:
    """Return what each account has, once the counts of sessions and of the table add up."""

    def counts(one: Account) -> tuple[Any, ...]:
        return (one.limits, one.used, one.owners, [*one.waits])

    known = {name: counts(one) for name, one in table.accounts.by_name.items()}
    sessions = [
        *table.sessions.by_id.values(),
        *(one.session for one in table.departed.values()),
        table.key_session,
    ]
    for one in sessions:
        waits = [owner.wait for owner in one.owner_states.values() if owner.wait is not None]
        holds = [owner.hold for owner in one.owner_states.values() if owner.hold is not None]
        assert one.waits == sum(len(wait.objects) for wait in waits)
        assert one.claims == one.waits + sum(len(hold.objects) for hold in holds)
        assert not waits or one.id in table.sessions.by_id
        owners = {*one.idle, *one.losses, *(claim.owner_state.key for claim in (*waits, *holds))}
        assert owners == one.owner_states.keys()
    assert table.waits == sum(one.waits for one in sessions)
    assert table.claims == sum(one.claims for one in sessions)
    return known


def of(modules: tuple[Any, ...], **bounds: int) -> dict[tuple[Any, str], int]:
    return {(module, name): most for module in modules for name, most in bounds.items()}


BOUNDS: dict[str, dict[tuple[Any, str], int]] = {
    "usual": {},
    "few ends": of((state, whole), ENDS_MAX=2),
    "few owners remembered": of((session,), IDLE_MAX=1, LOSSES_MAX=1),
    "few grants": of((state, whole), SERVED_MAX=1),
    "two ends, one grant": of((state, whole), ENDS_MAX=2, SERVED_MAX=1),
    "one of each": of((state, whole), ENDS_MAX=1, SERVED_MAX=1)
    | of((session,), IDLE_MAX=2, LOSSES_MAX=1),
}


SEEDS = [(OneName, seed) for seed in log_seeds(60)] + [
    (SeveralNames, seed) for seed in log_seeds(20)
]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("write", "seed"), SEEDS)
def test_a_table_and_its_restored_copies_answer_alike(
    monkeypatch: pytest.MonkeyPatch, write: type[Writer], seed: int, bounds: str
) -> None:
    """Rules snapshots-are-complete, outcomes-are-bounded, close-ends-waits-first,
    queue-in-log-order.
    """
    for (module, name), most in BOUNDS[bounds].items():
        monkeypatch.setattr(module, name, most)
    writer, table, now_ms = write(seed), LockTable(), 0
    table.apply(0, Open(session="s", ttl_ms=TTL_MS))
    copies: list[LockTable] = []
    for step in range(writer.STEPS):
        now_ms += writer.chance.choice([0, 0, 0, 0, 1, 1, 1, 5, 50, 300])
        command = writer.command()
        outcomes = table.apply(now_ms, command)
        for copy in copies:
            assert copy.apply(now_ms, command) == outcomes, (step, command)
            assert copy.numbers() == table.numbers(), (step, command)
        for one in (table, *copies):
            assert {wait.ticket for wait in served_next(one)} <= one.unserved.keys(), step
        writer.note(outcomes)
        if writer.chance.random() < 0.2:
            copy = LockTable.restore(table.snapshot())
            assert copy.digest() == table.digest(), step
            assert charges(copy) == charges(table), step
            copies = [*copies[-2:], copy]
    for copy in copies:
        assert copy.digest() == table.digest()
