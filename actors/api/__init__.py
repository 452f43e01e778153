"""Requests and replies of clients, their limits, and names."""
