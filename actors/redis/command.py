"""The commands of Redis about locks: what each asks of the cluster, and its reply.

A command is a generator. It yields requests of `fencelock.actors.api.redis`, is sent the answers,
and returns its reply in the words of Redis. A refusal is raised in it as `ClusterRefusalError`; one
that it does not handle becomes the reply. Commands about connections are in `door.py`.

A client that uses Redis for more than locks must notice it at once, so nothing is emulated in part:
a command or an option that is not here is refused. What is refused raises a `CommandError`, which
becomes the reply.

Source: https://redis.io/docs/latest/commands/, and Redis 7 for the texts of errors.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from fencelock.actors.api.lock_all import CLAIM_LOCKS_MAX
from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.name import LIST_PAGE_MAX, LOCK_NAME_BYTES_MAX
from fencelock.actors.api.redis import (
    KEY_TTL_MS_MAX,
    TOKEN,
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyList,
    KeyOutcome,
    KeysChanged,
    KeySeen,
    KeysRead,
    KeyState,
    ListKeys,
    ReadKeys,
    When,
    lock_in,
)
from fencelock.actors.message import MS_PER_S
from fencelock.actors.redis.resp import Nothing, Reply

KEYS_LISTED_MAX = 10_000
"""The most names in one reply to KEYS."""

COMPARED_MAX = 5_000
"""Names on a page, times the bytes of the pattern with which they are compared: 5 ms at most."""

REMEMBERED_VALUES_MAX = 10_000
"""Limit of the values that a door remembers of clients that may wait."""

CURSORS_MAX = 1_024
"""Limit of the scans whose places a door remembers; it forgets the oldest."""

SIGNAL, SIGNALLED = "lock-signal:", "lock:"
"""The beginnings of python-redis-lock's names: of the list on which it waits, and of the lock."""

RESERVED_MS = 2_000
"""Time for which a lock is kept for the client whose turn it is (ms)."""

FREE = KeyState.FREE, KeyState.RESERVED
HELD = KeyState.EQUAL, KeyState.OTHER
MINE = (KeyState.EQUAL,)

Asked = ChangeKeys | AwaitKey | ReadKeys | ListKeys
Answer = KeysChanged | KeysRead | KeyList
Steps = Generator[Asked, Answer, Reply]
T = TypeVar("T")


class CommandError(Exception):
    """A command is refused with this text, which begins with a code such as ``ERR``."""


class ClusterRefusalError(Exception):
    """The cluster refused a request of a command."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


class Attempts:
    """The values with which clients last failed to acquire keys: with these they wait for them.

    Those who have failed before a turn came may take it. So who has just come does not overtake.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._failed: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        """The time at which each value first failed."""
        self._turns: OrderedDict[str, int] = OrderedDict()
        """The time of the last turn at each key at this door."""
        self._now = 0
        """A number that rises."""

    def failed(self, connection: int, key: str, value: bytes) -> None:
        """Note a value; another connection of the client's pool may be used to wait."""
        for place in ((connection, key), (0, key)):
            self._values[place] = value
            self._values.move_to_end(place)
        self._now += 1
        self._failed.setdefault((value, key), self._now)
        self._bound()

    def turn_came(self, key: str) -> None:
        """Note that a client of this door was told that it is its turn at a key."""
        self._now += 1
        self._turns[key] = self._now
        self._turns.move_to_end(key)
        self._bound()

    def _bound(self) -> None:
        for noted in (self._values, self._failed, self._turns):
            while len(noted) > REMEMBERED_VALUES_MAX:
                noted.popitem(last=False)

    def value_of(self, connection: int, key: str) -> bytes | None:
        """Return the last value of this connection, or else of any."""
        own = self._values.get((connection, key))
        return self._values.get((0, key)) if own is None else own

    def may_take(self, key: str, value: bytes) -> bool:
        """Return whether a value failed before the last turn at a key, and has not succeeded."""
        failed = self._failed.get((value, key))
        return failed is not None and failed < self._turns.get(key, 0)

    def succeeded(self, key: str, value: bytes) -> None:
        self._failed.pop((value, key), None)


class Call(NamedTuple):
    """A command, and what the door knows about it."""

    name: str
    """In lower case."""
    arguments: list[bytes]
    """The arguments after the name."""
    date_ms: int
    """The date (ms since 1970)."""
    visible: tuple[str, ...]
    """The beginnings of the names that the client may use; empty for no limit."""
    connection: int
    """Its number, 1 or more."""
    attempts: Attempts
    taken: Callable[[int], None]
    """Notes that the client has come whose turn at a key had a fence."""
    cursors: dict[int, str]
    """The place of each scan that has not ended, by its number."""
    keys: tuple[str, ...] = ()
    """Of a script; then ``arguments`` are those behind its keys."""

    def key(self, at: int = 0) -> str:
        return key_of(self.arguments[at])


def key_of(argument: bytes) -> str:
    """Return the name of a key, which must be UTF-8."""
    try:
        return argument.decode()
    except UnicodeDecodeError:
        raise CommandError(
            f"ERR a key is the name of a lock, which must be UTF-8: {shown(argument)}"
        ) from None


def shown(argument: bytes) -> str:
    return ascii(argument[:80])[1:]


def keys_of(arguments: list[bytes]) -> tuple[str, ...]:
    """Return the names of several keys, each once; at most `CLAIM_LOCKS_MAX`."""
    keys = tuple(dict.fromkeys(map(key_of, arguments)))
    if len(keys) > CLAIM_LOCKS_MAX:
        raise CommandError(
            f"ERR {len(keys)} keys, at most {CLAIM_LOCKS_MAX} are allowed in one command"
        )
    return keys


_INTEGER = re.compile(rb"0|-?[1-9]\d{0,18}")
_FLOAT = re.compile(rb"-?\d{1,18}(\.\d{0,18})?")
_INT64_MAX = (1 << 63) - 1
_NOT_INTEGER = "ERR value is not an integer or out of range"


def integer(argument: bytes) -> int:
    """Return a number of 64 bits."""
    if _INTEGER.fullmatch(argument) is None:
        raise CommandError(_NOT_INTEGER)
    number = int(argument)
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise CommandError(_NOT_INTEGER)
    return number


def _ttl_of(call: Call, number: int, unit: str) -> int:
    """Return the time until a deadline (ms) that EX, PX, EXAT or PXAT names."""
    ms = number if unit.startswith("p") else number * MS_PER_S
    if number > 0 and unit.endswith("at"):
        ms -= call.date_ms
    if number <= 0 or not 0 < ms <= KEY_TTL_MS_MAX:
        raise CommandError(f"ERR invalid expire time in '{call.name}' command")
    return ms


def ask(request: Asked, kind: type[T]) -> Generator[Asked, Answer, T]:
    """Send a request, and return its answer, which is of ``kind``."""
    answer = yield request
    assert isinstance(answer, kind)
    return answer


def change(request: ChangeKeys) -> Generator[Asked, Answer, KeysChanged]:
    return ask(request, KeysChanged)


def change_one(request: ChangeKeys) -> Generator[Asked, Answer, KeyOutcome]:
    changed = yield from change(request)
    return changed.keys[0]


def _read(call: Call) -> Generator[Asked, Answer, dict[str, KeySeen]]:
    seen = yield from ask(ReadKeys(keys=keys_of(call.arguments)), KeysRead)
    return {one.key: one for one in seen.keys}


def count_changed(request: ChangeKeys) -> Generator[Asked, Answer, int]:
    """Change the only key of ``request``, unless a native client holds it; return 1 or 0."""
    outcome = yield from change_one(request)
    if outcome.state is KeyState.NATIVE:
        raise native(request.keys[0])
    return int(outcome.changed)


def native(key: str) -> CommandError:
    return CommandError(
        f"ERR {key!a} is held by a client that does not use this door: it releases the lock, or "
        '"fencelock release" does'
    )


def _set(call: Call) -> Steps:
    """SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]."""
    key, value = call.key(), call.arguments[1]
    options = iter(call.arguments[2:])
    states: tuple[KeyState, ...] | None = None
    expiry, ttl_ms, returns = Expiry.NEVER, 0, False
    for option in options:
        word = option.lower()
        if word in (b"nx", b"xx") and states is None:
            states = FREE if word == b"nx" else (KeyState.RESERVED, *HELD, KeyState.NATIVE)
        elif word == b"get":
            returns = True
        elif word == b"keepttl" and expiry is Expiry.NEVER:
            expiry = Expiry.KEEP
        elif word in (b"ex", b"px", b"exat", b"pxat") and expiry is Expiry.NEVER:
            number = next(options, None)
            if number is None:
                raise CommandError("ERR syntax error")
            expiry, ttl_ms = Expiry.AFTER, _ttl_of(call, integer(number), word.decode())
        else:
            raise CommandError("ERR syntax error")
    done, before = yield from _setting(call, key, value, states, expiry, ttl_ms, returns=returns)
    if returns:
        return before
    return "OK" if done else None


def _setting(
    call: Call,
    key: str,
    value: bytes,
    states: tuple[KeyState, ...] | None,
    expiry: Expiry,
    ttl_ms: int,
    *,
    returns: bool = False,
) -> Generator[Asked, Answer, tuple[bool, bytes | None]]:
    """Set a key in ``states``, None for all; return whether that was done, and the former value."""
    request = ChangeKeys(
        keys=(key,),
        action=KeyAction.SET,
        states=states or (*FREE, *HELD, KeyState.NATIVE),
        value=value,
        expiry=expiry,
        ttl_ms=ttl_ms,
        returns=returns,
    )
    try:
        changed = yield from change(request)
    except ClusterRefusalError as error:
        if states == FREE and error.refused.reason is Reason.TIMED_OUT:
            call.attempts.failed(call.connection, key, value)
            return False, None
        raise
    (outcome,) = changed.keys
    if not outcome.changed and states is None:
        raise CommandError(f"TRYAGAIN {key!a} is about to be granted with other locks")
    if not outcome.changed and states == FREE:
        call.attempts.failed(call.connection, key, value)
    return outcome.changed, changed.value


def _setnx(call: Call) -> Steps:
    done, _ = yield from _setting(call, call.key(), call.arguments[1], FREE, Expiry.NEVER, 0)
    return int(done)


def _setex(call: Call) -> Steps:
    """SETEX key s value, PSETEX key ms value."""
    unit = "ex" if call.name == "setex" else "px"
    ttl_ms = _ttl_of(call, integer(call.arguments[1]), unit)
    yield from _setting(call, call.key(), call.arguments[2], None, Expiry.AFTER, ttl_ms)
    return "OK"


def _get(call: Call) -> Steps:
    """GET key; for the key of Redisson's tokens, the fence of its lock."""
    lock = lock_in(call.key(), TOKEN)
    if lock is not None:
        held = yield from _read(call._replace(arguments=[lock.encode()]))
        return next((b"%d" % one.fence for one in held.values()), None)
    seen = yield from _read(call)
    return next((one.value for one in seen.values()), None)


def _getdel(call: Call) -> Steps:
    request = ChangeKeys(keys=(call.key(),), action=KeyAction.DELETE, states=HELD, returns=True)
    changed = yield from change(request)
    if changed.keys[0].state is KeyState.NATIVE:
        raise native(call.key())
    return changed.value


def _delete(call: Call) -> Steps:
    keys = keys_of(call.arguments)
    request = ChangeKeys(keys=keys, action=KeyAction.DELETE, states=HELD, each=True)
    changed = yield from change(request)
    count = sum(one.changed for one in changed.keys)
    for key, one in zip(keys, changed.keys, strict=True):
        if one.state is KeyState.NATIVE and not count:
            raise native(key)
    return count


def _exists(call: Call) -> Steps:
    seen = yield from _read(call)
    return sum(key_of(argument) in seen for argument in call.arguments)


def _counted(call: Call) -> Steps:
    """HGET key field, HEXISTS key field: the holds of a field of Redisson's lock."""
    seen = yield from ask(ReadKeys(keys=(call.key(),)), KeysRead)
    field = call.arguments[1]
    times = sum(one.times for one in seen.keys if not one.native and one.value == field)
    if call.name == "hexists":
        return int(times > 0)
    return b"%d" % times if times else None


def _type(call: Call) -> Steps:
    seen = yield from _read(call)
    return "string" if seen else "none"


def _ttl(call: Call) -> Steps:
    seen = yield from _read(call)
    for one in seen.values():
        if one.left_ms is None:
            return -1
        return one.left_ms if call.name == "pttl" else seconds_of(one.left_ms)
    return -2


def seconds_of(left_ms: int) -> int:
    return (left_ms + MS_PER_S // 2) // MS_PER_S


_WHEN = {b"nx": When.DATELESS, b"xx": When.DATED, b"gt": When.LATER, b"lt": When.EARLIER}


def _expire(call: Call) -> Steps:
    """EXPIRE key s [NX | XX | GT | LT], PEXPIRE key ms."""
    number = integer(call.arguments[1])
    when = When.ANY
    for option in call.arguments[2:]:
        if option.lower() not in _WHEN:
            text = option.decode(errors="replace")
            raise CommandError(f"ERR Unsupported option {text}")
        if when is not When.ANY:
            raise CommandError(
                "ERR NX and XX, GT or LT options at the same time are not compatible"
            )
        when = _WHEN[option.lower()]
    ttl_ms = number if call.name == "pexpire" else number * MS_PER_S
    if ttl_ms > KEY_TTL_MS_MAX:
        raise CommandError(f"ERR invalid expire time in '{call.name}' command")
    if ttl_ms <= 0 and when is When.LATER:
        return 0
    if ttl_ms <= 0 and when is When.EARLIER:
        when = When.ANY
    return (yield from count_changed(expiring((call.key(),), HELD, ttl_ms, when=when)))


def expiring(
    keys: tuple[str, ...],
    states: tuple[KeyState, ...],
    ttl_ms: int,
    *,
    expected: bytes | None = None,
    when: When = When.ANY,
    expiry: Expiry = Expiry.AFTER,
) -> ChangeKeys:
    """Return the request that changes a deadline; one that is past ends the hold, as in Redis."""
    if ttl_ms <= 0 and expiry is Expiry.AFTER:
        return ChangeKeys(
            keys=keys, action=KeyAction.DELETE, states=states, expected=expected, when=when
        )
    return ChangeKeys(
        keys=keys,
        action=KeyAction.EXPIRE,
        states=states,
        expected=expected,
        expiry=expiry,
        ttl_ms=ttl_ms,
        when=when,
    )


def _persist(call: Call) -> Steps:
    request = ChangeKeys(
        keys=(call.key(),),
        action=KeyAction.EXPIRE,
        states=HELD,
        expiry=Expiry.NEVER,
        when=When.DATED,
    )
    return (yield from count_changed(request))


def _fence(call: Call) -> Steps:
    """LOCK.FENCE key: the fence under which it is held."""
    seen = yield from _read(call)
    return next((one.fence for one in seen.values()), None)


def _pages(call: Call, pattern: bytes) -> Generator[Asked, Answer, list[str]]:
    """Return all keys that match ``pattern`` and that the client may see, if one reply has room."""
    matches, begins = glob(pattern), literal_start(pattern)
    names: list[str] = []
    for prefix in call.visible or ("",):
        wanted = max(prefix, begins, key=len)
        if not wanted.startswith(prefix) or not wanted.startswith(begins):
            continue
        after, more = "", True
        while more:
            request = ListKeys(prefix=wanted, after=after, most=_page_of(pattern, LIST_PAGE_MAX))
            page = yield from ask(request, KeyList)
            names += filter(matches, page.keys)
            if len(names) > KEYS_LISTED_MAX:
                raise CommandError(f"ERR more than {KEYS_LISTED_MAX} keys match: use SCAN")
            more = page.more and bool(page.keys)
            after = page.keys[-1] if page.keys else ""
    return list(dict.fromkeys(names))


def _page_of(pattern: bytes, count: int) -> int:
    """Return how many names are compared at a time: ``count``, or fewer with a long pattern."""
    return min(count, LIST_PAGE_MAX, max(10, COMPARED_MAX // max(1, len(pattern))))


def _keys(call: Call) -> Steps:
    names = yield from _pages(call, call.arguments[0])
    return [name.encode() for name in names]


def _dbsize(call: Call) -> Steps:
    if call.visible:
        names = yield from _pages(call, b"*")
        return len(names)
    page = yield from ask(ListKeys(most=1), KeyList)
    return page.total


def _scan(call: Call) -> Steps:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE string]."""
    cursor = call.arguments[0]
    if _INTEGER.fullmatch(cursor) is None or int(cursor) < 0:
        raise CommandError("ERR invalid cursor")
    pattern, count, typed = b"*", 10, True
    options = call.arguments[1:]
    if len(options) % 2:
        raise CommandError("ERR syntax error")
    for word, value in zip(options[::2], options[1::2], strict=True):
        if word.lower() == b"match":
            pattern = value
        elif word.lower() == b"count":
            count = integer(value)
            if count < 1:
                raise CommandError("ERR syntax error")
        elif word.lower() == b"type":
            typed = value.lower() == b"string"
        else:
            raise CommandError("ERR syntax error")
    number = int(cursor)
    if number and number not in call.cursors:
        raise CommandError(
            f"ERR the scan with cursor {number} has ended, or is too old: begin anew"
        )
    after = call.cursors.pop(number) if number else ""
    most = _page_of(pattern, count)
    request = ListKeys(prefix=literal_start(pattern), after=after, most=most)
    page = yield from ask(request, KeyList)
    following = 0
    if page.more and page.keys:
        following = 1 + max(call.cursors, default=number)
        call.cursors[following] = page.keys[-1]
        if len(call.cursors) > CURSORS_MAX:
            del call.cursors[next(iter(call.cursors))]
    matches = glob(pattern)
    names: list[Reply] = [
        name.encode()
        for name in page.keys
        if typed and matches(name) and (not call.visible or name.startswith(call.visible))
    ]
    return [b"%d" % following, names]


def _flush(call: Call) -> Steps:
    """FLUSHDB, FLUSHALL [ASYNC | SYNC]: delete all keys that are held through the door."""
    if any(option.lower() not in (b"async", b"sync") for option in call.arguments):
        raise CommandError("ERR syntax error")
    if call.visible:
        raise CommandError(f"NOPERM {call.name} is about all keys, and yours are limited")
    yield from delete_all("")
    return "OK"


def delete_all(prefix: str) -> Generator[Asked, Answer, int]:
    """Delete all keys of the door that begin with ``prefix``; return their number."""
    count, after = 0, ""
    while True:
        page = yield from ask(ListKeys(prefix=prefix, after=after, most=CLAIM_LOCKS_MAX), KeyList)
        if page.keys:
            request = ChangeKeys(keys=page.keys, action=KeyAction.DELETE, states=HELD, each=True)
            changed = yield from change(request)
            count += sum(one.changed for one in changed.keys)
            after = page.keys[-1]
        if not (page.more and page.keys):
            return count


def _blpop(call: Call) -> Steps:
    """BLPOP lock-signal:NAME seconds: wait for the turn at lock:NAME, which is then kept."""
    if len(call.arguments) > 2:  # noqa: PLR2004  (a key and a timeout)
        raise CommandError("ERR BLPOP waits for one lock at a time here")
    if _FLOAT.fullmatch(call.arguments[1]) is None:
        raise CommandError("ERR timeout is not a float or out of range")
    seconds = float(call.arguments[1])
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    if not seconds * MS_PER_S <= KEY_TTL_MS_MAX:
        raise CommandError("ERR timeout is out of range")
    signal = call.key()
    key = SIGNALLED + signal.removeprefix(SIGNAL)
    value = call.attempts.value_of(call.connection, key)
    if not signal.startswith(SIGNAL) or value is None:
        raise CommandError(
            f"ERR BLPOP waits only as python-redis-lock does: for a list {SIGNAL}NAME, after a SET "
            f"with NX of {SIGNALLED}NAME that failed; see docs/redis.md"
        )
    wait_ms = None if seconds == 0 else max(1, round(seconds * MS_PER_S))
    request = AwaitKey(keys=(key,), value=value, ttl_ms=RESERVED_MS, wait_ms=wait_ms)
    try:
        yield from ask(request, KeysChanged)
    except ClusterRefusalError as error:
        if error.refused.reason in (Reason.TIMED_OUT, Reason.CANCELLED):
            return Nothing.ARRAY
        raise
    return [signal.encode(), b"1"]


KEY_COMMANDS: dict[str, tuple[int, Callable[[Call], Steps]]] = {
    "blpop": (-3, _blpop),
    "dbsize": (1, _dbsize),
    "del": (-2, _delete),
    "exists": (-2, _exists),
    "expire": (-3, _expire),
    "flushall": (-1, _flush),
    "flushdb": (-1, _flush),
    "get": (2, _get),
    "getdel": (2, _getdel),
    "hexists": (3, _counted),
    "hget": (3, _counted),
    "hlen": (2, _exists),
    "keys": (2, _keys),
    "lock.fence": (2, _fence),
    "persist": (2, _persist),
    "pexpire": (-3, _expire),
    "psetex": (4, _setex),
    "pttl": (2, _ttl),
    "scan": (-2, _scan),
    "set": (-3, _set),
    "setex": (4, _setex),
    "setnx": (3, _setnx),
    "ttl": (2, _ttl),
    "type": (2, _type),
    "unlink": (-2, _delete),
}
"""Each command about keys, with the number of its arguments, the name included; if negative, there
may be more."""


def literal_start(pattern: bytes) -> str:
    """Return what all names that match ``pattern`` begin with."""
    match = re.match(rb"[^*?\[\\]*", pattern)
    assert match is not None
    return match.group().decode(errors="ignore")


def glob(pattern: bytes) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches ``pattern``, as in KEYS.

    Its time is bounded by the product of both lengths: what follows a star is sought once.

    Raises:
        CommandError: the pattern is longer than a name can be.

    """
    if len(pattern) > LOCK_NAME_BYTES_MAX:
        raise CommandError(f"ERR the pattern has more than {LOCK_NAME_BYTES_MAX} bytes")
    begin, *rest = _between_stars(pattern)
    end = b".*" + rest.pop() if rest else b""
    sought = b"".join(b"(?>.*?%b)" % part for part in rest)
    expression = re.compile(begin + sought + end, re.DOTALL)
    return lambda name: expression.fullmatch(name.encode()) is not None


def _between_stars(pattern: bytes) -> list[bytes]:
    """Return what stands between the stars of a pattern, as expressions of ``re``."""
    parts, at = [b""], 0
    while at < len(pattern):
        sign = pattern[at : at + 1]
        at += 1
        if sign == b"*":
            parts.append(b"")
        elif sign == b"?":
            parts[-1] += b"."
        elif sign == b"[":
            one_of, at = _set_at(pattern, at)
            parts[-1] += one_of
        else:
            if sign == b"\\" and at < len(pattern):
                sign = pattern[at : at + 1]
                at += 1
            parts[-1] += re.escape(sign)
    return parts


def _set_at(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression of a set like ``a-z_]`` or ``^0-9]`` there, and where its rest begins.

    As in Redis, the first ``]`` ends it, or the end of the pattern; a set may be empty.
    """
    negated = pattern[at : at + 1] == b"^"
    at += negated
    found = b""
    while at < len(pattern) and pattern[at] != ord("]"):
        first = last = pattern[at]
        if first == ord("\\") and at + 1 < len(pattern):
            at += 1
            first = last = pattern[at]
        elif at + 2 < len(pattern) and pattern[at + 1] == ord("-"):
            at += 2
            first, last = sorted((first, pattern[at]))
        found += b"\\x%02x-\\x%02x" % (first, last)
        at += 1
    if not found:
        return b"." if negated else b"(?!)", at + 1
    return b"[%b%b]" % (b"^" * negated, found), at + 1
