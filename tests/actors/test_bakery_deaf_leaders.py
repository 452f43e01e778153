"""Leaders that do not reach each other, though the other members reach them."""

from __future__ import annotations

from typing import Any

import pytest
from support.bakery_cluster_harness import ClusterHarness

from fencelock.actors.bakery.config import election_of
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.leader_selection import choose, coordinator_of, living
from fencelock.actors.bakery.message import NOBODY, Chosen, Seating
from fencelock.actors.membership import Member as Seat
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.verification.simulation.bakery_judge import BakeryJudge
from fencelock.verification.simulation.network import Cut

FAULT_MS = 20_000
REPLACED_MS = 3_000
"""Time within which deaf leaders are replaced (ms)."""


def five() -> ClusterHarness:
    harness = ClusterHarness(5)
    harness.world.judges.append(BakeryJudge(harness.world))
    harness.start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    return harness


def deafen(harness: ClusterHarness, *pairs: tuple[str, str]) -> None:
    links = [link for a, b in pairs for link in ((a, b), (b, a))]
    harness.world.network.cut(links, Cut(harness.world.time + FAULT_MS * NS_PER_MS, holds=False))


def promised(harness: ClusterHarness) -> int:
    roles: list[Any] = [harness.world.role_at(election_of(name)) for name in harness.names]
    return max(int(role.durable_promises.promised) for role in roles)


@pytest.mark.parametrize("seed", range(4))
def test_three_leaders_that_do_not_reach_each_other_are_replaced_once_and_holds_stay(
    seed: int,
) -> None:
    harness = ClusterHarness(5, seed=seed)
    harness.world.judges.append(BakeryJudge(harness.world))
    harness.start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    one, two, three = harness.serving()
    spare = harness.others()[0]
    held = harness.lock(spare, hold_ms=2 * FAULT_MS)
    deafen(harness, (one, two), (two, three), (one, three))
    harness.run(650)
    free = harness.acquire(spare, "free", "ben", wait_ms=10_000)
    harness.granted(free, REPLACED_MS)
    epoch = promised(harness)
    harness.run(FAULT_MS // 2)
    assert promised(harness) == epoch
    harness.release(spare, held)
    assert harness.lock(spare, owner="ben").fence > held.fence


def test_a_leader_that_only_one_other_does_not_reach_keeps_its_seat() -> None:
    harness = five()
    epoch, (one, two, _) = promised(harness), harness.serving()
    deafen(harness, (one, two))
    harness.run(5_000)
    assert promised(harness) == epoch
    harness.lock(harness.others()[0])


def test_a_smallest_member_that_reaches_only_one_other_does_not_stop_elections() -> None:
    harness = five()
    deafen(harness, *(("n1", name) for name in ("n3", "n4", "n5")))
    harness.run(700)
    lost = next(name for name in harness.serving() if name not in ("n1", "n2"))
    harness.world.crash(lost)
    harness.until(lambda: len(harness.serving()) == 3 and lost not in harness.serving(), 5_000)
    harness.lock("n2")


def test_deaf_leaders_without_candidates_to_replace_them_are_named_to_clients() -> None:
    harness = ClusterHarness(3).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    deafen(harness, ("n1", "n2"), ("n2", "n3"), ("n1", "n3"))
    harness.run(2_000)
    role: Any = harness.world.role_at(address_of("n2", "proxy"))
    assert "1 of 3 members are connected" in role.backend.in_flight.readiness.detail


LIVES = {f"n{number}": number for number in range(1, 6)}
ALL = Electorate(0, tuple(Seat(name, "", life) for name, life in LIVES.items()))


def seen(links: dict[str, str]) -> list[Member]:
    """Return members and whom they reach, as ``n1="45"``."""
    return [
        Member(
            f"n{name}",
            int(name),
            14,
            1,
            1,
            NOBODY,
            0,
            0,
            reaches=tuple(Chosen(f"n{other}", int(other)) for other in others),
        )
        for name, others in links.items()
    ]


SEATING = Seating(1, tuple(Chosen(f"n{number}", number) for number in (1, 2, 3)), 1_000)


def test_who_is_not_reached_here_lives_if_a_quorum_reaches_it() -> None:
    told = seen({"1": "45", "4": "1235", "5": "134"})
    assert [leader.node for leader in living(SEATING, told, ALL)] == ["n1", "n3"]


@pytest.mark.parametrize(
    ("links", "leaders", "deaf"),
    [
        ({"1": "2345", "2": "1345", "3": "1245", "4": "1235", "5": "1234"}, "", False),
        ({"1": "45", "4": "1235", "5": "1234"}, "145", True),
        ({"1": "245", "2": "145", "4": "1235", "5": "1234"}, "124", True),
        ({"1": "345", "3": "145", "2": "45", "4": "1235", "5": "1234"}, "134", True),
        ({"1": "245", "2": "145", "4": "125", "5": "124"}, "124", False),
    ],
    ids=["all reach all", "all deaf", "one unreached", "one deaf", "one lost"],
)
def test_leaders_that_work_together_follow(
    links: dict[str, str], leaders: str, *, deaf: bool
) -> None:
    choice = choose(SEATING, seen(links), ALL)
    assert ("".join(one.node[1:] for one in choice.leaders), choice.deaf) == (leaders, deaf)


def test_the_smallest_voter_that_reaches_a_quorum_coordinates() -> None:
    assert coordinator_of(seen({"1": "2", "2": "1345", "3": "245"}), ALL) == "n2"
    assert coordinator_of(seen({"1": "2", "2": "1"}), ALL) == ""
