"""Settings that many read and one changes: python examples/rwlock.py tcp://127.0.0.1:4041

Four threads read the settings at the same time. A fifth changes them, alone, and then reads them
before anybody else can change them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import fencelock

READERS = 4
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    settings = {"colour": "red"}
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(READERS + 1) as threads,
    ):
        rw = client.rwlock("settings")
        together = Barrier(READERS)

        def read(reader: int) -> str:
            with rw.read() as hold:
                together.wait(LONG_S)  # All of them hold it now.
                return f"reader {reader} sees {settings['colour']} under fence {hold.fence}"

        def change() -> str:
            with rw.write() as hold:
                assert len(rw.status().holders) == 1
                settings["colour"] = "blue"  # A store would check hold.fence.
                rw.write().downgrade()  # Readers are let in, writers are not.
                return f"changed to {settings['colour']} under fence {hold.fence}"

        for line in threads.map(read, range(1, READERS + 1)):
            print(line)
        print(threads.submit(change).result(LONG_S))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
