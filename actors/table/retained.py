"""Holds that a session retains for its own owners: their fences, and their recalls.

Such a hold is one hold of one owner, with a *span* of fences. Its session gives one of them to each
of its own owners, so the table gives none of them to anybody else. A claim that queues behind the
hold needs it back: the table *recalls* it (`Recall`), and the session releases it.

A hold is recalled when the first claim begins to wait for its object, or when it is granted while
others wait already. A notification may be lost, so it is recalled again with each keep-alive of its
session, as long as it lasts and somebody waits. One keep-alive recalls `RECALLS_MAX` holds at most,
and the next goes on where it stopped.

A claim that does not wait would be denied although nobody uses the lock. So it waits for a moment,
`COME_BACK_MS`, where only retained holds keep it from being granted: an idle lock comes back.

All holds of a semaphore may have spans: three for each session, since proxies accept no owners but
`RETAINERS`, so 300,000 at `SESSIONS_MAX`. A command must not walk over so many. Only the first wait
does, to note them in their sessions. They stay noted when it ends, so that the next wait notes only
what is new.

Invariants:
    none-forgotten  A hold with a span, for whose object somebody waits, is in `Session.awaited`.
        What else is there is removed when it is found, so it does not show in the outcomes.
    noted-once  A hold with a span is either in `Session.awaited` or in `Spans.unnoted`. It gets
        into the latter by its grant or by a keep-alive of its session, so that walks over these
        cost no more than those commands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.name import kind_of, titled
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.resource import CAPACITIES

if TYPE_CHECKING:
    from fencelock.actors.table.resource import ClaimDetails, Resource, TableHold
    from fencelock.actors.table.session import OwnerState, Session
    from fencelock.actors.table.state import TableState
    from fencelock.actors.table.wire import Result

RECALLS_MAX = 100
"""Maximum recalls of one object that a command makes, and of all that one keep-alive repeats:
other commands wait for these."""

COME_BACK_MS = 200
"""Time for which a claim that does not wait is queued for a retained lock (ms)."""

_fence_of = attrgetter("fence")


class Spans(Struct, eq=False):
    """The holds of one object that have a span.

    Attributes:
        holds: all of them, by fence, which is the order of their grants; at least one.
        unnoted: those that are not in `Session.awaited` (noted-once), by fence, in any order.

    """

    holds: list[TableHold] = field(default_factory=list["TableHold"])
    unnoted: dict[int, TableHold] = field(default_factory=dict[int, "TableHold"])

    def add(self, hold: TableHold) -> None:
        """Add a new hold, or one of a snapshot, which comes in any order until `sort`."""
        self.holds.append(hold)
        self.unnoted[hold.fence] = hold

    def sort(self) -> None:
        self.holds.sort(key=_fence_of)

    def remove(self, hold: TableHold) -> None:
        del self.holds[bisect_left(self.holds, hold.fence, key=_fence_of)]
        self.unnoted.pop(hold.fence, None)

    def contain(self, fence: int) -> bool:
        """Return whether ``fence`` is in one of the spans. These do not overlap (fences-rise)."""
        place = bisect_right(self.holds, fence, key=_fence_of)
        if place == 0:
            return False
        hold = self.holds[place - 1]
        return fence < hold.fence + hold.details.span

    def after(self, fence: int, most: int) -> list[TableHold]:
        place = bisect_right(self.holds, fence, key=_fence_of)
        return self.holds[place : place + most]

    def take_back(self, hold: TableHold) -> None:
        """Add one to those that are not noted, since nobody waits any more."""
        self.unnoted[hold.fence] = hold


def check_retained(command: AcquireRetained) -> None:
    """Raise InvalidRequestError if such objects cannot be retained, or have that many permits."""
    command.check()
    kind = kind_of(command.lock)
    least, most = CAPACITIES.get(kind, (0, 0))
    if not most or kind == ELECTION:
        raise InvalidRequestError(
            f"{titled(command.lock)} cannot be retained: locks, read/write locks and semaphores can"
        )
    if not least <= command.permits <= most:
        raise InvalidRequestError(
            f"{titled(command.lock)}: permits is {command.permits}, {least} to {most} are allowed"
        )


def begin_span(table: Any, hold: TableHold) -> None:
    table.fence += hold.details.span - 1  # fences-rise
    add_span(table, hold)


def add_span(table: Any, hold: TableHold) -> None:
    """Add a hold to those with a span; it may come from a snapshot."""
    owner_state = hold.owner_state
    resource: Resource = table.resources[owner_state.lock]
    if resource.spans is None:
        resource.spans = Spans()
    resource.spans.add(hold)
    table.retained += 1
    owner_state.session.retained += 1


def end_span(table: Any, hold: TableHold) -> None:
    owner_state = hold.owner_state
    resource: Resource = table.resources[owner_state.lock]
    assert resource.spans is not None
    resource.spans.remove(hold)
    if not resource.spans.holds:
        resource.spans = None
    table.retained -= 1
    owner_state.session.retained -= 1
    awaited = owner_state.session.awaited
    if awaited is not None:
        place = bisect_left(awaited, hold.fence, key=_fence_of)
        if awaited[place : place + 1] == [hold]:
            del awaited[place]


def note_awaited(spans: Spans) -> None:
    """Note in the sessions of the unnoted holds that somebody waits for them (none-forgotten)."""
    for hold in spans.unnoted.values():
        session = hold.owner_state.session
        if session.awaited is None:
            session.awaited = []
        insort(session.awaited, hold, key=_fence_of)
    spans.unnoted.clear()


def may_come_back(
    table: TableState, owner_state: OwnerState, details: ClaimDetails, amount: int
) -> bool:
    """Return whether an idle retained hold may be what keeps a new claim from being granted."""
    found = map(table.resources.get, details.locks or (owner_state.lock,))
    blocking = [one for one in found if one is not None and not one.admits(amount)]
    return all(
        one.spans is not None and len(one.spans.holds) == one.holding and not one.queue
        for one in blocking
    )


def recall_first(table: TableState, objects: Iterable[str], out: list[Result]) -> None:
    """Recall what keeps a new wait for ``objects`` waiting, where it is the first of the queue."""
    for name in objects:
        resource = table.resources.get(name)
        if resource is not None and resource.spans is not None and resource.waiting == 1:
            recall_since(resource, resource.spans, 0, out)


def recall_since(resource: Resource, spans: Spans, fence: int, out: list[Result]) -> None:
    """Recall the holds with a span that were granted after ``fence``; somebody waits for them.

    Of very many, keep-alives recall the rest.
    """
    note_awaited(spans)
    for hold in spans.after(fence, RECALLS_MAX):
        out.append(_recall(hold, resource.waiting))


def recall_again(table: Any, session: Session, out: list[Result]) -> None:
    """Repeat recalls of holds of ``session``, after those that were repeated last."""
    awaited = session.awaited
    if not awaited:
        return
    table.changing = True
    place, left = bisect_right(awaited, session.recalled, key=_fence_of), RECALLS_MAX
    for _ in range(len(awaited)):
        if not left:
            return
        place = place if place < len(awaited) else 0
        hold = awaited[place]
        resource = table.resources[hold.owner_state.lock]
        waiting = resource.waiting
        if waiting == 0:
            del awaited[place]
            resource.spans.take_back(hold)
            continue
        out.append(_recall(hold, waiting))
        session.recalled = hold.fence
        place += 1
        left -= 1


def _recall(hold: TableHold, waiting: int) -> Recall:
    owner_state = hold.owner_state
    owner, lock = owner_state.key
    return Recall(
        lock=lock,
        fence=hold.fence,
        session=owner_state.session.id,
        owner=owner,
        waiting=waiting,
    )
