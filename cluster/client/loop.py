"""Running operations in asyncio tasks, and waking the loop for answers from other threads.

`asyncio` takes a tenth of the time to import of all that a client needs, so a blocking client does
not import it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary, ref

from fencelock.actors.error import FencelockError
from fencelock.cluster.client.callback_executor import log_failure
from fencelock.cluster.client.operation import AwaitReply, Operation
from fencelock.cluster.host.pending_asks import AskReply

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def drive_async(operation: Operation[T]) -> T:
    """Carry out ``operation`` in this task, which awaits each answer.

    Raises:
        BaseException: the error that ends the operation. A cancellation is thrown in at the wait,
            so that the operation can undo its steps.

    """
    import asyncio  # noqa: PLC0415 (see above, as for the others)

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
    except (FencelockError, KeyboardInterrupt) as error:
        operation.close()  # It also undoes its steps after an interrupt in this function.
        error.__traceback__ = None  # The steps of the operation say nothing to a user.
        raise
    except BaseException:
        operation.close()
        raise


Waiter = tuple["asyncio.Future[None]", Operation[Any]]
"""The future that a task awaits, and the operation that it drives."""


class Bell:
    """Wakes a loop when other threads answer: once for all answers until the loop reads them.

    To wake a loop costs a thread some ten times as much as the answer itself.
    """

    latest: ClassVar[ref[Bell] | None] = None
    """The bell that was used last: most programs have one loop."""

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


_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Bell]] = WeakKeyDictionary()
"""Held by waiting tasks. A strong reference here would keep alive the tasks of a closed loop."""


def _bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    bell = None if Bell.latest is None else Bell.latest()
    if bell is not None and bell.loop is loop:
        return bell
    known = _bells.get(loop)
    bell = None if known is None else known()
    if bell is None:
        bell = Bell(loop)
        _bells[loop] = ref(bell)
    Bell.latest = _bells[loop]
    return bell


class LoopExecutor:
    """Calls callbacks on the client's loop, where no code may block."""

    def __init__(self) -> None:
        self.failed = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def bind(self) -> None:
        """Call callbacks on the loop that runs here, unless there is one already.

        Raises:
            RuntimeError: no loop runs here.

        """
        import asyncio  # noqa: PLC0415

        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def call(self, callback: Callable[[T], object], argument: T) -> None:
        if self._loop is None:
            return  # Nothing is held yet.
        with suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._call, callback, argument)

    def stop(self, timeout: float) -> None:
        """Start no further callback (CallbackExecutor)."""
        self._stopped = True

    def _call(self, callback: Callable[[T], object], argument: T) -> None:
        if self._stopped:
            return
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # The user's code, for which no caller waits.
            self.failed += 1
            context = {"message": log_failure(argument, error), "exception": error}
            assert self._loop is not None
            self._loop.call_exception_handler(context)
