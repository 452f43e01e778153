"""A poison command stops every member; ``fencelock repair --skip`` lets all of them go on alike."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import pytest
from support.real_nodes import LONG_S, ask, loopback_addresses, running

import fencelock
from fencelock.actors.api.latch import CountDown
from fencelock.actors.api.session_message import ListRecords, RecordList, Records
from fencelock.actors.error import InternalError
from fencelock.actors.message import address_of
from fencelock.actors.table.rules import RULES
from fencelock.cluster.host.scheduler import RoleFailedError, Scheduler
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.repair import skip_slot

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
    return parse(starting_config(loopback_addresses()), tmp_path)


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
            node.stop(LONG_S)
        return text
    ends = time.monotonic() + LONG_S
    while not any(node.wait(0.05) for node in nodes):
        assert time.monotonic() < ends
    texts = {str(node.failure) for node in nodes if node.failure is not None}
    for node in nodes:
        node.stop(LONG_S)
    return texts.pop()


def poisoned(config: Config) -> int:
    """Let a client send a poison command to a running cluster; return its slot."""
    nodes = [Node.start(config, node, found=True) for node in config.nodes]
    with fencelock.connect([node.address for node in nodes], connect_timeout=LONG_S) as client:
        client.latch("before", 3).count_down()
    nodes[0].proxy.ask(CountDown(latch="x", count=20, amount=POISON), block=False)
    text = failed(nodes)
    assert "CountDown of latch 'x'" in text
    assert "Stop all members" in text
    found = re.search(r"slot (\d+): .* repair --skip \1\b", text)
    assert found is not None
    return int(found[1])


def numbers(node: Node) -> tuple[int, ...]:
    """Return the numbers of a member's table."""

    def look(scheduler: Scheduler) -> tuple[int, ...]:
        replica: Any = scheduler.roles[address_of(scheduler.node, "replica")].role
        table = replica.machine.table
        return (replica.decided.next, table.fence, *table.numbers())

    return node._dispatcher.read(look, LONG_S)  # pyright: ignore[reportPrivateUsage]


def test_members_that_skip_go_on_alike_and_one_that_does_not_stops_again(config: Config) -> None:
    slot = poisoned(config)
    assert f"slot {slot}: CountDown" in failed(*started(config))
    for node in ("n1", "n2"):
        assert f"{node}: slot {slot} is skipped, by alice" in skip_slot(config, node, slot, "alice")
    assert "skipped already" in skip_slot(config, "n2", slot, "alice")
    members, text = started(config)  # n3 was forgotten: it stops, and does not differ.
    assert text or members[2].wait(LONG_S)
    with fencelock.connect(members[0].address, connect_timeout=LONG_S) as client:
        assert client.latch("before", 3).count_down() == 1
    for member in members[:2]:
        assert member.stop(LONG_S)
        assert member.failure is None
    skip_slot(config, "n3", slot, "bob")
    skip_slot(config, "n3", slot - 1, "bob")  # A sound slot: it changes nothing.
    with running(config) as nodes:
        with fencelock.connect(
            [node.address for node in nodes.values()], connect_timeout=LONG_S
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


def test_what_raises_before_a_change_is_refused_on_all_members_and_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(table: Any, command: Any, out: Any) -> None:
        raise OverflowError(BUG)

    monkeypatch.setitem(cast("Any", RULES), CountDown, broken)
    with running(parse(starting_config(loopback_addresses()), tmp_path)) as nodes:
        for node in nodes.values():
            with pytest.raises(InternalError, match="made the table refuse CountDown"):
                ask(node, CountDown(latch="x", count=20))
        with fencelock.connect(nodes["n1"].address) as client, client.lock("a") as held:
            assert held is not None


def test_a_folder_that_cannot_be_mended_is_left_alone(config: Config) -> None:
    with pytest.raises(fencelock.ConfigError, match="n1 has no journal of paxos here"):
        skip_slot(config, "n1", 1, "alice")
    assert not any(config.folder_of(node).exists() for node in config.nodes if config.data)  # type: ignore[union-attr]
