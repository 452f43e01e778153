"""The common part of all contests of examples/cluster.py --objects, and their verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from evidence import Evidence, Record

import fencelock

PATIENCE_S = 5.0
"""Timeout of one acquire (s). After it, a contender checks whether the contest is over."""

WORK_S = (0.0, 0.004)
"""Range of the random time for which an object is used (s)."""

PROBLEMS_SHOWN = 3


class Turn(NamedTuple):
    """One successful turn of a player."""

    at_ms: int
    """The time of the grant, by the monotonic clock of this machine (ms)."""
    waited_ms: float

    @classmethod
    def since(cls, began: float) -> Turn:
        """Return a turn that is granted now and was requested at ``began`` (s)."""
        now = time.monotonic()
        return cls(int(1000 * now), 1000 * (now - began))


@dataclass
class Player:
    """One client process, which takes part in all contests."""

    name: str
    client: fencelock.Client
    chance: random.Random

    def work(self) -> None:
        """Use the held object for some time."""
        time.sleep(self.chance.uniform(*WORK_S))


class Contest:
    """A contest for the objects of one kind. Players write each round to the evidence."""

    kind: ClassVar[str]
    promise: ClassVar[str]
    """The promise that the judge checks, for people."""
    names: ClassVar[tuple[str, ...]]
    """The names of the objects, as ``fencelock who`` accepts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evidence = Evidence(folder, self.kind)

    def begin(self, player: Player) -> None:
        """Prepare for the first turn."""

    def play(self, player: Player) -> Turn | None:
        """Acquire an object, use it and release it; return None if it was not granted in time."""
        raise NotImplementedError

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        """Return a text for each broken promise, in the order of the lines of the evidence."""
        raise NotImplementedError

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        """Return the number of complete rounds."""
        return sum(record.get("amount") == 0 for record in records)


@dataclass
class KindVerdict:
    """The result of the contest of one kind; ``ok`` only if it has no problems."""

    kind: str
    names: tuple[str, ...]
    rounds: int
    promise: str
    problems: list[str]
    """The first problems."""
    ok: bool


def judged(contest: Contest) -> KindVerdict:
    """Read the evidence of a contest, and judge it."""
    records = Evidence(contest.folder, contest.kind).news()
    problems, rounds = contest.problems(records), contest.rounds(records)
    if not rounds:
        problems.append("no player completed a round")
    return KindVerdict(
        kind=contest.kind,
        names=contest.names,
        rounds=rounds,
        promise=contest.promise,
        problems=problems[:PROBLEMS_SHOWN],
        ok=not problems,
    )
