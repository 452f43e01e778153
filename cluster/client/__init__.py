"""The clients: connections, and a module for each object."""
