"""Lazy clients, which connect at their first use; the default client of a process is one.

A lazy client and its objects refer to a `LazyConnection`, which stands for the real one. That is
made when something is first asked of the cluster: once for a process, and for asyncio once for a
loop. A forked process finds its parent's connection and makes its own, so objects made before a
fork work after it. Holds refer to the real connection, so those of the parent stay the parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from fencelock.actors.error import ClosedError, ConfigError
from fencelock.actors.message import Event
from fencelock.cluster.client.callback_executor import (
    CallbackExecutor,
    LoopExecutor,
    ThreadExecutor,
)
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.hold_registry import HoldRegistry
from fencelock.cluster.client.operation import Operation, drive, drive_async
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.client.settings import TTL_S, Settings, Target
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.scheduler import READ_CLOCK

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class LazyConnection(Connection):
    """Stands for the connection of a lazy client here and now, which `present` makes.

    Args:
        settings: returns the arguments of `connect`, when they are first needed.
        retain: the default of `lock`'s ``retain`` (s).
        reopens: whether the client may be used again after it was closed.

    """

    def __init__(
        self, settings: Callable[[], Settings], *, retain: float = 0.0, reopens: bool = False
    ) -> None:
        self._settings = settings
        self._reopens = reopens
        self._closed = False
        self._made: dict[object, Connection] = {}
        """The connections by their places; in a forked process first those of its parent."""
        self.protocol = ""
        self._retain = retain
        self.hold_registry = HoldRegistry(READ_CLOCK, {}, {}, ThreadExecutor(), _Nobody().tell)
        self.line = SessionChannel(_Nobody(), self.hold_registry)
        self.line.closed = True
        self.line.present = self.present

    def present(self) -> Connection:
        """Return the connection of this process and, for asyncio, of the running loop."""
        place = self._place()
        if (open_one := self._open(place)) is not None:
            return open_one
        with _making[-1]:
            if (open_one := self._open(place)) is not None:
                return open_one
            self.check()
            self._forget_ended()
            made = Connection(self._settings(), self._executor())
            if (open_one := self._open(place)) is not None:  # By a signal's handler, meanwhile.
                made.stop()
                return open_one
            made.line.present = self.present
            made.hold_registry.listeners = self.hold_registry.listeners
            self._made[place] = made
            self._began(made)
            if self._closed:  # By another thread, meanwhile.
                made.stop()
                self.check()
            return made

    def _open(self, place: object) -> Connection | None:
        """Return the connection of a place, if there is one that can be used here."""
        made = self._made.get(place)
        return None if made is None or made.line.closed or made.line.forked else made

    def check(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed: connect anew")

    @property
    def is_connected(self) -> bool:
        """Whether this process has connected, and not closed the client since."""
        return any(not (one.line.closed or one.line.forked) for one in list(self._made.values()))

    def closing(self) -> Operation[None]:
        """Close the connection of this process, or of the running loop."""
        self._closed = not self._reopens
        made = self._made.pop(self._place(), None)
        if made is not None:
            yield from made.closing()

    def close_all(self) -> None:
        """Close the connections of all loops, where no loop need run. It may be used again."""
        for made in list(self._made.values()):
            drive(made.closing())
        self._made.clear()

    def _place(self) -> object:
        """Return what each connection is for."""
        return None

    def _executor(self) -> CallbackExecutor:
        return ThreadExecutor()

    def _began(self, made: Connection) -> None:
        """Note that ``made`` is used here."""

    def _forget_ended(self) -> None:
        """Forget connections that cannot be used any more."""

    def __str__(self) -> str:
        return "not connected" if not self.is_connected else str(self.present())


class LoopConnection(LazyConnection):
    """Stands for the connection of a lazy client of the running loop.

    It ends with its loop: when `asyncio.run`, or whoever runs the loop, shuts down its asynchronous
    generators. If nobody does, it ends when the client is next used in another loop.
    """

    def __init__(
        self, settings: Callable[[], Settings], *, retain: float = 0.0, reopens: bool = False
    ) -> None:
        super().__init__(settings, retain=retain, reopens=reopens)
        self._endings: dict[object, AsyncGenerator[None]] = {}

    def _place(self) -> object:
        import asyncio  # noqa: PLC0415 (see operation.py)

        return asyncio.get_running_loop()

    def _executor(self) -> CallbackExecutor:
        return LoopExecutor()

    def _began(self, made: Connection) -> None:
        ending = _closing_at_end(made)
        with suppress(StopIteration):  # From here on the loop knows the generator.
            ending.asend(None).send(None)
        self._endings[self._place()] = ending

    def _forget_ended(self) -> None:
        for loop, made in list(self._made.items()):
            if cast("AbstractEventLoop", loop).is_closed():
                made.stop_later()
                del self._made[loop]
        self._endings = {loop: self._endings[loop] for loop in list(self._made)}

    def __str__(self) -> str:
        return "not connected" if not self.is_connected else "connected"


async def _closing_at_end(made: Connection) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await drive_async(made.closing())


class _Nobody:
    """The session of a client that has not connected: nothing is sent to it."""

    def submit(self, message: Event, reply: AskReply) -> None:
        raise AssertionError(message)

    def abandon(self, reply: AskReply) -> None:
        raise AssertionError(reply)

    def tell(self, message: Event) -> None:
        raise AssertionError(message)


_making = [threading.RLock()]
"""Held while a connection is made, which the handler of a signal may interrupt and do itself. A
forked process takes another one: its parent's may be held."""
if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=lambda: _making.append(threading.RLock()))


class Defaults:
    """The arguments of the default clients: those of `configure`, else the environment's."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._clients: list[LazyConnection] = []

    def add(self, client: LazyConnection) -> LazyConnection:
        self._clients.append(client)
        return client

    def settings(self) -> Settings:
        return self._settings or Settings(Target.find(None, None))

    def configure(
        self,
        addresses: str | Sequence[str] | None = None,
        *,
        cluster: str | None = None,
        ttl: float = TTL_S,
        label: str | None = None,
        key: str | os.PathLike[str] | None = None,
        stay: bool = False,
    ) -> None:
        """Set the arguments of the default clients, of threads and of asyncio.

        Without it they take what `connect` takes without arguments: the environment variables
        ``FENCELOCK_CONNECT``, ``FENCELOCK_CLUSTER`` and ``FENCELOCK_KEY``, or ``./cluster.toml``.
        The arguments are those of `connect`. Nothing is sent.

        Raises:
            ConfigError: an argument is not usable, or a default client has connected already: call
                this before its first use, or `close` it.

        """
        if any(client.is_connected for client in self._clients):
            raise ConfigError(
                "the default client is connected already: call configure before its first use, or "
                "close it first, with fencelock.close() or await fencelock.aio.close()"
            )
        target = Target.find(addresses, cluster, key)
        self._settings = Settings(target, ttl=ttl, label=label, stay=stay)

    def reset(self) -> None:
        """Close the default clients, and forget their arguments. Tests do so between each other."""
        for client in self._clients:
            client.close_all()
        self._settings = None


defaults = Defaults()
"""Those of this process."""
