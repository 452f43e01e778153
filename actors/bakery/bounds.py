"""Fields of members' messages that no honest member can send. Pure.

A receiver keeps much of what other members send: rounds, epochs, leases, tickets. Proxies pass on
to clients what leaders decide. So each field is bounded by what an honest member can have.
Otherwise one rogue or broken member could do damage that lasts after it is gone. A message outside
of the bounds is refused as a whole, and logged at ERROR with its sender. (Of a table that is handed
over, only the impossible records are left out: without the others a lock could be granted twice.)

**Epochs, and leases** are bounded by `EpochLimit`, and **members** by `can_follow`.

**An epoch that a leader obeys is visible.** A leader that prepares for an epoch, or hands its table
over for one, obeys no lower epoch in its life. Its node says so in its beats (`Barred`), as if the
member had promised that epoch. Otherwise a rogue coordinator could take leaders away from the
present epoch, and nobody would ever propose one above.

**Rounds** of a ticket are at most `TICKET_ROUND_MAX`. An honest leader takes one more than it
knows, at some twenty a second. If it knows `TICKET_ROUND_MAX`, which only a forger can have
claimed, its request fails, and the client sends another. So no honest leader ever sends a higher
one.

**Numbers and fences** of tickets are bounded by their bits. What a leader claims of them ends with
its epoch, and the epoch ends when a leader is gone.

**Proxies** are roles of that name on nodes, since a leader sends them what it decides. A proxy
checks the requests of its clients before it sends them on, so a leader receives only requests
within the limits of `fencelock.actors.api`. Only a fence that a client names may be any number: it
is compared with those of holds.

**Replies to proxies** name fences of epochs, and leases, that are plausible (`EpochLimit`). Numbers
in them must be those of requests in flight.
"""

from __future__ import annotations

from collections.abc import Collection

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.membership_message import NODE_ID
from fencelock.actors.api.name import OWNER_BYTES_MAX, REQUEST_MAX, WAIT_MS_MAX, check_object_name
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX, LEADERS_MAX, TRUST_MS_MAX, proxy_of
from fencelock.actors.bakery.electorate import ELECTORATE_NUMBER_MAX
from fencelock.actors.bakery.ticket import (
    ADDRESS_BYTES_MAX,
    FENCE_COUNTER_MAX,
    LEASE_MS_MAX,
    TERM_MS_MAX,
    TICKET_NUMBER_MAX,
    TICKET_ROUND_MAX,
    EndedRequests,
    Record,
    Ticket,
    Turn,
    counter_of,
    epoch_of,
)
from fencelock.actors.bakery.wire import (
    NO_SEATING,
    AddTicket,
    BoundStatement,
    Chosen,
    Collected,
    DropTicket,
    Entering,
    Expired,
    Extend,
    Extended,
    HoldRenewed,
    Lead,
    Lock,
    Locked,
    LockFailed,
    MaxTicket,
    NotLeading,
    Owned,
    Query,
    QueryResult,
    RenewHold,
    Seating,
    Table,
    TicketDropped,
    TicketEnded,
    ToLeader,
    ToProxy,
    Unlock,
    UnlockAll,
    Unlocked,
    Unlocking,
    Yield,
)
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.lease import surely_over
from fencelock.actors.membership import MEMBERS_MAX
from fencelock.actors.message import Message, node_of
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX

SHOWN_CHARS_MAX = 300
"""Maximum length of a message in a line of the log."""

WAITING_MS_MAX = surely_over(TRUST_MS_MAX + LEASE_MS_MAX + 1)
"""The longest time that a coordinator may wait until every lease is over (ms)."""

PART = 200
"""Maximum tickets in one part of a table: some 400 KiB with the longest names."""

TABLE_PARTS_MAX = 2_000
"""Maximum parts of a table: more than any has."""

REFUSAL_CHARS_MAX = 1_000
"""Maximum length of the reason why a leader refuses a request: a lock's name and a sentence."""

FromLeader = (
    Entering
    | MaxTicket
    | AddTicket
    | Collected
    | Yield
    | DropTicket
    | TicketDropped
    | TicketEnded
    | Owned
    | Extend
    | Extended
)

FromCopy = Collected | TicketDropped | TicketEnded | Extended
"""The answers of members that keep copies."""


def shown(message: Message) -> str:
    """Return the report of a message that no honest member can send."""
    return f"what no honest member can: {repr(message)[:SHOWN_CHARS_MAX]}"


def is_possible_step(step: FromLeader) -> bool:
    match step:
        case Entering():
            return _is_ticket(step.ticket) and step.ticket.turn.number == 0
        case MaxTicket():
            counted = 0 <= step.highest <= FENCE_COUNTER_MAX and 0 <= step.known <= TICKET_ROUND_MAX
            return counted and (step.held == 0 or _is_fence(step.held, step.epoch))
        case AddTicket():
            numbered = step.ticket.turn.number > 0 and 1 <= step.round <= TICKET_ROUND_MAX
            fenced = step.fence == 0 or _is_fence(step.fence, step.epoch)
            return numbered and fenced and _is_ticket(step.ticket)
        case Collected():
            counted = 0 <= step.highest <= FENCE_COUNTER_MAX and 0 <= step.known <= TICKET_ROUND_MAX
            return counted and (step.ahead is None or _is_turn(step.ahead))
        case Yield():
            return 1 <= step.round <= TICKET_ROUND_MAX
        case DropTicket():
            return (
                _are_names(step.lock, *step.who) and min(step.request, step.fence, step.number) >= 0
            )
        case TicketDropped():
            return step.request >= 0
        case Extend():
            fenced = _is_fence(step.fence, step.epoch)
            return fenced and step.ticket.turn.number > 0 and _is_ticket(step.ticket)
        case TicketEnded() | Owned() | Extended():
            return True


def _is_fence(fence: int, epoch: int) -> bool:
    """Return whether a peer's ``fence`` can have been granted in ``epoch`` or before."""
    return 0 < epoch_of(fence) <= epoch and 0 < counter_of(fence) < FENCE_COUNTER_MAX


def _are_names(lock: str, session: str = "", owner: str = "") -> bool:
    """Return whether a peer's names of a lock and an owner are within limits."""
    try:
        check_object_name(lock)
    except InvalidRequestError:
        return False
    return len(session) <= ADDRESS_BYTES_MAX and len(owner) <= OWNER_BYTES_MAX


def _are_terms(hold_ms: int, grace_ms: int) -> bool:
    return 1 <= hold_ms <= TERM_MS_MAX and 1 <= grace_ms <= TERM_MS_MAX


def _is_ticket(ticket: Ticket) -> bool:
    turn, proxy = ticket.turn, ticket.proxy
    return (
        _are_names(ticket.lock, *ticket.who)
        and len(ticket.label) <= OWNER_BYTES_MAX
        and len(proxy) <= ADDRESS_BYTES_MAX
        and proxy == proxy_of(node_of(proxy))
        and ticket.request >= 1
        and turn.number <= TICKET_NUMBER_MAX
        and _is_turn(turn)
        and _are_terms(ticket.hold_ms, ticket.grace_ms)
    )


def _is_turn(turn: Turn) -> bool:
    return 0 <= turn.number <= FENCE_COUNTER_MAX and turn.serial != 0 and _is_node(turn.leader)


def _is_node(name: str) -> bool:
    return NODE_ID.fullmatch(name[:33]) is not None


def is_possible_request(request: ToLeader) -> bool:
    match request:
        case Lock():
            wait_ms = request.wait_ms
            return (
                _are_names(request.lock, *request.who)
                and 1 <= request.request <= REQUEST_MAX
                and (wait_ms is None or 0 <= wait_ms <= WAIT_MS_MAX)
                and _are_terms(request.hold_ms, request.grace_ms)
                and len(request.label) <= OWNER_BYTES_MAX
            )
        case Unlock():
            by_number = request.fence == 0 and 1 <= request.request <= REQUEST_MAX
            by_fence = request.fence > 0 and request.request == 0
            return (by_number or by_fence) and _are_names(request.lock, *request.who)
        case RenewHold():
            missed = request.missed
            return (
                _are_names(request.lock, *request.who)
                and request.fence > 0
                and 0 <= request.hold_ms <= TERM_MS_MAX
                and len(set(missed)) == len(missed) <= LEADERS_MAX
                and all(map(_is_node, missed))
            )
        case Query():
            return _are_names(request.lock)
        case UnlockAll():
            return len(request.session) <= ADDRESS_BYTES_MAX


def is_possible_reply(reply: ToProxy, epoch: int, lease_ms: int) -> bool:
    """Return whether a leader can send ``reply``, up to an epoch and a lease that are plausible."""
    match reply:
        case Locked():
            return _is_of_hold(reply, epoch) and _is_lease(reply, lease_ms)
        case Unlocking():
            return _is_of_hold(reply, epoch) and 0 <= reply.grace_ms <= TERM_MS_MAX
        case Expired():
            return _is_of_hold(reply, epoch)
        case LockFailed():
            return len(reply.detail) <= REFUSAL_CHARS_MAX
        case HoldRenewed() if reply.fence:
            fenced = _is_fence(reply.fence, epoch) and not reply.invalid
            return fenced and _is_lease(reply, lease_ms)
        case HoldRenewed():
            unheld = reply.hold_ms == reply.grace_ms == 0
            return unheld and len(reply.invalid) <= REFUSAL_CHARS_MAX
        case QueryResult():
            return 0 < reply.epoch <= epoch and _is_state(reply)
        case Unlocked() | NotLeading():
            return True


def _is_of_hold(reply: Locked | Unlocking | Expired, epoch: int) -> bool:
    numbered = 1 <= reply.request <= REQUEST_MAX and _is_fence(reply.fence, epoch)
    return numbered and _are_names(reply.lock, *reply.who)


def _is_lease(reply: Locked | HoldRenewed, lease_ms: int) -> bool:
    hold_ms, grace_ms = reply.hold_ms, reply.grace_ms
    return _are_terms(hold_ms, grace_ms) and hold_ms + grace_ms <= lease_ms


def _is_state(state: QueryResult) -> bool:
    holders, waiters = state.holders, state.waiters
    return (
        len(holders) <= HOLDERS_SHOWN_MAX
        and len(waiters) <= min(WAITERS_SHOWN_MAX, state.waiting)
        and (state.expired_ms is None or state.expired_ms >= 0)
        and all(_is_fence(one.fence or 0, state.epoch) for one in holders)
        and all(one.fence is None for one in waiters)
        and all(map(_is_contender, (*holders, *waiters)))
    )


def _is_contender(one: Contender) -> bool:
    return (
        _is_node(one.node)
        and len(one.session) <= ADDRESS_BYTES_MAX
        and len(one.owner) <= OWNER_BYTES_MAX
        and one.since_ms >= 0
        and len(one.label) <= OWNER_BYTES_MAX
        and one.times in {1, RWLOCK_PERMITS}
    )


def is_possible_lead(lead: Lead) -> bool:
    former = lead.former
    known = former == NO_SEATING or (is_possible_seating(former) and former.bound_ms > 0)
    seating = lead.seating
    later = known and former.epoch < seating.epoch
    return later and is_possible_seating(seating) and seating.bound_ms >= 0


def are_seated(
    leaders: tuple[Chosen, ...],
    copies: tuple[Chosen, ...],
    members: Collection[str] | None = None,
) -> bool:
    """Return whether one to three nodes lead and others keep copies, all of them ``members``.

    Without ``members``, they need only have names of nodes.
    """
    nodes = {one.node for one in (*leaders, *copies)}
    distinct = len(nodes) == len(leaders) + len(copies) and len(copies) <= MEMBERS_MAX
    named = all(map(_is_node, nodes)) if members is None else nodes.issubset(members)
    return 1 <= len(leaders) <= LEADERS_MAX and distinct and named


def is_possible_table(table: Table) -> bool:
    numbered = 0 <= table.part < table.parts <= TABLE_PARTS_MAX
    return numbered and max(len(table.records), len(table.ended)) <= PART


def is_possible_record(record: Record, before: int) -> bool:
    return (
        _is_ticket(record.ticket)
        and record.ticket.turn.number > 0
        and _is_node(record.owner)
        and (record.fence == 0 or _is_fence(record.fence, before))
        and 0 <= record.left_ms <= LEASE_MS_MAX + 1  # It was rounded up.
    )


def is_possible_end(end: EndedRequests, before: int) -> bool:
    """Return whether a peer's ``end`` is possible in an epoch up to ``before``.

    Its ``fence`` was named by a client, and is only compared with others. Its ``highest`` and
    ``exclusive`` were voted for: an invented one would force every later grant of the lock above
    it.
    """
    sound = _are_names(end.lock, *end.who) and min(end.request, end.fence) >= 0
    return sound and epoch_of(end.highest) <= before and 0 <= end.exclusive <= end.highest


def impossible_records(table: Table, before: int) -> int:
    records = sum(not is_possible_record(record, before) for record in table.records)
    return records + sum(not is_possible_end(end, before) for end in table.ended)


def is_possible_seating(seating: Seating) -> bool:
    """Return whether the journal of an honest member can have ``seating``, apart from its bound."""
    return seating.epoch > 0 and are_seated(seating.leaders, seating.copies)


def is_known_seating(seating: Seating, members: Collection[str]) -> bool:
    """Return whether a peer can know ``seating``, apart from its epoch's and its bound's limit."""
    seated = are_seated(seating.leaders, seating.copies, members)
    return seating == NO_SEATING or (seated and seating.epoch > 0 and seating.bound_ms > 0)


def is_possible_statement(statement: BoundStatement, seating: Seating) -> bool:
    """Return whether a leader of ``seating`` can have made it, apart from the limit of leases."""
    leads = statement.leader in [leader.node for leader in seating.leaders]
    return leads and 0 < statement.number < ELECTORATE_NUMBER_MAX and statement.bound_ms > 0
