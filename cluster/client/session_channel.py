"""The channel from a user's threads or tasks to the session role of their client."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, overload

import pykka

from fencelock.actors.api.lock_message import Inspect, LockStatus
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.error import (
    AcquireCancelledError,
    ClosedError,
    OverloadedError,
    UnavailableError,
)
from fencelock.actors.message import Event, Message
from fencelock.actors.session.refusals import UNKNOWN
from fencelock.cluster.client.operation import AwaitReply, Operation
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.transport.codec import encode

if TYPE_CHECKING:
    from fencelock.cluster.client.connection import Connection
    from fencelock.cluster.client.hold_registry import HoldRegistry

A = TypeVar("A")


class Uncopyable:
    """A client, or an object of one: the end of a copy would release what the original holds."""

    def __reduce__(self) -> NoReturn:
        """Refuse `copy` and `pickle`."""
        raise TypeError(
            f"cannot copy or pickle {self!r}: it belongs to one client of one process. Give "
            "another process the name, and make it anew there; `Hold.detach` hands a lock over"
        )


class SessionRole(Protocol):
    """The session role, as threads reach it, see `fencelock.cluster.host.role_ref.RoleRef`."""

    def submit(self, message: Event, reply: AskReply, /) -> None: ...
    def abandon(self, reply: AskReply, /) -> None: ...
    def tell(self, message: Event) -> None: ...


class SessionChannel:
    """Carries requests of any thread to the session, and refuses them when there is none.

    The objects of a client and their holds refer to it, and no thread of the client does. So when
    the last of them is dropped without `Client.close`, the channel stops the client.
    """

    present: Callable[[], Connection] | None = None
    """Of a lazy client: returns its connection here and now, which it may have to make."""
    dropped: Callable[[], None] | None = None
    """Stops the client in the background; None if the channel has none of its own."""
    later: Callable[[Callable[[], None]], object] | None = None
    """Runs a call on the client's own thread, where no lock of the client is held."""

    def __init__(self, session: SessionRole, registry: HoldRegistry) -> None:
        self.closed = False
        self.registry = registry
        """The owners of the client, whose requests it carries."""
        self.submit = session.submit
        """Send a request without waiting. Call `check` first.

        The request must be well-typed: check a user's arguments before.
        """
        self.ends_at: float | None = None
        """The time by which `ask` must be answered (s, of ``time.monotonic``), if any."""
        self._session = session
        self._pid = os.getpid()
        self.forks = ForkCounter.forks

    def __del__(self) -> None:
        if self.dropped is not None and not (self.closed or self.forked):
            self.dropped()
            warnings.warn(
                "a fencelock client was dropped without close(); its locks are released",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that connected."""
        return ForkCounter.forks != self.forks

    def check(self) -> None:
        if ForkCounter.forks != self.forks:
            raise ClosedError(self.why_forked())
        if self.closed:
            raise ClosedError("this client is closed: connect anew")

    def why_forked(self) -> str:
        if self.present is not None:
            return (
                f"it belongs to process {self._pid}, which forked process {os.getpid()}: "
                "acquire or make it anew after a fork"
            )
        return (
            f"this client belongs to process {self._pid}, which forked process {os.getpid()}: "
            "connect anew after a fork, or once with connect(lazy=True)"
        )

    @overload
    def ask(self, message: RepliedBy[A]) -> Operation[A]: ...

    @overload
    def ask(self, message: Event) -> Operation[Any]: ...

    def ask(self, message: Any) -> Operation[Any]:
        """Send a request, and end with the session's answer, whenever it comes.

        A caller that stops waiting withdraws the request. A field of the wrong type, or a text with
        a surrogate, is refused before anything is sent.

        If the client is closed meanwhile, the session refuses the request as cancelled. That would
        promise that nothing changed, so the caller gets a `ClosedError`: only acquires, which leave
        nothing held then, are cancelled.
        """
        if isinstance(message, Message):
            encode(message)  # A user's arguments: roles trust the types of local messages.
        reply = AskReply()
        try:
            self.check()
            self.submit(message, reply)
            return (yield reply if self.ends_at is None else AwaitReply(reply, self.left_s()))
        except pykka.ActorDeadError:
            raise ClosedError(f"{closed_meanwhile()}{_unknown(message)}") from None
        except AcquireCancelledError as error:
            if not self.closed:
                raise
            raise ClosedError(str(error)) from None
        except BaseException as error:
            if reply.done:
                raise
            self.abandon(reply)
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"no node answered in time{_unknown(message)}") from None
            raise

    def left_s(self) -> float:
        """Return the time until ``ends_at`` (s), infinity without it."""
        return math.inf if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    def inspecting(self, lock: str, age_ms: int | None) -> Operation[LockStatus]:
        return self.ask(Inspect(lock=lock, age_ms=age_ms))

    def abandon(self, reply: AskReply) -> None:
        """Make the session forget a request, and cancel its effect."""
        if not self.forked:
            self._session.abandon(reply)

    def tell(self, message: Event) -> None:
        """Send ``message`` if the session can be reached; if not, open requests fail elsewhere."""
        if not self.forked:
            with contextlib.suppress(pykka.ActorDeadError, OverloadedError):
                self._session.tell(message)


def _unknown(message: object) -> str:
    """Return what the text of an error adds if ``message`` may have changed something."""
    changes = isinstance(message, UpdateRequest) and not message.IDEMPOTENT
    return f"; {UNKNOWN}" if changes else ""


def closed_meanwhile() -> ClosedError:
    return ClosedError("this client was closed before an answer came")
