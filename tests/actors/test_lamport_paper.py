"""The rules of Lamport 1978 and of the essay that builds it, sentence by sentence."""

from __future__ import annotations

from collections import deque

import pytest
from support.expect import checked
from support.role_harness import HOST, T0

from fencelock.actors.clock import Carry, Clock, Post, Stamped
from fencelock.actors.effect import Send
from fencelock.actors.lamport.order import LAMPORT_NODES_MAX, QueuePlace
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.wire import (
    Acknowledge,
    Content,
    Delivered,
    Neighbors,
    PeerJoined,
    Release,
    Request,
)
from fencelock.actors.message import Address, Event, address_of
from fencelock.actors.proxy.event import AcquireLock, LockGranted, ReleaseLock


class PaperMembers:
    """Clocks and lock processes, and between them links as the essay assumes them: "1)
    messages are always received, and 2) [...] received in the order they are sent."
    """

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.links: dict[tuple[str, str], deque[tuple[int, Stamped]]] = {
            (source, to): deque() for source in nodes for to in nodes if source != to
        }
        self.sent: list[tuple[str, str, Stamped]] = []
        self.entered: list[tuple[str, int]] = []  # Who, in this order, and under which fence.
        self.clocks = {
            node: Clock(address_of(node, "clock"), HOST, channel=address_of(node, "channel"))
            for node in nodes
        }
        self.processes = {node: self.process(node) for node in nodes}
        for node in nodes:
            self.tell(node, Neighbors(nodes=nodes))
        for source, to in self.links:
            self.tell(to, PeerJoined(node=source, boot=1))
        self.deliver_all()
        self.sent.clear()

    def process(self, node: str) -> LockProcess:
        address, clock, proxy = (address_of(node, role) for role in ("process", "clock", "proxy"))
        return LockProcess(address, HOST, node=node, boot=1, clock=clock, proxy=proxy)

    def tell(self, node: str, event: Event) -> None:
        """Let the process of ``node`` handle ``event``, and perform its effects."""
        turns: deque[Event] = deque([event])
        while turns:
            effects = self.processes[node].handle(Address(""), turns.popleft(), T0)  # type: ignore[arg-type]
            for effect in effects:
                if isinstance(effect, Send) and isinstance(effect.message, Post):
                    turns += self.post(node, effect.message)
                elif isinstance(effect, Send) and isinstance(effect.message, LockGranted):
                    self.entered.append((node, effect.message.fence))

    def post(self, node: str, post: Post) -> list[Event]:
        clock, own = self.clocks[node], list[Event]()
        for effect in clock.handle(Address(""), post, T0):
            assert isinstance(effect, Send)
            assert isinstance(effect.message, Carry)
            for to in effect.message.nodes:
                content = effect.message.message
                if to == node:
                    assert isinstance(content, Request)
                    own.append(Delivered(origin=node, message=content))
                else:
                    clock.departing()
                    self.links[node, to].append((clock.time, content))
                    self.sent.append((node, to, content))
        return own

    def deliver(self, source: str, to: str) -> None:
        stamp, content = self.links[source, to].popleft()
        assert isinstance(content, Content)
        assert self.clocks[to].arrived(stamp)
        self.tell(to, Delivered(origin=source, message=content))

    def deliver_all(self) -> None:
        while full := [link for link, messages in self.links.items() if messages]:
            self.deliver(*full[0])

    def want(self, node: str, ticket: int = 1) -> None:
        self.tell(node, AcquireLock(lock="a", ticket=ticket, session="s", owner="o"))

    def give(self, node: str, ticket: int = 1) -> None:
        self.tell(node, ReleaseLock(lock="a", ticket=ticket))

    def queue(self, node: str) -> list[str]:
        return [place.node for place in self.processes[node].requests.in_order("a")]

    def order(self) -> list[str]:
        return [node for node, _ in self.entered]

    def went(self) -> list[tuple[str, str, type[Stamped]]]:
        return [(source, to, type(message)) for source, to, message in self.sent]

    def place(self, node: str) -> QueuePlace:
        ours = self.processes[node].pending.by_lock["a"]
        assert ours.place is not None
        return ours.place


@pytest.fixture
def trio() -> PaperMembers:
    return PaperMembers("n1", "n2", "n3")


def test_a_request_goes_to_every_process(trio: PaperMembers) -> None:
    """Rule 1: "To request the lock, send a lock request message to each processor."."""
    trio.want("n1")

    assert trio.went() == [("n1", "n2", Request), ("n1", "n3", Request)]
    assert len({message for _, _, message in trio.sent}) == 1  # One stamp for all.
    assert trio.queue("n1") == ["n1"]


def test_a_request_is_queued_and_acknowledged(trio: PaperMembers) -> None:
    """Rule 2: "Upon receiving a lock request, add it to your queue, and send an acknowledgment"."""
    trio.want("n1")
    trio.deliver("n1", "n2")

    assert trio.queue("n2") == ["n1"]
    assert trio.went()[-1] == ("n2", "n1", Acknowledge)
    message = checked(Acknowledge, trio.sent[-1][2])
    assert QueuePlace(message.stamp, "n2") > trio.place("n1")


def test_one_acknowledgement_is_not_enough(trio: PaperMembers) -> None:
    """Rule 4: "You are granted the lock if your lock request precedes any others in your
    queue [...] and if you've received a message from each other process sent after your
    request."
    """
    trio.want("n1")
    trio.deliver("n1", "n2")
    trio.deliver("n2", "n1")
    assert trio.entered == []

    trio.deliver("n1", "n3")
    trio.deliver("n3", "n1")
    assert trio.order() == ["n1"]


def test_any_later_message_is_as_good_as_an_acknowledgement(trio: PaperMembers) -> None:
    """Rule 4 says "a message", so the later request of another is evidence too."""
    trio.want("n1")
    trio.deliver("n1", "n3")
    trio.deliver("n3", "n1")
    assert trio.clocks["n2"].arrived(1_000)
    trio.want("n2")
    trio.deliver("n2", "n1")

    assert trio.order() == ["n1"]


def test_a_message_sent_before_the_request_is_no_evidence(trio: PaperMembers) -> None:
    """Rule 4: "sent after your request": n2's request is earlier, and it is ahead."""
    trio.want("n2")
    assert trio.clocks["n1"].arrived(1_000)
    trio.want("n1")
    trio.deliver("n1", "n3")
    trio.deliver("n3", "n1")
    trio.deliver("n2", "n1")

    assert trio.entered == []
    assert trio.queue("n1") == ["n2", "n1"]


def test_a_release_goes_to_every_other_process_and_removes_the_request(trio: PaperMembers) -> None:
    """Rule 5: "To release the lock, send a release notification to every other process."
    Rule 6: "Upon receiving a release notification from another process, remove all that
    process's lock requests from the queue."
    """
    trio.want("n1")
    trio.deliver_all()
    trio.sent.clear()
    trio.give("n1")

    assert trio.went() == [("n1", "n2", Release), ("n1", "n3", Release)]
    assert trio.queue("n1") == []
    trio.deliver_all()
    assert trio.queue("n2") == trio.queue("n3") == []


def test_the_next_waiter_enters_when_the_release_arrives(trio: PaperMembers) -> None:
    """ "You only acquire a lock when the final acknowledgment for your lock request is
    received, or when a lock is released by someone else and you are next in line."
    """
    trio.want("n1")
    trio.deliver_all()
    trio.want("n3")
    trio.deliver_all()
    assert trio.order() == ["n1"]

    trio.give("n1")
    assert trio.order() == ["n1"]
    trio.deliver_all()
    assert trio.order() == ["n1", "n3"]


def test_the_first_request_enters_first_though_it_arrives_last(trio: PaperMembers) -> None:
    """ "I might send a lock request before you, but if your request reaches the central
    server first, you'd be incorrectly granted the lock."
    """
    trio.clocks["n1"].time = 1_000
    trio.want("n3")
    trio.want("n1")
    trio.deliver("n1", "n2")
    trio.deliver("n2", "n1")
    trio.deliver("n1", "n3")
    assert trio.place("n3") < trio.place("n1")
    trio.deliver_all()

    assert trio.order() == ["n3"]


def test_ties_go_by_node() -> None:
    """Lamport: "To break ties, we use any arbitrary total ordering of the processes." """
    two = PaperMembers("n1", "n2")
    for node in two.nodes:
        two.clocks[node].time = 100
    two.want("n2")
    two.want("n1")
    assert two.place("n1").stamp == two.place("n2").stamp
    two.deliver_all()

    assert two.order() == ["n1"]
    two.give("n1")
    two.deliver_all()
    assert two.order() == ["n1", "n2"]
    assert two.entered[0][1] < two.entered[1][1]


def test_a_request_made_after_hearing_of_another_comes_after_it(trio: PaperMembers) -> None:
    """The Clock Condition: if one request happened before the other, it goes first."""
    trio.want("n3")
    trio.deliver("n3", "n1")
    trio.want("n1")

    assert trio.place("n3") < trio.place("n1")


def test_an_entry_costs_three_messages_to_each_other_process(trio: PaperMembers) -> None:
    """3(n-1) messages: requests, acknowledgements, releases."""
    entries = 5
    for ticket in range(1, entries + 1):
        trio.want("n2", ticket)
        trio.deliver_all()
        trio.give("n2", ticket)
        trio.deliver_all()

    assert len(trio.entered) == entries
    assert len(trio.sent) == entries * 3 * (len(trio.nodes) - 1)


def test_each_other_process_overtakes_at_most_once(trio: PaperMembers) -> None:
    """All want it again at once, and yet no process is served twice before another once."""
    for node in trio.nodes:
        trio.want(node)
    tickets = dict.fromkeys(trio.nodes, 1)
    trio.deliver_all()
    for _ in range(30):
        node = trio.entered[-1][0]
        trio.give(node, tickets[node])
        tickets[node] += 1
        trio.want(node, tickets[node])
        trio.deliver_all()

    served = trio.order()
    assert len(served) == 31
    assert all(len(set(served[i : i + 3])) == 3 for i in range(len(served) - 2))


def test_fences_rise_in_the_order_of_entries_and_identify_the_node(trio: PaperMembers) -> None:
    """The fence is the request's ``(stamp, node)``."""
    for node in ("n3", "n1", "n2"):
        trio.want(node)
    trio.deliver_all()
    for _ in range(2):
        trio.give(trio.entered[-1][0])
        trio.deliver_all()

    fences = [fence for _, fence in trio.entered]
    assert fences == sorted(set(fences))
    assert [trio.nodes[fence % LAMPORT_NODES_MAX] for fence in fences] == trio.order()
    assert len(fences) == 3
