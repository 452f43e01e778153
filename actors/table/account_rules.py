"""The effect of quotas and of purges on the table, and the replies to queries about accounts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from fencelock.actors.api.account import (
    EVERY_KEY,
    NO_KEY,
    QUOTA,
    AccountUsage,
    Amounts,
    ListedMap,
    ListMaps,
    MapList,
    Purge,
    Purged,
    Quota,
    QuotaSet,
    ReadUsage,
    SetQuota,
    UsageRead,
)
from fencelock.actors.api.lock_message import Contender, Reason
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import REDIS_KEY, account_of, object_name, plain_name
from fencelock.actors.api.operator_message import OperatorCommand
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table.account import Account
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.lock_rules import record
from fencelock.actors.table.map import Entry
from fencelock.actors.table.report import LIST_PAGE_BYTES_MAX, page_of
from fencelock.actors.table.resource import TableObject, Wait
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import Result

Purgeable = Entry | KeyHold | TableObject
"""What a `Purge` removes; each is charged to an account."""

PURGE_MAX = 500
"""Maximum number of entries, holds, objects and waits together that one `Purge` looks at: some 5
ms, in which nothing else is decided."""

LINE_BYTES = 128
"""Upper bound on the encoded size of a line of these pages without its name (bytes)."""

_NOTHING = Amounts(0, 0, 0, 0, 0)


def set_quota(table: TableState, command: SetQuota, out: list[Result]) -> None:
    command.check()
    table.changing = True
    table.accounts.set(command.account, command.quota)
    limits = {what: most for what, most in command.quota._asdict().items() if most is not None}
    why = Why(Cause.QUOTA_SET, tuple(limits.values()), tuple(limits))
    _note(table, command, object_name(QUOTA, command.account), 1, why)
    out.append(
        QuotaSet(
            account=command.account,
            limits=table.accounts.limits(command.account),
            session=command.session,
            request=command.request,
        )
    )


def purge(table: TableState, command: Purge, out: list[Result]) -> None:
    command.check()
    own, why = account_of(command.session), Why(Cause.DELETED, texts=(command.by,))
    waits = _waits(table, command)
    ended = _end_waits(table, waits, why, out)
    looks, after, after_key = len(waits), command.after, command.after_key
    found = [*islice(_seen(table, command), PURGE_MAX - looks + 1)]
    removed: list[Purgeable] = []
    for one in found[: PURGE_MAX - looks]:
        looks += 1 + (one.waiting if isinstance(one, TableObject) else 0)
        if looks > PURGE_MAX and removed:
            break  # The waits of this object are for the next step.
        after, after_key = _place(one)
        if command.account is None or one.account.name == command.account:
            removed.append(one)
    more = bool(found) and (after, after_key) != _place(found[-1])
    more = more or len(waits) == PURGE_MAX  # There may be other waits.
    forced = any(_is_forced(one, own) for one in removed)
    forced = forced or (ended > 0 and (own == NO_KEY or command.account != own))
    for one in removed:
        if isinstance(one, Entry):
            table.maps.change(table, one.name, one.key, None)
        elif isinstance(one, KeyHold):
            table.take(one, why, out)
        else:
            one.remove(table, why, out)
    count = ended + len(removed)
    if forced:
        _note_purge(table, command, count)
    reply = Purged(
        removed=count,
        more=more,
        after=after,
        after_key=after_key,
        session=command.session,
        request=command.request,
    )
    out.append(reply)


def _waits(table: TableState, command: Purge) -> list[Wait]:
    """Return some waits of Redis doors, if the purge is for all that one key has there."""
    if command.kind != REDIS_KEY or command.prefix or command.account is None:
        return []
    account = table.accounts.by_name.get(command.account)
    return [] if account is None else [*islice(account.waits.values(), PURGE_MAX)]


def _end_waits(table: TableState, waits: list[Wait], why: Why, out: list[Result]) -> int:
    ended = 0
    for wait in waits:
        if wait.owner_state.wait is wait:  # The end of another one may have granted it.
            table.end_wait(wait, Reason.CANCELLED, out, why)
            ended += 1
    return ended


def _seen(table: TableState, command: Purge) -> Iterator[Purgeable]:
    """Return what the purge may remove, in order, from where the last step ended."""
    if command.kind == MAP:
        return _entries(table, command)
    return _holds(table, command) if command.kind == REDIS_KEY else _objects(table, command)


def _place(one: Purgeable) -> tuple[str, str]:
    if isinstance(one, Entry):
        return one.name, one.key
    return one.owner_state.lock if isinstance(one, KeyHold) else plain_name(one.name), ""


def _is_forced(one: Purgeable, own: str) -> bool:
    """Return whether somebody else than the key ``own`` may miss it."""
    waited = isinstance(one, TableObject) and one.waiting > 0
    return waited or own == NO_KEY or one.account.name != own


def _entries(table: TableState, command: Purge) -> Iterator[Entry]:
    maps, prefix = table.maps, command.prefix
    for name in maps.names.after(max(prefix, command.after), also=True):
        if not (name == prefix if command.exact else name.startswith(prefix)):
            return
        after_key = command.after_key if name == command.after else ""
        yield from maps.by_name[name].page(command.entry_prefix, after_key)


def _objects(table: TableState, command: Purge) -> Iterator[TableObject]:
    prefix = object_name(command.kind, command.prefix)
    after = object_name(command.kind, command.after)
    names = _exactly(prefix, table.unheld_names.within(prefix, after), command)
    return map(table.objects.__getitem__, names)


def _holds(table: TableState, command: Purge) -> Iterator[KeyHold]:
    session = table.key_session
    names = session.names.within(command.prefix, command.after)
    for name in _exactly(command.prefix, names, command):
        hold = session.owner_states["", name].hold
        assert isinstance(hold, KeyHold)
        yield hold


def _exactly(prefix: str, names: Iterator[str], command: Purge) -> Iterator[str]:
    return takewhile(prefix.__eq__, names) if command.exact else names


def _note_purge(table: TableState, command: Purge, removed: int) -> None:
    """Add a step to the audit, or to the entry of the step before: a purge has many."""
    charged = () if command.account is None else (command.account,)
    why = Why(Cause.PURGED, (int(command.exact),), (command.entry_prefix, *charged))
    lock = object_name(command.kind, command.prefix)
    last = next(reversed(table.audit.values()), None)
    if last is not None and (last.lock, last.operator, last.why) == (lock, command.by, why):
        table.forget_forced((last.operator, last.request))
        removed += last.holder.times
    _note(table, command, lock, removed, why)


def _note(table: TableState, command: OperatorCommand, lock: str, times: int, why: Why) -> None:
    nobody = Contender(node="", session="", owner="", fence=None, since_ms=0, times=times)
    record(table, command, command.by, lock, 0, nobody, why)


def is_act(why: Why) -> bool:
    """Return whether an entry of the audit has the arguments of its cause."""
    numbers, texts = len(why.numbers), len(why.texts)
    if why.cause is Cause.QUOTA_SET:
        return numbers == texts
    return why.cause is Cause.PURGED and numbers == 1 and texts in (1, 2)


def act(why: Why) -> str:
    """Return what an operator did to quotas or objects, for a list of the audit."""
    if why.cause is Cause.QUOTA_SET:
        limits = zip(why.texts, why.numbers, strict=True)
        set_to = [f"{what} {most}" for what, most in limits]
        rest = "others by default" if set_to else "the default"
        return ", ".join(set_to if len(set_to) == len(Quota._fields) else [*set_to, rest])
    (exact,), (entry_prefix, *charged) = why.numbers, why.texts
    parts = [] if exact else ["names that begin so"]
    if entry_prefix:
        parts.append(f"keys that begin with {entry_prefix!a}")
    parts += [f"charged to key {key!a}" for key in charged]
    return ", ".join(parts)


def read_usage(table: TableState, query: ReadUsage) -> UsageRead:
    """Return a page of accounts, with those that have nothing but a quota."""
    accounts = table.accounts
    names = sorted({*accounts.by_name, *accounts.quotas, EVERY_KEY})
    later = (name for name in names if query.after is None or name > query.after)
    found, more = page_of(later, LIST_PAGE_BYTES_MAX, _line_bytes, query.most)
    usages = tuple(_usage(accounts.by_name.get(name), name, table) for name in found)
    return UsageRead(accounts=usages, more=more, session=query.session, request=query.request)


def _line_bytes(name: str) -> int:
    return len(name.encode()) + LINE_BYTES


def _usage(account: Account | None, name: str, table: TableState) -> AccountUsage:
    used = _NOTHING if account is None else account.used
    quota = table.accounts.quotas.get(name, Quota())
    return AccountUsage(name, used, table.accounts.limits(name), quota)


def list_maps(table: TableState, query: ListMaps) -> MapList:
    by_name, names = table.maps.by_name, table.maps.names.within(query.prefix, query.after)
    found, more = page_of(names, LIST_PAGE_BYTES_MAX, _line_bytes, query.most)
    maps = tuple(ListedMap(one, len(by_name[one].entries), by_name[one].bytes) for one in found)
    return MapList(maps=maps, more=more, session=query.session, request=query.request)
