"""What the processes of `lamport` say to each other, and how it travels. Tags 0x30 to 0x3f."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.clock import Stamped
from fencelock.actors.message import Local, Message, Timer, local, message, timer


@message(0x30)
class Request(Stamped):
    """I want ``lock``. Requests are served in the order of ``(stamp, node)``."""

    lock: str
    stamp: int = 0


@message(0x31)
class Acknowledge(Stamped):
    """I have your request for ``lock``, and anything I send later is stamped later.

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
    """I started anew and may not request yet: tell me your time and your requests.

    ``boot`` is the life that asks and ``round`` numbers its asking, so that no
    `Welcome` meant for an earlier life, or said too early, is taken for the answer.
    """

    boot: int
    round: int
    stamp: int = 0


class Pending(NamedTuple):
    """A request that is not released yet."""

    lock: str
    stamp: int


@message(0x34)
class Welcome(Stamped):
    """The answer to the `Greet` of ``boot`` and ``round``; ``complete`` in its last part."""

    boot: int
    round: int
    requests: tuple[Pending, ...]
    complete: bool
    stamp: int = 0


@message(0x35)
class Probe(Stamped):
    """Are you there? Asked of who is ahead and quiet, and of all before "no holder" is told."""

    stamp: int = 0


Content = Request | Acknowledge | Release | Greet | Welcome | Probe
"""What one process says to another."""


@message(0x38)
class Parcel(Message):
    """The ``number``-th content since these two lives met, from life ``boot`` to ``your_boot``.

    ``confirmed`` says that everything numbered below it has arrived the other way.
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
    """Who are you now? ``boot`` is the life that asks, ``nonce`` numbers its question."""

    boot: int
    nonce: int


@message(0x3B)
class Introduce(Message):
    """The life ``boot`` answers the question ``nonce`` of the life ``your_boot``."""

    boot: int
    your_boot: int
    nonce: int


@local
class Neighbors(Local):
    """From the node, to process and courier: who takes part. Nothing is sent before it.

    Source: the Erlang essay's extra message, "which tells a processor who the
    other processors in the lock network are".
    """

    nodes: tuple[str, ...]


@local
class Delivered(Local):
    """From the courier: ``message`` of the process on ``origin``, once and in order."""

    origin: str
    message: Content


@local
class PeerJoined(Local):
    """From the courier: ``node`` is in its life ``boot`` now; what comes next is from it."""

    node: str
    boot: int


@local
class Congested(Local):
    """From the courier: too much is waiting for ``node`` to confirm it; or no longer."""

    node: str
    congested: bool


@timer
class ResendDue(Timer):
    """If ``node`` confirmed nothing since the last time, send again what it lacks."""

    node: str


@timer
class ConfirmDue(Timer):
    """If nothing went to ``node`` that could carry a confirmation, send it bare."""

    node: str


@timer
class AskDue(Timer):
    """If ``node`` has not said who it is, ask again."""

    node: str


@timer
class ProofDue(Timer):
    """Give up the proof for the look numbered ``query``."""

    query: int


@timer
class ProbeDue(Timer):
    """Ask those who are ahead of a request of ours, and quiet, whether they are there."""
