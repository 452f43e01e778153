"""`Bootstrap`: founding of a group, registered journals, lost and old journals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from support.role_harness import HOST, T0, at, sent

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, MembersChanged
from fencelock.actors.bootstrap import (
    ACT_MS,
    FORMER_MAX,
    GREET_MS,
    GREET_RETRY_MS,
    GREET_TRIPS,
    JOIN_RETRY_MS,
    RENEW_MS,
    Bootstrap,
    GroupMessage,
    JoinRetry,
    JournalStatus,
    RenewStart,
    bootstrap_of,
    greet_time_ms,
)
from fencelock.actors.bootstrap_message import (
    Found,
    Founding,
    GroupConfig,
    Join,
    JoinAck,
    Start,
    Started,
    StopVoting,
    Superseded,
    Voter,
    VotersChanged,
    VotingStatus,
    vote_id,
)
from fencelock.actors.effect import (
    Checkpoint,
    Effect,
    Effects,
    JoinGroup,
    Observe,
    Send,
    Spawn,
    Wake,
)
from fencelock.actors.group_claims import FOUNDED_MS_MAX
from fencelock.actors.membership import MEMBERS_MAX
from fencelock.actors.message import Address, Message, address_of
from fencelock.actors.paxos.config import acceptor_of
from fencelock.actors.proxy.event import Relay, Relayed
from fencelock.actors.role_message import Level, LinkDown, LinkUp, RoleNotice
from fencelock.actors.timing import ROUND_TRIP_MS, ROUND_TRIP_MS_MAX
from fencelock.transport.sockets import RECONNECT_MS_MAX

DATE_MS = 1_800_000_000_000
LISTENER = PROXY = address_of("x", "proxy")
ACCEPTOR = address_of("x", "acceptor")
JOURNALS = {"a": 1, "b": 2, "c": 3}
SECRET = 1 << 100
GROUP = 10
"""The group that ``a`` founds in its first life."""


def start_of(node: str, *, journal: int = 0, incarnation: int = 1, boot: int = 0) -> Start:
    """The start of a node from its first journal, in its first life, unless given otherwise."""
    known = JOURNALS[node]
    return Start.proven(journal or known, incarnation, boot or 10 * known, SECRET)


def group(to: int = 0, **journals: int) -> GroupConfig:
    voters = tuple(Voter(member, journal) for member, journal in (JOURNALS | journals).items())
    return GroupConfig(to=to, group=GROUP, founded_ms=DATE_MS, voters=voters)


def make_roles(
    config: GroupConfig, votes: bool, voters: Mapping[Address, int] | None = None
) -> tuple[Spawn, ...]:
    return (Spawn(address_of("x", f"log-{config.founded_ms}-{votes}"), Bootstrap),)


def bootstrap(
    node: str, *, members: str = "abc", start: Start | None = None, **options: Any
) -> tuple[Bootstrap, Effects]:
    """Return a role that has begun, with ``options`` of `Bootstrap`, and its first effects."""
    own = start or start_of(node)
    options = {"records": (), "durable": True, "founding": Founding.NEW, **options}
    role = Bootstrap(
        bootstrap_of(node),
        HOST,
        members=tuple(members),
        journal=own.journal,
        secret=SECRET,
        boot=own.boot,
        date_ms=DATE_MS,
        make_roles=make_roles,
        voter=acceptor_of,
        voting=(ACCEPTOR,),
        listener=LISTENER,
        **options,
    )
    return role, role.begin(T0)


def receive(role: Bootstrap, node: str, event: GroupMessage, at_ms: int = 0) -> list[Effect]:
    return list(role.handle(bootstrap_of(node), event, at(at_ms)))


def join(node: str, *, group: int = 0, start: Start | None = None) -> Join:
    return Join(start=start or start_of(node), group=group)


def ack(to: str, sender: str, *, follows: bool = False, start: Start | None = None) -> JoinAck:
    return JoinAck(to=10 * JOURNALS[to], start=start or start_of(sender), follows=follows)


def all_follow(role: Bootstrap, at_ms: int = 0) -> list[Effect]:
    """Let all others follow ``a``; return the effects."""
    messages = [(other, ack("a", other, follows=True)) for other in ("b", "c")]
    return [effect for other, one in messages for effect in receive(role, other, one, at_ms)]


def both_send(role: Bootstrap, config: GroupConfig) -> list[Effect]:
    """Let both other members send a group, as `two-witnesses` demands; return the effects."""
    others = [other for other in JOURNALS if other != role.node]
    return [effect for other in others for effect in receive(role, other, config)]


def started(effects: Effects) -> list[Spawn]:
    return [effect for effect in effects if isinstance(effect, Spawn)]


def written(effects: Effects) -> list[Message]:
    """Return the records of the last checkpoint among ``effects``."""
    checkpoints = [effect for effect in effects if isinstance(effect, Checkpoint)]
    return list(checkpoints[-1].records) if checkpoints else []


def why(effects: Effects) -> str:
    """Return the last reason sent to the proxy for which this node does not vote."""
    return sent(effects, VotingStatus)[-1].why


def voter(node: str) -> tuple[Bootstrap, list[Effect]]:
    """A member of a group that the others confirmed, after a restart."""
    records = [group(), Started(member=node, start=start_of(node))]
    role, _ = bootstrap(node, records=records)
    others = [other for other in JOURNALS if other != node]
    effects = [effect for other in others for effect in receive(role, other, ack(node, other))]
    return role, effects


# Founding


def test_a_new_member_writes_its_start_down_then_announces_it_and_names_who_is_missing() -> None:
    _, begun = bootstrap("b")

    waiting = "waiting for a, c: a new cluster begins when all its members have met once"
    assert list(begun) == [
        Checkpoint((Started(member="b", start=start_of("b")),)),
        Send(bootstrap_of("a"), join("b")),
        Send(bootstrap_of("c"), join("b")),
        Send(LISTENER, VotingStatus(votes=False, why=waiting)),
        Send(address_of("b", "node"), RoleNotice(level=Level.INFO, text=waiting)),
        Wake(JOIN_RETRY_MS, JoinRetry()),
    ]


def test_a_member_alone_is_a_group_at_once() -> None:
    role, begun = bootstrap("a", members="a")

    assert role.standing is JournalStatus.VOTER
    assert started(begun) == list(make_roles(group(), True))


def test_the_first_member_writes_the_group_down_before_it_sends_it() -> None:
    role, _ = bootstrap("a")
    assert started(receive(role, "b", ack("a", "b", follows=True))) == []

    effects = receive(role, "c", ack("a", "c", follows=True))

    messages = [Send(bootstrap_of("b"), group(20)), Send(bootstrap_of("c"), group(30))]
    (place,) = [n for n, one in enumerate(effects) if one == messages[0]]
    assert group() in written(effects[:place])
    assert effects[place : place + 2] == messages
    assert started(effects) == list(make_roles(group(), True))


@pytest.mark.parametrize(
    ("founding", "more"),
    [(Founding.NEW, ""), (Founding.AGAIN, ", beside or after another one")],
)
def test_a_founding_leaves_a_line_in_the_log(founding: Founding, more: str) -> None:
    role, _ = bootstrap("a", founding=founding)
    lines = [notice.text for notice in sent(all_follow(role), RoleNotice)]
    assert f"a founded group {GROUP:x} of a, b, c{more}" in lines


def test_who_founds_again_learns_which_nodes_have_the_former_group_from_others() -> None:
    role, _ = bootstrap("a", founding=Founding.AGAIN)
    receive(role, "b", join("b", group=7))
    effects = role.handle(bootstrap_of("a"), JoinRetry(), at(JOIN_RETRY_MS))
    assert role.group is None
    assert why(effects) == (
        "the former group is known to b: stop all its nodes, empty the folder of each configured "
        "node, and start them again"
    )


def test_no_majority_founds_a_group() -> None:
    role, _ = bootstrap("a")
    effects = receive(role, "b", ack("a", "b", follows=True))

    assert role.group is None
    assert why(effects) == "waiting for c: a new cluster begins when all its members have met once"


def test_the_first_member_does_not_wait_for_a_node_that_replied_but_declined() -> None:
    role, effects = bootstrap("a", founding=Founding.NO)
    receive(role, "c", ack("a", "c", follows=False))
    assert "waiting for b, c: this node has an empty journal" in why(effects)
    effects = receive(role, "b", ack("a", "b", follows=False))
    assert "b, c will not begin a cluster with a yet: " in why(effects)
    role.handle(address_of("a", "node"), LinkDown(node="b"), T0)
    effects = role.handle(bootstrap_of("a"), JoinRetry(), T0)
    assert "waiting for b, c: " in why(effects)


def test_only_a_follower_counts_and_only_at_the_first_member() -> None:
    first, _ = bootstrap("a")
    second, _ = bootstrap("b")
    for other in ("b", "c"):
        receive(first, other, ack("a", other, follows=False))
    for other in ("a", "c"):
        receive(second, other, ack("b", other, follows=True))

    assert first.group is None
    assert second.group is None


def test_a_member_follows_the_first_one_once_that_is_durable() -> None:
    role, _ = bootstrap("b")
    effects = receive(role, "a", join("a"))

    assert effects[0] == Checkpoint(
        (Started(member="b", start=start_of("b")), Started(member="a", start=start_of("a")))
    )
    assert effects[1] == Send(bootstrap_of("a"), JoinAck(to=10, start=start_of("b"), follows=True))
    (answer,) = sent(receive(role, "c", join("c")), JoinAck)
    assert answer == JoinAck(to=30, start=start_of("b"), follows=False)


def test_a_first_member_asks_each_node_that_joins_to_follow_it() -> None:
    role, _ = bootstrap("a")

    assert Send(bootstrap_of("b"), join("a")) in receive(role, "b", join("b"))


def test_a_member_never_goes_back_to_a_journal_of_the_first_one_that_it_left() -> None:
    role, _ = bootstrap("b")
    receive(role, "a", join("a"))
    effects = receive(role, "a", join("a", start=start_of("a", journal=9, boot=90)))

    assert receive(role, "a", join("a"))[-1] == Observe("bootstrap.former_journal")
    again, _ = bootstrap("b", records=written(effects), start=start_of("b", boot=21))
    assert receive(again, "a", join("a"))[-1] == Observe("bootstrap.former_journal")


def test_journals_that_are_given_up_are_bounded() -> None:
    role, _ = bootstrap("b")
    for journal in range(100, 101 + FORMER_MAX):
        receive(role, "a", join("a", start=start_of("a", journal=journal)))

    late = receive(role, "a", join("a", start=start_of("a", journal=99)))
    assert late[-1] == Observe("bootstrap.former_journal")


def test_a_group_of_another_journal_of_the_first_member_than_the_one_followed_has_no_vote() -> None:
    role, _ = bootstrap("b")
    receive(role, "a", join("a"))
    receive(role, "c", ack("b", "c"))

    effects = both_send(role, group(20, a=9))

    assert started(effects) == list(make_roles(group(), False))


# Restarts


def test_a_registered_journal_votes_once_all_others_confirm_its_start() -> None:
    records = [group(), Started(member="b", start=start_of("b", incarnation=4))]
    role, begun = bootstrap("b", records=records)
    assert sent(begun, Join) == [Join(start=start_of("b", incarnation=5), group=GROUP)] * 2
    assert begun[-1] == Wake(GREET_RETRY_MS, JoinRetry())
    assert started([*begun, *receive(role, "a", ack("b", "a"))]) == []

    assert started(receive(role, "c", ack("b", "c"))) == list(make_roles(group(), True))


def test_a_silent_member_does_not_keep_a_registered_journal_from_voting_for_long() -> None:
    role, _ = bootstrap("b", records=[group()])
    receive(role, "a", ack("b", "a"))
    early = role.handle(role.address, JoinRetry(), at(GREET_MS - 1))
    assert started(early) == []
    assert [effect.to for effect in early if isinstance(effect, Send)] == [bootstrap_of("c")]

    late = role.handle(role.address, JoinRetry(), at(GREET_MS))

    assert started(late) == list(make_roles(group(), True))
    assert sent(late, Join) != []  # A member that was silent may still know of a later start.


def test_a_node_with_an_empty_journal_learns_of_the_group_and_never_votes_in_it() -> None:
    peer, _ = voter("a")
    lost = start_of("b", journal=8, boot=80)
    sends = receive(peer, "b", join("b", start=lost))
    warning = "b was started with a journal that is not registered: it does not vote"
    assert sends == [
        Send(bootstrap_of("b"), group(80)),
        Send(bootstrap_of("b"), JoinAck(to=80, start=peer.own, follows=False)),
        Send(address_of("a", "node"), RoleNotice(level=Level.WARNING, text=warning)),
        Observe("bootstrap.unregistered_journal"),
    ]
    again = receive(peer, "b", join("b", start=lost))
    assert sent(again, RoleNotice) == []

    role, _ = bootstrap("b", start=lost)
    receive(role, "c", group(80))
    effects = receive(role, "a", group(80))

    assert started(effects) == list(make_roles(group(), False))
    assert why(effects) == (
        "b lost its journal: it serves, but does not vote. Keep a majority of the other members "
        "running, and run: fencelock replace b"
    )
    notices = sent(effects, RoleNotice)
    assert [notice.level for notice in notices] == [Level.WARNING]
    restarted, begun = bootstrap("b", records=written(effects), start=lost._replace(boot=81))
    assert restarted.standing is JournalStatus.NON_VOTING
    assert started(begun) == list(make_roles(group(), False))


@pytest.mark.parametrize("incarnation", [3, 4], ids=["lower", "the same one again"])
def test_a_start_from_an_old_copy_is_notified_of_it(incarnation: int) -> None:
    peer, _ = voter("a")
    latest = start_of("b", incarnation=4)
    receive(peer, "b", join("b", group=GROUP, start=latest))

    old = start_of("b", incarnation=incarnation, boot=99)
    effects = receive(peer, "b", join("b", group=GROUP, start=old))

    warning = "b was started from an old copy of its journal: it does not vote"
    assert effects == [
        Send(bootstrap_of("b"), Superseded(to=99, start=latest)),
        Send(address_of("a", "node"), RoleNotice(level=Level.WARNING, text=warning)),
        Observe("bootstrap.old_copy"),
    ]


def test_the_latest_start_of_a_peer_is_durable_before_it_is_confirmed_and_outlives_a_restart() -> (
    None
):
    peer, _ = voter("a")
    latest = start_of("b", incarnation=4)
    effects = receive(peer, "b", join("b", group=GROUP, start=latest))
    kinds = [type(effect) for effect in effects]
    assert kinds == [Checkpoint, Send]

    again, _ = bootstrap("a", records=written(effects))
    old = join("b", group=GROUP, start=start_of("b", incarnation=3, boot=99))
    assert Observe("bootstrap.old_copy") in receive(again, "b", old)


def test_the_same_start_may_be_announced_again_and_raised() -> None:
    peer, _ = voter("a")
    first = join("b", group=GROUP, start=start_of("b", incarnation=4))
    raised = join("b", group=GROUP, start=start_of("b", incarnation=5))
    for announced in (first, raised, first):
        assert len(sent(receive(peer, "b", announced), JoinAck)) == 1


def test_an_old_copy_stops_voting_and_never_votes_again() -> None:
    role, _ = voter("b")
    later = Superseded(to=20, start=start_of("b", incarnation=7, boot=77))

    effects = receive(role, "c", later)

    assert Send(ACCEPTOR, StopVoting()) in effects
    assert why(effects) == (
        "b was started from an old copy of its journal: it serves, but does not vote, since it may "
        "have forgotten votes"
    )
    again, begun = bootstrap("b", records=written(effects), start=start_of("b", boot=21))
    assert again.standing is JournalStatus.NON_VOTING
    assert started(begun) == list(make_roles(group(), False))


def test_an_old_copy_from_before_the_founding_reports_what_to_do_and_is_no_voter() -> None:
    role, _ = bootstrap("b")
    effects = receive(role, "c", Superseded(to=20, start=start_of("b", incarnation=7, boot=77)))

    assert why(effects) == (
        "b was started from an old copy of its journal, and no cluster began yet: stop it and "
        "start it with an empty folder"
    )
    assert started(both_send(role, group(20))) == list(make_roles(group(), False))


def test_a_founder_whose_copy_lacks_the_group_does_not_vote() -> None:
    role, _ = bootstrap("a")

    assert started(both_send(role, group(10))) == list(make_roles(group(), False))


def test_a_running_voter_raises_its_incarnation_now_and_then() -> None:
    role, effects = voter("b")
    assert Wake(RENEW_MS, RenewStart()) in effects

    renewed = role.handle(role.address, RenewStart(), T0)

    raised = start_of("b", incarnation=3)
    assert Started(member="b", start=raised) in written(renewed)
    assert sent(renewed, Join) == [Join(start=raised, group=GROUP)] * 2
    assert renewed[-1] == Wake(RENEW_MS, RenewStart())


# What others send


FROM_A = bootstrap_of("a")


@pytest.mark.parametrize(
    ("sender", "message", "counter"),
    [
        (FROM_A, group(to=8), "config_ignored"),  # For another life.
        (FROM_A, JoinAck(to=99, start=start_of("a"), follows=False), "ack_ignored"),
        (FROM_A, Superseded(to=99, start=start_of("b", incarnation=7)), "superseded_ignored"),
        (FROM_A, Superseded(to=20, start=start_of("c", incarnation=7)), "superseded_ignored"),
        (FROM_A, join("a", start=Start(0, 1, 1)), "impossible_start"),
        (FROM_A, join("a", start=Start(1, 0, 1)), "impossible_start"),
        (FROM_A, join("a", start=Start(1, 1, 1 << 63)), "impossible_start"),
        (FROM_A, join("a", start=Start(1, 1, 1, -1)), "impossible_start"),
        (address_of("a", "other"), join("a"), "stranger_ignored"),
        (bootstrap_of("z"), Found(), "stranger_ignored"),
    ],
)
def test_a_message_of_a_stranger_to_another_life_or_of_an_impossible_start_is_dropped(
    sender: Address, message: GroupMessage, counter: str
) -> None:
    role, _ = voter("b")
    waiting, _ = bootstrap("b", records=[group()])
    for one in (role, waiting):
        assert list(one.handle(sender, message, T0)) == [Observe(f"bootstrap.{counter}")]


def test_a_second_group_is_not_taken() -> None:
    role, _ = voter("b")

    other = replace(group(20), group=GROUP + 1)
    for _ in range(2):
        effects = both_send(role, other)
        assert role.group == group()
        assert Observe("bootstrap.other_group") in effects
    fresh, _ = voter("b")
    assert errors(receive(fresh, "a", other)) == [
        "a sent group b of a, b, c, but b belongs to group a of a, b, c: it is ignored"
    ]


@pytest.mark.parametrize(
    "forged",
    [
        Start(2, 1 << 40, 77),
        Start(2, 1 << 40, 77, start_of("b").proof),
        start_of("b", incarnation=7)._replace(boot=77),
        start_of("b", boot=77),
        start_of("b", incarnation=2),
    ],
    ids=["no proof", "of another start", "of another life", "an earlier life", "this life"],
)
def test_one_member_that_invents_a_later_start_stops_no_other(forged: Start) -> None:
    role, _ = voter("b")

    effects = receive(role, "c", Superseded(to=20, start=forged))

    (notice,) = sent(effects, RoleNotice)
    assert notice.level is Level.ERROR
    assert notice.text.startswith("c sent a later start of the journal of b")
    assert Observe("bootstrap.impossible_start") in effects
    assert written(effects) == []
    assert sent(effects, StopVoting) == []
    assert role.standing is JournalStatus.VOTER


def test_a_later_start_that_was_invented_counts_after_a_restart_no_more_than_before() -> None:
    forged = Superseded(to=0, start=Start(2, 1 << 40, 77))
    role, _ = bootstrap("b", records=[group(), forged])

    effects = [*receive(role, "a", ack("b", "a")), *receive(role, "c", ack("b", "c"))]

    assert started(effects) == list(make_roles(group(), True))


def test_no_later_start_is_believed_without_a_disk() -> None:
    role, _ = bootstrap("b", durable=False)
    effects = receive(role, "c", Superseded(to=20, start=start_of("b", incarnation=7, boot=77)))
    assert Observe("bootstrap.impossible_start") in effects


def test_nothing_is_written_without_a_disk() -> None:
    role, begun = bootstrap("b", durable=False)
    effects = [*begun, *receive(role, "a", join("a")), *both_send(role, group(20))]
    assert role.group is not None

    assert not any(isinstance(effect, Checkpoint) for effect in effects)
    lost, _ = bootstrap("b", durable=False, start=Start(99, 1, 99))
    assert why(both_send(lost, group(99))) == (
        "b was restarted without its memory: it serves, but does not vote until the group is "
        "restarted (all members stopped, then started)"
    )


# What the fresh eyes of a review found


def test_votes_of_a_member_that_runs_on_an_old_copy_do_not_count_until_it_is_itself_again() -> None:
    role, _ = voter("a")
    assert acceptor_of("b") in role.registered
    receive(role, "b", join("b", group=GROUP, start=start_of("b", incarnation=4)))

    old = start_of("b", incarnation=3, boot=99)
    receive(role, "b", join("b", group=GROUP, start=old))
    assert acceptor_of("b") not in role.registered

    later = start_of("b", incarnation=5, boot=100)
    receive(role, "b", join("b", group=GROUP, start=later))
    assert role.registered[acceptor_of("b")] == vote_id(group(), "b")


def test_votes_name_the_group_so_that_a_founding_that_was_lost_cannot_use_them() -> None:
    assert vote_id(group(), "b") != vote_id(replace(group(), group=9), "b")
    assert len({vote_id(group(), member) for member in "abc"}) == 3


def test_a_follower_that_lost_its_journal_must_follow_again_before_the_group_is_founded() -> None:
    role, _ = bootstrap("a")
    receive(role, "b", ack("a", "b", follows=True))
    receive(role, "b", join("b", start=start_of("b", journal=29, boot=290)))

    receive(role, "c", ack("a", "c", follows=True))

    assert role.group is None


# One group: founding is an act


def test_nothing_is_founded_without_an_act_of_an_operator() -> None:
    role, _ = bootstrap("a", founding=Founding.NO)
    effects = all_follow(role)

    assert role.group is None
    assert why(effects) == (
        "no cluster is known to a, b, c. If it is new, begin it: fencelock found. If it has run "
        "before, that would begin a second one without its locks: connect this node to a member "
        "that is left, or restore a backup"
    )


def test_all_others_must_follow_again_after_the_act() -> None:
    role, _ = bootstrap("a", founding=Founding.NO)
    all_follow(role, GREET_MS)
    assert sent(receive(role, "b", Found(), GREET_MS), Join) == [join("a")] * 2
    assert role.group is None

    all_follow(role, GREET_MS)
    assert names_and_journals(role) == JOURNALS


def names_and_journals(role: Bootstrap) -> dict[str, int] | None:
    return None if role.group is None else dict(role.group.voters)


@pytest.mark.parametrize(("late_ms", "founds"), [(ACT_MS - 1, True), (ACT_MS, False)])
def test_an_act_whose_command_has_ended_founds_nothing(late_ms: int, founds: bool) -> None:
    role, _ = bootstrap("a", founding=Founding.NO)
    receive(role, "b", Found(), GREET_MS)
    receive(role, "b", Found(), GREET_MS + ACT_MS - 1)  # The command repeats it.
    at_ms = GREET_MS + ACT_MS - 1 + late_ms

    effects = all_follow(role, at_ms)

    assert (role.group is not None) == founds
    assert founds or "begin it: fencelock found" in why(effects)


def test_all_must_follow_again_after_a_second_act() -> None:
    role, _ = bootstrap("a", founding=Founding.NO)
    receive(role, "b", Found(), GREET_MS)
    receive(role, "b", ack("a", "b", follows=True), GREET_MS)
    receive(role, "b", Found(), 2 * ACT_MS)
    receive(role, "c", ack("a", "c", follows=True), 2 * ACT_MS)
    assert role.group is None


@pytest.mark.parametrize(
    ("node", "options"),
    [
        ("b", {"founding": Founding.NO}),
        ("a", {"founding": Founding.ONCE}),
        ("a", {"founding": Founding.NO, "records": [group()]}),
    ],
    ids=["is not the first member", "needs no act", "has a group"],
)
def test_an_act_asks_nobody_to_follow_a_node_that(node: str, options: dict[str, Any]) -> None:
    role, _ = bootstrap(node, **options)
    assert receive(role, "c", Found(), GREET_MS) == []


def test_an_operators_request_founds_a_group_of_one_node() -> None:
    role, _ = bootstrap("a", members="a", founding=Founding.NO)
    wanted = ChangeMembers(action=MemberAction.FOUND, node="a", session="o", request=1)
    relay = Relay(client=Address("o/o"), request=wanted)

    (early,) = sent(role.handle(PROXY, relay, T0), Relayed)
    (late,) = sent(role.handle(PROXY, relay, at(GREET_MS)), Relayed)

    replies = [early.reply, late.reply]
    assert [one.done for one in replies if isinstance(one, MembersChanged)] == [False, True]


def test_the_first_member_founds_only_after_it_has_listened_for_members_that_are_left() -> None:
    role, _ = bootstrap("a", founding=Founding.ONCE)
    effects = all_follow(role, GREET_MS - 1)
    assert role.group is None
    assert why(effects) == "a listens whether a member is left: if not, a new cluster begins"

    role.handle(role.address, JoinRetry(), at(GREET_MS))
    assert names_and_journals(role) == JOURNALS


@pytest.mark.parametrize("founding", [Founding.NO, Founding.ONCE])
def test_a_node_follows_only_after_listening_for_members_left(founding: Founding) -> None:
    role, _ = bootstrap("b", founding=founding)
    follows = [
        sent(receive(role, "a", join("a"), at_ms), JoinAck)[0].follows
        for at_ms in (GREET_MS - 1, GREET_MS)
    ]
    assert follows == [False, True]


def test_a_node_alone_accepts_connections_too_and_tries_again_by_itself() -> None:
    role, begun = bootstrap("a", members="a", founding=Founding.ONCE)
    assert role.group is None
    assert Wake(JOIN_RETRY_MS, JoinRetry()) in begun

    later = role.handle(role.address, JoinRetry(), at(GREET_MS))
    assert Observe("bootstrap.founded") in later


def test_slow_links_are_given_longer_to_come_up() -> None:
    assert greet_time_ms(ROUND_TRIP_MS) == GREET_MS
    assert greet_time_ms(ROUND_TRIP_MS_MAX) >= RECONNECT_MS_MAX + GREET_TRIPS * ROUND_TRIP_MS_MAX


def test_an_act_founds_nothing_where_another_knows_a_group() -> None:
    role, _ = bootstrap("a", start=start_of("a", journal=9))
    receive(role, "b", ack("a", "b", follows=True))
    receive(role, "c", group(10))
    receive(role, "c", ack("a", "c", follows=True))
    assert role.group is None

    receive(role, "b", group(10))
    assert role.group == group()
    assert role.standing is JournalStatus.NON_VOTING


def test_a_node_without_a_group_asks_each_node_that_contacts_it_and_takes_its_group() -> None:
    role, _ = bootstrap("b", start=start_of("b", journal=8, boot=80))
    asked = role.handle(bootstrap_of("z"), join("a", group=GROUP), T0)
    assert [effect.to for effect in asked if isinstance(effect, Send)] == [bootstrap_of("z")]

    role.handle(bootstrap_of("z"), group(80), T0)
    effects = receive(role, "c", group(80))

    assert role.group == group()
    assert JoinGroup(GROUP) in effects


def test_a_former_member_that_starts_empty_serves_no_client_until_it_is_a_member_again() -> None:
    peer, _ = bootstrap("a", records=[group()])
    peer.handle(peer.address, VotersChanged(voters=(Voter("a", 1), Voter("d", 4))), T0)
    lost = start_of("b", journal=8, boot=80)
    (config,) = sent(peer.handle(bootstrap_of("b"), join("b", start=lost), T0), GroupConfig)
    assert config.removed

    role, _ = bootstrap("b", start=lost)
    receive(role, "c", config)
    effects = receive(role, "a", config)
    (status,) = sent(effects, VotingStatus)
    assert not status.serves
    assert status.why == (
        "b was removed from group a of this cluster, or replaced, and has an empty journal: it "
        "serves nobody. Stop it; or make it a member again: fencelock join b"
    )
    role.handle(role.address, JoinRetry(), at(GREET_MS))
    back = role.handle(role.address, VotersChanged(voters=(Voter("a", 1), Voter("b", 8))), T0)
    assert [status.serves for status in sent(back, VotingStatus)] == [True]


def test_an_observer_does_not_call_another_one_in_its_configuration_a_former_member() -> None:
    role, _ = bootstrap("c", founding=Founding.NO)
    receive(role, "b", join("b"))
    both_send(role, replace(group(30), voters=(Voter("a", 1),)))

    (config,) = sent(role.handle(bootstrap_of("b"), join("b"), T0), GroupConfig)
    assert not config.removed


@pytest.mark.parametrize("knows", ["c", "y"])
def test_a_former_member_that_has_the_group_from_another_empty_node_learns_that_it_was_removed(
    knows: str,
) -> None:
    lost = start_of("b", journal=8, boot=80)
    role, _ = bootstrap("b", start=lost, founding=Founding.NO)
    assert "b lost its journal" in why(both_send(role, group(80)))
    peer, _ = bootstrap("c", records=[group()])
    peer.handle(peer.address, VotersChanged(voters=(Voter("c", 3), Voter("z", 4))), T0)

    known = join("b", group=GROUP, start=lost)
    (config,) = sent(peer.handle(bootstrap_of("b"), known, T0), GroupConfig)
    assert receive(role, "z", config) == []
    effects = receive(role, knows, config)

    (status,) = sent(effects, VotingStatus)
    assert not status.serves
    assert status.why.startswith("b was removed from group a of this cluster")
    assert replace(config, to=0) in written(effects)
    assert receive(role, knows, config) == []


def test_a_member_does_not_believe_others_that_it_was_removed() -> None:
    role, _ = voter("b")
    assert receive(role, "c", replace(group(20), removed=True)) == []

    learned, _ = bootstrap("b", records=[group()], start=start_of("b", journal=8))
    learned.handle(learned.address, VotersChanged(voters=(Voter("b", 2), Voter("c", 3))), T0)
    assert receive(learned, "c", replace(group(20), removed=True)) == []


def test_founding_again_takes_no_group_of_others() -> None:
    role, _ = bootstrap("a", start=start_of("a", journal=9), founding=Founding.AGAIN)
    ignored = [Observe("bootstrap.given_up_group")]
    assert [receive(role, one, group(10)) for one in "bc"] == [ignored, ignored]
    all_follow(role)

    assert role.group is not None
    assert role.group.group == role.own.boot


def test_a_node_that_knows_the_group_names_it_to_each_node_whose_link_comes_up() -> None:
    role, _ = voter("b")
    announced = role.handle(address_of("b", "node"), LinkUp(node="a"), T0)
    assert [(one.to, one.message) for one in announced if isinstance(one, Send)] == [
        (bootstrap_of("a"), join("b", group=GROUP, start=role.own))
    ]


@pytest.mark.parametrize("knows", ["c", "z"])
def test_no_group_is_founded_while_a_node_that_belongs_to_one_has_not_replied(knows: str) -> None:
    role, _ = bootstrap("a", start=start_of("a", journal=9))
    effects = list(role.handle(bootstrap_of(knows), join("c", group=GROUP), T0))
    effects += all_follow(role)
    assert role.group is None
    assert f"{knows} belongs to this cluster" in why(effects)

    role.handle(bootstrap_of(knows), group(10), T0)
    receive(role, "b", group(10))
    assert role.group == group()


def test_a_node_that_restarted_without_its_group_keeps_no_client_waiting() -> None:
    role, _ = bootstrap("a", durable=False)
    receive(role, "b", join("b", group=GROUP))
    receive(role, "b", join("b", start=start_of("b", journal=8, boot=80)))
    receive(role, "b", ack("a", "b", follows=True, start=start_of("b", journal=8, boot=80)))
    receive(role, "c", ack("a", "c", follows=True))
    assert role.group is not None


def test_a_follower_whose_link_broke_must_follow_again() -> None:
    role, _ = bootstrap("a")
    receive(role, "b", ack("a", "b", follows=True))
    role.handle(address_of("a", "node"), LinkDown(node="b"), T0)
    receive(role, "c", ack("a", "c", follows=True))
    assert role.group is None

    receive(role, "b", ack("a", "b", follows=True))
    assert role.group == group()


def test_the_date_of_a_group_is_that_of_its_founding() -> None:
    role, _ = bootstrap("a")
    receive(role, "b", ack("a", "b", follows=True))
    receive(role, "c", ack("a", "c", follows=True), 60_000)

    assert role.group is not None
    assert role.group.founded_ms == DATE_MS + 60_000


def test_that_a_former_member_became_one_again_outlives_its_restart() -> None:
    role, _ = bootstrap("a", start=start_of("a", journal=9), founding=Founding.NO)
    both_send(role, replace(group(10), removed=True))
    voters = (Voter("a", 9), Voter("b", 2), Voter("c", 3))
    back = role.handle(bootstrap_of("a"), VotersChanged(voters=voters), T0)
    assert [one.removed for one in written(back) if isinstance(one, GroupConfig)] == [False]


def test_founding_again_reports_that_it_does_nothing_on_a_node_with_a_group() -> None:
    _, effects = bootstrap("a", records=[group()], founding=Founding.AGAIN)
    assert errors(effects) == [
        "a has a journal of group a, so --found-again does nothing: to give the cluster up, stop "
        "all nodes and empty their folders first"
    ]


# A group is believed once two nodes have sent it


def forged(to: int = 0, sender: str = "c") -> GroupConfig:
    """A group that nobody founded: its inventor is its only member."""
    return GroupConfig(to=to, group=666, founded_ms=DATE_MS, voters=(Voter(sender, 9),))


def empty(members: str = "abc") -> Bootstrap:
    """A node with an empty journal, which waits for its group."""
    lost = start_of("b", journal=8, boot=80)
    return bootstrap("b", members=members, start=lost, founding=Founding.NO)[0]


def errors(effects: Effects) -> list[str]:
    return [one.text for one in sent(effects, RoleNotice) if one.level is Level.ERROR]


@pytest.mark.parametrize("invented", [forged(80), replace(group(80), group=666), group(80, a=9)])
@pytest.mark.parametrize("others", ["silent", "empty"])
def test_one_node_that_invents_a_group_stops_no_node_that_waits(
    invented: GroupConfig, others: str
) -> None:
    role = empty()
    if others == "empty":
        receive(role, "a", join("a"))
    for _ in range(3):
        effects = receive(role, "c", invented)
        assert written(effects) == []
        assert started(effects) == []
    assert role.group is None

    effects = receive(role, "a", group(80))
    assert role.group is None
    assert "a sent group a" in why(effects)
    assert errors(effects)[0].startswith("a sent group a of a, b, c, but c sent group")


def test_two_nodes_that_send_different_groups_are_both_named_and_neither_is_taken() -> None:
    role = empty()
    receive(role, "c", forged(80))
    effects = receive(role, "a", group(80))

    assert role.group is None
    (error,) = errors(effects)
    assert error == (
        "a sent group a of a, b, c, but c sent group 29a of c: a cluster has one group, and one of "
        "the two is forged or of another cluster: it is ignored"
    )
    assert why(effects) == (
        "c sent group 29a, a sent group a: a cluster has one group, so one of them is forged or of "
        "another cluster. Stop that node, and start b again"
    )


def test_the_group_that_two_nodes_send_is_taken_and_who_sent_another_is_named() -> None:
    role = empty(members="abcd")
    receive(role, "c", forged(80))
    receive(role, "a", group(80))
    effects = receive(role, "d", group(80))

    assert role.group == group()
    assert group() in written(effects)
    (error,) = errors(effects)
    assert error.startswith("c sent group 29a of c, but a, d sent group a of a, b, c")


def test_a_node_that_repeats_itself_counts_once() -> None:
    role = empty()
    effects = [effect for _ in range(3) for effect in receive(role, "a", group(80))]
    assert role.group is None
    assert why(effects) == (
        "a sent group a, and no other node has confirmed it: start or connect another node that "
        "knows it; or list b and a only in the configuration of b"
    )


def test_a_node_that_starts_empty_confirms_no_longer_the_group_that_it_sent() -> None:
    role = empty()
    receive(role, "a", group(80))
    receive(role, "a", join("a", start=start_of("a", journal=7, boot=70)))
    receive(role, "c", group(80))
    assert role.group is None


def test_a_node_takes_the_group_of_the_only_other_node_in_its_configuration() -> None:
    role = empty(members="ab")
    role.handle(bootstrap_of("z"), join("a", group=666), T0)
    role.handle(bootstrap_of("z"), forged(80, "z"), T0)
    assert role.group is None

    receive(role, "a", group(80))
    assert role.group == group()


@pytest.mark.parametrize("members", ["b", "bc"])
def test_no_node_beyond_its_configuration_is_believed_alone(members: str) -> None:
    role = empty(members=members)
    role.handle(bootstrap_of("z"), join("a", group=666), T0)
    role.handle(bootstrap_of("z"), forged(80, "z"), T0)
    assert role.group is None


def test_a_follower_takes_the_group_that_the_first_member_founds_if_no_other_knows_one() -> None:
    role, _ = bootstrap("b")
    receive(role, "a", join("a"))
    receive(role, "a", group(20))
    assert role.group is None  # c may know a group.

    receive(role, "c", join("c"))
    effects = receive(role, "a", group(20))
    assert role.group == group()
    assert started([*effects, *receive(role, "c", ack("b", "c"))]) == []
    assert started(receive(role, "a", ack("b", "a"))) == list(make_roles(group(), True))


def test_a_founding_is_not_believed_while_another_node_names_a_group() -> None:
    role, _ = bootstrap("b")
    receive(role, "a", join("a"))
    receive(role, "c", join("c", group=7))
    receive(role, "a", group(20))
    assert role.group is None


@pytest.mark.parametrize("founding", [Founding.NO, Founding.NEW])
def test_nobody_follows_or_founds_while_one_node_has_sent_a_group(founding: Founding) -> None:
    role, _ = bootstrap("b", founding=founding)
    assert sent(receive(role, "a", join("a"), GREET_MS), JoinAck)[0].follows
    role.handle(bootstrap_of("z"), join("a", group=GROUP), at(GREET_MS))
    assert not sent(receive(role, "a", join("a"), GREET_MS), JoinAck)[0].follows

    first, _ = bootstrap("a")
    receive(first, "b", ack("a", "b", follows=True))
    receive(first, "b", ack("a", "b", follows=False))  # b has learned that there is a group.
    receive(first, "c", ack("a", "c", follows=True))
    assert first.group is None


@pytest.mark.parametrize(
    "voters",
    [
        (),
        (Voter("b", 2), Voter("a", 1)),
        (Voter("a", 1), Voter("a", 2)),
        (Voter("a", 0),),
        (Voter("a", 1 << 63),),
        (Voter("a/b", 1),),
        tuple(Voter(f"n{number:03}", 1) for number in range(MEMBERS_MAX + 1)),
    ],
    ids=["none", "not sorted", "twice", "no journal", "far journal", "no name", "too many"],
)
def test_a_group_that_nobody_can_have_founded_is_named_and_dropped(
    voters: tuple[Voter, ...],
) -> None:
    assert_impossible(replace(group(), voters=voters))


@pytest.mark.parametrize("founded_ms", [-1, 0, FOUNDED_MS_MAX])
def test_a_group_of_an_impossible_date_is_named_and_dropped(founded_ms: int) -> None:
    assert_impossible(replace(group(), founded_ms=founded_ms))


def assert_impossible(config: GroupConfig) -> None:
    for role in (empty(members="ab"), voter("b")[0]):
        effects = receive(role, "a", replace(config, to=role.own.boot))
        assert errors(effects) == ["a sent a group that nobody can have founded: it is ignored"]
        assert written(effects) == []


def test_one_node_does_not_make_a_learner_believe_that_it_was_removed() -> None:
    role, _ = bootstrap("b", records=[group()], start=start_of("b", journal=8))
    for _ in range(2):
        assert receive(role, "c", replace(group(20), removed=True)) == []

    effects = receive(role, "a", replace(group(20), removed=True))
    assert why(effects).startswith("b was removed from group a")
