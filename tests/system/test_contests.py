"""The judges of `examples/cluster.py --objects` see each broken promise in the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contests import (
    CONTESTS,
    PERMITS,
    Contest,
    LockAllContest,
    LockContest,
    ReadWriteContest,
    SemaphoreContest,
    judged,
)
from evidence import WHOLE, Record


def begins(who: str, fence: int, amount: int = 1, name: str = "a") -> Record:
    return {"who": who, "fences": {name: fence}, "amount": amount}


def ends(who: str, fence: int, name: str = "a", **facts: Any) -> Record:
    return {"who": who, "fences": {name: fence}, "amount": 0, **facts}


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
    return [
        {**base, "amount": 1},
        {**base, "amount": 0, "updates": updates, "balances": balances},
    ]


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
}

BROKEN: dict[str, tuple[type[Contest], list[Record], str]] = {
    "two holders": (LockContest, [begins("c1", 7), begins("c2", 8)], "a: c2 under 8 beside c1"),
    "an old fence": (LockContest, [*counts("c1", 8, 1), *counts("c2", 7, 2)], "fence 7 after 8"),
    "the same fence": (LockContest, [*counts("c1", 7, 1), *counts("c2", 7, 2)], "as c1 had"),
    "a lost update": (LockContest, [*counts("c1", 7, 1), *counts("c2", 8, 1)], "wrote update 1"),
    "too many permits": (
        SemaphoreContest,
        [begins("c1", 7, 2), begins("c2", 8, 2)],
        "c2 under 8 beside c1 under 7",
    ),
    "permits of one fence": (SemaphoreContest, [begins("c1", 7), begins("c2", 7)], "as c1 had"),
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
        "saw [1, 0], and 1 was written",
    ),
    "a state of the past": (
        ReadWriteContest,
        [*writes("c1", 7, 1), *writes("c1", 8, 2), *reads("c2", 9, 1, 1)],
        "saw [1, 1], and 2 was written",
    ),
    "a writer with an old fence": (
        ReadWriteContest,
        [*reads("c1", 8, 0, 0), *writes("c2", 7, 1)],
        "fence 7 after 8",
    ),
    "lost money": (LockAllContest, pays("c1", 7, ann=99, ben=100), "300 were there"),
    "one lock of two": (
        LockAllContest,
        [begins("c2", 6, name="ben"), *pays("c1", 7, ann=99, ben=101)],
        "ben: c1 under 8 beside c2 under 6",
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
def test_a_contest_that_nobody_played_proves_nothing(
    tmp_path: Path, of_kind: type[Contest]
) -> None:
    verdict = judged(of_kind(tmp_path))
    assert (verdict.ok, verdict.problems) == (False, ["nobody played a round to its end"])
