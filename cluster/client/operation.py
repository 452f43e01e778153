"""Operations: a user's requests, written once for threads and for tasks.

An operation is a generator. It sends requests to the session role, without blocking, and yields
the `AskReply` or `AwaitReply` to wait for; the driver sends the answer in, or throws the error in.
So the rules for deadlines, owners and error texts are in one place, and a client only knows how to
wait.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import pykka

from fencelock.actors.error import FencelockError
from fencelock.cluster.host.pending_asks import AskReply

T = TypeVar("T")


class AwaitReply(NamedTuple):
    """Wait for the answer in ``reply``, but no longer than ``limit_s`` (s)."""

    reply: AskReply
    limit_s: float

    def get(self) -> Any:
        """Return the answer, or raise it, or `pykka.Timeout`."""
        return self.reply.get(timeout=self.limit_s)


Operation = Generator[AskReply | AwaitReply, Any, T]
"""Ends with a value of type ``T``. A `TimeoutError` thrown in means that the wait timed out."""


def drive(operation: Operation[T]) -> T:
    """Carry out ``operation`` on this thread, which waits for each answer.

    Raises:
        BaseException: the error that ends the operation. An interrupt while waiting is thrown in,
            so that the operation can undo its steps.

    """
    try:
        wait = next(operation)
        while True:
            try:
                value = wait.get()
            except pykka.Timeout as timeout:
                wait = operation.throw(TimeoutError(f"no answer within {timeout}"))
            except BaseException as error:  # noqa: BLE001  # The operation decides.
                wait = operation.throw(error)
            else:
                wait = operation.send(value)
    except StopIteration as end:
        # CPython runs the handlers of signals at calls and at jumps back. There is none from the
        # end of the operation to the caller's assignment, so no hold is lost in between.
        result: T = end.value
        return result
    except (FencelockError, KeyboardInterrupt) as error:
        operation.close()  # It also undoes its steps after an interrupt in this function.
        error.__traceback__ = None  # The steps of the operation say nothing to a user.
        raise
    except BaseException:
        operation.close()
        raise
