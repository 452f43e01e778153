"""A backup of the table, on its way from the replica over catch-up and proxy to a client."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.expect import only
from support.log_proxy_scene import ANN, log_proxy
from support.log_workload import LogCounter
from support.role_harness import HOST, T0, at, sent

from fencelock.actors.api.backup_message import BackupPart, ReadBackup
from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.effect import CheckpointEnd, Effect, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import message as messages
from fencelock.actors.paxos.config import LogConfig, View, catchup_of, replica_of
from fencelock.actors.paxos.exports import EXPORTS_MAX, WANTED_MAX
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.machine import EncodedPart
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import DIVIDE_PAUSE_MS, SNAPSHOT_KEPT_MS, CatchUp
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.proxy.queries import READ_MS

CONFIG = LogConfig(View(0, ("n1", "n2", "n3")))
PROXY, CATCHUP, REPLICA = Address("n1/proxy"), catchup_of("n1"), replica_of("n1")
CHUNKS = (b"one", b"two")
PARTS = tuple(map(EncodedPart, CHUNKS))


def part(chunk: int, slot: int = 9, count: int = 2, content: bytes = b"") -> messages.SnapshotChunk:
    return messages.SnapshotChunk(
        slot=slot, time_ms=5 if count else 0, chunk=chunk, count=count, content=content
    )


MAKING = part(0, count=0)


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(Proxy)


@pytest.fixture
def role() -> CatchUp:
    return CatchUp(CATCHUP, HOST, node="n1", config=CONFIG)


def export(role: CatchUp, number: int, slot: int = 0, chunk: int = 0) -> Iterable[Effect]:
    return role.handle(PROXY, events.Export(number=number, slot=slot, chunk=chunk), T0)


def take(role: CatchUp, slot: int) -> Iterable[Effect]:
    taken = events.SnapshotTaken(receivers=(), slot=slot, time_ms=5, parts=PARTS)
    return role.handle(REPLICA, taken, T0)


def begin(role: CatchUp, slot: int) -> None:
    export(role, 1)
    role.handle(REPLICA, events.SnapshotBegun(slot=slot), T0)


def test_a_client_reads_a_part_through_the_proxy(proxy: Proxy) -> None:
    asked = ReadBackup(slot=9, chunk=1, session="ann", request=4)
    assert proxy.handle(ANN, asked, T0)[0] == Send(
        CATCHUP, events.Export(number=1, slot=9, chunk=1)
    )
    exported = events.Exported(number=1, part=part(1, content=b"two"))

    (reply,) = sent(proxy.handle(CATCHUP, exported, T0), BackupPart, ANN)

    assert reply == BackupPart(
        node="n1",
        slot=9,
        time_ms=5,
        chunk=1,
        count=2,
        content=b"two",
        session="ann",
        request=4,
    )
    assert proxy.handle(CATCHUP, exported, T0) == ()


def test_a_part_that_is_not_there_is_refused_with_the_reason(proxy: Proxy) -> None:
    proxy.handle(ANN, ReadBackup(slot=9, session="ann", request=4), T0)
    gone = events.Exported(number=1, part=None, why="no snapshot of slot 9")

    (no,) = sent(proxy.handle(CATCHUP, gone, T0), Refused, ANN)

    assert (no.reason, no.request) == (Reason.UNAVAILABLE, 4)
    assert "no snapshot of slot 9" in no.detail


def test_another_nodes_snapshot_is_refused(proxy: Proxy) -> None:
    own = ReadBackup(node="n1", session="ann", request=4)
    assert sent(proxy.handle(ANN, own, T0), events.Export, CATCHUP)

    other = ReadBackup(node="n2", session="ann", request=5)
    (no,) = sent(proxy.handle(ANN, other, T0), Refused, ANN)

    assert (no.reason, no.detail) == (Reason.UNAVAILABLE, "node n1 has no snapshots of n2")


def test_an_impossible_part_is_refused_at_once(proxy: Proxy) -> None:
    (no,) = sent(proxy.handle(ANN, ReadBackup(slot=-1, session="ann"), T0), Refused, ANN)
    assert no.reason is Reason.INVALID


def test_a_request_that_nothing_answers_is_forgotten(proxy: Proxy) -> None:
    proxy.handle(ANN, ReadBackup(session="ann"), T0)
    assert proxy.backend.is_busy()

    proxy.handle(PROXY, Tick(), at(READ_MS))

    assert not proxy.backend.is_busy()


def test_a_snapshot_is_begun_once_for_all_that_ask_at_once(role: CatchUp) -> None:
    assert export(role, 1) == (Send(REPLICA, events.TakeSnapshot()),)
    assert export(role, 2) == ()

    begun = role.handle(REPLICA, events.SnapshotBegun(slot=9), T0)

    assert begun == [
        Send(PROXY, events.Exported(number=1, part=MAKING)),
        Send(PROXY, events.Exported(number=2, part=MAKING)),
    ]
    assert export(role, 3, slot=9) == (Send(PROXY, events.Exported(number=3, part=MAKING)),)
    take(role, 9)
    for chunk, content in enumerate(CHUNKS):
        found = events.Exported(number=4, part=part(chunk, content=content))
        assert export(role, 4, slot=9, chunk=chunk) == (Send(PROXY, found),)


def test_a_backup_goes_on_although_a_newer_snapshot_is_made(role: CatchUp) -> None:
    begin(role, 9)
    take(role, 9)
    take(role, 12)  # For the journal: enough was applied.

    found = events.Exported(number=2, part=part(1, content=b"two"))
    assert export(role, 2, slot=9, chunk=1) == (Send(PROXY, found),)


@pytest.mark.parametrize(
    ("slot", "chunk", "why"),
    [(8, 0, "no snapshot of slot 8"), (9, 2, "the snapshot has no part 2")],
)
def test_what_is_not_there_is_not_sent(role: CatchUp, slot: int, chunk: int, why: str) -> None:
    begin(role, 9)
    take(role, 9)

    no = events.Exported(number=7, part=None, why=why)
    assert export(role, 7, slot=slot, chunk=chunk) == (Send(PROXY, no),)


def test_a_node_that_has_applied_nothing_has_no_backup(role: CatchUp) -> None:
    export(role, 1)

    effects = role.handle(REPLICA, events.SnapshotBegun(slot=0), T0)

    no = events.Exported(number=1, part=None, why="nothing is decided yet")
    assert effects == [Send(PROXY, no)]


def test_few_snapshots_are_kept_and_few_requests_wait(role: CatchUp) -> None:
    for slot in range(10, 10 + EXPORTS_MAX + 1):
        begin(role, slot)
        take(role, slot)
    assert list(role.exports.kept) == [11, 12]

    for number in range(WANTED_MAX):
        export(role, number)
    no = only(Send, export(role, 99))
    assert no.message == events.Exported(number=99, part=None, why="too many backups begin at once")


def test_a_backup_that_nobody_reads_is_dropped_unless_it_is_being_made(role: CatchUp) -> None:
    begin(role, 9)
    take(role, 9)
    begin(role, 12)
    export(role, 2, slot=9)
    expire = events.ExpireSnapshot(use=0)
    assert Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=1)) in role.handle(CATCHUP, expire, T0)

    role.handle(CATCHUP, events.ExpireSnapshot(use=1), T0)

    assert role.exports.kept == {12: None}


def test_a_snapshot_that_another_state_replaced_is_not_waited_for(role: CatchUp) -> None:
    begin(role, 9)
    role.handle(REPLICA, events.Lacking(first=3, target=40), T0)
    fetched = messages.SnapshotChunk(slot=40, time_ms=7, chunk=0, count=1, content=b"x")
    role.handle(catchup_of("n2"), fetched, T0)

    no = events.Exported(number=2, part=None, why="no snapshot of slot 9")
    assert export(role, 2, slot=9) == (Send(PROXY, no),)


def test_a_replica_begins_a_snapshot_and_names_its_slot() -> None:
    replica = Replica(
        REPLICA, HOST, node="n1", config=CONFIG, machine=LogCounter(), recovered=Recovered()
    )
    ask = events.TakeSnapshot()
    assert replica.handle(CATCHUP, ask, T0) == [Send(CATCHUP, events.SnapshotBegun(slot=0))]
    batch = messages.Batch(time_ms=1, commands=(b"1",))
    replica.handle(CATCHUP, events.Learned(slots=((1, batch),), committed=2), T0)

    effects = replica.handle(CATCHUP, ask, T0)

    begun = Send(CATCHUP, events.SnapshotBegun(slot=2))
    assert Wake(DIVIDE_PAUSE_MS, events.WriteChunk()) in effects
    assert begun in effects
    assert replica.handle(CATCHUP, ask, T0) == [begun]  # The same one is still being made.


def make(replica: Replica) -> list[object]:
    """Let the snapshot under way be finished; return the effects of all steps."""
    done: list[object] = []
    while effects := replica.handle(REPLICA, events.WriteChunk(), T0):
        done += effects
    return done


@pytest.mark.parametrize("needed", [False, True])
def test_a_backup_writes_no_snapshot_to_the_journal_unless_one_is_needed(needed: bool) -> None:
    replica = Replica(
        REPLICA, HOST, node="n1", config=CONFIG, machine=LogCounter(), recovered=Recovered()
    )
    batch = messages.Batch(time_ms=1, commands=(b"1",))
    replica.handle(CATCHUP, events.Learned(slots=((1, batch),), committed=2), T0)
    grown = replica.log.snapshots.grown
    replica.handle(CATCHUP, events.TakeSnapshot(), T0)

    effects = make(replica)
    if needed:
        replica.handle(replica.acceptor, events.LogFull(written=3 * grown), T0)
        effects = make(replica)

    assert any(isinstance(effect, CheckpointEnd) for effect in effects) == needed
    assert replica.log.snapshots.grown == (0 if needed else grown)
