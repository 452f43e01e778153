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

`asyncio` takes a tenth of the import time of all that a client needs, so a blocking client does
not import it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial, wraps
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    overload,
)
from weakref import WeakValueDictionary

import pykka

from fencelock.actors.error import FencelockError
from fencelock.cluster.host.pending_asks import AskReply

if TYPE_CHECKING:
    import asyncio

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

    An interrupt while waiting is thrown in, so that the operation can undo its steps.
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
    except BaseException as error:
        operation.close()  # It also undoes its steps after an interrupt in this function.
        if isinstance(error, FencelockError | KeyboardInterrupt):
            error.__traceback__ = None  # The steps of the operation say nothing to a user.
        raise


async def drive_async(operation: Operation[T]) -> T:
    """Carry out ``operation`` in this task, which awaits each answer.

    A cancellation is thrown in at the wait, so that the operation can undo its steps.
    """
    import asyncio  # noqa: PLC0415 (see above)

    try:
        wait = next(operation)
        bell = _bell_of(asyncio.get_running_loop())
        while True:
            try:
                if isinstance(wait, AwaitReply):
                    reply = wait.reply
                    async with asyncio.timeout(wait.limit_s):
                        await bell.until_done(reply, operation)
                else:
                    reply = wait
                    await bell.until_done(reply, operation)
                value = reply.get(timeout=0)
            except BaseException as error:  # noqa: BLE001  # The operation decides.
                wait = operation.throw(error)
            else:
                wait = operation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException as error:
        operation.close()  # It also undoes its steps after an interrupt in this function.
        if isinstance(error, FencelockError | KeyboardInterrupt):
            error.__traceback__ = None  # The steps of the operation say nothing to a user.
        raise


Waiter = tuple["asyncio.Future[None]", Operation[Any]]
"""The future that a task awaits, and the operation that it drives."""


class Bell:
    """Wakes a loop when other threads answer: once for all answers until the loop reads them.

    Waking a loop costs a thread some ten times as much as the answer itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._replied: deque[Waiter] = deque()
        self._rung = False

    def until_done(self, reply: AskReply, operation: Operation[Any]) -> asyncio.Future[None]:
        """Return a future that is done once ``operation`` has its answer.

        If the loop is closed by then, its tasks never run again. So ``operation`` is ended at once:
        it undoes its steps, and no task that is gone holds anything.
        """
        done = self.loop.create_future()
        reply.add_done_callback(partial(self._ring, (done, operation)))
        return done

    def _ring(self, waiter: Waiter) -> None:
        """Wake the loop because ``waiter`` has its answer; on the thread that gave it."""
        self._replied.append(waiter)
        if self._rung and not self.loop.is_closed():
            return  # The loop resets it before it looks.
        self._rung = True
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # The loop was closed.
            while self._replied:
                with suppress(IndexError, ValueError):  # Another thread, or the end of its
                    self._replied.popleft()[1].close()  # task, may be closing it.
        except BaseException:
            self._rung = False  # An interrupt on the loop's own thread must not leave it deaf.
            raise

    def _wake(self) -> None:
        self._rung = False
        while self._replied:
            done, _ = self._replied.popleft()
            if not done.done():
                done.set_result(None)


_bells: WeakValueDictionary[int, Bell] = WeakValueDictionary()
"""By the loop's address in memory: a bell refers to its loop. Waiting tasks hold the bell. A strong
reference here would keep alive the tasks of a closed loop."""


def _bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    bell = _bells.get(id(loop))
    if bell is None:
        _bells[id(loop)] = bell = Bell(loop)
    return bell


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

        def begun(*args: Any, **kwargs: Any) -> Operation[T]:
            """Begin once it is driven, so that an error shows no step to a user."""
            return (yield from function(*args, **kwargs))

        @wraps(function)
        def waiting(*args: Any, **kwargs: Any) -> T:
            return drive(begun(*args, **kwargs))

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> T:
            return await drive_async(begun(*args, **kwargs))

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
