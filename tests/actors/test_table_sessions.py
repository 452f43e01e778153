"""Sessions of the replicated table: opened, kept, extended, expired, closed in one step."""

from __future__ import annotations

import pytest

from fencelock.actors.api import message as api
from fencelock.actors.api.name import TTL_MS_MAX
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Ended,
    Evict,
    Open,
    Opened,
    ended,
)
from fencelock.actors.table.account import SESSIONS_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import FENCE_FLOOR_MAX, ExtendSessions, LogCommand, Result

TTL_MS = 1_000


def opened(table: LockTable, name: str, at: int = 0, ttl_ms: int = TTL_MS) -> str:
    (answer,) = table.apply(at, Open(session=name, ttl_ms=ttl_ms))
    assert isinstance(answer, Opened)
    return answer.assigned


def acquire(session: str, request: int, lock: str = "L", *, owner: str = "o") -> api.Acquire:
    return api.Acquire(session=session, owner=owner, request=request, lock=lock, limit=0)


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


@pytest.mark.parametrize(
    "command",
    [
        api.KeepAlive(session="gone.1"),
        acquire("gone.1", 1),
        api.Release(session="gone.1", owner="o", request=1, lock="L", fence=1),
        api.Cancel(session="gone.1", owner="o", request=1, lock="L"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_unknown_session_is_told_that_it_expired(table: LockTable, command: LogCommand) -> None:
    """Rule requests-keep-alive."""
    assert denials(table.apply(0, command)) == [("gone.1", api.Reason.SESSION_EXPIRED)]
    assert table.resources == {}


def test_without_a_sign_of_life_a_session_ends_after_its_ttl_and_not_before(
    table: LockTable,
) -> None:
    """Rule requests-keep-alive."""
    name = opened(table, "client", at=5)
    assert table.due_ms() == 5 + TTL_MS
    assert table.advance(4 + TTL_MS) == []
    closed = ended(name, CloseReason.EXPIRED)
    assert table.advance(5 + TTL_MS) == [closed]
    assert table.due_ms() is None


@pytest.mark.parametrize(
    "command",
    [
        api.KeepAlive(session="client.1"),
        Open(session="client", ttl_ms=TTL_MS),
        acquire("client.1", 2, "M"),
        acquire("client.1", 1, "L"),
        api.Release(session="client.1", owner="o", request=2, lock="L", fence=9),
        api.Cancel(session="client.1", owner="o", request=2, lock="M"),
    ],
    ids=["keep", "open again", "acquire", "acquire again", "refused release", "cancel"],
)
def test_every_command_of_a_session_is_a_sign_of_life(
    table: LockTable, command: LogCommand
) -> None:
    """Rule requests-keep-alive."""
    opened(table, "client")
    table.apply(0, acquire("client.1", 1))
    table.apply(600, command)
    assert table.due_ms() == 600 + TTL_MS


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
    (held,) = table.apply(0, acquire(opened(table, "client"), 1))
    assert isinstance(held, api.Granted)
    assert held.fence == 1_001


@pytest.mark.parametrize("reason", CloseReason)
def test_a_close_is_one_step_waits_then_holds_then_grants(
    table: LockTable, reason: CloseReason
) -> None:
    """Rules outcomes-are-kept, close-is-one-step: and none of its own waits is granted."""
    dying, other = opened(table, "dying"), opened(table, "other", ttl_ms=TTL_MS * 9)
    for request, lock in ((1, "L"), (2, "M")):
        table.apply(0, acquire(dying, request, lock))
    table.apply(0, acquire(other, 3, "N"))
    table.apply(0, acquire(dying, 4, "L", owner="second"))
    table.apply(0, acquire(dying, 5, "N", owner="third"))
    table.apply(0, acquire(other, 6, "M"))
    table.apply(0, acquire(other, 7, "L"))
    match reason:
        case CloseReason.GRACEFUL:
            told = table.apply(1, End(session=dying))
        case CloseReason.FORCED:
            _, *told = table.apply(1, CloseSession(handle=dying, operator="root", request=1))
        case CloseReason.EXPIRED:
            told = table.advance(TTL_MS)
    assert [type(one) for one in told] == [
        api.Refused,
        api.Refused,
        Ended,
        api.Granted,
        api.Granted,
    ]
    assert denials(told) == [(dying, api.Reason.SESSION_EXPIRED)] * 2
    grants = [(one.session, one.lock, one.fence) for one in told if isinstance(one, api.Granted)]
    assert grants == [(other, "L", 4), (other, "M", 5)]
    assert [line.holder and line.holder.session for line in table.listing()] == [other] * 3
    assert all(line.waiting == 0 for line in table.listing())
    assert table.claims == table.sessions.by_id[other].claims == 3


def test_a_wait_behind_another_ends_with_its_session_at_once(table: LockTable) -> None:
    """Not when the one before it goes."""
    holder, dying = opened(table, "holder", ttl_ms=TTL_MS * 9), opened(table, "dying")
    table.apply(0, acquire(holder, 1))
    table.apply(0, acquire(dying, 1))
    assert denials(table.advance(TTL_MS)) == [(dying, api.Reason.SESSION_EXPIRED)]
    assert table.status("L").waiting == 0


def test_what_falls_due_goes_in_order_of_time_waits_before_sessions(table: LockTable) -> None:
    """Rules waits-end-by-log-time, log-time-alone: one leap is like many steps."""
    leaps, steps = table, LockTable()
    for one in (leaps, steps):
        holder = opened(one, "holder", ttl_ms=500)
        other = opened(one, "other", ttl_ms=5_000)
        one.apply(0, acquire(holder, 1))
        for request, wait_ms in ((1, 500), (2, 501), (3, 400)):
            wait = api.Acquire(
                session=other,
                owner=f"o{request}",
                request=request,
                lock="L",
                wait_ms=wait_ms,
                limit=0,
            )
            one.apply(0, wait)
    told = leaps.advance(1_000)
    words = [(type(one).__name__, getattr(one, "owner", "")) for one in told]
    assert words == [
        ("Refused", "o3"),
        ("Refused", "o1"),
        ("Ended", ""),
        ("Granted", "o2"),
    ]
    assert [one for at in range(1, 1_001) for one in steps.advance(at)] == told
    assert leaps.status("L").holder is not None


def test_log_time_never_goes_back(table: LockTable) -> None:
    opened(table, "client", at=500)
    table.apply(100, api.KeepAlive(session="client.1"))
    assert (table.time_ms, table.due_ms()) == (500, 500 + TTL_MS)


def test_sessions_have_a_limit(table: LockTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.table.rules.SESSIONS_MAX", 2)
    opened(table, "a")
    opened(table, "b")
    over = Open(session="c", ttl_ms=TTL_MS)
    assert denials(table.apply(0, over)) == [("c", api.Reason.OVERLOADED)]
    assert SESSIONS_MAX > 2


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
        api.Acquire(session="client.1", owner="o", request=1, lock="L", wait_ms=-1, limit=0),
        api.Acquire(session="client.1", owner="o", request=1, lock="L", limit=-1),
        Evict(operator="root", request=0, lock="L", fence=1),
    ],
    ids=str,
)
def test_what_is_out_of_limits_is_denied_and_changes_nothing(
    table: LockTable, command: LogCommand
) -> None:
    opened(table, "client")
    before = table.digest()
    ((_, reason),) = denials(table.apply(0, command))
    assert reason is api.Reason.INVALID
    assert table.digest() == before
