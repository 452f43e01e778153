"""Messages by which a follower learns the read index of a linearizable read. Tags 0xa0, 0xa1."""

from __future__ import annotations

from fencelock.actors.message import Message, message


@message(0xA0)
class ReadIndex(Message):
    """Replica to the master's: return a slot after all that is decided by now.

    Answered by `ReadIndexReached` as soon as the master knows that it still leads, or not at
    all. It may be repeated.
    """

    number: int


@message(0xA1)
class ReadIndexReached(Message):
    """Every slot known to be decided when that `ReadIndex` was first sent is before ``slot``."""

    number: int
    slot: int
