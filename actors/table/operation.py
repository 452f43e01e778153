"""The effect of each command on the table of locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import (
    Acquire,
    AcquireRequest,
    Alive,
    Cancel,
    Cancelled,
    Contender,
    KeepAlive,
    Reason,
    Refused,
    Release,
    ReleaseRequest,
    refused,
)
from fencelock.actors.api.name import client_of, quoted, titled, without_secret
from fencelock.actors.api.object_request import PartRequest, PermitRequest
from fencelock.actors.api.request import Command
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Evict,
    Evicted,
    HoldLost,
    Open,
    Opened,
    OperatorCommand,
    SessionClosed,
    ended,
    why_expired,
)
from fencelock.actors.message import copier
from fencelock.actors.table.holding import Hold, Wait
from fencelock.actors.table.message import ExtendSessions, LogCommand, Queued, Result
from fencelock.actors.table.session import SESSION_CLAIMS_MAX, SESSIONS_MAX, OwnerState
from fencelock.actors.table.table_state import TableState

Operation = Callable[[TableState, Any, list[Result]], None]
"""Applies a command to the table, and appends its outcomes."""

_evicted_for = copier(Evicted, "session")
"""Returns the outcome of an eviction for a repetition that came from a later session."""

GIVEN_UP = "the wait was given up"

CLAIMS_MAX = 1_000_000
"""Maximum holds and waits of the whole table, which must fit a member's memory several times."""

AUDIT_MAX = 1_000
"""Maximum number of forced releases and closings kept for inspection, and to answer repetitions."""


def acquire(table: TableState, command: AcquireRequest, out: list[Result]) -> None:
    """Grant, acquire again, queue or deny (rules 1-19, 32-37, 44-47).

    Raises:
        InvalidRequestError: see the ``check`` of ``command``; nothing was done.

    """
    owner_state = _begin_acquire(table, command, out)
    if owner_state is None:
        return
    holder = table.locks.get(owner_state.lock)
    if holder is None and owner_state.lock in table.pools:
        _claim(table, owner_state, command, out)
    elif holder is not None and command.wait_ms == 0:
        _deny(table, owner_state, Reason.TIMED_OUT, holder.wording(), out)
    elif _has_room(table, owner_state, out):
        if holder is None:
            table.grant(owner_state, command.label, out)
        else:
            _wait(table, owner_state, command, out)


def acquire_permits(table: TableState, command: PermitRequest, out: list[Result]) -> None:
    """Grant permits of an object, queue or deny.

    Raises:
        InvalidRequestError: see `Request.check`; nothing was done.

    """
    owner_state = _begin_acquire(table, command, out)
    if owner_state is None:
        return
    lock, permits = owner_state.lock, command.permits
    pool = table.pools.get(lock)
    if pool is not None and pool.capacity != permits:
        has = f"{titled(lock)} has {pool.capacity} permits"
        text = f"{has}; this client asked for one with {permits}"
        _refuse(table, owner_state, owner_state.refused(Reason.INVALID, text), out)
    else:
        _claim(table, owner_state, command, out, command.amount, permits)


def _claim(
    table: TableState,
    owner_state: OwnerState,
    command: AcquireRequest,
    out: list[Result],
    amount: int = 1,
    permits: int = 1,
) -> None:
    """Grant ``amount`` of the ``permits`` of each object of a new claim, or queue or deny it."""
    free = True
    for name in owner_state.objects:  # Faster than `all` with a generator.
        free = free and table.admits(name, amount)
    if not free and command.wait_ms == 0:
        _deny(table, owner_state, Reason.TIMED_OUT, table.obstacle(owner_state), out)
    elif _has_room(table, owner_state, out):
        if free:
            for name in owner_state.objects:
                table.pool_of(name, permits)
            table.grant_permits(owner_state, command.label, amount, out)
        else:
            _wait(table, owner_state, command, out, amount)


def acquire_all(table: TableState, command: AcquireAll, out: list[Result]) -> None:
    """Grant several locks in one step, queue or deny.

    Raises:
        InvalidRequestError: see `AcquireAll.check`; nothing was done.

    """
    owner_state = _begin_acquire(table, command, out)
    if owner_state is not None:
        owner_state.locks = command.locks
        _claim(table, owner_state, command, out)


def release(table: TableState, command: ReleaseRequest, out: list[Result]) -> None:
    """Release one hold (rules 20-25, 48, 50), or permits. Owner and fence must both be right.

    A `Release` gives back all permits of a hold that is held once.

    Raises:
        InvalidRequestError: see `Request.check`; nothing was done.

    """
    owner_state = _begin(table, command, out)
    if owner_state is None:
        return
    owner_state.releasing = True
    hold = owner_state.hold
    if hold is None or hold.fence != command.fence:
        _deny_release(table, owner_state, command, out)
        return
    if isinstance(command, PartRequest):
        _release_part(table, hold, command, out)
        return
    hold.count -= 1
    released = owner_state.outcome = owner_state.released(hold.count)
    out.append(released)
    if hold.count == 0:
        table.end_hold(hold, out)


def _release_part(table: TableState, hold: Hold, command: PartRequest, out: list[Result]) -> None:
    """Take back some permits of ``hold``, or all of them; the hold ends with the last."""
    owner_state, amount = hold.owner_state, command.amount or hold.amount
    if amount > hold.amount:
        text = command.excess(hold.amount, hold.fence)
        _deny(table, owner_state, Reason.INVALID, text, out)
        return
    released = owner_state.outcome = owner_state.released(hold.amount - amount)
    out.append(released)
    if amount == hold.amount:
        table.end_hold(hold, out)
    else:
        table.give_back(hold, amount, out)


def cancel(table: TableState, command: Cancel, out: list[Result]) -> None:
    """Undo an acquire that waits, was granted, or is still to come.

    Raises:
        InvalidRequestError: see `Cancel.check`; nothing was done.

    """
    command.check()
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(session_expired(command))
        return
    table.sessions.keep(session, table.time_ms)  # It counts as a keep-alive (rule 85).
    out.append(Cancelled(**command.fields()))
    key = command.owner, command.lock
    owner_state = session.owner_states.get(key)
    if owner_state is None:
        if command.request <= session.floor:
            return  # A forgotten owner neither waits nor holds.
        owner_state = session.enter(key)
        session.lay(owner_state)
    wait, hold = owner_state.wait, owner_state.hold
    if command.request > owner_state.request:
        if wait is not None:
            table.end_wait(wait, Reason.CANCELLED, out, GIVEN_UP)
        owner_state.request, owner_state.releasing = command.request, False
        owner_state.outcome = owner_state.denied(Reason.CANCELLED, GIVEN_UP)
        if hold is None:
            session.rouse(owner_state)  # It is retired again below, as the last.
            session.rest(owner_state, table.time_ms)
    elif wait is not None and owner_state.request == command.request:
        table.end_wait(wait, Reason.CANCELLED, out, GIVEN_UP)
    elif hold is not None and hold.request == command.request:
        if owner_state.request == command.request:
            owner_state.settle(owner_state.denied(Reason.CANCELLED, GIVEN_UP))
        hold.request = 0
        hold.count -= 1
        if hold.count == 0:
            table.end_hold(hold, out)


def evict(table: TableState, command: Evict, out: list[Result]) -> None:
    """End the hold of a lock under the fence that the operator saw.

    If the acquire of that hold is repeated, the outcome is not `Granted` any more. Safety goes
    before the letter of L5: otherwise the owner would believe that it still holds.

    Raises:
        InvalidRequestError: see `Evict.check`; nothing was done.

    """
    command.check()
    before = table.audit.get((command.by, command.request))
    hold = table.find_hold(command.lock, command.fence)
    if before is not None and (before.lock, before.fence) == (command.lock, command.fence):
        out.append(_evicted_for(before, command.session))
    elif hold is None:
        out.append(refused(command, Reason.NOT_HELD, _not_held(table, command)))
    else:
        _take(table, hold, command, out)


def close_session(table: TableState, command: CloseSession, out: list[Result]) -> None:
    """End the session whose handle the operator saw.

    Raises:
        InvalidRequestError: see `CloseSession.check`; nothing was done.

    """
    command.check()
    handle, before = command.handle, table.audit.get((command.by, command.request))
    session = table.sessions.find(handle)
    if before is not None and (without_secret(before.holder.session), before.lock) == (handle, ""):
        out.append(_closed(command, before.holder))
    elif session is None:
        text = f"session {quoted(handle)} is not open: it has ended, or was never opened"
        out.append(refused(command, Reason.NOT_HELD, text))
    else:
        victim = Contender(
            node=client_of(session.id),
            session=session.id,
            owner="",
            fence=None,
            since_ms=0,
            label=session.label,
            times=session.claims,
        )
        _record(table, command, "", 0, victim)
        out.append(_closed(command, victim))
        table.close(session, CloseReason.FORCED, 0, out, command.by)


def open_session(table: TableState, command: Open, out: list[Result]) -> None:
    """Open a session, or find the one that is open under that name.

    Raises:
        InvalidRequestError: see `Open.check`; nothing was done.

    """
    command.check()
    sessions, now_ms = table.sessions, table.time_ms
    session = sessions.by_name.get(command.session)
    if session is not None:
        sessions.keep(session, now_ms)
    elif len(sessions.by_id) >= SESSIONS_MAX:
        text = f"{SESSIONS_MAX} sessions are open, no more are allowed"
        out.append(refused(command, Reason.OVERLOADED, text))
        return
    else:
        session = sessions.open(command.session, command.label, command.ttl_ms, now_ms)
    opened = Opened(
        session=command.session,
        assigned=session.id,
        ttl_ms=session.ttl_ms,
        node="",
        request=command.request,
    )
    out.append(opened)


def keep_session(table: TableState, command: KeepAlive, out: list[Result]) -> None:
    """Keep a session alive (rules 80, 81)."""
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(session_expired(command))
        return
    table.sessions.keep(session, table.time_ms)
    out.append(Alive(session=session.id, node="", request=command.request))


def end_session(table: TableState, command: End, out: list[Result]) -> None:
    """End a session, unless the reason does not hold any more (rules 84, 87, 88)."""
    session = table.sessions.by_id.get(command.session)
    reason, request = command.reason, command.request
    if session is None:  # A repetition, or it has expired: either way it has ended.
        out.append(ended(command.session, reason, request))
        return
    judged = reason in (CloseReason.EXPIRED, CloseReason.IDLE)
    kept_since = judged and command.version != table.sessions.version(session)  # Rule 84.
    if kept_since or (reason is CloseReason.IDLE and session.claims):
        out.append(Alive(session=session.id, node="", request=request))
    else:
        table.close(session, reason, request, out)


OPERATIONS: dict[type[Command], Operation] = {
    Acquire: acquire,
    Release: release,
    AcquirePermits: acquire_permits,
    ReleasePermits: release,
    AcquireReadWrite: acquire_permits,
    Downgrade: release,
    AcquireAll: acquire_all,
    Cancel: cancel,
    KeepAlive: keep_session,
    Open: open_session,
    End: end_session,
    Evict: evict,
    CloseSession: close_session,
}
"""The effect of each request on the table. A new command is added here."""

COMMANDS: tuple[type[LogCommand], ...] = (*OPERATIONS, ExtendSessions)
"""All commands of the log."""


def _begin(
    table: TableState, command: AcquireRequest | ReleaseRequest, out: list[Result]
) -> OwnerState | None:
    """Make a new request its owner's last one; for a repetition, send its outcome, return None.

    Any request but an invalid one counts as a keep-alive (rule 85).
    """
    sessions = table.sessions
    session = sessions.by_id.get(command.session)
    command.check()
    if session is None:
        out.append(session_expired(command))
        return None
    key, request = (command.owner, command.lock), command.request
    sessions.keep(session, table.time_ms)
    owner_state = session.owner_states.get(key)
    if owner_state is None:
        if request <= session.floor:
            out.append(refused(command, Reason.FORGOTTEN, _nothing_done(command)))
            return None
        owner_state = session.enter(key)
    elif request <= owner_state.request:
        out.append(_repeat(owner_state, command))
        return None
    elif owner_state.hold is None:
        if owner_state.wait is not None:  # It is sequential: it gave that wait up (rules 47, 48).
            table.end_wait(owner_state.wait, Reason.CANCELLED, out, GIVEN_UP)
        session.rouse(owner_state)
    owner_state.request = request
    return owner_state


def _repeat(owner_state: OwnerState, command: AcquireRequest | ReleaseRequest) -> Result:
    """Return the outcome of a request that is not new (rules 44-46, 49-52)."""
    releasing, hold = isinstance(command, ReleaseRequest), owner_state.hold
    last = command.request == owner_state.request and releasing == owner_state.releasing
    if last and owner_state.outcome is not None:
        return owner_state.outcome
    if last and owner_state.wait is not None:
        return _queued(owner_state)
    if hold is not None and hold.request == command.request and not releasing:
        return hold.answer()
    return refused(command, Reason.SUPERSEDED, _nothing_done(command))


def _begin_acquire(
    table: TableState, command: AcquireRequest, out: list[Result]
) -> OwnerState | None:
    """Make a new acquire the last request of its owner; return None if its outcome was sent."""
    owner_state = _begin(table, command, out)
    if owner_state is None:
        return None
    owner_state.lost, owner_state.releasing, owner_state.outcome = 0, False, None
    if owner_state.hold is None:
        return owner_state
    _enter_again(owner_state, owner_state.hold, command, out)
    return None


def _enter_again(
    owner_state: OwnerState, hold: Hold, command: AcquireRequest, out: list[Result]
) -> None:
    """Count one more hold, or deny it at once: an owner that waits for itself waits for ever."""
    reason, text = None, ""
    if command.limit and hold.count >= command.limit:
        held = f"held {hold.count} times under fence {hold.fence}, {command.limit} are allowed"
        reason = Reason.ALREADY_HELD if command.limit == 1 else Reason.LIMIT_REACHED
        text = f"this owner is at its limit: {held}"
    elif isinstance(command, PermitRequest) and command.amount > hold.amount:
        reason, text = Reason.ALREADY_HELD, command.excess(hold.amount, hold.fence)
    if reason is not None:
        answer = owner_state.denied(reason, text)
        owner_state.settle(answer)
        out.append(answer)
        return
    hold.count += 1
    hold.level = hold.count
    hold.request = command.request
    out.append(hold.answer())


def _wait(
    table: TableState,
    owner_state: OwnerState,
    command: AcquireRequest,
    out: list[Result],
    amount: int = 1,
) -> None:
    """Append a claim, which is already counted, to its object's queue."""
    table.tickets += 1
    due_ms = None if command.wait_ms is None else table.time_ms + command.wait_ms
    label, now_ms = command.label, table.time_ms
    table.enqueue(Wait(owner_state, table.tickets, label, now_ms, due_ms, amount))
    out.append(_queued(owner_state))


def _has_room(table: TableState, owner_state: OwnerState, out: list[Result]) -> bool:
    """Count a hold or wait of each lock; deny it and return False if that would exceed a limit."""
    session, wanted = owner_state.session, len(owner_state.locks) or 1
    if session.claims + wanted > SESSION_CLAIMS_MAX:
        text = f"{session.claims} holds and waits, a session may have {SESSION_CLAIMS_MAX}"
    elif table.claims + wanted > CLAIMS_MAX:
        text = f"{table.claims} holds and waits in all, {CLAIMS_MAX} are allowed"
    else:
        session.claims += wanted
        table.claims += wanted
        return True
    _deny(table, owner_state, Reason.OVERLOADED, text, out)
    return False


def _take(table: TableState, hold: Hold, command: Evict, out: list[Result]) -> None:
    owner_state, by = hold.owner_state, command.by
    session, owner, lock = owner_state.session.id, owner_state.owner, owner_state.lock
    holder = Contender(
        node=client_of(session),
        session=session,
        owner=owner,
        fence=command.fence,
        since_ms=table.time_ms - hold.since_ms,
        label=owner_state.labelled(hold.label),
        times=hold.times,
    )
    evicted = _record(table, command, command.lock, command.fence, holder)
    taken = f"taken by {quoted(by)}"
    text = f"{titled(lock)}: the hold under fence {hold.fence} was {taken}"
    lost = HoldLost(lock=lock, fence=hold.fence, session=session, owner=owner, detail=text)
    out += [evicted, lost]
    if owner_state.outcome is None:  # Else the reply to a repetition would say that it holds.
        answer = owner_state.denied(Reason.OWNERSHIP_LOST, f"this owner has lost it; {taken}")
        owner_state.settle(answer)
    owner_state.lost = hold.fence
    table.end_hold(hold, out)


def _record(
    table: TableState, command: OperatorCommand, lock: str, fence: int, holder: Contender
) -> Evicted:
    """Add what ``command`` does to the audit, and return the entry."""
    by = command.by
    entry = Evicted(
        lock=lock,
        fence=fence,
        holder=holder,
        session=command.session,
        request=command.request,
        operator=by,
        time_ms=table.time_ms,
    )
    table.audit.pop((by, command.request), None)
    table.audit[by, command.request] = entry
    if len(table.audit) > AUDIT_MAX:
        table.audit.popitem(last=False)
    return entry


def _closed(command: CloseSession, victim: Contender) -> SessionClosed:
    return SessionClosed(
        handle=command.handle,
        label=victim.label,
        claims=victim.times,
        session=command.session,
        request=command.request,
    )


def _deny_release(
    table: TableState, owner_state: OwnerState, command: ReleaseRequest, out: list[Result]
) -> None:
    if owner_state.lost and owner_state.lost == command.fence:
        owner_state.lost = 0
        text = f"this owner has lost it; {table.wording(command.lock)}"
        _deny(table, owner_state, Reason.OWNERSHIP_LOST, text, out)
    else:
        holder = table.wording(command.lock)
        text = f"fence {command.fence} was shown, which does not hold it; {holder}"
        _deny(table, owner_state, Reason.NOT_HELD, text, out)


def _not_held(table: TableState, command: Evict) -> str:
    shown = f"fence {command.fence} was shown, which does not hold it"
    return f"{titled(command.lock)}: {shown}; {table.wording(command.lock)}"


def _nothing_done(command: AcquireRequest | ReleaseRequest) -> str:
    later = "this owner has sent a later request, so nothing is done now"
    return f"{titled(command.lock)}: {later}"


def session_expired(command: Command) -> Refused:
    """Return the refusal of a command whose session has ended, or never was."""
    return refused(command, Reason.SESSION_EXPIRED, why_expired(command.session))


def _deny(
    table: TableState, owner_state: OwnerState, reason: Reason, text: str, out: list[Result]
) -> None:
    """Deny the last request of ``owner_state``, which is retired if it does not hold."""
    _refuse(table, owner_state, owner_state.denied(reason, text), out)


def _refuse(table: TableState, owner_state: OwnerState, answer: Refused, out: list[Result]) -> None:
    owner_state.settle(answer)
    if owner_state.hold is None:
        owner_state.session.rest(owner_state, table.time_ms)
    out.append(answer)


def _queued(owner_state: OwnerState) -> Queued:
    return Queued(
        session=owner_state.session.id,
        owner=owner_state.owner,
        request=owner_state.request,
        lock=owner_state.lock,
    )
