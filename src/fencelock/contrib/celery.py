"""Celery: tasks that run one at a time, and tasks that run at most once a period.

For example::

    @app.task
    @one_at_a_time("report/{day}")
    def write_report(day: str) -> None: ...

The decorators go below ``@app.task``. They use the default client, see `fencelock.configure`, which
connects anew in each worker process that Celery forks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Literal, ParamSpec, TypeVar

from celery import current_task
from celery.utils.log import get_task_logger

import fencelock
from fencelock.actors.api.map import ENTRY_TTL_MS_MAX, ONCE, PERIOD_PERCENT
from fencelock.cluster.client.base_client import namer
from fencelock.cluster.client.owner import job_label
from fencelock.cluster.client.settings import check_number

P = ParamSpec("P")
T = TypeVar("T")

_log: Any = get_task_logger(__name__)
_hold: ContextVar[fencelock.Hold] = ContextVar("hold")


def one_at_a_time(
    template: str,
    *,
    timeout: float | None = 0,
    otherwise: Literal["skip", "retry"] = "skip",
    **options: Any,
) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
    """Return a decorator that holds a lock while a task runs.

    The lock is released however the task ends, also by ``SoftTimeLimitExceeded``. If its process is
    killed, as by a hard time limit, the lock is free after the ``ttl`` of its client, by default
    15 s. A broker may deliver the task again before that, if it has ``acks_late`` and
    ``reject_on_worker_lost``. Such a task is not skipped but retried, as with
    ``otherwise="retry"``: its first delivery may have died halfway.

    If the lock is lost while the task runs, the task fails with `LockOwnershipLostError` at its
    end; see `current_hold` for a task that writes.

    Args:
        template: the name of the lock. Parameters of the task in braces are replaced by the
            arguments of each call: ``"report/{day}"``.
        timeout: how long a call waits for the lock (s), 0 to a week, None for no limit. Meanwhile
            it occupies a worker.
        otherwise: what a call does that does not get the lock: ``"skip"`` logs that and returns
            None; ``"retry"`` calls the task's ``retry``, with its ``default_retry_delay`` and
            ``max_retries``, after which it fails with `LockTimeoutError`.
        options: further arguments of `fencelock.lock`.

    Raises:
        TypeError: the function has no such parameter, or is a generator.
        ValueError: ``otherwise`` is neither.
        UnavailableError: by the task: no node answered. List it in ``autoretry_for``.

    """
    if otherwise not in ("skip", "retry"):
        raise ValueError(f"otherwise is {otherwise!r}, and must be 'skip' or 'retry'")

    def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
        name_of = namer(template, function)

        @functools.wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T | None:
            lock = fencelock.lock(name_of(*args, **kwargs), timeout=timeout, **options)
            try:
                hold = lock.acquire()
            except fencelock.LockTimeoutError as error:
                if otherwise == "retry" or _is_redelivered():
                    raise current_task.retry(exc=error) from error
                _log.info("skipped: %s", error)
                return None
            with hold:
                token = _hold.set(hold)
                try:
                    return function(*args, **kwargs)
                finally:
                    _hold.reset(token)

        return alone

    return decorate


def _is_redelivered() -> bool:
    """Return whether the broker delivers the running task once more."""
    delivered: Any = current_task.request.delivery_info if current_task else None
    return bool(delivered and delivered.get("redelivered"))


def current_hold() -> fencelock.Hold:
    """Return the hold of the running task, for its ``fence`` and ``raise_if_lost``.

    Raises:
        NotHeldError: no function of `one_at_a_time` runs here.

    """
    hold = _hold.get(None)
    if hold is None:
        raise fencelock.NotHeldError("no task with @one_at_a_time runs here")
    return hold


def once_a_period(
    template: str, seconds: float
) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
    """Return a decorator with which a task runs at most once a period, on all workers together.

    The first call puts an entry into the map ``once``, which names the host, the process and the
    task, as ``fencelock lock --once`` does, and runs. While the entry is there, other
    calls log that and return None. It lasts 95 % of the period, since schedules begin early or
    late. If the task fails or asks for a retry, the entry is deleted, so the next call runs. If its
    process is killed, the entry stays: no call runs until the period is over, since nobody knows
    how far the task came. A task that takes longer than the period needs `one_at_a_time` as well.

    Args:
        template: the key of the entry, as for `one_at_a_time`; 1 to 256 bytes. Two tasks need two.
        seconds: the period (s), above 0 and up to a year, by the clock of the cluster.

    Raises:
        TypeError: the function has no such parameter, or is a generator; ``seconds`` is no number.
        ValueError: ``seconds`` is out of its range.
        UnsupportedError: by the task: the protocol of the cluster has no maps; `paxos` has.
        UnavailableError: by the task: no node answered. The period may have begun.

    """
    most = ENTRY_TTL_MS_MAX / 1000
    allowed = f"a number of seconds above 0 and at most {most:.0f}"
    check_number("seconds", seconds, allowed, lambda s: 0 < s <= most)

    def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
        name_of = namer(template, function)

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> T | None:
            key, entries = name_of(*args, **kwargs), fencelock.map(ONCE)
            label = job_label(f"{function.__module__}.{function.__name__}").encode()
            version = entries.put_if_absent(key, label, ttl=seconds * PERIOD_PERCENT / 100)
            if version is None:
                _log.info("skipped: %r has run within %g s", key, seconds)
                return None
            try:
                return function(*args, **kwargs)
            except BaseException:
                with suppress(fencelock.FencelockError):
                    entries.delete(key, version=version)
                raise

        return once

    return decorate
