"""Log lines about acquires that wait for long: who holds the lock, or why no node answers."""

from __future__ import annotations

from functools import partial

from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.message import Inspect, LockStatus
from fencelock.actors.api.name import kind_of, plain_name, titled
from fencelock.actors.error import FencelockError
from fencelock.actors.session.message import Wait, Waiting
from fencelock.cluster.client.callback_executor import CallbackExecutor
from fencelock.cluster.client.reachability import looking
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.log import inform, warn


def report(
    executor: CallbackExecutor, session: RoleRef, endpoints: tuple[str, ...], event: Waiting
) -> None:
    """Find out what the acquires of ``event`` wait for, and log it; on the dispatcher's thread."""
    if event.silence:
        more = f" and {event.more} more" if event.more else ""
        waits = ", ".join(map(_wait, event.waits))
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
        executor.call(warn, f"{_wait(wait)}: it is not known who holds it: {error}")
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
