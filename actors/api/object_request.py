"""Base classes of requests about objects other than locks.

Requests that acquire an object have the same replies as those that acquire a lock. The ``lock`` of
a reply is the name of the object in the table, see `fencelock.actors.api.name.object_name`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fencelock.actors.api.message import (
    AcquireRequest,
    CancellableRequest,
    LockReply,
    LockRequest,
    ReleaseRequest,
)
from fencelock.actors.api.name import (
    LABEL_BYTES_MAX,
    check_new_lock_name,
    check_request,
    check_text,
    check_wait,
    object_name,
    plain_name,
)
from fencelock.actors.api.request import Outcome


class ObjectRequest(LockRequest):
    """A request of an owner about an object that is no lock."""

    __slots__ = ()
    KIND: ClassVar[str]
    """The kind of the object, and the field that has its name."""

    if not TYPE_CHECKING:  # To type checkers this is the field that other requests have.

        @property
        def lock(self) -> str:
            """The name of the object in the table."""
            return object_name(self.KIND, getattr(self, self.KIND))


class PermitRequest(ObjectRequest, AcquireRequest):
    """An acquire of some of the permits of an object, which are granted together.

    The number of permits of the object travels with each claim, since an object that nobody holds
    leaves no state. While it is held, a claim that names another number is refused.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # Every subclass has them, as fields or as properties.
        permits: int
        """The number of permits of the object."""
        amount: int
        """The number of permits to acquire."""

    def excess(self, held: int, fence: int) -> str:
        """Return the text of the refusal if the owner has fewer permits under ``fence``."""
        return f"{self.amount} permits were requested, this owner has {held} under fence {fence}"

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        LockRequest.check(self)
        if self.label:
            check_text("label", self.label, LABEL_BYTES_MAX)
        check_wait(self.wait_ms)

    def check_new(self) -> None:
        """Apply `check`; also refuse names without a visible character and too high a number."""
        name = plain_name(self.lock)
        if name[:1] <= " " or not name.isascii():
            check_new_lock_name(name, self.KIND)
        check_request(self.request)
        self.check()


class PartRequest(ObjectRequest, ReleaseRequest):
    """A release of ``amount`` permits of a hold, which are perhaps not all of them.

    `Released` counts the permits that are left. The hold ends with its last permit.
    """

    __slots__ = ()
    PARTIAL = True

    if TYPE_CHECKING:  # Every subclass has it, as a field or as a property.
        amount: int
        """The number of permits to give back, 0 for all."""

    def excess(self, held: int, fence: int) -> str:
        """Return the text of the refusal if the hold under ``fence`` has fewer permits."""
        return f"{self.amount} permits were released, {held} are held under fence {fence}"


class UpdateRequest(ObjectRequest, CancellableRequest):
    """A request that changes or awaits an object, and holds nothing.

    Answered by an `UpdateReply` or `Refused`. The request takes effect at most once in a session,
    however often it is sent. When the session ends, the table forgets the outcomes of its requests.
    Then the client does not send the request again, and its caller receives SESSION_EXPIRED, unless
    the request is `IDEMPOTENT`.

    A `Cancel` ends its wait, or prevents a request that has not arrived yet from taking effect. It
    undoes nothing.
    """

    __slots__ = ()
    WAITS = False
    IDEMPOTENT: ClassVar[bool] = False
    """Whether it may take effect more than once. If so, the client repeats it in its next session.
    """

    @property
    def needs_session(self) -> bool:
        """Whether its effect ends with the session, so that the client must keep that alive."""
        return False

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        CancellableRequest.check(self)
        if self.WAITS:
            check_text("label", self.label, LABEL_BYTES_MAX)
            check_wait(self.wait_ms)

    def check_new(self) -> None:
        """Apply `check`; also refuse names without a visible character and too high a number."""
        check_new_lock_name(plain_name(self.lock), self.KIND)
        check_request(self.request)
        self.check()


class UpdateReply(LockReply, Outcome):
    """The outcome of an `UpdateRequest`. The table keeps it as long as it knows the owner."""

    __slots__ = ()
    TRIMMED = True
