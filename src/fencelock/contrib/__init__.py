"""Locks in frameworks, a module each. Each imports its framework, so import it only where that is.

See docs/frameworks.md.
"""
