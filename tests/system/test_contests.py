"""The judges of `examples/cluster.py --objects` find each broken promise in the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contest import WHOLE, Contest, Record, judged
from contests import (
    CONTESTS,
    COUNT,
    PERMITS,
    BarrierContest,
    CounterContest,
    ElectionContest,
    LatchContest,
    LockAllContest,
    LockContest,
    MapContest,
    ReadWriteContest,
    SemaphoreContest,
)


def begins(who: str, fence: int, amount: int = 1, name: str = "a") -> Record:
    return {"who": who, "fences": {name: fence}, "amount": amount}


def ends(who: str, fence: int, **facts: Any) -> Record:
    return {"who": who, "fences": {"a": fence}, "amount": 0, **facts}


def counts(who: str, fence: int, count: int) -> list[Record]:
    return [begins(who, fence), ends(who, fence, updates={"a": count})]


def writes(who: str, fence: int, version: int) -> list[Record]:
    return [
        begins(who, fence, WHOLE),
        {"who": who, "fences": {"a": fence}, "amount": 1, "wrote": version},
        ends(who, fence, saw=[version, version]),
    ]


def reads(who: str, fence: int, *saw: int) -> list[Record]:
    return [begins(who, fence), ends(who, fence, saw=list(saw))]


def pays(who: str, fence: int, **balances: int) -> list[Record]:
    fences = {name: fence + place for place, name in enumerate(balances)}
    base = {"who": who, "fences": fences}
    updates = dict.fromkeys(balances, 1)
    return [{**base, "amount": 1}, {**base, "amount": 0, "updates": updates, "balances": balances}]


def leads(who: str, fence: int, *, known: str = "") -> list[Record]:
    base = {"who": who, "fences": {"scheduler": fence}}
    return [{**base, "amount": 1}, {**base, "amount": 0, "known": [known or who, fence]}]


def sees(watcher: str, *terms: tuple[str, int], resyncs: int = 0) -> list[Record]:
    return [{"watcher": watcher, "saw": list(term), "resyncs": resyncs} for term in terms]


def tries(who: str, before: int, value: int) -> list[Record]:
    reads = {"who": who, "reads": "red"}
    return [reads, {"who": who, "tries": "red", "before": before, "count": value}]


def changes(who: str, before: int, value: int, version: int | None) -> list[Record]:
    return [*tries(who, before, value), {"who": who, "key": "red", "version": version}]


def seen(watcher: str, *values: int) -> list[Record]:
    first, *others = values
    changes = [{"watcher": watcher, "sees": "red", "value": value} for value in others]
    return [{"watcher": watcher, "lists": {"red": first}}, *changes]


def counts_down(who: str, left: int) -> list[Record]:
    facts = {"who": who, "round": 1}
    return [{**facts, "counts": True}, {**facts, "left": left}]


def passes(who: str, *, passed: bool = True) -> Record:
    return {"who": who, "round": 1, "passed": passed}


def comes(*who: str) -> list[Record]:
    return [{"who": one, "comes": True} for one in who]


def place(who: str, number: int | None) -> Record:
    return {"who": who, "place": number}


def draws(who: str) -> Record:
    return {"who": who, "draws": True}


def drew(who: str, number: int, read: int) -> Record:
    return {"who": who, "number": number, "read": read}


KEPT: dict[str, tuple[type[Contest], list[Record]]] = {
    "locks": (LockContest, [*counts("c1", 7, 1), *counts("c2", 8, 2), begins("c1", 9)]),
    "a killed holder": (LockContest, [begins("c1", 7), {"dead": "c1"}, *counts("c2", 8, 1)]),
    "all permits": (SemaphoreContest, [begins("c1", 7, 2), begins("c2", 8), ends("c1", 7)]),
    "permits given back one by one": (
        SemaphoreContest,
        [begins("c1", 7, PERMITS), begins("c1", 7, 1), begins("c2", 8, 2)],
    ),
    "readers together": (
        ReadWriteContest,
        [*writes("c1", 7, 1), begins("c2", 8), *reads("c3", 9, 1, 1), ends("c2", 8, saw=[1, 1])],
    ),
    "half a write of a killed writer": (
        ReadWriteContest,
        [begins("c1", 7, WHOLE), {"dead": "c1"}, *reads("c2", 8, 1, 0), *writes("c2", 9, 2)],
    ),
    "transfers": (LockAllContest, pays("c1", 7, ann=99, ben=101)),
    "terms that all watches saw": (
        ElectionContest,
        [
            *leads("c1", 7),
            *leads("c2", 9),
            *sees("w1", ("c1", 7), ("c3", 8), ("c2", 9)),
            *sees("w2", ("c3", 8), ("c2", 9)),
        ],
    ),
    "changes one after the other": (
        MapContest,
        [
            *seen("w", 0, 1, 2),
            *tries("c2", 0, 1),
            *changes("c1", 0, 1, 5),
            {"who": "c2", "key": "red", "version": None},
            *changes("c2", 5, 2, 9),
        ],
    ),
    "meetings": (
        BarrierContest,
        [*comes("c1", "c2"), place("c2", 1), *comes("c2"), place("c1", 0), place("c2", None)],
    ),
    "a meeting with a killed client": (
        BarrierContest,
        [*comes("c1", "c2"), {"dead": "c1"}, place("c2", 0)],
    ),
    "numbers": (CounterContest, [draws("c1"), draws("c2"), drew("c2", 1, 2), drew("c1", 2, 2)]),
    "a number that a killed client drew": (
        CounterContest,
        [draws("c1"), {"dead": "c1"}, draws("c2"), drew("c2", 2, 2)],
    ),
    "a latch": (
        LatchContest,
        [
            *counts_down("c1", 1),
            passes("c1", passed=False),
            *counts_down("c2", 0),
            passes("c2"),
            *counts_down("c1", 0),
            passes("c1"),
        ],
    ),
    "a latch that a killed client counted down": (
        LatchContest,
        [*counts_down("c1", 1)[:1], {"dead": "c1"}, *counts_down("c2", 0), passes("c2")],
    ),
    "a change of a killed client": (
        MapContest,
        [
            *seen("w", 0, 1, 2),
            *changes("c1", 0, 1, 5),
            *tries("c2", 5, 2),
            {"dead": "c2"},
            *changes("c1", 7, 3, 9),
        ],
    ),
}

BROKEN: dict[str, tuple[type[Contest], list[Record], str]] = {
    "two holders": (LockContest, [begins("c1", 7), begins("c2", 8)], "a: c2 under 8 beside c1"),
    "an old fence": (LockContest, [*counts("c1", 8, 1), *counts("c2", 7, 2)], "fence 7 after 8"),
    "the same fence": (LockContest, [*counts("c1", 7, 1), *counts("c2", 7, 2)], "which c1 had"),
    "a lost update": (LockContest, [*counts("c1", 7, 1), *counts("c2", 8, 1)], "wrote update 1"),
    "too many permits": (
        SemaphoreContest,
        [begins("c1", 7, 2), begins("c2", 8, 2)],
        "c2 under 8 beside c1 under 7",
    ),
    "permits of one fence": (SemaphoreContest, [begins("c1", 7), begins("c2", 7)], "which c1 had"),
    "a reader beside a writer": (
        ReadWriteContest,
        [begins("c1", 7, WHOLE), begins("c2", 8)],
        "c2 under 8 beside c1",
    ),
    "two writers": (
        ReadWriteContest,
        [begins("c1", 7, WHOLE), begins("c2", 8, WHOLE)],
        "c2 under 8 beside c1",
    ),
    "a half-written state": (
        ReadWriteContest,
        [*writes("c1", 7, 1), *reads("c2", 8, 1, 0)],
        "saw [1, 0], but 1 was written",
    ),
    "a state of the past": (
        ReadWriteContest,
        [*writes("c1", 7, 1), *writes("c1", 8, 2), *reads("c2", 9, 1, 1)],
        "saw [1, 1], but 2 was written",
    ),
    "a writer with an old fence": (
        ReadWriteContest,
        [*reads("c1", 8, 0, 0), *writes("c2", 7, 1)],
        "fence 7 after 8",
    ),
    "lost money": (LockAllContest, pays("c1", 7, ann=99, ben=100), "their sum was 300"),
    "one lock of two": (
        LockAllContest,
        [begins("c2", 6, name="ben"), *pays("c1", 7, ann=99, ben=101)],
        "ben: c1 under 8 beside c2 under 6",
    ),
    "two leaders": (
        ElectionContest,
        [*sees("w", ("c1", 7)), *leads("c1", 7)[:1], *leads("c2", 8)],
        "c2 under 8 beside c1",
    ),
    "a leader that is notified of another": (
        ElectionContest,
        [*sees("w", ("c1", 7)), *leads("c1", 7, known="c2")],
        "but read ['c2', 7]",
    ),
    "a term that a watch missed": (
        ElectionContest,
        [*leads("c1", 7), *leads("c2", 8), *leads("c1", 9), *sees("w", ("c1", 7), ("c1", 9))],
        "w missed, repeated or reordered terms: [8]",
    ),
    "a watch out of order": (
        ElectionContest,
        [*leads("c1", 7), *leads("c2", 8), *sees("w", ("c1", 7), ("c2", 8), ("c1", 7))],
        "w missed, repeated or reordered terms",
    ),
    "a watch too far behind": (
        ElectionContest,
        [*leads("c1", 7), *sees("w", ("c1", 7), resyncs=1)],
        "w was too far behind",
    ),
    "an election without a watcher": (ElectionContest, leads("c1", 7), "no player watched"),
    "two changes of one version": (
        MapContest,
        [*changes("c1", 0, 1, 5), *changes("c1", 5, 2, 6), *changes("c2", 5, 2, 7)],
        "c2 changed version 5 to value 2, but it was version 6, value 2",
    ),
    "a change done twice": (
        MapContest,
        [*changes("c1", 0, 1, 5), *changes("c1", 6, 2, 7)],
        "c1 changed version 6 to value 2, but it was version 5, value 1",
    ),
    "a change that was lost": (
        MapContest,
        [*changes("c1", 0, 1, 5), *changes("c2", 0, 1, 6)],
        "c2 changed version 0 to value 1, but it was version 5",
    ),
    "a change that a watch missed": (MapContest, seen("w", 3, 4, 6), "red become 6 after 4"),
    "a change that a watch saw twice": (MapContest, seen("w", 3, 4, 4), "red become 4 after 4"),
    "another listing": (MapContest, [*seen("w", 3), *seen("w", 5)], "w was too far behind"),
    "a map without a watcher": (MapContest, changes("c1", 0, 1, 5), "no player watched"),
    "a barrier that lets one pass": (
        BarrierContest,
        [*comes("c1"), place("c1", 0), *comes("c2"), place("c2", 1)],
        "c1 passed as number 1 after 1 arrivals",
    ),
    "a barrier that lets one pass with one who left": (
        BarrierContest,
        [*comes("c1", "c2"), place("c1", None), place("c2", 1)],
        "c2 passed as number 1 after 1 arrivals",
    ),
    "a place that is given twice": (
        BarrierContest,
        [*comes("c1", "c2"), place("c1", 0), place("c2", 0)],
        "given unevenly: {0: 2, 1: 0}",
    ),
    "a number that two players drew": (
        CounterContest,
        [draws("c1"), draws("c2"), drew("c2", 1, 1), drew("c1", 1, 1)],
        "c1 drew number 1, which c2 had",
    ),
    "an impossible number": (CounterContest, [draws("c1"), drew("c1", 2, 2)], "2 of 1"),
    "a stale read of a counter": (
        CounterContest,
        [draws("c1"), draws("c2"), drew("c2", 2, 1)],
        "c2 read 1 after it drew number 2",
    ),
    "a counter that counts twice": (
        CounterContest,
        [draws("c1"), drew("c1", 1, 2)],
        "the counter was 2 after 1 draws",
    ),
    "a latch that opens early": (
        LatchContest,
        [*counts_down("c1", 1), passes("c1")],
        "c1 passed after 1 count-downs",
    ),
    "a latch that stays shut": (
        LatchContest,
        [*counts_down("c1", 1), *counts_down("c2", 0), passes("c2", passed=False)],
        f"c2 timed out after {COUNT} count-downs",
    ),
    "a count that is counted twice": (
        LatchContest,
        counts_down("c1", 0),
        "c1 got count 0 of 2 after 1 count-downs",
    ),
    "a read of the past": (
        MapContest,
        [*changes("c1", 0, 1, 5), *changes("c2", 0, 1, None)],
        "c2 read version 0 of red after 5",
    ),
    "a lost transfer": (
        LockAllContest,
        [*pays("c1", 7, ann=99, ben=101), *pays("c2", 9, ann=101, ben=99)],
        "ann: c2 wrote update 1",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_kept_promise_is_found_kept(case: str) -> None:
    contest, records = KEPT[case]
    assert contest.problems(records) == []


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_found(tmp_path: Path, case: str) -> None:
    of_kind, records, why = BROKEN[case]
    contest = of_kind(tmp_path)
    for record in records:
        contest.evidence.note(**record)
    verdict = judged(contest)
    assert not verdict.ok
    assert why in " ".join(verdict.problems)


def test_each_kind_has_a_planted_violation() -> None:
    assert {contest for contest, _, _ in BROKEN.values()} == set(CONTESTS)


@pytest.mark.parametrize("of_kind", CONTESTS)
def test_a_contest_without_contenders_proves_nothing(
    tmp_path: Path, of_kind: type[Contest]
) -> None:
    verdict = judged(of_kind(tmp_path))
    assert (verdict.ok, verdict.problems) == (False, ["no player completed a round"])
