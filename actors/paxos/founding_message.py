"""How members that keep nothing on disk agree once who they are. Tags 0xa4 to 0xa6."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.actors.message import Message, message


class Life(NamedTuple):
    """One life of a member: it ends with the process, and takes all memory with it."""

    member: str
    boot: int


@message(0xA4)
class Newborn(Message):
    """In my life ``boot`` I know of no charter. Answered by `Charter` or `Allegiance`."""

    boot: int


@message(0xA5)
class Allegiance(Message):
    """To the founder in its life ``founder``: in my life ``boot`` I follow no other."""

    founder: int
    boot: int


@message(0xA6)
class Charter(Message):
    """To the life ``to``: the group consists of these ``lives``, all members in order.

    ``generation`` is when it was founded (ms since 1970): slots and rounds begin far above
    those of any group before, so that what is still said of it can be told from ours.
    """

    to: int
    generation: int
    lives: tuple[Life, ...]
