"""A thread that runs while a ``with`` statement does."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

STOP_S = 10.0


class Background(ABC):
    """A thread of its own for `run`, which ends soon after `stopped` is set."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.run)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._thread.join(STOP_S)
