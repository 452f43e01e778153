from __future__ import annotations

import json
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType
from support.samples import READY

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Absence, Contender, LockStatus
from fencelock.actors.api.name import object_name
from fencelock.actors.api.role_request import Counted, Fact, RoleDescription
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.cluster.cli.formatting import as_plain, duration, in_full, person
from fencelock.cluster.cli.status import (
    headline,
    locks_seen,
    locks_table,
    nodes_table,
    quorum_lost,
    roles_table,
)

NODE = NodeStatus(
    node="n1",
    protocol="lamport",
    nodes=("n1", "n2"),
    ready=False,
    detail="n2 is silent",
    uptime_ms=61_500,
    counters=(Counted("clock.impossible_stamp", 2),),
    locks=(
        LockStatus(
            lock="orders/[42]",
            holder=Contender("n1", "s-1", "thread-7", 9001, 2_500),
            waiters=(Contender("n2", "", "", None, 40),),
            waits_for=(Absence("n2", 7_000),),
        ),
    ),
    session="asker",
    request=5,
)
FENCE = 1_763_724_000_123_456_789


def member(node: str, leader: str, slot: int = 7) -> NodeStatus:
    holder = Contender(
        "", f"client-{'1f' * 8}.17", "host-4711-thread-1", FENCE, 65_000, "web-3:4711, nightly", 2
    )
    waiter = Contender("", f"client-{'2a' * 8}.18", "task-9", None, 1_500, "web-4:99")
    lock = LockStatus(
        lock="orders/a-rather-long-name/42",
        holder=holder,
        waiters=(waiter,),
        waits_for=(),
        slot=slot,
        age_ms=0,
    )
    detail = "ready, leads" if node == leader else f"ready, follows {leader}"
    return replace(
        READY,
        node=node,
        nodes=("n1", "n2", "n3"),
        detail=detail,
        uptime_ms=3_605_000,
        locks=(lock,),
        leader=leader,
    )


def shown(table: RenderableType, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_tables_show_who_holds_who_waits_and_who_is_missed() -> None:
    nodes = shown(nodes_table([NODE], asked=1))
    assert "not ready: n2 is silent" in nodes
    assert "1m 1s" in nodes
    locks = shown(locks_table(locks_seen([NODE])))
    for part in ("orders/[42]", "n1/s-1/thread-7", "9001", "2s", "n2 40ms", "n2 (silent 7s)"):
        assert part in locks


def test_a_node_that_serves_and_does_not_vote_is_called_ready_once() -> None:
    observer = replace(member("n1", "n2"), detail="ready, follows n2; n1 is an observer")
    table = shown(nodes_table([observer], asked=3))
    assert table.count("ready") == 1
    assert "ready, follows n2; n1 is an observer" in table


def test_a_table_of_roles_has_what_waits_and_the_summary_of_each() -> None:
    facts = (Fact("phase", "leading"), Fact("ballot", "3"))
    leader = RoleDescription("leader", "Leader", 12, facts, (Counted("paxos.preempted", 1),))
    clock = RoleDescription("clock", "Clock", 0, (Fact("time", "[7]"),), ())
    table = roles_table([replace(NODE, roles=(leader, clock))])
    _, _, first, second = (line.split() for line in shown(table).strip().splitlines())
    assert first == ["n1", "leader", "Leader", "12", "phase", "leading,", "ballot", "3"]
    assert second == ["n1", "clock", "Clock", "0", "time", "[7]"]


def test_the_json_of_a_node_has_its_roles() -> None:
    clock = RoleDescription("clock", "Clock", 0, (Fact("time", "7"),), ())
    (role,) = as_plain(replace(NODE, roles=(clock,)))["roles"]
    assert role["summary"] == [{"name": "time", "value": "7"}]


def test_locks_that_every_node_knows_are_shown_once_and_as_the_freshest_knows_them() -> None:
    nodes = [member("n1", "n2", slot=6), member("n2", "n2", slot=8), member("n3", "n2")]
    ((node, lock),) = locks_seen(nodes)
    assert (node, lock.slot) == ("", 8)
    own = replace(NODE, node="n2")
    assert [node for node, _ in locks_seen([NODE, own])] == ["n1", "n2"]


def test_eighty_columns_are_enough_and_cut_nothing() -> None:
    nodes = [member(node, "n2") for node in ("n1", "n2", "n3")]
    table = shown(nodes_table(nodes, asked=3), 80) + shown(locks_table(locks_seen(nodes)), 80)
    for part in ("ready, leads", "ready, follows n2", "1h", str(FENCE), "1m 5s"):
        assert part in table
    assert "…" not in table
    assert "needs" not in table  # No column for what no node has.
    assert " at " not in table


@pytest.mark.parametrize(
    ("leaders", "text"),
    [
        (("n2", "n2", "n2"), "paxos on 3 nodes; n2 leads"),
        (("n2", "", ""), "paxos on 3 nodes; n2 leads"),
        (("n1", "n2", "n2"), "paxos on 3 nodes; n1 or n2 leads: an election is under way"),
        (("", "", ""), "paxos on 3 nodes; no node leads, as far as these nodes know"),
    ],
)
def test_the_headline_names_the_leader_agreed_on(leaders: tuple[str, ...], text: str) -> None:
    assert headline([member(f"n{i}", leader) for i, leader in enumerate(leaders, 1)]) == text


def test_the_headline_of_a_protocol_without_a_leader_names_none() -> None:
    assert headline([NODE]) == "lamport on 2 nodes"


@pytest.mark.parametrize(
    ("asked", "why"), [(1, "not asked"), (2, "not asked, or no answer"), (3, "no answer: ")]
)
def test_a_node_that_is_missing_was_silent_if_every_address_was_asked(asked: int, why: str) -> None:
    node = replace(NODE, nodes=("n1", "n2", "n3"))
    rows = shown(nodes_table([node], asked=asked)).splitlines()
    reasons = [row.split(None, 1)[1].strip() for row in rows if row.split()[:1] in (["n2"], ["n3"])]
    assert [text.startswith(why) for text in reasons] == [True, True]
    assert all(text == why for text in reasons) or asked == 3


def test_a_status_as_json_has_names_for_every_part() -> None:
    plain = json.loads(json.dumps(as_plain(NODE)))
    assert plain["counters"] == [{"name": "clock.impossible_stamp", "times": 2}]
    (lock,) = plain["locks"]
    assert lock["holder"] == {
        "node": "n1",
        "session": "s-1",
        "owner": "thread-7",
        "fence": 9001,
        "since_ms": 2500,
        "label": "",
        "times": 1,
        "span": 0,
    }
    assert lock["waits_for"] == [{"node": "n2", "silent_ms": 7000}]
    assert not {"session", "request"} & plain.keys()


def test_a_fence_is_never_cut_short() -> None:
    table = shown(locks_table(locks_seen([member("n1", "n1")])), 50)
    assert str(FENCE) in table


def test_people_are_called_by_their_label_and_known_by_their_ids() -> None:
    named, nameless = Contender("n1", "s", "t", 1, 0, "web-3:7"), Contender("n1", "s", "t", 1, 0)
    assert (person(named), in_full(named)) == ("web-3:7", "web-3:7 (n1/s/t)")
    assert person(nameless) == in_full(nameless) == "n1/s/t"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (90_061_000, "1d 1h"),
    ],
)
def test_durations_are_shown_in_at_most_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_a_lost_majority_is_stated_with_the_next_step() -> None:
    left = replace(member("n3", "n1"), ready=False, leader="", detail="silence")

    text = quorum_lost([left], asked=3)

    assert text.startswith("There is no majority: 1 of 3 nodes answer here, and 2 are needed.")
    assert "no lock is granted or released" in text
    assert "Start at least 1 of n1 and n2 again, each with its own data folder" in text
    assert "docs/operations.md" in text
    assert "`fencelock replace` needs a majority, too" in text
    assert "`fencelock serve --found-again CLUSTER`" in text
    assert "forgets every lock, session and value" in text


def test_a_majority_that_answers_or_was_not_asked_is_not_called_lost() -> None:
    two = [member("n1", "n1"), member("n2", "n1")]
    assert quorum_lost(two, asked=3) == ""
    assert quorum_lost(two[:1], asked=1) == ""
    assert quorum_lost([NODE], asked=2) == ""  # `lamport` has no majorities.


def test_every_holder_of_an_object_is_shown_with_its_share() -> None:
    def someone(name: str, times: int, fence: int | None) -> Contender:
        return Contender("n1", "s.1", name, fence, 2_000, name, times)

    shared = LockStatus(
        lock=object_name(SEMAPHORE, "printers"),
        holder=someone("ann", 2, 7),
        holders=(someone("ann", 2, 7), someone("ben", 1, 8)),
        waiters=(someone("cat", 3, None),),
        waits_for=(),
        permits=3,
    )
    read = replace(
        shared,
        lock=object_name(RWLOCK, "settings"),
        waiters=(someone("cat", RWLOCK_PERMITS, None), someone("dan", 1, None)),
        permits=RWLOCK_PERMITS,
    )
    writer = someone("cat", RWLOCK_PERMITS, 9)
    written = replace(read, holder=writer, holders=(writer,), waiters=())
    rows = locks_table([("n1", shared), ("n1", read), ("n1", written)]).rows
    shown = [[cell.plain for cell in row] for row in rows]
    assert shown[0][0] == "semaphore:printers"
    assert shown[0][1:4] == ["ann 2 of 3\nben 1 of 3", "7\n8", "2s\n2s"]
    assert shown[0][4] == "cat 3 of 3 2s"
    assert shown[1][1:5:3] == ["ann reads\nben reads", "cat to write 2s\ndan to read 2s"]
    assert shown[2][1] == "cat writes"
