"""The failure detector: suspicion, heartbeats, the lease, and the replies that heartbeats
report."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.expect import only
from support.role_harness import at, sends, sent
from support.table_scene import LISTENER, config_of, detector_of

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos import config, failure_detector
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos.acceptor import LeasePromise
from fencelock.actors.paxos.config import (
    LEADER_LEASE_MS,
    acceptor_of,
    leader_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.failure_detector import (
    ASKED_MAX,
    JITTER_MS,
    OVERTAKEN_MS,
    REST_MS,
    SPREADS,
    FailureDetector,
    LeaderLease,
)
from fencelock.actors.paxos.wire import Ballot, HeartbeatAck
from fencelock.actors.role_message import Level, LinkDown, RoleNotice
from fencelock.actors.timing import TIMING

BALLOT, OTHERS = Ballot(3, leader_of("a")), Ballot(4, leader_of("b"))
COMMANDER, HERE = address_of("a", "commander-3"), monitor_of("a")
LEADER, REPLICA = leader_of("a"), replica_of("a")
LEADING = events.Leadership(ballot=BALLOT, commander=COMMANDER, first=1, time_ms=0)
PPM = 1_000_000


@pytest.fixture
def monitor() -> FailureDetector:
    role = detector_of()
    role.begin(at(0))
    return role


def watch(monitor: FailureDetector, now: Instant) -> Effects:
    """Let the timer that runs ring."""
    return monitor.handle(HERE, events.LeaderCheck(deadline=monitor.suspicion.watching), now)


def ballot_seen(ballot: Ballot = OTHERS, *, leads: bool = True) -> events.BallotSeen:
    return events.BallotSeen(ballot=ballot, leads=leads)


def ack(number: int, applied: int = 1) -> HeartbeatAck:
    return HeartbeatAck(ballot=BALLOT, number=number, applied=applied)


def pulse(number: int, *ballot_seen: int, min_applied: int = 0, confirmed: int = 0) -> Send:
    heartbeat = events.SendHeartbeat(
        number=number, min_applied=min_applied, acked=ballot_seen, confirmed=confirmed, view=0
    )
    return Send(COMMANDER, heartbeat)


def follow(leader: str) -> list[Effect]:
    return [
        Send(REPLICA, events.LeaderChanged(leader=leader)),
        Send(LEADER, events.LeaderChanged(leader=leader)),
    ]


def test_a_node_alone_stands_at_once_and_others_listen_for_a_moment() -> None:
    assert detector_of("a").begin(at(0)) == [Wake(0, events.LeaderCheck(deadline=at(0)))]
    wake = only(Wake, detector_of().begin(at(0)))
    assert TIMING.startup_ms <= wake.after_ms < TIMING.startup_ms + SPREADS * TIMING.round_trip_ms


def test_silence_is_suspicious_and_a_heartbeat_puts_it_off(monitor: FailureDetector) -> None:
    monitor.handle(acceptor_of("a"), ballot_seen(), at(90))
    early = watch(monitor, at(TIMING.startup_ms + SPREADS * TIMING.round_trip_ms))
    assert sends(early) == []

    late = watch(monitor, at(90 + TIMING.election_ms + TIMING.rank_ms + JITTER_MS))

    assert late[0] == Send(LEADER, events.Suspect(above=OTHERS))


def test_followers_stand_one_after_the_other_from_the_leader_on() -> None:
    stands_at: dict[str, int] = {}
    for node in "acde":
        role = detector_of("abcde", node)
        role.begin(at(0))
        role.handle(acceptor_of(node), ballot_seen(), at(1_000))
        stands_at[node] = (role.suspicion.deadline - at(1_000)) // NS_PER_MS

    assert sorted(stands_at, key=stands_at.__getitem__) == ["c", "d", "e", "a"]
    for rank, node in enumerate("cdea"):
        first = TIMING.election_ms + rank * TIMING.rank_ms
        assert first <= stands_at[node] < first + JITTER_MS


def test_a_timer_that_rings_late_shows_that_this_node_stood_still(monitor: FailureDetector) -> None:
    monitor.handle(acceptor_of("a"), ballot_seen(), at(90))
    woken = at(90 + 2 * TIMING.election_ms)

    late = watch(monitor, woken)

    assert sends(late) == []
    assert monitor.suspicion.deadline == at(
        90 + 2 * TIMING.election_ms + monitor.suspicion.stall_ms
    )
    assert watch(monitor, monitor.suspicion.deadline)[0] == Send(
        LEADER, events.Suspect(above=OTHERS)
    )


def test_replica_and_leader_learn_who_leads_when_it_is_news(monitor: FailureDetector) -> None:
    assert monitor.handle(acceptor_of("a"), ballot_seen(), at(1))[-2:] == follow("b")
    again = monitor.handle(acceptor_of("a"), ballot_seen(), at(2))
    assert sends(again) == []


def test_a_candidate_is_waited_for_and_not_followed(monitor: FailureDetector) -> None:
    effects = monitor.handle(acceptor_of("a"), ballot_seen(leads=False), at(1))

    assert sends(effects) == []
    assert monitor.suspicion.deadline >= at(1 + TIMING.election_ms)


def test_a_leader_that_stands_is_sent_once_more_which_node_leads(monitor: FailureDetector) -> None:
    monitor.handle(acceptor_of("a"), ballot_seen(), at(1))
    monitor.handle(LEADER, events.Candidate(), at(2))

    assert monitor.handle(acceptor_of("a"), ballot_seen(), at(3))[-2:] == follow("b")


def test_a_broken_link_to_the_leader_is_suspicious_once_its_lease_is_over_another_is_not(
    monitor: FailureDetector,
) -> None:
    monitor.handle(acceptor_of("a"), ballot_seen(), at(1))

    assert monitor.handle(HERE, LinkDown(node="c"), at(2)) == ()
    effects = monitor.handle(HERE, LinkDown(node="b"), at(2))

    assert effects[-1] == Observe("paxos.link_suspected")
    first = 2 + LEADER_LEASE_MS + TIMING.rank_ms  # Node c comes next after b, then a.
    assert at(first) <= monitor.suspicion.deadline < at(first + JITTER_MS)


def test_a_leadership_begins_and_goes_on_with_heartbeats(monitor: FailureDetector) -> None:
    begun = monitor.handle(LEADER, LEADING, at(0))
    next_beat = Wake(TIMING.heartbeat_ms, events.HeartbeatDue(ballot=BALLOT))
    assert list(begun) == [*follow("a"), pulse(1, 0, 0, 0), next_beat]

    assert list(monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(50))) == [
        pulse(2, 0, 0, 0),
        next_beat,
    ]
    assert monitor.handle(HERE, events.HeartbeatDue(ballot=OTHERS), at(100)) == ()


def test_a_heartbeat_reports_whose_acks_arrived_and_what_a_majority_acked(
    monitor: FailureDetector,
) -> None:
    monitor.handle(LEADER, LEADING, at(0))
    monitor.handle(acceptor_of("a"), ack(1, applied=9), at(1))
    monitor.handle(acceptor_of("c"), ack(1, applied=7), at(1))

    second = monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(50))
    monitor.handle(acceptor_of("b"), ack(2, applied=5), at(51))
    third = monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(100))

    assert second[0] == pulse(2, 1, 0, 1, confirmed=1)
    assert third[0] == pulse(3, 1, 2, 1, confirmed=1, min_applied=5)


def test_a_round_can_be_had_at_once(monitor: FailureDetector) -> None:
    assert monitor.handle(REPLICA, events.ConfirmLease(), at(1)) == ()
    monitor.handle(LEADER, LEADING, at(2))

    assert monitor.handle(REPLICA, events.ConfirmLease(), at(3)) == [pulse(2, 0, 0, 0)]


def test_the_lease_counts_from_when_a_majority_was_asked(monitor: FailureDetector) -> None:
    monitor.handle(LEADER, LEADING, at(10))
    new = ack(1)
    assert monitor.handle(acceptor_of("a"), new, at(11)) == ()

    effects = monitor.handle(acceptor_of("c"), new, at(30))

    length = LEADER_LEASE_MS * NS_PER_MS * (PPM - 1_000) // (PPM + 1_000)
    until = Instant(at(10) + length)
    assert effects == (
        Send(REPLICA, events.LeaseHeld(ballot=BALLOT, until=until, confirmed=at(10))),
    )
    assert monitor.handle(acceptor_of("c"), new, at(31)) == ()


def test_the_leaders_lease_ends_before_the_promise_under_any_drift_within_bounds() -> None:
    lease, promise = LeaderLease(config_of("b"), LEADER_LEASE_MS, 1_000), LeasePromise()
    until = lease.acknowledge("b", at(0), LEADER_LEASE_MS)
    promise.give(LEADER, at(0), LEADER_LEASE_MS)
    assert until is not None

    true_end_of_belief = until * PPM // (PPM - 1_000)  # By a leader's clock that is slow.
    true_end_of_promise = promise.until * PPM // (PPM + 1_000)  # By an acceptor's that is fast.

    assert true_end_of_belief <= true_end_of_promise  # one-lease


def test_answers_of_strangers_or_to_old_heartbeats_do_not_count(monitor: FailureDetector) -> None:
    monitor.handle(LEADER, LEADING, at(0))
    stranger = (Observe("paxos.stranger_follows"),)
    assert monitor.handle(acceptor_of("z"), ack(1), at(1)) == stranger
    for round_ in range(ASKED_MAX):
        monitor.handle(acceptor_of("a"), ack(round_ + 1), at(50 * round_))
        monitor.handle(acceptor_of("b"), ack(round_ + 1), at(50 * round_))
        monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(50 * round_))

    assert monitor.handle(acceptor_of("c"), ack(1), at(60 * ASKED_MAX)) == ()
    assert "c" not in monitor.acked


def test_a_leader_that_no_majority_answers_gives_up(monitor: FailureDetector) -> None:
    monitor.handle(LEADER, LEADING, at(0))
    monitor.handle(acceptor_of("a"), ack(1), at(1))

    assert pulse(2, 1, 0, 0) in monitor.handle(
        HERE, events.HeartbeatDue(ballot=BALLOT), at(TIMING.election_ms)
    )
    late = monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(TIMING.election_ms + 1))
    assert late[0] == Send(LEADER, events.Withdraw())


def test_a_leader_without_a_majority_reports_it_before_it_gives_up(
    monitor: FailureDetector,
) -> None:
    monitor.handle(LEADER, LEADING, at(0))
    isolated: list[tuple[int, Send]] = []
    for ms in range(TIMING.heartbeat_ms, TIMING.election_ms, TIMING.heartbeat_ms):
        effects = monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(ms))
        isolated += [
            (ms, one) for one in sends(effects) if isinstance(one.message, events.Isolated)
        ]
    reported = Send(LISTENER, events.Isolated(isolated=True))
    assert isolated == [(TIMING.isolated_ms + TIMING.heartbeat_ms, reported)]

    for member in "ab":
        monitor.handle(acceptor_of(member), ack(monitor.number), at(TIMING.election_ms))
    answered = monitor.handle(
        HERE, events.HeartbeatDue(ballot=BALLOT), at(TIMING.election_ms + TIMING.heartbeat_ms)
    )

    assert Send(LISTENER, events.Isolated(isolated=False)) in answered


def test_a_leader_that_stood_still_waits_before_it_gives_up(monitor: FailureDetector) -> None:
    monitor.handle(LEADER, LEADING, at(0))
    for member in "ab":
        monitor.handle(acceptor_of(member), ack(1), at(1))

    woken = monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(3 * TIMING.election_ms))

    assert woken[0] == pulse(2, 1, 1, 0, confirmed=1)


def test_a_deposed_leader_pauses_before_it_stands_again(monitor: FailureDetector) -> None:
    monitor.handle(LEADER, LEADING, at(0))

    deposed = events.SteppedDown(pause_ms=400)
    assert list(monitor.handle(LEADER, deposed, at(10)))[:2] == follow("")

    assert monitor.suspicion.deadline >= at(10 + TIMING.election_ms + 400)
    assert monitor.handle(HERE, events.HeartbeatDue(ballot=BALLOT), at(60)) == ()


def test_a_node_that_followed_a_leader_as_a_member_is_noted(monitor: FailureDetector) -> None:
    assert not monitor.locator.served
    monitor.handle(HERE, ballot_seen(), at(1))
    assert monitor.locator.served


def test_a_leader_knows_which_members_have_a_lower_log_version(
    monitor: FailureDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "LOG_VERSION", 3)
    monitor.handle(LEADER, LEADING, at(0))
    for member, version in (("a", 3), ("b", 1), ("c", 2)):
        monitor.handle(acceptor_of(member), replace(ack(1), log_version=version), at(1))
    assert monitor.config.lower_versions == {"b": 1, "c": 2}
    assert monitor.config.log_version == 1
    for member in ("b", "c"):
        monitor.handle(acceptor_of(member), replace(ack(1), log_version=3), at(2))
    assert not monitor.config.lower_versions
    assert monitor.config.log_version == 3


def test_the_operator_learns_which_member_cannot_apply_newer_commands(
    monitor: FailureDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (config, failure_detector):
        monkeypatch.setattr(module, "LOG_VERSION", 3)
    monitor.handle(LEADER, LEADING, at(0))
    for version, reports in ((2, 1), (2, 0), (1, 1)):
        known = replace(ack(1), log_version=version)
        notices = sent(monitor.handle(acceptor_of("b"), known, at(1)), RoleNotice)
        assert [one.level for one in notices] == [Level.WARNING] * reports
        assert not notices or f"up to log version {version}, and this node" in notices[0].text
        assert not notices or "Upgrade b, or remove it" in notices[0].text


def hand_overs(applied_here: int, applied_by_b: int, *, progress: bool) -> list[int]:
    """Return when the leader ``a`` hands over (ms) while ``b`` and ``c`` answer each heartbeat."""
    monitor, times, step_ms = detector_of(), list[int](), 500
    monitor.handle(LEADER, LEADING, at(0))
    for turn, now_ms in enumerate(range(0, 2 * REST_MS, step_ms)):
        monitor.config.applied = applied_here + (turn if progress else 0)
        monitor.handle(LEADER, events.ConfirmLease(), at(now_ms))
        for member, ahead in (("b", applied_by_b), ("c", applied_here)):
            answer = ack(monitor.number, ahead + (turn if progress else 0))
            effects = monitor.handle(acceptor_of(member), answer, at(now_ms))
            for handed_over in sent(effects, events.HandOverTo):
                assert handed_over.successor == "b"
                times.append(now_ms)
    return times


def test_a_leader_hands_over_if_it_cannot_decide_what_another_has_applied() -> None:
    assert hand_overs(25, 39, progress=False) == [OVERTAKEN_MS, OVERTAKEN_MS + REST_MS]
    assert hand_overs(25, 39, progress=True) == []  # It is only a little behind.
    assert hand_overs(25, 25, progress=False) == []
    assert hand_overs(25, 20, progress=False) == []
