"""A service that writes a report under a lock, and stops when the lock is lost.

`test_report_service.py` tests it with faults: `pytest examples/test_report_service.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import fencelock


def write_report(client: fencelock.Client, file: Path, rows: Iterable[str]) -> int:
    """Write ``rows`` into ``file`` while no other process does; return how many were written.

    It looks at the lock before each row, and raises `LockOwnershipLostError` once it is lost.
    """
    written = 0
    with client.lock(f"report/{file.name}", timeout=5) as hold, file.open("a") as report:
        for row in rows:
            hold.raise_if_lost()
            report.write(f"{hold.fence} {row}\n")
            written += 1
    return written
