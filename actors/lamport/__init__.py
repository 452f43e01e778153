"""Mutual exclusion by logical time.

Source: Lamport, "Time, Clocks, and the Ordering of Events in a Distributed
System", CACM 21(7), 1978.
"""
