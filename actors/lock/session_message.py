"""The words of sessions and of operators between a client and a proxy.

Tags 0x60 to 0x6f, and 0xd0 and 0xd1.

A client names itself after its node: ``me``, or ``me~2`` after its first session was lost
or given up. Where the cluster keeps sessions, the name it is to use in every further
request is another one, which is never given again (``me~2.17``): nothing said under an ended
session takes effect.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.lock.cluster_message import Watch
from fencelock.actors.lock.message import Contender
from fencelock.actors.message import Message, message


@message(0x60)
class Open(Message):
    """Keep a session for me. Answered by `Opened`; to say it again finds the same session.

    ``session`` is what the client calls itself, ``ttl_ms`` how long the session outlives
    the last word of it, ``label`` for people (host and process).
    """

    session: str
    ttl_ms: int
    label: str = ""
    request: int = 0


@message(0x61)
class Opened(Message):
    """Say ``assigned`` as session from now on.

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
    """The session is no more, and holds nothing. Also said unasked, when it expires."""

    session: str
    detail: str
    request: int = 0


@message(0x64)
class HoldLost(Message):
    """Unasked: what ``owner`` held under ``fence`` was taken from it; ``detail`` says by whom."""

    lock: str
    fence: int
    session: str
    owner: str
    detail: str


@message(0x65)
class ListLocks(Message):
    """Tell me the held locks by name, a page of them. Answered by `LockList`.

    Those that begin with ``prefix`` and come after ``after``, at most ``most`` (1 to 1,000).
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
    """How many wait for it."""


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
    """An operator takes ``lock`` from whoever holds it under ``fence``. Answered by `Evicted`.

    The fence makes a repetition harmless: it cannot hit the next holder. The deed is in the
    log with the name of the operator, and who was next holds under a new fence.
    """

    lock: str
    fence: int
    operator: str
    session: str = ""
    request: int = 0


@message(0x68)
class Evicted(Message):
    """``holder`` no longer holds ``lock``, and is told so."""

    lock: str
    fence: int
    holder: Contender
    session: str = ""
    request: int = 0


@message(0x69)
class Renew(Message):
    """Let the duration of my hold begin anew, when this is handled. Answered by `Renewed`.

    Only where holds have deadlines. ``hold_ms`` is the new duration, 0 for what it was.
    """

    lock: str
    fence: int
    hold_ms: int = 0
    session: str = ""
    owner: str = ""
    request: int = 0


@message(0x6A)
class Renewed(Message):
    """The hold lasts ``hold_ms + grace_ms`` from some instant after the `Renew` was said."""

    lock: str
    fence: int
    hold_ms: int
    grace_ms: int
    session: str = ""
    owner: str = ""
    request: int = 0


@message(0x6B)
class Unlocking(Message):
    """Unasked: the duration of the hold is over; after ``grace_ms`` it is taken away.

    The owner decides: it releases, or renews.
    """

    lock: str
    fence: int
    grace_ms: int
    session: str = ""
    owner: str = ""


@message(0xD0)
class ConfirmHold(Message):
    """Unasked: tell me if ``session`` does not hold ``lock`` under ``fence``.

    The node it was granted through has restarted and does not know. Who holds it does not
    answer; who does not hold it answers `DisownHold`.
    """

    lock: str
    fence: int
    session: str


@message(0xD1)
class DisownHold(Message):
    """I do not hold ``lock`` under ``fence``, and take no grant of it from now on."""

    lock: str
    fence: int
    session: str
    request: int = 0


SessionRequest = Open | End | Renew | Watch
"""What a client may say of its session, its holds and its cluster, besides `KeepAlive`."""

OperatorRequest = ListLocks | Evict
"""What an operator may say to a proxy of a protocol that keeps a table of locks."""

SessionAnswer = Opened | Ended | HoldLost
"""What a proxy may say of a session, asked or not."""

OperatorAnswer = LockList | Evicted
