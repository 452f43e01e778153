"""The table of locks as the log carries it: which members can apply a command."""

from __future__ import annotations

import pytest

from fencelock.actors.api.message import Acquire, Release
from fencelock.actors.table.message import LOG_VERSION
from fencelock.actors.table.operations import OPERATIONS
from fencelock.cluster.node.lock_machine import LockMachine


def test_every_command_of_the_table_is_of_a_log_version_that_exists() -> None:
    assert all(1 <= command.SINCE <= LOG_VERSION for command in OPERATIONS)


def test_a_leader_knows_the_log_version_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a later one than all its members have (`test_paxos_replica.py`)."""
    monkeypatch.setattr(Release, "SINCE", 7)
    machine = LockMachine()
    for command, version in (
        (Acquire(lock="a", session="s.1", request=1), 1),
        (Release(lock="a", fence=1, session="s.1", request=1), 7),
    ):
        written = LockMachine().write(command)
        assert machine.admits(written)
        assert machine.version_of(written) == version
