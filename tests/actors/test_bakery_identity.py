"""`bakery`: only registered journals vote. Lost and old journals, simulated and real."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness
from support.expect import PATIENCE_S, present
from support.judged import BelievesOne, clean, seen_in
from support.leader_trio import (
    NAMES,
    beat,
    begun_coordinator,
    cluster_status,
    linked,
    member,
    voters,
)
from support.real_nodes import until
from support.role_harness import only_sent, sent

import fencelock
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import Granted, Renewed
from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.config import election_of, leader_of, status_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import VoterRegistry
from fencelock.actors.bakery.event import BeatDue, Connected, Serve, Serving, Trust
from fencelock.actors.bakery.wire import (
    Beat,
    Chosen,
    Install,
    Member,
    Promised,
    Propose,
    Seating,
    Vouch,
    Vouched,
)
from fencelock.actors.bootstrap import Bootstrap, bootstrap_of
from fencelock.actors.bootstrap_message import GroupConfig, Start, StopVoting
from fencelock.actors.effect import Effect, Effects, Observe, Spawn
from fencelock.actors.message import Instant, node_of
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.topology import ProtocolSettings, bakery
from fencelock.verification.simulation.bakery_judge import BakeryJudge
from fencelock.verification.simulation.bakery_run import draw_bakery_plan
from fencelock.verification.simulation.faults import promise_of
from fencelock.verification.simulation.nemesis import Blow, LeaderNemesis
from fencelock.verification.simulation.planting import Change, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError
from fencelock.verification.simulation.world import World

SEEDS = range(2)
T0 = Instant(10**12)
LOST = (
    "n1 lost its journal: it serves, but does not vote. Keep a majority of the other members "
    "running, and run: fencelock replace n1"
)
LONG_MS = 15_000
"""A lease that outlives every scenario."""


def unchanged(spawn: Spawn) -> Spawn:
    return spawn


def town_of(
    seed: int, change: Change = unchanged, judged: frozenset[str] | None = None
) -> ClusterHarness:
    return ClusterHarness(3, seed=seed, make_roles=planted(bakery, change)).judged(judged)


def elect_without_n3(harness: ClusterHarness) -> Granted:
    """Let n1 and n2 elect an epoch, cut off from n3, and grant a long lease in it."""
    harness.led()
    harness.world.crash("n3")
    epoch = harness.epoch()
    harness.world.crash("n2")
    harness.run(100)
    harness.world.power_on("n2")
    harness.until_later_epoch(epoch)
    return harness.lock("n1", hold_ms=LONG_MS)


def crash_both(harness: ClusterHarness) -> None:
    for name in ("n1", "n2"):
        harness.world.crash(name)


def ask_with_n3(harness: ClusterHarness, replaced: str, ms: int) -> int:
    """Start a node whose disk was replaced, and n3; return Ben's request, some time later."""
    harness.judge.disk_replaced(replaced)
    for name in (replaced, "n3"):
        harness.world.power_on(name)
    second = harness.acquire("n3", owner="ben")
    harness.run(ms)
    return second


def lost(
    seed: int, change: Change = unchanged, judged: frozenset[str] | None = None
) -> tuple[ClusterHarness, Granted, int]:
    """Let n2 lose its disk, and connect it only with n3, which does not know the last epoch.

    Of all that it knew, n2 has learned again which group it belongs to.
    """
    harness = town_of(seed, change, judged)
    first = elect_without_n3(harness)
    crash_both(harness)
    disk = harness.world.nodes["n2"].disk
    (group,) = (one for one in disk.records()["bootstrap"] if isinstance(one, GroupConfig))
    disk.lose()
    disk.append("bootstrap", group)
    disk.sync()
    return harness, first, ask_with_n3(harness, "n2", 5_000)


def old_copy(
    seed: int, change: Change = unchanged, judged: frozenset[str] | None = None
) -> tuple[ClusterHarness, Granted, int]:
    """Let n2 begin from a copy of its disk that is two lives old; n3 knows of the second one."""
    harness = town_of(seed, change, judged)
    harness.led()
    copy = harness.world.nodes["n2"].disk.copy()
    epoch = harness.epoch()
    harness.world.crash("n2")
    harness.run(100)
    harness.world.power_on("n2")
    harness.until(lambda: harness.epoch() > epoch and len(harness.serving()) == 3)
    first = elect_without_n3(harness)
    crash_both(harness)
    harness.world.nodes["n2"].disk.restore(copy)
    return harness, first, ask_with_n3(harness, "n2", 5_000)


def never_all_there(
    seed: int, change: Change = unchanged, judged: frozenset[str] | None = None
) -> tuple[ClusterHarness, int, int]:
    """Start n1 and n2 alone, then n1 with another disk and n3 alone."""
    harness = town_of(seed, change, judged)
    harness.world.founds_once = False  # An operator wants a cluster at each start.
    harness.start("n1", "n2")
    first = harness.acquire("n1", hold_ms=LONG_MS)
    harness.run(3_000)
    crash_both(harness)
    harness.world.nodes["n1"].disk.lose()
    return harness, first, ask_with_n3(harness, "n1", 3_000)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", [lost, old_copy])
def test_a_journal_that_was_lost_or_is_old_does_not_help_to_promise_an_epoch_again(
    scenario: Callable[[int], tuple[ClusterHarness, Granted, int]], seed: int
) -> None:
    harness, first, second = scenario(seed)
    assert harness.answers(Granted, second) == []
    assert harness.world.marks["bootstrap.non_voting"] == 1
    assert "it serves, but does not vote" in harness.backend("n2").why_no_vote
    assert harness.detail("n3") == (
        "cluster is down: 2 of 3 members are connected, of which n2 does not vote; 2 voters are "
        'needed. If their disks were lost, see "Loss of a majority" in docs/operations.md'
    )

    harness.world.power_on("n1")  # It knows that the lease may still live.
    harness.run(3_000)
    assert harness.answers(Granted, second) == []
    harness.run(LONG_MS)  # A client that sends nothing for longer waits no more.
    third = harness.acquire("n3", owner="eve")
    assert harness.granted(third, 2 * LONG_MS).fence > first.fence
    assert "n2" not in harness.serving()


@pytest.mark.parametrize("seed", SEEDS)
def test_two_members_of_three_found_no_group(seed: int) -> None:
    harness, first, second = never_all_there(seed)
    assert harness.answers(Granted) == []
    waiting = "waiting for n2: a new cluster begins when all its members have met once"
    assert harness.detail("n1") == waiting

    harness.world.power_on("n2")
    assert harness.granted(second).fence > 0
    assert harness.answers(Granted, first) == []


def test_a_member_without_a_vote_serves_clients_and_is_never_chosen() -> None:
    harness = town_of(1).led()
    harness.lose_disk("n1")
    harness.run(4_000)
    fences: list[int] = []
    for owner in ("ann", "ben"):
        granted = harness.lock("n1", owner=owner)
        fences.append(granted.fence)
        harness.release("n1", granted)
    assert fences == sorted(set(fences))
    assert harness.serving() == ["n2", "n3"]
    assert harness.backend("n1").in_flight.readiness.ready
    assert harness.backend("n1").why_no_vote == LOST


def test_a_hold_of_a_leader_that_came_back_without_a_vote_is_renewed_and_released() -> None:
    harness = town_of(1).led()
    held = harness.lock("n1", hold_ms=LONG_MS)  # n1 leads, so the hold is its own.
    harness.lose_disk("n1")
    harness.run(2_000)
    harness.renew("n2", held, LONG_MS)
    harness.answer(Renewed, most_ms=2_000)
    waiting = harness.acquire("n2", owner="ben")
    harness.release("n1", held)
    assert harness.granted(waiting, 2_000).fence > held.fence


class DiskLoss:
    """Replaces the disk of a member that crashed, once each, of a minority at most."""

    def __init__(self, world: World, judge: BakeryJudge, random: Random) -> None:
        self.world = world
        self.judge = judge
        self._random = random
        self.left = random.sample(world.members, (len(world.members) - 1) // 2)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        pass

    def crashed(self, node: str, boot: int) -> None:
        disk = self.world.nodes[node].disk
        is_founded = any(
            isinstance(one, GroupConfig) for one in disk.records().get("bootstrap", ())
        )
        if node in self.left and is_founded and self._random.random() < 1 / 2:
            self.left.remove(node)
            disk.lose()
            self.judge.disk_replaced(node)
            self.world.fault_counts["disk lost"] += 1


def run_with_disk_loss(seed: int, change: Change = unchanged) -> RunReport:
    random = Random(f"{seed}/disk loss")

    def judges(world: World) -> list[Judge]:
        judge = BakeryJudge(world)
        hunter = LeaderNemesis(world, tuple(Blow), 400)
        hunter.begin()
        return [judge, DiskLoss(world, judge, random), hunter]

    return run_seed(
        planted(bakery, change),
        seed,
        plan=draw_bakery_plan(seed),
        promise=promise_of("bakery", ProtocolSettings()),
        judges=judges,
    )


@pytest.mark.long
def test_members_that_lose_their_disks_harm_nothing() -> None:
    seen = clean(map(run_with_disk_loss, range(5)))
    assert seen["disk lost"] > 0
    assert seen["bootstrap.non_voting"] > 0


# What a role counts


VOTING, NOT_VOTING = voters(), voters(99, votes=False)
LEADERS = tuple(Chosen(name, 1) for name in NAMES)
SEATING = Seating(1, LEADERS, 1_000)
PROPOSAL = Propose(epoch=2, leaders=LEADERS)


def knows(name: str, *, votes: bool = True) -> Member:
    """Return a member that knows of `SEATING`."""
    return member(name, seating=SEATING, promised=SEATING.epoch, votes=votes)


def election(voting: VoterRegistry = VOTING, node: str = "n1") -> ElectionCoordinator:
    return begun_coordinator(voting, Install(seating=SEATING), node=node)


def test_a_promise_and_what_is_vouched_for_name_the_journal_that_keeps_them() -> None:
    promised = only_sent(election().handle(election_of("n2"), PROPOSAL, T0), Promised)
    vouch = Vouch(epoch=1, number=1, bound_ms=5_000)
    vouched = only_sent(election().handle(election_of("n2"), vouch, T0), Vouched)

    assert (promised.voter, vouched.voter) == (11, 11)


def test_a_node_that_does_not_vote_neither_promises_nor_vouches() -> None:
    stopped = election()
    stopped.handle(bootstrap_of("n1"), StopVoting(), T0)
    for role in (election(NOT_VOTING), stopped):
        for asked in (PROPOSAL, Vouch(epoch=1, number=1, bound_ms=5_000)):
            effects = role.handle(election_of("n2"), asked, T0)
            assert list(effects) == [Observe("bakery.cannot_vote")]


@pytest.mark.parametrize("journal", [0, 99])
@pytest.mark.parametrize(
    "vote",
    [
        Promised(epoch=2, former=Install(seating=SEATING), quiet_ms=0),
        Vouched(epoch=1, number=1),
    ],
)
def test_a_vote_of_a_journal_that_is_not_registered_is_refused_and_counted(
    vote: Promised | Vouched, journal: int
) -> None:
    effects = election().handle(election_of("n2"), replace(vote, voter=journal), T0)
    assert list(effects) == [Observe("bakery.unregistered_vote")]


def test_a_leader_serves_once_a_majority_of_voters_knows_its_seating() -> None:
    role = election()
    few = (knows("n1"), knows("n2", votes=False), member("n3"))
    assert sent(role.handle(status_of("n1"), Connected(members=linked(*few)), T0), Serve) == []

    enough = linked(knows("n1"), knows("n2", votes=False), knows("n3"))
    assert len(sent(role.handle(status_of("n1"), Connected(members=enough), T0), Serve)) == 1


def test_the_smallest_voter_coordinates_and_no_smaller_node_that_does_not_vote() -> None:
    former = Seating(1, (Chosen("n1", 9), *LEADERS[1:]), 1_000)  # n1 restarted since.
    for votes in (True, False):
        seen = (knows("n1", votes=votes), knows("n2"), knows("n3"))
        for node in ("n1", "n2"):
            own = voters(11 + NAMES.index(node))
            role = election(NOT_VOTING if node == "n1" and not votes else own, node)
            seating = former._replace(leaders=former.leaders[:2])
            role.promises.installed = replace(role.promises.installed, seating=seating)
            effects = role.handle(status_of(node), Connected(members=linked(*seen)), T0)
            assert bool(sent(effects, Propose)) is (node == ("n1" if votes else "n2"))


def begun(voting: VoterRegistry = VOTING) -> ClusterStatus:
    role = cluster_status(voting)
    role.begin(T0)
    return role


@pytest.mark.parametrize(("journal", "votes"), [(12, True), (0, False), (99, False)])
def test_only_beats_of_a_registered_journal_make_a_leader_trusted(
    journal: int, votes: bool
) -> None:
    role = begun()
    role.handle(leader_of("n1"), Serving(epoch=1), T0)
    effects = role.handle(status_of("n2"), beat(echo=role.number, voter=journal), T0)

    assert [one.votes for one in sent(effects, Connected)[0].members] == [True, votes]
    assert bool(sent(effects, Trust)) is votes
    assert (Observe("bakery.unregistered_vote") in effects) is (journal == 99)


def test_beats_name_the_journal_of_a_voter_and_none_once_it_stops() -> None:
    role = begun()
    before = sent(role.handle(status_of("n1"), BeatDue(), T0), Beat)
    after = sent(role.handle(bootstrap_of("n1"), StopVoting(), T0), Beat)
    unregistered = sent(begun(NOT_VOTING).handle(status_of("n1"), BeatDue(), T0), Beat)

    assert {one.member.voter for one in before} == {11}
    assert {one.member.voter for one in (*after, *unregistered)} == {0}
    assert [one.votes for one in role.seen] == [False]


# Planted bugs


def votes_anyway(spawn: Spawn) -> Spawn:
    """Let every node vote under the registered id of its member, whichever journal it has."""
    if "voting" not in spawn.arguments or issubclass(spawn.role, Bootstrap):
        return spawn
    known: VoterRegistry = spawn.arguments["voting"]
    own = known.voters[election_of(node_of(spawn.address))]
    voting = dataclasses.replace(known, voter=own, votes=True)
    return replace(spawn, arguments={**spawn.arguments, "voting": voting})


class FoundedByMajority(BelievesOne):
    """Founds a group with those that are there; any journal of the others will do."""

    def _found(self, now: Instant) -> list[Effect]:
        if len(self.followers) + 1 > len(self.members) // 2:
            for member in self.others:
                self.followers.setdefault(member, 1)
                self.starts.setdefault(member, Start(1, 1, 1))
        return super()._found(now)


def founds_by_majority(spawn: Spawn) -> Spawn:
    return replace(spawn, role=FoundedByMajority) if spawn.role is Bootstrap else spawn


def is_never_before(start: Start, other: Start) -> bool:
    return False


Scenario = Callable[[int, Change, frozenset[str]], tuple[ClusterHarness, object, int]]


def broken(scenario: Scenario, change: Change) -> int:
    """Count the seeds in which two clients hold the lock at once, under one fence."""
    found = 0
    for seed in SEEDS:
        harness, _, second = scenario(seed, change, frozenset())
        holds: list[Granted] = harness.answers(Granted)
        twice = len(holds) > 1 and len({granted.fence for granted in holds}) == 1
        found += twice and bool(harness.answers(Granted, second))
    return found


def test_an_unregistered_journal_that_votes_is_caught() -> None:
    assert broken(lost, votes_anyway) > 0


def test_a_lost_disk_that_votes_is_caught_in_random_runs() -> None:
    reports = (run_with_disk_loss(seed, votes_anyway) for seed in range(40))
    assert seen_in("has lost its journal", reports)


def test_a_group_that_a_majority_founds_is_caught() -> None:
    assert broken(never_all_there, founds_by_majority) > 0


def test_an_incarnation_that_is_not_compared_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Start, "is_before", is_never_before)
    assert broken(old_copy, unchanged) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_judge_sees_a_promise_under_a_journal_that_is_not_registered(seed: int) -> None:
    with pytest.raises(ViolationError, match=r"one-seating-an-epoch, .* has lost its journal"):
        lost(seed, votes_anyway, frozenset({"one-seating-an-epoch"}))


# Real nodes


def test_a_real_node_without_its_journal_serves_and_does_not_vote(
    addresses: dict[str, str], nodes: dict[str, Node], tmp_path: Path
) -> None:
    config = parse(starting_config(addresses, protocol="bakery"), tmp_path)
    nodes.update((name, Node.start(config, name, found=True)) for name in NAMES)

    def hold(proxy: str) -> int:
        with (
            fencelock.connect(addresses[proxy], connect_timeout=PATIENCE_S) as client,
            client.lock("x", timeout=PATIENCE_S) as held,
        ):
            assert held.fence is not None
            return held.fence

    def describe(name: str) -> NodeStatus:
        status: NodeStatus = nodes[name].proxy.ask(Describe(), timeout=PATIENCE_S)
        return status

    fences = [hold("n1")]
    nodes["n1"].stop()
    shutil.rmtree(tmp_path / "data" / "n1")
    nodes["n1"] = Node.start(config, "n1", found=True)

    fences += [hold(name) for name in ("n1", "n2", "n3")]

    assert fences == sorted(set(fences))
    until(lambda: LOST in describe("n1").detail)  # Its clients may have gone to other nodes.
    assert LOST not in describe("n2").detail
    counted = dict(describe("n2").counters)
    assert counted["bootstrap.unregistered_journal"] > 0
    present(describe("n2").elected)
    assert describe("n2").ready
