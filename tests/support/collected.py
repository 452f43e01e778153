"""Values that other threads add, and a wait for one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from support.real_nodes import LONG_S

T = TypeVar("T")
R = TypeVar("R")


class Collected(Generic[T]):
    """Values in the order in which they were added."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._more = threading.Condition()

    def add(self, value: T) -> None:
        """Add ``value``, and wake those that wait."""
        with self._more:
            self.values.append(value)
            self._more.notify_all()

    def wait_for(self, found: Callable[[Sequence[T]], R | None]) -> R:
        """Return what ``found`` returns for the values, once that is not None."""
        with self._more:
            result = self._more.wait_for(lambda: found(self.values), LONG_S)
        assert result is not None, self.values
        return result
