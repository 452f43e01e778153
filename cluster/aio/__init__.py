"""The asyncio client: the same operations, awaited."""
