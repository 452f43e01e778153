"""The refusal that a node sends to a process of another cluster or version."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.message import Message, message


class Mismatch(IntEnum):
    """A reason to refuse the frames of a link. Numbers are on the wire and never reused."""

    VERSION = 1
    """The frame is of another version of the wire."""
    CLUSTER = 2
    """The frame is for another cluster."""


@message(0x70)
class Rejected(Message):
    """Your frame was dropped for ``code``; ``detail`` explains it, with both values.

    It is never answered, and its layout never changes, so that every version understands it.
    """

    code: Mismatch
    detail: str
