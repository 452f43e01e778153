"""Every check on a received frame before it may enter the node, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from fencelock.actors.api.message import Reason, refused
from fencelock.actors.api.name import NAME_END
from fencelock.actors.api.request import Request
from fencelock.actors.message import Address, address_of, node_of, role_of
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    INT_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    UndecodableError,
    load,
)
from fencelock.transport.codec import ENVELOPE_HEAD_ITEMS, array, schema_of, unpack_despite
from fencelock.transport.compiled import FieldCountError, Unpack
from fencelock.transport.frame import (
    ANY_NODE,
    ENVELOPES_MAX,
    NAMES_KEPT,
    USUAL_START,
    Envelope,
    EnvelopeItems,
    ForeignClusterError,
    Frame,
    Mismatch,
    Rejected,
    WrongVersionError,
    check_address,
    check_node,
    decode_frame,
    frame_of,
    new_frame,
    open_frame,
)

CLIENT_BYTES_MAX = 72 << 10
"""Maximum size of a client's frame (bytes, 72 KiB): the largest command and its addresses. A frame
of a member may have `FRAME_BYTES_MAX`."""

CLIENT_ENVELOPES_MAX = 256
"""Limit of envelopes in a client's frame: as many as a gateway puts into one frame."""

SMALL_BYTES = 1024
"""A frame up to this size is decoded unchecked: that takes a quarter of a millisecond at worst."""

ARRAY_SHARE = 8
"""A frame has at most one array for so many bytes, and `ARRAYS_FREE` more. An array costs a
decoder ten times as much as another item. Clients' messages stay below: each of their arrays
holds a name or several numbers."""

MEMBER_ARRAY_SHARE = 4
"""The same for a member's frame. Votes for slots without commands take 4 bytes an array."""

ARRAYS_FREE = 64

ITEM_SHARE = 4
"""A frame whose items are counted has at most one for so many bytes, and `ITEMS_FREE` more."""

MEMBER_ITEM_SHARE = 2
"""The same for a member's frame."""

ITEMS_FREE = 256

_ARRAY_HEADS = bytes(range(0x80, 0xA0))
"""All first bytes of an array; in text they are parts of characters beyond ASCII."""

_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
"""Sizes of the number that follows a head (bytes), by the head's lowest five bits."""

_BYTES, _TEXT, _ARRAY = 2, 3, 4
"""Major types of CBOR (RFC 8949, section 3.1)."""

PROXY = "proxy"
"""The role that serves clients."""

UNGROUPED = frozenset({PROXY, "bootstrap"})
"""The roles that receive messages over a link of which one end knows no group: clients' requests,
and what nodes need to find their group. All other messages pass between nodes of one group only."""

_NOBODY: object = object()
"""A value that equals nothing received."""


class Dropped(NamedTuple):
    """The reason why a frame is dropped."""

    counter: str
    mismatch: Mismatch | None = None
    """Set if the sender should be notified, or if the frame itself reports a mismatch to us."""
    detail: str = ""
    hostile: bool = False
    """Whether no version of ours sends such frames."""


@lru_cache(maxsize=NAMES_KEPT)
def link_of(identity: bytes) -> str | None:
    """Return the node or client id in a routing id, ``id#boot``, or None if there is none."""
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
        client: the names of links are our own aliases of endpoints, since their nodes are not
            known. The alias replaces the node of every sender.

    Attributes:
        group: the group of this node, 0 while it knows none. A client has none, and accepts the
            replies of any.

    """

    def __init__(
        self, node: str, cluster: str, *, client: bool, members: Collection[str] = ()
    ) -> None:
        self.node = node
        self._members = members
        self.cluster = cluster
        self.client = client
        self._ours = f"{node}/"
        self.group = 0
        self._passed: dict[tuple[str, str, str], tuple[Address, Address]] = {}
        """The addresses of envelopes that passed, completed, by link, ``to`` and ``from``."""
        self._passed_ungrouped: dict[tuple[str, str, str], tuple[Address, Address]] = {}
        """The same for frames of which only the sender, or only this node, has a group."""
        self._unpackers: dict[int, Unpack] = {}
        """Unpackers of messages that passed, by tag."""
        self.note_fault: Callable[[str, Exception], None] = _raise
        """Logs an exception that only a bug of ours can raise; the frame is dropped for it."""

    def admit(self, link: str, raw: bytes) -> Frame | Dropped:
        """Return the frame in ``raw``, which came over ``link``, or the reason to drop it.

        A frame that resembles others which passed before is checked here in one pass. Any other
        is left to `_examine`, which checks it part by part.
        """
        known = self.client or link in self._members
        size = len(raw)
        if (
            link == self.node
            or size > (FRAME_BYTES_MAX if known else CLIENT_BYTES_MAX)
            or not raw.startswith(USUAL_START)
            or (size > SMALL_BYTES and not has_few_arrays(raw, member=known))
        ):
            return self._examine(link, raw, known=known)
        most = ENVELOPES_MAX if known else CLIENT_ENVELOPES_MAX
        unpackers = self._unpackers
        envelopes: list[EnvelopeItems] = []
        there = here = Address("")
        last_to = last_sender = _NOBODY
        try:
            _, cluster, group, stamp, packed = load(raw)
            if not (
                cluster == self.cluster
                and type(group) is int
                and type(stamp) is int
                and 0 <= group | stamp <= INT_MAX
                and (group == self.group or not group or not self.group)
                and type(packed) is list
                and len(packed) <= most  # pyright: ignore[reportUnknownArgumentType]
            ):
                return self._examine(link, raw, known=known)
            items: list[list[Any]] = packed  # pyright: ignore[reportUnknownVariableType]
            same = group == self.group or self.client
            passed = self._passed if same else self._passed_ungrouped
            for one in items:
                if type(one) is not list:  # A map also has items.
                    return self._examine(link, raw, known=known)
                to, sender = one[0], one[1]
                if to != last_to or sender != last_sender:  # Mostly the same as before.
                    there, here = passed[link, to, sender]
                    last_to, last_sender = to, sender
                envelopes.append((there, here, unpackers[one[ENVELOPE_HEAD_ITEMS]](one)))
        except (LookupError, TypeError, FieldCountError):
            # Too short, a new or malformed address or tag, or perhaps of another version.
            return self._examine(link, raw, known=known)
        except UndecodableError as error:
            return Dropped("wire.malformed", detail=str(error), hostile=True)
        except MalformedFrameError as error:
            return Dropped("wire.malformed", detail=str(error))
        except Exception:  # noqa: BLE001  # A bug of ours; the other way may do without it.
            return self._examine(link, raw, known=known)
        return new_frame((cluster, group, stamp, tuple(envelopes), 0))

    def has_heard(self, link: str) -> bool:
        """Return whether a frame of ``link`` passed lately, or ever while there are few links."""
        passed = chain(self._passed, self._passed_ungrouped)
        return any(name == link for name, _, _ in passed)

    def _examine(self, link: str, raw: bytes, *, known: bool) -> Frame | Dropped:
        """Check a frame part by part, or drop it for an exception: nothing was changed by it."""
        try:
            return self._examine_parts(link, raw, known=known)
        except Exception as error:  # noqa: BLE001  # A bug of ours.
            self.note_fault(f"a frame of {link}", error)
            return Dropped("wire.malformed", detail=repr(error))

    def _examine_parts(self, link: str, raw: bytes, *, known: bool) -> Frame | Dropped:
        """Check a frame part by part, the cheapest first; return it or the reason to drop it."""
        if link == self.node:  # Its senders could pose as roles and callers of our own.
            return Dropped("wire.spoofed_sender")
        if len(raw) > (FRAME_BYTES_MAX if known else CLIENT_BYTES_MAX):
            return Dropped("wire.oversized", hostile=True)
        if len(raw) > SMALL_BYTES and not has_few_arrays(raw, member=known):
            return Dropped("wire.malformed", detail="more arrays than a frame has", hostile=True)
        try:
            frame = frame_of(open_frame(raw), self.cluster)
        except WrongVersionError as error:
            return Dropped("wire.wrong_version", Mismatch.VERSION, str(error))
        except ForeignClusterError as error:
            return _foreign(raw, error)
        except UndecodableError as error:
            return Dropped("wire.malformed", detail=str(error), hostile=True)
        except MalformedFrameError as error:
            return Dropped("wire.malformed", detail=str(error))
        if frame.group != self.group and frame.group and self.group:
            detail = (
                f"frames of group {frame.group:x} of cluster {self.cluster!r} are refused by a "
                f"node of its group {self.group:x}: a second group was founded under one cluster id"
            )
            return _refused(frame, Dropped("wire.other_group", Mismatch.GROUP, detail))
        if not known and len(frame.envelopes) > CLIENT_ENVELOPES_MAX:
            return Dropped("wire.oversized")
        return self._addressed(link, frame)

    def _addressed(self, link: str, frame: Frame) -> Frame | Dropped:
        """Check the addresses, and complete those without a node."""
        theirs = f"{link}/"
        same = frame.group == self.group or self.client
        passed = self._passed if same else self._passed_ungrouped
        completed: list[Envelope] = []
        for to, sender, message in frame.envelopes:
            if type(message) is Rejected:  # So it never gets onto the fast path.
                return Dropped("wire.rejected", message.code, message.detail)
            if self.client:
                completed_sender = address_of(link, role_of(sender))
            elif sender.startswith(theirs):
                completed_sender = sender
            else:
                return Dropped("wire.spoofed_sender")
            if NAME_END in link and role_of(to) != PROXY:  # A client's key serves no other purpose.
                return Dropped("wire.misdirected")
            if not same and role_of(to) not in UNGROUPED:
                continue
            if to.startswith(self._ours):
                completed_to = to
            elif node_of(to) == ANY_NODE:
                completed_to = address_of(self.node, role_of(to))
            else:
                return Dropped("wire.misdirected")
            if len(passed) >= NAMES_KEPT:
                passed.clear()
            passed[link, to, sender] = completed_to, completed_sender
            self._unpackers[message.TAG] = schema_of(type(message)).unpack_enveloped
            completed.append(Envelope(completed_to, completed_sender, message))
        return frame._replace(envelopes=tuple(completed))

    def field_refusals(self, link: str, raw: bytes) -> Frame | None:
        """Return a frame of refusals of requests of ``link`` that have a field of a wrong type.

        None if there is none in ``raw``, its number cannot be read, or ``raw`` is not small.
        """
        replies: list[Envelope] = []
        try:
            for packed in array(open_frame(raw)[-1]) if len(raw) <= SMALL_BYTES else ():
                to, sender, *items = array(packed)
                message, wrong = unpack_despite(items)
                names = {one.name for one in wrong}
                if not wrong or not isinstance(message, Request) or "request" in names:
                    continue
                if type(sender) is not str:
                    return None
                check_address(sender)
                client = Address(sender)
                proxy = address_of(self.node, PROXY)
                if to in (proxy, address_of(ANY_NODE, PROXY)) and node_of(client) == link:
                    no = refused(message, Reason.INVALID, "; ".join(map(str, wrong)))
                    replies.append(Envelope(client, proxy, no))
        except (MalformedFrameError, ValueError):
            return None
        except Exception as error:  # noqa: BLE001  # As in `_examine`.
            self.note_fault(f"the refusal of a frame of {link}", error)
            return None
        return Frame(self.cluster, 0, 0, tuple(replies)) if replies else None

    def refusal(self, link: str, mismatch: Mismatch, detail: str) -> Frame:
        """Return the frame that notifies ``link`` why its frames are dropped."""
        rejected = Rejected(code=mismatch, detail=detail)
        here, there = address_of(self.node, "link"), address_of(link, "link")
        return Frame(self.cluster, 0, 0, (Envelope(there, here, rejected),))


def _raise(doing: str, error: Exception) -> None:
    """Raise ``error``, where no node has to go on."""
    del doing
    raise error


def _foreign(raw: bytes, error: ForeignClusterError) -> Dropped:
    """Return why a frame of another cluster is dropped; refusals in it get no reply."""
    dropped = Dropped("wire.wrong_cluster", Mismatch.CLUSTER, str(error))
    try:
        return _refused(decode_frame(raw), dropped)
    except MalformedFrameError:
        return dropped


def _refused(frame: Frame, dropped: Dropped) -> Dropped:
    """Return why ``frame`` is dropped; a refusal in it gets no reply."""
    for _, _, message in frame.envelopes:
        if type(message) is Rejected:
            return Dropped("wire.rejected", message.code, message.detail)
    return dropped


def check_client_size(frame: Frame, size: int, *, client: bool) -> None:
    """Refuse to send a frame of ``size`` bytes, above a client's limit, that can be split.

    A node that is no member yet, or no more, is a client to those that it sends to, and does not
    know for certain. Only members send single messages that are so large.

    Raises:
        FrameTooLargeError: the sender is a ``client``, or the frame has several messages.

    """
    if client or len(frame.envelopes) > 1:
        raise FrameTooLargeError(f"frame of {size} bytes, at most {CLIENT_BYTES_MAX}")


def has_few_arrays(data: bytes, *, member: bool) -> bool:
    """Return whether ``data`` has no more arrays than our own frames of that origin have.

    First count the bytes that may begin an array, which takes a microsecond for a kilobyte. If
    there are too many, they may belong to text or byte strings: then walk through the items, up
    to the first array, or the first item, too many.
    """
    size = len(data)
    arrays_max = ARRAYS_FREE + size // (MEMBER_ARRAY_SHARE if member else ARRAY_SHARE)
    if size - len(data.translate(None, _ARRAY_HEADS)) <= arrays_max:
        return True
    return _walk(
        data, arrays_max, ITEMS_FREE + size // (MEMBER_ITEM_SHARE if member else ITEM_SHARE)
    )


def _walk(data: bytes, arrays_max: int, items_max: int) -> bool:
    """Return whether ``data`` has few arrays, and few items of any kind.

    It accepts malformed CBOR, which the decoder refuses where it begins.
    """
    size, at, arrays = len(data), 0, 0
    for _ in range(items_max):
        if at >= size:
            return True
        head = data[at]
        major, number = head >> 5, head & 31
        length = _ARGUMENT_BYTES.get(number, 0)
        at += 1 + length
        if major == _ARRAY:
            arrays += 1
            if arrays > arrays_max:
                return False
        elif major in (_BYTES, _TEXT):
            at += int.from_bytes(data[at - length : at]) if length else number
    return False
