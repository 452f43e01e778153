"""The trace of a node: which messages are logged, and the last ones, for whoever asks for them.

The host hands a `LogBook` what roles received and sent; see ``cluster/node/event_log.py``. It is a
role, so that an operator can change and read it from another process: ``n1/log``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.name import without_secret
from fencelock.actors.api.role_request import (
    FACT_CHARS_MAX,
    KEEP_MS_MAX,
    LOG_LEVELS,
    ROLES_MAX,
    AskRole,
    LogSetting,
    ReadTrace,
    RoleReply,
    SetLog,
    TraceLine,
    TraceLines,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import (
    ADDRESS_PART_BYTES_MAX,
    NS_PER_MS,
    Address,
    Event,
    Instant,
    Message,
    address_of,
    ms_between,
    node_of,
    role_of,
)
from fencelock.actors.role import Host, Role, Summary

DIGIT_CHARS = frozenset("0123456789")
"""Characters of the number in the name of a spawned role."""

KEPT_MAX = 10_000
"""Lines that a node keeps for `ReadTrace`: some MiB. Older ones are dropped."""

READERS_MAX = 16
"""Readers of different roles at a time: each may name `ROLES_MAX` roles, which are kept for it.

One more is refused, and no earlier one is dropped: else any client could end the trace that an
operator reads.
"""

TRACE_PAGE_MAX = 200
"""Lines that are looked at for one reply: it is within `REPLY_BYTES_MAX` if all are sent."""

RECEIVES, SENDS = "receives", "sends"

ASKS = (AskRole, RoleReply)
"""Messages that are not kept: reading a trace would fill it."""


class Crossing(NamedTuple):
    """A message that a role received or sent."""

    act: str
    peer: Address
    message: Event
    state: str
    """The role's state after what it received."""


def kind_of(address: Address) -> str:
    """Return the name of a role without the number that a spawned one has."""
    name, _, number = role_of(address).rpartition("-")
    spawned = name and number and set(number) <= DIGIT_CHARS
    return name if spawned else role_of(address)


def shown(event: object) -> str:
    """Return the text of an event without the secrets of sessions."""
    return without_secret(str(event))


def content_of(event: Event) -> object:
    """Return the message inside ``event``, as a channel carries it, or ``event`` itself."""
    inner = getattr(event, "content", None) or getattr(event, "message", None)
    return inner if isinstance(inner, Message) else event


def state_after(role: Role[Any], event: Event, now: Instant) -> str:
    """Return what a role knows of the lock of ``event``, such as its queue; else its summary."""
    lock = getattr(content_of(event), "lock", "")
    if lock:
        facts = [f"{name}: {value}" for name, value in role.facts(now) if name.endswith(f" {lock}")]
        if facts:
            return "; ".join(facts)
    return ", ".join(f"{name} {value}" for name, value in role.summary())


def messages(
    role: Address, sender: Address, event: Event, effects: Effects, state: str, *, local: bool
) -> list[Crossing]:
    """Return what ``role`` received and sent; if ``local``, also within its own node."""
    here = node_of(role)
    found = [Crossing(RECEIVES, sender, event, state)]
    found += [Crossing(SENDS, one.to, one.message, "") for one in effects if type(one) is Send]
    return [
        one
        for one in found
        if (local or node_of(one.peer) != here) and not isinstance(one.message, ASKS)
    ]


def line_of(number: int, time: int, role: Address, one: Crossing) -> TraceLine:
    """Return a line; ``time`` orders the lines of all nodes."""
    content = content_of(one.message)
    lock = getattr(content, "lock", "")
    return TraceLine(
        number=number,
        time=time,
        role=role_of(role),
        act=one.act,
        peer=one.peer,
        kind=type(content).__name__,
        lock=lock if isinstance(lock, str) else "",
        text=shown(one.message)[:FACT_CHARS_MAX],
        state=one.state[:FACT_CHARS_MAX],
    )


def _problem(event: SetLog | ReadTrace) -> str:
    """Return which limit a request exceeds; empty if none."""
    if len(event.roles or ()) > ROLES_MAX:
        return f"roles has {len(event.roles or ())} names, at most {ROLES_MAX} are allowed"
    longest = max((len(name.encode(errors="replace")) for name in event.roles or ()), default=0)
    if longest > ADDRESS_PART_BYTES_MAX:  # The names are kept.
        return f"roles has a name of {longest} bytes, at most {ADDRESS_PART_BYTES_MAX} are allowed"
    match event:
        case SetLog() if event.level and event.level not in LOG_LEVELS:
            return f"level is {event.level[:20]!a}, and must be one of {', '.join(LOG_LEVELS)}"
        case ReadTrace() if not 0 <= event.keep_ms <= KEEP_MS_MAX:
            return f"keep_ms is {event.keep_ms}, and must be from 0 to {KEEP_MS_MAX}"
        case _:
            return ""


class LogBook(Role[SetLog | ReadTrace]):
    """The setting of a node's log, and the last messages between it and others.

    At level TRACE it has the messages of ``roles``, of all roles if there are none.
    """

    def __init__(
        self, address: Address, host: Host, *, level: str = "INFO", roles: Sequence[str] = ()
    ) -> None:
        super().__init__(address, host)
        self.level = level
        self.roles = tuple(roles)
        self.kept: deque[TraceLine] = deque(maxlen=KEPT_MAX)
        self.readers: dict[tuple[str, ...], Instant] = {}
        """The roles that somebody reads, all if there are none, and until when lines are kept."""
        self.read_roles: frozenset[str] = frozenset()
        """All roles that readers name: each event of any role is looked up here."""
        self.number = 0

    def handle(self, sender: Address, event: SetLog | ReadTrace, now: Instant) -> Effects:
        if problem := _problem(event):
            return (Send(sender, Refused(lock="", reason=Reason.INVALID, detail=problem)),)
        match event:
            case SetLog():
                self.level = event.level or self.level
                self.roles = self.roles if event.roles is None else event.roles
                return (Send(sender, LogSetting(level=self.level, roles=self.roles)),)
            case ReadTrace():
                self.is_unread(now)
                if event.roles not in self.readers and len(self.readers) >= READERS_MAX:
                    return (Send(sender, self._refused(now)),)
                until = Instant(now + event.keep_ms * NS_PER_MS)
                until = max(until, self.readers.get(event.roles, until))
                self._note_readers(self.readers | {event.roles: until})
                return (Send(sender, self._lines(event)),)

    def _refused(self, now: Instant) -> Refused:
        free_ms = ms_between(now, min(self.readers.values()))
        detail = (
            f"node {node_of(self.address)} keeps lines for {READERS_MAX} readers with different "
            f"roles, the limit; the first of them stops in {free_ms} ms if it does not read again"
        )
        return Refused(lock="", reason=Reason.OVERLOADED, detail=detail)

    def _note_readers(self, readers: dict[tuple[str, ...], Instant]) -> None:
        self.readers = readers
        self.read_roles = frozenset(name for roles in readers for name in roles)

    def _lines(self, asked: ReadTrace) -> TraceLines:
        """Return what a reader wants of the next `TRACE_PAGE_MAX` lines: that bounds the cost."""
        first = self.kept[0].number if self.kept else self.number + 1
        begin = min(max(0, asked.after + 1 - first), len(self.kept))
        page = [*islice(self.kept, begin, begin + TRACE_PAGE_MAX)]
        last = page[-1].number if page else self.number
        lost = max(0, first - 1 - asked.after) if asked.after else 0
        lines = tuple(line for line in page if self._is_wanted(line, asked.roles))
        return TraceLines(lines=lines, more=last < self.number, last=last, lost=lost)

    def _is_wanted(self, line: TraceLine, roles: tuple[str, ...]) -> bool:
        """Return whether ``line`` is of one of ``roles``; of none, whether it crosses nodes."""
        here = node_of(self.address)
        if not roles:
            return node_of(Address(line.peer)) != here
        return kind_of(address_of(here, line.role)) in roles

    def is_unread(self, now: Instant) -> bool:
        """Drop readers that have stopped. Return whether that was the last; then drop the lines."""
        if not self.readers or now < min(self.readers.values()):
            return False
        self._note_readers({roles: end for roles, end in self.readers.items() if now < end})
        if not self.readers:
            self.kept.clear()
        return not self.readers

    def logs(self, role: Address) -> bool:
        return self.level == "TRACE" and (not self.roles or kind_of(role) in self.roles)

    def keeps(self, role: Address) -> bool:
        read = () in self.readers or kind_of(role) in self.read_roles
        return read and role != self.address

    def keep(
        self,
        time: int,
        role: Address,
        sender: Address,
        event: Event,
        effects: Effects,
        state: str,
    ) -> None:
        """Keep what ``role`` received and sent at the logical ``time``; see `messages`."""
        local = kind_of(role) in self.read_roles
        for one in messages(role, sender, event, effects, state, local=local):
            self.number += 1
            self.kept.append(line_of(self.number, time, role, one))

    def summary(self) -> Summary:
        roles = ", ".join(self.roles) or "all"
        return ("level", self.level), ("traced roles", roles), ("kept lines", len(self.kept))
