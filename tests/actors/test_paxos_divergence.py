"""Digests of tables, and members with a planted bug, which are found and leave."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import present, with_long

from fencelock.actors.api.lock_message import Acquire, Cancel, Release
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Spawn
from fencelock.actors.membership import Member
from fencelock.actors.message import node_of
from fencelock.actors.paxos import divergence
from fencelock.actors.paxos.config import LogConfig, View
from fencelock.actors.paxos.divergence import Digests, Verdict
from fencelock.actors.paxos.machine import Fingerprint, state_of
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import SCHEME, Figure, TableDigest
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.topology import MakeRoles, ProtocolSettings, paxos
from fencelock.transport.codec import encode
from fencelock.verification.simulation.faults import KEEPS_DISKS, promise_of
from fencelock.verification.simulation.paxos_judge import INVARIANTS
from fencelock.verification.simulation.paxos_machine import Appended, AppendRequest, Register
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.plan import LogPlan, draw_log_plan
from fencelock.verification.simulation.planting import planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed

SEEDS = range(8)
FOUND_MIN = 2
"""In so many of the runs the bug shows before the end; in the others no member leads twice."""

JUDGED = frozenset(INVARIANTS) - {"one-outcome", "reads-are-fresh", "session-outlives-trust"}
"""A wrong member may send a client a wrong reply before another can notice."""


class Repeats(Register):
    """Appends an entry twice, now and then."""

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        if self.position % 9 == 8:
            super().append(request, command)
        return super().append(request, command)


class AnotherDecision(Register):
    """Comes to other entries than the others for a while, and to their state again."""

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        outcome = super().append(request, command)
        if self.position % 8 == 5:
            self.made += 1
        return outcome


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


@pytest.mark.parametrize("bug", with_long(BUGS, "NeverExtends", "Repeats"))
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


def test_no_member_is_quarantined_in_a_group_without_a_bug() -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["n2", ""])
def test_a_wrong_member_is_found_in_the_whole_product_and_every_promise_is_kept(wrong: str) -> None:
    promise = dataclasses.replace(promise_of("paxos", ProtocolSettings()), survives=KEEPS_DISKS)
    marks: Counter[str] = Counter()
    for seed in range(3):
        report = run_seed(product(wrong), seed, promise=promise)
        silent = bool(wrong) and (report.violation or "").endswith(SILENT)
        assert report.violation is None or silent, (seed, report.violation)
        marks.update(name for name, count in report.marks.items() if count)
    if wrong:
        assert marks["paxos.diverged"] >= 2, marks
    else:
        assert not marks["paxos.diverged"] + marks["notice.error"] + marks["notice.warning"]


@pytest.mark.long
def test_a_divergence_would_go_unnoticed_without_the_comparison() -> None:
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


# Digests of the table are equal for equal tables, and a majority of members decides


MEMBERS = ("a", "b", "c")
CONFIG = LogConfig(View(0, MEMBERS))


ABOUT: dict[str, Any] = {"session": "s.1", "owner": "o"}


def machine_after(*commands: Any) -> LockMachine:
    machine = LockMachine()
    opening = Open(session="s", ttl_ms=50_000)
    machine.apply(1, [encode(one) for one in (opening, *commands)])
    return machine


DIFFERENT = {
    "another lock": Acquire(**ABOUT, request=2, lock="M"),
    "another owner": Acquire(session="s.1", owner="p", request=2, lock="M", limit=0),
    "a wait": Acquire(session="s.1", owner="p", request=2, lock="L", limit=0),
    "a wait that ends": Acquire(session="s.1", owner="p", request=2, lock="L", wait_ms=10, limit=0),
    "once more": Acquire(**ABOUT, request=2, lock="L"),
    "a refusal": Acquire(session="s.1", owner="p", request=2, lock="L", wait_ms=0, limit=0),
    "a release": Release(**ABOUT, request=2, lock="L", fence=1),
    "a release that is denied": Release(**ABOUT, request=2, lock="L", fence=9),
    "a cancel": Cancel(**ABOUT, request=2, lock="L"),
    "an eviction": Evict(operator="op", request=1, lock="L", fence=1),
    "a session": Open(session="t", ttl_ms=50_000),
    "a session of another length": Open(session="t", ttl_ms=60_000),
    "an invalid name": Acquire(**ABOUT, request=2, lock="\x85"),
    "nothing": None,
}


def test_every_decision_changes_the_digest() -> None:
    held = Acquire(**ABOUT, request=1, lock="L")
    seen: dict[tuple[int, int], str] = {}
    for name, command in DIFFERENT.items():
        commands = (held,) if command is None else (held, command)
        state, decided, _ = machine_after(*commands).fingerprint()
        assert (state, decided) not in seen, (name, seen.get((state, decided)))
        seen[state, decided] = name


def fingerprint(state: int, decided: int = 0) -> Fingerprint:
    return Fingerprint(state, decided, (Figure("fence", state),))


def digest(slot: int, state: int, decided: int | None = 0, **more: Any) -> TableDigest:
    fields: dict[str, Any] = {"scheme": SCHEME, "asks": False} | more
    return TableDigest(
        slot=slot, state=state, decided=decided, counters=(Figure("fence", state),), **fields
    )


VERDICTS: list[tuple[tuple[str, ...], dict[str, tuple[int, int | None]], Verdict]] = [
    (MEMBERS, {}, Verdict.AGREED),
    (MEMBERS, {"b": (1, 0), "c": (1, 0)}, Verdict.AGREED),
    (MEMBERS, {"b": (2, 0)}, Verdict.UNDECIDED),
    (MEMBERS, {"b": (2, 0), "c": (1, 0)}, Verdict.OTHERS_DIFFER),
    (MEMBERS, {"b": (2, 0), "c": (3, 0)}, Verdict.UNDECIDED),
    (MEMBERS, {"b": (2, 0), "c": (2, 0)}, Verdict.DIVERGED),
    (MEMBERS, {"b": (1, 5), "c": (1, 5)}, Verdict.DIVERGED),
    (MEMBERS, {"b": (1, None), "c": (1, 5)}, Verdict.OTHERS_DIFFER),
    (MEMBERS, {"b": (1, None), "c": (1, None)}, Verdict.AGREED),
    (("a", "b"), {"b": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcd"), {"b": (2, 0), "c": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcde"), {"b": (2, 0), "c": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcde"), {"b": (2, 0), "c": (2, 0), "d": (2, 0)}, Verdict.DIVERGED),
]


@pytest.mark.parametrize(("members", "reports", "verdict"), VERDICTS)
def test_only_a_majority_is_right(
    members: tuple[str, ...], reports: dict[str, tuple[int, int | None]], verdict: Verdict
) -> None:
    made = Digests("a", LogConfig(View(0, members)), every=10)
    made.begin(fingerprint(0))
    made.note(10, fingerprint(1))
    for member, (state, decided) in reports.items():
        assert made.receive(member, digest(10, state, decided), 11)
    assert present(made.compare(10)).verdict is verdict


def test_the_members_of_the_newest_view_compare() -> None:
    seats = tuple(Member(one, "", number) for number, one in enumerate("abc", start=1))
    views = LogConfig(View(0, ("a", "b", "c"), seats=seats))
    made = Digests("a", views, every=10)
    made.begin(fingerprint(0))
    made.note(10, fingerprint(1))
    assert made.missing(10) == ("b", "c")

    views.change(10, views.membership.with_member(Member("d", "", 4)))

    assert made.missing(10) == ("b", "c", "d")


def test_decisions_are_counted_from_one_agreed_slot_to_the_next() -> None:
    grown, restored = Digests("a", CONFIG, every=10), Digests("b", CONFIG, every=10)
    grown.begin(fingerprint(0, 100))
    restored.begin(None)
    for made, base in ((grown, 100), (restored, 0)):
        made.note(10, fingerprint(1, base + 5))
        made.note(20, fingerprint(1, base + 12))
    assert [grown.own[slot].decided for slot in (10, 20)] == [5, 7]
    assert [restored.own[slot].decided for slot in (10, 20)] == [None, 7]


@pytest.mark.parametrize(
    "bad",
    [
        digest(15, 1, scheme=SCHEME + 1),
        digest(0, 1),
        digest(-10, 1),
        digest(10, 1),  # Long forgotten here.
        replace(digest(20, 1), counters=(Figure("\x1b[2J", 1),)),
        replace(digest(20, 1), counters=(Figure("f" * 33, 1),)),
        replace(digest(20, 1), counters=(Figure("fence", 1),) * 17),
    ],
)
def test_a_digest_that_is_of_no_use_is_not_kept(bad: TableDigest) -> None:
    made = Digests("a", CONFIG, every=10)
    made.begin(fingerprint(0))
    assert not made.receive("b", bad, 11)
    assert made.received == {}


def test_messages_of_others_fill_no_memory() -> None:
    made = Digests("a", CONFIG, every=10)
    made.begin(fingerprint(0))
    for slot in range(10, 10_000, 10):
        made.receive("b", digest(slot, 1), 1)
    assert len(made.received) <= 32


def test_the_digest_of_numbers_is_a_standard_one() -> None:
    assert state_of((1, 2, 3)) == state_of([1, 2, 3]) != state_of((1, 23))
    assert 0 <= state_of((1 << 80,)) < 1 << 63
