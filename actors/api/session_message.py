"""Messages about sessions, and of operators, between a client and a proxy.

Tags 0x60 to 0x6f, and 0xd0 and 0xd1.

A client is named after its node: ``me``, or ``me~2`` after its first session was lost
or given up. Where the cluster keeps sessions, it assigns an id for all further requests,
which is never given again (``me~2.17``): messages under an ended session have no effect.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.api.cluster_message import Watch
from fencelock.actors.api.message import Contender
from fencelock.actors.message import Message, message


@message(0x60)
class Open(Message):
    """Keep a session for me. Answered by `Opened`; a repetition finds the same session.

    ``session`` is the client's name for it, ``ttl_ms`` the time by which the session outlives
    its last message (ms), ``label`` a text for people (host and process).
    """

    session: str
    ttl_ms: int
    label: str = ""
    request: int = 0


@message(0x61)
class Opened(Message):
    """Use ``assigned`` as session from now on.

    With ``ttl_ms`` 0 the cluster keeps no sessions: ``assigned`` is the client's id, and a
    hold lives at the node that granted it. ``master`` is as in `Alive`.
    """

    session: str
    assigned: str
    ttl_ms: int
    node: str
    request: int = 0
    master: str = ""


@message(0x62)
class End(Message):
    """End the session ``session`` with all its holds and waits. Answered by `Ended`."""

    session: str
    request: int = 0


@message(0x63)
class Ended(Message):
    """The session has ended, and holds nothing. Also sent without a request, when it expires."""

    session: str
    detail: str
    request: int = 0


@message(0x64)
class HoldLost(Message):
    """Notification: the hold of ``owner`` under ``fence`` is lost; ``detail`` says why."""

    lock: str
    fence: int
    session: str
    owner: str
    detail: str


@message(0x65)
class ListLocks(Message):
    """List the held locks by name, one page. Answered by `LockList`.

    They begin with ``prefix`` and come after ``after``; at most ``most`` (1 to 1,000).
    """

    prefix: str = ""
    after: str = ""
    most: int = 100
    session: str = ""
    request: int = 0
    age_ms: int | None = None
    """As in `Inspect`."""


class ListedLock(NamedTuple):
    """A held lock in a list."""

    lock: str
    holder: Contender
    waiting: int
    """Number of waiters."""


@message(0x66)
class LockList(Message):
    """Held locks, sorted by name; ``more`` follow after the last."""

    lines: tuple[ListedLock, ...]
    more: bool
    session: str = ""
    request: int = 0
    slot: int = 0
    age_ms: int | None = None


@message(0x67)
class Evict(Message):
    """An operator ends the hold of ``lock`` under ``fence``. Answered by `Evicted`.

    The fence makes a repetition harmless: it cannot hit the next holder. The eviction is in
    the log with the name of the operator, and the next waiter holds under a new fence.
    """

    lock: str
    fence: int
    operator: str
    session: str = ""
    request: int = 0


@message(0x68)
class Evicted(Message):
    """``holder`` no longer holds ``lock``, and is notified."""

    lock: str
    fence: int
    holder: Contender
    session: str = ""
    request: int = 0


@message(0x69)
class Renew(Message):
    """Begin the duration of my hold anew, when this is handled. Answered by `Renewed`.

    Only where holds have deadlines. ``hold_ms`` is the new duration (ms), 0 for the same as before.
    """

    lock: str
    fence: int
    hold_ms: int = 0
    session: str = ""
    owner: str = ""
    request: int = 0


@message(0x6A)
class Renewed(Message):
    """The hold lasts ``hold_ms + grace_ms`` from some instant after the `Renew` was sent."""

    lock: str
    fence: int
    hold_ms: int
    grace_ms: int
    session: str = ""
    owner: str = ""
    request: int = 0


@message(0x6B)
class Unlocking(Message):
    """Notification: the duration of the hold is over; after ``grace_ms`` it is taken away.

    The owner must release or renew it.
    """

    lock: str
    fence: int
    grace_ms: int
    session: str = ""
    owner: str = ""


@message(0xD0)
class ConfirmHold(Message):
    """Notification: reply if ``session`` does not hold ``lock`` under ``fence``.

    The node through which it was granted has restarted and does not know. A client that holds it
    does not reply; one that does not sends `DisownHold`.
    """

    lock: str
    fence: int
    session: str


@message(0xD1)
class DisownHold(Message):
    """I do not hold ``lock`` under ``fence``, and accept no grant of it from now on."""

    lock: str
    fence: int
    session: str
    request: int = 0


SessionRequest = Open | End | Renew | Watch
"""Requests of a client about its session, its holds and its cluster, besides `KeepAlive`."""

OperatorRequest = ListLocks | Evict
"""Requests of an operator to the proxy of a protocol that keeps a table of locks."""

SessionAnswer = Opened | Ended | HoldLost
"""Messages of a proxy about a session, requested or not."""

OperatorAnswer = LockList | Evicted
