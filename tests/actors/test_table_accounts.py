"""Quotas by key: who is charged for what, compared with a simple model."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import LOGS, Plant, as_plant, demand_found, without
from support.table_comparison import QuotaComposer, compare, log_seeds, steps_of
from support.table_scene import restored, text_of, unheld

from fencelock.actors.api.account import (
    EVERY_KEY,
    NO_KEY,
    QUOTA,
    ListMaps,
    Purge,
    Purged,
    Quota,
    ReadUsage,
    SetQuota,
)
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.map import MAP, PutEntry
from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.api.name import REDIS_KEY, object_name
from fencelock.actors.api.session_message import ListRecords, Open, Records
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table import account_rules, snapshot
from fencelock.actors.table.account import SHARE, WHOLE, Account, Accounts
from fencelock.actors.table.account_rules import list_maps, read_usage
from fencelock.actors.table.map import Maps
from fencelock.actors.table.rules import RULES, list_records
from fencelock.actors.table.session import Sessions
from fencelock.actors.table.state import AUDIT_MAX, PURGES_MAX, TableState
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import QuotaRecord, Result

SHOP, TILL, PLAIN = "shop@1.1", "till@1.2", "client-1.3"


class Log:
    """A table with a session of each of two keys, and one without a key."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.numbers = count(1)
        for session in (SHOP, TILL, PLAIN):
            self.table.apply(0, Open(session=session.partition(".")[0], ttl_ms=10_000))

    def put(self, session: str, key: str, value: bytes = b"", name: str = "m") -> list[Result]:
        number = next(self.numbers)
        return self.table.apply(
            0, PutEntry(map=name, entry_key=key, value=value, session=session, request=number)
        )

    def limit(self, account: str, quota: Quota) -> None:
        self.table.apply(
            0, SetQuota(account=account, quota=quota, operator="a", request=next(self.numbers))
        )

    def purge(self, kind: str = MAP, **fields: object) -> Purged:
        step: dict[str, object] = {"prefix": "", "operator": "a", **fields}
        made = Purge(kind=kind, request=next(self.numbers), **step)  # type: ignore[arg-type]
        found = [o for o in self.table.apply(0, made) if isinstance(o, Purged)]
        return found[0]

    def used(self, account: str) -> tuple[int, ...]:
        known = {one.account: one.used for one in read_usage(self.table, ReadUsage()).accounts}
        return tuple(known[account]) if account in known else (0,) * 5


def why(out: list[Result]) -> str:
    """Return the text of a refusal for want of room; empty if nothing was refused."""
    no = out[-1]
    if not isinstance(no, Refused):
        return ""
    assert no.reason is Reason.OVERLOADED
    return text_of(no)


@pytest.mark.parametrize(
    ("account", "session", "who", "name"),
    [
        ("shop", SHOP, "key 'shop' has", "shop"),
        ("", PLAIN, "clients without a key have", "--no-key"),
    ],
)
def test_a_refusal_names_the_quota_the_value_the_limit_and_the_next_step(
    account: str, session: str, who: str, name: str
) -> None:
    log = Log()
    log.limit(account, Quota(entries=1))
    assert not why(log.put(session, "a"))
    assert why(log.put(session, "b")) == (
        f"map 'm': {who} 1 entries of maps, and the quota entries is 1: delete some "
        '("fencelock map delete"), or let an operator raise the quota '
        f'("fencelock keys quota {name} --entries N")'
    )
    assert not why(log.put(TILL, "b"))


def test_a_session_beyond_the_quota_of_its_key_is_refused() -> None:
    log = Log()
    log.limit("shop", Quota(sessions=1))
    first, second, other = (
        log.table.apply(0, Open(session=session, ttl_ms=10_000))
        for session in ("shop@1", "shop@2", "till@2")
    )
    assert not why(first)  # It is open already.
    assert "the quota sessions is 1" in why(second)
    assert not why(other)


def test_an_account_that_no_key_can_have_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"account .* 257"):
        SetQuota(account="x" * 257, quota=Quota(), operator="a", request=1).check()


def test_a_key_below_a_lowered_quota_may_make_its_own_entries_smaller() -> None:
    log = Log()
    log.put(SHOP, "a", bytes(100))
    log.limit("shop", Quota(entries=0, bytes=10))
    assert not why(log.put(SHOP, "a", bytes(50)))
    assert "asks for 51 more" not in why(log.put(SHOP, "a", bytes(51)))
    assert "quota bytes is 10" in why(log.put(SHOP, "a", bytes(52)))


def test_a_key_has_a_quarter_by_default_and_clients_without_a_key_have_the_whole() -> None:
    accounts = LockTable().accounts
    assert accounts.limits("shop") == SHARE
    assert accounts.limits(NO_KEY) == WHOLE
    assert SHARE.entries == 25_000
    accounts.set(EVERY_KEY, Quota(entries=5))
    accounts.set("till", Quota(objects=7))
    assert accounts.limits("shop")[0] == 5
    assert (accounts.limits("till").entries, accounts.limits("till").objects) == (5, 7)
    assert accounts.limits(NO_KEY) == WHOLE


def test_a_snapshot_keeps_who_is_charged_and_the_quotas() -> None:
    log = Log()
    log.limit("shop", Quota(entries=3, sessions=9))
    log.put(SHOP, "a")
    log.put(PLAIN, "b")
    log.table.apply(0, CountDown(latch="L", count=2, session=TILL, request=50))
    copy = restored(log.table)
    assert read_usage(copy, ReadUsage()) == read_usage(log.table, ReadUsage())
    assert copy.accounts.quotas == {"shop": Quota(entries=3, sessions=9)}


def test_a_purge_looks_at_a_bounded_number_and_reports_where_the_next_step_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(account_rules, "PURGE_MAX", 2)
    log = Log()
    for name in ("m1", "m2"):
        for key in "abc":
            log.put(SHOP if key == "b" else TILL, key, name=name)
    first = log.purge(prefix="m", account="shop")
    assert (first.removed, first.more, first.after, first.after_key) == (1, True, "m1", "b")
    steps, last = 1, first
    while last.more:
        last = log.purge(prefix="m", account="shop", after=last.after, after_key=last.after_key)
        steps += 1
    assert steps == 3
    assert (log.used("shop")[0], log.used("till")[0]) == (0, 4)


def test_waits_count_as_work_of_a_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_rules, "PURGE_MAX", 4)
    log = Log()
    for name in ("a", "b"):
        for owner in "xyz":
            request = AwaitLatch(
                latch=name, count=1, session=SHOP, owner=owner, request=next(log.numbers)
            )
            log.table.apply(0, request)
    first = log.purge("latch")
    assert (first.removed, first.more, first.after) == (1, True, "a")
    second = log.purge("latch", after="a")
    assert (second.removed, second.more) == (1, False)
    assert log.used("shop") == (0, 0, 0, 0, 1)


def test_only_what_others_may_miss_is_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_rules, "PURGE_MAX", 1)
    log = Log()
    for key in "ab":
        log.put(SHOP, key)
    assert log.purge(prefix="m", session=SHOP).removed == 1
    assert not log.table.audit
    for key in "cd":
        log.put(SHOP, key)
    for _ in range(3):
        log.purge(prefix="m", session=TILL)
    (line,) = log.table.audit.values()
    assert (line.lock, line.holder.times) == ("map\x1fm", 3)


def test_purges_of_clients_push_no_entry_of_an_operator_out_of_the_audit() -> None:
    log = Log()
    log.limit("shop", Quota(entries=3))
    for number in range(AUDIT_MAX + 1):
        log.put(SHOP, "k", name=f"m{number}")
        log.purge(prefix=f"m{number}", session=TILL)
    for table in (log.table, restored(log.table)):
        first, *purges = table.audit.values()
        assert first.lock == object_name(QUOTA, "shop")
        assert [one.lock for one in purges] == [
            object_name(MAP, f"m{number}") for number in range(AUDIT_MAX + 1)[-PURGES_MAX:]
        ]


def test_the_audit_records_which_quotas_were_set_and_what_was_purged() -> None:
    log = Log()
    log.limit("shop", Quota(entries=3, sessions=9))
    log.limit("shop", Quota())
    for name in ("m", "me"):
        for key in "abc":
            log.put(SHOP, key, name=name)
    log.purge(prefix="m", exact=True, entry_prefix="a", account="shop")
    log.purge(prefix="m", exact=True)
    log.purge(prefix="m")
    lines = list_records(log.table, ListRecords(kind=Records.EVICTIONS)).evictions
    assert [(line.lock, line.holder.label, line.holder.times) for line in lines] == [
        (object_name(QUOTA, "shop"), "entries 3, sessions 9, others by default", 1),
        (object_name(QUOTA, "shop"), "the default", 1),
        (object_name(MAP, "m"), "keys that begin with 'a', charged to key 'shop'", 1),
        (object_name(MAP, "m"), "", 2),
        (object_name(MAP, "m"), "names that begin so", 3),
    ]


def test_maps_are_listed_by_name_in_pages() -> None:
    log = Log()
    for name in ("b", "a", "ab"):
        log.put(SHOP, "k", b"12", name=name)
    first = list_maps(log.table, ListMaps(most=2))
    assert ([tuple(one) for one in first.maps], first.more) == ([("a", 1, 4), ("ab", 1, 5)], True)
    assert [one.name for one in list_maps(log.table, ListMaps(after="ab")).maps] == ["b"]
    assert [one.name for one in list_maps(log.table, ListMaps(prefix="a")).maps] == ["a", "ab"]


def test_objects_are_listed_by_name_in_pages_with_or_without_a_kind() -> None:
    log = Log()
    for name in ("b", "a", "ab"):
        log.table.apply(0, CountDown(latch=name, count=2, session=SHOP, request=next(log.numbers)))
    whole = [one.lock for one in unheld(log.table)]
    assert whole == [f"latch\x1f{name}" for name in ("a", "ab", "b")]
    assert [one.lock for one in unheld(log.table, "latch\x1fa")] == whole[:2]
    assert [one.lock for one in unheld(log.table, "a", most=1)] == whole[:1]
    for prefix in ("", "latch\x1f"):
        assert [one.lock for one in unheld(log.table, prefix, whole[0])] == whole[1:]
    assert not unheld(log.table, "barrier\x1f")


@pytest.mark.parametrize("seed", log_seeds(12))
def test_quotas_do_what_the_model_does(seed: int) -> None:
    """Check charges-add-up too, after every command."""
    compare(steps_of(seed), QuotaComposer)


@as_plant
def an_ended_session_takes_its_entries_along(sound: Any, sessions: Sessions, session: Any) -> None:
    sound(sessions, session)
    session.account.entries = session.account.bytes = 0


@as_plant
def the_first_writer_pays(
    sound: Any, maps: Maps, table: TableState, name: str, key: str, entry: Any
) -> Any:
    before = maps.find(name, key)
    if before is not None and entry is not None:
        entry.account = before.account
    return sound(maps, table, name, key, entry)


@as_plant
def claims_are_not_given_back(sound: Any, table: TableState, hold: Any, out: Any) -> None:
    sound(table, hold, out)
    hold.owner_state.session.account.claims += len(hold.details.locks)


@as_plant
def one_more_is_allowed(sound: Any, account: Account, what: str, more: int = 1) -> Any:
    return sound(account, what, more - 1)


@as_plant
def the_own_quota_hides_no_other(sound: Any, accounts: Accounts, name: str) -> Any:
    return sound(accounts, "*" if name else name)


@as_plant
def a_purge_ignores_the_key(sound: Any, table: TableState, command: Any, out: Any) -> None:
    sound(table, replace(command, account=None), out)


@as_plant
def a_purge_ends_all_holds(sound: Any, table: TableState, command: Any, out: Any) -> None:
    whole = command.kind == REDIS_KEY and not command.exact
    sound(table, replace(command, prefix="") if whole else command, out)


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "the end of a session gives back its entries": (
        Sessions,
        "drop",
        an_ended_session_takes_its_entries_along,
    ),
    "the first writer of an entry pays": (Maps, "change", the_first_writer_pays),
    "holds of several locks stay charged": (TableState, "end_hold", claims_are_not_given_back),
    "one more than the quota is allowed": (Account, "why_over", one_more_is_allowed),
    "the quota of a key is ignored": (Accounts, "limits", the_own_quota_hides_no_other),
    "a purge ignores the key": (RULES, Purge, a_purge_ignores_the_key),
    "a purge of holds ignores the prefix": (RULES, Purge, a_purge_ends_all_holds),
    "a snapshot without quotas": (snapshot, "_rest", without(QuotaRecord)),
}


RARE = "the first writer of an entry pays"
"""Few logs show it since clients of Redis are in them."""
RARE_LOGS = 200


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug == RARE)) for bug in PLANTS]
)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    place, name, plant = PLANTS[bug]
    logs = RARE_LOGS if bug == RARE else LOGS
    demand_found(monkeypatch, QuotaComposer, place, name, plant, logs)
