"""The replicated table of locks: a pure function of the log."""
