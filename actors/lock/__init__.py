"""The parts that all protocols share: requests, replies, lock names, and the proxy for clients."""
