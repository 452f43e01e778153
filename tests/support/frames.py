"""Reads a frame with the checks of `FrameValidator` that do not depend on the link."""

from __future__ import annotations

from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.frame import (
    MESSAGES_MAX,
    EnvelopeItems,
    Frame,
    check_received_address,
    is_newer,
    read_frame,
)


def decode_frame(data: bytes, *, cluster: str | None = None) -> Frame:
    """Return the frame in ``data``; errors of `read_frame`."""
    frame, arrays = read_frame(data, cluster)
    envelopes: list[EnvelopeItems] = []
    newer = 0
    for (to, sender, messages), (_, _, items) in zip(frame.envelopes, arrays, strict=True):
        check_received_address(to)
        check_received_address(sender)
        for message, fields in zip(messages, items, strict=True):
            newer += is_newer(message, fields)
            envelopes.append((to, sender, message))
    if len(envelopes) > MESSAGES_MAX:
        raise MalformedFrameError(f"{len(envelopes)} messages, at most {MESSAGES_MAX}")
    return Frame(frame.cluster, frame.group, frame.stamp, tuple(envelopes), newer)
