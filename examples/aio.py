"""Tasks that share locks, against a running node: python examples/aio.py tcp://127.0.0.1:4041"""

from __future__ import annotations

import asyncio
import sys

from fencelock import Notice, aio

WORKERS = 5


async def work(client: aio.Client, number: int, ledger: list[int]) -> None:
    """Change the shared state, one worker at a time."""
    async with client.lock("ledger", timeout=30, label=f"worker {number}") as hold:
        before = len(ledger)
        await asyncio.sleep(0)  # Another task would come in between here.
        hold.raise_if_lost()  # Cheap: it looks at a clock, not at the network.
        assert len(ledger) == before
        ledger.append(hold.fence)


def warn(notice: Notice) -> None:
    print(f"{notice.lock} is {notice.state.value}: {notice.detail}")


async def main(addresses: str, cluster: str) -> None:
    ledger: list[int] = []
    async with aio.connect(addresses, cluster=cluster) as client:
        client.on_suspect(warn)
        client.on_lost(warn)
        await asyncio.gather(*(work(client, number, ledger) for number in range(WORKERS)))
    print(f"{len(ledger)} tasks held the lock, one after the other, under fences {ledger}")
    assert ledger == sorted(set(ledger))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock"))
