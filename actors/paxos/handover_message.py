"""How a master that goes lets another lead without waiting. Tags 0xa2 and 0xa3."""

from __future__ import annotations

from fencelock.actors.message import Message, message
from fencelock.actors.paxos.message import Ballot


@message(0xA2)
class TakeOver(Message):
    """The master's leader to another's monitor: I led ``ballot`` and lead no more, stand."""

    ballot: Ballot


@message(0xA3)
class Release(Message):
    """The master's leader to an acceptor: the lease of ``ballot`` is over, I do not trust it."""

    ballot: Ballot
