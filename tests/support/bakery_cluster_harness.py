"""A cluster harness for `bakery`: a raw client sends requests, members start and stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from types import UnionType
from typing import Any

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, NodeStatus
from fencelock.actors.api.lock_message import (
    Acquire,
    Cancelled,
    Granted,
    HoldLost,
    LockStatus,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Unlocking,
)
from fencelock.actors.api.membership_message import (
    MembersChanged,
    MembersRead,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.api.request import Request
from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.config import Terms, election_of, leader_of
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bootstrap_message import GroupConfig, Voter
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Local, Message, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings, bakery
from fencelock.verification.simulation.bakery_judge import BakeryJudge
from fencelock.verification.simulation.faults import CALM, Faults
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.world import World
from support.expect import checked

HOLD_MS, GRACE_MS = 1_000, 500
TERMS = ProtocolSettings(
    bakery_terms=Terms(hold_ms=HOLD_MS, grace_ms=GRACE_MS, least_ms=100, wait_ms=None)
)
NO_COPIES = replace(TERMS, bakery_copies=False)


class SendMessage(Local):
    """A command to the user: send ``message`` to ``to``."""

    to: Address
    message: Message


News = NodeStatus | Cancelled | ClusterUp | ClusterDown | MembersChanged | MembersRead
UserEvent = (
    SendMessage | Granted | Refused | Released | Renewed | Unlocking | HoldLost | LockStatus | News
)


class ScriptedUser(Role[UserEvent]):
    """A raw client: sends messages for a test, and records the messages that it receives."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.received: list[Event] = []

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Send, or record."""
        if isinstance(event, SendMessage):
            return [Send(event.to, event.message)]
        self.received.append(event)
        return []


@dataclass
class ClusterHarness:
    """A cluster of ``nodes`` members and one user.

    Args:
        nodes: the number of members.
        settings: for these roles.
        seed: fixes all chance.
        make_roles: sets up the roles of a member.
        faults: those of frames, disks and clocks.

    """

    nodes: int
    settings: ProtocolSettings = TERMS
    seed: int = 1
    make_roles: MakeRoles = bakery
    faults: Faults = CALM
    world: World = field(init=False)
    judge: BakeryJudge = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.faults)
        for name in self.names:
            self.world.add(name, self.make_roles, member=True, settings=self.settings)
        self.world.add("u", self._user, member=False)

    @staticmethod
    def _user(context: NodeContext) -> RoleSet:
        return RoleSet((Spawn(Address("u/user"), ScriptedUser),))

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def received(self) -> list[Event]:
        """The events that the user received, in order."""
        user: ScriptedUser = self.world.role_at(Address("u/user"))
        return user.received

    def found(self) -> ClusterHarness:
        """Let all members have met in the past: their disks hold nothing but their group."""
        disks = {name: self.world.nodes[name].disk for name in self.names}
        for name, disk in disks.items():
            disk.open(Random(f"{self.seed}/journal/{name}"))
        voters = tuple(Voter(name, disk.journal_id) for name, disk in sorted(disks.items()))
        for disk in disks.values():
            disk.append("bootstrap", GroupConfig(to=0, group=1, founded_ms=1, voters=voters))
            disk.sync()
        return self

    def judged(self, invariants: frozenset[str] | None = None) -> ClusterHarness:
        """Let `BakeryJudge` judge the cluster by these ``invariants``, or by all."""
        self.judge = BakeryJudge(self.world, invariants)
        self.world.judges.append(self.judge)
        return self

    def grown(self, founders: int, *guests: str) -> ClusterHarness:
        """Let ``founders`` nodes begin as the members; switch on ``guests``, or all other nodes."""
        members = self.names[:founders]
        self.world.members = tuple(members)
        self.start(*members).ready()
        self.world.members = tuple(self.names)
        return self.start(*(guests or self.names[founders:]))

    def start(self, *names: str) -> ClusterHarness:
        """Switch on some members, or all, and the user."""
        for name in names or self.names:
            self.world.power_on(name)
        self.world.power_on("u")
        return self

    def lose_disk(self, name: str) -> None:
        """Let a member of a `judged` cluster crash, and start with an empty disk."""
        self.world.crash(name)
        self.world.nodes[name].disk.lose()
        self.judge.disk_replaced(name)
        self.world.power_on(name)

    def run(self, ms: int) -> None:
        self.world.run_for(ms)

    def until(self, done: Callable[[], bool], most_ms: int = 20_000) -> int:
        """Run until ``done``; return how long that took (ms)."""
        began = self.world.time
        while not done():
            assert self.world.time < began + most_ms * NS_PER_MS, self.received
            self.run(5)
        return (self.world.time - began) // NS_PER_MS

    def ready(self) -> ClusterHarness:
        """Wait until some leader serves."""
        self.until(lambda: bool(self.serving()))
        return self

    def led(self) -> ClusterHarness:
        """Switch on all members, and wait until three lead."""
        self.start().until_three_lead()
        return self

    def until_three_lead(self) -> None:
        self.until(lambda: len(self.serving()) == 3)

    def leader(self, name: str) -> Any:
        """Return the leader role on ``name``, for inspection."""
        return self.world.role_at(leader_of(name))

    def backend(self, name: str) -> BakeryBackend:
        """Return the backend of the proxy on ``name``, for inspection."""
        return checked(BakeryBackend, self.world.role_at(address_of(name, "proxy")).backend)

    def detail(self, name: str) -> str:
        """Return the reason why the node ``name`` can or cannot serve now."""
        return self.backend(name).in_flight.readiness.detail

    def electorate(self, name: str) -> Electorate:
        """Return the electorate that the node ``name`` knows."""
        return checked(Electorate, self.world.role_at(election_of(name)).electorate)

    def roles(self, proxy: str = "n1") -> dict[str, NodeRole]:
        """Return the role of each node, as the node ``proxy`` reports it."""
        read = self.answer(MembersRead, self.request(proxy, ReadMembers))
        return {report.node: report.role for report in read.nodes}

    def serving(self) -> list[str]:
        """Return the leaders that serve, of the highest epoch that is served."""
        up = [name for name in self.names if self.world.nodes[name].up]
        offices = {name: self.leader(name).epoch_state for name in up}
        epoch = max((o.epoch for o in offices.values() if o.serving), default=0)
        return [name for name, o in offices.items() if o.serving and o.epoch == epoch]

    def epoch(self) -> int:
        """Return the highest epoch that is served, 0 if none is."""
        return max((int(self.leader(name).epoch_state.epoch) for name in self.serving()), default=0)

    def until_later_epoch(self, epoch: int, most_ms: int = 20_000) -> int:
        """Wait until an epoch after ``epoch`` is served; return how long that took (ms)."""
        return self.until(lambda: self.epoch() > epoch, most_ms)

    def others(self) -> list[str]:
        """Return the members that do not serve."""
        return [name for name in self.names if name not in self.serving()]

    def send(self, proxy: str, message: Message) -> None:
        """Let the user send ``message`` to the proxy of node ``proxy``."""
        command = SendMessage(to=address_of(proxy, "proxy"), message=message)
        self.world.nodes["u"].tell(Address("u/user"), command)

    def request(self, proxy: str, kind: type[Request], **fields: Any) -> int:
        """Send a request of the user to the proxy of node ``proxy``; return its number."""
        self.number += 1
        self.send(proxy, kind(session="u", request=self.number, **fields))
        return self.number

    def acquire(self, proxy: str, lock: str = "x", owner: str = "ann", **terms: int) -> int:
        """Ask for a lock; return the number of the request."""
        return self.request(proxy, Acquire, lock=lock, owner=owner, **terms)

    def release(self, proxy: str, granted: Granted) -> None:
        self.request(proxy, Release, **of_hold(granted))

    def renew(self, proxy: str, granted: Granted, hold_ms: int = 0) -> int:
        """Ask for a renewal; return the number of the request."""
        return self.request(proxy, Renew, **of_hold(granted), hold_ms=hold_ms)

    def answers(self, kind: type[Any] | UnionType, request: int | None = None) -> list[Any]:
        """Return the events of that kind, and for that request, that the user received."""
        found = [event for event in self.received if isinstance(event, kind)]
        return [e for e in found if request is None or getattr(e, "request", 0) == request]

    def answer(
        self, kind: type[Any] | UnionType, request: int | None = None, most_ms: int = 20_000
    ) -> Any:
        """Wait for an event of that kind, and for that request; return the first one."""
        self.until(lambda: bool(self.answers(kind, request)), most_ms)
        return self.answers(kind, request)[0]

    def granted(self, request: int, most_ms: int = 20_000) -> Granted:
        """Wait for the grant of a request."""
        return checked(Granted, self.answer(Granted, request, most_ms))

    def refused(self, request: int, most_ms: int = 20_000) -> Refused:
        """Wait for the refusal of a request."""
        return checked(Refused, self.answer(Refused, request, most_ms))

    def lock(self, proxy: str, lock: str = "x", owner: str = "ann", **terms: int) -> Granted:
        """Ask for a lock and wait for it."""
        return self.granted(self.acquire(proxy, lock, owner, **terms))

    def cut(self, here: list[str], ms: int = 600_000) -> None:
        """Let nothing pass between ``here`` and all other members."""
        there = [name for name in self.names if name not in here]
        self.cut_between(*((a, b) for a in here for b in there), ms=ms)

    def cut_between(self, *pairs: tuple[str, str], ms: int = 600_000, holds: bool = False) -> None:
        """Let nothing pass between the two nodes of each pair, for ``ms``.

        What they send each other meanwhile is lost, or arrives at the end if the cut ``holds`` it.
        """
        links = [link for a, b in pairs for link in ((a, b), (b, a))]
        self.world.network.cut(links, Cut(self.world.time + ms * NS_PER_MS, holds=holds))


def of_hold(granted: Granted) -> dict[str, Any]:
    """Return the fields of a request that say of which hold it is."""
    return {"lock": granted.lock, "owner": granted.owner, "fence": granted.fence}
