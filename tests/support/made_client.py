"""The base of clients that a command of the CLI gets instead of a connection."""

from __future__ import annotations

from typing import Self


class MadeClient:
    """Replaces `fencelock.cluster.client.client.connect_to`, and the client that it returns."""

    def connect_to(self, where: object, *, timeout: float) -> Self:
        del where, timeout
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def reply_by(self, ends_at: float) -> None:
        """Set a time limit for requests."""
        del ends_at
