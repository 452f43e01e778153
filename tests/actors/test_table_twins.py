"""A table and copies of it: what is restored from a snapshot answers all later commands alike.

The commands are those of random logs about objects of every kind. With few owners remembered, the
table forgets some in the middle of everything; with few ends and grants at a time, nearly
everything ends in steps.

After each command, each wait that can be served is among those that are served next. The counts of
all sessions and accounts add up, in the table and in each copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from support.table_comparison import (
    AllComposer,
    BarrierComposer,
    KeyComposer,
    LogComposer,
    MixedComposer,
    PoolComposer,
    QuotaComposer,
    RetainedKeyComposer,
    SeveralComposer,
    log_of,
    log_seeds,
    steps_of,
)

from fencelock.actors.table import session, state
from fencelock.actors.table import table as whole
from fencelock.actors.table.account import Account
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import TableObject, Wait
from fencelock.actors.table.table import LockTable


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


COMPOSERS: dict[type[LogComposer], int] = {
    AllComposer: 20,
    QuotaComposer: 10,
    MixedComposer: 10,
    SeveralComposer: 10,
    KeyComposer: 10,
    RetainedKeyComposer: 8,
    BarrierComposer: 6,
    PoolComposer: 6,
}
"""How many logs of each kind are played. In those about few kinds, commands meet more often."""

LOGS = [(composer, seed) for composer, usual in COMPOSERS.items() for seed in log_seeds(usual)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("composer", "seed"), LOGS)
def test_a_table_and_its_restored_copies_answer_alike(
    monkeypatch: pytest.MonkeyPatch, composer: type[LogComposer], seed: int, bounds: str
) -> None:
    """Rules snapshots-are-complete, outcomes-are-bounded, close-ends-waits-first,
    queue-in-log-order.
    """
    log = log_of(steps_of(seed), composer)
    for (module, name), most in BOUNDS[bounds].items():
        monkeypatch.setattr(module, name, most)
    chance, table = Random(seed), LockTable()
    copies: list[LockTable] = []
    for time_ms, command in log:
        outcomes = table.apply(time_ms, command)
        for copy in copies:
            assert copy.apply(time_ms, command) == outcomes, (time_ms, command)
            assert copy.numbers() == table.numbers(), (time_ms, command)
        for one in (table, *copies):
            assert {wait.ticket for wait in served_next(one)} <= one.unserved.keys(), command
        if chance.random() < 0.2:
            copy = LockTable.restore(table.snapshot())
            assert copy.digest() == table.digest(), command
            assert charges(copy) == charges(table), command
            copies = [*copies[-2:], copy]
    for copy in copies:
        assert copy.digest() == table.digest()
