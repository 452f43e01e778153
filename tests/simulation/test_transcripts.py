"""The transcripts in `docs/transcripts/` are what the simulator writes."""

from __future__ import annotations

import pytest
from support.paths import ROOT

from fencelock.verification.simulation.transcript import SCENES

FOLDER = ROOT / "docs" / "transcripts"


def kept(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCENES)
def test_a_transcript_is_what_its_scene_writes_now(name: str) -> None:
    command = f"fencelock simulate --transcript {name} > docs/transcripts/{name}.txt"
    assert SCENES[name].text() == kept(name), f"review the difference, and write it anew: {command}"


def test_every_transcript_has_a_scene() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SCENES)


def test_a_vote_is_on_disk_before_it_is_sent() -> None:
    lines = kept("acquire").splitlines()
    votes = [at for at, line in enumerate(lines) if "send Accepted" in line]
    assert votes
    assert all(lines[at - 1].strip() == "persist Accept" for at in votes)


def test_the_waiter_gets_the_next_fence_after_the_death_of_the_leader() -> None:
    lines = kept("leader-death").splitlines()
    released = next(line for line in lines if "alice/caller" in line and "Released(" in line)
    granted = next(line for line in lines if "bob/caller" in line and "Granted(" in line)
    assert lines.index(released) < lines.index(granted)
    release = next(line for line in lines if "alice/caller" in line and "Release(" in line)
    fences = [int(line.partition("fence=..")[2][:4]) for line in (release, granted)]
    assert fences[1] == fences[0] + 1
