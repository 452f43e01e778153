"""Snapshots with changed records: what `LockTable.restore` accepts does not stop a member later.

A member takes such a table from a backup, or from a member that does not follow the protocol. No
checksum helps: whoever changes a record computes it again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any, TypeGuard

import cbor2
from support.table_comparison import AllComposer, log_of, steps_of

from fencelock.actors.api.lock_message import Acquire, Cancel, Release
from fencelock.actors.api.session_message import End, KeepAlive, Open
from fencelock.actors.table.session import DEPARTED
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, TablePart
from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.codec import decode, encode

SEEDS = range(int(os.environ.get("FENCELOCK_CHANGED_SNAPSHOTS", "8")))
"""Tables whose records are changed."""

CHANGES = 60
"""Changed copies of each table."""

NUMBERS = (0, 1, -1, 2, 1 << 31, 1 << 62, (1 << 63) - 1, 1 - (1 << 63), 10**6, 10**9)
TEXTS = ("", "x", "a", "s", "o", "rwlock\x1fa", "semaphore\x1fa", "locks\x1fa", "latch\x1fa")
STEPS_MAX = 10_000


def test_no_changed_snapshot_that_is_accepted_stops_a_member_later() -> None:
    accepted = refused = 0
    for seed in SEEDS:
        dice, part = random.Random(seed), part_of(seed)
        for _ in range(CHANGES):
            changed = changed_copy(part, dice)
            try:
                table = LockTable.restore((read(changed),))
            except (ValueError, MalformedFrameError):
                refused += 1
                continue
            accepted += 1
            try:
                live_on(table)
            except Exception as error:
                told = [*differences(part, changed)]
                raise AssertionError(f"seed {seed}: accepted, then {error!r}: {told}") from error
    assert min(accepted, refused) > len(SEEDS) * CHANGES / 20, "the changes prove little"


def part_of(seed: int) -> list[Any]:
    """Return the only part of the snapshot of a table with things of every kind, as lists."""
    table = LockTable()
    for at, command in islice(log_of(steps_of(seed), AllComposer), 20 + 10 * seed):
        table.apply(at, command)
    (part,) = table.snapshot()
    listed: list[Any] = cbor2.loads(encode(part))
    return listed


def read(listed: list[Any]) -> TablePart:
    part = decode(cbor2.dumps(listed))
    if not isinstance(part, TablePart):
        raise MalformedFrameError("it is no part of a table")
    return part


def live_on(table: LockTable) -> None:
    """Do with ``table`` what a new cluster does, until all sessions have ended."""
    now = table.time_ms + 1
    table.apply(now, ExtendSessions(leader="n1"))
    for session in [*table.sessions.by_id.values()]:
        table.apply(now, KeepAlive(session=session.id, request=1 << 40))
        for state in [*session.owner_states.values()][:3]:
            key = {"session": session.id, "owner": state.owner, "lock": state.lock}
            if state.hold is not None:
                table.apply(now, Release(**key, fence=state.hold.fence, request=1 << 40))
            else:
                table.apply(now, Cancel(**key, request=state.request))
        for number, lock in enumerate([*table.resources][:3], 1 << 41):
            acquire = Acquire(session=session.id, owner="new", lock=lock, request=number)
            table.apply(now, acquire)
    for number in range(2):
        table.apply(now, Open(session=f"new {number}", ttl_ms=500))
    table.apply(now, End(session=next(iter(table.sessions.by_id)), request=1 << 42))
    for part in table.snapshot():
        encode(part)
    for _ in range(STEPS_MAX):
        due_ms = table.due_ms()
        if due_ms is None:
            break
        for result in table.advance(max(due_ms, table.time_ms + 1)):
            encode(result)
    else:
        raise AssertionError("something stays due")
    assert not table.sessions.by_id
    assert (table.deadlines.ends, table.waits) == (0, 0)
    restored = LockTable.restore(tuple(read(cbor2.loads(encode(one))) for one in table.snapshot()))
    assert restored.digest() == table.digest()


def changed_copy(part: list[Any], dice: random.Random) -> list[Any]:
    copy: list[Any] = cbor2.loads(cbor2.dumps(part))
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        holder, place = dice.choice([*places(copy)])
        holder[place] = changed(holder[place], dice)
    return copy


def changed(value: Any, dice: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return dice.choice((*NUMBERS, value + 1, value - 1, DEPARTED))
        case str():
            return dice.choice(TEXTS)
        case _ if is_list(value) and value:
            one = dice.randrange(len(value))
            fewer, again = value[:one] + value[one + 1 :], [*value, value[one]]
            return dice.choice(([], fewer, again, value[::-1]))
        case None:
            return dice.choice((1, "a", 1 << 62, []))
        case _:
            return None


def places(value: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Yield every list within ``value``, and each place in it."""
    for place, one in enumerate(value):
        if place or one != TAG:
            yield value, place
        if is_list(one):
            yield from places(one)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


TAG = TablePart.__struct_config__.tag


def differences(old: Any, new: Any, at: tuple[int, ...] = ()) -> Iterator[object]:
    if is_list(old) and is_list(new):
        for place, (one, other) in enumerate(zip_longest(old, new)):
            yield from differences(one, other, (*at, place))
    elif old != new:
        yield at, old, new
