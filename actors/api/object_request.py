"""Base classes of requests about objects other than locks.

Requests that acquire an object have the same replies as those that acquire a lock. The ``lock`` of
a reply is the name of the object in the table, see `fencelock.actors.api.name.object_name`.
"""

from typing import TYPE_CHECKING, ClassVar

from fencelock.actors.api.lock_message import (
    AcquireRequest,
    CancellableRequest,
    LockReply,
    LockRequest,
    ReleaseRequest,
)
from fencelock.actors.api.name import (
    INT_MAX,
    check_number,
    check_object_name,
    object_name,
    plain_name,
)
from fencelock.actors.api.request import Outcome
from fencelock.actors.message import Int64, declared


class ObjectRequest(LockRequest):
    """A request of an owner about an object that is no lock."""

    _prefix: ClassVar[str]
    """The beginning of the name of the object in the table."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._prefix = object_name(cls.KIND, "")

    if not TYPE_CHECKING:  # To type checkers this is the field that other requests have.

        @property
        def lock(self) -> str:
            """The name of the object in the table."""
            return self._prefix + self.name


class PermitRequest(ObjectRequest, AcquireRequest):
    """An acquire of some of the permits of an object, which are granted together.

    The number of permits of the object travels with each claim, since an object that nobody holds
    leaves no state. While it is held, a claim that names another number is refused.
    """


class PartRequest(ObjectRequest, ReleaseRequest):
    """A release of ``amount`` permits of a hold, which are perhaps not all of them.

    `Released` counts the permits that are left. The hold ends with its last permit.
    """

    PARTIAL = True
    REFUSABLE = True

    if TYPE_CHECKING:  # Every subclass has it, as a field or as a property.
        amount: int = declared()
        """The number of permits to give back, 0 for all."""


class UpdateRequest(ObjectRequest, CancellableRequest):
    """A request that changes or awaits an object, and holds nothing.

    Answered by an `UpdateReply` or `Refused`. The request takes effect at most once in a session,
    however often it is sent. When the session ends, the table forgets the outcomes of its requests.
    Then the client does not send the request again, and its caller receives SESSION_EXPIRED, unless
    the request is `IDEMPOTENT`.

    A `Cancel` ends its wait, or prevents a request that has not arrived yet from taking effect. It
    undoes nothing.
    """

    WAITS = False
    IDEMPOTENT: ClassVar[bool] = False
    """Whether it may take effect more than once. If so, the client repeats it in its next session.
    """

    @property
    def needs_session(self) -> bool:
        """Whether its effect ends with the session, so that the client must keep that alive."""
        return False


class GuardedRequest(UpdateRequest):
    """A request that changes an object, if a certain hold exists when the log applies it."""

    guard: str = ""
    """The lock, or another object of the table, that must be held; otherwise the change is refused
    with NOT_HELD. Empty if nothing must be held."""
    fence: Int64 = 0
    """The fence under which ``guard`` must be held; 0 if nothing must be held."""

    @property
    def reach(self) -> tuple[str, ...]:
        name = plain_name(self.lock)
        return (name, plain_name(self.guard)) if self.guard else (name,)

    def check(self) -> None:
        UpdateRequest.check(self)
        if self.guard:
            check_object_name(self.guard)
        check_number("fence", self.fence, 1 if self.guard else 0, INT_MAX)


class UpdateReply(LockReply, Outcome):
    """The outcome of an `UpdateRequest`. The table keeps it as long as it knows the owner."""
