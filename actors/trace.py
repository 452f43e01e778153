"""The trace of a node: which messages are logged, and the last ones, for whoever asks for them.

The host hands a `LogBook` what roles received and sent; see ``cluster/node/event_log.py``. It is a
role, so that an operator can change and read it from another process: ``n1/log``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from fencelock.actors.api.message import Reason, Refused
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
    NS_PER_MS,
    Address,
    Event,
    Instant,
    Message,
    address_of,
    node_of,
    role_of,
)
from fencelock.actors.role import Host, Role, Summary

DIGITS = frozenset("0123456789")
"""Characters of the number in the name of a spawned role."""

KEPT_MAX = 10_000
"""Lines that a node keeps for `ReadTrace`: some MiB. Older ones are dropped."""

PAGE_MAX = 200
"""Lines of one reply: within `REPLY_BYTES_MAX`."""

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
    spawned = name and number and set(number) <= DIGITS
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
    """Return what ``role`` received and sent.

    Args:
        role: the receiver of ``event``.
        sender: its sender.
        event: what it received.
        effects: what followed.
        state: of the role after that.
        local: whether to return also what comes from and goes to roles of its own node.

    """
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
    match event:
        case SetLog() if event.level and event.level not in LOG_LEVELS:
            return f"level is {event.level[:20]!a}, and must be one of {', '.join(LOG_LEVELS)}"
        case ReadTrace() if not 0 <= event.keep_ms <= KEEP_MS_MAX:
            return f"keep_ms is {event.keep_ms}, and must be from 0 to {KEEP_MS_MAX}"
        case _:
            return ""


class LogBook(Role[SetLog | ReadTrace]):
    """The setting of a node's log, and the last messages between it and others.

    Args:
        level: the least level of lines in the log.
        roles: the roles that are traced at level TRACE, all if there are none.

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
                return (Send(sender, self._lines(event, now)),)

    def _lines(self, asked: ReadTrace, now: Instant) -> TraceLines:
        self.is_unread(now)
        until = Instant(now + asked.keep_ms * NS_PER_MS)
        self.readers[asked.roles] = max(until, self.readers.get(asked.roles, until))
        first = self.kept[0].number if self.kept else self.number + 1
        here = node_of(self.address)
        later = [
            line
            for line in self.kept
            if line.number > asked.after
            and (
                kind_of(address_of(here, line.role)) in asked.roles
                if asked.roles
                else node_of(Address(line.peer)) != here
            )
        ]
        lines = tuple(later[:PAGE_MAX])
        lost = max(0, first - 1 - asked.after) if asked.after else 0
        return TraceLines(lines=lines, more=len(later) > PAGE_MAX, last=self.number, lost=lost)

    def is_unread(self, now: Instant) -> bool:
        """Drop readers that have stopped. Return whether that was the last; then drop the lines."""
        if not self.readers or now < min(self.readers.values()):
            return False
        self.readers = {roles: until for roles, until in self.readers.items() if now < until}
        if not self.readers:
            self.kept.clear()
        return not self.readers

    def logs(self, role: Address) -> bool:
        return self.level == "TRACE" and (not self.roles or kind_of(role) in self.roles)

    def keeps(self, role: Address) -> bool:
        return role != self.address and any(
            not roles or kind_of(role) in roles for roles in self.readers
        )

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
        local = any(kind_of(role) in roles for roles in self.readers)
        for one in messages(role, sender, event, effects, state, local=local):
            self.number += 1
            self.kept.append(line_of(self.number, time, role, one))

    def summary(self) -> Summary:
        roles = ", ".join(self.roles) or "all"
        return ("level", self.level), ("traced roles", roles), ("kept lines", len(self.kept))
