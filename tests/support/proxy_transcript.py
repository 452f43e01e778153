"""The player of transcripts of a proxy over a backend that the test plays (`transcript.py`).

``run MS``
    Let time pass; the timers that are due fire.
``claims`` and ``clients``
    Return the waits and holds of the proxy, and the clients that it knows.

Other lines are messages to the proxy, each after its sender (`SENDERS`). A request of ``ann#3`` is
request 3 of the session ``ann``; without a number it has the next one. Its owner is ``o``. An
outcome is an effect: what is sent, to whom, a timer that is set, a count. Fields that are equal in
the message to the proxy are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from inspect import getmembers, isclass
from typing import Any

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.effect import Effect, Observe, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy import event as proxy_message
from fencelock.actors.proxy.lock_manager import LockRequest
from fencelock.actors.proxy.proxy import Proxy, Tick
from support.proxy_scene import ANN, ASK, BACKEND, BOB, LOCAL, claims_of, proxy_of_n1
from support.role_harness import RoleHarness
from support.transcript import KINDS, message_of, written

NODE = Address("n1/node")
SENDERS = {"ann": ANN, "bob": BOB, "backend": BACKEND, "inside": LOCAL, "ask": ASK, "node": NODE}
NAMES = {address: name for name, address in SENDERS.items()}
EVENTS = KINDS | dict(getmembers(proxy_message, isclass))
SAME = ("lock", "session", "owner", "request")


class ProxyPlayer(RoleHarness[Proxy]):
    """The proxy of n1, and the numbers of the last requests of its clients."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        super().__init__(lambda host: proxy_of_n1())
        self.last = Counter[str]()

    def __call__(self, line: str) -> Iterable[str]:
        self.effects.clear()
        event: Any = None
        match line.split(maxsplit=1):
            case ["claims"]:
                return map(claim_of, claims_of(self.role).by_key.values())
            case ["clients"]:
                return [*self.role.clients.by_id] or ["none"]
            case ["run", ms]:
                self.run(int(ms))
            case _:
                by, _, words = line.partition(" ")
                name, _, given = by.partition("#")
                number = int(given or self.last[name] + 1)
                self.last[name] = max(number, self.last[name])
                event = message_of(words, EVENTS, session=name, owner="o", request=number)
                self.receive(SENDERS[name], event)
        return filter(None, (effect_of(one, event) for one in self.effects))

    def _perform(self, effect: Effect, sends: list[Send]) -> None:
        self.effects.append(effect)
        super()._perform(effect, sends)


def claim_of(one: LockRequest) -> str:
    return f"{one.key.session}/{one.key.owner} {one.phase.name} {one.key.lock} ticket={one.ticket}"


def effect_of(effect: Effect, event: Any) -> str:
    """Return an effect of ``event`` in short; empty for the timer that the proxy sets each time."""
    known = {name: getattr(event, name) for name in SAME if hasattr(event, name)}
    match effect:
        case Send(to, Refused(reason=reason, detail=detail) as no):
            _, *rest = written(no, **known, reason=reason, detail=detail).split()
            return " ".join((NAMES[to], *rest, f"{reason.name}: {detail}"))
        case Send(to, message):
            return f"{NAMES[to]} {written(message, **known)}"
        case Wake(_, Tick()):
            return ""
        case Wake(after_ms, timer):
            return f"after {after_ms} ms {type(timer).__name__}"
        case Observe(name):
            return f"count {name}"
        case _:
            raise NotImplementedError(effect)
