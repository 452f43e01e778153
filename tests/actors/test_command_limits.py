"""Limits of commands, and of the numbers of requests."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from fencelock.actors.api import name
from fencelock.actors.api.election import Lead
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.name import (
    INT_MAX,
    LABEL_BYTES_MAX,
    LOCK_NAME_BYTES_MAX,
    OWNER_BYTES_MAX,
    REQUEST_MAX,
    WAIT_MS_MAX,
)
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import PERMITS_MAX, AcquirePermits
from fencelock.actors.api.session_message import Evict, Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address
from fencelock.actors.proxy.description import DESCRIBES_MAX, DESCRIBES_OF_CLIENT_MAX, has_room
from fencelock.actors.table.sentences import worded
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand

LOCKS = (
    "",
    "a",
    "b\x1f",
    "semaphore\x1fc",
    "line\nbreak",
    "größe",
    "é" * 128,
    "é" * 129,
    "a" * LOCK_NAME_BYTES_MAX,
)
OWNERS = ("", "me", "tab\t", "o" * OWNER_BYTES_MAX, "o" * (OWNER_BYTES_MAX + 1))
LABELS = ("", "host:1", "\x7f", "l" * LABEL_BYTES_MAX, "l" * (LABEL_BYTES_MAX + 1))
NUMBERS = (-1, 0, 1, INT_MAX, INT_MAX + 1)
WAITS = (None, -1, 0, WAIT_MS_MAX, WAIT_MS_MAX + 1)


def acquires() -> list[LogCommand]:
    texts = product(LOCKS, OWNERS, LABELS)
    named = [(lock, owner, label, 1, None, 0) for lock, owner, label in texts]
    numbered = [("a", "me", "x", *numbers) for numbers in product(NUMBERS, WAITS, NUMBERS)]
    return [
        Acquire(
            session="s.1",
            lock=lock,
            owner=owner,
            label=label,
            request=request,
            wait_ms=wait_ms,
            limit=limit,
        )
        for lock, owner, label, request, wait_ms, limit in [*named, *numbered]
    ]


def others() -> list[LogCommand]:
    made: list[LogCommand] = []
    for lock, owner, request in product(LOCKS, OWNERS, NUMBERS):
        made.append(Cancel(session="s.1", lock=lock, owner=owner, request=request))
        made.append(Release(session="s.1", lock=lock, owner=owner, request=request, fence=1))
    return made


def permits() -> list[LogCommand]:
    """Return acquires of objects that are no locks: one of each kind for each of `acquires`."""
    made: list[LogCommand] = []
    for one in acquires():
        assert isinstance(one, Acquire)
        of: dict[str, Any] = {"session": "s.1", "owner": one.owner, "request": one.request}
        of |= {"wait_ms": one.wait_ms, "label": one.label}
        made.append(AcquireReadWrite(rwlock=one.lock, **of))
        made.append(Lead(election=one.lock, value=one.label, **of))
        made.append(AcquireAll(locks=(one.lock, "other"), **of))
        made.append(AcquirePermits(semaphore=one.lock, permits=3, amount=3, **of))
    for number, amount in product((*NUMBERS, PERMITS_MAX, PERMITS_MAX + 1), repeat=2):
        made.append(
            AcquirePermits(semaphore="a", permits=number, amount=amount, session="s.1", request=1)
        )
    return made


def refusal_of(command: LogCommand) -> str:
    try:
        command.check()
    except InvalidRequestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("known", [False, True])
def test_the_table_checks_known_and_unknown_clients_alike(known: bool) -> None:
    """A known client takes the short check; a refused command does not extend its session."""
    refused = 0
    for command in (*acquires(), *others()):
        table = LockTable()
        table.apply(0, Open(session="s", ttl_ms=5_000))
        assert isinstance(command, Acquire | Release | Cancel)
        lock, owner = command.lock, command.owner
        first = Acquire(session="s.1", lock=lock, owner=owner, request=1, limit=0)
        if known and not refusal_of(first):
            table.apply(0, first)
        sent = replace(command, request=command.request + (command.request == 1))
        outcomes = [o for o in table.apply(1, sent) if isinstance(o, Refused)]
        refusal = refusal_of(command)
        refused += bool(refusal)
        invalid = [worded(o, sent).detail for o in outcomes if o.reason is Reason.INVALID]
        assert invalid == ([refusal] if refusal else [])
        assert table.sessions.by_id["s.1"].deadline_ms == (5_000 if refusal else 5_001)
    assert refused > 50


def test_an_operator_and_its_client_together_have_at_most_the_bytes_of_a_label() -> None:
    fits = "o" * (LABEL_BYTES_MAX - len(" (s)"))

    assert refusal_of(Evict(lock="a", fence=1, operator=fits, session="s.1", request=1)) == ""
    longer = Evict(lock="a", fence=1, operator=f"{fits}o", session="s.1", request=1)
    assert f"{LABEL_BYTES_MAX + 1} bytes" in refusal_of(longer)


def test_the_quick_judgement_never_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [*acquires(), *permits(), *others()]
    quick = [refusal_of(command) for command in made]
    monkeypatch.setattr(name, "PLAIN_BYTES_MAX", -1)  # No texts are plain.

    assert quick == [refusal_of(command) for command in made]
    assert 50 < sum(not text for text in quick) < len(quick) - 50


# Numbers of requests leave room for a release, and few descriptions are sent at a time


def acquire(request: int) -> Acquire:
    return Acquire(lock="l", session="s", owner="o", request=request, wait_ms=None)


def test_an_acquire_is_refused_whose_lock_no_later_request_could_release() -> None:
    acquire(REQUEST_MAX).check_new()
    for asked in (
        acquire(REQUEST_MAX + 1),
        acquire((1 << 63) - 1),
        Cancel(lock="l", session="s", owner="o", request=REQUEST_MAX + 1),
    ):
        with pytest.raises(InvalidRequestError, match=f"request is .*, at most {REQUEST_MAX}"):
            asked.check_new()


def test_a_release_may_have_a_higher_number_than_any_acquire() -> None:
    release = Release(lock="l", fence=1, session="s", owner="o", request=(1 << 63) - 1)
    release.check_new()
    assert release.key[-1] == release.request


def test_a_description_answers_few_requests_of_a_client_and_not_many_in_all() -> None:
    asked: list[tuple[Address, object]] = []
    for _ in range(100):
        if has_room("n1", asked, Address("greedy/session")):
            asked.append((Address("greedy/session"), None))
    assert len(asked) == DESCRIBES_OF_CLIENT_MAX
    for number in range(100):
        if has_room("n1", asked, Address(f"c{number}/session")):
            asked.append((Address(f"c{number}/session"), None))
    assert len(asked) == DESCRIBES_MAX
    assert has_room("n1", asked, Address("n1/~7"))
