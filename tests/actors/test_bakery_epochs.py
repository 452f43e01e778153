"""Epochs of `bakery`: promises, elections, and bounds on epochs that others name."""

from __future__ import annotations

import pytest
from support.leader_trio import (
    ANN,
    LIVES,
    NAMES,
    LeaderTrio,
    begun_coordinator,
    chosen,
    linked,
    lock_leader,
    lock_request,
    member,
    registry,
)
from support.role_harness import at, sent
from support.samples import errors

from fencelock.actors.bakery import wire as messages
from fencelock.actors.bakery.config import BAKERY_TIMING, OFF, election_of, status_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import FOUNDERS
from fencelock.actors.bakery.epochs import (
    EPOCHS_AFTER_START,
    EPOCHS_AHEAD_MAX,
    LEASE_SLACK_MS,
    DurablePromises,
    EpochLimit,
    Refusals,
)
from fencelock.actors.bakery.event import Connected, ElectionDue, Serve, Trust
from fencelock.actors.bakery.leader_selection import identity_of
from fencelock.actors.bakery.ticket import LEASE_MS_MAX
from fencelock.actors.bakery.wire import (
    NO_SEATING,
    AddTicket,
    Chosen,
    Entering,
    Export,
    Lead,
    Locked,
    Member,
    Seating,
    Vouched,
)
from fencelock.actors.effect import Effects, Observe, Persist
from fencelock.actors.message import NS_PER_MS, Instant, Message

LEADERS = tuple(messages.Chosen(name, 1) for name in NAMES)
T0 = Instant(10**12)


def coordinator(limit: EpochLimit) -> ElectionCoordinator:
    return begun_coordinator(registry(dict.fromkeys(NAMES, 7), 7, limit=limit))


def promises(limit: EpochLimit, epoch: int, now: Instant = T0) -> bool:
    """Return whether a coordinator with ``limit`` promises ``epoch``, and counts it if not."""
    proposal = messages.Propose(epoch=epoch, leaders=LEADERS)
    effects = coordinator(limit).handle(election_of("n2"), proposal, now)
    if Persist(proposal) in effects:
        return True
    assert Observe("bakery.epoch_too_far") in effects
    return False


def test_the_longest_lease_that_an_honest_member_can_report_is_no_reason_for_a_refusal() -> None:
    limit = EpochLimit(lease_ms=5_000)
    assert limit.lease_ms_max == 5_000 + LEASE_SLACK_MS
    refusals = Refusals("n1", limit)
    assert refusals.lease(election_of("n2"), T0, 1, limit.lease_ms_max) == []
    (text,) = errors(refusals.lease(election_of("n2"), T0, 1, limit.lease_ms_max + 1))
    assert text.startswith(f"n2 sent a lease of {limit.lease_ms_max + 1} ms, and 5000 ms are allow")


def test_a_promise_is_for_a_higher_epoch_than_the_last() -> None:
    promises = DurablePromises()
    promises.promise(messages.Propose(epoch=2, leaders=LIVES), at(0))
    for epoch, may in ((2, False), (3, True)):
        assert promises.may_promise(messages.Propose(epoch=epoch, leaders=LIVES)) is may
    assert not promises.learn(Seating(0, LIVES, 0), FOUNDERS, at(0))
    assert promises.learn(Seating(1, LIVES, 0), FOUNDERS, at(100))
    assert promises.quiet_ms(at(500)) == 400  # Since a higher epoch is promised.
    assert not promises.learn(Seating(1, LIVES, 5), FOUNDERS, at(0))


@pytest.mark.parametrize(
    ("seated_ms", "stated_ms", "lease_ms"),
    [(5, 3, 5), (3, 5, 5), (0, LEASE_MS_MAX + 1, LEASE_MS_MAX)],
)
def test_the_longest_lease_is_that_of_the_seating_or_of_a_statement(
    seated_ms: int, stated_ms: int, lease_ms: int
) -> None:
    statement = messages.BoundStatement("n1", 1, stated_ms)
    installed = messages.Install(seating=Seating(1, LIVES, seated_ms), statements=(statement,))
    assert DurablePromises.recover([installed]).lease_ms == lease_ms


def test_a_leader_obeys_no_lower_epoch_and_serves_until_a_higher_one() -> None:
    state = lock_leader().epoch_state
    state.take(Seating(3, LIVES, 0))
    state.serving, state.trusted_at = True, at(0)
    trust_ms = BAKERY_TIMING.trust_ms
    assert [state.trusted(at(ms)) for ms in (trust_ms - 1, trust_ms)] == [True, False]
    for barred, serving in ((2, True), (3, True), (4, False)):
        state.leave(barred)
        assert (state.barred, state.serving) == (max(3, barred), serving)


def test_the_report_of_an_epoch_that_is_too_far_names_the_highest() -> None:
    refusals = Refusals("n1", EpochLimit(age_s=100))
    highest = 100 + EPOCHS_AHEAD_MAX
    assert refusals.epoch(election_of("n2"), highest, T0) == []
    (text,) = errors(refusals.epoch(election_of("n2"), highest + 1, T0))
    assert text.startswith(f"n2 sent epoch {highest + 1}, and {highest} is the highest that")


def test_leaders_are_quiet_from_the_first_promise_of_a_later_epoch_on() -> None:
    promises = DurablePromises()
    promises.learn(Seating(1, LIVES, 0), FOUNDERS, at(0))
    assert promises.quiet_ms(at(100)) == 0
    for epoch in (2, 3):
        promises.promise(messages.Propose(epoch=epoch, leaders=LIVES), at(100 * epoch))
    assert promises.quiet_ms(at(500)) == 300
    promises.learn(Seating(3, LIVES, 0), FOUNDERS, at(500))
    assert promises.quiet_ms(at(900)) == 0


def test_a_member_that_has_promised_nothing_promises_the_first_epoch() -> None:
    assert promises(EpochLimit(), 1)


def test_a_member_that_was_away_for_long_accepts_the_epochs_of_the_others() -> None:
    assert promises(EpochLimit(), EPOCHS_AHEAD_MAX)
    assert not promises(EpochLimit(), EPOCHS_AHEAD_MAX + 1)
    year_s = 365 * 24 * 3_600
    assert promises(EpochLimit(age_s=year_s), year_s + EPOCHS_AHEAD_MAX)
    assert not promises(EpochLimit(age_s=year_s), year_s + EPOCHS_AHEAD_MAX + 1)


def test_the_limit_rises_with_time_also_if_the_clock_of_the_host_is_wrong() -> None:
    """By the clock the group was founded just now; the journal knows a higher epoch."""
    limit, known = EpochLimit(age_s=0, known=5_000_000), 5_000_000
    assert promises(limit, known + EPOCHS_AFTER_START)
    assert not promises(limit, known + EPOCHS_AFTER_START + 1)
    later = Instant(T0 + 60 * 1_000 * NS_PER_MS)
    assert promises(limit, known + EPOCHS_AFTER_START + 60, later)
    assert not promises(limit, known + EPOCHS_AFTER_START + 61, later)


def test_a_restart_beside_a_rogue_member_takes_no_member_from_the_others() -> None:
    other, pushed = EpochLimit(age_s=100), EpochLimit(age_s=100).highest(T0)
    assert other.allows(EpochLimit(age_s=101, known=pushed).highest(T0) - EPOCHS_AFTER_START, T0)


def test_a_coordinator_at_the_limit_waits_instead_of_proposing_what_others_refuse() -> None:
    role = coordinator(EpochLimit())
    role.highest = EPOCHS_AHEAD_MAX
    members = linked(*map(member, NAMES))
    effects = role.handle(status_of("n1"), Connected(members=members), T0)
    assert proposed(effects) == set()
    effects = role.handle(role.address, ElectionDue(), Instant(T0 + 1_000 * NS_PER_MS))
    assert proposed(effects) == {EPOCHS_AHEAD_MAX + 1}


def proposed(effects: Effects) -> set[int]:
    return {message.epoch for message in sent(effects, messages.Propose)}


# Leader selection: identities, seats, survivors, and the text for an unmet condition


def seated(*names: str) -> Seating:
    return Seating(3, tuple(Chosen(name, 1) for name in names), 1_000)


N1, N2, N3, N4, N5 = (member(f"n{number}") for number in range(1, 6))
OFF_1, OFF_2 = (one._replace(priority=OFF) for one in (N1, N2))
MUTE_1, MUTE_2 = (one._replace(votes=False) for one in (N1, N2))
BEST = tuple(member(f"n{number}", priority=1) for number in (3, 4, 5))
RANKED = tuple(member(f"n{number}", priority=number) for number in (4, 2, 5, 1, 3))
THREE = seated("n1", "n2", "n3")
STAY = ("", "")
"""No change: the present leaders stay."""
SELECTIONS: dict[str, tuple[Seating, tuple[Member, ...], int, tuple[str, str]]] = {
    "the three best lead first": (NO_SEATING, RANKED, 5, ("n1 n2 n3", "")),
    "one of one": (NO_SEATING, (N1,), 1, ("n1", "")),
    "two of two": (NO_SEATING, (N1, N2), 2, ("n1 n2", "")),
    "two of three": (NO_SEATING, (N1, N2), 3, ("n1 n2", "")),
    "no majority of the configured members": (
        NO_SEATING,
        (N1, N2),
        4,
        ("", "cluster is down: 2 of 4 members are connected, 3 are needed"),
    ),
    "no majority of ten": (
        NO_SEATING,
        (N1, N2, N3, N4, N5),
        10,
        ("", "cluster is down: 5 of 10 members are connected, 6 are needed"),
    ),
    "survivors stay though newcomers rank before them": (THREE, (N1, N2, N3, *BEST[1:]), 5, STAY),
    "three go on with two": (THREE, (N1, N2), 3, STAY),
    "one seat changes": (seated("n1", "n2", "n9"), (N1, N2, *BEST), 6, ("n1 n2 n3", "")),
    "one seat of two changes": (seated("n1", "n9"), (N1, N2, *BEST), 6, ("n1 n3", "")),
    "two lost leaders make room for a new set": (THREE, (N1, N4, N5), 5, ("n1 n4 n5", "")),
    "off never leads": (
        NO_SEATING,
        (OFF_1, OFF_2, N3),
        3,
        ("", "too few candidates: 2 of 3 members have priority off, which leaves 1 for 3 seats"),
    ),
    "off never leads alone": (
        NO_SEATING,
        (OFF_1,),
        1,
        ("", "too few candidates: 1 of 1 members have priority off, which leaves 0 for 1 seats"),
    ),
    "off counts for the majority": (NO_SEATING, (OFF_1, N2, N3), 5, ("n2 n3", "")),
    "no vote, no seat": (NO_SEATING, (MUTE_1, N2, N3), 3, ("n2 n3", "")),
    "no vote counts for no majority": (
        NO_SEATING,
        (MUTE_1, N3),
        3,
        (
            "",
            "cluster is down: 2 of 3 members are connected, of which n1 does not vote; 2 voters "
            'are needed. If their disks were lost, see "Loss of a majority" in docs/operations.md',
        ),
    ),
    "a leader that stops voting keeps its seat": (THREE, (MUTE_1, N2, N3), 3, STAY),
    "priority off and no vote are two things": (
        NO_SEATING,
        (OFF_1, MUTE_2, N3),
        3,
        ("", "too few candidates: 1 connected, 2 are needed"),
    ),
}
"""Present leaders, connected members, the number of all; then the next leaders, or why none."""


@pytest.mark.parametrize("case", SELECTIONS.values(), ids=SELECTIONS)
def test_leaders_are_selected_by_rank_seat_and_vote(
    case: tuple[Seating, tuple[Member, ...], int, tuple[str, str]],
) -> None:
    seating, members, configured, selection = case
    choice = chosen(seating, members, configured)
    assert (" ".join(one.node for one in choice.leaders), choice.why_not) == selection


def test_a_leader_that_lives_anew_has_lost_its_seat() -> None:
    choice = chosen(THREE, [N1, N2, member("n3", life=2)], 3)
    assert choice.leaders == (Chosen("n1", 1), Chosen("n2", 1), Chosen("n3", 2))


def test_identities_are_compared_field_by_field_and_not_as_text() -> None:
    ordered = [
        member("z", life=900, priority=1),
        member("y", life=9, priority=2),
        member("x", life=10, priority=2),
        member("a", life=7, priority=10),
        member("b", life=7, priority=10),
    ]
    shuffled = [ordered[at] for at in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=identity_of) == ordered


LONG_MS, SHORT_MS = 60_000, 1_000
LOCK = lock_request(hold_ms=LONG_MS - 500)
LEAD = Lead(seating=Seating(2, LIVES, 0), former=Seating(1, LIVES, LONG_MS), empty=False)


def hand_over(trio: LeaderTrio, lost: set[tuple[type[Message], str, str]]) -> None:
    """Let n1 and n2 merge their tables for epoch 2, without n3; let all three serve."""
    trio.lost = {(Export, name, "n3") for name in ("n1", "n2")}
    for name in ("n1", "n2"):
        trio.deliver(election_of("n1"), name, LEAD)
    trio.settle()
    trio.lost = lost
    for name in NAMES:
        leader = trio.leaders[name]
        serve = Serve(seating=Seating(2, LIVES, SHORT_MS))
        trio.perform(name, leader.handle(election_of(name), serve, trio.now))
        leader.epoch_state.trusted_at = trio.now
    trio.settle()


def confirm(trio: LeaderTrio, name: str) -> None:
    """Let a quorum of the members confirm the last statement of ``name``."""
    leader = trio.leaders[name]
    known = Vouched(epoch=2, number=leader.epoch_state.bound.number)
    trio.perform(name, leader.handle(election_of(name), known, trio.now))


def test_a_vote_that_only_one_former_leader_has_is_taken_over_under_a_bound_that_is_known() -> None:
    """The epoch begins with the bound of what n1 and n2 know; n3 alone voted for a long lease."""
    trio = LeaderTrio()
    for leader in trio.leaders.values():
        leader.epoch_state.bound.begin(1, LONG_MS)
    trio.lost = {(AddTicket, "n1", "n2")}
    trio.leaders["n1"].epoch_state.trusted_at = None
    trio.ask("n1", LOCK)
    trio.settle()
    assert [bool(trio.leaders[name].tickets.of("x", ANN)[0].fence) for name in NAMES] == [
        True,
        False,
        True,
    ]
    hand_over(trio, {(Entering, "n1", "n2")})
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert trio.received(Locked) == []
    confirm(trio, "n1")
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert trio.received(Locked) == []
    confirm(trio, "n3")
    trio.pass_time(BAKERY_TIMING.resend_ms)
    assert [one.hold_ms for one in trio.received(Locked)] == [LOCK.hold_ms]


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_majority_that_promised_another_epoch_trusts_no_leader_of_this_one(epoch: int) -> None:
    trio = LeaderTrio()
    leader = trio.leaders["n1"]
    leader.epoch_state.trusted_at = None
    leader.handle(status_of("n1"), Trust(epoch=epoch, at=trio.now), trio.now)
    assert leader.epoch_state.trusted(trio.now) == (epoch == 1)
