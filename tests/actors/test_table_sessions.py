"""Sessions in the table: opened, kept, ended, closed by an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import held, restored, status_of, text_of

from fencelock.actors.api import message as api
from fencelock.actors.api.account import NO_KEY
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.latch import AwaitLatch, CountDown, LatchPassed
from fencelock.actors.api.map import DeleteEntry, PutEntry
from fencelock.actors.api.name import TTL_MS_MAX, object_name, without_secret
from fencelock.actors.api.pool import GivePermits, PermitsTaken, TakePermits
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Ended,
    Evict,
    ListRecords,
    Open,
    Opened,
    Records,
    SessionClosed,
    ended,
)
from fencelock.actors.table import requests, state
from fencelock.actors.table import table as whole
from fencelock.actors.table.rules import list_records
from fencelock.actors.table.state import ENDS_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import FENCE_FLOOR_MAX, ExtendSessions, LogCommand, Result

TTL_MS = 1_000


def opened(table: LockTable, name: str, at: int = 0, ttl_ms: int = TTL_MS) -> str:
    answer = only(Opened, table.apply(at, Open(session=name, ttl_ms=ttl_ms)))
    return answer.assigned


def acquire(
    session: str, request: int, lock: str = "L", *, owner: str = "o", **fields: Any
) -> api.Acquire:
    made = api.Acquire(session=session, owner=owner, request=request, lock=lock, limit=0)
    return replace(made, **fields)


def denials(outcomes: list[Result]) -> list[tuple[str, api.Reason]]:
    return [(one.session, one.reason) for one in outcomes if isinstance(one, api.Refused)]


@pytest.fixture
def table() -> LockTable:
    return LockTable()


def test_the_table_knows_a_session_until_it_is_closed(table: LockTable) -> None:
    """Rule sessions-are-found-again."""
    name = opened(table, "client")
    (kept,) = table.apply(1, api.KeepAlive(session=name, request=4))
    assert kept == api.Alive(session=name, node="", request=4)
    close = End(session=name)
    assert table.apply(2, close) == [ended(name, CloseReason.GRACEFUL)]
    assert table.sessions.by_id == {}
    assert table.apply(2, close) == [ended(name, CloseReason.GRACEFUL)]


def test_an_open_asked_again_finds_the_session(table: LockTable) -> None:
    """Rule sessions-are-found-again."""
    assert opened(table, "client") == opened(table, "client") == "client.1"
    assert len(table.sessions.by_id) == 1


def test_session_numbers_rise_and_an_ended_id_never_comes_back(table: LockTable) -> None:
    """Rule numbers-never-return: nothing sent before reaches the session of a late open."""
    first = opened(table, "client")
    table.apply(0, End(session=first))
    second = opened(table, "client")
    assert (first, second, opened(table, "other")) == ("client.1", "client.2", "other.3")
    assert denials(table.apply(0, acquire(first, 1))) == [(first, api.Reason.SESSION_EXPIRED)]
    assert denials(table.apply(0, api.KeepAlive(session=first))) == [
        (first, api.Reason.SESSION_EXPIRED)
    ]


def test_a_session_without_a_sign_of_life_ends_just_after_its_ttl(table: LockTable) -> None:
    """Rule requests-keep-alive."""
    name = opened(table, "client", at=5)
    assert table.due_ms() == 5 + TTL_MS
    assert table.advance(4 + TTL_MS) == []
    closed = ended(name, CloseReason.EXPIRED)
    assert table.advance(5 + TTL_MS) == [closed]
    assert table.due_ms() is None


def test_an_operators_command_keeps_no_session_alive(table: LockTable) -> None:
    opened(table, "client")
    table.apply(0, acquire("client.1", 1))
    table.apply(600, Evict(operator="root", request=1, lock="L", fence=1))
    assert table.due_ms() == TTL_MS


def test_a_new_leader_gives_every_session_another_ttl(table: LockTable) -> None:
    """Rule leaders-extend-sessions: even one whose TTL was nearly over."""
    short, long = opened(table, "a"), opened(table, "b", ttl_ms=TTL_MS * 50)
    assert table.apply(5_000, ExtendSessions(leader="m2")) == []
    assert set(table.sessions.by_id) == {short, long}
    assert table.due_ms() == 5_000 + TTL_MS
    assert table.sessions.deadline(table.sessions.by_id[long]) == 5_000 + TTL_MS * 50
    table.apply(5_500, api.KeepAlive(session=short))
    assert table.due_ms() == 5_500 + TTL_MS
    (closed,) = table.advance(5_500 + TTL_MS)
    assert closed == ended(short, CloseReason.EXPIRED)


def test_a_new_leader_may_raise_the_fences_and_never_lowers_them(table: LockTable) -> None:
    """A group that lost everything continues with fences above a date."""
    table.apply(0, ExtendSessions(leader="m", fence_floor=1_000))
    table.apply(0, ExtendSessions(leader="m", fence_floor=7))
    beyond = ExtendSessions(leader="m", fence_floor=FENCE_FLOOR_MAX + 1)
    assert denials(table.apply(0, beyond)) == [("", api.Reason.INVALID)]
    assert only(api.Granted, table.apply(0, acquire(opened(table, "client"), 1))).fence == 1_001


def test_deadlines_end_in_order_of_time_and_waits_before_sessions(table: LockTable) -> None:
    """Rules waits-end-by-log-time, log-time-alone: one leap is like many steps."""
    leaps, steps = table, LockTable()
    for one in (leaps, steps):
        holder = opened(one, "holder", ttl_ms=500)
        other = opened(one, "other", ttl_ms=5_000)
        one.apply(0, acquire(holder, 1))
        for request, wait_ms in ((1, 500), (2, 501), (3, 400)):
            one.apply(0, acquire(other, request, owner=f"o{request}", wait_ms=wait_ms))
    outcomes = leaps.advance(1_000)
    words = [(type(one).__name__, getattr(one, "owner", "")) for one in outcomes]
    assert words == [("Refused", "o3"), ("Refused", "o1"), ("Ended", ""), ("Granted", "o2")]
    assert [one for at in range(1, 1_001) for one in steps.advance(at)] == outcomes
    assert status_of(leaps, "L").holder is not None


def test_log_time_never_goes_back(table: LockTable) -> None:
    opened(table, "client", at=500)
    table.apply(100, api.KeepAlive(session="client.1"))
    assert (table.time_ms, table.due_ms()) == (500, 500 + TTL_MS)


@pytest.mark.parametrize(
    "command",
    [
        Open(session="c", ttl_ms=0),
        Open(session="c", ttl_ms=TTL_MS_MAX + 1),
        Open(session="c" * 257, ttl_ms=TTL_MS),
        Open(session="c", ttl_ms=TTL_MS, label="\n"),
        acquire("client.1", 0),
        acquire("client.1", 1, ""),
        acquire("client.1", 1, "L" * 257),
        acquire("client.1", 1, owner="\0"),
        acquire("client.1", 1, wait_ms=-1),
        acquire("client.1", 1, limit=-1),
        Evict(operator="root", request=0, lock="L", fence=1),
    ],
    ids=str,
)
def test_requests_out_of_limits_change_nothing(table: LockTable, command: LogCommand) -> None:
    opened(table, "client")
    before = table.digest()
    ((_, reason),) = denials(table.apply(0, command))
    assert reason is api.Reason.INVALID
    assert table.digest() == before


MANY = 3 * ENDS_MAX + 7
LONG_TTL_MS = 10_000


def table_of(sessions: int) -> LockTable:
    table = LockTable()
    for number in range(sessions):
        table.apply(0, Open(session=f"s{number}", ttl_ms=LONG_TTL_MS))
    return table


def put(
    table: LockTable, number: int, *, ttl_ms: int | None = None, ephemeral: bool = False
) -> None:
    entry = PutEntry(
        map="m", entry_key=f"k{number}", value=b"v", ttl_ms=ttl_ms, ephemeral=ephemeral
    )
    table.apply(table.time_ms, replace(entry, session="s0.1", owner="o", request=number + 1))


def steps_until_idle(table: LockTable, time_ms: int) -> list[int]:
    """Let log time pass while something is due; return the ends of each step.

    A member that is restored from a snapshot before each step does the same.
    """
    done: list[int] = []
    while (due := table.due_ms()) is not None and due <= time_ms:
        before, twin = remaining(table), restored(table)
        assert twin.advance(time_ms) == table.advance(time_ms)
        assert twin.numbers() == table.numbers()
        done.append(before - remaining(table))
        time_ms += 1
    return done


def remaining(table: LockTable) -> int:
    queues = sum(one.waiting for one in table.objects.values())
    return len(table.sessions.by_id) + table.maps.count + queues + table.claims - queues


def steps_due_now(table: LockTable) -> Iterator[list[Result]]:
    """Let log time pass while something is due already; yield the outcomes of each step.

    A member that is restored from a snapshot before each step does the same.
    """
    for _ in range(MANY):
        due_ms = table.due_ms()
        if due_ms is None or due_ms > table.time_ms:
            return
        twin, now_ms = restored(table), table.time_ms + 1
        outcomes = table.advance(now_ms)
        assert twin.advance(now_ms) == outcomes
        yield outcomes
    raise AssertionError("something stays due")


def test_nothing_is_left_of_a_session_whose_last_entries_others_delete() -> None:
    table = table_of(2)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    table.apply(1, End(session="s0.1"))
    assert table.departed
    for number in range(MANY):
        delete = DeleteEntry(session="s1.2", request=number + 1, map="m", entry_key=f"k{number}")
        table.apply(1, delete)
    assert restored(table).due_ms() == table.due_ms()
    steps_until_idle(table, 2)
    assert not table.departed
    assert table.accounts.by_name[NO_KEY].sessions == 1


@pytest.mark.parametrize(
    "ends",
    ["sessions", "entries", "entries of a session", "holds", "holds of a session", "barriers"],
)
def test_deadlines_at_one_time_end_a_thousand_at_a_time(ends: str) -> None:
    table = table_of(MANY if ends == "sessions" else 1)
    for number in range(MANY if ends != "sessions" else 0):
        if ends == "holds of a session":
            table.apply(0, acquire("s0.1", number + 1, f"l{number}"))
        elif ends == "holds":
            table.apply(0, acquire("s0.1", number + 1, f"l{number}", hold_ms=100, grace_ms=100))
        elif ends == "barriers":
            party = AwaitBarrier(barrier=f"b{number}", parties=2, wait_ms=500)
            table.apply(0, replace(party, session="s0.1", owner="o", request=number + 1))
        else:
            put(
                table,
                number,
                ttl_ms=500 if ends == "entries" else None,
                ephemeral=ends.endswith("session"),
            )
    due_ms = 1_000 if ends in ("entries", "holds", "barriers") else LONG_TTL_MS

    done = steps_until_idle(table, due_ms)

    assert sum(done) == MANY + ends.endswith("of a session")
    assert max(done) <= ENDS_MAX + 1
    assert len(done) <= MANY // (ENDS_MAX // 2) + 1


def test_a_session_that_is_due_may_still_be_kept_and_is_then_not_ended() -> None:
    table = table_of(MANY)
    table.advance(LONG_TTL_MS)
    last = f"s{MANY - 1}.{MANY}"
    assert last in table.sessions.by_id

    table.apply(LONG_TTL_MS, api.KeepAlive(session=last, request=1))
    steps_until_idle(table, LONG_TTL_MS + 1)

    assert list(table.sessions.by_id) == [last]


def test_the_entries_of_an_ended_session_end_with_it_whichever_node_leads() -> None:
    table = table_of(1)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    only(Ended, table.apply(1, End(session="s0.1", request=MANY + 1)))
    put_again = Open(session="s0", ttl_ms=LONG_TTL_MS)

    table.apply(2, put_again)
    table.apply(3, ExtendSessions(leader="n1", fence_floor=0))
    steps_until_idle(table, 4)

    assert table.maps.count == 0
    assert not table.departed
    assert len(table.sessions.by_id) == 1


def test_the_waiters_of_an_open_latch_pass_a_thousand_at_a_time_before_their_timeouts() -> None:
    table, passed = table_of(1), list[int]()
    name = object_name("latch", "l")

    def counted(outcomes: list[Result]) -> int:
        assert all(isinstance(one, LatchPassed) for one in outcomes[-1:])
        return sum(isinstance(one, LatchPassed) for one in outcomes)

    for number in range(MANY):
        wait = AwaitLatch(latch="l", count=1, keep_ms=1_000, wait_ms=5)
        claimant = {"session": "s0.1", "owner": f"o{number}", "request": number + 1}
        table.apply(0, replace(wait, **claimant))
    down = CountDown(latch="l", count=1, keep_ms=1_000, session="s0.1", request=MANY + 1)
    passed.append(counted(table.apply(4, down)))
    passed += map(counted, steps_due_now(table))

    assert passed == [ENDS_MAX, ENDS_MAX, ENDS_MAX, 7]
    table.advance(10_000 - 1)
    assert name not in table.objects


def test_a_queue_behind_what_ends_is_served() -> None:
    table = table_of(2 * ENDS_MAX)
    for number in range(ENDS_MAX):
        for owner in (number, number + ENDS_MAX):
            table.apply(0, acquire(f"s{owner}.{owner + 1}", 1, f"l{number}"))
    for number in range(ENDS_MAX, 2 * ENDS_MAX):
        table.apply(LONG_TTL_MS - 1, api.KeepAlive(session=f"s{number}.{number + 1}", request=2))
    granted = 0
    for now_ms in range(LONG_TTL_MS, LONG_TTL_MS + 10):
        granted += sum(isinstance(one, api.Granted) for one in table.advance(now_ms))
    assert granted == ENDS_MAX


def test_all_sessions_end_at_once_without_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.table.table.ENDS_MAX", 1 << 60)
    monkeypatch.setattr(state, "ENDS_MAX", 1 << 60)
    assert steps_until_idle(table_of(MANY), LONG_TTL_MS) == [MANY]


def test_the_holds_of_an_ended_session_end_in_steps_and_are_its_own_no_more() -> None:
    """Rule close-ends-waits-first."""
    table, granted = table_of(2), list[api.Granted]()
    for number in range(MANY):
        table.apply(0, acquire("s0.1", number + 1, f"l{number}"))
    table.apply(0, acquire("s1.2", 1, f"l{MANY - 1}", owner="next"))

    only(Ended, table.apply(1, End(session="s0.1", request=MANY + 1)))

    assert table.claims == MANY - ENDS_MAX + 1
    late = api.Release(session="s0.1", owner="o", request=MANY + 2, lock="l200", fence=201)
    assert denials(table.apply(1, late)) == [("s0.1", api.Reason.SESSION_EXPIRED)]
    taken = Evict(operator="root", session="x", request=1, lock=f"l{MANY - 2}", fence=MANY - 1)
    table.apply(1, taken)
    assert (table.is_held(f"l{MANY - 2}", MANY - 1), table.claims) == (False, MANY - ENDS_MAX)
    for outcomes in steps_due_now(table):
        granted += [one for one in outcomes if isinstance(one, api.Granted)]
    assert [one.owner for one in granted] == ["next"]
    assert (table.claims, table.departed) == (1, {})
    assert table.accounts.by_name[NO_KEY].used[3:] == (1, 1)


@pytest.mark.parametrize("kind", ["semaphore", "pool"])
def test_what_one_end_makes_room_for_is_granted_in_steps_in_the_order_of_the_queue(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Rule queue-in-log-order."""
    for module in (state, whole):
        monkeypatch.setattr(module, "SERVED_MAX", 10)
    table, served = table_of(1), list[str]()

    def take(owner: str, request: int, amount: int) -> LogCommand:
        by: dict[str, Any] = {"session": "s0.1", "owner": owner, "request": request}
        if kind == "pool":
            return TakePermits(pool="p", size=40, amount=amount, wait_ms=None, **by)
        return AcquirePermits(semaphore="p", permits=40, amount=amount, wait_ms=None, **by)

    def note(outcomes: list[Result]) -> None:
        served.extend(one.owner for one in outcomes if isinstance(one, (api.Granted, PermitsTaken)))

    table.apply(0, take("all", 1, 40))
    for number in range(25):
        table.apply(0, take(f"o{number:02}", 2 + number, 1))
    by: dict[str, Any] = {"session": "s0.1", "owner": "all", "request": 50}
    lock = object_name("semaphore", "p")
    give = GivePermits(pool="p", amount=40, **by)
    note(table.apply(1, give if kind == "pool" else api.Release(lock=lock, fence=1, **by)))
    assert len(served) == 10
    note(table.apply(1, take("late", 60, 1)))
    for outcomes in steps_due_now(table):
        assert len(outcomes) <= 10
        note(outcomes)
    assert served == [*(f"o{number:02}" for number in range(25)), "late"]


def test_barriers_that_one_end_breaks_refuse_in_steps_and_nobody_passes_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (state, whole):
        monkeypatch.setattr(module, "SERVED_MAX", 1)
    table, broken = table_of(3), list[str]()
    for number in range(5):
        wait = AwaitBarrier(barrier=f"b{number}", parties=3, wait_ms=None, owner=f"o{number}")
        for session in ("s0.1", "s1.2"):
            table.apply(0, replace(wait, session=session, request=number + 1))

    def note(outcomes: list[Result]) -> None:
        refusals = [one for one in outcomes if isinstance(one, api.Refused)]
        broken.extend(one.owner for one in refusals if one.reason is api.Reason.BROKEN)

    note(table.apply(1, End(session="s0.1", request=9)))
    assert broken == ["o0"]
    for parties in (2, 3):  # The number that is left would be complete with it, or one is missing.
        late = AwaitBarrier(barrier="b4", parties=parties, wait_ms=None, owner="late")
        arrival = replace(late, session="s2.3", request=parties)
        refusal = only(api.Refused, table.apply(1, arrival))
        wanted = api.Reason.INVALID if parties == 2 else api.Reason.BROKEN
        assert refusal.reason is wanted
    for outcomes in steps_due_now(table):
        note(outcomes)
    assert broken == [f"o{number}" for number in range(5)]
    assert table.objects == {}


@pytest.mark.parametrize("full", ["session", "queue"])
def test_waits_have_a_limit_by_session_and_by_object(
    monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    monkeypatch.setattr(requests, "WAITS_MAX", 2)
    table = table_of(4)
    table.apply(0, acquire("s0.1", 1, "l", owner="holder"))
    table.apply(0, acquire("s0.1", 2, "m", owner="holder"))
    for number in range(2):
        session = "s0.1" if full == "session" else f"s{number + 1}.{number + 2}"
        table.apply(0, acquire(session, 3 + number, "l", owner=f"o{number}"))
    before = table.claims
    last = acquire("s0.1" if full == "session" else "s3.4", 9, "m" if full == "session" else "l")
    refusal = only(api.Refused, table.apply(0, last))
    assert refusal.reason is api.Reason.OVERLOADED
    limit = "2 waits, a session may have 2"
    if full == "queue":
        limit = "2 waits for 'l', an object may have 2"
    assert limit in text_of(refusal)
    assert table.claims == before
    table.apply(0, acquire("s3.4", 10, "free"))  # Who need not wait is granted.
    assert table.claims == before + 1


SECRET = "~" + "0123456789abcdef" * 2
VICTIM, HANDLE = f"bob{SECRET}.1", "bob.1"
NEXT = "ann.2"
CLOSE = CloseSession(handle=HANDLE, operator="eve", session="root.9", request=7)
BY = "eve (root)"


def claim(session: str, request: int, lock: str = "a", owner: str = "o") -> api.Acquire:
    return acquire(session, request, lock, owner=owner, limit=1)


def closed(claims: int) -> SessionClosed:
    return SessionClosed(handle=HANDLE, label="host:1", claims=claims, session="root.9", request=7)


@pytest.fixture
def table_of_two() -> LockTable:
    made = LockTable()
    for name, label in ((f"bob{SECRET}", "host:1"), ("ann", "host:2")):
        only(Opened, made.apply(0, Open(session=name, ttl_ms=9_000, label=label)))
    return made


def applied(table_of_two: LockTable, *commands: api.Acquire) -> None:
    for command in commands:
        table_of_two.apply(0, command)


def grants(outcomes: list[Result]) -> list[tuple[str, str, int]]:
    return [(o.session, o.lock, o.fence) for o in outcomes if isinstance(o, api.Granted)]


def test_the_end_of_an_expired_session_names_no_operator() -> None:
    end = Ended(session="ann.1", detail="", reason=CloseReason.EXPIRED)
    text = "session 'ann.1' has ended: nothing was received from its client for its TTL"
    assert text_of(end) == text


def test_a_closed_sessions_locks_go_to_others_and_its_waits_end(table_of_two: LockTable) -> None:
    applied(table_of_two, claim(NEXT, 1, "c"), claim(VICTIM, 2, "a"), claim(VICTIM, 3, "b", "p"))
    applied(table_of_two, claim(VICTIM, 4, "c", "q"), claim(NEXT, 5, "a"), claim(NEXT, 6, "b", "p"))
    assert [line.holder.session for line in held(table_of_two)] == [HANDLE, HANDLE, NEXT]
    first, wait_ended, end, *passed_on = table_of_two.apply(50, CLOSE)
    assert first == closed(3)
    assert isinstance(wait_ended, api.Refused)
    assert (wait_ended.owner, wait_ended.reason) == ("q", api.Reason.SESSION_EXPIRED)
    assert end == ended(VICTIM, CloseReason.FORCED, 0, BY)
    assert isinstance(end, Ended)
    assert text_of(end).endswith("has ended: an operator ended it: 'eve (root)'")
    assert text_of(end).startswith("session 'bob.1' has")
    assert grants(passed_on) == [(NEXT, "a", 4), (NEXT, "b", 5)]
    assert table_of_two.state_of("c").waiting == 0
    assert list(table_of_two.sessions.by_id) == [NEXT]
    assert table_of_two.claims == 3
    late = only(api.Refused, table_of_two.apply(60, claim(VICTIM, 8)))
    assert late.reason is api.Reason.SESSION_EXPIRED


def test_the_audit_lists_a_closed_session_with_operator_and_time(table_of_two: LockTable) -> None:
    applied(table_of_two, claim(VICTIM, 1), claim(VICTIM, 2, "b"))
    table_of_two.apply(50, CLOSE)
    table_of_two.apply(50, Open(session="late", ttl_ms=9_000))
    table_of_two.apply(60, claim("late.3", 1))
    table_of_two.apply(60, Evict(lock="a", fence=3, operator="eve", session="root.9", request=8))
    table_of_two.advance(110)
    audit = list_records(table_of_two, ListRecords(kind=Records.EVICTIONS))
    one, other = audit.evictions
    assert (one.lock, one.fence, one.operator, one.ago_ms) == ("", 0, BY, 60)
    assert (one.holder.session, one.holder.label, one.holder.times) == (HANDLE, "host:1", 2)
    assert (other.lock, other.ago_ms) == ("a", 50)
    assert restored(table_of_two).apply(120, CLOSE) == [closed(2)]


def test_a_repeated_request_has_the_same_outcome_and_closes_nothing_else(
    table_of_two: LockTable,
) -> None:
    applied(table_of_two, claim(VICTIM, 1))
    assert table_of_two.apply(0, CLOSE)[0] == closed(1)
    again = only(Opened, table_of_two.apply(0, Open(session=f"bob{SECRET}", ttl_ms=9_000)))
    assert again.assigned == f"bob{SECRET}.3"
    assert table_of_two.apply(0, CLOSE) == [closed(1)]
    later = replace(CLOSE, session="root~2.11")  # Its first session was lost.
    assert table_of_two.apply(0, later) == [replace(closed(1), session="root~2.11")]
    assert list(table_of_two.sessions.by_id) == [NEXT, again.assigned]
    assert len(table_of_two.forced()) == 1


@pytest.mark.parametrize(
    "handle", ["bob.2", "bob.01", "bob", "bob.", "ann.1", "bob.3", VICTIM, "bob.\u0661", "1"]
)
def test_a_handle_of_no_session_is_refused_with_a_reason(
    table_of_two: LockTable, handle: str
) -> None:
    refused = only(api.Refused, table_of_two.apply(0, replace(CLOSE, handle=handle)))
    assert (refused.reason, refused.session, refused.request) == (api.Reason.NOT_HELD, "root.9", 7)
    assert text_of(refused).startswith(f"session '{without_secret(handle)[:8]}")
    assert "is not open" in text_of(refused)
    assert len(table_of_two.sessions.by_id) == 2
    assert table_of_two.forced() == ()


def test_a_session_closed_before_is_not_closed_by_another_request(table_of_two: LockTable) -> None:
    table_of_two.apply(0, CLOSE)
    refused = only(api.Refused, table_of_two.apply(0, replace(CLOSE, request=8)))
    assert refused.reason is api.Reason.NOT_HELD


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"handle": "x" * 277}, "handle of 277 bytes"),
        ({"handle": "a\n.1"}, "handle"),
        ({"operator": "x" * 300}, "operator and client together have 307 bytes"),
        ({"request": 0}, "request is 0"),
    ],
)
def test_a_field_beyond_its_limit_is_refused(
    table_of_two: LockTable, wrong: dict[str, str | int], words: str
) -> None:
    refused = only(api.Refused, table_of_two.apply(0, replace(CLOSE, **wrong)))
    assert refused.reason is api.Reason.INVALID
    assert words in text_of(refused, replace(CLOSE, **wrong))
