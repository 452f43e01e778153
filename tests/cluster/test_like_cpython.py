"""CPython's own tests of the locks of ``threading`` and ``asyncio``, run on locks of a cluster.

Those of ``asyncio`` run as they are, but for what a cluster needs: ``release`` and ``locked`` are
awaited, since they send messages; ``sleep(0)``, which they use to let others run, lasts until the
cluster has carried out what was begun; and lines that read private names are left out.
"""

from __future__ import annotations

import ast
import asyncio
import unittest
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import getsource
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import SkipTest

import pytest
from support.programs import package

import fencelock
from fencelock import aio
from fencelock.cluster.testing.local import local
from fencelock.testing import LocalCluster

SUITES = ("LockTests", "RLockTests", "BoundedSemaphoreTests")

NOT_MEANT_FOR_THREADS = {
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
def test_an_object_for_threads_passes_tests_of_cpython(client: fencelock.Client, name: str) -> None:
    package("test.lock_tests", "this Python was installed without its own tests")
    kind = suite(name, client)
    names = [
        one for one in dir(kind) if one.startswith("test") and one not in NOT_MEANT_FOR_THREADS
    ]
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


# Tasks


NOT_MEANT_FOR_TASKS = {
    "LockTests.test_repr": "the text of `repr` is our own",
    "LockTests.test_lock": "its error has the name of the class, which is our own",
    "LockTests.test_lock_doesnt_accept_loop_parameter": "a client makes locks, and it has a loop",
    "LockTests.test_lock_by_with_statement": "the same with a `Condition`, which a cluster has not",
    "LockTests.test_cancel_race": "looks between a release and the next grant, which is one step",
    "LockTests.test_cancel_release_race": "releases in a callback, which cannot await",
    "SemaphoreTests.test_repr": "the text of `repr` is our own",
    "SemaphoreTests.test_semaphore": "its error has the name of the class, which is our own",
    "SemaphoreTests.test_initial_value_zero": "a semaphore of a cluster has at least one permit",
    "SemaphoreTests.test_acquire_fifo_order_2": "gives back a permit that nobody has taken",
    "SemaphoreTests.test_semaphore_value": "not in a loop; `test_limits` has it",
    "SemaphoreTests.test_release_not_acquired": "not in a loop; `test_limits` has it",
}
"""The tests that do not apply, and why."""


class Awaiting(ast.NodeTransformer):
    """Awaits what is a coroutine here, and leaves out lines that read private names."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave a function alone that cannot await."""
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Await a call of ``release`` and ``locked``."""
        self.generic_visit(node)
        awaited = isinstance(node.func, ast.Attribute) and node.func.attr in ("release", "locked")
        return ast.Await(node) if awaited else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Leave out what reads a private name; let `assertRaises` await ``release``."""
        if any(isinstance(one, ast.Attribute) and one.attr[0] == "_" for one in ast.walk(node)):
            return ast.Pass()
        match node.value:
            case ast.Call(args=[error, ast.Attribute(attr="release") as release]) as raises:
                raises.args = [error]
                body = ast.Expr(ast.Await(ast.Call(release, [], [])))
                return ast.With([ast.withitem(raises)], [body])
            case _:
                pass
        return self.generic_visit(node)


def lock() -> aio.Lock:
    return aio.lock(f"l{next(numbers)}")


def semaphore(value: int = 1) -> aio.Semaphore:
    """Return a semaphore; of 0 permits, one whose permits are taken and can be given back."""
    made = aio.semaphore(f"s{next(numbers)}", value or 2)
    if not value:
        taking.extend(asyncio.create_task(made.acquire()) for _ in range(2))
    return made


taking: list[asyncio.Task[aio.Hold]] = []


async def sleep(delay: float) -> None:
    """Sleep; with 0, until the cluster has carried out what was begun."""
    await asyncio.sleep(delay)
    if not delay:
        async with aio.lock("settled"):  # The requests of one session are served in order.
            pass
        await asyncio.sleep(0)


LIKE_ASYNCIO = {"Lock": lock, "Semaphore": semaphore, "BoundedSemaphore": semaphore, "sleep": sleep}


@pytest.fixture
def tests(fencelock_cluster: LocalCluster) -> ModuleType:
    """Return CPython's tests, with locks of a cluster in place of ``asyncio``'s."""
    assert fencelock_cluster.addresses  # The default client finds it.
    package("test.test_asyncio", "this Python was installed without its own tests")
    given = import_module("test.test_asyncio.test_locks")
    tree = ast.fix_missing_locations(Awaiting().visit(ast.parse(getsource(given))))
    tests = ModuleType(given.__name__)
    exec(compile(tree, str(given.__file__), "exec"), vars(tests))
    vars(tests)["asyncio"] = SimpleNamespace(**(vars(asyncio) | LIKE_ASYNCIO))
    return tests


@pytest.mark.parametrize("suite", ["LockTests", "SemaphoreTests"])
def test_an_object_for_tasks_passes_the_tests_of_cpython(tests: ModuleType, suite: str) -> None:
    kind, result = getattr(tests, suite), unittest.TestResult()
    for name in dir(kind):
        if name.startswith("test") and f"{suite}.{name}" not in NOT_MEANT_FOR_TASKS:
            kind(name).run(result)
    assert not [text for _, text in (*result.failures, *result.errors)]
    assert result.testsRun > 5


async def test_limits(fencelock_cluster: LocalCluster) -> None:
    async with aio.connect(fencelock_cluster.addresses) as client:
        with pytest.raises(ValueError, match="permits is 0"):
            client.semaphore("s", 0)
        semaphore = client.semaphore("s", 1)
        with pytest.raises(ValueError, match="1 permits were released, 0 are held"):
            await semaphore.release()
        with pytest.raises(TypeError, match="can't be used in 'await' expression"):
            await semaphore  # type: ignore[misc]
