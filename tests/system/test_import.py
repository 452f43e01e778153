from __future__ import annotations

import sys

import pytest
from support.programs import run_to_end

import fencelock.names

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
    "asyncio",
    "loguru",
    "multiprocessing",
    "pydantic",
    "pydantic_settings",
    "rich",
    "ssl",
    "typer",
)


def loaded(program: str) -> set[str]:
    command = [sys.executable, "-c", program]
    done = run_to_end(command, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_and_its_first_use_the_client() -> None:
    modules = loaded(CLIENT_ONLY)
    assert {name for name in modules if name.startswith("fencelock")} == {"fencelock"}
    modules = loaded(CLIENT_ONLY.replace("print", "fencelock.lock\nprint", 1))
    assert "fencelock.actors.session.session" in modules
    slow = ("ctypes", "hashlib", "pathlib", "fencelock.cluster.node.storage")
    assert [name for name in (*SERVER, *slow) if name in modules] == []


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


LOCKS = """
import sys
from fencelock.cluster.cli.start import main
sys.argv = ["fencelock", "lock", "x", "--", "true"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules)
"""


@pytest.mark.usefixtures("fencelock_cluster")
def test_the_command_that_cron_runs_imports_only_what_it_needs() -> None:
    """It starts in 0.2 s. Each of these costs a part of that."""
    modules = loaded(LOCKS)
    commands = {name for name in modules if name.startswith("fencelock.cluster.cli.")}
    assert {name.rpartition(".")[2] for name in commands} == {
        "completion",
        "exit_status",
        "formatting",
        "lock",
        "options",
        "start",
        "target",
    }
    spared = (
        *(name for name in SERVER if name != "fencelock.cluster.cli"),
        "fencelock.transport.listener",
        "fencelock.transport.stream",
        "fencelock.actors.proxy.access",
        "fencelock.actors.redis",
        "fencelock.cluster.keys",
        "prometheus_client",
    )
    assert [name for name in spared if name in modules] == []


def test_all_has_what_programs_need_day_by_day_and_every_name_is_there() -> None:
    names = {name for name in vars(fencelock.names) if name[0].isalpha()}
    assert set(fencelock.__all__) - names == {"Config", "Node", "aio", "load"}
    left_out = {
        name
        for name in names - set(fencelock.__all__) - {"map"}
        if not getattr(fencelock, name).__module__.startswith("fencelock.actors.api.")
    }
    assert left_out == set(), "fencelock/names.py has these, and __all__ of fencelock does not"
    assert all(hasattr(fencelock, name) for name in dir(fencelock))
    assert "Acquire" not in dir(fencelock)
    with pytest.raises(AttributeError, match="has no attribute 'Lokc'"):
        _ = fencelock.Lokc  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
