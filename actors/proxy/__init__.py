"""The role of a node that serves clients, and the interface of the protocols behind it."""
