"""A simple model of the other objects, their quotas and the history of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.api.account import Amounts, Purge, Quota, SetQuota
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.counter import VALUE_MAX, AddToCounter, CounterRequest, SetCounter
from fencelock.actors.api.latch import AwaitLatch, CountDown, LatchRequest
from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import REDIS_KEY, object_name, plain_name
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.pool import GivePermits, ResizePool, TakePermits
from fencelock.actors.api.redis import KeysRequest
from fencelock.actors.table import history
from fencelock.actors.table.account import KEY_SHARE, WHOLE
from fencelock.verification.model import maps
from fencelock.verification.model.maps import holds_guard, key_of

if TYPE_CHECKING:
    from fencelock.verification.model.table import Model, ModelClaim


@dataclass(eq=False)
class ModelLatch:
    """A count-down latch; ``due`` is the time of its removal."""

    count: int
    left: int
    keep: int
    payer: str
    due: float = float("inf")
    place: int = 0


class ModelObjects:
    """The latches, barriers, counters and pools of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.latches: dict[str, ModelLatch] = {}
        self.parties: dict[str, int] = {}
        """The number of parties of each barrier, from its last arrival."""
        self.barrier_payers: dict[str, str] = {}
        self.counters: dict[str, tuple[int, str]] = {}
        """The value of each counter that is not 0, and the key that is charged for it."""
        self.pools: dict[str, tuple[int, int, str]] = {}
        """The size of each pool, what is taken, and the key that is charged for it."""

    def payers(self) -> dict[str, str]:
        found = {lock: one.payer for lock, one in self.latches.items()}
        waited = [lock for lock in self.parties if self._waits(lock)]
        found |= {lock: payer for lock, (_, payer) in self.counters.items()}
        found |= {lock: payer for lock, (_, _, payer) in self.pools.items()}
        return found | {lock: self.barrier_payers[lock] for lock in waited}

    def readable(self) -> dict[str, int]:
        """Return the values that judges compare with those that clients read."""
        return {lock: value for lock, (value, _) in self.counters.items()}

    def remove(self, lock: str) -> None:
        """Remove an object, whose waits are refused."""
        if self.counters.pop(lock, None):
            return
        if lock in self.latches or lock in self.pools:
            for claim in self._waits(lock):
                self.model.claims.remove(claim)
                self.model.deny(claim.session, claim.owner, claim.request, lock, Reason.CANCELLED)
            self.latches.pop(lock, None)
            self.pools.pop(lock, None)
        else:
            self._break(lock)

    def due(self) -> list[tuple[float, int, int, ModelLatch]]:
        """Return when the latches are removed, their order among items, and themselves."""
        return [(one.due, 0, one.place, one) for one in self.latches.values()]

    def drop(self, latch: ModelLatch) -> None:
        """Remove a latch whose time is over."""
        self.latches = {lock: one for lock, one in self.latches.items() if one is not latch}

    def _is_full(self, c: UpdateRequest) -> bool:
        """Refuse a request that would make an object beyond the quota of its key."""
        full = not self.model.quotas.allows(key_of(c.session), "objects")
        if full:
            self.model.deny(c.session, c.owner, c.request, c.lock, Reason.OVERLOADED)
        return full

    def update(self, c: UpdateRequest) -> None:
        if isinstance(c, AwaitBarrier):
            self._on_barrier(c)
        elif isinstance(c, TakePermits | GivePermits | ResizePool):
            self._on_pool(c)
        elif isinstance(c, KeysRequest):
            self.model.keys.update(c)
        elif isinstance(c, CounterRequest):
            self._on_counter(c)
        else:
            assert isinstance(c, LatchRequest)
            self._on_latch(c)

    def note_end(self, claim: ModelClaim) -> None:
        """Act upon the end of a wait that did not pass."""
        self._tidy(claim.lock)
        self._serve_pool(claim.lock)
        self._break(claim.lock)

    def _tidy(self, lock: str) -> None:
        """Remove a latch if a new one would be in the same state."""
        latch = self.latches.get(lock)
        if latch is not None and latch.left == latch.count and not self.model.find(lock=lock):
            del self.latches[lock]

    def _on_latch(self, c: LatchRequest) -> None:
        s, o, r, lock, model = c.session, c.owner, c.request, c.lock, self.model
        latch = self.latches.get(lock)
        if latch is None:
            if self._is_full(c):
                return
            latch = ModelLatch(c.count, c.count, c.keep_ms, key_of(s))
            self.latches[lock] = latch
        if latch.count != c.count:
            model.deny(s, o, r, lock, Reason.INVALID)
            return
        if isinstance(c, CountDown):
            if 0 < latch.left <= c.amount:
                model.places += 1
                latch.due, latch.place = model.now + latch.keep, model.places
            latch.left = max(0, latch.left - c.amount)
            model.note(s, o, r, lock, ("CountedDown", lock, latch.left, s, o, r))
            for claim in sorted(model.find(lock=lock), key=lambda claim: claim.place):
                if not latch.left:
                    model.claims.remove(claim)
                    who = claim.session, claim.owner, claim.request
                    model.note(*who, lock, ("LatchPassed", lock, *who))
            if not latch.left and not latch.keep:
                del self.latches[lock]
        elif latch.left:
            assert isinstance(c, AwaitLatch)
            model.wait(c)
            self._tidy(lock)
        else:
            model.note(s, o, r, lock, ("LatchPassed", lock, s, o, r))

    def _on_pool(self, c: TakePermits | GivePermits | ResizePool) -> None:
        s, o, r, lock, model = c.session, c.owner, c.request, c.lock, self.model
        known = self.pools.get(lock)
        sizes = {c.permits, c.size} if isinstance(c, ResizePool) else {getattr(c, "size", 0)}
        if known is not None and known[0] not in sizes and not isinstance(c, GivePermits):
            model.deny(s, o, r, lock, Reason.INVALID)
            return
        size, taken, payer = known or (getattr(c, "size", 0), 0, key_of(s))
        first = len(model.out)
        if isinstance(c, TakePermits):
            amount = c.amount or max(0, size - taken)
            fits = amount and taken + amount <= size and not self._waits(lock)
            if fits and (known is not None or not self._is_full(c)):
                self.pools[lock] = size, taken + amount, payer
                model.note(s, o, r, lock, ("PermitsTaken", lock, amount, s, o, r))
            elif not fits:
                model.wait(c, amount)
            return
        if isinstance(c, GivePermits):
            changed = c.amount <= taken
            taken -= c.amount if changed else 0
            model.note(s, o, r, lock, ("PermitsGiven", lock, taken, changed, s, o, r))
            if known is not None:
                self.pools[lock] = size, taken, payer
                self._serve_pool(lock)
            return
        if known is not None:
            self.pools[lock] = c.size, taken, payer
            for claim in self._waits(lock):
                if claim.amount > c.size:
                    model.claims.remove(claim)
                    who = claim.session, claim.owner, claim.request
                    model.deny(*who, lock, Reason.INVALID)
            _, taken, _ = self._serve_pool(lock)
        model.note(s, o, r, lock, ("Resized", lock, c.size, c.size - taken, s, o, r))
        model.out.insert(first, model.out.pop())

    def _serve_pool(self, lock: str) -> tuple[int, int, str]:
        """Let the first waits take what is free; forget a pool that is in no use."""
        size, taken, payer = self.pools.get(lock, (0, 0, ""))
        for claim in self._waits(lock) if lock in self.pools else ():
            if taken + claim.amount > size:
                break
            taken += claim.amount
            self.model.claims.remove(claim)
            who = claim.session, claim.owner, claim.request
            self.model.note(*who, lock, ("PermitsTaken", lock, claim.amount, *who))
        if lock in self.pools:
            self.pools[lock] = size, taken, payer
            if not taken and not self._waits(lock):
                del self.pools[lock]
        return size, taken, payer

    def _on_counter(self, c: CounterRequest) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if not holds_guard(self.model, c):
            return
        before, payer = self.counters.get(lock, (0, key_of(s)))
        after, changed = before, False
        if isinstance(c, AddToCounter) and -VALUE_MAX <= before + c.amount <= VALUE_MAX:
            after, changed = before + c.amount, True
        if isinstance(c, SetCounter) and (c.expected is None or c.expected == before):
            after, changed = c.value, True
        if after and not before and self._is_full(c):
            return
        self.counters.pop(lock, None)
        if after:
            self.counters[lock] = after, payer
        self.model.note(s, o, r, lock, ("CounterChanged", lock, before, after, changed, s, o, r))

    def _waits(self, lock: str) -> list[ModelClaim]:
        return sorted(self.model.find(lock=lock), key=lambda claim: claim.place)

    def _on_barrier(self, c: AwaitBarrier) -> None:
        s, o, r, lock, model = c.session, c.owner, c.request, c.lock, self.model
        waits = self._waits(lock)
        if waits and self.parties[lock] != c.parties:
            model.deny(s, o, r, lock, Reason.INVALID)
        elif len(waits) + 1 == c.parties:
            for index, claim in enumerate(waits):
                model.claims.remove(claim)
                who = claim.session, claim.owner, claim.request
                model.note(*who, lock, ("BarrierPassed", lock, index, *who))
            model.note(s, o, r, lock, ("BarrierPassed", lock, len(waits), s, o, r))
        elif waits or c.wait_ms == 0 or not self._is_full(c):
            if not waits:
                self.barrier_payers[lock] = key_of(s)
            self.parties[lock] = c.parties
            model.wait(c)
            if c.wait_ms == 0:
                self._break(lock)

    def _break(self, lock: str) -> None:
        for claim in self._waits(lock) if lock in self.parties else ():
            self.model.claims.remove(claim)
            self.model.deny(claim.session, claim.owner, claim.request, lock, Reason.BROKEN)


class ModelQuotas:
    """The quotas of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.quotas: dict[str, Quota] = {}

    def used(self, key: str) -> Amounts:
        model = self.model
        entries = [e for e in model.entries if e.payer == key]
        return Amounts(
            entries=len(entries),
            bytes=sum(len(e.map) + len(e.key) + len(e.value) for e in entries),
            objects=sum(payer == key for payer in model.objects.payers().values()),
            claims=sum(len(c.names) for c in model.claims if c.payer == key),
            sessions=sum(maps.key_of(s["name"]) == key for s in model.sessions),
        )

    def limits(self, key: str) -> Amounts:
        own = self.quotas.get(key, Quota())
        every = self.quotas.get("*", Quota()) if key else Quota()
        found: list[int] = []
        for mine, others, rest in zip(own, every, KEY_SHARE if key else WHOLE, strict=True):
            found.append(next(most for most in (mine, others, rest) if most is not None))
        return Amounts(*found)

    def allows(self, key: str, what: str, more: int = 1) -> bool:
        used, limits = self.used(key), self.limits(key)
        return bool(getattr(used, what) + more <= getattr(limits, what))

    def set(self, c: SetQuota) -> None:
        self.quotas[c.account] = c.quota
        self.model.out.append(("QuotaSet", c.account, self.limits(c.account), c.session, c.request))

    def purge(self, c: Purge) -> None:
        """Remove entries, holds or objects; the model does it in one step."""
        count = self._purge_waits(c) if c.kind == REDIS_KEY and not c.prefix else 0
        kinds = {MAP: self._purge_entries, REDIS_KEY: self._purge_holds}
        places = kinds.get(c.kind, self._purge_objects)(c)
        after = places[-1][:2] if places else (c.after, c.after_key)
        count += sum(c.account in (None, payer) for *_, payer in places)
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
        maps.end(self.model, [e for e in found if c.account in (None, e.payer)])
        return [(e.map, e.key, e.payer) for e in found]

    def _purge_waits(self, c: Purge) -> int:
        """End the waits of doors that are charged to one key, and return their number."""
        model, ended = self.model, 0
        waits = [one for one in model.claims if one.door is not None and not one.fence]
        for claim in sorted(waits, key=lambda claim: claim.place):
            if claim.payer == c.account and claim in model.claims:
                model.claims.remove(claim)
                model.deny(claim.session, claim.owner, claim.request, claim.lock, Reason.CANCELLED)
                model.end_wait(claim)
                ended += 1
        return ended

    def _purge_holds(self, c: Purge) -> list[tuple[str, str, str]]:
        """End holds of no client. What is granted meanwhile stays."""
        held = [one for one in self.model.claims if one.door is not None and one.fence]
        found = [
            one
            for one in held
            if (one.lock == c.prefix if c.exact else one.lock.startswith(c.prefix))
            and one.lock > c.after
        ]
        found.sort(key=lambda one: one.lock)
        for hold in found:
            if c.account in (None, hold.payer):
                self.model.take(hold)
        return [(one.lock, "", one.payer) for one in found]

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


class ModelChange(NamedTuple):
    """A change of the object ``lock``."""

    lock: str
    key: str
    version: int
    value: bytes | None
    fence: int
    at: int

    @property
    def size(self) -> int:
        """Its size, as the limits count it (bytes)."""
        return 64 + len(self.key) + len(self.value or b"")


class ModelHistory:
    """All changes, and the version up to which those of each object are dropped."""

    def __init__(self) -> None:
        self.all: list[ModelChange] = []
        self.version = self.origin = 0
        """The version of the last change of any object, and the fence above which they began."""
        self.dropped: dict[str, int] = {}
        self.gone = 0

    def kept(self, lock: str = "") -> list[ModelChange]:
        """Return the changes of an object, or of all, that are not dropped."""
        return [
            one
            for one in self.all
            if lock in ("", one.lock) and one.version > self.dropped.get(one.lock, self.gone)
        ]

    def add(
        self, lock: str, key: str, value: bytes | None, fence: int, now: int, above: int = 0
    ) -> None:
        """Add a change, and drop the changes beyond the limits."""
        if lock not in self.dropped:
            self.dropped[lock] = self.gone
        if not self.version:
            self.version = self.origin = above
        self.version += 1
        self.all.append(ModelChange(lock, key, self.version, value, fence, now))
        while (
            len(self.kept(lock)) > history.CHANGES_MAX
            or sum(one.size for one in self.kept(lock)) > history.OBJECT_BYTES_MAX
        ):
            self.dropped[lock] = self.kept(lock)[0].version
        while True:
            last = {one.lock: one for one in self.kept()}
            oldest = min(last.values(), key=lambda one: one.version)
            late = oldest.at + history.HISTORY_KEEP_MS <= now
            many = len(last) > history.HISTORIES_MAX
            large = sum(one.size for one in self.kept()) > history.HISTORY_BYTES_MAX
            if oldest.lock == lock or not (late or many or large):
                return
            self.gone = oldest.version
            del self.dropped[oldest.lock]

    def read(self, lock: str, after: int, fence: int) -> list[ModelChange] | None:
        """Return the changes of an object after a version, None if some may be missing."""
        old = self.origin if self.version else fence
        if after < self.dropped.get(lock, self.gone) or 0 < after <= old:
            return None
        return [one for one in self.kept(lock) if one.version > after]
