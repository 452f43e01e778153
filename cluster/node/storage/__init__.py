"""Durable storage: an append-only journal with checksums."""
