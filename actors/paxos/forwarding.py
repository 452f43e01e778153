"""Commands that a replica cannot put into the log itself: it refuses or forwards them. Pure."""

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
"""Maximum commands that wait on a node that knows no master."""

CLIENT_CHARS_MAX = 512
"""Maximum length of an address: node and role, each at most 128 bytes on the wire."""


class Forwarding:
    """Refuses invalid commands, and forwards valid ones to the master.

    Args:
        node: the id of its node.
        listener: a role of it that receives all outcomes anyway, or None.

    """

    def __init__(self, node: str, listener: Address | None) -> None:
        self.node = node
        self.listener = listener
        self.master = ""
        """The node that leads, if any is known."""
        self.client: Address | None = None
        """The last valid client for which something was proposed."""
        self.waiting: dict[tuple[Address, int], Propose] = {}
        """Commands that arrived while no master was known."""

    def refusal(self, propose: Propose, machine: Machine) -> Effects:
        """Return the refusal of a command that must never enter the log; empty for any other."""
        client = propose.client
        if client != self.client:
            if not node_of(client) or "/" not in client or len(client) > CLIENT_CHARS_MAX:
                return (Observe("paxos.impossible_client"),)
            self.client = client
        if len(propose.command) > COMMAND_BYTES_MAX or not machine.admits(propose.command):
            return (self.decline(propose, Decline.INVALID),)
        return ()

    def pass_on(self, propose: Propose) -> Effects:
        """Forward a command to the master, once, so that two replicas cannot send it in circles.

        While no master is known, the command waits even if it was forwarded: this node may have
        been
        the master, and learns first which node is next.
        """
        if not self.master:
            return self.hold(propose)
        if propose.forwarded:
            return (self.decline(propose, Decline.NOT_MASTER),)
        return (Send(replica_of(self.master), _with_forwarded(propose, True)),)

    def answers(
        self, slot: int, asked: Sequence[Run], outcomes: Sequence[Sequence[Message]]
    ) -> list[Effect]:
        """Send outcomes and slot to the clients in ``asked`` that do not get them anyway."""
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
        """Let a command wait until the next master is known."""
        asker = propose.client, propose.number
        if len(self.waiting) >= WAITING_MAX and asker not in self.waiting:
            return (self.decline(propose, Decline.OVERLOADED),)
        self.waiting[asker] = propose
        return ()

    def follow(self, master: str) -> Effects:
        """Note which node leads, and forward the commands that waited for that."""
        self.master = master
        if not master or master == self.node:
            return ()
        to = replica_of(master)
        return [Send(to, _with_forwarded(propose, True)) for propose in self.take_waiting()]

    def take_waiting(self) -> list[Propose]:
        """Remove and return the waiting commands."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())

    def decline(self, propose: Propose, why: Decline) -> Send:
        """Return the refusal of a command, naming the master to ask."""
        declined = Declined(number=propose.number, why=why, master=self.master)
        return Send(propose.client, declined)
