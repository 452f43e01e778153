"""Roles that a service adds to a node: their names, their limits, and what their failure costs."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pykka
import pytest
from support.expect import PATIENCE_S
from support.own_role import AwaitCount, Count, Counter, Fail

import fencelock.actors
from fencelock.actors.api.role_request import DescribeRole, ReadClock
from fencelock.actors.effect import Effects, Persist
from fencelock.actors.message import OWN_TAGS, REGISTRY, Address, Instant, Int64, Message
from fencelock.actors.role import Role
from fencelock.cluster.node.node import Node
from fencelock.testing import LocalCluster


@pytest.fixture
def node(cluster: LocalCluster) -> Node:
    return cluster._node  # pyright: ignore[reportPrivateUsage]


class NeverBegins(Role[Count]):
    def begin(self, now: Instant) -> Effects:
        raise RuntimeError("planted", now)

    def handle(self, sender: Address, event: Count, now: Instant) -> Effects:
        raise NotImplementedError


class Durable(Role[Count]):
    def handle(self, sender: Address, event: Count, now: Instant) -> Effects:
        return [Persist(event)]


def test_a_role_is_named_after_its_class_or_as_requested(node: Node) -> None:
    assert node.add_role(Counter).ask(Count(amount=1), timeout=PATIENCE_S).total == 1
    other = node.add_role(Counter, "second", start=10)
    assert other.ask(Count(amount=1), timeout=PATIENCE_S).total == 11
    assert node.ref("counter").ask(Count(amount=1), timeout=PATIENCE_S).total == 2
    assert other.ask(DescribeRole(), timeout=PATIENCE_S).name == "second"
    assert pykka.ActorRegistry.get_by_class(Counter)


def test_a_name_that_cannot_be_used_is_refused(node: Node) -> None:
    with pytest.raises(ValueError, match="local/clock is running already; the node has acceptor,"):
        node.add_role(Counter, "clock")
    for name in ("a/b", "x" * 129, "\n"):
        with pytest.raises(ValueError, match=r"name is .*, and must have 1 to 128 bytes"):
            node.add_role(Counter, name)
    wrong: Any = {"begin": 1}
    with pytest.raises(TypeError, match="begin"):
        node.add_role(Counter, **wrong)


def test_a_role_that_stops_leaves_its_name_and_the_node(node: Node) -> None:
    counter = node.add_role(Counter)
    waiting = counter.ask(AwaitCount(total=1), block=False)
    counter.stop()
    with pytest.raises(pykka.ActorDeadError):
        waiting.get(timeout=PATIENCE_S)
    assert not counter.is_alive()
    assert node.add_role(Counter, start=5).ask(Count(amount=1), timeout=PATIENCE_S).total == 6


def test_a_role_that_fails_stops_alone(node: Node) -> None:
    counter = node.add_role(Counter)
    with pytest.raises(pykka.ActorDeadError):
        counter.ask(Fail(), timeout=PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        node.ref("counter")
    assert node.ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time > 0
    assert node.failure is None


def test_a_role_that_cannot_begin_is_not_there(node: Node) -> None:
    with pytest.raises(Exception, match="neverbegins failed on None: RuntimeError"):
        node.add_role(NeverBegins)
    with pytest.raises(pykka.ActorDeadError):
        node.ref("neverbegins")
    assert node.ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time > 0


def test_a_role_that_persists_stops_alone(node: Node) -> None:
    with pytest.raises(pykka.ActorDeadError):
        node.add_role(Durable).ask(Count(amount=1), timeout=PATIENCE_S)
    assert node.ref("clock").ask(ReadClock(), timeout=PATIENCE_S).time > 0


def test_a_stopped_node_takes_no_role(node: Node) -> None:
    node.stop()
    with pytest.raises(pykka.ActorDeadError):
        node.add_role(Counter)


class Kept(Message, tag=0xDFFE):
    number: Int64


def test_a_message_whose_fields_have_unknown_types_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match=r"message Wrong: name 'Amount' is not defined; declare it"):

        class Wrong(Message, tag=0xDFFF):  # pyright: ignore[reportUnusedClass]
            amount: Amount  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    assert 0xDFFF not in REGISTRY
    assert REGISTRY[0xDFFE] is Kept
    with pytest.raises(ValueError, match="tag 0xdffe is taken by Kept"):

        class Taken(Message, tag=0xDFFE):  # pyright: ignore[reportUnusedClass]
            number: Int64


def test_fencelock_uses_no_tag_of_a_service() -> None:
    for module in pkgutil.walk_packages(fencelock.actors.__path__, "fencelock.actors."):
        importlib.import_module(module.name)
    ours = {tag for tag, cls in REGISTRY.items() if cls.__module__.startswith("fencelock.")}
    assert not ours & set(OWN_TAGS)
