"""Requests of a node's Redis door about keys, and their replies. Tags 0x120 to 0x126.

A key is a lock. A hold through the door belongs to no client: it has a value, and perhaps a
deadline, and whoever shows the value may change it. The door is a role of a node, and an ordinary
user of the node's session. So its requests take effect once, and its waits end with that session.
Its holds belong to the session `NO_CLIENT`, which never ends, and so do detached locks
(`fencelock.actors.api.handover`): to a door a native client holds these.

One request changes up to 64 keys in one step. It names the states in which it changes a key, and
what it does to it. So the commands of Redis about locks, and its scripts, are all the same request:

====================== =============================================================================
SET k v PX, with NX    SET in the states FREE and RESERVED
SET k v PX, with XX    SET in the states EQUAL, OTHER and NATIVE
SET k v PX             SET in all of these
DEL k                  DELETE in the states EQUAL and OTHER, with ``each``
compare and delete     DELETE in the state EQUAL
compare and extend     EXPIRE in the state EQUAL
set if absent or mine  SET in the states FREE, RESERVED and EQUAL
enter, leave           SET and DELETE as above, with ``counts``
====================== =============================================================================
"""

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self

from fencelock.actors.api.lock_all import check_names
from fencelock.actors.api.name import (
    LABEL_BYTES_MAX,
    LIST_PAGE_MAX,
    REDIS_KEY,
    SESSION_BYTES_MAX,
    check_new_lock_name,
    check_number,
    check_text,
)
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import PageQuery, TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

KEY_VALUE_BYTES_MAX = 1024
"""Maximum length of a value (bytes): a token, and what some clients add to it."""

RECEIPT = "redisson_unlock_latch"
"""The beginning of the names under which Redisson keeps the outcome of an unlock for a while."""

TOKEN = "redisson_lock_token"
"""The beginning of the names under which Redisson keeps the fences of locks."""

KEY_TTL_MS_MAX = 100 * 366 * 24 * 3_600_000
"""Maximum time until a deadline (ms): a century. A hold without a deadline has no limit."""


def lock_in(name: str, prefix: str) -> str | None:
    """Return the lock of a name that Redisson derives from it; None if it is no such name.

    Redisson writes ``prefix:{lock}``, or ``prefix:lock`` if there is a brace in it.
    """
    start, colon, lock = name.partition(":")
    if start != prefix or not colon or "{" not in lock:
        return None
    braced = lock.startswith("{") and lock.endswith("}") and "{" not in lock[1:]
    return lock[1:-1] if braced else lock


class KeyState(IntEnum):
    """The state of a key when the log applies a request. Numbers are on the wire."""

    FREE = 1
    """Nobody holds it, and nobody waits for it."""
    EQUAL = 2
    """It is held through a door, with the value that the request expects."""
    OTHER = 3
    """It is held through a door, and the request expects another value, or none."""
    NATIVE = 4
    """A native client holds it, or has detached it."""
    AWAITED = 5
    """Nobody holds it, but another claim is the next one. No request changes it."""
    RESERVED = 6
    """It was granted to an `AwaitKey` that reserved it for the new value of this request, or its
    ``turn``."""


class KeyAction(IntEnum):
    """The action of a request on a key. Numbers are on the wire."""

    SET = 1
    """Let the key be held with the new value. In the states EQUAL and RESERVED the hold goes on,
    under its fence. In OTHER and NATIVE it is taken by force, as the audit shows."""
    EXPIRE = 2
    """Change the deadline of the hold, and nothing else."""
    DELETE = 3
    """End the hold."""


class Expiry(IntEnum):
    """The deadline of a hold after a request. Numbers are on the wire."""

    KEEP = 1
    """The present deadline; none for a key that was free, or held by a native client."""
    NEVER = 2
    """No deadline."""
    AFTER = 3
    """``ttl_ms`` from now."""
    FURTHER = 4
    """``ttl_ms`` after the present deadline, or from now if there is none."""


class When(IntEnum):
    """A condition on the deadline of a hold. Numbers are on the wire."""

    ANY = 1
    DATED = 2
    """The hold has a deadline."""
    DATELESS = 3
    """The hold has no deadline."""
    LATER = 4
    """The new deadline is later than the present one. No deadline is the latest."""
    EARLIER = 5
    """The new deadline is earlier."""


class KeysRequest(UpdateRequest):
    """A request of a door to change keys. Answered by `KeysChanged`."""

    KIND = REDIS_KEY  # Of the request: each of its keys is a lock.

    keys: tuple[str, ...]
    """The names of the keys, 1 to 64."""
    value: bytes = b""
    """The new value."""
    ttl_ms: Int64 = 0
    """Time until the deadline (ms of log time)."""
    account: str = ""
    """The name of the key of the cluster that is charged for the hold; empty for none."""
    label: str = ""
    """A text for people about the hold: the door, and its client."""

    if not TYPE_CHECKING:  # To type checkers this is a field that other requests have.

        @property
        def name(self) -> str:
            """The name of the request: that of its first key."""
            return self.keys[0] if self.keys else ""

    @property
    def reach(self) -> tuple[str, ...]:
        """The names of the keys; for a receipt, the name of its lock."""
        return tuple(lock_in(key.rpartition(":")[0], RECEIPT) or key for key in self.keys)

    def check(self) -> None:
        check_names(self.keys)
        UpdateRequest.check(self)
        _check_value("value", self.value)
        check_number("ttl_ms", self.ttl_ms, 0, KEY_TTL_MS_MAX)
        check_text("account", self.account, SESSION_BYTES_MAX)
        check_text("label", self.label, LABEL_BYTES_MAX)

    def check_new(self) -> None:
        """Refuse what `check` does, names without a visible character, and senders but doors."""
        UpdateRequest.check_new(self)
        for name in self.keys:
            check_new_lock_name(name)
        if "/" not in self.session:  # Only sessions of nodes have one.
            raise InvalidRequestError(
                f"{type(self).__name__} is for the Redis doors of nodes: connect to one of them"
            )


class ChangeKeys(KeysRequest, tag=0x120):
    """Do ``action`` to those ``keys`` that are in one of ``states``.

    With ``each``, every such key is changed; otherwise all keys are, or none. ``expected`` makes
    the state of a key EQUAL if it is the value, or with ``prefix`` its beginning. A key that is
    held must also meet ``when``. ``expiry`` says what becomes of the deadline.

    With ``counts``, holds are counted: a SET in the state EQUAL adds one, and a DELETE removes one.
    The key stays held until the last one is removed; till then, that changes its deadline. With a
    ``receipt``, that is remembered: a key of that name is set for ``receipt_ms``, to ``1`` if the
    last hold was removed, else to ``0``. If there is such a key already, nothing is changed, and
    the reply has its value. Without room for it, nothing is remembered.

    ``turn`` is the value of the `AwaitKey` that makes the state of a key RESERVED, ``value`` if it
    is None.

    With ``returns``, the reply has the value that the key had; then there is one key. A SET by
    force is also of one key, and no other action changes a hold of a native client.

    A SET of what is FREE waits up to 200 ms for locks that clients retain, and do not use. If they
    do not come back, it is refused with TIMED_OUT.
    """

    action: KeyAction
    states: tuple[KeyState, ...]
    expected: bytes | None = None
    prefix: bool = False
    each: bool = False
    expiry: Expiry = Expiry.KEEP
    when: When = When.ANY
    counts: bool = False
    returns: bool = False
    turn: bytes | None = None
    receipt: str = ""
    receipt_ms: Int64 = 0

    wait_ms = 0

    def check(self) -> None:
        KeysRequest.check(self)
        if self.expected is not None:
            _check_value("expected", self.expected)
        states = set(self.states)
        if not states or KeyState.AWAITED in states or len(states) < len(self.states):
            raise InvalidRequestError(
                "states must name at least one state, each at most once, and never AWAITED"
            )
        forced = self.action is KeyAction.SET and states & {KeyState.OTHER, KeyState.NATIVE}
        if len(self.keys) > 1 and (forced or self.returns):
            raise InvalidRequestError(
                f"{len(self.keys)} keys were named: a SET by force, and a request that returns the "
                "value, is of one key"
            )
        if self.expiry is Expiry.AFTER:
            check_number("ttl_ms", self.ttl_ms, 1, KEY_TTL_MS_MAX)
        if self.receipt:
            check_names((self.receipt,))
            check_number("receipt_ms", self.receipt_ms, 1, KEY_TTL_MS_MAX)
            ends = self.action is KeyAction.DELETE and self.counts
            if not ends or len(self.keys) > 1 or not self.receipt.startswith(RECEIPT):
                raise InvalidRequestError(
                    f"receipt {self.receipt!a}: it must begin with {RECEIPT}, and is for a DELETE "
                    "of one key with counts"
                )
        if self.turn is not None:
            _check_value("turn", self.turn)
        if self.action is not KeyAction.SET and states - {KeyState.EQUAL, KeyState.OTHER}:
            raise InvalidRequestError(
                f"{self.action.name} is for keys that are held through a door: EQUAL or OTHER"
            )


class AwaitKey(KeysRequest, tag=0x121):
    """Wait for a key in its queue, and then hold it with ``value``.

    Its state is RESERVED for a `ChangeKeys` with the same value until that sets it. A ``ttl_ms`` of
    0 is for no deadline. ``wait_ms`` is that of `fencelock.actors.api.lock_message.Acquire`; if the
    wait ends without a grant, the request is refused with TIMED_OUT, or with CANCELLED after a
    `Cancel`.
    """

    wait_ms: Int64 | None = None

    WAITS = True

    def check(self) -> None:
        KeysRequest.check(self)
        check_number("number of keys", len(self.keys), 1, 1)


class KeyOutcome(NamedTuple):
    """The outcome of a request for one key."""

    state: KeyState
    """Its state before."""
    changed: bool
    fence: Int64
    """The fence under which it is held now; 0 if it is free."""
    left_ms: Int64 | None
    """The time until its present deadline (ms), None if it has none or is free."""
    times: Int64
    """Number of its counted holds, 0 if it is free."""


class KeysChanged(UpdateReply, tag=0x122):
    """The request has been applied; ``keys`` are its keys, in order.

    ``value`` is the value before, or that of `KeySeen`, if the request asked for it and the key was
    held. It is that of the receipt if there was one: then nothing was changed.
    """

    keys: tuple[KeyOutcome, ...]
    value: bytes | None = None

    REPLIES_TO = (ChangeKeys, AwaitKey)


class KeySeen(NamedTuple):
    """A key that is held."""

    key: str
    value: bytes
    """Its value; for a native client, the session without its secret, a slash, and the owner."""
    native: bool
    """Whether a native client holds it, or has detached it."""
    fence: Int64
    times: Int64
    left_ms: Int64 | None
    """The time until its deadline (ms), or None if it has none."""
    held_ms: Int64
    """The time for which it has been held (ms)."""

    def later(self, ms: int) -> Self:
        left_ms = None if self.left_ms is None else max(0, self.left_ms - ms)
        return self._replace(left_ms=left_ms, held_ms=self.held_ms + ms)


class ReadKeys(TableQuery, tag=0x123):
    """Read the ``keys``, 1 to 64, at one moment. Answered by `KeysRead`."""

    keys: tuple[str, ...]

    if not TYPE_CHECKING:  # To type checkers this is a field that other requests have.

        @property
        def lock(self) -> str:
            """The name of the first key."""
            return self.keys[0] if self.keys else ""

    @property
    def reach(self) -> tuple[str, ...]:
        return self.keys

    def check(self) -> None:
        check_names(self.keys)
        TableQuery.check(self)


class KeysRead(TableReply, tag=0x124):
    """Those of the requested ``keys`` that are held, in the order of the request."""

    keys: tuple[KeySeen, ...]

    REPLIES_TO = (ReadKeys,)
    AGING = ("keys",)


class ListKeys(PageQuery, tag=0x125):
    """List keys that are held through doors, or detached. Answered by `KeyList`."""

    most: Int64 = LIST_PAGE_MAX


class KeyList(TableReply, tag=0x126):
    """A page of keys that are held through doors, or detached, sorted by name.

    If ``more`` is set, others follow after the last. ``total`` counts all such keys of the cluster.
    """

    keys: tuple[str, ...]
    more: bool
    total: Int64

    REPLIES_TO = (ListKeys,)


def _check_value(field: str, value: bytes) -> None:
    if len(value) > KEY_VALUE_BYTES_MAX:
        raise InvalidRequestError(
            f"{field} of {len(value)} bytes, at most {KEY_VALUE_BYTES_MAX} are allowed"
        )
