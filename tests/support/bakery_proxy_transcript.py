"""The player of transcripts of the proxy of `bakery` (`proxy_transcript.py`).

``leaders NODES NAME=VALUE ...``
    Let the election elect these leaders, in ``epoch`` 1 unless it says otherwise. ``reach`` names
    the nodes that the proxy reaches, of n1 to n4 if it is left out; ``ready=0`` says that no
    locks can be granted.

The proxy is that of n4, which does not lead. A message is about lock x and fence ``FENCE``, and one
of a leader about the last request, unless its fields say otherwise. The ``seed`` of the proxy, 1 by
default, chooses the leader that it asks first, n1, and the numbers of its requests, from 101.
Leaders that are sent the same message stand together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from fencelock.actors.api.cluster_message import Elected, MemberSeen
from fencelock.actors.bakery import event, wire
from fencelock.actors.bakery.backend import BakeryBackend, SendsDue
from fencelock.actors.bakery.config import PRIORITY, Terms, election_of, leader_of, proxy_of
from fencelock.actors.bakery.ticket import Who, pack_fence
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address
from fencelock.actors.proxy import event as proxy_event
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.role import Host
from support.proxy_scene import ANN, BOB, MEMBERS, readiness_of
from support.proxy_transcript import SAME, ProxyPlayer
from support.role_transcript import Scene, events_of, fields_of
from support.transcript import KINDS, NOTATIONS, Notation, message_of

LEADING = {name: leader_of(name) for name in MEMBERS}
INSIDE, NODE, PROXY = Address("n4/session"), Address("n4/node"), proxy_of("n4")
CLIENTS = {"ann": ANN, "bob": BOB, "inside": INSIDE}
FENCE = pack_fence(1, 9)
COUNTS = ("bakery.lock", "bakery.unlock", "bakery.renew", "bakery.query")
"""Counts that stand for a message that is shown."""


class FirstOfSeed(Random):
    """A source of chance whose first leader, and whose first long number, is that of the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first, self.long = seed, seed

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return (self.first - 2) % start

    def getrandbits(self, k: int, /) -> int:
        self.long += 1
        return 100 * (self.long - 1)


def make_proxy(host: Host, seed: int = 1, wait_ms: int | None = Terms().wait_ms) -> Proxy:
    terms = Terms(least_ms=100, wait_ms=wait_ms)
    backend = BakeryBackend("n4", MEMBERS, terms, FirstOfSeed(seed), 1)
    return Proxy(PROXY, host, backend=backend)


def _who(text: str) -> Who:
    return Who(*text.rsplit("/", 1))


NOTATIONS[Who] = Notation(_who, "/".join)
EVENTS = {"SendsDue": SendsDue, "Tick": Tick} | KINDS | events_of(event, proxy_event, wire)
NAMES = LEADING | CLIENTS | {"node": NODE, "timer": PROXY}
SCENE = Scene(make_proxy, EVENTS, NAMES, {"lock": "x", "fence": FENCE, "wait_ms": 60_000})
TERMS = {"hold_ms": 5_000, "grace_ms": 5_000}
GIVEN = {"lock": "x", "owner": "o", "fence": FENCE, "node": "n4", "label": "", "detail": ""}
SHOWN_ONCE = (*SAME, "wait_ms")
STATUS = {"protocol": "bakery", "nodes": MEMBERS, "uptime_ms": 1}
ELECTED = Elected(1, MEMBERS[:3], tuple(MemberSeen(name, True, PRIORITY) for name in MEMBERS))
STATE = {"holders": (), "waiters": (), "waiting": 0, "expired_ms": None, "epoch": 1}


class BakeryProxyPlayer(ProxyPlayer):
    """The proxy of n4, the last request of a client, and the last numbers sent to leaders."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.who, self.request = Who("", ""), 0
        self.sent: dict[str, Any] = {}
        super().__init__(patch, SCENE)

    def __call__(self, line: str) -> Iterable[str]:
        match line.split():
            case ["leaders", leaders, *words]:
                self.effects.clear()
                self.elect(leaders.split(","), dict(word.split("=") for word in words))
                known = self.known(None)
                return together([self.written(one, known) for one in self.effects])
            case _:
                return together(super().__call__(line))

    def elect(self, leaders: list[str], given: dict[str, str]) -> None:
        """Notify the proxy of the leaders and of the nodes that it reaches."""
        reachable = given.get("reach", ",".join(MEMBERS)).split(",")
        ready, epoch = given.get("ready") != "0", int(given.get("epoch", "1"))
        self.receive(election_of("n4"), readiness_of(epoch, leaders, reachable, ready=ready))

    def played(self, line: str) -> Any:
        name, words = line.split(maxsplit=1)
        if name in ("node", "timer") or "/" in name or name in LEADING:
            given = GIVEN | STATE | (TERMS if "fence=0" not in words else dict.fromkeys(TERMS, 0))
            last = {"who": self.who, "request": self.request}
            event = message_of(words, EVENTS, **given | last | self.sent)
            if isinstance(event, wire.QueryResult):
                holders = tuple(one._replace(fence=FENCE) for one in event.holders)
                event = replace(event, holders=holders)
            self.receive(NAMES.get(name, Address(name)), event)
        else:
            event = super().played(line)
            self.who = Who(event.session, getattr(event, "owner", ""))
            self.request = event.request
        return event

    def session_of(self, name: str) -> str:
        return "n4/b00" if name == "inside" else name

    def known(self, event: Any) -> dict[str, Any]:
        same = {name: one for name, one in fields_of(event).items() if name in SHOWN_ONCE}
        last = {"who": self.who, "session": self.who.session, "request": self.request}
        return GIVEN | TERMS | STATUS | {"elected": ELECTED} | last | same

    def _perform(self, effect: Effect, sends: list[Send]) -> None:
        if isinstance(effect, Send) and effect.to in LEADING.values():
            numbers = {"number", "nonce"} & fields_of(effect.message).keys()
            self.sent |= {name: getattr(effect.message, name) for name in numbers}
        super()._perform(effect, sends)

    def written(self, effect: Effect, known: Mapping[str, Any]) -> str:
        if isinstance(effect, Observe) and effect.name in COUNTS:
            return ""
        return super().written(effect, known).replace(str(FENCE), "FENCE")


def together(outcomes: Iterable[str]) -> list[str]:
    """Write a message that several leaders are sent as one outcome."""
    runs: list[tuple[list[str], str]] = []
    for outcome in filter(None, outcomes):
        name, _, text = outcome.partition(" ")
        if name in LEADING and runs and runs[-1][1] == text and name not in runs[-1][0]:
            runs[-1][0].append(name)
        else:
            runs.append(([name], text))
    return [" ".join((*names, text)) for names, text in runs]
