"""Requests about counters, and their reply. Tags 0x7d to 0x7f.

A counter is an integer. One that nobody has used is 0, and a counter at 0 leaves no state. So a
counter need not be created. A change may require that a certain hold exists.
"""

from fencelock.actors.api.name import INT_MAX, check_number
from fencelock.actors.api.object_request import GuardedRequest, UpdateReply
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.message import Int64

COUNTER = "counter"

VALUE_MAX = INT_MAX
"""The largest value of a counter, and with the other sign the smallest: the integers that cross the
wire. A change beyond them changes nothing."""


class CounterRequest(GuardedRequest, RepliedBy["CounterChanged"]):
    """A request to change a counter. Answered by `CounterChanged`."""

    KIND = COUNTER

    counter: str


class AddToCounter(CounterRequest, tag=0x7D):
    """Add ``amount`` to the value of ``counter``, unless the sum is beyond `VALUE_MAX`."""

    amount: Int64 = 1

    def check(self) -> None:
        CounterRequest.check(self)
        check_number("amount", self.amount, -VALUE_MAX, VALUE_MAX)


class SetCounter(CounterRequest, tag=0x7E):
    """Let ``value`` be the value of ``counter``, if that is ``expected``, or if that is None."""

    value: Int64
    expected: Int64 | None = None

    def check(self) -> None:
        CounterRequest.check(self)
        check_number("value", self.value, -VALUE_MAX, VALUE_MAX)
        if self.expected is not None:
            check_number("expected", self.expected, -VALUE_MAX, VALUE_MAX)


class CounterChanged(UpdateReply, tag=0x7F):
    """The request has been applied: the value of the counter was ``before``, and is ``after``.

    If ``changed`` is false, nothing was changed, and both are the present value. Either that was
    not the expected value, or the sum would have been beyond `VALUE_MAX`.
    """

    before: Int64
    after: Int64
    changed: bool = True

    REPLIES_TO = (AddToCounter, SetCounter)
