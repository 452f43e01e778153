"""Messages by which a master hands over without a pause. Tags 0xa2 and 0xa3."""

from __future__ import annotations

from fencelock.actors.message import Message, message
from fencelock.actors.paxos.message import Ballot


@message(0xA2)
class TakeOver(Message):
    """The master's leader to another's failure detector: I led ``ballot`` until now; stand."""

    ballot: Ballot


@message(0xA3)
class Release(Message):
    """The master's leader to an acceptor: I no longer rely on the lease of ``ballot``; end it."""

    ballot: Ballot
