"""Named streams of chance, so that drawing more from one does not reshuffle the others."""

from __future__ import annotations

from random import Random


class Streams:
    """All chance of a run, from one seed.

    ``Random`` seeded with a text hashes it with SHA-512, not with ``hash``, so the
    streams are the same under every ``PYTHONHASHSEED``.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.net = self.fork("net")
        self.nemesis = self.fork("nemesis")
        self.disk = self.fork("disk")
        self.clock = self.fork("clock")
        self.nodes = self.fork("nodes")

    def fork(self, name: str) -> Random:
        """Return a new stream of that name; the same name gives the same stream."""
        return Random(f"{self.seed}/{name}")
