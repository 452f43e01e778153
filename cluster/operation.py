"""Operations: what a user asks for, written once, whether a thread or a task waits for it.

An operation is a generator. It asks the session role itself, without blocking, and yields
what is to be waited for, a `Reply` or a `Wait`; the answer is sent in, or the error thrown in. So
deadlines, owners and the wording of errors stand in one place, and a face only knows how to wait.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import pykka

from fencelock.cluster.host.reply import Reply

T = TypeVar("T")


class Wait(NamedTuple):
    """Wait for the answer in ``reply``, but no longer than ``limit_s`` (s)."""

    reply: Reply
    limit_s: float

    def get(self) -> Any:
        """Return the answer, or raise it, or `pykka.Timeout`."""
        return self.reply.get(timeout=self.limit_s)


Operation = Generator[Reply | Wait, Any, T]
"""Ends with a value of type ``T``. A `TimeoutError` thrown in tells that a limit was over."""


def drive(operation: Operation[T]) -> T:
    """Carry ``operation`` out on this thread, which waits for each answer.

    Raises:
        BaseException: whatever ends the operation. An interrupt while waiting is thrown in,
            so that the operation can undo what it began.

    """
    try:
        wait = next(operation)
        while True:
            try:
                answer = wait.get()
            except pykka.Timeout as timeout:
                wait = operation.throw(TimeoutError(f"no answer within {timeout}"))
            except BaseException as error:  # noqa: BLE001  # The operation decides.
                wait = operation.throw(error)
            else:
                wait = operation.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        operation.close()  # An interrupt between two lines of this function ends it, too.
