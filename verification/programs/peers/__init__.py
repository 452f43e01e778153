"""The peers of the speed comparison: each a way to start its servers and to take its locks."""
