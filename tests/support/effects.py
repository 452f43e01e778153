"""Reading the effects of roles, and a host for roles whose ``handle`` a test calls itself."""

from __future__ import annotations

from typing import Any, TypeVar

from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.role import Role

T0 = Instant(0)

M = TypeVar("M")


class NoHost:
    """A host for a role that is never adopted: whoever drives it performs its effects."""

    def now(self) -> Instant:
        """Return the beginning of time."""
        return T0

    def perform(self, source: Address, effects: Effects) -> None:
        """Refuse."""
        raise AssertionError((source, effects))

    def adopt(self, role: Role[Any]) -> None:
        """Refuse."""
        raise AssertionError(role)


HOST = NoHost()


def at(ms: int) -> Instant:
    """Return the instant ``ms`` milliseconds after `T0`."""
    return Instant(ms * NS_PER_MS)


def sends(effects: Effects) -> list[Send]:
    """Return the sends among ``effects``."""
    return [effect for effect in effects if isinstance(effect, Send)]


def sent(effects: Effects, kind: type[M], to: Address | None = None) -> list[M]:
    """Return the sent messages of ``kind``, to ``to`` or to any address."""
    return [
        send.message
        for send in sends(effects)
        if isinstance(send.message, kind) and (to is None or send.to == to)
    ]


def only_sent(effects: Effects, kind: type[M], to: Address | None = None) -> M:
    """Return the only sent message of ``kind``, to ``to`` or to any address."""
    (message,) = sent(effects, kind, to)
    return message


def not_counted(effects: Effects) -> list[Effect]:
    """Return ``effects`` without the counters."""
    return [effect for effect in effects if not isinstance(effect, Observe)]


def counted(effects: Effects) -> list[str]:
    """Return the names of the counters among ``effects``."""
    return [effect.name for effect in effects if isinstance(effect, Observe)]
