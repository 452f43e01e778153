"""Every check on a received frame before it may enter the node. Pure."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

from fencelock.actors.message import Address, address_of, node_of, role_of
from fencelock.transport.bounds import (
    CLIENT_BYTES_MAX,
    CLIENT_ENVELOPES_MAX,
    SMALL_BYTES,
    has_few_arrays,
)
from fencelock.transport.cbor import INT_MAX, UndecodableError, load
from fencelock.transport.codec import ENVELOPE_HEAD_ITEMS, FieldCountError, schema_of
from fencelock.transport.compiled import Unpack
from fencelock.transport.frame import (
    ENVELOPES_MAX,
    FRAME_BYTES_MAX,
    USUAL_START,
    Envelope,
    EnvelopeItems,
    ForeignClusterError,
    Frame,
    MalformedFrameError,
    WrongVersionError,
    decode_frame,
    frame_of,
    open_frame,
)
from fencelock.transport.name import ANY_NODE, NAMES_KEPT, check_node
from fencelock.transport.refusal import Mismatch, Rejected

_NOBODY: object = object()
"""A value that equals nothing received."""


class Dropped(NamedTuple):
    """The reason why a frame is dropped."""

    counter: str
    mismatch: Mismatch | None = None
    """Set if the sender should be told, or if the frame itself reports a mismatch to us."""
    detail: str = ""
    hostile: bool = False
    """Whether no version of ours sends such frames."""


@lru_cache(maxsize=NAMES_KEPT)
def link_of(identity: bytes) -> str | None:
    """Return the node or client id in a routing id, ``id#boot``; None if there is none."""
    name, mark, boot = identity.partition(b"#")
    try:
        link = name.decode()
        check_node(link)
    except ValueError:
        return None
    return link if mark and boot else None


class FrameValidator:
    """The checks of one node: of node ids, of the cluster id, and of aliases.

    Args:
        node: our own id.
        cluster: the only cluster whose frames pass.
        members: the nodes whose frames may be larger than a client's.
        gates: the names of links are our own aliases of endpoints, whose nodes are not known:
            the node of every sender is replaced by the alias.

    """

    def __init__(
        self, node: str, cluster: str, *, gates: bool, members: Collection[str] = ()
    ) -> None:
        self.node = node
        self._members = members
        self.cluster = cluster
        self.gates = gates
        self._ours = f"{node}/"
        self._passed: dict[tuple[str, str, str], tuple[Address, Address]] = {}
        """The addresses of envelopes that passed, completed, by link, ``to`` and ``from``."""
        self._unpackers: dict[int, Unpack] = {}
        """Unpackers of messages that passed, by tag."""

    def admit(self, link: str, raw: bytes) -> Frame | Dropped:
        """Return the frame in ``raw``, which came over ``link``, or the reason to drop it."""
        if link == self.node:  # Its senders could pose as roles and callers of our own.
            return Dropped("wire.spoofed_sender")
        known = self.gates or link in self._members
        if len(raw) > (FRAME_BYTES_MAX if known else CLIENT_BYTES_MAX):
            return Dropped("wire.oversized", hostile=True)
        if len(raw) > SMALL_BYTES and not has_few_arrays(raw):
            return Dropped("wire.malformed", detail="more arrays than a frame has", hostile=True)
        try:
            usual = raw.startswith(USUAL_START)
            items = load(raw) if usual else open_frame(raw)
            frame = self._familiar(link, items) if usual else None
            familiar = frame is not None
            if frame is None:
                frame = frame_of(items, self.cluster)
        except WrongVersionError as error:
            return Dropped("wire.wrong_version", Mismatch.VERSION, str(error))
        except ForeignClusterError as error:
            return _foreign(raw, error)
        except UndecodableError as error:
            return Dropped("wire.malformed", detail=str(error), hostile=True)
        except MalformedFrameError as error:
            return Dropped("wire.malformed", detail=str(error))
        if not known and len(frame.envelopes) > CLIENT_ENVELOPES_MAX:
            return Dropped("wire.oversized")
        return frame if familiar else self._addressed(link, frame)

    def _familiar(self, link: str, items: list[Any]) -> Frame | None:
        """Return the frame if all of it but its messages resembles frames that passed before.

        None means that it does not, or is malformed, and must be checked part by part: this is
        the fast path of the same checks. ``items`` had the usual first bytes, so their number and
        the version are right.

        Raises:
            MalformedFrameError: a message is not as declared; everything checked before it is
                good.

        """
        _, cluster, view, stamp, packed = items
        if not (
            cluster == self.cluster
            and type(view) is int
            and type(stamp) is int
            and 0 <= view | stamp <= INT_MAX
            and type(packed) is list
            and len(packed) <= ENVELOPES_MAX  # pyright: ignore[reportUnknownArgumentType]
        ):
            return None
        envelopes = self._opened(link, packed)  # pyright: ignore[reportUnknownArgumentType]
        return None if envelopes is None else Frame(cluster, view, stamp, tuple(envelopes))

    def _opened(self, link: str, packed: list[list[Any]]) -> list[EnvelopeItems] | None:
        """Return unpacked envelopes if all resemble others that passed before; else None."""
        unpackers = self._unpackers
        envelopes: list[EnvelopeItems] = []
        there = here = Address("")
        last_to = last_sender = _NOBODY
        try:
            for one in packed:
                if type(one) is not list:
                    return None
                unpacker = unpackers[one[ENVELOPE_HEAD_ITEMS]]
                to, sender = one[0], one[1]
                if to != last_to or sender != last_sender:  # Mostly the same as before.
                    if type(to) is not str or type(sender) is not str:
                        return None
                    there, here = self._passed[link, to, sender]
                    last_to, last_sender = to, sender
                envelopes.append((there, here, unpacker(one)))
        except (LookupError, TypeError):  # Too short, or a new or malformed address or tag.
            return None
        except FieldCountError:  # Perhaps of a peer of another version: `frame_of` judges that.
            return None
        return envelopes

    def _addressed(self, link: str, frame: Frame) -> Frame | Dropped:
        """Check the addresses, and complete those without a node."""
        theirs = f"{link}/"
        completed: list[Envelope] = []
        for to, sender, message in frame.envelopes:
            if type(message) is Rejected:  # So it never gets onto the fast path.
                return Dropped("wire.rejected", message.code, message.detail)
            if self.gates:
                completed_sender = address_of(link, role_of(sender))
            elif sender.startswith(theirs):
                completed_sender = sender
            else:
                return Dropped("wire.spoofed_sender")
            if to.startswith(self._ours):
                completed_to = to
            elif node_of(to) == ANY_NODE:
                completed_to = address_of(self.node, role_of(to))
            else:
                return Dropped("wire.misdirected")
            if len(self._passed) >= NAMES_KEPT:
                self._passed.clear()
            self._passed[link, to, sender] = completed_to, completed_sender
            self._unpackers[message.TAG] = schema_of(type(message)).unpack_enveloped
            completed.append(Envelope(completed_to, completed_sender, message))
        return frame._replace(envelopes=tuple(completed))

    def refusal(self, link: str, mismatch: Mismatch, detail: str) -> Frame:
        """Return the frame that tells ``link`` why its frames are dropped."""
        rejected = Rejected(code=mismatch, detail=detail)
        here, there = address_of(self.node, "link"), address_of(link, "link")
        return Frame(self.cluster, 0, 0, (Envelope(there, here, rejected),))


def _foreign(raw: bytes, error: ForeignClusterError) -> Dropped:
    """Return why a frame of another cluster is dropped; its refusals are not answered."""
    try:
        envelopes = decode_frame(raw).envelopes
    except MalformedFrameError:
        envelopes = ()
    for _, _, message in envelopes:
        if type(message) is Rejected:
            return Dropped("wire.rejected", message.code, message.detail)
    return Dropped("wire.wrong_cluster", Mismatch.CLUSTER, str(error))
