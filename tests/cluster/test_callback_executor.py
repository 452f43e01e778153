"""Callbacks: where they run, and how their exceptions are handled."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.collected import logged_to
from support.expect import PATIENCE_S

from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice, ThreadExecutor

NOTICE = Notice("x", "ann", 1, HoldState.LOST, "why")


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> list[threading.ExceptHookArgs]:
    """Return the exceptions that reach `threading.excepthook`, in order."""
    hooked: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)
    return hooked


def call_then_another(callback: Callable[[Notice], object]) -> ThreadExecutor:
    """Return an executor, now stopped, that called ``callback`` and another one after it."""
    executor = ThreadExecutor()
    called = threading.Event()
    executor.call(callback, NOTICE)
    executor.call(lambda _: called.set(), NOTICE)
    assert called.wait(PATIENCE_S)
    executor.stop(PATIENCE_S)
    return executor


def test_an_error_of_a_callback_is_reported_and_the_next_is_called(
    hooked: list[threading.ExceptHookArgs],
) -> None:
    records: list[logging.LogRecord] = []
    with logged_to(records.append, "WARNING"):
        executor = call_then_another(lambda _: 1 // 0)
    (record,) = records
    assert record.levelno == logging.ERROR
    text = record.getMessage()
    assert text.startswith("a callback for lock 'x' (lost) failed: ZeroDivisionError")
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError
    assert executor.failed == 1
    args = hooked.pop()
    assert args.exc_type is ZeroDivisionError
    assert args.exc_traceback is not None
    assert args.thread is not None
    assert args.thread.name == "fencelock-callbacks"
    assert hooked == []


def test_a_callback_that_exits_does_not_end_the_callbacks_after_it(
    hooked: list[threading.ExceptHookArgs],
) -> None:
    call_then_another(lambda _: sys.exit(1))
    assert [args.exc_type for args in hooked] == [SystemExit]


def test_a_hook_that_raises_does_not_end_the_callbacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(args: threading.ExceptHookArgs) -> None:
        raise RuntimeError(f"no hook for {args.exc_value!r}")

    monkeypatch.setattr(threading, "excepthook", raising)
    call_then_another(lambda _: 1 // 0)
    assert "RuntimeError: no hook for ZeroDivisionError" in capsys.readouterr().err


def test_callbacks_run_in_order_on_one_thread_that_ends_with_the_herald() -> None:
    before = threading.active_count()
    executor = ThreadExecutor()
    assert threading.active_count() == before  # None for an owner without callbacks.
    seen: list[tuple[int, int]] = []

    def see(number: int, notice: Notice) -> None:
        assert notice is NOTICE
        seen.append((number, threading.get_ident()))

    for number in range(100):
        executor.call(partial(see, number), NOTICE)
    executor.stop(PATIENCE_S)
    assert [number for number, _ in seen] == list(range(100))
    assert len({ident for _, ident in seen}) == 1
    assert threading.get_ident() not in {ident for _, ident in seen}
    assert threading.active_count() == before


def test_a_callback_may_stop_the_executor_and_none_is_called_after() -> None:
    executor = ThreadExecutor()
    stopped = threading.Event()

    def stop(notice: Notice) -> None:
        executor.stop(PATIENCE_S)
        stopped.set()

    executor.call(stop, NOTICE)
    assert stopped.wait(PATIENCE_S)
    late: list[Notice] = []
    executor.call(late.append, NOTICE)
    executor.stop(PATIENCE_S)
    assert late == []
