"""A proxy that must not serve any more: it describes itself, and refuses everything else."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.api.message import Describe, KeepAlive, NodeStatus, Reason
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import End, Ended
from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.paxos.proxy_event import Heard, Query
from fencelock.actors.paxos.proxy_reading import QUESTIONS_MAX
from fencelock.actors.paxos.proxy_wording import refuse
from fencelock.actors.proxy.backend import Report, Reported


class Closed:
    """The remainder of a proxy whose node is quarantined.

    The session of callers inside the process is refused at once. A client elsewhere gets no reply,
    as if the node had crashed: it moves to another node, and keeps its session, holds and waits.

    Args:
        node: this node.
        members: all members, sorted.
        why: reason why it does not serve, in words.

    """

    def __init__(self, node: str, members: tuple[str, ...], why: str) -> None:
        self.node = node
        self.members = members
        self.why = why
        self.asked: list[tuple[Address, Describe]] = []

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Describe this node, or refuse."""
        del now
        match event:
            case Describe():
                return self._on_describe(sender, event)
            case Reported():
                return self._on_reported(event)
            case End() if node_of(sender) == self.node:
                return (self.end(sender, event.session),)
            case KeepAlive():
                return (Observe("proxy.closed_ignores"),)
            case _:
                pass
        if isinstance(event, Command | Query):
            return self.refuse_all(((sender, event),))
        return (Observe("proxy.closed_ignores"),)

    def end(self, asker: Address, session: str) -> Send:
        """Tell the session of callers inside the process that it has ended."""
        return Send(asker, Ended(session=session, detail=self.why))

    def refuse_all(self, asked: Iterable[tuple[Address, Command | Query]]) -> list[Effect]:
        """Refuse the requests of callers inside the process."""
        text = f"node {self.node} does not serve: {self.why}"
        return [
            refuse(asker, one, Reason.UNAVAILABLE, text)
            for asker, one in asked
            if node_of(asker) == self.node
        ]

    def _on_describe(self, asker: Address, describe: Describe) -> Effects:
        if len(self.asked) >= QUESTIONS_MAX or len(describe.session) > OWNER_BYTES_MAX:
            return (Observe("proxy.describe_dropped"),)
        self.asked.append((asker, describe))
        return (Send(address_of(self.node, "node"), Report()),) if len(self.asked) == 1 else ()

    def _on_reported(self, reported: Reported) -> Effects:
        asked, self.asked = self.asked, []
        return [
            Send(
                asker,
                NodeStatus(
                    node=self.node,
                    protocol="paxos",
                    nodes=self.members,
                    ready=False,
                    detail=self.why,
                    uptime_ms=reported.uptime_ms,
                    counters=reported.counters,
                    locks=(),
                    session=describe.session,
                    request=describe.request,
                    roles=reported.roles if describe.roles else (),
                ),
            )
            for asker, describe in asked
        ]
