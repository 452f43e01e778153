"""Marks for a profile: the times of the steps of a node or client, recorded by its dispatcher.

Neither a node nor a client knows of them. `ProfileMarks.watch_dispatchers_of` puts a subclass in
the place of the `Dispatcher` that a module starts, which wraps the sockets, the journal and the
roles. As a program, this module runs the command line so, and writes the marks at the end::

    python -m fencelock.verification.bench.profile_marks n1.marks serve --id n1
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from fencelock.actors.effect import Effects, Spawn
from fencelock.actors.message import Address, Event, Instant, role_of
from fencelock.actors.role import Role
from fencelock.cluster.cli.start import main
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.gateway import Links
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node import node as nodes
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.listener import Arrival

MARKS_MAX = 1_000_000
"""Limit of marks of one node, some 200 bytes each; above it the oldest are dropped."""

L = TypeVar("L", bound=Links)

now_ns = time.monotonic_ns
"""Reads a clock that all processes of a machine share."""


class Mark(NamedTuple):
    """One step of a node, with its begin and end.

    ``what`` is ``poll``, ``ring``, ``receive``, ``send``, ``append``, ``sync``, or the name of
    the role that was given a turn; ``detail`` is the links that frames came over or went to,
    separated by spaces.
    """

    what: str
    begin_ns: int
    end_ns: int
    detail: str = ""


class ProfileMarks:
    """The marks of one node, or of one client, in the order in which they ended."""

    def __init__(self) -> None:
        self.marks: deque[tuple[str, int, int, str]] = deque(maxlen=MARKS_MAX)
        """Each has the fields of a `Mark`."""

    def watch_dispatchers_of(self, module: ModuleType) -> None:
        """Mark the steps of each dispatcher that ``module`` makes from now on."""
        marks = self

        class MarkedDispatcher(Dispatcher):
            def __init__(
                self, node: str, hub: Links, *, journal: Journal | None = None, **options: Any
            ) -> None:
                super().__init__(node, marks.links(hub), journal=marks.journal(journal), **options)

            def start(self, role_set: RoleSet) -> None:
                super().start(marks.role_set(role_set))

        vars(module)["Dispatcher"] = MarkedDispatcher

    def links(self, links: L) -> L:
        self._watch(links, "poll")
        self._watch(links, "ring")
        self._watch(links, "send", _receiver)
        self._watch(links, "receive_members", _senders, "receive")
        self._watch(links, "receive_clients", _senders_of_clients, "receive")
        return links

    def journal(self, journal: Journal | None) -> Journal | None:
        """Mark the calls of the journal, if there is one; return it."""
        if journal is not None:
            self._watch(journal, "append")
            self._watch(journal, "sync")
        return journal

    def role_set(self, role_set: RoleSet) -> RoleSet:
        """Return ``role_set`` with the turns of its roles marked, and of all that they spawn."""
        return dataclasses.replace(
            role_set, roles=tuple(self._watched(spawn) for spawn in role_set.roles)
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(list(self.marks)), encoding="utf-8")

    def _watch(
        self,
        thing: object,
        method: str,
        detail: Callable[[Any, Any], str] | None = None,
        name: str = "",
    ) -> None:
        """Mark each call of ``method`` of ``thing`` that returns, under ``name`` if given.

        ``detail`` gets the first argument and the result.
        """
        call, note, what = getattr(thing, method), self.marks.append, name or method

        def watched(*given: Any) -> Any:
            begin_ns = now_ns()
            result = call(*given)
            note((what, begin_ns, now_ns(), ""))
            return result

        def watched_in_detail(*given: Any) -> Any:
            begin_ns = now_ns()
            result = call(*given)
            end_ns = now_ns()
            note((what, begin_ns, end_ns, detail(given[0], result) if detail else ""))
            return result

        setattr(thing, method, watched if detail is None else watched_in_detail)

    def _watched(self, spawn: Spawn) -> Spawn:
        """Return ``spawn`` with a class of roles whose turns are marked."""
        kind, name = spawn.role, role_of(spawn.address)
        turn, note, again = kind.handle, self.marks.append, self._watched

        def handle(role: Role[Any], sender: Address, event: Event, now: Instant) -> Effects:
            begin_ns = now_ns()
            effects = turn(role, sender, event, now)
            note((name, begin_ns, now_ns(), ""))
            for effect in effects:
                if type(effect) is Spawn:  # Roles that it spawns are marked as well.
                    return [again(one) if isinstance(one, Spawn) else one for one in effects]
            return effects

        return replace(spawn, role=type(kind.__name__, (kind,), {"handle": handle}))


def read_marks(path: Path) -> list[Mark]:
    return [Mark(*fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def _receiver(link: Any, sent: Any) -> str:
    return str(link)


def _senders(most: int, arrivals: Iterable[Arrival]) -> str:
    return " ".join(dict.fromkeys(link for link, _ in arrivals))


def _senders_of_clients(most: int, received: tuple[Iterable[Arrival], int]) -> str:
    return _senders(most, received[0])


if __name__ == "__main__":
    recorded, file = ProfileMarks(), Path(sys.argv.pop(1))
    recorded.watch_dispatchers_of(nodes)
    try:
        main()
    finally:
        recorded.write(file)
