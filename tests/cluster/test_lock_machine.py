"""The table of locks as the log carries it: who can apply a command, and what may share a slot."""

from __future__ import annotations

from typing import Any

import pytest

from fencelock.actors.api.election import Lead
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import Acquire, AcquireRequest, Release
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.cluster.node.lock_machine import LockMachine


def test_every_command_of_the_table_is_of_a_log_version_that_exists() -> None:
    assert all(1 <= command.SINCE <= LOG_VERSION for command in RULES)


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


def whole(**fields: Any) -> dict[str, AcquireRequest]:
    """Return a claim of each kind for the whole of its object ``a``."""
    return {
        "lock": Acquire(lock="a", **fields),
        "several": AcquireAll(locks=("b", "a"), **fields),
        "semaphore": AcquirePermits(semaphore="a", permits=2, amount=2, **fields),
        "rwlock": AcquireReadWrite(rwlock="a", write=True, **fields),
        "election": Lead(election="a", **fields),
    }


def test_a_claim_that_recalls_a_hold_does_not_wait_for_a_later_slot() -> None:
    """The holder releases only once it is recalled. A second claim may wait: it recalls nothing."""
    machine = LockMachine()
    machine.table.apply(0, Open(session="s", ttl_ms=1_000))
    of: dict[str, Any] = {"session": "s.1", "request": 1}
    machine.table.apply(0, AcquireRetained(lock="a", span=10, owner="*", **of))
    first, second = (Acquire(lock="a", owner=owner, **of) for owner in "op")
    assert not is_patient(machine, first)
    machine.table.apply(0, first)
    assert is_patient(machine, second)


def is_patient(machine: LockMachine, claim: AcquireRequest) -> bool:
    return machine.is_patient(machine.write(claim), undecided=False)


@pytest.mark.parametrize("kind", whole())
@pytest.mark.parametrize("among_others", [False, True])
def test_a_claim_that_would_wait_may_share_a_later_slot(kind: str, among_others: bool) -> None:
    """So may a claim for a lock that its holder has with others."""
    machine = LockMachine()
    machine.table.apply(0, Open(session="s", ttl_ms=1_000))
    holds, waits = whole(session="s.1", owner="o", request=1), {"session": "s.1", "owner": "p"}
    waiting = whole(**waits, request=2)[kind]
    assert not is_patient(machine, waiting)
    several = among_others and kind in ("lock", "several")
    machine.table.apply(0, holds["several" if several else "lock" if kind == "several" else kind])
    assert is_patient(machine, waiting)
    assert is_patient(machine, whole(**waits, request=2, wait_ms=60_000)[kind])
    assert not is_patient(machine, whole(**waits, request=2, wait_ms=50)[kind])
    assert not is_patient(machine, whole(session="s.2", owner="p", request=2)[kind])
