"""Nodes inside your own service, which take requests like any Pykka actor.

    python examples/embedded.py

Three nodes run in this process and connect over loopback, as they would in three processes of
a service, at ports 4141 to 4143 or those that are given. The example acquires a lock through one
node, waits for it through another, and asks the roles of the nodes for their state. The nodes stop
at the end of `with`; the end of the process, `node.stop` and Pykka's `ActorRegistry.stop_all` stop
nodes, too.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from fencelock import (
    Acquire,
    DescribeRole,
    Inspect,
    LockTimeoutError,
    Node,
    ReadClock,
    ReadLeaders,
    Release,
)

CONFIG = """
cluster = "embedded"
protocol = "paxos"
data = "journals"
[nodes.n1]
address = "tcp://127.0.0.1:{}"
[nodes.n2]
address = "tcp://127.0.0.1:{}"
[nodes.n3]
address = "tcp://127.0.0.1:{}"
"""


def main(file: Path) -> None:
    with ExitStack() as nodes:
        one, two, _ = (
            nodes.enter_context(Node.start(file, node, found=True)) for node in ("n1", "n2", "n3")
        )
        first = one.proxy.ask(Acquire(lock="orders/42"), timeout=30)
        print(f"n1 granted orders/42 under fence {first.fence}")

        waiting = two.proxy.ask(Acquire(lock="orders/42"), block=False)
        try:
            two.proxy.ask(Acquire(lock="orders/42", wait_ms=200))
        except LockTimeoutError as error:
            print(f"refused: {error}")
        status = one.proxy.ask(Inspect(lock="orders/42"), timeout=30)
        print(f"as n1 sees it: held on {status.holder and status.holder.node}, ", end="")
        print(f"waited for on {', '.join(waiter.node for waiter in status.waiters)}")

        one.proxy.ask(Release(lock="orders/42", fence=first.fence), timeout=30)
        for node in (one, two):  # Any role can be asked, from any thread.
            clock = node.ref("clock").ask(ReadClock(), timeout=1)
            leader = node.ref("leader").ask(ReadLeaders(), timeout=1)
            role = node.ref("replica").ask(DescribeRole(), timeout=1)
            print(
                f"{node.id} has logical time {clock.time}, and follows {leader.leaders}; ", end=""
            )
            print(f"{role.waiting} events wait for its {role.kind}")

        second = waiting.get(timeout=30)
        print(f"n2 granted orders/42 under fence {second.fence}")
        assert second.fence > first.fence
        two.proxy.ask(Release(lock="orders/42", fence=second.fence), timeout=30)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        config = Path(folder, "cluster.toml")
        config.write_text(CONFIG.format(*(sys.argv[1:] or range(4141, 4144))))
        main(config)
