"""The check whether a key allows a request. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.api.name import NAME_END, plain_name, quoted
from fencelock.actors.api.request import Request
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.error import ForbiddenError
from fencelock.actors.message import Instant, Local
from fencelock.actors.repeated import Repetitions, times_text
from fencelock.actors.role_message import Level, notice

CLIENT, OPERATOR, NODE = ROLES = ("client", "operator", "node")
"""The roles of keys. An operator, or a node, may also send requests that change the cluster."""


def key_of(client: str) -> str:
    """Return the name of the key of ``client``, where keys are used."""
    return client.partition(NAME_END)[0]


class Rights(NamedTuple):
    """The role of one key, and the names that it may use."""

    name: str
    """The name of the key: the id of a node, or that with which ids of clients begin."""
    role: str
    """One of `ROLES`."""
    prefixes: tuple[str, ...] = ()
    """The beginnings of all names that it may use; empty for no limit."""


class RightsChanged(Local):
    """From the host: these are the rights of all keys from now on."""

    rights: tuple[Rights, ...]


class AccessControl:
    """The rights of all keys. The transport has checked that a client uses a key of its own."""

    def __init__(self, node: str, rights: Iterable[Rights]) -> None:
        self.node = node
        self._refusals = Repetitions()
        self.replace(rights)

    def replace(self, rights: Iterable[Rights]) -> None:
        self._rights = {one.name: one for one in rights}

    def knows(self, client: str) -> bool:
        """Return whether the key of ``client`` is in the list, or it is of this process."""
        return client == self.node or key_of(client) in self._rights

    def rights_of(self, key: str) -> Rights | None:
        return self._rights.get(key)

    def check(self, client: str, request: Request) -> None:
        """Refuse a request that the key of ``client`` does not allow.

        Raises:
            ForbiddenError: naming the key, its role, and what is needed.

        """
        if client == self.node:
            return  # A caller inside the process.
        name = key_of(client)
        rights = self._rights.get(name)
        what = type(request).__name__
        if rights is None:
            raise ForbiddenError(f"key {name!r} was removed, so {what} is refused")
        if rights.role == CLIENT and request.needs_operator():
            raise ForbiddenError(
                f"key {name!r} has the role client, and {what} needs the role operator: use an "
                'operator\'s key ("fencelock keys add NAME --role operator" makes one)'
            )
        for reach in request.reach if rights.prefixes else ():
            if not reach.startswith(rights.prefixes):
                about = f"{quoted(reach)}: use such names, or a key that has a prefix for this one"
                if not reach:
                    about = (
                        "all names: ask for such names only, on the command line with --prefix, or "
                        "use a key without prefixes"
                    )
                raise ForbiddenError(
                    f"key {name!r} has the role {rights.role} for names that begin with "
                    f"{_listed(rights.prefixes)}, and {what} is about {about}"
                )

    def visible(self, client: str, locks: tuple[LockStatus, ...]) -> tuple[LockStatus, ...]:
        if not self.is_limited(client):
            return locks
        rights = self._rights.get(key_of(client))
        prefixes = () if rights is None else rights.prefixes
        return tuple(one for one in locks if plain_name(one.lock).startswith(prefixes))

    def is_limited(self, client: str) -> bool:
        """Return whether ``client`` may not know of all names."""
        rights = self._rights.get(key_of(client))
        return client != self.node and (rights is None or bool(rights.prefixes))

    def refused(self, client: str, request: Request, now: Instant) -> list[Effect]:
        """Count a refused request, and log it once an interval."""
        name, what = key_of(client), type(request).__name__
        effects: list[Effect] = [Observe("proxy.forbidden")]
        count = self._refusals.add(f"{name} {what}", now)
        if count:
            text = f"refused {what} of {client}: its key does not allow it{times_text(count)}"
            fields = ("event", "forbidden"), ("key", name), ("count", str(count))
            effects.append(notice(self.node, Level.WARNING, text, fields))
        return effects


def _listed(prefixes: tuple[str, ...]) -> str:
    return " or ".join(map(quoted, prefixes))
