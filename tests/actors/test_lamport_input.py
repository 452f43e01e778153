"""Invalid messages of peers are counted and dropped, and change nothing."""

from __future__ import annotations

import pytest
from support.effects import HOST, T0

from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.effect import Effects, Observe
from fencelock.actors.lamport.message import (
    Content,
    Delivered,
    KnownRequest,
    Neighbors,
    PeerJoined,
    Request,
    Welcome,
)
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.message import Address


@pytest.fixture
def process() -> LockProcess:
    process = LockProcess(
        Address("b/process"),
        HOST,
        node="b",
        boot=9,
        clock=Address("b/clock"),
        proxy=Address("b/proxy"),
    )
    process.handle(Address("b/node"), Neighbors(nodes=("a", "b")), T0)
    process.handle(Address("b/channel"), PeerJoined(node="a", boot=1), T0)
    return process


def hear(process: LockProcess, origin: str, message: Content) -> Effects:
    delivered = Delivered(origin=origin, message=message)
    return process.handle(Address("b/channel"), delivered, T0)


def test_a_stranger_is_not_heard(process: LockProcess) -> None:
    effects = hear(process, "z", Request(lock="x", stamp=5))

    assert effects == (Observe("lamport.stranger_dropped"),)


@pytest.mark.parametrize("stamp", [-1, 0, 3, STAMP_MAX + 1])
def test_a_stamp_that_does_not_rise_is_dropped(process: LockProcess, stamp: int) -> None:
    hear(process, "a", Request(lock="y", stamp=3))
    effects = hear(process, "a", Request(lock="x", stamp=stamp))

    assert effects == (Observe("lamport.impossible_stamp"),)
    assert list(process.requests.queues) == ["y"]


@pytest.mark.parametrize("stamp", [-1, 0, 9, 10])
def test_a_request_in_a_welcome_is_from_before_the_welcome(
    process: LockProcess, stamp: int
) -> None:
    pending = (KnownRequest("x", stamp),)
    welcome = Welcome(boot=9, round=1, requests=pending, complete=True, stamp=9)
    effects = hear(process, "a", welcome)

    assert Observe("lamport.impossible_stamp") in effects
    assert process.requests.queues == {}


@pytest.mark.parametrize("lock", ["", "x" * 257, "a\nb"])
def test_a_lock_name_beyond_the_limits_is_dropped(process: LockProcess, lock: str) -> None:
    effects = hear(process, "a", Request(lock=lock, stamp=5))

    assert effects == [Observe("lamport.impossible_lock")]
    assert process.requests.queues == {}
