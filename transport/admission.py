"""What may pass from a link into the node: every check on a frame that arrived; pure."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.actors.message import Address, address_of
from holdfast.transport.frame import (
    ANY_NODE,
    FRAME_BYTES_MAX,
    Envelope,
    ForeignClusterError,
    Frame,
    MalformedFrameError,
    WrongVersionError,
    check_node,
    decode_frame,
)
from holdfast.transport.refusal import Mismatch, Rejected


class Dropped(NamedTuple):
    """Why a frame does not pass."""

    counter: str
    mismatch: Mismatch | None = None
    """Set if the other side should know, or if it is the other side that tells us."""
    detail: str = ""


def link_of(identity: bytes) -> str | None:
    """Return the node or client id in a routing id, ``id#boot``; None if there is none."""
    name, mark, boot = identity.partition(b"#")
    try:
        link = name.decode()
        check_node(link)
    except ValueError:
        return None
    return link if mark and boot else None


class Admission:
    """The checks of one node: its own id, its cluster's, and whether links are aliases.

    Args:
        node: our own id.
        cluster: the only cluster whose frames pass.
        gates: the names of links are aliases of ours, and the node behind one is not known:
            the node of every sender is replaced by the alias.

    """

    def __init__(self, node: str, cluster: str, *, gates: bool) -> None:
        self.node = node
        self.cluster = cluster
        self.gates = gates
        self._ours = f"{node}/"

    def admit(self, link: str, raw: bytes) -> Frame | Dropped:
        """Return the frame in ``raw``, which came over ``link``, or why it is dropped."""
        if link == self.node:  # Its senders would pass for roles and callers of our own.
            return Dropped("wire.spoofed_sender")
        if len(raw) > FRAME_BYTES_MAX:
            return Dropped("wire.oversized")
        try:
            frame = decode_frame(raw, cluster=self.cluster)
        except WrongVersionError as error:
            return Dropped("wire.wrong_version", Mismatch.VERSION, str(error))
        except ForeignClusterError as error:
            return _foreign(raw, error)
        except MalformedFrameError as error:
            return Dropped("wire.malformed", detail=str(error))
        return self._addressed(link, frame)

    def _addressed(self, link: str, frame: Frame) -> Frame | Dropped:
        """Judge the addresses, and complete those that name no node."""
        theirs = f"{link}/"
        completed: list[Envelope] = []
        for envelope in frame.envelopes:
            to, sender, message = envelope
            if type(message) is Rejected:
                return Dropped("wire.rejected", message.code, message.detail)
            if self.gates:
                sender = address_of(link, sender.partition("/")[2])
            elif not sender.startswith(theirs):
                return Dropped("wire.spoofed_sender")
            if to.startswith(self._ours):
                completed.append(Envelope(to, sender, message))
                continue
            node, _, role = to.partition("/")
            if node != ANY_NODE:
                return Dropped("wire.misdirected")
            completed.append(Envelope(address_of(self.node, role), sender, message))
        return Frame(frame.cluster, frame.view, frame.stamp, tuple(completed))

    def outgoing(self, link: str, frame: Frame) -> Frame:
        """Return ``frame`` as it goes to ``link``: an alias is no node, so it becomes ``*``."""
        if not self.gates:
            return frame
        return frame._replace(
            envelopes=tuple(e._replace(to=_unaliased(e.to, link)) for e in frame.envelopes)
        )

    def refusal(self, link: str, mismatch: Mismatch, detail: str) -> Frame:
        """Return the frame that tells ``link`` why its frames are dropped."""
        rejected = Rejected(code=mismatch, detail=detail)
        here, there = address_of(self.node, "link"), address_of(link, "link")
        return Frame(self.cluster, 0, 0, (Envelope(there, here, rejected),))


def _foreign(raw: bytes, error: ForeignClusterError) -> Dropped:
    """Tell a stranger's refusal, which is not answered, from a stranger's request."""
    try:
        envelopes = decode_frame(raw).envelopes
    except MalformedFrameError:
        envelopes = ()
    for envelope in envelopes:
        if type(envelope.message) is Rejected:
            return Dropped("wire.rejected", envelope.message.code, envelope.message.detail)
    return Dropped("wire.wrong_cluster", Mismatch.CLUSTER, str(error))


def _unaliased(to: Address, link: str) -> Address:
    node, _, role = to.partition("/")
    return address_of(ANY_NODE, role) if node == link else to
