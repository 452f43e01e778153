"""The client side of the service: one session that sends requests, retries and changes nodes."""
