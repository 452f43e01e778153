"""Real nodes under attack: none exits, a hold is kept, and a client is served meanwhile."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.expect import present
from support.paths import PROGRAMS

from fencelock.verification.bench.members import NodeProcesses

ATTACKERS = PROGRAMS / "attackers.py"
DESCRIPTORS = 256
"""Open files that a node may have: the attack with connections opens far more."""

MEMORY_MAX_KIB = 640 * 1024
PAIRS = 20


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    folder = tmp_path_factory.mktemp("attacked")
    with NodeProcesses(folder, "paxos", 3, durable=True) as members:
        for process in members.processes.values():
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        yield members


def peak_kib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1])


ATTACKS = (
    *("nested", "nested-small", "describe-4096", "describe-256", "garbage", "idle"),
    *("parts-empty", "parts-64", "parts-ended", "parts-of-member", "unread"),
)
WITH_KEYS = "keyed-endless", "keyed-ended"
"""Attacks on a cluster with keys, for `attacks.py` alone."""

SHORT = "nested", "nested-small", "describe-4096", "describe-256", "garbage", "idle"


@pytest.mark.parametrize(
    "attack",
    [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in ATTACKS],
)
def test_attacked_nodes_go_on_and_a_hold_is_kept(members: NodeProcesses, attack: str) -> None:
    with members.ready_client() as client:
        held, lock = client.lock(f"held-{attack}"), client.lock(f"pairs-{attack}")
        with held:
            fence = held.fence
            command = [sys.executable, str(ATTACKERS), attack, "2", members.cluster]
            served = 0
            with subprocess.Popen([*command, *members.addresses.values()]) as attacking:
                while attacking.poll() is None or served < PAIRS:
                    with lock:
                        served += 1
            assert attacking.returncode == 0
            held.raise_if_lost()
            assert held.held
            assert held.fence == fence
        assert served >= PAIRS
    for process in members.processes.values():
        assert process.poll() is None
        assert peak_kib(process.pid) < MEMORY_MAX_KIB


def test_the_attacks_of_the_benchmark_are_those_of_the_tests() -> None:
    spec = present(importlib.util.spec_from_file_location("attackers", ATTACKERS))
    assert spec.loader is not None
    attackers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(attackers)
    assert set(attackers.ATTACKS) == {*ATTACKS, *WITH_KEYS}
