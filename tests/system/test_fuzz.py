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
from support.planted_bugs import Patch, as_plant, instead, nothing, plant

from fencelock.actors.api.operator_message import ListRecords
from fencelock.actors.api.role_request import ReadClock
from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.wire import Beat
from fencelock.actors.central import server
from fencelock.actors.central.server import LockServer
from fencelock.actors.message import address_of
from fencelock.actors.paxos import replica
from fencelock.actors.table import lock_rules
from fencelock.cluster.host.role_asks import RoleAsks
from fencelock.transport import admission
from fencelock.transport.codec import encode
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


@as_plant
def a_rule_that_raises(sound: Any, table: Any, owner_state: Any, *how: Any, **more: Any) -> bool:
    assert owner_state.owner.isascii(), "planted bug"
    return bool(sound(table, owner_state, *how, **more))


@as_plant
def a_beat_without_a_check(sound: Any, role: Any, sender: Any, event: Any, now: Any) -> Any:
    if isinstance(event, Beat) and event.member.priority > 2**61:
        raise OverflowError("planted bug")
    return sound(role, sender, event, now)


@as_plant
def a_name_without_a_check(sound: Any, role: Any, sender: Any, event: Any, now: Any) -> Any:
    getattr(event, "lock", "").encode("ascii")
    return sound(role, sender, event, now)


@as_plant
def a_check_of_frames_that_raises(sound: Any, data: bytes, cluster: str | None) -> Any:
    frame, arrays = sound(data, cluster)
    assert frame.stamp < 200, "planted bug"
    return frame, arrays


@as_plant
def a_request_without_its_role(sound: Any, asks: RoleAsks, proxy: Any, ask: Any) -> None:
    assert address_of(proxy.role.node, ask.role) in asks._scheduler.roles  # pyright: ignore[reportPrivateUsage]
    sound(asks, proxy, ask)


def roles(protocol: str, *, peers: bool = True) -> Callable[[OfflineFuzzer, int], None]:
    return lambda fuzzer, inputs: fuzzer.roles(protocol, None, inputs, peers=peers)


BUGS: dict[str, tuple[Callable[[OfflineFuzzer, int], None], *tuple[Patch, ...]]] = {
    "a request to a role that is not there": (
        roles("paxos", peers=False),
        (RoleAsks, "begin", a_request_without_its_role),
    ),
    "no limit of skip": (roles("paxos", peers=False), (ListRecords, "check", instead(nothing))),
    "any client of a proposal": (roles("paxos"), (replica, "is_address", instead(whatever))),
    "a rule that raises": (
        OfflineFuzzer.commands,
        (lock_rules, "has_room", a_rule_that_raises),
    ),
    "a beat without a check": (roles("bakery"), (ClusterStatus, "handle", a_beat_without_a_check)),
    "a name without a check": (
        roles("central"),
        (server, "lock_fits", instead(whatever)),
        (LockServer, "handle", a_name_without_a_check),
    ),
    "a check of frames that raises": (
        OfflineFuzzer.frames,
        (admission, "read_frame", a_check_of_frames_that_raises),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_fuzzer_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz, *patches = BUGS[bug]
    for patch in patches:
        plant(monkeypatch, *patch)
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
