"""Explore: visit every state that a few roles can get into, and judge each one.

A small explicit-state model checker over the roles themselves, not over a model of them.
The network is the set of all messages ever sent: each may arrive at any time, any number of
times, in any order, or never. That is loss, repetition, reordering and delay without bound.
Messages between roles of one node arrive exactly once and in order, whatever else comes between.
Any timer may fire at any time. Search is breadth-first, so a path to a violation is a
shortest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from fencelock.actors.message import Address, Event, node_of
from fencelock.actors.role import Role
from support.table_scene import BrokenStepError, Choices, Picture, Reaction, StepJudge, TurnTable


class Cause(Enum):
    NETWORK = "network"
    TIMER = "timer"
    NODE = "in node"
    USER = "user"


class ModelState(NamedTuple):
    """A cluster between two steps."""

    roles: tuple[int, ...]
    """The state numbers of the living roles, by address."""
    network: int
    """Every message sent so far, as bits: each may still arrive any number of times."""
    timers: int
    """Every timer on its way, as bits."""
    queues: tuple[tuple[str, tuple[int, ...]], ...]
    """Messages between roles of one node that were not delivered yet, by node, oldest first."""


class NextDelivery(NamedTuple):
    """A delivery that may happen next."""

    kind: Cause
    letter: int
    position: int
    """The receiving role, as an index of `ModelState.roles`; -1 if there is none."""
    rest: ModelState
    """The state without the timer, or the message within the node, that is used up."""


class Moves:
    """The rules: the possible next steps of a state, and their results.

    Args:
        machine: the reactions of roles.
        queue_max: how many messages within a node may wait while its roles still receive
            from the network, timers and users; with 0 a node delivers all its own
            messages before anything else happens anywhere.

    """

    def __init__(self, machine: TurnTable, queue_max: int) -> None:
        self.machine = machine
        self.queue_max = queue_max
        self._bits: dict[int, tuple[int, ...]] = {}
        self._known_roles: tuple[int, ...] = ()
        self._known_positions: dict[Address, int] = {}

    def first(self, roles: Sequence[Role[Any]]) -> tuple[ModelState, tuple[int, ...]]:
        """Let ``roles`` begin; return the state after that, and the letters sent so far."""
        model_state, sent = ModelState((), 0, 0, ()), list[int]()
        for role in roles:
            turn = self.machine.begun(role)
            grown = model_state._replace(roles=(*model_state.roles, turn.state))
            model_state = self.after(grown, len(grown.roles) - 1, turn)
            sent += turn.sent
        ordered = sorted(model_state.roles, key=self.machine.addresses.__getitem__)
        return model_state._replace(roles=tuple(ordered)), tuple(sent)

    def picture(self, roles: tuple[int, ...]) -> Picture:
        """Return the states behind the numbers."""
        return {self.machine.addresses[state]: self.machine.states[state] for state in roles}

    def steps(self, model_state: ModelState) -> Iterator[NextDelivery]:
        """Return all possible next steps."""
        letters = self.machine.letters
        at = self.positions(model_state)
        yield from self.within_nodes(model_state)
        if model_state.queues and not self.queue_max:
            return
        full = {name for name, queue in model_state.queues if len(queue) > self.queue_max}
        for letter in self.bits_of(model_state.network):
            to = letters[letter].to
            if to in at and node_of(to) not in full:
                yield NextDelivery(Cause.NETWORK, letter, at[to], model_state)
        for letter in self.bits_of(model_state.timers):
            to = letters[letter].to
            if node_of(to) not in full:
                yield NextDelivery(Cause.TIMER, letter, at[to], without(model_state, letter))
        for position, state in enumerate(model_state.roles):
            for letter in self.machine.options[state]:
                if node_of(letters[letter].to) not in full:
                    yield NextDelivery(Cause.USER, letter, position, model_state)

    def within_nodes(self, model_state: ModelState) -> Iterator[NextDelivery]:
        """Return, for each node, the step that delivers the oldest message within it."""
        if not model_state.queues:
            return
        at = self.positions(model_state)
        for node, (letter, *_) in model_state.queues:
            left = tuple(
                (name, queue[1:] if name == node else queue)
                for name, queue in model_state.queues
                if name != node or len(queue) > 1
            )
            position = at.get(self.machine.letters[letter].to, -1)
            rest = ModelState(model_state.roles, model_state.network, model_state.timers, left)
            yield NextDelivery(Cause.NODE, letter, position, rest)

    def positions(self, model_state: ModelState) -> dict[Address, int]:
        """Return the index of each living role in ``model_state.roles``."""
        if model_state.roles is not self._known_roles:  # Mostly called for the same again.
            addresses = self.machine.addresses
            at = {addresses[state]: position for position, state in enumerate(model_state.roles)}
            self._known_roles, self._known_positions = model_state.roles, at
        return self._known_positions

    def taken(self, step: NextDelivery) -> tuple[ModelState, tuple[int, ...]]:
        """Return the state after ``step``, and the letters sent in it.

        Raises:
            BrokenStepError: see `TurnTable.turn`.

        """
        if step.position < 0:
            return step.rest, ()  # There is no such role: the host drops it.
        turn = self.machine.turn(step.rest.roles[step.position], step.letter)
        return self.after(step.rest, step.position, turn), turn.sent

    def after(self, model_state: ModelState, position: int, turn: Reaction) -> ModelState:
        """Return ``model_state`` after the role at ``position`` took ``turn``."""
        roles, network, timers, queues = model_state
        if turn.state != roles[position]:
            roles = (*roles[:position], turn.state, *roles[position + 1 :])
        timers |= turn.woken
        if turn.spawned or turn.retired:
            addresses, gone = self.machine.addresses, turn.retired
            alive = [s for s in (*roles, *turn.spawned) if addresses[s] not in gone]
            roles = tuple(sorted(alive, key=addresses.__getitem__))
            for address in gone:
                timers &= ~self.machine.timers_of.get(address, 0)
        if turn.local:
            inboxes = dict(queues)
            for node, letter in turn.local:
                inboxes[node] = (*inboxes.get(node, ()), letter)
            queues = tuple(sorted(inboxes.items()))
        return ModelState(roles, network | turn.mask, timers, queues)

    def bits_of(self, mask: int) -> tuple[int, ...]:
        """Return the letters in a set of them."""
        known = self._bits.get(mask)
        if known is None:
            known = tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
            self._bits[mask] = known
        return known


def without(model_state: ModelState, timer: int) -> ModelState:
    """Return ``model_state`` after that timer was used up."""
    roles, network, timers, queues = model_state
    return ModelState(roles, network, timers & ~(1 << timer), queues)


Judge = Callable[[Picture], str]
"""Returns the violation in a state, or the empty string."""

Test = Callable[[Picture], bool]
"""Returns whether a condition holds in a state."""

ROUNDS_MAX = 200
"""Rounds of a fair continuation; a longer one is taken for endless."""


class Violation(NamedTuple):
    """A violation, and a shortest path to it."""

    what: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        lines = (f"{number:3} {step}" for number, step in enumerate(self.path, 1))
        return "\n".join((self.what, *lines))


@dataclass(slots=True)
class Exploration:
    states: int = 0
    """Different states visited: roles, network, timers and messages within nodes."""
    steps: int = 0
    """Steps taken from one to another."""
    depth: int = 0
    """The most steps from the beginning, by a shortest path."""
    complete: bool = False
    """Whether every state within the bounds was visited, and not only the nearest."""
    reached: dict[str, int] = field(default_factory=dict[str, int])
    """Each goal that was reached, with the fewest steps to it."""
    violation: Violation | None = None


class _Found(Exception):  # noqa: N818 - it ends a search, it is no error
    """Ends the search at a violation."""


class Explorer:
    """Searches from the moment at which ``roles`` begin.

    Args:
        roles: constructed on `support.table_scene.HOST`, never started.
        choices: the possible actions of the roles' users.
        judges: the conditions for every state.
        step_judges: the conditions for every step of every role.
        goals: conditions that must turn out to be possible, by name.
        within: states beyond it are judged, but the search does not continue from them. Numbers
            that grow forever need this bound, or the search is endless.
        lost: messages that never arrive and timers that never fire.
        queue_max: see `Moves`.

    """

    def __init__(
        self,
        roles: Sequence[Role[Any]],
        *,
        choices: Choices,
        judges: Sequence[Judge] = (),
        step_judges: Sequence[StepJudge] = (),
        goals: Mapping[str, Test] | None = None,
        within: Test = lambda _: True,
        lost: Iterable[type[Event]] = (),
        queue_max: int = 0,
    ) -> None:
        self.machine = TurnTable(choices, step_judges, frozenset(lost))
        self.moves = Moves(self.machine, queue_max)
        self.found = Exploration()
        self._judges = judges
        self._goals = goals or {}
        self._within = within
        self._goes_on: dict[tuple[int, ...], bool] = {}
        self._came: list[tuple[int, Cause, int]] = [(-1, Cause.USER, -1)]
        self._begin, _ = self.moves.first(roles)
        self._index = {self._begin: 0}

    def explore(self, *, states_max: int) -> Exploration:
        """Search until nothing is new, so many states were visited, or a violation is found."""
        found = self.found
        frontier = [self._begin]
        try:
            self._judge(self._begin)
            while frontier and len(self._index) < states_max:
                frontier = self._level(frontier, states_max)
        except _Found:
            pass
        found.states = len(self._index)
        found.complete = not frontier and found.violation is None
        return found

    def path_to(self, model_state: ModelState) -> tuple[str, ...]:
        """Return the steps of a shortest path to a visited state, as texts."""
        steps: list[str] = []
        index = self._index[model_state]
        while index:
            index, kind, letter = self._came[index]
            steps.append(self._in_words(kind, letter))
        return tuple(reversed(steps))

    def stall(self, served: Test, fair: Choices, *, every: int = 1) -> Violation | None:
        """Look for a visited state in which a user then waits forever.

        From each state the faults end: all messages in flight are lost, all that are sent
        from now on arrive once, timers fire, users act as ``fair`` says. Then every user must
        be served. The rest depends on roles, timers and the messages within nodes only, so
        states that differ in the network alone count once.

        Args:
            served: whether no user waits any more.
            fair: the actions of users when nothing else happens.
            every: look at every so-manieth of the states.

        """
        continuation = Continuation(self.moves, served, fair)
        looked: set[tuple[Any, ...]] = set()
        for model_state in self._index:
            key = (model_state.roles, model_state.timers, model_state.queues)
            if key in looked:
                continue
            looked.add(key)
            wrong = continuation.fault(model_state) if len(looked) % every == 0 else ""
            if wrong:
                return Violation(wrong, self.path_to(model_state))
        return None

    def _level(self, frontier: list[ModelState], states_max: int) -> list[ModelState]:
        """Return the states one step beyond ``frontier`` that were never seen."""
        following: list[ModelState] = []
        for model_state in frontier:
            if not self._goes_on[model_state.roles]:
                continue
            here = self._index[model_state]
            for step in self.moves.steps(model_state):
                self.found.steps += 1
                after = self._taken(model_state, step)
                if after in self._index:
                    continue
                self._came.append((here, step.kind, step.letter))
                self._index[after] = len(self._index)
                self._judge(after)
                following.append(after)
            if len(self._index) >= states_max:
                break
        self.found.depth += bool(following)
        return following

    def _taken(self, model_state: ModelState, step: NextDelivery) -> ModelState:
        try:
            after, _ = self.moves.taken(step)
        except BrokenStepError as error:
            last = self._in_words(step.kind, step.letter)
            self.found.violation = Violation(str(error), (*self.path_to(model_state), last))
            raise _Found from error
        return after

    def _judge(self, model_state: ModelState) -> None:
        if model_state.roles in self._goes_on:
            return  # Judges see roles only.
        picture = self.moves.picture(model_state.roles)
        for judge in self._judges:
            wrong = judge(picture)
            if wrong:
                self.found.violation = Violation(wrong, self.path_to(model_state))
                raise _Found
        for goal, is_reached in self._goals.items():
            if goal not in self.found.reached and is_reached(picture):
                self.found.reached[goal] = len(self.path_to(model_state))
        self._goes_on[model_state.roles] = self._within(picture)

    def _in_words(self, kind: Cause, letter: int) -> str:
        sender, to, event = self.machine.letters[letter]
        return f"{kind.value:8} {sender} -> {to}: {event!r}"


class Continuation:
    """The continuation after the faults end: one fair course of events, always the same."""

    def __init__(self, moves: Moves, served: Test, fair: Choices) -> None:
        self.moves = moves
        self.served = served
        self.fair = fair
        self._good: set[tuple[tuple[int, ...], int]] = set()

    def fault(self, model_state: ModelState) -> str:
        """Return the reason why a user is never served, or the empty string."""
        try:
            served = self._serves(model_state)
        except BrokenStepError as error:
            return f"after the faults end, {error}"
        return "" if served else "the faults end, but a waiter is never served"

    def _serves(self, model_state: ModelState) -> bool:
        passed: set[tuple[tuple[int, ...], int]] = set()
        model_state = self._settled(model_state, ())
        for _ in range(ROUNDS_MAX):
            here = (model_state.roles, model_state.timers)
            if here in self._good or self.served(self.moves.picture(model_state.roles)):
                self._good |= passed
                return True
            if here in passed:
                return False  # It goes round in circles.
            passed.add(here)
            model_state = self._next(model_state)
        return False

    def _next(self, model_state: ModelState) -> ModelState:
        """Let users act if they want to; else let all timers fire, once."""
        addresses = self.moves.machine.addresses
        for position, state in enumerate(model_state.roles):
            address = addresses[state]
            choose = self.fair.get(address)
            for event in choose(self.moves.machine.states[state]) if choose else ():
                letter = self.moves.machine.letter(address, address, event)
                step = NextDelivery(Cause.USER, letter, position, model_state)
                return self._settled(*self.moves.taken(step))
        for letter in self.moves.bits_of(model_state.timers):
            if model_state.timers >> letter & 1:  # Else its role was retired meanwhile.
                rest = without(model_state, letter)
                at = self.moves.positions(rest)
                step = NextDelivery(
                    Cause.TIMER, letter, at[self.moves.machine.letters[letter].to], rest
                )
                model_state = self._settled(*self.moves.taken(step))
        return model_state

    def _settled(self, model_state: ModelState, sent: tuple[int, ...]) -> ModelState:
        """Deliver all messages, within nodes first, until none is left."""
        on_their_way = list(sent)
        while True:
            step = next(self.moves.within_nodes(model_state), None)
            if step is None and not on_their_way:
                return model_state
            if step is None:
                letter = on_their_way.pop(0)
                at = self.moves.positions(model_state)
                to = self.moves.machine.letters[letter].to
                step = NextDelivery(Cause.NETWORK, letter, at.get(to, -1), model_state)
            model_state, more = self.moves.taken(step)
            on_their_way += more
