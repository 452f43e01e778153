"""`paxos` end to end under every fault, and bugs planted in its table that judges catch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from fencelock.actors.api.message import Granted
from fencelock.actors.effect import Spawn
from fencelock.actors.message import Message
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.topology import MakeRoles, ProtocolSettings, paxos
from fencelock.verification.simulation.planting import planted
from fencelock.verification.simulation.promise import promise_of
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed

SEEDS = 15
SEEDS_FOR_A_MUTANT = 20
MET = (
    "paxos.leadership_begun",
    "paxos.preempted",
    "paxos.votes_adopted",
    "paxos.lease_kept",
    "paxos.slots_fetched",
    "client.request_moved",
    "client.leader_preferred",
    "client.holds_lost",
    "client.session_lost",
    "contender.enters_again",
)


def run(seed: int, make_roles: MakeRoles = paxos) -> RunReport:
    return run_seed(make_roles, seed, promise=promise_of("paxos", ProtocolSettings()))


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        report = run(seed)
        assert report.violation is None, (seed, report.violation)
        marks.update(report.marks)
    assert [name for name in MET if not marks[name]] == []


class FencesStartOver(LockMachine):
    """Hands out the first fences again and again."""

    def apply(self, time_ms: int, commands: Sequence[bytes]) -> list[Sequence[Message]]:
        return [
            [replace(o, fence=o.fence % 3 + 1) if isinstance(o, Granted) else o for o in outcomes]
            for outcomes in super().apply(time_ms, commands)
        ]


class EverybodyHolds(LockTable):
    """Planted bug: grants an acquire that it should queue."""

    def apply(self, batch_time_ms: int, command: LogCommand) -> list[Result]:
        lock = getattr(command, "lock", "")
        self.resources.pop(lock, None)
        return super().apply(batch_time_ms, command)


class GrantsToAll(LockMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = EverybodyHolds()


def with_machine(machine: type[LockMachine]) -> MakeRoles:
    def change(spawn: Spawn) -> Spawn:
        if spawn.role is not Replica:
            return spawn
        return replace(spawn, arguments={**spawn.arguments, "machine": machine()})

    return planted(paxos, change)


@pytest.mark.parametrize(
    ("machine", "judge"), [(FencesStartOver, "fences"), (GrantsToAll, "")], ids=["fences", "all"]
)
def test_a_planted_bug_is_caught(machine: type[LockMachine], judge: str) -> None:
    make_roles = with_machine(machine)
    violations = (run(seed, make_roles).violation for seed in range(SEEDS_FOR_A_MUTANT))
    assert any(violation and judge in violation for violation in violations)
