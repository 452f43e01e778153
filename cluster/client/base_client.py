"""The common base of the blocking and the asyncio client; nothing in it waits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any

from fencelock.actors.session.event import ClusterState
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import (
    Callback,
    ClusterCallback,
    Notifying,
    check_callback,
)
from fencelock.cluster.client.connection import Connected
from fencelock.cluster.client.operation import Operation, operation


class BaseClient(Connected, Notifying):
    """The part of a client that neither waits nor makes objects: session, protocol, callbacks."""

    @property
    def session(self) -> str:
        """The id of this client; `Lock.status` may show it with the number of its session."""
        return self._connection.session

    @property
    def protocol(self) -> str:
        """The protocol that the cluster runs; empty if the client is lazy and has not asked."""
        return self._connection.protocol

    def _listen(self, state: HoldState, callback: Callback) -> None:
        self._given.hold_registry.listeners.add(state, callback)

    @property
    def cluster(self) -> ClusterState:
        """The last known state of the cluster; see `on_cluster` for its meaning.

        The first use subscribes: from then on the client receives changes, and it keeps its
        session alive until it is closed. Until a node has reported, the state is not up.

        Raises:
            UnsupportedError: the protocol's nodes do not report it (`bakery` does).
            ClosedError: the client is closed, or this process was forked from its own.

        """
        return self._connection.watching().last()

    def on_cluster(self, callback: ClusterCallback) -> None:
        """Call ``callback`` when the cluster goes up or down, or becomes ready or not ready.

        The callback receives a `ClusterState`, as known to the node that the client uses: first
        the present one, then each that differs. States that passed while the client was slow are
        left out. When the client loses its node and no other node reports for a second, the
        callback receives an unknown state: not up, not ready. A broken connection is noticed at
        once, a silent node within some six seconds, sooner with a shorter ``ttl``. See `on_lost`
        for the thread that runs callbacks and for their exceptions.

        Raises:
            UnsupportedError: as for `cluster`.
            ClosedError: as for `cluster`.
            TypeError: ``callback`` is not callable, or is a coroutine function.

        """
        check_callback(callback, "ClusterState")
        self._connection.watching().add(callback)

    @operation
    def close(self) -> Operation[None]:
        """Release all holds, cancel all waits, and leave nothing running.

        Waits up to 2 s until reachable nodes confirm. Of the calls of other threads or tasks that
        wait meanwhile, an acquire of a lock or of another object that is held raises
        `AcquireCancelledError`, and leaves nothing held. Any other raises `ClosedError`, whose text
        says if it is unknown whether the call took effect. Closing again, or in a forked process,
        does nothing.
        """
        return self._given.closing()

    @property
    def callbacks_failed(self) -> int:
        """The number of callbacks that raised an exception; see `on_lost`."""
        return self._connection.executor.failed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._given}>"


def check_template(template: object) -> None:
    if not isinstance(template, str):
        raise TypeError(
            f"locked takes the name of a lock, and was given {template!r}: write "
            '@locked("report/{day}")'
        )


def described(function: object) -> str:
    """Return the name of a function; of another callable object, its ``repr``."""
    return getattr(function, "__qualname__", None) or repr(function)


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that formats ``template`` with the arguments of a call of ``function``.

    Refuse a generator, whose calls return before its work is done, a class method, which is not a
    function yet, and a ``template`` with a field that is no parameter.
    """
    if isinstance(function, classmethod):
        raise TypeError("locked decorates functions: write it below @classmethod, not above")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{described(function)} is a generator: take the lock inside it")
    signature = inspect.signature(function)
    for _, field, _, _ in Formatter().parse(template):
        if field is None:
            continue
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            raise TypeError(f"{template!r}: {described(function)} has no parameter {parameter!r}")

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name
