"""Commands that were asked for together, and go on their way into the log as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencelock.actors.fast_construction import maker
from fencelock.actors.message import Address, Local, local
from fencelock.actors.paxos.message import Propose


@local
class ProposalBatch(Local):
    """Put ``commands`` into the log, in this order: what ``client`` asked for in one turn.

    The door of a node says so to the replica beside it. It is a `Propose` for each, with the
    number at the same place in ``numbers``; between nodes those go one by one. The door has
    checked its commands, and wrote them with the machine that is to apply them.
    """

    client: Address
    numbers: tuple[int, ...]
    commands: tuple[bytes, ...]

    def each(self) -> Iterator[Propose]:
        """Take it apart."""
        return each_of(self.client, self.numbers, self.commands)


_propose = maker(Propose)


def each_of(
    client: Address, numbers: Sequence[int], commands: Sequence[bytes]
) -> Iterator[Propose]:
    """Return the proposal of each of ``commands``, which ``client`` knows by ``numbers``."""
    for number, command in zip(numbers, commands, strict=True):
        yield _propose(client=client, number=number, command=command)
