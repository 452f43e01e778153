"""The one place where Pykka, time and effects meet a role."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar, get_args, get_origin

import pykka

from fencelock.actors.effect import Effects, Observe
from fencelock.actors.message import Address, Event, Instant, with_derived

E = TypeVar("E", bound=Event)

Summary = tuple[tuple[str, str | int], ...]
"""Names and values. A value of type `bool` is shown as ``yes`` or ``no``."""

Facts = Iterable[tuple[str, str | int]]
"""The same, as many as there are."""


class Host(Protocol):
    """The environment of a role: one dispatcher thread with sockets, or the simulator."""

    def now(self) -> Instant:
        """Read the clock; never goes back."""
        ...

    def perform(self, source: Address, effects: Effects) -> None:
        """Perform ``effects`` in order; a `Persist` is durable before the next begins."""
        ...

    def adopt(self, role: Role[Any]) -> None:
        """Begin to run ``role``: give it its first turn, then the events sent to it."""
        ...


class NoInbox:
    """The inbox of a role, which is always empty: events wait in the queue of the role's host.

    Pykka gives every actor an inbox. The reference of a started role does not use it.
    """

    __slots__ = ()

    def put(self, envelope: Any, /) -> None:
        raise pykka.ActorDeadError("the role was never started")

    def get(self) -> Any:
        raise NotImplementedError("a role has no inbox of its own")

    def empty(self) -> bool:
        return True


class AcceptedEvents:
    """The attribute `Role.accepts`: the events that a role's class names, and their subclasses.

    A message that is declared later is also accepted.
    """

    def __get__(self, role: Role[Any] | None, cls: type[Role[Any]]) -> frozenset[type[Event]]:
        """Return the events that ``cls`` accepts, or those that ``role`` names itself."""
        owner = cls if role is None else role
        named = owner._named  # pyright: ignore[reportPrivateUsage]  # It is a part of `Role`.
        return with_derived(named)


class Role(pykka.Actor, abc.ABC, Generic[E]):
    """A Pykka actor whose every decision is a pure function of its inputs.

    A subclass keeps its state in plain attributes and implements `handle`. It must not
    read a clock, draw from ``random``, sleep, log as a means of signalling, or hold a
    reference to another actor: its inputs arrive as arguments, and its outputs leave as
    effects. So one class runs behind sockets and, unstarted, in the simulator.

    ``Role[A | B]`` names the events that `handle` accepts; both hosts drop and count all
    others before they reach the role. A base of messages stands for all of them. A role that
    accepts more, depending on how it was made, sets ``_named`` in its constructor.
    """

    accepts = AcceptedEvents()
    """The events that `handle` accepts, from ``Role[...]``. Others are dropped."""
    _named: tuple[type[Event], ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        bases: tuple[Any, ...] = vars(cls).get("__orig_bases__", ())
        for base in bases:
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Role):
                (events,) = get_args(base)
                cls._named = get_args(events) or (events,)

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__()
        self.address = address
        self._host = host

    @classmethod
    def start(  # pyright: ignore[reportIncompatibleMethodOverride]  # It misreads Pykka's `Self`.
        cls, *args: Any, **kwargs: Any
    ) -> pykka.ActorRef[Self]:
        """Start the role on the host that is its second argument, and return its reference.

        The host registers the role in `pykka.ActorRegistry` before the role's first turn.
        Pykka's own `start` would register a reference that the host does not know.
        """
        role = cls(*args, **kwargs)
        role._start_actor_loop()
        return role.actor_ref

    def begin(self, now: Instant) -> Effects:
        """Return the role's first effects. Called once, before any event."""
        return ()

    @abc.abstractmethod
    def handle(self, sender: Address, event: E, now: Instant) -> Effects:
        """Move to the next state and return the effects to perform."""

    def summary(self) -> Summary:
        """Return the facts about the role that an operator needs first, for `DescribeRole`.

        The names are ASCII. The host cuts texts that are longer than
        `fencelock.actors.role_message` allows.
        """
        return ()

    def facts(self, now: Instant) -> Facts:
        """Return what the protocol's author would want to see of the role, for `ReadState`.

        What matters most comes first: the host cuts what is longer than
        `fencelock.actors.api.role_request` allows, and does not iterate further. Here: the summary.
        """
        return self.summary()

    def state(self) -> Mapping[str, Any]:
        """Return the role's state: its attributes without Pykka's and the host."""
        hidden = {"address", "actor_urn", "actor_inbox", "actor_stopped"}
        return {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name not in hidden
        }

    def on_receive(self, message: Any) -> None:
        """Count a message that the role does not accept (Pykka's hook)."""
        self._host.perform(self.address, (Observe("role.stranger_dropped"),))

    @staticmethod
    def _create_actor_inbox() -> Any:
        return NoInbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self._host.adopt(self)
