"""The leader of the log: its pauses, its leases, its successor, and real nodes that hand over.

How it begins to lead, gives way and hands over stands in `transcripts/paxos-leader.txt`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pykka
import pytest
from support.expect import PATIENCE_S, checked
from support.log_workload import LogWriter, logbook
from support.real_nodes import loopback_addresses, running_nodes, until
from support.role_harness import HOST, T0, at, not_counted, sends, sent
from support.table_scene import LISTENER, config_of, detector_of

import fencelock
from fencelock.actors.effect import Checkpoint, Effects, Observe, Persist, Send, Spawn, Wake
from fencelock.actors.lease import DRIFT_PPM, relied_ns
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import (
    LEADER_LEASE_MS,
    acceptor_of,
    leader_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.failure_detector import FailureDetector, LeaderLease
from fencelock.actors.paxos.journal import Recovered, recover
from fencelock.actors.paxos.leader import DOUBLINGS_MAX, Leader
from fencelock.actors.paxos.member import MemoryAcceptor
from fencelock.actors.paxos.wire import (
    NO_BALLOT,
    NO_OP,
    Ballot,
    Batch,
    Heartbeat,
    HeartbeatAck,
    Pledge,
    Pledged,
    Preempted,
    Prepare,
    Release,
    TakeOver,
)
from fencelock.actors.proxy.event import TimesUnfit
from fencelock.actors.role_message import Level, LinkDown, RoleNotice
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.world import World

CONFIG = config_of()
LEADER = leader_of("a")
MONITOR, REPLICA = address_of("a", "monitor"), address_of("a", "replica")
BATCH = Batch(time_ms=9, commands=(b"x",))


@pytest.fixture
def leader() -> Leader:
    return Leader(LEADER, HOST, node="a", config=CONFIG, random=Random(1), recovered=Recovered())


def suspect(leader: Leader) -> Effects:
    return leader.handle(MONITOR, events.Suspect(), T0)


def adopt(leader: Leader, *batches: Batch, floor: int = 1) -> Effects:
    adopted = events.Adopted(ballot=leader.ballot, floor=floor, source="b", batches=batches)
    return leader.handle(LEADER, adopted, T0)


def preempted(round_: int) -> Preempted:
    return Preempted(ballot=Ballot(round_, leader_of("b")))


def test_it_learns_what_others_decided_before_it_leads(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect(leader)

    wait = not_counted(adopt(leader, NO_OP, BATCH, floor=4))
    assert wait == [Send(address_of("a", "catchup"), events.Lacking(first=1, target=4, source="b"))]
    monkeypatch.setattr(CONFIG, "applied", 3)
    assert not_counted(leader.handle(REPLICA, events.Applied(slot=3), T0)) == []
    monkeypatch.setattr(CONFIG, "applied", 5)
    leadership = not_counted(leader.handle(REPLICA, events.Applied(slot=5), T0))

    spawn = checked(Spawn, leadership[1])
    assert (spawn.arguments["first"], spawn.arguments["batches"]) == (5, (BATCH,))


def test_pauses_grow_while_attempts_fail_and_are_short_again_after_a_leadership(
    leader: Leader,
) -> None:
    longest = 0
    for round_ in range(2, 40, 2):
        suspect(leader)
        longest = max(longest, pause_of(leader.handle(LEADER, preempted(round_), T0)))
    assert 4 * TIMING.reply_ms < longest <= 2 * TIMING.reply_ms << DOUBLINGS_MAX

    suspect(leader)
    adopt(leader)
    assert pause_of(leader.handle(LEADER, preempted(99), T0)) <= 2 * TIMING.reply_ms


def pause_of(effects: Effects) -> int:
    return next(message.pause_ms for message in sent(effects, events.SteppedDown))


ASKER = address_of("a", "~ask-1")
BALLOT = Ballot(1, LEADER)
HIGHER = Ballot(2, leader_of("b"))


def test_a_monitor_of_a_member_that_does_not_lead_replies_so_at_once() -> None:
    monitor = detector_of("a")
    monitor.handle(acceptor_of("a"), events.BallotSeen(ballot=HIGHER, leads=True), T0)
    assert resign(monitor) == Send(ASKER, events.Resigned(leader="b"))


def answered(monitor: FailureDetector, node: str, applied: int) -> None:
    ack = HeartbeatAck(ballot=BALLOT, number=monitor.number, applied=applied)
    monitor.handle(acceptor_of(node), ack, T0)


def resign(monitor: FailureDetector, now_ms: int = 1) -> Send:
    (send,) = sends(monitor.handle(ASKER, events.Resign(), at(now_ms)))
    return send


def handed_over_to(successor: str) -> Send:
    return Send(LEADER, events.HandOverTo(successor=successor, client=ASKER))


NOBODY = Send(ASKER, events.Resigned(leader=""))
"""The leader goes on, and can be asked again."""


def test_the_successor_answers_and_has_applied_the_most() -> None:
    monitor = detector_of("abcde")
    commander = address_of("a", "commander-1")
    monitor.handle(
        LEADER, events.Leadership(ballot=BALLOT, commander=commander, first=1, time_ms=0), T0
    )
    assert resign(monitor) == NOBODY

    for node, applied in (("b", 7), ("c", 9), ("d", 12), ("a", 99)):
        answered(monitor, node, applied)
    assert resign(monitor) == handed_over_to("d")
    monitor.handle(monitor.address, LinkDown(node="d"), Instant(1))
    assert resign(monitor) == handed_over_to("c")
    assert resign(monitor, LEADER_LEASE_MS + 1) == NOBODY


def test_only_the_leader_that_is_followed_can_have_a_node_stand() -> None:
    monitor = detector_of()
    seen = events.BallotSeen(ballot=HIGHER, leads=True)
    ignored = (Observe("paxos.take_over_ignored"),)
    message = TakeOver(ballot=HIGHER)
    assert monitor.handle(leader_of("b"), message, T0) == ignored
    monitor.handle(acceptor_of("a"), seen, T0)

    assert monitor.handle(leader_of("c"), message, T0) == ignored
    assert monitor.handle(address_of("b", "other"), message, T0) == ignored
    forged = TakeOver(ballot=Ballot(1 << 50, leader_of("b")))
    assert monitor.handle(leader_of("b"), forged, T0) == ignored
    stand = (Send(leader_of("a"), events.Succeed(ballot=HIGHER)),)
    assert monitor.handle(leader_of("b"), message, T0) == stand


def test_an_acceptor_released_from_its_promise_adopts_another_at_once() -> None:
    role = Acceptor(acceptor_of("c"), HOST, node="c", config=CONFIG, recovered=Recovered())
    commander, scout = address_of("a", "commander-1"), address_of("b", "scout-2")
    beat = Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=0)
    prepare = Prepare(ballot=HIGHER, first=1)
    role.handle(commander, beat, T0)
    assert role.handle(scout, prepare, T0) == (Observe("paxos.lease_kept"),)
    forged = role.handle(address_of("b", "leader"), Release(ballot=BALLOT), T0)
    assert forged == (Observe("paxos.stranger_leads"),)

    role.handle(LEADER, Release(ballot=BALLOT), T0)
    late = role.handle(commander, beat, T0)  # Overtaken on its way: it must not count.

    assert late == [Observe("paxos.late_heartbeat")]
    role.handle(scout, prepare, T0)
    assert role.promised == HIGHER


ACCEPTOR = acceptor_of("a")
LOW, HIGH = Ballot(1, leader_of("b")), Ballot(2, leader_of("c"))
COMMANDER, SCOUT = address_of("b", "commander-1"), address_of("c", "scout-2")
HEARTBEAT = Heartbeat(ballot=LOW, number=1, committed=1, min_applied=0)
LONG_MS = 4 * LEADER_LEASE_MS


def acceptor(lease_ms: int, recovered: Recovered) -> Acceptor:
    return Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=recovered, lease_ms=lease_ms)


def promises(role: Acceptor, ms: int) -> bool:
    """Return whether ``role`` promises another leader a higher ballot."""
    effects = role.handle(SCOUT, Prepare(ballot=HIGH, first=1), at(ms))
    return effects != (Observe("paxos.lease_kept"),)


def lease_record(lease_ms: int) -> Pledged:
    return Pledged(pledge=Pledge.LEASE, ballot=Ballot(lease_ms, ACCEPTOR))


def test_an_acceptor_with_longer_leases_records_that_before_it_gives_one() -> None:
    role = acceptor(LONG_MS, Recovered())

    assert role.begin(T0) == (Persist(lease_record(LONG_MS)),)

    recovered = recover([lease_record(LONG_MS)])
    assert (recovered.lease_ms, recovered.promised, recovered.led) == (LONG_MS, NO_BALLOT, 0)
    assert acceptor(LONG_MS, recovered).begin(T0) == ()
    assert recover([]).lease_ms == LEADER_LEASE_MS


def test_an_acceptor_whose_leases_became_shorter_waits_once_for_a_longer_one() -> None:
    role = acceptor(LEADER_LEASE_MS, Recovered(promised=LOW, lease_ms=LONG_MS))

    (wake,) = role.begin(T0)

    assert wake == Wake(LONG_MS, events.LeaseExpired())
    assert not promises(role, LONG_MS - 1)
    recorded = role.handle(ACCEPTOR, events.LeaseExpired(), at(LONG_MS))
    assert recorded == (Persist(lease_record(LEADER_LEASE_MS)),)
    assert promises(role, LONG_MS)


def test_a_shorter_promise_to_the_same_leader_does_not_end_a_longer_one() -> None:
    role = acceptor(LEADER_LEASE_MS, Recovered(promised=LOW, lease_ms=LONG_MS))
    role.begin(T0)

    effects = role.handle(COMMANDER, HEARTBEAT, at(1))

    ack = HeartbeatAck(
        ballot=LOW,
        number=1,
        applied=1,
        view=0,
        lease_ms=LEADER_LEASE_MS,
        log_version=LOG_VERSION,
        stored=1,
    )
    assert Send(monitor_of("b"), ack) in effects
    assert not promises(role, LONG_MS - 1)


def test_a_lease_that_is_given_back_ends_at_once() -> None:
    role = acceptor(LONG_MS, Recovered())
    role.handle(COMMANDER, HEARTBEAT, T0)

    role.handle(leader_of("b"), Release(ballot=LOW), at(1))

    assert promises(role, 1)


def test_a_cut_of_the_journal_keeps_the_length_of_leases() -> None:
    role = acceptor(LONG_MS, Recovered())
    role.begin(T0)

    effects = role.handle(replica_of("a"), events.Trimmed(slot=1), T0)

    assert effects == (Checkpoint((lease_record(LONG_MS),)),)


def test_an_acceptor_without_a_disk_records_nothing() -> None:
    role = MemoryAcceptor(
        ACCEPTOR, HOST, node="a", config=CONFIG, recovered=Recovered(), lease_ms=LONG_MS
    )
    assert role.begin(T0) == []


@pytest.mark.parametrize(
    ("own_ms", "promised_ms", "relied_ms"),
    [
        (LEADER_LEASE_MS, LONG_MS, LEADER_LEASE_MS),
        (LONG_MS, LEADER_LEASE_MS, LEADER_LEASE_MS),
        (LONG_MS, LONG_MS, LONG_MS),
        (LEADER_LEASE_MS, 0, 0),
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
    assert lease.acknowledge("b", at(5), LEADER_LEASE_MS) == at(5) + relied_ns(LEADER_LEASE_MS)
    assert lease.acknowledge("c", at(6), LONG_MS) is None
    assert lease.acknowledge("b", at(6), LEADER_LEASE_MS) == at(5) + relied_ns(LONG_MS)


def times_seen(role: FailureDetector, lease_ms: int) -> Effects:
    """Let ``role`` learn that the leader has leases of that length; return its reports."""
    seen = events.BallotSeen(ballot=LOW, leads=True, timing=TIMING._replace(lease_ms=lease_ms))
    effects = role.handle(ACCEPTOR, seen, T0)
    to = (LISTENER, address_of("a", "node"))
    return [send for send in sends(effects) if send.to in to]


def test_a_member_reports_once_that_the_leaders_times_differ_and_once_that_they_agree() -> None:
    role = detector_of()
    assert times_seen(role, LEADER_LEASE_MS) == []

    why = "the times of b differ from this node's: lease_ms is 500 there and 250 here"
    assert times_seen(role, 500) == [
        Send(address_of("a", "node"), RoleNotice(level=Level.WARNING, text=why)),
        Send(LISTENER, TimesUnfit(why=why)),
    ]
    assert times_seen(role, 500) == []
    again = "the times are the same on the leader and fit the network again"
    assert times_seen(role, LEADER_LEASE_MS) == [
        Send(address_of("a", "node"), RoleNotice(level=Level.INFO, text=again)),
        Send(LISTENER, TimesUnfit(why="")),
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
        with fencelock.connect(addresses, connect_timeout=PATIENCE_S) as client:
            with client.lock("orders"):
                pass
            details = {status.node: status.detail for status in client.describe()}
    finally:
        for node in nodes:
            node.stop()
    differing = {name for name, detail in details.items() if "differ from this node's" in detail}
    assert differing in ({"n3"}, {"n1", "n2"})  # All but those that have the leader's times.
    words = {"heartbeat_ms is", "lease_ms is", "election_ms is"}
    assert all(part in details[name] for name in differing for part in words)


def world_of_three(seed: int) -> World:
    world = World(seed, Faults(delay_us=500, sync_us=1_000))
    for name in ("n1", "n2", "n3"):
        world.add(name, logbook(every_ms=2), member=True)
    world.power_on_all()
    world.run(2_000 * NS_PER_MS)
    return world


def longest_gap_ms(world: World, ms: int) -> int:
    """Return how long at most nothing was decided in the next ``ms``."""
    times = [world.time]
    last = 0
    for _ in range(ms):
        world.run_for(1)
        scribes = [world.role_at(address_of(name, "scribe")) for name in world.nodes]
        seen = max(len(scribe.received) for scribe in scribes if isinstance(scribe, LogWriter))
        if seen > last:
            times.append(world.time)
        last = seen
    times.append(world.time)
    return max(b - a for a, b in itertools.pairwise(times)) // NS_PER_MS


@pytest.mark.parametrize("seed", range(5))
def test_the_log_goes_on_long_before_a_lease_is_over(seed: int) -> None:
    world = world_of_three(seed)
    leaders = {world.role_at(address_of(name, "scribe")).leader for name in world.nodes}
    (leader,) = leaders
    world.nodes[leader].tell(monitor_of(leader), events.Resign())

    assert longest_gap_ms(world, 1_000) < LEADER_LEASE_MS // 3
    assert world.marks["paxos.handed_over"] == world.marks["paxos.took_over"] == 1
    assert world.marks["paxos.lease_released"] >= len(world.nodes) - 1
    (successor,) = {world.role_at(address_of(name, "scribe")).leader for name in world.nodes}
    assert successor != leader


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path) as nodes:
        yield nodes


def test_real_nodes_hand_over_in_a_fraction_of_an_election(nodes: dict[str, Node]) -> None:
    leader = wait_for_leader(nodes)
    proxy = next(node for name, node in nodes.items() if name != leader)
    grants: list[float] = []
    over = threading.Event()

    def work() -> None:
        with fencelock.connect(proxy.address, connect_timeout=PATIENCE_S) as client:
            while not over.is_set():
                with client.lock("x", timeout=PATIENCE_S):
                    grants.append(time.monotonic())

    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: len(grants) > 20)
    began = time.monotonic()
    assert nodes[leader].stop()
    took = time.monotonic() - began
    enough = len(grants) + 20
    until(lambda: len(grants) > enough)
    over.set()
    worker.join(PATIENCE_S)

    gap = max(b - a for a, b in itertools.pairwise(grants))
    assert gap < (LEADER_LEASE_MS + TIMING.election_ms) / 1_000
    assert took < 3 * TIMING.outcome_ms / 1_000


def wait_for_leader(nodes: dict[str, Node]) -> str:
    leaders: list[str] = []

    def is_known() -> bool:
        try:
            monitor = nodes["n1"].ref("monitor")
        except pykka.ActorDeadError:
            return False  # The members have not met yet.
        leaders.append(monitor.ask(events.Resign(), timeout=PATIENCE_S).leader)
        return bool(leaders[-1])

    until(is_known)
    return leaders[-1]
