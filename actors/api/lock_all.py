"""The request for several locks at once. Tag 0x9d.

All of the locks are granted in one step, or none: the claim waits in the queue of each, and is
granted when it is at the head of all and all are free. It holds nothing while it waits, so two
such claims cannot wait for each other.

The claim is one hold. The locks have consecutive fences: the reply has the fence of the first, and
the number of locks as ``count``. A `Release` with the ``lock`` and the fence of the reply
releases all of them.
"""

from typing import TYPE_CHECKING

from fencelock.actors.api.lock_message import AcquireRequest
from fencelock.actors.api.name import check_lock_name, check_new_lock_name, check_request, utf8_size
from fencelock.actors.api.object_request import ObjectRequest
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

SEVERAL = "locks"
"""The kind of a claim for several locks, in the names of the table."""

CLAIM_LOCKS_MAX = 64
"""Maximum locks of one claim: each adds a wait to a queue."""

NAMES_BYTES_MAX = 12 << 10
"""Maximum length of all names of one claim together (bytes of UTF-8, 12 KiB). The claim is one
command of the log, and these had at most 16 KiB when this limit was set."""


def check_names(names: tuple[str, ...]) -> None:
    """Refuse the names of locks that one request is about."""
    if not 1 <= len(names) <= CLAIM_LOCKS_MAX:
        raise InvalidRequestError(
            f"{len(names)} locks were requested together, 1 to {CLAIM_LOCKS_MAX} are allowed"
        )
    for name in names:
        check_lock_name(name)
    size = sum(map(utf8_size, names))
    if size > NAMES_BYTES_MAX:
        raise InvalidRequestError(
            f"the names of {len(names)} locks have {size} bytes together, at most "
            f"{NAMES_BYTES_MAX} are allowed"
        )
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"a lock is named twice: {', '.join(names)!a}"[:200])


class AcquireAll(ObjectRequest, AcquireRequest, tag=0x9D):
    """Let me hold all ``locks``, or none. Answered by `Granted` or `Refused`.

    ``wait_ms`` and ``label`` are those of `Acquire`.
    """

    locks: tuple[str, ...]
    wait_ms: Int64 | None = None
    label: str = ""

    KIND = SEVERAL
    limit = 1
    permits = 1

    if not TYPE_CHECKING:  # To type checkers these are attributes that other requests have.

        @property
        def name(self) -> str:
            """The name of the claim: that of its first lock."""
            return self.locks[0] if self.locks else ""

        @property
        def granted_count(self) -> int:
            """The number of locks."""
            return len(self.locks)

    @property
    def reach(self) -> tuple[str, ...]:
        return self.locks

    def check(self) -> None:
        check_names(self.locks)
        AcquireRequest.check(self)

    def check_new(self) -> None:
        self.check()
        for name in self.locks:
            check_new_lock_name(name)
        check_request(self.request)
