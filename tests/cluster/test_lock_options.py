"""Options of locks: locked functions, re-entry, and waiting for the own client."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.faces import FACES, Cables
from support.lock_scene import Scene
from support.real_nodes import until
from support.samples import fence_of

import fencelock
from fencelock import aio
from fencelock.actors.api.account import Purge, Quota
from fencelock.actors.api.lock_message import Acquire, Release
from fencelock.actors.api.name import OWNER_BYTES_MAX, WAIT_MS_MAX, check_owner
from fencelock.actors.api.role_request import SetLog
from fencelock.actors.error import (
    InvalidRequestError,
    LockOwnershipLostError,
    LockTimeoutError,
    UnavailableError,
)
from fencelock.actors.session import session
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.owner import (
    operator_named,
    owner_of_task,
    owner_of_thread,
    process_label,
)
from fencelock.cluster.client.settings import (
    Target,
    age_ms_of,
    check_text,
    term_ms_of,
    text_of,
    wait_ms_of,
)
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.node.config import loopback, starting_config


def test_minus_one_and_infinity_are_without_limit() -> None:
    assert wait_ms_of(-1) == wait_ms_of(float("inf")) == WAIT_MS_MAX


def test_waits_are_rounded_up_so_that_none_becomes_a_try() -> None:
    assert [wait_ms_of(s) for s in (None, 0, 0.0001, 1, 1.0004)] == [None, 0, 1, 1_000, 1_001]


def test_owners_are_never_alike_and_fit_their_limit() -> None:
    names: list[str] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: names.append(owner_of_thread()))
        thread.start()
        thread.join(PATIENCE_S)
    assert len({owner_of_thread(), *names}) == 21
    assert owner_of_thread() == owner_of_thread()
    names.clear()
    long = threading.Thread(target=lambda: names.append(owner_of_thread()), name="\u00e9\n" * 500)
    long.start()
    long.join(PATIENCE_S)
    check_owner(names[0])
    assert OWNER_BYTES_MAX - 2 <= len(names[0].encode()) <= OWNER_BYTES_MAX
    assert "#" in names[0]


async def test_a_task_is_an_owner_by_a_number_that_is_never_given_again() -> None:
    async def twice() -> str:
        await asyncio.sleep(0)
        assert owner_of_task() == owner_of_task()
        return owner_of_task()

    owners: list[str] = []
    for _ in range(10):  # One after the other: their addresses in memory repeat.
        owners.append(await asyncio.create_task(twice()))
        gc.collect()
    assert len(set(owners)) == 10
    for owner in owners:
        check_owner(owner)


async def test_outside_of_a_task_there_is_no_owner() -> None:
    text: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def look() -> None:
        try:
            owner_of_task()
        except RuntimeError as error:
            text.set_result(str(error))

    asyncio.get_running_loop().call_soon(look)
    assert "give the lock an owner" in await text


def test_people_see_host_and_process_and_an_operator_user_and_host() -> None:
    assert ":" in process_label(256)
    assert "@" in operator_named(None)
    assert operator_named("alice") == "alice"
    assert len(process_label(4)) == 4


def test_an_age_is_rounded_up_and_none_for_a_linearizable_read() -> None:
    assert age_ms_of("linearizable", 1.0) is None
    assert [age_ms_of("local", age) for age in (0, 0.0001, 1)] == [0, 1, 1_000]


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf"), 4_000])
def test_an_age_out_of_range_is_a_value_error(age: float) -> None:
    with pytest.raises(ValueError, match="max_age is"):
        age_ms_of("local", age)


def test_a_text_that_cannot_be_sent_is_refused_at_once(fencelock_client: fencelock.Client) -> None:
    client, text = fencelock_client, os.fsdecode(b"\xff")
    purge = Purge(kind="latch", prefix=text, operator="ann")
    for ask in (
        lambda: client.locks(text),
        lambda: client.maps(text),
        lambda: client.close_session(text),
        lambda: client.purge(purge),
        lambda: client.set_quota(text, Quota()),
        lambda: client.ref("local/log").ask(SetLog(level=text)),
    ):
        with pytest.raises(InvalidRequestError, match=r"the text '\\udcff' has a surrogate"):
            ask()


def test_a_read_of_another_kind_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="read is 'eventual'"):
        age_ms_of("eventual", 1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_first_that_names_addresses_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FENCELOCK_CONNECT", raising=False)
    monkeypatch.delenv("FENCELOCK_CLUSTER", raising=False)
    default = Target.find(None, None)
    assert default[:2] == ("tcp://127.0.0.1:4040", "fencelock")
    assert "neither FENCELOCK_CONNECT nor ./cluster.toml" in default.source
    (tmp_path / "cluster.toml").write_text(starting_config(loopback(2), cluster="shop"))
    both = "tcp://127.0.0.1:4041,tcp://127.0.0.1:4042"
    assert Target.find(None, None)[:3] == (both, "shop", "from ./cluster.toml")
    assert Target.find(None, "other")[:2] == (both, "other")
    monkeypatch.setenv("FENCELOCK_CONNECT", "tcp://a:1")
    assert Target.find(None, None)[:3] == ("tcp://a:1", "fencelock", "from FENCELOCK_CONNECT")
    monkeypatch.setenv("FENCELOCK_CLUSTER", "named")
    assert Target.find("tcp://b:2", None)[:3] == ("tcp://b:2", "named", "")
    assert Target.find("tcp://b:2", "c", "k") == ("tcp://b:2", "c", "", "k")
    monkeypatch.setenv("FENCELOCK_CLUSTER", "")  # As if it were not there.
    assert Target.find("tcp://b:2", None)[:3] == ("tcp://b:2", "fencelock", "")


def test_a_label_or_owner_of_another_type_is_refused() -> None:
    for field in ("label", "owner"):
        with pytest.raises(TypeError, match=f"{field} is 3, and must be str"):
            text_of(field, 3)


@pytest.mark.parametrize("text", ["x" * 257, "two\nlines"])
def test_a_label_that_does_not_print_or_fit_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="label"):
        check_text("label", text, InvalidRequestError)


@pytest.mark.parametrize("timeout", [-2, -0.001, float("nan"), float("-inf"), 1e9])
def test_a_timeout_out_of_range_is_a_value_error(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout is"):
        wait_ms_of(timeout)


def test_a_timeout_or_a_duration_of_another_type_is_a_type_error() -> None:
    wrong: Any = "5"
    with pytest.raises(TypeError, match="timeout is '5', and must be a number of seconds from 0"):
        wait_ms_of(wrong)
    with pytest.raises(TypeError, match="grace is '5', and must be a number of seconds above 0"):
        term_ms_of("grace", wrong)
    with pytest.raises(TypeError, match="max_age is '5', and must be a number of seconds from 0"):
        age_ms_of("local", wrong)


# Functions and coroutine functions that run under a lock named after their arguments


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


async def test_a_coroutine_function_holds_the_lock_while_it_runs(paxos_addresses: str) -> None:
    async with aio.connect(paxos_addresses, cluster=FACES, connect_timeout=PATIENCE_S) as client:
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


def test_a_function_that_cannot_be_locked_is_refused_when_it_is_decorated(
    client: fencelock.Client,
) -> None:
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
    with pytest.raises(TypeError, match="write it below @classmethod"):
        client.locked("x")(classmethod(print))  # type: ignore[arg-type]


class AsyncCall:
    """An object that is called as a coroutine function is."""

    async def __call__(self, day: str) -> str:
        return day


def test_objects_that_are_called_are_refused_as_functions_are(client: fencelock.Client) -> None:
    def generator(day: str) -> Iterator[str]:
        yield day

    for called in (AsyncCall(), partial(AsyncCall().__call__)):
        with pytest.raises(TypeError, match=r"is a coroutine function: use fencelock\.aio"):
            client.locked("x")(called)
    with pytest.raises(TypeError, match=r"partial\(.*\) is a generator"):
        client.locked("x")(partial(generator))
    with pytest.raises(TypeError, match=r"partial\(.*\) has no parameter 'month'"):
        client.locked("report/{month}")(partial(str.upper))
    with pytest.raises(TypeError, match=r"partial\(.*\) is not a coroutine function"):
        aio.locked("x")(partial(print))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert callable(aio.locked("report/{day}")(AsyncCall()))


def test_each_level_of_a_lost_hold_is_reported(scene: Scene) -> None:
    lock = scene.rlock()
    acquisitions: list[str] = []

    def work() -> None:
        with lock:
            with pytest.raises(LockOwnershipLostError), lock:
                scene.lose(fence=1)
            acquisitions.append("outer")

    with pytest.raises(LockOwnershipLostError):
        work()
    assert acquisitions == ["outer"]
    assert lock.state is HoldState.FREE


def test_an_unconfirmed_release_of_one_level_does_not_eat_the_next(scene: Scene) -> None:
    """The outer end of ``with`` waits for the inner release and then does its own."""
    lock = scene.rlock()
    with lock:
        with pytest.raises(UnavailableError), lock:
            scene.session.refusal = UnavailableError("silent")
        scene.session.refusal = None
        assert lock.held
    assert scene.session.count == 0
    assert lock.state is HoldState.FREE


def test_a_release_in_the_background_is_noticed_when_it_is_asked_for_again(scene: Scene) -> None:
    lock = scene.rlock()
    lock.acquire()
    lock.acquire()
    scene.session.refusal = UnavailableError("silent")
    with pytest.raises(UnavailableError):
        lock.release()
    scene.session.refusal, scene.session.count = None, 1  # The first was done meanwhile.
    lock.release()
    assert lock.state is HoldState.FREE


def test_an_acquire_waits_for_the_release_that_was_interrupted_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, session = scene.lock(), scene.session
    lock.acquire()
    session.mute = True
    interrupted = AskReply.get

    def get(self: AskReply, *, timeout: float | None = None) -> Any:
        monkeypatch.setattr(AskReply, "get", interrupted)
        raise KeyboardInterrupt

    monkeypatch.setattr(AskReply, "get", get)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    assert (lock.held, session.received) == (True, [])  # The release continues.
    release, reply = session.asked[-1]
    session.mute = False
    answer = threading.Timer(0.02, lambda: reply.set(session.answer(release)))
    answer.start()
    assert lock.acquire()
    assert lock.fence == 2
    answer.join(PATIENCE_S)
    assert [type(asked) for asked, _ in session.asked] == [Acquire, Release, Acquire]


@pytest.fixture
def far(cables: Cables, monkeypatch: pytest.MonkeyPatch) -> Iterator[fencelock.Client]:
    """A client behind cables, which waits for a release for less than ten seconds."""
    monkeypatch.setattr(session, "UNANSWERED_MS", 300)
    addresses = cables.addresses
    with fencelock.connect(addresses, cluster=FACES, connect_timeout=PATIENCE_S) as client:
        yield client
        cables.mend()


LOCKS: dict[str, Callable[[Any, str], Any]] = {
    "anonymous": lambda client, name: client.lock(f"{name}-1"),
    "named": lambda client, name: client.lock(f"{name}-2", owner="job"),
    "rlock": lambda client, name: client.rlock(f"{name}-3", limit=1),
}


def test_an_owner_that_acquires_while_it_releases_elsewhere_waits_for_that(
    client: fencelock.Client,
) -> None:
    lock = client.lock("both", owner="job")
    for _ in range(20):
        hold = present(lock.acquire())
        hold.release()
        with client.lock("both", owner="job", timeout=PATIENCE_S) as again:
            assert again.fence > hold.fence


@pytest.mark.parametrize("kind", LOCKS)
def test_an_acquire_after_an_unconfirmed_release_waits_within_its_own_timeout(
    far: fencelock.Client, cables: Cables, kind: str
) -> None:
    lock = LOCKS[kind](far, "unconfirmed")
    fence = fence_of(lock.acquire())
    cables.cut()
    with pytest.raises(UnavailableError):
        lock.release()
    for timeout in (0.5, 1.0):
        began = time.monotonic()
        with suppress(UnavailableError):  # No node can be asked. But never at once.
            assert lock.acquire(timeout=timeout) is None
        assert time.monotonic() - began >= timeout
    cables.mend()
    assert fence_of(lock.acquire(timeout=PATIENCE_S)) > fence
    lock.release()


def test_with_after_an_unconfirmed_release_raises_when_its_timeout_ends(
    far: fencelock.Client, cables: Cables
) -> None:
    lock = far.lock("hot", owner="job")
    lock.acquire()
    cables.cut()
    with pytest.raises(UnavailableError):
        lock.release()
    began = time.monotonic()
    with (
        pytest.raises((LockTimeoutError, UnavailableError)),
        far.lock("hot", owner="job", timeout=1),
    ):
        pass
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("kind", LOCKS)
async def test_a_task_that_acquires_after_a_cancelled_release_waits_for_it(
    far: fencelock.Client, cables: Cables, kind: str
) -> None:
    del far  # For its fixture.
    addresses = cables.addresses
    async with aio.connect(addresses, cluster=FACES, connect_timeout=PATIENCE_S) as client:
        lock = LOCKS[kind](client, "cancelled")
        fence = fence_of(await lock.acquire())
        cables.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await lock.release()
        began = time.monotonic()
        with suppress(UnavailableError):
            assert await lock.acquire(timeout=0.5) is None
        assert time.monotonic() - began >= 0.5
        cables.mend()
        assert fence_of(await lock.acquire(timeout=PATIENCE_S)) > fence
        await lock.release()


def test_locked_asks_the_cluster_and_remaining_the_clock(client: fencelock.Client) -> None:
    lock = client.lock("seen")
    assert not lock.locked()
    with client.lock("seen") as hold:
        assert lock.locked()
        assert 5 < hold.remaining <= 15
    assert not lock.locked()
    assert hold.remaining == 0


def test_callbacks_of_a_hold_are_called_though_they_come_late(client: fencelock.Client) -> None:
    notices: list[fencelock.Notice] = []
    hold = present(client.lock("evicted").acquire())
    client.evict("evicted", hold.fence)
    until(lambda: hold.lost)
    hold.on_lost(notices.append)
    until(lambda: bool(notices))
    assert notices[0].fence == hold.fence
    with pytest.raises(fencelock.LockOwnershipLostError):
        hold.release()
    hold.release()  # The loss was reported.
