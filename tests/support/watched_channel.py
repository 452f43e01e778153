"""A client's channel to its session, of which a test sees each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.cluster.host.pending_asks import AskReply


class WatchedChannel:
    """A channel that shows requests to a test before it sends them.

    Args:
        channel: sends the requests.
        takes: called with each request and its reply; returns whether it has taken the request,
            which is then not sent.

    """

    def __init__(self, channel: Any, takes: Callable[[Any, AskReply], bool]) -> None:
        self._channel = channel
        self._takes = takes

    def submit(self, message: Any, reply: AskReply) -> None:
        """Send a request that the test does not take."""
        if not self._takes(message, reply):
            self._channel.submit(message, reply)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)
