"""Operations: a user's requests, written once for threads and for tasks.

An operation is a generator. It sends requests to the session role, without blocking, and yields
the `AskReply` or `AwaitReply` to wait for; the driver sends the answer in, or throws the error in.
So the rules for deadlines, owners and error texts are in one place, and a client only knows how to
wait.

A method that both clients have is declared once, with `operation`, in the class that both share::

    class BaseCounter(BaseObject):
        @operation
        def get(self) -> Operation[int]: ...

    class Counter(BaseCounter, InThreads): ...    # counter.get() is an int
    class AsyncCounter(BaseCounter, InTasks): ... # await counter.get() is one
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

import pykka

from fencelock.actors.error import FencelockError
from fencelock.cluster.host.pending_asks import AskReply

T = TypeVar("T")
P = ParamSpec("P")


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


class InThreads:
    """A class for threads: its operations return, or raise, once they have ended."""


class InTasks:
    """A class for asyncio tasks, which await its operations."""


class operation(Generic[P, T]):  # noqa: N801  # A decorator, as `property` is.
    """Turns an operation into a method: it waits in a class for threads, and is awaited in tasks.

    A base class cannot call it: there it has no driver yet. Pyright does not take it for a method
    of a `Protocol`, so what `threading.Lock` has too is written out in each class.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        # What `help` shows is what the call returns, or what awaiting it does.
        named = function.__annotations__
        named["return"] = named["return"].removeprefix("Operation[").removesuffix("]")

        @wraps(function)
        def waiting(*args: Any, **kwargs: Any) -> T:
            return drive(function(*args, **kwargs))

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> T:
            from fencelock.cluster.client.loop import drive_async  # noqa: PLC0415  # Needs asyncio.

            return await drive_async(function(*args, **kwargs))

        self._waiting, self._awaited = waiting, awaited
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, made: InThreads, kind: type | None = None) -> Callable[P, T]: ...

    @overload
    def __get__(
        self, made: InTasks, kind: type | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, made: None, kind: type) -> Callable[..., Any]: ...

    def __get__(self, made: Any, kind: type | None = None) -> Callable[..., Any]:
        method = self._awaited if issubclass(kind or type(made), InTasks) else self._waiting
        return method if made is None else MethodType(method, made)
