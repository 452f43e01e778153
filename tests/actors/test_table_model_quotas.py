"""Random logs of clients with keys, applied to the table and to the model: quotas and purges."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import Plant, demand_found, without
from support.table_comparison import (
    AllComposer,
    Dice,
    Plain,
    PoolComposer,
    RetainedComposer,
    compare,
    log_seeds,
    steps_of,
)
from support.table_model import Model

from fencelock.actors.api import message as api
from fencelock.actors.api.account import Purge, Quota, SetQuota
from fencelock.actors.api.barrier import BARRIER
from fencelock.actors.api.counter import COUNTER
from fencelock.actors.api.latch import LATCH
from fencelock.actors.api.map import MAP
from fencelock.actors.api.session_message import CloseSession, Evict
from fencelock.actors.table import snapshot
from fencelock.actors.table.account import Account, Accounts
from fencelock.actors.table.map import Maps
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Sessions
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import ExtendSessions, LogCommand, QuotaRecord


class QuotaComposer(AllComposer):
    """Writes requests of clients with two keys, small quotas, and purges."""

    SESSIONS = ("shop@a", "till@b")
    KINDS = tuple(
        kind for kind in AllComposer.KINDS if kind not in (PoolComposer, RetainedComposer)
    )
    """Quotas know nothing of spans, and entries that two keys write would be rare with more."""

    def command(self, step: Dice, model: Model) -> LogCommand:
        """Return the next command, of a session with a key."""
        before = len(self.said)
        made: Any = super().command(step, model)
        new = len(self.said) > before and made is self.said[-1]
        if new and isinstance(made, CloseSession):
            made = replace(made, handle=_keyed(made.handle))
        if new and not isinstance(made, ExtendSessions):
            self.said[-1] = made = replace(made, session=_keyed(made.session))
        command: LogCommand = made
        return command

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        """Return the command in place of ``made``."""
        kind, delay, who, which, what, chance = step
        about: dict[str, Any] = {"operator": "root", "session": "x", "request": made.request}
        account = ("shop", "till", "*", "")[who % 4]
        sets = isinstance(made, Evict) and chance % 2
        if sets:
            most = [None if die % 3 == 0 else die % 7 for die in (what, which, delay, kind)]
            size = None if what % 2 else 9 * (which % 4)
            sessions = None if who % 2 else 1 + what % 2
            return SetQuota(
                account=account, quota=Quota(most[0], size, most[1], most[2], sessions), **about
            )
        if isinstance(made, Evict) or (isinstance(made, api.Release) and chance % 4 == 0):
            exact = which % 3 == 0
            return Purge(
                kind=(MAP, LATCH, BARRIER, COUNTER)[what % 4],
                prefix="MNST"[which % 4] if exact or which % 2 else "",
                exact=exact,
                entry_prefix="xyz"[delay % 3] if exact and what % 4 == 0 and delay % 2 else "",
                account=account if chance % 3 == 0 else None,
                after="M" if delay % 5 == 0 else "",
                **about,
            )
        return super().turned(made, step, model)


def _keyed(session: str) -> str:
    """Return a session with the key of its client."""
    return {"a": "shop@", "b": "till@"}.get(session.partition(".")[0], "") + session


@pytest.mark.parametrize("seed", log_seeds(20))
def test_quotas_do_what_the_model_does(seed: int) -> None:
    """Check charges-add-up too, after every command."""
    compare(steps_of(seed), QuotaComposer)


def an_ended_session_takes_its_entries_along(sound: Any) -> Any:
    def broken(sessions: Sessions, session: Any) -> None:
        sound(sessions, session)
        session.account.entries = session.account.bytes = 0

    return broken


def the_first_writer_pays(sound: Any) -> Any:
    def broken(maps: Maps, table: TableState, name: str, key: str, entry: Any) -> Any:
        before = maps.find(name, key)
        if before is not None and entry is not None:
            entry.account = before.account
        return sound(maps, table, name, key, entry)

    return broken


def claims_are_not_given_back(sound: Any) -> Any:
    def broken(table: TableState, hold: Any, out: Any) -> None:
        sound(table, hold, out)
        hold.owner_state.session.account.claims += len(hold.details.locks)

    return broken


def one_more_is_allowed(sound: Any) -> Any:
    def broken(account: Account, what: str, more: int = 1) -> Any:
        return sound(account, what, more - 1)

    return broken


def the_own_quota_hides_no_other(sound: Any) -> Any:
    def broken(accounts: Accounts, name: str) -> Any:
        return sound(accounts, "*" if name else name)

    return broken


def a_purge_ignores_the_key(sound: Any) -> Any:
    def broken(table: TableState, command: Any, out: Any) -> None:
        sound(table, replace(command, account=None), out)

    return broken


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
    "a purge ignores the key": (
        RULES,
        Purge,
        a_purge_ignores_the_key,
    ),
    "a snapshot without quotas": (snapshot, "_rest", without(QuotaRecord)),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    place, name, plant = PLANTS[bug]
    demand_found(monkeypatch, QuotaComposer, place, name, plant)
