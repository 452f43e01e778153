"""Guards of what locks protect: they refuse writes under stale fences."""
