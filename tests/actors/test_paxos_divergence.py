"""A member whose state machine has a bug is found by the product itself, and leaves the group."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from msgspec.structs import replace

from fencelock.actors.api.message import Acquire
from fencelock.actors.effect import Spawn
from fencelock.actors.message import node_of
from fencelock.actors.paxos import divergence
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.topology import MakeRoles, ProtocolSettings, paxos
from fencelock.verification.simulation.paxos_judge import INVARIANTS
from fencelock.verification.simulation.paxos_machine import Appended, AppendRequest, Register
from fencelock.verification.simulation.paxos_plan import LogPlan, draw_log_plan
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.planting import planted
from fencelock.verification.simulation.promise import KEEPS_DISKS, promise_of
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed

SEEDS = range(8)
FOUND_MIN = 2
"""In so many of the runs the bug shows before the end; in the others nobody leads twice."""

JUDGED = frozenset(INVARIANTS) - {"one-outcome", "reads-are-fresh", "session-outlives-trust"}
"""A member that is wrong may tell a client something wrong before anybody can notice."""


class Repeats(Register):
    """Appends an entry twice, now and then."""

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        if self.position % 9 == 8:
            super().append(request, command)
        return super().append(request, command)


class AnotherDecision(Register):
    """Comes to other entries than the others for a while, and to their state again."""

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        told = super().append(request, command)
        if self.position % 8 == 5:
            self.made += 1
        return told


class NeverExtends(Register):
    """Ends all sessions when a leadership begins."""

    def extend(self, now: int) -> None:
        self.sessions = {name: (now, ttl) for name, (_, ttl) in self.sessions.items()}


BUGS = {kind.__name__: kind for kind in (Repeats, AnotherDecision, NeverExtends)}


def plan_of(seed: int, nodes: int = 3) -> LogPlan:
    """Return a plan in which members compare often, keep their disks, and get all from the log."""
    plan = draw_log_plan(seed)
    disks = dataclasses.replace(
        plan.faults, lose_disk_every_ms=0, old_copy_every_ms=0, slow_disk_every_ms=0
    )
    return dataclasses.replace(
        plan,
        faults=disks,
        nodes=nodes,
        digest_slots=5,
        log_max=10_000,
        ttl_ms=600,
        journal_bytes=1 << 23,
    )


def run(seed: int, bug: type[Register], nodes: int = 3, digest_slots: int = 5) -> RunReport:
    plan = dataclasses.replace(plan_of(seed, nodes), digest_slots=digest_slots)
    subject = LogSubject(wrong=frozenset({"n2"}), planted=bug)
    return run_log_seed(seed, plan=plan, subject=subject, judged=JUDGED)


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("nodes", [3, pytest.param(5, marks=pytest.mark.long)])
def test_a_member_with_a_bug_is_quarantined_and_the_others_go_on(bug: str, nodes: int) -> None:
    """Judges only-diverged-quarantined, and after it all but three of the others."""
    marks: Counter[str] = Counter()
    for seed in SEEDS:
        report = run(seed, BUGS[bug], nodes)
        assert report.violation is None, (seed, report.violation)
        assert report.grants > 0
        marks.update(name for name, count in report.marks.items() if count)
    assert marks["paxos.diverged"] >= FOUND_MIN, marks
    assert marks["notice.critical"] == marks["paxos.diverged"]


def test_nobody_is_quarantined_in_a_group_without_a_bug() -> None:
    for seed in range(6):
        report = run_log_seed(seed, plan=plan_of(seed, 3 + seed % 3))
        assert report.violation is None, (seed, report.violation)
        assert not report.marks.get("paxos.diverged")
        assert not report.marks.get("notice.error")


class CountsTwice(LockTable):
    """Counts one ticket of a wait twice, now and then; no client can see that."""

    def apply(self, batch_time_ms: int, command: LogCommand) -> list[Result]:
        if isinstance(command, Acquire) and command.request % 4 == 0:
            self.tickets += 1
        return super().apply(batch_time_ms, command)


def product(wrong: str) -> MakeRoles:
    """Return the whole product, which compares often, with a bug in the table of ``wrong``."""

    def change(spawn: Spawn) -> Spawn:
        if spawn.role is not Replica:
            return spawn
        machine = LockMachine()
        if node_of(spawn.address) == wrong:
            machine.table = CountsTwice()
        more = {"machine": machine, "digest_slots": 10}
        return replace(spawn, arguments={**spawn.arguments, **more})

    return planted(paxos, change)


SILENT = "everybody was done, n2/proxy: it never answered"
"""Return the auditor's report. It asks every member at the end; a quarantined one does not
reply."""


@pytest.mark.parametrize("wrong", ["n2", ""])
def test_in_the_whole_product_a_wrong_member_is_found_and_every_promise_is_kept(wrong: str) -> None:
    promise = dataclasses.replace(promise_of("paxos", ProtocolSettings()), survives=KEEPS_DISKS)
    marks: Counter[str] = Counter()
    for seed in range(5):
        report = run_seed(product(wrong), seed, promise=promise)
        silent = bool(wrong) and (report.violation or "").endswith(SILENT)
        assert report.violation is None or silent, (seed, report.violation)
        marks.update(name for name, count in report.marks.items() if count)
    if wrong:
        assert marks["paxos.diverged"] >= 2, marks
    else:
        assert not marks["paxos.diverged"] + marks["notice.error"] + marks["notice.warning"]


def test_without_the_comparison_nobody_would_notice() -> None:
    """No other test finds the bugs of the tests above."""
    for seed in SEEDS:
        report = run(seed, Repeats, digest_slots=1 << 40)
        assert not report.marks.get("paxos.diverged")


def test_a_sound_member_that_is_quarantined_is_seen_by_the_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def differ(one: object, other: object) -> bool:
        return one is not other

    monkeypatch.setattr(divergence, "_differ", differ)
    judged = frozenset({"only-diverged-quarantined"})
    reports = (run_log_seed(seed, plan=plan_of(seed), judged=judged) for seed in SEEDS)
    assert any(": only-diverged-quarantined, " in (report.violation or "") for report in reports)
