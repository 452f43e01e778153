"""Messages of `central`: between lock clients, the lock server and the watch.

Tags 0x50 to 0x5f, and 0xd2 to 0xd7.

Source: the CSE 452 design page "Distributed mutual exclusion": `Request`, `Grant`,
`Release`, `ReleaseAck` and the timer `ClientRetransmit` are the page's own. The page
has one lock; here every message names its lock.
"""

from enum import IntEnum

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import LOCK_NAME_BYTES_MAX, OWNER_BYTES_MAX, is_allowed
from fencelock.actors.message import Address, Int64, Local, Message, Timer, is_address, node_of
from fencelock.actors.proxy.event import ReleaseOutcome

CENTRAL_NUMBER_MAX = (1 << 63) - 1
"""A number is a fence, and a fence fits a signed 64-bit integer."""


class Mode(IntEnum):
    """State of a lock client; the page's four modes."""

    NONE = 0
    """Does not hold the lock and never did."""
    HELD = 1
    """Holds the lock, and knows that no other client does."""
    RELEASING = 2
    """Released the lock; the server may not know yet."""
    RELEASED = 3
    """Released the lock, and the server knows."""


class Request(Message, tag=0x50):
    """Request ``lock``. Answered by `Grant`, by `ServerFull`, or not at all: then repeat it.

    ``session`` and ``owner`` describe the requester, for later queries to the server.
    """

    lock: str
    client: Address
    session: str
    owner: str


class Grant(Message, tag=0x51):
    """``client`` holds ``lock`` under ``number``. Sent to the broker of the client's node.

    It is the page's ``Grant(num_granted)`` to a client that requests while it holds. Here it also
    reminds the holder that another client requests the lock.
    """

    lock: str
    client: Address
    number: Int64


class Release(Message, tag=0x52):
    """``client`` no longer holds ``lock`` under the number ``sequence``. Repeated until acked."""

    lock: str
    client: Address
    sequence: Int64


class ReleaseAck(Message, tag=0x53):
    """The `Release` of ``sequence`` arrived: the server holds nothing under that number.

    The page sends ``num_granted`` instead, which loses a lock; see `LockServer`.
    """

    lock: str
    sequence: Int64


class ServerFull(Message, tag=0x54):
    """The server has no room for one more held lock: nothing was granted."""

    lock: str
    locks_max: Int64


class Peek(Message, tag=0x55):
    """Query for the holder of ``lock``. Answered by `Peeked` with the same ``query``."""

    lock: str
    query: Int64


class Peeked(Message, tag=0x56):
    """The holder of ``lock`` as the server knows it, or None if it is free."""

    lock: str
    query: Int64
    holder: Contender | None


class Probe(Message, tag=0x57):
    """Ask whether the server is alive. Answered by `Probed`."""


class Probed(Message, tag=0x58):
    """The server is alive."""


class Held(Message, tag=0x5A):
    """A record of the server's journal: ``lock`` was granted to ``client`` under ``number``."""

    lock: str
    client: Address
    number: Int64
    session: str
    owner: str


class Freed(Message, tag=0x5B):
    """A record of the server's journal: the ownership ``number`` of ``lock`` ended."""

    lock: str
    number: Int64


class Numbered(Message, tag=0x5C):
    """A record of the server's journal: numbers up to this one were granted."""

    number: Int64


class Free(Message, tag=0xD2):
    """End the hold of ``lock`` under ``number``. Answered by `FreeReply`.

    The hold belongs to ``session``, which needs no lock client for this: its node may have
    been restarted. With an empty ``session`` an operator takes the lock from any session.
    """

    lock: str
    number: Int64
    session: str
    operator: str = ""


class FreeReply(Message, tag=0xD3):
    """The outcome of a `Free`, the same for each repetition; ``holder`` held the lock."""

    lock: str
    number: Int64
    session: str
    outcome: ReleaseOutcome
    holder: Contender | None


class EndSession(Message, tag=0xD4):
    """``session`` is over: end all its holds, and ignore its late requests."""

    session: str


class SessionEnded(Message, tag=0xD5):
    """``session`` holds nothing and is granted nothing any more. Also a journal record."""

    session: str


class Revoke(Message, tag=0xD6):
    """To a broker: ``client`` no longer holds ``lock`` under ``number``, without its release.

    Answered by `Revoked`. Also a journal record of a missing answer.
    """

    lock: str
    client: Address
    number: Int64
    operator: str = ""
    """The operator who took the lock by force; empty if its session has ended."""


class Revoked(Message, tag=0xD7):
    """The node of ``client`` has received that `Revoke`. Also a journal record."""

    lock: str
    client: Address
    number: Int64


class Idle(Local):
    """From a lock client to its broker: after ``wants`` wants I am not needed any more."""

    wants: int


class ClientRetransmit(Timer):
    """Repeat the request or the release, or do nothing, as the client's mode requires."""


class EndsDue(Timer):
    """End more holds of the sessions that end."""


class PeekRetry(Timer):
    """Query the server again for ``query``, or answer without it."""

    query: int


class ProbeServer(Timer):
    """Ask whether the server is alive."""


def lock_fits(lock: str) -> bool:
    return 1 <= len(lock.encode(errors="replace")) <= LOCK_NAME_BYTES_MAX


def client_fits(client: Address, sender: Address) -> bool:
    """Return whether ``client`` is an address of the node from which ``sender`` sends.

    Replies are sent there, so a frame must be able to carry it.
    """
    return is_address(client) and node_of(client) == node_of(sender)


def names_fit(*names: str) -> bool:
    return all(
        len(name.encode(errors="replace")) <= OWNER_BYTES_MAX and is_allowed(name) for name in names
    )


def holder_fits(holder: Contender | None) -> bool:
    if holder is None:
        return True
    numbers_fit = holder.since_ms >= 0 and 0 < (holder.fence or 0) <= CENTRAL_NUMBER_MAX
    return names_fit(holder.node, holder.session, holder.owner) and numbers_fit
