"""How a task waits for an operation, and how a loop is told what the session says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary, ref

from fencelock.cluster.callback_executor import call_guarded
from fencelock.cluster.host.reply import Reply
from fencelock.cluster.operation import Operation, Wait

T = TypeVar("T")


async def drive(operation: Operation[T]) -> T:
    """Carry ``operation`` out in this task, which awaits each answer.

    Raises:
        BaseException: whatever ends the operation. A cancellation is thrown in at the
            wait, so that the operation can undo what it began.

    """
    try:
        wait = next(operation)
        bell = _bell_of(asyncio.get_running_loop())
        while True:
            try:
                if isinstance(wait, Wait):
                    reply = wait.reply
                    async with asyncio.timeout(wait.limit_s):
                        await bell.until_done(reply, operation)
                else:
                    reply = wait
                    await bell.until_done(reply, operation)
                answer = reply.get(timeout=0)
            except BaseException as error:  # noqa: BLE001  # The operation decides.
                wait = operation.throw(error)
            else:
                wait = operation.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        operation.close()  # An interrupt between two lines of this function ends it, too.


Waiter = tuple["asyncio.Future[None]", Operation[Any]]
"""What a task waits for, and the operation it carries out."""


class Bell:
    """Tells a loop of answers, which other threads give: of all that came before it listens, once.

    To wake a loop costs a thread some ten times what the answer itself does.
    """

    latest: ClassVar[ref[Bell] | None] = None
    """The one that was used last: most programs have one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answered: deque[Waiter] = deque()
        self._rung = False

    def until_done(self, reply: Reply, operation: Operation[Any]) -> asyncio.Future[None]:
        """Return what is done once the answer that ``operation`` waits for is there.

        If the loop is closed by then its tasks never run again: ``operation`` is ended there and
        then, so that it undoes what it began, and nothing is held by a task that is no more.
        """
        done = self.loop.create_future()
        reply.add_done_callback(partial(self._ring, (done, operation)))
        return done

    def _ring(self, waiter: Waiter) -> None:
        """Have the loop told that ``waiter`` has its answer; on the thread that gave it."""
        self._answered.append(waiter)
        if self._rung and not self.loop.is_closed():
            return  # The loop unsets it first and looks then.
        self._rung = True
        try:
            self.loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # The loop was closed.
            while self._answered:
                with suppress(IndexError, ValueError):  # It is being ended where its task is
                    self._answered.popleft()[1].close()  # destroyed, or by another thread.
        except BaseException:
            self._rung = False  # An interrupt on the loop's own thread must not leave it deaf.
            raise

    def _tell(self) -> None:
        self._rung = False
        while self._answered:
            done, _ = self._answered.popleft()
            if not done.done():
                done.set_result(None)


_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Bell]] = WeakKeyDictionary()
"""Tasks that wait keep their bell. Kept here, it would keep the tasks of a loop that was closed."""


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
    """Calls callbacks on the loop of the client: as all code there, they must not block."""

    def __init__(self) -> None:
        self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def call(self, callback: Callable[[T], object], news: T) -> None:
        """Have ``callback`` called with ``news`` (Herald)."""
        with suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._call, callback, news)

    def stop(self, timeout: float) -> None:
        """Call nobody any more (Herald)."""
        del timeout
        self._stopped = True

    def _call(self, callback: Callable[[T], object], news: T) -> None:
        if not self._stopped:
            self.failed += not call_guarded(callback, news)
