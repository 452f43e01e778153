"""Roles are in Pykka's registry while they live; `ActorRegistry.stop_all` stops nodes in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pykka
import pytest
from support.expect import PATIENCE_S
from support.real_nodes import config_in
from support.role_harness import hub_without_peers

import fencelock
from fencelock.actors.api.lock_message import Acquire, Granted, Release
from fencelock.actors.effect import Effects, Retire, Send, Spawn
from fencelock.actors.message import Address, Instant, Local, address_of
from fencelock.actors.role import Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.node import Node
from fencelock.verification.simulation.run import run_seed

PARENT = address_of("n1", "parent")
CHILD = address_of("n1", "child")


class GrowRole(Local):
    pass


class Call(Local):
    what: Callable[[], object]


class Parent(Role[Acquire | GrowRole | Release | Call]):
    def handle(
        self, sender: Address, event: Acquire | GrowRole | Release | Call, now: Instant
    ) -> Effects:
        match event:
            case Acquire():
                return [Send(sender, Granted(lock=event.lock, fence=1))]
            case GrowRole():
                return [Spawn(CHILD, Parent)]
            case Release():
                return [Retire(CHILD)]
            case Call():
                event.what()
                return ()


class Stillborn(Parent):
    def begin(self, now: Instant) -> Effects:
        raise AssertionError("it cannot begin")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = pykka.ActorRegistry.get_all()
    for ref in before:  # Of tests that leave something running.
        pykka.ActorRegistry.unregister(ref)
    yield
    left = pykka.ActorRegistry.get_all()
    for ref in left:
        pykka.ActorRegistry.unregister(ref)
    assert left == []


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher("n1", hub_without_peers())
    dispatcher.start(RoleSet((Spawn(PARENT, Parent),)))
    yield dispatcher
    assert dispatcher.stop(PATIENCE_S)


def registered() -> list[Address]:
    """Return the addresses of all registered roles, oldest first."""
    addresses: list[Address] = []
    for ref in pykka.ActorRegistry.get_all():
        with contextlib.suppress(pykka.ActorDeadError):  # A scout ends with its ballot.
            addresses.append(ref.proxy().address.get(timeout=PATIENCE_S))
    return addresses


def test_a_role_is_registered_while_its_node_runs(dispatcher: Dispatcher) -> None:
    assert pykka.ActorRegistry.get_by_class(Parent) == [dispatcher.ref(PARENT)]
    assert dispatcher.stop(PATIENCE_S)
    assert pykka.ActorRegistry.get_all() == []


def test_a_registered_reference_can_be_asked(dispatcher: Dispatcher) -> None:
    (ref,) = pykka.ActorRegistry.get_by_class_name("Parent")
    assert ref.ask(Acquire(lock="a"), timeout=PATIENCE_S) == Granted(lock="a", fence=1)


def test_a_spawned_role_is_registered_until_it_retires(dispatcher: Dispatcher) -> None:
    parent = dispatcher.ref(PARENT)
    parent.tell(GrowRole())
    assert parent.ask(Acquire(lock="a"), timeout=PATIENCE_S).fence == 1
    assert registered() == [PARENT, CHILD]
    parent.tell(Release(lock="a", fence=1))
    assert parent.ask(Acquire(lock="a"), timeout=PATIENCE_S).fence == 1
    assert registered() == [PARENT]


def test_a_role_that_a_user_started_is_registered_until_it_stops(dispatcher: Dispatcher) -> None:
    extra = Parent.start(address_of("n1", "extra"), dispatcher)
    assert extra in pykka.ActorRegistry.get_all()
    assert extra.stop(timeout=PATIENCE_S)
    assert registered() == [PARENT]


def test_roles_are_gone_after_one_of_them_failed(dispatcher: Dispatcher) -> None:
    def fail() -> None:
        raise AssertionError("broken on purpose")

    dispatcher.ref(PARENT).tell(Call(what=fail))
    assert dispatcher.stopped.wait(PATIENCE_S)
    assert pykka.ActorRegistry.get_all() == []
    assert "broken on purpose" in str(dispatcher.failure)
    with pytest.raises(pykka.ActorDeadError) as caught:
        dispatcher.ref(PARENT)
    assert caught.value.__cause__ is dispatcher.failure


def test_roles_are_gone_if_one_of_them_cannot_begin() -> None:
    dispatcher = Dispatcher("n1", hub := hub_without_peers())
    with pytest.raises(Exception, match="it cannot begin"):
        dispatcher.start(RoleSet((Spawn(PARENT, Parent), Spawn(CHILD, Stillborn))))
    assert pykka.ActorRegistry.get_all() == []
    assert dispatcher.stopped.is_set()
    hub.close()


def test_stopping_a_role_of_the_node_stops_the_node(dispatcher: Dispatcher) -> None:
    assert dispatcher.ref(PARENT).stop(timeout=PATIENCE_S)
    assert dispatcher.stopped.is_set()
    assert dispatcher.failure is None


def test_a_role_that_has_stopped_cannot_be_stopped_again(dispatcher: Dispatcher) -> None:
    ref = dispatcher.ref(PARENT)
    assert ref.stop(timeout=PATIENCE_S) is True
    assert ref.stop(timeout=PATIENCE_S) is False


def test_requests_made_before_a_stop_are_answered(dispatcher: Dispatcher) -> None:
    ref = dispatcher.ref(PARENT)
    answer = ref.ask(Acquire(lock="a"), block=False)
    assert ref.stop(timeout=PATIENCE_S)
    assert answer.get(timeout=PATIENCE_S).lock == "a"


def test_stop_all_without_waiting_returns_futures_of_the_end(dispatcher: Dispatcher) -> None:
    futures = pykka.ActorRegistry.stop_all(block=False)
    assert pykka.get_all(futures, timeout=PATIENCE_S) == [True]
    assert dispatcher.stopped.is_set()


def test_stop_all_on_a_dispatchers_own_thread_does_not_deadlock(dispatcher: Dispatcher) -> None:
    dispatcher.ref(PARENT).tell(Call(what=pykka.ActorRegistry.stop_all))
    assert dispatcher.stopped.wait(PATIENCE_S)
    assert dispatcher.failure is None


def test_two_dispatchers_that_stop_all_at_once_do_not_deadlock(dispatcher: Dispatcher) -> None:
    other = Dispatcher("n2", hub_without_peers("n2"))
    address = address_of("n2", "parent")
    other.start(RoleSet((Spawn(address, Parent),)))
    meet = threading.Barrier(2, timeout=PATIENCE_S)

    def stop_all() -> None:
        meet.wait()
        pykka.ActorRegistry.stop_all()

    dispatcher.ref(PARENT).tell(Call(what=stop_all))
    other.ref(address).tell(Call(what=stop_all))
    assert dispatcher.stopped.wait(PATIENCE_S)
    assert other.stopped.wait(PATIENCE_S)
    assert (dispatcher.failure, other.failure) == (None, None)


@pytest.mark.parametrize("protocol", ["bakery", "central", "lamport", "paxos"])
def test_all_roles_of_a_node_are_registered_and_stop_all_ends_them(
    protocol: str, tmp_path: Path
) -> None:
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    nodes = 2 if protocol == "lamport" else 1  # Its minimum; the other one is not running.
    node = Node.start(config_in(tmp_path, protocol, nodes), "n1", found=True)
    addresses = registered()
    assert {address_of("n1", "clock"), address_of("n1", "proxy")} <= set(addresses)
    assert all(pykka.ActorRegistry.stop_all(timeout=PATIENCE_S)[:1])
    assert pykka.ActorRegistry.get_all() == []
    assert node.wait(0)
    assert node.failure is None
    assert process.num_fds() == files
    assert threading.active_count() <= threads  # Threads of an earlier test may have ended.
    assert node.stop()


def test_stop_all_stops_several_nodes_whose_journals_can_be_opened_again(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    nodes = [Node.start(config, name, found=True) for name in config.nodes]
    fence = nodes[0].proxy.ask(Acquire(lock="a"), timeout=PATIENCE_S).fence
    pykka.ActorRegistry.stop_all()
    assert [node.wait(0) for node in nodes] == [True] * 3
    assert [node.failure for node in nodes] == [None] * 3
    again = [Node.start(config, name, found=True) for name in config.nodes]
    assert again[0].proxy.ask(Acquire(lock="b"), timeout=PATIENCE_S).fence > fence
    pykka.ActorRegistry.stop_all()
    assert all(node.wait(0) for node in again)


def test_a_node_stopped_by_stop_all_gives_back_what_its_callers_hold(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    nodes = {name: Node.start(config, name, found=True) for name in config.nodes}
    nodes["n3"].proxy.ask(Acquire(lock="a"), timeout=PATIENCE_S)
    assert nodes["n3"].ref("clock").stop(timeout=PATIENCE_S)
    granted = nodes["n1"].proxy.ask(Acquire(lock="a", wait_ms=2_000), timeout=PATIENCE_S)
    assert granted.lock == "a"
    pykka.ActorRegistry.stop_all()


def test_stop_all_ends_a_client_and_frees_what_it_holds(tmp_path: Path) -> None:
    config = config_in(tmp_path, nodes=1)
    node = Node.start(config, "n1", found=True)
    client = fencelock.connect(next(iter(config.nodes.values())))
    _held = client.lock("a").acquire()
    ours = [
        ref
        for ref in pykka.ActorRegistry.get_all()
        if ref.actor_class.__name__ == "ClientSession" and ref.actor_urn != node.proxy.actor_urn
    ]
    assert ours[0].stop(timeout=PATIENCE_S)
    assert node.proxy.ask(Acquire(lock="a", wait_ms=0), timeout=PATIENCE_S).lock == "a"
    with pytest.raises(fencelock.ClosedError):
        client.lock("b").acquire()
    client.close()
    assert node.stop()


def test_a_simulated_cluster_registers_nothing() -> None:
    assert run_seed("central", 3).violation is None
    assert pykka.ActorRegistry.get_all() == []
