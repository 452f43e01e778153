"""A whole cluster as a tuple of integers, and the steps that lead from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from fencelock.actors.message import Address, node_of
from fencelock.actors.role import Role
from support.turn_table import Picture, Reaction, TurnTable


class Cause(Enum):
    """The cause of a delivery."""

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
        if turn.said:
            said = dict(queues)
            for node, letter in turn.said:
                said[node] = (*said.get(node, ()), letter)
            queues = tuple(sorted(said.items()))
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
