"""The one place where Pykka, time and effects meet a role."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

import pykka

from fencelock.actors.effect import Effects, Observe
from fencelock.actors.message import Address, Event, Instant

E = TypeVar("E", bound=Event)


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


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way into a role's inbox, with the address that sent it."""

    sender: Address
    event: Event


class Inbox:
    """Pykka's inbox, as a pass-through: what Pykka puts in goes straight to the host.

    Pykka makes an actor's inbox before the actor knows its host, so the host sets
    ``forward`` when it adopts the role. An inbox without a host refuses.
    """

    __slots__ = ("forward",)

    def __init__(self) -> None:
        self.forward: Any = None

    def put(self, envelope: Any, /) -> None:
        """Hand a Pykka envelope to the host of this inbox's role; from any thread."""
        if self.forward is None:
            raise pykka.ActorDeadError("the role was never started")
        self.forward(envelope.message, envelope.reply_to)

    def get(self) -> Any:
        """Refuse: the dispatcher takes events from its own ready-queue."""
        raise NotImplementedError("a role's inbox is emptied by its host")

    def empty(self) -> bool:
        """Return True: nothing is ever stored here."""
        return True


class Role(pykka.Actor, abc.ABC, Generic[E]):
    """A Pykka actor whose every decision is a pure function of its inputs.

    A subclass keeps its state in plain attributes and implements `handle`. It must not
    read a clock, draw from ``random``, sleep, log as a means of signalling, or hold a
    reference to another actor: its inputs arrive as arguments, and its outputs leave as
    effects. So one class runs behind sockets and, unstarted, in the simulator.

    ``Role[A | B]`` names the events that `handle` accepts; both hosts drop and count all
    others before they reach the role.
    """

    accepts: ClassVar[frozenset[type[Event]]] = frozenset()
    """The events that `handle` accepts, from ``Role[...]``. Others are dropped."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        bases: tuple[Any, ...] = vars(cls).get("__orig_bases__", ())
        for base in bases:
            if get_origin(base) is Role:
                (events,) = get_args(base)
                cls.accepts = frozenset(get_args(events) or (events,))

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__()
        self.address = address
        self._host = host

    def begin(self, now: Instant) -> Effects:
        """Return the role's first effects. Called once, before any event."""
        del now
        return ()

    @abc.abstractmethod
    def handle(self, sender: Address, event: E, now: Instant) -> Effects:
        """Move to the next state and return what should happen."""

    def state(self) -> Mapping[str, Any]:
        """Return the role's state: its attributes without Pykka's and the host."""
        hidden = {"address", "actor_urn", "actor_inbox", "actor_stopped"}
        return {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name not in hidden
        }

    def on_start(self) -> None:
        """Take the first turn (Pykka's hook)."""
        self._host.perform(self.address, self.begin(self._host.now()))

    def on_receive(self, message: Any) -> None:
        """Take one turn with a `Delivery` (Pykka's hook).

        The clock is read here, when the message is handled, and not when it was queued. A
        lease judged by the time of queueing could outlive itself by the time in the inbox.
        """
        if not isinstance(message, Delivery) or type(message.event) not in self.accepts:
            self._host.perform(self.address, (Observe("role.stranger_dropped"),))
            return
        event: Any = message.event
        self._host.perform(self.address, self.handle(message.sender, event, self._host.now()))

    @staticmethod
    def _create_actor_inbox() -> Any:
        return Inbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self._host.adopt(self)
