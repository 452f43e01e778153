"""Tests of a service that uses locks: a cluster in this process, and faults.

For example, with pytest::

    from fencelock.testing import lose

    def test_a_worker_stops_when_its_lock_is_lost(fencelock_client):
        with fencelock_client.lock("orders") as hold:
            lose(hold)
            assert worker(hold) == "stopped"

See docs/testing.md.
"""

from fencelock.cluster.testing.faults import delay, expire, lose, partition
from fencelock.cluster.testing.local import LocalCluster, local

__all__ = ["LocalCluster", "delay", "expire", "local", "lose", "partition"]
