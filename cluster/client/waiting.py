"""Log lines about acquires that wait for long: who holds the lock, or why no node answers.

The session decides when a line is due, and sends `Waiting` (`SPEAK_MS` in
`actors/session/upkeep.py`).

Also the reasons why addresses cannot be reached, for the error of a client that found no node.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.lock_message import HOLDER_UNKNOWN, Inspect, LockStatus
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.error import FencelockError
from fencelock.actors.session.event import Wait, Waiting
from fencelock.actors.session.upkeep import SPEAK_AGAIN_MS, SPEAK_MS
from fencelock.cluster.client.callback_executor import CallbackExecutor
from fencelock.cluster.client.operation import AwaitReply, Operation
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.log import inform, warn

UNANSWERED = "accepts connections, but no node of the cluster answered"

CONNECT_ALL_S = 1.0
"""Time limit for connecting to all addresses (s)."""


def report(
    executor: CallbackExecutor, session: RoleRef, endpoints: tuple[str, ...], event: Waiting
) -> None:
    """Find out what the acquires of ``event`` wait for, and log it; on the dispatcher's thread."""
    more = f" and {event.more} more" if event.more else ""
    waits = ", ".join(map(_wait, event.waits))
    if event.excuse:
        executor.call(warn, f"{waits}{more}: {event.excuse}")
        return
    if event.silence:
        found = looking(endpoints)

        def reached() -> None:
            tried = found.get(timeout=0)
            executor.call(warn, f"{waits}{more}: no node answers. Tried {tried}")

        found.add_done_callback(reached)
        return
    for wait in event.waits:
        name = plain_name(wait.lock) if kind_of(wait.lock) == SEVERAL else wait.lock
        reply = AskReply()
        reply.add_done_callback(partial(_on_status, executor, wait, reply))
        session.submit(Inspect(lock=name), reply)


def _on_status(executor: CallbackExecutor, wait: Wait, reply: AskReply) -> None:
    try:
        status = reply.get(timeout=0)
    except FencelockError as error:
        why = str(error).removeprefix(f"{titled(wait.lock)}: ").removeprefix(HOLDER_UNKNOWN)
        executor.call(warn, f"{_wait(wait)}: {HOLDER_UNKNOWN}{why}")
        return
    except Exception:  # noqa: BLE001  # The client is being closed.
        return
    assert isinstance(status, LockStatus)
    late = ", ".join(f"{one.node} for {one.silent_ms / 1000:.0f} s" for one in status.waits_for)
    if late:
        executor.call(warn, f"{_wait(wait)}: nodes that must reply first are silent: {late}")
    if (holder := status.holder) is not None:
        who = f"{holder.label} (owner {holder.owner!r})" if holder.label else holder.owner
        since = f"for {holder.since_ms / 1000:.0f} s, under fence {holder.fence}"
        executor.call(inform, f"{_wait(wait)}: held by {who} {since}")


def _wait(wait: Wait) -> str:
    return f"{titled(wait.lock)}: waiting for {wait.waited_ms / 1000:.0f} s"


class LocalWaits:
    """Reports acquires that wait for an owner of their own client: the session knows none of them.

    For any thread.
    """

    def __init__(self, report: Callable[[Waiting], None]) -> None:
        self.report = report
        self._guard = threading.Lock()
        self._next: dict[str, float] = {}
        """The earliest time of the next report, by lock (s, of ``time.monotonic``)."""

    def awaiting(
        self, lock: str, reply: AskReply, left_s: float | None, is_held: Callable[[], bool]
    ) -> Operation[Any]:
        """End with the answer in ``reply``, or a `TimeoutError` after ``left_s`` (s).

        Report the wait meanwhile, while ``is_held`` is true.
        """
        began = time.monotonic()
        pause_s = SPEAK_MS / 1000
        while True:
            rest_s = math.inf if left_s is None else max(0.0, began + left_s - time.monotonic())
            try:
                return (yield AwaitReply(reply, min(rest_s, pause_s)))
            except TimeoutError:
                if rest_s <= pause_s or reply.done:
                    raise
            if is_held():
                self._speak(lock, began)
            pause_s = SPEAK_AGAIN_MS / 1000

    def _speak(self, lock: str, began: float) -> None:
        now = time.monotonic()
        with self._guard:
            self._next = {name: at for name, at in self._next.items() if at > now}
            if lock in self._next:
                return
            self._next[lock] = now + SPEAK_AGAIN_MS / 1000
        wait = Wait(lock, int((now - began) * 1000))
        self.report(Waiting(waits=(wait,), more=0, silence=""))


def looking(endpoints: tuple[str, ...]) -> AskReply:
    """Begin to connect to ``endpoints``; after `CONNECT_ALL_S` at most it has a line about them.

    ZeroMQ does not tell why a connection fails, so this asks the system.
    """
    reply = AskReply()
    _begin(lambda: reply.set(_look(endpoints)))
    return reply


def _look(endpoints: tuple[str, ...]) -> str:
    found: dict[str, str] = {}
    lookers = [_begin(lambda at=at: found.update({at: why_unreached(at)})) for at in endpoints]  # type: ignore[misc]
    ends = time.monotonic() + CONNECT_ALL_S
    for looker in lookers:
        looker.join(max(0.0, ends - time.monotonic()))
    late = "its host is not found in time"
    return "; ".join(f"{at}: {found.get(at, late)}" for at in endpoints)


def _begin(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="fencelock-look", daemon=True)
    thread.start()
    return thread


def why_unreached(endpoint: str, reached: str = UNANSWERED) -> str:
    """Return why no node answers at ``endpoint``; ``reached`` if it accepts connections."""
    try:
        parts = urlsplit(endpoint)
        with socket.create_connection((parts.hostname or "", parts.port or 0), CONNECT_ALL_S * 0.9):
            return reached
    except TimeoutError:
        return f"its host does not answer within {CONNECT_ALL_S:g} s"
    except socket.gaierror as error:
        return f"its host is not known ({error.strerror})"
    except ValueError:  # Such as a..b or [::1::].
        return "its host is neither a name nor an address"
    except OSError as error:
        return f"cannot be reached ({(error.strerror or str(error)).lower()})"
