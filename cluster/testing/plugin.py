"""The pytest plugin, which pytest loads wherever fencelock is installed. See docs/testing.md."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencelock.aio import Client as AioClient
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.testing.local import LocalCluster

# A node is imported when a test needs one: most runs of pytest do not.


@pytest.fixture
def fencelock_cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[LocalCluster]:
    """Return a cluster in memory, new for each test.

    `fencelock.connect` and the default clients (`fencelock.lock`) find it by themselves.
    """
    from fencelock.cluster.client.lazy import defaults  # noqa: PLC0415
    from fencelock.cluster.testing.local import local  # noqa: PLC0415

    with local() as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        defaults.reset()
        yield cluster
        defaults.reset()


@pytest.fixture
def fencelock_client(fencelock_cluster: LocalCluster) -> Client:
    """Return a client of the test's own cluster."""
    return fencelock_cluster.connect()


@pytest.fixture
def fencelock_aio_client(fencelock_cluster: LocalCluster) -> Generator[AioClient]:
    """Return an asyncio client of the test's own cluster, for the loop that first uses it."""
    from fencelock.cluster.client.client import AsyncClient  # noqa: PLC0415
    from fencelock.cluster.client.lazy import LoopConnection  # noqa: PLC0415
    from fencelock.cluster.client.settings import DEFAULT_CLUSTER, Settings, Target  # noqa: PLC0415

    target = Target(fencelock_cluster.addresses, DEFAULT_CLUSTER, "")
    connection = LoopConnection(lambda: Settings(target))
    yield AsyncClient(connection)
    connection.close_all()
