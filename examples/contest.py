"""A contest for objects of one kind, its evidence and its verdict: examples/cluster.py --objects.

Each client appends a line to a file when it begins to use an object, and another one before it
releases the object. A line is written in one step, so the file has all lines in one order,
independently of the cluster. A judge for each kind checks these lines.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import fencelock

PATIENCE_S = 5.0
"""Timeout of one acquire (s). After it, a contender checks whether the contest is over."""

WORK_S = (0.0, 0.004)
"""Range of the random time for which an object is used (s)."""

PROBLEMS_SHOWN = 3

Record = dict[str, Any]
"""One line. In most lines, ``who`` uses ``amount`` of each object in ``fences``, and 0 ends a use.
In others, ``dead`` is a process that was killed."""

WHOLE = 1 << 31
"""The capacity of a read/write lock: a writer has all of it, a reader has 1."""


class Evidence:
    """The file for all objects of one kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{kind}.evidence", flags, 0o600)
        self._offset = 0

    def note(self, **facts: Any) -> None:
        """Append a line. It is in the file when this returns, even if the process dies then."""
        os.write(self._file, json.dumps(facts).encode() + b"\n")

    def news(self) -> list[Record]:
        """Return the lines since the last call."""
        added = os.pread(self._file, os.fstat(self._file).st_size - self._offset, self._offset)
        whole, _, _ = added.rpartition(b"\n")
        self._offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


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


def beyond_capacity(records: Iterable[Record], capacity: int) -> list[str]:
    """Return a text for each time at which more than ``capacity`` of an object was in use."""
    used: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    problems: list[str] = []
    for record in records:
        if "dead" in record:
            _leave(used, record["dead"])
            continue
        for name, fence in record.get("fences", {}).items():
            key = record["who"], fence
            used[name].pop(key, None)
            if not record["amount"]:
                continue
            others = dict(used[name])
            used[name][key] = record["amount"]
            if sum(used[name].values()) > capacity:
                with_it = ", ".join(f"{who} under {other}" for who, other in others)
                problems.append(f"{name}: {record['who']} under {fence} beside {with_it}")
    return problems


def _leave(used: dict[str, dict[tuple[str, int], int]], dead: str) -> None:
    for users in used.values():
        for key in [key for key in users if key[0] == dead]:
            del users[key]


def unordered_fences(records: Iterable[Record], capacity: int) -> list[str]:
    """Return a text for each hold whose fence is wrong.

    The fence of a hold that has the whole ``capacity`` must be above all earlier fences of the
    object. The fences of other holds must be different from each other.
    """
    seen: dict[str, dict[int, str]] = defaultdict(dict)
    problems: list[str] = []
    for record in records:
        for name, fence in record.get("fences", {}).items():
            who, known = record["who"], seen[name]
            if known.get(fence) == who:
                continue  # This line is about the same hold.
            if fence in known:
                problems.append(f"{name}: {who} has fence {fence}, which {known[fence]} had")
            elif record["amount"] == capacity and fence < max(known, default=0):
                problems.append(f"{name}: {who} has fence {fence} after {max(known)}")
            known[fence] = who
    return problems


def lost_updates(records: Iterable[Record]) -> list[str]:
    """Return a text for each update of a counter that did not see the one before it."""
    counted: dict[str, int] = defaultdict(int)
    problems: list[str] = []
    for record in records:
        for name, count in record.get("updates", {}).items():
            counted[name] += 1
            if count != counted[name]:
                problems.append(
                    f"{name}: {record['who']} wrote update {count}, expected {counted[name]}"
                )
                counted[name] = max(count, counted[name])
    return problems
