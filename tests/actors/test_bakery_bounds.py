"""Every field that members of `bakery` send each other: what no honest one sends is refused.

Members are the coordinators and leaders of nodes, and the proxies that send leaders the requests of
clients. A refusal is logged at ERROR with the sender, and nothing is written to the journal. The
bounds and the reasons are in the docstring of `fencelock.actors.bakery.bounds`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.leader_trio import (
    NAMES,
    beat,
    begun_coordinator,
    cluster_status,
    lock_leader,
    lock_request,
    voters,
)
from support.role_harness import HOST, T0, at, only_sent, sent
from support.samples import Row, cases, demand_bounds, demand_honest, errors, variants

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import OWNER_BYTES_MAX, REQUEST_MAX, WAIT_MS_MAX
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.bakery import wire as messages
from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.bounds import (
    REFUSAL_CHARS_MAX,
    TABLE_PARTS_MAX,
    WAITING_MS_MAX,
    FromLeader,
    is_possible_end,
    is_possible_record,
    is_possible_reply,
    is_possible_request,
    is_possible_step,
)
from fencelock.actors.bakery.config import (
    HOLDERS_SHOWN_MAX,
    OFF,
    Terms,
    election_of,
    leader_of,
    members_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.election import Election, ElectionCoordinator
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.epochs import EPOCHS_AHEAD_MAX, EpochLimit, VoterRegistry
from fencelock.actors.bakery.event import BeatContents
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.reconfigurer import BAKERY_VERSION_CHARS_MAX, Reconfigurer
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
    Who,
    pack_fence,
)
from fencelock.actors.bakery.wire import EPOCH_MAX, Chosen, Seating
from fencelock.actors.effect import Checkpoint, Observe, Persist, Send
from fencelock.actors.membership import Member as Seat
from fencelock.actors.message import Address, Message
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.role import Role

LIVES = tuple(Chosen(name, 1) for name in NAMES)
SEATING = Seating(3, LIVES, 10_000)
PROPOSED = Seating(4, LIVES, 0)
WHO = Who("ann", "o")
FENCE = pack_fence(3, 7)
LEASE_MS = 600_000
"""The longest lease that is allowed; `EpochLimit.allows_lease` grants a second more."""
LONG_MS = LEASE_MS + 1_001
FAR = EPOCHS_AHEAD_MAX + 1
EPOCHS = (0, -1, FAR, EPOCH_MAX, EPOCH_MAX + 1, 1 << 62)
HIGH = (FAR, EPOCH_MAX + 1, 1 << 62)
INT = (1 << 63) - 1
TEAMS = (
    (),
    (*LIVES, Chosen("n4", 1)),
    (LIVES[0], LIVES[0]),
    (Chosen("N/1", 1),),
    (Chosen("x" * 40, 1),),
)
STRANGERS = Electorate(1 << 40, (Seat("n2", "", 12),))
COPIES = (
    (LIVES[0],),
    (Chosen("N/1", 1),),
    (Chosen("x" * 40, 1),),
    tuple(Chosen(f"m{number}", 1) for number in range(200)),
)
SEATINGS = (
    *variants(SEATING, epoch=(FAR, -1, 0), bound_ms=(0, LONG_MS), leaders=TEAMS, copies=COPIES),
)
UNKNOWN = SEATING._replace(leaders=(Chosen("n9", 1),))


def limit() -> EpochLimit:
    return EpochLimit(lease_ms=LEASE_MS)


def registry() -> VoterRegistry:
    return voters(limit=limit())


def a_status() -> Role[Any]:
    role = cluster_status(registry())
    role.begin(T0)
    contents = BeatContents(promised=3, seating=SEATING, waiting_ms=0)
    role.handle(election_of("n1"), contents, T0)
    return role


def a_coordinator() -> ElectionCoordinator:
    """A coordinator that proposes epoch 4 after that of `SEATING`, which it promised."""
    role = begun_coordinator(registry(), messages.Install(seating=SEATING), bound_ms=10_000)
    proposal = messages.Propose(epoch=4, leaders=LIVES)
    role.election = Election(proposal, role.electorate, 3, T0)
    return role


def a_leader() -> Leader:
    """The leader of n1, which serves in epoch 3 with n2 and n3."""
    role = lock_leader(limit=limit())
    role.epoch_state.take(Seating(3, LIVES, 10_000))
    role.epoch_state.serving, role.epoch_state.trusted_at = True, T0
    return role


def an_entering_leader() -> Leader:
    """A leader with a request of its own that enters."""
    role = a_leader()
    role.handle(proxy_of("n1"), lock_request(WHO), T0)
    return role


def a_voting_leader() -> Leader:
    """A leader that has sent a round of its own request."""
    role = an_entering_leader()
    role.handle(leader_of("n2"), MAX_TICKET, T0)
    return role


def an_importing_leader() -> Leader:
    """A leader that waits for the tables of epoch 3."""
    role = a_leader()
    role.epoch_state.serving = False
    former = Seating(3, (Chosen("n2", 1), Chosen("n3", 1)), 10_000)
    lead = messages.Lead(seating=Seating(4, LIVES, 0), former=former, empty=False)
    role.handle(election_of("n2"), lead, T0)
    return role


def epochs_of(role: Role[Any]) -> tuple[int, ...]:
    """Return the epochs that a role promised, knows of, or obeys no more."""
    match role:
        case ElectionCoordinator():
            return role.highest, role.promises.promised
        case Leader():
            return (role.epoch_state.barred,)
        case _:
            return ()


def a_reconfigurer() -> Role[Any]:
    return Reconfigurer(
        members_of("n1"), HOST, nodes=NAMES, electorate=registry().founders, own=INFO
    )


def a_proxy() -> Role[Any]:
    backend = BakeryBackend("n1", NAMES, Terms(), Random(1), 1, limit=limit())
    return Proxy(proxy_of("n1"), HOST, backend=backend)


def ticket(number: int = 0, **others: Any) -> Ticket:
    turn = Turn(number, "n2", 1)
    return Ticket("x", WHO, 1, turn, proxy_of("n2"), 500, 500, "")._replace(**others)


def tickets(number: int) -> tuple[Ticket, ...]:
    """Return tickets with one field that no honest leader sends."""
    one = ticket(number)
    turns = variants(
        one.turn, number=(-1, FENCE_COUNTER_MAX, INT), leader=("", "x" * 10_000), serial=(0,)
    )
    return tuple(
        variants(
            one,
            lock=LOCKS,
            who=WHOSE,
            request=(0, -1),
            turn=turns,
            proxy=(Address(""), Address("n1/election"), Address("x" * 10_000)),
            hold_ms=(0, -1, INT, LONG_MS - 500),
            grace_ms=(0, -1, INT),
            label=("x" * 10_000,),
        )
    )


LOCKS = ("", "x" * 1_000, "x\ny")
WHOSE = (Who("x" * 10_000, "o"), Who("s", "x" * 10_000))
NUMBERS = (0, -1, REQUEST_MAX + 1)
TERMS = (0, -1, TERM_MS_MAX + 1, INT)
PROMISED = messages.Promised(
    epoch=4, former=messages.Install(seating=SEATING), quiet_ms=0, voter=12
)
BEAT = beat(promised=3, seating=SEATING, serving=3, reaches=LIVES)
INFO = messages.NodeInfo(epoch=3, number=0, journal=5, ready=True, endpoint="", version="1")
NAMED: dict[str, Any] = {"epoch": 3, "lock": "x", "who": WHO, "request": 1}
MAX_TICKET = messages.MaxTicket(**NAMED, highest=1, held=0, known=0)
RECORD = Record(ticket(1), "n2", FENCE, 500)
ENDED = EndedRequests("x", WHO, 1, 0, FENCE, FENCE)
TABLE = messages.Table(epoch=4, life=1, part=0, parts=1, records=(RECORD,), ended=(ENDED,))
IMPOSSIBLE_STATEMENTS = variants(
    messages.BoundStatement("n1", 1, 5), leader=("n4",), number=(0, INT), bound_ms=(0, LONG_MS)
)
ROUNDS = (0, -1, TICKET_ROUND_MAX + 1, INT)
BEYOND = (
    -1,
    pack_fence(0, 1),
    pack_fence(4, 1),
    pack_fence(3, 0),
    pack_fence(3, FENCE_COUNTER_MAX),
    INT,
)
FENCES = (-1, pack_fence(FAR, 1), pack_fence(3, 0), pack_fence(3, FENCE_COUNTER_MAX), INT)
"""Fences that no leader has granted, for a proxy: it knows only which epochs are plausible."""
IMPOSSIBLE_RECORDS = variants(
    RECORD,
    ticket=(*tickets(1), ticket(0)),
    owner=("x" * 10_000,),
    fence=BEYOND,
    left_ms=(-1, LONG_MS, LEASE_MS_MAX + 2, INT),
)
IMPOSSIBLE_ENDS = variants(
    ENDED,
    lock=("",),
    who=(Who("x" * 10_000, "o"),),
    request=(-1,),
    fence=(-1,),
    highest=(-1, pack_fence(4, 1)),
    exclusive=(-1, FENCE + 1),
)
COUNTS = (-1, FENCE_COUNTER_MAX + 1, INT)
KNOWN = (-1, TICKET_ROUND_MAX + 1, INT)


OF_OWNER: dict[str, Any] = {"lock": "x", "who": WHO}
OF_HOLD: dict[str, Any] = OF_OWNER | {"request": 1, "fence": FENCE}
IMPOSSIBLE_HOLD: dict[str, Sequence[Any]] = {
    "lock": LOCKS,
    "who": WHOSE,
    "request": NUMBERS,
    "fence": (0, *FENCES),
}
HOLDER = Contender("n2", "ann", "o", FENCE, 10, "host", RWLOCK_PERMITS)
READER = HOLDER._replace(owner="p", times=1)
WAITER = HOLDER._replace(fence=None)
IMPOSSIBLE_CONTENDER: dict[str, Sequence[Any]] = {
    "node": ("N/1", "x" * 10_000),
    "session": ("x" * 10_000,),
    "owner": ("x" * 10_000,),
    "since_ms": (-1,),
    "label": ("x" * 10_000,),
    "times": (0, 2),
}
HOLDERS = variants(HOLDER, **IMPOSSIBLE_CONTENDER, fence=(0, None, *BEYOND))
WAITERS = [*variants(WAITER, **IMPOSSIBLE_CONTENDER), HOLDER]
IMPOSSIBLE_MEMBER: dict[str, Sequence[Any]] = {
    "priority": (0, -1, OFF + 1, INT),
    "pid": (-1,),
    "promised": (-1, *HIGH),
    "seating": (UNKNOWN, *SEATINGS),
    "serving": (-1, *HIGH),
    "waiting_ms": (-1, WAITING_MS_MAX + 1, INT),
    "electorate": (STRANGERS, STRANGERS._replace(number=-1)),
    "reaches": ((Chosen("N/1", 1),), LIVES * 100),
}
STATUS, ELECTION, LEADER = status_of("n2"), election_of("n2"), leader_of("n2")
PROXY = proxy_of("n2")
ROWS = (
    Row(
        a_status,
        STATUS,
        BEAT,
        {
            "number": (0, -1),
            "echo": (-1,),
            "echo_age_ms": (-1,),
            "member": variants(BEAT.member, **IMPOSSIBLE_MEMBER),
        },
    ),
    Row(
        a_coordinator,
        ELECTION,
        messages.Propose(epoch=4, leaders=LIVES),
        {"epoch": EPOCHS, "leaders": TEAMS, "electorate": (STRANGERS,), "copies": COPIES},
    ),
    Row(
        a_coordinator,
        ELECTION,
        PROMISED,
        {
            "epoch": EPOCHS,
            "quiet_ms": (-1,),
            "former": (
                *(replace(PROMISED.former, seating=one) for one in (UNKNOWN, *SEATINGS)),
                replace(PROMISED.former, electorate=STRANGERS),
                *(replace(PROMISED.former, statements=(one,)) for one in IMPOSSIBLE_STATEMENTS),
            ),
        },
    ),
    Row(a_coordinator, ELECTION, messages.Outbid(epoch=4), {"epoch": EPOCHS}),
    Row(
        a_coordinator,
        LEADER,
        messages.Merged(epoch=4, left_ms=1),
        {"epoch": EPOCHS, "left_ms": (-1, LONG_MS, INT)},
    ),
    Row(
        a_coordinator,
        ELECTION,
        messages.Vouch(epoch=3, number=1, bound_ms=1),
        {"epoch": EPOCHS, "number": (0, -1, INT), "bound_ms": (0, -1, LONG_MS, INT)},
    ),
    Row(
        a_coordinator,
        ELECTION,
        messages.Vouched(epoch=3, number=1, voter=12),
        {"epoch": EPOCHS},
    ),
    Row(
        a_leader,
        ELECTION,
        messages.Lead(seating=PROPOSED, former=SEATING, empty=False),
        {
            "seating": variants(
                PROPOSED,
                epoch=(0, -1, 3, *HIGH),
                leaders=TEAMS,
                bound_ms=(-1, LONG_MS, INT),
                copies=COPIES,
            ),
            "former": SEATINGS,
        },
    ),
    Row(a_leader, LEADER, messages.Export(epoch=4), {"epoch": EPOCHS}),
    Row(
        an_importing_leader,
        LEADER,
        TABLE,
        {
            "part": (-1, 1, INT),
            "parts": (0, -1, TABLE_PARTS_MAX + 1),
            "records": ((RECORD,) * 201, *((one,) for one in IMPOSSIBLE_RECORDS)),
            "ended": tuple((one,) for one in IMPOSSIBLE_ENDS),
        },
    ),
    Row(
        a_leader,
        LEADER,
        messages.Entering(epoch=3, ticket=ticket()),
        {"ticket": (ticket(1), *tickets(0))},
    ),
    Row(
        an_entering_leader,
        LEADER,
        MAX_TICKET,
        {"highest": COUNTS, "held": BEYOND, "known": KNOWN},
    ),
    Row(
        a_leader,
        LEADER,
        messages.AddTicket(epoch=3, ticket=ticket(1), round=1, fence=FENCE, taken=False),
        {"ticket": (ticket(0), *tickets(1)), "round": ROUNDS, "fence": BEYOND},
    ),
    Row(
        a_voting_leader,
        LEADER,
        messages.Collected(**NAMED, round=1, voted=False, ahead=None, highest=1, known=1),
        {
            "ahead": (Turn(-1, "n2", 1), Turn(INT, "n2", 1), Turn(1, "x" * 999, 1)),
            "highest": COUNTS,
            "known": KNOWN,
        },
    ),
    Row(a_voting_leader, LEADER, messages.Yield(**NAMED, round=2), {"round": ROUNDS}),
    Row(
        a_leader,
        LEADER,
        messages.DropTicket(**NAMED, fence=0, number=1, mine=False),
        {
            "lock": LOCKS,
            "who": WHOSE,
            "request": (-1,),
            "fence": (-1,),
            "number": (-1,),
        },
    ),
    Row(
        a_leader,
        LEADER,
        messages.TicketDropped(epoch=3, number=1, found=True, request=1),
        {"request": (-1,)},
    ),
    Row(
        a_leader,
        LEADER,
        messages.Extend(epoch=3, ticket=ticket(1), fence=FENCE, number=1),
        {"ticket": (ticket(0), *tickets(1)), "fence": (0, *BEYOND)},
    ),
    Row(
        a_reconfigurer,
        members_of("n2"),
        INFO,
        {
            "epoch": (-1, EPOCH_MAX + 1),
            "number": (-1, INT + 1),
            "journal": (-1, INT + 1),
            "endpoint": ("nowhere", "x" * 10_000),
            "version": ("x" * (BAKERY_VERSION_CHARS_MAX + 1),),
        },
    ),
    Row(
        a_leader,
        PROXY,
        lock_request(WHO),
        {
            "lock": LOCKS,
            "who": WHOSE,
            "request": NUMBERS,
            "wait_ms": (-1, WAIT_MS_MAX + 1, INT),
            "hold_ms": TERMS,
            "grace_ms": TERMS,
            "label": ("x" * 10_000,),
        },
    ),
    Row(
        a_leader,
        PROXY,
        messages.Unlock(**OF_OWNER, request=1, fence=0, number=1, waiting=False),
        {"lock": LOCKS, "who": WHOSE, "request": NUMBERS, "fence": (-1, FENCE, INT)},
    ),
    Row(
        a_leader,
        PROXY,
        messages.RenewHold(**OF_OWNER, fence=FENCE, hold_ms=500, number=1, missed=NAMES),
        {
            "lock": LOCKS,
            "who": WHOSE,
            "fence": (0, -1),
            "hold_ms": (-1, TERM_MS_MAX + 1, INT),
            "missed": (("n1", "n1"), (*NAMES, "n4"), ("N/1",), ("x" * 10_000,)),
        },
    ),
    Row(a_leader, PROXY, messages.Query(lock="x", number=1), {"lock": LOCKS}),
    Row(a_leader, PROXY, messages.UnlockAll(session="ann", number=1), {"session": ("x" * 10_000,)}),
    Row(
        a_proxy,
        LEADER,
        messages.Locked(**OF_HOLD, hold_ms=500, grace_ms=500),
        IMPOSSIBLE_HOLD | {"hold_ms": (*TERMS, LONG_MS - 500), "grace_ms": (*TERMS, LONG_MS - 500)},
    ),
    Row(
        a_proxy,
        LEADER,
        messages.LockFailed(**OF_OWNER, request=1, error=messages.Error.FAILED, detail="no"),
        {"detail": ("x" * (REFUSAL_CHARS_MAX + 1),)},
    ),
    Row(
        a_proxy,
        LEADER,
        messages.Unlocking(**OF_HOLD, grace_ms=500),
        IMPOSSIBLE_HOLD | {"grace_ms": (-1, TERM_MS_MAX + 1, INT)},
    ),
    Row(a_proxy, LEADER, messages.Expired(**OF_HOLD), IMPOSSIBLE_HOLD),
    Row(
        a_proxy,
        LEADER,
        messages.HoldRenewed(number=1, fence=FENCE, hold_ms=500, grace_ms=500),
        {
            "fence": FENCES,
            "hold_ms": (*TERMS, LONG_MS - 500),
            "grace_ms": (*TERMS, LONG_MS - 500),
            "invalid": ("no", "x" * (REFUSAL_CHARS_MAX + 1)),
        },
    ),
    Row(
        a_proxy,
        LEADER,
        messages.HoldRenewed(number=1, fence=0, hold_ms=0, grace_ms=0, invalid="no"),
        {"hold_ms": (-1, 1), "grace_ms": (-1, 1), "invalid": ("x" * (REFUSAL_CHARS_MAX + 1),)},
    ),
    Row(
        a_proxy,
        LEADER,
        messages.QueryResult(
            lock="x",
            number=1,
            holders=(HOLDER,),
            waiters=(WAITER,),
            waiting=WAITERS_SHOWN_MAX + 1,
            epoch=3,
            expired_ms=5,
        ),
        {
            "holders": tuple((one,) for one in HOLDERS),
            "waiters": (*((one,) for one in WAITERS), (WAITER,) * (WAITERS_SHOWN_MAX + 1)),
            "waiting": (0, -1),
            "epoch": (0, -1, FAR, INT),
            "expired_ms": (-1,),
        },
    ),
    Row(
        a_proxy,
        LEADER,
        messages.QueryResult(
            lock="x",
            number=1,
            holders=(HOLDER, READER),
            waiters=(),
            waiting=0,
            epoch=3,
        ),
        {
            "holders": (
                *((HOLDER, one) for one in HOLDERS),
                (HOLDER,) * (HOLDERS_SHOWN_MAX + 1),
            ),
        },
    ),
)

OF_THE_EPOCH = "must be the present epoch"
NAMES_A_REQUEST = "must be that of a request in flight, or is only returned to its sender"
ONLY_COMPARED = "only compared"
ONLY_RETURNED = "only returned to its sender"
REQUEST = {
    "epoch": OF_THE_EPOCH,
    "lock": NAMES_A_REQUEST,
    "who": NAMES_A_REQUEST,
    "request": NAMES_A_REQUEST,
}
HARMLESS: dict[type[Any], dict[str, str]] = {
    messages.Beat: {
        "echo_life": "must be this life, or the beat only proves that its sender runs",
    },
    messages.Promised: {"voter": "must be the registered id"},
    messages.Vouched: {"number": NAMES_A_REQUEST, "voter": "must be the registered id"},
    messages.Lead: {"empty": "a flag"},
    messages.Table: {"epoch": NAMES_A_REQUEST, "life": "must be that of the former leader"},
    messages.Entering: {"epoch": OF_THE_EPOCH},
    messages.MaxTicket: REQUEST,
    messages.AddTicket: {"epoch": OF_THE_EPOCH, "taken": "a flag"},
    messages.Collected: REQUEST | {"round": "must be the present round", "voted": "a flag"},
    messages.Yield: REQUEST,
    messages.DropTicket: {"epoch": OF_THE_EPOCH, "mine": "a flag"},
    messages.TicketDropped: {
        "epoch": OF_THE_EPOCH,
        "number": NAMES_A_REQUEST,
        "found": "a flag",
    },
    messages.Extend: {"epoch": OF_THE_EPOCH, "number": ONLY_RETURNED},
    messages.Extended: {"epoch": OF_THE_EPOCH, "number": NAMES_A_REQUEST, "kept": "a flag"},
    messages.TicketEnded: REQUEST,
    messages.Owned: REQUEST,
    messages.NodeInfo: {"ready": "a flag"},
    messages.Lock: {"shared": "a flag"},
    messages.Unlock: {"number": ONLY_RETURNED, "waiting": "a flag"},
    messages.RenewHold: {"number": ONLY_RETURNED},
    messages.Query: {"number": ONLY_RETURNED, "nonce": ONLY_RETURNED},
    messages.UnlockAll: {"number": ONLY_RETURNED},
    messages.LockFailed: {
        "lock": NAMES_A_REQUEST,
        "who": NAMES_A_REQUEST,
        "request": NAMES_A_REQUEST,
        "error": "one of few",
    },
    messages.Unlocked: {"number": NAMES_A_REQUEST, "found": "a flag"},
    messages.NotLeading: {
        "lock": NAMES_A_REQUEST,
        "who": NAMES_A_REQUEST,
        "owner": "must be a leader",
    },
    messages.HoldRenewed: {"number": NAMES_A_REQUEST},
    messages.QueryResult: {
        "lock": NAMES_A_REQUEST,
        "number": NAMES_A_REQUEST,
        "nonce": NAMES_A_REQUEST,
    },
}
HARMLESS_OF_MEMBER = {
    "node": "the receiver sets it",
    "life": ONLY_COMPARED,
    "votes": "the receiver sets it",
    "voter": "must be the registered id",
}
RECORDS = {messages.Install: "a record, which `find_impossible` and `why_unusable` judge"}


IMPLAUSIBLE = (
    r"epoch -?\d+, and 65536 is the highest that is plausible by the clock of this host: if the "
    "clocks of both are right, stop that node",
    r"a lease of \d+ ms, and 600000 ms are allowed: all nodes must have the same max_hold under "
    r"\[bakery\] in the configuration. If they have, stop that node",
    r"the members n2 after 1099511627776 changes in epoch \d, and known are n1, n2, n3 after 0",
    "1 records of a table that no honest member can have",
)
"""What the log says of values that are possible in themselves."""


@pytest.mark.parametrize(("row", "field", "value"), cases(ROWS))
def test_a_message_that_no_honest_member_sends_is_refused_and_logged(
    row: Row, field: str, value: Any
) -> None:
    role = row.role()
    before = epochs_of(role)
    message = replace(row.honest, **{field: value})
    effects = role.handle(row.sender, message, at(1))

    assert epochs_of(role) == before
    (text,) = errors(effects)
    reasons = [f"what no honest member can: {re.escape(repr(message)[:300])}", *IMPLAUSIBLE]
    assert any(re.fullmatch(f"n2 sent {why}: it is ignored", text) for why in reasons)
    counters = [effect.name for effect in effects if isinstance(effect, Observe)]
    assert counters
    assert all(re.fullmatch(r"bakery\.[a-z_]+", counter) for counter in counters)
    assert not [effect for effect in effects if isinstance(effect, Persist | Checkpoint)]
    replies = [effect for effect in effects if isinstance(effect, Send)]
    assert len(replies) == 1 or isinstance(row.honest, messages.Table)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row.honest).__name__)
def test_a_message_of_an_honest_member_is_not_refused(row: Row) -> None:
    demand_honest(row)


LONG_NAME, LONG_ADDRESS = "x" * OWNER_BYTES_MAX, "s" * ADDRESS_BYTES_MAX
LONG_WHO = Who(LONG_ADDRESS, LONG_NAME)
DURATIONS: dict[str, Sequence[Any]] = {
    "hold_ms": (1, TERM_MS_MAX),
    "grace_ms": (1, TERM_MS_MAX),
    "label": (LONG_NAME,),
    "who": (LONG_WHO,),
}
COUNTED: dict[str, Sequence[Any]] = {
    "highest": (0, FENCE_COUNTER_MAX),
    "known": (0, TICKET_ROUND_MAX),
}
TICKETS = variants(
    ticket(1),
    **DURATIONS,
    turn=(Turn(TICKET_NUMBER_MAX, "n2", 1),),
    proxy=(proxy_of("x" * (ADDRESS_BYTES_MAX - len(proxy_of("")))),),
)
CONTENDERS = variants(
    HOLDER, session=(LONG_ADDRESS,), owner=(LONG_NAME,), label=(LONG_NAME,), since_ms=(0,)
)
STATE = messages.QueryResult(
    lock="x", number=1, holders=(HOLDER,), waiters=(), waiting=0, epoch=3, expired_ms=0
)
LIMITING = (
    *variants(MAX_TICKET, **COUNTED),
    *variants(
        messages.Collected(**NAMED, round=1, voted=False, ahead=None, highest=1, known=1),
        **COUNTED,
        ahead=(Turn(FENCE_COUNTER_MAX, "n2", 1),),
    ),
    *variants(messages.Yield(**NAMED, round=2), round=(1, TICKET_ROUND_MAX)),
    *variants(
        messages.AddTicket(epoch=3, ticket=ticket(1), round=1, fence=FENCE, taken=False),
        round=(TICKET_ROUND_MAX,),
        ticket=TICKETS,
    ),
    messages.TicketDropped(epoch=3, number=1, found=True, request=0),
    *variants(
        lock_request(WHO), **DURATIONS, request=(REQUEST_MAX,), wait_ms=(None, 0, WAIT_MS_MAX)
    ),
    messages.Unlock(**OF_OWNER, request=REQUEST_MAX, fence=0, number=1, waiting=False),
    *variants(
        messages.RenewHold(**OF_OWNER, fence=FENCE, hold_ms=500, number=1, missed=NAMES),
        hold_ms=(0, TERM_MS_MAX),
    ),
    messages.UnlockAll(session=LONG_ADDRESS, number=1),
    messages.Locked(**OF_HOLD, hold_ms=LEASE_MS - 500, grace_ms=500),
    messages.Locked(**OF_OWNER, request=REQUEST_MAX, fence=FENCE, hold_ms=500, grace_ms=500),
    messages.Unlocking(**OF_HOLD, grace_ms=0),
    messages.Unlocking(**OF_HOLD, grace_ms=TERM_MS_MAX),
    messages.LockFailed(
        **OF_OWNER, request=1, error=messages.Error.FAILED, detail="x" * REFUSAL_CHARS_MAX
    ),
    messages.HoldRenewed(number=1, fence=0, hold_ms=0, grace_ms=0, invalid="x" * REFUSAL_CHARS_MAX),
    *variants(
        STATE,
        holders=((HOLDER,) * HOLDERS_SHOWN_MAX, *((one,) for one in CONTENDERS)),
        expired_ms=(0, None),
    ),
)
"""Messages with one field at a bound."""


@pytest.mark.parametrize("message", LIMITING, ids=lambda message: type(message).__name__)
def test_what_an_honest_member_can_send_at_most_is_possible(message: Message) -> None:
    if isinstance(message, FromLeader):
        assert is_possible_step(message)
    elif isinstance(message, messages.ToLeader):
        assert is_possible_request(message)
    else:
        assert isinstance(message, messages.ToProxy)
        assert is_possible_reply(message, 3, LEASE_MS)


def test_every_field_of_every_message_has_a_bound_or_needs_none() -> None:
    declared: set[Any] = {
        kind
        for _, kind in inspect.getmembers(messages, inspect.isclass)
        if issubclass(kind, Message) and kind.__module__ == messages.__name__
    } - {messages.OfRequest}
    bounded: set[Any] = {type(row.honest) for row in ROWS}
    assert declared == bounded | HARMLESS.keys() | RECORDS.keys()
    demand_bounds(ROWS, HARMLESS, declared - RECORDS.keys())
    assert {*messages.Member._fields} == IMPOSSIBLE_MEMBER.keys() | HARMLESS_OF_MEMBER.keys()


def test_a_round_that_a_forger_used_up_ends_the_request_and_accuses_no_leader() -> None:
    leader = a_voting_leader()
    honest = messages.Collected(
        **NAMED, round=1, voted=False, ahead=None, highest=1, known=TICKET_ROUND_MAX
    )
    effects = [*leader.handle(LEADER, honest, at(1)), *leader.handle(LEADER, honest, at(2))]
    for ms in range(100, 3_000, 100):
        leader.epoch_state.trusted_at = at(ms)
        effects += leader.attempts.tick(at(ms))
    (failed,) = sent(effects, messages.LockFailed)
    assert failed.error is messages.Error.OVERFLOW
    rounds = [one.round for one in sent(effects, messages.Yield)]
    assert all(one <= TICKET_ROUND_MAX for one in rounds)


def test_a_record_has_no_more_left_than_the_longest_lease_rounded_up() -> None:
    assert is_possible_record(RECORD._replace(left_ms=LEASE_MS_MAX + 1), 3)
    assert not is_possible_record(RECORD._replace(left_ms=LEASE_MS_MAX + 2), 3)


def test_an_end_reports_any_fence_that_its_client_named() -> None:
    assert is_possible_end(ENDED._replace(fence=BEYOND[1]), 3)


def test_only_impossible_records_of_a_table_are_left_out() -> None:
    leader = an_importing_leader()
    wrong = RECORD._replace(fence=pack_fence(4, 1))
    other = RECORD._replace(ticket=ticket(1, lock="y"))
    end = ENDED._replace(highest=pack_fence(4, 1))
    table = replace(TABLE, records=(wrong, other), ended=(end,))
    effects = leader.handle(LEADER, table, at(1))
    assert errors(effects) == [
        "n2 sent 2 records of a table that no honest member can have: it is ignored"
    ]
    assert only_sent(effects, messages.Merged).left_ms <= 502
    assert [entry.ticket.lock for entry in leader.tickets.entries()] == ["y"]
    assert leader.tickets.counters_of("x").fence == 0
    assert leader.tickets.tombstones.newest(1) == []
