"""How a node tells whoever does not belong to its cluster that it does not."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.message import Message, message


class Mismatch(IntEnum):
    """Why frames of a link are refused. Numbers are on the wire and never reused."""

    VERSION = 1
    """The frame speaks another version of the wire."""
    CLUSTER = 2
    """The frame is for another cluster."""


@message(0x70)
class Rejected(Message):
    """Your frame was dropped for ``code``; ``detail`` says it in words, with both values.

    Never answered, and its layout never changes, so that every version understands it.
    """

    code: Mismatch
    detail: str
