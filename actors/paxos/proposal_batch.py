"""Commands that one client proposed in one turn, sent into the log together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Local, local
from fencelock.actors.paxos.message import Propose


@local
class ProposalBatch(Local):
    """Put ``commands`` into the log, in this order: all that ``client`` proposed in one turn.

    The proxy of a node sends it to the replica beside it. It stands for one `Propose` for each
    command, with the number at the same place in ``numbers``; between nodes those are sent one
    by one. The proxy has checked its commands, and encoded them for the machine that applies them.
    """

    client: Address
    numbers: tuple[int, ...]
    commands: tuple[bytes, ...]

    def each(self) -> Iterator[Propose]:
        """Return the proposals of which it consists."""
        return each_of(self.client, self.numbers, self.commands)


_propose = maker(Propose)


def each_of(
    client: Address, numbers: Sequence[int], commands: Sequence[bytes]
) -> Iterator[Propose]:
    """Return the proposal of each of ``commands``, which ``client`` knows by ``numbers``."""
    for number, command in zip(numbers, commands, strict=True):
        yield _propose(client=client, number=number, command=command)
