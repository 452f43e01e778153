"""The player of transcripts of a proxy over a backend that the test plays (`role_transcript.py`).

``claims`` and ``clients``
    Return the waits and holds of the proxy, and the clients that it knows.

A request of ``ann#3`` is request 3 of the session ``ann``; without a number it has the next one.
Its owner is ``o``. Of an outcome, only the fields `SAME` are left out if they are equal in the
message to the proxy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.effect import Effect, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy import event
from fencelock.actors.proxy.lock_manager import LockRequest
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.role import Host
from support.expect import checked
from support.proxy_scene import ANN, ASK, BACKEND, BOB, LOCAL, claims_of, proxy_of_n1
from support.role_transcript import RolePlayer, Scene, events_of, fields_of
from support.transcript import KINDS, message_of, written

NODE = Address("n1/node")
SENDERS = {"ann": ANN, "bob": BOB, "backend": BACKEND, "inside": LOCAL, "ask": ASK, "node": NODE}


def make_proxy(host: Host) -> Proxy:
    return proxy_of_n1()


SCENE = Scene(make_proxy, KINDS | events_of(event), SENDERS)
SAME = ("lock", "session", "owner", "request")


class ProxyPlayer(RolePlayer):
    """The proxy of n1, and the numbers of the last requests of its clients."""

    def __init__(self, patch: pytest.MonkeyPatch, scene: Scene = SCENE) -> None:
        super().__init__(scene, patch)
        self.last = Counter[str]()

    def __call__(self, line: str) -> Iterable[str]:
        proxy = checked(Proxy, self.role)
        match line:
            case "claims":
                return map(claim_of, claims_of(proxy).by_key.values())
            case "clients":
                return [*proxy.clients.by_id] or ["none"]
            case _:
                return super().__call__(line)

    def played(self, line: str) -> Any:
        by, _, words = line.partition(" ")
        name, _, given = by.partition("#")
        number = int(given or self.last[name] + 1)
        self.last[name] = max(number, self.last[name])
        fields = {"session": self.session_of(name), "owner": "o", "request": number}
        event = message_of(words, self.scene.kinds, **{**self.scene.given, **fields})
        self.receive(self.scene.names.get(name, Address(f"{name}/session")), event)
        return event

    def session_of(self, name: str) -> str:
        return name

    def known(self, event: Any) -> dict[str, Any]:
        return {"lock": ""} | {name: one for name, one in fields_of(event).items() if name in SAME}

    def written(self, effect: Effect, known: Mapping[str, Any]) -> str:
        match effect:
            case Send(to, Refused(reason=reason, detail=detail) as no):
                shown = {"reason": reason, "detail": detail, "why": None}
                _, *rest = written(no, **{**known, **shown}).split()
                return " ".join((self.names.get(to, to), *rest, f"{reason.name}: {detail}"))
            case Wake(_, Tick()):
                return ""
            case Wake(after_ms, timer):
                return f"after {after_ms} ms {type(timer).__name__}"
            case _:
                return super().written(effect, known)


def claim_of(one: LockRequest) -> str:
    return f"{one.key.session}/{one.key.owner} {one.phase.name} {one.key.lock} ticket={one.ticket}"
