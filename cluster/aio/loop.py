"""How a task waits for an operation, and how a loop is told what the session says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.cluster.herald import call_guarded
from holdfast.cluster.hold import Callback, Notice
from holdfast.cluster.host.reply import Reply
from holdfast.cluster.operation import Operation, Wait

T = TypeVar("T")


async def drive(operation: Operation[T]) -> T:
    """Carry ``operation`` out in this task, which awaits each answer.

    Raises:
        BaseException: whatever ends the operation. A cancellation is thrown in at the
            wait, so that the operation can undo what it began.

    """
    try:
        wait = next(operation)
        while True:
            try:
                answer = await _answer(wait, operation)
            except BaseException as error:  # noqa: BLE001  # The operation decides.
                wait = operation.throw(error)
            else:
                wait = operation.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        operation.close()  # An interrupt between two lines of this function ends it, too.


async def _answer(wait: Wait, operation: Operation[Any]) -> Any:
    async with asyncio.timeout(wait.limit_s):
        await _until_done(wait.reply, operation)
    return wait.reply.get(timeout=0)


async def _until_done(reply: Reply, operation: Operation[Any]) -> None:
    """Return once ``reply`` has its answer, which another thread gives.

    If the loop is closed by then its tasks never run again: ``operation`` is ended there and
    then, so that it undoes what it began, and nothing is held by a task that is no more.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # The loop was closed.
            with suppress(ValueError):  # It is being ended where its task is destroyed.
                operation.close()

    reply.add_done_callback(wake)
    await done


class LoopHerald:
    """Calls callbacks on the loop of the client: as all code there, they must not block."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def call(self, callback: Callback, notice: Notice) -> None:
        """Have ``callback`` called with ``notice`` (Herald)."""
        with suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._call, callback, notice)

    def stop(self, timeout: float) -> None:
        """Call nobody any more (Herald)."""
        del timeout
        self._stopped = True

    def _call(self, callback: Callback, notice: Notice) -> None:
        if not self._stopped:
            call_guarded(callback, notice)
