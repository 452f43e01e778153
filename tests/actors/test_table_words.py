"""The texts of the table's refusals: each names the lock and the facts on which a user can act."""

from __future__ import annotations

import pytest
from support.table_scene import text_of

from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Reason, Refused, Release
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Evict, Open
from fencelock.actors.table import requests, rules
from fencelock.actors.table.sentences import ARGUMENTS, is_sound
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand

ME, PAT = "ann.1", "pat.2"


def acquire(
    request: int,
    wait_ms: int | None = 0,
    *,
    session: str = ME,
    owner: str = "o",
    limit: int = 1,
    lock: str = "a",
) -> Acquire:
    return Acquire(
        lock=lock, session=session, owner=owner, request=request, wait_ms=wait_ms, limit=limit
    )


def release(request: int, fence: int, *, session: str = ME) -> Release:
    return Release(lock="a", fence=fence, session=session, owner="o", request=request)


PATS = acquire(1, session=PAT, owner="p")
MINE = acquire(1)
TAKEN = Evict(lock="a", fence=1, operator="eve", session="root", request=1)


@pytest.mark.parametrize(
    ("before", "command", "reason", "words"),
    [
        ((PATS,), acquire(2), Reason.TIMED_OUT, "lock 'a': held by 'p' of 'pat.2' (host:2)"),
        ((MINE,), acquire(2), Reason.ALREADY_HELD, "limit: held 1 times under fence 1, 1 are"),
        ((MINE, acquire(2, limit=2)), acquire(3, limit=2), Reason.LIMIT_REACHED, "held 2 times"),
        ((MINE, release(3, 1)), acquire(2), Reason.SUPERSEDED, "a later request"),
        ((MINE, TAKEN), MINE, Reason.OWNERSHIP_LOST, "has lost it; taken by 'eve (root)'"),
        ((MINE, TAKEN), release(2, 1), Reason.OWNERSHIP_LOST, "has lost it; nobody holds it"),
        (
            (PATS,),
            release(2, 1),
            Reason.NOT_HELD,
            "fence 1 was shown, which does not hold it; hel",
        ),
        ((), release(2, 5), Reason.NOT_HELD, "lock 'a': fence 5 was shown, which does not hold it"),
        ((), TAKEN, Reason.NOT_HELD, "fence 1 was shown, which does not hold it; nobody holds it"),
        ((), acquire(1, session="ann.7"), Reason.SESSION_EXPIRED, "'ann.7' does not exist (any"),
        ((), KeepAlive(session="bob.7"), Reason.SESSION_EXPIRED, "session 'bob.7' does not exist"),
        ((), acquire(1, lock="x" * 257), Reason.INVALID, "lock name of 257 bytes"),
    ],
)
def test_a_refusal_says_why(
    before: tuple[LogCommand, ...], command: LogCommand, reason: Reason, words: str
) -> None:
    table = table_with_two_sessions()
    for earlier in before:
        table.apply(1, earlier)
    (answer,) = table.apply(2, command)
    assert isinstance(answer, Refused)
    assert answer.reason is reason
    assert words in text_of(answer, command if isinstance(command, Command) else None)


@pytest.mark.parametrize("cause", sorted({*Cause} - {Cause.QUOTA_SET, Cause.PURGED}))
def test_every_cause_has_a_sentence(cause: Cause) -> None:
    numbers, texts, seen = ARGUMENTS[cause]
    obstacle = Obstacle("b") if seen else None
    why = Why(cause, (1, 2, 3)[:numbers], ("shop", "entries")[:texts], obstacle)
    assert is_sound(why)
    words = text_of(Refused(lock="a", reason=Reason.INVALID, detail="", why=why))
    assert len(words.split()) > 5
    assert not set("{}") & set(words)


def test_a_wait_that_ends_says_how_long_it_was_and_why() -> None:
    table = table_with_two_sessions()
    for command in (PATS, acquire(1, 50)):
        table.apply(1, command)
    (late,) = table.advance(51)
    assert isinstance(late, Refused)
    assert late.reason is Reason.TIMED_OUT
    assert text_of(late).startswith("lock 'a': waited 50 ms; held by 'p' of 'pat.2'")
    table.apply(60, acquire(2, None))
    _, given_up = table.apply(60, Cancel(lock="a", session=ME, owner="o", request=2))
    assert isinstance(given_up, Refused)
    assert given_up.reason is Reason.CANCELLED
    assert text_of(given_up) == "lock 'a': the wait was given up"


def test_a_forgotten_owner_is_told_that_nothing_is_done() -> None:
    table = table_with_two_sessions()
    for command in (MINE, release(2, 1)):
        table.apply(1, command)
    for at in (5_000, 9_500):
        table.apply(at, KeepAlive(session=ME))
    (answer,) = table.apply(9_600, release(2, 1))
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.FORGOTTEN
    assert text_of(answer).endswith("a later request, so nothing is done now")


def test_a_full_table_names_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SESSION_CLAIMS_MAX", 1)
    monkeypatch.setattr(rules, "SESSIONS_MAX", 2)
    table = table_with_two_sessions()
    table.apply(1, MINE)
    (answer,) = table.apply(1, acquire(2, lock="b"))
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.OVERLOADED
    assert text_of(answer) == "lock 'b': 1 holds and waits, a session may have 1"
    (full,) = table.apply(1, Open(session="zoe", ttl_ms=9_000, request=3))
    assert isinstance(full, Refused)
    assert (full.reason, full.session, full.request) == (Reason.OVERLOADED, "zoe", 3)
    assert text_of(full) == "2 sessions are open, no more are allowed"


def table_with_two_sessions() -> LockTable:
    """Return a table with the sessions `ME` and `PAT`."""
    table = LockTable()
    for name, label in (("ann", "host:1"), ("pat", "host:2")):
        table.apply(0, Open(session=name, ttl_ms=9_000, label=label))
    return table
