"""Commands that were asked for together, and go on their way into the log as one."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actors.making import maker
from holdfast.actors.message import Address, Local, local
from holdfast.actors.paxos.message import Propose


@local
class Bundle(Local):
    """Put ``commands`` into the log, in this order: what ``client`` asked for in one turn.

    The door of a node says so to the replica beside it. It is a `Propose` for each, with the
    number at the same place in ``numbers``; between nodes those go one by one. The door has
    checked its commands, and wrote them with the machine that is to apply them.
    """

    client: Address
    numbers: tuple[int, ...]
    commands: tuple[bytes, ...]

    def size(self) -> int:
        """Return how much its commands are (bytes)."""
        return sum(map(len, self.commands))

    def each(self) -> Iterator[Propose]:
        """Take it apart."""
        for number, command in zip(self.numbers, self.commands, strict=True):
            yield _propose(client=self.client, number=number, command=command)

    def split(self, first: int) -> tuple[Bundle, Bundle]:
        """Return its ``first`` commands, and the rest."""
        numbers, commands = self.numbers, self.commands
        return (
            Bundle(client=self.client, numbers=numbers[:first], commands=commands[:first]),
            Bundle(client=self.client, numbers=numbers[first:], commands=commands[first:]),
        )


_bundle, _propose = maker(Bundle), maker(Propose)


def alone(propose: Propose) -> Bundle:
    """Return a bundle of one."""
    return _bundle(client=propose.client, numbers=(propose.number,), commands=(propose.command,))
