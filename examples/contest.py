"""What all contests of examples/cluster.py --objects have in common, and their verdict."""

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
"""Timeout of one acquire, after which a contender checks the time (s)."""

WORK_S = (0.0, 0.004)
"""Range of the time for which an object is used, drawn anew each time (s)."""

PROBLEMS_SHOWN = 3


class Turn(NamedTuple):
    """One successful turn of a player."""

    at_ms: int
    """The time of the grant, by the monotonic clock of this machine (ms)."""
    waited_ms: float

    @classmethod
    def since(cls, began: float) -> Turn:
        """Return a turn that is granted now, and was asked for at ``began`` (s)."""
        now = time.monotonic()
        return cls(int(1000 * now), 1000 * (now - began))


@dataclass
class Player:
    """One client process, which takes part in all contests."""

    name: str
    client: fencelock.Client
    chance: random.Random

    def work(self) -> None:
        """Use what is held: that takes its time."""
        time.sleep(self.chance.uniform(*WORK_S))


class Contest:
    """A fight over the objects of one kind. Each round ends with lines in the evidence."""

    kind: ClassVar[str]
    promise: ClassVar[str]
    """What the judge checks, for people."""
    names: ClassVar[tuple[str, ...]]
    """The objects, as ``fencelock who`` takes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evidence = Evidence(folder, self.kind)

    def begin(self, player: Player) -> None:
        """Prepare for the first turn."""

    def play(self, player: Player) -> Turn | None:
        """Acquire an object, use it and give it back; None if it was not to be had in time."""
        raise NotImplementedError

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        """Return what is wrong, in the order of the lines of the evidence."""
        raise NotImplementedError

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        """Return the number of rounds that were played to their end."""
        return sum(record.get("amount") == 0 for record in records)


@dataclass
class KindVerdict:
    """The result of the contest of one kind; ``ok`` only if nothing is wrong."""

    kind: str
    names: tuple[str, ...]
    rounds: int
    promise: str
    problems: list[str]
    """The first of them."""
    ok: bool


def judged(contest: Contest) -> KindVerdict:
    """Read all of the evidence of a contest, and judge it."""
    records = Evidence(contest.folder, contest.kind).news()
    problems, rounds = contest.problems(records), contest.rounds(records)
    if not rounds:
        problems.append("nobody played a round to its end")
    return KindVerdict(
        kind=contest.kind,
        names=contest.names,
        rounds=rounds,
        promise=contest.promise,
        problems=problems[:PROBLEMS_SHOWN],
        ok=not problems,
    )
