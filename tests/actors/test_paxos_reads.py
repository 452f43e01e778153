"""Reads of the log: at a node, at the leader, and in turn for clients that ask for much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from support.log_proxy_scene import REPLICA, log_proxy
from support.log_workload import LogCounter
from support.role_harness import T0, at, sends, sent
from support.table_scene import config_of, replica_of_a

from fencelock.actors.api.map import EntryList, EntrySeen, ListEntries
from fencelock.actors.api.operator_message import ListLocks
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos.config import LogBounds, acceptor_of, leader_of, monitor_of, replica_of
from fencelock.actors.paxos.locator import Locator
from fencelock.actors.paxos.reads import (
    NOTHING_PROVEN,
    READ_MS_MAX,
    WAITING_READS_MAX,
    ReadIndexes,
    Reads,
    StalenessBound,
)
from fencelock.actors.paxos.wire import (
    NO_REPORT,
    Ballot,
    Heartbeat,
    Locate,
    Located,
    ReadIndex,
    ReadIndexReached,
)
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.proxy.queries import QUERY_MS, TURN_QUERIES_MAX, NextQueries
from fencelock.actors.timing import TIMING
from fencelock.verification.simulation.paxos_machine import OrderRead, ReadOrder

BALLOT = Ballot(3, leader_of("a"))
CONFIG = config_of()
REPLICAS = tuple(map(replica_of, CONFIG.members))
ASKER, A, B = address_of("a", "proxy"), REPLICAS[0], REPLICAS[1]


def read_request(number: int = 1, age_ms: int | None = None) -> events.ReadMachine:
    return events.ReadMachine(number=number, query=ReadOrder(), age_ms=age_ms)


def answer(number: int = 1, slot: int = 5, age_ms: int = 0, quiet_ms: int = 0) -> Send:
    reply = events.MachineRead(
        number=number,
        reply=OrderRead(position=0, chain=b""),
        slot=slot,
        age_ms=age_ms,
        quiet_ms=quiet_ms,
    )
    return Send(ASKER, reply)


def leased(until_ms: int, confirmed_ms: int) -> events.LeaseHeld:
    return events.LeaseHeld(ballot=BALLOT, until=at(until_ms), confirmed=at(confirmed_ms))


@pytest.fixture
def reads() -> Reads:
    """Return the `Reads` of node ``a``. It follows no leader and has applied slots 1 to 4."""
    reads = Reads("a", LogCounter(), LogBounds("a", config_of()), 100)
    apply(reads, 5)
    return reads


def apply(reads: Reads, applied: int, ms: int = 0) -> list[Effect]:
    reads.config.applied, reads.applied_at = applied, at(ms)
    return reads.progress(at(ms)) if reads.waiting else []


def lead(reads: Reads, opening: int = 4) -> None:
    reads.opening = opening
    reads.follow("a", at(0))


def test_a_settled_leader_answers_at_once_while_the_lease_holds(reads: Reads) -> None:
    lead(reads)
    reads.leased(leased(until_ms=250, confirmed_ms=0), at(5))

    assert reads.handle(ASKER, read_request(), at(249)) == [answer(quiet_ms=249)]
    assert sends(reads.handle(ASKER, read_request(2), at(250))) == [
        Send(monitor_of("a"), events.ConfirmLease())
    ]


def test_a_leader_that_has_not_applied_the_first_slot_of_its_leadership_waits(reads: Reads) -> None:
    lead(reads, opening=6)
    reads.leased(leased(until_ms=250, confirmed_ms=0), at(5))

    assert sends(reads.handle(ASKER, read_request(), at(10))) == []
    assert apply(reads, 6, 15) == []
    assert apply(reads, 7, 20) == [answer(slot=7)]


def test_one_round_without_a_lease_serves_all_reads_that_came_before_it_began(reads: Reads) -> None:
    lead(reads)
    assert sends(reads.handle(ASKER, read_request(1), at(300))) == [
        Send(monitor_of("a"), events.ConfirmLease())
    ]
    assert reads.handle(ASKER, read_request(2), at(300)) == []
    assert reads.handle(ASKER, read_request(3), at(301)) == []

    effects = reads.leased(leased(until_ms=0, confirmed_ms=300), at(302))

    confirm = Send(monitor_of("a"), events.ConfirmLease())
    assert sends(effects) == [answer(1, quiet_ms=302), answer(2, quiet_ms=302), confirm]
    third = answer(3, quiet_ms=303)
    assert sends(reads.leased(leased(until_ms=0, confirmed_ms=302), at(303))) == [third]


def test_a_round_that_began_before_the_question_proves_nothing(reads: Reads) -> None:
    lead(reads)
    reads.handle(ASKER, read_request(), at(300))

    assert sends(reads.leased(leased(until_ms=0, confirmed_ms=299), at(301))) == []


def test_a_follower_asks_the_leader_and_waits_until_it_has_applied_as_much(reads: Reads) -> None:
    reads.follow("b", at(0))
    asked = reads.handle(ASKER, read_request(1), at(1))
    assert asked == [Send(B, ReadIndex(number=101)), Wake(reads.again_ms, events.ReadAgain())]
    assert reads.handle(ASKER, read_request(2), at(2)) == []

    passed = reads.handle(B, ReadIndexReached(number=101, slot=7), at(3))

    assert passed == [Send(B, ReadIndex(number=102))]  # For the one that came later.
    assert apply(reads, 6, 4) == []
    assert apply(reads, 7, 5) == [answer(1, slot=7)]
    late = answer(2, slot=7, quiet_ms=1)
    assert reads.handle(B, ReadIndexReached(number=102, slot=7), at(6)) == [late]


@pytest.mark.parametrize(
    ("sender", "number", "slot"),
    [(REPLICAS[2], 101, 5), (B, 100, 5), (B, 101, 0), (address_of("b", "x"), 101, 5)],
)
def test_only_the_leaders_reply_to_the_barrier_under_way_counts(
    reads: Reads, sender: Address, number: int, slot: int
) -> None:
    reads.follow("b", at(0))
    reads.handle(ASKER, read_request(), at(1))

    effects = reads.handle(sender, ReadIndexReached(number=number, slot=slot), at(2))

    assert not [one for one in sends(effects) if one.to == ASKER]


def test_a_barrier_is_repeated_and_goes_to_the_next_leader_anew(reads: Reads) -> None:
    reads.follow("b", at(0))
    reads.handle(ASKER, read_request(), at(1))

    again = reads.handle(A, events.ReadAgain(), at(251))
    moved = reads.follow("c", at(300))

    assert sends(again) == [Send(B, ReadIndex(number=101))]
    assert moved == [Send(REPLICAS[2], ReadIndex(number=102))]


def test_an_unconfirmed_read_is_dropped_in_the_end(reads: Reads) -> None:
    reads.handle(ASKER, read_request(), at(1))

    assert reads.handle(A, events.ReadAgain(), at(READ_MS_MAX)) == [
        Wake(reads.again_ms, events.ReadAgain())
    ]
    late = reads.handle(A, events.ReadAgain(), at(READ_MS_MAX + 1))
    assert late == [Observe("paxos.reads_dropped", 1)]


def test_reads_beyond_the_limit_are_dropped(reads: Reads) -> None:
    for number in range(WAITING_READS_MAX):
        reads.handle(ASKER, read_request(number), at(1))

    assert reads.handle(ASKER, read_request(), at(1)) == (Observe("paxos.reads_full"),)


def test_a_leader_answers_a_barrier_as_it_answers_a_read(reads: Reads) -> None:
    barrier = ReadIndex(number=9)
    assert reads.handle(B, barrier, at(1)) == (Observe("paxos.read_index_elsewhere"),)
    lead(reads)
    assert sends(reads.handle(B, barrier, at(300))) == [
        Send(monitor_of("a"), events.ConfirmLease())
    ]

    passed = Send(B, ReadIndexReached(number=9, slot=5))
    assert sends(reads.leased(leased(until_ms=500, confirmed_ms=300), at(301))) == [passed]
    assert reads.handle(B, barrier, at(302)) == (passed,)
    stranger = reads.handle(address_of("z", "replica"), barrier, at(302))
    assert stranger == (Observe("paxos.stranger_reads"),)


def test_a_local_read_is_answered_if_its_age_is_proven_and_low_enough(reads: Reads) -> None:
    reads.handle(A, events.Fresh(since=at(100), slot=5), at(150))

    assert reads.handle(ASKER, read_request(1, age_ms=50), at(150)) == [
        answer(1, age_ms=50, quiet_ms=150)
    ]
    assert reads.handle(ASKER, read_request(2, age_ms=49), at(150)) == [
        Wake(reads.age_wait_ms, events.AgeCheck())
    ]


def test_a_local_read_waits_for_the_next_proof_and_no_longer(reads: Reads) -> None:
    reads.handle(ASKER, read_request(1, age_ms=40), at(0))
    reads.handle(ASKER, read_request(2, age_ms=10), at(0))

    fresh = reads.handle(A, events.Fresh(since=at(80), slot=5), at(120))
    early = reads.handle(A, events.AgeCheck(), at(149))
    late = reads.handle(A, events.AgeCheck(), at(150))

    assert fresh == [answer(1, age_ms=40, quiet_ms=120)]
    assert early == []
    assert late == [Send(ASKER, events.MachineRead(number=2, reply=None, slot=5, age_ms=70))]


def test_a_node_that_can_prove_nothing_replies_so(reads: Reads) -> None:
    reads.handle(ASKER, read_request(age_ms=1_000_000), at(0))

    reply = events.MachineRead(number=1, reply=None, slot=5, age_ms=NOTHING_PROVEN)
    assert reads.handle(A, events.AgeCheck(), at(150)) == [Send(ASKER, reply)]


def test_a_proof_counts_when_its_slot_is_applied(reads: Reads) -> None:
    reads.handle(A, events.Fresh(since=at(10), slot=6), at(20))
    assert sends(reads.handle(ASKER, read_request(1, age_ms=60), at(20))) == []

    assert apply(reads, 6, 30) == [answer(1, slot=6, age_ms=20)]


def test_a_settled_leader_without_a_lease_is_as_old_as_its_last_round(reads: Reads) -> None:
    lead(reads)
    reads.leased(leased(until_ms=250, confirmed_ms=10), at(15))

    assert reads.handle(ASKER, read_request(1, age_ms=0), at(249)) == [answer(1, quiet_ms=249)]
    old = answer(2, age_ms=290, quiet_ms=300)
    assert reads.handle(ASKER, read_request(2, age_ms=290), at(300)) == [old]


def beat(number: int, acked: int | None, confirmed: int, committed: int = 5) -> Heartbeat:
    return Heartbeat(
        ballot=BALLOT,
        number=number,
        committed=committed,
        min_applied=0,
        acked=() if acked is None else (9, acked, 9),
        confirmed=confirmed,
    )


def test_three_heartbeats_prove_an_age() -> None:
    proofs = StalenessBound("b", CONFIG)

    assert proofs.take(beat(1, acked=0, confirmed=0), at(100)) is None
    assert proofs.take(beat(2, acked=1, confirmed=1, committed=7), at(150)) is None
    assert proofs.take(beat(3, acked=2, confirmed=2), at(200)) == events.Fresh(
        since=at(100), slot=7
    )


def test_a_heartbeat_proves_nothing_unless_a_majority_answered_it_or_a_later_one() -> None:
    proofs = StalenessBound("b", CONFIG)
    proofs.take(beat(1, acked=0, confirmed=0), at(100))
    proofs.take(beat(2, acked=1, confirmed=1), at(150))

    assert proofs.take(beat(3, acked=2, confirmed=1), at(200)) is None
    assert proofs.take(beat(4, acked=2, confirmed=3), at(250)) == events.Fresh(
        since=at(150), slot=5
    )


def test_an_answer_counts_from_when_it_was_first_given() -> None:
    proofs = StalenessBound("b", CONFIG)
    for repeated_ms in (100, 130, 140):
        proofs.take(beat(1, acked=0, confirmed=0), at(repeated_ms))
    proofs.take(beat(2, acked=1, confirmed=0), at(150))

    assert proofs.take(beat(3, acked=1, confirmed=2), at(200)) == events.Fresh(
        since=at(100), slot=5
    )


def test_answers_to_another_ballot_or_an_unsettled_leadership_prove_nothing() -> None:
    proofs = StalenessBound("b", CONFIG)
    proofs.take(beat(1, acked=0, confirmed=0), at(100))
    other = replace(beat(2, acked=1, confirmed=0), ballot=Ballot(4, leader_of("c")))
    proofs.take(other, at(150))
    assert proofs.take(replace(other, number=3, confirmed=2), at(200)) is None

    unsettled = StalenessBound("b", CONFIG)
    unsettled.take(beat(1, acked=None, confirmed=0), at(100))
    unsettled.take(beat(2, acked=None, confirmed=1), at(150))
    assert unsettled.take(beat(3, acked=None, confirmed=2), at(200)) is None


# Nodes that are no members ask others


def located(number: int, age_ms: int, applied: int = 7, leader: str = "") -> Located:
    return Located(leader=leader, applied=applied, view=0, number=number, age_ms=age_ms)


@pytest.fixture
def observer() -> Locator:
    locator = Locator("d", config_of(), NO_REPORT, voter=0)
    locator.turn(at(0))
    return locator


def ask(observer: Locator, ms: int) -> dict[str, int]:
    """Let the timer of ``observer`` ring; return the number of its request to each node."""
    effects = sends(observer.handle(A, events.LocateDue(number=observer.timer), at(ms)))
    return {
        node_of(send.to): send.message.number
        for send in effects
        if isinstance(send.message, Locate)
    }


def test_the_age_of_an_observer_counts_from_its_request_and_adds_that_of_the_other_node(
    observer: Locator,
) -> None:
    ((node, number),) = ask(observer, 100).items()
    old = at(100 - 41)  # 40 ms by any other clock are at most 41 ms by this one.

    for arrival_ms in (130, 900):
        answer = observer.handle(monitor_of(node), located(number, age_ms=40), at(arrival_ms))
        assert sent(answer, events.Fresh) == [events.Fresh(since=old, slot=7)]


def test_an_answer_to_no_request_or_without_an_age_proves_nothing(observer: Locator) -> None:
    ((node, number),) = ask(observer, 100).items()

    for reply in (located(number, -1), located(number + 1, 0), located(0, 0), located(number, -7)):
        assert sent(observer.handle(monitor_of(node), reply, at(110)), events.Fresh) == []


def test_the_leader_is_asked_no_more_often_than_it_sends_heartbeats(observer: Locator) -> None:
    ((node, number),) = ask(observer, 0).items()
    observer.handle(monitor_of(node), located(number, 0, leader="b"), at(1))

    rounds = [ask(observer, ms) for ms in range(0, 400, 5)]
    leader = [one["b"] for one in rounds if "b" in one]
    assert len(leader) == 400 // TIMING.heartbeat_ms
    assert all(set(one) & {"a", "c"} for one in rounds)


def test_a_replica_reports_on_request_how_old_its_state_is() -> None:
    replica = replica_of_a(config=config_of())
    wanted = events.ReportState(asker=monitor_of("d"), number=3)

    assert replica.handle(monitor_of("a"), wanted, at(50)) == [
        Send(monitor_of("d"), located(3, NOTHING_PROVEN, applied=1))
    ]
    replica.handle(acceptor_of("a"), events.Fresh(since=at(10), slot=1), at(50))
    assert replica.handle(monitor_of("a"), wanted, at(50)) == [
        Send(monitor_of("d"), located(3, 40, applied=1))
    ]


def test_a_former_leader_forgets_the_requests_of_others() -> None:
    """They turn to the new leader; a request that is kept would wake this node forever."""
    indexes = ReadIndexes("n1", 0)
    indexes.turn_to("n1")
    indexes.admit(replica_of("n2"), 7, at(0))
    assert len(indexes) == 1
    assert indexes.turn_to("n2") == []
    assert len(indexes) == 0


LISTS = 250
READERS = tuple(f"reader-{number}" for number in range(8))
PAGE = EntryList(entries=(EntrySeen("k", bytes(64 << 10), 1, None, ""),) * 2)
LATER = 1 + TURN_QUERIES_MAX


def asks(proxy: Proxy, reader: str, count: int, now: Instant = T0) -> list[Effect]:
    """Let ``reader`` request ``count`` pages at once; return the effects."""
    return [
        effect
        for number in range(1, count + 1)
        for effect in proxy.handle(
            Address(f"{reader}/x"), ListEntries(map="large", session=reader, request=number), now
        )
    ]


def read_requests(effects: Effects) -> list[events.ReadMachine]:
    return sent(effects, events.ReadMachine)


def answered(proxy: Proxy, asked: Iterable[events.ReadMachine], now: Instant) -> list[Effect]:
    return [
        effect
        for one in asked
        for effect in proxy.handle(
            REPLICA, events.MachineRead(number=one.number, reply=PAGE, slot=1, age_ms=0), now
        )
    ]


def test_a_few_of_2000_lists_are_read_at_a_time_and_each_reader_has_its_turn() -> None:
    proxy = log_proxy(Proxy)
    effects = [effect for reader in READERS for effect in asks(proxy, reader, LISTS)]
    asked = read_requests(effects)
    assert len(asked) == TURN_QUERIES_MAX
    assert effects.count(Wake(1, NextQueries())) == 1
    replies: Counter[str] = Counter()
    bytes_max, ms = 0, 0
    while asked:
        ms += 1
        done = answered(proxy, asked, at(ms))
        assert read_requests(done) == []  # Others are served before the next ones.
        pages = [one for one in sends(done) if isinstance(one.message, EntryList)]
        bytes_max = max(bytes_max, len(pages) * 2 * 64 << 10)
        replies.update(node_of(page.to) for page in pages)
        if ms == 4:
            assert min(replies[reader] for reader in READERS) > 0
        asked = read_requests(proxy.handle(proxy.address, NextQueries(), at(ms)))
        assert len(asked) <= TURN_QUERIES_MAX
    assert replies == dict.fromkeys(READERS, LISTS)
    assert bytes_max <= TURN_QUERIES_MAX * 128 << 10


def test_queries_that_wait_for_a_majority_keep_no_local_read_waiting() -> None:
    proxy = log_proxy(Proxy)
    assert len(read_requests(asks(proxy, "reader-0", LATER))) == TURN_QUERIES_MAX
    local = ListLocks(session="reader-1", request=1, age_ms=1_000)
    assert len(read_requests(proxy.handle(Address("reader-1/x"), local, T0))) == 1


def test_queries_that_time_out_make_room_for_others() -> None:
    proxy = log_proxy(Proxy)
    asks(proxy, "reader-0", TURN_QUERIES_MAX)
    later = at(QUERY_MS // 2)
    assert read_requests(asks(proxy, "reader-1", 1, later)) == []
    proxy.backend.tick(at(QUERY_MS))
    (asked,) = read_requests(proxy.handle(proxy.address, NextQueries(), at(QUERY_MS)))
    assert answered(proxy, [asked], at(QUERY_MS))
