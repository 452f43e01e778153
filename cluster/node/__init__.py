"""A node: its configuration, its storage, its metrics, and the process that runs its roles."""
