"""Threads of a host that wake each other, and links that come and go."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pykka
import pytest
from support.expect import PATIENCE_S
from support.hub_station import listening_hub
from support.judged import N1, N2, SECOND, only, world_of
from support.real_nodes import until
from support.role_harness import hub_without_peers

from fencelock.actors.api.lock_message import Acquire, Granted, Reason, Refused, Release, Released
from fencelock.actors.effect import Connect, Disconnect, Effect, Effects, Persist, Send, Spawn
from fencelock.actors.message import Address, Event, Instant, address_of, node_of
from fencelock.actors.role import Host, Role
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.pending_asks import AskReply, CrossThreadQueue, PendingAsks
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.frame import Frame
from fencelock.transport.hub import SocketHub
from fencelock.transport.listener import Arrival

ROLE = address_of("n1", "crowd")
AWAY = address_of("n2", "crowd")


class Crowd(Role[Acquire | Release]):
    """Replies to all requests at once when there are as many as the lock's name states; notifies
    n2."""

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.waiting: list[Address] = []

    def handle(self, sender: Address, event: Acquire | Release, now: Instant) -> Effects:
        if isinstance(event, Release):
            return [Send(sender, Released(lock=event.lock))]
        self.waiting.append(sender)
        if len(self.waiting) < int(event.lock):
            return []
        waiting, self.waiting = self.waiting, []
        granted = Granted(lock=event.lock, fence=len(waiting))
        answers: list[Effect] = [Send(user, granted) for user in waiting]
        return [*answers, Send(AWAY, granted)]


class WakingWire:
    """Links that remember when something was sent (Links)."""

    cluster = "c"
    group = 0
    has_events = False

    def __init__(self, order: list[str]) -> None:
        self.waiting: Collection[str] = ()
        self._order = order
        self._rung = threading.Event()
        self.expected: list[bool] = []
        """Whether the host expected a reply when it slept."""

    def poll(self, timeout_ms: int | None, expects_reply: bool) -> None:
        self.expected.append(expects_reply)
        self._rung.wait(None if timeout_ms is None else timeout_ms / 1000)
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()

    def join(self, group: int) -> None: ...

    def receive_members(self, most: int) -> list[Arrival]:
        return []

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        return [], 0

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        return []

    def send(self, link: str, frame: Frame) -> None:
        self._order.append(link)

    def connect(self, node: str, endpoint: str) -> None:
        raise NotImplementedError

    def disconnect(self, node: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Careless(AskReply):
    """The reply of a caller that promises to wake the next, and does not."""

    def wake(self, following: Callable[[], None] | None = None) -> bool:
        super().wake()
        return True


class Interrupted(AskReply):
    """The reply of a caller whose waking thread was interrupted by a signal's handler."""

    interrupts = 1

    def wake(self, following: Callable[[], None] | None = None) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().wake(following)


def crowd(order: list[str]) -> Dispatcher:
    host = Dispatcher("n1", WakingWire(order))
    host.start(RoleSet((Spawn(ROLE, Crowd),)))
    return host


def opened(
    asks: PendingAsks, number: int, kind: type[AskReply] = AskReply
) -> list[tuple[Address, AskReply]]:
    replies = [kind() for _ in range(number)]
    return [(asks.open(reply, ROLE), reply) for reply in replies]


def waits(reply: AskReply) -> bool:
    return bool(vars(reply).get("_awaited"))


def test_a_caller_is_woken_when_the_frames_of_the_turn_have_left() -> None:
    order: list[str] = []
    host = crowd(order)
    woken = threading.Event()
    reply = AskReply(lambda _, __, ___: order.append("answered"))
    reply.add_done_callback(lambda: order.append("woken"))
    reply.add_done_callback(woken.set)
    host.ref(ROLE).submit(Acquire(lock="1"), reply)
    assert woken.wait(PATIENCE_S)
    assert order == ["answered", "n2", "woken"]
    assert host.stop(PATIENCE_S)


class Recorder(Role[Acquire]):
    """Notifies n2 before or after its record, as the lock's name says."""

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        told, kept = Send(AWAY, event), Persist(event)
        answer = Send(sender, Granted(lock=event.lock, fence=1))
        return [told, kept, answer] if event.lock == "before" else [kept, told, answer]


@pytest.mark.parametrize(("lock", "expects_reply"), [("before", True), ("after", False)])
def test_a_reply_is_expected_if_frames_left_before_the_host_waited_for_its_disk(
    tmp_path: Path, lock: str, expects_reply: bool
) -> None:
    wire = WakingWire([])
    host = Dispatcher("n1", wire, journal=Journal.open(tmp_path))
    host.start(RoleSet((Spawn(ROLE, Recorder),)))
    assert host.ref(ROLE).ask(Acquire(lock=lock), timeout=PATIENCE_S).fence == 1
    assert host.stop(PATIENCE_S)
    assert any(wire.expected) is expects_reply


@pytest.mark.parametrize("threads", [1, 2, 3, 50])
def test_all_threads_that_are_answered_in_one_turn_go_on(threads: int) -> None:
    host = crowd([])
    role = host.ref(ROLE)

    def work() -> list[int]:
        fences: list[int] = []
        for _ in range(20):
            fences.append(role.ask(Acquire(lock=str(threads)), timeout=PATIENCE_S).fence)
            role.ask(Release(lock="x", fence=1), timeout=PATIENCE_S)
        return fences

    with ThreadPoolExecutor(threads) as pool:
        done = [pool.submit(work) for _ in range(threads)]
        assert [each.result(PATIENCE_S) for each in done] == [[threads] * 20] * threads
    assert host.stop(PATIENCE_S)


def test_a_thread_that_is_woken_wakes_the_next_before_it_goes_on() -> None:
    asks = PendingAsks("n1")
    (first, one), (second, two) = opened(asks, 2)
    may_end = threading.Event()

    def work() -> bool:
        one.get(timeout=PATIENCE_S)
        return may_end.wait(PATIENCE_S)

    with ThreadPoolExecutor(2) as pool:
        slow, quick = pool.submit(work), pool.submit(two.get, timeout=PATIENCE_S)
        until(lambda: waits(one) and waits(two))
        asks.deliver(first, Granted(lock="x", fence=1))
        asks.deliver(second, Granted(lock="x", fence=2))
        asks.wake()
        assert quick.result(PATIENCE_S).fence == 2
        assert not slow.done()
        may_end.set()
        assert slow.result(PATIENCE_S)
    assert not asks.waking


def test_replies_without_a_waiting_caller_delay_no_other() -> None:
    asks = PendingAsks("n1")
    ended: list[bool] = []
    asks.all_awake = lambda: ended.append(asks.waking)
    waiting = opened(asks, 4)
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(waiting[-1][1].get, timeout=PATIENCE_S)
        until(lambda: waits(waiting[-1][1]))
        with pytest.raises(pykka.Timeout):  # Waited once, and gave up.
            waiting[1][1].get(timeout=0)
        for address, _ in waiting:
            asks.deliver(address, Granted(lock="x", fence=7))
        asks.wake()
        assert last.result(PATIENCE_S).fence == 7
    assert [reply.get(timeout=0).fence for _, reply in waiting] == [7] * 4
    assert ended == [False]


def test_the_dispatcher_soon_continues_a_broken_chain() -> None:
    host = crowd([])
    role = host.ref(ROLE)
    careless = [Careless() for _ in range(3)]
    for reply in careless:
        role.submit(Acquire(lock="4"), reply)
    assert role.ask(Acquire(lock="4"), timeout=PATIENCE_S).fence == 4
    assert [reply.get(timeout=0).fence for reply in careless] == [4] * 3
    assert host.stop(PATIENCE_S)


def test_a_thread_that_was_to_be_woken_when_a_signal_came_is_woken_by_the_dispatcher() -> None:
    asks = PendingAsks("n1")
    asked = [*opened(asks, 1, Interrupted), *opened(asks, 2)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(reply.get, timeout=PATIENCE_S) for _, reply in asked]
        until(lambda: all(waits(reply) for _, reply in asked))
        for address, _ in asked:
            asks.deliver(address, Granted(lock="x", fence=1))
        with pytest.raises(KeyboardInterrupt):
            asks.wake()
        assert asks.waking
        asks.wake()
        assert [each.result(PATIENCE_S).fence for each in waiting] == [1, 1, 1]
    assert not asks.waking


def test_waking_callers_that_are_awake_does_no_harm() -> None:
    reply = AskReply()
    reply.settle(7, None)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(reply.get, timeout=PATIENCE_S) for _ in range(4)]
        for _ in range(3):
            reply.wake()
        assert [each.result(PATIENCE_S) for each in waiting] == [7] * 4
    called: list[int] = []
    reply.add_done_callback(partial(called.append, 1))
    assert not reply.wake()
    assert (reply.get(timeout=0), called) == (7, [1])


def test_a_callback_that_was_interrupted_is_called_again() -> None:
    reply = AskReply()
    called: list[int] = []

    def interrupted_once() -> None:
        called.append(1)
        if len(called) == 1:
            raise KeyboardInterrupt

    reply.add_done_callback(interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        reply.set(7)
    reply.wake()
    reply.wake()
    assert called == [1, 1]


def test_those_who_were_answered_are_woken_when_the_node_stops() -> None:
    asks = PendingAsks("n1")
    waiting = [*opened(asks, 2, Careless), *opened(asks, 1)]
    called: list[int] = []
    for number, (address, reply) in enumerate(waiting):
        reply.add_done_callback(partial(called.append, number))
        asks.deliver(address, Granted(lock="x", fence=1))
    asks.fail("the node has stopped")
    assert called == [0, 1, 2]


def test_the_dispatcher_is_not_woken_for_a_question_until_all_are_awake() -> None:
    asks = PendingAsks("n1")
    rings: list[int] = []
    arrivals = CrossThreadQueue(asks, lambda: rings.append(len(arrivals.queue)))
    arrivals.put(lambda: None)
    assert rings == []  # It is awake, and will look.
    arrivals.asleep = True
    arrivals.put(lambda: None)
    assert rings == [2]
    (address, _), (last, _) = opened(asks, 2, Careless)
    asks.deliver(address, Granted(lock="x", fence=1))
    asks.deliver(last, Granted(lock="x", fence=2))
    for _ in range(2):
        asks.wake()
        arrivals.put(lambda: None)
        assert rings == [2]  # One thread is still to be woken, or to come, and will also ask.
    asks.wake()  # It does not come: the dispatcher sees to that, and the last of all others does.
    assert rings == [2, 4]
    arrivals.put(lambda: None)
    assert rings == [2, 4, 5]


class Linker(Role[Acquire | Release | Granted | LinkUp | LinkDown]):
    """Connects to the endpoint that an `Acquire` names, and leaves the peer on a `Release`."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.asker: Address | None = None

    def handle(
        self, sender: Address, event: Acquire | Release | Granted | LinkUp | LinkDown, now: Instant
    ) -> Effects:
        match event:
            case Acquire():
                self.asker = sender
                return [Connect("n2", event.lock)]
            case Release():
                self.asker = sender
                return [Disconnect("n2")]
            case LinkUp():
                return [Send(address_of(event.node, "role"), Granted(lock="hello", fence=1))]
            case LinkDown():
                return self._answer(Granted(lock="down", fence=2))
            case Granted() if event.lock == "hello":
                return [Send(sender, Granted(lock="welcome", fence=3))]
            case Granted():
                return self._answer(event)

    def _answer(self, granted: Granted) -> Effects:
        return [] if self.asker is None else [Send(self.asker, granted)]


def started(node: str) -> tuple[Dispatcher, SocketHub]:
    hub = listening_hub(Counter(), node, cluster="c")
    dispatcher = Dispatcher(node, hub)
    dispatcher.start(RoleSet((Spawn(address_of(node, "role"), Linker),)))
    return dispatcher, hub


@pytest.fixture
def nodes() -> Iterator[tuple[Dispatcher, str]]:
    (first, _), (second, hub) = started("n1"), started("n2")
    yield first, hub.endpoint
    for dispatcher in (first, second):
        assert dispatcher.stop(PATIENCE_S)
        assert dispatcher.failure is None


def test_a_role_opens_a_link_and_closes_it(nodes: tuple[Dispatcher, str]) -> None:
    node, endpoint = nodes
    ref = node.ref(N1)
    assert ref.ask(Acquire(lock=endpoint), timeout=PATIENCE_S).lock == "welcome"
    assert ref.ask(Release(lock="x", fence=1), timeout=PATIENCE_S).lock == "down"
    assert ref.ask(Acquire(lock=endpoint), timeout=PATIENCE_S).lock == "welcome"


def test_an_endpoint_not_parsed_does_not_stop_the_node(nodes: tuple[Dispatcher, str]) -> None:
    node, endpoint = nodes
    ref = node.ref(N1)
    ref.tell(Acquire(lock="tcp://nowhere"))
    assert ref.ask(Acquire(lock=endpoint), timeout=PATIENCE_S).lock == "welcome"


class Newcomer(Role[Granted]):
    """Takes its peer for a member or for a client, and counts what arrives."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.arrived = 0

    def begin(self, now: Instant) -> Effects:
        if node_of(self.address) == "n1":
            return [Disconnect("n2"), Connect("n3", "n3"), Send(N2, Granted(lock="a", fence=1))]
        return [Send(N1, Granted(lock="b", fence=1))]

    def handle(self, sender: Address, event: Granted, now: Instant) -> Effects:
        self.arrived += 1
        return ()


def test_a_simulated_node_takes_frames_of_any_peer() -> None:
    world = world_of(only(Newcomer), only(Newcomer), only(Newcomer))
    world.run(SECOND)
    assert world.role_at(N1).arrived == 2
    assert world.role_at(N2).arrived == 1


# The host's services for clients: listeners, replies that call back, and the end of a node


CLERK = address_of("n1", "clerk")
WATCHER = address_of("n1", "watcher")


class ListeningClerk(Role[Acquire]):
    """Grants all requests, and notifies the watcher first."""

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        if event.lock == "no":
            return [Send(sender, Refused(lock="no", reason=Reason.TIMED_OUT, detail="no"))]
        granted = Granted(lock=event.lock, fence=1)
        return [Send(WATCHER, granted), Send(sender, granted)]


def dispatcher() -> Dispatcher:
    return Dispatcher("n1", hub_without_peers())


def test_a_listener_receives_messages_of_roles_in_the_order_they_send_them() -> None:
    host = dispatcher()
    received: list[tuple[Event, str]] = []
    counts: queue.SimpleQueue[int] = queue.SimpleQueue()
    address = host.listen(
        "watcher", lambda event: received.append((event, threading.current_thread().name))
    )
    host.start(RoleSet((Spawn(CLERK, ListeningClerk),)))
    assert address == WATCHER
    host.ref(CLERK).submit(
        Acquire(lock="a"), AskReply(lambda _, __, ___: counts.put(len(received)))
    )
    assert counts.get(timeout=PATIENCE_S) == 1
    assert received == [(Granted(lock="a", fence=1), "fencelock-n1")]
    assert host.stop(PATIENCE_S)


def test_a_listener_that_raises_stops_the_node_as_a_role_does() -> None:
    def stumble(event: Event) -> None:
        raise IndexError(event)

    host = dispatcher()
    host.listen("watcher", stumble)
    host.start(RoleSet((Spawn(CLERK, ListeningClerk),)))
    host.ref(CLERK).tell(Acquire(lock="a"))
    assert host.stopped.wait(PATIENCE_S)
    assert isinstance(host.failure, IndexError)


def test_a_reply_goes_first_to_its_maker_then_to_callbacks_then_to_waiting_callers() -> None:
    order: list[object] = []
    reply = AskReply(lambda _, value, error: order.append((value, error)))
    reply.add_done_callback(lambda: order.append(reply.done))
    assert not reply.done
    reply.set(7)
    reply.add_done_callback(lambda: order.append("late"))
    assert order == [(7, None), True, "late"]
    assert reply.get(timeout=0) == 7


def test_an_error_is_passed_on_in_the_same_order() -> None:
    host = dispatcher()
    host.start(RoleSet((Spawn(CLERK, ListeningClerk),)))
    outcomes: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
    host.ref(CLERK).submit(
        Acquire(lock="no"), AskReply(lambda _, value, error: outcomes.put((value, error)))
    )
    value, error = outcomes.get(timeout=PATIENCE_S)
    assert value is None
    assert "no" in str(error)
    assert host.stop(PATIENCE_S)


def test_callbacks_are_called_once_however_they_race_with_the_answer() -> None:
    for _ in range(200):
        reply = AskReply()
        calls: list[int] = []
        start = threading.Barrier(2)

        def ask(
            reply: AskReply = reply, calls: list[int] = calls, start: threading.Barrier = start
        ) -> None:
            start.wait(PATIENCE_S)
            for number in range(20):
                reply.add_done_callback(partial(calls.append, number))

        asker = threading.Thread(target=ask)
        asker.start()
        start.wait(PATIENCE_S)
        reply.set(1)
        asker.join(PATIENCE_S)
        assert sorted(calls) == list(range(20))


def test_a_stopped_host_notifies_callers_that_cannot_block() -> None:
    host = dispatcher()
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
    host.ended.add_done_callback(lambda: ended.put(host.stopped.is_set()))
    host.start(RoleSet((Spawn(CLERK, ListeningClerk),)))
    host.stop(0)
    assert ended.get(timeout=PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        host.ref(CLERK)
