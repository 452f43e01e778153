"""If a replica's state differs from a majority's, it leaves the group and says what to do."""

from __future__ import annotations

from random import Random
from typing import Any

from support.effects import HOST, T0, sent
from support.replicas import LISTENER, replica_of_a

from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effects, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address
from fencelock.actors.paxos.config import acceptor_of, leader_of, replica_of
from fencelock.actors.paxos.divergence import ADVICE, Quarantined
from fencelock.actors.paxos.event import Compare, Decided, Divergence, Isolate, Learned, Withdraw
from fencelock.actors.paxos.journal import Recovered, recover
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.paxos.message import SCHEME, Batch, Diverged, Figure, TableDigest
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.codec import encode

MEMBERS = ("a", "b", "c")


def digest(slot: int, state: int, decided: int | None = 0, **more: Any) -> TableDigest:
    fields: dict[str, Any] = {"scheme": SCHEME, "asks": False} | more
    return TableDigest(
        slot=slot, state=state, decided=decided, counters=(Figure("fence", state),), **fields
    )


def replica(machine: LockMachine | None = None, digest_slots: int = 2) -> Replica:
    return replica_of_a(machine=machine or LockMachine(), digest_slots=digest_slots)


def decide(role: Replica, slot: int) -> list[Any]:
    opening = encode(Open(session=f"s{slot}", ttl_ms=50_000))
    batch = Batch(time_ms=slot, commands=(opening,))
    return list(role.handle(leader_of("a"), Decided(slot=slot, batch=batch), T0))


def test_at_an_agreed_slot_a_replica_tells_all_others() -> None:
    role = replica()
    role.begin(T0)
    effects = decide(role, 1)  # The state before slot 2.
    assert [one.slot for one in sent(effects, TableDigest)] == [2, 2]
    to = {e.to for e in effects if isinstance(e, Send) and type(e.message) is TableDigest}
    assert to == {replica_of("b"), replica_of("c")}
    assert any(isinstance(e, Wake) and e.timer == Compare(slot=2, attempt=1) for e in effects)
    assert sent(decide(role, 2), TableDigest) == []


def test_a_replica_that_differs_from_a_majority_leaves_the_group() -> None:
    role = replica()
    role.begin(T0)
    (own, _) = sent(decide(role, 1), TableDigest)
    wrong = TableDigest(
        scheme=SCHEME, slot=2, state=own.state ^ 1, decided=own.decided,
        counters=(Figure("fence", 7),), asks=False,
    )  # fmt: skip
    assert sent(role.handle(replica_of("b"), wrong, T0), Withdraw) == []
    effects = list(role.handle(replica_of("c"), wrong, T0))
    (persist,) = [e for e in effects if isinstance(e, Persist)]
    assert isinstance(persist.record, Diverged)
    assert "fence 0" in persist.record.why
    assert "b has" in persist.record.why
    assert "fence 7" in persist.record.why
    assert sent(effects, Withdraw) == [Withdraw()]
    assert Wake(0, Isolate()) in effects
    assert effects.index(persist) == 0
    ended = list(role.handle(role.address, Isolate(), T0))
    retired = {e.address for e in ended if isinstance(e, Retire)}
    assert {acceptor_of("a"), leader_of("a"), replica_of("a")} <= retired
    (spawn,) = [e for e in ended if isinstance(e, Spawn)]
    assert (spawn.address, spawn.role) == (replica_of("a"), Quarantined)


def test_a_diverged_journal_seats_nothing_but_the_quarantine() -> None:
    record = Diverged(slot=2, why="it differs")
    assert recover([record]).diverged == "it differs"
    (spawn,) = log_roles(
        "a",
        MEMBERS,
        Random(1),
        LockMachine(),
        records=[record],
        journal=1,
        secret=1,
        boot=1,
        date_ms=1,
        options=LogOptions(listener=LISTENER),
    )
    assert spawn.role is Quarantined
    role = Quarantined(spawn.address, HOST, **spawn.arguments)
    effects = role.begin(T0)
    (notice,) = sent(effects, RoleNotice)
    assert notice.level is Level.CRITICAL
    assert "it differs" in notice.text
    assert ADVICE in notice.text
    (told,) = sent(effects, Divergence)
    assert told.quarantined
    assert Observe("paxos.quarantined") in effects


def test_members_that_differ_without_a_majority_say_so_and_go_on() -> None:
    role = replica()
    role.begin(T0)
    (own, _) = sent(decide(role, 1), TableDigest)
    other = digest(2, own.state ^ 1)
    role.handle(replica_of("b"), other, T0)
    effects: Effects = ()
    for attempt in range(1, 5):
        effects = role.handle(role.address, Compare(slot=2, attempt=attempt), T0)
        if attempt <= 3:
            (asked,) = sent(effects, TableDigest)
            assert asked.asks
    (notice,) = sent(effects, RoleNotice)
    assert notice.level is Level.ERROR
    (told,) = sent(effects, Divergence)
    assert not told.quarantined
    assert decide(role, 2)  # It continues.


def test_strangers_are_not_heard() -> None:
    role = replica()
    role.begin(T0)
    for sender in ("d/replica", "b/acceptor", "a/replica"):
        effects = role.handle(Address(sender), digest(2, 5), T0)
        assert effects == (Observe("paxos.stranger_digests"),)


def test_whoever_is_asked_answers_if_it_still_can() -> None:
    role = replica()
    role.begin(T0)
    decide(role, 1)
    effects = role.handle(replica_of("b"), digest(2, 5, asks=True), T0)
    assert [e.to for e in effects if isinstance(e, Send) and type(e.message) is TableDigest] == [
        replica_of("b")
    ]


def test_a_restarted_replica_compares_what_its_journal_led_to() -> None:
    batches = tuple(Batch(time_ms=n, commands=()) for n in range(1, 8))
    recovered = Recovered(decided=batches)
    role = replica_of_a(machine=LockMachine(), recovered=recovered, digest_slots=2)
    assert {one.slot for one in sent(role.begin(T0), TableDigest)} == {8}


def test_after_a_restore_the_next_step_is_compared() -> None:
    role = replica(digest_slots=300)  # A step is 3 slots.
    role.begin(T0)
    learned = tuple((n, Batch(time_ms=n, commands=())) for n in range(1, 6))
    effects = role.handle(Address("a/catchup"), Learned(slots=learned, committed=6), T0)
    assert {one.slot for one in sent(effects, TableDigest)} == {3}  # The first after a start.
