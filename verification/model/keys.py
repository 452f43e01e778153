"""Keys that are held through Redis doors, and detached locks, in the simple model."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.redis import (
    KEY_TTL_MS_MAX,
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyOutcome,
    KeysRequest,
    KeyState,
    When,
)
from fencelock.verification.model import maps

if TYPE_CHECKING:
    from fencelock.verification.model.table import Model, ModelClaim

NEVER = float("inf")


class ModelKeys:
    """The holds of a model that belong to no client: claims that have a ``door``."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.blocked = ""
        """The name of a key that is being taken by force."""

    def update(self, c: KeysRequest) -> None:
        model = self.model
        who = c.session, c.owner, c.request
        if isinstance(c, AwaitKey):
            taken = [claim for claim in model.claims if c.keys[0] in claim.names]
            if not taken and self._has_room(c, 1):
                ends = model.now + c.ttl_ms + 1 if c.ttl_ms else NEVER
                granted = self.hold(c.keys[0], (c.value, c.account, True, None), ends)
                self._reply(c, (self._outcome(KeyState.FREE, granted),))
            elif taken and c.wait_ms == 0:
                model.deny(*who, c.lock, Reason.TIMED_OUT)
            elif taken:
                self._wait(c, c.ttl_ms or None, reserved=True)
            return
        assert isinstance(c, ChangeKeys)
        states = [self._state(c, name) for name in c.keys]
        receipt = model.holder(c.receipt) if c.receipt else None
        if receipt is not None and receipt.door is not None:
            outcome = self._outcome(states[0], model.holder(c.keys[0]), c.keys[0])
            self._reply(c, (outcome._replace(changed=False),), receipt.door[0])
            return
        fits = [self._fits(c, *pair) for pair in zip(c.keys, states, strict=True)]
        if not c.each and not all(fits):
            fits = [False for _ in fits]
            sets = c.action is KeyAction.SET and KeyState.FREE in c.states
            if sets and not set(states) - {KeyState.FREE, KeyState.NATIVE}:
                claim = model.waiting(c, locks=c.keys)
                if model.comes_back(claim):
                    dated = c.expiry in (Expiry.AFTER, Expiry.FURTHER)
                    self._wait(c, c.ttl_ms if dated else None, reserved=False)
                    return
        kept = (KeyState.EQUAL, KeyState.RESERVED)
        fresh = [s for s, fit in zip(states, fits, strict=True) if fit and s not in kept]
        if c.action is KeyAction.SET and fresh and not self._has_room(c, len(fresh)):
            return
        holder = model.holder(c.keys[0])
        before = self._value(holder) if c.returns else None
        outcomes: list[KeyOutcome] = []
        first = len(model.out)
        for name, state, fit in zip(c.keys, states, fits, strict=True):
            hold = self._change(c, name, state) if fit else model.holder(name)
            outcome = self._outcome(state, hold, name)
            outcomes.append(outcome._replace(changed=fit))
        self._reply(c, tuple(outcomes), before)
        if c.action is KeyAction.DELETE:
            model.out.insert(first, model.out.pop())
        free = not any(c.receipt in claim.names for claim in model.claims)
        if c.receipt and fits[0] and free and model.quotas.allows(c.account, "claims", 1):
            ended = b"0" if outcomes[0].times else b"1"
            door = ended, c.account, False, None
            self.hold(c.receipt, door, model.now + c.receipt_ms + 1)

    def detach(self, c: Detach, mine: ModelClaim) -> None:
        model, who = self.model, (c.session, c.owner, c.request)
        if len(mine.acquisitions) > 1:
            model.deny(*who, c.lock, Reason.INVALID)
            return
        model.note(*who, c.lock, ("Released", c.lock, *who, 0))
        model.drop(mine)
        ends = model.now + c.ttl_ms + 1
        held = self.hold(c.lock, (c.digest, mine.payer, False, None), ends)
        held.detached_by = c.owner

    def attach(self, c: Attach) -> None:
        model, who, held = self.model, (c.session, c.owner, c.request), self.model.holder(c.lock)
        right = sha256(c.secret).digest()
        if held is None or held.detached_by is None or held.door is None or held.door[0] != right:
            model.deny(*who, c.lock, Reason.NOT_HELD)
            return
        model.claims.remove(held)
        if not model.quotas.allows(maps.key_of(c.session), "claims"):
            model.claims.append(held)
            model.deny(*who, c.lock, Reason.OVERLOADED)
            return
        claim = model.made(c.session, c.owner, c.lock, c.request)
        claim.hold_ms, claim.grace_ms = c.hold_ms, c.grace_ms or 5_000 * (c.hold_ms > 0)
        model.claims.append(claim)
        model.grant(claim)

    def hold(self, name: str, door: tuple[bytes, str, bool, None], ends: float) -> ModelClaim:
        """Let a free key be held."""
        model = self.model
        model.fences += 1
        claim = model.made("no-client", "", name, 0)
        claim.door = door
        claim.fence, claim.acquisitions = model.fences, [0]
        claim.set_end(ends)
        model.claims.append(claim)
        model.out.append(("Granted", name, claim.fence, "no-client", "", 0, 1, 0, 0))
        return claim

    def grant(self, claim: ModelClaim) -> None:
        """Let the keys for which a door waits be held."""
        model = self.model
        c = claim.command
        assert isinstance(c, ChangeKeys | AwaitKey)
        assert claim.door is not None
        _, _, reserved, ttl_ms = claim.door
        door = c.value, c.account, reserved, None
        model.claims.remove(claim)
        ends = NEVER if ttl_ms is None else model.now + ttl_ms + 1
        holds = [self.hold(name, door, ends) for name in claim.names]
        self._reply(c, tuple(self._outcome(KeyState.FREE, hold) for hold in holds))

    def _reply(
        self, c: KeysRequest, keys: tuple[KeyOutcome, ...], value: bytes | None = None
    ) -> None:
        who = c.session, c.owner, c.request
        self.model.note(*who, c.lock, ("KeysChanged", c.lock, keys, value, *who))

    def _has_room(self, c: KeysRequest, count: int) -> bool:
        if self.model.quotas.allows(c.account, "claims", count):
            return True
        self.model.deny(c.session, c.owner, c.request, c.lock, Reason.OVERLOADED)
        return False

    def _wait(self, c: KeysRequest, ttl_ms: int | None, *, reserved: bool) -> None:
        model = self.model
        if not self._has_room(c, len(c.keys)):
            return
        claim = model.waiting(c, locks=c.keys)
        claim.door, claim.command = (c.value, c.account, reserved, ttl_ms), c
        model.enqueue(claim)

    def _state(self, c: ChangeKeys, name: str) -> KeyState:
        hold = self.model.holder(name)
        if hold is None:
            waits = any(name in claim.names for claim in self.model.claims)
            return KeyState.AWAITED if waits else KeyState.FREE
        if hold.door is None or hold.detached_by is not None:
            return KeyState.NATIVE
        value, _, reserved, _ = hold.door
        length = len(c.expected or b"") if c.prefix else len(value)
        if c.expected is not None and value[:length] == c.expected:
            return KeyState.EQUAL
        turn = c.value if c.turn is None else c.turn
        if c.action is KeyAction.SET and (value, reserved) == (turn, True):
            return KeyState.RESERVED
        return KeyState.OTHER

    def _ends(self, c: ChangeKeys, name: str) -> float:
        hold = self.model.holder(name)
        now = self.model.now
        ends = hold.ends if hold is not None and hold.door is not None else NEVER
        base = now + 1 if ends == NEVER else ends
        further = min(now + KEY_TTL_MS_MAX, base + c.ttl_ms)
        after = {Expiry.KEEP: ends, Expiry.NEVER: NEVER, Expiry.FURTHER: further}
        return after.get(c.expiry, now + c.ttl_ms + 1)

    def _fits(self, c: ChangeKeys, name: str, state: KeyState) -> bool:
        hold = self.model.holder(name)
        if state not in c.states or hold is None:
            return state in c.states
        then = self._ends(c, name)
        meets = {
            When.DATED: hold.ends < NEVER,
            When.DATELESS: hold.ends == NEVER,
            When.LATER: then > hold.ends,
            When.EARLIER: then < hold.ends,
        }
        return meets.get(c.when, True)

    def _change(self, c: ChangeKeys, name: str, state: KeyState) -> ModelClaim | None:
        model, hold, ends = self.model, self.model.holder(name), self._ends(c, name)
        if c.action is KeyAction.SET and state not in (KeyState.EQUAL, KeyState.RESERVED):
            if hold is not None:
                self._force(c, name, hold)
            return self.hold(name, (c.value, c.account, False, None), ends)
        assert hold is not None
        assert hold.door is not None
        if c.action is KeyAction.DELETE and not (c.counts and len(hold.acquisitions) > 1):
            model.claims.remove(hold)
            model.serve(hold)
            return None
        if c.action is KeyAction.SET:
            hold.door = (c.value, hold.door[1], False, None)
        if c.counts and (c.action, state) == (KeyAction.SET, KeyState.EQUAL):
            hold.acquisitions.append(0)
        if c.counts and c.action is KeyAction.DELETE:
            hold.acquisitions.pop()
        hold.set_end(ends)
        return hold

    def _force(self, c: ChangeKeys, name: str, hold: ModelClaim) -> None:
        model, fence = self.model, hold.fence + hold.names.index(name)
        by = f"{c.label or 'a Redis door'} ({c.session})"
        holder = hold.shown, len(hold.acquisitions)
        evicted = ("Evicted", name, fence, holder, c.session, c.request, by, model.now)
        model.forced = [f for f in model.forced if (f[6], f[5]) != (by, c.request)]
        model.forced.append(evicted)
        model.out.append(evicted)
        self.blocked = name
        model.take(hold)
        self.blocked = ""

    def _value(self, hold: ModelClaim | None) -> bytes | None:
        if hold is None or (hold.door is not None and hold.detached_by is None):
            return None if hold is None or hold.door is None else hold.door[0]
        return f"{hold.session}/{hold.shown}".encode()

    def _outcome(self, state: KeyState, hold: ModelClaim | None, name: str = "") -> KeyOutcome:
        """Return what has become of a key that was changed."""
        if hold is None:
            return KeyOutcome(state, True, 0, None, 0)
        fence = hold.fence + (hold.names.index(name) if name else 0)
        left = None if hold.ends == NEVER else int(hold.ends) - self.model.now
        if left is not None:  # It may be overdue.
            left = max(0, left - (hold.door is not None))
        return KeyOutcome(state, True, fence, left, len(hold.acquisitions))
