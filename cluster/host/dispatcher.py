"""The dispatcher, one thread that runs every role of a node, and references to those roles."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import pykka
from loguru import logger
from pykka import messages

from fencelock.actors.api.message import Abandon, Cancel, ReleaseRequest
from fencelock.actors.effect import Effects
from fencelock.actors.error import ClosedError, FencelockError, OverloadedError
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
from fencelock.actors.role_message import DescribeRole, Query
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.gateway import Gateway, Links, Pace, turn
from fencelock.cluster.host.pending_asks import AskReply, CrossThreadQueue
from fencelock.cluster.host.role_set import Closing, RoleSet, RoleSlot
from fencelock.cluster.host.scheduler import INBOX_MAX, SLOW_NS, RoleFailedError, Scheduler
from fencelock.cluster.log import Repeated, note
from fencelock.cluster.node.storage.record import EntryItems, Mark
from fencelock.transport.codec import encode, pack

if TYPE_CHECKING:
    from fencelock.cluster.node.storage.journal import Journal


A = TypeVar("A")

ARRIVALS_MAX = 100_000
"""Limit of messages from other threads that wait for the dispatcher."""

_DISPATCHING = threading.local()
"""Has an attribute on each dispatcher's thread: none of them may wait for a node to stop."""


class Dispatcher:
    """The real-time host: a Pykka runtime in which all roles of a node share one thread.

    A turn takes the input of sockets, timers and other threads, runs roles until none waits
    (bounded), and writes and syncs all records of the turn at once. Only then it sends what
    depended on the records: one frame for each peer. Between turns it sleeps in the poller of
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
        """Another count of `ForkCounter` means that this process is a child of the node's."""
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
        self._closings: tuple[Closing, ...] = ()
        self._stopping = False
        self._at_once = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fencelock-{node}", daemon=True)

    def start(self, role_set: RoleSet) -> None:
        """Add the roles of ``role_set`` to the scheduler and begin to run them."""
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

    def ref(self, address: Address) -> RoleRef:
        """Return the reference of a role that `start` added, for any thread.

        Raises:
            pykka.ActorDeadError: no such role is running, or the node has already failed.

        """
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
            timeout: how long to wait for it (s), None for without limit.
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

    def abandon(self, reply: AskReply) -> None:
        """Withdraw a request whose caller stopped waiting. From any thread."""
        self._enter(partial(self._abandon, reply))

    def read(self, look: Callable[[Scheduler], A], timeout: float) -> A:
        """Return what ``look`` returns on the dispatcher's thread. From any other thread.

        Raises:
            pykka.Timeout: the dispatcher does not get to it within ``timeout`` (s).
            pykka.ActorDeadError: the node has stopped.

        """
        reply = AskReply()

        def answer() -> None:
            try:
                reply.set(look(self._scheduler))
            except Exception as error:  # noqa: BLE001  # Goes to the caller.
                reply.fail(error)

        if not self._enter(answer):
            raise pykka.ActorDeadError(f"node {self.node} has stopped") from self.failure
        value: A = reply.get(timeout=timeout)
        return value

    def now(self) -> Instant:
        """Read the clock (Host)."""
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
        elif self._enter(enter):
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
        self._stopping = True
        self._links.ring()
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
            text = (
                f"node {self.node} runs in process {self._pid}, which forked process "
                f"{os.getpid()}: start a node or connect a client in each process, after the fork"
            )
            self._turn_away(reply, ClosedError(text))
            return
        arrivals, arrival = self._arrivals, partial(self._take, role_slot, message, reply)
        if len(arrivals.queue) >= ARRIVALS_MAX:
            self._turn_away(reply, OverloadedError(f"{ARRIVALS_MAX} events wait for {self.node}"))
            return
        arrivals.put(arrival)
        if self._closed and arrivals.take_back(arrival):  # See `_enter`.
            self._turn_away(reply, pykka.ActorDeadError(f"{role_slot.address} has stopped"))

    def _turn_away(self, reply: AskReply | None, error: Exception) -> None:
        if reply is None:
            raise error
        reply.fail(error)

    def _enter(self, arrival: Callable[[], None]) -> bool:
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
        elif len(scheduler.ready) >= INBOX_MAX and not isinstance(message, ReleaseRequest | Cancel):
            scheduler.counters["host.inbox_full"] += 1
            if reply is not None:
                reply.fail(OverloadedError(f"{INBOX_MAX} events wait on node {self.node}"))
        else:
            sender = (
                scheduler.here if reply is None else scheduler.asks.open(reply, role_slot.address)
            )
            scheduler.ready.append((role_slot, sender, message))

    def _take_unaccepted(self, role_slot: RoleSlot, message: Any, reply: AskReply | None) -> None:
        """Handle `DescribeRole`, which the host answers, and Pykka's own messages."""
        role: Any = role_slot.role
        answer = None
        try:
            if type(message) is ActorStop:
                self._scheduler.retire(role_slot)
            elif type(message) is DescribeRole:
                answer = self._scheduler.describe(role_slot)
            else:
                answer = role._handle_receive(message)
        except Exception as error:  # noqa: BLE001  # Goes to the caller, as in Pykka.
            if reply is not None:
                reply.fail(error)
        else:
            if reply is not None:
                reply.set(answer)

    def _abandon(self, reply: AskReply) -> None:
        # The answer may just have arrived unread. The role is notified anyway: otherwise a grant
        # that no caller received would be held for ever.
        self._scheduler.asks.abandon(reply)
        if reply.address is None or reply.role is None:
            return  # The request was refused.
        role_slot = self._scheduler.roles.get(reply.role)
        if role_slot is not None and Abandon in role_slot.accepts:
            self._scheduler.post(role_slot, reply.address, Abandon())

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
            logger.bind(node=self.node).opt(exception=failure).critical(
                "node {} stops: {}", self.node, failure
            )
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
        began = scheduler.now()
        for _ in range(len(arrivals.queue)):  # Those that have arrived so far.
            arrivals.queue.popleft()()
        wrote = False
        for _ in turn(scheduler, self._gateway, self._links, self._pace):
            self._write()
            wrote = True
        self._watchdog.end_turn(began)
        if wrote and self._journal is not None and self._journal.trim_due:
            self._journal.trim()  # Last, so that nothing waits for it unnecessarily.
        idle_ms = scheduler.idle_ms()
        if most_ms is not None:
            idle_ms = most_ms if idle_ms is None else min(idle_ms, most_ms)
        arrivals.asleep = idle_ms != 0 and not arrivals.queue
        if arrivals.queue or (self._stopping and most_ms is None):
            idle_ms = 0
        self._links.poll(idle_ms)
        arrivals.asleep = False

    def _write(self) -> None:
        """Make the records of this turn durable: one append, one sync (group commit)."""
        journal = self._journal
        assert journal is not None, "a role persists on a node that keeps no journal"
        entries: list[EntryItems] = []
        for role, record in self._scheduler.records:
            # A record that was sent before has its encoding already.
            data: bytes | Mark | None = record if type(record) is Mark else None
            if isinstance(record, Message):
                data = getattr(record, "encoded", None) or encode(record)
            entries.append((role, data))
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


class Watchdog:
    """Logs slow turns, and once per interval the dropped frames.

    Args:
        node: whose log it is.
        scheduler: has the clock, the counters and the time of syncs.
        unheard: see `Dispatcher`.

    """

    def __init__(self, node: str, scheduler: Scheduler, unheard: Callable[[], list[str]]) -> None:
        self._node = node
        self._unheard = unheard
        self._scheduler = scheduler
        self._slow_turns = Repeated(node, scheduler.now)
        self._report_at = scheduler.now()
        self._synced = 0
        self._dropped: dict[str, int] = {}

    def end_turn(self, began: Instant) -> None:
        """Note that the turn which ``began`` has ended, but for the trimming of the journal."""
        scheduler = self._scheduler
        now = scheduler.now()
        took = now - began
        if took > SLOW_NS:
            took -= scheduler.synced_ns - self._synced
            if took > SLOW_NS:
                self._slow_turns.add(took // NS_PER_MS, SLOW_TURN, event="slow_turn")
        self._synced = scheduler.synced_ns
        if now >= self._report_at:
            self._report_at = Instant(now + Repeated.INTERVAL_NS)
            self._report()
            if linked := self._unheard():
                text = ONE_WAY.format(node=self._node, peers=", ".join(linked))
                note(self._node, "WARNING", text, event="one_way")

    def _report(self) -> None:
        """Log the frames dropped since the last report."""
        counters = self._scheduler.counters
        found = {name: counters[name] for name in DROPPED if name in counters}
        new = {name: times - self._dropped.get(name, 0) for name, times in found.items()}
        parts = [f"{times} {DROPPED[name]}" for name, times in new.items() if times]
        if not parts:
            return
        self._dropped = found
        text = f"dropped frames in the last {Repeated.INTERVAL_NS // 10**9} s: {', '.join(parts)}"
        fields = {name.replace(".", "_"): times for name, times in new.items() if times}
        level = "ERROR" if new.get(OTHER_GROUP) else "WARNING"
        note(self._node, level, text, event="frames_dropped", **fields)


SLOW_TURN = (
    "this node was busy or paused for {worst} ms{times}: it sent no replies meanwhile. Look for "
    "other load on this machine, for swapping, or for a container limited in processor time"
)

ONE_WAY = (
    "{node} is linked to {peers}, but gets nothing back: they answer at the address that their own "
    "configuration has for {node}. Either that address is not this node's, or another process runs "
    "as {node}: stop one of the two, or give it another id"
)

OTHER_GROUP = "wire.other_group"
"""The counter of frames of another group, which no healthy cluster has."""

DROPPED = {
    "wire.malformed": "that nobody can read: a port scan, or a program that is not fencelock",
    "wire.oversized": "too large",
    "wire.wrong_version": "of another version of fencelock: see the rolling upgrade",
    "wire.wrong_cluster": "for another cluster: a client or node with a wrong cluster name",
    OTHER_GROUP: "of another group of this cluster: two were founded under its name (fencelock "
    "status says which nodes refuse each other)",
    "wire.spoofed_sender": "under a name that is not their sender's: two nodes or clients may "
    "have one id",
    "wire.misdirected": "for another node: addresses in a configuration are mixed up",
    "wire.muted": "of a sender that was muted for unreadable ones or too many",
    "wire.client_flooded": "of clients that sent more than this node could take",
    "wire.client_id_taken": "under the id of a client that another process uses",
    "wire.client_slow": "of or to clients that do not read their replies",
    "proxy.over_quota": "not frames: requests above a client's quota, which were refused",
    "wire.flood_closed": "of connections that were closed, since they sent too many",
    "wire.address_barred": "of addresses barred for a moment, since they sent several parts",
    "wire.held_closed": "of connections that were closed, since they took too much memory",
    "wire.address_full": "of connections above the quota of one address",
    "wire.connections_full": "of connections above the limit: too many clients, or their "
    "descriptors (ulimit -n)",
    "wire.queue_full": "to peers that do not read theirs",
    "host.inbox_full": "because too much waited",
}
"""Explanations of dropped frames, by the counter of each kind."""


ActorStop = messages._ActorStop  # pyright: ignore[reportPrivateUsage]
"""The message by which Pykka stops an actor, and `pykka.ActorRegistry.stop_all` stops all."""

UNIVERSAL = (
    DescribeRole,
    messages.ProxyCall,
    messages.ProxyGetAttr,
    messages.ProxySetAttr,
    ActorStop,
)
"""Messages that the host answers in place of the role."""


class RoleRef(pykka.ActorRef[Any]):
    """A Pykka reference whose `ask` withdraws its request when the caller gives up.

    Args:
        role: the role that receives the messages.
        submit: takes a message and the reply for its answer, from any thread.
        abandon: withdraws a request, from any thread.
        stop_node: stops the role's node, from any thread; the reply is set when it has stopped.
            None for a role that stops alone.

    """

    def __init__(
        self,
        role: Role[Any],
        submit: Callable[[Any, AskReply | None], None],
        abandon: Callable[[AskReply], None],
        stop_node: Callable[[AskReply | None], None] | None,
    ) -> None:
        super().__init__(role)
        self._stop_node = stop_node
        self._submit = submit
        self.submit: Callable[[Any, AskReply], None] = submit
        """Send a message without waiting; the answer or the error goes to the reply.

        The caller guarantees that the role accepts the message and that its fields have their
        declared types. So a message whose parts are constant need not be checked for each request.
        """
        self.abandon = abandon
        """Withdraw the request of a reply; the role is notified."""

    def tell(self, message: Any) -> None:
        """Send ``message`` without waiting; never blocks.

        Raises:
            TypeError: the role does not accept ``message``, or a field does not have its declared
                type.
            pykka.ActorDeadError: the role, or its node, has stopped.
            fencelock.actors.error.OverloadedError: too much waits for this node.

        """
        self._check(message)
        if not self.is_alive():
            raise pykka.ActorDeadError(f"{self} not found")
        self._send(message, None)

    @overload
    def ask(
        self, message: Query[A], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[A]: ...

    @overload
    def ask(
        self, message: Query[A], *, block: Literal[True] = True, timeout: float | None = None
    ) -> A: ...

    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...

    def ask(  # pyright: ignore[reportIncompatibleMethodOverride]  # The last overload takes all.
        self, message: Any, *, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Send ``message`` and return the role's answer, however many events later it comes.

        Args:
            message: of a type that the role accepts, or `DescribeRole`, which the host answers.
            block: whether to wait here; if not, a Pykka future is returned at once.
            timeout: how long to wait here (s), None for without limit. When the wait ends
                without an answer, the role is notified, so that it does not grant a lock to
                a caller that has left.

        Raises:
            TypeError: the role does not accept ``message``, or a field does not have its declared
                type.
            pykka.Timeout: ``timeout`` ran out.
            pykka.ActorDeadError: the role, or its node, has stopped.
            fencelock.actors.error.OverloadedError: too much waits for this role.
            fencelock.actors.error.ClosedError: this process is a fork of the node's.
            fencelock.actors.error.FencelockError: the role refused, for the reason raised.

        """
        self._check(message)
        reply = AskReply()
        try:
            self._send(message, reply)
            return reply.get(timeout=timeout) if block else reply
        except FencelockError:
            raise
        except BaseException:  # Out of time, or interrupted by the handler of any signal.
            self.abandon(reply)
            raise

    def _send(self, message: Any, reply: AskReply | None) -> None:
        if type(message) is ActorStop and self._stop_node is not None:
            self._stop_node(reply)
        else:
            self._submit(message, reply)

    def _check(self, message: Any) -> None:
        """Refuse at the caller a message that a role would drop, or that would break it."""
        accepts = self.actor_class.accepts
        if type(message) not in accepts and not isinstance(message, UNIVERSAL):
            known = ", ".join(sorted(kind.__name__ for kind in accepts))
            raise TypeError(f"{self.actor_class.__name__} does not accept {message!r}, but {known}")
        if isinstance(message, Message):
            pack(message)  # Roles trust the types of local messages.
