"""The rules about locks and permits: claims, releases, renewals, cancels; and what all rules share.

Other kinds have modules of their own, such as `latch.py`. `rules.py` lists which rule carries out
which command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fencelock.actors.api.election import Lead
from fencelock.actors.api.handover import Attach
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import (
    Acquire,
    AcquireRequest,
    Cancel,
    CancellableRequest,
    Cancelled,
    Contender,
    Reason,
    Refused,
    ReleaseRequest,
    Renew,
    refused,
)
from fencelock.actors.api.name import plain_name
from fencelock.actors.api.object_request import (
    GuardedRequest,
    PartRequest,
    PermitRequest,
    UpdateReply,
    UpdateRequest,
)
from fencelock.actors.api.operator_message import Evict, Evicted
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.request import Command
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.semaphore import Resized, ResizeSemaphore
from fencelock.actors.table.account import CLAIMS_MAX, OBJECTS_MAX
from fencelock.actors.table.deadline import LeasedHold, check_duration, durations_of
from fencelock.actors.table.resource import PLAIN, ClaimDetails, TableHold, Wait
from fencelock.actors.table.retained import (
    COME_BACK_MS,
    check_retained,
    may_come_back,
    recall_first,
)
from fencelock.actors.table.session import SESSION_CLAIMS_MAX, WAITS_MAX, OwnerState, Session
from fencelock.actors.table.wire import Queued, Result

if TYPE_CHECKING:
    from fencelock.actors.table.state import TableState

Rule = Callable[["TableState", Any, list[Result]], None]
"""Applies a command to the table, and appends its outcomes."""

UpdateRule = Callable[["TableState", OwnerState, Any, list[Result]], None]
"""Applies an update that is the owner's last request, and appends its outcome and others."""

GIVEN_UP = Why(Cause.GIVEN_UP)
LATER_REQUEST = Why(Cause.LATER_REQUEST)


def claiming(details_of: Callable[[Any], ClaimDetails]) -> Rule:
    """Return the rule that grants a claim its amount of each of its objects, queues or denies it.

    ``details_of`` returns the claim's other fields; it raises InvalidRequestError for fields that
    exceed their limits, as the ``check`` of the command does, before anything is done.
    """

    def claim(table: TableState, command: AcquireRequest, out: list[Result]) -> None:
        details = details_of(command)
        owner_state = begin_claim(table, command, out)
        if owner_state is None:
            return
        amount, capacity, count = command.amount, command.permits, command.granted_count
        free, resources = True, table.resources
        names = details.locks or (owner_state.key[1],)
        for name in names:
            resource = resources.get(name)
            if resource is not None:
                if resource.capacity != capacity:
                    deny_size(table, owner_state, resource.capacity, capacity, out)
                    return
                free = free and resource.admits(amount)
        drains = not amount
        if drains:
            resource = resources.get(owner_state.key[1])
            amount = count = capacity if resource is None else resource.free
            free = free and amount > 0
        tries = not free and command.wait_ms == 0
        waits = table.retained and not drains  # A try that waits for what is retained.
        if tries and not (waits and may_come_back(table, owner_state, details, amount)):
            deny_obstructed(table, owner_state, table.obstacle(owner_state.lock, details), out)
        elif has_room(table, owner_state, out, names, waits=not free):
            if free:
                table.grant(owner_state, details, amount, capacity, count, out)
            else:
                begin_wait(table, owner_state, command, out, details, amount, capacity, count)

    return claim


def lock_details(command: Acquire | Attach) -> ClaimDetails:
    """Raise InvalidRequestError if the durations are out of their limits."""
    if command.hold_ms or command.grace_ms:
        return ClaimDetails(command.label, durations=durations_of(command))
    return ClaimDetails(command.label) if command.label else PLAIN


def permit_details(command: PermitRequest) -> ClaimDetails:
    return ClaimDetails(command.label) if command.label else PLAIN


def all_details(command: AcquireAll) -> ClaimDetails:
    return ClaimDetails(command.label, locks=command.locks)


def leader_details(command: Lead) -> ClaimDetails:
    return ClaimDetails(command.label, value=command.value)


def retained_details(command: AcquireRetained) -> ClaimDetails:
    check_retained(command)
    return ClaimDetails(command.label, span=command.span)


def begin_claim(table: TableState, command: AcquireRequest, out: list[Result]) -> OwnerState | None:
    """Make a new claim its owner's last request; return None if it was replied to."""
    owner_state = begin(table, command, out)
    if owner_state is None:
        return None
    losses = owner_state.session.losses
    if losses:
        losses.pop(owner_state.key, None)
    owner_state.releasing, owner_state.outcome = False, None
    if owner_state.hold is not None:
        _enter_again(table, owner_state, owner_state.hold, command, out)
        return None
    return owner_state


def keeps_waiting(table: TableState, claim: AcquireRequest, *, behind_others: bool) -> bool:
    """Return whether ``claim``, if it may wait forever, would be queued now.

    With ``behind_others``, it must also have other waits before it.

    It would be granted later than it is applied, and so may share a slot with a later command. A
    claim that makes the table recall a hold may not, since the release comes after the recall.
    """
    admitted, queued = True, False
    for name in claim.locks if isinstance(claim, AcquireAll) else (claim.lock,):
        resource = table.resources.get(name)
        if resource is not None:
            if resource.capacity != claim.permits or (resource.spans and not resource.queue):
                return False
            admitted = admitted and resource.admits(claim.amount)
            queued = queued or bool(resource.queue)
    if behind_others and not queued:
        return False
    session = None if admitted else table.sessions.by_id.get(claim.session)
    if session is None:
        return False
    owner_state = session.owner_states.get((claim.owner, claim.lock))
    return owner_state is None or owner_state.hold is None


def release(table: TableState, command: ReleaseRequest, out: list[Result]) -> None:
    """Release one hold, or permits. Owner and fence must both be right.

    A `Release` gives back all permits of a hold that is held once.
    """
    owner_state = begin(table, command, out)
    if owner_state is None:
        return
    owner_state.releasing = True
    hold = owner_state.hold
    if hold is None or hold.fence != command.fence:
        deny_release(table, owner_state, command, out)
        return
    part = 0
    if command.PARTIAL:
        assert isinstance(command, PartRequest)
        part = command.amount or hold.amount
        if part > hold.amount:
            why = Why(Cause.TOO_MANY, (part, hold.amount, hold.fence))
            deny(table, owner_state, Reason.INVALID, why, out)
            return
    left = hold.amount - part if part else hold.count - 1
    table.changing = True
    owner_state.outcome = released = owner_state.released(left)
    out.append(released)
    if not left:
        table.end_hold(hold, out)
    elif part:
        table.give_back(hold, part, out)
    else:
        hold.count = left


def resize_semaphore(
    table: TableState, owner_state: OwnerState, command: ResizeSemaphore, out: list[Result]
) -> None:
    lock, size = command.lock, command.size
    resource = table.resources.get(lock)
    if resource is not None and resource.capacity not in {command.permits, size}:
        deny_size(table, owner_state, resource.capacity, command.permits, out)
        return
    served, free = list[Result](), size
    if resource is not None:
        why = Why(Cause.OTHER_SIZE, (size, resource.capacity))
        table.changing = True
        resource.resize(size)
        for wait in [*resource.waits]:
            if wait.amount > size:
                table.end_wait(wait, Reason.INVALID, served, why)
        table.serve((lock,), served)
        free = resource.free
    conclude(table, owner_state, Resized(**command.fields(), size=size, free=free), out)
    out += served


def renew(table: TableState, command: Renew, out: list[Result]) -> None:
    """Restart the duration of a hold. Owner and fence must both be right.

    A repetition gets the same reply again, and moves no deadline. A client that receives a grant
    late first renews it, under the number of the acquire. So the number of a renewal is compared
    with that of the last renewal, too. A renewal with a lower number than the last request of its
    owner has no effect.
    """
    command.check()
    if command.hold_ms:
        check_duration(command.lock, "duration", command.hold_ms)
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(session_expired(command))
        return
    keep(table, session)
    owner_state = session.owner_states.get((command.owner, command.lock))
    hold = None if owner_state is None else owner_state.hold
    if owner_state is None or hold is None or hold.fence != command.fence:
        out.append(refused(command, Reason.NOT_HELD, why=wrong_fence(table, command)))
    elif not isinstance(hold, LeasedHold):
        out.append(refused(command, Reason.UNSUPPORTED, why=Why(Cause.NO_DEADLINE)))
    elif command.request != hold.renewal and command.request < max(
        hold.renewal, owner_state.request
    ):
        out.append(refused(command, Reason.SUPERSEDED, why=LATER_REQUEST))
    else:
        if command.request != hold.renewal:
            table.changing = True
            hold.renewal, hold.lasts_ms = command.request, command.hold_ms or hold.lasts_ms
            hold.restart(table)
        out.append(hold.renewed())


def cancel(table: TableState, command: Cancel, out: list[Result]) -> None:
    """Undo an acquire that waits, was granted, or is still to come."""
    command.check()
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(session_expired(command))
        return
    keep(table, session)
    out.append(Cancelled(**command.fields()))
    key = command.owner, command.lock
    owner_state = session.owner_states.get(key)
    if owner_state is None:
        if command.request <= session.floor:
            return  # A forgotten owner neither waits nor holds.
        table.changing = True
        session.make_room()
        owner_state = session.enter(key)
    table.changing = True
    wait, hold = owner_state.wait, owner_state.hold
    if command.request > owner_state.request:
        if wait is not None:
            table.end_wait(wait, Reason.CANCELLED, out, GIVEN_UP)
        owner_state.request, owner_state.releasing = command.request, False
        owner_state.outcome = owner_state.denied(Reason.CANCELLED, GIVEN_UP)
        if hold is None:
            session.idle.pop(key, None)  # It becomes the newest.
            session.retire(key, table.time_ms)
    elif wait is not None and owner_state.request == command.request:
        table.end_wait(wait, Reason.CANCELLED, out, GIVEN_UP)
    elif hold is not None and hold.request == command.request:
        if owner_state.request == command.request:
            owner_state.settle(owner_state.denied(Reason.CANCELLED, GIVEN_UP))
        hold.request = 0
        hold.count -= 1
        if hold.count == 0:
            table.end_hold(hold, out)


def begin(
    table: TableState, command: CancellableRequest | ReleaseRequest, out: list[Result]
) -> OwnerState | None:
    """Make a new request its owner's last one; for a repetition, send its outcome, return None.

    Any request but an invalid one counts as a keep-alive.
    """
    session = table.sessions.by_id.get(command.session)
    command.check()
    if session is None:
        out.append(session_expired(command))
        return None
    key, request = (command.owner, command.lock), command.request
    if session.kept_ms != table.time_ms:
        keep(table, session)
    owner_state = session.owner_states.get(key)
    if owner_state is None:
        if request <= session.floor:
            out.append(refused(command, Reason.FORGOTTEN, why=LATER_REQUEST))
            return None
        table.changing = True
        session.make_room()
        owner_state = session.enter(key)
    elif request <= owner_state.request:
        out.append(_repeat(owner_state, command))
        return None
    elif owner_state.hold is None:
        table.changing = True
        if owner_state.wait is not None:  # It is sequential: it gave that wait up.
            table.end_wait(owner_state.wait, Reason.CANCELLED, out, GIVEN_UP)
        session.idle.pop(key, None)
    owner_state.request = request
    table.begun, table.changing = owner_state, False
    return owner_state


def keep(table: TableState, session: Session) -> None:
    """Keep a session alive, and forget owner states that no request can need any more.

    It is a change that is whole by itself. Another one within the same millisecond changes nothing,
    so it can be left out. Under a new leader nothing is forgotten for a TTL: clients repeat the
    requests that they sent while there was none.
    """
    now_ms, ttl_ms = table.time_ms, session.ttl_ms
    table.changing = True
    session.kept_ms = now_ms
    session.deadline_ms = max(session.deadline_ms, now_ms + ttl_ms)
    if now_ms >= table.sessions.extended_ms + ttl_ms:
        session.forget(now_ms)
    table.changing = False


def _repeat(owner_state: OwnerState, command: CancellableRequest | ReleaseRequest) -> Result:
    releasing, hold = isinstance(command, ReleaseRequest), owner_state.hold
    last = command.request == owner_state.request and releasing == owner_state.releasing
    if last and owner_state.outcome is not None:
        return owner_state.outcome
    if last and owner_state.wait is not None:
        return _queued(owner_state)
    if hold is not None and hold.request == command.request and not releasing:
        return hold.answer()
    return refused(command, Reason.SUPERSEDED, why=LATER_REQUEST)


def updating(rule: UpdateRule) -> Rule:
    """Return the rule that applies ``rule`` to new updates, and repeats the outcome of others.

    The rule must call `conclude`, `deny` or `begin_wait`.
    """

    def apply(table: TableState, command: UpdateRequest, out: list[Result]) -> None:
        owner_state = begin_update(table, command, out)
        if owner_state is not None:
            rule(table, owner_state, command, out)

    return apply


def begin_update(table: TableState, command: UpdateRequest, out: list[Result]) -> OwnerState | None:
    owner_state = begin(table, command, out)
    if owner_state is not None:
        owner_state.releasing, owner_state.outcome = False, None
    return owner_state


def _enter_again(
    table: TableState,
    owner_state: OwnerState,
    hold: TableHold,
    command: AcquireRequest,
    out: list[Result],
) -> None:
    """Count one more hold, or deny it at once: an owner that waits for itself waits forever."""
    if command.limit and hold.count >= command.limit:
        why = Why(Cause.AT_LIMIT, (hold.count, hold.fence, command.limit))
        reason = Reason.ALREADY_HELD if command.limit == 1 else Reason.LIMIT_REACHED
        deny(table, owner_state, reason, why, out)
    elif command.amount > hold.amount:
        why = Why(Cause.TOO_FEW, (command.amount, hold.amount, hold.fence))
        deny(table, owner_state, Reason.ALREADY_HELD, why, out)
    else:
        table.changing = True
        hold.acquire_again(command.request)
        out.append(hold.answer())


def begin_wait(
    table: TableState,
    owner_state: OwnerState,
    command: CancellableRequest,
    out: list[Result],
    details: ClaimDetails | None = None,
    amount: int = 1,
    capacity: int = 0,
    count: int = 1,
) -> None:
    """Append a claim, which `has_room` has counted, to the queue of each of its objects."""
    table.tickets += 1
    now_ms, wait_ms = table.time_ms, command.wait_ms
    if details is None:
        details = ClaimDetails(command.label) if command.label else PLAIN
    due_ms = None if wait_ms is None else now_ms + (wait_ms or COME_BACK_MS)  # 0: a try.
    wait = Wait(owner_state, details, table.tickets, now_ms, due_ms, amount, count)
    if details.key is not None:
        table.note_payer(wait, details.key)
    table.enqueue(wait, capacity)
    out.append(_queued(owner_state))
    if table.retained:
        recall_first(table, wait.objects, out)


def has_room(
    table: TableState,
    owner_state: OwnerState,
    out: list[Result],
    names: Sequence[str],
    charged: str | None = None,
    *,
    waits: bool = True,
) -> bool:
    """Count a hold or a wait of each object; deny the claim and return False if a limit is reached.

    They are charged to the account named ``charged``, or else to that of the session.
    ``waits`` says whether the claim would wait, which has limits of its own.
    """
    session, wanted = owner_state.session, len(names)
    account = session.account if charged is None else table.accounts.of(charged)
    if session.claims + wanted > SESSION_CLAIMS_MAX:
        why: Why | None = Why(Cause.SESSION_CLAIMS, (session.claims, SESSION_CLAIMS_MAX))
    elif account.claims + wanted > account.limits.claims:
        why = account.why_over("claims", wanted)
    elif table.claims + wanted > CLAIMS_MAX:
        why = Why(Cause.CLAIMS, (table.claims, CLAIMS_MAX))
    elif waits and (over := _why_no_wait(table, session, names)):
        why = over
    else:
        table.changing = True
        session.claims += wanted
        account.claims += wanted
        table.claims += wanted
        return True
    assert why is not None
    table.accounts.leave(account)
    deny(table, owner_state, Reason.OVERLOADED, why, out)
    return False


def _why_no_wait(table: TableState, session: Session, names: Sequence[str]) -> Why | None:
    if session.waits + len(names) > WAITS_MAX:
        return Why(Cause.SESSION_WAITS, (session.waits, WAITS_MAX))
    for name in names:
        awaited = table.awaited(name)
        if awaited is not None and awaited.waiting >= WAITS_MAX:
            return Why(Cause.QUEUE, (awaited.waiting, WAITS_MAX), (plain_name(name),))
    return None


def has_object_room(table: TableState, owner_state: OwnerState, out: list[Result]) -> bool:
    """Return whether the table may have another `TableObject`; deny the request if not."""
    count = len(table.objects)
    why = owner_state.session.account.why_over("objects")
    if why is None:
        if count < OBJECTS_MAX:
            return True
        why = Why(Cause.OBJECTS, (count, OBJECTS_MAX))
    deny(table, owner_state, Reason.OVERLOADED, why, out)
    return False


def holds_guard(
    table: TableState, owner_state: OwnerState, command: GuardedRequest, out: list[Result]
) -> bool:
    """Return whether the guard of a request is held under its fence; deny the request if not."""
    if not command.guard or table.is_held(command.guard, command.fence):
        return True
    why = Why(Cause.GUARD, (command.fence,), obstacle=table.state_of(command.guard))
    deny(table, owner_state, Reason.NOT_HELD, why, out)
    return False


def deny_release(
    table: TableState, owner_state: OwnerState, command: ReleaseRequest, out: list[Result]
) -> None:
    losses = owner_state.session.losses
    if losses and losses.get(owner_state.key) == command.fence:
        del losses[owner_state.key]
        why = Why(Cause.LOST, obstacle=table.state_of(command.lock))
        deny(table, owner_state, Reason.OWNERSHIP_LOST, why, out)
    else:
        deny(table, owner_state, Reason.NOT_HELD, wrong_fence(table, command), out)


def wrong_fence(table: TableState, command: Evict | Renew | ReleaseRequest) -> Why:
    return Why(Cause.WRONG_FENCE, (command.fence,), obstacle=table.state_of(command.lock))


def session_expired(command: Command) -> Refused:
    why = Why(Cause.SESSION_ENDED, texts=(command.session,))
    return refused(command, Reason.SESSION_EXPIRED, why=why)


def deny(
    table: TableState, owner_state: OwnerState, reason: Reason, why: Why, out: list[Result]
) -> None:
    """Deny the last request of ``owner_state``, and retire it if it does not hold."""
    conclude(table, owner_state, owner_state.denied(reason, why), out)


def deny_obstructed(
    table: TableState, owner_state: OwnerState, obstacle: Obstacle, out: list[Result]
) -> None:
    deny(table, owner_state, Reason.TIMED_OUT, Why(Cause.OBSTRUCTED, obstacle=obstacle), out)


def deny_size(
    table: TableState, owner_state: OwnerState, size: int, other: int, out: list[Result]
) -> None:
    deny(table, owner_state, Reason.INVALID, Why(Cause.OTHER_SIZE, (size, other)), out)


def conclude(
    table: TableState,
    owner_state: OwnerState,
    answer: Refused | UpdateReply,
    out: list[Result],
) -> None:
    """Answer the last request of ``owner_state``, and retire it if it does not hold."""
    table.changing = True
    owner_state.settle(answer)
    if owner_state.hold is None:
        owner_state.session.retire(owner_state.key, table.time_ms)
    out.append(answer)


def _queued(owner_state: OwnerState) -> Queued:
    owner, lock = owner_state.key
    session = owner_state.session.id
    return Queued(session=session, owner=owner, request=owner_state.request, lock=lock)


def record(
    table: TableState,
    command: Command,
    operator: str,
    lock: str,
    fence: int,
    holder: Contender,
    why: Why | None = None,
) -> Evicted:
    entry = Evicted(
        lock=lock,
        fence=fence,
        holder=holder,
        session=command.session,
        request=command.request,
        operator=operator,
        time_ms=table.time_ms,
        why=why,
    )
    table.note_forced(entry)
    return entry
