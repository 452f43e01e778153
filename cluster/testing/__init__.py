"""Tests of services that use locks: a cluster in memory, a pytest plugin, and faults."""
