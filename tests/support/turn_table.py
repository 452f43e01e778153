"""Roles as a table: each (state, delivery) is handled once, and looked up ever after.

A role is a pure function, so its turn for a delivery in a state can be remembered. States and
deliveries get small numbers, sets of deliveries become bits of an integer, and the state of a
whole cluster is a tuple of integers: cheap to compare, hash and keep.

No time passes: the only time is `T0`, so a step may take any time, and a timer may fire at any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from fencelock.actors.effect import (
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Connect,
    Disconnect,
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
from fencelock.actors.message import Address, Event, node_of
from fencelock.actors.role import Role
from support.effects import HOST, T0

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
    said: tuple[tuple[str, int], ...]
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
        """Return the first turn of ``role``."""
        try:
            effects = role.begin(T0)
        except AssertionError as error:
            raise BrokenStepError(f"{role.address} broke as it began: {error!r}") from error
        return self._entered(role, effects)

    def letter(self, sender: Address, to: Address, event: Event) -> int:
        """Return the number of a delivery."""
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
        said: list[tuple[str, int]] = []
        spawned: list[int] = []
        retired: list[Address] = []
        woken = 0
        for effect in effects:
            match effect:
                case Send(to, event):
                    self._send(role.address, to, event, sent, said)
                case Wake(_, timer):
                    woken |= self._timer(role.address, timer)
                case Spawn(address, make, arguments):
                    construct: Any = make
                    first = self.begun(construct(address, HOST, **arguments))
                    spawned += [first.state, *first.spawned]
                    sent += first.sent
                    said += first.said
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
            state, tuple(sent), mask, woken, tuple(said), tuple(spawned), tuple(retired)
        )

    def _send(
        self, source: Address, to: Address, event: Event, sent: list[int], said: list[Any]
    ) -> None:
        if node_of(source) == node_of(to):
            said.append((node_of(to), self.letter(source, to, event)))
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
        case _:
            return value
