"""Rounds of the log with real roles, and round trips that are longer than configured."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from support.expect import checked
from support.role_harness import HOST

from fencelock.actors.effect import Checkpoint, Effects, Observe, Retire, Send, Spawn
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, address_of, node_of
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import (
    BALLOT_ROUND_MAX,
    LEADER_LEASE_MS,
    ROUND_JUMP_MAX,
    TOO_FAR,
    LogConfig,
    View,
    acceptor_of,
    leader_of,
)
from fencelock.actors.paxos.event import Leadership, ScoutResend, Suspect, Withdraw
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader, Scout
from fencelock.actors.role import Role

MEMBERS = ("a", "b", "c")
STEPS_MAX = 10_000


class RoundGroup:
    """Acceptors and leaders of a group with a network that loses nothing, and a forger."""

    def __init__(self, members: tuple[str, ...] = MEMBERS, **recovered: Recovered) -> None:
        self.config = LogConfig(View(0, members))
        self.roles: dict[Address, Role[Any]] = {}
        self.down: set[str] = set()
        self.leaderships: list[messages.Ballot] = []
        self.marks: list[str] = []
        self.now = Instant(0)
        self._queue: deque[tuple[Address, Address, Message]] = deque()
        self._led: set[messages.Ballot] = set()
        for node in members:
            known = recovered.get(node, Recovered())
            acceptor, leader = acceptor_of(node), leader_of(node)
            common: dict[str, Any] = {"node": node, "config": self.config, "recovered": known}
            self.roles[acceptor] = Acceptor(acceptor, HOST, **common)
            self.roles[leader] = Leader(leader, HOST, random=Random(1), **common)
            self.roles[acceptor].begin(self.now)
        self.now = Instant(2 * LEADER_LEASE_MS * NS_PER_MS)  # Any lease of an earlier life is over.

    def acceptor(self, node: str) -> Acceptor:
        return checked(Acceptor, self.roles[acceptor_of(node)])

    def forge(self, node: str, as_node: str, round_: int) -> None:
        """Send the acceptor of ``node`` what ``as_node`` would send as leader of ``round_``."""
        ballot = messages.Ballot(round_, leader_of(as_node))
        scout, commander = address_of(as_node, "scout-x"), address_of(as_node, "commander-x")
        accept = messages.Accept(ballot=ballot, slot=1, batch=messages.NO_OP, committed=1)
        beat = messages.Heartbeat(ballot=ballot, number=1, committed=1, min_applied=0)
        self._queue.append((scout, acceptor_of(node), messages.Prepare(ballot=ballot, first=1)))
        for message in (accept, beat, messages.Commit(ballot=ballot, committed=1)):
            self._queue.append((commander, acceptor_of(node), message))
        self.run()
        self.now = Instant(self.now + 2 * LEADER_LEASE_MS * NS_PER_MS)

    def elect(self, node: str) -> messages.Ballot:
        """Let ``node`` stand for election until it leads; return its ballot."""
        before, leader = len(self.leaderships), leader_of(node)
        for _ in range(20):
            self.take(leader, self.roles[leader].handle(leader, Suspect(), self.now))
            self.run()
            for _ in range(STEPS_MAX):
                if len(self.leaderships) > before:
                    return self.leaderships[-1]
                scouts = [one for one in self.roles if "scout" in one and node_of(one) == node]
                if not scouts:
                    break  # It gave way, and stands again after a pause.
                self.take(
                    scouts[0], self.roles[scouts[0]].handle(scouts[0], ScoutResend(), self.now)
                )
                self.run()
        raise AssertionError(f"{node} never leads: {self.marks[-5:]}")

    def depose(self, node: str) -> None:
        leader = leader_of(node)
        self.take(leader, self.roles[leader].handle(leader, Withdraw(), self.now))
        self.run()

    def run(self) -> None:
        for _ in range(STEPS_MAX * 100):
            if not self._queue:
                return
            sender, to, message = self._queue.popleft()
            role = self.roles.get(to)
            lost = {node_of(sender), node_of(to)} & self.down
            if role is not None and not lost and type(message) in role.accepts:
                self.take(to, role.handle(sender, message, self.now))
        raise AssertionError("no end of it")

    def take(self, source: Address, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Leadership):
                self.leaderships.append(effect.message.ballot)
            elif isinstance(effect, Send):
                message: Any = effect.message
                self._queue.append((source, effect.to, message))
            elif isinstance(effect, Checkpoint):
                for record in effect.records:
                    if (
                        isinstance(record, messages.Pledged)
                        and record.pledge is messages.Pledge.LED
                    ):
                        assert record.ballot not in self._led  # one-life-a-ballot
                        self._led.add(record.ballot)
            elif isinstance(effect, Spawn) and effect.role is Scout:
                role = effect.role(effect.address, HOST, **effect.arguments)
                self.roles[effect.address] = role
                self.take(effect.address, role.begin(self.now))
            elif isinstance(effect, Retire):
                self.roles.pop(effect.address, None)
            elif isinstance(effect, Observe):
                self.marks.append(effect.name)


@pytest.mark.parametrize(
    "round_", [messages.PAXOS_NUMBER_MAX - 1, BALLOT_ROUND_MAX, ROUND_JUMP_MAX + 3]
)
def test_a_forged_message_of_a_far_round_changes_nothing(round_: int) -> None:
    group = RoundGroup()
    group.elect("a")
    before = {node: group.acceptor(node).promised for node in MEMBERS}
    for node in MEMBERS:
        group.forge(node, "b" if node != "b" else "c", round_)
    assert {node: group.acceptor(node).promised for node in MEMBERS} == before
    assert "paxos.round_too_far" in group.marks
    group.depose("a")
    assert group.elect("c").round <= 3


@pytest.mark.parametrize("down", ["", "b", "c"])
@pytest.mark.parametrize("times", [1, 2, 50])
def test_a_member_that_forged_messages_pushed_far_ahead_does_not_stop_the_group(
    down: str, times: int
) -> None:
    group = RoundGroup()
    group.elect("a")
    group.depose("a")
    for number in range(1, times + 1):
        group.forge("b", "c", group.acceptor("b").promised.round + ROUND_JUMP_MAX)
        assert group.acceptor("b").promised.round >= number * ROUND_JUMP_MAX
    group.down = {down} - {""}
    for node in MEMBERS:
        if node != down:
            group.elect(node)
            group.depose(node)


def test_five_members_of_which_two_are_down_and_one_was_pushed_ahead_go_on() -> None:
    members = ("a", "b", "c", "d", "e")
    group = RoundGroup(members)
    group.elect("a")
    group.depose("a")
    for _ in range(20):
        group.forge("b", "c", group.acceptor("b").promised.round + ROUND_JUMP_MAX)
    group.down = {"d", "e"}
    for node in ("a", "c", "b"):
        group.elect(node)
        group.depose(node)
    assert "paxos.round_stepped" in group.marks


def test_a_group_whose_rounds_a_former_version_used_up_goes_on() -> None:
    """Under the old bound two forged messages left every journal with this round."""
    bricked = Recovered(promised=messages.Ballot(messages.PAXOS_NUMBER_MAX - 1, leader_of("c")))
    group = RoundGroup(a=bricked, b=bricked, c=bricked)
    assert group.elect("a").round == messages.PAXOS_NUMBER_MAX


def test_a_group_of_which_one_journal_has_a_forged_round_goes_on() -> None:
    bricked = Recovered(promised=messages.Ballot(ROUND_JUMP_MAX * 1000, leader_of("c")))
    group = RoundGroup(b=bricked)
    group.down = {"c"}
    group.elect("a")
    group.depose("a")
    group.elect("b")


def test_a_forged_preemption_raises_the_rounds_of_a_leader_by_a_step_at_most() -> None:
    group = RoundGroup()
    leader = checked(Leader, group.roles[leader_of("a")])
    forged = messages.Preempted(ballot=messages.Ballot(BALLOT_ROUND_MAX, leader_of("b")))
    leader.handle(leader_of("a"), Suspect(), group.now)
    for _ in range(3):
        leader.handle(address_of("a", "scout-1"), forged, group.now)
    assert leader.ballot.round <= 4 * ROUND_JUMP_MAX
    assert leader.handle(leader_of("a"), Withdraw(), group.now)
    assert leader.handle(address_of("a", "commander-1"), forged, group.now) == (TOO_FAR,)


def test_a_scout_that_is_not_hurried_reports_a_far_ballot_only_when_it_asks_again() -> None:
    config = LogConfig(View(0, MEMBERS))
    scout = Scout(
        address_of("a", "scout-1"),
        HOST,
        node="a",
        config=config,
        ballot=messages.Ballot(1, leader_of("a")),
        first=1,
    )
    scout.begin(Instant(0))
    far = messages.Preempted(ballot=messages.Ballot(BALLOT_ROUND_MAX, leader_of("c")))
    assert scout.handle(acceptor_of("b"), far, Instant(0)) == (TOO_FAR,)
    scout.handle(scout.address, ScoutResend(), Instant(0))
    assert scout.handle(acceptor_of("b"), far, Instant(0)) == (Send(leader_of("a"), far),)


def test_a_generation_without_a_disk_begins_at_its_own_rounds_and_is_bounded_from_there() -> None:
    first = 1 + (1 << 60)
    begun = Recovered(led=first)
    group = RoundGroup(a=begun, b=begun, c=begun)
    assert group.elect("a").round == first + 1
    group.forge("b", "c", BALLOT_ROUND_MAX)
    assert group.acceptor("b").promised.round == first + 1
