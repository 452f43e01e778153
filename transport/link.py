"""One link to a peer: a DEALER, its monitor, and the events they report."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import parse_monitor_message

from fencelock.actors.link import LinkDown, LinkRefused, LinkUp
from fencelock.transport.sockets import LINK_EVENTS, Socket, close_socket, connected_dealer

LinkEvent = LinkUp | LinkDown | LinkRefused

DETAIL_CHARS_MAX = 300
"""Limit of a stranger's explanation that is passed on."""


class Link:
    """The connection to the peer ``node``, which may be up, down, or not yet known to be either."""

    def __init__(
        self, context: zmq.Context[Socket], node: str, endpoint: str, identity: bytes
    ) -> None:
        self.node = node
        self.endpoint = endpoint
        self.dealer = connected_dealer(context, endpoint, identity)
        self.monitor: Socket = self.dealer.get_monitor_socket(LINK_EVENTS)
        self.up: bool | None = None
        self._refusal = ""
        self._news: list[LinkEvent] = []

    def watch(self) -> None:
        """Read the events of the monitor; never blocks."""
        while True:
            try:
                parts = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._turned(parse_monitor_message(parts)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def _turned(self, up: bool) -> None:
        """Record that the link is ``up`` or down; only a change is an event."""
        if up == self.up:
            return
        self.up = up
        self._refusal = ""
        if up:
            # Reading the events lets libzmq attach the connection; without this, a message sent
            # within the next millisecond would find none.
            self.dealer.getsockopt(zmq.EVENTS)
        self._news.append(LinkUp(node=self.node) if up else LinkDown(node=self.node))

    def refused(self, detail: str) -> None:
        """Record that the endpoint is not the expected peer; the same text once per link."""
        detail = f"{self.endpoint}: {detail[:DETAIL_CHARS_MAX]}"
        if detail != self._refusal:
            self._refusal = detail
            self._news.append(LinkRefused(node=self.node, detail=detail))

    def news(self) -> list[LinkEvent]:
        """Return what changed since the last call, oldest first."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Close the sockets."""
        close_socket(self.dealer)
