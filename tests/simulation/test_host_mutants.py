"""Bugs planted in production's stage, turn and frame checks, which the simulator runs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fencelock.cluster.host.scheduler import Scheduler
from fencelock.transport.admission import FrameValidator
from fencelock.verification.simulation import node
from fencelock.verification.simulation.paxos_run import run_log_seed
from fencelock.verification.simulation.run import run_seed

SEEDS_MOST = 20


def log(seed: int) -> str | None:
    """Run a seed of the log; only the judge of what leaves a node looks on."""
    return run_log_seed(seed, judged=frozenset({"durable-before-sent"})).violation


def locks(seed: int) -> str | None:
    return run_seed("paxos", seed).violation


def stamps(seed: int) -> str | None:
    return run_seed("lamport", seed).violation


class HostMutant(NamedTuple):
    """A line of production that is replaced by another one."""

    owner: Any
    name: str
    line: str
    planted: str
    run: Callable[[int], str | None]
    seen: str
    """A part of the violation's text."""


MUTANTS = {
    "sends after a Persist leave before the sync": HostMutant(
        Scheduler,
        "work",
        "type(effect) is Send and not role_slot.held",
        "type(effect) is Send",
        log,
        "durable-before-sent",
    ),
    "other effects after a Persist are not held": HostMutant(
        Scheduler, "work", "elif role_slot.held:", "elif False:", log, "durable-before-sent"
    ),
    "held effects are performed and sent before the sync": HostMutant(
        node,
        "turn",
        "gateway.flush()  # What needs no record leaves now: peers work meanwhile.",
        "held = scheduler.records; scheduler.release_held(); "
        "gateway.flush(); scheduler.records = held",
        log,
        "durable-before-sent",
    ),
    "a record does not reach the journal": HostMutant(
        Scheduler, "_write", "for record in records:", "for record in records[1:]:", log, "journal"
    ),
    "frames lose their stamp": HostMutant(
        FrameValidator,
        "admit",
        "Frame(frame.cluster, frame.group, frame.stamp, tuple(envelopes), newer)",
        "Frame(frame.cluster, frame.group, 0, tuple(envelopes), newer)",
        stamps,
        "",
    ),
    "what was held is forgotten": HostMutant(
        Scheduler,
        "release_held",
        "self._performing.extend(held)",
        "self._performing.extend(held[1:])",
        locks,
        "",
    ),
}


def changed(mutant: HostMutant) -> Any:
    function = getattr(mutant.owner, mutant.name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.line) == 1
    made: dict[str, Any] = {}
    exec(source.replace(mutant.line, mutant.planted), vars(inspect.getmodule(function)), made)
    return made[mutant.name]


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_bug_planted_in_the_host_of_roles_is_seen_by_a_seed(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS[bug]
    monkeypatch.setattr(mutant.owner, mutant.name, changed(mutant))

    for seed in range(SEEDS_MOST):
        violation = mutant.run(seed)
        if violation is not None:
            assert mutant.seen in violation
            return
    pytest.fail(f"not seen in {SEEDS_MOST} seeds")
