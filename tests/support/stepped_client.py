"""A client whose every step a test takes by hand: its callers, its session, and the log.

The client's parts are the real ones: its lock objects and their operations, its `HoldRegistry`, its
session and a proxy. A step lets one caller go on, the session take one request, the table do one
command, or the client learn one outcome, so that any two of them can be in any order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, cast

from fencelock.actors.api.lock_message import Abandon
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Refusal
from fencelock.actors.session.holds import ClientHold as SessionHold
from fencelock.actors.session.requests import CancelKey, LockKey, PendingCancel
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result
from fencelock.cluster.client.base_lock import BaseLock
from fencelock.cluster.client.callback_executor import CallbackExecutor
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.election import Election
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.client.hold_registry import HoldRegistry
from fencelock.cluster.client.lock import Lock, RLock
from fencelock.cluster.client.lock_all import LockAll
from fencelock.cluster.client.operation import AwaitReply, Operation
from fencelock.cluster.client.rwlock import RWLock
from fencelock.cluster.client.semaphore import Semaphore
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.client.waiting import LocalWaits
from fencelock.cluster.host.pending_asks import AskReply
from support.expect import present
from support.local_callers import LocalNode


class SteppedConnection(Connection):
    """The part of a connection that objects use."""

    def __init__(self, line: SessionChannel, registry: HoldRegistry) -> None:
        self.line = line
        self.hold_registry = registry
        self.protocol = "paxos"
        self._retain = 0.0


class NoCallbacks:
    """Fails if a callback is due: no hold is lost here."""

    failed = 0

    def call(self, callback: Any, argument: Any) -> None:
        raise AssertionError((callback, argument))

    def stop(self, timeout: float) -> None:
        del timeout


class SteppedClient:
    """One client, and what its callers, its session and the log have not taken yet."""

    def __init__(self, log: SteppedLog, node: str) -> None:
        self.arrivals: deque[tuple[Event, AskReply | None]] = deque()
        """The requests of callers that the session has not taken."""
        self.outcomes: deque[tuple[Result, ...]] = deque()
        """The outcomes of commands that the client has not learned."""
        self._asks: dict[Address, AskReply] = {}
        self._node = node
        self._number = 0
        holds: dict[LockKey, SessionHold] = {}
        cancels: dict[CancelKey, PendingCancel] = {}
        self.node = LocalNode(
            node, lambda: log.now, log.propose, self._reply, holds=holds, cancels=cancels
        )
        executor: CallbackExecutor = NoCallbacks()
        self.registry = HoldRegistry(lambda: log.now, holds, cancels, executor, self.tell)
        self.registry.waits = LocalWaits(lambda _: None)
        self.connection = SteppedConnection(SessionChannel(self, self.registry), self.registry)

    def submit(self, message: Event, reply: AskReply) -> None:
        """Take a request of a caller (SessionRole)."""
        self.arrivals.append((message, reply))

    def abandon(self, reply: AskReply) -> None:
        """Take back a request (SessionRole)."""
        self.arrivals.append((Abandon(), reply))

    def tell(self, message: Event) -> None:
        """Take a message without an answer (SessionRole)."""
        self.arrivals.append((message, None))

    def take_arrival(self) -> None:
        message, reply = self.arrivals.popleft()
        if isinstance(message, Abandon):
            assert reply is not None
            assert reply.address is not None
            self._asks.pop(reply.address, None)
            self.node.ask(reply.address, message)
            return
        self._number += 1
        address = Address(f"{self._node}/ask-{self._number}")
        if reply is not None:
            reply.address = address
            self._asks[address] = reply
        self.node.ask(address, message)

    def take_outcomes(self) -> None:
        self.node.learn(self.outcomes.popleft())

    def _reply(self, to: Address, message: Any) -> None:
        reply = self._asks.pop(to, None)
        if reply is None:
            return
        if isinstance(message, Refusal):
            reply.fail(message.error())
        else:
            reply.set(message)

    def lock(self, name: str, owner: str | None = None) -> Lock:
        options = self.connection.options(name, owner=owner)
        return Lock(self.connection.line, options)

    def rlock(self, name: str, owner: str) -> RLock:
        options = self.connection.options(name, owner=owner, reentrant=True)
        return RLock(self.connection.line, options)

    def lock_all(self, *names: str) -> LockAll:
        return LockAll(self.connection, names, None, "")

    def candidate(self, name: str) -> Lock:
        return Election(self.connection, name, None, "").lead("here")

    def semaphore(self, name: str) -> Semaphore:
        return Semaphore(self.connection, name, 1, None, "")

    def rwlock(self, name: str, owner: str) -> RWLock:
        options = self.connection.options(
            name, None, owner, "", None, None, kind=RWLOCK, reentrant=True
        )
        return RWLock(self.connection, options)


class SteppedLog:
    """The table, and the commands that it has not done yet."""

    def __init__(self) -> None:
        self.ms = 0
        self.table = LockTable()
        self.commands: deque[Any] = deque()
        self.clients: list[SteppedClient] = []

    @property
    def now(self) -> Instant:
        return Instant(self.ms * NS_PER_MS)

    def propose(self, command: Any) -> None:
        self.commands.append(command)

    def take_command(self) -> None:
        self._happens(self.table.apply(self.ms, self.commands.popleft()))

    def pass_time(self, ms: int) -> None:
        self.ms += ms
        self._happens(self.table.advance(self.ms))
        for client in self.clients:
            client.node.ring()

    def _happens(self, outcomes: list[Result]) -> None:
        if outcomes:
            for client in self.clients:
                client.outcomes.append(tuple(outcomes))

    def due(self) -> list[Callable[[], None]]:
        """Return the steps that can be taken now, without those of callers."""
        steps: list[Callable[[], None]] = []
        if self.commands:
            steps.append(self.take_command)
        for client in self.clients:
            if client.arrivals:
                steps.append(client.take_arrival)
            if client.outcomes:
                steps.append(client.take_outcomes)
        return steps

    def take_due(self, most: int) -> None:
        """Take the steps that are due, in order, but not more than ``most``."""
        for _ in range(most):
            for step in self.due()[:1]:
                step()

    def settle(self) -> None:
        """Take all steps that are due, in order."""
        while due := self.due():
            due[0]()


class Caller:
    """A task that acquires one object, releases it, and may be cancelled at any wait."""

    def __init__(self, name: str, made: Callable[[], BaseLock[Any]], depth: int = 1) -> None:
        self.name = name
        self.depth = depth
        """How often it may hold the object at once."""
        self._made = made
        self.holds: list[BaseHold] = []
        self._operation: Operation[Any] | None = None
        self._wait: AskReply | AwaitReply | None = None
        self._acquires = False

    @property
    def idle(self) -> bool:
        """Whether it waits for nothing."""
        return self._operation is None

    @property
    def inside(self) -> bool:
        """Whether it relies on a hold."""
        return bool(self.holds)

    @property
    def answered(self) -> bool:
        """Whether the reply that it waits for has arrived, though it has not continued."""
        wait = self._wait
        return wait is not None and (wait.reply if isinstance(wait, AwaitReply) else wait).done

    def choices(self, random: Random) -> list[Callable[[], None]]:
        """Return the steps that it can take now; now and then its cancellation is one."""
        if self.idle:
            again = [self.acquire] if len(self.holds) < self.depth else []
            return [*again, self.release] if self.holds else again
        cancel = [self.cancel] if random.random() < 0.1 else []
        return [*cancel, self.go_on] if self.answered else cancel

    def acquire(self) -> None:
        lock = self._made()
        self._acquires = True
        self._go(lock._acquiring(True, None))  # pyright: ignore[reportPrivateUsage]

    def release(self) -> None:
        self._acquires = False
        self._go(self.holds.pop()._releasing())  # pyright: ignore[reportPrivateUsage]

    def go_on(self) -> None:
        wait, operation = self._wait, self._operation
        assert wait is not None
        assert operation is not None
        reply = wait.reply if isinstance(wait, AwaitReply) else wait
        failure: Exception | None = None
        answer: Any = None
        try:
            answer = reply.get(timeout=0)
        except Exception as error:  # noqa: BLE001  # The operation decides.
            failure = error
        self._step(lambda: operation.send(answer) if failure is None else operation.throw(failure))

    def cancel(self) -> None:
        """Stop waiting: the operation undoes its steps."""
        operation = present(self._operation)
        try:
            operation.throw(asyncio.CancelledError())
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("a cancelled operation went on")
        self._operation = self._wait = None

    def _go(self, operation: Operation[Any]) -> None:
        self._operation = operation
        self._step(lambda: next(operation))

    def _step(self, step: Callable[[], Any]) -> None:
        try:
            self._wait = step()
        except StopIteration as end:
            self._operation = self._wait = None
            if self._acquires:
                self.holds.append(cast("BaseHold", end.value))


def two_clients() -> tuple[SteppedLog, SteppedClient, SteppedClient]:
    """Return a log, and two clients with open sessions."""
    log = SteppedLog()
    one, two = SteppedClient(log, "n1"), SteppedClient(log, "n2")
    log.clients += [one, two]
    for client in log.clients:
        caller = Caller("first", partial(client.lock, "first"))
        caller.acquire()
        settle_late(log)
        while not caller.holds:
            caller.go_on()
            settle_late(log)
        leave(log, caller)
    return log, one, two


KINDS: dict[str, Callable[[SteppedClient, str], BaseLock[Any]]] = {
    "lock": lambda client, _: client.lock("lock"),
    "named": lambda client, _: client.lock("named", owner="job"),
    "rlock": lambda client, me: client.rlock("rlock", me),
    "lock_all": lambda client, _: client.lock_all("lock_all", "other"),
    "election": lambda client, _: client.candidate("election"),
    "semaphore": lambda client, _: client.semaphore("semaphore"),
    "write": lambda client, me: client.rwlock("rwlock", me).write(),
    "read": lambda client, me: client.rwlock("rwlock", me).read(),
}
"""Makes an object of each kind, for a caller of that name."""


def random_steps(seed: int, steps: int) -> tuple[int, int]:
    """Let callers of every kind acquire, release and be cancelled in random order; judge it.

    Return how many acquires were granted, and how many were cancelled.

    Raises:
        AssertionError: two callers were inside, or something was left at the end.
        FencelockError: an acquire or a release failed, which none should.

    """
    random = Random(seed)
    log, *clients = two_clients()
    callers = [
        Caller(kind, partial(KINDS[kind], client, f"{kind}{n}"), 2 if kind == "rlock" else 1)
        for kind in random.sample(sorted(KINDS), 2)  # With few kinds the callers meet more often.
        for n, client in enumerate((*clients, clients[0]))
    ]
    granted = cancelled = 0
    for _ in range(steps):
        choices = log.due()
        for caller in callers:
            choices += caller.choices(random)
        assert choices, f"all wait, and nothing is due: {[caller.name for caller in callers]}"
        step = random.choice(choices)
        held = sum(len(caller.holds) for caller in callers)
        step()
        granted += sum(len(caller.holds) for caller in callers) > held
        cancelled += any(step == caller.cancel for caller in callers)
        if random.random() < 0.01:
            log.pass_time(random.choice((1, 20)))
        judge(callers)
    end(log, callers)
    return granted, cancelled


def end(log: SteppedLog, callers: list[Caller]) -> None:
    """Check that nothing is left once all have left, and that each of them is granted again."""
    for caller in callers:
        if not caller.idle:
            caller.cancel()
        leave(log, caller)
    settle_late(log)
    assert_all_free(log)
    for caller in callers:
        while len(caller.holds) < caller.depth:
            caller.acquire()
            settle_late(log)
            assert caller.answered, f"{caller.name} waits, though no caller is inside"
            caller.go_on()
        leave(log, caller)
    assert_all_free(log)


def leave(log: SteppedLog, caller: Caller) -> None:
    while caller.holds:
        caller.release()
        while not caller.idle:
            settle_late(log)
            caller.go_on()


def assert_all_free(log: SteppedLog) -> None:
    """Check that nothing is held, waited for or to be released, in the table and in clients."""
    assert log.table.resources == {}, f"still held or waited for: {sorted(log.table.resources)}"
    for client in log.clients:
        state = client.node.session.session_state
        assert (state.holds, state.in_flight.pending, state.in_flight.cancels) == ({}, {}, {})


def settle_late(log: SteppedLog) -> None:
    """Take all steps that are due, and those that become due with time."""
    for _ in range(3):
        log.settle()
        log.pass_time(1)
    log.settle()


def judge(callers: list[Caller]) -> None:
    """Check that callers are inside alone, but for readers."""
    inside = [caller.name for caller in callers if caller.inside]
    for name in set(inside) - {"read"}:
        assert inside.count(name) == 1, f"{inside} are inside"
    assert not {"read", "write"} <= set(inside), f"{inside} are inside"
