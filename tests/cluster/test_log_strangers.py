"""The log with messages of strangers, and with leaderships that others overtook."""

from __future__ import annotations

from random import Random
from typing import Any

from support.log_workload import Counted, LogCounter
from support.role_harness import HOST, T0, at, only_sent

from fencelock.actors.api.session_message import Opened
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.paxos import config
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader, Scout
from fencelock.actors.paxos.ordering import LogClock, Ordering
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import FETCH_DOUBLINGS_MAX, CatchUp
from fencelock.actors.session.lease import SessionLease
from fencelock.actors.session.session import TTL_MS
from fencelock.actors.timing import TIMING

CONFIG = config.LogConfig(config.View(0, ("a", "b", "c")))
BALLOT = messages.Ballot(3, config.leader_of("a"))
LEADERSHIP = events.Leadership(
    ballot=BALLOT, commander=address_of("a", "commander-3"), first=1, time_ms=0
)
MEMBER: Any = {"node": "a", "config": CONFIG, "recovered": Recovered()}
ASKER = address_of("b", "proxy")
MONITOR = address_of("a", "monitor")


def replica() -> Replica:
    return Replica(
        config.replica_of("a"),
        HOST,
        **MEMBER,
        machine=LogCounter(),
        opening=(b"opening",),
        listener=address_of("a", "proxy"),
    )


def learned(first: int, *batches: messages.Batch) -> events.Learned:
    """Return the acceptor's report of another leader's slots."""
    slots = tuple(enumerate(batches, start=first))
    return events.Learned(slots=slots, committed=first + len(batches))


def sent(effects: Effects, to: Address) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send) if effect.to == to]


def elected() -> Leader:
    """Return the leader of a member that started for the first time and was elected at once."""
    leader = Leader(config.leader_of("a"), HOST, **MEMBER, random=Random(1))
    leader.handle(MONITOR, events.Suspect(), T0)
    adopted = events.Adopted(ballot=leader.ballot, floor=1, source="b", batches=())
    leader.handle(address_of("a", "scout-1"), adopted, T0)
    return leader


def test_a_stranger_cannot_depose_a_leader_nor_use_up_its_rounds() -> None:
    leader = elected()
    message = messages.Preempted(
        ballot=messages.Ballot(messages.PAXOS_NUMBER_MAX - 1, config.leader_of("b"))
    )

    for stranger in (address_of("client", "me"), config.acceptor_of("b")):
        assert leader.handle(stranger, message, T0) == (Observe("paxos.stranger_preempts"),)

    by = messages.Preempted(ballot=messages.Ballot(2, config.leader_of("b")))
    deposed = leader.handle(address_of("a", "commander-1"), by, T0)
    assert [type(message) for message in sent(deposed, config.replica_of("a"))] == [
        events.SteppedDown
    ]
    leader.handle(MONITOR, events.Suspect(), T0)
    assert leader.ballot.round == 3


def test_a_stranger_cannot_put_commands_into_the_log_past_the_proxy() -> None:
    """At the proxy a client acts for its own session only; a replica cannot check that."""
    role, client = replica(), address_of("client", "me")
    role.handle(config.leader_of("a"), LEADERSHIP, T0)
    propose = messages.Propose(client=client, number=1, command=b"x")

    assert role.handle(client, propose, T0) == (Observe("paxos.stranger_proposes"),)

    role.handle(config.replica_of("b"), propose, T0)
    ordered = role.handle(role.address, events.Gather(), T0)
    assert len(sent(ordered, LEADERSHIP.commander)) == 1


def test_a_leadership_that_another_has_overtaken_does_not_begin() -> None:
    """A slot that a higher ballot decided is applied between the leader's check and its message."""
    role = replica()
    role.handle(
        config.acceptor_of("a"), learned(1, messages.Batch(time_ms=5, commands=(b"theirs",))), T0
    )

    assert role.handle(config.leader_of("a"), LEADERSHIP, T0) == (
        Observe("paxos.leadership_overtaken"),
    )

    propose = messages.Propose(client=ASKER, number=1, command=b"x")
    assert sent(role.handle(ASKER, propose, T0), LEADERSHIP.commander) == []


def test_no_caller_is_notified_of_a_slot_in_which_another_leader_decided_something_else() -> None:
    """A leader that is deposed and does not know it yet applies its successor's slots."""
    role = replica()
    opening = role.handle(config.leader_of("a"), LEADERSHIP, T0)
    role.handle(ASKER, messages.Propose(client=ASKER, number=7, command=b"mine"), T0)
    ordered = role.handle(role.address, events.Gather(), T0)
    slots = [
        message.slot
        for message in sent([*opening, *ordered], LEADERSHIP.commander)
        if isinstance(message, events.Order)
    ]
    assert slots == [1, 2]

    theirs = (
        messages.Batch(time_ms=0, commands=(b"opening",)),
        messages.Batch(time_ms=0, commands=(b"theirs",)),
    )
    effects = role.handle(config.acceptor_of("a"), learned(1, *theirs), T0)
    assert sent(effects, ASKER) == []

    deposed = events.SteppedDown(pause_ms=0)
    effects = role.handle(config.leader_of("a"), deposed, T0)
    assert sent(effects, ASKER) == []


def test_a_client_learns_the_outcome_of_its_command_also_if_a_successor_decided_it() -> None:
    role = replica()
    role.handle(config.leader_of("a"), LEADERSHIP, T0)
    role.handle(ASKER, messages.Propose(client=ASKER, number=7, command=b"mine"), T0)
    role.handle(role.address, events.Gather(), T0)

    same = (
        messages.Batch(time_ms=0, commands=(b"opening",)),
        messages.Batch(time_ms=0, commands=(b"mine",)),
    )
    effects = role.handle(config.acceptor_of("a"), learned(1, *same), T0)
    assert sent(effects, ASKER) == [Counted(number=2)]


def test_one_timer_runs_for_what_is_due_however_often_an_earlier_one_was_needed() -> None:
    """Each time a wait with a short limit comes and is granted, a due time comes and goes."""
    ordering = Ordering(opening=())
    ordering.clock = LogClock()
    ordering.begin(LEADERSHIP, 0, T0)
    timers: list[tuple[int, events.LogTimeDue]] = []

    def take(effects: Effects, ms: int) -> None:
        for wake in effects:
            assert isinstance(wake, Wake)
            assert isinstance(wake.timer, events.LogTimeDue)
            timers.append((ms + wake.after_ms, wake.timer))

    take(ordering.arm(20_000, T0), 0)
    for ms in range(0, 10_000, 1_000):
        take(ordering.arm(ms + 500, at(ms)), ms)
        for due, timer in [one for one in timers if one[0] < ms + 1_000]:
            timers.remove((due, timer))
            take(ordering.tick(timer, 20_000 + ms, 2, at(due)), due)
    live = [timer for _, timer in timers if timer.due_ms == ordering.tick_ms]
    assert len(live) == 1

    for _ in range(30):
        due, timer = min(timers, key=lambda one: one[0])
        timers.remove((due, timer))
        take(ordering.tick(timer, due + 5_000, 2, at(due)), due)
    assert len(timers) == 1


def test_a_vote_for_an_absurd_slot_does_not_fill_the_log_with_no_ops() -> None:
    scout = Scout(address_of("a", "scout-3"), HOST, node="a", config=CONFIG, ballot=BALLOT, first=1)
    scout.begin(T0)
    absurd = messages.Vote(
        1 << 40, messages.Ballot(2, config.leader_of("c")), messages.Batch(time_ms=1, commands=())
    )

    for node, votes in (("b", (absurd,)), ("a", ())):
        promise = messages.Promise(ballot=BALLOT, asked=1, first=1, votes=votes, more=None)
        effects = scout.handle(config.acceptor_of(node), promise, T0)

    assert only_sent(effects, events.Adopted).batches == ()


def test_a_snapshot_arrives_also_over_a_link_on_which_a_part_takes_longer_than_the_first_wait() -> (
    None
):
    role = CatchUp(config.catchup_of("a"), HOST, node="a", config=CONFIG)
    takes_ms, part = 500, bytes(messages.CHUNK_BYTES_MAX)
    effects = role.handle(role.address, events.Lacking(first=1, target=9, source="b"), T0)
    restored: list[object] = []

    for _ in range(20):
        (wake,) = [effect for effect in effects if isinstance(effect, Wake)]
        assert isinstance(wake.timer, events.FetchRetry)
        asked = role.request
        if asked is None:
            break
        if wake.after_ms < takes_ms:  # The answer is under way, and comes too late.
            effects = role.handle(role.address, wake.timer, T0)
            continue
        message = messages.SnapshotChunk(
            slot=9, time_ms=0, chunk=asked.chunk, count=4, content=part
        )
        effects = role.handle(config.catchup_of(role.source), message, T0)
        restored += sent(effects, config.replica_of("a"))
        if restored:
            break

    assert [type(message).__name__ for message in restored] == ["Restore"]
    assert role.unanswered == 0  # The next missing slots are requested as quickly as ever.


def test_a_source_that_is_gone_is_not_waited_for_any_longer_each_time() -> None:
    role = CatchUp(config.catchup_of("a"), HOST, node="a", config=CONFIG)
    effects = role.handle(role.address, events.Lacking(first=1, target=9, source="b"), T0)
    waits: list[int] = []
    for _ in range(6):
        (wake,) = [effect for effect in effects if isinstance(effect, Wake)]
        assert isinstance(wake.timer, events.FetchRetry)
        waits.append(wake.after_ms)
        effects = role.handle(role.address, wake.timer, T0)
    longest = TIMING.reply_ms << FETCH_DOUBLINGS_MAX
    assert waits == [100, 200, 400, longest, longest, longest]


def test_a_node_gives_up_its_session_before_a_log_with_a_fast_clock_ends_it() -> None:
    """The log counts a TTL from the last message; its clock may be fast, and this node's slow."""
    session_lease = SessionLease("a/1", TTL_MS, "a")
    session_lease.need(T0)
    session_lease.note_sent(1, T0)
    opened = Opened(session="a/1", assigned="a/1.1", ttl_ms=TTL_MS, node="a", request=1)
    assert session_lease.opened(opened, T0)
    slow, fast = 1 - DRIFT_PPM / 1e6, 1 + DRIFT_PPM / 1e6
    ended_ms = TTL_MS / fast

    assert session_lease.passed(Instant(int(ended_ms * slow * NS_PER_MS) + 1))
    assert not session_lease.passed(Instant(int((ended_ms * slow - 1) * NS_PER_MS)))
