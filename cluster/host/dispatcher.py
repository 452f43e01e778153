"""The dispatcher: one thread that runs every role of a node."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pykka

from fencelock.actors.api.role_request import DescribeRole, ReadState
from fencelock.actors.effect import Effects
from fencelock.actors.error import ClosedError, OverloadedError
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Event,
    Instant,
    Message,
    address_of,
    ms_between,
)
from fencelock.actors.role import Role
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.gateway import Gateway, Links, Pace, turn
from fencelock.cluster.host.pending_asks import AskReply, CrossThreadQueue
from fencelock.cluster.host.role_ref import ActorStop, RoleRef
from fencelock.cluster.host.role_set import Closing, RoleSet, RoleSlot
from fencelock.cluster.host.scheduler import INBOX_MAX, SLOW_NS, RoleFailedError, Scheduler
from fencelock.cluster.host.watchdog import Watchdog
from fencelock.transport.codec import encode
from fencelock.transport.log import note

if TYPE_CHECKING:
    from fencelock.cluster.node.storage.journal import Journal
    from fencelock.cluster.node.storage.record import EntryItems


A = TypeVar("A")

ARRIVALS_MAX = 100_000
"""Limit of messages from other threads that wait for the dispatcher."""

NEVER = Instant((1 << 63) - 1)
"""The end of a sleep without limit."""

_DISPATCHING = threading.local()
"""Has an attribute on each dispatcher's thread: none of them may wait for a node to stop."""


class Dispatcher:
    """The real-time host: a Pykka runtime in which all roles of a node share one thread.

    A turn takes the input of sockets, timers and other threads, runs roles until none waits
    (bounded), and writes and syncs all records of the turn at once. Only then does it send
    what depended on them: one frame for each peer. Between turns it sleeps in the poller of
    its hub.

    Args:
        node: the id of this node (or of this client).
        hub: the sockets.
        members: the nodes whose frames move the logical clock.
        journal: the file of records; a node without one must not persist.
        counters: the counters of roles and host; shared with the hub, read on this thread.
        watch: receives each new role, and may wrap its `RoleSlot.handle` for logging.
        unheard: returns the linked members, if no member has ever sent anything; for protocols
            whose members always do.

    Source: Pykka's three hooks for implementors of new actor types
    (``_create_actor_inbox``, ``_create_future``, ``_start_actor_loop``).

    """

    def __init__(
        self,
        node: str,
        hub: Links,
        *,
        members: frozenset[str] = frozenset(),
        journal: Journal | None = None,
        counters: Counter[str] | None = None,
        watch: Callable[[RoleSlot], None] | None = None,
        unheard: Callable[[], list[str]] = list,
    ) -> None:
        self.node = node
        self.failure: BaseException | None = None
        self.forks = ForkCounter.forks
        """If `ForkCounter` has another count, this process is a child of the node's."""
        self._pid = os.getpid()
        self.stopped = threading.Event()
        self.ended = AskReply()
        """Answered once `stopped` is set, for callers that cannot block."""
        self._scheduler = Scheduler(
            node, self._welcome, Counter() if counters is None else counters
        )
        self._links = hub
        self._gateway = Gateway(self._scheduler, hub, members)
        self._journal = journal
        self._watch = watch
        self._watchdog = Watchdog(node, self._scheduler, unheard)
        self._arrivals = CrossThreadQueue(self._scheduler.asks, hub.ring)
        self._pace = Pace()
        self._awake_by = NEVER
        """The time by which the present sleep must have ended."""
        self._closings: tuple[Closing, ...] = ()
        self._stopping = False
        self._at_once = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fencelock-{node}", daemon=True)

    def start(self, role_set: RoleSet) -> None:
        self._closings = role_set.closings
        try:
            self._scheduler.open(role_set)
        except BaseException:
            self._closed = True
            self._retire_all()
            self.stopped.set()
            self.ended.set()
            raise
        self._thread.start()

    def check(self) -> None:
        """Refuse in a forked process, in which nothing of the node runs.

        Raises:
            ClosedError: this process is a fork of the node's.

        """
        if ForkCounter.forks != self.forks:
            raise self._forked()

    def _forked(self) -> ClosedError:
        return ClosedError(
            f"node {self.node} runs in process {self._pid}, which forked process {os.getpid()}: "
            "start a node or connect a client in each process, after the fork"
        )

    def ref(self, address: Address) -> RoleRef:
        """Return the reference of a role that `start` added, for any thread.

        Raises:
            pykka.ActorDeadError: no such role is running, or the node has already failed.
            ClosedError: this process is a fork of the node's.

        """
        self.check()
        role_slot = self._scheduler.roles.get(address)
        if role_slot is None:
            raise pykka.ActorDeadError(f"{address} is not running") from self.failure
        ref = role_slot.role.actor_ref
        assert isinstance(ref, RoleRef)
        return ref

    def listen(self, name: str, callback: Callable[[Event], None]) -> Address:
        """Return an address whose messages go to ``callback``, which must return quickly."""
        self._scheduler.listeners[address := address_of(self.node, name)] = callback
        return address

    def stop(self, timeout: float | None = None, *, at_once: bool = False) -> bool:
        """Stop in order: send the closings, sync the journal, end sockets and threads.

        Args:
            timeout: how long to wait for it (s), None for no limit.
            at_once: whether to skip the closing messages, or the rest of them.

        Returns:
            Whether everything has stopped. In a forked process nothing ran, and nothing is done.

        """
        if self.forks != ForkCounter.forks:
            return True
        self._at_once = self._at_once or at_once
        self._stopping = True
        self._links.ring()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return self.stopped.is_set()

    def end(self) -> None:
        """Begin to stop in order. From any thread, also where it holds locks."""
        self._stopping = True
        self._links.ring()

    def add(self, role: Role[Any]) -> RoleRef:
        """Run ``role``, which is new, beside those of the node. From any other thread.

        Raises:
            ValueError: the node has a role with its address.
            pykka.ActorDeadError: the node has stopped.

        """
        address = role.address

        def enter(scheduler: Scheduler) -> None:
            if address in scheduler.roles:
                names = ", ".join(sorted(slot.name for slot in scheduler.roles.values()))
                raise ValueError(f"{address} is running already; the node has {names}")
            scheduler.adopt(role, stops_alone=True)

        self.read(enter, None)
        return self.ref(address)

    def abandon(self, reply: AskReply) -> None:
        """Withdraw a request whose caller stopped waiting. From any thread."""
        self.enter(partial(self._scheduler.abandon, reply))

    def read(self, look: Callable[[Scheduler], A], timeout: float | None) -> A:
        """Return what ``look`` returns on the dispatcher's thread. From any other thread.

        Raises:
            pykka.Timeout: the dispatcher does not get to it within ``timeout`` (s).
            pykka.ActorDeadError: the node has stopped.
            ClosedError: this process is a fork of the node's.

        """
        self.check()
        reply = AskReply()

        def answer() -> None:
            try:
                reply.set(look(self._scheduler))
            except Exception as error:  # noqa: BLE001  # Goes to the caller.
                reply.fail(error)

        if not self.enter(answer):
            raise pykka.ActorDeadError(f"node {self.node} has stopped") from self.failure
        value: A = reply.get(timeout=timeout)
        return value

    def now(self) -> Instant:
        return self._scheduler.now()

    def perform(self, source: Address, effects: Effects) -> None:
        """Carry out ``effects`` of the role at ``source`` (Host); on this thread only."""
        self._scheduler.perform(source, effects)

    def adopt(self, role: Role[Any]) -> None:
        """Run ``role``, which some thread made with Pykka's ``start`` (Host)."""
        entered = threading.Event()

        def enter() -> None:
            try:
                self._scheduler.adopt(role, stops_alone=True)
            finally:
                entered.set()

        if threading.current_thread() is self._thread or not self._thread.is_alive():
            enter()
        elif self.enter(enter):
            entered.wait()

    def _welcome(self, role_slot: RoleSlot) -> None:
        if self._watch is not None:
            self._watch(role_slot)
        role: Any = role_slot.role
        stop_node = None if role_slot.stops_alone else self._stop_node
        submit = partial(self._submit, role_slot)
        role._actor_ref = RoleRef(role, submit, self.abandon, stop_node)  # Pykka's own.

    def _stop_node(self, reply: AskReply | None) -> None:
        """Stop the node for Pykka, which stops one of its roles; ``reply`` waits for the end.

        A node loses its roles only all together. From any thread.
        """
        if self.stopped.is_set() or self.forks != ForkCounter.forks:
            # A forked process must leave its parent's sockets alone.
            self._turn_away(reply, pykka.ActorDeadError(f"node {self.node} has stopped"))
            return
        self.end()
        if reply is not None:
            reply.set_get_hook(self._await_end)

    def _await_end(self, timeout: float | None) -> None:
        """Wait until the node has stopped, except on a thread that another node may wait for."""
        if hasattr(_DISPATCHING, "on") or self._thread.ident is None:
            return
        if not self.stop(timeout):
            raise pykka.Timeout(f"node {self.node} has not stopped within {timeout} s")

    def _submit(self, role_slot: RoleSlot, message: Any, reply: AskReply | None) -> None:
        """Accept a message to a role from any thread."""
        if ForkCounter.forks != self.forks:
            self._turn_away(reply, self._forked())
            return
        arrivals, arrival = self._arrivals, partial(self._take, role_slot, message, reply)
        if len(arrivals.queue) >= ARRIVALS_MAX and not _eases(message):
            self._turn_away(reply, OverloadedError(f"{ARRIVALS_MAX} events wait for {self.node}"))
            return
        arrivals.put(arrival)
        if self._closed and arrivals.take_back(arrival):  # See `enter`.
            self._turn_away(reply, pykka.ActorDeadError(f"{role_slot.address} has stopped"))

    def _turn_away(self, reply: AskReply | None, error: Exception) -> None:
        if reply is None:
            raise error
        reply.fail(error)

    def enter(self, arrival: Callable[[], None]) -> bool:
        """Run ``arrival`` on the dispatcher's thread; return False when it has stopped."""
        self._arrivals.put(arrival)
        # The closing thread sets `_closed`, then empties the queue. An arrival that was added
        # before is run; one that was added after is taken back here, unless it was also run.
        return not (self._closed and self._arrivals.take_back(arrival))

    def _take(self, role_slot: RoleSlot, message: Any, reply: AskReply | None) -> None:
        scheduler = self._scheduler
        if role_slot.dead:
            if reply is not None:
                reply.fail(pykka.ActorDeadError(f"{role_slot.address} has stopped"))
        elif type(message) not in role_slot.accepts:
            self._take_unaccepted(role_slot, message, reply)
        elif len(scheduler.ready) >= INBOX_MAX and not _eases(message):
            scheduler.counters["host.inbox_full"] += 1
            if reply is not None:
                reply.fail(OverloadedError(f"{INBOX_MAX} events wait on node {self.node}"))
        else:
            sender = (
                scheduler.here if reply is None else scheduler.asks.open(reply, role_slot.address)
            )
            scheduler.ready.append((role_slot, sender, message))

    def _take_unaccepted(self, role_slot: RoleSlot, message: Any, reply: AskReply | None) -> None:
        """Handle the requests that the host answers, and Pykka's own messages."""
        role: Any = role_slot.role
        answer = None
        try:
            if type(message) is ActorStop:
                self._scheduler.retire(role_slot)
            elif isinstance(message, DescribeRole | ReadState):
                answer = self._scheduler.reply_for(role_slot, message)
            else:
                answer = role._handle_receive(message)
        except Exception as error:  # noqa: BLE001  # Goes to the caller, as in Pykka.
            if reply is not None:
                reply.fail(error)
        else:
            if reply is not None:
                reply.set(answer)

    def _run(self) -> None:
        """Run turns until `stop` is called, or until a role or the disk fails."""
        _DISPATCHING.on = True
        try:
            while not self._stopping:
                self._turn()
            for closing in self._closings:
                self._close_role(closing)
            self._turn(0)
        except BaseException as failure:  # noqa: BLE001  # Top of the thread: log and end.
            self.failure = failure
            note(self.node, "CRITICAL", f"node {self.node} stops: {failure}", failure)
        finally:
            self._close()

    def _close_role(self, closing: Closing) -> None:
        """Send a closing, and serve on until it is answered or takes too long."""
        scheduler, reply = self._scheduler, AskReply()
        reply.add_done_callback(self._links.ring)
        role_slot = scheduler.roles.get(closing.to)
        if role_slot is None:
            return
        scheduler.post(role_slot, scheduler.asks.open(reply, role_slot.address), closing.message)
        ends = scheduler.now() + closing.within_ms * NS_PER_MS
        while not (reply.done or self._at_once):
            left_ms = ms_between(scheduler.now(), Instant(ends))
            if not left_ms:
                break
            self._turn(left_ms)
        scheduler.asks.abandon(reply)

    def _turn(self, most_ms: int | None = None) -> None:
        """Do what there is to do, then sleep until there is more.

        While the node closes, ``most_ms`` limits the sleep; else it is None.
        """
        arrivals, scheduler = self._arrivals, self._scheduler
        began, synced_ns = scheduler.now(), scheduler.synced_ns
        if began - self._awake_by > SLOW_NS:  # The process was stopped, or the machine suspended.
            self._watchdog.look(began, began - self._awake_by)
        for _ in range(len(arrivals.queue)):  # Those that have arrived so far.
            arrivals.queue.popleft()()
        wrote = expects_reply = False
        for has_sent in turn(scheduler, self._gateway, self._links, self._pace):
            self._write()
            wrote, expects_reply = True, expects_reply or has_sent
        now, watchdog = scheduler.now(), self._watchdog
        if now - began > SLOW_NS or now >= watchdog.report_at:
            watchdog.look(now, now - began - (scheduler.synced_ns - synced_ns))
        if wrote and self._journal is not None and self._journal.trim_due:
            self._journal.trim()  # Last, so that nothing waits for it unnecessarily.
            now = scheduler.now()
        idle_ms = scheduler.idle_ms()
        if most_ms is not None:
            idle_ms = most_ms if idle_ms is None else min(idle_ms, most_ms)
        arrivals.asleep = idle_ms != 0 and not arrivals.queue
        if arrivals.queue or (self._stopping and most_ms is None):
            idle_ms = 0
        self._awake_by = NEVER if idle_ms is None else Instant(now + idle_ms * NS_PER_MS)
        self._links.poll(idle_ms, expects_reply)
        arrivals.asleep = False

    def _write(self) -> None:
        """Make the records of this turn durable: one append, one sync (group commit)."""
        journal = self._journal
        assert journal is not None, "a role persists on a node that keeps no journal"
        entries: list[EntryItems] = []
        for role, record in self._scheduler.records:
            entries.append((role, encode(record) if isinstance(record, Message) else record))
        journal.append(entries)
        journal.sync()

    def _close(self) -> None:
        """Leave nothing behind: no request, role, socket, file or thread."""
        self._closed = True
        with contextlib.ExitStack() as last:
            last.callback(self.ended.set)
            last.callback(self.stopped.set)
            if self._journal is not None:
                last.callback(self._journal.close)
            last.callback(self._links.close)
            last.callback(self._scheduler.asks.fail, f"node {self.node} has stopped")
            while self._arrivals.queue:  # Every request gets its address, to be failed below.
                with contextlib.suppress(RoleFailedError, IndexError):  # Logged; taken back.
                    self._arrivals.queue.popleft()()
            self._retire_all()

    def _retire_all(self) -> None:
        for role_slot in list(self._scheduler.roles.values()):
            self._scheduler.retire(role_slot)


def _eases(message: object) -> bool:
    """Return whether a full queue accepts ``message``; Pykka's own messages do not ease."""
    return isinstance(message, Event) and message.EASES
