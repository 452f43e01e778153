"""Real time: one dispatcher thread that runs all roles of a node."""
