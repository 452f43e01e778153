"""Quotas by key, and purges, in the dumb model: everything is counted anew each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.api.account import Amounts, Purge, Quota, ReadUsage, SetQuota
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import object_name, plain_name
from fencelock.actors.table.account import SHARE, WHOLE
from fencelock.actors.table.account_rules import read_usage
from fencelock.actors.table.table import LockTable
from support import map_model

if TYPE_CHECKING:
    from support.table_model import Model


class ModelQuotas:
    """The quotas of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.quotas: dict[str, Quota] = {}

    def used(self, key: str) -> Amounts:
        """Count what a key has."""
        model = self.model
        entries = [e for e in model.entries if e.payer == key]
        return Amounts(
            entries=len(entries),
            bytes=sum(len(e.map) + len(e.key) + len(e.value) for e in entries),
            objects=sum(payer == key for payer in model.objects.payers().values()),
            claims=sum(len(c.names) for c in model.claims if c.payer == key),
            sessions=sum(map_model.key_of(s["name"]) == key for s in model.sessions),
        )

    def limits(self, key: str) -> Amounts:
        """Return what a key may have."""
        own = self.quotas.get(key, Quota())
        every = self.quotas.get("*", Quota()) if key else Quota()
        found: list[int] = []
        for mine, others, rest in zip(own, every, SHARE if key else WHOLE, strict=True):
            found.append(next(most for most in (mine, others, rest) if most is not None))
        return Amounts(*found)

    def allows(self, key: str, what: str, more: int = 1) -> bool:
        """Return whether a key may have more of a thing."""
        used, limits = self.used(key), self.limits(key)
        return bool(getattr(used, what) + more <= getattr(limits, what))

    def set(self, c: SetQuota) -> None:
        """Set a quota."""
        self.quotas[c.account] = c.quota
        self.model.out.append(("QuotaSet", c.account, self.limits(c.account), c.session, c.request))

    def purge(self, c: Purge) -> None:
        """Remove entries or objects; the model does it in one step."""
        places = self._purge_entries(c) if c.kind == MAP else self._purge_objects(c)
        after = places[-1][:2] if places else (c.after, c.after_key)
        count = sum(c.account in (None, payer) for *_, payer in places)
        self.model.out.append(("Purged", count, False, *after, c.session, c.request))

    def _purge_entries(self, c: Purge) -> list[tuple[str, str, str]]:
        found = [
            e
            for e in self.model.entries
            if (e.map == c.prefix if c.exact else e.map.startswith(c.prefix))
            and e.key.startswith(c.entry_prefix)
            and (e.map, e.key) > (c.after, c.after_key)
        ]
        found.sort(key=lambda e: (e.map, e.key))
        map_model.end(self.model, [e for e in found if c.account in (None, e.payer)])
        return [(e.map, e.key, e.payer) for e in found]

    def _purge_objects(self, c: Purge) -> list[tuple[str, str, str]]:
        model = self.model
        within = object_name(c.kind, c.prefix)
        found = [
            (plain_name(lock), "", payer)
            for lock, payer in sorted(model.objects.payers().items())
            if (lock == within if c.exact else lock.startswith(within))
            and lock > object_name(c.kind, c.after)
        ]
        for name, _, payer in found:
            if c.account in (None, payer):
                model.objects.remove(object_name(c.kind, name))
        return found

    def compare(self, table: LockTable) -> None:
        """Check charges-add-up: the table's counts are those of what it has."""
        payers = {e.payer for e in self.model.entries} | set(self.model.objects.payers().values())
        payers |= {map_model.key_of(s["name"]) for s in self.model.sessions}
        payers |= {claim.payer for claim in self.model.claims}
        assert set(table.accounts.by_name) == payers
        for seen in read_usage(table, ReadUsage()).accounts:
            assert seen.used == self.used(seen.account), seen.account
            assert seen.limits == self.limits(seen.account), seen.account
