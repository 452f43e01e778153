"""What a replica does with a command that it cannot put into the log itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.fast_construction import copier, maker
from fencelock.actors.message import Address, Message, node_of
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.message import COMMAND_BYTES_MAX, Decline, Declined, Propose, Proposed
from fencelock.actors.paxos.proposals import Run

_proposed = maker(Proposed)
_with_forwarded = copier(Propose, "forwarded")

WAITING_MAX = 1_000
"""Commands that wait on a node that knows no master."""

CLIENT_CHARS_MAX = 512
"""An address is a node and a role, each of which the wire bounds to 128 bytes."""


class Forwarding:
    """Refuses what is no command, and passes on to the master what is.

    Args:
        node: where it is.
        listener: who on it hears of all outcomes anyway, or None.

    """

    def __init__(self, node: str, listener: Address | None) -> None:
        self.node = node
        self.listener = listener
        self.master = ""
        """The node that leads, if any is known."""
        self.client: Address | None = None
        """The last for whom something was proposed and who can be one."""
        self.waiting: dict[tuple[Address, int], Propose] = {}
        """Commands that came while no master was known."""

    def refusal(self, propose: Propose, machine: Machine) -> Effects:
        """Return what is said of something that must never be in the log; nothing of the rest."""
        client = propose.client
        if client != self.client:
            if not node_of(client) or "/" not in client or len(client) > CLIENT_CHARS_MAX:
                return (Observe("paxos.impossible_client"),)
            self.client = client
        if len(propose.command) > COMMAND_BYTES_MAX or not machine.admits(propose.command):
            return (self.decline(propose, Decline.INVALID),)
        return ()

    def pass_on(self, propose: Propose) -> Effects:
        """Forward a command to the master, once: two that take each other for it stop there.

        While none is known it waits, wherever it came from: this node was the master, perhaps,
        and hears first who is it next.
        """
        if not self.master:
            return self.hold(propose)
        if propose.forwarded:
            return (self.decline(propose, Decline.NOT_MASTER),)
        return (Send(replica_of(self.master), _with_forwarded(propose, True)),)

    def answers(
        self, slot: int, asked: Sequence[Run], outcomes: Sequence[Sequence[Message]]
    ) -> list[Effect]:
        """Tell whoever ``asked`` what came of it in ``slot``, those aside who hear it anyway."""
        effects: list[Effect] = []
        after = 0
        for lot in asked:
            client, first = lot.client, after
            after += len(lot.commands)
            if client == self.listener:
                continue
            if self.listener is None or node_of(client) != self.node:
                for number, told in zip(lot.numbers, outcomes[first:after], strict=True):
                    for outcome in told:
                        effects.append(Send(client, outcome))
                    effects.append(Send(client, _proposed(number=number, slot=slot)))
        return effects

    def hold(self, propose: Propose) -> Effects:
        """Let a command wait until it is known who leads (next)."""
        asker = propose.client, propose.number
        if len(self.waiting) >= WAITING_MAX and asker not in self.waiting:
            return (self.decline(propose, Decline.OVERLOADED),)
        self.waiting[asker] = propose
        return ()

    def follow(self, master: str) -> Effects:
        """Note who leads, and forward what waited for that."""
        self.master = master
        if not master or master == self.node:
            return ()
        to = replica_of(master)
        return [Send(to, _with_forwarded(propose, True)) for propose in self.take_waiting()]

    def take_waiting(self) -> list[Propose]:
        """Hand over what waits."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())

    def decline(self, propose: Propose, why: Decline) -> Send:
        """Return the refusal of a command, with whom to ask."""
        declined = Declined(number=propose.number, why=why, master=self.master)
        return Send(propose.client, declined)
