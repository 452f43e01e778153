"""The table of locks as the log carries it: which commands members of earlier releases skip."""

from __future__ import annotations

import pytest

from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.election import Lead
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import DeleteEntry, PutEntry
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Release
from fencelock.actors.api.request import Command
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits
from fencelock.actors.api.session_message import CloseSession, End, Evict, Open, Renew
from fencelock.actors.table.message import COMMAND_LEVEL
from fencelock.actors.table.operations import OPERATIONS
from fencelock.cluster.lock_machine import KNOWN_BYTES_MAX, LockMachine

SECOND = (
    AcquirePermits(semaphore="a", permits=1, session="s.1", request=1),
    ReleasePermits(semaphore="a", fence=1, session="s.1", request=1),
    CloseSession(handle="s.1", operator="o", session="s", request=1),
)
NEW = (
    AcquireReadWrite(rwlock="a", session="s.1", request=1),
    Downgrade(rwlock="a", fence=1, session="s.1", request=1),
    AcquireAll(locks=("a", "b"), session="s.1", request=1),
    CountDown(latch="a", count=2, session="s.1", request=1),
    AwaitLatch(latch="a", count=2, session="s.1", request=1),
    AwaitBarrier(barrier="a", parties=2, session="s.1", owner="o", request=1),
    Lead(election="a", value="v", session="s.1", request=1),
    Renew(lock="a", fence=1, hold_ms=1, session="s.1", request=1),
    Acquire(lock="a", session="s.1", request=1, hold_ms=1),
    PutEntry(map="a", entry_key="k", value=bytes(KNOWN_BYTES_MAX), session="s.1", request=1),
    DeleteEntry(map="a", entry_key="k", session="s.1", request=1),
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


LEVEL: dict[Command, int] = {
    **dict.fromkeys(FIRST, 0),
    **dict.fromkeys(SECOND, 1),
    **dict.fromkeys(NEW, 2),
}


def test_every_command_of_the_table_has_a_level_and_the_newest_have_the_last() -> None:
    assert {type(command) for command in LEVEL} == set(OPERATIONS)
    assert all("LEVEL" in vars(command) for command in OPERATIONS)
    assert max(LEVEL.values()) == COMMAND_LEVEL


@pytest.mark.parametrize(("command", "level"), LEVEL.items())
def test_a_leader_knows_which_commands_an_old_member_would_skip(
    command: Command, level: int
) -> None:
    """The leader refuses them while it hears such a member (`test_paxos_replica.py`)."""
    written, machine = LockMachine().write(command), LockMachine()
    assert machine.admits(written)
    assert machine.level_of(written) == level
