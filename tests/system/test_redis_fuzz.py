"""A short run of the fuzzer of the Redis door."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from redis_fuzz import Report, fuzz


def test_a_door_survives_what_clients_send(tmp_path: Path) -> None:
    report = fuzz(3.0, 300, 7, tmp_path)
    report.slow_turns = 0  # Those of a machine that is busy with other tests.
    assert report.ok, report


def test_a_door_that_exits_or_grows_without_bound_is_not_ok() -> None:
    good = Report(pairs=1, refused_in_words=True)
    assert good.ok
    assert not replace(good, exited=True).ok
    assert not replace(good, grown_mib=1_000).ok
    assert not replace(good, slow_turns=1).ok
    assert not Report().ok
