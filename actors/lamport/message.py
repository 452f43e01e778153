"""Messages between the processes of `lamport`, and of the channel under them. Tags 0x30 to 0x3f."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.clock import Stamped
from fencelock.actors.message import Local, Message, Timer, local, message, timer


@message(0x30)
class Request(Stamped):
    """Request ``lock``. Requests are served in the order of ``(stamp, node)``."""

    lock: str
    stamp: int = 0


@message(0x31)
class Acknowledge(Stamped):
    """I have your request for ``lock``, and all my later messages have later stamps.

    ``lock`` is empty in the answer to a `Probe`.
    """

    lock: str
    stamp: int = 0


@message(0x32)
class Release(Stamped):
    """Remove my request for ``lock`` that was stamped ``request``."""

    lock: str
    request: int
    stamp: int = 0


@message(0x33)
class Greet(Stamped):
    """The sender has started and may not request yet: reply with your time and your requests.

    ``boot`` is the sender's life and ``round`` numbers its attempts, so that a `Welcome`
    for an earlier life, or sent too early, is not taken for the answer.
    """

    boot: int
    round: int
    stamp: int = 0


class KnownRequest(NamedTuple):
    """A request that is not released yet."""

    lock: str
    stamp: int


@message(0x34)
class Welcome(Stamped):
    """The answer to the `Greet` of ``boot`` and ``round``; ``complete`` in its last part."""

    boot: int
    round: int
    requests: tuple[KnownRequest, ...]
    complete: bool
    stamp: int = 0


@message(0x35)
class Probe(Stamped):
    """Ask a silent process that is ahead, or every process before a read replies "no holder"."""

    stamp: int = 0


Content = Request | Acknowledge | Release | Greet | Welcome | Probe
"""Messages between processes."""


@message(0x38)
class Parcel(Message):
    """The ``number``-th content since these two lives met, from life ``boot`` to ``your_boot``.

    All contents in the other direction with numbers below ``confirmed`` have arrived.
    """

    boot: int
    your_boot: int
    number: int
    confirmed: int
    content: Content


@message(0x39)
class Confirm(Message):
    """Everything numbered below ``confirmed`` has arrived."""

    boot: int
    your_boot: int
    confirmed: int


@message(0x3A)
class Hello(Message):
    """Ask the receiver for its life. ``boot`` is the sender's, ``nonce`` numbers the request."""

    boot: int
    nonce: int


@message(0x3B)
class Introduce(Message):
    """The life ``boot`` answers the request ``nonce`` of the life ``your_boot``."""

    boot: int
    your_boot: int
    nonce: int


@local
class Neighbors(Local):
    """From the node to process and channel: the nodes. Nothing is sent before it.

    Source: the Erlang essay's extra message, "which tells a processor who the
    other processors in the lock network are".
    """

    nodes: tuple[str, ...]


@local
class Delivered(Local):
    """From the channel: ``message`` of the process on ``origin``, once and in order."""

    origin: str
    message: Content


@local
class PeerJoined(Local):
    """From the channel: ``node`` is in its life ``boot`` now; its later messages are from it."""

    node: str
    boot: int


@local
class Congested(Local):
    """From the channel: too much waits for ``node`` to confirm it; or no longer."""

    node: str
    congested: bool


@timer
class ResendDue(Timer):
    """If ``node`` has confirmed nothing since the last time, send the messages again."""

    node: str


@timer
class ConfirmDue(Timer):
    """Send a confirmation to ``node`` if no message has carried it."""

    node: str


@timer
class AskDue(Timer):
    """If ``node`` has not answered, ask for its life again."""

    node: str


@timer
class ProofDue(Timer):
    """Give up the proof for the look numbered ``query``."""

    query: int


@timer
class ProbeDue(Timer):
    """Probe silent processes whose requests are ahead of ours."""
