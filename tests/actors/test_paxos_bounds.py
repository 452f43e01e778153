"""Every field that members of `paxos` send each other: what no honest one sends is refused.

A refusal is logged at ERROR with the sender, and nothing is written to the journal. The bounds and
the reasons are in the docstring of `fencelock.actors.paxos.config`.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.role_harness import HOST, T0, at, sent
from support.samples import Row, cases, demand_bounds, demand_honest, errors
from support.table_scene import config_of, detector_of, replica_of_a

from fencelock.actors.effect import Checkpoint, Observe, Persist
from fencelock.actors.message import address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import (
    GROWTH_MAX,
    TEXT_MAX,
    TIME_JUMP_MS_MAX,
    VOTES_MAX,
    WINDOW,
    acceptor_of,
    catchup_of,
    leader_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.divergence import RECEIVED_SLOTS_MAX, Digests
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import REPORTED_MAX, Scout
from fencelock.actors.paxos.snapshots import CatchUp
from fencelock.actors.role import Role

BALLOT, MINE = messages.Ballot(1, leader_of("b")), messages.Ballot(3, leader_of("a"))
FAR = 2 + GROWTH_MAX
"""Just beyond the slots that a log can have grown to, for a node that has applied nothing."""
SLOTS = (0, -1, FAR, 1 << 61)
LATE_MS = (WINDOW + 3) * TIME_JUMP_MS_MAX
NO_OP = messages.NO_OP
LATE = replace(NO_OP, time_ms=LATE_MS)
EARLY = replace(NO_OP, time_ms=-1)
LARGE = replace(NO_OP, commands=(b"x" * messages.COMMAND_BYTES_MAX, b"y"))
MANY = replace(NO_OP, commands=(b"",) * (messages.BATCH_COMMANDS_MAX + 1))


def an_acceptor() -> Role[Any]:
    return Acceptor(acceptor_of("a"), HOST, node="a", config=config_of(), recovered=Recovered())


def a_scout() -> Role[Any]:
    address = address_of("a", "scout-3")
    role = Scout(address, HOST, node="a", config=config_of(), ballot=MINE, first=1)
    role.begin(T0)
    return role


def a_leading_monitor() -> Role[Any]:
    """The failure detector of a leader, which has sent its first heartbeat."""
    role = detector_of()
    role.begin(T0)
    commander = address_of("a", "commander-3")
    claimed = events.Leadership(ballot=MINE, commander=commander, first=1, time_ms=0)
    role.handle(leader_of("a"), claimed, T0)
    return role


def a_catching_up() -> Role[Any]:
    """A catch-up that has asked ``b`` for slots from 1 on."""
    role = CatchUp(catchup_of("a"), HOST, node="a", config=config_of())
    role.handle(replica_of("a"), events.Lacking(first=1, target=9, source="b"), T0)
    return role


def a_replica() -> Role[Any]:
    role = replica_of_a(config=config_of(), digest_slots=100)
    role.begin(T0)
    return role


SCOUT, COMMANDER = address_of("b", "scout-1"), address_of("b", "commander-1")
SEEN = messages.Vote(2, BALLOT, NO_OP)
ROWS = (
    Row(an_acceptor, SCOUT, messages.Prepare(ballot=BALLOT, first=1), {"first": SLOTS}),
    Row(
        an_acceptor,
        COMMANDER,
        messages.Accept(ballot=BALLOT, slot=1, batch=NO_OP, committed=1),
        {
            "slot": (0, -1, 1 + WINDOW, 1 << 61),
            "batch": (LATE, EARLY, LARGE, MANY),
            "committed": (-WINDOW, FAR, 1 << 61),
        },
    ),
    Row(
        an_acceptor,
        COMMANDER,
        messages.Commit(ballot=BALLOT, committed=1),
        {"committed": (-1, FAR, 1 << 61)},
    ),
    Row(
        an_acceptor,
        COMMANDER,
        messages.Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=1),
        {"committed": (-1, FAR, 1 << 61)},
    ),
    Row(
        a_scout,
        acceptor_of("b"),
        messages.Promise(ballot=MINE, asked=1, first=1, votes=(SEEN,), more=None),
        {
            "first": (FAR, 1 << 61, 3),
            "votes": ((SEEN, SEEN), (SEEN._replace(ballot=MINE),)),
            "more": (2, 0, -1),
        },
    ),
    Row(
        a_leading_monitor,
        acceptor_of("b"),
        messages.HeartbeatAck(ballot=MINE, number=1, applied=1, view=0),
        {
            "applied": SLOTS,
            "view": (-1, -(1 << 61)),
            "sync_us": (-1,),
            "sync_age_ms": (-1,),
            "lease_ms": (-1,),
            "log_version": (0, -(1 << 61)),
            "stored": (-1, messages.PAXOS_NUMBER_MAX),
        },
    ),
    Row(
        a_leading_monitor,
        monitor_of("b"),
        messages.Locate(applied=1, view=0, journal=1, ready=True, endpoint="", version="1"),
        {
            "applied": SLOTS,
            "view": (-1,),
            "journal": (-1,),
            "life": (-1,),
            "log_version": (0,),
            "bytes_left": (-1, messages.PAXOS_NUMBER_MAX),
            "priority": (0, messages.UNWILLING + 1),
            "endpoint": ("x" * (TEXT_MAX + 1),),
            "version": ("x" * (TEXT_MAX + 1),),
        },
    ),
    Row(
        a_leading_monitor,
        monitor_of("b"),
        messages.Located(leader="b", applied=1, view=0),
        {"applied": SLOTS, "view": (-1,), "leader": ("b/c", "*", "x" * 200)},
    ),
    Row(
        a_replica,
        catchup_of("b"),
        messages.Fetch(first=1, slot=0, chunk=0),
        {"first": SLOTS, "chunk": (-1, messages.CHUNKS_MAX)},
    ),
    Row(
        a_catching_up,
        catchup_of("b"),
        messages.Slots(first=1, batches=(NO_OP,)),
        {"batches": ((LATE,), (NO_OP, EARLY), (LARGE,), (MANY,))},
    ),
    Row(
        a_catching_up,
        catchup_of("b"),
        messages.SnapshotChunk(slot=5, time_ms=0, chunk=0, count=1, content=b""),
        {
            "slot": (FAR, 1 << 61),
            "time_ms": (-1, LATE_MS + 5 * TIME_JUMP_MS_MAX, (1 << 62) - 1),
            "count": (-1, messages.CHUNKS_MAX + 1),
            "content": (b"x" * (messages.CHUNK_BYTES_MAX + 1),),
        },
    ),
    Row(a_replica, replica_of("b"), messages.ReadIndexReached(number=1, slot=1), {"slot": SLOTS}),
    Row(
        a_replica,
        replica_of("b"),
        messages.TableDigest(scheme=1, slot=100, state=1, decided=1, counters=(), asks=False),
        {"slot": SLOTS},
    ),
)

OF_NO_BALLOT = "compared with the sender's ballot, whose round `refusal` bounds"
NAMES_A_REQUEST = "must be that of a request in flight, or is only returned to its sender"
HARMLESS: dict[type[Any], dict[str, str]] = {
    messages.Prepare: {"ballot": OF_NO_BALLOT, "view": "only a reason to ask that node"},
    messages.Promise: {
        "ballot": "must be this scout's, or its last step",
        "asked": NAMES_A_REQUEST,
        "voter": "must be the registered id",
    },
    messages.Preempted: {"ballot": "raises a round by `ROUND_JUMP_MAX` at most"},
    messages.Accept: {"ballot": OF_NO_BALLOT},
    messages.Accepted: {
        "ballot": "must be this commander's",
        "slot": "must be one that is proposed",
        "voter": "must be the registered id",
    },
    messages.Commit: {"ballot": OF_NO_BALLOT},
    messages.Heartbeat: {
        "ballot": OF_NO_BALLOT,
        "number": "is forgotten with its ballot",
        "min_applied": "counts up to what is applied here",
        "acked": "must have an entry for each member, and names heartbeats answered here",
        "confirmed": "is forgotten with its ballot",
        "view": "only a reason to ask that node",
        "timing": "only compared, for a warning",
    },
    messages.HeartbeatAck: {
        "ballot": "must be that of this leadership",
        "number": NAMES_A_REQUEST,
        "voter": "must be the registered id",
        "version": "cut when it is shown",
    },
    messages.Propose: {
        "client": "must be an address",
        "number": NAMES_A_REQUEST,
        "command": "is bounded, and must be admitted by the machine",
        "forwarded": "a flag",
    },
    messages.Fetch: {"slot": "must be that of the snapshot kept here"},
    messages.Slots: {"first": NAMES_A_REQUEST},
    messages.SnapshotChunk: {"chunk": NAMES_A_REQUEST},
    messages.ReadIndex: {"number": NAMES_A_REQUEST},
    messages.ReadIndexReached: {"number": NAMES_A_REQUEST},
    messages.TakeOver: {"ballot": "must be that of the leader that is followed"},
    messages.Release: {"ballot": OF_NO_BALLOT},
    messages.Locate: {"ready": "a flag", "number": NAMES_A_REQUEST},
    messages.Located: {"number": NAMES_A_REQUEST, "age_ms": "proves nothing outside of its limits"},
    messages.TableDigest: {
        "scheme": "must be the same",
        "state": "only compared, and a majority must have it",
        "decided": "only compared, and a majority must have it",
        "counters": "few and short; for people",
        "asks": "a flag",
    },
}


@pytest.mark.parametrize(("row", "field", "value"), cases(ROWS))
def test_a_message_that_no_honest_member_sends_is_refused_and_logged(
    row: Row, field: str, value: Any
) -> None:
    effects = row.role().handle(row.sender, replace(row.honest, **{field: value}), at(1))

    (text,) = errors(effects)
    assert text.startswith("b sent ")
    assert text.endswith(": it is ignored")
    marks = [effect for effect in effects if isinstance(effect, Observe)]
    assert [mark.name for mark in marks if ".impossible_" in mark.name]
    assert not [effect for effect in effects if isinstance(effect, Persist | Checkpoint)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row.honest).__name__)
def test_a_message_of_an_honest_member_is_not_refused(row: Row) -> None:
    demand_honest(row)


def test_every_field_of_every_message_has_a_bound_or_needs_none() -> None:
    sent_kinds: list[Any] = [type(row.honest) for row in ROWS]
    demand_bounds(ROWS, HARMLESS, [*sent_kinds, *HARMLESS])


def test_a_report_is_written_once_a_minute_for_each_sender() -> None:
    role = an_acceptor()
    wrong = messages.Prepare(ballot=BALLOT, first=FAR)
    refusals = [errors(role.handle(SCOUT, wrong, at(ms))) for ms in (0, 1, 59_999, 60_000)]
    assert [len(one) for one in refusals] == [1, 0, 0, 1]


def test_digests_of_one_member_push_out_those_of_no_other() -> None:
    digests = Digests("a", config_of(), 100)
    (honest,) = (row.honest for row in ROWS if isinstance(row.honest, messages.TableDigest))
    assert isinstance(honest, messages.TableDigest)
    assert digests.receive("b", honest, 1)
    for number in range(2 * RECEIVED_SLOTS_MAX):
        assert digests.receive("c", replace(honest, slot=10_000 + 100 * number), 1)

    assert digests.missing(100) == ("c",)
    assert len(digests.received) == 1 + RECEIVED_SLOTS_MAX


def test_slots_reported_as_applied_by_all_count_up_to_what_is_applied_here() -> None:
    acceptor = an_acceptor()
    beat = messages.Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=1 << 61)
    assert sent(acceptor.handle(COMMANDER, beat, at(1)), events.MinApplied) == []
    honest = replace(beat, number=2, min_applied=1)
    assert sent(acceptor.handle(COMMANDER, honest, at(2)), events.MinApplied) != []


def test_an_acceptor_whose_slots_could_not_be_fetched_is_asked_last() -> None:
    options: dict[str, Any] = {"ballot": MINE, "first": 1, "doubted": acceptor_of("b")}
    scout = Scout(address_of("a", "scout-3"), HOST, node="a", config=config_of(), **options)
    scout.begin(T0)
    promise = messages.Promise(ballot=MINE, asked=1, first=1_000, votes=(), more=None)

    assert scout.handle(acceptor_of("b"), promise, at(1)) == (Observe("paxos.promise_doubted"),)
    assert scout.complete == {}

    scout.handle(scout.address, events.ScoutResend(), at(50))  # The others do not answer.
    scout.handle(acceptor_of("b"), promise, at(51))
    assert list(scout.complete) == [acceptor_of("b")]


def test_an_acceptor_with_votes_without_end_is_not_counted() -> None:
    scout = a_scout()
    of_a, of_b, of_c = map(acceptor_of, "abc")

    def page(first: int, votes: int, more: int | None) -> messages.Promise:
        found = tuple(messages.Vote(slot, BALLOT, NO_OP) for slot in range(first, first + votes))
        return messages.Promise(ballot=MINE, asked=first, first=first, votes=found, more=more)

    asked, pages = 1, 0
    while sent(scout.handle(of_b, page(asked, 1_000, asked + 1_000), T0), messages.Prepare):
        asked, pages = asked + 1_000, pages + 1
    assert VOTES_MAX <= pages * 1_000 <= REPORTED_MAX
    end = page(1, 0, None)
    assert sent(scout.handle(of_c, end, T0), events.Adopted) == []
    assert sent(scout.handle(of_a, end, T0), events.Adopted)
