"""The effects of requests about sessions, and of forced releases and closings, on the table."""

from __future__ import annotations

from msgspec.structs import replace

from fencelock.actors.api.message import Alive, Contender, KeepAlive, Reason, refused
from fencelock.actors.api.name import account_of, client_of, quoted, without_secret
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Evict,
    Evicted,
    Open,
    Opened,
    OperatorCommand,
    SessionClosed,
    ended,
)
from fencelock.actors.table.account import SESSIONS_MAX
from fencelock.actors.table.holding import TableHold
from fencelock.actors.table.message import Result
from fencelock.actors.table.operation import keep, not_held, session_expired
from fencelock.actors.table.table_state import TableState


def evict(table: TableState, command: Evict, out: list[Result]) -> None:
    """End the hold of a lock under the fence that the operator saw.

    A repetition of the acquire of that hold is then no longer answered with `Granted`. That departs
    from the letter of L5 for safety: otherwise the owner would believe that it still holds.

    Raises:
        InvalidRequestError: see `Evict.check`; nothing was done.

    """
    command.check()
    before = table.audit.get((command.by, command.request))
    hold = table.find_hold(command.lock, command.fence)
    if before is not None and (before.lock, before.fence) == (command.lock, command.fence):
        out.append(replace(before, session=command.session))
    elif hold is None:
        out.append(refused(command, Reason.NOT_HELD, not_held(table, command)))
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
        record(table, command, "", 0, victim)
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
        keep(table, session)
    elif over := table.accounts.why_over(account_of(command.session), "sessions"):
        out.append(refused(command, Reason.OVERLOADED, over))
        return
    elif len(sessions.by_id) >= SESSIONS_MAX:
        text = f"{SESSIONS_MAX} sessions are open, no more are allowed"
        out.append(refused(command, Reason.OVERLOADED, text))
        return
    else:
        table.changing = True
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
    keep(table, session)
    out.append(Alive(session=session.id, node="", request=command.request))


def end_session(table: TableState, command: End, out: list[Result]) -> None:
    """End a session, unless the reason does not hold any more (rules 84, 87, 88)."""
    session = table.sessions.by_id.get(command.session)
    reason, request = command.reason, command.request
    if session is None:  # The request is a repetition, or the session has expired.
        out.append(ended(command.session, reason, request))
        return
    judged = reason in (CloseReason.EXPIRED, CloseReason.IDLE)
    kept_since = judged and command.version != table.sessions.version(session)  # Rule 84.
    used = session.claims or session.attached
    if kept_since or (reason is CloseReason.IDLE and used):
        out.append(Alive(session=session.id, node="", request=request))
    else:
        table.close(session, reason, request, out)


def _take(table: TableState, hold: TableHold, command: Evict, out: list[Result]) -> None:
    owner_state = hold.owner_state
    session, owner = owner_state.session.id, owner_state.owner
    holder = Contender(
        node=client_of(session),
        session=session,
        owner=owner,
        fence=command.fence,
        since_ms=table.time_ms - hold.since_ms,
        label=hold.label,
        times=hold.times,
    )
    out.append(record(table, command, command.lock, command.fence, holder))
    table.take(hold, f"taken by {quoted(command.by)}", out)


def record(
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
    table.note_forced(entry)
    return entry


def _closed(command: CloseSession, victim: Contender) -> SessionClosed:
    return SessionClosed(
        handle=command.handle,
        label=victim.label,
        claims=victim.times,
        session=command.session,
        request=command.request,
    )
