"""Tables of locks that tests fill, and play in turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import fencelock
from fencelock.actors.api.lock_message import (
    Granted,
    HoldLost,
    Inspect,
    LockStatus,
    Refused,
    Released,
)
from fencelock.actors.api.operator_message import Evicted, ListedLock, ListedObject, ListLocks
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Ended, Open
from fencelock.actors.effect import (
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Connect,
    Disconnect,
    Effect,
    Effects,
    Fault,
    JoinGroup,
    Observe,
    Persist,
    Retire,
    Send,
    Spawn,
    Wake,
)
from fencelock.actors.message import Address, Event, address_of, node_of
from fencelock.actors.paxos.config import LogConfig, View, monitor_of, replica_of
from fencelock.actors.paxos.event import WriteChunk
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.role import Role
from fencelock.actors.table.report import list_locks, read_lock
from fencelock.actors.table.sentences import is_sound, worded
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Queued, Result, TablePart
from fencelock.transport.codec import decode, encode
from support.log_workload import LogCounter
from support.real_nodes import until
from support.role_harness import HOST, T0

A, B, C = "s.1", "t.2", "u.3"
"""The sessions of `table_of_three`."""


def table_of_three() -> LockTable:
    """Return a table with three open sessions."""
    table = LockTable()
    for name in "stu":
        table.apply(0, Open(session=name, ttl_ms=10_000))
    return table


def restored(table: LockTable) -> LockTable:
    """Return a table restored from the bytes of a snapshot; it has the same state."""
    through = [decode(encode(part)) for part in table.snapshot()]
    copy = LockTable.restore(tuple(part for part in through if isinstance(part, TablePart)))
    assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())
    assert copy.snapshot() == table.snapshot()
    return copy


def status_of(table: LockTable, lock: str) -> LockStatus:
    """Return the status of a lock as of now."""
    return read_lock(table, Inspect(lock=lock))


def held(
    table: LockTable, prefix: str = "", after: str = "", most: int = 1_000
) -> tuple[ListedLock, ...]:
    """Return a page of what is held."""
    return list_locks(table, ListLocks(prefix=prefix, after=after, most=most)).lines


def unheld(
    table: LockTable, prefix: str = "", after: str = "", most: int = 1_000
) -> tuple[ListedObject, ...]:
    """Return a page of the objects that cannot be held."""
    query = ListLocks(prefix=prefix, after=after, most=most, unheld=True)
    return list_locks(table, query).objects


def lines_of(call: Callable[[], object]) -> int:
    """Return the number of lines of Python that ``call`` runs."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def applied(table: LockTable, command: LogCommand) -> list[str]:
    """Apply a command; return the outcomes as texts."""
    return [summary(one) for one in table.apply(table.time_ms, command)]


def advanced(table: LockTable, time_ms: int) -> list[str]:
    """Let log time pass; return the outcomes as texts."""
    return [summary(one) for one in table.advance(time_ms)]


def text_of(outcome: Result, command: Command | None = None) -> str:
    """Return the text that the proxy writes about an outcome, of ``command`` if that matters."""
    assert isinstance(outcome, Refused | HoldLost | Ended)
    assert outcome.detail == ""
    assert not isinstance(outcome, Refused) or outcome.why is None or is_sound(outcome.why)
    return worded(outcome, command).detail


def summary(outcome: Result) -> str:
    match outcome:
        case Granted():
            return f"{outcome.session} holds {outcome.count} under {outcome.fence}"
        case Released():
            return f"{outcome.session} has {outcome.count} left"
        case Queued():
            return f"{outcome.session} waits"
        case Refused():
            return f"{outcome.session} {outcome.reason.name}"
        case Evicted() | HoldLost():
            return f"{type(outcome).__name__} {outcome.fence}"
        case _:
            return type(outcome).__name__


Choices = Mapping[Address, Callable[[Mapping[str, Any]], Sequence[Event]]]
"""The next possible actions of a role's user, by the role's address, from the role's state."""

StepJudge = Callable[[Mapping[str, Any], Mapping[str, Any]], str]
"""Returns the violation in a role's step from one state to the next, or the empty string."""

Picture = Mapping[Address, Mapping[str, Any]]
"""The state of every living role, by address."""


class Letter(NamedTuple):
    """One delivery: an event in flight."""

    sender: Address
    to: Address
    event: Event


class Reaction(NamedTuple):
    """A role's reaction to one delivery, in numbers."""

    state: int
    sent: tuple[int, ...]
    """Letters to other nodes, in order."""
    mask: int
    """The same, as bits."""
    woken: int
    """Timers, as bits."""
    local: tuple[tuple[str, int], ...]
    """Letters within the node, with its name, in order."""
    spawned: tuple[int, ...]
    retired: tuple[Address, ...]


class BrokenStepError(Exception):
    """A role failed an assertion of its own, or a judge of steps; the text has the details."""


class TurnTable:
    """The table of the roles' turns, filled on demand.

    Args:
        choices: the possible actions of users.
        judges: the conditions for every step of every role.
        lost: messages that never arrive and timers that never fire, to keep a subject small.

    """

    def __init__(
        self, choices: Choices, judges: Sequence[StepJudge], lost: frozenset[type[Event]]
    ) -> None:
        self.states: list[Mapping[str, Any]] = []
        self.addresses: list[Address] = []
        self.letters: list[Letter] = []
        self.options: list[tuple[int, ...]] = []
        """For each state, the letters its user may send."""
        self.timers_of: dict[Address, int] = {}
        self._roles: list[Role[Any]] = []
        self._choices = choices
        self._judges = judges
        self._lost = lost
        self._state_numbers: dict[tuple[Address, Any], int] = {}
        self._letter_numbers: dict[Letter, int] = {}
        self._turns: dict[tuple[int, int], Reaction] = {}

    def turn(self, state: int, letter: int) -> Reaction:
        """Return the reaction of the role in ``state`` to ``letter``.

        Raises:
            BrokenStepError: it fails an assertion, or a judge.

        """
        known = self._turns.get((state, letter))
        if known is None:
            known = self._turns[state, letter] = self._handle(state, self.letters[letter])
        return known

    def begun(self, role: Role[Any]) -> Reaction:
        try:
            effects = role.begin(T0)
        except AssertionError as error:
            raise BrokenStepError(f"{role.address} broke as it began: {error!r}") from error
        return self._entered(role, effects)

    def letter(self, sender: Address, to: Address, event: Event) -> int:
        letter = Letter(sender, to, event)
        number = self._letter_numbers.get(letter)
        if number is None:
            number = self._letter_numbers[letter] = len(self.letters)
            self.letters.append(letter)
        return number

    def _handle(self, state: int, letter: Letter) -> Reaction:
        role = self._roles[state]
        if type(letter.event) not in role.accepts:
            return Reaction(state, (), 0, 0, (), (), ())  # A host also drops it.
        for name, value in deepcopy(dict(self.states[state])).items():
            setattr(role, name, value)
        try:
            effects = role.handle(letter.sender, letter.event, T0)
        except AssertionError as error:
            raise BrokenStepError(f"{role.address} broke: {error!r}") from error
        turn = self._entered(role, effects)
        for judge in self._judges:
            wrong = judge(self.states[state], self.states[turn.state])
            if wrong:
                raise BrokenStepError(f"{role.address}: {wrong}")
        return turn

    def _entered(self, role: Role[Any], effects: Effects) -> Reaction:
        state = self._state(role)
        sent: list[int] = []
        local: list[tuple[str, int]] = []
        spawned: list[int] = []
        retired: list[Address] = []
        woken = 0
        for effect in effects:
            match effect:
                case Send(to, event):
                    self._send(role.address, to, event, sent, local)
                case Wake(_, timer):
                    woken |= self._timer(role.address, timer)
                case Spawn(address, make, arguments):
                    construct: Any = make
                    first = self.begun(construct(address, HOST, **arguments))
                    spawned += [first.state, *first.spawned]
                    sent += first.sent
                    local += first.local
                    woken |= first.woken
                case Retire(address):
                    retired.append(address)
                case (
                    Persist()
                    | Checkpoint()
                    | CheckpointPart()
                    | CheckpointEnd()
                    | Fault()
                    | JoinGroup()
                    | Observe()
                    | Connect()
                    | Disconnect()
                ):
                    pass  # Nothing crashes here, and every node is linked.
        mask = sum(1 << letter for letter in sorted(set(sent)))
        return Reaction(
            state, tuple(sent), mask, woken, tuple(local), tuple(spawned), tuple(retired)
        )

    def _send(
        self, source: Address, to: Address, event: Event, sent: list[int], local: list[Any]
    ) -> None:
        if node_of(source) == node_of(to):
            local.append((node_of(to), self.letter(source, to, event)))
        elif type(event) not in self._lost:
            sent.append(self.letter(source, to, event))

    def _timer(self, address: Address, timer: Event) -> int:
        if type(timer) in self._lost:
            return 0
        bit = 1 << self.letter(address, address, timer)
        self.timers_of[address] = self.timers_of.get(address, 0) | bit
        return bit

    def _state(self, role: Role[Any]) -> int:
        key = (role.address, frozen(role.state()))
        number = self._state_numbers.get(key)
        if number is None:
            number = self._state_numbers[key] = len(self.states)
            snapshot = deepcopy(dict(role.state()))
            self.states.append(snapshot)
            self.addresses.append(role.address)
            self._roles.append(role)
            choose = self._choices.get(role.address)
            events = choose(snapshot) if choose else ()
            users = [self.letter(role.address, role.address, event) for event in events]
            self.options.append(tuple(users))
        return number


def frozen(value: Any) -> Any:
    """Return a hashable value that is equal for equal states, in equal order."""
    # Not isinstance: a named tuple is hashable as it is.
    match type(value).__name__:
        case "dict":
            return tuple((key, frozen(item)) for key, item in value.items())
        case "list":
            return tuple(frozen(item) for item in value)
        case "set":
            return frozenset(value)
        case "TurnBudget":
            return value.left, value.armed
        case _:
            return value


def config_of(members: str = "abc") -> LogConfig:
    """Return the views of a group that never changed; each letter is a member."""
    return LogConfig(View(0, tuple(members)))


CONFIG = config_of()
HERE, LISTENER = replica_of("a"), address_of("a", "proxy")


def replica_of_a(**options: Any) -> Replica:
    """Return the replica of ``a``, which counts applied commands, with ``options`` of `Replica`."""
    given: dict[str, Any] = {
        "machine": LogCounter(),
        "recovered": Recovered(),
        "listener": LISTENER,
        "config": CONFIG,
        **options,
    }
    return Replica(HERE, HOST, node="a", **given)


def finish_snapshot(replica: Replica) -> list[Effect]:
    """Let the snapshot under way be finished; return the effects of all steps."""
    done: list[Effect] = []
    while effects := replica.handle(replica.address, WriteChunk(), T0):
        done += effects
    return done


def detector_of(members: str = "abc", node: str = "a") -> FailureDetector:
    """Return the failure detector of ``node``, which reports to the proxy of ``a``."""
    return FailureDetector(
        monitor_of(node),
        HOST,
        node=node,
        config=config_of(members),
        random=Random(1),
        listener=LISTENER,
    )


def amounts(status: LockStatus) -> tuple[list[int], list[int]]:
    """Return the permits of each holder and of each waiter, in order."""
    return [one.times for one in status.holders], [one.times for one in status.waiters]


def until_queued(shared: fencelock.Semaphore | fencelock.RWLock, *queue: int) -> None:
    """Wait until the waiters want these permits, in that order."""
    until(lambda: amounts(shared.status())[1] == list(queue))


def hold_to_write(rw: fencelock.RWLock) -> int:
    """Acquire and release in the calling thread; return the fence."""
    with rw.write() as hold:
        return hold.fence


def hold_to_read(rw: fencelock.RWLock) -> int:
    """Acquire and release in the calling thread; return the fence."""
    with rw.read() as hold:
        return hold.fence
