"""What survives a crash: an append-only journal with checksums."""
