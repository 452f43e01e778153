"""The table of locks as the log carries it: which commands members of earlier releases skip."""

from __future__ import annotations

import pytest

from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Release
from fencelock.actors.api.request import Command
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits
from fencelock.actors.api.session_message import CloseSession, End, Evict, Open
from fencelock.actors.table.message import ExtendSessions
from fencelock.actors.table.operations import OPERATIONS
from fencelock.cluster.lock_machine import FIRST_COMMANDS, LockMachine

NEW = (
    AcquirePermits(semaphore="a", permits=1, session="s.1", request=1),
    ReleasePermits(semaphore="a", fence=1, session="s.1", request=1),
    CloseSession(handle="s.1", operator="o", session="s", request=1),
    AcquireReadWrite(rwlock="a", session="s.1", request=1),
    Downgrade(rwlock="a", fence=1, session="s.1", request=1),
    AcquireAll(locks=("a", "b"), session="s.1", request=1),
    CountDown(latch="a", count=2, session="s.1", request=1),
    AwaitLatch(latch="a", count=2, session="s.1", request=1),
)
FIRST = (
    Acquire(lock="a", session="s.1", request=1),
    Release(lock="a", fence=1, session="s.1", request=1),
    Cancel(lock="a", session="s.1", owner="o", request=1),
    KeepAlive(session="s.1"),
    Open(session="s", ttl_ms=1_000),
    End(session="s.1"),
    Evict(lock="a", fence=1, operator="o"),
)


def test_every_command_of_the_table_is_one_of_the_first_or_is_new() -> None:
    kinds = {type(command) for command in (*NEW, *FIRST)}
    assert kinds == set(OPERATIONS)
    assert {*map(type, FIRST), ExtendSessions} == FIRST_COMMANDS


@pytest.mark.parametrize("command", [*NEW, *FIRST])
def test_a_leader_knows_which_commands_an_old_member_would_skip(command: Command) -> None:
    """The leader refuses them while it hears such a member (`test_paxos_replica.py`)."""
    written, machine = LockMachine().write(command), LockMachine()
    assert machine.admits(written)
    assert machine.is_new(written) is (command in NEW)
