"""Tickets agreed by three elected leaders: exclusive locks with deadlines.

Source: the description of snaplock, with the remedies of our design page.
"""
