"""Every role of a node answers `DescribeRole`; some answer requests of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, assert_type

import pykka
import pytest
from support.expect import PATIENCE_S, present
from support.real_nodes import running_nodes

from fencelock import Acquire, Describe, Granted, Node, NodeStatus
from fencelock.actors.api.role_request import (
    FACT_CHARS_MAX,
    FACTS_MAX,
    QUEUED_MAX,
    REPLY_BYTES_MAX,
    ROLE_COUNTERS_MAX,
    ROLES_MAX,
    SUMMARY_MAX,
    VALUE_CHARS_MAX,
    ClockTime,
    Counted,
    DescribeRole,
    Fact,
    Leaders,
    LockQueue,
    ReadClock,
    ReadLeaders,
    ReadQueues,
    ReadState,
    RoleDescription,
    RoleState,
    queue_of,
)
from fencelock.actors.central.lock_client import LockClient
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.role import Facts, Role
from fencelock.cluster.host.role_set import RoleSlot, describe, describe_all, state_of
from fencelock.transport.codec import encode

PROTOCOLS = ("bakery", "central", "lamport", "paxos")


@contextmanager
def cluster(protocol: str, folder: Path, size: int = 3) -> Generator[dict[str, Node]]:
    """Run nodes in this process, of which one has granted a lock, so that there is a leader."""
    with running_nodes(folder, protocol, size) as nodes:
        nodes[f"n{size}"].proxy.ask(Acquire(lock="first"), timeout=PATIENCE_S)
        yield nodes


def roles_of(node: Node) -> list[str]:
    prefix = f"{node.id}/"
    found: list[str] = []
    for ref in pykka.ActorRegistry.get_all():
        address: Any = ref.proxy().address.get(timeout=PATIENCE_S)
        if address.startswith(prefix):
            found.append(address.removeprefix(prefix))
    return found


def facts(description: RoleDescription) -> dict[str, str]:
    return dict(description.summary)


def leaders_seen(node: Node, role: str, leaders: int) -> Leaders:
    """Ask ``role``, which runs once its node has joined, until it knows of so many leaders."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with suppress(pykka.ActorDeadError):
            seen = node.ref(role).ask(ReadLeaders(), timeout=PATIENCE_S)
            if len(seen.leaders) == leaders:
                return seen
    raise AssertionError(f"{role} of {node.id} does not know {leaders} leaders")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_role_of_a_node_describes_itself_and_so_does_the_status(
    protocol: str, tmp_path: Path
) -> None:
    with cluster(protocol, tmp_path) as nodes:
        for node in nodes.values():
            for name in roles_of(node):
                ref = node.ref(name)
                description = ref.ask(DescribeRole(), timeout=PATIENCE_S)
                assert (description.name, description.kind) == (name, ref.actor_class.__name__)
                assert description.waiting >= 0
                assert len(description.summary) <= SUMMARY_MAX
                assert all(fact.name.isascii() for fact in description.summary)
                assert all(len(fact.value) <= VALUE_CHARS_MAX for fact in description.summary)
                state = ref.ask(ReadState(), timeout=PATIENCE_S)
                assert_type(state, RoleState)
                assert (state.name, state.kind) == (description.name, description.kind)
                assert all(fact.name.isascii() for fact in state.facts)
                assert not state.more
                summary = ref.ask(DescribeRole(), timeout=PATIENCE_S).summary
                assert {fact.name for fact in summary} <= {fact.name for fact in state.facts}

        node = nodes["n1"]
        status: NodeStatus = node.proxy.ask(Describe(), timeout=PATIENCE_S)
        assert status.roles == ()
        status = node.proxy.ask(Describe(roles=True), timeout=PATIENCE_S)
        described = {role.name: role for role in status.roles}
        assert {"clock", "proxy"} <= set(described) <= set(roles_of(node))
        assert described["clock"].kind == "Clock"
        totals = {counter.name: counter.times for counter in status.counters}
        for role in status.roles:
            assert all(totals[counter.name] >= counter.times for counter in role.counters)


def test_the_clock_describes_its_logical_time_which_rises_with_what_arrives(tmp_path: Path) -> None:
    with cluster("lamport", tmp_path, size=2) as nodes:
        clock = nodes["n1"].ref("clock")
        before = clock.ask(ReadClock(), timeout=PATIENCE_S)
        assert_type(before, ClockTime)
        assert_type(clock.ask(ReadClock(), block=False), pykka.Future[ClockTime])
        shown = clock.ask(DescribeRole(), timeout=1)
        assert before.time > 0
        assert int(facts(shown)["time"]) >= before.time
        nodes["n1"].proxy.ask(Acquire(lock="a"), timeout=PATIENCE_S)
        after = clock.ask(ReadClock(), timeout=PATIENCE_S)
        assert after.time >= before.time + 2  # A request was stamped, and a reply arrived.
        with pytest.raises(TypeError, match="Clock does not accept ReadLeaders"):
            clock.ask(ReadLeaders(), timeout=1)


def test_roles_of_paxos_describe_who_leads_and_what_is_in_flight(tmp_path: Path) -> None:
    with cluster("paxos", tmp_path) as nodes:
        seen = {name: leaders_seen(node, "leader", 1) for name, node in nodes.items()}
        (leading,) = (name for name, leadership in seen.items() if leadership.here)
        assert {leadership.leaders for leadership in seen.values()} == {(leading,)}
        assert seen[leading].number >= 1
        leader = nodes[leading]
        status: NodeStatus = leader.proxy.ask(Describe(), timeout=PATIENCE_S)
        assert status.leader == leading
        shown = facts(leader.ref("leader").ask(DescribeRole(), timeout=1))
        assert (shown["phase"], shown["leader"]) == ("leading", leading)
        assert int(shown["ballot"]) == seen[leading].number
        state = leader.ref("leader").ask(ReadState(), timeout=PATIENCE_S)
        assert (state["phase"], state["members"]) == ("leading", "n1, n2, n3")
        commander = state["works through"]
        acceptor = leader.ref("acceptor").ask(ReadState(), timeout=PATIENCE_S)
        assert acceptor["promised to"] == f"round {state['ballot']} of {leading}"
        assert acceptor["lease"].startswith(f"{leading}, ")
        replica = leader.ref("replica").ask(ReadState(), timeout=PATIENCE_S)
        assert (replica["follows"], replica["members"]) == (leading, "n1, n2, n3")
        for name, node in nodes.items():
            if name != leading:
                node.stop()
        waiting = leader.proxy.ask(Acquire(lock="in flight"), block=False)
        state = state_once(leader, commander, "slot ")
        (slot,) = (one for one in state.facts if one.name.startswith("slot "))
        assert slot.value.endswith(f"votes of {leading}")
        acceptor = leader.ref("acceptor").ask(ReadState(), timeout=PATIENCE_S)
        assert acceptor[slot.name].endswith(f"of {leading}")
        del waiting


def test_roles_of_bakery_describe_leaders_candidates_and_holds(tmp_path: Path) -> None:
    with cluster("bakery", tmp_path) as nodes:
        seen = leaders_seen(nodes["n3"], "election", 3)
        assert leaders_seen(nodes["n3"], "leader", 3) == seen
        status: NodeStatus = nodes["n3"].proxy.ask(Describe(), timeout=PATIENCE_S)
        elected = present(status.elected)
        assert seen == Leaders(leaders=elected.leaders, number=elected.epoch, here=True)
        summary = facts(nodes["n3"].ref("election").ask(DescribeRole(), timeout=1))
        assert summary["leaders"] == ", ".join(elected.leaders)
        assert summary["epoch"] == str(elected.epoch)
        state = state_once(nodes["n3"], "election", "candidate 3")
        shown = [state[f"candidate {place}"].partition(": priority ") for place in (1, 2, 3)]
        assert {name for name, _, _ in shown} == set(elected.leaders)
        assert [int(rest.partition(",")[0]) for _, _, rest in shown] == sorted(
            int(rest.partition(",")[0]) for _, _, rest in shown
        )
        assert state["coordinator"] == "n1"
        leader = state_once(nodes["n1"], "leader", "held first")
        assert leader["held first"].startswith("n3 under fence ")


def test_a_lock_process_describes_its_queues_and_its_evidence(tmp_path: Path) -> None:
    with cluster("lamport", tmp_path, size=2) as nodes:
        waiting = nodes["n1"].proxy.ask(Acquire(lock="first"), block=False)
        inner = nodes["n1"].ref("process")
        queues = inner.ask(ReadQueues(), timeout=PATIENCE_S)
        while [len(queue.queue) for queue in queues.queues] != [2]:  # Until it knows both.
            queues = inner.ask(ReadQueues(), timeout=PATIENCE_S)
        assert queues.queues == (LockQueue("first", ("n2", "n1"), 2),)
        assert queues.locks == 1
        assert facts(inner.ask(DescribeRole(), timeout=1))["requests"] == "2"
        state = state_once(nodes["n1"], "process", "own request for first")
        held, waits = state["queue of first"].split(", ")
        assert (held[:6], waits[:6]) == ("n2 at ", "n1 at ")
        assert int(held[6:]) < int(waits[6:])
        assert int(state["latest stamp of n2"]) >= int(held[6:])
        assert state["ready"] == "yes"
        holder = nodes["n2"].ref("process").ask(ReadState(), timeout=PATIENCE_S)
        assert "holds it since" in holder["own request for first"]
        assert "waits for" in state["own request for first"]
        with pytest.raises(KeyError, match="queue of second; process has ready, "):
            _ = state["queue of second"]
        del waiting


def test_the_server_and_the_lock_clients_of_central_describe_holder_and_queue(
    tmp_path: Path,
) -> None:
    with cluster("central", tmp_path, size=2) as nodes:
        held = nodes["n1"].ref("server").ask(ReadQueues(), timeout=PATIENCE_S)
        assert [(queue.lock, queue.length) for queue in held.queues] == [("first", 1)]
        assert held.queues[0].queue[0].startswith("n2/")
        (client,) = pykka.ActorRegistry.get_by_class(LockClient)
        queues: Any = client.ask(ReadQueues(), timeout=PATIENCE_S)
        assert [(queue.lock, queue.length) for queue in queues.queues] == [("first", 1)]
        shown: Any = client.ask(DescribeRole(), timeout=PATIENCE_S)
        assert (facts(shown)["lock"], facts(shown)["mode"]) == ("first", "HELD")
        assert facts(nodes["n1"].ref("server").ask(DescribeRole(), timeout=1))["held"] == "1"
        assert int(facts(nodes["n2"].ref("clients").ask(DescribeRole(), timeout=1))["tickets"]) >= 1


def state_once(node: Node, role: str, fact: str) -> RoleState:
    """Return the state of ``role`` once it has a fact whose name begins with ``fact``."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        state = node.ref(role).ask(ReadState(), timeout=PATIENCE_S)
        if any(one.name.startswith(fact) for one in state.facts):
            return state
        assert time.monotonic() < ends, state
        time.sleep(0.005)


class Plain(Role[Granted]):
    def handle(self, sender: Address, event: Granted, now: Instant) -> Effects:
        return ()


class Verbose(Plain):
    def summary(self) -> tuple[tuple[str, str | int], ...]:
        return tuple((f"fact {number}", "x" * 1_000) for number in range(50))


class Large(Plain):
    """A role with facts without end."""

    def facts(self, now: Instant) -> Facts:
        for number in count():
            yield f"{now} {number} " + "x" * 1_000, "é" * 1_000


def raise_fault(doing: str, error: Exception) -> None:
    raise AssertionError(doing) from error


def cell_of(role: type[Role[Any]], name: str = "role") -> RoleSlot:
    host: Any = None
    return RoleSlot(role(Address(f"n1/{name}"), host))


def test_a_role_without_a_summary_still_has_a_kind_and_counters() -> None:
    role_slot = cell_of(Plain)
    role_slot.counters["plain.seen"] += 2
    counters = (Counted("plain.seen", 2),)
    assert describe(role_slot, 3, raise_fault) == RoleDescription("role", "Plain", 3, (), counters)


def test_a_description_is_bounded() -> None:
    role_slot = cell_of(Verbose)
    role_slot.counters.update({f"c.{number}": 1 for number in range(ROLE_COUNTERS_MAX + 5)})
    shown = describe(role_slot, 0, raise_fault)
    assert len(shown.summary) == SUMMARY_MAX
    assert all(len(fact.value) == VALUE_CHARS_MAX for fact in shown.summary)
    assert len(shown.counters) == ROLE_COUNTERS_MAX
    cells = [cell_of(Plain, f"r{number}") for number in range(ROLES_MAX + 5)]
    assert len(describe_all(cells, Counter(), raise_fault)) == ROLES_MAX
    queue = queue_of("a", ["n1"] * (QUEUED_MAX + 5))
    assert (len(queue.queue), queue.length) == (QUEUED_MAX, QUEUED_MAX + 5)


def test_a_state_is_bounded_and_shows_that_there_is_more() -> None:
    state = state_of(cell_of(Large), Instant(7), raise_fault)
    assert (len(state.facts), state.more) == (FACTS_MAX, True)
    assert all(len(fact.name) == len(fact.value) == FACT_CHARS_MAX for fact in state.facts)
    assert state.facts[3].name.startswith("7 3 xxx")
    assert len(encode(state)) <= REPLY_BYTES_MAX


def test_a_state_that_cannot_be_read_costs_that_request_alone() -> None:
    class Broken(Plain):
        def facts(self, now: Instant) -> Facts:
            yield "one", 1
            raise ZeroDivisionError(now)

    found: list[str] = []
    state = state_of(cell_of(Broken), Instant(0), lambda doing, _: found.append(doing))
    assert state.facts == (Fact("facts", "cannot be made: see the log"),)
    assert found == ["the facts of n1/role"]


def test_a_clock_answers_with_its_time_and_does_not_tick_for_it() -> None:
    host: Any = None
    clock = Clock(Address("n1/clock"), host, start=41)
    asker = Address("n1/ask-1")
    assert clock.handle(asker, ReadClock(), Instant(0)) == (Send(asker, ClockTime(time=41)),)
    assert clock.time == 41
