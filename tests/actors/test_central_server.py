"""`central`: work that has a limit, and a server that no node can reach.

What its roles do stands in `transcripts/central-*.txt`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from support.central_scene import BROKER, CLIENT, PROXY, make_broker, make_client, make_server
from support.counting import count_contenders
from support.expect import checked, present
from support.role_harness import HOST, T0, only_sent, sent

from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.central import broker as broker_module
from fencelock.actors.central import wire as messages
from fencelock.actors.central.lock_client import RETRANSMIT_MS
from fencelock.actors.central.server import Holding
from fencelock.actors.effect import Wake
from fencelock.actors.message import NS_PER_MS, Address, address_of
from fencelock.actors.proxy import event as backend
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX, LockDescription
from fencelock.cluster.node.topology import ProtocolSettings, central
from fencelock.verification.simulation.judge import LockJudge, judge_progress
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    ClientPlan,
    ContenderPhase,
    Finish,
    LockUser,
    client_session,
)
from fencelock.verification.simulation.world import World


def test_the_end_of_a_session_looks_at_its_own_holds_only() -> None:
    class Counted(dict[str, Holding]):
        looks = 0

        def __getitem__(self, lock: str) -> Holding:
            Counted.looks += 1
            return super().__getitem__(lock)

        def items(self) -> NoReturn:
            raise AssertionError("all holds are looked at")

    server = make_server(HOST)
    for session in 10 * ["t"] + 3 * ["s"]:
        lock = f"l{server.granted}"
        request = messages.Request(lock=lock, client=CLIENT, session=session, owner="o")
        server.handle(CLIENT, request, T0)
    server.held = Counted(server.held)

    ended = server.handle(BROKER, messages.EndSession(session="s"), T0)
    assert [revoke.lock for revoke in sent(ended, messages.Revoke)] == ["l10", "l11", "l12"]
    assert Counted.looks == 3


@pytest.mark.parametrize(("waiters", "shown"), [(True, WAITERS_SHOWN_MAX), (False, 0)])
def test_a_query_builds_only_the_holder_and_the_waiters_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, *, waiters: bool, shown: int
) -> None:
    broker = make_broker(HOST)
    for ticket in range(1, 1_000):
        acquire = backend.AcquireLock(lock="l", ticket=ticket, session="s", owner=f"o{ticket}")
        broker.handle(PROXY, acquire, T0)
    granted = backend.LockGranted(lock="l", ticket=1, fence=7)
    broker.handle(broker.tickets[1].client, granted, T0)
    built = count_contenders(monkeypatch, broker_module)

    effects = broker.handle(PROXY, backend.QueryLock(lock="l", query=3, waiters=waiters), T0)

    view = only_sent(effects, LockDescription)
    assert present(view.holder).owner == "o1"
    assert [waiter.owner for waiter in view.waiters] == [f"o{2 + n}" for n in range(shown)]
    assert len(built) == 1 + shown


def test_retransmissions_are_spread_around_their_period() -> None:
    client = make_client(HOST)
    client.handle(BROKER, backend.AcquireLock(lock="l", ticket=1, session="s", owner="o"), T0)
    waits = [
        effect.after_ms
        for _ in range(500)
        for effect in client.handle(CLIENT, messages.ClientRetransmit(), T0)
        if isinstance(effect, Wake)
    ]

    assert len(waits) == 500
    assert RETRANSMIT_MS // 2 <= min(waits) < max(waits) <= RETRANSMIT_MS * 3 // 2


SERVER_NODE = "n1"
MEMBERS = ("n1", "n2", "n3")
HOLDING_OWNER, WAITER = Address("c2/owner"), Address("c3/owner")
BOUND_MS = 60_000


def world_in_which_c2_holds(*, journal: bool) -> World:
    """Return a calm world at a moment when ``c2`` holds the lock, through ``n2``."""
    world = World(1)
    settings = ProtocolSettings(central_journal=journal)
    for name in MEMBERS:
        world.add(name, central, member=True, settings=settings)
    for user in (HOLDING_OWNER, WAITER):
        name = user.partition("/")[0]
        proxy = address_of(name.replace("c", "n"), "proxy")
        client = ClientPlan((proxy,), {"owner": LockUser}, ("l",), client_session)
        world.add(name, client.make_roles(), member=False)
    world.judges.append(LockJudge(MEMBERS, (HOLDING_OWNER, WAITER)))
    world.power_on_all()
    run_until(world, lambda: contender(world, HOLDING_OWNER).phase is ContenderPhase.HOLDING)
    return world


def run_until(world: World, so: Callable[[], bool]) -> None:
    while not so():
        assert world.time < 2 * BOUND_MS * NS_PER_MS
        world.run_for(1)


def contender(world: World, user: Address) -> LockUser:
    return checked(LockUser, world.role_at(user))


def check_that_both_are_served(
    world: World, among: tuple[Address, ...] = (HOLDING_OWNER, WAITER)
) -> None:
    """Let all want the lock once more, for `BOUND_MS`; the judge of progress decides."""
    users = {user: contender(world, user) for user in among}
    for user in users:
        world.nodes[user.partition("/")[0]].tell(user, Finish())
    world.run_for(BOUND_MS)
    judge_progress(users, BOUND_MS)


def test_every_client_is_served_without_a_crash() -> None:
    check_that_both_are_served(world_in_which_c2_holds(journal=False))


@pytest.mark.parametrize("journal", [False, True])
def test_a_lock_whose_client_died_stays_held_until_an_operator_releases_it(journal: bool) -> None:
    world = world_in_which_c2_holds(journal=journal)
    fence = contender(world, HOLDING_OWNER).fence
    world.crash("c2")

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        check_that_both_are_served(world, (WAITER,))

    held = world.role_at(address_of(SERVER_NODE, "server")).held["l"]
    assert held.client.startswith("n2/clients-")
    operator = Evict(lock="l", fence=fence, operator="olga", session="n3", request=1)
    world.nodes["n3"].tell(address_of("n3", "proxy"), operator)
    run_until(world, lambda: contender(world, WAITER).phase is ContenderPhase.DONE)


@pytest.mark.parametrize("journal", [False, True])
def test_a_lock_whose_holders_node_restarted_is_released_by_its_client(journal: bool) -> None:
    world = world_in_which_c2_holds(journal=journal)
    world.crash("n2")
    world.power_on("n2")

    check_that_both_are_served(world)


@pytest.mark.parametrize("journal", [False, True])
def test_a_hold_that_its_client_disowns_is_given_back(journal: bool) -> None:
    """The node dies after the server granted it the lock and before its client was notified."""
    world = world_in_which_c2_holds(journal=journal)
    server = world.role_at(address_of(SERVER_NODE, "server"))
    holding = server.held["l"]
    server.held["other"] = holding._replace(number=holding.number - 1)
    server.held_by[holding.session]["other"] = None
    world.crash("n2")
    world.power_on("n2")
    request = Acquire(lock="other", session="n3", owner="o", request=1)
    world.nodes["n3"].tell(address_of("n3", "proxy"), request)

    run_until(world, lambda: "other" in server.held and "n3" in server.held["other"].client)

    assert world.marks["client.hold_disowned"] >= 1


def test_nothing_is_granted_while_the_server_is_down_and_the_nodes_name_it() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        check_that_both_are_served(world)

    readiness = world.role_at(Address("n3/proxy")).backend.readiness
    assert not readiness.ready
    assert readiness.detail.startswith("node n1, which runs the lock server, is silent for ")


def test_a_server_with_a_journal_comes_back_and_everybody_is_served() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    check_that_both_are_served(world)


def test_a_server_without_a_journal_comes_back_and_forgets_who_holds() -> None:
    """Two clients then hold at once. Only the fence distinguishes them: it keeps rising."""
    world = world_in_which_c2_holds(journal=False)
    fence = contender(world, HOLDING_OWNER).fence
    world.nodes["c2"].pause()  # A holder that takes its time.
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"mutual exclusion: c3/owner .* while c2/owner"):
        run_until(world, lambda: False)

    assert contender(world, WAITER).fence > fence
