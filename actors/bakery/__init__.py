"""Tickets agreed by three elected leaders: exclusive locks with deadlines.

Source: the essay *snaplock*. Epochs, quorums, votes with leases, and fences are ours.
"""
