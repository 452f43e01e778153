"""What waits for a member of `lamport` that confirms nothing is bounded; two full ones drain."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from support.counting import count_contenders
from support.expect import checked, present
from support.role_harness import HOST, T0, at, only_sent

from fencelock.actors.clock import Clock, Stamped
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.lamport import process as process_module
from fencelock.actors.lamport.order import REQUESTS_POSTED_MAX, WELCOME_MAX
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.reliable_channel import CHANNEL_WINDOW, Peer, ReliableChannel
from fencelock.actors.lamport.wire import (
    Busy,
    Greet,
    Introduce,
    Neighbors,
    Parcel,
    Probe,
    Release,
    Request,
    Welcome,
)
from fencelock.actors.message import Address, Event, node_of
from fencelock.actors.proxy.event import (
    WAITERS_SHOWN_MAX,
    AcquireLock,
    LockDescription,
    LockGranted,
    QueryLock,
    ReleaseLock,
)

Mail = tuple[Address, Address, Event]


class Pair:
    """The roles of ``a`` and of ``b``, or of ``a`` alone; the test delivers what they send."""

    def __init__(self, *own: str) -> None:
        self.roles: dict[str, Any] = {}
        self.channels: dict[str, ReliableChannel] = {}
        self.network: deque[Mail] = deque()
        self.timers: deque[Mail] = deque()
        self.granted: list[tuple[str, str]] = []
        self.counted: dict[str, int] = {}
        self.most = 0
        """The most contents that ever waited for a peer."""
        for number, node in enumerate(own, 1):
            clock, process = Address(f"{node}/clock"), Address(f"{node}/process")
            channel, proxy = Address(f"{node}/channel"), Address(f"{node}/proxy")
            self.channels[node] = ReliableChannel(
                channel, HOST, node=node, boot=number, process=process
            )
            self.roles[channel] = self.channels[node]
            self.roles[clock] = Clock(clock, HOST, start=1_000, channel=channel)
            self.roles[process] = LockProcess(
                process, HOST, node=node, boot=number, clock=clock, proxy=proxy
            )
        for node in own:
            for role in ("process", "channel"):
                self.post(f"{node}/{role}", f"{node}/node", Neighbors(nodes=("a", "b")))

    def peer(self, node: str) -> Peer:
        """Return what the channel of ``node`` knows of the other."""
        return self.channels[node].peers["b" if node == "a" else "a"]

    def post(self, to: str, sender: str, event: Event) -> None:
        """Handle an event and all that follows from it within its node."""
        inbox: deque[Mail] = deque([(Address(to), Address(sender), event)])
        while inbox:
            to, sender, event = inbox.popleft()
            for effect in self.roles[to].handle(sender, event, T0):
                self.perform(Address(to), effect, inbox)
        peers = [peer for channel in self.channels.values() for peer in channel.peers.values()]
        self.most = max(self.most, *(len(peer.outgoing) for peer in peers), 0)

    def perform(self, role: Address, effect: Any, inbox: deque[Mail]) -> None:
        match effect:
            case Send(to, message) if node_of(to) != node_of(role):
                self.network.append((to, role, message))
            case Send(_, LockGranted(lock=lock)):
                self.granted.append((node_of(role), lock))
            case Send(to, message) if to in self.roles:
                inbox.append((to, role, message))
            case Wake(_, timer):
                self.timers.append((role, role, timer))
            case Observe(name, count):
                self.counted[name] = self.counted.get(name, 0) + count
            case _:
                pass

    def deliver(self, rounds: int) -> None:
        """Deliver all that is on its way, then let all timers end; so many times."""
        for _ in range(rounds):
            while self.network:
                to, sender, event = self.network.popleft()
                clock: Clock = self.roles[f"{node_of(to)}/clock"]
                assert clock.arrived(self.roles[f"{node_of(sender)}/clock"].departing())
                self.post(to, sender, event)
            for _ in range(len(self.timers)):
                self.post(*self.timers.popleft())

    def acquire(self, node: str, lock: str, ticket: int, session: str = "s") -> None:
        request = AcquireLock(lock=lock, ticket=ticket, session=session, owner="o")
        self.post(f"{node}/process", f"{node}/proxy", request)

    def release(self, node: str, lock: str, ticket: int) -> None:
        self.post(f"{node}/process", f"{node}/proxy", ReleaseLock(lock=lock, ticket=ticket))


class Rogue(Pair):
    """``a`` beside a member ``b`` that the test plays, and that confirms nothing."""

    def __init__(self) -> None:
        super().__init__("a")
        self.sent = 0
        nonce = self.peer("a").nonce
        assert nonce is not None
        self.post("a/channel", "b/channel", Introduce(boot=7, your_boot=1, nonce=nonce))
        self.send(Welcome(boot=1, round=1, requests=(), complete=True))

    def send(self, content: Stamped) -> None:
        stamped: Any = content
        stamped = type(content)(**{**_fields(stamped), "stamp": 2_000 + self.sent})
        parcel = Parcel(boot=7, your_boot=1, number=self.sent, confirmed=0, content=stamped)
        self.sent += 1
        self.post("a/channel", "b/channel", parcel)


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


MANY = 8 * CHANNEL_WINDOW


@pytest.mark.parametrize("kind", ["probes", "requests"])
def test_acknowledgements_of_a_member_that_confirms_nothing_do_not_add_up(kind: str) -> None:
    pair = Rogue()
    for number in range(4 * CHANNEL_WINDOW):
        if kind == "probes":
            pair.send(Probe())
        else:
            pair.send(Request(lock="x"))
            pair.send(Release(lock="x", request=2_000 + pair.sent - 1))
        assert len(pair.peer("a").outgoing) <= CHANNEL_WINDOW + 1, number
    assert pair.counted["lamport.acknowledge"] > 3 * CHANNEL_WINDOW


def test_one_greeting_of_a_round_is_answered_and_none_while_too_much_waits() -> None:
    pair = Rogue()
    for number in range(2 * WELCOME_MAX):
        pair.acquire("a", f"lock-{number}", number + 1)
    for _ in range(100):
        pair.send(Greet(boot=7, round=1))
    assert pair.counted["lamport.welcome"] == 2
    assert pair.counted["lamport.repeated_greet_dropped"] == 99
    for number in range(2, 2 * CHANNEL_WINDOW):
        pair.send(Greet(boot=7, round=number))
    assert pair.most <= CHANNEL_WINDOW + 3
    assert pair.counted["lamport.greet_deferred"] > 0
    answered = pair.counted["lamport.welcome"]
    pair.post("a/process", "a/channel", Busy(node="b", busy=False))
    assert pair.counted["lamport.welcome"] == answered + 2


def test_two_members_that_have_too_much_for_each_other_send_all_of_it() -> None:
    pair = Pair("a", "b")
    pair.deliver(5)
    tickets = range(1, MANY + 1)
    for node in ("a", "b"):
        for ticket in tickets:
            pair.acquire(node, f"{node}-{ticket}", ticket)
    pair.deliver(200)
    held = len(pair.granted)
    assert held == len(set(pair.granted)) == 2 * len(tickets)
    for node in ("a", "b"):  # Nothing of this arrives meanwhile.
        for ticket in tickets:
            pair.release(node, f"{node}-{ticket}", ticket)
        pair.acquire(node, f"{node}-more", MANY + 1)
    assert len(pair.granted) == held
    owed = {node: len(pair.peer(node).outgoing) for node in ("a", "b")}
    assert min(owed.values()) == MANY
    pair.deliver(200)
    assert [len(pair.peer(node).outgoing) for node in ("a", "b")] == [0, 0]
    assert sorted(pair.granted[held:]) == [("a", "a-more"), ("b", "b-more")]
    assert pair.most <= max(owed.values()) + 1
    assert pair.counted["lamport.replaced"] > CHANNEL_WINDOW


def test_the_acquires_of_one_client_leave_room_for_those_of_another() -> None:
    """Its requests would else wait until all members have handled the thousands before them."""
    pair = Pair("a", "b")
    pair.deliver(5)
    for ticket in range(1, MANY + 1):
        pair.acquire("a", f"lock-{ticket}", ticket)
    assert CHANNEL_WINDOW <= pair.most <= CHANNEL_WINDOW + REQUESTS_POSTED_MAX
    pair.acquire("a", "other", MANY + 1, session="another")
    pair.deliver(200)
    assert pair.most <= CHANNEL_WINDOW + REQUESTS_POSTED_MAX
    assert pair.granted.index(("a", "other")) <= pair.most + 2
    assert len(pair.granted) == len(set(pair.granted)) == MANY + 1


def test_the_locks_awaited_by_one_client_are_requested_in_their_order() -> None:
    pair = Pair("a", "b")
    pair.deliver(5)
    locks = [f"lock-{ticket}" for ticket in range(1, MANY + 1)]
    for ticket, lock in enumerate(locks, 1):
        pair.acquire("a", lock, ticket)
    pair.deliver(200)
    assert pair.granted == [("a", lock) for lock in locks]


def test_a_wait_that_ends_before_it_has_its_turn_leaves_nothing_behind() -> None:
    pair = Pair("a", "b")
    pair.deliver(5)
    for ticket in range(1, MANY + 1):
        pair.acquire("a", f"lock-{ticket}", ticket)
    for ticket in range(2 * CHANNEL_WINDOW, MANY + 1):
        pair.release("a", f"lock-{ticket}", ticket)
    pair.deliver(200)
    assert pair.granted == [("a", f"lock-{ticket}") for ticket in range(1, 2 * CHANNEL_WINDOW)]
    for ticket in range(1, 2 * CHANNEL_WINDOW):
        pair.release("a", f"lock-{ticket}", ticket)
    pair.deliver(200)
    pending = checked(LockProcess, pair.roles["a/process"]).pending
    assert (pending.by_lock, pending.lines, pending.turns, pending.tickets) == ({}, {}, {}, 0)


def test_the_error_of_an_acquire_that_has_no_turn_names_the_node_that_confirms_nothing() -> None:
    pair = Rogue()
    for ticket in range(1, MANY + 1):
        pair.acquire("a", f"lock-{ticket}", ticket)
    process: LockProcess = pair.roles["a/process"]
    query = QueryLock(lock=f"lock-{MANY}", query=1)
    effects = process.handle(Address("a/proxy"), query, at(1_000))
    assert [one.node for one in only_sent(effects, LockDescription).waits_for] == ["b"]


def test_a_member_with_many_answers_to_another_still_requests() -> None:
    pair = Rogue()
    for number in range(2 * CHANNEL_WINDOW):
        pair.send(Request(lock=f"lock-{number}"))
    assert len(pair.peer("a").outgoing) > CHANNEL_WINDOW
    pair.acquire("a", "other", 1)
    assert pair.counted["lamport.request"] == 1


@pytest.mark.parametrize(("waiters", "shown"), [(True, WAITERS_SHOWN_MAX), (False, 0)])
def test_a_query_builds_only_the_requests_and_the_waiters_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, *, waiters: bool, shown: int
) -> None:
    pair = Pair("a", "b")
    pair.deliver(5)
    for ticket in range(1, 1_000):
        pair.acquire("a", "x", ticket, f"s{ticket}")
    pair.deliver(5)
    built = count_contenders(monkeypatch, process_module)

    query = QueryLock(lock="x", query=1, waiters=waiters)
    effects = pair.roles["a/process"].handle(Address("a/proxy"), query, T0)

    seen = only_sent(effects, LockDescription)
    assert present(seen.holder).session == "s1"
    assert [waiter.session for waiter in seen.waiters] == [f"s{2 + n}" for n in range(shown)]
    assert len(built) == 1 + shown
