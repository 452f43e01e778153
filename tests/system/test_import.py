from __future__ import annotations

import subprocess
import sys

CLIENT_ONLY = """
import sys
import fencelock
print(*sys.modules)
"""

SERVER = (
    "fencelock.actors.bakery",
    "fencelock.actors.bootstrap",
    "fencelock.actors.central",
    "fencelock.actors.lamport",
    "fencelock.actors.proxy.proxy",
    "fencelock.actors.table.table",
    "fencelock.actors.paxos",
    "fencelock.cluster.cli",
    "fencelock.cluster.node.node",
    "fencelock.verification.simulation",
    "fencelock.cluster.node.storage.journal",
    "fencelock.cluster.node.topology",
    "pydantic",
    "pydantic_settings",
    "rich",
    "typer",
)


def loaded(program: str) -> set[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_package_loads_the_client_and_no_server_role() -> None:
    modules = loaded(CLIENT_ONLY)
    assert "fencelock.actors.session.session" in modules
    assert [name for name in SERVER if name in modules] == []


def test_asking_for_a_node_loads_the_server_roles() -> None:
    modules = loaded(CLIENT_ONLY.replace("print", "fencelock.Node\nprint", 1))
    assert {"fencelock.actors.paxos", "fencelock.cluster.node.topology"} <= modules


def test_the_commands_load_no_server_role_before_one_needs_it() -> None:
    """They would take twice as long to start, and scripts run many of them."""
    modules = loaded(
        CLIENT_ONLY.replace("import fencelock", "import fencelock.cluster.cli.main", 1)
    )
    needless = [name for name in SERVER if name not in ("fencelock.cluster.cli", "rich", "typer")]
    assert [name for name in needless if name in modules] == []
