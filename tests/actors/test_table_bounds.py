"""The cost of the replicated table: nothing for a free lock, no more per command when full."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import held, lines_of, text_of, unheld

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.barrier import BARRIER, AwaitBarrier
from fencelock.actors.api.counter import AddToCounter
from fencelock.actors.api.lock_all import CLAIM_LOCKS_MAX, SEVERAL, AcquireAll
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.name import object_name, plain_name
from fencelock.actors.api.operator_message import Evict, Evicted, ListLocks
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits
from fencelock.actors.api.session_message import End, KeepAlive, Open
from fencelock.actors.table import session
from fencelock.actors.table.report import DescribeLocks, describe_locks
from fencelock.actors.table.resource import SLACK, Resource, TableHold, Wait
from fencelock.actors.table.retained import RECALLS_MAX
from fencelock.actors.table.session import IDLE_MAX, LOSSES_MAX
from fencelock.actors.table.state import AUDIT_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand

TTL_MS = 1_000_000
NAMES = 30_000
"""Many times what an owner's session remembers."""
CROWD = IDLE_MAX + 100


def acquire(
    request: int, lock: str, owner: str = "o", wait_ms: int | None = None, session: str = "s.1"
) -> api.Acquire:
    return api.Acquire(
        session=session, owner=owner, request=request, lock=lock, wait_ms=wait_ms, limit=0
    )


def release(request: int, lock: str, fence: int, owner: str = "o") -> api.Release:
    return api.Release(session="s.1", owner=owner, request=request, lock=lock, fence=fence)


@pytest.fixture
def table() -> LockTable:
    fresh = LockTable()
    fresh.apply(0, Open(session="s", ttl_ms=TTL_MS))
    return fresh


def test_many_names_leave_nothing_behind(table: LockTable) -> None:
    """Rules fences-rise, outcomes-are-bounded, free-leaves-nothing."""
    request = 0

    def use(names: range) -> None:
        nonlocal request
        for i in names:
            lock, owner = f"name {i}", f"thread {i % 7}"
            held = only(api.Granted, table.apply(0, acquire(request + 1, lock, owner)))
            request += 2
            table.apply(0, release(request, lock, held.fence, owner))

    use(range(2 * IDLE_MAX))
    gc.collect()
    tracemalloc.start()
    try:
        use(range(2 * IDLE_MAX, 5 * IDLE_MAX))  # All is traced now, also dicts that were rebuilt.
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        use(range(5 * IDLE_MAX, NAMES))
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert abs(growth) < 64 * 1024
    assert (table.resources, table.claims, table.fence) == ({}, 0, NAMES)
    session = table.sessions.by_id["s.1"]
    assert len(session.owner_states) == len(session.idle) == IDLE_MAX
    table.apply(TTL_MS - 1, KeepAlive(session="s.1"))
    table.apply(TTL_MS, KeepAlive(session="s.1"))
    assert (session.owner_states, session.idle) == ({}, {})


@pytest.mark.parametrize("sessions", [False, True], ids=["one session", "a session each"])
def test_a_held_lock_and_a_wait_take_less_than_two_kilobytes_each(*, sessions: bool) -> None:
    """Measured over the whole table, with strings as the wire makes them: each its own."""
    table = LockTable()
    table.apply(0, Open(session="s", ttl_ms=TTL_MS))
    gc.collect()
    tracemalloc.start()
    try:
        for i in range(2_000):
            name = f"s.{1}"
            if sessions:
                table.apply(0, Open(session=f"client-{i}", ttl_ms=TTL_MS, label=f"host:{i}"))
                name = f"client-{i}.{i + 2}"
            for request, lock in ((1, f"orders/{i}"), (2, f"orders/{i // 2}")):
                owner = f"thread-{i}-{request}"
                command = acquire(request, lock, owner, TTL_MS // 2, name)
                table.apply(0, replace(command, label=f"word {i}"))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert table.claims == 4_000
    assert taken / table.claims < 2_048


def test_an_ended_session_is_freed_without_the_collector() -> None:
    table = LockTable()
    table.apply(0, Open(session="other", ttl_ms=TTL_MS))
    table.apply(0, acquire(1, "M", session="other.1"))

    def live_and_die(number: int) -> None:
        name = f"c.{number}"
        table.apply(0, Open(session="c", ttl_ms=TTL_MS))
        table.apply(0, acquire(1, "L", session=name))
        table.apply(0, acquire(2, "M", session=name))
        table.apply(0, acquire(3, "N", session=name))
        table.apply(0, replace(release(4, "N", table.fence), session=name))
        table.apply(0, End(session=name))

    live_and_die(2)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for number in range(3, 53):
            live_and_die(number)
        assert len(gc.get_objects()) - before < 50  # The heap of deadlines, drained lazily.
    finally:
        gc.enable()


def test_waits_that_ended_do_not_stay_in_the_heap(table: LockTable) -> None:
    table.apply(0, acquire(1, "L", "holder"))
    for i in range(5_000):
        table.apply(0, acquire(2 * i + 2, "L", "w", 100_000))
        table.apply(0, api.Cancel(session="s.1", owner="w", request=2 * i + 2, lock="L"))
    assert len(table.timeouts.heap) <= SLACK + 1
    assert table.state_of("L").waiting == 0


def test_sessions_that_ended_leave_nothing_behind(table: LockTable) -> None:
    """Rule outcomes-are-kept."""
    for i in range(5_000):
        name = f"c.{i + 2}"
        table.apply(0, Open(session="c", ttl_ms=TTL_MS))
        table.apply(0, acquire(1, "L", session=name))
        table.apply(0, End(session=name))
    assert len(table.sessions.heap) <= SLACK + 3
    assert (list(table.sessions.by_id), list(table.sessions.by_name)) == (["s.1"], ["s"])
    table.advance(TTL_MS)
    assert (table.sessions.by_id, table.sessions.by_name, table.resources) == ({}, {}, {})
    assert (table.claims, table.due_ms(), table.sessions.heap) == (0, None, [])


def test_signs_of_life_do_not_grow_the_heap(table: LockTable) -> None:
    for at in range(5_000):
        table.apply(at, KeepAlive(session="s.1"))
    assert len(table.sessions.heap) == 1
    assert table.due_ms() == 4_999 + TTL_MS


def test_the_audit_and_what_an_owner_lost_are_bounded(table: LockTable) -> None:
    for i in range(1, AUDIT_MAX + 10):
        table.apply(0, acquire(i, f"L{i}"))
        table.apply(0, Evict(operator="root", request=i, lock=f"L{i}", fence=i))
    assert len(table.forced()) == AUDIT_MAX
    session = table.sessions.by_id["s.1"]
    assert list(session.losses.values()) == list(range(910, 1_010))
    assert len(session.losses) == LOSSES_MAX
    assert len(session.idle) == AUDIT_MAX + 9 - LOSSES_MAX


def test_the_owners_of_all_sessions_of_a_key_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule outcomes-are-bounded: no quota counts owners that neither hold nor wait."""
    monkeypatch.setattr(session, "OWNERS_MAX", 100)
    table, sessions = LockTable(), [f"shop@{number}.{number + 1}" for number in range(4)]
    for one in (*sessions, "till@9.5"):
        table.apply(0, Open(session=one.partition(".")[0], ttl_ms=TTL_MS))
        for i in range(1, 101):
            table.apply(0, acquire(2 * i, f"{one}{i}", session=one))
            held = table.fence
            table.apply(
                0,
                api.Release(
                    session=one, owner="o", request=2 * i + 1, lock=f"{one}{i}", fence=held
                ),
            )
    by_id = table.sessions.by_id
    assert [len(by_id[one].idle) for one in sessions] == [100, *[session.IDLE_LEAST] * 3]
    assert len(by_id["till@9.5"].idle) == 100
    for copy in (table, LockTable.restore(table.snapshot())):
        assert copy.accounts.of("shop").owners == 100 + 3 * session.IDLE_LEAST
        for one in sessions:
            copy.apply(0, End(session=one))
        assert "shop" not in copy.accounts.by_name


def give_up(session: str, owner: str, request: int) -> LogCommand:
    return api.Cancel(session=session, owner=owner, request=request, lock=object_name(BARRIER, "b"))


def arrive(session: str, owner: str, request: int) -> LogCommand:
    return AwaitBarrier(session=session, owner=owner, request=request, barrier="b", parties=CROWD)


@pytest.mark.parametrize("leave", [give_up, arrive])
def test_an_owner_is_not_forgotten_while_its_command_ends_a_crowd_of_waits(
    table: LockTable, leave: Callable[[str, str, int], LogCommand]
) -> None:
    """Rule outcomes-are-bounded: it is the oldest of more idle owners than are remembered."""
    for number in range(1, CROWD):
        table.apply(0, arrive("s.1", f"o{number}", number))
    table.apply(0, leave("s.1", "o1", CROWD))
    session = table.sessions.by_id["s.1"]
    assert session.idle.keys() | {("o1", object_name(BARRIER, "b"))} == session.owner_states.keys()
    assert LockTable.restore(table.snapshot()).digest() == table.digest()
    for number in range(IDLE_MAX):
        table.apply(0, arrive("s.1", f"late{number}", CROWD + 1 + number))
    table.apply(TTL_MS - 1, KeepAlive(session="s.1"))
    table.apply(2 * TTL_MS - 2, KeepAlive(session="s.1"))
    assert session.idle == {}
    table.apply(3 * TTL_MS, End(session="s.1"))
    assert (table.objects, table.claims, table.sessions.by_id) == ({}, 0, {})


def test_the_end_of_a_wait_for_many_locks_looks_at_each_queue_a_few_times(
    table: LockTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"l{number}" for number in range(CLAIM_LOCKS_MAX))
    table.apply(0, acquire(1, names[-1]))
    for owner in "pq":
        table.apply(0, AcquireAll(locks=names, session="s.1", owner=owner, request=2))
    looks: list[Resource] = []
    next_wait = Resource.next_wait

    def counted(resource: Resource) -> Wait | None:
        looks.append(resource)
        return next_wait(resource)

    monkeypatch.setattr(Resource, "next_wait", counted)
    cancel = api.Cancel(lock=object_name(SEVERAL, names[0]), session="s.1", owner="q", request=2)
    assert len(table.apply(0, cancel)) == 2
    assert len(looks) <= 4 * CLAIM_LOCKS_MAX


def test_several_locks_are_granted_together_up_to_a_limit_of_number_and_size(
    table: LockTable,
) -> None:
    names = tuple(map(str, range(CLAIM_LOCKS_MAX)))
    long = tuple(f"{number:0256}" for number in range(49))
    several = AcquireAll(locks=names, session="s.1", owner="o", request=1)
    assert only(api.Granted, table.apply(0, several)).count == CLAIM_LOCKS_MAX
    refused = only(api.Refused, table.apply(0, replace(several, locks=long, request=2)))
    assert refused.reason is api.Reason.INVALID


def costs(size: int) -> list[int]:
    """Return the cost of each kind of command at a table with ``size`` of everything."""
    table = LockTable()
    for i in range(size):
        table.apply(0, Open(session=f"c{i}", ttl_ms=TTL_MS + i))
        table.apply(0, acquire(1, f"name {i}", session=f"c{i}.{i + 1}"))
        table.apply(0, acquire(2, "name 0", "w", TTL_MS // 2 + i, f"c{i}.{i + 1}"))
    mine = f"c0.{1}"
    middle = size // 2
    script: list[LogCommand] = [
        acquire(10, "fresh", "z", session=mine),
        acquire(11, "name 1", "z", 0, mine),
        acquire(12, "name 0", "z", 77, mine),
        api.Cancel(session=f"c{middle}.{middle + 1}", owner="w", request=2, lock="name 0"),
        KeepAlive(session=mine),
        Open(session="new", ttl_ms=TTL_MS),
        api.Release(session=mine, owner="o", request=13, lock="name 0", fence=1),
        Evict(operator="root", request=1, lock="name 0", fence=size + 2),
        End(session=f"new.{size + 1}"),
    ]
    return [lines_of(partial(table.apply, 1, command)) for command in script]


def test_no_command_costs_more_for_more_names_sessions_and_waiters() -> None:
    """Lines of Python, not time: a scan over any of them would show as hundreds."""
    small, large = costs(20), costs(2_000)
    assert all(cost > 5 for cost in small)
    assert [abs(more - less) <= 10 for less, more in zip(small, large, strict=True)] == [True] * 9


class CountedHolds(dict[int, TableHold]):
    """The holds of a resource, with the number of them that somebody walked over."""

    walked = 0

    def values(self) -> Any:
        for hold in super().values():
            self.walked += 1
            yield hold


def costs_beside_holds(size: int, retained: int) -> list[int]:
    """Return the costs of commands about a semaphore with ``size`` holds, ``retained`` with a span.

    A cost is the number of lines of Python, and of holds that the command walks over.
    """
    table, semaphore = LockTable(), object_name(SEMAPHORE, "S")
    for i in range(size):
        session, owner = f"c{i}.{i + 1}", "*" if i < retained else "o"
        table.apply(0, Open(session=f"c{i}", ttl_ms=TTL_MS))
        fields: dict[str, Any] = {"session": session, "owner": owner, "request": 1, "permits": size}
        if i < retained:
            table.apply(0, AcquireRetained(lock=semaphore, span=10, **fields))
        else:
            table.apply(0, AcquirePermits(semaphore="S", **fields))
    holds = table.resources[semaphore].held = CountedHolds(
        {hold.fence: hold for hold in table.resources[semaphore].holds}
    )
    mine: dict[str, Any] = {"session": "c0.1", "owner": "z"}
    put = PutEntry(map="m", entry_key="k", value=b"", guard=semaphore, fence=0, **mine)
    claim = AcquirePermits(semaphore="S", permits=size, amount=size, **mine)
    last = [*holds][-1]

    def wait_and_cancel(request: int) -> list[LogCommand]:
        cancel = api.Cancel(request=request, lock=semaphore, **mine)
        return [replace(claim, request=request), cancel]

    for command in wait_and_cancel(10):  # The first wait notes all that are retained.
        table.apply(1, command)
    script: list[LogCommand] = [
        replace(put, request=20, fence=table.fence + 1),
        replace(put, request=21, fence=5),
        replace(claim, request=22, wait_ms=0),
        api.Cancel(request=22, lock=semaphore, **mine),
        *wait_and_cancel(23),
        KeepAlive(session="c0.1"),
        *wait_and_cancel(24),
        replace(claim, request=25),
        api.Release(
            session=f"c{size - 1}.{size}",
            owner=holds[last].owner_state.owner,
            request=2,
            lock=semaphore,
            fence=last,
        ),
        KeepAlive(session="c0.1"),
    ]
    walked: list[int] = []
    for command in script:
        before = holds.walked
        lines = lines_of(partial(table.apply, 2, command))
        walked.append(lines + holds.walked - before)
    return walked


@pytest.mark.parametrize("all_retained", [False, True], ids=["one retained", "all retained"])
def test_no_command_costs_more_for_more_holds_of_an_object(*, all_retained: bool) -> None:
    """See noted-once in `retained`. Of all retained, `RECALLS_MAX` are recalled in either table."""
    small, large = (
        costs_beside_holds(size, size if all_retained else 1) for size in (RECALLS_MAX + 20, 2_000)
    )
    assert all(cost > 5 for cost in small)
    assert [(less, more) for less, more in zip(small, large, strict=True) if more > less + 10] == []


def test_an_expiry_costs_what_expires_and_not_what_lives() -> None:
    table = LockTable()
    for i in range(2_000):
        table.apply(0, Open(session=f"c{i}", ttl_ms=TTL_MS + i))
    dying = f"c0.{1}"
    table.apply(0, acquire(1, "L", session=dying))
    kept = KeepAlive(session="c9.10")
    assert lines_of(lambda: table.apply(TTL_MS, kept)) < 250
    assert dying not in table.sessions.by_id


@pytest.mark.parametrize(
    ("of_session", "of_hold", "shown"),
    [
        ("host:7", "nightly", "host:7, nightly"),
        ("host:7", "", "host:7"),
        ("", "nightly", "nightly"),
        ("", "", ""),
    ],
)
def test_a_holder_is_labelled_by_its_session_and_by_a_label_of_its_own(
    table: LockTable, of_session: str, of_hold: str, shown: str
) -> None:
    table.apply(0, Open(session="c", ttl_ms=TTL_MS, label=of_session))
    table.apply(0, replace(acquire(1, "L", session="c.2"), label=of_hold))
    (denied,) = table.apply(0, acquire(1, "L", wait_ms=0))
    (line,) = held(table)
    forced = table.apply(0, Evict(operator="root", request=1, lock="L", fence=1))[0]
    assert isinstance(forced, Evicted)
    assert line.holder is not None
    assert (line.holder.label, forced.holder.label) == (shown, shown)
    assert isinstance(denied, api.Refused)
    who = f"{shown} ('o' of 'c.2')" if shown else "'o' of 'c.2'"
    assert text_of(denied) == f"lock 'L': held by {who} under fence 1"


def test_a_label_that_the_name_of_the_owner_begins_with_is_not_repeated(table: LockTable) -> None:
    table.apply(0, Open(session="c", ttl_ms=TTL_MS, label="host:7"))
    table.apply(0, acquire(1, "L", "host:7#1", session="c.2"))
    denied = only(api.Refused, table.apply(0, acquire(2, "L", session="c.2", wait_ms=0)))
    assert text_of(denied) == "lock 'L': held by 'host:7#1' of 'c.2' under fence 1"


def test_a_listing_is_paged_by_prefix_and_name(table: LockTable) -> None:
    for i in range(30):
        table.apply(0, acquire(2 * i + 1, f"orders/{i:02}"))
        table.apply(0, acquire(2 * i + 2, f"users/{i:02}"))
    table.apply(0, acquire(200, "orders/00", "waiter"))
    first = held(table, "orders/", most=20)
    rest = held(table, "orders/", after=first[-1].lock, most=20)
    assert [line.lock for line in (*first, *rest)] == [f"orders/{i:02}" for i in range(30)]
    assert [line.waiting for line in first[:2]] == [1, 0]
    assert len(held(table)) == 60


def test_a_prefix_is_that_of_a_name_and_not_of_its_kind(table: LockTable) -> None:
    for number, name in enumerate(("shop", "secret", "other"), start=1):
        table.apply(0, acquire(2 * number, name))
        permits = AcquirePermits(
            semaphore=name, permits=1, session="s.1", owner="o", request=2 * number + 1
        )
        table.apply(0, permits)
    everything = [line.lock for line in held(table)]

    def listed(prefix: str) -> list[str]:
        found = [line.lock for line in held(table, prefix)]
        reach = ListLocks(prefix=prefix).reach
        assert all(plain_name(one).startswith(reach) for one in found)
        return found

    kind = object_name(SEMAPHORE, "")
    assert listed("s") == ["secret", f"{kind}secret", f"{kind}shop", "shop"]
    assert listed("sh") == [f"{kind}shop", "shop"]
    assert listed(f"{kind}s") == [f"{kind}secret", f"{kind}shop"]
    assert listed(kind) == [f"{kind}other", f"{kind}secret", f"{kind}shop"]
    assert listed("") == everything
    assert ListLocks(prefix="s").reach == ("s",)
    assert ListLocks(prefix=kind).reach == ("",)


def reads_of(table: LockTable) -> list[int]:
    """Return the costs of the reads that show names, but for names that are new to them."""
    kind, other = object_name(SEMAPHORE, ""), object_name("other", "")
    pages = [("", ""), ("none", ""), ("held 1", ""), ("", "held 3"), (kind, ""), (other, "x")]
    held(table)
    return [
        *(lines_of(partial(held, table, prefix, after, 5)) for prefix, after in pages),
        *(lines_of(partial(unheld, table, prefix, after, 5)) for prefix, after in pages),
        lines_of(partial(describe_locks, table, DescribeLocks())),
    ]


def full(size: int) -> LockTable:
    """Return a table with ``size`` names of each kind, held, not held, and only awaited."""
    table = LockTable()
    table.apply(0, Open(session="s", ttl_ms=TTL_MS))
    table.apply(0, acquire(1, "z"))
    for i in range(size):
        table.apply(0, acquire(1, f"held {i}"))
        for command in (
            AcquirePermits(semaphore=f"held {i}", permits=2, session="s.1", owner="o", request=1),
            AddToCounter(counter=f"held {i}", amount=1, session="s.1", owner="o", request=1),
        ):
            table.apply(0, command)
    awaited = [f"a{i}" for i in range(size)]
    for at in range(0, size, CLAIM_LOCKS_MAX - 1):
        locks = ("z", *awaited[at : at + CLAIM_LOCKS_MAX - 1])
        table.apply(0, AcquireAll(locks=locks, session="s.1", owner=f"w{at}", request=1))
    return table


def test_no_read_costs_more_for_more_names() -> None:
    """Lines of Python: a read looks at what it shows, not at the names that it does not show."""
    small, large = reads_of(full(200)), reads_of(full(2_000))
    assert [more <= 1.2 * less for less, more in zip(small, large, strict=True)] == [True] * 13


def test_no_read_meets_many_names_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are sorted when they are many, or when somebody reads them."""
    monkeypatch.setattr("fencelock.actors.table.table.RECENT_MAX", 10)

    def first(size: int) -> list[int]:
        table = LockTable()
        table.apply(0, Open(session="s", ttl_ms=TTL_MS))
        for i in range(size):
            table.apply(i, acquire(1, f"held {i:04}"))
        copy = LockTable.restore(table.snapshot())
        return [lines_of(partial(held, one, "none")) for one in (table, copy)]

    assert max(first(2_005)) <= max(first(15)) + 20
