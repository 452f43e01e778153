"""Pollers look for a moment before they sleep; a doorbell wakes them up."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from support.programs import run_to_end

from fencelock.transport import polling
from fencelock.transport.polling import BRIEF_NS, Doorbell, Poller

LONG_MS = 60_000
BEYOND_BRIEF_MS = BRIEF_NS // 1_000_000 + 2


ENOUGH_NS = 50_000_000
"""Longer than a test takes from one wait to the next, on a busy machine too."""


class Yields:
    """Stands for the system's call, and counts."""

    def __init__(self) -> None:
        self.times = 0
        self.does: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        self.times += 1
        self.does()


def processors(count: int) -> Callable[[int], set[int]]:
    def affinity(process: int) -> set[int]:
        assert process == 0
        return set(range(count))

    return affinity


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> Yields:
    counted = Yields()
    monkeypatch.setattr(os, "sched_yield", counted)
    monkeypatch.setattr(os, "sched_getaffinity", processors(2))
    monkeypatch.setattr(polling, "SPIN_NS", ENOUGH_NS)
    return counted


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def brief(one: Poller, pipe: tuple[int, int]) -> None:
    """Let ``one`` have a wait that was over at once."""
    os.write(pipe[1], b"x")
    assert one.poll(LONG_MS) == {pipe[0]}
    os.read(pipe[0], 1)


@pytest.fixture
def one(yields: Yields, pipe: tuple[int, int]) -> Poller:
    """Return a poller of ``pipe`` that has just had a brief wait."""
    one = Poller(spins=True)
    one.register(pipe[0])
    brief(one, pipe)
    assert yields.times == 0
    return one


def test_news_after_a_brief_wait_is_found_without_sleeping(
    one: Poller, yields: Yields, pipe: tuple[int, int]
) -> None:
    yields.does = lambda: os.write(pipe[1], b"x")

    assert one.poll(LONG_MS) == {pipe[0]}

    assert yields.times == 1


def test_a_poller_sleeps_at_once_after_a_long_wait(one: Poller, yields: Yields) -> None:
    assert one.poll(BEYOND_BRIEF_MS) == set()
    spun = yields.times
    assert spun > 0

    assert one.poll(BEYOND_BRIEF_MS) == set()

    assert yields.times == spun


def test_a_poller_sleeps_at_once_after_a_long_turn(
    one: Poller, yields: Yields, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "perf_counter_ns", lambda: time.perf_counter_ns() + ENOUGH_NS)

    assert one.poll(1) == set()

    assert yields.times == 0


def test_a_poller_that_expects_a_reply_looks_first_after_a_long_wait_and_a_long_turn(
    one: Poller, yields: Yields, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one.poll(BEYOND_BRIEF_MS) == set()
    monkeypatch.setattr(polling, "perf_counter_ns", lambda: time.perf_counter_ns() + ENOUGH_NS)
    yields.times = 0
    yields.does = lambda: os.write(pipe[1], b"x")

    assert one.poll(LONG_MS, True) == {pipe[0]}

    assert yields.times == 1


def test_a_poller_sleeps_at_once_where_the_processor_is_wanted(one: Poller, yields: Yields) -> None:
    yields.does = lambda: time.sleep(0.001)  # The turn of another.

    assert one.poll(BEYOND_BRIEF_MS) == set()

    assert yields.times == 1


@pytest.mark.parametrize(("spins", "count"), [(False, 2), (True, 1)])
def test_a_client_never_spins_nor_does_a_node_that_has_one_processor(
    yields: Yields, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, spins: bool, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", processors(count))
    one = Poller(spins=spins)
    one.register(pipe[0])
    brief(one, pipe)

    assert one.poll(1) == one.poll(1, True) == set()

    assert yields.times == 0


# The doorbell: one wake-up for any number of rings, also where there is no ``eventfd``


WITHOUT_EVENTFD = """
import os
for name in ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC"):
    delattr(os, name)
"""


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doorbell]:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")
    bell = Doorbell()
    yield bell
    bell.close()


def is_rung(bell: Doorbell) -> bool:
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_it_is_readable_from_a_ring_to_the_answer(bell: Doorbell) -> None:
    assert not is_rung(bell)
    for _ in range(3):
        bell.ring()
        bell.ring()
        assert is_rung(bell)
        bell.answer()
        assert not is_rung(bell)
        bell.answer()


def test_it_frees_its_descriptors_and_may_be_rung_afterwards(bell: Doorbell) -> None:
    before = set(os.listdir("/dev/fd"))
    bell.close()
    assert set(os.listdir("/dev/fd")) < before
    bell.ring()
    bell.close()


def test_its_descriptors_are_not_inherited(bell: Doorbell) -> None:
    assert not os.get_inheritable(bell.fd)


def test_a_client_and_a_node_work_without_eventfd() -> None:
    script = (
        WITHOUT_EVENTFD
        + "from fencelock.testing import local\n"
        + "with local() as cluster, cluster.connect().lock('a') as hold: print(hold.held)\n"
    )
    ended = run_to_end([sys.executable, "-c", script])
    assert ended.stdout == "True\n", ended.stderr


def test_a_sleep_longer_than_the_system_allows_is_a_shorter_one(pipe: tuple[int, int]) -> None:
    poller = Poller()
    poller.register(pipe[0])
    os.write(pipe[1], b"x")
    assert poller.poll(10**15) == {pipe[0]}
