"""The Redis door: programs that lock with Redis use a cluster by its address."""
