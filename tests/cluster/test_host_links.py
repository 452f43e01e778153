"""Links that a role opens and closes, on both hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.simulator_scene import N1, N2, SECOND, only, world_of

from fencelock.actors.api.message import Acquire, Granted, Release
from fencelock.actors.effect import Connect, Disconnect, Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.role import Host, Role
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.transport.hub import SocketHub

LONG_S = 20.0


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
