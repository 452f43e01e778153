"""A backup of the table, on its way from the replica over the proxy to a client."""

from __future__ import annotations

import pytest
from support.log_proxy_scene import ANN, PROXY, REPLICA, log_proxy
from support.log_workload import LogCounter
from support.role_harness import T0, at, only_sent, sent
from support.table_scene import HERE, LISTENER, config_of, finish_snapshot, replica_of_a

from fencelock.actors.api.backup_message import BackupPart, ReadBackup
from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.effect import CheckpointEnd, Observe, Send, Wake
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.config import catchup_of
from fencelock.actors.paxos.journal import Base
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import BACKUPS_MAX, DIVIDE_PAUSE_MS, SNAPSHOT_KEPT_MS
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.proxy.queries import QUERY_MS

CATCHUP = catchup_of("a")


def part(chunk: int, count: int = 2, content: bytes = b"") -> messages.SnapshotChunk:
    return messages.SnapshotChunk(slot=3, time_ms=2, chunk=chunk, count=count, content=content)


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(Proxy)


@pytest.fixture
def role() -> Replica:
    """A replica that has applied two slots."""
    role = replica_of_a(config=config_of())
    learn(role, 1, 2)
    return role


def learn(role: Replica, first: int, count: int) -> None:
    batches = (
        (n, messages.Batch(time_ms=n, commands=(b"%d" % n,))) for n in range(first, first + count)
    )
    role.handle(CATCHUP, events.Learned(slots=tuple(batches), committed=first + count), T0)


def export(role: Replica, number: int, slot: int = 0, chunk: int = 0) -> events.Exported:
    """Ask for a part of a snapshot, and return the reply."""
    effects = role.handle(LISTENER, events.Export(number=number, slot=slot, chunk=chunk), T0)
    exported = only_sent(effects, events.Exported, LISTENER)
    assert exported.number == number
    return exported


def test_a_client_reads_a_part_through_the_proxy(proxy: Proxy) -> None:
    asked = ReadBackup(slot=3, chunk=1, session="ann", request=4)
    assert proxy.handle(ANN, asked, T0)[0] == Send(
        REPLICA, events.Export(number=1, slot=3, chunk=1)
    )
    exported = events.Exported(number=1, part=part(1, content=b"two"))

    (reply,) = sent(proxy.handle(REPLICA, exported, T0), BackupPart, ANN)

    assert reply == BackupPart(
        node="n1", slot=3, time_ms=2, chunk=1, count=2, content=b"two", session="ann", request=4
    )
    assert proxy.handle(REPLICA, exported, T0) == ()


def test_a_part_that_is_not_there_is_refused_with_the_reason(proxy: Proxy) -> None:
    proxy.handle(ANN, ReadBackup(slot=3, session="ann", request=4), T0)
    gone = events.Exported(number=1, part=None, why="no snapshot of slot 3")

    (no,) = sent(proxy.handle(REPLICA, gone, T0), Refused, ANN)

    assert (no.reason, no.request) == (Reason.UNAVAILABLE, 4)
    assert "no snapshot of slot 3" in no.detail


def test_another_nodes_snapshot_is_refused(proxy: Proxy) -> None:
    own = ReadBackup(node="n1", session="ann", request=4)
    assert sent(proxy.handle(ANN, own, T0), events.Export, REPLICA)

    other = ReadBackup(node="n2", session="ann", request=5)
    (no,) = sent(proxy.handle(ANN, other, T0), Refused, ANN)

    assert (no.reason, no.detail) == (Reason.UNAVAILABLE, "node n1 has no snapshots of n2")


def test_an_impossible_part_is_refused_at_once(proxy: Proxy) -> None:
    (no,) = sent(proxy.handle(ANN, ReadBackup(slot=-1, session="ann"), T0), Refused, ANN)
    assert no.reason is Reason.INVALID


def test_a_request_that_nothing_answers_is_forgotten(proxy: Proxy) -> None:
    proxy.handle(ANN, ReadBackup(session="ann"), T0)
    assert proxy.backend.is_busy()

    proxy.handle(PROXY, Tick(), at(QUERY_MS))

    assert not proxy.backend.is_busy()


def test_a_snapshot_is_begun_once_for_all_that_ask_at_once(role: Replica) -> None:
    begun = role.handle(LISTENER, events.Export(number=1, slot=0, chunk=0), T0)
    making = part(0, count=0)
    assert begun == [
        Wake(DIVIDE_PAUSE_MS, events.WriteChunk()),
        Observe("paxos.snapshot_begun"),
        Send(LISTENER, events.Exported(number=1, part=making)),
    ]
    assert role.handle(LISTENER, events.Export(number=2, slot=0, chunk=0), T0) == [
        Send(LISTENER, events.Exported(number=2, part=making))
    ]
    assert export(role, 3, slot=3) == events.Exported(number=3, part=making)

    finish_snapshot(role)

    found = [export(role, 4, slot=3, chunk=chunk).part for chunk in range(3)]
    contents = [one.content for one in found if one is not None]
    assert found == [
        part(chunk, count=3, content=content) for chunk, content in enumerate(contents)
    ]


def test_a_backup_goes_on_although_a_newer_snapshot_is_made(role: Replica) -> None:
    export(role, 1)
    finish_snapshot(role)
    before = export(role, 2, slot=3, chunk=1)
    learn(role, 3, 1)
    role.handle(role.acceptor, events.LogFull(written=1 << 20), T0)  # For the journal.
    finish_snapshot(role)

    assert before.part is not None
    assert export(role, 2, slot=3, chunk=1) == before


@pytest.mark.parametrize(
    ("slot", "chunk", "why"),
    [(2, 0, "no snapshot of slot 2"), (3, 3, "the snapshot has no part 3")],
)
def test_a_part_that_does_not_exist_is_not_sent(
    role: Replica, slot: int, chunk: int, why: str
) -> None:
    export(role, 1)
    finish_snapshot(role)

    assert export(role, 7, slot, chunk) == events.Exported(number=7, part=None, why=why)


def test_a_node_that_has_applied_nothing_has_no_backup() -> None:
    no = events.Exported(number=1, part=None, why="nothing is decided yet")
    assert export(replica_of_a(config=config_of()), 1) == no


def test_few_snapshots_are_kept(role: Replica) -> None:
    for slot in range(3, 3 + BACKUPS_MAX + 1):
        export(role, 1)
        finish_snapshot(role)
        learn(role, slot, 1)

    assert list(role.log.shared.backups) == [4, 5]


def test_an_unread_backup_is_dropped_unless_it_is_being_made(role: Replica) -> None:
    export(role, 1)
    assert Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=0)) in finish_snapshot(role)
    learn(role, 3, 1)
    export(role, 1)
    export(role, 2, slot=3)
    expire = events.ExpireSnapshot(use=0)
    assert role.handle(HERE, expire, T0) == [Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=1))]

    role.handle(HERE, events.ExpireSnapshot(use=1), T0)

    assert role.log.shared.backups == {4: None}


def test_a_snapshot_that_another_state_replaced_is_not_waited_for(role: Replica) -> None:
    export(role, 1)
    other = LogCounter()
    other.apply(1, (b"1",))
    chunks = tuple(one.encoded() for one in other.snapshot() if one is not None)
    role.handle(CATCHUP, events.Restore(base=Base(40, 7, chunks)), T0)

    no = events.Exported(number=2, part=None, why="no snapshot of slot 3")
    assert export(role, 2, slot=3) == no


@pytest.mark.parametrize("needed", [False, True])
def test_a_backup_writes_a_snapshot_only_if_one_is_needed(role: Replica, needed: bool) -> None:
    grown = role.log.snapshots.grown
    export(role, 1)

    effects = finish_snapshot(role)
    if needed:
        role.handle(role.acceptor, events.LogFull(written=3 * grown), T0)
        effects = finish_snapshot(role)

    assert any(isinstance(effect, CheckpointEnd) for effect in effects) == needed
    assert role.log.snapshots.grown == (0 if needed else grown)
