"""Storms of real nodes with Redis doors, and the judge of their clients."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis_storm
from redis_storm import DEATHS, KEYS, TTL_MS, Judge, Storm, storm

import fencelock


def test_the_judge_sees_two_holders_late_fences_and_releases_that_count_twice() -> None:
    judge = Judge()
    judge.entered("redis-py", "a", "one", 7)
    judge.entered("redis-py", "b", "two", 7)
    judge.left("a", "one")
    judge.deleted("one", 1, sure=True)
    judge.entered("native", "a", "three", 8)
    assert judge.problems == []
    judge.entered("redis-py", "a", "four", 9)
    assert "entered while three was inside" in judge.problems.pop()
    judge.left("a", "three")
    judge.entered("redis-py", "a", "five", 9)
    assert "is not above the last one" in judge.problems.pop()
    judge.deleted("one", 1, sure=False)
    assert "was deleted 2 times" in judge.problems.pop()
    judge.deleted("five", 0, sure=True)
    assert "was gone before" in judge.problems.pop()
    judge.unlocked("six", [0, 1])
    judge.unlocked("six", [0, 0])
    assert judge.problems == ["six was unlocked twice, with the replies [0, 0]"]


@pytest.mark.long
def test_no_lock_has_two_holders_while_nodes_die_stop_and_are_cut_off(tmp_path: Path) -> None:
    judge = storm(40.0, 11, tmp_path)
    assert judge.problems == []
    assert set(judge.faults) == set(DEATHS)
    assert min(judge.grants[kind] for kind in ("redis-py", "waiting", "redisson", "native")) > 0


@pytest.mark.long
def test_a_client_that_takes_locks_by_force_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def robs(self: Storm, token: str, random: Random) -> None:
        with self.client(random) as client:
            key = random.choice(KEYS)
            client.set(key, token, px=TTL_MS)
            fence: Any = client.execute_command("LOCK.FENCE", key)
            self.work("robber", key, token, fence, random)
            time.sleep(0.1)

    monkeypatch.setattr(redis_storm.Storm, "of_raw_client", robs)

    def nothing(self: Storm, watcher: fencelock.Client) -> None:
        time.sleep(0.5)

    monkeypatch.setattr(redis_storm.Storm, "fault", nothing)
    judge = storm(20.0, 1, tmp_path)
    assert any("was gone before" in problem for problem in judge.problems), judge.problems
