"""All kinds of objects in one run under all faults, with the judge of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from support.workloads import LOSSES, demand_caught, demand_clean

from fencelock.actors.api.name import kind_of
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.error import ConfigError, UnsupportedError
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.cluster.guarantee import OBJECTS
from fencelock.verification.simulation.mixed import MixedJudge
from fencelock.verification.simulation.objects import ALL, WORKLOADS, workload_of

SEEDS = 3
"""Number of runs. It is small because a run with all kinds takes long."""

GRANT = TableState.grant


def test_no_seed_breaks_a_promise_and_each_kind_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judges: list[MixedJudge] = []
    crashed = MixedJudge.crashed

    def known(judge: MixedJudge, node: str, boot: int) -> None:
        judges.append(judge)
        crashed(judge, node, boot)

    monkeypatch.setattr(MixedJudge, "crashed", known)
    demand_clean(workload_of(ALL, "paxos"), LOSSES, SEEDS)
    assert len(judges[0].parts) == len(WORKLOADS)
    assert all(part.grants for judge in judges for part in judge.parts)


def of_kind(kind: str, bug: Any) -> Any:
    """Return a grant with a bug, for objects of one kind only."""

    def grant(table: TableState, owner_state: OwnerState, *how: Any) -> None:
        GRANT(table, owner_state, *how)
        if kind_of(owner_state.lock) == kind:
            bug(table, owner_state)

    return grant


def forgets_its_permits(table: TableState, owner_state: OwnerState) -> None:
    """Let other owners be granted the permits of this owner."""
    resource = table.resources[owner_state.lock]
    resource.free = resource.capacity


def takes_the_last_fence(table: TableState, _: OwnerState) -> None:
    table.fence -= 1


@pytest.mark.parametrize(
    ("kind", "bug", "judge"),
    [
        (SEMAPHORE, forgets_its_permits, "capacity"),
        (RWLOCK, forgets_its_permits, "capacity"),
        (SEMAPHORE, takes_the_last_fence, "fences"),
    ],
)
def test_a_bug_of_one_kind_is_caught_among_the_others(
    monkeypatch: pytest.MonkeyPatch, kind: str, bug: Any, judge: str
) -> None:
    plants: dict[tuple[object, str], object] = {(TableState, "grant"): of_kind(kind, bug)}
    demand_caught(monkeypatch, workload_of(ALL, "paxos"), plants, judge)


@pytest.mark.parametrize("word", [*(guarantee.word for guarantee in WORKLOADS), ALL])
def test_a_protocol_without_the_objects_is_refused(word: str) -> None:
    with pytest.raises(UnsupportedError, match="paxos ha"):
        workload_of(word, "central")


def test_the_help_of_the_command_names_all_workloads() -> None:
    assert tuple(WORKLOADS) == OBJECTS


def test_an_unknown_word_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"semaphores.* all"):
        workload_of("tubas", "paxos")
