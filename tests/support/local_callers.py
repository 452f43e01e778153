"""Callers inside the process of a node: its session and its proxy, over a table of locks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from fencelock.actors.api.lock_message import Acquire, Granted, Reason, Refused
from fencelock.actors.effect import Effect, Effects, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, Timer
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.paxos.wire import Propose
from fencelock.actors.role import Role
from fencelock.actors.role_message import RoleNotice
from fencelock.actors.session.event import Closed
from fencelock.actors.session.session import ClientSession
from fencelock.actors.table.resource import Resource
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Result
from fencelock.transport.codec import decode, encode
from support.proxy_scene import UnbatchedProxy
from support.role_harness import HOST
from support.session_harness import First

ONE, TWO, THREE = (Address(f"n1/ask-{number}") for number in (1, 2, 3))
A = Acquire(lock="a")
K = TypeVar("K")


class LocalNode:
    """The session and the proxy of a node. Their messages to each other arrive at once.

    Args:
        node: its name.
        now: reads its clock.
        propose: takes the commands for the log.
        reply: takes the replies to callers.
        session: further arguments of the session.

    """

    def __init__(
        self,
        node: str,
        now: Callable[[], Instant],
        propose: Callable[[Any], None],
        reply: Callable[[Address, Any], None],
        **session: Any,
    ) -> None:
        self.now, self.propose, self.reply = now, propose, reply
        self.replica = Address(f"{node}/replica")
        backend = PaxosBackend(node, ("n1", "n2", "n3"), encode)
        self.proxy = UnbatchedProxy(Address(f"{node}/proxy"), HOST, backend=backend)
        self.session = ClientSession(
            Address(f"{node}/session"),
            HOST,
            session=f"{node}/b00",
            endpoints=(self.proxy.address,),
            random=First(),
            label=node,
            **session,
        )
        self.roles: dict[Address, Role[Any]] = {
            self.proxy.address: self.proxy,
            self.session.address: self.session,
        }
        self.due: list[tuple[Instant, Address, Timer]] = []
        self.posted: deque[tuple[Address, Address, Any]] = deque()
        for role in self.roles.values():
            self._perform(role.address, role.begin(now()))

    def ask(self, sender: Address, event: Any) -> None:
        """Send ``event`` to the session, as a caller inside the process."""
        self._post(self.session.address, sender, event)

    def learn(self, outcomes: tuple[Result, ...]) -> None:
        """Send the proxy the outcomes of a slot."""
        event = SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes)
        self._post(self.proxy.address, self.replica, event)

    def receive(self, event: Any) -> None:
        """Let the proxy receive a message of its replica."""
        self._post(self.proxy.address, self.replica, event)

    def ring(self) -> None:
        """Fire the timers that are due."""
        due = [timer for timer in self.due if timer[0] <= self.now()]
        self.due = [timer for timer in self.due if timer[0] > self.now()]
        for _, address, timer in due:
            self._post(address, address, timer)

    def _post(self, to: Address, sender: Address, event: Any) -> None:
        self.posted.append((to, sender, event))
        if len(self.posted) > 1:
            return  # The call that is under way handles it.
        while self.posted:
            to, sender, event = self.posted[0]
            self._perform(to, self.roles[to].handle(sender, event, self.now()))
            self.posted.popleft()

    def _perform(self, source: Address, effects: Effects) -> None:
        for effect in effects:
            self._perform_one(source, effect)

    def _perform_one(self, source: Address, effect: Effect) -> None:
        match effect:
            case Wake(after_ms, timer):
                self.due.append((Instant(self.now() + after_ms * NS_PER_MS), source, timer))
            case Send(to, message) if to in self.roles:
                self._post(to, source, message)
            case Send(_, Propose() as propose):
                self.propose(decode(propose.command))
            case Send(_, RoleNotice()):
                pass  # A line of the node's log.
            case Send(to, message):
                self.reply(to, message)
            case _:
                pass


class LocalCallers:
    """A node, the table, and the replies to callers inside the process."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.silent = False
        self.ms = 0
        self.replies: list[tuple[Address, Message | Closed]] = []
        self.commands: list[LogCommand] = []
        self.node = LocalNode("n1", lambda: self.now, self._propose, self._reply)

    @property
    def now(self) -> Instant:
        return Instant(self.ms * NS_PER_MS)

    def do(self, sender: Address, event: Any) -> None:
        """Let a caller send ``event``, and the log decide the proposals."""
        self.node.ask(sender, event)

    def _propose(self, command: Any) -> None:
        self.commands.append(command)
        if not self.silent:
            self.happens(self.table.apply(self.ms, command))

    def _reply(self, to: Address, message: Any) -> None:
        if isinstance(message, Message | Closed):
            self.replies.append((to, message))

    def happens(self, outcomes: list[Result]) -> None:
        self.node.learn(tuple(outcomes))

    def locks_after_reply(self, ms: int) -> dict[str, Resource]:
        """Let the log reply again, and return the held locks ``ms`` milliseconds later."""
        self.silent = False
        self.pass_time(ms)
        return self.table.resources

    def pass_time(self, ms: int, step_ms: int = PaxosBackend.TICK_MS // 5) -> None:
        """Let time pass, in the log too unless it is silent, and timers fire."""
        end = self.ms + ms
        while self.ms < end:
            self.ms = min(end, self.ms + step_ms)
            if not self.silent:
                self.happens(self.table.advance(self.ms))
            self.node.ring()

    def received(self, caller: Address, kind: type[K]) -> list[K]:
        return [
            message for to, message in self.replies if to == caller and isinstance(message, kind)
        ]

    def fence(self, caller: Address) -> int:
        (granted,) = self.received(caller, Granted)
        return granted.fence

    def reason(self, caller: Address) -> Reason:
        (refused,) = self.received(caller, Refused)
        return refused.reason

    def held(self) -> list[tuple[str, int]]:
        """Return the locks that the session holds, with the fences."""
        holds = self.node.session.session_state.holds.items()
        return [(claim.lock, hold.fence) for claim, hold in holds]

    def is_idle(self) -> bool:
        """Return whether the session holds nothing and waits for nothing."""
        ledger = self.node.session.session_state
        outstanding = ledger.in_flight
        return not (ledger.holds or ledger.anonymous or outstanding.pending or outstanding.cancels)
