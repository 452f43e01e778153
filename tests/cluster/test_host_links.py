"""Links and listening sockets of a host while it runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial

import pykka
import pytest
from support.simulator_scene import N1, N2, SECOND, only, world_of

from fencelock.actors.api.message import Acquire, Granted, Reason, Refused, Release
from fencelock.actors.effect import Connect, Disconnect, Effects, Send, Spawn
from fencelock.actors.message import Address, Event, Instant, address_of, node_of
from fencelock.actors.role import Host, Role
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_set import RoleSet
from fencelock.transport.hub import SocketHub

LONG_S = 30.0


class Linker(Role[Acquire | Release | Granted | LinkUp | LinkDown]):
    """Connects to the endpoint that an `Acquire` names, and leaves the peer on a `Release`."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.asker: Address | None = None

    def handle(
        self, sender: Address, event: Acquire | Release | Granted | LinkUp | LinkDown, now: Instant
    ) -> Effects:
        del now
        match event:
            case Acquire():
                self.asker = sender
                return [Connect("n2", event.lock)]
            case Release():
                self.asker = sender
                return [Disconnect("n2")]
            case LinkUp():
                return [Send(address_of(event.node, "role"), Granted(lock="hello", fence=1))]
            case LinkDown():
                return self._answer(Granted(lock="down", fence=2))
            case Granted() if event.lock == "hello":
                return [Send(sender, Granted(lock="welcome", fence=3))]
            case Granted():
                return self._answer(event)

    def _answer(self, granted: Granted) -> Effects:
        return [] if self.asker is None else [Send(self.asker, granted)]


def started(node: str) -> tuple[Dispatcher, SocketHub]:
    hub = SocketHub(
        node=node,
        boot=1,
        cluster="c",
        listen="tcp://127.0.0.1:0",
        peers={},
        count=lambda name, times: None,
    )
    dispatcher = Dispatcher(node, hub)
    dispatcher.start(RoleSet((Spawn(address_of(node, "role"), Linker),)))
    return dispatcher, hub


@pytest.fixture
def nodes() -> Iterator[tuple[Dispatcher, str]]:
    (first, _), (second, hub) = started("n1"), started("n2")
    yield first, hub.endpoint
    for dispatcher in (first, second):
        assert dispatcher.stop(LONG_S)
        assert dispatcher.failure is None


def test_a_role_opens_a_link_and_closes_it(nodes: tuple[Dispatcher, str]) -> None:
    node, endpoint = nodes
    ref = node.ref(N1)
    assert ref.ask(Acquire(lock=endpoint), timeout=LONG_S).lock == "welcome"
    assert ref.ask(Release(lock="x", fence=1), timeout=LONG_S).lock == "down"
    assert ref.ask(Acquire(lock=endpoint), timeout=LONG_S).lock == "welcome"


def test_an_endpoint_that_cannot_be_parsed_does_not_stop_the_node(
    nodes: tuple[Dispatcher, str],
) -> None:
    node, endpoint = nodes
    ref = node.ref(N1)
    ref.tell(Acquire(lock="tcp://nowhere"))
    assert ref.ask(Acquire(lock=endpoint), timeout=LONG_S).lock == "welcome"


class Newcomer(Role[Granted]):
    """Takes its peer for a member or for a client, and counts what arrives."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.arrived = 0

    def begin(self, now: Instant) -> Effects:
        del now
        if node_of(self.address) == "n1":
            return [Disconnect("n2"), Connect("n3", "n3"), Send(N2, Granted(lock="a", fence=1))]
        return [Send(N1, Granted(lock="b", fence=1))]

    def handle(self, sender: Address, event: Granted, now: Instant) -> Effects:
        del sender, event, now
        self.arrived += 1
        return ()


def test_a_simulated_node_takes_frames_of_any_peer() -> None:
    world = world_of(only(Newcomer), only(Newcomer), only(Newcomer))
    world.run(SECOND)
    assert world.role_at(N1).arrived == 2
    assert world.role_at(N2).arrived == 1


# The host's services for clients: listeners, replies that call back, and the end of a node


ROLE = address_of("n1", "clerk")
WATCHER = address_of("n1", "watcher")


class ListeningClerk(Role[Acquire]):
    """Grants all requests, and notifies the watcher first."""

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        del now
        if event.lock == "no":
            return [Send(sender, Refused(lock="no", reason=Reason.TIMED_OUT, detail="no"))]
        granted = Granted(lock=event.lock, fence=1)
        return [Send(WATCHER, granted), Send(sender, granted)]


def dispatcher() -> Dispatcher:
    hub = SocketHub(
        node="n1", boot=1, cluster="c", listen=None, peers={}, count=lambda name, times: None
    )
    return Dispatcher("n1", hub)


def test_a_listener_hears_what_roles_send_it_before_what_they_send_after() -> None:
    host = dispatcher()
    heard: list[tuple[Event, str]] = []
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    address = host.listen(
        "watcher", lambda event: heard.append((event, threading.current_thread().name))
    )
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    assert address == WATCHER
    host.ref(ROLE).submit(Acquire(lock="a"), AskReply(lambda _, __, ___: told.put(len(heard))))
    assert told.get(timeout=LONG_S) == 1
    assert heard == [(Granted(lock="a", fence=1), "fencelock-n1")]
    assert host.stop(LONG_S)


def test_a_listener_that_raises_stops_the_node_as_a_role_does() -> None:
    def stumble(event: Event) -> None:
        raise IndexError(event)

    host = dispatcher()
    host.listen("watcher", stumble)
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    host.ref(ROLE).tell(Acquire(lock="a"))
    assert host.stopped.wait(LONG_S)
    assert isinstance(host.failure, IndexError)


def test_an_answer_is_told_first_to_its_maker_then_to_who_called_back_then_to_who_waits() -> None:
    order: list[object] = []
    reply = AskReply(lambda _, value, error: order.append((value, error)))
    reply.add_done_callback(lambda: order.append(reply.done))
    assert not reply.done
    reply.set(7)
    reply.add_done_callback(lambda: order.append("late"))
    assert order == [(7, None), True, "late"]
    assert reply.get(timeout=0) == 7


def test_an_error_is_told_likewise() -> None:
    host = dispatcher()
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    told: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
    host.ref(ROLE).submit(
        Acquire(lock="no"), AskReply(lambda _, value, error: told.put((value, error)))
    )
    value, error = told.get(timeout=LONG_S)
    assert value is None
    assert "no" in str(error)
    assert host.stop(LONG_S)


def test_callbacks_are_called_once_however_they_race_with_the_answer() -> None:
    for _ in range(200):
        reply = AskReply()
        calls: list[int] = []
        start = threading.Barrier(2)

        def ask(
            reply: AskReply = reply, calls: list[int] = calls, start: threading.Barrier = start
        ) -> None:
            start.wait(LONG_S)
            for number in range(20):
                reply.add_done_callback(partial(calls.append, number))

        asker = threading.Thread(target=ask)
        asker.start()
        start.wait(LONG_S)
        reply.set(1)
        asker.join(LONG_S)
        assert sorted(calls) == list(range(20))


def test_a_host_that_stopped_says_so_to_who_cannot_block() -> None:
    host = dispatcher()
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
    host.ended.add_done_callback(lambda: ended.put(host.stopped.is_set()))
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    host.stop(0)
    assert ended.get(timeout=LONG_S)
    with pytest.raises(pykka.ActorDeadError):
        host.ref(ROLE)
