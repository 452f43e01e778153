"""Members whose configurations have different times: they are safe, and they report it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.effects import HOST, T0
from support.real_nodes import LONG_S, loopback_addresses
from support.replicas import config_of

import fencelock
from fencelock.actors.effect import Checkpoint, Effects, Observe, Persist, Send, Wake
from fencelock.actors.lease import DRIFT_PPM, relied_ns
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos import config
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import LEASE_MS
from fencelock.actors.paxos.failure_detector import FailureDetector, LeaderLease
from fencelock.actors.paxos.journal import Recovered, recover
from fencelock.actors.paxos.member import MemoryAcceptor
from fencelock.actors.paxos.message import (
    NO_BALLOT,
    Ballot,
    Heartbeat,
    HeartbeatAck,
    Pledge,
    Pledged,
    Prepare,
    Release,
)
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node

CONFIG = config_of()
ACCEPTOR, PROXY = config.acceptor_of("a"), address_of("a", "proxy")
LOW, HIGH = Ballot(1, config.leader_of("b")), Ballot(2, config.leader_of("c"))
COMMANDER, SCOUT = address_of("b", "commander-1"), address_of("c", "scout-2")
LONG_MS = 4 * LEASE_MS


def at(ms: int) -> Instant:
    return Instant(ms * NS_PER_MS)


def acceptor(lease_ms: int, recovered: Recovered) -> Acceptor:
    return Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=recovered, lease_ms=lease_ms)


def promises(role: Acceptor, ms: int) -> bool:
    """Return whether ``role`` promises another leader a higher ballot."""
    effects = role.handle(SCOUT, Prepare(ballot=HIGH, first=1), at(ms))
    return effects != (Observe("paxos.lease_kept"),)


def lease_record(lease_ms: int) -> Pledged:
    return Pledged(pledge=Pledge.LEASE, ballot=Ballot(lease_ms, ACCEPTOR))


def heartbeat(number: int = 1) -> Heartbeat:
    return Heartbeat(ballot=LOW, number=number, committed=1, min_applied=0)


def test_an_acceptor_with_longer_leases_records_that_before_it_gives_one() -> None:
    role = acceptor(LONG_MS, Recovered())

    assert role.begin(T0) == (Persist(lease_record(LONG_MS)),)

    recovered = recover([lease_record(LONG_MS)])
    assert (recovered.lease_ms, recovered.promised, recovered.led) == (LONG_MS, NO_BALLOT, 0)
    assert acceptor(LONG_MS, recovered).begin(T0) == ()
    assert recover([]).lease_ms == LEASE_MS


def test_an_acceptor_whose_leases_became_shorter_waits_once_for_a_longer_one() -> None:
    role = acceptor(LEASE_MS, Recovered(promised=LOW, lease_ms=LONG_MS))

    (wake,) = role.begin(T0)

    assert wake == Wake(LONG_MS, events.LeaseExpired())
    assert not promises(role, LONG_MS - 1)
    recorded = role.handle(ACCEPTOR, events.LeaseExpired(), at(LONG_MS))
    assert recorded == (Persist(lease_record(LEASE_MS)),)
    assert promises(role, LONG_MS)


def test_a_shorter_promise_to_the_same_leader_does_not_end_a_longer_one() -> None:
    role = acceptor(LEASE_MS, Recovered(promised=LOW, lease_ms=LONG_MS))
    role.begin(T0)

    effects = role.handle(COMMANDER, heartbeat(), at(1))

    ack = HeartbeatAck(
        ballot=LOW, number=1, applied=1, view=0, lease_ms=LEASE_MS, log_version=LOG_VERSION
    )
    assert Send(config.monitor_of("b"), ack) in effects
    assert not promises(role, LONG_MS - 1)


def test_a_lease_that_is_given_back_ends_at_once() -> None:
    role = acceptor(LONG_MS, Recovered())
    role.handle(COMMANDER, heartbeat(), T0)

    role.handle(config.leader_of("b"), Release(ballot=LOW), at(1))

    assert promises(role, 1)


def test_a_cut_of_the_journal_keeps_the_length_of_leases() -> None:
    role = acceptor(LONG_MS, Recovered())
    role.begin(T0)

    effects = role.handle(config.replica_of("a"), events.Trimmed(slot=1), T0)

    assert effects == (Checkpoint((lease_record(LONG_MS),)),)


def test_an_acceptor_without_a_disk_records_nothing() -> None:
    role = MemoryAcceptor(
        ACCEPTOR, HOST, node="a", config=CONFIG, recovered=Recovered(), lease_ms=LONG_MS
    )
    assert role.begin(T0) == []


@pytest.mark.parametrize(
    ("own_ms", "promised_ms", "relied_ms"),
    [
        (LEASE_MS, LONG_MS, LEASE_MS),
        (LONG_MS, LEASE_MS, LEASE_MS),
        (LONG_MS, LONG_MS, LONG_MS),
        (LEASE_MS, 0, 0),
    ],
)
def test_a_leader_relies_on_the_shorter_lease(
    own_ms: int, promised_ms: int, relied_ms: int
) -> None:
    lease = LeaderLease(config_of("b"), own_ms, DRIFT_PPM)
    assert lease.acknowledge("b", at(7), promised_ms) == at(7) + relied_ns(relied_ms)


def test_a_leader_relies_on_no_more_than_a_majority_promised() -> None:
    lease = LeaderLease(CONFIG, LONG_MS, DRIFT_PPM)
    assert lease.acknowledge("a", at(5), LONG_MS) is None
    assert lease.acknowledge("b", at(5), LEASE_MS) == at(5) + relied_ns(LEASE_MS)
    assert lease.acknowledge("c", at(6), LONG_MS) is None
    assert lease.acknowledge("b", at(6), LEASE_MS) == at(5) + relied_ns(LONG_MS)


def times_seen(role: FailureDetector, lease_ms: int) -> Effects:
    """Let ``role`` learn that the leader has leases of that length; return its reports."""
    seen = events.BallotSeen(ballot=LOW, leads=True, timing=TIMING._replace(lease_ms=lease_ms))
    effects = role.handle(ACCEPTOR, seen, T0)
    to = (PROXY, address_of("a", "node"))
    return [one for one in effects if isinstance(one, Send) and one.to in to]


def test_a_member_reports_once_that_the_leaders_times_differ_and_once_that_they_agree() -> None:
    role = FailureDetector(
        config.monitor_of("a"), HOST, node="a", config=CONFIG, random=Random(1), listener=PROXY
    )
    assert times_seen(role, LEASE_MS) == []

    why = "the times of b differ from this node's: lease_ms is 500 there and 250 here"
    assert times_seen(role, 500) == [
        Send(address_of("a", "node"), RoleNotice(level=Level.WARNING, text=why)),
        Send(PROXY, events.TimesUnfit(why=why)),
    ]
    assert times_seen(role, 500) == []
    again = "the times are the same on the leader and fit the network again"
    assert times_seen(role, LEASE_MS) == [
        Send(address_of("a", "node"), RoleNotice(level=Level.INFO, text=again)),
        Send(PROXY, events.TimesUnfit(why="")),
    ]


def test_status_shows_which_times_of_a_real_node_differ(tmp_path: Path) -> None:
    text = starting_config(loopback_addresses())
    slower = text.replace("# heartbeat_ms = 50", "heartbeat_ms = 100")
    assert slower != text
    nodes = [
        Node.start(parse(slower if name == "n3" else text, tmp_path), name, found=True)
        for name in ("n1", "n2", "n3")
    ]
    try:
        addresses = ",".join(node.address for node in nodes)
        with fencelock.connect(addresses, connect_timeout=LONG_S) as client:
            with client.lock("orders"):
                pass
            details = {status.node: status.detail for status in client.describe()}
    finally:
        for node in nodes:
            node.stop()
    differing = {name for name, detail in details.items() if "differ from this node's" in detail}
    assert differing in ({"n3"}, {"n1", "n2"})  # All but those that have the leader's times.
    words = {"heartbeat_ms is", "lease_ms is", "election_ms is"}
    assert all(word in details[name] for name in differing for word in words)
