"""Messages between nodes: elections and hand-overs (0x40-0x4f), steps of tickets (0xb0-0xba), 0xe8.

Those between proxies and leaders (0xc0-0xcc) stand at the end.

A *life* is one run of a node; a leader is one node in one life, since its table dies with it.
A *seating* names the leaders of an epoch. Each epoch has one, since a member promises an epoch
once, and a seating counts when a majority of all members promised it.

Each message about a step carries its epoch; a leader replies only to messages of its own epoch.
Each reply names its ticket, and its round or drop, and counts once per sender.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.ticket import EndedRequests, Record, RequestKey, Ticket, Turn, Who
from fencelock.actors.message import Int64, Message

EPOCH_MAX = (1 << 30) - 1
"""Epochs fit 30 bits, so that an epoch and a counter of 32 bits pack into a positive fence."""


class Chosen(NamedTuple):
    """A leader: a node in one of its lives."""

    node: str
    life: Int64


class Seating(NamedTuple):
    """The leaders of ``epoch``. A cluster that never had leaders is in epoch 0."""

    epoch: Int64
    leaders: tuple[Chosen, ...]
    """One to three, in order of rank; empty only in epoch 0."""
    bound_ms: Int64
    """The longest lease at the beginning of this epoch: duration and grace together (ms)."""
    copies: tuple[Chosen, ...] = ()
    """The members that keep copies of what the leaders agree on; see `voting.py`."""

    @property
    def keepers(self) -> tuple[Chosen, ...]:
        return (*self.leaders, *self.copies)


class BoundStatement(NamedTuple):
    """The last statement of a leader about the leases for which it votes; see `max_lease.py`."""

    leader: str
    number: Int64
    bound_ms: Int64


NO_SEATING = Seating(0, (), 0)
NOTHING_STATED = BoundStatement("", -1, 0)


class Member(NamedTuple):
    """A node as its beats describe it; the receiver sets ``node`` and ``votes`` itself."""

    node: str
    life: Int64
    priority: Int64
    """1 to 14, the smaller the likelier to lead; `OFF` never."""
    pid: Int64
    promised: Int64
    """No lower epoch is obeyed by the node, which promised this one, nor by its leader."""
    seating: Seating
    """The highest seating that it knows to be installed."""
    serving: Int64
    """The epoch in which it leads and serves, or 0 for none."""
    waiting_ms: Int64
    """Time for which a coordinator still waits until every lease is over (ms), or 0 if it does
    not."""
    votes: bool = True
    """Whether it votes, under the journal that is registered for it."""
    electorate: Electorate = FOUNDERS
    """The electorate of ``seating``."""
    voter: Int64 = 0
    """The id under which it votes (`bootstrap.vote_id`), or 0 if it does not. Only beats of
    registered voters count in a majority."""
    reaches: tuple[Chosen, ...] = ()
    """The members that are connected with it both ways, each in its present life, without itself.
    """

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.node, self.life)


class Beat(Message, tag=0x40):
    """Source: LOCK_STARTED. A heartbeat, sent to every other member.

    ``echo`` is the number of the receiver's last beat that arrived, in its life ``echo_life``
    (both 0 if none did). A receiver that gets its own numbers back is connected both ways, and
    knows that the sender had not promised more than its ``promised`` when that beat arrived. The
    time since it sent that beat, without ``echo_age_ms``, is a round trip.
    """

    number: Int64
    """Number of the beat in this life, from 1."""
    echo_life: Int64
    echo: Int64
    member: Member
    """The sender."""
    echo_age_ms: Int64 | None = None
    """Time for which the echoed beat waited for this one (ms), rounded up; None if not known."""


class Propose(Message, tag=0x41):
    """Let ``leaders`` lead in ``epoch``. Also the record of the promise in a member's journal."""

    epoch: Int64
    leaders: tuple[Chosen, ...]
    electorate: Electorate = FOUNDERS
    """The electorate of that epoch; a change of the members begins with it."""
    copies: tuple[Chosen, ...] = ()
    """The members that keep copies in that epoch."""


class Install(Message, tag=0x46):
    """A seating that is known to be ready; the record of it. Between nodes, beats carry it.

    Source: LOCK_LEADERS, which is not compared with anything there.
    """

    seating: Seating
    electorate: Electorate = FOUNDERS
    """The electorate of ``seating``."""
    statements: tuple[BoundStatement, ...] = ()
    """The last statement that is known of each leader."""

    def stated(self, *statements: BoundStatement) -> "Install":
        """Return this with ``statements``, as far as they are later."""
        latest = {one.leader: one for one in self.statements}
        for one in statements:
            if one.number > latest.get(one.leader, NOTHING_STATED).number:
                latest[one.leader] = one
        return replace(self, statements=tuple(latest.values()))


NOTHING_INSTALLED = Install(seating=NO_SEATING)


class Promised(Message, tag=0x42):
    """The sender obeys no lower epoch, and no other leaders of this one.

    ``quiet_ms`` is how long it has obeyed no leader of the former seating already, in this life
    (ms). ``voter`` is the id under which the sender votes.
    """

    epoch: Int64
    former: Install
    """The highest installed one that I know: no set of leaders after it has ever served."""
    quiet_ms: Int64
    voter: Int64 = 0

    @property
    def seating(self) -> Seating:
        return self.former.seating

    @property
    def electorate(self) -> Electorate:
        return self.former.electorate


class Outbid(Message, tag=0x43):
    """I have promised ``epoch``, or other leaders in it: propose a higher one."""

    epoch: Int64


class Lead(Message, tag=0x44):
    """To a proposed keeper: prepare, with the tables of ``former``'s keepers.

    With ``empty`` the coordinator has waited until all their leases are over: start with an
    empty table.
    """

    seating: Seating
    """The proposed one. Before it is installed, leases of up to its bound may be voted for."""
    former: Seating
    empty: bool

    @property
    def epoch(self) -> int:
        """The proposed epoch."""
        return self.seating.epoch


class Merged(Message, tag=0x45):
    """I am ready to lead, or to keep copies, in ``epoch``.

    The longest lease in my table ends in ``left_ms`` (ms).
    """

    epoch: Int64
    left_ms: Int64


class Vouch(Message, tag=0x49):
    """Statement ``number`` of my leader in ``epoch``: its votes last ``bound_ms`` at most (ms).

    The leader sends it to the coordinator of its node, and that one to all members.
    """

    epoch: Int64
    number: Int64
    bound_ms: Int64


class Vouched(Message, tag=0x4A):
    """I know, durably, the statement ``number`` of your leader in ``epoch``.

    ``voter`` is the id under which the sender votes. A coordinator sends it to the leader of its
    node once a quorum of the electorate knows it.
    """

    epoch: Int64
    number: Int64
    voter: Int64 = 0


class Export(Message, tag=0x4B):
    """To a former keeper: from now on obey no epoch below ``epoch``, and send me your table."""

    epoch: Int64


class Table(Message, tag=0x4C):
    """A part of the table as it was when its keeper stopped. Source: LOCK_TICKETS.

    Parts are numbered from 0 to ``parts`` - 1.
    """

    epoch: Int64
    life: Int64
    """Life of the keeper that had the table."""
    part: Int64
    parts: Int64
    records: tuple[Record, ...]
    ended: tuple[EndedRequests, ...]
    """The last ended requests there, so that no other table brings them back."""


class OfRequest(Message):
    """A message about one request for a lock."""

    lock: str
    who: Who
    request: Int64

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.lock, self.who, self.request)


class Entering(Message, tag=0xB0):
    """Source: LOCK_ENTERING and GET_MAX_TICKET. ``ticket`` is about to draw a number."""

    epoch: Int64
    ticket: Ticket


class MaxTicket(OfRequest, tag=0xB1):
    """Source: LOCK_ENTERED and MAX_TICKET. I know that the ticket enters.

    ``highest`` is the highest number or counter that was drawn for the lock here. ``held`` is
    the fence under which this very request holds the lock already, as far as I know, or 0.
    """

    epoch: Int64
    highest: Int64
    held: Int64
    known: Int64
    """The highest round of this request that I know."""


class AddTicket(Message, tag=0xB2):
    """Source: ADD_TICKET, LOCK_EXITING and ACTIVATE_LOCK, in one.

    ``ticket`` has its number, and enters no more. With a ``fence`` it also requests a vote: to
    hold the lock under it. Of the rounds of one request only the highest counts. With ``taken``
    the request may hold the lock under ``fence`` already, through another owner.

    To a copy, a ``fence`` says that a quorum of the leaders voted for it.
    """

    epoch: Int64
    ticket: Ticket
    round: Int64
    fence: Int64
    """0 if it did not vote."""
    taken: bool


class Collected(OfRequest, tag=0xB3):
    """Source: TICKET_ADDED and LOCK_ACTIVATED. The ticket is in my table.

    ``voted`` says that the ticket holds the lock at this leader, which votes for no other until the
    ticket drops or yields, or its lease is over. Otherwise ``ahead`` is the first ticket that is
    ahead of it (number 0: that one still enters). From a copy it says that the hold is kept.
    """

    epoch: Int64
    round: Int64
    voted: bool
    ahead: Turn | None
    highest: Int64
    known: Int64
    """The highest round of this request that the sender knows: a lower one is not accepted."""


class Yield(OfRequest, tag=0xB4):
    """My ticket did not get enough votes in the rounds before ``round``: take your vote back."""

    epoch: Int64
    round: Int64


class DropTicket(OfRequest, tag=0xB5):
    """Source: DROP_TICKET. Forget this request, whether it waits or holds.

    It is named by its ``request``, or by the ``fence`` under which it holds, or by both; an unknown
    number is 0.
    """

    epoch: Int64
    fence: Int64 = 0
    number: Int64 = 0
    """Matches answers to the drops of one leader, or 0 if no answer is wanted."""
    mine: bool = False
    """Whether no client asked for it: only the ticket that this leader owns is meant."""


class TicketDropped(Message, tag=0xB6):
    """The request is not in my table. ``found``: it was, or I know that it was dropped before."""

    epoch: Int64
    number: Int64
    found: bool
    request: Int64
    """Number of the request, or 0 if I never knew it: others may know it by nothing else."""


class Extend(Message, tag=0xB7):
    """Restart the lease of ``ticket``, held under ``fence``."""

    epoch: Int64
    ticket: Ticket
    fence: Int64
    number: Int64


class Extended(Message, tag=0xB8):
    """Whether the lease restarts here."""

    epoch: Int64
    number: Int64
    kept: bool


class TicketEnded(OfRequest, tag=0xB9):
    """To the owner of a ticket: this request, or a later one, was dropped before."""

    epoch: Int64


class Owned(OfRequest, tag=0xBA):
    """To another owner of the same request: I rank before you, leave it to me."""

    epoch: Int64


def request_of(epoch: int, ticket: Ticket) -> dict[str, Any]:
    return {"epoch": epoch, "lock": ticket.lock, "who": ticket.who, "request": ticket.request}


class NodeInfo(Message, tag=0xE8):
    """A node describes itself to the other nodes, now and then."""

    epoch: Int64
    """The highest epoch whose seating it knows."""
    number: Int64
    """The number of the changes of the members that it knows."""
    journal: Int64
    """The id of its journal."""
    ready: bool
    """Whether it would vote as a member: others have confirmed that its journal is no old copy."""
    endpoint: str
    """The endpoint at which other nodes reach it, empty if its configuration does not say."""
    version: str


class Error(IntEnum):
    """Reason why a request failed. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The obtention timeout of the lock has passed."""
    INVALID = 2
    """A field exceeds its limits, such as a duration."""
    DUPLICATE = 3
    """A later request of the same owner for this lock is already known."""
    OVERFLOW = 4
    """A queue, or a counter, is at its limit."""
    FAILED = 5
    """The leaders could not agree, and nothing more is known."""
    HELD = 6
    """In this leader's table, the owner holds the lock for an earlier request."""


class Lock(OfRequest, tag=0xC0):
    """Source: LOCK. ``wait_ms`` is the time left to obtain the lock (ms), or None for no limit."""

    wait_ms: Int64 | None
    hold_ms: Int64
    grace_ms: Int64
    label: str
    shared: bool = False
    """Whether it may hold the lock beside other shared requests."""


class Locked(OfRequest, tag=0xC1):
    """Source: LOCKED. No other owner is granted the lock for ``hold_ms + grace_ms`` from now.

    If the request is shared, other owners may still be granted shared requests.
    """

    fence: Int64
    hold_ms: Int64
    grace_ms: Int64


class LockFailed(OfRequest, tag=0xC2):
    """Source: LOCK_FAILED. The request waits no more, and holds nothing."""

    error: Error
    detail: str


class Unlock(OfRequest, tag=0xC3):
    """Source: UNLOCK. Drop the request, named by number or by fence (the other is 0)."""

    fence: Int64
    number: Int64
    """The proxy's number, for the reply."""
    waiting: bool
    """Drop it only if it waits: the proxy stopped waiting, but another may have granted it
    meanwhile."""


class Unlocked(Message, tag=0xC4):
    """Source: UNLOCKED. Enough leaders have dropped it; ``found`` if any of them ever knew it."""

    number: Int64
    found: bool


class NotLeading(Message, tag=0xC5):
    """I do not serve. ``owner`` is the leader that has this request, or empty if none is known."""

    lock: str
    who: Who
    owner: str


class Unlocking(OfRequest, tag=0xC6):
    """Source: UNLOCKING. The duration is over; after ``grace_ms`` the lock is taken away."""

    fence: Int64
    grace_ms: Int64


class Expired(OfRequest, tag=0xC7):
    """Source: UNLOCKED with an error. The grace is also over: the next owner gets the lock."""

    fence: Int64


class RenewHold(Message, tag=0xC8):
    """Let the duration of the hold under ``fence`` begin anew, with ``hold_ms``."""

    lock: str
    who: Who
    fence: Int64
    hold_ms: Int64
    """The new duration (ms), 0 for the same as before."""
    number: Int64
    missed: tuple[str, ...] = ()
    """Leaders that replied that they do not have the hold: the renewal is not left to them."""


class HoldRenewed(Message, tag=0xC9):
    """It began anew after this was requested; or, if ``fence`` is 0, I do not have the hold.

    Another leader may have it: a proxy reports a loss only once no quorum can have it.
    """

    number: Int64
    fence: Int64
    hold_ms: Int64
    grace_ms: Int64
    invalid: str = ""
    """Reason why the renewal is refused, although the hold exists; empty if it is not."""


class Query(Message, tag=0xCA):
    """Report the holder and the waiters of ``lock``.

    Sent to all leaders, and answered only by those that may grant locks now.
    """

    lock: str
    number: Int64
    nonce: Int64 = 0
    """Of one round of asking; the answer repeats it."""


class QueryResult(Message, tag=0xCB):
    """State of a lock in this leader's table; waiters in the order of their tickets."""

    lock: str
    number: Int64
    holders: tuple[Contender, ...]
    """The holders for which the leader voted, in the order of their fences: one at most, unless the
    lock has shared holders."""
    waiters: tuple[Contender, ...]
    waiting: Int64
    """Number of waiters, of which only some may be listed."""
    epoch: Int64 = 0
    """The epoch in which the leader serves."""
    nonce: Int64 = 0
    """The nonce of the `Query`."""
    expired_ms: Int64 | None = None
    """Time since a vote for a holder of this lock last expired here (ms), or None if none ever
    did."""


class UnlockAll(Message, tag=0xCC):
    """Drop every request of ``session``: its client is gone. Answered by `Unlocked`."""

    session: str
    number: Int64


ToLeader = Lock | Unlock | UnlockAll | RenewHold | Query
"""The messages from proxies to leaders."""

ToProxy = (
    Locked | LockFailed | Unlocked | NotLeading | Unlocking | Expired | HoldRenewed | QueryResult
)
"""The messages from leaders to proxies."""
