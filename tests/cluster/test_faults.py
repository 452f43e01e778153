"""Exceptions of ours that cost one request, effect, description or metric, and not the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from support.collected import Lines
from support.expect import PATIENCE_S, checked
from support.real_nodes import ask, config_in, measured, running
from support.role_harness import dispatchers

import fencelock
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import Granted, Inspect, LockStatus
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.api.operator_message import ListRecords, RecordList
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.error import InternalError, InvalidRequestError
from fencelock.actors.message import Address, Instant, address_of
from fencelock.actors.paxos.snapshots import Progress
from fencelock.actors.paxos.wire import PAXOS_NUMBER_MAX
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.role import Role
from fencelock.actors.table.rules import TABLE_QUERIES
from fencelock.cluster.host.gateway import Gateway
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.node import metrics
from fencelock.cluster.node.node import Node
from fencelock.transport import admission
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.frame import Frame, encode_frame

BUG = "planted bug"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Node]:
    """Return the only node of a cluster of `paxos`."""
    with running(measured(config_in(tmp_path, nodes=1))) as nodes:
        yield nodes["n1"]


ANSWERS: Any = TABLE_QUERIES


def broken(*args: Any, **options: Any) -> Any:
    raise OverflowError(BUG)


def faults(node: Node) -> int:
    status: NodeStatus = ask(node, Describe())
    return {one.name: one.times for one in status.counters}.get("host.fault", 0)


def test_a_read_that_raises_refuses_its_request_and_is_logged_once(
    alone: Node, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, ListRecords, broken)
    for _ in range(3):
        with pytest.raises(InternalError, match="a bug in fencelock made node n1 refuse ListRec"):
            ask(alone, ListRecords())
    with fencelock.connect(alone.address) as client, client.lock("a"):
        with pytest.raises(InternalError):
            ask(alone, ListRecords())
        assert isinstance(ask(alone, Inspect(lock="a")), LockStatus)
    assert faults(alone) == 4
    level, node, text = lines.until(lambda line: BUG in line[2])
    assert (level, node) == ("ERROR", "n1")
    assert "ListRecords(" in text
    assert "the node goes on" in text
    assert len([one for one in lines.values if BUG in one[2]]) == 1


def test_a_reply_not_made_refuses_its_request(alone: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordList, "at", broken)
    with pytest.raises(InternalError):
        ask(alone, ListRecords())
    monkeypatch.undo()
    assert isinstance(ask(alone, ListRecords()), RecordList)


def test_a_request_that_the_proxy_cannot_check_is_refused(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ListRecords, "check", broken)
    with pytest.raises(InternalError):
        ask(alone, ListRecords())


def test_a_description_that_raises_is_refused_and_a_summary_is_left_out(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxy, "summary", broken)
    described = ask(alone, Describe(roles=True))
    summary = next(one for one in described.roles if one.name == "proxy").summary
    assert summary == (("summary", "cannot be made: see the log"),)
    monkeypatch.setattr("fencelock.actors.paxos.backend.PaxosBackend.status", broken)
    with pytest.raises(InternalError):
        ask(alone, Describe())


def test_an_assertion_that_fails_in_a_read_costs_the_read_alone(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assert_it(*args: Any) -> Any:
        raise AssertionError(BUG)

    with monkeypatch.context() as patch:
        patch.setitem(ANSWERS, ListRecords, assert_it)
        with pytest.raises(InternalError):
            ask(alone, ListRecords(most=5))
    assert ask(alone, ListRecords(most=5)).evictions == ()


def test_numbers_at_their_extremes_are_refused_or_cut(alone: Node) -> None:
    with pytest.raises(InvalidRequestError, match="skip is 9223372036854775807"):
        ask(alone, ListRecords(skip=INT_MAX))
    progress = Progress("n1", 1, Instant(0))
    progress.bytes = INT_MAX
    fetched = checked(Send, progress.report(2, PAXOS_NUMBER_MAX - 1, "n2", Instant(1))[0])
    assert "bytes_left=4611686018427387903" in repr(fetched.message)


def test_a_metric_that_raises_is_left_out_and_the_node_lives(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = alone.metrics

    def broken_metrics(*args: Any) -> Iterator[Any]:
        yield broken(*args)

    monkeypatch.setattr(metrics, "_log", broken_metrics)
    with urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    assert "fencelock_clients" in text
    assert "fencelock_applied_slot" not in text
    with urlopen(f"http://{address}/live", timeout=PATIENCE_S) as reply:
        assert reply.status == 200


class Speaker(Role[Granted]):
    """Sends to a client what it is sent, between two sound messages."""

    def handle(self, sender: Address, event: Granted, now: Instant) -> Effects:
        there = Address("client/x")
        sound = Granted(lock="a", fence=1)
        return [Send(there, sound), Send(there, event), Send(there, sound)]


class Wire:
    """Links that encode what they are given."""

    cluster = "c"
    group = 0

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, link: str, frame: Frame) -> None:
        encode_frame(frame)
        self.frames.append(frame)


@pytest.mark.parametrize("wrong", [2**63, "text", None, object()])
def test_an_effect_not_to_be_encoded_is_dropped_and_its_neighbours_are_sent(wrong: Any) -> None:
    counters: Counter[str] = Counter()
    scheduler = Scheduler("n1", lambda role_slot: None, counters)
    wire: Any = Wire()
    gateway = Gateway(scheduler, wire, frozenset())
    scheduler.open(RoleSet((Spawn(address_of("n1", "role"), Speaker),)))
    for bad in (False, True):
        event = Granted(lock="a", fence=wrong if bad else 2)
        scheduler.post(scheduler.roles[address_of("n1", "role")], scheduler.here, event)
    scheduler.work(10)
    gateway.flush()
    scheduler.retire(scheduler.roles[address_of("n1", "role")])
    sent = [message.fence for frame in wire.frames for _, _, message in frame.envelopes]
    assert sent == [1, 2, 1, 1, 1]
    assert counters["host.fault"] == 1


def test_a_frame_that_breaks_its_check_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = FrameValidator("n1", "c", client=False)
    noted: list[str] = []
    validator.note_fault = lambda doing, error: noted.append(f"{doing}: {error!r}")
    monkeypatch.setattr(admission, "read_frame", broken)
    assert checked(Dropped, validator.admit("client", b"\x00")).counter == "wire.malformed"
    assert noted == [f"a frame of client: OverflowError('{BUG}')"]


def test_an_exception_of_any_other_role_still_stops_the_node() -> None:
    class Broken(Role[Granted]):
        def handle(self, sender: Address, event: Granted, now: Instant) -> Effects:
            raise OverflowError(BUG)

    with dispatchers() as start:
        dispatcher = start(RoleSet((Spawn(address_of("n1", "role"), Broken),)))
        dispatcher.ref(address_of("n1", "role")).tell(Granted(lock="a", fence=1))
        assert dispatcher.stopped.wait(PATIENCE_S)
        assert BUG in str(dispatcher.failure)
