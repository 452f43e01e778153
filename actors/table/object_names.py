"""The names of objects in order, for the pages that people read and for purges.

Most holds end before anybody reads a page. So the name of what is held is first *recent*, which
costs a grant and an end next to nothing, and is sorted only when somebody reads, or when recent
names are many. So no read walks over all names, and none has many names to sort. When the names are
sorted has no effect that can be seen: what is held depends on the log alone.

Each kind has its own order, since a prefix without a kind is that of the plain names of all kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from fencelock.actors.api.name import KIND_END, kind_of, object_name
from fencelock.actors.table.map import SortedKeys

RECENT_MAX = 4_096
"""Number of recent names above which they are sorted, which takes some 4 ms."""


class ObjectNames:
    """A set of names.

    Attributes:
        recent: the names that are not sorted yet. A name may enter the set here, and if it leaves
            soon, it leaves it here too.

    """

    def __init__(self) -> None:
        self.recent: dict[str, None] = {}
        self._sorted: dict[str, SortedKeys] = {}
        """The other names, by kind. Kinds are few: the table refuses those that clients invent."""

    def add(self, name: str) -> None:
        self._sorted.setdefault(kind_of(name), SortedKeys()).add(name)

    def remove(self, name: str) -> None:
        """Remove a name that is not among the recent ones."""
        self._sorted[kind_of(name)].remove(name)

    def settle(self) -> None:
        for name in self.recent:
            self.add(name)
        self.recent.clear()

    def within(self, prefix: str, after: str) -> Iterator[str]:
        """Return the names above ``after`` that begin with ``prefix``, in order.

        A prefix without a kind is that of the plain names.
        """
        self.settle()
        if KIND_END in prefix:
            names = self._sorted.get(kind_of(prefix))
            return iter(()) if names is None else names.within(prefix, after)
        return merge(
            *(
                names.within(object_name(kind, prefix) if kind else prefix, after)
                for kind, names in self._sorted.items()
            )
        )
