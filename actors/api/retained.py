"""Requests of a client that retains a lock for its local owners. Tags 0xf0 and 0xf1.

A client may acquire a lock for itself and hand it from one of its owners to the next without a
message, each under a fence of its own. To the table that is one hold of one owner, which has a
*span* of fences. When a claim queues behind it, the table asks for it back; see
`actors/session/retained.py`.
"""

from fencelock.actors.api.lock_message import AcquireRequest, LockRequest
from fencelock.actors.api.name import (
    INT_MAX,
    LABEL_BYTES_MAX,
    check_new_lock_name,
    check_number,
    check_request,
    check_text,
    check_wait,
    kind_of,
    plain_name,
    quoted,
)
from fencelock.actors.api.request import Notification
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

RETAINER = "*"
"""The owner that a client is to the cluster for a lock that it retains."""

READERS = "*readers"
WRITERS = "*writers"
"""The same for a read/write lock. A client retains it for its readers and for its writers as two
owners: they exclude each other in the cluster."""

RETAINERS = frozenset({RETAINER, READERS, WRITERS})
"""All these owners. So a client has few holds of one object to recall."""

SPAN_MAX = 1 << 16
"""Maximum number of fences of one hold. A client that takes as many each millisecond uses up the
fences in more than 4,000 years."""


class AcquireRetained(AcquireRequest, tag=0xF0):
    """Acquire ``lock``, the name of an object in the table, with ``span`` fences. As `Acquire`.

    The fences are that of `Granted` and the ``span - 1`` after it, which the table gives to nobody
    else. The client receives `Recall` when another claim waits for the object, and must release it
    as soon as its local owner does. ``amount`` of the object's ``permits`` are acquired: 1 of 1 for
    a lock.
    """

    lock: str
    span: Int64
    amount: Int64 = 1
    permits: Int64 = 1
    wait_ms: Int64 | None = None
    label: str = ""

    limit = 1

    def check(self) -> None:
        LockRequest.check(self)
        check_text("label", self.label, LABEL_BYTES_MAX)
        check_wait(self.wait_ms)
        check_number("span", self.span, 1, SPAN_MAX)
        check_number("permits", self.permits, 1, INT_MAX)
        check_number("amount", self.amount, 1, self.permits)

    def check_new(self) -> None:
        """Refuse what `check` does, and what no client sends: see `RETAINERS`."""
        if self.owner not in RETAINERS:
            allowed = ", ".join(map(repr, sorted(RETAINERS)))
            found = quoted(self.owner[:80])
            raise InvalidRequestError(f"owner is {found}, and must be one of {allowed}")
        check_new_lock_name(plain_name(self.lock), kind_of(self.lock) or "lock")
        check_request(self.request)
        self.check()


class Recall(Notification, tag=0xF1):
    """Notification: give ``lock``, which ``owner`` holds under ``fence``, back: others wait.

    Sent once the first claim waits for it, and again with each `Alive` until the hold ends.
    """

    owner: str
    waiting: Int64 = 1
    """Number of claims that wait."""
