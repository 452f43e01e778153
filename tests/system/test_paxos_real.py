"""`paxos` with real processes, sockets and disks: members are killed and come back."""

from __future__ import annotations

import pytest
from support.expect import PATIENCE_S
from support.real_nodes import NODES, PaxosProcesses
from support.samples import fence_of

import fencelock


def test_whichever_member_is_killed_the_others_grant_and_fences_rise(
    members: PaxosProcesses,
) -> None:
    fences: list[int] = []
    with fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client:
        for round_number, node in enumerate((*NODES, NODES[0])):  # One of them twice.
            with client.lock(f"before-{round_number}", timeout=PATIENCE_S) as lock:
                assert lock.fence is not None
                fences.append(lock.fence)
            members.kill(node)
            after = client.lock(f"after-{round_number}")
            fences.append(fence_of(after.acquire(timeout=PATIENCE_S)))
            members.start(node)
    assert fences == sorted(set(fences))


@pytest.mark.long
def test_a_hold_outlives_every_member_it_was_granted_by(members: PaxosProcesses) -> None:
    with (
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client,
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as other,
    ):
        lock = client.lock("a")
        fence = fence_of(lock.acquire(timeout=PATIENCE_S))
        for node in NODES:
            members.kill(node)
            assert other.lock("a").acquire(timeout=1.0) is None
            members.start(node)
            members.wait_until_ready(client)  # Or the next kill leaves no majority.
            assert lock.fence == fence
        lock.release()
        after = fence_of(other.lock("a").acquire(timeout=PATIENCE_S))
        assert after > fence


def test_no_fence_comes_again_when_every_member_was_killed(members: PaxosProcesses) -> None:
    with fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client:
        before = fence_of(client.lock("a").acquire(timeout=PATIENCE_S))
        for node in NODES:
            members.kill(node)
        for node in NODES:
            members.start(node)
        assert fence_of(client.lock("b").acquire(timeout=PATIENCE_S)) > before
