"""A leader with a slow disk: when it hands over, to which member, and how often."""

from __future__ import annotations

import itertools

import pytest
from support.role_harness import HOST, T0, at, sends, sent
from support.table_scene import config_of, detector_of

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import acceptor_of, leader_of, monitor_of
from fencelock.actors.paxos.event import (
    BallotSeen,
    ConfirmLease,
    HandOverTo,
    Leadership,
    Resign,
    Resigned,
)
from fencelock.actors.paxos.failure_detector import REST_MS
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.slow_disk import SLOW_FOR_MS
from fencelock.actors.paxos.wire import Ballot, Heartbeat, HeartbeatAck
from fencelock.actors.role_message import DiskSynced, Level, RoleNotice
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING

LEADER, COMMANDER = leader_of("a"), address_of("a", "commander-1")
BALLOT = Ballot(1, LEADER)
SLOW_US, QUICK_US = 300_000, 2_000
STEP_MS = 300


class LeadingNode:
    """The failure detector of a leader ``a``, to which acceptors answer every heartbeat."""

    def __init__(self, members: str = "abc") -> None:
        self.role = detector_of(members)
        self.now_ms = 0
        claimed = Leadership(ballot=BALLOT, commander=COMMANDER, first=1, time_ms=0)
        self.role.handle(LEADER, claimed, self.now)

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms * NS_PER_MS)

    def answer(self, node: str, sync_us: int, applied: int = 1, age_ms: int = 0) -> None:
        ack = HeartbeatAck(
            ballot=BALLOT,
            number=self.role.number,
            applied=applied,
            sync_us=sync_us,
            sync_age_ms=age_ms,
        )
        self.role.handle(acceptor_of(node), ack, self.now)

    def sync(self, own_us: int, age_ms: int = 0, **others_us: int) -> Effects:
        """Let the disks take so long for `STEP_MS`; return the effects of this node's report.

        The reports of the others are of syncs that began ``age_ms`` before.
        """
        self.now_ms += STEP_MS
        self.role.handle(LEADER, ConfirmLease(), self.now)  # It sends a heartbeat.
        for node, sync_us in others_us.items():
            self.answer(node, sync_us, age_ms=age_ms)
        self.now_ms += 1
        synced = DiskSynced(mean_us=own_us, since=self.now)
        return self.role.handle(address_of("a", "node"), synced, self.now)

    def handed_over_at(
        self, reports: int, own_us: int, age_ms: int = 0, **others_us: int
    ) -> list[int]:
        """Return the times (ms) at which it handed over during so many reports."""
        times = list[int]()
        for _ in range(reports):
            if sent(self.sync(own_us, age_ms, **others_us), HandOverTo):
                times.append(self.now_ms)
        return times


def test_a_leader_with_a_far_slower_disk_hands_over_and_reports_why() -> None:
    node = LeadingNode()
    node.sync(SLOW_US, b=QUICK_US, c=QUICK_US)
    node.sync(SLOW_US, b=QUICK_US, c=QUICK_US)

    effects = node.sync(SLOW_US, b=QUICK_US, c=QUICK_US)

    disks = "its disk takes 300 ms for a sync, the disk of b takes 2.0 ms"
    text = f"the leader hands over to b: {disks}"
    assert effects == [
        Send(LEADER, HandOverTo(successor="b", client=monitor_of("a"))),
        Send(address_of("a", "node"), RoleNotice(level=Level.INFO, text=text)),
        Observe("paxos.handed_over_for_disk"),
    ]
    assert node.now_ms >= SLOW_FOR_MS
    assert node.role.handle(LEADER, Resigned(leader="b"), node.now) == ()


@pytest.mark.parametrize(
    ("own_us", "others_us"),
    [
        (SLOW_US, {"b": SLOW_US, "c": SLOW_US}),  # All are slow alike.
        (SLOW_US, {"b": QUICK_US, "c": SLOW_US}),  # No majority is quick without this node.
        (SLOW_US, {"b": QUICK_US}),
        (SLOW_US, {"b": QUICK_US, "c": 0}),  # Of an older release, or without a disk.
        (SLOW_US, {"b": QUICK_US, "c": -1}),
        (SLOW_US, {"b": SLOW_US // 4, "c": SLOW_US // 4}),  # Slower, but not by far.
        (40_000, {"b": QUICK_US, "c": QUICK_US}),  # Quick enough for a busy machine.
    ],
)
def test_a_leader_stays_if_another_gains_little(own_us: int, others_us: dict[str, int]) -> None:
    assert LeadingNode().handed_over_at(20, own_us, **others_us) == []


def test_single_long_syncs_are_no_reason() -> None:
    node = LeadingNode()
    for _ in range(10):
        assert node.handed_over_at(2, SLOW_US, b=QUICK_US, c=QUICK_US) == []
        assert node.handed_over_at(1, QUICK_US, b=QUICK_US, c=QUICK_US) == []


def test_syncs_before_the_disk_became_slow_are_compared_with_none_after() -> None:
    """The disks of all became slow at once; followers still report means of quick syncs, too."""
    node = LeadingNode()
    assert node.handed_over_at(4, QUICK_US, b=QUICK_US, c=QUICK_US) == []
    mixed_us = SLOW_US // 6
    for reports in range(1, 10):
        began_ms = reports * STEP_MS
        assert node.handed_over_at(1, SLOW_US, began_ms, b=mixed_us, c=mixed_us) == []
    assert node.handed_over_at(10, SLOW_US, b=SLOW_US, c=SLOW_US) == []


def test_a_leader_compares_its_disk_only_with_reports_of_a_majority_since_it_became_slow() -> None:
    node = LeadingNode()
    assert node.handed_over_at(10, SLOW_US, 60_000, b=QUICK_US, c=QUICK_US) == []
    assert node.handed_over_at(1, SLOW_US, b=QUICK_US) == []
    assert len(node.handed_over_at(1, SLOW_US, b=QUICK_US, c=QUICK_US)) == 1


def test_a_node_hands_over_for_its_disk_at_most_once_in_a_while() -> None:
    times = LeadingNode().handed_over_at(3 * REST_MS // STEP_MS, SLOW_US, b=QUICK_US, c=QUICK_US)

    assert len(times) == 3
    assert all(later - earlier >= REST_MS for earlier, later in itertools.pairwise(times))


def test_a_node_with_a_slow_disk_stands_after_all_others_for_a_while() -> None:
    def turn_ms(node: LeadingNode) -> int:
        """Return when ``a``, the first follower after ``c``, stands for election (ms)."""
        follower = node.role.suspicion
        follower.on_ballot_seen("c", node.now)
        return (follower.deadline - node.now) // NS_PER_MS

    node = LeadingNode()
    assert turn_ms(node) < TIMING.election_ms + TIMING.rank_ms
    assert node.handed_over_at(3, SLOW_US, b=QUICK_US, c=QUICK_US)
    assert turn_ms(node) >= TIMING.election_ms + 3 * TIMING.rank_ms
    node.now_ms += REST_MS
    assert turn_ms(node) < TIMING.election_ms + TIMING.rank_ms


def test_a_member_with_a_slow_disk_is_no_successor_if_another_is_quick() -> None:
    node = LeadingNode()
    node.answer("b", SLOW_US, applied=9)
    node.answer("c", QUICK_US, applied=8)

    asker = address_of("a", "~1")
    named = sends(node.role.handle(asker, Resign(), node.now))

    assert named == [Send(LEADER, HandOverTo(successor="c", client=asker))]


def test_a_follower_reports_its_syncs_with_the_next_heartbeat() -> None:
    config = config_of()
    role = Acceptor(acceptor_of("c"), HOST, node="c", config=config, recovered=Recovered())
    role.handle(address_of("c", "node"), DiskSynced(mean_us=QUICK_US, since=T0), at(9))

    beat = Heartbeat(ballot=BALLOT, number=1, committed=1, min_applied=0)
    effects = role.handle(COMMANDER, beat, at(20))

    ack = HeartbeatAck(
        ballot=BALLOT,
        number=1,
        applied=1,
        view=0,
        sync_us=QUICK_US,
        sync_age_ms=21,  # Rounded up.
        log_version=LOG_VERSION,
        stored=1,
    )
    assert Send(monitor_of("a"), ack) in effects
    seen = BallotSeen(ballot=BALLOT, leads=True)
    assert Send(monitor_of("c"), seen) in effects
