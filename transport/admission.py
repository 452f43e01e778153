"""Every check on a received frame before it may enter the node, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.name import INT_MAX, NAME_END
from fencelock.actors.api.request import Request
from fencelock.actors.message import ANY_NODE, Address, Message, address_of, node_of, role_of
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    UndecodableError,
)
from fencelock.transport.codec import FieldError, class_of, decode, unpack
from fencelock.transport.frame import (
    MESSAGES_MAX,
    NAMES_KEPT,
    Envelope,
    EnvelopeItems,
    ForeignClusterError,
    Frame,
    Mismatch,
    ReceivedFrame,
    Rejected,
    WrongVersionError,
    check_node,
    check_received_address,
    is_newer,
    open_frame,
    read_frame,
)

CLIENT_FRAME_BYTES_MAX = 72 << 10
"""Maximum size of a client's frame (bytes, 72 KiB): the largest command and its addresses. A frame
of a member may have `FRAME_BYTES_MAX`."""

CLIENT_MESSAGES_MAX = 256
"""Limit of messages in a client's frame: as many as a gateway puts into one frame."""

REFUSALS_MAX = 16
"""The most requests of a frame that are refused for a field of a wrong type; more get no reply."""

SMALL_BYTES = 1024
"""A frame up to this size is decoded unchecked: that takes a quarter of a millisecond at worst."""

ARRAY_SHARE = 8
"""A frame has at most one array per so many bytes, and `ARRAYS_FREE` more. An array costs a
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

UNGROUPED = frozenset({PROXY, "bootstrap"})
"""The roles that receive messages over a link of which one end knows no group: clients' requests,
and what nodes need to find their group. All other messages pass between nodes of one group only."""


class Dropped(NamedTuple):
    """The reason why a frame is dropped."""

    counter: str
    mismatch: Mismatch | None = None
    """Set if the sender should be notified, or if the frame itself reports a mismatch to us."""
    detail: str = ""
    hostile: bool = False
    """Whether no version of ours sends such frames."""
    cluster: str = ""
    """The cluster of the sender, if that is another one."""


class _MisaddressedError(Exception):
    """A frame has an envelope to or from an address that its link may not use."""

    def __init__(self, counter: str) -> None:
        super().__init__(counter)
        self.counter = counter


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
        self.group = 0
        self._passed: dict[tuple[str, str, str], tuple[Address, Address]] = {}
        """The addresses of envelopes that passed, completed, by link, ``to`` and ``from``."""
        self._passed_ungrouped: dict[tuple[str, str, str], tuple[Address, Address]] = {}
        """The same for frames of which only the sender, or only this node, has a group."""
        self.note_fault: Callable[[str, Exception], None] = _raise
        """Logs an exception that only a bug of ours can raise; the frame is dropped for it."""

    def admit(  # noqa: PLR0912  (the path of every frame)
        self, link: str, raw: bytes
    ) -> Frame | Dropped:
        """Return the frame in ``raw``, which came over ``link``, or the reason to drop it."""
        member = self.client or link in self._members  # Only members may send large frames.
        size = len(raw)
        if link == self.node:  # Its senders could pose as roles and callers of our own.
            return Dropped("wire.spoofed_sender")
        if size > (FRAME_BYTES_MAX if member else CLIENT_FRAME_BYTES_MAX):
            return Dropped("wire.oversized", hostile=True)
        try:
            if size > SMALL_BYTES and not has_few_arrays(raw, member=member):
                return Dropped(
                    "wire.malformed", detail="more arrays than a frame has", hostile=True
                )
            frame, arrays = read_frame(raw, self.cluster)
            same = frame.group == self.group
            if not same and frame.group and self.group:
                return _refused(frame, self._other_group(frame.group))
            same = same or self.client
            passed = self._passed if same else self._passed_ungrouped
            envelopes: list[EnvelopeItems] = []
            most = MESSAGES_MAX if member else CLIENT_MESSAGES_MAX
            newer = 0
            for (to, sender, messages), (_, _, items) in zip(frame.envelopes, arrays, strict=True):
                most -= len(messages)
                if most < 0:
                    return Dropped("wire.oversized")
                if type(first := messages[0]) is Rejected:  # It is always alone.
                    return Dropped("wire.rejected", first.code, first.detail)
                addresses = passed.get((link, to, sender))
                if addresses is None:
                    addresses = self._completed(link, to, sender)
                    if not same and role_of(to) not in UNGROUPED:
                        continue
                    if len(passed) >= NAMES_KEPT:
                        passed.clear()
                    passed[link, to, sender] = addresses
                here, there = addresses
                for message, fields in zip(messages, items, strict=True):
                    if len(fields) > message.ITEMS:
                        newer += is_newer(message, fields)
                    envelopes.append((here, there, message))
        except _MisaddressedError as error:
            return Dropped(error.counter)
        except WrongVersionError as error:
            return Dropped("wire.wrong_version", Mismatch.VERSION, str(error))
        except ForeignClusterError as error:
            return _foreign(raw, error)
        except UndecodableError as error:
            return Dropped("wire.malformed", detail=str(error), hostile=True)
        except MalformedFrameError as error:
            return Dropped("wire.malformed", detail=str(error))
        except Exception as error:  # noqa: BLE001  # A bug of ours; nothing was changed.
            self.note_fault(f"a frame of {link}", error)
            return Dropped("wire.malformed", detail=repr(error))
        return Frame(frame.cluster, frame.group, frame.stamp, tuple(envelopes), newer)

    def _completed(self, link: str, to: Address, sender: Address) -> tuple[Address, Address]:
        """Check the addresses of an envelope, and complete those without a node."""
        check_received_address(to)
        check_received_address(sender)
        if self.client:
            sender = address_of(link, role_of(sender))
        elif node_of(sender) != link:
            raise _MisaddressedError("wire.spoofed_sender")
        if NAME_END in link and role_of(to) != PROXY:  # A client's key serves no other purpose.
            raise _MisaddressedError("wire.misdirected")
        if node_of(to) == ANY_NODE:
            to = address_of(self.node, role_of(to))
        elif node_of(to) != self.node:
            raise _MisaddressedError("wire.misdirected")
        return to, sender

    def _other_group(self, group: int) -> Dropped:
        detail = (
            f"frames of group {group:x} of cluster {self.cluster!r} are refused by a "
            f"node of its group {self.group:x}: a second group was founded under one cluster id"
        )
        return Dropped("wire.other_group", Mismatch.GROUP, detail)

    def has_received(self, link: str) -> bool:
        """Return whether a frame of ``link`` passed recently, or ever while there are few links."""
        passed = chain(self._passed, self._passed_ungrouped)
        return any(name == link for name, _, _ in passed)

    def field_refusals(self, link: str, raw: bytes) -> Frame | None:
        """Return a frame of refusals of requests of ``link`` that have a field of a wrong type.

        None if there is none in ``raw``, its number cannot be read, or ``raw`` is not small. At
        most `REFUSALS_MAX` are refused.
        """
        replies: list[Envelope] = []
        try:
            for to, sender, messages in open_frame(raw)[-1] if len(raw) <= SMALL_BYTES else ():
                room = REFUSALS_MAX - len(replies)
                refusals = (no for items in messages if (no := _field_refusal(items)) is not None)
                if not (chosen := list(islice(refusals, room))):
                    continue
                check_received_address(sender)
                proxy = address_of(self.node, PROXY)
                if to in (proxy, address_of(ANY_NODE, PROXY)) and node_of(sender) == link:
                    replies += [Envelope(sender, proxy, no) for no in chosen]
        except (MalformedFrameError, ValueError, TypeError):  # Not even arrays as in a frame.
            return None
        except Exception as error:  # noqa: BLE001  # As in `admit`.
            self.note_fault(f"the refusal of a frame of {link}", error)
            return None
        return Frame(self.cluster, 0, 0, tuple(replies)) if replies else None

    def refusal(self, link: str, mismatch: Mismatch, detail: str) -> Frame:
        rejected = Rejected(code=mismatch, detail=detail)
        here, there = address_of(self.node, "link"), address_of(link, "link")
        return Frame(self.cluster, 0, 0, (Envelope(there, here, rejected),))


def message_in(body: bytes, *, member: bool) -> Message:
    """Return the message in ``body``, a field of a message that was admitted.

    Raises:
        MalformedFrameError: it is none, or has more arrays than a member, or a client, may send.

    """
    if not has_few_arrays(body, member=member):
        raise MalformedFrameError("more arrays than a message has")
    return decode(body)


def _raise(doing: str, error: Exception) -> None:
    """Raise ``error``, where no node has to go on."""
    raise error


def _field_refusal(items: Any) -> Refused | None:
    """Return the refusal of the request that ``items`` are, if a field has a wrong type.

    None if there is none, or its number cannot be read.
    """
    cls = class_of(items)
    try:
        unpack(cls, items)
    except FieldError as error:
        if not issubclass(cls, Request):
            return None
        items[error.place] = ""
        values = dict(zip(cls.__struct_fields__, items[1:], strict=False))
        session, owner, lock, number = cls(**values).key  # Unchecked: see below.
        names = [name if type(name) is str else "" for name in (session, owner, lock)]
        if type(number) is int and -INT_MAX <= number <= INT_MAX:
            session, owner, lock = names
            return Refused(
                lock=lock,
                reason=Reason.INVALID,
                detail=str(error),
                session=session,
                owner=owner,
                request=number,
            )
    return None


def _foreign(raw: bytes, error: ForeignClusterError) -> Dropped:
    """Return why a frame of another cluster is dropped; refusals in it get no reply."""
    dropped = Dropped("wire.wrong_cluster", Mismatch.CLUSTER, str(error), cluster=error.found)
    try:
        frame, _ = read_frame(raw, None)
    except MalformedFrameError:
        return dropped
    return _refused(frame, dropped)


def _refused(frame: ReceivedFrame, dropped: Dropped) -> Dropped:
    """Return why ``frame`` is dropped; a refusal in it gets no reply."""
    for message in chain.from_iterable(messages for _, _, messages in frame.envelopes):
        if type(message) is Rejected:
            return Dropped("wire.rejected", message.code, message.detail, cluster=dropped.cluster)
    return dropped


def check_client_size(frame: Frame, size: int, *, client: bool) -> None:
    """Refuse a frame of ``size`` bytes, above a client's limit, that can be split.

    A node that is not yet, or no longer, a member is a client to its peers, and may not know it.
    Only members send single messages that are so large.

    Raises:
        FrameTooLargeError: the sender is a ``client``, or the frame has several messages.

    """
    if client or len(frame.envelopes) > 1:
        raise FrameTooLargeError(f"frame of {size} bytes, at most {CLIENT_FRAME_BYTES_MAX}")


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
