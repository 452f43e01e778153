"""Threads, tasks and asks behind one interface, on a real `paxos` cluster; set-up of all tests.

`test_blocking_and_async*.py` run each test with every kind of caller.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.collected import Lines, logged_to
from support.expect import PATIENCE_S
from support.faces import FACES, Cables, Connect, connecting
from support.hub_station import Make, stations
from support.local_callers import LocalCallers
from support.lock_scene import Scene, ScriptedSession
from support.proxy_scene import proxy_of_n1
from support.real_nodes import PaxosProcesses, loopback_addresses, running
from support.session_harness import SessionHarness, UnkeptSession
from support.table_scene import table_of_three

import fencelock
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.table.table import LockTable
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.testing import LocalCluster, local

_names = itertools.count(1)


# Started in the background by a shell, the tests would ignore SIGINT, and so would all that they
# start; some of it they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is set to write no bytecode, each of the many processes that the tests start would
# compile all that it imports, for half a second of a core. They share a folder outside the tree.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    compiled = tempfile.mkdtemp(prefix="fencelock-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def paxos_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    text = starting_config(loopback_addresses(), cluster=FACES, protocol="paxos")
    config = parse(text, Path(tmp_path_factory.mktemp("faces")))
    with running(config) as nodes:
        yield list(nodes.values())


@pytest.fixture
def paxos_addresses(paxos_nodes: list[Node]) -> str:
    """Return the addresses of the shared nodes."""
    return ",".join(node.address for node in paxos_nodes)


@pytest.fixture
def client_kind() -> str:
    """Return the client that `connect` connects. Modules that test both override it."""
    return "threads"


@pytest.fixture
def connect(paxos_addresses: str, client_kind: str) -> Iterator[Connect]:
    """Return a function that connects one more client to the shared nodes."""
    with connecting(client_kind, paxos_addresses) as connect:
        yield connect


@pytest.fixture
def client(connect: Connect) -> fencelock.Client:
    """Return a client of the shared nodes."""
    return connect()


@pytest.fixture
def name() -> str:
    """Return the name of an object that no other test has used."""
    return f"object-{next(_names)}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Return threads that end with the test."""
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Return a cluster of one node in memory. Modules that need another one override it."""
    with local() as cluster:
        yield cluster


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Return the lines that this process logs."""
    lines = Lines()
    with logged_to(lines.log, "DEBUG"):
        yield lines


@pytest.fixture
def station() -> Iterator[Make]:
    """Return a function that makes socket hubs; they are closed afterwards."""
    yield from stations()


@pytest.fixture
def table() -> LockTable:
    """Return a table with three open sessions."""
    return table_of_three()


@pytest.fixture
def harness() -> SessionHarness:
    """Return a client session between two proxies."""
    return SessionHarness()


@pytest.fixture
def unkept() -> UnkeptSession:
    """Return a client session in a cluster that keeps no sessions."""
    return UnkeptSession()


@pytest.fixture
def proxy() -> Proxy:
    """Return a proxy over a backend that the test plays."""
    return proxy_of_n1()


@pytest.fixture
def inside() -> LocalCallers:
    """Return a proxy of `paxos` with callers in its process."""
    return LocalCallers()


@pytest.fixture
def script() -> ScriptedSession:
    """Return a session that the test plays."""
    return ScriptedSession()


@pytest.fixture
def scene(script: ScriptedSession) -> Iterator[Scene]:
    """Return locks over the session that the test plays."""
    executor = ThreadExecutor()
    yield Scene(script, executor)
    executor.stop(PATIENCE_S)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[PaxosProcesses]:
    """Return three processes of nodes with journals."""
    with PaxosProcesses(tmp_path) as members:
        yield members


@pytest.fixture
def addresses() -> dict[str, str]:
    return loopback_addresses()


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    """Return an empty dictionary; the nodes that a test adds to it are stopped afterwards."""
    nodes: dict[str, Node] = {}
    yield nodes
    for node in nodes.values():
        node.stop()


@pytest.fixture
def cables(paxos_nodes: list[Node]) -> Iterator[Cables]:
    """Return ways to the shared nodes that can be cut."""
    with Cables(node.address for node in paxos_nodes) as cables:
        yield cables
