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
    """Return a cluster in memory, new for each test; `fencelock.connect` finds it by itself."""
    from fencelock.cluster.testing.local import local  # noqa: PLC0415

    with local() as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        yield cluster


@pytest.fixture
def fencelock_client(fencelock_cluster: LocalCluster) -> Client:
    """Return a client of the test's own cluster."""
    return fencelock_cluster.connect()


@pytest.fixture
def fencelock_aio_client(fencelock_cluster: LocalCluster) -> Generator[AioClient]:
    """Return an asyncio client of the test's own cluster, for the loop that first uses it."""
    from fencelock.cluster.testing.local import FixtureClient  # noqa: PLC0415

    client = FixtureClient.connect(fencelock_cluster)
    yield client
    client.close_outside()
