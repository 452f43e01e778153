"""`bakery` while its members change, in a simulated cluster: seats follow, and locks stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness

from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.api.message import Reason, Refused, Released
from fencelock.actors.bakery.config import election_of, members_of
from fencelock.actors.bakery.electorate import FOUNDERS
from fencelock.actors.bakery.reconfigurer import SeatingChanges
from fencelock.actors.message import Instant, address_of
from fencelock.verification.simulation.bakery_judge import BakeryJudge

LONG_MS = 60_000


def grown(names: int, founders: int = 3, seed: int = 1) -> ClusterHarness:
    """Return a cluster of three with further nodes that run, and are no members."""
    harness = ClusterHarness(names, seed=seed)
    harness.world.judges.append(BakeryJudge(harness.world))
    founding = harness.names[:founders]
    harness.world.members = tuple(founding)
    harness.start(*founding).ready()
    harness.world.members = tuple(harness.names)
    harness.start(*harness.names[founders:])
    return harness


def electorate_of(harness: ClusterHarness, node: str) -> Any:
    return harness.world.role_at(election_of(node)).electorate


def ask(harness: ClusterHarness, gate: str, action: MemberAction, node: str, new: str = "") -> Any:
    """Ask for a change until it is done or refused; return the answer."""
    while True:
        harness.number += 1
        number = harness.number
        change = ChangeMembers(
            action=action, node=node, replacement=new, session="u", request=number
        )
        harness.send(gate, change)
        harness.until(
            lambda number=number: bool(  # type: ignore[misc]
                harness.answers(MembersChanged, number) or harness.answers(Refused, number)
            )
        )
        refused = harness.answers(Refused, number)
        answer = refused[0] if refused else harness.answers(MembersChanged, number)[0]
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
    return lambda: all(
        electorate_of(harness, name).names == names and not electorate_of(harness, name).former
        for name in names
    )


def test_a_node_joins_and_votes_while_a_lock_is_held() -> None:
    harness = grown(4)
    held = harness.lock("n1", hold_ms=LONG_MS)
    received_from(harness, "n4")
    assert not harness.world.role_at(election_of("n4")).is_voter
    assert ask(harness, "n2", MemberAction.JOIN, "n4").members == ("n1", "n2", "n3", "n4")
    harness.until(settled(harness, "n1", "n2", "n3", "n4"))
    assert harness.world.role_at(election_of("n4")).is_voter
    harness.release("n3", held)
    harness.until(lambda: bool(harness.answers(Released)))
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
    lose_disk(harness, "n4")
    while isinstance(answer := ask(harness, "n1", MemberAction.JOIN, "n4"), Refused):
        assert "n4 has sent no message yet" in answer.detail
        harness.run(5)
    harness.until(lambda: harness.world.role_at(election_of("n4")).is_voter)


def test_a_leader_that_leaves_gives_up_its_seat_and_another_member_takes_it() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    ask(harness, "n1", MemberAction.JOIN, "n4")
    harness.until(lambda: len(harness.serving()) == 3)
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
    assert electorate_of(harness, "n5").names == ("n3", "n4", "n5")


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


def lose_disk(harness: ClusterHarness, node: str) -> None:
    harness.world.crash(node)
    harness.world.nodes[node].disk.lose()
    for judge in harness.world.judges:
        judge.disk_replaced(node)  # type: ignore[attr-defined]
    harness.start(node)


def roles_of(harness: ClusterHarness, gate: str = "n1") -> dict[str, NodeRole]:
    """Return the role of each node, as ``gate`` reports it."""
    harness.number += 1
    number = harness.number
    harness.send(gate, ReadMembers(session="u", request=number))
    harness.until(lambda: bool(harness.answers(MembersRead, number)))
    read = harness.answers(MembersRead, number)[0]
    return {report.node: report.role for report in read.nodes}


def test_a_leader_that_lost_its_disk_is_shown_so_and_replaced_by_itself() -> None:
    harness = grown(3)
    harness.until(lambda: len(harness.serving()) == 3)
    lose_disk(harness, "n3")
    received_from(harness, "n3")
    assert roles_of(harness)["n3"] is NodeRole.NON_VOTING
    role: Any = harness.world.role_at(address_of("n1", "proxy"))
    detail = role.backend.in_flight.readiness.detail
    assert detail == "ready, but n3 does not vote: fencelock members says what to run"
    assert ask(harness, "n1", MemberAction.REPLACE, "n3", "n3").done
    harness.until(lambda: len(harness.serving()) == 3)
    assert roles_of(harness)["n3"] is NodeRole.LEADER
    lose_disk(harness, "n2")
    received_from(harness, "n2")
    assert ask(harness, "n3", MemberAction.REPLACE, "n2", "n2").done
    harness.until(lambda: len(harness.serving()) == 3)


def test_another_member_takes_the_seat_of_a_leader_that_lost_its_disk() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    ask(harness, "n1", MemberAction.JOIN, "n4")
    harness.until(lambda: len(harness.serving()) == 3)
    lost = harness.serving()[-1]
    spare = harness.others()[0]
    held = harness.lock(spare, hold_ms=LONG_MS)
    lose_disk(harness, lost)
    harness.until(lambda: spare in harness.serving())
    harness.release(spare, held)
    assert harness.lock(spare, owner="ben").fence > held.fence


def test_two_lost_disks_of_three_are_shown_with_what_to_do() -> None:
    harness = grown(3)
    harness.until(lambda: len(harness.serving()) == 3)
    for node in ("n2", "n3"):
        lose_disk(harness, node)
        received_from(harness, node)
    role: Any = harness.world.role_at(address_of("n1", "proxy"))
    detail = role.backend.in_flight.readiness.detail
    assert "of which n2, n3 do not vote; 2 voters are needed" in detail
    assert 'see "Loss of a majority" in docs/operations.md' in detail


def test_a_leader_that_is_down_is_a_member_that_does_not_lead() -> None:
    harness = grown(3)
    harness.until(lambda: len(harness.serving()) == 3)
    harness.world.crash("n3")
    harness.run(1_000)
    assert roles_of(harness)["n3"] is NodeRole.MEMBER


def test_a_member_that_lost_its_journal_is_replaced_by_itself() -> None:
    harness = grown(3)
    lose_disk(harness, "n3")
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
    harness.until(lambda: len(harness.serving()) == 3)
    for node in ("n1", "n2"):
        ask(harness, "n3", MemberAction.LEAVE, node)
    harness.until(lambda: harness.serving() == ["n3"])
    harness.lock("n1", "a")
    for node in ("n1", "n2"):
        ask(harness, "n3", MemberAction.JOIN, node)
    harness.until(lambda: len(harness.serving()) == 3)
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
    harness.until(lambda: len(harness.serving()) == 3)
    if down:
        harness.world.crash(down)
        harness.run(1_000)
    refused = ask(harness, "n1", action, node)
    assert refused.reason is Reason.MEMBERSHIP
    assert text in refused.detail


def test_the_members_are_listed_with_their_parts() -> None:
    harness = grown(4)
    received_from(harness, "n4")
    harness.until(lambda: len(harness.serving()) == 3)
    harness.send("n4", ReadMembers(session="u", request=99))
    harness.until(lambda: bool(harness.answers(MembersRead, 99)))
    (read,) = harness.answers(MembersRead, 99)
    roles = {report.node: report.role for report in read.nodes}
    assert roles == {**dict.fromkeys(("n1", "n2", "n3"), NodeRole.LEADER), "n4": NodeRole.OBSERVER}
    proxy = harness.world.role_at(address_of("n4", "proxy"))
    assert "n4 is an observer" in proxy.backend.why_no_vote
