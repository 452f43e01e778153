"""Functions and coroutine functions that run under a lock named after their arguments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import fencelock
from fencelock import aio

PATIENCE_S = 60
CLUSTER = "faces"


@pytest.fixture
def client(paxos_addresses: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        yield client


def test_a_function_holds_the_lock_of_its_arguments_while_it_runs(
    client: fencelock.Client,
) -> None:
    @client.locked("report/{day}/{kind}", timeout=5)
    def report(day: str, *, kind: str = "short") -> tuple[bool, bool]:
        """Write a report."""
        long, short = (client.lock(f"report/{day}/{one}").locked() for one in ("long", "short"))
        return long, short

    assert report("monday") == (False, True)
    assert report(day="monday", kind="long") == (True, False)
    assert report.__doc__ == "Write a report."
    assert not client.lock("report/monday/short").locked()


def test_a_call_that_is_not_granted_in_time_raises_and_the_function_does_not_run(
    client: fencelock.Client,
) -> None:
    ran: list[str] = []

    @client.locked("taken/{name}", timeout=0.1, label="nightly")
    def work(name: str) -> None:
        ran.append(name)

    with client.lock("taken/x"):
        with pytest.raises(TimeoutError):
            work("x")
        work("y")
    work("x")
    assert ran == ["y", "x"]


def test_an_error_of_the_function_goes_on_and_the_lock_is_released(
    client: fencelock.Client,
) -> None:
    @client.locked("fails")
    def work() -> None:
        raise KeyError("body")

    with pytest.raises(KeyError):
        work()
    assert not client.lock("fails").locked()


def test_a_coroutine_function_holds_the_lock_while_it_runs(paxos_addresses: str) -> None:
    async def run() -> None:
        async with aio.connect(
            paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S
        ) as client:
            inside: list[int] = []

            @client.locked("job/{number}", timeout=PATIENCE_S)
            async def work(number: int) -> bool:
                inside.append(number)
                assert inside.count(number) == 1
                held = await client.lock(f"job/{number}").locked()
                inside.remove(number)
                return held

            calls = (work(number % 3) for number in range(12))
            assert await asyncio.gather(*calls) == [True] * 12
            assert not await client.lock("job/0").locked()
            with pytest.raises(TypeError, match="not a coroutine function"):
                client.locked("job")(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    asyncio.run(run())


def test_what_cannot_be_locked_is_refused_when_it_is_decorated(client: fencelock.Client) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"fencelock\.aio"):
        client.locked("x")(coroutine)
    for function in (generator, async_generator):
        with pytest.raises(TypeError, match="is a generator"):
            client.locked("x")(function)
    with pytest.raises(TypeError, match="has no parameter 'day'"):
        client.locked("report/{day}")(print)
