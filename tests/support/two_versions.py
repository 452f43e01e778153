"""Run a node or a client in another version of the wire, for `test_growth_real.py`.

    python two_versions.py VERSION serve ARGUMENT...
    python two_versions.py VERSION lock CLUSTER PATIENCE_S TIMES ADDRESS...

VERSION is one of:

``old``
    The messages as the product declares them.
``new``
    The messages in `GROWN` have one more optional field.
``refusing``
    As ``old``, with a planted bug: the reader refuses messages that have more fields.

``serve`` is ``fencelock serve``. ``lock`` connects to each address in turn, acquires and releases
a lock there, asks all nodes to describe themselves, and prints a line of JSON: the fences, the
client's counters, and the counters of each node that answered.
"""

# ruff: noqa: PLC0415  (the package is imported after its messages are replaced)

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

GROWN = {
    0x14: "Describe",
    0x1D: "NodeStatus",
    0x24: "Accepted",
    0x26: "Heartbeat",
    0x27: "HeartbeatAck",
}
"""Messages of clients, of nodes to clients, and between nodes. None is a command or an outcome that
snapshots keep, since those get no new field (``transport/README.md``)."""


class NewVersion(MetaPathFinder):
    """Adds a field to messages as they are declared, before any other module imports them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find ``fencelock.actors.message`` as usual, and change its `EventType` once it ran."""
        if name != "fencelock.actors.message":
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_grown(module: ModuleType) -> None:
            execute(module)
            growing(module.EventType)

        loader.exec_module = execute_grown
        return spec


def growing(event_type: Any) -> None:
    """Let the type of messages add an optional field to the classes in `GROWN`."""
    make = event_type.__new__

    def make_grown(
        mcls: Any, name: str, bases: Any, body: dict[str, Any], *, tag: Any = None, **options: Any
    ) -> Any:
        if tag is not None and name == GROWN.get(tag):
            body["__annotations__"]["added"] = tuple[str, ...]
            body["added"] = ("from", "a newer version")
        return make(mcls, name, bases, body, tag=tag, **options)

    event_type.__new__ = make_grown


def refuse_longer_messages() -> None:
    """Plant the bug: a reader that knows only one length of each message."""
    from fencelock.transport import frame

    setattr(frame, "EXTRA_FIELDS_MAX", 0)  # noqa: B010  (as the next, not exported)


def lock(cluster: str, patience_s: float, times: int, addresses: Sequence[str]) -> dict[str, Any]:
    """Acquire and release at each address; return the fences and the counters."""
    import fencelock
    from fencelock.cluster.client import connection

    counted: Counter[str] = Counter()
    hub_of: Any = vars(connection)["SocketHub"]

    def counting_hub(*, count: Callable[[str, int], None], **arguments: Any) -> Any:
        def count_both(name: str, times: int) -> None:
            counted[name] += times
            count(name, times)

        return hub_of(count=count_both, **arguments)

    setattr(connection, "SocketHub", counting_hub)  # noqa: B010
    known = inspect.signature(fencelock.connect).parameters  # An older one has ``timeout``.
    limit: Any = {"connect_timeout" if "connect_timeout" in known else "timeout": patience_s}
    fences: list[int] = []
    for address in addresses:
        with fencelock.connect(address, cluster=cluster, **limit) as client:
            for _ in range(times):
                held = client.lock("printer")
                held.acquire(timeout=patience_s)
                assert held.fence is not None
                fences.append(held.fence)
                held.release()
            assert client.status("printer").holder is None
            client.describe()
    with fencelock.connect(",".join(addresses), cluster=cluster, **limit) as client:
        statuses = client.describe()
    nodes = {one.node: {each.name: each.times for each in one.counters} for one in statuses}
    return {"fences": fences, "client": dict(counted), "nodes": nodes}


def main(version: str, action: str, *arguments: str) -> None:
    """Run the command line in ``version``."""
    if version == "new":
        sys.meta_path.insert(0, NewVersion())
    if version == "refusing":
        refuse_longer_messages()
    if action == "serve":
        from fencelock.cluster.cli.start import main as command_line

        sys.argv = ["fencelock", "serve", *arguments]
        command_line()
    else:
        cluster, patience_s, times, *addresses = arguments
        report = lock(cluster, float(patience_s), int(times), addresses)
        sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
