"""Limits of commands, and of the numbers of requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from fencelock.actors.api import name
from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.election import Lead
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import Acquire, Cancel, Inspect, Reason, Refused, Release
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.api.name import (
    INT_MAX,
    LABEL_BYTES_MAX,
    LOCK_NAME_BYTES_MAX,
    OWNER_BYTES_MAX,
    REQUEST_MAX,
    WAIT_MS_MAX,
    object_name,
)
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.redis import ChangeKeys, KeyAction, KeyState
from fencelock.actors.api.retained import SPAN_MAX, AcquireRetained
from fencelock.actors.api.role_request import ROLE_REQUEST_BYTES_MAX, AskRole
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import PERMITS_MAX, AcquirePermits
from fencelock.actors.api.session_message import Open
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


MINE: dict[str, Any] = {"session": "s.1", "owner": "me", "request": 1}
OURS: dict[str, Any] = {"session": "s.1", "operator": "ops", "request": 1}
KEYS: dict[str, Any] = {**MINE, "session": "n1/s.1", "action": KeyAction.SET}
FREE = (KeyState.FREE,)
ACQUIRE = Acquire(**MINE, lock="a")
RETAIN = AcquireRetained(session="s.1", owner="*", request=1, lock="a", span=1)
PUT = PutEntry(**MINE, map="m", entry_key="k", value=b"")
PURGE = Purge(**OURS, kind="counter", prefix="a", exact=True)
CHANGE = ChangeKeys(**KEYS, keys=("k",), states=FREE)
ENDS = replace(CHANGE, action=KeyAction.DELETE, states=(KeyState.EQUAL,))
ASK = AskRole(role="clock", body=b"x", wait_ms=0)
JOIN = ChangeMembers(action=MemberAction.JOIN, node="n4")

REFUSED: list[tuple[Callable[[], None], str]] = [
    (replace(ACQUIRE, lock="\u2003").check_new, r"lock name '\u2003' has no visible character"),
    (
        Inspect(lock=object_name("x" * 17, "a")).check,
        "kind 'xxxxxxxxxxxxxxxxx' of 17 characters, at most 16 are allowed",
    ),
    (
        replace(ACQUIRE, owner="a\nb").check,
        r"owner 'a\nb' has U+000A: control characters, line separators, direction controls and "
        "surrogates are not allowed",
    ),
    (replace(ACQUIRE, owner="o" * 257).check, f"owner of 257 bytes ('{'o' * 40}'), at most 256"),
    (replace(ACQUIRE, wait_ms=-1).check, f"wait_ms is -1, 0 to {WAIT_MS_MAX} are allowed"),
    (
        replace(ACQUIRE, request=REQUEST_MAX + 1).check_new,
        f"request is {REQUEST_MAX + 1}, at most {REQUEST_MAX} is allowed",
    ),
    (replace(RETAIN, span=0).check, f"span is 0, 1 to {SPAN_MAX} are allowed"),
    (replace(RETAIN, permits=0).check, f"permits is 0, 1 to {INT_MAX} are allowed"),
    (replace(RETAIN, permits=3, amount=4).check, "amount is 4, 1 to 3 are allowed"),
    (
        replace(RETAIN, owner="me").check_new,
        "owner is 'me', and must be one of '*', '*readers', '*writers'",
    ),
    (
        AcquireAll(**MINE, locks=()).check,
        "0 locks were requested together, 1 to 64 are allowed",
    ),
    (AcquireAll(**MINE, locks=("a", "b", "a")).check, "a lock is named twice: 'a, b, a'"),
    (
        AcquireAll(**MINE, locks=tuple(f"{number:0>250}" for number in range(50))).check,
        "the names of 50 locks have 12500 bytes together, at most 12288 are allowed",
    ),
    (replace(PUT, entry_key="").check, "the key is empty, 1 to 256 bytes are allowed"),
    (replace(PUT, version=-1).check, f"version is -1, 0 to {INT_MAX} are allowed"),
    (replace(PUT, value=b"x" * 65_537).check, "value of 65537 bytes, at most 65536 are allowed"),
    (replace(PUT, ttl_ms=0).check, "ttl_ms is 0, 1 to 31622400000 are allowed"),
    (replace(PUT, fence=-1).check, f"fence is -1, 0 to {INT_MAX} are allowed"),
    (replace(PUT, guard="a").check, f"fence is 0, 1 to {INT_MAX} are allowed"),
    (
        AcquirePermits(**MINE, semaphore="s", permits=2, amount=3).check,
        "amount is 3, 1 to 2 are allowed",
    ),
    (
        Open(session="s.1", ttl_ms=15_000).check_new,
        "session 's.1': a name like 'me' or 'me~2' is wanted, without '.'",
    ),
    (Open(session="s", ttl_ms=1).check, "ttl_ms is 1, 100 to 86400000 are allowed"),
    (
        SetQuota(**OURS, account="a", quota=Quota(claims=-1)).check,
        f"claims is -1, 0 to {INT_MAX} are allowed",
    ),
    (replace(PURGE, kind="Lock").check, "kind is 'Lock', and must be that of an object"),
    (replace(PURGE, prefix="").check, "the name is empty, and exact needs one"),
    (
        replace(PURGE, entry_prefix="k").check,
        "entry_prefix is set, and is only for one map: set exact",
    ),
    (
        ReadChanges(lock="a", session="s.1").check,
        "lock 'a' cannot be watched; kinds that can be: ",
    ),
    (
        replace(CHANGE, session="s.1").check_new,
        "ChangeKeys is for the Redis doors of nodes: connect to one of them",
    ),
    (replace(CHANGE, value=b"x" * 1_025).check, "value of 1025 bytes, at most 1024 are allowed"),
    (
        replace(CHANGE, states=()).check,
        "states must name at least one state, each at most once, and never AWAITED",
    ),
    (
        replace(CHANGE, keys=("a", "b"), returns=True).check,
        "2 keys were named: a SET by force, and a request that returns the value, is of one key",
    ),
    (
        replace(ENDS, states=FREE).check,
        "DELETE is for keys that are held through a door: EQUAL or OTHER",
    ),
    (
        replace(ENDS, receipt="r", receipt_ms=1).check,
        "receipt 'r': it must begin with redisson_unlock_latch, and is for a DELETE of one key "
        "with counts",
    ),
    (
        replace(ASK, role="a/b").check,
        "role is 'a/b', and must be a name like 'clock' of 1 to 128 bytes, without '/'",
    ),
    (
        replace(ASK, node="n/1").check,
        "node is 'n/1', and must be a name like 'n1' of 1 to 128 bytes, without '/'",
    ),
    (
        replace(ASK, body=b"").check,
        f"the request to a role has 0 bytes, 1 to {ROLE_REQUEST_BYTES_MAX} are allowed",
    ),
    (
        replace(JOIN, node="N4").check,
        "node is 'N4': an id of 1 to 32 of a-z, 0-9 and - is wanted, which begins with a letter or "
        "digit",
    ),
    (replace(JOIN, replacement="n5").check, "replacement is given, but JOIN needs none"),
    (
        replace(JOIN, endpoint="here").check,
        "endpoint is 'here': an address that other nodes can reach is wanted, like "
        "tcp://10.0.0.1:4040",
    ),
]


@pytest.mark.parametrize(("check", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_a_refusal_names_the_field_its_value_and_its_limit(
    check: Callable[[], None], text: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check()
    assert str(caught.value).startswith(text)


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
