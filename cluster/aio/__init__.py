"""The asyncio face of the client: the same operations, awaited."""
