"""Keys that are held through Redis doors: values, deadlines, force, queues, sessions, snapshots."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from support.expect import checked, only, present
from support.table_scene import advanced, applied, restored, status_of, summary, text_of

from fencelock.actors.api.account import Purge, Purged, Quota, SetQuota
from fencelock.actors.api.handover import Detach
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Reason, Refused, Release
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.redis import (
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyOutcome,
    KeysChanged,
    KeyState,
    ListKeys,
    ReadKeys,
)
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.api.session_message import End, Evicted, HoldLost, ListLocks, Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.redis import list_keys, read_keys
from fencelock.actors.table.report import list_locks
from fencelock.actors.table.table import LockTable

DOOR, CLIENT = "n1/5f.1", "shop@c.2"
FREE, EQUAL, OTHER, NATIVE, AWAITED, RESERVED = KeyState
SET, EXPIRE, DELETE = KeyAction
ALL = (FREE, RESERVED, OTHER, NATIVE)
LABEL = "Redis door of n1, 10.0.0.7:5000"


@pytest.fixture
def table() -> LockTable:
    table = LockTable()
    for session in ("n1/5f", "shop@c"):
        table.apply(0, Open(session=session, ttl_ms=1_000_000))
    return table


NUMBERS = count(1)
K = TypeVar("K", ChangeKeys, AwaitKey)


def of_door(command: K) -> K:
    """Give a request of the door the next number, and an owner of its own."""
    number = next(NUMBERS)
    return replace(command, session=DOOR, owner=f"c{number}", request=number)


def change(action: KeyAction, keys: str, *states: KeyState, **more: Any) -> ChangeKeys:
    fields: dict[str, Any] = {"label": LABEL, **more}
    made = ChangeKeys(keys=tuple(keys.split()), action=action, states=states, **fields)
    return of_door(made)


def set_nx(keys: str, value: bytes = b"v", ttl_ms: int = 0, **more: Any) -> ChangeKeys:
    expiry = Expiry.AFTER if ttl_ms else Expiry.NEVER
    more = {"value": value, "expiry": expiry, "ttl_ms": ttl_ms, **more}
    return change(SET, keys, FREE, RESERVED, **more)


def wait(key: str, value: bytes, ttl_ms: int = 0, wait_ms: int | None = None) -> AwaitKey:
    made = AwaitKey(keys=(key,), value=value, ttl_ms=ttl_ms, wait_ms=wait_ms, label=LABEL)
    return of_door(made)


def acquire(lock: str, wait_ms: int | None = None, owner: str = "o") -> Acquire:
    return Acquire(lock=lock, session=CLIENT, owner=owner, request=1, wait_ms=wait_ms)


def release(lock: str, fence: int, owner: str = "o") -> Release:
    return Release(lock=lock, fence=fence, session=CLIENT, owner=owner, request=2)


def by_client(request: int) -> dict[str, Any]:
    return {"session": CLIENT, "owner": "o", "request": request}


def outcomes(table: LockTable, command: ChangeKeys | AwaitKey) -> tuple[KeyOutcome, ...]:
    """Apply a command, and return what it did to its keys."""
    changed = [one for one in table.apply(table.time_ms, command) if isinstance(one, KeysChanged)]
    found = [one for one in changed if one.key == command.key]
    assert len(found) == 1
    return found[0].keys


def changed(table: LockTable, command: ChangeKeys | AwaitKey) -> list[bool]:
    return [one.changed for one in outcomes(table, command)]


def read(table: LockTable, *keys: str) -> list[tuple[str, bytes, int | None]]:
    seen = read_keys(table, ReadKeys(keys=keys)).keys
    return [(one.key, one.value, one.left_ms) for one in seen]


def test_a_key_is_set_once_until_the_value_deletes_it(table: LockTable) -> None:
    """Rules value-proves, one-outcome."""
    assert outcomes(table, set_nx("k", b"\x00\xff", 1_000)) == (
        KeyOutcome(FREE, True, fence=1, left_ms=1_000, times=1),
    )
    assert outcomes(table, set_nx("k", b"w")) == (KeyOutcome(OTHER, False, 1, 1_000, 1),)
    assert changed(table, change(DELETE, "k", EQUAL, expected=b"w")) == [False]
    assert read(table, "k", "other") == [("k", b"\x00\xff", 1_000)]
    delete = change(DELETE, "k", EQUAL, expected=b"\x00\xff")
    assert outcomes(table, delete) == (KeyOutcome(EQUAL, True, 0, None, 0),)
    assert outcomes(table, set_nx("k", b"w"))[0].fence == 2
    assert outcomes(table, delete)[0].changed  # It is sent again, and has its outcome.
    assert read(table, "k") == [("k", b"w", None)]


def test_a_key_ends_at_its_deadline_by_log_time(table: LockTable) -> None:
    """Rules deadlines-are-exact, free-leaves-nothing."""
    outcomes(table, set_nx("k", ttl_ms=1_000))
    assert advanced(table, 1_000) == []
    assert advanced(table, 1_001) == ["HoldLost 1"]
    assert (read(table, "k"), table.resources, table.claims, table.marked) == ([], {}, 0, 0)
    assert table.timeouts.items == {}


def test_a_set_with_the_value_keeps_the_fence_and_one_by_force_does_not(table: LockTable) -> None:
    """Rules same-hold, fences-rise."""
    outcomes(table, set_nx("k", b"token-1", 1_000))
    mine: dict[str, Any] = {"value": b"token-2", "expiry": Expiry.AFTER, "ttl_ms": 700}
    again = change(SET, "k", FREE, EQUAL, expected=b"token", prefix=True, **mine)
    assert outcomes(table, again) == (KeyOutcome(EQUAL, True, 1, 700, 1),)
    assert read(table, "k") == [("k", b"token-2", 700)]
    forced = change(SET, "k", *ALL, value=b"w", expiry=Expiry.KEEP, returns=True)
    evicted, lost, _, reply = table.apply(0, forced)
    assert isinstance(evicted, Evicted)
    assert (evicted.lock, evicted.fence, evicted.holder.owner) == ("k", 1, "token-2")
    assert evicted.operator == f"{LABEL} (n1/5f.1)"
    assert isinstance(lost, HoldLost)
    assert isinstance(reply, KeysChanged)
    assert (reply.value, reply.keys) == (b"token-2", (KeyOutcome(OTHER, True, 2, 700, 1),))
    assert table.forced() == (evicted,)


def test_a_native_client_and_a_door_exclude_each_other(table: LockTable) -> None:
    """Rule one-holder."""
    applied(table, acquire("k"))
    assert outcomes(table, set_nx("k")) == (KeyOutcome(NATIVE, False, 1, None, 1),)
    assert read(table, "k") == [("k", b"shop@c.2/o", None)]
    assert changed(table, change(DELETE, "k", EQUAL, OTHER)) == [False]
    applied(table, release("k", 1))
    outcomes(table, set_nx("k", b"v"))
    (no,) = table.apply(0, acquire("k", 0, "p"))
    assert text_of(no) == f"lock 'k': held by {LABEL} ('v' of 'no-client') under fence 2"
    assert applied(table, acquire("k", owner="q")) == [f"{CLIENT} waits"]
    texts = applied(table, change(DELETE, "k", EQUAL, OTHER))
    assert texts == ["KeysChanged", f"{CLIENT} holds 1 under 3"]


def test_force_takes_a_lock_from_a_native_client_before_those_who_wait(table: LockTable) -> None:
    """Rule force-is-audited."""
    applied(table, acquire("k"))
    applied(table, acquire("k", owner="p"))
    outcomes = applied(table, change(SET, "k", *ALL, value=b"w"))
    assert outcomes == ["Evicted 1", "HoldLost 1", "no-client holds 1 under 2", "KeysChanged"]
    assert table.state_of("k").waiting == 1
    assert applied(table, release("k", 1)) == [f"{CLIENT} OWNERSHIP_LOST"]
    outcomes = applied(table, change(DELETE, "k", EQUAL, expected=b"w"))
    assert outcomes == ["KeysChanged", f"{CLIENT} holds 1 under 3"]


def test_many_keys_are_set_all_or_none(table: LockTable) -> None:
    """Rule keys-change-together."""
    outcomes(table, set_nx("b"))
    assert changed(table, set_nx("a b c")) == [False, False, False]
    assert changed(table, set_nx("a c d")) == [True, True, True]
    deleted = change(DELETE, "a b x", EQUAL, expected=b"v", each=True)
    assert [one.state for one in outcomes(table, deleted)] == [EQUAL, EQUAL, FREE]
    assert changed(table, change(DELETE, "c x", EQUAL, expected=b"v")) == [False, False]
    assert [key for key, _, _ in read(table, "a", "b", "c", "d")] == ["c", "d"]


def test_a_door_waits_in_the_queue_and_its_grant_is_reserved(table: LockTable) -> None:
    """Rules queue-in-log-order, same-hold."""
    applied(table, acquire("k"))
    first, second = wait("k", b"v", 200), wait("k", b"w", 200)
    assert applied(table, first) == applied(table, second) == ["n1/5f.1 waits"]
    assert applied(table, acquire("k", owner="p")) == [f"{CLIENT} waits"]
    copy = restored(table)
    for one in (table, copy):
        texts = applied(one, release("k", 1))
        assert texts == [f"{CLIENT} has 0 left", "no-client holds 1 under 2", "KeysChanged"]
        assert applied(one, first) == ["KeysChanged"]  # It was sent again.
    assert copy.digest() == table.digest()
    assert changed(table, set_nx("k", b"w")) == [False]
    assert outcomes(table, set_nx("k", b"v", 900)) == (KeyOutcome(RESERVED, True, 2, 900, 1),)
    assert changed(table, set_nx("k", b"v")) == [False]  # It is not reserved any more.
    deleted = applied(table, change(DELETE, "k", EQUAL, expected=b"v"))
    assert deleted == ["KeysChanged", "no-client holds 1 under 3", "KeysChanged"]
    assert advanced(table, 201) == ["HoldLost 3", f"{CLIENT} holds 1 under 4"]
    assert (table.key_session.claims, table.key_session.owner_states) == (0, {})


def test_a_hold_outlives_the_session_of_the_door(table: LockTable) -> None:
    """Rules keys-outlive-sessions, snapshots-are-complete."""
    outcomes(table, set_nx("k"))
    assert applied(table, End(session=DOOR)) == ["Ended"]
    assert advanced(table, 900_000) == []
    holder = present(status_of(restored(table), "k").holder)
    assert (holder.session, holder.owner, holder.since_ms) == (NO_CLIENT, "v", 900_000)
    assert holder.label == LABEL


def test_no_session_but_that_of_a_node_sends_the_requests_of_a_door() -> None:
    set_nx("k").check_new()
    for request in (set_nx("k"), wait("k", b"v")):
        with pytest.raises(InvalidRequestError, match="is for the Redis doors of nodes"):
            replace(request, session="shop@c.2").check_new()


def test_no_client_acts_in_the_session_of_the_doors(table: LockTable) -> None:
    """Rule keys-outlive-sessions."""
    outcomes(table, set_nx("k"))
    mine = Release(lock="k", fence=1, session=NO_CLIENT, owner="", request=1)
    assert applied(table, mine) == ["no-client SESSION_EXPIRED"]
    assert applied(table, End(session=NO_CLIENT)) == ["Ended"]  # It is not known as a session.
    (opened,) = table.apply(0, Open(session=NO_CLIENT, ttl_ms=1_000))
    assert getattr(opened, "assigned", "") == "no-client.3"
    assert [key for key, _, _ in read(table, "k")] == ["k"]


def test_a_door_gets_a_retained_lock_back(table: LockTable) -> None:
    """Rules waits-recall, tries-never-wait: a SET waits for it for 200 ms, as a native try does."""
    kept = AcquireRetained(lock="k", span=5, session=CLIENT, owner="o", request=1)
    applied(table, kept)
    command = set_nx("j k", ttl_ms=900)
    waits, recall = table.apply(0, command)
    assert isinstance(recall, Recall)
    copy = restored(table)
    assert applied(copy, release("k", 1)) == [
        f"{CLIENT} has 0 left",
        "no-client holds 1 under 6",
        "no-client holds 1 under 7",
        "KeysChanged",
    ]
    assert read(copy, "k") == [("k", b"v", 900)]
    no = only(Refused, table.advance(200))
    assert (no.reason, no.key, summary(waits)) == (Reason.TIMED_OUT, command.key, "n1/5f.1 waits")
    assert [type(one) for one in table.apply(200, wait("k", b"w"))][1:] == [Recall]


def test_a_lock_for_which_several_wait_together_is_not_free(table: LockTable) -> None:
    applied(table, acquire("j"))
    applied(table, AcquireAll(locks=("j", "k"), session=CLIENT, owner="p", request=1))
    assert outcomes(table, set_nx("k")) == (KeyOutcome(AWAITED, False, 0, None, 0),)
    assert changed(table, change(SET, "k", *ALL, value=b"w")) == [False]
    assert read(table, "k") == []


RECEIPT_1 = "redisson_unlock_latch:{k}:1"


def leave(receipt: str = "", **more: Any) -> ChangeKeys:
    fields = {"expected": b"v", "counts": True, "expiry": Expiry.AFTER, "ttl_ms": 500, **more}
    return change(DELETE, "k", EQUAL, receipt=receipt, receipt_ms=200 if receipt else 0, **fields)


def test_a_removal_that_is_repeated_with_its_receipt_changes_nothing(table: LockTable) -> None:
    """Rule counts-exact."""
    enter = {"value": b"v", "expected": b"v", "counts": True}
    for _ in range(3):
        outcomes(table, change(SET, "k", FREE, EQUAL, **enter))
    assert outcomes(table, leave(RECEIPT_1)) == (KeyOutcome(EQUAL, True, 1, 500, 2),)
    for one in (table, restored(table)):
        reply = only(KeysChanged, one.apply(one.time_ms, leave(RECEIPT_1)))
        assert (reply.value, reply.keys) == (b"0", (KeyOutcome(EQUAL, False, 1, 500, 2),))
    outcomes(table, leave())
    other = RECEIPT_1.replace(":1", ":2")
    assert applied(table, leave(other)) == ["KeysChanged", "no-client holds 1 under 3"]
    assert read(table, "k", other) == [(other, b"1", 200)]
    outcomes(table, set_nx("k", b"v"))
    reply = only(KeysChanged, table.apply(table.time_ms, leave(other)))
    assert (reply.value, reply.keys[0].changed) == (b"1", False)
    assert advanced(table, 201) == ["HoldLost 2", "HoldLost 3"]
    assert changed(table, leave(other)) == [True]


def test_nothing_is_remembered_without_room(table: LockTable) -> None:
    """An unlock is never refused for that."""
    quota = SetQuota(account="app", quota=Quota(claims=1), operator="root", session="x", request=1)
    table.apply(0, quota)
    enter = {"value": b"v", "expected": b"v", "counts": True, "account": "app"}
    for _ in range(2):
        outcomes(table, change(SET, "k", FREE, EQUAL, **enter))
    assert changed(table, leave(RECEIPT_1, account="app")) == [True]
    assert read(table, RECEIPT_1) == []
    applied(table, acquire(RECEIPT_1))
    assert changed(table, leave(RECEIPT_1)) == [True]
    assert read(table, "k") == []


def test_a_key_is_reserved_for_the_client_that_names_the_turn(table: LockTable) -> None:
    """Rule same-hold."""
    outcomes(table, wait("k", b"channel", 200))
    named = {"value": b"me", "expected": b"me", "turn": b"channel"}
    assert outcomes(table, set_nx("k", b"me"))[0].state is OTHER
    assert outcomes(table, change(SET, "k", FREE, **named))[0][:2] == (RESERVED, False)
    assert outcomes(table, change(SET, "k", FREE, RESERVED, **named))[0][:3] == (RESERVED, True, 1)
    assert outcomes(table, change(SET, "k", FREE, RESERVED, **named))[0][:2] == (EQUAL, False)


def test_a_key_is_charged_to_the_key_of_its_client(table: LockTable) -> None:
    quota = SetQuota(account="app", quota=Quota(claims=2), operator="root", session="x", request=1)
    table.apply(0, quota)
    outcomes(table, set_nx("a b", account="app"))
    no = only(Refused, table.apply(0, set_nx("c", account="app")))
    assert no.reason is Reason.OVERLOADED
    assert "key 'app' has 2 holds and waits" in text_of(no)
    assert restored(table).accounts.by_name["app"].claims == 2
    assert changed(table, set_nx("c")) == [True]
    outcomes(table, change(DELETE, "a b", OTHER))
    assert "app" not in table.accounts.by_name


def purge(account: str | None, session: str = "", **more: Any) -> Purge:
    fields: dict[str, Any] = {"kind": "key", "prefix": "", "operator": "root", **more}
    return Purge(**fields, account=account, session=session, request=9)


def test_a_purge_ends_the_holds_and_the_waits_of_a_key(table: LockTable) -> None:
    """A purge is for a key that was removed: no client can end its holds any more."""
    outcomes(table, set_nx("a b", account="app"))
    outcomes(table, set_nx("c", account="other"))
    applied(table, acquire("n"))
    for key in ("c", "n"):
        applied(table, replace(wait(key, b"w"), account="app"))
    applied(table, acquire("a", owner="p"))
    applied(table, replace(wait("c", b"w"), account="other"))
    for one in (table, restored(table)):
        (*others, purged) = one.apply(0, purge("app"))
        assert isinstance(purged, Purged)
        assert (purged.removed, purged.more) == (4, False)
        assert [summary(outcome) for outcome in others] == [
            "n1/5f.1 CANCELLED", "n1/5f.1 CANCELLED", "HoldLost 1", f"{CLIENT} holds 1 under 5",
            "HoldLost 2",
        ]  # fmt: skip
        assert "app" not in one.accounts.by_name
        assert [key for key, *_ in read(one, "a", "b", "c", "n")] == ["a", "c", "n"]
        assert [len(status_of(one, name).waiters) for name in ("c", "n")] == [1, 0]
        assert [entry.lock for entry in one.forced()] == ["key\x1f"]


def test_a_purge_of_many_holds_has_steps(table: LockTable) -> None:
    names = [f"k{number:04}" for number in range(1_100)]
    for at in range(0, len(names), 64):
        outcomes(table, set_nx(" ".join(names[at : at + 64]), account="app"))
    for _ in range(600):
        applied(table, replace(wait("k0000", b"w"), account="app"))
    steps = steps_of_purge(table, purge("app"))
    assert sum(steps) == 1_700
    assert max(steps) <= 500
    assert (table.claims, len(table.forced())) == (0, 1)


def steps_of_purge(table: LockTable, command: Purge) -> list[int]:
    """Purge step by step until no more is left; return what each step removed."""
    steps: list[int] = []
    more = True
    while more:
        purged = checked(Purged, table.apply(0, command)[-1])
        steps.append(purged.removed)
        command, more = replace(command, after=purged.after), purged.more
    return steps


def test_a_purge_ends_the_holds_whose_names_begin_with_a_prefix(table: LockTable) -> None:
    """Whatever key is charged. The next in the queue of each gets it, and waits go on."""
    outcomes(table, set_nx("a/1 a/2 b", account="app"))
    outcomes(table, set_nx("a/3", account="other"))
    applied(table, acquire("a/4"))
    applied(table, replace(wait("a/1", b"w"), account="app"))
    applied(table, acquire("a/2", owner="p"))
    for one in (table, restored(table)):
        (*others, purged) = one.apply(0, purge(None, prefix="a/"))
        assert checked(Purged, purged).removed == 3
        assert [type(outcome).__name__ for outcome in others].count("HoldLost") == 3
        assert [key for key, *_ in read(one, "a/1", "a/2", "a/3", "a/4", "b")] == [
            "a/1", "a/2", "a/4", "b",
        ]  # fmt: skip
        by_native = read_keys(one, ReadKeys(keys=("a/1", "a/2"))).keys
        assert [key.key for key in by_native if key.native] == ["a/2"]
        assert [(entry.lock, entry.holder.times) for entry in one.forced()] == [("key\x1fa/", 3)]
        assert steps_of_purge(one, purge("app", prefix="b", exact=True)) == [1]
        assert steps_of_purge(one, purge("other", prefix="a/")) == [0]
        restored(one)


def test_a_purge_of_one_name_ends_no_hold_whose_name_is_longer(table: LockTable) -> None:
    outcomes(table, set_nx("a ab b"))
    assert steps_of_purge(table, purge(None, prefix="a", exact=True)) == [1]
    assert steps_of_purge(table, purge(None, prefix="a", exact=True)) == [0]
    assert list_keys(table, ListKeys()).keys == ("ab", "b")


def test_a_purge_by_prefix_looks_at_a_bounded_number_of_holds(table: LockTable) -> None:
    names = [f"{start}{number:04}" for start in "kl" for number in range(600)]
    for at in range(0, len(names), 60):
        charged = "app" if at % 120 else "other"
        outcomes(table, set_nx(" ".join(names[at : at + 60]), account=charged))
    assert steps_of_purge(table, purge("app", prefix="l")) == [240, 60]
    assert steps_of_purge(table, purge(None, prefix="l")) == [300]
    assert steps_of_purge(table, purge(None)) == [500, 100]
    assert table.claims == 0


def test_a_purge_of_many_waits_ends_all_of_them_also_if_there_is_no_hold(table: LockTable) -> None:
    applied(table, acquire("n"))
    for _ in range(1_100):
        applied(table, replace(wait("n", b"w"), account="app"))
    assert steps_of_purge(table, purge("app")) == [500, 500, 100]
    assert "app" not in table.accounts.by_name


def test_a_purge_of_holds_is_for_operators_or_of_what_is_ones_own() -> None:
    assert purge("shop", "shop@c.2").needs_operator() is False
    assert purge("app", "shop@c.2").needs_operator()
    assert purge("app", "shop@c.2", kind="map").needs_operator() is False
    for within in ("", "shop/"):
        assert purge("shop", "shop@c.2", prefix=within).needs_operator() is False
        assert purge(None, "shop@c.2", prefix=within).needs_operator()
        assert purge(None, prefix=within).reach == (within,)


def test_holds_of_no_client_are_listed_by_name_in_pages(table: LockTable) -> None:
    outcomes(table, set_nx("b a:2 a:1 c", label="door"))
    for name in ("a:0", "a:3"):
        applied(table, acquire(name))
    applied(table, replace(wait("a:1", b"w")))
    detach = Detach(lock="a:3", fence=6, ttl_ms=1_000, digest=b"d" * 32, **by_client(2))
    assert applied(table, detach)[0] == f"{CLIENT} has 0 left"
    for one in (table, restored(table)):
        page = list_locks(one, ListLocks(prefix="a", most=2, clientless=True))
        lines = [(line.lock, line.holder.session, line.waiting) for line in page.lines]
        assert lines == [("a:1", NO_CLIENT, 1), ("a:2", NO_CLIENT, 0)]
        assert page.more
        page = list_locks(one, ListLocks(after="a:2", clientless=True))
        assert [line.lock for line in page.lines] == ["a:3", "b", "c"]
        assert [line.lock for line in list_locks(one, ListLocks(prefix="a")).lines] == [
            "a:0", "a:1", "a:2", "a:3",
        ]  # fmt: skip


def test_keys_are_listed_by_name_in_pages(table: LockTable) -> None:
    outcomes(table, set_nx("b a:2 a:1 c"))
    applied(table, acquire("a:0"))
    page = list_keys(restored(table), ListKeys(prefix="a", most=1))
    assert (page.keys, page.more, page.total) == (("a:1",), True, 4)
    page = list_keys(table, ListKeys(prefix="a", after="a:1"))
    assert (page.keys, page.more) == (("a:2",), False)
    assert list_keys(table, ListKeys()).keys == ("a:1", "a:2", "b", "c")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (set_nx(" ".join(f"k{n}" for n in range(65))), "65 locks were requested together"),
        (set_nx("k", b"x" * (VALUE_BYTES_MAX + 1)), "value of 1025 bytes, at most 1024"),
        (set_nx("k", ttl_ms=TTL_MS_MAX + 1), f"ttl_ms is {TTL_MS_MAX + 1}"),
        (set_nx("k", expected=b"x" * 2_000), "expected of 2000 bytes"),
        (change(SET, "k", FREE, expiry=Expiry.AFTER), "ttl_ms is 0, 1 to"),
        (change(SET, "k"), "states must name at least one state"),
        (change(SET, "k", FREE, AWAITED), "states must name at least one state"),
        (change(SET, "j k", OTHER), "2 keys were named: a SET by force"),
        (change(DELETE, "k", NATIVE), "DELETE is for keys that are held through a door"),
        (leave("other"), "receipt 'other': it must begin with redisson_unlock_latch"),
        (leave(RECEIPT_1, counts=False), "is for a DELETE of one key with counts"),
        (set_nx("k", turn=b"x" * 2_000), "turn of 2000 bytes"),
        (change(EXPIRE, "k", FREE), "EXPIRE is for keys that are held through a door"),
    ],
)
def test_a_field_beyond_limits_is_refused(table: LockTable, command: ChangeKeys, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        command.check_new()
    assert applied(table, command) == ["n1/5f.1 INVALID"]
    assert table.resources == {}
