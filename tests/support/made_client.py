"""A base of clients that are made up, for tests of commands."""

from __future__ import annotations

from typing import Self


class MadeClient:
    """Connects to nothing, and has no time limit."""

    def connect_to(self, where: object, *, timeout: float) -> Self:
        """Return this client, in place of `fencelock.cluster.client.connect_to`."""
        del where, timeout
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def answer_by(self, ends_at: float) -> None:
        """Set a time limit for requests."""
        del ends_at
