"""Two leaders with one request, holds that are taken over, votes that are too late: found by seeds.

A proxy that turns to another leader, or a client that turns to another proxy, makes two leaders
take the steps of one request. Whatever they do to each other, a vote counts until it is given back,
and a released lock stays released.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import present
from support.leader_trio import (
    ANN,
    FENCE,
    LIVES,
    NOW,
    add_ticket,
    lock_request,
    merge,
    put_hold,
    serving_leader,
    ticket_of,
)
from support.planted_bugs import as_plant, plant

from fencelock.actors.bakery.config import leader_of, proxy_of
from fencelock.actors.bakery.event import Serve
from fencelock.actors.bakery.table import TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import RequestKey, Turn, Who, pack_fence
from fencelock.actors.bakery.ticket_attempt import TicketAttempt, TicketAttempts, TicketStep
from fencelock.actors.bakery.wire import (
    AddTicket,
    Chosen,
    Collected,
    DropTicket,
    Entering,
    Extend,
    Locked,
    MaxTicket,
    Seating,
    Unlock,
    Yield,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Instant, later

BEN = Who("c", "ben")


class TwoOwners:
    """A leader, mostly n1, the first of three; it serves and is trusted."""

    def __init__(self, one: Chosen = LIVES[0]) -> None:
        self.leader = serving_leader(one)
        self.table = self.leader.tickets
        self.attempts = self.leader.attempts
        self.requests = self.leader.requests
        self.transfer = self.leader.transfer

    def asks(self, who: Who = ANN, held: int = 0) -> TicketAttempt:
        """Let n1 own request 1 of ``who``, with its number drawn and a fence under which another
        leader held it."""
        self.attempts.open(proxy_of("n1"), lock_request(who), NOW)
        self.attempts.on_max("n2", entered(who, held), NOW)
        return present(self.attempts.own.get(RequestKey("x", who, 1)))

    def receives(self, step: AddTicket | DropTicket | Extend | Yield) -> list[Any]:
        """Let n2 send ``step``; return all messages that follow."""
        return sent_messages(self.leader.handle(leader_of("n2"), step, NOW))


def entered(who: Who = ANN, held: int = 0) -> MaxTicket:
    return MaxTicket(epoch=1, lock="x", who=who, request=1, highest=6, held=held, known=0)


def sent_messages(effects: Effects) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def add(who: Who = ANN, number: int = 7, **fields: Any) -> AddTicket:
    return add_ticket(ticket_of(who, number), **{"round": 9, **fields})


def dropped(fence: int = 0, *, mine: bool) -> DropTicket:
    request = 0 if fence else 1
    return DropTicket(epoch=1, lock="x", who=ANN, request=request, fence=fence, number=1, mine=mine)


def waits_behind_ben(bench: TwoOwners) -> TicketAttempt:
    """Let n1 own ann's request while ben's request, owned by n2, is ahead of it."""
    bench.receives(add(BEN, 2, fence=pack_fence(1, 2)))
    attempt = bench.asks()
    assert attempt.step is TicketStep.WAITING
    return attempt


def test_a_vote_for_another_owners_round_is_not_taken_back_by_a_round_of_ones_own() -> None:
    bench = TwoOwners(LIVES[2])
    attempt = waits_behind_ben(bench)
    bench.table.drop("x", BEN, 1, 0)
    voted = bench.receives(add())
    assert [message.voted for message in voted if isinstance(message, Collected)] == [True]
    assert bench.attempts.own.get(attempt.entry.key) is None
    assert bench.table.of("x", ANN)[0].fence == FENCE


def test_a_leader_that_learns_of_a_renewal_leaves_the_request_to_its_leader() -> None:
    bench = TwoOwners()
    attempt = waits_behind_ben(bench)
    bench.table.drop("x", BEN, 1, 0)
    bench.receives(Extend(epoch=1, ticket=ticket_of(), fence=FENCE, number=1))
    assert bench.attempts.own.get(attempt.entry.key) is None
    assert bench.table.of("x", ANN)[0].phase is TicketPhase.HOLDING


def test_a_request_that_one_owner_gives_up_stays_with_another_that_has_it_too() -> None:
    bench = TwoOwners()
    attempt = bench.asks(held=FENCE)
    bench.receives(add(fence=FENCE + 1, taken=True))
    attempt.entry.owner = "n2"
    bench.receives(dropped(mine=True))
    assert bench.table.get(RequestKey("x", ANN, 1)) is attempt.entry
    assert attempt.entry.owner == "n1"


def test_a_hold_keeps_its_lease_when_another_owner_of_it_gives_up() -> None:
    bench = TwoOwners()
    attempt = bench.asks(held=FENCE)
    attempt.step, attempt.entry.owner = TicketStep.HELD, "n2"
    until = attempt.entry.until
    bench.receives(dropped(mine=True))
    assert until is not None
    assert (attempt.entry.owner, attempt.entry.until) == ("n1", until)


def test_a_hold_that_is_taken_over_is_requested_under_its_fence_whatever_is_ahead() -> None:
    bench = TwoOwners()
    bench.receives(add(BEN, 2, fence=0))
    attempt = bench.asks(held=FENCE)
    assert attempt.step is TicketStep.VOTING
    assert attempt.entry.fence == FENCE


def test_a_hold_that_comes_with_a_table_is_taken_over_by_who_waits_for_it() -> None:
    bench = TwoOwners()
    attempt = waits_behind_ben(bench)
    bench.table.drop("x", BEN, 1, 0)
    bench.transfer.leave(2)
    bench.table.vote(attempt.entry, FENCE, NOW)
    bench.attempts.epoch_state.take(Seating(2, LIVES, 10_000))
    bench.transfer.on_serve(Serve(seating=Seating(2, LIVES, 10_000)), NOW)
    assert (attempt.held, attempt.entry.fence) == (FENCE, FENCE)


def test_votes_of_an_epoch_that_is_over_do_not_count_for_a_hold_taken_over() -> None:
    bench = TwoOwners()
    attempt = bench.asks(held=FENCE)
    assert attempt.votes
    bench.transfer.leave(2)
    assert (attempt.votes, attempt.step) == ({}, TicketStep.WAITING)
    assert attempt.entry.fence == FENCE


def vote_for(attempt: TicketAttempt) -> Collected:
    """Return another leader's vote in the round under way."""
    return Collected(
        epoch=1,
        lock="x",
        who=ANN,
        request=1,
        round=attempt.entry.round,
        voted=True,
        ahead=None,
        highest=7,
        known=attempt.entry.round,
    )


def test_expired_votes_grant_nothing() -> None:
    bench = TwoOwners()
    attempt = bench.asks()
    vote = vote_for(attempt)
    epoch_state = bench.attempts.epoch_state
    late = later(NOW, 1_000)
    epoch_state.trusted_at = late
    answers = sent_messages(bench.attempts.on_collected("n2", vote, late))
    assert not any(isinstance(message, Locked) for message in answers)
    assert attempt.step is TicketStep.WAITING


def test_votes_in_time_let_in() -> None:
    bench = TwoOwners()
    attempt = bench.asks()
    vote = vote_for(attempt)
    answers = sent_messages(bench.attempts.on_collected("n2", vote, NOW))
    assert [type(message) for message in answers] == [Locked]
    assert sent_messages(bench.attempts.on_collected("n3", vote, NOW)) == []


def grants_by_a_late_vote() -> list[Any]:
    """Let a round be lost and given back; then let a vote of it come, late."""
    bench = TwoOwners()
    vote = vote_for(bench.asks())
    lost = replace(vote, voted=False, ahead=Turn(1, "n3", 1))
    for leader in ("n2", "n3"):
        bench.attempts.on_collected(leader, lost, NOW)
    again = sent_messages(bench.attempts.advance("x", NOW))
    assert any(isinstance(message, AddTicket) for message in again)
    answers = sent_messages(bench.attempts.on_collected("n2", vote, NOW))
    return [message for message in answers if isinstance(message, Locked)]


def test_a_vote_of_a_round_that_was_given_back_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers count once: one without a round would count for a vote that was dropped."""
    assert grants_by_a_late_vote() == []

    @as_plant
    def unattributed(
        sound: Any, attempts: TicketAttempts, leader: str, collected: Collected, now: Instant
    ) -> Any:
        attempt = present(attempts.own.get(collected.key))
        return sound(attempts, leader, replace(collected, round=attempt.entry.round), now)

    plant(monkeypatch, TicketAttempts, "on_collected", unattributed)
    assert len(grants_by_a_late_vote()) == 1


def test_an_answer_counts_once_for_its_sender() -> None:
    """With three leaders of which two must answer, the same one twice is one."""
    bench = TwoOwners()
    bench.attempts.epoch_state.quorum = 3
    assert bench.asks().step is TicketStep.ENTERING
    assert bench.attempts.on_max("n2", entered(), NOW) == []
    assert bench.attempts.on_max("n3", entered(), NOW) != []


def test_a_release_names_the_request_to_those_who_have_only_a_copy_that_waits() -> None:
    bench = TwoOwners()
    attempt = bench.asks()
    unlock = Unlock(
        lock="x", who=ANN, request=0, fence=attempt.entry.fence, number=5, waiting=False
    )
    words = sent_messages(bench.requests.serve(proxy_of("n1"), unlock, NOW))
    drops = [message for message in words if isinstance(message, DropTicket)]
    assert {(message.request, message.fence) for message in drops} == {(1, attempt.entry.fence)}


def test_a_drop_that_names_the_request_ends_a_copy_that_waits() -> None:
    bench = TwoOwners()
    bench.receives(add(fence=0))
    bench.receives(replace(dropped(FENCE, mine=False), request=1))
    assert bench.table.of("x", ANN) == []
    assert bench.table.tombstones.is_over(ticket_of())


def test_a_later_request_of_its_owner_does_not_make_a_hold_outdated() -> None:
    """In a hand-over the later one may come first; and where it waits the hold is voted for."""
    bench = TwoOwners()
    later_one = ticket_of(number=8, request=2)
    bench.receives(add_ticket(later_one, 0))
    answers = bench.receives(add(taken=True))
    assert [message.voted for message in answers if isinstance(message, Collected)] == [True]
    waits, holds, tickets = TicketTable(), TicketTable(), TicketTable()
    waits.put(later_one, "n3", NOW, None)
    put_hold(holds, ticket_of())
    merge(tickets, waits, holds, own=False)
    assert tickets.of("x", ANN)[-1].fence == FENCE


def test_a_table_keeps_the_hold_with_the_highest_fence_of_two() -> None:
    """One leader missed that ann's votes were given back before ben was granted the lock."""
    stale, real, tickets = TicketTable(), TicketTable(), TicketTable()
    put_hold(stale, ticket_of())
    put_hold(real, ticket_of(BEN, 8), FENCE + 1)
    merge(tickets, stale, real, own=False)
    assert tickets.of("x", BEN)[0].phase is TicketPhase.HOLDING
    assert tickets.of("x", ANN)[0].phase is TicketPhase.WAITING


def test_a_vote_of_an_earlier_epoch_gives_way_to_nothing_but_its_own_fence() -> None:
    """A leader without a table asks again about tickets that it does not know to be held."""
    bench = TwoOwners()
    bench.receives(add())
    bench.attempts.epoch_state.take(Seating(2, LIVES, 10_000))
    other = add(round=10, epoch=2, fence=pack_fence(2, 7))
    refused = bench.receives(other)
    assert [message.voted for message in refused if isinstance(message, Collected)] == [False]
    bench.receives(Yield(epoch=2, lock="x", who=ANN, request=1, round=11))
    assert bench.table.of("x", ANN)[0].fence == FENCE
    taken = replace(other, fence=FENCE, round=12, taken=True)
    kept = bench.receives(taken)
    assert [message.voted for message in kept if isinstance(message, Collected)] == [True]


def test_a_ticket_that_is_adopted_enters_again_and_keeps_its_number() -> None:
    bench = TwoOwners()
    bench.receives(add(fence=0))
    bench.attempts.epoch_state.take(Seating(2, LIVES[:1] + LIVES[2:], 10_000))
    words = sent_messages(
        bench.transfer.on_serve(Serve(seating=Seating(2, LIVES[:1] + LIVES[2:], 10_000)), NOW)
    )
    assert [message.ticket.turn.number for message in words if isinstance(message, Entering)] == [0]
    bench.attempts.epoch_state.trusted_at = NOW
    later_one = replace(entered(), epoch=2, highest=60, known=9)
    asked = sent_messages(bench.attempts.on_max("n3", later_one, NOW))
    assert [message.ticket.turn.number for message in asked if isinstance(message, AddTicket)] == [
        7
    ]
