from __future__ import annotations

from typing import TypeVar

import pytest

from holdfast.actors.effect import Effects, Send
from holdfast.actors.lock.desk import CLAIMS_MAX
from holdfast.actors.lock.message import (
    Acquire,
    Inspect,
    Reason,
    Refused,
    Release,
)
from holdfast.actors.lock.name import LOCK_NAME_BYTES_MAX, WAIT_MS_MAX
from holdfast.actors.lock.proxy import Proxy
from holdfast.actors.message import Address, Event, Instant
from holdfast.actors.role import Role

PROXY = Address("n1/proxy")
BACKEND = Address("n1/process")
ANN = Address("ann/session")
BOB = Address("bob/session")
ASK = Address("n1/ask-1")
T0 = Instant(0)
S = TypeVar("S")


class NoHost:
    def now(self) -> Instant:
        return T0

    def perform(self, source: Address, effects: Effects) -> None:
        raise AssertionError((source, effects))

    def adopt(self, role: Role[Event]) -> None:
        raise AssertionError(role)


@pytest.fixture
def proxy() -> Proxy:
    return Proxy(
        PROXY, NoHost(), node="n1", nodes=("n1", "n2"), protocol="lamport", backend=BACKEND
    )


def sent(effects: Effects, kind: type[S]) -> list[S]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def acquire(request: int) -> Acquire:
    return Acquire(lock="a", session="ann", owner="o", request=request)


def test_claims_have_a_limit(proxy: Proxy) -> None:
    for number in range(CLAIMS_MAX):
        proxy.handle(ANN, Acquire(lock=f"l{number}", session="ann", request=number), T0)
    effects = proxy.handle(ANN, acquire(request=CLAIMS_MAX + 1), T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.OVERLOADED
    assert str(CLAIMS_MAX) in refused.detail


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Acquire(lock="", session="ann"), "0 bytes"),
        (Acquire(lock="x" * 300, session="ann"), f"1 to {LOCK_NAME_BYTES_MAX}"),
        (Acquire(lock="a\n", session="ann"), "do not print"),
        (Acquire(lock="a", session="ann", owner="o" * 300), "owner of 300 bytes"),
        (Acquire(lock="a", session="ann", wait_ms=-1), "wait_ms is -1"),
        (Acquire(lock="a", session="ann", wait_ms=WAIT_MS_MAX + 1), str(WAIT_MS_MAX)),
        (Acquire(lock="a", session="bob"), "session 'bob' is not the client 'ann' itself"),
        (Release(lock="a", session="bob", fence=1), "session 'bob'"),
        (Acquire(lock="a", session="ann", owner="\ud800"), "do not print"),
        (Inspect(lock="", session="ann"), "0 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_bad_request_is_told_its_field_value_and_limit(
    proxy: Proxy, request_: Acquire | Release | Inspect, told: str
) -> None:
    (refused,) = sent(proxy.handle(ANN, request_, T0), Refused)
    assert refused.reason is Reason.INVALID
    assert told in refused.detail
