"""Three real nodes, one of which has a bug in its table: it is found, and stays out."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.collected import fields_of, logged_to
from support.expect import PATIENCE_S
from support.real_nodes import config_in, until
from support.samples import fence_of

import fencelock
from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.effect import Spawn
from fencelock.actors.error import UnavailableError
from fencelock.actors.message import node_of
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.cluster.cli.status import nodes_table
from fencelock.cluster.node import topology
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.node import Node
from fencelock.verification.simulation import planting

WRONG = "n2"


class LosesCount(LockTable):
    """Gives out the fence after the next one, once."""

    def apply(self, batch_time_ms: int, command: LogCommand) -> list[Result]:
        if isinstance(command, Acquire) and command.lock == "the fatal one":
            self.fence += 1
        return super().apply(batch_time_ms, command)


class WrongMachine(LockMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = LosesCount()

    def restore(self, chunks: Sequence[bytes]) -> None:
        super().restore(chunks)  # It makes a table without the bug.
        self.table.__class__ = LosesCount


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, *, bug: bool) -> Generator[None]:
    """Let nodes compare every 20 slots, and give `WRONG` the bug."""
    sound = topology.paxos

    def change(spawn: Spawn) -> Spawn:
        if spawn.role is not Replica:
            return spawn
        wrong = bug and node_of(spawn.address) == WRONG
        more: dict[str, Any] = {"machine": WrongMachine()} if wrong else {}
        return replace(spawn, arguments={**spawn.arguments, "digest_slots": 20, **more})

    broken = planting.planted(sound, change)
    with monkeypatch.context() as patch:
        patch.setitem(topology.PROTOCOLS, "paxos", broken)
        yield


@pytest.fixture
def lines() -> Iterator[list[str]]:
    found: list[str] = []

    def take(record: logging.LogRecord) -> None:
        found.append(f"{record.levelname} {fields_of(record).get('node')} {record.getMessage()}")

    with logged_to(take, "WARNING"):
        yield found


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path)


def described(client: fencelock.Client, node: str) -> NodeStatus | None:
    return next((one for one in client.describe() if one.node == node), None)


def wait_until_ready(client: fencelock.Client) -> None:
    """Wait until `WRONG` follows the leader."""

    def is_ready() -> bool:
        status = described(client, WRONG)
        return status is not None and status.ready

    until(is_ready, WRONG)


def use_until_found(client: fencelock.Client) -> NodeStatus:
    """Use locks until `WRONG` reports that it has diverged."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        for _ in range(10):
            with client.lock("a", timeout=PATIENCE_S):
                pass
        status = described(client, WRONG)
        if status is not None and "differs from a majority" in status.detail:
            return status
    pytest.fail(f"the divergence was not found: {described(client, WRONG)}")


def test_a_wrong_member_is_found_logs_what_to_do_and_stays_out(
    monkeypatch: pytest.MonkeyPatch, config: Config, lines: list[str]
) -> None:
    connect = ",".join(config.nodes.values())
    with planted(monkeypatch, bug=True):
        first, second, third = (
            Node.start(config, name, found=True) for name in ("n1", WRONG, "n3")
        )
        with fencelock.connect(connect, connect_timeout=PATIENCE_S) as client:
            with client.lock("a", timeout=PATIENCE_S):
                pass  # All members have met.
            assert second.stop(PATIENCE_S)
            with client.lock("a", timeout=PATIENCE_S):
                second = Node.start(config, WRONG, found=True)  # It does not lead.
            wait_until_ready(client)  # It applies new slots, and need not fetch a snapshot.
            fatal = client.lock("the fatal one", timeout=PATIENCE_S)
            held = fence_of(fatal.acquire())
            status = use_until_found(client)
            assert not status.ready
            assert "an empty folder" in status.detail
            assert fatal.fence == held
            with pytest.raises(UnavailableError, match="does not serve"):
                second.proxy.ask(Acquire(lock="b"), timeout=PATIENCE_S)
            assert second.failure is None
            critical = [line for line in lines if line.startswith(f"CRITICAL {WRONG}")]
            assert len(critical) == 1
            assert "fence" in critical[0]
            assert "n1 has digest" in critical[0]
            assert second.stop(PATIENCE_S)
    with planted(monkeypatch, bug=False):  # As if the bug were mended: the journal is no good.
        second = Node.start(config, WRONG, found=True)
        with fencelock.connect(connect, connect_timeout=PATIENCE_S) as client:
            status = use_until_found(client)
            shown = StringIO()
            Console(file=shown, width=200).print(nodes_table([status], asked=1))
            assert "not ready" in shown.getvalue()
            assert "an empty folder" in " ".join(shown.getvalue().split())
        assert second.stop(PATIENCE_S)
    assert first.failure is None
    assert third.failure is None
    third.stop()
    first.stop()
