"""Space-time diagrams: processes as lines, messages as arrows, holds as bars; time goes down.

Source: Lamport 1978, figure 1, turned so that messages can be read.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from fencelock.actors.api.role_request import TraceLine
from fencelock.actors.message import Address, node_of
from fencelock.actors.trace import RECEIVES, SENDS
from fencelock.cluster.svg import COLOURS, PALE, Picture

COLUMN, ROW = 190.0, 17.0
"""Distance between two processes, and between two events."""
LEFT, TOP = 100.0, 64.0
BAR = 9.0
"""Width of the bar of a hold."""
CLIENT_CHARS = 22

GRANTED, ENDINGS = "Granted", ("Release", "Released")
"""Messages between a node's proxy and a client that begin and end a hold."""


class Event(NamedTuple):
    """A line of the trace of one node."""

    node: str
    line: TraceLine


class Hold(NamedTuple):
    """A hold, as rows of the diagram."""

    node: str
    lock: str
    first: int
    last: int


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the lines of all nodes by logical time, each node's own in its order.

    A message is received at a later logical time than it was sent, so it comes after that.
    """
    return sorted(events, key=lambda one: (one.line.time, one.node, one.line.number))


ROUTINE = (
    *("Heartbeat", "HeartbeatAck", "Beat", "NodeInfo", "Confirm", "Greet", "KeepAlive", "Alive"),
    *("Probe", "Probed", "ProbeReply", "Describe", "NodeStatus"),
)
"""Messages that come whether anybody wants a lock or not."""


def chosen(events: Iterable[Event], lock: str | None, without: Collection[str]) -> list[Event]:
    """Return the events about ``lock`` and about no lock, or without a lock all of them.

    Messages of the kinds ``without`` are left out.
    """
    return [
        one
        for one in events
        if (lock is None or one.line.lock in ("", lock)) and one.line.kind not in without
    ]


def text_of(event: Event) -> str:
    line = event.line
    way = "from" if line.act == RECEIVES else "to"
    after = f"; {line.state}" if line.state else ""
    return f"{line.time} {event.node}/{line.role} {line.act} {line.text} {way} {line.peer}{after}"


def space_time(events: Sequence[Event], title: str) -> str:
    """Return the diagram of ``events``, which are in order, as an SVG document.

    Messages within a node are left out.
    """
    nodes = sorted({one.node for one in events})
    events = [one for one in events if node_of(Address(one.line.peer)) != one.node]
    peers = {node_of(Address(one.line.peer)) for one in events}
    places = {name: at for at, name in enumerate([*nodes, *sorted(peers - {*nodes})])}
    bottom = TOP + ROW * (len(events) + 1)
    width = LEFT + COLUMN * len(places)
    picture = Picture(width, bottom + 16, title)

    def x_of(process: str) -> float:
        return LEFT + COLUMN * (places[process] + 0.5)

    def y_of(row: float) -> float:
        return TOP + ROW * (row + 1)

    picture.text(12, 20, title, 13, bold=True)
    for process in places:
        name = process if len(process) <= CLIENT_CHARS else f"{process[: CLIENT_CHARS - 1]}…"
        picture.text(x_of(process), TOP - 12, name, anchor="middle", bold=process in nodes)
        picture.line([(x_of(process), TOP - 4), (x_of(process), bottom)], PALE, 1.5)
    locks = sorted({one.line.lock for one in events if one.line.lock})
    colours = {lock: COLOURS[at % len(COLOURS)] for at, lock in enumerate(locks)}
    for hold in holds_in(events):
        bar = x_of(hold.node) - BAR / 2, y_of(hold.first), BAR, ROW * (hold.last - hold.first)
        picture.rectangle(*bar, colours[hold.lock], f"{hold.node}: {hold.lock} is held")
    start = events[0].line.time if events else 0
    sent_at = _sent_at(events)
    for row, (node, line) in enumerate(events):
        peer = node_of(Address(line.peer))
        colour = colours.get(line.lock, "#888888")
        here, there = (x_of(node), y_of(row)), x_of(peer)
        picture.text(12, here[1] + 4, f"+{line.time - start}", 9, "#888888")
        picture.dot(*here, colour, 2.5, text_of(events[row]))
        if line.act == RECEIVES:
            began = there, y_of(sent_at.get(row, row - 0.6))
            picture.line([began, here], colour, arrow=True, title=line.text)
            middle = (there + here[0]) / 2, (began[1] + here[1]) / 2 - 2
            picture.text(*middle, line.kind, 9, colour, anchor="middle")
        elif row not in sent_at.values():
            if peer in nodes:  # It was lost, or its receipt is not in the trace.
                end = here[0] + (there - here[0]) * 0.3, here[1] + ROW * 0.4
                picture.line([here, end], colour, dashed=True, title=line.text)
                picture.text(end[0], end[1] + 3, f"{line.kind} …", 9, colour, anchor="middle")
            else:
                end = there, here[1] + ROW * 0.6
                middle = (there + here[0]) / 2, here[1] + ROW * 0.3 - 2
                picture.line([here, end], colour, arrow=True, title=line.text)
                picture.text(*middle, line.kind, 9, colour, anchor="middle")
    return str(picture)


def _sent_at(events: Sequence[Event]) -> dict[int, int]:
    """Return for each row of a receipt the row in which its message was sent, where it is known."""
    sent = defaultdict[tuple[str, str, str], deque[int]](deque)
    found: dict[int, int] = {}
    for row, (node, line) in enumerate(events):
        role = f"{node}/{line.role}"
        if line.act == SENDS:
            sent[role, line.peer, line.text].append(row)
        elif rows := sent[line.peer, role, line.text]:
            found[row] = rows.popleft()
    return found


def holds_in(events: Sequence[Event]) -> list[Hold]:
    """Return the holds that nodes granted to clients; those without an end last to the last row.

    A client may release through another node.
    """
    begun: dict[tuple[str, str], tuple[str, int]] = {}
    holds: list[Hold] = []
    for row, (node, line) in enumerate(events):
        key = line.lock, node_of(Address(line.peer))
        if line.act == SENDS and line.kind == GRANTED:
            begun.setdefault(key, (node, row))
        elif line.kind in ENDINGS and key in begun:
            granting, first = begun.pop(key)
            holds.append(Hold(granting, line.lock, first, row))
    last = len(events)
    return holds + [Hold(node, lock, row, last) for (lock, _), (node, row) in begun.items()]
