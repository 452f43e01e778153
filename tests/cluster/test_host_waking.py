"""Waking threads: after the frames are sent, one thread wakes the next, and none is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pykka
import pytest

from fencelock.actors.api.message import Acquire, Granted, Release, Released
from fencelock.actors.effect import Effect, Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, address_of
from fencelock.actors.role import Role
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.pending_asks import AskReply, CrossThreadQueue, PendingAsks
from fencelock.cluster.host.role_set import RoleSet
from fencelock.transport.frame import Frame
from fencelock.transport.listener import Arrival

LONG_S = 30.0
ROLE = address_of("n1", "crowd")
AWAY = address_of("n2", "crowd")


class Crowd(Role[Acquire | Release]):
    """Replies to all requests at once when there are as many as the lock's name says; notifies
    n2."""

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.waiting: list[Address] = []

    def handle(self, sender: Address, event: Acquire | Release, now: Instant) -> Effects:
        del now
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

    def poll(self, timeout_ms: int | None) -> None:
        self._rung.wait(None if timeout_ms is None else timeout_ms / 1000)
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()

    def join(self, group: int) -> None: ...

    def receive_members(self, most: int) -> list[Arrival]:
        del most
        return []

    def receive_clients(self, most: int, within_ns: int) -> tuple[list[Arrival], int]:
        del most, within_ns
        return [], 0

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        return []

    def send(self, link: str, frame: Frame) -> None:
        del frame
        self._order.append(link)

    def connect(self, node: str, endpoint: str) -> None:
        raise NotImplementedError

    def disconnect(self, node: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Careless(AskReply):
    """Of somebody who promises to wake the next, and does not."""

    def wake(self, following: Callable[[], None] | None = None) -> bool:
        del following
        super().wake()
        return True


class Interrupted(AskReply):
    """Of somebody who was to be woken when a signal's handler raised, on the thread that wakes."""

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


def test_who_is_answered_is_woken_when_the_frames_of_the_turn_have_left() -> None:
    order: list[str] = []
    host = crowd(order)
    woken = threading.Event()
    reply = AskReply(lambda _, __, ___: order.append("answered"))
    reply.add_done_callback(lambda: order.append("woken"))
    reply.add_done_callback(woken.set)
    host.ref(ROLE).submit(Acquire(lock="1"), reply)
    assert woken.wait(LONG_S)
    assert order == ["answered", "n2", "woken"]
    assert host.stop(LONG_S)


@pytest.mark.parametrize("threads", [1, 2, 3, 50])
def test_all_threads_that_are_answered_in_one_turn_go_on(threads: int) -> None:
    host = crowd([])
    role = host.ref(ROLE)

    def work() -> list[int]:
        fences: list[int] = []
        for _ in range(20):
            fences.append(role.ask(Acquire(lock=str(threads)), timeout=LONG_S).fence)
            role.ask(Release(lock="x", fence=1), timeout=LONG_S)
        return fences

    with ThreadPoolExecutor(threads) as pool:
        done = [pool.submit(work) for _ in range(threads)]
        assert [each.result(LONG_S) for each in done] == [[threads] * 20] * threads
    assert host.stop(LONG_S)


def test_a_thread_that_is_woken_wakes_the_next_before_it_goes_on() -> None:
    asks = PendingAsks("n1")
    (first, one), (second, two) = opened(asks, 2)
    may_end = threading.Event()

    def work() -> bool:
        one.get(timeout=LONG_S)
        return may_end.wait(LONG_S)

    with ThreadPoolExecutor(2) as pool:
        slow, quick = pool.submit(work), pool.submit(two.get, timeout=LONG_S)
        while not (waits(one) and waits(two)):
            threading.Event().wait(0.001)
        asks.deliver(first, Granted(lock="x", fence=1))
        asks.deliver(second, Granted(lock="x", fence=2))
        asks.wake()
        assert quick.result(LONG_S).fence == 2
        assert not slow.done()
        may_end.set()
        assert slow.result(LONG_S)
    assert not asks.waking


def test_answers_nobody_waits_for_hold_nobody_up() -> None:
    asks = PendingAsks("n1")
    ended: list[bool] = []
    asks.all_awake = lambda: ended.append(asks.waking)
    waiting = opened(asks, 4)
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(waiting[-1][1].get, timeout=LONG_S)
        while not waits(waiting[-1][1]):
            threading.Event().wait(0.001)
        with pytest.raises(pykka.Timeout):  # Waited once, and gave up.
            waiting[1][1].get(timeout=0)
        for address, _ in waiting:
            asks.deliver(address, Granted(lock="x", fence=7))
        asks.wake()
        assert last.result(LONG_S).fence == 7
    assert [reply.get(timeout=0).fence for _, reply in waiting] == [7] * 4
    assert ended == [False]


def test_if_a_link_of_the_chain_breaks_the_dispatcher_goes_on_with_it_soon() -> None:
    host = crowd([])
    role = host.ref(ROLE)
    careless = [Careless() for _ in range(3)]
    for reply in careless:
        role.submit(Acquire(lock="4"), reply)
    assert role.ask(Acquire(lock="4"), timeout=LONG_S).fence == 4
    assert [reply.get(timeout=0).fence for reply in careless] == [4] * 3
    assert host.stop(LONG_S)


def test_whoever_was_to_be_woken_when_a_signal_came_is_woken_by_the_dispatcher() -> None:
    asks = PendingAsks("n1")
    asked = [*opened(asks, 1, Interrupted), *opened(asks, 2)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(reply.get, timeout=LONG_S) for _, reply in asked]
        while not all(waits(reply) for _, reply in asked):
            threading.Event().wait(0.001)
        for address, _ in asked:
            asks.deliver(address, Granted(lock="x", fence=1))
        with pytest.raises(KeyboardInterrupt):
            asks.wake()
        assert asks.waking
        asks.wake()
        assert [each.result(LONG_S).fence for each in waiting] == [1, 1, 1]
    assert not asks.waking


def test_to_wake_those_who_are_awake_does_no_harm() -> None:
    reply = AskReply()
    reply.settle(7, None)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(reply.get, timeout=LONG_S) for _ in range(4)]
        for _ in range(3):
            reply.wake()
        assert [each.result(LONG_S) for each in waiting] == [7] * 4
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
    asks.wake()  # It does not come: the dispatcher sees to that, and everybody else's last does.
    assert rings == [2, 4]
    arrivals.put(lambda: None)
    assert rings == [2, 4, 5]
