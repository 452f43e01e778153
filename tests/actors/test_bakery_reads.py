"""Reads of `bakery`: one leader's reply does not prove that a lock is free."""

from __future__ import annotations

import pytest
from support.bakery_cluster_harness import ClusterHarness
from support.expect import present
from support.judged import clean, seen_in
from support.leader_trio import FENCE, GRACE_MS, HOLD_MS, LeaderTrio
from support.onlooker import run_read_seed

from fencelock.actors.api.lock_message import Inspect, LockStatus
from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.in_flight import Poll
from fencelock.actors.bakery.table import REMEMBERED_MAX, Tombstones
from fencelock.actors.bakery.wire import AddTicket, Extend, Query, QueryResult
from fencelock.actors.message import Instant

LEASE_MS = HOLD_MS + GRACE_MS
SEEDS = 3
SEEDS_FOR_A_MUTANT = 20


def answers(trio: LeaderTrio, *names: str) -> dict[str, QueryResult]:
    """Return the leaders' present messages to proxies."""
    replies: dict[str, QueryResult] = {}
    for name in names:
        trio.to_proxies.clear()
        trio.ask(name, Query(lock="x", number=1, nonce=7))
        replies.update((name, result) for result in trio.received(QueryResult))
    return replies


def test_a_leader_that_missed_the_vote_reports_no_holder() -> None:
    trio = LeaderTrio()
    trio.lose_between("n1", "n3", AddTicket)
    trio.lock("n1")
    trio.settle()
    replies = answers(trio, "n1", "n2", "n3")
    assert [bool(result.holders) for result in replies.values()] == [True, True, False]
    poll = Poll(7, Instant(trio.now), replies)
    decided = present(poll.decide(2, trio.now))
    assert [holder.owner for holder in decided.holders] == ["ann"]


def test_a_leader_that_does_not_serve_or_is_not_trusted_does_not_answer() -> None:
    trio = LeaderTrio()
    trio.leaders["n1"].epoch_state.serving = False
    trio.leaders["n2"].epoch_state.trusted_at = None
    assert list(answers(trio, "n1", "n2", "n3")) == ["n3"]


def test_votes_that_move_with_a_renewal_do_not_make_a_held_lock_free() -> None:
    """n2 answers, takes part in a renewal that n3 misses, and then n3's lease ends."""
    trio = LeaderTrio()
    trio.hold("n1", "n3")
    trio.pass_time(LEASE_MS - 100)
    poll = Poll(7, trio.now, answers(trio, "n2"))
    assert poll.answers["n2"].holders == ()

    entry = next(trio.leaders["n1"].tickets.entries())
    extend = Extend(epoch=1, ticket=entry.ticket, fence=FENCE, number=1)
    trio.deliver(leader_of("n1"), "n2", extend)
    trio.pass_time(200)
    poll.answers |= answers(trio, "n3")
    assert poll.answers["n3"].holders == ()
    assert poll.answers["n3"].expired_ms == 100
    assert poll.decide(2, trio.now) is None

    later = Poll(8, trio.now, answers(trio, "n2", "n3"))
    assert later.answers["n2"].holders != ()
    assert later.decide(2, trio.now) is None


def test_a_lease_that_ended_before_the_round_does_not_hold_up_a_read() -> None:
    trio = LeaderTrio()
    trio.hold("n1", "n3")
    trio.pass_time(LEASE_MS + 50)
    assert Poll(7, trio.now, answers(trio, "n1", "n3")).decide(2, trio.now) is not None


def test_a_forgotten_expiry_counts_as_the_latest_forgotten_one() -> None:
    past = Tombstones()
    past.note_expiry("x", Instant(5))
    assert past.expired_at("y") is None
    for number in range(REMEMBERED_MAX):
        past.note_expiry(f"lock-{number}", Instant(9))
    assert past.expired_at("x") == Instant(5)
    assert past.expired_at("y") == Instant(5)


def test_any_proxy_reports_a_holder_when_one_leader_is_cut_off() -> None:
    harness = ClusterHarness(3).start().ready()
    granted = harness.lock("n1", hold_ms=60_000)
    (lost, *_) = [name for name in harness.names if name != "n1"]
    harness.cut([lost])
    for proxy in [name for name in harness.names if name != lost]:
        harness.request(proxy, Inspect, lock="x")
    unknown = harness.request(lost, Inspect, lock="x")
    harness.until(lambda: len(harness.answers(LockStatus)) == 2)
    assert {status.holder.fence for status in harness.answers(LockStatus)} == {granted.fence}
    assert "not known who holds it" in harness.refused(unknown).detail


def test_no_read_reports_a_lock_as_free_that_is_held_all_the_while() -> None:
    counts = clean(run_read_seed("bakery", seed) for seed in range(SEEDS))
    assert min(counts["onlooker.reported_free"], counts["onlooker.reported_held"]) > 20 * SEEDS


def is_caught() -> bool:
    seeds = range(SEEDS_FOR_A_MUTANT)
    return seen_in("reads:", (run_read_seed("bakery", seed) for seed in seeds))


def test_a_proxy_that_believes_one_leader_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Poll.decide

    def decide_by_one(poll: Poll, quorum: int, now: Instant) -> QueryResult | None:
        return decide(poll, 1, now)

    monkeypatch.setattr(Poll, "decide", decide_by_one)
    assert is_caught()
