"""Faults that `central` does not survive: a dead client, a crashed server, one that forgot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencelock.actors.api.message import Acquire
from fencelock.actors.api.session_message import Evict
from fencelock.actors.message import NS_PER_MS, Address, address_of
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

SERVER_NODE = "n1"
MEMBERS = ("n1", "n2", "n3")
HOLDER, WAITER = Address("c2/owner"), Address("c3/owner")
BOUND_MS = 60_000


def world_in_which_c2_holds(*, journal: bool) -> World:
    """Return a calm world at a moment when ``c2`` holds the lock, through ``n2``."""
    world = World(1)
    settings = ProtocolSettings(central_journal=journal)
    for name in MEMBERS:
        world.add(name, central, member=True, settings=settings)
    for user in (HOLDER, WAITER):
        name = user.partition("/")[0]
        proxy = address_of(name.replace("c", "n"), "proxy")
        client = ClientPlan((proxy,), {"owner": LockUser}, ("l",), client_session)
        world.add(name, client.make_roles(), member=False)
    world.judges.append(LockJudge(MEMBERS, (HOLDER, WAITER)))
    world.power_on_all()
    run_until(world, lambda: contender(world, HOLDER).phase is ContenderPhase.HOLDING)
    return world


def run_until(world: World, so: Callable[[], bool]) -> None:
    while not so():
        assert world.time < 2 * BOUND_MS * NS_PER_MS
        world.run(world.time + NS_PER_MS)


def contender(world: World, user: Address) -> LockUser:
    role = world.role_at(user)
    assert isinstance(role, LockUser)
    return role


def is_anybody_left(world: World, among: tuple[Address, ...] = (HOLDER, WAITER)) -> None:
    """Let everybody want the lock once more, for `BOUND_MS`; the judge of progress decides."""
    users = {user: contender(world, user) for user in among}
    for user in users:
        world.nodes[user.partition("/")[0]].tell(user, Finish())
    world.run(world.time + BOUND_MS * NS_PER_MS)
    judge_progress(users, BOUND_MS)


def test_without_a_crash_everybody_is_served() -> None:
    is_anybody_left(world_in_which_c2_holds(journal=False))


@pytest.mark.parametrize("journal", [False, True])
def test_a_lock_whose_client_died_stays_held_until_an_operator_releases_it(journal: bool) -> None:
    world = world_in_which_c2_holds(journal=journal)
    fence = contender(world, HOLDER).fence
    world.crash("c2")

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        is_anybody_left(world, (WAITER,))

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

    is_anybody_left(world)


@pytest.mark.parametrize("journal", [False, True])
def test_a_hold_of_which_no_client_knows_is_given_back_when_its_client_says_so(
    journal: bool,
) -> None:
    """The node dies after the server granted it the lock and before its client was told."""
    world = world_in_which_c2_holds(journal=journal)
    server = world.role_at(address_of(SERVER_NODE, "server"))
    holding = server.held["l"]
    server.held["other"] = holding._replace(number=holding.number - 1)
    world.crash("n2")
    world.power_on("n2")
    request = Acquire(lock="other", session="n3", owner="o", request=1)
    world.nodes["n3"].tell(address_of("n3", "proxy"), request)

    run_until(world, lambda: "other" in server.held and "n3" in server.held["other"].client)

    assert world.marks["client.hold_disowned"] >= 1


def test_while_the_server_is_down_nobody_is_granted_anything_and_the_nodes_name_it() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"progress: .*c3/owner waits \('l'\)"):
        is_anybody_left(world)

    readiness = world.role_at(Address("n3/proxy")).backend.readiness
    assert not readiness.ready
    assert readiness.detail.startswith("node n1, which runs the lock server, is silent for ")


def test_a_server_with_a_journal_comes_back_and_everybody_is_served() -> None:
    world = world_in_which_c2_holds(journal=True)
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    is_anybody_left(world)


def test_a_server_without_a_journal_comes_back_and_forgets_who_holds() -> None:
    """Two clients then hold at once. Only the fence distinguishes them: it keeps rising."""
    world = world_in_which_c2_holds(journal=False)
    fence = contender(world, HOLDER).fence
    world.nodes["c2"].pause()  # A holder that takes its time.
    world.crash(SERVER_NODE)
    world.power_on(SERVER_NODE)

    with pytest.raises(ViolationError, match=r"mutual exclusion: c3/owner .* while c2/owner"):
        run_until(world, lambda: False)

    assert contender(world, WAITER).fence > fence
