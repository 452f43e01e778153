"""`[bakery] target_members`: nodes that serve become members, and silent members are replaced."""

from __future__ import annotations

import dataclasses
from typing import Any

from support.bakery_cluster_harness import TERMS, ClusterHarness

from fencelock.actors.api.membership_message import MembersRead, NodeRole, ReadMembers
from fencelock.actors.bakery.config import OFF, election_of, members_of
from fencelock.actors.membership_target import MemberTarget
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, bakery
from fencelock.verification.simulation.bakery_judge import BakeryJudge

SILENT_MS = 3_000
DOWN_MS = 2_000
HEARTBEAT_MS = 400
LONG_MS = 60_000
UNWILLING = "n6"


def with_endpoints(context: NodeContext) -> RoleSet:
    """Set up a node that announces its address; `UNWILLING` never becomes a member itself."""
    endpoints = {context.node: f"tcp://{context.node}:4040"}
    priority = OFF if context.node == UNWILLING else context.settings.priority
    settings = dataclasses.replace(context.settings, priority=priority)
    return bakery(dataclasses.replace(context, endpoints=endpoints, settings=settings))


def founded(founders: int, target: int, *guests: str) -> ClusterHarness:
    """Return a cluster with a target, beside which other nodes serve."""
    aim = MemberTarget(target, SILENT_MS, DOWN_MS)
    settings = dataclasses.replace(TERMS, bakery_target=aim)
    harness = ClusterHarness(6, settings, make_roles=with_endpoints)
    harness.world.judges.append(BakeryJudge(harness.world))
    names = harness.names[:founders]
    harness.world.members = tuple(names)
    harness.start(*names).ready()
    harness.world.members = tuple(harness.names)
    harness.start(*guests)
    return harness


def members(harness: ClusterHarness, node: str) -> tuple[str, ...]:
    electorate: Any = harness.world.role_at(election_of(node)).electorate
    return () if electorate.former else electorate.names


def test_guests_become_members_one_after_the_other_while_a_lock_is_held() -> None:
    harness = founded(3, 5, "n4", "n5")
    held = harness.lock("n1", hold_ms=LONG_MS)
    harness.until(lambda: members(harness, "n5") == ("n1", "n2", "n3", "n4", "n5"))
    status = harness.leader(harness.serving()[0]).tickets.queues["x"].holders()
    assert [entry.fence for entry in status] == [held.fence]


def test_a_member_that_is_silent_for_long_enough_is_replaced_by_a_spare() -> None:
    harness = founded(3, 3, "n4")
    harness.run(2_000)
    assert members(harness, "n1") == ("n1", "n2", "n3")
    harness.world.crash("n3")
    took_ms = harness.until(lambda: members(harness, "n4") == ("n1", "n2", "n4"))
    assert took_ms >= SILENT_MS


def test_a_member_that_is_silent_for_long_is_called_down_until_it_returns() -> None:
    harness = founded(3, 0)
    harness.world.crash("n3")
    role: Any = harness.world.role_at(members_of("n1"))
    took_ms = harness.until(lambda: "n3" in role.keeper.down)
    assert took_ms >= DOWN_MS - HEARTBEAT_MS
    assert roles(harness)["n3"] is NodeRole.DOWN
    harness.start("n3")
    harness.until(lambda: not role.keeper.down)
    assert roles(harness)["n3"] in (NodeRole.MEMBER, NodeRole.LEADER)
    assert harness.world.marks["notice.warning"] >= 1


def roles(harness: ClusterHarness) -> dict[str, NodeRole]:
    """Return what `fencelock members` shows."""
    harness.number += 1
    number = harness.number
    harness.send("n1", ReadMembers(session="u", request=number))
    harness.until(lambda: bool(harness.answers(MembersRead, number)))
    return {one.node: one.role for one in harness.answers(MembersRead, number)[0].nodes}


def test_a_member_that_returns_in_time_stays_and_no_unwilling_node_joins() -> None:
    harness = founded(3, 5, UNWILLING)
    harness.world.crash("n3")
    harness.run(SILENT_MS // 2)
    harness.start("n3")
    harness.run(3 * SILENT_MS)
    assert members(harness, "n1") == ("n1", "n2", "n3")
