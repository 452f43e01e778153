"""Operations of both clients about what stays: use and quotas by key, maps, purges."""

from __future__ import annotations

from fencelock.actors.api.account import (
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
from fencelock.actors.api.map import EntryList, ListEntries
from fencelock.actors.api.name import PAGE_MAX
from fencelock.cluster.client.lock_options import checked
from fencelock.cluster.client.operation import Operation
from fencelock.cluster.client.owner import process_user
from fencelock.cluster.client.session_channel import SessionChannel

OPERATOR_BYTES_MAX = 200
"""The longest name of an operator in the log, which also names the client that was used."""


def operator_named(operator: str | None) -> str:
    """Return the name of an operator for the audit: by default user and host."""
    return process_user(OPERATOR_BYTES_MAX) if operator is None else operator


def reading_usage(line: SessionChannel) -> Operation[tuple[AccountUsage, ...]]:
    """End with what each key has and may have."""
    found: list[AccountUsage] = []
    after: str | None = None
    more = True
    while more:
        page = yield from line.ask(ReadUsage(after=after, most=PAGE_MAX))
        assert isinstance(page, UsageRead)
        found += page.accounts
        more = page.more and bool(page.accounts)
        after = found[-1].account if found else None
    return tuple(found)


def setting_quota(
    line: SessionChannel, key: str, quota: Quota, operator: str | None
) -> Operation[Amounts]:
    """End with what the key may have from now on."""
    who = operator_named(operator)
    reply = yield from line.ask(SetQuota(account=key, quota=quota, operator=who))
    assert isinstance(reply, QuotaSet)
    return reply.limits


def listing_maps(line: SessionChannel, prefix: str) -> Operation[tuple[ListedMap, ...]]:
    """End with the maps whose names begin with ``prefix``."""
    found: list[ListedMap] = []
    more, after = True, ""
    while more:
        query = ListMaps(prefix=prefix, after=after, most=PAGE_MAX)
        page = yield from line.ask(checked(query))
        assert isinstance(page, MapList)
        found += page.maps
        more = page.more and bool(page.maps)
        after = found[-1].name if found else ""
    return tuple(found)


def listing_entries(
    line: SessionChannel, name: str, prefix: str, after: str, most: int
) -> Operation[EntryList]:
    """End with one page of the entries of a map."""
    query = ListEntries(map=name, prefix=prefix, after=after, most=min(most, PAGE_MAX))
    page = yield from line.ask(checked(query))
    assert isinstance(page, EntryList)
    return page


def purging(line: SessionChannel, purge: Purge) -> Operation[int]:
    """End with the number of entries or objects that were removed, step by step."""
    removed, more, after, after_key = 0, True, purge.after, purge.after_key
    while more:
        step = Purge(
            kind=purge.kind,
            prefix=purge.prefix,
            operator=purge.operator,
            exact=purge.exact,
            entry_prefix=purge.entry_prefix,
            account=purge.account,
            after=after,
            after_key=after_key,
        )
        reply = yield from line.ask(step)
        assert isinstance(reply, Purged)
        removed += reply.removed
        after, after_key, more = reply.after, reply.after_key, reply.more
    return removed
