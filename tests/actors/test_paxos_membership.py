"""Changes of the members in the log, and a target size."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import checked, present
from support.role_harness import HOST, T0, at, sends, sent
from support.table_scene import replica_of_a

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.effect import Connect, Disconnect, Effects, Send, Wake
from fencelock.actors.membership import Member, Membership
from fencelock.actors.membership_changes import REPEATED_MS
from fencelock.actors.membership_target import (
    MEMBERS_CHECK_MS,
    QUIET_MS,
    MemberTarget,
    Wish,
    wish_of,
)
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import (
    CHANGE_PREFIX,
    ROUNDS_PER_VIEW,
    WINDOW,
    LogConfig,
    Term,
    View,
    acceptor_of,
    catchup_of,
    change_in,
    command_of,
    leader_of,
    log_part,
    members_of,
    monitor_of,
    replica_of,
    split,
)
from fencelock.actors.paxos.event import (
    Applied,
    DescribeNodes,
    Leadership,
    Learned,
    LocateDue,
    NodeFacts,
    NodesDescribed,
    ProposeChange,
    Resign,
    TargetDue,
    Trimmed,
    ViewChanged,
    WriteChunk,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.locator import LEADER_MS, Locator
from fencelock.actors.paxos.reconfigurer import (
    PAXOS_REACHABLE_MS,
    PAXOS_VERSION_CHARS_MAX,
    Facts,
    Reconfigurer,
)
from fencelock.actors.paxos.wire import (
    NO_BALLOT,
    NO_REPORT,
    UNWILLING,
    Accept,
    Accepted,
    Ballot,
    Batch,
    Heartbeat,
    HeartbeatAck,
    Locate,
)
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.wire import LOG_VERSION

A, B, C, D = (Member(name, f"tcp://{name}:1", place) for place, name in enumerate("abcd", start=1))
THREE = Membership(0, (A, B, C))
IDS = {acceptor_of(one.name): one.journal for one in THREE.members}


def config() -> LogConfig:
    """Return the views of three members with votes that name their journals."""
    view = View(0, THREE.names, dict(IDS), THREE.members)
    return LogConfig(view, lambda member: member.journal)


@pytest.fixture
def views() -> LogConfig:
    return config()


def batch(*commands: bytes) -> Batch:
    return Batch(time_ms=1, commands=commands)


# The log


def test_a_change_is_a_command_that_reads_back() -> None:
    four = THREE.with_member(D)

    assert change_in(batch(command_of(four))) == Membership(1, (A, B, C, D))
    assert four.without("a") == Membership(2, (B, C, D))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"7",
        b"[1]",
        b"[1,[]]",
        b'[1,[["a","",1],["a","",2]]]',
        b'[1,[["b","",1],["a","",2]]]',
        b'[1,[["a/b","",1]]]',
        b'[-1,[["a","",1]]]',
        b'[1,[["a","",true]]]',
        b"[" * 5_000,
    ],
)
def test_a_payload_that_is_no_membership_changes_nothing(content: bytes) -> None:
    assert change_in(batch(CHANGE_PREFIX + content)) is None


def test_a_command_beside_others_is_no_change() -> None:
    command = command_of(THREE.with_member(D))

    assert change_in(batch(command, command)) is None
    assert change_in(batch(b"a command")) is None


def test_a_snapshot_of_a_restored_cluster_is_that_of_its_machine() -> None:
    assert split((b"one", b"two")) == ((b"one", b"two"), (), NO_BALLOT)


def test_a_snapshot_ends_with_the_members_and_the_origin() -> None:
    terms = (Term(0, THREE), Term(40, THREE.with_member(D)))
    origin = Ballot(7, Address("b/leader"))

    assert split((b"one", log_part(terms, origin))) == ((b"one",), terms, origin)
    assert split((b"one", log_part((), origin))) == ((b"one",), (), origin)


def test_a_snapshot_with_unreadable_members_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        split((b"one", CHANGE_PREFIX + b"[[1]]"))
    for origin in (b"7", b"[7]", b'[-1,"b"]', b"[7,8]", b'[7,"b",1]'):
        with pytest.raises(ValueError, match="ballot in the snapshot"):
            split((b"one", CHANGE_PREFIX + b"[[]," + origin + b"]"))


# The views


def test_a_change_is_in_force_a_window_after_its_slot(views: LogConfig) -> None:
    assert views.change(10, THREE.with_member(D))

    assert views.at(10 + WINDOW - 1).members == ("a", "b", "c")
    assert views.at(10 + WINDOW).members == ("a", "b", "c", "d")
    assert [view.number for view in views.current] == [0, 1]


def test_no_change_follows_before_the_last_is_in_force_at_all_slots(views: LogConfig) -> None:
    four = THREE.with_member(D)
    views.change(10, four)

    assert not views.change(12, four.without("a"))
    assert not views.advance(10 + WINDOW - 1)
    assert views.advance(10 + WINDOW)
    assert views.change(10 + WINDOW, four.without("a"))


@pytest.mark.parametrize(
    "wrong",
    [
        Membership(2, (A, B, C, D)),
        Membership(1, (A, B, C)),
        Membership(1, (A, D)),
        Membership(1, (A, B, C._replace(journal=9))),
    ],
    ids=["skips a number", "changes nothing", "changes two", "changes a journal at once"],
)
def test_a_change_that_does_not_follow_is_ignored(views: LogConfig, wrong: Membership) -> None:
    assert not views.change(10, wrong)
    assert views.current == (View(0, ("a", "b", "c")),)


def test_a_change_that_names_other_endpoints_follows() -> None:
    elsewhere = tuple(one._replace(endpoint="tcp://x:9") for one in THREE.members)

    assert config().change(10, Membership(1, (*elsewhere, D)))


def test_both_views_need_a_majority_until_one_is_over(views: LogConfig) -> None:
    views.change(10, THREE.with_member(D))
    two = {acceptor_of("a"), acceptor_of("b")}

    assert not views.is_majority(two)
    assert views.is_majority({*two, acceptor_of("d")})
    assert views.reached({"a": 5, "b": 4}) is None
    assert views.reached({"a": 5, "b": 4, "d": 3}) == 3


def test_a_journal_votes_on_the_slots_of_its_views_and_on_no_others(views: LogConfig) -> None:
    views.change(10, THREE.without("c"))

    assert views.seat(acceptor_of("c"), 3) == range(10 + WINDOW)
    assert not views.seat(acceptor_of("c"), 4)
    assert not views.seat(acceptor_of("d"), 4)
    views.advance(10 + WINDOW)
    assert not views.seat(acceptor_of("c"), 3)


def test_a_member_with_a_new_journal_votes_on_no_earlier_slot(views: LogConfig) -> None:
    views.change(10, THREE.without("c"))
    views.advance(30)
    views.change(40, Membership(2, (A, B, C._replace(journal=9))))

    assert views.seat(acceptor_of("c"), 9).start == 40 + WINDOW
    assert not views.seat(acceptor_of("c"), 3)


def accepted_after(views: LogConfig, change: Membership, name: str, voter: int) -> list[Accepted]:
    """Return the answer of an acceptor that applied ``change`` to a leader that did not.

    The leader proposes the slot before the change comes into force, which is decided by now.
    """
    acceptor = Acceptor(
        acceptor_of(name), HOST, node=name, config=views, recovered=Recovered(), voter=voter
    )
    acceptor.begin(T0)
    views.change(10, change)
    acceptor.handle(replica_of(name), ViewChanged(), T0)
    views.advance(10 + WINDOW)
    views.applied = 10 + WINDOW
    acceptor.handle(replica_of(name), Applied(slot=views.applied), T0)
    acceptor.handle(replica_of(name), ViewChanged(), T0)
    late = Accept(ballot=Ballot(5, leader_of("a")), slot=9 + WINDOW, batch=batch(), committed=10)
    return sent(acceptor.handle(address_of("a", "commander-5"), late, T0), Accepted)


def test_a_journal_goes_on_voting_on_slots_that_a_former_view_decides(views: LogConfig) -> None:
    change = THREE.with_member(D)
    assert views.seat(acceptor_of("b"), B.journal).start == 0
    (vote,) = accepted_after(views, change, "b", B.journal)
    assert (vote.slot, vote.voter) == (9 + WINDOW, B.journal)
    assert views.seat(acceptor_of("b"), B.journal).start == 10 + WINDOW


def test_a_journal_that_got_its_seat_later_does_not_vote_on_them(views: LogConfig) -> None:
    assert accepted_after(views, THREE.with_member(D), "d", D.journal) == []


def test_an_acceptor_that_loses_a_seat_first_learns_that_its_slots_are_decided() -> None:
    """Its promise must not report votes there: a leader would repeat them, and get no votes."""
    replica = replica_of_a(config=config())
    own, turns = acceptor_of("a"), list[list[object]]()
    for slot in range(1, WINDOW + 2):
        decided = batch(command_of(THREE.with_member(D))) if slot == 1 else batch()
        learned = Learned(slots=((slot, decided),), committed=slot + 1)
        effects = replica.handle(own, learned, T0)
        messages = [send.message for send in sends(effects) if send.to == own]
        if ViewChanged() in messages:
            turns.append([*messages])
    assert turns == [[Applied(slot=slot), ViewChanged()] for slot in (2, 1 + WINDOW)]


def test_a_member_writes_its_journal_anew_once_a_change_is_in_force() -> None:
    replica = replica_of_a(config=config())
    own, steps = acceptor_of("a"), list[tuple[int, list[object]]]()
    for slot in range(1, WINDOW + 2):
        decided = batch(command_of(THREE.with_member(D))) if slot == 1 else batch()
        learned = Learned(slots=((slot, decided),), committed=slot + 1)
        effects = replica.handle(own, learned, T0)
        while any(isinstance(one, Wake) and one.timer == WriteChunk() for one in effects):
            effects = replica.handle(replica.address, WriteChunk(), T0)
            steps += [(slot, sent(effects, Trimmed))] if sent(effects, Trimmed) else []
    in_force = 1 + WINDOW
    assert steps[0] == (in_force - 1, [Trimmed(slot=in_force)] * 2)


def test_a_leader_that_learns_of_a_change_from_others_is_overtaken() -> None:
    """Its commander would ask for votes on slots that the members of the new view know."""
    replica = replica_of_a(config=config())
    commander = address_of("a", "commander-3")
    ballot = Ballot(3, leader_of("a"))
    replica.handle(
        leader_of("a"), Leadership(ballot=ballot, commander=commander, first=1, time_ms=0), T0
    )
    batches = [batch(command_of(THREE.with_member(D))), *[batch()] * (WINDOW - 1)]
    learned = Learned(slots=tuple(enumerate(batches, start=1)), committed=0)
    effects = replica.handle(catchup_of("a"), learned, T0)
    assert Send(leader_of("a"), ViewChanged(overtaken=True)) in effects


def test_an_acceptor_reports_what_its_journal_has() -> None:
    known: dict[str, Any] = {"node": "a", "config": config(), "voter": A.journal}
    acceptor = Acceptor(acceptor_of("a"), HOST, recovered=Recovered(), **known)
    commander = address_of("b", "commander-3")
    beat = Heartbeat(ballot=Ballot(3, leader_of("b")), number=1, committed=1, min_applied=1)
    stored: list[int] = []
    for _ in range(2):
        acks = sent(acceptor.handle(commander, beat, T0), HeartbeatAck)
        stored += [ack.stored for ack in acks]
        acceptor.handle(replica_of("a"), Trimmed(slot=20), T0)
    assert stored == [1, 20]


def test_ballots_of_a_new_view_are_above_those_of_the_one_before(views: LogConfig) -> None:
    views.change(10, THREE.with_member(D))

    assert views.floor == ROUNDS_PER_VIEW


def test_an_old_copy_that_was_shut_out_stays_so_when_the_members_change() -> None:
    """`Bootstrap` removes the id of a member that runs on an old copy of its journal."""
    registered = dict(IDS)
    views = LogConfig(View(0, THREE.names, registered, THREE.members), lambda one: one.journal)
    del registered[acceptor_of("b")]

    views.change(10, THREE.with_member(D))

    assert not views.counts(acceptor_of("b"), B.journal)
    assert views.counts(acceptor_of("d"), D.journal)


# The steps of a change


def facts_of(answering: str, **learners: Locate) -> tuple[NodeFacts, ...]:
    """Return facts of members that answered just now, and of the ``learners``."""
    known = [NodeFacts(one, 5, 0, 0, None) for one in answering]
    return (*known, *(NodeFacts(one, 5, 0, 0, report) for one, report in learners.items()))


def learner(**fields: Any) -> Locate:
    made = Locate(applied=5, view=0, journal=4, ready=True, endpoint="tcp://d:1", version="1")
    return replace(made, **{"log_version": LOG_VERSION, **fields})


def step(
    action: MemberAction,
    node: str,
    facts: tuple[NodeFacts, ...],
    *,
    replacement: str = "",
    journal: int = 0,
) -> tuple[MembersChanged | Refused, list[object]]:
    """Return the answer of the leader ``a``, and the messages to its other roles."""
    views = config()
    views.applied = 5
    role = Reconfigurer(members_of("a"), HOST, node="a", config=views)
    request = ChangeMembers(action=action, node=node, replacement=replacement, journal=journal)
    asker = members_of("b")
    assert role.handle(asker, request, T0)
    effects = role.handle(monitor_of("a"), NodesDescribed(leader="a", nodes=facts), T0)
    (answer,) = [send.message for send in sends(effects) if send.to == asker]
    assert isinstance(answer, MembersChanged | Refused)
    return answer, [send.message for send in sends(effects) if send.to != asker]


def test_a_learner_that_caught_up_is_added() -> None:
    answer, proposed = step(MemberAction.JOIN, "d", facts_of("bc", d=learner()))

    assert isinstance(answer, MembersChanged)
    assert not answer.done
    assert proposed == [ProposeChange(membership=THREE.with_member(D), joiner_applied=5)]


def test_a_learner_that_lacks_slots_has_to_learn_first() -> None:
    views = facts_of("bc", d=learner(ready=False))

    answer, proposed = step(MemberAction.JOIN, "d", views)

    assert isinstance(answer, MembersChanged)
    assert (answer.done, proposed) == (False, [])
    assert answer.detail == "d learns what was decided"


def test_a_join_reports_how_much_a_learner_lacks() -> None:
    report = learner(bytes_left=9_000)
    far = NodeFacts("d", report.applied, 0, 0, report, lag=4_000)

    answer, proposed = step(MemberAction.JOIN, "d", (*facts_of("bc"), far))

    assert isinstance(answer, MembersChanged)
    assert (answer.slots_left, answer.bytes_left, proposed) == (4_000, 9_000, [])


def test_a_learner_is_added_while_the_log_grows_by_2000_slots_a_second() -> None:
    """A learner requests slots every 50 ms. With a limit of 16, no node could join a busy group."""
    follows = NodeFacts("d", 5, 0, 0, learner(), lag=2 * LEADER_MS + 20)

    answer, proposed = step(MemberAction.JOIN, "d", (*facts_of("bc"), follows))

    assert isinstance(answer, MembersChanged)
    assert proposed == [ProposeChange(membership=THREE.with_member(D), joiner_applied=5)]


@pytest.mark.parametrize(
    ("session", "later_ms", "joins"),
    [("one", 200, True), ("another", 200, False), ("one", 200 + REPEATED_MS, False)],
)
def test_a_node_joins_with_the_journal_that_it_names_after_the_request(
    views: LogConfig, session: str, later_ms: int, *, joins: bool
) -> None:
    """It may have lost the one that it named before."""
    views.applied = 5
    role = Reconfigurer(members_of("a"), HOST, node="a", config=views)

    def proposed(session: str, at_ms: int, report: Locate, last_message_ms: int) -> list[object]:
        now = Instant(T0 + at_ms * NS_PER_MS)
        facts = (*facts_of("bc"), NodeFacts("d", 5, last_message_ms, 0, report))
        join = ChangeMembers(action=MemberAction.JOIN, node="d", session=session)
        role.handle(members_of("b"), join, now)
        effects = role.handle(monitor_of("a"), NodesDescribed(leader="a", nodes=facts), now)
        messages = {send.to: send.message for send in sends(effects)}
        answer = checked(MembersChanged, messages.pop(members_of("b")))
        assert not answer.done
        assert ("waiting for d to report" in answer.detail) == (not messages)
        return list(messages.values())

    assert proposed("one", 0, learner(journal=9), 100) == []
    added = ProposeChange(membership=THREE.with_member(D), joiner_applied=5)
    assert proposed(session, later_ms, learner(), 50) == [added] * joins


def test_a_request_to_add_a_member_again_does_not_wait_for_its_journal() -> None:
    late = NodeFacts("b", 5, 100, 0, learner(journal=B.journal))
    answer, _ = step(MemberAction.JOIN, "b", (*facts_of("bc"), late))

    assert isinstance(answer, MembersChanged)
    assert answer.done


def test_members_are_read_with_their_versions_and_observers() -> None:
    role = Reconfigurer(members_of("a"), HOST, node="a", config=config(), version="2")
    facts = NodeFacts("b", 5, 0, 0, None, version="1" * 500)
    seen = NodeFacts("d", 5, 0, 0, learner(), version="1")
    asker = members_of("b")
    role.handle(asker, ReadMembers(), T0)

    effects = role.handle(monitor_of("a"), NodesDescribed(leader="a", nodes=(facts, seen)), T0)

    (answer,) = sends(effects)
    read = checked(MembersRead, answer.message)
    assert [(one.node, one.role.name, one.version) for one in read.nodes] == [
        ("a", "LEADER", "2"),
        ("b", "MEMBER", "1" * PAXOS_VERSION_CHARS_MAX),
        ("c", "MEMBER", ""),
        ("d", "OBSERVER", "1"),
    ]


@pytest.mark.parametrize(
    ("action", "node", "facts", "text"),
    [
        (
            MemberAction.JOIN,
            "d",
            facts_of("bc"),
            "d has sent no message yet: start it with the address of a member in its "
            "configuration, and try again",
        ),
        (
            MemberAction.JOIN,
            "d",
            facts_of("", d=learner()),
            "with d a majority of the members could not be reached: start members that do not "
            "answer, or remove them first",
        ),
        (
            MemberAction.JOIN,
            "d",
            facts_of("bc", d=learner(log_version=0)),
            "d can apply requests up to log version 0, this group has 1: upgrade it first",
        ),
        (
            MemberAction.JOIN,
            "c",
            facts_of("b", c=learner(journal=40)),
            "c is a member, but lost its journal: run fencelock replace c",
        ),
        (
            MemberAction.LEAVE,
            "b",
            facts_of("b"),
            "without b a majority of the members could not be reached, since c does not answer: "
            "start it, or remove it first",
        ),
        (
            MemberAction.REMOVE,
            "b",
            facts_of("bc"),
            "b runs, as it answered a recently: run fencelock leave b, or stop it first",
        ),
        (
            MemberAction.REMOVE,
            "a",
            facts_of("bc"),
            "a runs, as it answered a recently: run fencelock leave a, or stop it first",
        ),
        (
            MemberAction.TRANSFER,
            "d",
            facts_of("bc"),
            "d is not a member: run fencelock join d first",
        ),
        (
            MemberAction.TRANSFER,
            "c",
            facts_of("b"),
            "c does not answer a: start it, and try again",
        ),
    ],
)
def test_a_change_that_would_do_harm_is_refused_with_the_next_step(
    action: MemberAction, node: str, facts: tuple[NodeFacts, ...], text: str
) -> None:
    answer, proposed = step(action, node, facts)

    assert isinstance(answer, Refused)
    assert answer.detail == text
    assert proposed == []


def test_a_dead_member_is_removed_while_a_majority_of_the_rest_answers() -> None:
    _, proposed = step(MemberAction.REMOVE, "c", facts_of("b"))

    assert proposed == [ProposeChange(membership=THREE.without("c"))]


def test_a_leader_that_is_to_go_hands_over_first() -> None:
    _, proposed = step(MemberAction.LEAVE, "a", facts_of("bc"))

    assert proposed == [Resign()]


def test_a_replacement_is_added_first_and_if_that_costs_the_majority_last() -> None:
    add = facts_of("bc", d=learner())
    few = facts_of("b")

    _, first = step(MemberAction.REPLACE, "c", add, replacement="d")
    refused, none = step(MemberAction.REPLACE, "c", few, replacement="d")

    assert first == [ProposeChange(membership=THREE.with_member(D), joiner_applied=5)]
    assert isinstance(refused, Refused)
    assert none == []


def test_a_replacement_waits_until_a_new_leader_has_a_message_from_the_node() -> None:
    answer, proposed = step(MemberAction.REPLACE, "c", facts_of("b"), replacement="c")

    assert isinstance(answer, MembersChanged)
    assert not answer.done
    assert "c has sent no message yet" in answer.detail
    assert proposed == []


@pytest.mark.parametrize("node", ["c", "d"], ids=["before its removal", "after it"])
def test_two_processes_of_one_id_do_not_take_turns_as_the_replacement(node: str) -> None:
    """Each would be removed for the other, without end."""
    twin = facts_of("b", **{node: learner(journal=6)})

    answer, proposed = step(MemberAction.REPLACE, node, twin, replacement=node, journal=5)

    assert isinstance(answer, Refused)
    assert f"either two processes run as {node}" in answer.detail
    assert proposed == []


def test_a_change_that_is_done_is_done_however_often_it_is_asked_for() -> None:
    answer, proposed = step(MemberAction.REMOVE, "d", facts_of("bc"))

    assert isinstance(answer, MembersChanged)
    assert (answer.done, proposed) == (True, [])


def test_a_change_is_done_once_a_majority_has_stored_it(views: LogConfig) -> None:
    in_force = 10 + WINDOW
    views.change(10, THREE.with_member(D))
    views.advance(in_force)
    role = Reconfigurer(members_of("a"), HOST, node="a", config=views)
    join = ChangeMembers(action=MemberAction.JOIN, node="d")
    answers: list[MembersChanged] = []
    for stored in (in_force - 1, in_force):
        role.handle(members_of("b"), join, T0)
        described = NodesDescribed(leader="a", nodes=facts_of("bcd"), stored=stored)
        effects = role.handle(monitor_of("a"), described, T0)
        answers += sent(effects, MembersChanged)

    assert [answer.done for answer in answers] == [False, True]
    assert "a majority has not stored that yet" in answers[0].detail


def test_a_member_that_was_silent_does_not_count_as_reachable() -> None:
    late = (NodeFacts("b", 5, PAXOS_REACHABLE_MS + 1, 0, None), *facts_of("c"))

    answer, _ = step(MemberAction.REMOVE, "c", late)

    assert isinstance(answer, Refused)


def test_links_follow_the_members(views: LogConfig) -> None:
    role = Reconfigurer(members_of("a"), HOST, node="a", config=views)
    replica: Address = replica_of("a")
    views.change(10, THREE.with_member(D))
    role.handle(replica, ViewChanged(), T0)
    views.advance(30)
    views.change(40, THREE.with_member(D).without("b"))
    role.handle(replica, ViewChanged(), T0)
    views.advance(60)

    effects = role.handle(replica, ViewChanged(), T0)

    assert [one for one in effects if isinstance(one, Connect)] == []
    assert [one for one in effects if isinstance(one, Disconnect)] == [Disconnect("b")]


def test_a_transfer_names_the_successor() -> None:
    _, proposed = step(MemberAction.TRANSFER, "c", facts_of("bc"))

    assert proposed == [Resign(successor="c")]


# Leaders that keep their group at a target size: the changes that they start


SILENT_MS = 5_000
TARGET = MemberTarget(3, SILENT_MS)
WILLING = learner(journal=40, priority=14, life=7)


def view_of(members: str) -> View:
    seats = tuple(Member(one, f"tcp://{one}:1", n) for n, one in enumerate(members, start=1))
    return View(0, tuple(members), seats=seats)


def wish(members: str, answering: str, **learners: Locate) -> Wish | None:
    """Return the wish of the leader ``a`` whose other members were silent for long."""
    facts = Facts("a", facts_of(answering, **learners))
    return wish_of(view_of(members).members, TARGET, facts, lambda _: SILENT_MS)


def request_of(wish: Wish | None) -> ChangeMembers:
    assert wish is not None
    assert wish.request is not None
    return wish.request


def test_a_complete_group_that_answers_stays_as_it_is() -> None:
    assert wish("abc", "bc", d=WILLING) is None


def test_a_member_that_was_silent_for_long_is_replaced() -> None:
    found = wish("abc", "b", d=WILLING)
    request = request_of(found)
    assert (request.action, request.node, request.replacement) == (MemberAction.REPLACE, "c", "d")
    assert present(found).why == "c has not answered a for 5 s: d is to replace it"


def test_a_member_beyond_the_target_is_removed() -> None:
    """Also the second half of a replacement."""
    found = wish("abcd", "bd", e=WILLING)
    request = request_of(found)
    assert (request.action, request.node) == (MemberAction.REMOVE, "c")
    why = "c has not answered a for 5 s, and target_members is 3: c is to be removed"
    assert present(found).why == why


@pytest.mark.parametrize(
    ("members", "count"), [("ab", "there are 2 members"), ("a", "there is 1 member")]
)
def test_a_group_that_is_too_small_grows(members: str, count: str) -> None:
    found = wish(members, members[1:], d=WILLING)
    request = request_of(found)
    assert (request.action, request.node) == (MemberAction.JOIN, "d")
    assert present(found).why == f"{count}, and target_members is 3: d is to become a member"


@pytest.mark.parametrize(
    "unwilling",
    [
        replace(WILLING, priority=UNWILLING),
        replace(WILLING, ready=False),
        replace(WILLING, endpoint=""),
    ],
)
def test_a_node_that_does_not_want_to_or_cannot_join_does_not(unwilling: Locate) -> None:
    found = present(wish("abc", "b", d=unwilling))
    assert found.request is None
    assert found.why == (
        "c has not answered a for 5 s, but no node is there that could become a member"
    )


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"priority": 2, "life": 9}, {"priority": 3, "life": 1}, "d"),
        ({"priority": 3, "life": 9}, {"priority": 3, "life": 1}, "e"),
        ({"life": 1, "endpoint": "tcp://z:1"}, {"life": 1, "endpoint": "tcp://y:1"}, "e"),
        ({}, {}, "d"),
    ],
)
def test_the_election_order_of_snaplock_decides(
    first: dict[str, object], second: dict[str, object], chosen: str
) -> None:
    learners = {"d": replace(WILLING, **first), "e": replace(WILLING, **second)}
    assert request_of(wish("abc", "b", **learners)).replacement == chosen


def test_a_member_that_lost_its_journal_returns_unless_another_node_is_there() -> None:
    again = request_of(wish("abc", "b", c=WILLING))
    assert (again.replacement, again.journal) == ("c", WILLING.journal)
    other = replace(WILLING, priority=14, life=99)
    assert request_of(wish("abc", "b", c=WILLING, d=other)).replacement == "d"


# The role

DOWN_MS = 3_000


class Keeper:
    """The role of the leader ``a`` of three members, and its clock."""

    def __init__(self, members: str = "abc") -> None:
        self.config = LogConfig(view_of(members))
        self.config.applied = 5
        self.config.meet("d")
        here = members_of("a")
        self.role = Reconfigurer(here, HOST, node="a", config=self.config, target=TARGET)
        self.role.begin(at(0))
        self.checked_ms = 0
        self.ballot = Ballot(1, leader_of("a"))

    def check(self, ms: int, facts: tuple[NodeFacts, ...], leader: str = "a") -> Effects:
        """Compare ``facts`` with the target at ``ms``, after all checks that are due before it."""
        for before in range(self.checked_ms + MEMBERS_CHECK_MS, ms, MEMBERS_CHECK_MS):
            self.role.handle(self.role.address, TargetDue(), at(before))
        return self.check_after_pause(ms, facts, leader)

    def check_after_pause(
        self, ms: int, facts: tuple[NodeFacts, ...], leader: str = "a"
    ) -> Effects:
        self.checked_ms = ms
        asked = self.role.handle(self.role.address, TargetDue(), at(ms))
        assert asked == [
            Send(monitor_of("a"), DescribeNodes()),
            Wake(MEMBERS_CHECK_MS, TargetDue()),
        ]
        stored = self.config.views[-1][0]
        described = NodesDescribed(leader=leader, nodes=facts, stored=stored, ballot=self.ballot)
        return self.role.handle(monitor_of("a"), described, at(ms))


def proposed(effects: Effects) -> list[tuple[str, ...]]:
    return [one.membership.names for one in sent(effects, ProposeChange)]


def notices(effects: Effects) -> list[RoleNotice]:
    return sent(effects, RoleNotice, address_of("a", "node"))


def test_silence_counts_from_the_beginning_of_the_leadership() -> None:
    keeper, facts = Keeper(), facts_of("b", d=WILLING)
    assert not keeper.check(1_000, facts)
    assert not keeper.check(1_000 + SILENT_MS - 1, facts)
    keeper.check(1_000 + SILENT_MS, facts, leader="b")  # Another one leads meanwhile.
    assert not keeper.check(2_000 + SILENT_MS, facts)
    effects = keeper.check(2_000 + 2 * SILENT_MS, facts)
    assert proposed(effects) == [("a", "b", "c", "d")]
    (notice,) = notices(effects)
    assert notice.level is Level.INFO
    assert "c has not answered a for 5 s: d is to replace it" in notice.text


def test_silence_counts_anew_if_the_node_lost_and_got_the_lead_between_two_checks() -> None:
    """What its members answered before it lost the lead is forgotten, so they may seem silent."""
    keeper, facts = Keeper(), facts_of("b", d=WILLING)
    assert not keeper.check(0, facts)
    assert not keeper.check(SILENT_MS - MEMBERS_CHECK_MS, facts)
    keeper.ballot = Ballot(3, leader_of("a"))
    assert not keeper.check(SILENT_MS, facts)
    assert not keeper.check(2 * SILENT_MS - 1, facts)
    assert proposed(keeper.check(2 * SILENT_MS + MEMBERS_CHECK_MS, facts)) == [("a", "b", "c", "d")]


def test_what_an_operator_reads_is_no_step_towards_the_target() -> None:
    keeper, facts = Keeper(), facts_of("b", d=WILLING)
    keeper.check(0, facts)
    assert not keeper.check(SILENT_MS - 1, facts)
    described = NodesDescribed(leader="a", nodes=facts, stored=keeper.config.views[-1][0])
    keeper.role.handle(members_of("b"), ReadMembers(), at(SILENT_MS))
    effects = keeper.role.handle(monitor_of("a"), described, at(SILENT_MS))
    assert sent(effects, MembersRead)
    assert not proposed(effects)
    assert proposed(keeper.check_after_pause(SILENT_MS, facts))


def test_a_new_member_is_not_silent_before_it_could_answer() -> None:
    """The other one is removed, although the new one has not answered either."""
    keeper = Keeper()
    keeper.check(0, facts_of("c"))
    keeper.config.change(5, keeper.config.membership.with_member(Member("d", "tcp://d:1", 4)))
    assert not keeper.check(SILENT_MS, facts_of("c"))
    keeper.config.applied = 100
    keeper.config.advance(100)
    assert proposed(keeper.check(SILENT_MS + 1, facts_of("c"))) == [("a", "c", "d")]


def test_a_leader_that_was_paused_counts_silence_anew() -> None:
    keeper, facts = Keeper(), facts_of("b", d=WILLING)
    keeper.check(0, facts)
    assert not keeper.check_after_pause(SILENT_MS, facts)
    assert not keeper.check(2 * SILENT_MS - 1, facts)
    assert proposed(keeper.check(2 * SILENT_MS, facts)) == [("a", "b", "c", "d")]


def test_a_member_that_answers_this_leader_is_never_replaced() -> None:
    keeper = Keeper()
    facts = (NodeFacts("b", 5, 0, 0, None), NodeFacts("c", 5, SILENT_MS - 1, 0, None))
    keeper.check(0, facts)
    assert not keeper.check(9 * SILENT_MS, (*facts, *facts_of("", d=WILLING)))


def test_nothing_is_replaced_without_a_majority_and_the_reason_is_logged_once() -> None:
    keeper, facts = Keeper("abcde"), facts_of("b", f=WILLING)
    keeper.role.keeper.target = MemberTarget(5, SILENT_MS)
    keeper.check(0, facts)
    effects = keeper.check(SILENT_MS, facts)
    assert proposed(effects) == []
    (notice,) = notices(effects)
    assert notice.level is Level.WARNING
    assert notice.text == (
        "e has not answered a for 5 s: f is to replace it, but without e a majority of the members "
        "could not be reached, since c, d do not answer: start them, or remove them first"
    )
    assert not keeper.check(SILENT_MS + MEMBERS_CHECK_MS, facts)


def test_a_member_that_is_silent_for_long_is_called_down_by_the_leader_until_it_is_back() -> None:
    keeper, only = Keeper(), facts_of("b")
    keeper.role.keeper.target = MemberTarget(down_ms=DOWN_MS)
    keeper.check(0, only)
    assert not keeper.check(DOWN_MS - 1, only)
    (lost,) = notices(keeper.check(DOWN_MS, only))
    assert (lost.level, lost.text) == (
        Level.WARNING,
        f"c is down: it has been silent for {DOWN_MS // 1_000} s",
    )
    described = NodesDescribed(leader="a", nodes=only)
    keeper.role.handle(members_of("b"), ReadMembers(), at(DOWN_MS))
    (answer,) = sends(keeper.role.handle(monitor_of("a"), described, at(DOWN_MS)))
    roles = {one.node: one.role for one in checked(MembersRead, answer.message).nodes}
    assert roles == {"a": NodeRole.LEADER, "b": NodeRole.MEMBER, "c": NodeRole.DOWN}
    (back,) = notices(keeper.check(2 * DOWN_MS, facts_of("bc")))
    assert (back.level, back.text) == (Level.INFO, "c is up again")
    assert not keeper.check(4 * DOWN_MS, facts_of("bc"))


def test_a_member_that_lost_its_journal_or_was_removed_is_neither_down_nor_up_again() -> None:
    keeper, lost = Keeper(), facts_of("b", c=WILLING)
    keeper.role.keeper.target = MemberTarget(down_ms=DOWN_MS)
    keeper.check(0, lost)
    assert not keeper.check(2 * DOWN_MS, lost)
    assert notices(keeper.check(4 * DOWN_MS, facts_of("b")))
    keeper.config.change(5, keeper.config.membership.without("c"))
    keeper.config.applied = 100
    keeper.config.advance(100)
    assert not keeper.check(6 * DOWN_MS, facts_of("b"))
    assert not keeper.role.keeper.down


def test_only_the_leader_calls_members_down_and_counts_from_when_it_led() -> None:
    keeper, only = Keeper(), facts_of("b")
    keeper.role.keeper.target = MemberTarget(down_ms=DOWN_MS)
    keeper.check(0, only, leader="b")
    assert not keeper.check(2 * DOWN_MS, only, leader="b")
    assert not keeper.check(3 * DOWN_MS - 1, only)
    assert notices(keeper.check(4 * DOWN_MS, only))
    keeper.check(5 * DOWN_MS, only, leader="b")
    assert not keeper.role.keeper.down


def test_an_operator_is_left_alone() -> None:
    keeper, facts = Keeper(), facts_of("b", d=WILLING)
    keeper.check(0, facts)
    request = ChangeMembers(action=MemberAction.TRANSFER, node="a")
    keeper.role.handle(members_of("b"), request, at(SILENT_MS))
    described = NodesDescribed(leader="a", nodes=facts)
    keeper.role.handle(monitor_of("a"), described, at(SILENT_MS))
    assert not keeper.check(SILENT_MS + QUIET_MS - 1, facts)
    assert proposed(keeper.check(SILENT_MS + QUIET_MS, facts))


def test_a_removed_member_is_not_willing_until_it_is_restarted() -> None:
    config = LogConfig(view_of("bc"))
    locator = Locator("a", config, replace(NO_REPORT, priority=3), voter=0)
    for served, priority in ((False, 3), (True, UNWILLING)):
        locator.served = served
        locator.turn(at(0))
        asked = locator.handle(address_of("a", "x"), LocateDue(number=locator.timer), at(0))
        assert [one.priority for one in sent(asked, Locate)] == [priority]
