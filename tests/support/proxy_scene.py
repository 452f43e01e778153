"""A proxy of ``n1`` over a backend that a test plays, and its clients Ann and Bob."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.api.message import Acquire
from fencelock.actors.effect import Effect, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.lock_request import LockRequests
from fencelock.actors.proxy.message import LockGranted
from fencelock.actors.proxy.proxy import Proxy, Tick
from support.effects import HOST, T0

PROXY = Address("n1/proxy")
BACKEND = Address("n1/process")
ANN, BOB = Address("ann/session"), Address("bob/session")
ASK, LOCAL = Address("n1/ask-1"), Address("n1/session")


def proxy_of_n1() -> Proxy:
    """Return a new proxy."""
    return Proxy(PROXY, HOST, backend=LockManager("n1", ("n1", "n2"), "lamport", BACKEND))


def claims_of(proxy: Proxy) -> LockRequests:
    """Return the waits and holds of ``proxy``."""
    backend = proxy.backend
    assert isinstance(backend, LockManager)
    return backend.claims


def acquire(
    lock: str = "a", session: str = "ann", request: int = 1, wait_ms: int | None = None
) -> Acquire:
    """Return a request of owner ``o``."""
    return Acquire(lock=lock, session=session, owner="o", request=request, wait_ms=wait_ms)


def hold(proxy: Proxy, fence: int = 7) -> None:
    """Let Ann hold lock ``a`` through the proxy."""
    proxy.handle(ANN, acquire(), T0)
    proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=fence), T0)


def waits(effects: Sequence[Effect]) -> list[Wake]:
    """Return the timers that are set for requests."""
    return [e for e in effects if isinstance(e, Wake) and not isinstance(e.timer, Tick)]
