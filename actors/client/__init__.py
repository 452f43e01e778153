"""A user's end of the service: one session that asks, retries and changes nodes."""
