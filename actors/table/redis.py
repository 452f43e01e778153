"""The rules of requests of Redis doors about keys; a key is a lock.

A request decides first which keys it changes (`_change_of`), and then changes them. What it needs
is all there: a hold through a door is a `KeyHold` in a resource of capacity 1, and a wait of a door
stands in the same queue as the claims of native clients. So both exclude each other, and come in
one order.

Invariants:
    value-proves    A hold through a door ends, or changes, only by a request that expects its
        value or accepts any; by force; by its deadline; or by an operator.
    counts-exact    A key with counted holds ends with as many removals as there were additions. A
        removal that is repeated with its receipt changes nothing.
    same-hold       A SET in the state EQUAL or RESERVED keeps the fence; any other SET makes a new
        hold, so its fence is above all others.
"""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.name import utf8_size, without_secret
from fencelock.actors.api.redis import (
    KEY_TTL_MS_MAX,
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyList,
    KeyOutcome,
    KeysChanged,
    KeySeen,
    KeysRead,
    KeysRequest,
    KeyState,
    ListKeys,
    ReadKeys,
    When,
)
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table.account import CLAIMS_MAX
from fencelock.actors.table.deadline import ROUNDING_MS
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.lock_rules import (
    begin_wait,
    conclude,
    deny,
    deny_obstructed,
    has_room,
    record,
)
from fencelock.actors.table.report import LIST_PAGE_BYTES_MAX, page_of
from fencelock.actors.table.resource import ClaimDetails, TableHold
from fencelock.actors.table.retained import may_come_back
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import KeyRecord, Result


def change_keys(
    table: TableState, owner_state: OwnerState, command: ChangeKeys, out: list[Result]
) -> None:
    """Change those of the keys that are in the right state, each or all."""
    receipt = _hold_of(table, command.receipt) if command.receipt else None
    if isinstance(receipt, KeyHold):
        outcome = _unchanged(table, command.keys[0], _state_of(table, command.keys[0], command))
        reply = KeysChanged(**command.fields(), keys=(outcome,), value=receipt.key.value)
        return conclude(table, owner_state, reply, out)
    states = [_state_of(table, name, command) for name in command.keys]
    pairs = [*zip(command.keys, states, strict=True)]
    fits = [_fits(table, name, state, command) for name, state in pairs]
    if not command.each and not all(fits):
        if _may_come_back(table, owner_state, command, states):
            return _begin_wait(table, owner_state, command, out)
        fits = [False] * len(fits)
    new = sum(fit and _is_new(command, state) for state, fit in zip(states, fits, strict=True))
    if new and not _has_key_room(table, owner_state, command, new, out):
        return None
    before = _value_of(table, command.keys[0]) if command.returns else None
    served: list[Result] = []
    changes = served if command.action is KeyAction.DELETE else out  # Its reply comes first.
    outcomes = [
        _change(table, owner_state, name, state, command, changes)
        if fit
        else _unchanged(table, name, state)
        for (name, state), fit in zip(pairs, fits, strict=True)
    ]
    reply = KeysChanged(**command.fields(), keys=tuple(outcomes), value=before)
    conclude(table, owner_state, reply, out)
    out += served
    if command.receipt and outcomes[0].changed:
        _remember(table, command, outcomes[0].times == 0, out)
    return None


def _remember(table: TableState, command: ChangeKeys, ended: bool, out: list[Result]) -> None:
    """Let the receipt of a request have its outcome, if there is room for it."""
    if not _why_full(table, command, 1) and table.admits(command.receipt, 1):
        key = KeyRecord(b"%d" % ended, command.account, False, None)
        deadline_ms = _after(table, command.receipt_ms)
        table.grant_keys((command.receipt,), ClaimDetails(command.label, key=key), deadline_ms, out)


def await_key(
    table: TableState, owner_state: OwnerState, command: AwaitKey, out: list[Result]
) -> None:
    """Let a key be held if it is free, or queue for it."""
    (name,) = command.keys
    if table.admits(name, 1):
        if _has_key_room(table, owner_state, command, 1, out):
            hold = _hold(table, name, command, _after(table, command.ttl_ms), out, reserved=True)
            keys = (hold.outcome(KeyState.FREE, changed=True),)
            conclude(table, owner_state, KeysChanged(**command.fields(), keys=keys), out)
    elif command.wait_ms == 0:
        deny_obstructed(table, owner_state, table.state_of(name), out)
    else:
        _begin_wait(table, owner_state, command, out)


def _begin_wait(
    table: TableState, owner_state: OwnerState, command: ChangeKeys | AwaitKey, out: list[Result]
) -> None:
    """Append a request, which may set its keys once they are free, to their queues."""
    dated = command.ttl_ms > 0
    if isinstance(command, ChangeKeys):
        dated = command.expiry in {Expiry.AFTER, Expiry.FURTHER}
    reserved = isinstance(command, AwaitKey)
    ttl_ms = command.ttl_ms if dated else None
    if has_room(table, owner_state, out, command.keys, command.account):
        key = KeyRecord(command.value, command.account, reserved, ttl_ms)
        details = ClaimDetails(command.label, locks=command.keys, key=key)
        begin_wait(table, owner_state, command, out, details, capacity=1)


def _may_come_back(
    table: TableState, owner_state: OwnerState, command: ChangeKeys, states: list[KeyState]
) -> bool:
    """Return whether only locks that clients retain keep a SET from its keys, which are free else.

    `may_come_back` knows what a wait for them would wait for.
    """
    sets = command.action is KeyAction.SET and KeyState.FREE in command.states
    if not table.retained or not sets or not {KeyState.FREE, KeyState.NATIVE}.issuperset(states):
        return False
    return may_come_back(table, owner_state, ClaimDetails(locks=command.keys), 1)


def _state_of(table: TableState, name: str, command: ChangeKeys) -> KeyState:
    resource = table.resources.get(name)
    if resource is None:
        return KeyState.FREE
    hold, expected = next(iter(resource.holds), None), command.expected
    if hold is None:
        return KeyState.AWAITED
    if not isinstance(hold, KeyHold) or hold.key.detached_by is not None:
        return KeyState.NATIVE
    value = hold.key.value
    if expected is not None and (
        value.startswith(expected) if command.prefix else value == expected
    ):
        return KeyState.EQUAL
    turn = command.value if command.turn is None else command.turn
    if hold.key.reserved and value == turn and command.action is KeyAction.SET:
        return KeyState.RESERVED
    return KeyState.OTHER


def _hold_of(table: TableState, name: str) -> TableHold | None:
    resource = table.resources.get(name)
    return None if resource is None else next(iter(resource.holds), None)


def _fits(table: TableState, name: str, state: KeyState, command: ChangeKeys) -> bool:
    if state not in command.states:
        return False
    hold = _hold_of(table, name)
    if hold is None:
        return True
    now, then = hold.ends_at_ms, _deadline_of(table, hold, command)
    match command.when:
        case When.ANY:
            return True
        case When.DATED:
            return now is not None
        case When.DATELESS:
            return now is None
        case When.LATER:
            return now is not None and (then is None or then > now)
        case When.EARLIER:
            return then is not None and (now is None or then < now)


def _after(table: TableState, ttl_ms: int) -> int | None:
    return table.time_ms + ttl_ms + ROUNDING_MS if ttl_ms else None


def _deadline_of(table: TableState, hold: TableHold | None, command: ChangeKeys) -> int | None:
    """Return the deadline that a key has after ``command``, which is held by ``hold`` if at all."""
    now = hold.ends_at_ms if isinstance(hold, KeyHold) else None
    match command.expiry:
        case Expiry.KEEP:
            return now
        case Expiry.NEVER:
            return None
        case Expiry.AFTER:
            return table.time_ms + command.ttl_ms + ROUNDING_MS
        case Expiry.FURTHER:
            latest = table.time_ms + KEY_TTL_MS_MAX
            return min(latest, (now or table.time_ms + ROUNDING_MS) + command.ttl_ms)


def _is_new(command: ChangeKeys, state: KeyState) -> bool:
    """Return whether a change of a key in that state makes a new hold."""
    kept = state in {KeyState.EQUAL, KeyState.RESERVED}
    return command.action is KeyAction.SET and not kept


def _has_key_room(
    table: TableState,
    owner_state: OwnerState,
    command: KeysRequest,
    wanted: int,
    out: list[Result],
) -> bool:
    """Return whether ``wanted`` more keys may be held; deny the request if not."""
    why = _why_full(table, command, wanted)
    if why is None:
        return True
    deny(table, owner_state, Reason.OVERLOADED, why, out)
    return False


def _why_full(table: TableState, command: KeysRequest, wanted: int) -> Why | None:
    over = table.accounts.why_over(command.account, "claims", wanted)
    if over is None and table.claims + wanted > CLAIMS_MAX:
        return Why(Cause.CLAIMS, (table.claims, CLAIMS_MAX))
    return over


def _change(
    table: TableState,
    owner_state: OwnerState,
    name: str,
    state: KeyState,
    command: ChangeKeys,
    out: list[Result],
) -> KeyOutcome:
    hold = _hold_of(table, name)
    deadline_ms = _deadline_of(table, hold, command)
    if _is_new(command, state):
        if hold is not None:
            _force(table, name, hold, command, out)
        new = _hold(table, name, command, deadline_ms, out, reserved=False)
        return new.outcome(state, changed=True)
    assert isinstance(hold, KeyHold)
    if command.action is KeyAction.DELETE and not (command.counts and hold.count > 1):
        table.end_hold(hold, out)
        return KeyOutcome(state, True, 0, None, 0)
    with table.altering(hold):
        if command.action is KeyAction.SET:
            key = hold.key._replace(value=command.value, reserved=False)
            hold.details = replace(hold.details, label=command.label, key=key)
        if command.counts and command.action is KeyAction.DELETE:
            hold.count -= 1
        elif command.counts and command.action is KeyAction.SET and state is KeyState.EQUAL:
            hold.count += 1
    hold.move(table, deadline_ms)
    return hold.outcome(state, changed=True)


def _hold(
    table: TableState,
    name: str,
    command: ChangeKeys | AwaitKey,
    deadline_ms: int | None,
    out: list[Result],
    *,
    reserved: bool,
) -> KeyHold:
    key = KeyRecord(command.value, command.account, reserved, None)
    details = ClaimDetails(command.label, key=key)
    return table.grant_keys((name,), details, deadline_ms, out)[0]


def _force(
    table: TableState, name: str, hold: TableHold, command: ChangeKeys, out: list[Result]
) -> None:
    """Take a key by force for a request, which will hold it before anybody in the queue."""
    fence = hold.fence_of(name)
    by = f"{command.label or 'a Redis door'} ({without_secret(command.session)})"
    out.append(record(table, command, by, name, fence, hold.seen(fence, table.time_ms)))
    with table.resources[name].kept():
        table.take(hold, Why(Cause.TAKEN, texts=(by,)), out)


def _unchanged(table: TableState, name: str, state: KeyState) -> KeyOutcome:
    hold = _hold_of(table, name)
    if isinstance(hold, KeyHold):
        return hold.outcome(state, changed=False)
    if hold is None:
        return KeyOutcome(state, False, 0, None, 0)
    seen_now = _see(table, name, hold)
    return KeyOutcome(state, False, seen_now.fence, seen_now.left_ms, seen_now.times)


def _value_of(table: TableState, name: str) -> bytes | None:
    hold = _hold_of(table, name)
    return None if hold is None else _see(table, name, hold).value


def _see(table: TableState, name: str, hold: TableHold) -> KeySeen:
    if isinstance(hold, KeyHold) and hold.key.detached_by is None:
        value, native, left_ms = hold.key.value, False, hold.left_ms()
    else:
        session = without_secret(hold.owner_state.session.id)
        value, native = f"{session}/{hold.holder}".encode(), True
        left_ms = None if hold.ends_at_ms is None else max(0, hold.ends_at_ms - table.time_ms)
    held_ms = table.time_ms - hold.since_ms
    return KeySeen(name, value, native, hold.fence_of(name), hold.count, left_ms, held_ms)


def read_keys(table: TableState, query: ReadKeys) -> KeysRead:
    holds = ((name, _hold_of(table, name)) for name in query.keys)
    keys = tuple(_see(table, name, hold) for name, hold in holds if hold is not None)
    return KeysRead(keys=keys, session=query.session, request=query.request)


def list_keys(table: TableState, query: ListKeys) -> KeyList:
    names = table.key_session.names.within(query.prefix, query.after)
    keys, more = page_of(names, LIST_PAGE_BYTES_MAX, utf8_size, query.most)
    total = len(table.key_session.owner_states)
    return KeyList(keys=keys, more=more, total=total, session=query.session, request=query.request)
