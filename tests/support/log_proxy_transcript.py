"""The player of transcripts of the proxy of `paxos` (`proxy_transcript.py`).

``log OUTCOME`` and ``log OUTCOME; OUTCOME ...``
    Let the replica of the node apply a slot with these outcomes.
``quota NAME=NUMBER ...``
    Give each client these quotas, and no others.
``in flight``
    Return the requests that have no outcome yet.

A request of ``ann`` is of her session ``ann.7``, and so for other clients. ``far`` is the replica
of n2. An outcome is that of Ann's last request, unless its fields say otherwise. What is proposed
is ``propose``, with its number, and the command; each event is a turn by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fencelock.actors import bootstrap_message
from fencelock.actors.api import cluster_message
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import Address
from fencelock.actors.paxos import event, wire
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.paxos.wire import Propose
from fencelock.actors.proxy import event as proxy_event
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.quota import Quotas
from fencelock.actors.role import Host
from fencelock.actors.table import report
from fencelock.transport.codec import decode
from support.expect import checked
from support.log_proxy_scene import FAR, ME, PROXY, REPLICA, in_flight_at, log_proxy
from support.proxy_scene import ANN, ASK, BOB, UnbatchedProxy
from support.proxy_transcript import NODE, ProxyPlayer
from support.role_transcript import Scene, events_of, fields_of
from support.transcript import KINDS, message_of, written

MOVED = Address("ann/other")
CLIENTS = {"ann": ANN, "ann-2": MOVED, "bob": BOB, "ask": ASK}
NAMES = CLIENTS | {"node": NODE, "replica": REPLICA, "far": FAR, "timer": PROXY}
GIVEN = {"session": ME, "owner": "o", "node": "", "detail": ""}
OWN = events_of(event, wire, proxy_event)
OTHERS = events_of(bootstrap_message, cluster_message, report)


def make_proxy(host: Host) -> Proxy:
    return log_proxy(UnbatchedProxy)


SCENE = Scene(make_proxy, OWN | KINDS | OTHERS | {"Tick": Tick}, NAMES, GIVEN)
SESSIONS = {"ann-2": ME, "ask": "", "timer": ""}


class LogProxyPlayer(ProxyPlayer):
    """The proxy of n1, whose log has n1, n2 and n3."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch, SCENE)

    def __call__(self, line: str) -> Iterable[str]:
        proxy = checked(Proxy, self.role)
        match line.split():
            case ["quota", *given]:
                pairs = (one.split("=") for one in given)
                proxy.clients.quotas = Quotas(**{name: int(number) for name, number in pairs})
                return ()
            case ["in", "flight"]:
                known = in_flight_at(proxy).by_key.values()
                shown = [f"{one.number}: {written(one.request, **GIVEN)}" for one in known]
                return shown or ["none"]
            case _:
                return super().__call__(line)

    def played(self, line: str) -> Any:
        by, _, words = line.partition(" ")
        given = GIVEN | {"request": self.last["ann"]}
        if by == "log":
            texts = words.split("; ")
            outcomes = tuple(message_of(text, SCENE.kinds, **given) for text in texts)
            self.receive(REPLICA, SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes))
            return outcomes[0]
        if by in ("replica", "far", "node") or "/" in by:
            event = self.message(words, given)
            self.receive(NAMES.get(by, Address(by)), event)
            return event
        return super().played(line)

    def session_of(self, name: str) -> str:
        return SESSIONS.get(name, f"{name}.7")

    def known(self, event: Any) -> dict[str, Any]:
        about = {name: getattr(event, name, "") for name in ("lock", "owner")}
        return GIVEN | ({} if event is None else about | fields_of(event))

    def written(self, effect: Effect, known: Mapping[str, Any]) -> str:
        match effect:
            case Send(to, Propose(number=number, command=command)) if to == REPLICA:
                return f"propose {number}: {written(decode(command), **known)}"
            case _:
                return super().written(effect, known)
