"""Random logs for the table of locks, applied to it and to the model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec.structs import replace

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.account import Purge, Quota, ReadUsage, SetQuota
from fencelock.actors.api.barrier import BARRIER, AwaitBarrier
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.counter import COUNTER, VALUE_MAX, AddToCounter, SetCounter
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown
from fencelock.actors.api.lock_all import SEVERAL, AcquireAll
from fencelock.actors.api.lock_message import Renew
from fencelock.actors.api.map import MAP, DeleteEntry, PutEntry
from fencelock.actors.api.name import NO_CLIENT, REDIS_KEY, kind_of, object_name
from fencelock.actors.api.operator_message import CloseSession, Evict
from fencelock.actors.api.pool import POOL, GivePermits, ResizePool, TakePermits
from fencelock.actors.api.redis import (
    RECEIPT,
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyState,
    When,
)
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import (
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    ResizeSemaphore,
)
from fencelock.actors.api.session_message import End, KeepAlive, Open
from fencelock.actors.table.account_rules import read_usage
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.counter import Counter
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.report import read_changes
from fencelock.actors.table.session import OwnerKey
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, LogCommand
from fencelock.verification.model.maps import Seen, key_of
from fencelock.verification.model.table import WEEK_MS, Model, ModelClaim, summary_of

Dice = tuple[int, int, int, int, int, int]
"""The kind of command (below 20), the delay, the owner, the subject, and two more dice."""

Plain = api.Acquire | api.Release | Evict
"""A command about a lock, in place of which there may be one about another object."""


class LogComposer:
    """Turns numbers into a log that stays interesting: it repeats, overtakes and gives up."""

    SESSIONS = ("a", "b")
    """The names of the sessions with which the log begins."""

    def __init__(self) -> None:
        self.commands: list[LogCommand] = [ExtendSessions(leader="m")]

    def command(self, step: Dice, model: Model) -> LogCommand:
        """Return the next command, which mostly concerns something that ``model`` knows."""
        kind, _, who, which, what, chance = step
        session = f"{'ab'[who % 2]}.{max(1, model.opened - chance % 4)}"
        live = [one["id"] for one in model.sessions]
        session = live[who % len(live)] if live and chance % 8 else session
        owner, lock, request = "pq"[which % 2], "LMN"[what % 3], len(self.commands)
        hold = model.holder(lock)
        acquire = api.Acquire(
            session=session,
            owner=owner,
            request=request,
            lock=lock,
            wait_ms=(None, 0, 60, 200)[chance % 4],
            limit=(0, 1, 2)[chance % 3],
        )
        match kind:
            case 0 | 1:
                ttl = (150, 400, 5_000)[chance % 3]
                made: LogCommand = Open(session="ab"[who % 2], ttl_ms=ttl)
            case 2:
                made = KeepAlive(session=session)
            case 3:
                close: LogCommand = End(session=session)
                if chance % 8 != 3:
                    ended = f"{'ab'[who % 2]}.{max(1, model.opened - which % 4)}"
                    handle = ended if chance % 8 == 5 else session
                    close = CloseSession(handle=handle, operator="root", request=request)
                floor = model.fences + chance % 3
                made = close if chance % 2 else ExtendSessions(leader="m", fence_floor=floor)
            case 4 if chance % 3:
                seen = hold.fence if hold else 1
                made = Evict(operator="root", request=request, lock=lock, fence=seen)
            case 5 | 6 | 7 | 8:
                fence = hold.fence if hold and chance % 5 else chance
                if hold and chance % 7:
                    session, owner = hold.session, hold.owner
                made = api.Release(
                    session=session, owner=owner, request=request, lock=lock, fence=fence
                )
            case 9 | 10 | 11:
                return self.commands[-1 - chance % min(len(self.commands), 12)]
            case 12:
                past = self.commands[-1 - chance % min(len(self.commands), 12)]
                old: api.CancellableRequest = acquire
                if isinstance(past, api.CancellableRequest):
                    old = past
                self.commands.append(acquire)  # It may come after its own cancel.
                who_was = {"session": old.session, "owner": old.owner}
                return api.Cancel(**who_was, request=old.request, lock=old.lock)
            case _:
                made = acquire
        self.commands.append(made)
        return made


class ObjectComposer(LogComposer):
    """Turns some of the new commands about locks into commands about another kind of object."""

    def command(self, step: Dice, model: Model) -> LogCommand:
        before = len(self.commands)
        made = super().command(step, model)
        new = len(self.commands) > before and made is self.commands[-1]
        if new and isinstance(made, Plain):
            self.commands[-1] = made = self.turned(made, step, model)
        return made

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        raise NotImplementedError


def one_hold(claims: Iterable[ModelClaim], dice: int) -> ModelClaim | None:
    holds = [claim for claim in claims if claim.fence]
    return holds[dice % len(holds)] if holds else None


def guard_of(hold: ModelClaim | None, step: Dice) -> tuple[str, int]:
    """Return what a change names as its guard, and the fence: most often those of ``hold``."""
    _, delay, _, _, what, _ = step
    guard = hold.names[-1] if hold else "L"
    fence = hold.fence + len(hold.names) - 1 if hold and delay % 4 else 1 + delay
    return guard, fence + (what % hold.span if hold and hold.span else 0)


def by(made: Plain, owner: str) -> dict[str, Any]:
    """Return who asks, of a request of ``owner`` in place of ``made``."""
    return {"session": made.session, "owner": owner, "request": made.request}


class RWComposer(ObjectComposer):
    """Also writes about read/write locks: few owners, so that they acquire again and upgrade."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, _, who, which, what, chance = step
        if what % 2:
            return made
        name = "ST"[what // 2 % 2]
        lock = object_name(RWLOCK, name)
        hold = one_hold((c for c in model.claims if c.lock == lock), who)
        fence = hold.fence if hold and chance % 9 else chance
        session, owner = made.session, "pqrs"[which % 4]
        if hold and chance % 3:
            session, owner = hold.session, hold.owner
        writes = hold is not None and hold.amount > 1 and which % 2
        if isinstance(made, Evict):
            return replace(made, lock=lock, fence=fence)
        if isinstance(made, api.Acquire):
            return AcquireReadWrite(
                rwlock=name,
                write=kind % 3 == 0,
                session=session if chance % 2 else made.session,
                owner=owner if chance % 2 else "pqrs"[which % 4],
                request=made.request,
                wait_ms=made.wait_ms,
            )
        if writes or which % 8 == 0:
            return Downgrade(
                rwlock=name, fence=fence, session=session, owner=owner, request=made.request
            )
        return replace(made, lock=lock, fence=fence, session=session, owner=owner)


class SeveralComposer(ObjectComposer):
    """Also writes claims for several of the locks, in any order."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        _, delay, who, which, what, chance = step
        hold = one_hold((c for c in model.claims if c.locks), who)
        if isinstance(made, Evict) and hold:
            place = which % len(hold.locks)
            return replace(made, lock=hold.locks[place], fence=hold.fence + place)
        if isinstance(made, api.Acquire) and what % 3 == 0:
            names = "LMNLM"[which % 3 :][: 1 + chance % 3]
            return AcquireAll(
                locks=tuple(names if delay % 2 else names[::-1]),
                **by(made, "pqrs"[which % 4]),
                wait_ms=made.wait_ms,
            )
        if isinstance(made, api.Release) and hold and which % 2:
            fence = hold.fence if chance % 9 else hold.fence + 1
            return replace(
                made, lock=hold.lock, fence=fence, session=hold.session, owner=hold.owner
            )
        if isinstance(made, api.Release) and which % 8 == 0:
            return replace(made, lock=object_name(SEVERAL, made.lock))
        return made


class DeadlineComposer(ObjectComposer):
    """Writes acquires with a duration too, some of them invalid, and renewals."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, delay, who, which, what, chance = step
        if isinstance(made, api.Acquire):
            hold_ms = (0, 100, 150, 300, 600, 99, WEEK_MS + 1)[chance % (7 if what % 8 == 0 else 5)]
            grace_ms = (100, 0, 200, 100, 99)[which % (5 if what % 8 == 1 else 4)]
            ttl = hold_ms if hold_ms or kind % 8 == 0 else 100
            return replace(made, hold_ms=ttl, grace_ms=grace_ms if ttl else grace_ms * (who % 2))
        hold = one_hold((c for c in model.claims if c.hold_ms), who) or model.holder(made.lock)
        if isinstance(made, Evict) or which % 3 == 0 or hold is None or hold.door:
            return made
        early = sorted({hold.first, *hold.renewals})
        number = early[chance % len(early)] if delay % 4 == 0 else made.request
        return Renew(
            lock=hold.lock,
            fence=hold.fence if chance % 9 else chance,
            hold_ms=(0, 0, 100, 400, 99)[what % 5],
            session=hold.session,
            owner=hold.owner if which % 9 else "p",
            request=number,
        )


class RetainedComposer(ObjectComposer):
    """Writes acquires with a span of fences too: of locks, read/write locks and semaphores."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, delay, who, which, what, _ = step
        hold = one_hold((c for c in model.claims if c.span), who)
        if isinstance(made, api.Acquire):
            if which % 3 == 0:
                return made
            name = ("L", "M", object_name(RWLOCK, "R"), object_name(SEMAPHORE, "S"))[what % 4]
            permits = (1, 1, RWLOCK_PERMITS, 3)[what % 4]
            all_permits = what % 4 == 2 and kind % 3 == 0
            return AcquireRetained(
                lock=name,
                span=(1, 2, 16)[delay % 3],
                amount=permits if all_permits else 1 + (kind % 2 if what % 4 == 3 else 0),
                permits=permits,
                **by(made, "pqrs"[which % 4]),
                wait_ms=made.wait_ms,
            )
        if hold is None or which % 4 == 0:
            return made
        fence = hold.fence + (what % hold.span if delay % 3 == 0 else 0)
        if isinstance(made, Evict):
            return replace(made, lock=hold.lock, fence=fence)
        if which % 2:
            return KeepAlive(session=hold.session)
        return replace(made, lock=hold.lock, fence=fence, session=hold.session, owner=hold.owner)


class MixedComposer(ObjectComposer):
    """Also writes about semaphores: with two or three permits, by more owners than permits."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, _, who, which, what, chance = step
        if what % 2:
            return made
        name = "ST"[what // 2 % 2]
        lock = object_name(SEMAPHORE, name)
        hold = one_hold((c for c in model.claims if c.lock == lock), who)
        fence = hold.fence if hold and chance % 9 else chance
        if isinstance(made, Evict):
            return replace(made, lock=lock, fence=fence)
        if isinstance(made, api.Acquire):
            sizes = [c.permits for c in model.find(lock=lock)] or [3]
            if what // 4 % 8 == 0:
                return ResizeSemaphore(
                    semaphore=name,
                    permits=3 if chance % 7 == 0 else sizes[0],
                    size=2 + kind % 3,
                    **by(made, "pqxyz"[which % 5]),  # Of p and q, perhaps also a holder.
                )
            drains = made.wait_ms == 0 and who % 3 == 0
            return AcquirePermits(
                semaphore=name,
                permits=2 if chance % 13 == 0 else sizes[0],
                amount=0 if drains else 1 + kind % (2 if chance % 13 == 0 else sizes[0]),
                **by(made, "pqrstuvw"[which % 8]),
                wait_ms=made.wait_ms,
            )
        session, owner = made.session, "pqrstuvw"[which % 8]
        if hold and chance % 7:
            session, owner = hold.session, hold.owner
        part = ReleasePermits(
            semaphore=name,
            fence=fence,
            amount=which % 4,
            session=session,
            owner=owner,
            request=made.request,
        )
        full = replace(made, lock=lock, fence=fence, session=session, owner=owner)
        return part if chance % 3 else full


class ElectionComposer(ObjectComposer):
    """Writes requests of a few candidates to lead in elections too."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        _, _, who, which, what, chance = step
        if what % 4 == 0:
            return made
        name = "STU"[what // 4 % 3]
        lock = object_name(ELECTION, name)
        leader = model.holder(lock)
        fence = leader.fence if leader and chance % 9 else chance
        if isinstance(made, api.Acquire):
            value = ("", "me", f"10.0.0.{who}:80", "x" * 40)[which % 4]
            who_asks = by(made, "pqr"[which % 3])
            return Lead(election=name, value=value, **who_asks, wait_ms=made.wait_ms)
        made = replace(made, lock=lock, fence=fence)
        if isinstance(made, api.Release) and leader and chance % 7:
            return replace(made, session=leader.session, owner=leader.owner)
        return made


class MapComposer(ObjectComposer):
    """Writes changes of maps too, with and without versions, ends and guards."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, _, who, which, what, chance = step
        if what % 4 == 0:
            return made
        name, key = "MN"[what // 4 % 2], "xyz"[who % 3]
        known = [e.version for e in model.entries if (e.map, e.key) == (name, key)]
        version = (None, None, None, 0, *known, *known, chance)[chance % (5 + 2 * len(known))]
        hold = one_hold(model.claims, who)
        guard, fence = guard_of(hold, step) if kind % 3 == 0 else ("", 0)
        about: dict[str, Any] = {
            "map": name,
            "entry_key": key,
            "session": made.session if isinstance(made, api.Acquire | api.Release) else "a.1",
            "owner": "pq"[which % 2],
            "request": made.request,
            "version": version,
            "guard": guard,
            "fence": fence,
        }
        if chance % 5 == 0:
            return DeleteEntry(**about)
        return PutEntry(
            **about,
            value=b"%d" % made.request,
            ttl_ms=(None, None, 30, 150)[which // 2 % 4],
            ephemeral=which % 5 == 0,
        )


class LatchComposer(ObjectComposer):
    """Writes requests about count-down latches too, some of which are removed meanwhile."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, delay, _, which, what, chance = step
        if what % 4 == 0:
            return made
        name = "ST"[what // 4 % 2]
        if isinstance(made, Evict):
            return replace(made, lock=object_name(LATCH, name))
        fields: dict[str, Any] = {
            "latch": name,
            "count": 2 if chance % 17 == 0 else 3,
            **by(made, "pqrstuvw"[which % 8]),
            "keep_ms": (0, 60, 400)[delay % 3],
        }
        if isinstance(made, api.Acquire):
            return AwaitLatch(**fields, wait_ms=made.wait_ms)
        return CountDown(**fields, amount=1 + kind % 2)


class BarrierComposer(ObjectComposer):
    """Writes arrivals at barriers of two or three parties too, some of which stop waiting."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        _, _, _, which, what, chance = step
        if what % 4 == 0:
            return made
        name = "ST"[what // 4 % 2]
        if isinstance(made, Evict):
            return replace(made, lock=object_name(BARRIER, name))
        return AwaitBarrier(
            barrier=name,
            parties=2 if chance % 17 == 0 else 3,
            **by(made, "pqrstuvw"[which % 8]),
            wait_ms=(None, 60, 200, 0)[chance % 4 if chance % 3 == 0 else 0],
        )


class CounterComposer(ObjectComposer):
    """Writes changes of two counters too, some near their limits, with and without guards."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, _, who, which, what, chance = step
        if what % 4 == 0:
            return made
        name = "ST"[what // 4 % 2]
        if isinstance(made, Evict):
            return replace(made, lock=object_name(COUNTER, name))
        value, _ = model.objects.counters.get(object_name(COUNTER, name), (0, ""))
        guards = kind % 3 == 0
        guard, fence = guard_of(one_hold(model.claims, who), step) if guards else ("", 0)
        about: dict[str, Any] = {
            "counter": name,
            **by(made, "pqrs"[which % 4]),
            "guard": guard,
            "fence": fence,
        }
        most = VALUE_MAX if chance % 2 else -VALUE_MAX
        if which // 4 % 4:
            return AddToCounter(**about, amount=(1, 2, -1, -value, 0, 3, most)[chance % 7])
        expected = (None, value, 0, 1)[chance % 4]
        return SetCounter(**about, value=(0, 1, 5, most)[who % 4], expected=expected)


class PoolComposer(ObjectComposer):
    """Writes takes and returns of two pools too, whose sizes change."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, _, who, which, what, chance = step
        if what % 4 == 0:
            return made
        name = "ST"[what // 4 % 2]
        if isinstance(made, Evict):
            return replace(made, lock=object_name(POOL, name))
        size, taken, _ = model.objects.pools.get(object_name(POOL, name), (3, 0, ""))
        about: dict[str, Any] = {"pool": name, **by(made, "pqrstuvw"[which % 8])}
        if isinstance(made, api.Release):
            return GivePermits(**about, amount=1 + chance % max(1, min(4, taken + 1)))
        if what // 8 % 8 == 0:
            permits = 3 if chance % 7 == 0 else size
            return ResizePool(**about, permits=permits, size=1 + kind % 4)
        size = 2 if chance % 13 == 0 else size
        drains = made.wait_ms == 0 and who % 3 == 0
        amount = 0 if drains else 1 + kind % size
        return TakePermits(**about, size=size, amount=amount, wait_ms=made.wait_ms)


class KeyComposer(ObjectComposer):
    """Writes requests of Redis doors about the same locks too."""

    STATES = (
        (KeyState.FREE, KeyState.RESERVED),
        (KeyState.FREE, KeyState.RESERVED, KeyState.EQUAL),
        (KeyState.EQUAL,),
        (KeyState.FREE, KeyState.OTHER, KeyState.NATIVE),
    )

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, delay, who, which, what, chance = step
        if which % 4 == 0 or isinstance(made, Evict):
            return made
        states: tuple[KeyState, ...] = self.STATES[chance % 4]
        forced = KeyState.OTHER in states
        keys = tuple("LMN"[what % 3 :] if what % 5 == 0 and not forced else "LMN"[what % 3])
        value, ttl_ms = (b"v", b"vw", b"x")[who % 3], (60, 150, 400)[delay % 3]
        about: dict[str, Any] = {
            "keys": keys,
            "value": value,
            "ttl_ms": ttl_ms,
            "account": ("", "", "k")[kind % 3],
            **by(made, "pqrs"[which // 4 % 4]),
        }
        if isinstance(made, api.Acquire) and kind % 4 == 0:
            about |= {"keys": keys[:1], "ttl_ms": ttl_ms * (who % 2)}
            return AwaitKey(**about, wait_ms=made.wait_ms)
        action = KeyAction.SET
        if not isinstance(made, api.Acquire):
            action = KeyAction.DELETE if chance % 3 else KeyAction.EXPIRE
            states = (KeyState.EQUAL, KeyState.OTHER)[: 1 + kind % 2]
        expected, receipt = (b"v", b"vw", None)[chance // 4 % 3], ""
        held = [claim for claim in model.claims if claim.door is not None and claim.fence]
        if action is KeyAction.DELETE and held and what % 2:
            claim = held[who % len(held)]
            assert claim.door is not None
            about["keys"], expected = claim.names[:1], claim.door[0]
            receipt = RECEIPT if which % 3 == 0 else ""
        return ChangeKeys(
            **about,
            action=action,
            states=states,
            expected=expected,
            prefix=who % 5 == 0,
            each=delay % 2 == 1,
            expiry=(Expiry.AFTER, *Expiry)[delay // 2 % 5],
            when=(When.ANY, When.ANY, *When)[who // 2 % 7],
            counts=which % 3 == 0,
            turn=(None, None, b"v")[(kind + delay) % 3],
            receipt=receipt,
            receipt_ms=5 * ttl_ms,
            returns=len(about["keys"]) == 1 and delay % 4 == 0,
        )


class HandoverComposer(ObjectComposer):
    """Writes requests that detach and attach locks, beside doors and clients that retain locks."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind, delay, who, which, what, chance = step
        if which % 4 == 0 or isinstance(made, Evict):
            return made
        if which % 4 == 1:
            return RetainedKeyComposer().turned(made, step, model)
        secret = (b"v", b"x")[chance // 3 % 3 == 0]
        about: dict[str, Any] = {"lock": made.lock, **by(made, made.owner)}
        if isinstance(made, api.Acquire):
            if kind % 3 == 0:
                return made
            hold_ms = (0, 0, 120, 50)[what // 3 % 4]
            return Attach(secret=secret, hold_ms=hold_ms, grace_ms=100 * (who % 2), **about)
        ttl_ms = (60, 150, 400)[delay % 3]
        return Detach(fence=made.fence, digest=digest_of(secret), ttl_ms=ttl_ms, **about)


class RetainedKeyComposer(ObjectComposer):
    """Writes requests of Redis doors, and acquires that retain locks."""

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind = KeyComposer if step[1] % 2 else RetainedComposer
        return kind().turned(made, step, model)


class AllComposer(ObjectComposer):
    """Writes about all kinds of objects."""

    KINDS: ClassVar[tuple[type[ObjectComposer], ...]] = (
        RWComposer,
        SeveralComposer,
        MixedComposer,
        ElectionComposer,
        DeadlineComposer,
        MapComposer,
        LatchComposer,
        BarrierComposer,
        CounterComposer,
        PoolComposer,
        RetainedComposer,
        KeyComposer,
        HandoverComposer,
    )

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        kind = self.KINDS[step[5] // 2 % len(self.KINDS)]
        return kind().turned(made, step, model)


class FewComposer(AllComposer):
    """Writes about two of the kinds, whose objects so meet more often."""

    def __init__(self) -> None:
        super().__init__()
        self.few: tuple[type[ObjectComposer], ...] = ()

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
        if not self.few:
            self.few = self.KINDS[step[4] % len(self.KINDS)], self.KINDS[step[2] % len(self.KINDS)]
        return self.few[step[5] // 2 % 2]().turned(made, step, model)


class QuotaComposer(AllComposer):
    """Writes requests of clients with two keys, small quotas, and purges."""

    SESSIONS = ("shop@a", "till@b")
    KINDS = tuple(
        kind for kind in AllComposer.KINDS if kind not in (PoolComposer, RetainedComposer)
    )
    """Quotas know nothing of spans, and entries that two keys write would be rare with more."""

    def command(self, step: Dice, model: Model) -> LogCommand:
        before = len(self.commands)
        made: Any = super().command(step, model)
        new = len(self.commands) > before and made is self.commands[-1]
        if new and isinstance(made, CloseSession):
            made = replace(made, handle=_keyed(made.handle))
        if new and not isinstance(made, ExtendSessions):
            self.commands[-1] = made = replace(made, session=_keyed(made.session))
        command: LogCommand = made
        return command

    def turned(self, made: Plain, step: Dice, model: Model) -> LogCommand:
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
            exact, about_map = which % 3 == 0, what % 5 == 0
            return Purge(
                kind=(MAP, LATCH, BARRIER, COUNTER, REDIS_KEY)[what % 5],
                prefix="MNST"[which % 4] if exact or which % 2 else "",
                exact=exact,
                entry_prefix="xyz"[delay % 3] if exact and about_map and delay % 2 else "",
                account=account if chance % 3 == 0 else None,
                after="M" if delay % 5 == 0 else "",
                **about,
            )
        return super().turned(made, step, model)


def _keyed(session: str) -> str:
    return {"a": "shop@", "b": "till@"}.get(session.partition(".")[0], "") + session


def judge_state(table: LockTable, model: Model) -> None:
    """Judge the state of ``table``; outcomes are compared with those of the model."""
    held: set[tuple[int, str, str, str]] = set()
    claims = queued = spans = 0
    for name, resource in table.resources.items():
        holds, waits = list(resource.holds), list(resource.waits)
        members = [one.owner_state for one in (*holds, *waits)]
        assert members  # free-leaves-nothing
        assert holds or any(one.details.locks for one in waits)  # free-leaves-nothing
        for hold in holds:
            holder, fence = hold.owner_state, hold.fence_of(name)
            assert resource.find(name, fence) is hold
            assert fence == hold.fence + hold.objects.index(name)  # fences-rise
            held.add((hold.fence, holder.session.id, *holder.key))
            assert hold.count >= 1
            if hold.details.span:
                noted = hold in (holder.session.awaited or ())
                assert noted or not waits  # none-forgotten
                assert resource.spans is not None
                assert noted != (fence in resource.spans.unnoted)  # noted-once
        retained = [hold for hold in holds if hold.details.span]
        assert retained == ([] if resource.spans is None else resource.spans.holds)
        spans += len(retained)
        fences = [hold.fence_of(name) for hold in holds]
        assert fences == sorted(set(fences))  # fences-rise
        known = {*table.sessions.by_id, NO_CLIENT}
        assert all(one.session.id in known for one in members)  # ended-gets-nothing
        assert resource.free == resource.capacity - sum(
            hold.amount for hold in holds
        )  # capacity-kept
        assert resource.free >= 0 or kind_of(name) == SEMAPHORE  # capacity-kept
        head = resource.next_wait()
        at_all = [table.resources[one].next_wait() for one in head.objects] if head else []
        assert head is None or any(one is not head for one in at_all)  # no-overtaking, all-at-once
        claims += len(members)
        queued += len(waits)
    assert held == {(c.fence, c.session, c.owner, c.lock) for c in model.claims if c.fence}
    if table.fence % 3 == 0:  # Names that nobody has read yet end too.
        shown = [*table.held_names.within("", "")]
        assert shown == sorted(name for name, one in table.resources.items() if one.held)
    unheld = judge_objects(table)
    claims += unheld
    assert table.waits == queued + unheld
    assert table.retained == spans == sum(s.retained for s in table.sessions.by_id.values())
    sessions = (table.key_session, *table.sessions.by_id.values())
    assert claims == table.claims == sum(s.claims for s in sessions)


def key_holds(table: LockTable) -> list[KeyHold]:
    """Return the holds that belong to no client, by name."""
    holds = [state.hold for state in table.key_session.owner_states.values()]
    found = [hold for hold in holds if isinstance(hold, KeyHold)]
    assert len(found) == len(holds) == table.key_session.claims  # free-leaves-nothing
    assert [*table.key_session.names.after("")] == sorted(hold.owner_state.lock for hold in found)
    return found


def judge_objects(table: LockTable) -> int:
    """Judge the objects that cannot be held; return the number of their waits."""
    waits = 0
    for one in table.objects.values():
        members = [wait.owner_state for wait in one.waits]
        assert all(
            state.session.id in table.sessions.by_id for state in members
        )  # ended-gets-nothing
        if isinstance(one, Latch):
            assert one.left or not members  # count-falls
            assert one.left < one.count or members  # count-falls
        if isinstance(one, Barrier):
            assert 0 < len(members) < one.parties  # pass-together
        if isinstance(one, Pool):
            head = next(iter(one.waits), None)
            assert head is None or head.amount > one.free  # taken-adds-up
            assert one.taken or members  # free-leaves-nothing
        if isinstance(one, Counter):
            assert one.value  # free-leaves-nothing
            assert not members
        waits += len(members)
    marks = sum(entry.mark for entry in table.maps.in_order())
    marks += sum(hold.mark() for hold in key_holds(table))
    assert table.marked == marks + sum(one.mark() for one in table.objects.values())
    return waits


def entries_in(table: LockTable) -> list[Seen]:
    """Return the entries of a table, in order, and check the invariants of `Maps`."""
    maps = table.maps
    entries = maps.in_order()
    assert (maps.count, maps.bytes) == (len(entries), sum(e.size for e in entries))  # counts-add-up
    assert all(e.version <= table.histories.version for e in entries)  # change-is-version
    attached = {t: e for s in table.sessions.by_id.values() for t, e in s.attached.items()}
    for e in entries:  # ends-are-watched
        assert (table.timeouts.items.get(e.ticket) is e) is (e.due_ms is not None)
        assert (attached.pop(e.ticket, None) is e) is (e.session is not None)
    assert not attached
    for name, one in maps.by_name.items():
        assert [e.key for e in one.page("", "")] == sorted(one.entries), name
        assert one.entries
    return [_seen(e) for e in entries]


def _seen(e: Any) -> Seen:
    due = float("inf") if e.due_ms is None else e.due_ms
    return e.name, e.key, e.value, e.version, "" if e.session is None else e.session.id, due


def compare_usage(table: LockTable, model: Model) -> None:
    """Check charges-add-up: the table's counts are those of what it has."""
    payers = {e.payer for e in model.entries} | set(model.objects.payers().values())
    payers |= {key_of(s["name"]) for s in model.sessions}
    payers |= {claim.payer for claim in model.claims}
    assert set(table.accounts.by_name) == payers
    for seen in read_usage(table, ReadUsage()).accounts:
        assert seen.used == model.quotas.used(seen.account), seen.account
        assert seen.limits == model.quotas.limits(seen.account), seen.account


def compare_changes(table: LockTable, model: Model, dice: int) -> None:
    """Read the changes of each election and map after some version, as a watcher does."""
    last = model.history.version
    assert table.histories.version == last
    elections = [(object_name(ELECTION, name), "") for name in "STU"]
    maps = [(object_name(MAP, name), prefix) for name in "MN" for prefix in ("", "xyz"[dice % 3])]
    for lock, prefix in (*elections, *maps):
        for after in {0, last, dice % (last + 1), last + dice % 3}:
            query = ReadChanges(lock=lock, after=after, prefix=prefix)
            read = read_changes(table, query)
            expected = model.history.read(lock, after, model.fences)
            whole = expected is None
            if whole:
                expected = [one for one in model.present(lock) if one.key.startswith(prefix)]
            seen = [(one.key, one.version, one.value, one.fence) for one in read.changes]
            assert seen == [one[1:5] for one in expected or () if one.key.startswith(prefix)]
            assert read.resync is whole
            assert read.version == (last if whole else max(after, last))


def log_seeds(usual: int) -> range:
    """Return the seeds of the logs of one kind: ``FENCELOCK_LOGS`` of them, or ``usual``."""
    return range(int(os.environ.get("FENCELOCK_LOGS", str(usual))))


def log_of(
    steps: Iterable[Dice], composer: type[LogComposer] = LogComposer
) -> list[tuple[int, LogCommand]]:
    model, writer, now = Model(), composer(), 0
    log: list[tuple[int, LogCommand]] = []
    for name in composer.SESSIONS:
        log.append((now, Open(session=name, ttl_ms=5_000)))
        model.apply(*log[-1])
    for step in steps:
        now += delay_of(step)
        log.append((now, writer.command(step, model)))
        model.apply(*log[-1])
    return log


def delay_of(step: Dice) -> int:
    """Return the log time from the command before to that of ``step`` (ms)."""
    return (0, 0, 0, 1, 5, 40, 100, 200)[step[1] % 8]


def compare(
    steps: Iterable[Dice], composer: type[LogComposer] = LogComposer, *, late: bool = False
) -> None:
    """Apply ``steps`` to the table and the model, with a restore now and then.

    If ends may come ``late``, what is due may be left to later log times.

    Raises:
        AssertionError: their outcomes of a command differ, or the judge objects.

    """
    table, model, writer = LockTable(), Model(), composer()
    for opening in (Open(session=name, ttl_ms=5_000) for name in composer.SESSIONS):
        assert [summary_of(o) for o in table.apply(0, opening)] == model.apply(0, opening)
    for step in steps:
        at = table.time_ms + delay_of(step)
        command = writer.command(step, model)
        out = table.apply(at, command)
        assert [summary_of(one) for one in out] == model.apply(at, command), command
        assert entries_in(table) == sorted(e.seen for e in model.entries), command
        compare_usage(table, model)
        judge_state(table, model)
        assert late or (table.due_ms() or at + 1) > table.time_ms
        compare_changes(table, model, sum(step))
        if step[5] % 11 == 0:
            copy = LockTable.restore(table.snapshot())
            assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())
            assert remembered(copy) == remembered(table)
            table = copy
    while table.due_ms() is not None:
        end = table.time_ms + 10_000
        assert [summary_of(one) for one in table.advance(end)] == model.advance(end)
    assert (table.sessions.by_id, table.waits) == ({}, 0)
    lasting = sorted(hold.owner_state.lock for hold in key_holds(table))  # They have no deadline.
    assert lasting == sorted(table.resources) == sorted(claim.lock for claim in model.claims)


def remembered(table: LockTable) -> dict[tuple[str, OwnerKey], tuple[object, ...]]:
    """Return what a repetition of a request of each owner is answered by."""
    return {
        (session.id, key): (one.request, one.releasing, one.outcome, one.hold is None)
        for session in table.sessions.by_id.values()
        for key, one in session.owner_states.items()
    }


def steps_of(seed: int) -> list[Dice]:
    """Return 150 random steps, the same for the same seed."""
    chance = random.Random(seed)
    return [
        (chance.randrange(20), *(chance.randrange(64) for _ in range(5)))  # type: ignore[misc]
        for _ in range(150)
    ]
