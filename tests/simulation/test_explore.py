"""Every interleaving of two clients and a server of `central`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from support.central_scene import (
    GrantsAreNotCompared,
    GrantsOfTheRetiredAreKept,
    HeldLocksAreGranted,
    HoldersAreNotReminded,
    LocksAreHandedOnLocally,
    ReleasesAreNotCompared,
)
from support.explore import Exploration, Explorer, Violation
from support.lock_scene import ScriptedClient, is_served, may, patient, should
from support.role_harness import HOST
from support.table_scene import Picture

from fencelock.actors.central import wire as messages
from fencelock.actors.central.broker import Broker
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.central.server import Holding, LockServer
from fencelock.actors.central.wire import Peek, Probe, Probed, ProbeServer
from fencelock.actors.effect import Effects, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.proxy.event import AcquireLock, LockGranted, QueueFull, ReleaseLock
from fencelock.actors.role import Host, Role

ASKER = Address("a/asker")
COUNTER = Address("b/counter")


class Asker(Role[Probed | ProbeServer]):
    """Asks once, or again and again until it is answered."""

    def __init__(self, address: Address, host: Host, *, persists: bool = True) -> None:
        super().__init__(address, host)
        self.persists = persists
        self.answered = False

    def begin(self, now: Instant) -> Effects:
        retry = (Wake(10, ProbeServer()),) if self.persists else ()
        return (Send(COUNTER, Probe()), *retry)

    def handle(self, sender: Address, event: Probed | ProbeServer, now: Instant) -> Effects:
        match event:
            case Probed():
                self.answered = True
                return ()
            case ProbeServer():
                return () if self.answered else self.begin(now)


class Counter(Role[Probe]):
    """Counts requests, and must not get too many."""

    def __init__(self, address: Address, host: Host, *, most: int = 1_000) -> None:
        super().__init__(address, host)
        self.count = 0
        self.most = most

    def handle(self, sender: Address, event: Probe, now: Instant) -> Effects:
        self.count += 1
        assert self.count <= self.most
        return (Send(sender, Probed()),)


def explorer(*roles: Role[Any], **more: Any) -> Explorer:
    def at_most_three(picture: Picture) -> bool:
        return bool(picture[COUNTER]["count"] < 3)

    return Explorer(roles, choices={}, within=at_most_three, **more)


def is_answered(picture: Picture) -> bool:
    return bool(picture[ASKER]["answered"])


def test_every_situation_is_visited_once() -> None:
    """One message, repeated up to three times; its reply arrives before any repetition or not."""
    found = explorer(Asker(ASKER, HOST, persists=False), Counter(COUNTER, HOST)).explore(
        states_max=100
    )

    counts = 4
    reached = 3  # Not after 0, and not after 3: the search does not continue from there ...
    assert (found.states, found.complete) == (counts + reached, True)
    assert found.depth == 4  # ... but reached: three deliveries, and an answer between them.


def test_a_repeated_message_breaks_who_cannot_bear_it_by_the_shortest_way() -> None:
    found = explorer(Asker(ASKER, HOST, persists=False), Counter(COUNTER, HOST, most=1)).explore(
        states_max=100
    )

    assert found.violation is not None
    assert "b/counter broke" in found.violation.what
    assert found.violation.path == ("network  a/asker -> b/counter: Probe()",) * 2
    assert "  2 network  a/asker" in str(found.violation)


def test_lost_kinds_never_arrive() -> None:
    for lost, reached in (((), {"answered": 2}), ((Probed, ProbeServer), {})):
        roles = Asker(ASKER, HOST), Counter(COUNTER, HOST)
        search = explorer(*roles, lost=lost, goals={"answered": is_answered})
        assert search.explore(states_max=100).reached == reached


class ExploredParent(Role[Probe | Peek]):
    """Spawns a child, sends to it in order, and retires it on request."""

    child = Address("a/child")

    def begin(self, now: Instant) -> Effects:
        first, second = Peek(lock="first", query=1), Peek(lock="second", query=2)
        spawn = Spawn(self.child, Child, {"parent": self.address})
        return (spawn, Send(self.child, first), Send(self.child, second))

    def handle(self, sender: Address, event: Probe | Peek, now: Instant) -> Effects:
        match event:
            case Probe():
                return (Retire(self.child),)
            case Peek():
                return ()


class Child(Role[Peek | ProbeServer]):
    def __init__(self, address: Address, host: Host, *, parent: Address) -> None:
        super().__init__(address, host)
        self.parent = parent
        self.received: list[str] = []

    def begin(self, now: Instant) -> Effects:
        return (Wake(1, ProbeServer()),)

    def handle(self, sender: Address, event: Peek | ProbeServer, now: Instant) -> Effects:
        if isinstance(event, Peek):
            self.received.append(event.lock)
        return ()


def test_messages_within_a_node_arrive_once_and_in_order_and_never_at_retired_roles() -> None:
    def in_order(picture: Picture) -> str:
        received = picture.get(ExploredParent.child, {"received": []})["received"]
        return "" if received == ["first", "second"][: len(received)] else f"received {received}"

    def retire(state: Mapping[str, Any]) -> Sequence[Event]:
        return [Probe()]

    parent = Address("a/parent")
    found = Explorer(
        [ExploredParent(parent, HOST)],
        choices={parent: retire},
        judges=(in_order,),
        goals={
            "received both": lambda p: (
                len(p.get(ExploredParent.child, {"received": ()})["received"]) == 2
            ),
            "gone": lambda p: ExploredParent.child not in p,
        },
        queue_max=2,
    ).explore(states_max=100)

    assert found.violation is None, found.violation
    assert found.complete
    assert found.reached == {"gone": 1, "received both": 2}


# Every situation two clients and one server can get into; and planted bugs that are found


SERVER = Address("s/server")
PROXIES = (Address("a/proxy"), Address("b/proxy"))
WANTS = 2


class ExploredDoorway(
    Role[AcquireLock | ReleaseLock | LockGranted | QueueFull | messages.Idle | messages.Grant]
):
    """Stands where the broker would, in front of one lock client that is never retired."""

    def __init__(self, address: Address, host: Host, *, client: Address, proxy: Address) -> None:
        super().__init__(address, host)
        self.client = client
        self.proxy = proxy

    def handle(
        self,
        sender: Address,
        event: AcquireLock | ReleaseLock | LockGranted | QueueFull | messages.Idle | messages.Grant,
        now: Instant,
    ) -> Effects:
        match event:
            case AcquireLock() | ReleaseLock() | messages.Grant():
                return (Send(self.client, event),)
            case LockGranted() | QueueFull():
                return (Send(self.proxy, event),)
            case messages.Idle():
                return ()


def patron(proxy: Address, at_once: int) -> ScriptedClient:
    backend = Address(proxy.replace("proxy", "clients"))
    return ScriptedClient(proxy, HOST, backend=backend, lock="l", wants=WANTS, at_once=at_once)


def bare(
    server: type[LockServer] = LockServer, client: type[LockClient] = LockClient, at_once: int = 1
) -> list[Role[Any]]:
    """Two lock clients and the server, and as little else as can be."""
    roles: list[Role[Any]] = [server(SERVER, HOST)]
    for proxy in PROXIES:
        clients = Address(proxy.replace("proxy", "clients"))
        me = Address(f"{clients}-1-1")
        roles += [
            patron(proxy, at_once),
            ExploredDoorway(clients, HOST, client=me, proxy=proxy),
            client(
                me, HOST, lock="l", session="s", broker=clients, server=SERVER, random=Random(1)
            ),
        ]
    return roles


def brokered(
    server: type[LockServer] = LockServer, broker: type[Broker] = Broker
) -> list[Role[Any]]:
    """Two brokers, which spawn and retire their lock clients, and the server."""
    roles: list[Role[Any]] = [server(SERVER, HOST)]
    for proxy in PROXIES:
        clients = Address(proxy.replace("proxy", "clients"))
        here = broker(clients, HOST, proxy=proxy, server=SERVER, boot=1, random=Random(1))
        roles += [patron(proxy, 1), here]
    return roles


def exclusive(picture: Picture) -> str:
    """At most one owner holds, the server knows it, and its lock client is in ``HELD``."""
    holds = [
        (proxy, fence)
        for proxy in PROXIES
        for fence in picture[proxy]["fences"].values()
        if fence is not None
    ]
    if len(holds) > 1:
        return f"mutual exclusion: {holds}"
    modes = [state["mode"] for state in picture.values() if "mode" in state]
    if modes.count(messages.Mode.HELD) > 1:
        return f"mutual exclusion: {modes}"
    holding: Holding | None = picture[SERVER]["held"].get("l")
    if holds and (holding is None or holding.number != holds[0][1]):
        return f"{holds} and the server knows of {holding}"
    return ""


def rising(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    numbers = [name for name in ("granted", "sequence_num", "last") if name in before]
    fallen = [name for name in numbers if after[name] < before[name]]
    return f"{fallen} went back" if fallen else ""


def every_client_had_a_turn(picture: Picture) -> bool:
    states = [picture[proxy] for proxy in PROXIES]
    return all(s["wanted"] == WANTS and s["last"] and not s["fences"] for s in states)


def one_waits_while_another_holds(picture: Picture) -> bool:
    fences = [fence for proxy in PROXIES for fence in picture[proxy]["fences"].values()]
    return None in fences and any(fences)


def everybody_is_served(picture: Picture) -> bool:
    return all(is_served(picture[proxy]) for proxy in PROXIES)


GOALS = {
    "every client had a turn": every_client_had_a_turn,
    "one waits, one holds": one_waits_while_another_holds,
}


def search(
    roles: Sequence[Role[Any]],
    *,
    grants: int = 4,
    queue_max: int = 0,
    users: Callable[[Mapping[str, Any]], Sequence[Event]] = may,
    states_max: int = 1_000_000,
    every: int = 1,
) -> tuple[Exploration, Violation | None]:
    """Explore until the server has granted ``grants`` times; then look for stalls."""
    explorer = Explorer(
        roles,
        choices=dict.fromkeys(PROXIES, users),
        judges=(exclusive,),
        step_judges=(rising,),
        goals=GOALS,
        within=lambda picture: picture[SERVER]["granted"] < grants,
        lost=(messages.Probe, messages.Probed, messages.ProbeServer),
        queue_max=queue_max,
    )
    found = explorer.explore(states_max=states_max)
    if found.violation is not None:
        return found, found.violation
    return found, explorer.stall(everybody_is_served, dict.fromkeys(PROXIES, should), every=every)


Record = Callable[[str, object], None]


@pytest.mark.long
def test_two_clients_and_a_server_are_safe_and_live_in_every_situation(
    record_property: Record,
) -> None:
    found, violation = search(bare(), grants=5, every=3)
    record_property("found", str(found))

    assert violation is None, violation
    assert found.complete
    assert found.states >= 200_000  # 247,587 by 645,564 steps, 57 deep, when written
    assert set(found.reached) == set(GOALS)


def test_the_search_covers_brokers_that_spawn_and_retire(record_property: Record) -> None:
    found, violation = search(brokered(), grants=3)
    record_property("found", str(found))

    assert violation is None, violation
    assert found.complete
    assert found.states >= 20_000  # 26,588, 47 deep
    assert set(found.reached) == set(GOALS)


def test_every_order_of_arrivals_while_the_roles_of_a_node_exchange_messages() -> None:
    found, violation = search(brokered(), grants=3, queue_max=1, states_max=30_000)

    assert violation is None, violation
    assert found.states >= 30_000
    assert not found.complete
    assert "one waits, one holds" in found.reached


def test_two_owners_of_one_session_take_turns() -> None:
    found, violation = search(bare(at_once=2), states_max=60_000, every=3)

    assert violation is None, violation
    assert "every client had a turn" in found.reached


class PageServer(LockServer):
    """Acknowledges as the design page states: with the current ``num_granted``."""

    def _acknowledged(self, release: messages.Release) -> Send:
        return Send(release.client, messages.ReleaseAck(lock=release.lock, sequence=self.granted))


class PageClient(LockClient):
    """Judges an acknowledgement as the design page states: old if below ``sequence_num``."""

    def _is_mine(self, ack: messages.ReleaseAck) -> bool:
        return ack.sequence >= self.sequence_num


def test_the_design_page_loses_a_lock_by_an_acknowledgement_of_an_older_release() -> None:
    """With users that never give up, so that nothing of ours but the lock's end is in play."""
    found, violation = search(bare(PageServer, PageClient), users=patient)

    assert found.violation is None  # It is safe,
    assert violation is not None  # and not live:
    path = "\n".join(violation.path)
    assert path.count("s/server: Release(lock='l', client='a/clients-1-1', sequence=1)") == 2
    assert "Release(lock='l', client='a/clients-1-1', sequence=2)" not in path
    assert "a/clients-1-1: ReleaseAck(lock='l', sequence=2)" in path


class AcknowledgementsAreNotCompared(LockClient):
    def _is_mine(self, ack: messages.ReleaseAck) -> bool:
        return True


class UnwantedGrantsAreIgnored(LockClient):
    def _on_grant(self, sender: Address, grant: messages.Grant) -> Effects:
        return super()._on_grant(sender, grant) if self.tickets else ()


class ClientsAreRetiredInHaste(Broker):
    def _on_idle(self, client: Address, idle: messages.Idle) -> Effects:
        known = self.clients.get(client)
        return super()._on_idle(client, messages.Idle(wants=known.wants)) if known else ()


MUTANTS: dict[str, tuple[Callable[[], list[Role[Any]]], int, str]] = {
    "grants": (lambda: bare(client=GrantsAreNotCompared), 0, "went back"),
    "held": (lambda: bare(HeldLocksAreGranted), 0, "the server knows of"),
    "releases": (lambda: bare(ReleasesAreNotCompared), 0, "the server knows of"),
    "acks": (lambda: bare(client=AcknowledgementsAreNotCompared), 0, "never served"),
    "local": (lambda: bare(client=LocksAreHandedOnLocally, at_once=2), 0, "fence 1 after 1"),
    "reminders": (lambda: brokered(HoldersAreNotReminded), 0, "never served"),
    "retired": (lambda: brokered(broker=GrantsOfTheRetiredAreKept), 0, "never served"),
    "unwanted": (lambda: bare(client=UnwantedGrantsAreIgnored), 0, "never served"),
    "haste": (lambda: brokered(broker=ClientsAreRetiredInHaste), 1, "never served"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str) -> None:
    build, queue_max, wrong = MUTANTS[mutant]

    _, violation = search(build(), queue_max=queue_max, states_max=30_000)

    assert violation is not None
    assert wrong in violation.what, violation
