"""A doorbell: wakes the thread that sleeps in a poll, from any other thread."""

from __future__ import annotations

import contextlib
import os
import threading


class Doorbell:
    """A file descriptor that is readable from `ring` until `answer`.

    Several rings before the answer are one wake-up and one write. The woken thread must
    answer first and look for work after, or it loses a ring.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._rung = False
        self._open = True

    def ring(self) -> None:
        """Make the descriptor readable; from any thread, also after `close`."""
        if self._rung:
            return
        with self._lock:  # Against `close`: a closed descriptor's number may be another's by now.
            if self._open and not self._rung:
                os.eventfd_write(self.fd, 1)  # First: an interrupt must not leave the bell deaf.
                self._rung = True

    def answer(self) -> None:
        """Make the descriptor wait for the next `ring`; from the owning thread."""
        with self._lock:
            self._rung = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)

    def close(self) -> None:
        """Free the descriptor; from the owning thread."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)
