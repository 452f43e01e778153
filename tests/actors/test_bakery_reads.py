"""Reads of `bakery`: one leader's reply does not prove that a lock is free."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness
from support.expect import present
from support.judged import clean, seen_in
from support.leader_trio import FENCE, GRACE_MS, HOLD_MS, LeaderTrio
from support.onlooker import run_read_seed
from support.proxy_scene import ANN, BakeryProxyHarness, reply_to
from support.session_harness import of, one

from fencelock.actors.api.lock_message import Contender, Inspect, LockStatus, Reason, Refused
from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.in_flight import Poll
from fencelock.actors.bakery.table import REMEMBERED_MAX, Tombstones
from fencelock.actors.bakery.wire import AddTicket, Extend, Query, QueryResult
from fencelock.actors.effect import Send
from fencelock.actors.message import Instant, node_of

HOLDER = Contender("n1", "c", "o", FENCE, 5)
LEASE_MS = HOLD_MS + GRACE_MS
SEEDS = 3
SEEDS_FOR_A_MUTANT = 20


class LockReader(BakeryProxyHarness):
    """The proxy of n4, where n1, n2 and n3 lead in epoch 1, and its reads of lock x."""

    def __init__(self) -> None:
        super().__init__()
        self.peek = Query(lock="x", number=0)
        self.seat(1, "n1", "n2", "n3")

    def seat(self, epoch: int, *leaders: str) -> list[Send]:
        return self._note(self.learn(epoch, leaders))

    def ask(self) -> list[str]:
        """Let ann request a report; return the leaders to which requests are sent."""
        inspect = Inspect(lock="x", session="ann", request=1)
        return [node_of(send.to) for send in self._note(self.receive(ANN, inspect))]

    def again(self, ms: int = 250) -> list[Send]:
        """Let the next round begin."""
        return self._note(self.run(ms))

    def _note(self, sends: list[Send]) -> list[Send]:
        for send in sends:
            if isinstance(send.message, Query):
                self.peek = send.message
        return sends

    def reply(
        self,
        leader: str,
        holder: Contender | None,
        *,
        epoch: int = 1,
        expired_ms: int | None = None,
        peek: Query | None = None,
    ) -> list[Send]:
        """Let a leader reply; return the messages to ann."""
        holders = () if holder is None else (holder,)
        result = reply_to(peek or self.peek, *holders, epoch=epoch, expired_ms=expired_ms)
        return self.receive(leader_of(leader), result)


@pytest.fixture
def reader() -> LockReader:
    reader = LockReader()
    assert reader.ask() == ["n1", "n2", "n3"]
    return reader


def test_a_lock_is_free_once_a_quorum_of_the_leaders_knows_no_holder(reader: LockReader) -> None:
    assert reader.reply("n2", None) == []
    assert reader.reply("n2", None) == []  # The same leader counts once.
    assert one(LockStatus, reader.reply("n3", None), ANN).holder is None


def test_a_leader_that_did_not_vote_does_not_outweigh_two_that_did(reader: LockReader) -> None:
    assert reader.reply("n1", None) == []
    assert reader.reply("n2", HOLDER) == []
    assert one(LockStatus, reader.reply("n3", HOLDER), ANN).holder == HOLDER


def test_both_of_two_leaders_have_to_agree(reader: LockReader) -> None:
    reader.seat(2, "n1", "n2")
    assert reader.reply("n1", None, epoch=2) == []
    assert one(LockStatus, reader.reply("n2", None, epoch=2), ANN).holder is None


def test_votes_for_different_holders_are_no_answer_and_the_leaders_are_asked_again(
    reader: LockReader,
) -> None:
    for leader, holder in (("n1", HOLDER), ("n2", HOLDER._replace(owner="p"))):
        assert reader.reply(leader, holder) == []
    assert of(Query, reader.again()) != []
    reader.reply("n1", HOLDER)
    assert one(LockStatus, reader.reply("n3", HOLDER), ANN).holder == HOLDER


def test_a_lock_is_free_once_a_quorum_excludes_each_owner_that_one_leader_names(
    reader: LockReader,
) -> None:
    for leader, holder in (("n1", HOLDER), ("n2", HOLDER._replace(owner="p"))):
        assert reader.reply(leader, holder) == []
    assert one(LockStatus, reader.reply("n3", None), ANN).holder is None


def test_answers_of_another_epoch_round_lock_or_node_do_not_count(reader: LockReader) -> None:
    earlier = reader.peek
    reader.again()
    assert reader.peek.nonce != earlier.nonce
    assert reader.reply("n1", None) == []
    assert reader.reply("n2", None, peek=earlier) == []
    assert reader.reply("n2", None, epoch=2) == []
    assert reader.reply("n2", None, peek=replace(reader.peek, lock="y")) == []
    assert reader.reply("n4", None) == []
    assert one(LockStatus, reader.reply("n2", None), ANN).holder is None


def test_a_leader_where_a_lease_ended_during_the_round_does_not_count(reader: LockReader) -> None:
    assert reader.reply("n1", None) == []
    reader.run(100)
    assert reader.reply("n2", None, expired_ms=100) == []
    assert one(LockStatus, reader.reply("n3", None, expired_ms=103), ANN).holder is None


def test_a_read_without_agreement_is_refused_in_the_end(reader: LockReader) -> None:
    reader.reply("n1", None)
    refused = one(Refused, reader.run(16_000), ANN)
    assert refused.reason is Reason.UNAVAILABLE
    assert refused.detail.startswith("lock 'x': it is not known who holds it: waited 15")


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
