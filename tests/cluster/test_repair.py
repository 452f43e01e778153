"""Poison commands and members in quarantine, on real nodes."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from support.expect import PATIENCE_S, present
from support.real_nodes import ask, config_in, running, running_nodes, until
from support.role_harness import HOST, T0, sent
from support.table_scene import LISTENER, replica_of_a

import fencelock
from fencelock.actors.api.latch import CountDown
from fencelock.actors.api.operator_message import ListRecords, RecordList, Records
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effects, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.error import InternalError
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos.config import acceptor_of, leader_of, replica_of
from fencelock.actors.paxos.divergence import ADVICE, Quarantined
from fencelock.actors.paxos.event import Compare, Decided, Divergence, Isolate, Learned, Withdraw
from fencelock.actors.paxos.journal import Recovered, recover
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import SCHEME, Batch, Diverged, Figure, Slots, TableDigest
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.rules import RULES
from fencelock.cluster.host.scheduler import RoleFailedError, Scheduler
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.node import Node, identity_of
from fencelock.cluster.node.repair import skip_slot
from fencelock.cluster.node.storage.journal import Journal, claim
from fencelock.transport.codec import encode

BUG = "planted bug"
POISON = 13
"""Counting down by this much raises after the latch was changed."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    sound: Any = RULES[CountDown]

    def broken(table: Any, command: CountDown, out: Any) -> None:
        sound(table, command, out)
        if command.amount == POISON:
            raise OverflowError(BUG)

    monkeypatch.setitem(cast("Any", RULES), CountDown, broken)
    return config_in(tmp_path)


def started(config: Config) -> tuple[list[Node], str]:
    """Start all members; also return why one fails at once, if it does."""
    nodes, text = list[Node](), ""
    for node in config.nodes:
        try:
            nodes.append(Node.start(config, node))
        except RoleFailedError as error:  # Its journal has the slot as decided.
            text = str(error)
    return nodes, text


def failed(nodes: list[Node], text: str = "") -> str:
    """Return why the first node fails that does; stop the others."""
    if text:
        for node in nodes:
            node.stop(PATIENCE_S)
        return text
    until(lambda: any(node.wait(0.05) for node in nodes))
    texts = {str(node.failure) for node in nodes if node.failure is not None}
    for node in nodes:
        node.stop(PATIENCE_S)
    return texts.pop()


def poisoned(config: Config) -> int:
    """Let a client send a poison command to a running cluster; return its slot."""
    nodes = [Node.start(config, node, found=True) for node in config.nodes]
    with fencelock.connect([node.address for node in nodes], connect_timeout=PATIENCE_S) as client:
        client.latch("before", 3).count_down()
    nodes[0].proxy.ask(CountDown(latch="x", count=20, amount=POISON), block=False)
    text = failed(nodes)
    assert "CountDown of latch 'x'" in text
    assert "Stop all members" in text
    found = present(re.search(r"slot (\d+): .* repair --id NODE --skip \1\b", text))
    return int(found[1])


def numbers(node: Node) -> tuple[int, ...]:
    def look(scheduler: Scheduler) -> tuple[int, ...]:
        replica: Any = scheduler.roles[address_of(scheduler.node, "replica")].role
        table = replica.machine.table
        return (replica.decided.next, table.fence, *table.numbers())

    return node._dispatcher.read(look, PATIENCE_S)  # pyright: ignore[reportPrivateUsage]


def test_members_that_skip_go_on_alike_and_one_that_does_not_stops_again(config: Config) -> None:
    slot = poisoned(config)
    assert f"slot {slot}: CountDown" in failed(*started(config))
    for node in ("n1", "n2"):
        assert f"{node}: slot {slot} is skipped, by alice" in skip_slot(config, node, slot, "alice")
    assert "skipped already" in skip_slot(config, "n2", slot, "alice")
    members, text = started(config)  # n3 was forgotten: it stops, and does not differ.
    assert text or members[2].wait(PATIENCE_S)
    with fencelock.connect(members[0].address, connect_timeout=PATIENCE_S) as client:
        assert client.latch("before", 3).count_down() == 1
    for member in members[:2]:
        assert member.stop(PATIENCE_S)
        assert member.failure is None
    skip_slot(config, "n3", slot, "bob")
    skip_slot(config, "n3", slot - 1, "bob")  # A sound slot: it changes nothing.
    with running(config) as nodes:
        with fencelock.connect(
            [node.address for node in nodes.values()], connect_timeout=PATIENCE_S
        ) as client:
            assert client.latch("before", 3).count_down() == 0
        records: RecordList = ask(nodes["n1"], ListRecords(kind=Records.EVICTIONS))
        (entry,) = records.evictions
        assert entry.lock == "latch\x1fx"
        assert entry.operator == f"fencelock repair --skip {slot} (command 1)"
        assert entry.holder.label == "CountDown"
        ask(nodes["n2"], ListRecords())
        ask(nodes["n3"], ListRecords())
        seen = {node: numbers(running_node) for node, running_node in nodes.items()}
    same = {one for one in seen.values() if one[0] == max(n[0] for n in seen.values())}
    assert len(same) == 1


def test_a_command_that_raises_before_a_change_is_refused_on_all_members_and_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(table: Any, command: Any, out: Any) -> None:
        raise OverflowError(BUG)

    monkeypatch.setitem(cast("Any", RULES), CountDown, broken)
    with running_nodes(tmp_path) as nodes:
        for node in nodes.values():
            with pytest.raises(InternalError, match="made the table refuse CountDown"):
                ask(node, CountDown(latch="x", count=20))
        with fencelock.connect(nodes["n1"].address) as client, client.lock("a") as held:
            assert held is not None


def test_a_folder_that_cannot_be_mended_is_left_alone(config: Config) -> None:
    with pytest.raises(fencelock.ConfigError, match="n1 has no journal of paxos here"):
        skip_slot(config, "n1", 1, "alice")
    assert not any(config.folder_of(node).exists() for node in config.nodes if config.data)  # type: ignore[union-attr]


def test_the_line_of_a_skip_names_the_commands_of_its_slot_where_they_are_known(
    config: Config,
) -> None:
    command = encode(CountDown(latch="x", count=2, session="s.1", request=4))
    decided = Slots(first=1, batches=(Batch(time_ms=1, commands=(command,)),))
    with closing(Journal.open(present(config.folder_of("n1")))) as journal:
        claim(journal, journal.take_records(), identity_of(config, "n1"))
        journal.append([("acceptor", encode(decided))])
        journal.sync()
    commands = ["CountDown of latch 'x' (request 4)", "not known here yet"]
    for slot, known in enumerate(commands, start=1):
        line = skip_slot(config, "n1", slot, "alice")
        assert f"slot {slot} is skipped, by alice. Its commands: {known}. Run" in line


# If a replica's state differs from a majority's, it leaves the group and reports what to do


MEMBERS = ("a", "b", "c")


def digest(slot: int, state: int, decided: int | None = 0, **more: Any) -> TableDigest:
    fields: dict[str, Any] = {"scheme": SCHEME, "asks": False} | more
    return TableDigest(
        slot=slot, state=state, decided=decided, counters=(Figure("fence", state),), **fields
    )


def replica(digest_slots: int = 2) -> Replica:
    return replica_of_a(machine=LockMachine(), digest_slots=digest_slots)


def decide(role: Replica, slot: int) -> list[Any]:
    opening = encode(Open(session=f"s{slot}", ttl_ms=50_000))
    batch = Batch(time_ms=slot, commands=(opening,))
    return list(role.handle(leader_of("a"), Decided(slot=slot, batch=batch), T0))


def test_a_replica_sends_its_digest_to_all_others_at_an_agreed_slot() -> None:
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
    (divergence,) = sent(effects, Divergence)
    assert divergence.quarantined
    assert Observe("paxos.quarantined") in effects


def test_members_that_differ_without_a_majority_report_it_and_go_on() -> None:
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
    (divergence,) = sent(effects, Divergence)
    assert not divergence.quarantined
    assert decide(role, 2)  # It continues.


def test_messages_of_strangers_are_dropped() -> None:
    role = replica()
    role.begin(T0)
    for sender in ("d/replica", "b/acceptor", "a/replica"):
        effects = role.handle(Address(sender), digest(2, 5), T0)
        assert effects == (Observe("paxos.stranger_digests"),)


def test_a_member_that_is_asked_for_a_digest_answers_if_it_still_can() -> None:
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


def test_the_next_step_after_a_restore_is_compared() -> None:
    role = replica(digest_slots=300)  # A step is 3 slots.
    role.begin(T0)
    learned = tuple((n, Batch(time_ms=n, commands=())) for n in range(1, 6))
    effects = role.handle(Address("a/catchup"), Learned(slots=learned, committed=6), T0)
    assert {one.slot for one in sent(effects, TableDigest)} == {3}  # The first after a start.
