"""Leaders that keep their group at a target size: the changes that they start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.effects import HOST, at

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.effect import Effects, Send, Wake
from fencelock.actors.membership import Member
from fencelock.actors.message import address_of
from fencelock.actors.paxos.config import LogConfig, View, members_of, monitor_of
from fencelock.actors.paxos.locator import Locator, MemberFacts
from fencelock.actors.paxos.member_event import (
    DescribeNodes,
    LocateDue,
    NodeFacts,
    NodesDescribed,
    ProposeChange,
    TargetDue,
)
from fencelock.actors.paxos.message import UNWILLING, Locate
from fencelock.actors.paxos.node_facts import Facts
from fencelock.actors.paxos.reconfigurer import Reconfigurer
from fencelock.actors.paxos.target import CHECK_MS, QUIET_MS, MemberTarget, Wish, wish_of
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.wire import LOG_VERSION

SILENT_MS = 5_000
TARGET = MemberTarget(3, SILENT_MS)
WILLING = Locate(
    applied=5,
    view=0,
    journal=40,
    ready=True,
    endpoint="tcp://d:1",
    version="1",
    priority=14,
    life=7,
    log_version=LOG_VERSION,
)


def view_of(members: str) -> View:
    seats = tuple(Member(one, f"tcp://{one}:1", n) for n, one in enumerate(members, start=1))
    return View(0, tuple(members), seats=seats)


def facts_of(answering: str, **learners: Locate) -> tuple[NodeFacts, ...]:
    """Return the facts that the leader ``a`` knows."""
    known = [NodeFacts(one, 5, 0, 0, None) for one in answering]
    return (*known, *(NodeFacts(one, 5, 0, 0, report) for one, report in learners.items()))


def wish(members: str, answering: str, **learners: Locate) -> Wish | None:
    """Return the wish of the leader ``a`` whose other members were silent for long."""
    facts = Facts("a", facts_of(answering, **learners))
    return wish_of(view_of(members), TARGET, facts, lambda _: SILENT_MS)


def request_of(wish: Wish | None) -> ChangeMembers:
    assert wish is not None
    assert wish.request is not None
    return wish.request


def test_a_complete_group_that_answers_stays_as_it_is() -> None:
    assert wish("abc", "bc", d=WILLING) is None


def test_a_member_that_was_silent_for_long_is_replaced() -> None:
    request = request_of(wish("abc", "b", d=WILLING))
    assert (request.action, request.node, request.replacement) == (MemberAction.REPLACE, "c", "d")


def test_a_member_beyond_the_target_is_removed() -> None:
    """Also the second half of a replacement."""
    request = request_of(wish("abcd", "bd", e=WILLING))
    assert (request.action, request.node) == (MemberAction.REMOVE, "c")


def test_a_group_that_is_too_small_grows() -> None:
    request = request_of(wish("ab", "b", d=WILLING))
    assert (request.action, request.node) == (MemberAction.JOIN, "d")


@pytest.mark.parametrize(
    "unwilling",
    [
        replace(WILLING, priority=UNWILLING),
        replace(WILLING, ready=False),
        replace(WILLING, endpoint=""),
    ],
)
def test_nobody_joins_that_does_not_want_to_or_cannot(unwilling: Locate) -> None:
    found = wish("abc", "b", d=unwilling)
    assert found is not None
    assert found.request is None
    assert "no node is there" in found.why


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

    def check(self, ms: int, facts: tuple[NodeFacts, ...], leader: str = "a") -> Effects:
        """Compare ``facts`` with the target at ``ms``, after all checks that are due before it."""
        for before in range(self.checked_ms + CHECK_MS, ms, CHECK_MS):
            self.role.handle(self.role.address, TargetDue(), at(before))
        return self.check_after_pause(ms, facts, leader)

    def check_after_pause(
        self, ms: int, facts: tuple[NodeFacts, ...], leader: str = "a"
    ) -> Effects:
        self.checked_ms = ms
        asked = self.role.handle(self.role.address, TargetDue(), at(ms))
        assert asked == [Send(monitor_of("a"), DescribeNodes()), Wake(CHECK_MS, TargetDue())]
        described = NodesDescribed(leader=leader, nodes=facts)
        return self.role.handle(monitor_of("a"), described, at(ms))


def proposed(effects: Effects) -> list[tuple[str, ...]]:
    sent = [one.message for one in effects if isinstance(one, Send)]
    return [one.membership.names for one in sent if isinstance(one, ProposeChange)]


def notices(effects: Effects) -> list[RoleNotice]:
    """Return the log lines."""
    here = address_of("a", "node")
    sent = [one.message for one in effects if isinstance(one, Send) and one.to == here]
    return [one for one in sent if isinstance(one, RoleNotice)]


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
    keeper.role.target = MemberTarget(5, SILENT_MS)
    keeper.check(0, facts)
    effects = keeper.check(SILENT_MS, facts)
    assert proposed(effects) == []
    (notice,) = notices(effects)
    assert notice.level is Level.WARNING
    assert "a majority of the members could not be reached" in notice.text
    assert not keeper.check(SILENT_MS + CHECK_MS, facts)


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
    locator = Locator("a", config, MemberFacts(0, 1, "tcp://a:1", "1", 3, 7), 700, ready=True)
    for served, priority in ((False, 3), (True, UNWILLING)):
        locator.served = served
        locator.turn(at(0))
        asked = locator.handle(address_of("a", "x"), LocateDue(number=locator.timer), at(0))
        sent = [one.message for one in asked if isinstance(one, Send)]
        assert [one.priority for one in sent if isinstance(one, Locate)] == [priority]
