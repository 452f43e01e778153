"""The command ``fencelock`` with a disk that is slow while a file ``slow-<node>`` exists.

The file is beside the configuration, and contains the duration of each sync (s).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from fencelock.cluster.cli.start import main


def slow_file(folder: Path, node: str) -> Path:
    """Return the file that makes the disk of ``node`` slow."""
    return folder / f"slow-{node}"


def slow_down(path: Path) -> None:
    """Delay each sync while the file ``path`` exists."""
    sync = os.fdatasync

    def slow_sync(descriptor: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float(path.read_text(encoding="ascii")))
        sync(descriptor)

    setattr(os, "fdatasync", slow_sync)  # noqa: B010 (pyright takes it for a constant)


if __name__ == "__main__":
    node, config = (sys.argv[sys.argv.index(name) + 1] for name in ("--id", "--config"))
    slow_down(slow_file(Path(config).parent, node))
    main()
