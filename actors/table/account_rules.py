"""The effect of quotas and of purges on the table, and the replies to queries about accounts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

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
from fencelock.actors.api.map import MAP
from fencelock.actors.api.message import Contender, Reason
from fencelock.actors.api.name import REDIS_KEY, account_of, object_name, plain_name
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.api.session_message import OperatorCommand
from fencelock.actors.table.account import Account
from fencelock.actors.table.map import Entry
from fencelock.actors.table.report import PAGE_BYTES_MAX, page_of
from fencelock.actors.table.requests import record
from fencelock.actors.table.resource import TableObject
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import Result

PURGE_MAX = 500
"""Maximum number of entries, or of objects and their waits, at which one `Purge` looks: some 5 ms,
in which nothing else is decided."""

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
    """Remove a bounded number of entries, or of other objects with their waits."""
    command.check()
    if command.kind == REDIS_KEY:
        return _purge_keys(table, command, out)
    seen: Iterator[Entry] | Iterator[TableObject]
    seen = _entries(table, command) if command.kind == MAP else _objects(table, command)
    found: list[Entry | TableObject] = list(islice(seen, PURGE_MAX + 1))
    own, looks = account_of(command.session), 0
    removed: list[Entry | TableObject] = []
    forced, after, after_key = False, command.after, command.after_key
    for one in found[:PURGE_MAX]:
        looks += 1 + (one.waiting if isinstance(one, TableObject) else 0)
        if looks > PURGE_MAX and removed:
            break  # The waits of this object are for the next step.
        if isinstance(one, Entry):
            after, after_key = one.name, one.key
        else:
            after = plain_name(one.name)
        if command.account is None or one.account.name == command.account:
            forced = forced or _is_forced(one, own)
            removed.append(one)
    last = found[-1] if found else None
    more = last is not None and (after, after_key) != _place(last)
    for one in removed:
        if isinstance(one, Entry):
            table.maps.change(table, one.name, one.key, None)
        else:
            one.remove(table, Why(Cause.DELETED, texts=(command.by,)), out)
    if forced:
        _note_purge(table, command, len(removed))
    return _purged(command, len(removed), more, after, after_key, out)


def _purged(
    command: Purge, removed: int, more: bool, after: str, after_key: str, out: list[Result]
) -> None:
    reply = Purged(
        removed=removed,
        more=more,
        after=after,
        after_key=after_key,
        session=command.session,
        request=command.request,
    )
    out.append(reply)


def _purge_keys(table: TableState, command: Purge, out: list[Result]) -> None:
    """End a bounded number of waits of Redis doors that are charged to a key, and then of holds."""
    account = table.accounts.by_name.get(command.account or "")
    why, removed = Why(Cause.DELETED, texts=(command.by,)), 0
    waits = [] if account is None else [*islice(account.waits.values(), PURGE_MAX)]
    for wait in waits:
        if wait.owner_state.wait is wait:  # The end of another one may have granted it.
            table.end_wait(wait, Reason.CANCELLED, out, why)
            removed += 1
    left = PURGE_MAX - len(waits)
    names = [*islice(table.key_session.names.after(command.after), left + 1)]
    more, after = len(names) > left, names[:left][-1] if names[:left] else command.after
    for name in names[:left]:
        hold = table.key_session.owner_states["", name].hold
        if hold is not None and hold.account is account:
            table.take(hold, why, out)
            removed += 1
    if removed and (command.account == NO_KEY or command.account != account_of(command.session)):
        _note_purge(table, command, removed)
    _purged(command, removed, more, after, "", out)


def _place(one: Entry | TableObject) -> tuple[str, str]:
    return (one.name, one.key) if isinstance(one, Entry) else (plain_name(one.name), "")


def _is_forced(one: Entry | TableObject, own: str) -> bool:
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
    for name in table.names.after(max(prefix, after), also=after < prefix or not command.after):
        if not (name == prefix if command.exact else name.startswith(prefix)):
            return
        yield table.objects[name]


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
        return ", ".join(f"{what} {most}" for what, most in limits) or "the default"
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
    found, more = page_of(later, PAGE_BYTES_MAX, _line_bytes, query.most)
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
    found, more = page_of(names, PAGE_BYTES_MAX, _line_bytes, query.most)
    maps = tuple(ListedMap(one, len(by_name[one].entries), by_name[one].bytes) for one in found)
    return MapList(maps=maps, more=more, session=query.session, request=query.request)
