"""Reports of what no honest member sends: counted each time, logged now and then.

A message of another member that contradicts the rules of the protocol shows a member that is
broken, forged, or of an incompatible version. The receiver drops it. An operator must know the
sender, but a member that repeats itself must not fill the log.
"""

from __future__ import annotations

from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of, node_of
from fencelock.actors.role_message import Level, RoleNotice

REPORT_MS = 60_000
"""Shortest interval between two lines about one sender and one kind of message (ms)."""

REPORTS_MAX = 256
"""Senders and kinds of which the last line is remembered; beyond it, the oldest is forgotten."""


class ImpossibleMessages:
    """What one role reports of impossible messages.

    Args:
        node: the id of its node.

    """

    def __init__(self, node: str) -> None:
        self._notices = address_of(node, "node")
        self._reported: dict[tuple[str, str], Instant] = {}

    def report(
        self,
        sender: Address,
        counter: str,
        text: str,
        now: Instant,
        level: Level = Level.ERROR,
    ) -> list[Effect]:
        """Return the counter, and a line for the log unless one was written recently.

        Args:
            sender: the role that sent the message.
            counter: the kind, as the metrics name it.
            text: what it sent, and the limit. It continues the sentence "n3 sent ...".
            now: the present time.
            level: the severity of the line.

        """
        key = node_of(sender), counter
        before = self._reported.get(key)
        if before is not None and now - before < REPORT_MS * NS_PER_MS:
            return [Observe(counter)]
        self._reported.pop(key, None)
        self._reported[key] = now
        if len(self._reported) > REPORTS_MAX:
            del self._reported[next(iter(self._reported))]
        notice = RoleNotice(level=level, text=f"{key[0]} sent {text}: it is ignored")
        return [Observe(counter), Send(self._notices, notice)]
