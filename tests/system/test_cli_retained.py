"""What people see of locks that clients retain, and how they get one back: with real nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub_station import PATIENCE_S
from support.raw_retainer import RawRetainer, retaining
from support.real_nodes import running_nodes
from typer.testing import CliRunner, Result

import fencelock
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.error import LockTimeoutError
from fencelock.cluster.cli import locks
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.node import Node


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def address(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    addresses = [node.address for node in nodes.values()]
    monkeypatch.setenv("FENCELOCK_CONNECT", ",".join(addresses))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return addresses[0]


@pytest.fixture
def retainer(address: str) -> Iterator[RawRetainer]:
    with retaining(address, "fencelock") as client:
        yield client


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def row_of(command: str, name: str) -> str:
    (row,) = (row for row in run(command).output.splitlines() if name in row)
    return " ".join(row.split())


def release(name: str, fence: int, *more: str) -> Result:
    return run("release", name, "--fence", str(fence), "--yes", *more)


def test_lists_show_what_is_retained_with_its_fences(retainer: RawRetainer) -> None:
    fence = retainer.retain("a", span=50)
    fences = f"{fence}-{fence + 49}"
    for command in ("locks", "status"):
        assert f"ann (retained) {fences}" in row_of(command, "(retained)")
    lines = run("who", "a").output.splitlines()
    assert lines[0] == f"a is held by ann ({retainer.session}/*)"
    assert lines[1].endswith(f", under fences {fences}.")
    assert lines[2].startswith("Its session retains it for its own owners")
    assert json.loads(run("who", "a", "--json").stdout)["holder"]["span"] == 50
    (one,) = json.loads(run("sessions", "--json").stdout)
    assert (one["claims"], one["retained"]) == (1, 1)
    assert "retained" in run("sessions").output


OBJECTS: dict[str, dict[str, Any]] = {
    "a": {"lock": "a"},
    "rwlock:a": {"lock": object_name(RWLOCK, "a"), "permits": RWLOCK_PERMITS},
    "semaphore:a": {"lock": object_name(SEMAPHORE, "a"), "permits": 3, "amount": 2},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_release_asks_the_client_for_what_it_retains_and_does_not_use(
    retainer: RawRetainer, name: str
) -> None:
    fence = retainer.retain(**OBJECTS[name])
    done = release(name, fence)
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        f"{name} was given back by ann ({retainer.session}/*), who held it under fence {fence}.\n"
    )
    assert {one.fence for one in retainer.recalls} == {fence}
    assert f"{name} is free." in run("who", name).output
    assert name not in [row["lock"] for row in json.loads(run("audit", "--json").stdout)]


def test_release_takes_what_its_client_uses_by_force_only(
    retainer: RawRetainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RECALL_S", 0.2)
    retainer.in_use = True
    fence = retainer.retain("busy")
    refused = release("busy", fence)
    assert isinstance(refused.exception, LockTimeoutError)
    assert "--force takes it at once" in str(refused.exception)
    assert retainer.recalled.wait(PATIENCE_S)
    taken = release("busy", fence, "--force")
    assert taken.stdout.startswith("busy was taken from ann")
    assert "busy" in [row["lock"] for row in json.loads(run("audit", "--json").stdout)]


def test_a_recall_is_repeated_and_the_next_owner_gets_a_fence_above_the_span(
    address: str, retainer: RawRetainer
) -> None:
    """The first recalls are ignored, as if they had been lost."""
    retainer.in_use = True
    fence = retainer.retain("b", span=50)
    with fencelock.connect(address) as client:
        lock = client.lock("b")
        assert lock.acquire(timeout=0.5) is None
        assert retainer.recalled.wait(PATIENCE_S)
        retainer.in_use = False
        hold = lock.acquire(timeout=PATIENCE_S)
        assert hold is not None
        assert hold.fence >= fence + 50
        hold.release()
    assert len(retainer.recalls) > 1
