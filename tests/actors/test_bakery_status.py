"""The output of `fencelock status`, and the configuration, for a `bakery` cluster."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fencelock.actors.api.message import Contender, LockStatus, NodeStatus
from fencelock.actors.api.self_report import Elected, MemberSeen
from fencelock.actors.error import ConfigError
from fencelock.cluster.cli.status import headline, locks_seen, nodes_table
from fencelock.cluster.node.config import loopback, parse, starting_config

MEMBERS = (MemberSeen("n1", True, 14), MemberSeen("n2", True, 15), MemberSeen("n3", False, 0))
HOLDER = Contender("n1", "c", "first", 7, 10)
WAITER = Contender("n1", "c", "second", None, 10)


def told(node: str, epoch: int, *leaders: str, ready: bool = True, **more: object) -> NodeStatus:
    status = {
        "node": node,
        "protocol": "bakery",
        "nodes": ("n1", "n2", "n3"),
        "ready": ready,
        "detail": "ready" if ready else "hand-over: 1 of the leaders n1, n3 serve in epoch 2",
        "uptime_ms": 1_000,
        "counters": (),
        "locks": (),
        "elected": Elected(epoch, leaders, MEMBERS),
        **more,
    }
    return NodeStatus(**status)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def shown(*nodes: NodeStatus) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(nodes_table(nodes, asked=3))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_last_election_that_a_node_knows_is_the_one_that_is_told() -> None:
    nodes = [told("n1", 2, "n1", "n3"), told("n2", 1, "n1", "n2")]
    assert headline(nodes) == "bakery on 3 nodes; n1 and n3 lead in epoch 2"


def test_nobody_is_said_to_lead_while_no_node_is_ready() -> None:
    nodes = [told("n1", 2, "n1", "n3", ready=False)]
    assert headline(nodes) == "bakery on 3 nodes; n1 and n3 led in epoch 2"


def test_each_member_is_shown_with_its_seat_its_priority_and_what_is_missing() -> None:
    lines = [
        " ".join(line.split())
        for line in shown(told("n1", 2, "n1", "n3", ready=False)).splitlines()
    ]
    assert lines[3].startswith(
        "n1 not ready: hand-over: 1 of the leaders n1, n3 serve in epoch 2 seat 1 14"
    )
    assert lines[4].endswith("no off")
    assert lines[5].endswith("seat 2 ?")


def test_of_what_leaders_tell_of_a_lock_the_most_is_shown() -> None:
    less = LockStatus(lock="a", holder=None, waiters=(WAITER,), waits_for=())
    more = LockStatus(lock="a", holder=HOLDER, waiters=(WAITER,), waits_for=())
    nodes = [told("n1", 1, "n1", locks=(less,)), told("n2", 1, "n1", locks=(more,))]
    assert locks_seen(nodes) == [("", more)]


def test_durations_and_priorities_arrive_each_at_its_node() -> None:
    text = starting_config(loopback(5), protocol="bakery").replace("grace = 5.0", "grace = 4")
    text = text.replace('4042"\n', '4042"\npriority = 3\n').replace(
        '4043"\n', '4043"\npriority = "off"\n'
    )
    config = parse(text, Path())
    settings = config.settings
    terms = settings.bakery_terms
    assert (terms.hold_ms, terms.grace_ms, terms.wait_ms) == (5_000, 4_000, 5_000)
    assert [config.settings_of(node).priority for node in config.nodes] == [
        14,
        3,
        15,
        14,
        14,
    ]


@pytest.mark.parametrize("priority", ["0", "15", "true", '"on"', "2.5"])
def test_a_priority_is_1_to_14_or_off(priority: str) -> None:
    text = starting_config(loopback(3), protocol="bakery")
    with pytest.raises(
        ConfigError, match=r"nodes.n1.priority: .* 1 to 14, the smaller the likelier"
    ):
        parse(text.replace('4041"\n', f'4041"\npriority = {priority}\n'), Path())


def test_too_many_that_are_off_are_refused_by_name() -> None:
    text = starting_config(loopback(3), protocol="bakery").replace(
        '4041"\n', '4041"\npriority = "off"\n'
    )
    with pytest.raises(ConfigError, match='priority "off" of n1 leaves 2 for the 3 seats'):
        parse(text, Path())


def test_no_default_is_below_the_least() -> None:
    text = starting_config(loopback(3), protocol="bakery").replace("grace = 5.0", "grace = 2.5")
    with pytest.raises(
        ConfigError, match=r"bakery.grace: 2.5 is not usable: at least bakery.least, 3 s"
    ):
        parse(text, Path())


@pytest.mark.parametrize(("said", "wait_ms"), [("3", 3_000), ('"unlimited"', 7 * 24 * 3_600_000)])
def test_the_obtention_timeout_is_at_most_a_week(said: str, wait_ms: int) -> None:
    text = starting_config(loopback(3), protocol="bakery")
    config = parse(text.replace("obtention = 5.0", f"obtention = {said}"), Path())
    assert config.settings.bakery_terms.wait_ms == wait_ms


@pytest.mark.parametrize("said", ["2.9", "0", "604801", "true", '"none"', "nan"])
def test_an_obtention_timeout_out_of_its_limits_is_refused(said: str) -> None:
    """For what is configured."""
    text = starting_config(loopback(3), protocol="bakery")
    with pytest.raises(ConfigError, match=r"bakery.obtention: .* is not usable: "):
        parse(text.replace("obtention = 5.0", f"obtention = {said}"), Path())
