"""Snapshots of the replicated table: whole, immutable, bounded, equal on equal replicas."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from support.programs import run_to_end
from support.table_comparison import AllComposer, log_of, steps_of
from support.table_scene import restored
from support.table_transcript import commands

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.account import Quota
from fencelock.actors.api.latch import LATCH
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.redis import ChangeKeys, KeyAction, KeyState
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.retained import SPAN_MAX
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.semaphore import PERMITS_MAX, SEMAPHORE
from fencelock.actors.api.session_message import End, KeepAlive, Open
from fencelock.actors.message import REGISTRY
from fencelock.actors.table.snapshot import bytes_of
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import (
    ClaimantRecord,
    ExtendSessions,
    HoldRecord,
    KeptReply,
    KeyRecord,
    LeaseRecord,
    LogCommand,
    QuotaRecord,
    TableHead,
    TablePart,
    WaitRecord,
)
from fencelock.transport.codec import encode

PART_BYTES_MAX = 256 * 1024


def acquire(owner: str, request: int, lock: str = "L", wait_ms: int | None = None) -> api.Acquire:
    made = api.Acquire(session="s.1", owner=owner, request=request, lock=lock, label="who", limit=0)
    return replace(made, wait_ms=wait_ms)


def apply_all(table: LockTable, *commands: LogCommand) -> None:
    for command in commands:
        table.apply(table.time_ms, command)


def busy() -> LockTable:
    """A table with one of everything: re-entry, queue, deadlines, memos, losses, audit."""
    table = LockTable()
    table.advance(50)
    apply_all(
        table,
        Open(session="s", ttl_ms=100_000, label="host"),
        Open(session="t", ttl_ms=2_000),
        acquire("x", 1, "X"),
        Evict(operator="root", request=1, lock="X", fence=1),
        acquire("a", 2),
        acquire("a", 3),
        acquire("b", 4, "L", 700),
        acquire("c", 5),
        acquire("d", 6, "L", 0),
        ExtendSessions(leader="m"),
        KeepAlive(session="t.2"),
    )
    return table


def test_a_large_table_is_cut_into_parts_that_fit() -> None:
    table = LockTable()
    apply_all(table, Open(session="s", ttl_ms=100_000))
    for i in range(3_000):
        apply_all(table, acquire(f"o{i}", i + 1, f"{'é' * 100}{i % 1_000}"))
    parts = table.snapshot()
    assert len(parts) > 5
    assert max(len(encode(part)) for part in parts) < PART_BYTES_MAX
    assert restored(table).claims == 3_000


def test_the_largest_records_still_fit() -> None:
    table = LockTable()
    wide = "é" * 128
    apply_all(table, Open(session=wide, ttl_ms=100_000, label=wide))
    for i in range(1_500):
        owner = f"{i:04}" + "é" * 126
        command = api.Acquire(
            session=f"{wide}.1", owner=owner, request=i + 1, lock=wide, label=wide, limit=0
        )
        apply_all(table, command)
    assert table.state_of(wide).waiting == 1_499
    assert max(len(encode(part)) for part in table.snapshot()) < PART_BYTES_MAX


@pytest.mark.parametrize("number", [0, (1 << 63) - 1])
def test_the_size_of_a_record_is_never_underestimated(number: int) -> None:
    wide = "é" * 128
    lease = LeaseRecord(*[number] * 7)
    hold = HoldRecord(number, wide, number, number, number, number, number, number, lease, number)
    wait = WaitRecord(number, wide, *[number] * 8)
    seen = Obstacle(wide, number, number, number, number, number, wide, wide, wide)
    why = Why(max(Cause), (number,) * 3, (wide,), seen)
    claim = number, wide, wide, number, True, number, max(api.Reason), why, number, number
    key = KeyRecord(wide.encode(), wide, True, number)
    record = ClaimantRecord(*claim, hold, wait, (wide,) * 64, wide, key)
    empty = TablePart(
        index=0,
        count=1,
        head=TableHead(0, 0, 0, 0, 0, 0, 0, 0),
        sessions=(),
        owner_states=(),
        audit=(),
    )
    size = len(encode(replace(empty, owner_states=(record,)))) - len(encode(empty))
    assert size <= bytes_of(record) <= 2 * size or not number


def test_a_snapshot_can_keep_every_reply_to_an_update() -> None:
    declared = {one for one in REGISTRY.values() if issubclass(one, UpdateReply)}
    assert declared == set(get_args(KeptReply))


def test_an_empty_table_has_a_snapshot_too() -> None:
    assert restored(LockTable()).digest() == LockTable().digest()


def with_claimants(part: TablePart, *owner_states: ClaimantRecord) -> TablePart:
    return replace(part, owner_states=(*part.owner_states, *owner_states))


def with_last(part: TablePart, **changed: Any) -> TablePart:
    """Return ``part`` with a copy of its last claimant that has other fields."""
    return with_claimants(part, part.owner_states[-1]._replace(**changed))


WAIT = WaitRecord(1, "", 0, None, 1, 1, 1, 0, 0, 0)
CHANGES: dict[str, Callable[[TablePart, TablePart], tuple[TablePart, ...]]] = {
    "none": lambda a, b: (),
    "lost part": lambda a, b: (a,),
    "twice": lambda a, b: (a, a, b),
    "order": lambda a, b: (b, a),
    "mixed": lambda a, b: (replace(a, head=a.head._replace(fence=9)), b),
    "no session": lambda a, b: (replace(a, sessions=()), b),
    "two sessions": lambda a, b: (a, replace(b, sessions=a.sessions)),
    "two of one owner": lambda a, b: (a, with_last(b)),
    "two holders": lambda a, b: (
        a,
        with_claimants(b, next(c for c in a.owner_states if c.hold)._replace(owner="y")),
    ),
    "two waits in one place": lambda a, b: (a, with_last(b, owner="y", wait=WAIT)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_that_is_not_whole_is_refused(change: str) -> None:
    table = busy()
    for i in range(1_000):
        apply_all(table, acquire(f"quiet {i}", i + 100, wait_ms=0))
    first, second = table.snapshot()
    assert LockTable.restore((first, second)).digest() == table.digest()
    with pytest.raises(ValueError, match=r"snapshot|part"):
        LockTable.restore(CHANGES[change](first, second))


SEMAPHORE_S, RWLOCK_R = object_name(SEMAPHORE, "S"), object_name(RWLOCK, "R")
EVERYTHING = commands("""
    s.1 AcquirePermits S permits=3 amount=2
    t.2 AcquirePermits S permits=3 amount=3
    s.1 ReleasePermits S fence=1 amount=1
    s.1 AcquireReadWrite R write=true
    s.1 AcquireReadWrite R
    t.2 AcquireReadWrite R
    s.1 AcquireAll a,b
    u.3 Acquire c
    t.2 AcquireAll b,c
    s.1 CountDown L count=2
    t.2 AwaitLatch L count=2 wait_ms=500
    s.1 CountDown M count=2 keep_ms=70 amount=2
    s.1 AwaitBarrier B parties=3 wait_ms=50
    t.2 AwaitBarrier B parties=3
    s.1 AddToCounter C amount=7
    s.1 TakePermits P size=3 amount=2
    t.2 TakePermits P size=3 amount=2
    s.1#16 AcquirePermits Q permits=3
    s.1 ResizeSemaphore Q permits=3 size=4
    u.3#1 PutEntry m entry_key=k value=v ttl_ms=900
    u.3 ChangeKeys k value=v action=SET states=FREE
    s.1 AcquireRetained r span=10
    t.2 AcquireRetained r span=10
""")
"""Requests for objects of every kind."""


@pytest.fixture
def every(table: LockTable) -> LockTable:
    """Return a table in which objects of every kind are held, awaited and changed."""
    for command in EVERYTHING:
        table.apply(5, command)
    return table


def test_a_snapshot_is_of_the_instant_at_which_it_was_begun(every: LockTable) -> None:
    """Rule snapshots-are-complete: requests change the table while parts are made one by one."""
    whole, frozen, digest = every.snapshot(), every.freeze(), every.digest()
    before = [encode(part) for part in whole]
    key = ChangeKeys(keys=("k",), action=KeyAction.SET, states=(KeyState.EQUAL,), expected=b"v")
    put = PutEntry(map="m", entry_key="k", value=b"later")
    for number, command in enumerate((replace(key, value=b"later"), put), 8):
        every.apply(800, replace(command, session="u.3", owner="o", request=number))
    later = every.snapshot()
    assert later[0].owner_states != whole[0].owner_states
    assert later[0].entries != whole[0].entries
    for session in [*every.sessions.by_id]:
        every.apply(900, End(session=session))
    assert [encode(part) for part in whole] == before
    assert tuple(part.thaw() for part in frozen if part is not None) == whole
    assert LockTable.restore(whole).digest() == digest


@pytest.mark.parametrize(
    "field", ["latches", "barriers", "counters", "pools", "replies", "entries"]
)
def test_a_snapshot_with_a_record_twice_is_refused(every: LockTable, field: str) -> None:
    (part,) = every.snapshot()
    records = getattr(part, field)
    with pytest.raises(ValueError, match="the snapshot has"):
        LockTable.restore((replace(part, **{field: (records[0], *records)}),))


def test_a_snapshot_with_an_unused_latch_is_refused(every: LockTable) -> None:
    (part,) = every.snapshot()
    unused = part.latches[0]._replace(lock=object_name(LATCH, "N"), left=2)
    with pytest.raises(ValueError, match="the snapshot has a"):
        LockTable.restore((replace(part, latches=(*part.latches, unused)),))


CLAIMANTS: dict[str, Callable[[ClaimantRecord], bool]] = {
    "hold": lambda one: one.hold is not None and one.lock == SEMAPHORE_S,
    "hold of c": lambda one: one.hold is not None and one.lock == "c",
    "retained": lambda one: one.hold is not None and one.lock == "r",
    "key": lambda one: one.lock == "k",
    "wait": lambda one: one.wait is not None,
    "retained wait": lambda one: one.wait is not None and one.lock == "r",
    "idle": lambda one: one.hold is None and one.wait is None,
}


SECOND = {"sessions": ("sessions", 1), "open latch": ("latches", 1)}
"""Kinds whose first record is another one: that of the doors, or of a latch that waits."""


def with_changed(part: TablePart, kind: str, wrong: dict[str, Any]) -> TablePart:
    """Return ``part`` with other fields of the first record of a kind, or of the claim in it."""
    if kind == "head":
        return replace(part, head=part.head._replace(**wrong))
    field, at = SECOND.get(kind, (kind, 0))
    if kind in CLAIMANTS:
        field = "owner_states"
        at = next(at for at, one in enumerate(part.owner_states) if CLAIMANTS[kind](one))
    records: list[Any] = list(getattr(part, field))
    fields = {
        name: getattr(records[at], name)._replace(**value) if isinstance(value, dict) else value
        for name, value in wrong.items()
    }
    records[at] = records[at]._replace(**fields)
    return replace(part, **{field: tuple(records)})


@pytest.mark.parametrize(
    ("kind", "wrong", "text"),
    [
        ("head", {"opened": 2}, "a wrong session 'u.3'"),
        ("head", {"tickets": 0}, "tickets that are not in 1 to 0"),
        ("head", {"fence": 1}, "a wrong fence of lock 'k'"),
        ("head", {"time_ms": 4}, "a wrong session 's.1'"),
        (
            "head",
            {"extended_ms": 6},
            "wrong counters: TableHead(time_ms=5, fence=17, tickets=11, opened=3, "
            "extended_ms=6, version=7, forgotten=0, origin=6)",
        ),
        (
            "head",
            {"opened": (1 << 63) - 1},
            "wrong counters: TableHead(time_ms=5, fence=17, tickets=11, "
            "opened=9223372036854775807, extended_ms=0, version=7, forgotten=0, origin=6)",
        ),
        (
            "head",
            {"version": 1, "forgotten": 2},
            "wrong counters: TableHead(time_ms=5, fence=17, tickets=11, opened=3, "
            "extended_ms=0, version=1, forgotten=2, origin=6)",
        ),
        ("sessions", {"number": 0}, "a wrong session 's.0'"),
        ("sessions", {"ttl_ms": 0}, "a wrong session 's.1'"),
        ("sessions", {"ttl_ms": 1 << 62}, "a wrong session 's.1'"),
        ("sessions", {"deadline_ms": 1 << 62}, "a wrong session 's.1'"),
        ("sessions", {"deadline_ms": -1}, "a wrong wait for barrier 'B'"),
        ("hold", {"hold": {"fence": 0}}, "a wrong fence of semaphore 'S'"),
        ("hold", {"hold": {"fence": 3}}, "fence 3 twice"),
        ("hold", {"hold": {"since_ms": 6}}, "wrong times of semaphore 'S'"),
        ("hold", {"hold": {"times": (1 << 63) - 1}}, "a wrong hold of semaphore 'S'"),
        (
            "hold",
            {"hold": {"lease": LeaseRecord(1, 0, 0, 1 << 62, 1, 0, 9)}},
            "wrong times of semaphore 'S'",
        ),
        (
            "hold",
            {"hold": {"lease": LeaseRecord(1 << 62, 0, 0, 9, 1, 0, 9)}},
            "wrong times of semaphore 'S'",
        ),
        ("hold", {"locks": ("c", "d")}, "wrong locks of semaphore 'S'"),
        ("hold", {"lock": object_name(LATCH, "L")}, "a claim to latch 'L', which nobody can hold"),
        ("hold", {"hold": {"amount": 0}}, "a wrong hold of semaphore 'S'"),
        ("hold", {"hold": {"amount": -1}}, "a wrong hold of semaphore 'S'"),
        ("hold", {"hold": {"amount": PERMITS_MAX + 1}}, "2147483648 of 3 held of semaphore 'S'"),
        ("hold", {"hold": {"times": 0}}, "a wrong hold of semaphore 'S'"),
        ("hold", {"hold": {"capacity": 0}}, "capacities 0 and 0 of semaphore 'S'"),
        ("hold", {"hold": {"capacity": 4}}, "capacities 4 and 3 of semaphore 'S'"),
        ("hold of c", {"hold": {"amount": 2}}, "2 of 1 held of lock 'c'"),
        ("wait", {"wait": {"ticket": -1}}, "tickets that are not in 1 to 11"),
        ("wait", {"wait": {"amount": 0}}, "a wrong wait for barrier 'B'"),
        ("wait", {"wait": {"due_ms": 1 << 62}}, "wrong times of barrier 'B'"),
        ("wait", {"wait": {"hold_ms": 1 << 62}}, "wrong times of barrier 'B'"),
        ("idle", {"idle_ms": 1 << 62}, "wrong times of latch 'L'"),
        ("latches", {"lock": "L"}, "a wrong or second lock 'L'"),
        (
            "latches",
            {"keep_ms": 1 << 62},
            "a wrong latch 'L': its count is 1 of 2, it has 1 waits, ends at None and is kept "
            "for 4611686018427387904 ms",
        ),
        (
            "barriers",
            {"generation": 99},
            "a wrong barrier 'B': 2 of 3 parties are in generation 99",
        ),
        (
            "latches",
            {"left": 3},
            "a wrong latch 'L': its count is 3 of 2, it has 1 waits, ends at None and is kept "
            "for 3600000 ms",
        ),
        ("latches", {"left": 0, "ticket": 99, "due_ms": 70}, "tickets that are not in 1 to 11"),
        (
            "open latch",
            {"due_ms": None},
            "a wrong latch 'M': its count is 0 of 2, it has 0 waits, ends at None and is kept "
            "for 70 ms",
        ),
        ("barriers", {"parties": 2}, "a wrong barrier 'B': 2 of 2 parties are in generation 6"),
        ("barriers", {"lock": "barrier\x1fX"}, "a claim to barrier 'B', which nobody can hold"),
        ("counters", {"value": 0}, "a wrong counter 'C' of value 0"),
        ("counters", {"value": -(1 << 63)}, "a wrong counter 'C' of value -9223372036854775808"),
        ("pools", {"size": 0}, "a wrong pool 'P': 2 of 0 are taken"),
        ("pools", {"taken": -1}, "a wrong pool 'P': -1 of 3 are taken"),
        ("pools", {"taken": 1 << 31}, "a wrong pool 'P': 2147483648 of 3 are taken"),
        ("retained", {"hold": {"span": -1}}, "a wrong span of lock 'r'"),
        ("retained wait", {"wait": {"span": SPAN_MAX + 1}}, "a wrong span of lock 'r'"),
        ("retained wait", {"locks": ("r", "a")}, "a wrong span of lock 'r'"),
        ("head", {"fence": 9}, "a wrong span of lock 'r'"),
        ("key", {"key": None}, "a wrong key 'k'"),
        ("key", {"session": 1}, "a wrong key 'k'"),
        ("key", {"hold": None}, "a wrong key 'k'"),
        ("entries", {"session": 99}, "no session 99, with which entry 'k' of map 'm' ends"),
        ("entries", {"version": 99}, "entry 'k' of map 'm' of version 99, which is not given yet"),
        (
            "entries",
            {"value": bytes(ENTRY_VALUE_BYTES_MAX + 1)},
            "entry 'k' of map 'm' of 65537 bytes",
        ),
        (
            "entries",
            {"key": "x" * 300},
            "key of 300 bytes ('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'), at most 256 are "
            "allowed",
        ),
        (
            "entries",
            {"due_ms": None},
            "entry 'k' of map 'm' with ticket 10, session 0 and expiry at None",
        ),
        ("entries", {"ticket": 1}, "ticket 1 twice"),
        ("entries", {"ticket": 99}, "tickets that are not in 1 to 11"),
        (
            "entries",
            {"due_ms": 1 << 62},
            "entry 'k' of map 'm' that expires at 4611686018427387904",
        ),
        ("histories", {"changes": ()}, "a history of map 'm' without changes"),
    ],
)
def test_a_snapshot_with_a_record_that_cannot_be_is_refused(
    every: LockTable, kind: str, wrong: dict[str, Any], text: str
) -> None:
    """Otherwise a member would stop later, at each start, when something falls due."""
    (part,) = every.snapshot()
    with pytest.raises(ValueError, match=f"^(the snapshot has )?{re.escape(text)}$"):
        LockTable.restore((with_changed(part, kind, wrong),))


DIFFERENT: list[tuple[str, dict[str, Any]]] = [
    ("latches", {"began": 9}),
    ("latches", {"left": 2}),
    ("latches", {"ticket": 2}),
    ("latches", {"account": "z"}),
    ("barriers", {"parties": 9}),
    ("barriers", {"generation": 2}),
    ("barriers", {"broken": True}),
    ("barriers", {"account": "z"}),
    ("counters", {"lock": "counter\x1fz"}),
    ("counters", {"value": 8}),
    ("counters", {"account": "z"}),
    ("pools", {"size": 9}),
    ("pools", {"taken": 1}),
    ("pools", {"account": "z"}),
    ("quotas", {"account": "z"}),
    ("quotas", {"quota": Quota(claims=6)}),
    ("entries", {"map": "z"}),
    ("entries", {"key": "z"}),
    ("entries", {"value": b"z"}),
    ("entries", {"account": "z"}),
    ("entries", {"session": 2}),
    ("entries", {"due_ms": 77}),
    ("key", {"key": {"value": b"z"}}),
    ("key", {"key": {"account": "z"}}),
    ("key", {"key": {"reserved": True}}),
    ("key", {"key": {"detached_by": "z"}}),
    ("sessions", {"label": "z"}),
    ("hold", {"owner": "z"}),
    ("wait", {"owner": "z"}),
]


@pytest.mark.parametrize(("kind", "change"), DIFFERENT)
def test_the_numbers_by_which_members_compare_tables_have_every_field_of_an_object(
    every: LockTable, kind: str, change: dict[str, Any]
) -> None:
    (part,) = every.snapshot()
    part = replace(part, quotas=(QuotaRecord("y", Quota(claims=5)),))
    one = LockTable.restore((part,))
    other = LockTable.restore((with_changed(part, kind, change),))
    assert other.numbers() != one.numbers()
    assert other.digest() != one.digest()


@pytest.mark.parametrize(("lock", "owner"), [("", "y"), ("n" * 257, "y"), ("n", "y" * 257)])
def test_a_snapshot_with_names_that_no_command_may_have_is_refused(lock: str, owner: str) -> None:
    (part,) = busy().snapshot()
    strange = with_last(part, lock=lock, owner=owner, wait=None, hold=None)
    with pytest.raises(ValueError, match="allowed"):
        LockTable.restore((strange,))


WRONG = Why(Cause.TIMED_OUT, (1,))
WRONG_ACT = Why(Cause.QUOTA_SET, (1,))


@pytest.mark.parametrize("why", [None, WRONG])
def test_a_snapshot_with_a_refusal_that_has_no_sentence_is_refused(why: Why | None) -> None:
    (part,) = busy().snapshot()
    denied = {"freed": None, "denial": api.Reason.TIMED_OUT, "why": why}
    wrong = with_last(part, owner="y", wait=None, hold=None, **denied)
    with pytest.raises(ValueError, match="wrong refusal of lock"):
        LockTable.restore((wrong,))


@pytest.mark.parametrize("why", [WRONG, WRONG_ACT, Why(Cause.PURGED)])
def test_a_snapshot_with_an_audit_line_without_a_text_is_refused(why: Why) -> None:
    (part,) = busy().snapshot()
    with pytest.raises(ValueError, match="wrong audit of lock"):
        LockTable.restore((replace(part, audit=(replace(part.audit[0], why=why),)),))


@pytest.mark.parametrize("lock", ["\ue000", "\u0378", "\u202e", "\x85", " "])
def test_a_name_that_another_python_accepted_stays_in_a_snapshot(lock: str) -> None:
    """A member with stricter rules still starts from its earlier journal."""
    (part,) = busy().snapshot()
    table = LockTable.restore((with_last(part, lock=lock, owner="y", wait=None, hold=None),))
    assert any(("y", lock) in one.owner_states for one in table.sessions.by_id.values())


def test_digests_distinguish_tables() -> None:
    table, other = busy(), busy()
    assert table.digest() == other.digest()
    other.apply(other.time_ms, acquire("a", 8))
    assert table.digest() != other.digest()


def outcomes_of_logs() -> bytes:
    """Return the digests and all outcomes of random logs. Called in a child too."""
    found: list[object] = []
    for seed in range(8):
        table = LockTable()
        for at, command in log_of(steps_of(seed), AllComposer):
            found += table.apply(at, command)
        found += [table.digest(), *table.advance(100_000)]
    return repr(found).encode()


def test_a_run_is_the_same_under_every_hash_seed() -> None:
    script = (
        "import hashlib, importlib.util, sys; "
        "spec = importlib.util.spec_from_file_location('scenarios', sys.argv[1]); "
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); "
        "print(hashlib.sha256(module.outcomes_of_logs()).hexdigest())"
    )
    hashes: set[str] = set()
    for seed in ("0", "1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        run = run_to_end([sys.executable, "-c", script, __file__], env=environment, check=True)
        hashes.add(run.stdout)
    assert len(hashes) == 1
