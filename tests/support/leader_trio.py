"""Three leaders of `bakery` by hand, and their electorates."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.config import (
    PRIORITY,
    Terms,
    election_of,
    leader_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.epochs import EpochLimit, VoterRegistry
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.leader_selection import ClusterView, LeaderSelection
from fencelock.actors.bakery.state_transfer import Import, parts_of
from fencelock.actors.bakery.table import TicketEntry, TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import Ticket, Turn, Who, pack_fence
from fencelock.actors.bakery.wire import (
    NO_SEATING,
    AddTicket,
    Beat,
    Chosen,
    Install,
    Lead,
    Lock,
    Member,
    Seating,
    Unlock,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.membership import Member as Seat
from fencelock.actors.message import Address, Instant, Message, later, node_of
from fencelock.actors.role import Host
from support.expect import present
from support.role_harness import HOST, T0

ANN = Who("c", "ann")
NOW = Instant(10**12)
LIVES = (Chosen("n1", 1), Chosen("n2", 2), Chosen("n3", 3))
NAMES = tuple(one.node for one in LIVES)
FENCE = pack_fence(1, 7)
HOLD_MS, GRACE_MS = 500, 500

WORDS_MAX = 1_000
"""More messages than any test needs: more mean leaders that answer each other forever."""


class LeaderTrio:
    """Three leaders that serve epoch 1 and are trusted, n1 first in rank.

    They receive each other's messages in order, except for those that a test drops.

    Args:
        options: those of `Leader`, beside the defaults of `lock_leader`.

    """

    def __init__(self, **options: Any) -> None:
        self.now = NOW
        self.leaders: dict[str, Leader] = {}
        for one in LIVES:
            self.leaders[one.node] = serving_leader(one, **options)
        self.under_way: deque[tuple[str, str, Message]] = deque()
        self.to_proxies: list[Any] = []
        """The messages to proxies."""
        self.lost: set[tuple[type[Message], str, str]] = set()

    def deliver(self, sender: Address, to: str, message: Message) -> None:
        """Let a leader handle ``message``; queue its messages to leaders; record the others."""
        leader: Any = self.leaders[to]
        self.perform(to, leader.handle(sender, message, self.now))

    def perform(self, name: str, effects: Effects) -> None:
        """Queue or record the messages of ``name``."""
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            message = effect.message
            if effect.to == leader_of(node_of(effect.to)):
                assert isinstance(message, Message)
                self.under_way.append((name, node_of(effect.to), message))
            else:
                self.to_proxies.append(message)

    def ask(self, to: str, message: Message) -> None:
        """Deliver a message from a leader's own proxy."""
        self.deliver(proxy_of(to), to, message)

    def pass_time(self, ms: int) -> None:
        """Let time pass and the leaders handle due events; they are trusted meanwhile."""
        self.now = later(self.now, ms)
        for name, leader in self.leaders.items():
            leader.epoch_state.trusted_at = self.now
            self.perform(name, leader.attempts.tick(self.now))
        self.settle()

    def settle(self) -> int:
        """Deliver everything; return the number of messages."""
        count = 0
        while self.under_way:
            sender, to, message = self.under_way.popleft()
            if (type(message), sender, to) not in self.lost:
                self.deliver(leader_of(sender), to, message)
            count += 1
            assert count < WORDS_MAX
        return count

    def lock(self, to: str, *, wait_ms: int | None = None) -> None:
        """Send a leader ann's request 1."""
        self.ask(to, lock_request(wait_ms=wait_ms))

    def unlock(self, to: str, fence: int = FENCE, **fields: Any) -> None:
        """Send a leader the end of ann's hold under ``fence``, or with other ``fields``."""
        known: dict[str, Any] = {"lock": "x", "who": ANN, "request": 0, "fence": fence, **fields}
        self.ask(to, Unlock(number=len(self.to_proxies) + 1, waiting=False, **known))

    def entries(self, name: str) -> list[tuple[TicketPhase, str]]:
        """Return the entries of a leader's table, and their owners there."""
        return [(entry.phase, entry.owner) for entry in self.leaders[name].tickets.entries()]

    def owners(self) -> list[str]:
        """Return the leaders that have attempts."""
        return [name for name in NAMES if self.leaders[name].attempts.own]

    def received(self, kind: type[Any]) -> list[Any]:
        """Return the messages of that kind that proxies received."""
        return [message for message in self.to_proxies if isinstance(message, kind)]

    def lose_between(self, one: str, other: str, *kinds: type[Message]) -> None:
        """Drop messages of these kinds between two leaders, both ways."""
        self.lost |= {(kind, *way) for kind in kinds for way in ((one, other), (other, one))}

    def hold(self, *voters: str, owner: str = "n1") -> None:
        """Let ``voters`` hold ann's request 1 under `FENCE`, without any leader's attempt."""
        for name in voters:
            put_hold(self.leaders[name].tickets, ticket_of(leader=owner), now=self.now)


def lock_request(who: Who = ANN, **fields: Any) -> Lock:
    """Return request 1 of ``who`` for lock x, with other ``fields``."""
    made = Lock(
        lock="x",
        who=who,
        request=1,
        wait_ms=None,
        hold_ms=HOLD_MS,
        grace_ms=GRACE_MS,
        label="",
    )
    return replace(made, **fields)


def ticket_of(who: Who = ANN, number: int = 7, leader: str = "n2", **fields: Any) -> Ticket:
    """Return the ticket of request 1 of ``who`` for lock x, with other ``fields``.

    ``leader`` drew its ``number``, 0 while it enters.
    """
    turn, proxy = Turn(number, leader, 1), proxy_of(leader)
    return Ticket("x", who, 1, turn, proxy, HOLD_MS, GRACE_MS, "")._replace(**fields)


def add_ticket(ticket: Ticket, fence: int = FENCE, **fields: Any) -> AddTicket:
    """Return a request for votes for ``ticket`` in round 1 of epoch 1, with other ``fields``."""
    made = AddTicket(epoch=1, ticket=ticket, round=1, fence=fence, taken=False)
    return replace(made, **fields)


def put_hold(table: TicketTable, ticket: Ticket, fence: int = FENCE, now: Instant = NOW) -> None:
    """Let ``table`` have a hold with ``ticket``, of the leader that the ticket names."""
    entry = present(table.put(ticket, ticket.turn.leader, now, None))
    table.vote(entry, fence, now)


def merge(
    into: TicketTable, *tables: TicketTable, now: Instant = NOW, own: bool = True
) -> list[TicketEntry]:
    """Hand ``tables``, of n2 and so on, over to n1, which has ``into``, and led before if ``own``.

    Return the entries that end.
    """
    lead = Lead(seating=Seating(2, LIVES, 0), former=Seating(1, LIVES, 10_000), empty=False)
    arriving = Import(lead, election_of("n1"), own=own)
    for one, table in zip(LIVES[1:], tables, strict=False):
        for part in parts_of(table, 2, one.life, now):
            assert arriving.on_table(one.node, part)
    return arriving.merge(into, now)


def lock_leader(node: str = "n1", host: Host = HOST, **options: Any) -> Leader:
    """Return the leader role of ``node`` in its first life, with ``options`` of `Leader`."""
    given: dict[str, Any] = {"life": 1, "members": NAMES, "terms": Terms(least_ms=1), **options}
    return Leader(leader_of(node), host, node=node, **given)


def serving_leader(one: Chosen = LIVES[0], now: Instant = NOW, **options: Any) -> Leader:
    """Return a leader that serves epoch 1 with the others of `LIVES`, and is trusted ``now``."""
    leader = lock_leader(one.node, life=one.life, **options)
    leader.epoch_state.take(Seating(1, LIVES, 10_000))
    leader.epoch_state.serving, leader.epoch_state.trusted_at = True, now
    return leader


def voters(own: int = 11, *, votes: bool = True, limit: EpochLimit | None = None) -> VoterRegistry:
    """Return the voters n1, n2 and n3, with the journals 11, 12 and 13, as ``own`` knows them."""
    journals = {name: number for number, name in enumerate(NAMES, 11)}
    return registry(journals, own, votes=votes, limit=limit)


def registry(
    journals: dict[str, int], own: int, *, votes: bool = True, limit: EpochLimit | None = None
) -> VoterRegistry:
    """Return the members by name, which found the group with these ``journals``."""
    founders = Electorate(0, tuple(Seat(name, "", one) for name, one in sorted(journals.items())))
    ids = {election_of(name): number for name, number in journals.items()}
    limit = limit or EpochLimit()
    return VoterRegistry(ids, own, votes, limit, lambda one: one.journal, founders, NAMES)


def cluster_status(voting: VoterRegistry, host: Host = HOST) -> ClusterStatus:
    """Return the status role of n1 in its first life."""
    return ClusterStatus(
        status_of("n1"),
        host,
        life=1,
        priority=14,
        pid=5,
        voting=voting,
    )


def beat(**fields: Any) -> Beat:
    """Return a beat of n2 in its second life, which knows of no leaders, with other ``fields``.

    These are fields of the beat, or of its member.
    """
    given = {name: fields.pop(name) for name in Member._fields if name in fields}
    known: dict[str, Any] = {"life": 2, "pid": 7, "voter": 12, **given}
    made = Beat(number=1, echo_life=1, echo=1, member=member("n2", **known))
    return replace(made, **fields)


def member(name: str, **fields: Any) -> Member:
    """Return a voter in its first life that knows of no leaders, with other ``fields``."""
    return Member(name, 1, PRIORITY, 1, 0, NO_SEATING, 0, 0)._replace(**fields)


def seats(*names: str) -> tuple[Seat, ...]:
    """Return members with the journals 1, 2, and so on."""
    return tuple(Seat(name, "", number) for number, name in enumerate(sorted(names), 1))


def linked(*members: Member) -> tuple[Member, ...]:
    """Return ``members``, each connected with all others unless it names the ones."""
    return tuple(
        one
        if one.reaches
        else one._replace(reaches=tuple(each.chosen for each in members if each.node != one.node))
        for one in members
    )


def chosen(seating: Seating, members: Sequence[Member], configured: int) -> LeaderSelection:
    """Return the leaders that follow ``seating``, of which all are among the members.

    Args:
        seating: the present leaders.
        members: the connected members.
        configured: the number of members, with those that are not connected.

    """
    members = linked(*members)
    leaders = [leader.node for leader in seating.leaders]
    others = [*leaders, *(f"x{number}" for number in range(configured))]
    names = dict.fromkeys([*(member.node for member in members), *others])
    electorate = Electorate(0, seats(*list(names)[:configured]))
    return ClusterView(seating, members, electorate).choose()


def begun_coordinator(
    voting: VoterRegistry,
    *records: Install,
    node: str = "n1",
    bound_ms: int = 1_000,
    began: Instant = T0,
) -> ElectionCoordinator:
    """Return a coordinator of n1, n2 and n3 that has begun, with the ``records`` of its journal."""
    role = ElectionCoordinator(
        election_of(node),
        HOST,
        bound_ms=bound_ms,
        random=Random(1),
        records=records,
        voting=voting,
    )
    role.begin(began)
    return role
