"""Messages between the processes of `lamport`, and of the channel under them. Tags 0x30 to 0x3f."""

from typing import NamedTuple

from fencelock.actors.clock import Stamped
from fencelock.actors.message import Int64, Local, Message, Timer


class Request(Stamped, tag=0x30):
    """Request ``lock``. Requests are served in the order of ``(stamp, node)``."""

    lock: str


class Acknowledge(Stamped, tag=0x31):
    """I have your request for ``lock``, and all my later messages have later stamps.

    ``lock`` is empty in the answer to a `Probe`.
    """

    lock: str


class Release(Stamped, tag=0x32):
    """Remove my request for ``lock`` that was stamped ``request``."""

    lock: str
    request: Int64


class Greet(Stamped, tag=0x33):
    """The sender has started and may not request yet: reply with your time and your requests.

    ``boot`` is the sender's life and ``round`` numbers its attempts, so that a `Welcome`
    for an earlier life, or sent too early, is not taken for the answer.
    """

    boot: Int64
    round: Int64


class KnownRequest(NamedTuple):
    """A request that is not released yet."""

    lock: str
    stamp: Int64


class Welcome(Stamped, tag=0x34):
    """The answer to the `Greet` of ``boot`` and ``round``; ``complete`` in its last part."""

    boot: Int64
    round: Int64
    requests: tuple[KnownRequest, ...]
    complete: bool


class Probe(Stamped, tag=0x35):
    """Ask a silent process that is ahead, or every process before a read replies "no holder"."""


Content = Request | Acknowledge | Release | Greet | Welcome | Probe
"""Messages between processes."""


class Parcel(Message, tag=0x38):
    """The ``number``-th content since these two lives met, from life ``boot`` to ``your_boot``.

    All contents in the other direction with numbers below ``confirmed`` have arrived.
    """

    boot: Int64
    your_boot: Int64
    number: Int64
    confirmed: Int64
    content: Content


class Confirm(Message, tag=0x39):
    """Everything numbered below ``confirmed`` has arrived."""

    boot: Int64
    your_boot: Int64
    confirmed: Int64


class Hello(Message, tag=0x3A):
    """Ask the receiver for its life. ``boot`` is the sender's, ``nonce`` numbers the request."""

    boot: Int64
    nonce: Int64


class Introduce(Message, tag=0x3B):
    """The life ``boot`` answers the request ``nonce`` of the life ``your_boot``."""

    boot: Int64
    your_boot: Int64
    nonce: Int64


class Neighbors(Local):
    """From the node to process and channel: the nodes. Nothing is sent before it.

    Source: the Erlang essay's extra message, "which tells a processor who the
    other processors in the lock network are".
    """

    nodes: tuple[str, ...]


class Delivered(Local):
    """From the channel: ``message`` of the process on ``origin``, once and in order."""

    origin: str
    message: Content


class PeerJoined(Local):
    """From the channel: ``node`` is in its life ``boot`` now; its later messages are from it."""

    node: str
    boot: int


class Busy(Local):
    """From the channel: whether ``node`` has a full window of requests and releases to confirm."""

    node: str
    busy: bool


class ResendDue(Timer):
    """If ``node`` has confirmed nothing since the last time, send the messages again."""

    node: str


class ConfirmDue(Timer):
    """Send a confirmation to ``node`` if no message has carried it."""

    node: str


class AskDue(Timer):
    """If ``node`` has not answered, ask for its life again."""

    node: str


class ProofDue(Timer):
    """Give up the proof for the look numbered ``query``."""

    query: int


class ProbeDue(Timer):
    """Probe silent processes whose requests are ahead of ours."""
