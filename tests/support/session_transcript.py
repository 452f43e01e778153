"""The player of transcripts of a client's session (`role_transcript.py`).

``run MS see NAMES``
    Let time pass, and return the messages of these classes and the counts of these names only.
``keep MS ENDPOINTS`` and ``keep MS ENDPOINTS see NAMES``
    Let time pass while these endpoints answer each `KeepAlive`; those are not shown.
``holds``
    Return all holds that the session had, with their states, and the numbers of their acquires if
    users gave them; ``gone`` are those that it forgot.
``trust``
    Return when the session is suspect, and until when it is trusted.
``endpoints``
    Return the endpoints with their states; the one in use has a star.
``describe`` and ``patience``
    Return what the session tells of them, and how long it waits for a reply.

The session is that of client ``c``, with proxies at ``a`` and ``b``. ``new kept=0`` makes one whose
cluster keeps no sessions. ``ann`` and ``ben`` are users and owners. A message of a user is about
lock x and fence 7 unless its fields say otherwise, and has no number. A reply of an endpoint is to
the last request of that kind that it got; its fields replace those of the reply. A message to the
session that only changes it has no outcome. Ticks of the session are not shown. Member ``d`` is at
``tcp://host-d:4040``, and ``d@tcp://e:1`` elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fencelock.actors import role_message
from fencelock.actors.api import (
    backup_message,
    cluster_message,
    lock_message,
    membership_message,
    operator_message,
    session_message,
)
from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Probe, Watch
from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.session_message import Alive, KeepAlive, NodeAddress
from fencelock.actors.effect import Connect, Disconnect, Effect, Send, Wake
from fencelock.actors.message import Address, node_of, role_of
from fencelock.actors.role import Host
from fencelock.actors.session import event
from fencelock.actors.session.event import SessionTick, Surveyed
from fencelock.actors.session.holds import ClientHold
from fencelock.actors.session.lease import Stage
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.session import TTL_MS, ClientSession
from support.role_transcript import RolePlayer, Scene, events_of, fields_of
from support.samples import READY
from support.session_harness import ANN, BEN, ME, WATCHER, A, B, new_session
from support.transcript import KINDS, NOTATIONS, Notation, written

ENDPOINTS = {"a": A, "b": B, "d": Address("d/proxy"), "e": Address("e/proxy")}
USERS = {"ann": ANN, "ben": BEN}
NAMES = ENDPOINTS | USERS | {"session": ME, "watcher": WATCHER}


def read_node(text: str) -> NodeAddress:
    name, at, endpoint = text.partition("@")
    return NodeAddress(name, endpoint if at else f"tcp://host-{name}:4040")


def write_node(one: NodeAddress) -> str:
    return one.node if one == read_node(one.node) else f"{one.node}@{one.endpoint}"


NOTATIONS[NodeAddress] = Notation(read_node, write_node)


def make_session(host: Host, ttl_ms: int = TTL_MS, kept: int = 1, stays: int = 0) -> ClientSession:
    session = new_session(host, ttl_ms, stays=bool(stays))
    if not kept:
        lease = session.session_state.session_lease
        for stage in (Stage.OPENING, Stage.UNKEPT):
            lease.enter(stage)
        lease.assigned = "c"
    return session


EVENTS = KINDS | events_of(
    lock_message,
    backup_message,
    cluster_message,
    membership_message,
    operator_message,
    session_message,
    role_message,
    event,
)
SCENE = Scene(make_session, EVENTS, NAMES)
ASKED = {"lock": "x", "fence": 7, "operator": "me", "view": 1}
REPLIED = {
    **{"count": 1, "leader": "", "detail": "no", "ttl_ms": 0, "waiters": (), "waits_for": ()},
    **{"holder": None, "lines": (), "more": False, "serving": True, "label": ""},
}
STATUS = {
    name: one
    for name, one in fields_of(READY).items()
    if name not in ("session", "request", "detail", "node")
}


class SessionPlayer(RolePlayer):
    """A session, the requests that it sent, and the holds that it had."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(SCENE, patch)

    def start(self, **arguments: Any) -> None:
        self.asked: list[tuple[Address, Any]] = []
        self.had: dict[tuple[LockKey, int], ClientHold] = {}
        self.opened = 0
        super().start(**arguments)

    def __call__(self, line: str) -> Iterable[str]:
        line, _, seen = line.partition(" see ")
        outcomes = self.outcomes(line.split(), line)
        for key, hold in self.state_now.holds.items():
            self.had[key, hold.fence] = hold
        names = {*seen.split()}
        return [one for one in outcomes if not names or names & {*one.replace(":", "").split()[:5]}]

    def outcomes(self, words: list[str], line: str) -> list[str]:
        match words:
            case ["keep", ms, *names]:
                self.effects.clear()
                self.keep(int(ms), [ENDPOINTS[name] for name in names])
                known = self.known(None)
                shown = [one for one in self.effects if not is_keeping(one)]
                return [*filter(None, [self.written(one, known) for one in shown])]
            case ["holds"]:
                return self.holds() or ["none"]
            case ["trust"]:
                return [self.trust()]
            case ["endpoints"]:
                return self.endpoints()
            case ["describe"]:
                return [self.state_now.endpoints.describe(self._now())]
            case ["patience"]:
                return [f"{self.state_now.endpoints.patience_ms} ms"]
            case _:
                return [*super().__call__(line)]

    @property
    def state_now(self) -> Any:
        role: Any = self.role
        return role.session_state

    def keep(self, ms: int, endpoints: list[Address]) -> None:
        """Let time pass while ``endpoints`` answer."""
        for _ in range(0, ms, 100):
            count = len(self.asked)
            self.run(100)
            for to, asked in self.asked[count:]:
                if isinstance(asked, KeepAlive) and to in endpoints:
                    alive = Alive(session=asked.session, node=node_of(to), request=asked.request)
                    self.receive(to, alive)

    def holds(self) -> list[str]:
        lines: list[str] = []
        for (key, fence), hold in self.had.items():
            has = self.state_now.holds.get(key) is hold
            name = f"{written(key.lock)}/{key.owner}"
            tokens = [one.token for one in hold.acquisitions]
            until = hold.lease.until if has and hold.lease is not None else None
            lease = "" if until is None else f" until {self.ms_to(until)} ms"
            count = f" for {tokens}" if has and tokens != [0] else ""
            gone = "" if has else " gone"
            reason = f": {hold.reason}" if hold.reason else ""
            lines.append(
                f"{name} {fence} {hold.state.name}{count}{lease if has else ''}{gone}{reason}"
            )
        return lines

    def trust(self) -> str:
        trust = self.state_now.session_lease.trust
        if trust is None:
            return "none"
        return f"suspect in {self.ms_to(trust.suspect_at)} ms, lost in {self.ms_to(trust.until)} ms"

    def ms_to(self, instant: int) -> int:
        return (instant - self._now()) // 1_000_000

    def endpoints(self) -> list[str]:
        known = self.state_now.endpoints
        return [
            f"{node_of(one)} {endpoint.state.name}" + " *" * (one == known.current)
            for one, endpoint in known.table.items()
        ]

    def played(self, line: str) -> Any:
        name, words = line.split(maxsplit=1)
        sender = NAMES.get(name, Address(name))
        kind = EVENTS[words.split()[0].rstrip(":")]
        given: dict[str, Any] = dict(ASKED)
        if name in ENDPOINTS or "/proxy" in name:
            asked = self.last_asked(sender, requests_for(kind))
            given |= REPLIED | {"session": self.state_now.session_lease.assigned or "c"}
            given |= STATUS | fields_of(asked) | {"node": node_of(sender)}
            given |= {"lock": getattr(asked, "lock", given["lock"])}
            if kind is session_message.Opened:
                self.opened += 1
                given["assigned"] = f"{given['session']}.{self.opened}"
            if kind is lock_message.Released:
                given["count"] = 0
            if kind is Refused:
                given |= {"lock": getattr(asked, "lock", "")}
        else:
            given["owner"] = role_of(sender)
        event = self.message(words, given)
        self.receive(sender, event)
        return event

    def last_asked(self, endpoint: Address, kinds: tuple[Any, ...]) -> Any:
        """Return the last request of ``kinds`` to an endpoint, else to any; None without one."""
        found = [(to, asked) for to, asked in self.asked if isinstance(asked, kinds)]
        there = [asked for to, asked in found if to == endpoint]
        return (there or [asked for _, asked in found] or [None])[-1]

    def known(self, event: Any) -> dict[str, Any]:
        lease, same = self.state_now.session_lease, fields_of(event)
        if requests_for(type(event)):
            same = {name: one for name, one in same.items() if name in ("lock", "owner", "fence")}
        same = {name: one for name, one in same.items() if name not in ("request", "session")}
        same.setdefault("lock", getattr(event, "lock", "") or "x")
        return ASKED | STATUS | {"session": lease.assigned or "c", "label": ""} | same

    def _perform(self, effect: Effect, sends: list[Send]) -> None:
        if isinstance(effect, Send) and role_of(effect.to) == "proxy":
            self.asked.append((effect.to, effect.message))
        super()._perform(effect, sends)

    def written(self, effect: Effect, known: Mapping[str, Any]) -> str:
        if isinstance(effect, Send) and effect.to not in ENDPOINTS.values():
            session = getattr(effect.message, "session", "")
            known = {**known, "session": session and known["session"]}
        match effect:
            case Wake(_, SessionTick()):
                return ""
            case Send(to, KeepAlive() | Probe() as asked):
                known = {**known, "request": asked.request}
                return super().written(effect, known)
            case Send(to, Surveyed(statuses=statuses, silent=silent)):
                nodes = " ".join(status.node for status in statuses)
                return f"{self.names[to]} Surveyed {nodes} silent={written(silent)}"
            case Connect(node, endpoint):
                return f"connect {node} {endpoint}"
            case Disconnect(node):
                return f"disconnect {node}"
            case Send(to, Refused(reason=reason, detail=detail) as no):
                shown = {"reason": reason, "detail": detail, "why": None}
                _, *rest = written(no, **{**known, **shown}).split()
                return " ".join((self.names.get(to, to), *rest, f"{reason.name}: {detail}"))
            case _:
                return super().written(effect, known)


def requests_for(kind: Any) -> tuple[Any, ...]:
    """Return the requests to which ``kind`` is a reply."""
    if kind in (ClusterUp, ClusterDown):
        return (Watch,)
    kinds: tuple[Any, ...] = getattr(kind, "REPLIES_TO", ())
    return kinds


def is_keeping(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, KeepAlive)
