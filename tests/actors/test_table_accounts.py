"""Quotas by key: who is charged for what, compared with a simple model."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import LOGS, Plant, as_plant, demand_found, without
from support.table_comparison import QuotaComposer, compare, log_seeds, steps_of

from fencelock.actors.api.account import Purge
from fencelock.actors.api.name import REDIS_KEY
from fencelock.actors.table import snapshot
from fencelock.actors.table.account import Account, Accounts
from fencelock.actors.table.map import Maps
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Sessions
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import QuotaRecord


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
