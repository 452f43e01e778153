"""APScheduler 3: of several processes that schedule the same jobs, only the leader runs them.

For example::

    scheduler = BlockingScheduler()
    scheduler.add_job(send_reports, "cron", hour=3)
    with LeaderOnly(scheduler, fencelock.election("scheduler")):
        scheduler.start()
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Self

from apscheduler.events import EVENT_SCHEDULER_STARTED
from apscheduler.schedulers import SchedulerNotRunningError

from fencelock.actors.error import (
    AcquireCancelledError,
    ClosedError,
    FencelockError,
    LockOwnershipLostError,
    NotHeldError,
)
from fencelock.cluster.client.election import Election
from fencelock.cluster.client.lock import Hold
from fencelock.cluster.log import warn

TERM_LOOK_S = 0.1
"""Interval between looks at the term (s): no callback says that it is certain again, or that its
client was closed."""

RETRY_S = 1.0
"""Pause after a candidacy that failed, such as while no node answers (s)."""


class LeaderOnly:
    """Keeps a scheduler paused, except while this process leads an election. Use it with ``with``.

    The scheduler is paused when the cluster has been silent for half of the client's ``ttl``, while
    no other process can lead yet. It resumes if the cluster answers in time; otherwise this process
    waits to lead again. Jobs that run then are not stopped: one that may take longer than half of
    the ``ttl`` looks at ``leader.term``.

    At the end of ``with`` the scheduler is shut down, which waits for running jobs, and only then
    may another process lead.

    Jobs that came due while nobody led run late by at most their ``misfire_grace_time``, by default
    1 s, and only from a job store that the processes share. A new leader begins within
    milliseconds of an orderly end, and within the ``ttl`` of a kill.

    Args:
        scheduler: a scheduler of APScheduler 3, such as ``BackgroundScheduler``; started or not.
        election: the election, from `fencelock.election` or `Client.election`.
        value: the public value of the leader, up to 1,024 bytes.

    Raises:
        InvalidRequestError: ``value`` is out of its limits.

    """

    def __init__(self, scheduler: Any, election: Election, value: str = "") -> None:
        self._scheduler = scheduler
        self._election = election
        self._value = value
        self._candidate = election.lead(value)
        self._term: Hold | None = None
        self._runs = False
        """Whether the scheduler may run jobs."""
        self._deciding = threading.Lock()
        self._closing = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._lead_in_turn, name="leader-only", daemon=True)

    @property
    def term(self) -> Hold | None:
        """The term of this process while it leads, for its ``fence`` and ``raise_if_lost``."""
        return self._term

    def __enter__(self) -> Self:
        self._scheduler.add_listener(self._apply, EVENT_SCHEDULER_STARTED)
        self._apply()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(SchedulerNotRunningError):
            self._scheduler.shutdown()
        self._closing.set()
        self._changed.set()
        while self._thread.is_alive():
            self._candidate.cancel()
            self._thread.join(TERM_LOOK_S)
        self._scheduler.remove_listener(self._apply)

    def _apply(self, _: object = None) -> None:
        """Pause or resume the scheduler, if it runs."""
        with self._deciding, suppress(SchedulerNotRunningError):
            if self._runs:
                self._scheduler.resume()
            else:
                self._scheduler.pause()

    def _lead_in_turn(self) -> None:
        while not self._closing.is_set():
            try:
                self._candidate = self._election.lead(self._value)
                self._term = self._candidate.acquire()
                self._lead(self._term)
            except (AcquireCancelledError, ClosedError) as error:
                if not self._closing.is_set():
                    warn(f"election {self._election.name}: {error}; the scheduler stays paused")
                return
            except FencelockError as error:
                warn(f"election {self._election.name}: {error}; trying again")
                self._closing.wait(RETRY_S)
            finally:
                self._term = None

    def _lead(self, term: Hold) -> None:
        """Let the scheduler run while ``term`` is certain, until it is lost or this is closed."""
        term.on_suspect(lambda _: self._changed.set())
        term.on_lost(lambda _: self._changed.set())
        try:
            while term.held and not self._closing.is_set():
                self._set(not term.suspect)
                self._changed.wait(TERM_LOOK_S)
                self._changed.clear()
        finally:
            self._set(False)
            with suppress(NotHeldError, LockOwnershipLostError):
                term.release()

    def _set(self, runs: bool) -> None:
        if runs != self._runs:
            self._runs = runs
            self._apply()
