"""The operations of scripts: what each asks of the cluster, and its reply.

`shapes.py` recognizes a script, this module carries out its operation. Each is one request, but for
`Operation.OBTAIN_PREFIX` and those about keys with a value each.

A lock of Redisson is a hash: a field for the client and its thread, with the number of its holds.
Here the key's value is that field, and the table counts the holds. Whoever waits for such a lock
subscribes to its channel, which is a place in the queue (`channels.py`). When its turn comes, the
key is reserved for `TURN`: the first client takes it that enters, and has failed at this door
before. Any other one is told to come again in `TURN_MS`, so that it does not overtake the one whose
turn it is, and takes the key if nobody has come until then.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fencelock.actors.api.lock_all import CLAIM_LOCKS_MAX
from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.redis import (
    KEY_TTL_MS_MAX,
    RECEIPT,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeysRead,
    KeyState,
    ReadKeys,
    When,
)
from fencelock.actors.message import MS_PER_S
from fencelock.actors.redis.command import (
    FREE,
    HELD,
    MINE,
    RESERVED_MS,
    SIGNAL,
    SIGNALLED,
    Call,
    ClusterRefusalError,
    CommandError,
    Steps,
    ask,
    change,
    change_one,
    count_changed,
    delete_all,
    expiring,
    integer,
    key_of,
    seconds_of,
)
from fencelock.actors.redis.resp import Failure, Reply
from fencelock.actors.redis.shapes import Operation

TURN = b"redisson_lock__channel"
"""The value of a key that is reserved for subscribers of its channel."""

TURN_MS = 50
"""The time (ms) after which a client comes again that found a key reserved for another."""

RECEIPT_MS_MAX = 600_000
"""The longest time for which the outcome of an unlock is kept (ms)."""

ENTERED_BYTES_MAX = 190
"""Maximum length of the name of a lock of Redisson: names that it derives are longer (bytes)."""

UNDATED_MS = 3_600_000
"""In place of the remaining time of a lock without a deadline, where -1 means that it was acquired:
the client is told earlier by the channel (ms)."""


def scripted(operation: Operation, call: Call) -> Steps:
    """Carry out the operation of a script; the arguments of ``call`` are those of EVAL."""
    count = integer(call.arguments[1])
    if count < 0:
        raise CommandError("ERR Number of keys can't be negative")
    if count > len(call.arguments) - 2:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    several, needed, steps = _SCRIPTS[operation]
    if call.name.endswith("_ro") and steps is not _reading:
        raise CommandError("ERR Write commands are not allowed from read-only scripts.")
    if steps is _resetting_all:
        return steps(operation, call)
    keys = tuple(map(key_of, call.arguments[2 : 2 + count]))
    arguments = call.arguments[2 + count :]
    if operation is Operation.RENEW_EACH:
        needed += count
    if len(arguments) < needed or count < max(several, 1):
        wanted = "1 key or more" if several == 0 else _counted(several, "key")
        raise CommandError(
            f"ERR {operation.name.lower()} has {wanted} and {_counted(needed, 'argument')}, and "
            f"the script was sent with {count} and {len(arguments)}"
        )
    return steps(operation, call._replace(keys=keys[: several or None], arguments=arguments))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _deletion(keys: tuple[str, ...], expected: bytes | None, *, each: bool = False) -> ChangeKeys:
    """Return the request to delete keys that have the expected value, or any if that is None."""
    return ChangeKeys(
        keys=keys,
        action=KeyAction.DELETE,
        states=HELD if expected is None else MINE,
        expected=expected,
        each=each,
    )


_DELETED: dict[Operation, tuple[Reply, Reply, Reply]] = {
    Operation.COMPARE_DELETE: (1, 0, 0),
    Operation.COMPARE_DELETE_OR_MISSING: (1, -1, 0),
    Operation.DELETE_MINE_OR_MISSING: (1, "OK", Failure("ERR ERROR")),
    Operation.UNLOCK_SIGNAL: (0, 1, 1),
}
"""The replies of a script if it deleted the key, if nobody holds it, and if it is another's."""


def _deleting(operation: Operation, call: Call) -> Steps:
    outcome = yield from change_one(_deletion(call.keys[:1], call.arguments[0]))
    done, missing, other = _DELETED[operation]
    if outcome.changed:
        return done
    return missing if outcome.state in (*FREE, KeyState.AWAITED) else other


def _deleting_each(operation: Operation, call: Call) -> Steps:
    changed = yield from change(_deletion(call.keys, call.arguments[0], each=True))
    return sum(one.changed for one in changed.keys)


def _deleting_all(operation: Operation, call: Call) -> Steps:
    changed = yield from change(_deletion(call.keys, call.arguments[0]))
    return "OK" if changed.keys[0].changed else None


def _resetting(operation: Operation, call: Call) -> Steps:
    return count_changed(_deletion(call.keys[:1], None))


def _extending(operation: Operation, call: Call) -> Steps:
    token, number = call.arguments[:2]
    if operation in (Operation.RENEW, Operation.EXTEND_CODES_TIME_FIRST):
        token, number = number, token
    time = integer(number)
    codes = operation in (Operation.EXTEND_CODES, Operation.EXTEND_CODES_TIME_FIRST)
    in_seconds = (Operation.COMPARE_EXPIRE, Operation.COMPARE_EXPIRE_INVERTED)
    ttl_ms = time * MS_PER_S if codes or operation in in_seconds else time
    if ttl_ms > KEY_TTL_MS_MAX:
        raise CommandError("ERR invalid expire time in 'pexpire' command")
    if operation is Operation.ALL_PEXPIRE:
        changed = yield from change(expiring(call.keys, MINE, ttl_ms, expected=token))
        return "OK" if changed.keys[0].changed else None
    adds = operation is Operation.ADD_TTL
    adds = adds or (operation is Operation.ADD_OR_REPLACE_TTL and call.arguments[2] == b"0")
    dated = adds or codes or operation is Operation.ADD_OR_REPLACE_TTL
    if adds and ttl_ms < 0:
        raise CommandError("ERR the additional time of a lock must not be negative")
    request = expiring(
        call.keys[:1],
        MINE,
        ttl_ms,
        expected=token,
        when=When.DATED if dated else When.ANY,
        expiry=Expiry.FURTHER if adds else Expiry.AFTER,
    )
    outcome = yield from change_one(request)
    if operation is Operation.COMPARE_EXPIRE_INVERTED:
        return int(not outcome.changed)
    if codes:
        return 0 if outcome.changed else 2 if outcome.state is KeyState.EQUAL else 1
    return int(outcome.changed)


_SETTING: dict[Operation, tuple[tuple[KeyState, ...], Reply, Reply]] = {
    Operation.COMPARE_SET: (MINE, "OK", b"ERR"),
    Operation.SET_ABSENT: (FREE, "OK", None),
    Operation.SET_ABSENT_COUNT: (FREE, 1, 0),
    Operation.SET_ABSENT_OR_MINE: ((*FREE, *MINE), "OK", None),
    Operation.SET_ABSENT_OR_MINE_OR_ERROR: ((*FREE, *MINE), "OK", Failure("ERR ERROR")),
    Operation.SET_ALLOWED_OR_MINE: ((*FREE, *MINE), "OK", None),
    Operation.PEXPIRE_OR_SET: ((*FREE, *MINE), 1, 0),
    Operation.PEXPIRE_OR_SET_OR_OTHER: ((*FREE, *MINE), 1, -1),
    Operation.OBTAIN_PREFIX: (FREE, "OK", None),
    Operation.ALL_SET_ABSENT: (FREE, 1, 0),
    Operation.ALL_SET: (MINE, 1, 0),
}
"""The states in which a script sets keys, and its replies if it did, and if not."""


def _ttl_ms(argument: bytes, command: str = "pexpire") -> int:
    """Return a time to live (ms), or refuse it as Redis' ``command`` does."""
    ttl_ms = integer(argument)
    if not 0 < ttl_ms <= KEY_TTL_MS_MAX:
        raise CommandError(f"ERR invalid expire time in '{command}' command")
    return ttl_ms


def _setting(operation: Operation, call: Call) -> Steps:
    """Set keys to the first argument, with a deadline."""
    value = call.arguments[0]
    ttl_ms = _ttl_ms(call.arguments[2 if operation is Operation.OBTAIN_PREFIX else 1], "set")
    states, done, failed = _SETTING[operation]
    if operation is Operation.SET_ALLOWED_OR_MINE and call.arguments[2] != b"yes":
        states = MINE
    request = ChangeKeys(
        keys=call.keys,
        action=KeyAction.SET,
        states=states,
        value=value,
        expected=value if KeyState.EQUAL in states else None,
        expiry=Expiry.AFTER,
        ttl_ms=ttl_ms,
    )
    try:
        changed = yield from change(request)
        is_set = changed.keys[0].changed
    except ClusterRefusalError as error:
        if error.refused.reason is not Reason.TIMED_OUT:
            raise
        is_set = False
    if operation is Operation.OBTAIN_PREFIX and not is_set:
        length = integer(call.arguments[1])
        again = replace(request, states=MINE, expected=value[: max(length, 0)], prefix=True)
        changed = yield from change(again)
        is_set = changed.keys[0].changed
    if not is_set and states == FREE and len(call.keys) == 1:
        call.attempts.failed(call.connection, call.keys[0], value)
    if is_set and operation in (Operation.ALL_SET, Operation.ALL_SET_ABSENT):
        return len(call.keys)
    return done if is_set else failed


def _reading(operation: Operation, call: Call) -> Steps:
    answer = yield from ask(ReadKeys(keys=call.keys), KeysRead)
    seen = answer.keys[0] if answer.keys else None
    left_ms = -2 if seen is None else -1 if seen.left_ms is None else seen.left_ms
    if operation is Operation.GET_PTTL:
        return [None if seen is None else seen.value, left_ms]
    mine = [one for one in answer.keys if not one.native and one.value == call.arguments[0]]
    if operation is Operation.ALL_PTTL:
        if len(mine) < len(call.keys):
            return None
        return min((one.left_ms for one in mine if one.left_ms), default=0)
    if operation is Operation.COMPARE_PTTL:
        return max(left_ms, 0) if mine else 0
    if operation is Operation.COMPARE_PTTL_OR_ABSENT:
        return left_ms if mine else -3
    if not mine:
        return Failure("ERR ERROR")
    return seconds_of(left_ms) if left_ms > 0 else left_ms


def _resetting_all(operation: Operation, call: Call) -> Steps:
    prefix = SIGNALLED if operation is Operation.RESET_ALL_SIGNAL else SIGNAL
    if call.visible and not prefix.startswith(call.visible):
        raise CommandError(f"NOPERM the script is about all keys that begin with {prefix}")
    return delete_all(prefix)


def _entering(operation: Operation, call: Call) -> Steps:
    """Let a client hold a key, once more if it does already."""
    key, ttl_ms, field = call.keys[0], _ttl_ms(call.arguments[0]), call.arguments[1]
    if len(key.encode()) > ENTERED_BYTES_MAX:
        raise CommandError(
            f"ERR a lock of Redisson has a name of at most {ENTERED_BYTES_MAX} bytes here"
        )
    if "{" in key and "{" not in key[1:] and key.endswith("}"):
        raise CommandError(
            f"ERR {key!a} has the same channel as {key[1:-1]!a} in Redisson: choose another name"
        )
    may_take = call.attempts.may_take(key, field)
    request = ChangeKeys(
        keys=(key,),
        action=KeyAction.SET,
        states=(*FREE, *MINE) if may_take else (KeyState.FREE, *MINE),
        value=field,
        expected=field,
        counts=True,
        expiry=Expiry.AFTER,
        ttl_ms=ttl_ms,
        turn=TURN,
    )
    left_ms: int | None = None
    try:
        outcome = yield from change_one(request)
        reserved = outcome.state is KeyState.RESERVED and not outcome.changed
        if reserved and (outcome.left_ms or 0) <= RESERVED_MS - TURN_MS:
            outcome = yield from change_one(replace(request, states=(*FREE, *MINE)))
    except ClusterRefusalError as error:
        if error.refused.reason is not Reason.TIMED_OUT:
            raise _uncounted(error) from None
    else:
        if outcome.changed:
            call.attempts.succeeded(key, field)
            call.taken(outcome.fence)
            return [-1, outcome.fence] if operation is Operation.ENTER_TOKEN else None
        left_ms = outcome.left_ms
        if outcome.state is KeyState.RESERVED:
            left_ms = min(left_ms or TURN_MS, TURN_MS)
    call.attempts.failed(call.connection, key, field)
    if operation is Operation.ENTER_TOKEN:
        return [UNDATED_MS if left_ms is None else left_ms, -1]
    return -1 if left_ms is None else left_ms


def _uncounted(error: ClusterRefusalError) -> Exception:
    """Return the refusal of a request that counts a hold.

    Redisson repeats what is refused with CLUSTERDOWN, and it is perhaps counted already.
    """
    if error.refused.reason is Reason.UNAVAILABLE:
        return CommandError(f"ERR {error}")
    return error


def _leaving(operation: Operation, call: Call) -> Steps:
    ttl_ms, once = _ttl_ms(call.arguments[1]), operation is Operation.LEAVE_ONCE
    request = ChangeKeys(
        keys=call.keys[:1],
        action=KeyAction.DELETE,
        states=MINE,
        expected=call.arguments[2],
        counts=True,
        expiry=Expiry.AFTER,
        ttl_ms=ttl_ms,
    )
    if once:
        if not call.keys[2].startswith(RECEIPT):
            raise CommandError(f"ERR the third key of Redisson's unlock begins with {RECEIPT}")
        receipt_ms = min(max(1, integer(call.arguments[4])), RECEIPT_MS_MAX)
        request = replace(request, receipt=call.keys[2], receipt_ms=receipt_ms)
    try:
        changed = yield from change(request)
    except ClusterRefusalError as error:
        raise error if once else _uncounted(error) from None
    if changed.value is not None:  # Not a number if somebody else has set that key.
        return int(changed.value) if changed.value in (b"0", b"1") else None
    (outcome,) = changed.keys
    if outcome.changed:
        return int(not outcome.times)
    free = outcome.state in (*FREE, KeyState.AWAITED)
    return 1 if free and operation is Operation.LEAVE_OR_MISSING else None


def _leaving_by_force(operation: Operation, call: Call) -> Steps:
    """Delete a key that is not reserved for whose turn it is."""
    request = ChangeKeys(
        keys=call.keys[:1], action=KeyAction.DELETE, states=(KeyState.OTHER,), expected=TURN
    )
    return count_changed(request)


def _renewing_each(operation: Operation, call: Call) -> Steps:
    ttl_ms = _ttl_ms(call.arguments[0])
    by_value: dict[bytes, list[str]] = {}
    for key, value in zip(call.keys, call.arguments[1:], strict=False):
        by_value.setdefault(value, []).append(key)
    renewed: set[tuple[str, bytes]] = set()
    for value, names in by_value.items():
        distinct = list(dict.fromkeys(names))
        for at in range(0, len(distinct), CLAIM_LOCKS_MAX):
            some = tuple(distinct[at : at + CLAIM_LOCKS_MAX])
            request = replace(expiring(some, MINE, ttl_ms, expected=value), each=True)
            changed = yield from change(request)
            pairs = zip(some, changed.keys, strict=True)
            renewed |= {(name, value) for name, one in pairs if one.changed}
    return [int(pair in renewed) for pair in zip(call.keys, call.arguments[1:], strict=False)]


_SCRIPTS: dict[
    Operation,
    tuple[int, int, Callable[[Operation, Call], Steps]],
] = {
    Operation.COMPARE_DELETE: (1, 1, _deleting),
    Operation.COMPARE_DELETE_OR_MISSING: (1, 1, _deleting),
    Operation.DELETE_MINE_OR_MISSING: (1, 1, _deleting),
    Operation.COMPARE_PEXPIRE: (1, 2, _extending),
    Operation.COMPARE_EXPIRE: (1, 2, _extending),
    Operation.COMPARE_EXPIRE_INVERTED: (1, 2, _extending),
    Operation.ADD_OR_REPLACE_TTL: (1, 3, _extending),
    Operation.ADD_TTL: (1, 2, _extending),
    Operation.EXTEND_CODES: (1, 2, _extending),
    Operation.EXTEND_CODES_TIME_FIRST: (1, 2, _extending),
    Operation.COMPARE_PTTL: (1, 1, _reading),
    Operation.COMPARE_PTTL_OR_ABSENT: (1, 1, _reading),
    Operation.COMPARE_TTL: (1, 1, _reading),
    Operation.GET_PTTL: (1, 0, _reading),
    Operation.COMPARE_SET: (1, 2, _setting),
    Operation.SET_ABSENT: (1, 2, _setting),
    Operation.SET_ABSENT_COUNT: (1, 2, _setting),
    Operation.SET_ABSENT_OR_MINE: (1, 2, _setting),
    Operation.SET_ABSENT_OR_MINE_OR_ERROR: (1, 2, _setting),
    Operation.SET_ALLOWED_OR_MINE: (1, 3, _setting),
    Operation.PEXPIRE_OR_SET: (1, 2, _setting),
    Operation.PEXPIRE_OR_SET_OR_OTHER: (1, 2, _setting),
    Operation.OBTAIN_PREFIX: (0, 3, _setting),
    Operation.ALL_SET_ABSENT: (0, 2, _setting),
    Operation.ALL_SET: (0, 2, _setting),
    Operation.EACH_DELETE: (0, 1, _deleting_each),
    Operation.ALL_DELETE: (0, 1, _deleting_all),
    Operation.ALL_PEXPIRE: (0, 2, _extending),
    Operation.ALL_PTTL: (0, 1, _reading),
    Operation.UNLOCK_SIGNAL: (2, 1, _deleting),
    Operation.RESET_SIGNAL: (2, 0, _resetting),
    Operation.RESET_ALL_SIGNAL: (0, 0, _resetting_all),
    Operation.DELETE_SIGNALS: (0, 0, _resetting_all),
    Operation.ENTER: (1, 2, _entering),
    Operation.ENTER_TOKEN: (2, 2, _entering),
    Operation.LEAVE: (2, 3, _leaving),
    Operation.LEAVE_OR_MISSING: (2, 3, _leaving),
    Operation.LEAVE_ONCE: (3, 5, _leaving),
    Operation.LEAVE_BY_FORCE: (2, 1, _leaving_by_force),
    Operation.RENEW: (1, 2, _extending),
    Operation.RENEW_EACH: (0, 1, _renewing_each),
}
"""The number of keys and of arguments of each script, at least, and its steps; with 0 keys, all are
used."""
