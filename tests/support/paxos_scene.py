"""The scenes of the transcripts of the roles of PMMC in `paxos` (`role_transcript.py`).

Ballot ``3a`` is of round 3 and the leader of ``a``. Batch ``5:one+two`` has log time 5 (ms) and two
commands, and ``5:one@3a`` has the ballot in which it was proposed first; ``no-op`` fills a hole.
``2=5:one`` is that batch in slot 2. The machine of a replica counts commands.
"""

from __future__ import annotations

from random import Random

from fencelock.actors import bootstrap_message
from fencelock.actors.message import Message, address_of, node_of
from fencelock.actors.paxos import event, wire
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import acceptor_of, catchup_of, leader_of, monitor_of, replica_of
from fencelock.actors.paxos.journal import Recovered, recover
from fencelock.actors.paxos.leader import Leader, Scout
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import NO_BALLOT, NO_OP, Ballot, Batch
from fencelock.actors.role import Host
from fencelock.verification.simulation.paxos_machine import ReadOrder
from support.log_workload import Counted, LogCounter
from support.role_transcript import Scene, events_of
from support.table_scene import LISTENER, config_of, replica_of_a
from support.transcript import NOTATIONS, Notation


def read_ballot(text: str) -> Ballot:
    if text == "none":
        return NO_BALLOT
    return Ballot(int(text[:-1]), leader_of(text[-1]))


def write_ballot(ballot: Ballot) -> str:
    if not ballot.leader:
        return "none"
    assert ballot.leader == leader_of(node_of(ballot.leader))
    return f"{ballot.round}{node_of(ballot.leader)}"


def read_batch(text: str) -> Batch:
    if text == "no-op":
        return NO_OP
    text, _, origin = text.partition("@")
    time_ms, _, commands = text.partition(":")
    return Batch(
        time_ms=int(time_ms),
        commands=tuple(command.encode() for command in commands.split("+") if command),
        origin=read_ballot(origin) if origin else NO_BALLOT,
    )


def write_batch(batch: Batch) -> str:
    if batch == NO_OP:
        return "no-op"
    commands = "+".join(map(bytes.decode, batch.commands))
    origin = f"@{write_ballot(batch.origin)}" if batch.origin != NO_BALLOT else ""
    return f"{batch.time_ms}:{commands}{origin}"


def read_slots(text: str) -> tuple[tuple[int, Batch], ...]:
    slots = (part.split("=") for part in text.split(","))
    return tuple((int(slot), read_batch(batch)) for slot, batch in slots)


NOTATIONS[Ballot] = Notation(read_ballot, write_ballot)
NOTATIONS[Batch] = Notation(read_batch, write_batch)
NOTATIONS[tuple[tuple[int, Batch], ...]] = Notation(read_slots, str)
BALLOT = read_ballot("3a")
"""The ballot of the scout and the commander of node ``a``."""


def make_acceptor(
    host: Host, records: tuple[Message, ...] = (), votes: int = 1, version: str = ""
) -> Acceptor:
    return Acceptor(
        address_of("a", "acceptor"),
        host,
        node="a",
        config=config_of(),
        recovered=recover(records),
        votes=bool(votes),
        version=version,
    )


def make_leader(host: Host, led: int = 0, promised: str = "") -> Leader:
    before = read_ballot(promised) if promised else NO_BALLOT
    return Leader(
        leader_of("a"),
        host,
        node="a",
        config=config_of(),
        random=Random(1),
        recovered=Recovered(led=led, promised=before),
    )


def make_scout(host: Host, members: str = "abc") -> Scout:
    config = config_of(members)
    return Scout(address_of("a", "scout-3"), host, node="a", config=config, ballot=BALLOT, first=1)


def make_commander(
    host: Host, members: str = "abc", first: int = 1, batches: str = ""
) -> Commander:
    return Commander(
        address_of("a", "commander-3"),
        host,
        node="a",
        config=config_of(members),
        ballot=BALLOT,
        first=first,
        batches=tuple(read_batch(text) for text in batches.split(",") if text),
    )


class DueOnce(LogCounter):
    """A counter of which something is due once, at a log time (ms)."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms: int | None = at_ms

    def due_ms(self, before: int | None = None) -> int | None:
        return self.at_ms

    def advance(self, time_ms: int) -> tuple[Counted, ...]:
        if self.at_ms is None or time_ms < self.at_ms:
            return ()
        self.at_ms = None
        return (Counted(number=50),)


def make_replica(host: Host, due_ms: int = 0) -> Replica:
    machine = DueOnce(due_ms) if due_ms else LogCounter()
    return replica_of_a(machine=machine, opening=(b"opening",))


EVENTS = events_of(bootstrap_message, event, wire)
NAMES = {"replica": replica_of("a"), "monitor": monitor_of("a"), "leader": leader_of("a")}
ASKED = {"first": 1, "committed": 1, "min_applied": 0}
REPORTED = {"ballot": BALLOT, "first": 1, "asked": 1, "votes": (), "more": None}
PROPOSED = {"ballot": BALLOT, "batch": read_batch("1:one"), "committed": 1}
MEMBERS = NAMES | {
    "acceptor": acceptor_of("a"),
    "catchup": catchup_of("a"),
    "commander": address_of("a", "commander-3"),
    "proxy": LISTENER,
    "far": address_of("b", "proxy"),
}
DECIDED = {
    "ballot": BALLOT,
    "commander": MEMBERS["commander"],
    "origin": BALLOT,
    "first": 1,
    "time_ms": 0,
    "command": b"x",
    "leader": "a",
}
SCENES = {
    "paxos-acceptor": Scene(make_acceptor, EVENTS, NAMES, ASKED),
    "paxos-commander": Scene(make_commander, EVENTS, NAMES, PROPOSED),
    "paxos-leader": Scene(make_leader, EVENTS, NAMES, {"batches": (), "floor": 1, "source": "b"}),
    "paxos-replica": Scene(
        make_replica, EVENTS | {"ReadOrder": ReadOrder}, MEMBERS, DECIDED, shown=("number",)
    ),
    "paxos-scout": Scene(make_scout, EVENTS, NAMES, REPORTED),
}
