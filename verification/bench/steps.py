"""The steps of a pair: the work of its requests, named and averaged. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fencelock.verification.bench.members import BenchFailedError
from fencelock.verification.bench.timeline import CLIENT, NodeMarks, Span, way_of

PAIRS_MIN = 20
"""Fewer pairs that can be followed from end to end prove nothing."""

SHARE_MIN = 0.001
"""Share of the pair below which a step is counted as dispatch of its visit."""

FIRST: dict[str, str] = dict.fromkeys(("proxy", "replica", "leader", "commander"), "propose")
LATER = {"proxy": "reply", "replica": "apply", "leader": "quorum", "commander": "quorum"}
FOLLOW: dict[str, str] = dict.fromkeys(FIRST, "follow")
"""The turns of roles at the leader before and after it asks for votes, and at an acceptor."""

STEPS = {
    "call": "client call",
    "wake": "client wake-up",
    "session": "client session",
    "receive": "decode",
    "append": "sync",
    "acceptor": "vote",
    "clock": "dispatch",
    "poll": "asleep",
}
"""Names of spans where they differ; a span with a role's name is a turn of that role."""

Key = tuple[int, str, str]
"""A row: the visit on the way (the call is the first), the place, and the step."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """One row: the mean over the pairs whose latency is in the middle half.

    Attributes:
        visit: the number of the stop on the path: client, leader, acceptor, leader, client.
        place: the process.
        step: the work.
        acquire_us: its share of the acquire (us).
        release_us: its share of the release (us).

    """

    visit: int
    place: str
    step: str
    acquire_us: float
    release_us: float

    @property
    def pair_us(self) -> float:
        return self.acquire_us + self.release_us


def steps_of(
    logs: Mapping[str, NodeMarks], pairs: Sequence[Sequence[int]], leader: str
) -> tuple[tuple[PairStep, ...], int, float]:
    """Return the steps of the middle half, the number of pairs on the usual way, and the sum (us).

    Args:
        logs: of the client and of each node, by name.
        pairs: of each pair the times of the call of acquire, of its return and the call of
            release, and of the return of that (ns).
        leader: the node to call so; the others are acceptors. Empty: each has its own name.

    Raises:
        BenchFailedError: fewer than `PAIRS_MIN` can be followed.

    """
    ways: list[tuple[int, list[dict[Key, int]]]] = []
    shapes: list[tuple[tuple[str, ...], ...]] = []
    for call, held, free in pairs:
        acquire, release = way_of(logs, call, held), way_of(logs, held, free)
        if acquire is not None and release is not None:
            rows = [_rows(way, leader) for way in (acquire, release)]
            shapes.append(tuple(_shape(row) for row in rows))
            ways.append((free - call, rows))
    usual = max(Counter(shapes).items(), key=lambda one: one[1], default=((), 0))[0]
    kept = [way for way, shape in zip(ways, shapes, strict=True) if shape == usual]
    if len(kept) < PAIRS_MIN:
        raise BenchFailedError(f"{len(kept)} of {len(pairs)} pairs could be followed: go on longer")
    kept.sort(key=lambda way: way[0])
    middle = kept[len(kept) // 4 : len(kept) - len(kept) // 4]
    total_us = _mean_us([took for took, _ in middle])
    return _means([rows for _, rows in middle], SHARE_MIN * total_us), len(kept), total_us


def _means(pairs: Sequence[list[dict[Key, int]]], least_us: float) -> tuple[PairStep, ...]:
    """Return the mean of each row over ``pairs``; those below ``least_us`` go into dispatch."""
    # Order the rows as in the fullest pairs: a frame that was early on the wire lacks a row.
    fullest = sorted(pairs, key=lambda rows: -sum(len(row) for row in rows))
    keys = dict.fromkeys(key for rows in fullest for row in rows for key in row)
    means = {
        key: tuple(_mean_us([rows[part].get(key, 0) for rows in pairs]) for part in (0, 1))
        for key in keys
    }
    for visit, place, step in keys:
        rest = (visit, place, "dispatch")
        if sum(means[visit, place, step]) < least_us and step != "dispatch" and rest in means:
            small = means.pop((visit, place, step))
            means[rest] = (means[rest][0] + small[0], means[rest][1] + small[1])
    places = list(dict.fromkeys(place for _, place, _ in keys))
    ordered = sorted(means, key=lambda key: (key[0], places.index(key[1])))
    return tuple(PairStep(*key, *means[key]) for key in ordered)


def _rows(way: Sequence[Span], leader: str) -> dict[Key, int]:
    """Return the time of each row of one request's way (ns)."""
    rows: dict[Key, int] = defaultdict(int)
    visit, place = 1, CLIENT
    stays = Counter([CLIENT])
    for span in way:
        if span.place != place:
            visit, place = visit + 1, span.place
            stays[place] += 1
        where, turns = _whereabouts(place, leader, stays[place])
        rows[visit, where, _step(span, turns)] += span.ns
    return rows


def _whereabouts(place: str, leader: str, stay: int) -> tuple[str, dict[str, str]]:
    """Return the name of a place, and the turns of its roles; without a leader, its own name."""
    if place == CLIENT or not leader:
        return place, {}
    if place != leader:
        return "acceptor", FOLLOW
    return "leader", FIRST if stay == 1 else LATER


def _step(span: Span, turns: Mapping[str, str]) -> str:
    if span.early:
        return "own sync" if span.what in ("append", "sync") else "busy"
    role = span.what.partition("-")[0]  # Some are numbered: "commander-7".
    return turns.get(role) or STEPS.get(role, role)


def _shape(rows: Mapping[Key, int]) -> tuple[str, ...]:
    return tuple(place for _, place in sorted({(visit, place) for visit, place, _ in rows}))


def _mean_us(times: Sequence[int]) -> float:
    return statistics.fmean(times) / 1000
