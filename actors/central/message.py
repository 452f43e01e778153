"""Messages of `central`: between lock clients, the lock server and the watch.

Tags 0x50 to 0x5f, and 0xd2 to 0xd7.

Source: the CSE 452 design page "Distributed mutual exclusion": `Request`, `Grant`,
`Release`, `ReleaseAck` and the timer `ClientRetransmit` are the page's own. The page
has one lock; here every message names its lock.
"""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.address import is_address
from fencelock.actors.api.message import Contender
from fencelock.actors.api.name import LOCK_NAME_BYTES_MAX, OWNER_BYTES_MAX, is_allowed
from fencelock.actors.message import Address, Local, Message, Timer, local, message, node_of, timer
from fencelock.actors.proxy.message import ReleaseOutcome

NUMBER_MAX = (1 << 63) - 1
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


@message(0x50)
class Request(Message):
    """Request ``lock``. Answered by `Grant`, by `ServerFull`, or not at all: then repeat it.

    ``session`` and ``owner`` describe the requester, for later queries to the server.
    """

    lock: str
    client: Address
    session: str
    owner: str


@message(0x51)
class Grant(Message):
    """``client`` holds ``lock`` under ``number``. Sent to the broker of the client's node.

    It is the page's ``Grant(num_granted)`` to a client that requests while it holds. Here it also
    reminds the holder that another client requests the lock.
    """

    lock: str
    client: Address
    number: int


@message(0x52)
class Release(Message):
    """``client`` no longer holds ``lock`` under the number ``sequence``. Repeated until acked."""

    lock: str
    client: Address
    sequence: int


@message(0x53)
class ReleaseAck(Message):
    """The `Release` of ``sequence`` arrived: the server holds nothing under that number.

    The page sends ``num_granted`` instead, which loses a lock; see `LockServer`.
    """

    lock: str
    sequence: int


@message(0x54)
class ServerFull(Message):
    """The server has no room for one more held lock: nothing was granted."""

    lock: str
    locks_max: int


@message(0x55)
class Peek(Message):
    """Query for the holder of ``lock``. Answered by `Peeked` with the same ``query``."""

    lock: str
    query: int


@message(0x56)
class Peeked(Message):
    """The holder of ``lock`` as the server knows it, or None if it is free."""

    lock: str
    query: int
    holder: Contender | None


@message(0x57)
class Probe(Message):
    """Ask whether the server is alive. Answered by `Probed`."""


@message(0x58)
class Probed(Message):
    """The server is alive."""


@message(0x5A)
class Held(Message):
    """A record of the server's journal: ``lock`` was granted to ``client`` under ``number``."""

    lock: str
    client: Address
    number: int
    session: str
    owner: str


@message(0x5B)
class Freed(Message):
    """A record of the server's journal: the ownership ``number`` of ``lock`` ended."""

    lock: str
    number: int


@message(0x5C)
class Numbered(Message):
    """A record of the server's journal: numbers up to this one were granted."""

    number: int


@message(0xD2)
class Free(Message):
    """End the hold of ``lock`` under ``number``. Answered by `FreeReply`.

    The hold belongs to ``session``, which needs no lock client for this: its node may have
    been restarted. With an empty ``session`` an operator takes the lock from any session.
    """

    lock: str
    number: int
    session: str
    operator: str = ""


@message(0xD3)
class FreeReply(Message):
    """The outcome of a `Free`, the same for each repetition; ``holder`` held the lock."""

    lock: str
    number: int
    session: str
    outcome: ReleaseOutcome
    holder: Contender | None


@message(0xD4)
class EndSession(Message):
    """``session`` is over: end all its holds, and ignore its late requests."""

    session: str


@message(0xD5)
class SessionEnded(Message):
    """``session`` holds nothing and is granted nothing any more. Also a journal record."""

    session: str


@message(0xD6)
class Revoke(Message):
    """To a broker: ``client`` no longer holds ``lock`` under ``number``, without its release.

    Answered by `Revoked`. Also a journal record of a missing answer.
    """

    lock: str
    client: Address
    number: int
    operator: str = ""
    """The operator who took the lock by force; empty if its session has ended."""


@message(0xD7)
class Revoked(Message):
    """The node of ``client`` has received that `Revoke`. Also a journal record."""

    lock: str
    client: Address
    number: int


@local
class Settled(Local):
    """From a lock client to its broker: the server has confirmed the release of ``number``."""

    lock: str
    number: int
    session: str


@local
class Idle(Local):
    """From a lock client to its broker: after ``wants`` wants I am not needed any more."""

    wants: int


@local
class LocalView(Local):
    """From the broker to the watch: add the server's knowledge to this, and reply."""

    lock: str
    query: int
    holder: Contender | None
    waiters: tuple[Contender, ...]


@timer
class ClientRetransmit(Timer):
    """Repeat the request or the release, or do nothing, as the client's mode requires."""


@timer
class PeekRetry(Timer):
    """Query the server again for ``query``, or answer without it."""

    query: int


@timer
class ProbeServer(Timer):
    """Ask whether the server is alive."""


def lock_fits(lock: str) -> bool:
    """Return whether a peer's lock name is within its limits."""
    return 1 <= len(lock.encode(errors="replace")) <= LOCK_NAME_BYTES_MAX


def client_fits(client: Address, sender: Address) -> bool:
    """Return whether ``client`` is an address of the node from which ``sender`` sends.

    Replies are sent there, so a frame must be able to carry it.
    """
    return is_address(client) and node_of(client) == node_of(sender)


def names_fit(*names: str) -> bool:
    """Return whether a peer's names of sessions and owners are within their limits."""
    return all(
        len(name.encode(errors="replace")) <= OWNER_BYTES_MAX and is_allowed(name) for name in names
    )


def holder_fits(holder: Contender | None) -> bool:
    """Return whether a peer's holder is within its limits."""
    if holder is None:
        return True
    numbers_fit = holder.since_ms >= 0 and 0 < (holder.fence or 0) <= NUMBER_MAX
    return names_fit(holder.node, holder.session, holder.owner) and numbers_fit
