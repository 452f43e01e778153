"""Messages with each field at its extremes, and bytes for the Redis door: no node exits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis_fuzz import Report, fuzz
from support.fuzz_live import LiveFuzzer
from support.fuzz_offline import (
    OfflineFuzzer,
    hints_of,
    member_messages,
    messages,
    requests,
    variants_of,
)

from fencelock.actors.api.role_request import ReadClock
from fencelock.actors.api.session_message import ListRecords
from fencelock.actors.bakery.message import Beat
from fencelock.actors.bakery.status import ClusterStatus
from fencelock.actors.central.server import LockServer
from fencelock.actors.message import address_of
from fencelock.actors.paxos import replica
from fencelock.actors.table import requests as table_requests
from fencelock.cluster.host.role_asks import RoleAsks
from fencelock.transport.codec import encode
from fencelock.transport.frame import read_frame
from fencelock.verification.bench.members import NodeProcesses

PROTOCOLS = "paxos", "bakery", "lamport", "central"
INPUTS = 2_000


def found(fuzzer: OfflineFuzzer) -> str:
    return str(fuzzer.findings)


def test_every_field_of_every_message_is_at_its_extremes_once() -> None:
    varied: defaultdict[type, set[str]] = defaultdict(set)
    first: dict[type, Any] = {}
    for message in variants_of(messages(), {}):
        kind = type(message)
        sound = first.setdefault(kind, message)
        differs = {
            name for name in hints_of(kind) if getattr(message, name) != getattr(sound, name)
        }
        assert len(differs) <= 1
        varied[kind] |= differs
    assert {kind: set(hints_of(kind)) for kind in messages()} == {
        kind: varied[kind] for kind in messages()
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_message_of_a_client_or_a_member_ends_a_node(protocol: str) -> None:
    fuzzer = OfflineFuzzer(seed=1)
    values = {"session": "client-1f.1", "lock": "a", "owner": "o", "ttl_ms": 60_000, "most": 10}
    variants = variants_of(requests(), values)
    fuzzer.roles(protocol, islice(variants, 2 * INPUTS), 2 * INPUTS, peers=False)
    fuzzer.roles(protocol, None, INPUTS, peers=False)
    fuzzer.roles(protocol, None, INPUTS, peers=True)
    assert not found(fuzzer)
    assert fuzzer.served[protocol]


def test_no_bytes_break_frames_the_log_snapshots_or_journals() -> None:
    fuzzer = OfflineFuzzer(seed=1)
    fuzzer.frames(INPUTS)
    fuzzer.commands(INPUTS)
    fuzzer.snapshots(INPUTS // 4)
    fuzzer.records(INPUTS)
    assert not found(fuzzer)


def test_real_nodes_survive_every_request_and_messages_of_a_member(tmp_path: Path) -> None:
    with (
        NodeProcesses(tmp_path, "paxos", 3, durable=True) as members,
        members.ready_client() as client,
    ):
        fuzzer = LiveFuzzer(members)
        values = {
            **{"lock": "a", "owner": "o", "ttl_ms": 60_000, "most": 100},
            **{"role": "clock", "body": encode(ReadClock()), "wait_ms": 100},
        }
        fuzzer.clients(islice(variants_of(requests(), values), 2_000))
        given = variants_of(messages(), values)
        fuzzer.peers("n3", islice(member_messages("paxos", given, 1), 600))
        report = fuzzer.finish(client)
    assert not report.exits
    assert not report.faults
    assert report.frames > 5_000
    assert report.counters["proxy.refused"] > 1_000


def whatever(name: str) -> bool:
    return True


def without_limits(self: Any) -> None:
    del self


def plant_no_limit_of_skip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ListRecords, "check", without_limits)


def plant_any_client_of_a_proposal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica, "is_address", whatever)


def plant_rule_that_raises(patch: pytest.MonkeyPatch) -> None:
    sound = table_requests.has_room

    def broken(table: Any, owner_state: Any, *how: Any) -> bool:
        assert owner_state.owner.isascii(), "planted bug"
        return sound(table, owner_state, *how)

    patch.setattr(table_requests, "has_room", broken)


def plant_beat_without_check(patch: pytest.MonkeyPatch) -> None:
    sound = ClusterStatus.handle

    def broken(self: Any, sender: Any, event: Any, now: Any) -> Any:
        if isinstance(event, Beat) and event.member.priority > 2**61:
            raise OverflowError("planted bug")
        return sound(self, sender, event, now)

    patch.setattr(ClusterStatus, "handle", broken)


def plant_name_without_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fencelock.actors.central.server.lock_fits", whatever)
    sound = LockServer.handle

    def broken(self: Any, sender: Any, event: Any, now: Any) -> Any:
        getattr(event, "lock", "").encode("ascii")
        return sound(self, sender, event, now)

    patch.setattr(LockServer, "handle", broken)


def plant_frame_check_that_raises(patch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, cluster: str | None) -> Any:
        frame, arrays = read_frame(data, cluster)
        assert frame.stamp < 200, "planted bug"
        return frame, arrays

    patch.setattr("fencelock.transport.admission.read_frame", broken)


def roles(protocol: str, *, peers: bool = True) -> Callable[[OfflineFuzzer, int], None]:
    return lambda fuzzer, inputs: fuzzer.roles(protocol, None, inputs, peers=peers)


def plant_request_without_its_role(patch: pytest.MonkeyPatch) -> None:
    sound = RoleAsks.begin

    def broken(self: RoleAsks, proxy: Any, ask: Any) -> None:
        assert address_of(proxy.role.node, ask.role) in self._scheduler.roles  # pyright: ignore[reportPrivateUsage]
        sound(self, proxy, ask)

    patch.setattr(RoleAsks, "begin", broken)


BUGS: dict[str, tuple[Any, Any]] = {
    "a request to a role that is not there": (
        plant_request_without_its_role,
        roles("paxos", peers=False),
    ),
    "no limit of skip": (plant_no_limit_of_skip, roles("paxos", peers=False)),
    "any client of a proposal": (plant_any_client_of_a_proposal, roles("paxos")),
    "a rule that raises": (plant_rule_that_raises, OfflineFuzzer.commands),
    "a beat without a check": (plant_beat_without_check, roles("bakery")),
    "a name without a check": (plant_name_without_check, roles("central")),
    "a check of frames that raises": (plant_frame_check_that_raises, OfflineFuzzer.frames),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_fuzzer_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, fuzz = BUGS[bug]
    plant(monkeypatch)
    for seed in range(20):
        fuzzer = OfflineFuzzer(seed)
        fuzz(fuzzer, INPUTS)
        if fuzzer.findings.by_place:
            return
    pytest.fail(f"{bug} was not found")


def test_a_draw_depends_on_the_seed_alone() -> None:
    runs: list[tuple[int, float]] = []
    for _ in range(2):
        fuzzer = OfflineFuzzer(seed=5)
        fuzzer.commands(100)
        runs.append((fuzzer.findings.inputs, fuzzer.random.random()))
    assert runs[0] == runs[1] != (0, Random(5).random())


# The Redis door


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
