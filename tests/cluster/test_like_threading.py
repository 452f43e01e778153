"""CPython's own tests of the locks of ``threading``, run on locks of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from typing import Any
from unittest import SkipTest

import pytest
from support.programs import package

import fencelock
from fencelock.cluster.testing.local import local

SUITES = ("LockTests", "RLockTests", "BoundedSemaphoreTests")

NOT_MEANT = {
    "test_acquire_destroy": "a lock that is held stays held when its object is dropped",
    "test_weakref_deleted": "the client remembers an object whose lock is held",
    "test_timeout": "a timeout above a week is a ValueError, not an OverflowError",
    "test_repr": "the text of `repr` is our own",
    "test_locked_repr": "the text of `repr` is our own",
    "test_at_fork_reinit": "a private name",
    "test__is_owned": "a private name",
    "test_recursion_count": "a private name",
    "test_release_save_unacquired": "a private name",
}
"""The tests that do not apply, and why."""

numbers = count()


class Semaphore:
    """A semaphore with the arguments of ``threading``'s; ours takes the number of permits first."""

    def __init__(self, client: fencelock.Client, value: int = 1) -> None:
        semaphore = client.semaphore(f"s{next(numbers)}", value)
        self.semaphore, self.release = semaphore, semaphore.release

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        return bool(self.semaphore.acquire(blocking=blocking, timeout=timeout))

    def __enter__(self) -> None:
        self.semaphore.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.semaphore.__exit__(*error)


@pytest.fixture(scope="module")
def client() -> Iterator[fencelock.Client]:
    with local() as cluster:
        yield cluster.connect()


def suite(name: str, client: fencelock.Client) -> Any:
    """Return the suite ``name`` of CPython, whose objects are of ``client``."""

    def semaphore(value: int = 1) -> Semaphore:
        return Semaphore(client, value)

    made: dict[str, Callable[..., Any]] = {
        "LockTests": lambda: client.lock(f"l{next(numbers)}"),
        "RLockTests": lambda: client.rlock(f"r{next(numbers)}"),
        "BoundedSemaphoreTests": semaphore,
    }
    methods = {"locktype": staticmethod(made[name]), "semtype": staticmethod(made[name])}
    tests: Any = import_module("test.lock_tests")
    return type(name, (getattr(tests, name),), methods)


@pytest.mark.parametrize("name", SUITES)
def test_an_object_passes_the_tests_that_cpython_has_for_its_model(
    client: fencelock.Client, name: str
) -> None:
    package("test.lock_tests", "this Python was installed without its own tests")
    kind = suite(name, client)
    names = [one for one in dir(kind) if one.startswith("test") and one not in NOT_MEANT]
    failures: dict[str, str] = {}
    for one in names:
        try:
            kind(one).debug()
        except SkipTest:
            pass
        except Exception as error:  # noqa: BLE001 (all failures are shown together)
            failures[one] = repr(error)
    assert not failures
    assert len(names) > 8, names


def test_a_limit_is_given_by_its_keyword(client: fencelock.Client) -> None:
    lock: Any = client.lock("limited")
    with pytest.raises(TypeError, match=r"blocking is 5, .*say timeout=5"):
        lock.acquire(5)
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    assert lock.acquire(True, 1)
    assert lock.acquire(False) is None
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
