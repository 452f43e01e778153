"""Quotas by key: who is charged for what, compared with a simple model."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import LOGS, Plant, as_plant, demand_found, without
from support.table_comparison import QuotaComposer, compare, log_seeds, steps_of
from support.table_scene import restored

from fencelock.actors.api.account import (
    EVERY_KEY,
    NO_KEY,
    QUOTA,
    Purge,
    Purged,
    Quota,
    ReadUsage,
    SetQuota,
)
from fencelock.actors.api.map import MAP, PutEntry
from fencelock.actors.api.name import REDIS_KEY, object_name
from fencelock.actors.api.session_message import Open
from fencelock.actors.table import snapshot
from fencelock.actors.table.account import SHARE, WHOLE, Account, Accounts
from fencelock.actors.table.account_rules import read_usage
from fencelock.actors.table.map import Maps
from fencelock.actors.table.rules import RULES
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
