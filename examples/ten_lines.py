"""The README's lock, against a running node: python examples/ten_lines.py tcp://127.0.0.1:4041"""

from __future__ import annotations

import sys

import fencelock


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        client.lock("orders/42", timeout=30) as hold,
    ):
        print(f"I hold {hold.name} under fence {hold.fence}")
    print("and now somebody else may")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
