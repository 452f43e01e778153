"""Counters: what both clients share, then the class of each client."""

from __future__ import annotations

from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    SetCounter,
)
from fencelock.actors.api.name import titled
from fencelock.actors.error import InvalidRequestError
from fencelock.cluster.client.base_object import BaseObject, guard_of
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold import HasHold
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.settings import Read, check_range, checked
from fencelock.cluster.guarantee import Guarantee


class BaseCounter(BaseObject):
    """One counter of the cluster."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name, COUNTER, Guarantee.COUNTERS)

    @operation
    def get(self, *, read: Read = "linearizable", max_age: float = 1.0) -> Operation[int]:
        """Return the value. Arguments and errors are those of `Client.status`."""
        status = yield from self._inspecting(read, max_age)
        return status.left or 0

    @operation
    def add(self, n: int = 1, *, fence: HasHold | None = None) -> Operation[int]:
        """Add ``n`` to the value, and return the new value.

        Args:
            n: what to add, which may be negative.
            fence: a lock or another object that is held, or a hold. The change is refused unless
                the object is held under this fence when the cluster applies the change.

        Raises:
            InvalidRequestError: an argument or the new value is beyond the limits of a counter.
                Nothing was changed.
            NotHeldError: the object of ``fence`` is not held under that fence. Nothing was changed.
            OverloadedError: the cluster has too many such objects. Nothing was changed.
            SessionExpiredError: the client's session ended during the call. It is unknown whether
                the change took effect.
            UnavailableError: no node answered for 10 s. The text says if it is unknown whether the
                change took effect.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.

        """
        return (yield from self._adding(n, fence)).after

    @operation
    def get_and_add(self, n: int = 1, *, fence: HasHold | None = None) -> Operation[int]:
        """Add ``n`` to the value, and return the value before.

        Arguments and errors are those of `add`.
        """
        return (yield from self._adding(n, fence)).before

    @operation
    def set(self, value: int, *, fence: HasHold | None = None) -> Operation[int]:
        """Set the value, and return the value before.

        ``fence`` and the errors are those of `add`.
        """
        return (yield from self._setting(value, None, fence)).before

    @operation
    def compare_and_set(
        self, expected: int, value: int, *, fence: HasHold | None = None
    ) -> Operation[bool]:
        """Set the value if it is ``expected``; return whether it was. If not, nothing is changed.

        A counter that nobody has used is 0. ``fence`` and the errors are those of `add`.
        """
        check_range("expected", expected, -VALUE_MAX, VALUE_MAX)
        return (yield from self._setting(value, expected, fence)).changed

    def _adding(self, n: int, fence: HasHold | None) -> Operation[CounterChanged]:
        check_range("n", n, -VALUE_MAX, VALUE_MAX)
        guard, number = guard_of(fence)
        request = AddToCounter(counter=self.name, amount=n, request=1, guard=guard, fence=number)
        reply = yield from self._updating(checked(request))
        if not reply.changed:
            raise InvalidRequestError(
                f"{titled(self._full_name)} is {reply.before}, and {n} more is beyond the limits "
                f"of -{VALUE_MAX} and {VALUE_MAX}; nothing was changed"
            )
        return reply

    def _setting(
        self, value: int, expected: int | None, fence: HasHold | None
    ) -> Operation[CounterChanged]:
        check_range("value", value, -VALUE_MAX, VALUE_MAX)
        guard, number = guard_of(fence)
        request = SetCounter(
            counter=self.name, value=value, expected=expected, request=1, guard=guard, fence=number
        )
        return self._updating(checked(request))


class Counter(BaseCounter, InThreads):
    """One counter of the cluster, from `Client.counter`. Any thread may use it.

    A counter is an int from -9,223,372,036,854,775,807 to 9,223,372,036,854,775,807, which is 0 as
    long as nobody has changed it. A counter at 0 leaves no state.

    A change takes effect once, however often the client has to send it. If the client's session
    ends during the call, the call raises `SessionExpiredError`, and it is unknown whether the
    change took effect.
    """


class AsyncCounter(BaseCounter, InTasks):
    """One counter of the cluster, from `fencelock.aio.Client.counter`.

    Its methods are those of `fencelock.Counter`, awaited. It is unknown whether a cancelled change
    takes effect.
    """
