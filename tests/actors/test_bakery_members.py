"""`bakery` while its members change, in a simulated cluster: seats follow, and locks stay.

Operators change them, and so do leaders that keep `[bakery] target_members`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import TERMS, ClusterHarness

from fencelock.actors.api.lock_message import Reason, Refused, Released
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    NodeRole,
)
from fencelock.actors.bakery.config import OFF, election_of, members_of
from fencelock.actors.bakery.electorate import FOUNDERS
from fencelock.actors.bakery.reconfigurer import SeatingChanges
from fencelock.actors.membership_target import MemberTarget
from fencelock.actors.message import Instant
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, bakery

LONG_MS = 60_000


def grown(names: int, seed: int = 1) -> ClusterHarness:
    """Return a cluster of three with further nodes that run, and are no members."""
    return ClusterHarness(names, seed=seed).judged().grown(3)


def ask(harness: ClusterHarness, gate: str, action: MemberAction, node: str, new: str = "") -> Any:
    """Ask for a change until it is done or refused; return the answer."""
    while True:
        asked = harness.request(gate, ChangeMembers, action=action, node=node, replacement=new)
        answer = harness.answer(MembersChanged | Refused, asked)
        if isinstance(answer, Refused) or answer.done:
            return answer
        harness.run(50)


def received_from(harness: ClusterHarness, *nodes: str) -> None:
    """Wait until every member has received a message of each of ``nodes``."""
    members = [name for name in harness.names if harness.world.nodes[name].up]

    def known() -> bool:
        roles = [harness.world.role_at(members_of(name)) for name in members if name not in nodes]
        return all(node in role.infos for role in roles for node in nodes)

    harness.until(known)
    harness.run(500)


def settled(harness: ClusterHarness, *names: str) -> Callable[[], bool]:
    """Return whether all of ``names`` know that they, and no others, are the members."""
    return lambda: all(members(harness, name) == names for name in names)


def members(harness: ClusterHarness, node: str) -> tuple[str, ...]:
    """Return the members that ``node`` knows, none while they change."""
    electorate = harness.electorate(node)
    return () if electorate.former else electorate.names


def test_a_node_joins_and_votes_while_a_lock_is_held() -> None:
    harness = grown(4)
    held = harness.lock("n1", hold_ms=LONG_MS)
    received_from(harness, "n4")
    assert not harness.world.role_at(election_of("n4")).is_voter
    assert ask(harness, "n2", MemberAction.JOIN, "n4").members == ("n1", "n2", "n3", "n4")
    harness.until(settled(harness, "n1", "n2", "n3", "n4"))
    assert harness.world.role_at(election_of("n4")).is_voter
    harness.release("n3", held)
    harness.answer(Released)
    assert harness.lock("n4", owner="ben").fence > held.fence


def test_a_change_is_done_once_beats_of_a_majority_show_it() -> None:
    """If the coordinator alone had stored it, the loss of its disk would bring the former back."""
    harness = grown(4)
    received_from(harness, "n4")
    names = ask(harness, "n1", MemberAction.JOIN, "n4").members
    harness.until(settled(harness, *names))
    harness.run(500)
    role = harness.world.role_at(members_of("n1"))
    late = [
        member if member.node in ("n1", "n2") else member._replace(electorate=FOUNDERS)
        for member in role.readiness.members
    ]
    readiness = replace(role.readiness, members=tuple(late))
    assert SeatingChanges(role, role.readiness, Instant(0)).pending() == ""
    pending = SeatingChanges(role, readiness, Instant(0)).pending()
    assert pending == "change 1 is in force, but a majority has not stored that yet"


@pytest.mark.parametrize("seed", range(8))
def test_a_node_that_starts_empty_again_joins_with_the_journal_that_it_has_now(seed: int) -> None:
    """The coordinator may still have the description that the node sent in its former life."""
    harness = grown(4, seed=seed)
    received_from(harness, "n4")
    harness.world.crash("n4")
    harness.run(100)
    harness.lose_disk("n4")
    while isinstance(answer := ask(harness, "n1", MemberAction.JOIN, "n4"), Refused):
        assert "n4 has sent no message yet" in answer.detail
        harness.run(5)
    harness.until(lambda: harness.world.role_at(election_of("n4")).is_voter)


def test_a_leader_that_leaves_gives_up_its_seat_and_another_member_takes_it() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    ask(harness, "n1", MemberAction.JOIN, "n4")
    harness.until_three_lead()
    held = harness.lock("n1", hold_ms=LONG_MS)
    leaving = harness.serving()[0]
    gate = next(name for name in harness.names if name != leaving)
    stays = tuple(name for name in harness.names if name != leaving)
    assert ask(harness, gate, MemberAction.LEAVE, leaving).members == stays
    harness.until(lambda: sorted(harness.serving()) == list(stays))
    assert not harness.world.role_at(election_of(leaving)).is_voter
    waiting = harness.acquire(leaving, owner="ben")
    harness.run(1_000)
    harness.release(gate, held)
    assert harness.granted(waiting).fence > held.fence


def test_the_members_go_on_without_those_that_left_and_forget_none_that_joined() -> None:
    harness = grown(5)
    received_from(harness, "n4", "n5")
    for node in ("n4", "n5"):
        ask(harness, "n1", MemberAction.JOIN, node)
    ask(harness, "n3", MemberAction.LEAVE, "n1")
    harness.world.crash("n1")
    ask(harness, "n3", MemberAction.LEAVE, "n2")
    harness.world.crash("n2")
    harness.until(settled(harness, "n3", "n4", "n5"))
    for name in ("n3", "n4", "n5"):
        harness.world.crash(name)
    harness.run(1_000)
    harness.start("n3", "n4", "n5")
    harness.lock("n5")
    assert harness.electorate("n5").names == ("n3", "n4", "n5")


def test_removed_nodes_never_vote_again() -> None:
    harness = grown(5)
    received_from(harness, "n4", "n5")
    for node in ("n4", "n5"):
        ask(harness, "n1", MemberAction.JOIN, node)
    for node in ("n1", "n2"):
        ask(harness, "n3", MemberAction.LEAVE, node)
    harness.until(settled(harness, "n3", "n4", "n5"))
    for name in harness.names:
        harness.world.crash(name)
    harness.start("n1", "n2", "n3")  # Once a majority of the members: now one of three.
    harness.run(5_000)
    assert harness.serving() == []
    harness.start("n4")
    harness.ready()
    assert set(harness.serving()) <= {"n3", "n4"}


def test_a_leader_that_lost_its_disk_is_shown_so_and_replaced_by_itself() -> None:
    harness = grown(3)
    harness.until_three_lead()
    harness.lose_disk("n3")
    received_from(harness, "n3")
    assert harness.roles()["n3"] is NodeRole.NON_VOTING
    ready = "ready, but n3 does not vote: fencelock members says what to run"
    assert harness.detail("n1") == ready
    assert ask(harness, "n1", MemberAction.REPLACE, "n3", "n3").done
    harness.until_three_lead()
    assert harness.roles()["n3"] is NodeRole.LEADER
    harness.lose_disk("n2")
    received_from(harness, "n2")
    assert ask(harness, "n3", MemberAction.REPLACE, "n2", "n2").done
    harness.until_three_lead()


def test_nobody_is_shown_as_leader_without_a_majority() -> None:
    harness = grown(3)
    harness.until_three_lead()
    for name in ("n2", "n3"):
        harness.world.crash(name)
    harness.until(lambda: "cluster is down" in harness.detail("n1"))
    assert NodeRole.LEADER not in harness.roles("n1").values()
    harness.start("n2", "n3")
    harness.until_three_lead()
    assert harness.roles("n1") == dict.fromkeys(("n1", "n2", "n3"), NodeRole.LEADER)


def test_another_member_takes_the_seat_of_a_leader_that_lost_its_disk() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    ask(harness, "n1", MemberAction.JOIN, "n4")
    harness.until_three_lead()
    lost = harness.serving()[-1]
    spare = harness.others()[0]
    held = harness.lock(spare, hold_ms=LONG_MS)
    harness.lose_disk(lost)
    harness.until(lambda: spare in harness.serving())
    harness.release(spare, held)
    assert harness.lock(spare, owner="ben").fence > held.fence


def test_two_lost_disks_of_three_are_shown_with_what_to_do() -> None:
    harness = grown(3)
    harness.until_three_lead()
    for node in ("n2", "n3"):
        harness.lose_disk(node)
        received_from(harness, node)
    detail = harness.detail("n1")
    assert "of which n2, n3 do not vote; 2 voters are needed" in detail
    assert 'see "Loss of a majority" in docs/operations.md' in detail


def test_a_leader_that_is_down_is_a_member_that_does_not_lead() -> None:
    harness = grown(3)
    harness.until_three_lead()
    harness.world.crash("n3")
    harness.run(1_000)
    assert harness.roles()["n3"] is NodeRole.MEMBER


def test_a_member_that_lost_its_journal_is_replaced_by_itself() -> None:
    harness = grown(3)
    harness.lose_disk("n3")
    received_from(harness, "n3")
    refused = ask(harness, "n1", MemberAction.JOIN, "n3")
    assert "lost its journal: run fencelock replace n3" in refused.detail
    assert ask(harness, "n1", MemberAction.REPLACE, "n3", "n3").done
    harness.until(lambda: harness.world.role_at(election_of("n3")).is_voter)
    harness.world.crash("n1")
    harness.lock("n3")


def test_a_member_is_replaced_by_another_node() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    harness.world.crash("n3")
    harness.run(1_000)
    replaced = ask(harness, "n1", MemberAction.REPLACE, "n3", "n4")
    assert replaced.members == ("n1", "n2", "n4")
    harness.world.crash("n2")
    harness.lock("n4")


def test_a_cluster_shrinks_to_one_node_and_grows_again() -> None:
    harness = grown(3)
    harness.until_three_lead()
    for node in ("n1", "n2"):
        ask(harness, "n3", MemberAction.LEAVE, node)
    harness.until(lambda: harness.serving() == ["n3"])
    harness.lock("n1", "a")
    for node in ("n1", "n2"):
        ask(harness, "n3", MemberAction.JOIN, node)
    harness.until_three_lead()
    harness.lock("n1", "b")


@pytest.mark.parametrize(
    ("action", "node", "down", "text"),
    [
        (MemberAction.JOIN, "n9", "", "n9 has sent no message yet"),
        (MemberAction.TRANSFER, "n2", "", "bakery has up to three leaders"),
        (
            MemberAction.REMOVE,
            "n2",
            "",
            "n2 runs, as it answered n1 recently: run fencelock leave n2",
        ),
        (MemberAction.LEAVE, "n2", "n3", "since n3 does not answer: start it, or remove it"),
    ],
)
def test_a_change_is_refused_with_what_to_do_instead(
    action: MemberAction, node: str, down: str, text: str
) -> None:
    harness = grown(3)
    harness.until_three_lead()
    if down:
        harness.world.crash(down)
        harness.run(1_000)
    refused = ask(harness, "n1", action, node)
    assert refused.reason is Reason.MEMBERSHIP
    assert text in refused.detail


def test_the_members_are_listed_with_their_parts() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    harness.until_three_lead()
    roles = harness.roles("n4")
    assert roles == {**dict.fromkeys(("n1", "n2", "n3"), NodeRole.LEADER), "n4": NodeRole.OBSERVER}
    assert "n4 is an observer" in harness.backend("n4").why_no_vote


# Leaders that keep a target of members


SILENT_MS = 3_000
DOWN_MS = 2_000
HEARTBEAT_MS = 400
UNWILLING = "n6"


def with_endpoints(context: NodeContext) -> RoleSet:
    """Set up a node that announces its address; `UNWILLING` never becomes a member itself."""
    endpoints = {context.node: f"tcp://{context.node}:4040"}
    priority = OFF if context.node == UNWILLING else context.settings.priority
    settings = dataclasses.replace(context.settings, priority=priority)
    return bakery(dataclasses.replace(context, endpoints=endpoints, settings=settings))


def targeted(target: int, *guests: str) -> ClusterHarness:
    """Return a cluster of three with a target, beside which other nodes serve."""
    aim = MemberTarget(target, SILENT_MS, DOWN_MS)
    settings = dataclasses.replace(TERMS, bakery_target=aim)
    return ClusterHarness(6, settings, make_roles=with_endpoints).judged().grown(3, *guests)


def test_guests_become_members_one_after_the_other_while_a_lock_is_held() -> None:
    harness = targeted(5, "n4", "n5")
    held = harness.lock("n1", hold_ms=LONG_MS)
    harness.until(lambda: members(harness, "n5") == ("n1", "n2", "n3", "n4", "n5"))
    status = harness.leader(harness.serving()[0]).tickets.queues["x"].holders()
    assert [entry.fence for entry in status] == [held.fence]


def test_a_member_that_is_silent_for_long_enough_is_replaced_by_a_spare() -> None:
    harness = targeted(3, "n4")
    harness.run(2_000)
    assert members(harness, "n1") == ("n1", "n2", "n3")
    harness.world.crash("n3")
    took_ms = harness.until(lambda: members(harness, "n4") == ("n1", "n2", "n4"))
    assert took_ms >= SILENT_MS


def test_a_member_that_is_silent_for_long_is_called_down_until_it_returns() -> None:
    harness = targeted(0)
    harness.world.crash("n3")
    role: Any = harness.world.role_at(members_of("n1"))
    took_ms = harness.until(lambda: "n3" in role.keeper.down)
    assert took_ms >= DOWN_MS - HEARTBEAT_MS
    assert harness.roles()["n3"] is NodeRole.DOWN
    harness.start("n3")
    harness.until(lambda: not role.keeper.down)
    assert harness.roles()["n3"] in (NodeRole.MEMBER, NodeRole.LEADER)
    assert harness.world.marks["notice.warning"] >= 1


def test_a_member_that_returns_in_time_stays_and_no_unwilling_node_joins() -> None:
    harness = targeted(5, UNWILLING)
    harness.world.crash("n3")
    harness.run(SILENT_MS // 2)
    harness.start("n3")
    harness.run(3 * SILENT_MS)
    assert members(harness, "n1") == ("n1", "n2", "n3")
