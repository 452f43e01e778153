"""Events that may happen often, of which only some are worth a line in the log. Pure."""

from __future__ import annotations

from collections import OrderedDict

from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.role_message import Level, RoleNotice

INTERVAL_NS = 10_000_000_000
"""Least time between two lines about events of one kind (ns, 10 s)."""

REPORT_NS = 60_000_000_000
"""Least time between two lines about one sender and one kind of impossible message (ns, 60 s)."""

KINDS_MAX = 256
"""Limit of kinds that are remembered: strangers choose some of them."""


class Repetitions:
    """Counts events by kind: the first one is worth a line, then one an interval."""

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self._interval_ns = interval_ns
        self._kinds: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By kind: the events since its last line, and when the next line is due (ns)."""

    def add(self, kind: str, now: int) -> int:
        """Count an event; return how many a line that is due stands for, 0 if none is due."""
        count, due = self._kinds.pop(kind, (0, now))
        count += 1
        is_due = now >= due
        self._kinds[kind] = (0, now + self._interval_ns) if is_due else (count, due)
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        return count if is_due else 0


def times_text(count: int) -> str:
    """Return the end of a line that stands for ``count`` events."""
    return "" if count == 1 else f" ({count} times since the last such line)"


class ImpossibleMessages:
    """Reports messages that no honest member sends: counts each, and logs them now and then.

    A message of another member that contradicts the rules of the protocol shows a member that is
    broken, forged, or of an incompatible version. The receiver drops it. An operator must know the
    sender, but a member that repeats itself must not fill the log.
    """

    def __init__(self, node: str) -> None:
        self._notices = address_of(node, "node")
        self._reported = Repetitions(REPORT_NS)

    def report(
        self, sender: Address, counter: str, text: str, now: Instant, level: Level = Level.ERROR
    ) -> list[Effect]:
        """Return the counter, and a line for the log unless one was written recently.

        ``text`` says what it sent, and the limit. It continues the sentence "n3 sent ...".
        """
        node = node_of(sender)
        if not self._reported.add(f"{node} {counter}", now):
            return [Observe(counter)]
        notice = RoleNotice(level=level, text=f"{node} sent {text}: it is ignored")
        return [Observe(counter), Send(self._notices, notice)]
